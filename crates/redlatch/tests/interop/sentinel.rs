//! Both languages on a master that sentinels watch over.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use redlatch::Client;
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    topology::{MASTER_NAME, SentinelSet},
};

use crate::{
    bed::{LIMIT, beside_others, ms, run},
    both_ways::{self, pairs},
    meeting::Meeting,
    staying::Staying,
};

/// Long enough for a machine that pauses, because no test here is about noticing a failure.
const DOWN_AFTER: Duration = Duration::from_secs(5);

fn start() -> SentinelSet {
    let set = SentinelSet::builder().down_after(DOWN_AFTER).start();
    set.unwrap_or_else(|error| panic!("{error}"))
}

fn connect<'a>(set: &'a SentinelSet, version: RedissonVersion, client: &str) -> Meeting<'a> {
    let urls: Vec<String> = set.sentinel_addrs().iter().map(|addr| format!("redis://{addr}")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let connection = Connection::sentinel(&urls, MASTER_NAME);
    let ours = [(); 2].map(|()| run(Client::connect(&set.url())).unwrap());
    Meeting::new(version, client, connection, ours, set.nodes())
}

/// Where both releases meet while the master stays.
fn meeting(version: RedissonVersion) -> &'static Meeting<'static> {
    static SET: OnceLock<SentinelSet> = OnceLock::new();
    static OLD: OnceLock<Meeting<'_>> = OnceLock::new();
    static NEWEST: OnceLock<Meeting<'_>> = OnceLock::new();
    let (meeting, client) = match version {
        RedissonVersion::Old3_15_1 => (&OLD, "sentinel-old"),
        RedissonVersion::Newest => (&NEWEST, "sentinel-newest"),
    };
    meeting.get_or_init(|| connect(SET.get_or_init(start), version, client))
}

pub(crate) fn holds_exclude_and_are_counted_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    let meeting = meeting(version);
    both_ways::holds_exclude_and_are_counted(meeting, pairs(meeting));
}

pub(crate) fn releases_wake_the_other_language_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    let meeting = meeting(version);
    both_ways::releases_wake_the_other_language(meeting, pairs(meeting));
}

pub(crate) fn forced_unlocks_and_downgrades_are_seen_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::forced_unlocks_are_seen(meeting(version), &both_ways::FORCED);
    both_ways::downgrades_are_seen(meeting(version));
}

pub(crate) fn a_fair_lock_has_one_queue_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::a_fair_lock_has_one_queue(meeting(version));
}

pub(crate) fn counters_wake_the_other_language_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::semaphores_wake_the_other_language(meeting(version));
    both_ways::latches_wake_the_other_language(meeting(version));
    both_ways::permits_wake_the_other_language(meeting(version));
}

pub(crate) fn fencing_tokens_grow_under_sentinels(version: RedissonVersion) {
    let _turn = beside_others();
    both_ways::fencing_tokens_grow(meeting(version));
}

/// Waits until every server has the key.
fn until_replicated(set: &SentinelSet, name: &str) {
    let deadline = Instant::now() + LIMIT;
    for node in set.nodes() {
        while !matches!(node.cmd(&["EXISTS", name]), Ok(redis::Value::Int(1))) {
            assert!(Instant::now() < deadline, "{name} does not reach a replica");
            std::thread::sleep(ms(2));
        }
    }
}

/// On a set of its own: until all replicas follow the new master, Java's locks come late, because it waits for them.
pub(crate) fn a_failover_keeps_holds_and_waiters_of_both_languages() {
    let _turn = beside_others();
    let set = start();
    let meetings = [
        connect(&set, RedissonVersion::Old3_15_1, "failover-old"),
        connect(&set, RedissonVersion::Newest, "failover-newest"),
    ];
    let staying = meetings.each_ref().map(|meeting| Staying::begin(meeting, |what| meeting.name(what)));
    // The new master is not asked whether it has got everything, unlike in a cluster.
    staying.iter().flat_map(Staying::names).for_each(|name| until_replicated(&set, name));
    let new = set.node(set.failover().unwrap());
    staying.into_iter().for_each(|staying| staying.end(new, std::slice::from_ref(new)));
    meetings.into_iter().for_each(Meeting::leave);
}
