//! Both languages on a cluster, with messages that go plain, sharded, and both ways.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use redlatch::{Client, ShardedPubSub};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::RedisServer,
    topology::{RedisCluster, slot_of},
};

use crate::{
    bed::{LIMIT, beside_others, ms, run, runtime},
    both_ways::{self, FIRST_LOOK, Kind, lock, pairs, try_lock},
    meeting::{Meeting, Messages},
    staying::Staying,
};

/// Long enough for a machine that pauses, because no test here is about noticing a failure.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
const SLOTS: usize = 16_384;
const MASTERS: usize = 3;
/// As many names as this, one from each part of the slots.
const PARTS: usize = 30;
/// How often one message has to wake all; the best time counts, because a waiter that hears nothing is late each time.
const ROUNDS: usize = 3;

fn start() -> RedisCluster {
    let cluster = RedisCluster::builder().master_count(MASTERS).node_timeout(NODE_TIMEOUT).start();
    cluster.unwrap_or_else(|error| panic!("{error}"))
}

/// Where all meet while the masters stay.
fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(start)
}

/// The part of the slots in which a name is, of so many equal ones.
fn part_of(name: &str, parts: usize) -> usize {
    ((usize::from(slot_of(name)) + 1) * parts - 1) / SLOTS
}

/// Names of each master in turn.
fn of_each_master(fresh: &mut dyn FnMut() -> String) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let master = NEXT.fetch_add(1, Ordering::Relaxed) % MASTERS;
    std::iter::repeat_with(fresh).find(|name| part_of(name, MASTERS) == master).expect("a name for each slot")
}

/// Who meets on the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// 3.15.1 publishes plain, and ours are told so.
    OldOff,
    /// The newest decides by itself, and ours do.
    NewestAuto,
    /// Sharded without asking, on either side.
    NewestOn,
    /// 3.15.1, and ours publish and listen both ways.
    OldCompat,
    /// The newest, and ours publish and listen both ways.
    NewestCompat,
}

fn connect<'a>(cluster: &'a RedisCluster, who: Who, client: &str) -> Meeting<'a> {
    let urls: Vec<String> = cluster.seeds().iter().map(|addr| format!("redis://{addr}")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let plain = Connection::cluster(&urls);
    let (auto, on) = (plain.clone().option("sharded", "auto"), plain.clone().option("sharded", "on"));
    let (version, connection, sharded, ours, javas) = match who {
        Who::OldOff => {
            (RedissonVersion::Old3_15_1, plain, ShardedPubSub::Off, Messages::Plain, Messages::Plain)
        }
        Who::NewestAuto => {
            (RedissonVersion::Newest, auto, ShardedPubSub::Auto, Messages::Sharded, Messages::Sharded)
        }
        Who::NewestOn => {
            (RedissonVersion::Newest, on, ShardedPubSub::On, Messages::Sharded, Messages::Sharded)
        }
        Who::OldCompat => {
            (RedissonVersion::Old3_15_1, plain, ShardedPubSub::Compat, Messages::Twice, Messages::Plain)
        }
        Who::NewestCompat => {
            (RedissonVersion::Newest, auto, ShardedPubSub::Compat, Messages::Twice, Messages::Sharded)
        }
    };
    let ours_of = || run(Client::builder().url(cluster.url()).sharded(sharded).connect()).unwrap();
    Meeting::new(version, client, connection, [ours_of(), ours_of()], cluster.nodes())
        .messages(ours, javas)
        .names(of_each_master)
}

fn meeting(who: Who) -> &'static Meeting<'static> {
    static MEETINGS: [OnceLock<Meeting<'_>>; 5] = [const { OnceLock::new() }; 5];
    MEETINGS[who as usize].get_or_init(|| connect(cluster(), who, &format!("{who:?}")))
}

/// The meeting of this release with messages that go as it sends them.
fn usual(version: RedissonVersion) -> &'static Meeting<'static> {
    meeting(match version {
        RedissonVersion::Old3_15_1 => Who::OldOff,
        RedissonVersion::Newest => Who::NewestAuto,
    })
}

/// The same, with ours for peers of either kind.
fn compatible(version: RedissonVersion) -> &'static Meeting<'static> {
    meeting(match version {
        RedissonVersion::Old3_15_1 => Who::OldCompat,
        RedissonVersion::Newest => Who::NewestCompat,
    })
}

pub(crate) fn names_in_all_slots_are_one_lock_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    let meeting = usual(version);
    let (java, other) = (meeting.java("lock"), meeting.java("lock"));
    let mut owners = Vec::new();
    let mut names: Vec<String> = Vec::new();
    while names.len() < PARTS {
        let name = meeting.name("spread");
        if part_of(&name, PARTS) == names.len() {
            owners.push(cluster().owner_of(slot_of(&name)).unwrap());
            names.push(name);
        }
    }
    owners.dedup();
    assert_eq!(owners.len(), MASTERS, "each master has its part: {owners:?}");
    // All at once, so that every hold is in a slot of its own.
    names.iter().for_each(|name| java.lock(name));
    for name in &names {
        assert!(try_lock(&meeting.ours, Kind::Plain, name).is_none(), "{name}");
    }
    names.iter().for_each(|name| java.unlock(name));
    let held: Vec<_> =
        names.iter().map(|name| run(lock(&meeting.ours, Kind::Plain, name)).unwrap()).collect();
    for name in &names {
        assert!(!other.try_lock(name), "{name}");
    }
    held.into_iter().for_each(both_ways::Held::release);
    for name in &names {
        assert!(java.try_lock(name), "{name}");
        java.unlock(name);
    }
}

pub(crate) fn holds_exclude_and_are_counted_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    let meeting = usual(version);
    both_ways::holds_exclude_and_are_counted(meeting, pairs(meeting));
}

pub(crate) fn releases_wake_the_other_language_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    let meeting = usual(version);
    both_ways::releases_wake_the_other_language(meeting, pairs(meeting));
}

pub(crate) fn forced_unlocks_and_downgrades_are_seen_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::forced_unlocks_are_seen(usual(version), &both_ways::FORCED);
    both_ways::downgrades_are_seen(usual(version));
}

pub(crate) fn a_fair_lock_has_one_queue_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::a_fair_lock_has_one_queue(usual(version));
    both_ways::a_fair_lock_has_one_queue(compatible(version));
}

pub(crate) fn counters_wake_the_other_language_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::semaphores_wake_the_other_language(usual(version));
    both_ways::latches_wake_the_other_language(usual(version));
    both_ways::permits_wake_the_other_language(usual(version));
}

pub(crate) fn fencing_tokens_grow_in_a_cluster(_: RedissonVersion) {
    let _turn = beside_others();
    both_ways::fencing_tokens_grow(meeting(Who::NewestAuto));
}

pub(crate) fn sharded_messages_that_are_asked_for_wake_both_languages_in_a_cluster(_: RedissonVersion) {
    let _turn = beside_others();
    both_ways::releases_wake_the_other_language(meeting(Who::NewestOn), &[(Kind::Plain, Kind::Plain)]);
}

pub(crate) fn releases_wake_peers_of_either_kind_in_a_cluster(version: RedissonVersion) {
    let _turn = beside_others();
    let pairs = [(Kind::Plain, Kind::Plain), (Kind::Fair, Kind::Fair), (Kind::Read, Kind::Write)];
    both_ways::releases_wake_the_other_language(compatible(version), &pairs);
    both_ways::semaphores_wake_the_other_language(compatible(version));
    both_ways::permits_wake_the_other_language(compatible(version));
}

/// What lets several in at once.
#[derive(Clone, Copy, Debug)]
enum Together {
    Readers,
    Latch,
}

impl Together {
    fn channel(self, name: &str) -> String {
        match self {
            Together::Readers => Kind::Read.channels(name),
            Together::Latch => format!("redisson_countdownlatch__channel__{{{name}}}"),
        }
    }

    /// Keeps everybody out, until what is returned runs.
    fn close(self, ours: &Client, name: &str) -> Box<dyn FnOnce()> {
        match self {
            Together::Readers => {
                let held = run(lock(ours, Kind::Write, name)).unwrap();
                Box::new(move || held.release())
            }
            Together::Latch => {
                let latch = ours.count_down_latch(name);
                assert!(run(latch.set_if_absent(1)).unwrap());
                Box::new(move || assert_eq!(run(latch.count_down()).unwrap(), 0))
            }
        }
    }

    /// Lets Java wait, and then says when it got through.
    fn javas(self, meeting: &'static Meeting<'static>, name: &str) -> Box<dyn FnOnce() -> SystemTime> {
        let name = name.to_owned();
        match self {
            Together::Readers => {
                let java = meeting.java("read");
                let reply = java.wait_for(&name, both_ways::WAIT_MS, -1);
                Box::new(move || {
                    let reply = reply.wait(LIMIT).unwrap();
                    assert!(reply.as_bool().unwrap(), "{}: released", meeting.client());
                    java.unlock(&name);
                    reply.finished_at()
                })
            }
            Together::Latch => {
                let reply = meeting.counter("latch", &name).send("await", &[]);
                Box::new(move || reply.wait(LIMIT).unwrap().finished_at())
            }
        }
    }

    /// The same for ours.
    fn ours(self, client: &Client, name: &str) -> Box<dyn FnOnce() -> SystemTime> {
        let (client, name) = (client.clone(), name.to_owned());
        let task = runtime().spawn(async move {
            let held = match self {
                Together::Readers => Some(lock(&client, Kind::Read, &name).await.unwrap()),
                Together::Latch => {
                    client.count_down_latch(name.as_str()).wait().await.unwrap();
                    None
                }
            };
            (held, SystemTime::now())
        });
        Box::new(move || {
            let (held, at) = run(task).unwrap();
            if let Some(held) = held {
                held.release();
            }
            at
        })
    }
}

pub(crate) fn one_release_of_ours_wakes_both_releases_of_redisson_and_us() {
    let _turn = beside_others();
    let (old, newest) = (meeting(Who::OldCompat), meeting(Who::NewestCompat));
    for what in [Together::Readers, Together::Latch] {
        let mut latest = Vec::new();
        for _ in 0..ROUNDS {
            let name = old.name("together");
            let open = what.close(&old.ours, &name);
            let waiting =
                [what.ours(&newest.ours_too, &name), what.javas(old, &name), what.javas(newest, &name)];
            // Ours listens both ways, and each release of Java's one way.
            until_clients(&what.channel(&name), 2);
            let opened_at = SystemTime::now();
            open();
            let times = waiting.map(|ended| ended().duration_since(opened_at).unwrap_or_default());
            println!("{what:?}: ours, 3.15.1 and the newest: {times:?}");
            latest.push(times.into_iter().max().expect("three"));
        }
        assert!(latest.iter().min().is_some_and(|best| *best < FIRST_LOOK), "{what:?}: {latest:?}");
    }
}

/// Waits until a channel has so many listeners of either kind.
fn until_clients(channel: &str, clients: i64) {
    let deadline = Instant::now() + LIMIT;
    for question in ["NUMSUB", "SHARDNUMSUB"] {
        let count = |node: &RedisServer| {
            let answer = node.cmd(&["PUBSUB", question, channel]).unwrap();
            redis::from_redis_value::<(String, i64)>(answer).unwrap().1
        };
        while cluster().nodes().iter().map(count).sum::<i64>() < clients {
            assert!(Instant::now() < deadline, "fewer than {clients} listen to {channel:?} ({question})");
            std::thread::sleep(ms(2));
        }
    }
    std::thread::sleep(ms(60));
}

/// On a cluster of its own: until the replica follows the new master, Java's locks come late, because it waits for it.
pub(crate) fn a_failover_keeps_holds_and_waiters_of_both_languages() {
    let _turn = beside_others();
    let cluster = start();
    let everybody = [Who::OldOff, Who::NewestAuto, Who::NewestOn, Who::OldCompat, Who::NewestCompat];
    let meetings = everybody.map(|who| connect(&cluster, who, &format!("failover-{who:?}")));
    // All on the master that is going to be replaced.
    let name = |meeting: &Meeting<'_>, what: &str| {
        std::iter::repeat_with(|| meeting.name(what))
            .find(|name| part_of(name, MASTERS) == 0)
            .expect("a name")
    };
    let old = cluster.owner_of(0).unwrap();
    let new = cluster.replicas_of(old).unwrap()[0];
    let staying = meetings.each_ref().map(|meeting| Staying::begin(meeting, |what| name(meeting, what)));
    cluster.failover(new).unwrap();
    // Plain messages go everywhere, so nobody has to listen at the new master for them.
    staying.into_iter().for_each(|staying| staying.end(cluster.node(new), cluster.nodes()));
    meetings.into_iter().for_each(Meeting::leave);
}
