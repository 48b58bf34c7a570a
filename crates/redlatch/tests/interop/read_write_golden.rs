//! The same steps with a read-write lock in both languages leave the same keyspace and send the same messages, but where
//! Redisson's way is a trap.

use std::{cell::RefCell, time::Duration};

use redlatch::{Client, Lease, Owner, ReadGuard, Unlocked, Wait, WriteGuard};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::{KeyContent, RedisServer},
};

use crate::{
    bed::{Bed, Java, LIMIT, ms, run},
    golden::is_owner,
    read_write::Sides,
};

/// What one of the two owners, A and B, does. Leases are seconds; `None` is the watchdog's of 30 s.
#[derive(Debug, Clone, Copy)]
enum Act {
    Read(usize, Option<u64>),
    Write(usize, Option<u64>),
    /// Is kept out.
    CannotRead(usize),
    CannotWrite(usize),
    LeaveRead(usize),
    LeaveWrite(usize),
    /// From a write hold to a read hold, in the way of the language.
    Downgrade(usize),
    ForceRead,
    ForceWrite,
}

use Act::{CannotRead, CannotWrite, Downgrade, ForceRead, ForceWrite, LeaveRead, LeaveWrite, Read, Write};

const A: usize = 0;
const B: usize = 1;

/// Who acts.
trait Player {
    fn act(&self, name: &str, act: Act);
}

impl Player for [Sides; 2] {
    fn act(&self, name: &str, act: Act) {
        let lock = |java: &Java, lease: Option<u64>| match lease {
            Some(seconds) => java.lock_lease(name, seconds * 1_000),
            None => java.lock(name),
        };
        match act {
            Read(o, lease) => lock(&self[o].read, lease),
            Write(o, lease) => lock(&self[o].write, lease),
            CannotRead(o) => assert!(!self[o].read.try_lock(name)),
            CannotWrite(o) => assert!(!self[o].write.try_lock(name)),
            LeaveRead(o) => self[o].read.unlock(name),
            LeaveWrite(o) => self[o].write.unlock(name),
            Downgrade(o) => {
                self[o].read.lock(name);
                self[o].write.unlock(name);
            }
            ForceRead => assert!(self[B].read.force_unlock(name)),
            ForceWrite => assert!(self[B].write.force_unlock(name)),
        }
    }
}

struct Ours {
    client: Client,
    owners: [Owner; 2],
    reads: RefCell<[Vec<ReadGuard>; 2]>,
    writes: RefCell<[Vec<WriteGuard>; 2]>,
}

impl Ours {
    fn new(server: &RedisServer) -> Self {
        let client = run(Client::connect(&server.url())).unwrap();
        let owners = [client.owner(), client.owner()];
        Self { client, owners, reads: RefCell::default(), writes: RefCell::default() }
    }
}

impl Player for Ours {
    fn act(&self, name: &str, act: Act) {
        let lock = self.client.read_write_lock(name);
        let lease = |lease: Option<u64>| match lease {
            Some(seconds) => Lease::Fixed(Duration::from_secs(seconds)),
            None => Lease::Renewed,
        };
        let read = |o: usize, term| {
            let request = lock.read().acquire().owner(&self.owners[o]).lease(lease(term)).wait(Wait::No);
            run(async { request.await }).unwrap()
        };
        let write = |o: usize, term| {
            let request = lock.write().acquire().owner(&self.owners[o]).lease(lease(term)).wait(Wait::No);
            run(async { request.await })
        };
        match act {
            Read(o, term) => self.reads.borrow_mut()[o].push(read(o, term).expect("nobody writes")),
            Write(o, term) => self.writes.borrow_mut()[o].push(write(o, term).unwrap().expect("it is free")),
            CannotRead(o) => assert!(read(o, None).is_none()),
            CannotWrite(o) => assert!(write(o, None).is_ok_and(|guard| guard.is_none())),
            LeaveRead(o) => {
                let guard = self.reads.borrow_mut()[o].pop().unwrap();
                assert!(!matches!(run(guard.unlock()).unwrap(), Unlocked::AlreadyLost(_)));
            }
            LeaveWrite(o) => {
                let guard = self.writes.borrow_mut()[o].pop().unwrap();
                assert!(!matches!(run(guard.unlock()).unwrap(), Unlocked::AlreadyLost(_)));
            }
            Downgrade(o) => {
                let guard = self.writes.borrow_mut()[o].pop().unwrap();
                self.reads.borrow_mut()[o].push(run(guard.downgrade()).unwrap());
            }
            ForceRead => assert!(run(lock.read().force_unlock()).unwrap()),
            ForceWrite => assert!(run(lock.write().force_unlock()).unwrap()),
        }
    }
}

/// After each step the keyspace, with owners called A and B in the order in which they appeared and leases to ten seconds, and
/// what was published since the step before.
fn trace(server: &RedisServer, player: &impl Player, name: &str, acts: &[Act]) -> Vec<String> {
    server.flush_all().unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    let mut ear = connection.as_pubsub();
    ear.psubscribe("*").unwrap();
    let mut owners: Vec<String> = Vec::new();
    let mut steps = Vec::new();
    for act in acts {
        player.act(name, *act);
        let mut words = Vec::new();
        for (key, dump) in server.keys_dump().unwrap() {
            // Java has nothing of the kind.
            if key.starts_with(b"redlatch_forced:") {
                continue;
            }
            // Each unlock of Java has a key of its own for a few seconds, which no other client needs to know.
            if key.starts_with(b"redisson_unlock_latch:") {
                continue;
            }
            let content = match &dump.content {
                KeyContent::Hash(fields) => fields
                    .iter()
                    .map(|(field, value)| {
                        let field = String::from_utf8(field.clone()).unwrap();
                        let owner = field.strip_suffix(":write").unwrap_or(&field);
                        if is_owner(owner.as_bytes()) && !owners.contains(&owner.to_owned()) {
                            owners.push(owner.to_owned());
                        }
                        format!("{field}={}", value.escape_ascii())
                    })
                    .collect::<Vec<_>>(),
                other => vec![format!("{other:?}")],
            };
            words.push((String::from_utf8(key).unwrap(), content, dump.pttl_ms));
        }
        let named = |text: &str| {
            owners
                .iter()
                .zip(["A", "B"])
                .fold(text.to_owned(), |text, (owner, letter)| text.replace(owner.as_str(), letter))
                .replace(name, "N")
        };
        let mut words: Vec<String> = words
            .into_iter()
            .map(|(key, content, pttl_ms)| {
                let mut content: Vec<String> = content.iter().map(|word| named(word)).collect();
                content.sort();
                let tens = pttl_ms.map_or("ever".into(), |ms| (ms.div_ceil(10_000) * 10).to_string());
                match content.as_slice() {
                    [only] if only.contains("String([49])") => format!("{} {tens}s", named(&key)),
                    _ => format!("{} {} {tens}s", named(&key), content.join(" ")),
                }
            })
            .collect();
        words.sort();
        server.cmd(&["PUBLISH", "end", ""]).unwrap();
        loop {
            let message = ear.get_message().unwrap();
            let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
            if channel == "end" {
                break;
            }
            words.push(format!("> {} {}", named(channel), payload.escape_ascii()));
        }
        steps.push(words.join("; "));
    }
    steps
}

/// Runs the same steps in Java and with us.
struct Stage<'a> {
    bed: &'a Bed,
    server: RedisServer,
    client: String,
    next: u64,
}

impl<'a> Stage<'a> {
    fn new(bed: &'a Bed) -> Self {
        let (server, client) = (RedisServer::start().unwrap(), bed.name("rw-golden"));
        bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
        Self { bed, server, client, next: 0 }
    }

    fn play(&mut self, name: &str, acts: &[Act]) -> (Vec<String>, Vec<String>) {
        // A Java lock remembers the leases of its past.
        self.next += 1;
        let name = format!("{name}-{}", self.next);
        let java = [0, 1].map(|_| Sides::new(self.bed).of(&self.client));
        let theirs = trace(&self.server, &java, &name, acts);
        let player = Ours::new(&self.server);
        let ours = trace(&self.server, &player, &name, acts);
        player.reads.take().into_iter().flatten().for_each(drop);
        run(player.client.shutdown(ms(2_000)));
        (theirs, ours)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // The server goes with this.
        drop(self.bed.thread().thread.call(&format!("{}@shutdown", self.client), &[]));
    }
}

pub(crate) fn every_step_of_a_read_write_lock_leaves_and_says_the_same(version: RedissonVersion) {
    let bed = Bed::of(version);
    let mut stage = Stage::new(&bed);
    let fixed = Some(20);
    let plays: &[&[Act]] = &[
        &[Read(A, None), LeaveRead(A)],
        &[Read(A, None), Read(A, None), LeaveRead(A), LeaveRead(A)],
        &[Read(A, None), CannotWrite(B), Read(B, None), LeaveRead(A), LeaveRead(B)],
        &[Read(A, None), Read(B, None), Read(B, None), LeaveRead(B), LeaveRead(B), LeaveRead(A)],
        &[Write(A, None), CannotRead(B), CannotWrite(B), LeaveWrite(A)],
        &[Write(A, None), Read(A, None), CannotRead(B), LeaveRead(A), LeaveWrite(A)],
        &[Write(A, None), ForceWrite],
        &[Write(A, None), Read(A, None), LeaveRead(A), ForceWrite],
        &[Read(A, fixed), LeaveRead(A), Write(A, fixed), LeaveWrite(A)],
        &[Read(A, fixed), Read(A, fixed), LeaveRead(A), LeaveRead(A)],
        &[Write(A, fixed), Read(A, fixed), LeaveRead(A), LeaveWrite(A)],
        // The TTL is what the longest reader needs.
        &[Read(A, Some(60)), Read(B, fixed), LeaveRead(A), LeaveRead(B)],
        &[Read(A, fixed), Read(B, Some(60)), LeaveRead(A), LeaveRead(B)],
        &[Read(A, fixed), Read(B, Some(60)), LeaveRead(B), LeaveRead(A)],
        &[Write(A, Some(60)), Read(A, fixed), LeaveRead(A), LeaveWrite(A)],
        &[Write(A, fixed), Read(A, Some(60)), LeaveRead(A), LeaveWrite(A)],
    ];
    for name in ["stock", "{shop}:stock", "a{b}c", "Lager für Ä 😀", "line\nend"] {
        for acts in if name == "stock" { plays } else { &plays[..6] } {
            let (java, ours) = stage.play(name, acts);
            assert_eq!(java, ours, "{name:?}, {acts:?}: Java, then ours");
            assert_eq!(
                java.last().map(|last| last.matches("; ").count()),
                Some(0),
                "only a message: {java:?}"
            );
        }
    }
    // The comparison is not one of nothing with nothing.
    let (java, _) = stage.play("stock", plays[5]);
    let hash = "N A:write=1 A=1 mode=write 30s";
    let expected = [
        "N A:write=1 mode=write 30s",
        &format!("{hash}; {{N}}:A:rwlock_timeout:1 30s"),
        &format!("{hash}; {{N}}:A:rwlock_timeout:1 30s"),
        "N A:write=1 mode=write 30s",
        "> redisson_rwlock:{N} 1",
    ];
    assert_eq!(java, expected);
    assert_eq!(stage.play("stock", plays[0]).0[1], "> redisson_rwlock:{N} 0");
}

pub(crate) fn where_a_read_write_lock_is_different_on_purpose(version: RedissonVersion) {
    let bed = Bed::of(version);
    let mut stage = Stage::new(&bed);
    let key = "{N}:A:rwlock_timeout:";
    let (all, one) = ("> redisson_rwlock:{N} 1", "> redisson_rwlock:{N} 0");
    let mut differ = |trap: &str, acts: &[Act], at: usize, java: &str, ours: &str, after: &[&str]| {
        let (theirs, own) = stage.play("stock", acts);
        assert_eq!(theirs[..at], own[..at], "{trap}: alike until step {at}");
        assert_eq!(
            (theirs[at].as_str(), own[at].as_str()),
            (java, ours),
            "{trap}, step {at}: Java, then ours"
        );
        // What ours leaves afterwards; Java's differs by what it did before.
        assert_eq!(own[at + 1..], *after, "{trap}: the rest of ours, where Java had {:?}", &theirs[at + 1..]);
    };
    let term = |seconds| Some(seconds);
    differ(
        "R1, a second write hold adds its lease to what is left",
        &[Write(A, None), Write(A, None), LeaveWrite(A), LeaveWrite(A)],
        1,
        "N A:write=2 mode=write 60s",
        "N A:write=2 mode=write 30s",
        &["N A:write=1 mode=write 30s", all],
    );
    differ(
        "R1 with a shorter lease, which then cuts the outer hold",
        &[Write(A, term(60)), Write(A, term(20)), LeaveWrite(A), LeaveWrite(A)],
        1,
        "N A:write=2 mode=write 80s",
        "N A:write=2 mode=write 60s",
        &["N A:write=1 mode=write 60s", all],
    );
    let twice = "N A:write=1 A=1 mode=write";
    differ(
        "R2, a read unlock under a write hold sets the TTL to the reader's",
        &[
            Write(A, term(60)),
            Read(A, term(20)),
            Read(A, term(20)),
            LeaveRead(A),
            LeaveRead(A),
            LeaveWrite(A),
        ],
        3,
        &format!("{twice} 20s; {key}1 20s"),
        &format!("{twice} 60s; {key}1 20s"),
        &["N A:write=1 mode=write 60s", all],
    );
    differ(
        "R3, the lease of a write hold outlasts it",
        &[Write(A, term(60)), Read(A, term(20)), LeaveWrite(A), LeaveRead(A)],
        2,
        &format!("N A=1 mode=read 60s; {key}1 20s"),
        &format!("N A=1 mode=read 20s; {key}1 20s; {all}"),
        &[one],
    );
    differ(
        "R4, holds of one reader with leases of their own",
        &[Read(A, term(20)), Read(A, term(60)), LeaveRead(A), LeaveRead(A)],
        1,
        &format!("N A=2 mode=read 60s; {key}1 20s; {key}2 60s"),
        &format!("N A=2 mode=read 60s; {key}1 60s; {key}2 60s"),
        &[&format!("N A=1 mode=read 60s; {key}1 60s"), one],
    );
    let reading = format!("N A=1 mode=read 30s; {key}1 30s");
    differ(
        "R6, a downgrade tells nobody",
        &[Write(A, None), Downgrade(A), LeaveRead(A)],
        1,
        &reading,
        &format!("{reading}; {all}"),
        &[one],
    );
    differ(
        "R6, a write hold that goes before the read hold tells nobody",
        &[Write(A, None), Read(A, None), LeaveWrite(A), LeaveRead(A)],
        2,
        &reading,
        &format!("{reading}; {all}"),
        &[one],
    );
    differ(
        "R7, a forced read unlock leaves timeout keys",
        &[Read(A, None), Read(A, None), ForceRead],
        2,
        &format!("{key}1 30s; {key}2 30s; {one}"),
        one,
        &[],
    );
    differ(
        "R7, a forced write unlock leaves them too",
        &[Write(A, None), Read(A, None), ForceWrite],
        2,
        &format!("{key}1 30s; {all}"),
        all,
        &[],
    );
}
