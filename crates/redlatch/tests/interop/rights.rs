//! Java as the account that `redlatch acl --redisson` describes: it needs no more, and nothing of it is there for nothing.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use redlatch::{
    Client, Rate, ShardedPubSub,
    acl::{Kind as Right, Rights},
};
use redlatch_testkit::{
    redisson::{Connection, JavaError, RedissonVersion},
    server::RedisServer,
    topology::{MASTER_NAME, RedisCluster, SentinelSet},
};

use crate::{
    bed::{BRISK, Java, LIMIT, beside_others, channel_of, ms, run},
    both_ways::{self, Kind},
    meeting::{Meeting, Messages},
};

/// What all names here begin with.
const PREFIX: &str = "app:";
/// What is tried and done without: by our look at a lost lock, with `pcall`; by our question to a master for its role, which
/// `INFO` answers as well; and by Redisson 4, which asks when it connects whether a cluster hides behind one address, with a
/// script that reads keys of two slots, and whether there are patterns and sharded messages. (Those who need the latter find out
/// by not being woken.)
const SPARED: [&str; 6] = [
    "command llen",
    "command role",
    "command get",
    "key test1",
    "command pubsub|numpat",
    "command pubsub|shardnumsub",
];

/// The kinds that both languages have. Rate limiters of 3.15.1 have another form, but the same rights.
const KINDS: [Right; 9] = [
    Right::Lock,
    Right::Fenced,
    Right::Fair,
    Right::Spin,
    Right::ReadWrite,
    Right::Semaphore,
    Right::Permits,
    Right::Latch,
    Right::RateLimiter,
];

fn kinds(version: RedissonVersion) -> impl Iterator<Item = Right> {
    KINDS.into_iter().filter(move |kind| version == RedissonVersion::Newest || *kind != Right::Fenced)
}

/// Servers with an account, and clients of both languages that have nothing else.
struct Account<'a> {
    servers: &'a Servers,
    meeting: Meeting<'a>,
}

impl<'a> Account<'a> {
    /// An account for this kind, without one of its rules if that is named.
    fn of(
        version: RedissonVersion,
        kind: Right,
        servers: &'a Servers,
        without: Option<&str>,
    ) -> Result<Self, JavaError> {
        let in_cluster = servers.are_a_cluster();
        let rights = Rights::of(&[kind], PREFIX).redisson(true).cluster(in_cluster);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let user = format!("{kind}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let rules = rights.rules();
        let mut words = vec!["ACL", "SETUSER", &user, "on", ">pw"];
        words.extend(rules.split(' ').filter(|rule| Some(*rule) != without));
        for node in servers.nodes() {
            node.cmd(&words).unwrap();
            // An account that may not load them would find those of others.
            node.flush_scripts().unwrap();
        }
        let (java, url) = servers.ways();
        let java = java.watchdog(BRISK).option("username", &user).option("password", "pw");
        // The newest decides in a cluster by what its servers know; 3.15.1 knows plain messages only.
        let is_sharded = in_cluster && version == RedissonVersion::Newest;
        let (sharded, messages) = match is_sharded {
            true => (ShardedPubSub::Auto, Messages::Sharded),
            false => (ShardedPubSub::Off, Messages::Plain),
        };
        let builder = || Client::builder().url(&url).username(&user).password("pw").sharded(sharded);
        let ours = [(); 2].map(|()| run(builder().connect()).unwrap());
        let meeting = Meeting::try_new(version, &user, java, ours, servers.nodes())?;
        let meeting = meeting.messages(messages, messages).names(|fresh| format!("{PREFIX}{}", fresh()));
        Ok(Account { servers, meeting })
    }

    /// Commands, keys and channels that servers have refused since the last time.
    fn refused(&self) -> BTreeSet<String> {
        let log = |node: &RedisServer| {
            let entries: Vec<redis::Value> =
                redis::from_redis_value(node.cmd(&["ACL", "LOG", "128"]).unwrap()).unwrap();
            node.cmd(&["ACL", "LOG", "RESET"]).unwrap();
            entries
        };
        let object = |entry: redis::Value| {
            let redis::Value::Array(fields) = entry else { panic!("a list of fields") };
            let text = |value: &redis::Value| match value {
                redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            };
            let of = |name: &str| {
                let at = fields.iter().position(|field| text(field) == name).expect("a field");
                text(&fields[at + 1])
            };
            format!("{} {}", of("reason"), of("object"))
        };
        self.servers
            .nodes()
            .iter()
            .flat_map(log)
            .map(object)
            .filter(|what| !SPARED.contains(&what.as_str()))
            .collect()
    }
}

/// Where both meet.
enum Servers {
    One(Box<RedisServer>),
    Cluster(RedisCluster),
    /// A master with replicas, and sentinels that watch over it.
    Watched(SentinelSet),
}

/// Long enough for a machine that pauses, because no test here is about noticing a failure.
const DOWN_AFTER: Duration = Duration::from_secs(5);

impl Servers {
    fn one() -> Self {
        let server = RedisServer::builder().acl("default off").start();
        Servers::One(Box::new(server.unwrap_or_else(|error| panic!("{error}"))))
    }

    /// Three masters with a replica each.
    fn cluster() -> Self {
        let cluster = RedisCluster::builder().node_timeout(DOWN_AFTER).start();
        Servers::Cluster(cluster.unwrap_or_else(|error| panic!("{error}")))
    }

    fn watched() -> Self {
        let set = SentinelSet::builder().down_after(DOWN_AFTER).start();
        Servers::Watched(set.unwrap_or_else(|error| panic!("{error}")))
    }

    fn are_a_cluster(&self) -> bool {
        matches!(self, Servers::Cluster(_))
    }

    fn nodes(&self) -> &[RedisServer] {
        match self {
            Servers::One(server) => std::slice::from_ref(&**server),
            Servers::Cluster(cluster) => cluster.nodes(),
            Servers::Watched(set) => set.nodes(),
        }
    }

    /// How Java and we connect.
    fn ways(&self) -> (Connection, String) {
        let urls =
            |addrs: Vec<String>| addrs.iter().map(|addr| format!("redis://{addr}")).collect::<Vec<_>>();
        fn words(urls: &[String]) -> Vec<&str> {
            urls.iter().map(String::as_str).collect()
        }
        match self {
            Servers::One(server) => (Connection::single(&server.url()), server.url()),
            Servers::Cluster(cluster) => (Connection::cluster(&words(&urls(cluster.seeds()))), cluster.url()),
            Servers::Watched(set) => {
                (Connection::sentinel(&words(&urls(set.sentinel_addrs())), MASTER_NAME), set.url())
            }
        }
    }
}

/// A Java thread with one object.
struct Object<'a> {
    meeting: &'a Meeting<'a>,
    java: Java,
    word: &'a str,
    name: String,
}

impl Object<'_> {
    fn say(&self, operation: &str, args: &[&str]) -> Result<String, String> {
        let args: Vec<&str> = std::iter::once(self.name.as_str()).chain(args.iter().copied()).collect();
        let verb = self.meeting.verb(&format!("{}.{operation}", self.word));
        let reply = self.java.thread.call(&verb, &args);
        reply
            .map(|reply| reply.text().to_owned())
            .map_err(|error| format!("{}.{operation}: {error}", self.word))
    }

    /// Operations one after the other, each with its arguments behind it.
    fn all(&self, steps: &[&str]) -> Result<(), String> {
        steps.iter().try_for_each(|step| {
            let mut words = step.split(' ');
            let operation = words.next().expect("an operation");
            self.say(operation, &words.collect::<Vec<_>>()).map(drop)
        })
    }

    /// Another thread with the same object.
    fn beside(&self) -> Self {
        Object { java: self.meeting.java(self.word), name: self.name.clone(), ..*self }
    }

    /// Waits until the watchdog has given the lock a new lease.
    fn renewal(&self) -> Result<(), String> {
        let ttl = || Ok::<i64, String>(self.say("ttl", &[])?.parse().expect("a number"));
        let (mut before, deadline) = (ttl()?, Instant::now() + LIMIT);
        loop {
            let now = ttl()?;
            if now > before {
                return Ok(());
            }
            if now < 0 || Instant::now() > deadline {
                return Err(format!("{} is not renewed", self.word));
            }
            before = now;
            std::thread::sleep(ms(20));
        }
    }

    fn lock(&self) -> Result<(), String> {
        // At first, because an object remembers the last lease that was taken through it.
        self.all(&["lock"])?;
        self.renewal()?;
        self.all(&["unlock", "lockLease 60000", "holdCount", "isLocked", "isHeldByMe", "ttl"])?;
        if !self.word.starts_with("non") {
            self.all(&["lock", "unlock"])?;
        }
        // A reader shares.
        let other = self.beside();
        if other.say("tryLockWait", &["50", "1000"])? == "true" {
            other.say("unlock", &[])?;
        }
        self.all(&["unlock", "lockLease 60000", "forceUnlock"])
    }

    /// One who waits in front of another gives up, who then moves up.
    fn give_up_in_front(&self) -> Result<(), String> {
        self.say("lockLease", &["60000"])?;
        let channels = format!("{}:*", channel_of(&self.name));
        loop {
            let (first, second) = (self.beside(), self.beside());
            let first = first.java.wait_for(&self.name, 1_500, 1_000);
            self.meeting.until_java_listens(&channels, 1);
            let second = second.java.wait_for(&self.name, 3_000, 1_000);
            self.meeting.until_java_listens(&channels, 2);
            let in_time = first.is_still_waiting_after(Duration::ZERO);
            for reply in [first, second] {
                if reply.wait(LIMIT).map_err(|error| error.to_string())?.as_bool().unwrap() {
                    return Err(format!("{} is taken twice", self.word));
                }
            }
            if in_time {
                return self.say("unlock", &[]).map(drop);
            }
        }
    }

    /// All that a service does with it.
    fn exercise(&self, kind: Right) -> Result<(), String> {
        match kind {
            Right::Semaphore => self.semaphore()?,
            Right::Permits => self.permits()?,
            Right::Latch => {
                self.all(&["trySetCount 2", "getCount", "awaitFor 50", "countDown", "countDown"])?;
                self.all(&["trySetCount 1"])?;
            }
            Right::RateLimiter => self.limiter()?,
            _ => self.lock()?,
        }
        match kind {
            Right::Fenced => self.all(&["lockAndGetToken", "getToken", "unlock"])?,
            Right::Fair => self.give_up_in_front()?,
            _ => {}
        }
        self.all(&["exists", "delete"])
    }

    fn permits(&self) -> Result<(), String> {
        self.all(&["trySetPermits 1", "available", "addPermits 1", "tryAcquire"])?;
        let id = self.say("acquire", &["60000"])?;
        self.all(&[
            "tryAcquireWait 50 60000",
            &format!("updateLeaseTime {id} 120000"),
            &format!("release {id}"),
        ])?;
        let id = self.say("tryAcquireWait", &["50", "60000"])?;
        self.say("tryRelease", &[&id])?;
        if self.meeting.is_newest() {
            self.all(&["acquired", "permits", "setPermits 3"])?;
            let ids = self.say("acquireMany", &["2", "60000"])?;
            self.say("releaseMany", &[&ids])?;
        }
        Ok(())
    }

    fn semaphore(&self) -> Result<(), String> {
        self.all(&["trySetPermits 2", "acquire 1", "tryAcquireWait 2 50", "available"])?;
        self.all(&["addPermits 1", "drain", "release 1"])?;
        if self.meeting.is_newest() {
            self.all(&[
                "releaseIfExists 1",
                "trySetPermitsTtl 1 60000",
                "delete",
                "trySetPermitsTtl 1 60000",
            ])?;
        }
        Ok(())
    }

    fn limiter(&self) -> Result<(), String> {
        self.all(&["trySetRate overall 2 100", "acquire 1", "available", "setRate client 2 100"])?;
        self.all(&["config", "tryAcquire 1", "acquire 1", "tryAcquireWait 1 50", "available"])?;
        if self.meeting.is_newest() {
            self.all(&["release 1", "updateRate overall 4 100", "setRateKeepAlive overall 3 100 90000"])?;
        }
        // More than there is at once, so that what has run out is counted.
        self.all(&["acquire 2", "acquire 2", "acquire 2"])
    }
}

/// What a Java service does with objects of this kind; the first error ends it.
fn java_alone(meeting: &Meeting<'_>, kind: Right) -> Result<(), String> {
    let words: &[&str] = match kind {
        Right::Lock => &["lock", "nonreentrant"],
        Right::Fenced => &["fenced"],
        Right::Fair => &["fair", "nonreentrantfair"],
        Right::Spin => &["spin"],
        Right::ReadWrite => &["read", "write"],
        Right::Semaphore => &["sem"],
        Right::Permits => &["permit"],
        Right::Latch => &["latch"],
        Right::RateLimiter => &["rate"],
        other => panic!("Java has no {other}"),
    };
    for word in words.iter().filter(|word| meeting.is_newest() || !word.starts_with("non")) {
        let plain = meeting.name(word);
        // Keys beside a name with braces have none of their own.
        let tagged = plain.replacen(PREFIX, &format!("{PREFIX}{{tag}}"), 1);
        for name in [plain, tagged].into_iter().take(if kind == Right::Latch { 1 } else { 2 }) {
            let object = Object { meeting, java: meeting.java(word), word, name };
            object.exercise(kind)?;
        }
    }
    if kind == Right::ReadWrite {
        // Who writes may read, too, and goes on reading.
        let writer =
            Object { meeting, java: meeting.java("write"), word: "write", name: meeting.name("both") };
        let reader = Object { java: writer.java.clone(), word: "read", name: writer.name.clone(), meeting };
        writer.say("lock", &[])?;
        reader.say("lock", &[])?;
        writer.say("unlock", &[])?;
        if meeting.is_newest() {
            // 3.15.1 leaves it to its lease.
            reader.renewal()?;
        }
        reader.say("unlock", &[])?;
    }
    Ok(())
}

/// What both languages do with objects of this kind, among each other.
fn together(meeting: &Meeting<'_>, kind: Right) {
    let pairs: &[(Kind, Kind)] = match kind {
        Right::Lock => &[(Kind::Plain, Kind::Plain)],
        Right::Fair => &[(Kind::Fair, Kind::Fair)],
        Right::Fenced => &[(Kind::Fenced, Kind::Fenced)],
        Right::ReadWrite => &[(Kind::Write, Kind::Read), (Kind::Read, Kind::Write)],
        _ => &[],
    };
    if !pairs.is_empty() {
        both_ways::holds_exclude_and_are_counted(meeting, pairs);
        both_ways::releases_wake_the_other_language(meeting, pairs);
    }
    match kind {
        Right::Lock => both_ways::forced_unlocks_are_seen(meeting, &[Kind::Plain]),
        Right::Fair => {
            both_ways::forced_unlocks_are_seen(meeting, &[Kind::Fair]);
            both_ways::a_fair_lock_has_one_queue(meeting);
        }
        Right::Fenced => both_ways::fencing_tokens_grow(meeting),
        Right::ReadWrite => {
            both_ways::forced_unlocks_are_seen(meeting, &[Kind::Write]);
            both_ways::downgrades_are_seen(meeting);
        }
        Right::Semaphore => both_ways::semaphores_wake_the_other_language(meeting),
        Right::Permits => both_ways::permits_wake_the_other_language(meeting),
        Right::Latch => both_ways::latches_wake_the_other_language(meeting),
        Right::RateLimiter if meeting.is_newest() => {
            let (name, java) = (meeting.name("shared"), meeting.java("rate"));
            let limiter = meeting.ours.rate_limiter(name.as_str());
            run(limiter.set(Rate::per(5, ms(3_600_000)))).unwrap();
            let took = java.thread.call(&meeting.verb("rate.tryAcquire"), &[&name, "3"]).unwrap();
            assert!(took.as_bool().unwrap());
            assert_eq!(run(limiter.available()).unwrap(), 2);
        }
        Right::Spin => {
            let (name, java) = (meeting.name("spun"), meeting.java("spin"));
            java.lock(&name);
            let lock = meeting.ours.spin_lock(name.as_str());
            assert!(run(lock.try_lock()).unwrap().is_none());
            java.unlock(&name);
            let guard = run(lock.lock()).unwrap();
            assert!(!java.try_lock(&name));
            let reply = java.wait_for(&name, both_ways::WAIT_MS, -1);
            run(guard.unlock()).unwrap();
            assert!(reply.wait(LIMIT).unwrap().as_bool().unwrap());
            java.unlock(&name);
        }
        _ => {}
    }
}

/// Lets Java and us do everything with just these rights.
fn nothing_is_refused(version: RedissonVersion, servers: &Servers) {
    for kind in kinds(version) {
        let account =
            Account::of(version, kind, servers, None).unwrap_or_else(|error| panic!("{kind}: {error}"));
        java_alone(&account.meeting, kind).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(account.refused(), BTreeSet::new(), "{kind} of Java");
        together(&account.meeting, kind);
        assert_eq!(account.refused(), BTreeSet::new(), "{kind} together");
        account.meeting.leave();
    }
}

pub(crate) fn java_needs_no_more_than_the_printed_rights(version: RedissonVersion) {
    let _turn = beside_others();
    nothing_is_refused(version, &Servers::one());
}

pub(crate) fn java_needs_no_more_than_the_printed_rights_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    nothing_is_refused(version, &Servers::cluster());
}

pub(crate) fn java_needs_no_more_than_the_printed_rights_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    nothing_is_refused(version, &Servers::watched());
}

/// Takes away each of some rules by itself, and answers those that nobody missed.
fn not_missed(version: RedissonVersion, kind: Right, servers: &Servers, rules: &[String]) -> Vec<String> {
    let is_spare = |rule: &&String| match Account::of(version, kind, servers, Some(rule)) {
        Ok(account) => {
            let outcome = java_alone(&account.meeting, kind);
            let refused = account.refused();
            println!("{kind} without {rule}: {outcome:?}, refused {refused:?}");
            account.meeting.leave();
            outcome.is_ok() && refused.is_empty()
        }
        Err(error) => {
            println!("{kind} without {rule}: {error}");
            false
        }
    };
    rules.iter().filter(is_spare).cloned().collect()
}

/// What is added for Java's sake.
fn added(kind: Right, in_cluster: bool) -> Vec<String> {
    let ours = Rights::of(&[kind], PREFIX).cluster(in_cluster).rules();
    let ours: BTreeSet<&str> = ours.split(' ').collect();
    let all = Rights::of(&[kind], PREFIX).redisson(true).cluster(in_cluster).rules();
    all.split(' ').filter(|rule| !ours.contains(rule)).map(str::to_owned).collect()
}

/// One server has no replicas to ask for.
const FOR_REPLICAS: [&str; 2] = ["+info", "+wait"];

pub(crate) fn each_rule_that_is_added_for_java_is_missed_when_it_is_gone(version: RedissonVersion) {
    let _turn = beside_others();
    let servers = Servers::one();
    for kind in kinds(version) {
        let mut rules = added(kind, false);
        rules.retain(|rule| !FOR_REPLICAS.contains(&rule.as_str()));
        assert_eq!(not_missed(version, kind, &servers, &rules), Vec::<String>::new(), "{kind}");
    }
}

pub(crate) fn each_rule_for_java_in_a_cluster_is_missed_when_it_is_gone(version: RedissonVersion) {
    let _turn = beside_others();
    let kind = Right::Lock;
    let one: BTreeSet<String> = added(kind, false).into_iter().collect();
    let mut rules = added(kind, true);
    rules.retain(|rule| !one.contains(rule) || FOR_REPLICAS.contains(&rule.as_str()));
    // Ours asks for these as well.
    rules.extend(["+cluster|nodes", "+info"].map(str::to_owned));
    assert!(rules.len() > FOR_REPLICAS.len(), "{rules:?}");
    assert_eq!(not_missed(version, kind, &Servers::cluster(), &rules), Vec::<String>::new());
}
