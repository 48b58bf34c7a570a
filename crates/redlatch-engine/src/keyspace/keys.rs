//! Commands about keys of any type.

use super::{Core, Reply};
use crate::glob;
use crate::number::parse_int;
use crate::value::{EngineError, NOT_INTEGER, SYNTAX, Value};

/// A length as an integer reply. Lengths are bounded by memory, far below the limit.
pub(crate) fn count(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

pub(crate) fn exists(core: &mut Core, args: &[&[u8]]) -> Reply {
    let mut found = 0;
    for key in &args[1..] {
        found += i64::from(core.find(key).is_some());
    }
    Ok(Value::Int(found))
}

pub(crate) fn del(core: &mut Core, args: &[&[u8]]) -> Reply {
    let mut gone = 0;
    for key in &args[1..] {
        gone += i64::from(core.remove(key));
    }
    Ok(Value::Int(gone))
}

pub(crate) fn type_of(core: &mut Core, args: &[&[u8]]) -> Reply {
    let name = core.slot(args[1]).map_or("none", |slot| slot.data.type_name());
    Ok(Value::Status(name.to_owned()))
}

pub(crate) fn dbsize(core: &mut Core, _args: &[&[u8]]) -> Reply {
    Ok(Value::Int(count(core.len())))
}

pub(crate) fn flushall(core: &mut Core, args: &[&[u8]]) -> Reply {
    match args.get(1).map(|option| option.to_ascii_lowercase()).as_deref() {
        None | Some(b"sync" | b"async") if args.len() <= 2 => {
            core.clear();
            Ok(Value::ok())
        }
        _ => Err(SYNTAX),
    }
}

pub(crate) fn scan(core: &mut Core, args: &[&[u8]]) -> Reply {
    // As the server reads it: nothing is 0, and below 0 is behind everything.
    let number = |text: &str| match text.strip_prefix('-') {
        Some(below) => below.parse::<u64>().ok().map(|below| below.wrapping_neg() as usize),
        None if text.is_empty() => Some(0),
        None => text.parse::<usize>().ok(),
    };
    let cursor = std::str::from_utf8(args[1]).ok().and_then(number);
    let cursor = cursor.ok_or(EngineError::fixed("ERR invalid cursor"))?;
    let (mut pattern, mut kind, mut limit) = (None, None, 10_usize);
    let mut rest = args[2..].iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        match option.to_ascii_lowercase().as_slice() {
            b"match" => pattern = Some(*value),
            b"count" => {
                let wanted = parse_int(value).ok_or(NOT_INTEGER)?;
                limit = usize::try_from(wanted).ok().filter(|&wanted| wanted > 0).ok_or(SYNTAX)?;
            }
            b"type" => kind = Some(value.to_ascii_lowercase()),
            _ => return Err(SYNTAX),
        }
    }
    let mut found = Vec::new();
    let mut next = 0;
    let now_ms = core.now_ms;
    for (looked_at, (at, slot)) in core.slots_from(cursor).enumerate() {
        if looked_at == limit {
            next = at;
            break;
        }
        let hit = slot.expires_at_ms >= now_ms
            && kind.as_ref().is_none_or(|kind| kind.as_slice() == slot.data.type_name().as_bytes())
            && pattern.is_none_or(|pattern| glob::matches(pattern, &slot.key));
        if hit {
            found.push(Value::bytes(&slot.key));
        }
    }
    Ok(Value::Array(vec![Value::Bytes(next.to_string().into_bytes()), Value::Array(found)]))
}
