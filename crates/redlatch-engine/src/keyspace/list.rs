//! Lists.

use std::collections::VecDeque;

use super::keys::count;
use super::{Core, Reply};
use crate::effect::Effect;
use crate::number::parse_int;
use crate::value::{NOT_INTEGER, NOT_POSITIVE, Value};

/// Turns a pair of signed positions (negative: from the end) into a range, empty when nothing is meant.
pub(crate) fn span(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let len = count(len);
    let start = if start < 0 { (start + len).max(0) } else { start };
    let stop = if stop < 0 { stop + len } else { stop }.min(len - 1);
    if start > stop || start >= len {
        return 0..0;
    }
    usize::try_from(start).unwrap_or(0)..usize::try_from(stop + 1).unwrap_or(0)
}

/// `LREM`: the first `count` equal values, the last ones when negative, all when zero.
pub(crate) fn remove_equal(list: &mut VecDeque<Vec<u8>>, value: &[u8], count: i64) -> usize {
    let before = list.len();
    let mut left = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let mut keep = |item: &Vec<u8>| {
        let hit = left > 0 && item == value;
        left -= u64::from(hit);
        !hit
    };
    if count >= 0 {
        list.retain(keep);
    } else {
        let mut kept = VecDeque::with_capacity(before);
        while let Some(item) = list.pop_back() {
            if keep(&item) {
                kept.push_front(item);
            }
        }
        *list = kept;
    }
    before - list.len()
}

fn push(core: &mut Core, args: &[&[u8]], front: bool) -> Reply {
    let list = core.list_or_new(args[1])?;
    for value in &args[2..] {
        if front { list.push_front(value.to_vec()) } else { list.push_back(value.to_vec()) }
    }
    let len = count(list.len());
    for value in &args[2..] {
        core.emit(|| Effect::ListPush { key: args[1].to_vec(), value: value.to_vec(), front });
    }
    Ok(Value::Int(len))
}

pub(crate) fn lpush(core: &mut Core, args: &[&[u8]]) -> Reply {
    push(core, args, true)
}

pub(crate) fn rpush(core: &mut Core, args: &[&[u8]]) -> Reply {
    push(core, args, false)
}

fn pop(core: &mut Core, args: &[&[u8]], front: bool) -> Reply {
    let wanted = match args.get(2) {
        None => None,
        Some(text) => {
            Some(parse_int(text).and_then(|wanted| u64::try_from(wanted).ok()).ok_or(NOT_POSITIVE)?)
        }
    };
    let Some(list) = core.list(args[1])? else { return Ok(Value::Nil) };
    let mut out = Vec::new();
    for _ in 0..wanted.unwrap_or(1) {
        match if front { list.pop_front() } else { list.pop_back() } {
            Some(value) => out.push(Value::Bytes(value)),
            None => break,
        }
    }
    let taken = out.len() as u64;
    if taken > 0 {
        core.emit(|| Effect::ListPop { key: args[1].to_vec(), count: taken, front });
        core.remove_if_empty(args[1]);
    }
    match wanted {
        Some(_) => Ok(Value::Array(out)),
        None => Ok(out.pop().unwrap_or(Value::Nil)),
    }
}

pub(crate) fn lpop(core: &mut Core, args: &[&[u8]]) -> Reply {
    pop(core, args, true)
}

pub(crate) fn rpop(core: &mut Core, args: &[&[u8]]) -> Reply {
    pop(core, args, false)
}

pub(crate) fn llen(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::Int(core.list(args[1])?.map_or(0, |list| count(list.len()))))
}

pub(crate) fn lindex(core: &mut Core, args: &[&[u8]]) -> Reply {
    // Redis looks the key up first, so that a wrong type wins over a wrong number only when the key exists.
    let Some(list) = core.list(args[1])? else { return Ok(Value::Nil) };
    let at = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    let at = if at < 0 { at + count(list.len()) } else { at };
    let value = usize::try_from(at).ok().and_then(|at| list.get(at));
    Ok(value.map_or(Value::Nil, |value| Value::bytes(value)))
}

pub(crate) fn lrange(core: &mut Core, args: &[&[u8]]) -> Reply {
    let start = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    let stop = parse_int(args[3]).ok_or(NOT_INTEGER)?;
    let Some(list) = core.list(args[1])? else { return Ok(Value::Array(Vec::new())) };
    let range = span(start, stop, list.len());
    Ok(Value::Array(list.range(range).map(|value| Value::bytes(value)).collect()))
}

pub(crate) fn lrem(core: &mut Core, args: &[&[u8]]) -> Reply {
    let limit = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    let Some(list) = core.list(args[1])? else { return Ok(Value::Int(0)) };
    let gone = remove_equal(list, args[3], limit);
    if gone > 0 {
        core.emit(|| Effect::ListRemove { key: args[1].to_vec(), value: args[3].to_vec(), count: limit });
        core.remove_if_empty(args[1]);
    }
    Ok(Value::Int(count(gone)))
}
