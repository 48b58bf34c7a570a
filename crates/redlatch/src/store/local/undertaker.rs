//! What the local engine does with what dead clients leave: what these would have done themselves.

use redlatch_engine::daemon::{Step, Trace, TracePlace, Undertaker};

use crate::{
    keys::{KeyKind, Keys},
    kind::key_pattern::{PERMIT_TIMES, QUEUE, QUEUE_TIMES},
    name::LockName,
    owner::Owner,
    recipes::{ExpectedHolds, FAIR, PermitsRecipe, READ, Recipe, WRITE, members},
    scripts,
    store::{Arg, Call},
};

/// The beginning of a write hold's field is its owner; this is the rest.
const WRITE_SUFFIX: &str = ":write";
/// What the sorted sets with the times of waiters begin with.
const QUEUES: &[u8] = QUEUE_TIMES.word().as_bytes();
/// What the lists of waiters begin with.
const PLACES: &[u8] = QUEUE.word().as_bytes();
/// What the sorted sets of permits end with.
const PERMITS: &[u8] = PERMIT_TIMES.word().as_bytes();
/// The bytes of a permit's id, and those of one in the digits of older releases of Redisson.
const ID_BYTES: [usize; 2] = [16, 32];
/// How many permits are given back by one script.
const PERMITS_AT_ONCE: usize = 1_000;

/// Gives back what dead clients of the local engine held, by the scripts of each kind.
#[derive(Debug, Clone, Copy)]
pub struct DeadClientCleanup;

impl Undertaker for DeadClientCleanup {
    fn queues_begin_with(&self) -> &'static [u8] {
        QUEUES
    }

    fn permits_end_with(&self) -> &'static [u8] {
        PERMITS
    }

    fn release(&self, trace: &Trace, is_there: &mut dyn FnMut(&[u8]) -> bool) -> Vec<Step> {
        if trace.place == TracePlace::Permit {
            let keys = permits_behind(&trace.key, is_there);
            return keys.into_iter().map(|keys| give(&keys, &trace.field)).collect();
        }
        let (field, is_write) = side(&trace.field);
        let Ok(owner) = field.parse::<Owner>() else { return Vec::new() };
        let keys = |name: &[u8], kind| Keys::new(LockName::unchecked(name), kind);
        match trace.place {
            TracePlace::Lock => {
                // Nothing tells a fair lock from any other while nobody queues.
                let keys = keys(&trace.key, KeyKind::Fair);
                let told = Step::Publish { channel: keys.channel().to_vec(), payload: "0" };
                vec![script(FAIR.undo(&keys, &owner, "publish", ExpectedHolds::Any)), told]
            }
            TracePlace::ReadWrite if is_write => {
                vec![script(WRITE.release(
                    &keys(&trace.key, KeyKind::Write),
                    &owner,
                    "publish",
                    ExpectedHolds::Any,
                ))]
            }
            TracePlace::ReadWrite => {
                vec![script(READ.release(
                    &keys(&trace.key, KeyKind::Read),
                    &owner,
                    "publish",
                    ExpectedHolds::Any,
                ))]
            }
            TracePlace::Queue => {
                let keys = keys(queued_for(&trace.key), KeyKind::Fair);
                vec![script(FAIR.undo(&keys, &owner, "publish", ExpectedHolds::Any))]
            }
            _ => Vec::new(),
        }
    }

    /// Permits without an end go back as well, because nobody is left who has them. Sets whose members are no ids of permits are not ours.
    fn give_back(
        &self,
        key: &[u8],
        members: &[Vec<u8>],
        is_there: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Vec<Step> {
        if key.starts_with(QUEUES) || key.starts_with(PLACES) {
            return vec![Step::Delete { keys: vec![key.to_vec()] }];
        }
        if !key.ends_with(PERMITS) || members.iter().any(|id| !ID_BYTES.contains(&id.len())) {
            return Vec::new();
        }
        let Some(keys) = permits_behind(key, is_there) else { return Vec::new() };
        let digits: Vec<String> = members.iter().map(|id| digits(id)).collect();
        digits.chunks(PERMITS_AT_ONCE).map(|some| give(&keys, &some.concat())).collect()
    }

    fn keep(&self, trace: &Trace, ms: u64) -> Vec<Step> {
        let (owner, is_write) = side(&trace.field);
        let keys = Keys::new(LockName::unchecked(&trace.key), KeyKind::Read);
        let call = match trace.place {
            TracePlace::Lock => Call::new(&scripts::RENEW).key(&keys.key),
            TracePlace::ReadWrite if is_write => Call::new(&scripts::WRITE_RENEW).key(&keys.key),
            TracePlace::ReadWrite => Call::new(&scripts::READ_RENEW).key(&keys.key).key(&keys.timeouts),
            TracePlace::Permit => Call::new(&scripts::PERMIT_RENEW).key(&keys.key),
            _ => return Vec::new(),
        };
        let call = call.int(0).int(i64::try_from(ms).unwrap_or(i64::MAX));
        vec![script(match trace.place {
            TracePlace::Permit => call.bytes(&members(owner)),
            _ => call.text(&owner.into()),
        })]
    }
}

/// The permits whose set this is. Of two names that it may be of, the one is meant whose counter is there.
fn permits_behind(key: &[u8], is_there: &mut dyn FnMut(&[u8]) -> bool) -> Option<Keys> {
    let mut names: Vec<_> =
        Keys::behind(key).into_iter().filter(|keys| keys.kind == KeyKind::Permits).collect();
    let at = names.iter().position(|keys| is_there(&keys.key)).unwrap_or_default();
    (!names.is_empty()).then(|| names.swap_remove(at))
}

/// Gives permits back whose ids are these digits.
fn give(keys: &Keys, digits: &str) -> Step {
    let permits = PermitsRecipe::for_publishing("publish");
    script(permits.release(keys, &Owner::of_permits(digits, 0), "publish", ExpectedHolds::Any))
}

/// The digits of a permit's id. Older releases of Redisson have written the digits themselves.
fn digits(id: &[u8]) -> String {
    match std::str::from_utf8(id) {
        Ok(digits) if id.len() == ID_BYTES[1] => digits.to_owned(),
        _ => id.iter().map(|byte| format!("{byte:02x}")).collect(),
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
            let keys = Keys::new(LockName::unchecked(name.as_bytes()), KeyKind::Fair);
            assert_eq!(queued_for(&keys.timeouts), name.as_bytes());
        }
        assert!(Keys::new("n".into(), KeyKind::Fair).timeouts.starts_with(QUEUES));
        assert!(Keys::new("n".into(), KeyKind::Permits).timeouts.ends_with(PERMITS));
    }

    #[test]
    fn write_holds_are_told_from_read_holds() {
        assert_eq!(side("u:7:write"), ("u:7", true));
        assert_eq!(side("u:7"), ("u:7", false));
    }
}
