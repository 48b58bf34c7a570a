//! Clients of both languages that meet on several servers.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use redlatch::Client;
use redlatch_testkit::{
    redisson::{Connection, JavaError, RedissonVersion},
    server::RedisServer,
};

use crate::bed::{Bed, Java, JavaCounter, LIMIT, ms};

/// How a client publishes and listens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Messages {
    Plain,
    Sharded,
    /// Both ways, for peers of either kind.
    Twice,
}

impl Messages {
    /// Whether this way, by the subcommand of `PUBSUB` that lists its channels, is one of them.
    fn go(self, question: &str) -> bool {
        match self {
            Messages::Plain => question == "CHANNELS",
            Messages::Sharded => question == "SHARDCHANNELS",
            Messages::Twice => true,
        }
    }
}

/// A client of Java and two of ours on the same servers, whatever these are.
pub(crate) struct Meeting<'a> {
    pub(crate) version: RedissonVersion,
    pub(crate) ours: Client,
    pub(crate) ours_too: Client,
    bed: &'static Bed,
    client: String,
    nodes: &'a [RedisServer],
    namer: fn(&mut dyn FnMut() -> String) -> String,
    our_messages: Messages,
    javas_messages: Messages,
}

impl<'a> Meeting<'a> {
    /// Connects one more client in the Java process of this release.
    pub(crate) fn new(
        version: RedissonVersion,
        client: &str,
        connection: Connection,
        ours: [Client; 2],
        nodes: &'a [RedisServer],
    ) -> Self {
        Self::try_new(version, client, connection, ours, nodes)
            .unwrap_or_else(|error| panic!("{client}: {error}"))
    }

    /// The same, where Java may fail to connect.
    pub(crate) fn try_new(
        version: RedissonVersion,
        client: &str,
        connection: Connection,
        ours: [Client; 2],
        nodes: &'a [RedisServer],
    ) -> Result<Self, JavaError> {
        let bed = Bed::started(version);
        bed.java.connect(&connection.named(client))?;
        let [ours, ours_too] = ours;
        Ok(Self {
            version,
            ours,
            ours_too,
            bed,
            client: client.to_owned(),
            nodes,
            namer: |fresh| fresh(),
            our_messages: Messages::Plain,
            javas_messages: Messages::Plain,
        })
    }

    /// Says how the messages of either language go, plain unless told.
    pub(crate) fn messages(mut self, ours: Messages, javas: Messages) -> Self {
        (self.our_messages, self.javas_messages) = (ours, javas);
        self
    }

    /// Chooses among fresh names.
    pub(crate) fn names(mut self, namer: fn(&mut dyn FnMut() -> String) -> String) -> Self {
        self.namer = namer;
        self
    }

    /// The name of Java's client.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// Ends Java's client, which else would look for its servers as long as its process runs.
    pub(crate) fn leave(self) {
        self.bed.thread().thread.call(&self.verb("shutdown"), &[]).unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn is_newest(&self) -> bool {
        self.version == RedissonVersion::Newest
    }

    /// A name that no other test uses.
    pub(crate) fn name(&self, what: &str) -> String {
        (self.namer)(&mut || self.bed.name(&format!("{what}-{}", self.client)))
    }

    /// A Java thread of its own with this kind of lock.
    pub(crate) fn java(&self, kind: &str) -> Java {
        self.kind_of(&self.bed.thread(), kind)
    }

    /// The same thread with another kind of lock.
    pub(crate) fn kind_of(&self, java: &Java, kind: &str) -> Java {
        java.with(&format!("{}@{kind}", self.client))
    }

    /// A Java thread of its own with a semaphore or a latch.
    pub(crate) fn counter(&self, kind: &str, name: &str) -> JavaCounter {
        JavaCounter::new(self.bed, &format!("{}@{kind}", self.client), name)
    }

    /// The verb of an operation that only one kind has.
    pub(crate) fn verb(&self, kind_and_operation: &str) -> String {
        format!("{}@{kind_and_operation}", self.client)
    }

    /// Waits until Java listens to so many channels of this form.
    pub(crate) fn until_java_listens(&self, pattern: &str, channels: usize) {
        self.until_listening(pattern, 0, channels);
    }

    /// Waits until we listen to so many channels of this form.
    pub(crate) fn until_we_listen(&self, pattern: &str, channels: usize) {
        self.until_listening(pattern, channels, 0);
    }

    /// Waits until we listen to so many channels of this form, and Java to so many others.
    pub(crate) fn until_listening(&self, pattern: &str, ours: usize, javas: usize) {
        self.until_listening_at([self.nodes; 2], pattern, ours, javas);
    }

    /// The same, at some of the servers: those for plain and those for sharded messages.
    pub(crate) fn until_listening_at(
        &self,
        nodes: [&[RedisServer]; 2],
        pattern: &str,
        ours: usize,
        javas: usize,
    ) {
        let deadline = Instant::now() + LIMIT;
        for (question, nodes) in ["CHANNELS", "SHARDCHANNELS"].into_iter().zip(nodes) {
            let count = |messages: Messages, channels| if messages.go(question) { channels } else { 0 };
            let wanted = count(self.our_messages, ours) + count(self.javas_messages, javas);
            loop {
                let found = heard(nodes, question, pattern);
                if found.len() >= wanted {
                    break;
                }
                assert!(Instant::now() < deadline, "{wanted} {question} like {pattern:?}: {found:?}");
                std::thread::sleep(ms(2));
            }
        }
        // After the subscription a waiter looks once more. No event shows when it has done so.
        std::thread::sleep(SETTLE);
    }
}

/// As long as a waiter of either language needs for its first look after the subscription.
const SETTLE: Duration = ms(60);

/// The channels of this form that anybody listens to. A server that is about to change its role counts as silent.
fn heard(nodes: &[RedisServer], question: &str, pattern: &str) -> BTreeSet<String> {
    let answers = nodes.iter().filter_map(|node| node.cmd(&["PUBSUB", question, pattern]).ok());
    answers.flat_map(|answer| redis::from_redis_value::<Vec<String>>(answer).unwrap()).collect()
}
