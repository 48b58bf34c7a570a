//! The same steps in both languages leave the same keyspace and send the same messages, byte for byte.

use std::{collections::BTreeMap, time::Duration};

use redlatch::Client;
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::{KeyContent, KeyDump, RedisServer},
};

use crate::bed::{Bed, LIMIT, ms, run};

/// By how much two leases that were set at the same step may differ when they are read.
const TTL_TOLERANCE_MS: u64 = 1_500;
/// Stands for any field of the documented form, since two clients never have the same one.
const OWNER: &[u8] = b"<client:number>";

pub(crate) type Keyspace = BTreeMap<Vec<u8>, KeyDump>;
pub(crate) type Message = (Vec<u8>, Vec<u8>);
/// One step of a client.
pub(crate) type Step<'a> = Box<dyn FnMut() + 'a>;

/// What a client left on the server after each step, and what it published in all.
pub(crate) struct Trace {
    pub(crate) states: Vec<Keyspace>,
    pub(crate) messages: Vec<Message>,
}

/// Runs the steps on a server that nobody else uses.
pub(crate) fn trace(server: &RedisServer, steps: Vec<Step<'_>>) -> Trace {
    server.flush_all().unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    let mut ear = connection.as_pubsub();
    ear.psubscribe("*").unwrap();
    let mut states = Vec::new();
    for mut step in steps {
        step();
        let mut state = server.keys_dump().unwrap();
        // Each unlock of Java has a key of its own for a few seconds, which no other client needs to know.
        state.retain(|key, _| !key.starts_with(b"redisson_unlock_latch:"));
        // Nor does anybody else need to know who forced a lock free here.
        state.retain(|key, _| !key.starts_with(b"redlatch_forced:"));
        state.values_mut().for_each(name_owners);
        states.push(state);
    }
    server.cmd(&["PUBLISH", "end", ""]).unwrap();
    let mut messages = Vec::new();
    loop {
        let message = ear.get_message().unwrap();
        let heard: Message = (message.get_channel().unwrap(), message.get_payload_bytes().to_vec());
        if heard.0 == b"end" {
            return Trace { states, messages };
        }
        messages.push(heard);
    }
}

fn name_owners(dump: &mut KeyDump) {
    if let KeyContent::Hash(fields) = &mut dump.content {
        let named = std::mem::take(fields).into_iter();
        *fields = named
            .map(|(field, value)| (if is_owner(&field) { OWNER.to_vec() } else { field }, value))
            .collect();
    }
}

/// Whether a field is a version 4 UUID in lower case, a colon, and a decimal number without padding.
pub(crate) fn is_owner(field: &[u8]) -> bool {
    let Some((uuid, [b':', number @ ..])) = field.split_at_checked(36) else { return false };
    let is_uuid = uuid.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        14 => *byte == b'4',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    });
    let is_number =
        std::str::from_utf8(number).ok().and_then(|text| Some(text.parse::<u64>().ok()?.to_string() == text));
    is_uuid && is_number == Some(true)
}

/// How two traces differ, one line each; nothing when they agree.
pub(crate) fn differences(one: &Trace, other: &Trace) -> Vec<String> {
    let mut lines = Vec::new();
    if one.states.len() != other.states.len() {
        lines.push(format!("{} steps against {}", one.states.len(), other.states.len()));
    }
    for (step, (a, b)) in one.states.iter().zip(&other.states).enumerate() {
        let keys: Vec<&Vec<u8>> = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
        for key in keys {
            let at = format!("after step {step}, key {}", key.escape_ascii());
            let (Some(a), Some(b)) = (a.get(key), b.get(key)) else {
                lines.push(format!("{at}: only on one side"));
                continue;
            };
            if (&a.kind, &a.content) != (&b.kind, &b.content) {
                lines.push(format!("{at}: {:?} against {:?}", a.content, b.content));
            }
            let leases_agree = match (a.pttl_ms, b.pttl_ms) {
                (Some(a), Some(b)) => a.abs_diff(b) <= TTL_TOLERANCE_MS,
                (a, b) => a == b,
            };
            if !leases_agree {
                lines.push(format!("{at}: {:?} ms against {:?} ms left", a.pttl_ms, b.pttl_ms));
            }
        }
    }
    if one.messages != other.messages {
        let show = |messages: &[Message]| -> Vec<String> {
            messages.iter().map(|(c, p)| format!("{} {}", c.escape_ascii(), p.escape_ascii())).collect()
        };
        lines.push(format!("messages {:?} against {:?}", show(&one.messages), show(&other.messages)));
    }
    lines
}

/// Lock, enter again, leave, leave; a fixed lease; a forced unlock: as Java does it.
pub(crate) fn java_trace(bed: &Bed, server: &RedisServer, name: &str) -> Trace {
    java_trace_of(bed, server, "lock", name)
}

/// The same steps with another kind of lock that can be entered again.
pub(crate) fn java_trace_of(bed: &Bed, server: &RedisServer, kind: &str, name: &str) -> Trace {
    let client = bed.name("golden");
    bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
    let kind = format!("{client}@{kind}");
    let (java, other) = (bed.thread().with(&kind), bed.thread().with(&kind));
    let steps: Vec<Step<'_>> = vec![
        Box::new(|| java.lock(name)),
        Box::new(|| java.lock(name)),
        Box::new(|| assert!(!other.try_lock(name))),
        Box::new(|| other.is_refused_to_unlock(name)),
        Box::new(|| java.unlock(name)),
        Box::new(|| java.unlock(name)),
        Box::new(|| java.lock_lease(name, 7_000)),
        Box::new(|| assert!(other.force_unlock(name))),
        Box::new(|| java.is_refused_to_unlock(name)),
    ];
    let trace = trace(server, steps);
    java.thread.call(&format!("{client}@shutdown"), &[]).unwrap();
    trace
}

fn our_trace(server: &RedisServer, name: &str) -> Trace {
    let client = run(Client::connect(&server.url())).unwrap();
    let (lock, other) = (client.lock(name), client.owner());
    let guards = std::cell::RefCell::new(Vec::new());
    let steps: Vec<Step<'_>> = vec![
        Box::new(|| guards.borrow_mut().push(run(lock.lock()).unwrap())),
        Box::new(|| {
            let inner = run(guards.borrow()[0].reenter()).unwrap();
            guards.borrow_mut().push(inner);
        }),
        Box::new(|| assert!(run(lock.try_lock()).unwrap().is_none())),
        Box::new(|| assert!(run(lock.release(&other)).is_err())),
        Box::new(|| drop(run(guards.borrow_mut().pop().unwrap().unlock()).unwrap())),
        Box::new(|| drop(run(guards.borrow_mut().pop().unwrap().unlock()).unwrap())),
        Box::new(|| guards.borrow_mut().push(run(lock.lock_with_lease(ms(7_000))).unwrap())),
        Box::new(|| assert!(run(lock.force_unlock()).unwrap())),
        Box::new(|| drop(run(guards.borrow_mut().pop().unwrap().unlock()).unwrap())),
    ];
    let trace = trace(server, steps);
    run(client.shutdown(Duration::from_secs(2)));
    trace
}

pub(crate) fn every_step_leaves_and_says_the_same(version: RedissonVersion) {
    let bed = Bed::of(version);
    let server = RedisServer::start().unwrap();
    for name in ["stock", "{shop}:stock", "a{b}c", "Lager für Ä 😀", "line\nend"] {
        let (java, ours) = (java_trace(&bed, &server, name), our_trace(&server, name));
        assert_eq!(java.messages.len(), 2, "a full unlock and a forced one");
        assert_eq!(java.states[1].len(), 1, "the hash and nothing else");
        let found = differences(&java, &ours);
        assert!(found.is_empty(), "{name:?}: Java against ours:\n  {}", found.join("\n  "));
    }
}

#[test]
fn owners_are_told_from_other_fields() {
    assert!(is_owner(b"1b671a64-40d5-491e-99b0-da01ff1f3341:64"));
    let others = [
        "64:1b671a64-40d5-491e-99b0-da01ff1f3341",
        "1B671A64-40d5-491e-99b0-da01ff1f3341:64",
        "1b671a64-40d5-191e-99b0-da01ff1f3341:64",
        "1b671a64-40d5-491e-99b0-da01ff1f3341:064",
        "1b671a64-40d5-491e-99b0-da01ff1f3341:",
        "1b671a64-40d5-491e-99b0-da01ff1f3341-64",
        "mode",
    ];
    assert!(others.iter().all(|field| !is_owner(field.as_bytes())));
}
