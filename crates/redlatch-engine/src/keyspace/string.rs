//! Strings and counters.

use super::expiry::{Unit, deadline_from};
use super::{Core, Data, NEVER, Reply, Slot};
use crate::effect::Effect;
use crate::number::{format_int, parse_int};
use crate::value::{EngineError, NOT_INTEGER, OVERFLOW, SYNTAX, Value};

pub(crate) fn get(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(core.string(args[1])?.map_or(Value::Nil, |text| Value::bytes(text)))
}

pub(crate) fn strlen(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::Int(core.string(args[1])?.map_or(0, |text| super::keys::count(text.len()))))
}

fn store(core: &mut Core, key: &[u8], value: &[u8], expires_at_ms: u64) {
    core.put(key, Data::Str(value.to_vec()), expires_at_ms);
    core.emit(|| Effect::SetString {
        key: key.to_vec(),
        value: value.to_vec(),
        expires_at_ms: (expires_at_ms != NEVER).then_some(expires_at_ms),
    });
}

#[derive(PartialEq)]
enum Only {
    Always,
    New,
    Existing,
}

pub(crate) fn set(core: &mut Core, args: &[&[u8]]) -> Reply {
    let mut only = Only::Always;
    let mut keep = false;
    let mut expire: Option<(Unit, &[u8])> = None;
    let mut rest = args[3..].iter();
    while let Some(option) = rest.next() {
        let unit = match option.to_ascii_lowercase().as_slice() {
            b"nx" if only != Only::Existing => {
                only = Only::New;
                continue;
            }
            b"xx" if only != Only::New => {
                only = Only::Existing;
                continue;
            }
            b"keepttl" if expire.is_none() => {
                keep = true;
                continue;
            }
            b"px" => Unit::Ms,
            b"ex" => Unit::Seconds,
            b"pxat" => Unit::UnixMs,
            _ => return Err(SYNTAX),
        };
        if keep || expire.is_some_and(|(first, _)| first != unit) {
            return Err(SYNTAX);
        }
        expire = Some((unit, rest.next().ok_or(SYNTAX)?));
    }
    let deadline = match expire {
        None => None,
        Some((unit, text)) => {
            let amount = parse_int(text).ok_or(NOT_INTEGER)?;
            if amount <= 0 {
                return Err(EngineError::fixed("ERR invalid expire time in 'set' command"));
            }
            Some(deadline_from(core, unit, amount, "set")?)
        }
    };
    let exists = core.find(args[1]).is_some();
    if (only == Only::New && exists) || (only == Only::Existing && !exists) {
        return Ok(Value::Nil);
    }
    let expires_at_ms = match deadline {
        Some(at) if at <= core.now_ms => {
            core.remove(args[1]);
            return Ok(Value::ok());
        }
        Some(at) => at,
        None if keep => core.slot(args[1]).map_or(NEVER, |slot| slot.expires_at_ms),
        None => NEVER,
    };
    store(core, args[1], args[2], expires_at_ms);
    Ok(Value::ok())
}

fn add(core: &mut Core, key: &[u8], by: i64) -> Reply {
    let (old, expires_at_ms) = match core.slot(key) {
        None => (0, NEVER),
        Some(Slot { data: Data::Str(text), expires_at_ms, .. }) => {
            (parse_int(text).ok_or(NOT_INTEGER)?, *expires_at_ms)
        }
        Some(_) => return Err(crate::value::WRONGTYPE),
    };
    let new = old.checked_add(by).ok_or(OVERFLOW)?;
    store(core, key, format_int(new).as_bytes(), expires_at_ms);
    Ok(Value::Int(new))
}

pub(crate) fn incr(core: &mut Core, args: &[&[u8]]) -> Reply {
    add(core, args[1], 1)
}

pub(crate) fn decr(core: &mut Core, args: &[&[u8]]) -> Reply {
    add(core, args[1], -1)
}

pub(crate) fn incrby(core: &mut Core, args: &[&[u8]]) -> Reply {
    let by = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    add(core, args[1], by)
}

pub(crate) fn decrby(core: &mut Core, args: &[&[u8]]) -> Reply {
    let by = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    let by = by.checked_neg().ok_or(EngineError::fixed("ERR decrement would overflow"))?;
    add(core, args[1], by)
}
