//! What the local engine does with what dead clients leave: what these would have done themselves.

use redlatch_engine::daemon::{Step, Trace, TracePlace, Undertaker};

use crate::{
    keys::{Keys, Kind},
    name::LockName,
    owner::Owner,
    recipes::{Expected, FAIR, READ, Recipe, WRITE},
    scripts,
    store::{Arg, Call},
};

/// The beginning of a write hold's field is its owner; this is the rest.
const WRITE_SUFFIX: &str = ":write";
/// What the sorted sets with the times of waiters begin with.
const QUEUES: &[u8] = b"redisson_lock_timeout:";

/// Gives back what dead clients of the local engine held, by the scripts of each kind.
#[derive(Debug, Clone, Copy)]
pub struct Bequests;

impl Undertaker for Bequests {
    fn queues_begin_with(&self) -> &'static [u8] {
        QUEUES
    }

    fn release(&self, trace: &Trace) -> Vec<Step> {
        let (field, is_write) = side(&trace.field);
        let Ok(owner) = field.parse::<Owner>() else { return Vec::new() };
        let keys = |name: &[u8], kind| Keys::new(LockName::unchecked(name), kind);
        match trace.place {
            TracePlace::Lock => {
                // Nothing tells a fair lock from any other while nobody queues.
                let keys = keys(&trace.key, Kind::Fair);
                let told = Step::Publish { channel: keys.channel().to_vec(), payload: "0" };
                vec![script(FAIR.undo(&keys, &owner, "publish", Expected::Any)), told]
            }
            TracePlace::ReadWrite if is_write => {
                vec![script(WRITE.release(&keys(&trace.key, Kind::Write), &owner, "publish", Expected::Any))]
            }
            TracePlace::ReadWrite => {
                vec![script(READ.release(&keys(&trace.key, Kind::Read), &owner, "publish", Expected::Any))]
            }
            TracePlace::Queue => {
                let keys = keys(queued_for(&trace.key), Kind::Fair);
                vec![script(FAIR.undo(&keys, &owner, "publish", Expected::Any))]
            }
            _ => Vec::new(),
        }
    }

    fn keep(&self, trace: &Trace, ms: u64) -> Vec<Step> {
        let (owner, is_write) = side(&trace.field);
        let keys = Keys::new(LockName::unchecked(&trace.key), Kind::Read);
        let call = match trace.place {
            TracePlace::Lock => Call::new(&scripts::RENEW).key(&keys.key),
            TracePlace::ReadWrite if is_write => Call::new(&scripts::WRITE_RENEW).key(&keys.key),
            TracePlace::ReadWrite => Call::new(&scripts::READ_RENEW).key(&keys.key).key(&keys.timeouts),
            _ => return Vec::new(),
        };
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        vec![script(call.int(0).int(ms).text(&owner.into()))]
    }
}

/// The owner of a field, and whether it writes.
fn side(field: &str) -> (&str, bool) {
    match field.strip_suffix(WRITE_SUFFIX) {
        Some(owner) => (owner, true),
        None => (field, false),
    }
}

/// The lock whose waiters' times are under this key.
fn queued_for(key: &[u8]) -> &[u8] {
    let name = key.strip_prefix(QUEUES).unwrap_or(key);
    let inside = name.strip_prefix(b"{").and_then(|name| name.strip_suffix(b"}"));
    inside.filter(|name| !name.contains(&b'{')).unwrap_or(name)
}

fn script(call: Call) -> Step {
    let bytes = |arg: &Arg| match arg {
        Arg::Int(value) => value.to_string().into_bytes(),
        Arg::Text(text) => text.as_bytes().to_vec(),
        Arg::Bytes(bytes) => bytes.to_vec(),
        Arg::Static(text) => text.as_bytes().to_vec(),
    };
    Step::Script {
        source: call.script.source(),
        keys: call.keys.iter().map(|key| key.to_vec()).collect(),
        args: call.args.iter().map(bytes).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_found_that_the_times_are_of() {
        for name in ["plain", "a{b}c", "a b", "x}"] {
            let keys = Keys::new(LockName::unchecked(name.as_bytes()), Kind::Fair);
            assert_eq!(queued_for(&keys.timeouts), name.as_bytes());
        }
        assert!(Keys::new("n".into(), Kind::Fair).timeouts.starts_with(QUEUES));
    }

    #[test]
    fn write_holds_are_told_from_read_holds() {
        assert_eq!(side("u:7:write"), ("u:7", true));
        assert_eq!(side("u:7"), ("u:7", false));
    }
}
