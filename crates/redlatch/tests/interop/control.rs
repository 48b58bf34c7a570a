//! The tests can fail: a client that gets one detail of the wire wrong is found out by the helpers that they rely on.

use std::time::Duration;

use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::RedisServer,
};

use crate::{
    bed::{Bed, channel_of, ms},
    golden::{Step, differences, java_trace, trace},
    waking::{WAKE_LIMIT, java_woken, rust_woken},
};

const UUID: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341";

/// A client made by hand out of plain commands.
#[derive(Clone)]
struct Handmade {
    field: String,
    count: &'static str,
    lease_ms: &'static str,
    channel: String,
    payload: Option<&'static str>,
}

impl Handmade {
    fn right(name: &str) -> Self {
        let field = format!("{UUID}:64");
        Self { field, count: "1", lease_ms: "30000", channel: channel_of(name), payload: Some("0") }
    }

    fn lock(&self, server: &RedisServer, name: &str, lease_ms: &str) {
        server.cmd(&["HSET", name, &self.field, self.count]).unwrap();
        if !lease_ms.is_empty() {
            server.cmd(&["PEXPIRE", name, lease_ms]).unwrap();
        }
    }

    fn enter(&self, server: &RedisServer, name: &str) {
        server.cmd(&["HINCRBY", name, &self.field, "1"]).unwrap();
    }

    fn leave(&self, server: &RedisServer, name: &str) {
        server.cmd(&["HINCRBY", name, &self.field, "-1"]).unwrap();
    }

    fn free(&self, server: &RedisServer, name: &str) {
        server.cmd(&["DEL", name]).unwrap();
        if let Some(payload) = self.payload {
            server.cmd(&["PUBLISH", &self.channel, payload]).unwrap();
        }
    }

    /// The steps of the golden comparison.
    fn steps<'a>(&'a self, server: &'a RedisServer, name: &'a str) -> Vec<Step<'a>> {
        vec![
            Box::new(|| self.lock(server, name, self.lease_ms)),
            Box::new(|| self.enter(server, name)),
            Box::new(|| {}),
            Box::new(|| {}),
            Box::new(|| self.leave(server, name)),
            Box::new(|| self.free(server, name)),
            Box::new(|| self.lock(server, name, "7000")),
            Box::new(|| self.free(server, name)),
            Box::new(|| {}),
        ]
    }
}

pub(crate) fn a_client_that_writes_other_bytes_is_found_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    let server = RedisServer::start().unwrap();
    let name = "stock";
    let java = java_trace(&bed, &server, name);
    let right = Handmade::right(name);
    let found = differences(&java, &trace(&server, right.steps(&server, name)));
    assert!(found.is_empty(), "the right client:\n  {}", found.join("\n  "));

    let wrong = [
        ("the number first", Handmade { field: format!("64:{UUID}"), ..right.clone() }),
        ("another separator", Handmade { field: format!("{UUID}-64"), ..right.clone() }),
        (
            "an upper-case identity",
            Handmade { field: format!("{}:64", UUID.to_uppercase()), ..right.clone() },
        ),
        ("a padded number", Handmade { field: format!("{UUID}:064"), ..right.clone() }),
        ("another count", Handmade { count: "2", ..right.clone() }),
        ("no lease", Handmade { lease_ms: "", ..right.clone() }),
        ("a lease in seconds", Handmade { lease_ms: "30", ..right.clone() }),
        ("the payload of a read-write lock", Handmade { payload: Some("1"), ..right.clone() }),
        ("a payload with a tail", Handmade { payload: Some("0x"), ..right.clone() }),
        ("an empty payload", Handmade { payload: Some(""), ..right.clone() }),
        (
            "a channel without braces",
            Handmade { channel: format!("redisson_lock__channel:{name}"), ..right.clone() },
        ),
        (
            "the channel of another kind",
            Handmade { channel: format!("redisson_rwlock:{{{name}}}"), ..right.clone() },
        ),
        ("no message", Handmade { payload: None, ..right.clone() }),
    ];
    for (what, client) in &wrong {
        let found = differences(&java, &trace(&server, client.steps(&server, name)));
        assert!(!found.is_empty(), "{what} was not noticed");
    }
}

/// How long a waiter has that is to be woken, and one that is not.
const LONG_MS: u64 = 10_000;
const SHORT_MS: u64 = 800;

pub(crate) fn a_release_with_other_bytes_wakes_nobody(version: RedissonVersion) {
    let bed = Bed::alone(version);
    // A client of its own: what cannot be decoded may cost Java its connection.
    let client = bed.name("control");
    bed.java.connect(&Connection::single(&bed.server.url()).named(&client)).unwrap();
    let java = bed.thread().with(&format!("{client}@lock"));

    let to_java = |wait_ms, change: &dyn Fn(Handmade) -> Handmade| {
        let name = bed.name("control");
        let peer = change(Handmade::right(&name));
        peer.lock(&bed.server, &name, "30000");
        let woken = java_woken(&bed, &java, &name, wait_ms, || peer.free(&bed.server, &name));
        if woken.is_some() {
            java.unlock(&name);
        }
        woken
    };
    let to_us = |wait_ms, change: &dyn Fn(Handmade) -> Handmade| {
        let name = bed.name("control");
        let peer = change(Handmade::right(&name));
        peer.lock(&bed.server, &name, "30000");
        rust_woken(&bed, &bed.patient[0], &name, wait_ms, || peer.free(&bed.server, &name))
            .map(|woken| woken.1)
    };
    // The first wait loads Java's classes.
    to_java(LONG_MS, &|peer| peer);

    let woken = to_java(LONG_MS, &|peer| peer);
    assert!(woken.is_some_and(|after| after < WAKE_LIMIT), "the right message: {woken:?}");
    let woken = to_us(LONG_MS, &|peer| peer);
    assert!(woken.is_some_and(|after| after < WAKE_LIMIT), "the right message: {woken:?}");

    let silent = |peer: Handmade| Handmade { payload: None, ..peer };
    let elsewhere = |peer: Handmade| Handmade { channel: peer.channel.replace(['{', '}'], ""), ..peer };
    let unknown = |peer: Handmade| Handmade { payload: Some("7"), ..peer };
    let garbled = |peer: Handmade| Handmade { payload: Some("1x"), ..peer };
    let wrong: [(&str, &dyn Fn(Handmade) -> Handmade); 4] = [
        ("no message", &silent),
        ("another channel", &elsewhere),
        ("an unknown number", &unknown),
        ("no number", &garbled),
    ];
    for (what, change) in wrong {
        // Who looks by chance, or when a pause of the machine is over, does not do so each time.
        let woken = [(); 3].map(|()| to_java(SHORT_MS, change));
        assert!(woken.iter().any(Option::is_none), "Java woke after {woken:?}: {what}");
    }
    // What the message says does not matter to us, but that it comes on the channel does.
    for (what, change) in &wrong[..2] {
        let woken = [(); 3].map(|()| to_us(SHORT_MS, change));
        // Its last look comes when its time is nearly up.
        let is_late = |after: &Option<Duration>| after.is_none_or(|after| after >= ms(SHORT_MS / 2));
        assert!(woken.iter().any(is_late), "we woke after {woken:?}: {what}");
    }
    java.thread.call(&format!("{client}@shutdown"), &[]).unwrap();
}
