//! Hashes.

use super::{Core, Reply};
use crate::effect::Effect;
use crate::fast_hash::FastMap;
use crate::number::{format_int, parse_int};
use crate::value::{EngineError, NOT_INTEGER, OVERFLOW, Value};

/// Up to this many fields a linear search is faster than hashing, and the order of insertion is kept.
const LINEAR_FIELDS_MAX: usize = 32;

/// Fields in the order of their insertion, with an index once there are many.
#[derive(Default)]
pub(crate) struct Hash {
    fields: Vec<(Box<[u8]>, Vec<u8>)>,
    index: Option<FastMap<Box<[u8]>, usize>>,
}

impl Hash {
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    fn position(&self, field: &[u8]) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(field).copied(),
            None => self.fields.iter().position(|(name, _)| &**name == field),
        }
    }

    pub(crate) fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.position(field).map(|at| self.fields[at].1.as_slice())
    }

    /// The field that came last, as long as the order of insertion is kept.
    fn last(&self) -> Option<&[u8]> {
        self.fields.last().map(|(name, _)| &**name)
    }

    /// Sets a field; true when it is new.
    pub(crate) fn set(&mut self, field: &[u8], value: Vec<u8>) -> bool {
        if let Some(at) = self.position(field) {
            self.fields[at].1 = value;
            return false;
        }
        if let Some(index) = &mut self.index {
            index.insert(field.into(), self.fields.len());
        }
        self.fields.push((field.into(), value));
        if self.index.is_none() && self.fields.len() > LINEAR_FIELDS_MAX {
            self.index =
                Some(self.fields.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect());
        }
        true
    }

    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        let Some(at) = self.position(field) else { return false };
        match &mut self.index {
            None => {
                self.fields.remove(at);
            }
            Some(index) => {
                index.remove(field);
                self.fields.swap_remove(at);
                if let Some((moved, _)) = self.fields.get(at) {
                    index.insert(moved.clone(), at);
                }
            }
        }
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(field, value)| (&**field, value.as_slice()))
    }
}

pub(crate) fn hset(core: &mut Core, args: &[&[u8]]) -> Reply {
    if !args.len().is_multiple_of(2) {
        return Err(EngineError::fixed("ERR wrong number of arguments for 'hset' command"));
    }
    let key = args[1];
    let hash = core.hash_or_new(key)?;
    let mut added = 0;
    for pair in args[2..].chunks_exact(2) {
        added += i64::from(hash.set(pair[0], pair[1].to_vec()));
    }
    if core.journaling {
        for pair in args[2..].chunks_exact(2) {
            emit_set(core, key, pair[0], pair[1]);
        }
    }
    Ok(Value::Int(added))
}

fn emit_set(core: &mut Core, key: &[u8], field: &[u8], value: &[u8]) {
    core.emit(|| Effect::HashSet { key: key.to_vec(), field: field.to_vec(), value: value.to_vec() });
}

pub(crate) fn hsetnx(core: &mut Core, args: &[&[u8]]) -> Reply {
    let hash = core.hash_or_new(args[1])?;
    if hash.get(args[2]).is_some() {
        return Ok(Value::Int(0));
    }
    hash.set(args[2], args[3].to_vec());
    emit_set(core, args[1], args[2], args[3]);
    Ok(Value::Int(1))
}

pub(crate) fn hget(core: &mut Core, args: &[&[u8]]) -> Reply {
    let value = core.hash(args[1])?.and_then(|hash| hash.get(args[2]));
    Ok(value.map_or(Value::Nil, Value::bytes))
}

pub(crate) fn hmget(core: &mut Core, args: &[&[u8]]) -> Reply {
    let hash = core.hash(args[1])?;
    let get = |field: &&[u8]| hash.as_ref().and_then(|hash| hash.get(field)).map_or(Value::Nil, Value::bytes);
    Ok(Value::Array(args[2..].iter().map(get).collect()))
}

pub(crate) fn hexists(core: &mut Core, args: &[&[u8]]) -> Reply {
    let found = core.hash(args[1])?.is_some_and(|hash| hash.get(args[2]).is_some());
    Ok(Value::Int(i64::from(found)))
}

pub(crate) fn hlen(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::Int(core.hash(args[1])?.map_or(0, |hash| super::keys::count(hash.len()))))
}

pub(crate) fn hincrby(core: &mut Core, args: &[&[u8]]) -> Reply {
    let by = parse_int(args[3]).ok_or(NOT_INTEGER)?;
    let old = match core.hash(args[1])?.and_then(|hash| hash.get(args[2])) {
        Some(text) => parse_int(text).ok_or(EngineError::fixed("ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(OVERFLOW)?;
    let text = format_int(new);
    core.hash_or_new(args[1])?.set(args[2], text.as_bytes().to_vec());
    emit_set(core, args[1], args[2], text.as_bytes());
    Ok(Value::Int(new))
}

pub(crate) fn hdel(core: &mut Core, args: &[&[u8]]) -> Reply {
    let key = args[1];
    let Some(hash) = core.hash(key)? else { return Ok(Value::Int(0)) };
    let mut gone = 0;
    let mut removed: Vec<&[u8]> = Vec::new();
    for field in &args[2..] {
        if hash.remove(field) {
            gone += 1;
            removed.push(field);
        }
    }
    let empty = hash.len() == 0;
    if core.journaling {
        for field in removed {
            core.emit(|| Effect::HashDelete { key: key.to_vec(), field: field.to_vec() });
        }
    }
    if empty {
        core.remove_if_empty(key);
    } else if gone > 0 {
        core.lessened(key);
    }
    Ok(Value::Int(gone))
}

pub(crate) fn hkeys(core: &mut Core, args: &[&[u8]]) -> Reply {
    collect(core, args[1], |field, _, out| out.push(Value::bytes(field)))
}

pub(crate) fn hvals(core: &mut Core, args: &[&[u8]]) -> Reply {
    collect(core, args[1], |_, value, out| out.push(Value::bytes(value)))
}

pub(crate) fn hgetall(core: &mut Core, args: &[&[u8]]) -> Reply {
    collect(core, args[1], |field, value, out| {
        out.push(Value::bytes(field));
        out.push(Value::bytes(value));
    })
}

/// `HRANDFIELD key`: some field. `HRANDFIELD key count WITHVALUES` with a count above 0: some fields, each once. Which ones is
/// nobody's promise; here they are the last one and the first ones, because the engine has no randomness of its own.
pub(crate) fn hrandfield(core: &mut Core, args: &[&[u8]]) -> Reply {
    if args.len() == 2 {
        let last = core.hash(args[1])?.and_then(|hash| hash.last().map(Value::bytes));
        return Ok(last.unwrap_or(Value::Nil));
    }
    let count = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let (Some(count), true) = (count, args.len() == 4 && args[3].eq_ignore_ascii_case(b"withvalues")) else {
        return Err(EngineError::fixed("ERR syntax error"));
    };
    let mut out = Vec::new();
    if let Some(hash) = core.hash(args[1])? {
        for (field, value) in hash.iter().take(count) {
            out.extend([Value::bytes(field), Value::bytes(value)]);
        }
    }
    Ok(Value::Array(out))
}

fn collect(core: &mut Core, key: &[u8], add: impl Fn(&[u8], &[u8], &mut Vec<Value>)) -> Reply {
    let mut out = Vec::new();
    if let Some(hash) = core.hash(key)? {
        for (field, value) in hash.iter() {
            add(field, value, &mut out);
        }
    }
    Ok(Value::Array(out))
}
