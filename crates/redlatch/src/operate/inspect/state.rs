//! What the reply of `show.lua` means.

use std::time::Duration;

use super::{HoldMode, Holder, LockState, PermitInUse, RateRule, Waiter};
use crate::{
    kind::{LockKind, found::Seen},
    name::LockName,
    store::Reply,
};

/// The suffix of a write hold's owner field.
const WRITE: &str = ":write";

/// Reads a reply; `None` if it is none that the script gives.
pub(super) fn decode(name: LockName, reply: &Reply) -> Option<LockState> {
    let [key_type, ttl, token, size, fields, number, waiting, readers, permits, unread] = reply.array()?
    else {
        return None;
    };
    let (key_type, ttl, size) = (key_type.bytes()?, ttl.int()?, size.int()?);
    let hash = Hash::new(fields.array()?, readers.array()?);
    let value = number.int();
    let (waiting, waiters) = match waiting.array()? {
        [count, rest @ ..] => (u64::try_from(count.int()?).unwrap_or(0), self::waiters(rest)),
        [] => (0, Vec::new()),
    };
    let (permits_in_use, run_out, permits) = match permits.array()? {
        [used, run_out, rest @ ..] => {
            (u64::try_from(used.int()?).unwrap_or(0), Some(run_out.int()?), self::permits(rest))
        }
        _ => (0, None, Vec::new()),
    };
    let rate = hash.rate();
    let kind = LockKind::of(&Seen {
        key_type,
        mode: hash.mode.is_some(),
        rate: rate.is_some(),
        owner: !hash.holders.is_empty(),
        queue: waiting > 0,
        number: value.is_some(),
        permits: run_out.is_some(),
    });
    let is_lock = kind.has_owners();
    let mut state = LockState {
        name,
        kind,
        holders: if is_lock { hash.holders } else { Vec::new() },
        ttl: lasting(ttl),
        ttl_missing: is_lock && ttl == -1,
        token: token.bytes().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()),
        waiters: if kind == LockKind::Fair { waiters } else { Vec::new() },
        waiting: if kind == LockKind::Fair { waiting } else { 0 },
        listening: None,
        // Permits that ran out are put back by the next request, so they count as free.
        value: value.map(|value| value.saturating_add(run_out.unwrap_or(0))),
        permits,
        permits_in_use,
        rate,
        findings: Vec::new(),
    };
    state.findings = findings(&state, hash.mode.as_deref(), size, unread.int() == Some(1));
    Some(state)
}

/// The fields of a hash that is a lock or a rate limiter.
struct Hash {
    mode: Option<String>,
    holders: Vec<Holder>,
    pairs: Vec<(String, i64)>,
}

impl Hash {
    fn new(fields: &[Reply], readers: &[Reply]) -> Self {
        let text = |reply: &Reply| Some(String::from_utf8_lossy(reply.bytes()?).into_owned());
        let mut lasting_of: std::collections::HashMap<&[u8], Vec<Option<Duration>>> = readers
            .chunks_exact(2)
            .filter_map(|pair| {
                let each = pair[1].array()?.iter().map(|ms| lasting(ms.int().unwrap_or(-2)));
                Some((pair[0].bytes()?, each.collect()))
            })
            .collect();
        let mode = fields.chunks_exact(2).find(|pair| pair[0].bytes() == Some(b"mode"));
        let mode = mode.and_then(|pair| text(&pair[1]));
        let mut holders = Vec::new();
        let mut pairs = Vec::new();
        for pair in fields.chunks_exact(2) {
            let (Some(field), Some(raw)) = (text(&pair[0]), pair[0].bytes()) else { continue };
            let number = pair[1].int().unwrap_or(0);
            if field != "mode" && is_owner(&field) {
                let hold = match &mode {
                    None => HoldMode::Exclusive,
                    Some(_) if field.ends_with(WRITE) => HoldMode::Write,
                    Some(_) => HoldMode::Read,
                };
                let lasting = lasting_of.remove(raw).unwrap_or_default();
                holders.push(Holder { owner: field.clone(), holds: number, mode: hold, lasting });
            }
            pairs.push((field, number));
        }
        Hash { mode, holders, pairs }
    }

    fn number(&self, field: &str) -> Option<i64> {
        self.pairs.iter().find(|(name, _)| name == field).map(|(_, number)| *number)
    }

    fn rate(&self) -> Option<RateRule> {
        let (rate, interval, per) = (self.number("rate")?, self.number("interval")?, self.number("type")?);
        let keep_alive = self.number("keepAliveTime").unwrap_or(0);
        Some(RateRule {
            rate,
            interval: lasting(interval)?,
            per_client: per == 1,
            keep_alive: lasting(keep_alive).filter(|time| !time.is_zero()),
        })
    }
}

/// Milliseconds from the server; negative ones stand for none.
fn lasting(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

fn waiters(items: &[Reply]) -> Vec<Waiter> {
    let known = items.chunks_exact(2).enumerate().filter_map(|(at, pair)| {
        let owner = String::from_utf8_lossy(pair[0].bytes()?).into_owned();
        Some(Waiter { owner, position: at + 1, stale_in: pair[1].int().and_then(lasting) })
    });
    known.collect()
}

fn permits(items: &[Reply]) -> Vec<PermitInUse> {
    let known = items.chunks_exact(2).filter_map(|pair| {
        Some(PermitInUse { id: permit_id(pair[0].bytes()?), ttl: lasting(pair[1].int()?) })
    });
    known.collect()
}

/// Ids are raw bytes; before Redisson 3.17 they were the 32 digits themselves.
fn permit_id(raw: &[u8]) -> String {
    match std::str::from_utf8(raw) {
        Ok(text) if raw.len() == 32 && raw.iter().all(u8::is_ascii_hexdigit) => text.to_owned(),
        _ => raw.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// What is odd about a lock.
fn findings(state: &LockState, mode: Option<&str>, size: i64, unread: bool) -> Vec<String> {
    let mut odd = Vec::new();
    if unread {
        odd.push(
            "keys beside this one could not be read, so waiters or lasting times may be missing".to_owned(),
        );
    }
    if state.ttl_missing {
        odd.push("the key has no TTL: if its holder is gone, only a forced unlock frees it".to_owned());
    }
    let is_held = matches!(state.kind, LockKind::Lock | LockKind::Fair) && size > 0;
    if is_held && size > 1 {
        odd.push(format!("the hash has {size} fields, but an exclusive lock has exactly one"));
    }
    if is_held && state.holders.is_empty() {
        odd.push("the hash has a queue beside it and no owner in it".to_owned());
    }
    for holder in state.holders.iter().filter(|holder| holder.holds < 1) {
        odd.push(format!("the hold count of {} is {}", holder.owner, holder.holds));
    }
    for waiter in state.waiters.iter().filter(|waiter| waiter.stale_in.is_none()) {
        odd.push(format!("{} queues without a deadline", waiter.owner));
    }
    if let Some(mode) = mode.filter(|_| state.kind == LockKind::ReadWrite) {
        read_write(state, mode, size, &mut odd);
    }
    odd
}

fn read_write(state: &LockState, mode: &str, size: i64, odd: &mut Vec<String>) {
    if state.holders.is_empty() && size > 1 {
        odd.push(format!("{} holders are too many to be shown", size - 1));
        return;
    }
    let writer = state.holders.iter().find(|holder| holder.mode == HoldMode::Write);
    let writer = writer.map(|holder| holder.owner.trim_end_matches(WRITE));
    match (mode, writer) {
        ("read", Some(writer)) => odd.push(format!("{writer} has a write hold although the mode is read")),
        ("write", None) => odd.push("the mode is write, but nobody has a write hold".to_owned()),
        ("read" | "write", _) => {}
        _ => odd.push(format!("the mode is \"{mode}\", neither read nor write")),
    }
    for holder in state.holders.iter().filter(|holder| holder.mode == HoldMode::Read) {
        if mode == "write" && writer.is_some_and(|writer| writer != holder.owner) {
            odd.push(format!("{} reads while another owner writes", holder.owner));
        }
        if !holder.lasting.is_empty() && holder.lasting.iter().all(Option::is_none) {
            odd.push(format!("the read holds of {} have run out, but still keep writers away", holder.owner));
        }
    }
}

/// Whether a hash field looks like an owner: `client:number`, perhaps with a further part for write holds.
fn is_owner(field: &str) -> bool {
    let mut parts = field.splitn(3, ':');
    let client = parts.next().unwrap_or("");
    let number = parts.next().unwrap_or("");
    client.len() == 36 && client.bytes().filter(|b| *b == b'-').count() == 4 && number.parse::<i64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:7";
    const OTHER: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:8";

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    fn list(items: impl IntoIterator<Item = Reply>) -> Reply {
        Reply::Array(items.into_iter().collect())
    }

    /// A reply with nothing beside the key.
    fn reply(kind: &str, ttl: i64, fields: &[(&str, &str)], number: &str) -> Vec<Reply> {
        let flat = fields.iter().flat_map(|(field, value)| [bytes(field), bytes(value)]);
        let size = Reply::Int(fields.len() as i64);
        let empty = || list([]);
        vec![
            bytes(kind),
            Reply::Int(ttl),
            bytes(""),
            size,
            list(flat),
            bytes(number),
            list([Reply::Int(0)]),
            empty(),
            empty(),
            Reply::Int(0),
        ]
    }

    fn look(reply: Vec<Reply>) -> LockState {
        decode("x".into(), &Reply::Array(reply)).unwrap()
    }

    #[test]
    fn healthy_and_odd_states_are_told_apart() {
        let look = |ttl, fields: &[(&str, &str)]| look(reply("hash", ttl, fields, ""));
        let healthy = look(1000, &[(OWNER, "2")]);
        assert_eq!((healthy.kind, healthy.holders[0].holds, healthy.findings.len()), (LockKind::Lock, 2, 0));
        assert!(look(-1, &[(OWNER, "1")]).ttl_missing);
        assert_eq!(look(-1, &[(OWNER, "1")]).findings.len(), 1);
        assert_eq!(look(1000, &[(OWNER, "-3")]).findings.len(), 1);
        assert_eq!(look(1000, &[(OWNER, "1"), ("junk", "1")]).findings.len(), 1);
        assert_eq!(look(1000, &[("mode", "read"), (OWNER, "1")]).kind, LockKind::ReadWrite);
        assert_eq!(look(1000, &[("color", "red")]).kind, LockKind::Other);
    }

    #[test]
    fn keys_that_are_no_hash_have_kinds_too() {
        let kind = |kind, ttl, number| look(reply(kind, ttl, &[], number)).kind;
        assert_eq!(kind("none", -2, ""), LockKind::Free);
        assert_eq!(kind("string", -1, ""), LockKind::Other);
        assert_eq!(kind("string", -1, "99999999999999999999"), LockKind::Other, "beyond 64 bits");
        assert_eq!(kind("list", -1, ""), LockKind::Other);
        let counter = look(reply("string", -1, &[], "-4"));
        assert_eq!((counter.kind, counter.value, counter.ttl_missing), (LockKind::Counter, Some(-4), false));
    }

    #[test]
    fn a_queue_makes_a_lock_fair_and_nothing_else() {
        let queue = || list([Reply::Int(5), bytes(OWNER), Reply::Int(0), bytes(OTHER), bytes("")]);
        let mut queued = reply("none", -2, &[], "");
        queued[6] = queue();
        let state = look(queued);
        assert_eq!((state.kind, state.waiting, state.waiters.len()), (LockKind::Fair, 5, 2));
        assert_eq!((state.waiters[0].position, state.waiters[0].stale_in), (1, Some(Duration::ZERO)));
        assert_eq!((state.waiters[1].position, state.waiters[1].stale_in), (2, None));
        assert_eq!(state.findings, [format!("{OTHER} queues without a deadline")]);
        let mut shared = reply("hash", 1000, &[("mode", "read"), (OWNER, "1")], "");
        shared[6] = queue();
        let state = look(shared);
        assert_eq!((state.kind, state.waiting, state.waiters.len()), (LockKind::ReadWrite, 0, 0));
    }

    #[test]
    fn odd_read_write_locks_are_described() {
        let writer = format!("{OWNER}:write");
        let odd = |fields: &[(&str, &str)]| look(reply("hash", 1000, fields, "")).findings.join(";");
        assert_eq!(
            odd(&[("mode", "write"), (&writer, "1"), (OWNER, "1")]),
            "",
            "one's own read holds are fine"
        );
        assert!(odd(&[("mode", "write"), (&writer, "1"), (OTHER, "1")]).contains("another owner writes"));
        assert!(odd(&[("mode", "read"), (&writer, "1")]).contains("although the mode is read"));
        assert!(odd(&[("mode", "write"), (OTHER, "1")]).contains("nobody has a write hold"));
        assert!(odd(&[("mode", "blue"), (OTHER, "1")]).contains("neither"));
        let mut many = reply("hash", 1000, &[("mode", "read")], "");
        many[3] = Reply::Int(5_001);
        assert_eq!(look(many).findings, ["5000 holders are too many to be shown"]);
        let mut zombie = reply("hash", 1000, &[("mode", "read"), (OWNER, "2")], "");
        zombie[7] = list([bytes(OWNER), list([Reply::Int(-2), Reply::Int(-2)])]);
        let state = look(zombie.clone());
        assert_eq!(state.holders[0].lasting, [None, None]);
        assert!(state.findings[0].contains("run out"), "{state:?}");
        zombie[7] = list([bytes(OWNER), list([Reply::Int(-2), Reply::Int(70)])]);
        assert_eq!(look(zombie).findings, [""; 0], "one of its holds lasts");
    }

    #[test]
    fn permits_that_ran_out_count_as_free() {
        let mut taken = reply("string", -1, &[], "3");
        let raw = Reply::Bytes(vec![0xab; 16]);
        taken[8] = list([
            Reply::Int(2),
            Reply::Int(1),
            raw,
            Reply::Int(900),
            bytes(&"0f".repeat(16)),
            Reply::Int(-1),
        ]);
        let state = look(taken);
        assert_eq!((state.kind, state.value, state.permits_in_use), (LockKind::PermitSemaphore, Some(4), 2));
        let ids: Vec<_> = state.permits.iter().map(|permit| permit.id.as_str()).collect();
        assert_eq!(ids, ["ab".repeat(16), "0f".repeat(16)]);
        assert_eq!(state.permits[0].ttl, Some(Duration::from_millis(900)));
        assert_eq!(state.permits[1].ttl, None);
    }

    #[test]
    fn replies_that_the_script_never_gives_are_refused() {
        let good = reply("hash", 1000, &[(OWNER, "1")], "");
        for at in 0..good.len() {
            let mut short = good.clone();
            short.remove(at);
            assert!(decode("x".into(), &Reply::Array(short)).is_none(), "without item {at}");
        }
        assert!(decode("x".into(), &Reply::Nil).is_none());
    }
}
