//! Setting and asking for the time that a key has left.

use super::{Core, NEVER, Reply};
use crate::number::parse_int;
use crate::value::{EngineError, NOT_INTEGER, Value};

/// What the number of an expiry command means.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    Ms,
    Seconds,
    UnixMs,
}

fn unix_ms(core: &Core) -> i64 {
    i64::try_from(core.unix_us() / 1000).unwrap_or(i64::MAX / 2)
}

/// The moment on the boot clock that a relative or absolute amount names; 0 when it lies before the start of
/// the machine.
pub(crate) fn deadline_from(core: &Core, unit: Unit, amount: i64, command: &str) -> Result<u64, EngineError> {
    let invalid = || EngineError::new(format!("ERR invalid expire time in '{command}' command"));
    let relative_ms = match unit {
        Unit::Ms => amount,
        Unit::Seconds => amount.checked_mul(1000).ok_or_else(invalid)?,
        Unit::UnixMs => amount.saturating_sub(unix_ms(core)),
    };
    // Redis keeps unix times in 64 bits and refuses what does not fit; the same amounts are refused here.
    if unit != Unit::UnixMs {
        relative_ms.checked_add(unix_ms(core)).ok_or_else(invalid)?;
    }
    Ok(core.now_ms.saturating_add_signed(relative_ms).min(NEVER - 1))
}

fn expire_generic(core: &mut Core, args: &[&[u8]], unit: Unit, command: &str) -> Reply {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in &args[3..] {
        match option.to_ascii_lowercase().as_slice() {
            b"nx" => nx = true,
            b"xx" => xx = true,
            b"gt" => gt = true,
            b"lt" => lt = true,
            _ => {
                let option = String::from_utf8_lossy(option);
                return Err(EngineError::new(format!("ERR Unsupported option {option}")));
            }
        }
    }
    if nx && (xx || gt || lt) {
        return Err(EngineError::fixed(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if gt && lt {
        return Err(EngineError::fixed("ERR GT and LT options at the same time are not compatible"));
    }
    let amount = parse_int(args[2]).ok_or(NOT_INTEGER)?;
    let deadline = deadline_from(core, unit, amount, command)?;
    let Some(current) = core.slot(args[1]).map(|slot| slot.expires_at_ms) else { return Ok(Value::Int(0)) };
    // A key without expiry counts as one that lives for ever: GT never applies to it, LT always does.
    let refused = (nx && current != NEVER)
        || (xx && current == NEVER)
        || (gt && deadline <= current)
        || (lt && deadline >= current);
    if refused {
        return Ok(Value::Int(0));
    }
    if deadline <= core.now_ms {
        core.remove(args[1]);
    } else {
        core.set_expiry(args[1], deadline);
    }
    Ok(Value::Int(1))
}

pub(crate) fn pexpire(core: &mut Core, args: &[&[u8]]) -> Reply {
    expire_generic(core, args, Unit::Ms, "pexpire")
}

pub(crate) fn expire(core: &mut Core, args: &[&[u8]]) -> Reply {
    expire_generic(core, args, Unit::Seconds, "expire")
}

pub(crate) fn pexpireat(core: &mut Core, args: &[&[u8]]) -> Reply {
    expire_generic(core, args, Unit::UnixMs, "pexpireat")
}

fn left(core: &mut Core, key: &[u8], show: impl Fn(&Core, i64) -> i64) -> Reply {
    let expires_at_ms = match core.slot(key) {
        None => return Ok(Value::Int(-2)),
        Some(slot) => slot.expires_at_ms,
    };
    if expires_at_ms == NEVER {
        return Ok(Value::Int(-1));
    }
    let left_ms = i64::try_from(expires_at_ms.saturating_sub(core.now_ms)).unwrap_or(i64::MAX);
    Ok(Value::Int(show(core, left_ms)))
}

pub(crate) fn pttl(core: &mut Core, args: &[&[u8]]) -> Reply {
    left(core, args[1], |_, ms| ms)
}

pub(crate) fn ttl(core: &mut Core, args: &[&[u8]]) -> Reply {
    left(core, args[1], |_, ms| ms.saturating_add(500) / 1000)
}

pub(crate) fn pexpiretime(core: &mut Core, args: &[&[u8]]) -> Reply {
    left(core, args[1], |core, ms| ms.saturating_add(unix_ms(core)))
}

pub(crate) fn persist(core: &mut Core, args: &[&[u8]]) -> Reply {
    let had = core.slot(args[1]).is_some_and(|slot| slot.expires_at_ms != NEVER);
    if had {
        core.set_expiry(args[1], NEVER);
    }
    Ok(Value::Int(i64::from(had)))
}
