//! Redis Cluster: every lock in its slot, wherever the slot goes, and nodes that have nothing to do with each other.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::Value;
use redlatch::{
    Client, ClientBuilder, ErrorKind, LossReason, MultiLock, Rate, ScriptMode, ShardedPubSub, Unlocked, Wait,
    scripts,
};
use redlatch_testkit::{server::RedisServer, topology::RedisCluster};

use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
};

/// Three masters without replicas.
fn masters() -> RedisCluster {
    RedisCluster::builder().replicas_per_master(0).start().unwrap()
}

fn builder(cluster: &RedisCluster) -> ClientBuilder {
    Client::builder().url(cluster.url())
}

async fn client(cluster: &RedisCluster) -> Client {
    builder(cluster).connect().await.unwrap()
}

/// The server that has the slot of a name.
fn home<'a>(cluster: &'a RedisCluster, name: &str) -> &'a RedisServer {
    cluster.node(cluster.owner_of(cluster.slot_of(name)).unwrap())
}

/// Which node has each slot.
fn owners(cluster: &RedisCluster) -> Vec<usize> {
    let Value::Array(runs) = cluster.node(0).cmd(&["CLUSTER", "SLOTS"]).unwrap() else { panic!("no runs") };
    let mut owners = vec![usize::MAX; 16_384];
    for run in runs {
        let Value::Array(run) = run else { panic!("{run:?}") };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &run[..] else {
            panic!("{run:?}")
        };
        let at = cluster.nodes().iter().position(|node| Value::Int(node.port().into()) == master[1]).unwrap();
        owners[*first as usize..=*last as usize].fill(at);
    }
    owners
}

/// So many names whose slots one master has.
fn names_at(cluster: &RedisCluster, master: usize, part: &str, count: usize) -> Vec<String> {
    let owners = owners(cluster);
    let names = (0..).map(|n| format!("{part}{n}"));
    names.filter(|name| owners[usize::from(cluster.slot_of(name))] == master).take(count).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The keys that a node has itself, whether it has their slots or not.
fn keys(server: &RedisServer) -> Vec<String> {
    redis::from_redis_value(server.cmd(&["KEYS", "*"]).unwrap()).unwrap()
}

/// How many connections listen to a channel at a server: `NUMSUB` plain, `SHARDNUMSUB` sharded.
fn listening(server: &RedisServer, question: &str, channel: &str) -> i64 {
    match server.cmd(&["PUBSUB", question, channel]).unwrap() {
        Value::Array(items) => match items[..] {
            [_, Value::Int(count)] => count,
            _ => panic!("{items:?}"),
        },
        other => panic!("{other:?}"),
    }
}

const EVERY_FACE: [Face; 7] = [
    Face::Plain,
    Face::Fair,
    Face::Fenced,
    Face::Spin,
    Face::NonReentrant,
    Face::NonReentrantFair,
    Face::Write,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_two_commands_on_one_node() {
    let cluster = masters();
    let client = client(&cluster).await;
    // Connections, and scripts at every node.
    for master in 0..3 {
        for name in names_at(&cluster, master, "warm", 1) {
            client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        }
    }
    cluster.nodes().iter().for_each(|node| node.reset_command_counts().unwrap());
    for n in 0..60 {
        client.lock(format!("pair{n}")).lock().await.unwrap().unlock().await.unwrap();
    }
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for node in cluster.nodes() {
        for (command, count) in node.command_counts().unwrap() {
            *total.entry(command).or_default() += count;
        }
    }
    assert_eq!(total.get("evalsha"), Some(&120), "{total:?}");
    assert_eq!(total.get("eval"), None, "{total:?}");
    assert_eq!(total.get("asking"), None, "{total:?}");
    // Releases publish inside their script, sharded as the servers can.
    assert_eq!(total.get("spublish"), Some(&60), "{total:?}");
    assert_eq!(total.get("publish"), None, "{total:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_is_taken_and_given_back_by_names_with_and_without_tags() {
    let cluster = masters();
    let client = client(&cluster).await;
    for name in ["plain", "{tag}:name", "pre{tag}post", "a}b{c}"] {
        for face in EVERY_FACE {
            let lock = AnyLock::new(face, &client, format!("{face:?}{name}"));
            let guard = soon("a lock", lock.lock()).await.unwrap();
            assert!(lock.is_locked().await.unwrap(), "{face:?} {name}");
            assert!(lock.try_lock().await.unwrap().is_none(), "{face:?} {name}");
            let waiter = {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await })
            };
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?} {name}");
            let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?} {name}");
            assert!(!lock.is_locked().await.unwrap(), "{face:?} {name}");
        }
        let both = client.read_write_lock(format!("rw{name}"));
        let (one, other) = (both.read().lock().await.unwrap(), both.read().lock().await.unwrap());
        one.unlock().await.unwrap();
        other.unlock().await.unwrap();
        both.write().lock().await.unwrap().downgrade().await.unwrap().unlock().await.unwrap();

        let semaphore = client.semaphore(format!("semaphore{name}"));
        assert!(semaphore.set_if_absent(1, None).await.unwrap());
        semaphore.acquire(1).await.unwrap();
        assert!(!semaphore.try_acquire(1).await.unwrap());
        semaphore.release(1).await.unwrap();
        let permits = client.permit_semaphore(format!("permits{name}"));
        permits.set_if_absent(1).await.unwrap();
        let permit = permits.acquire().await.unwrap();
        assert!(permits.try_acquire().await.unwrap().is_none());
        permit.release().await.unwrap();
        assert_eq!(permits.available().await.unwrap(), 1);
        // The names of latches have no braces at all.
        if !name.contains('{') {
            let latch = client.count_down_latch(format!("latch{name}"));
            latch.set_if_absent(1).await.unwrap();
            let waiter = {
                let latch = latch.clone();
                tokio::spawn(async move { latch.wait().await })
            };
            latch.count_down().await.unwrap();
            soon("the latch", waiter).await.unwrap().unwrap();
        }
        let limiter = client.rate_limiter(format!("rate{name}"));
        limiter.set(Rate::per(5, Duration::from_secs(60))).await.unwrap();
        assert!(limiter.try_acquire(5).await.unwrap() && !limiter.try_acquire(1).await.unwrap());
    }
    let many = (0..20).map(|n| client.lock(format!("many{n}")));
    let all = MultiLock::new(many.chain([client.lock("{one}a"), client.lock("{one}b")])).unwrap();
    let guard = soon("all of them", all.lock()).await.unwrap();
    assert!(
        client.lock("many7").is_locked().await.unwrap() && client.lock("{one}b").is_locked().await.unwrap()
    );
    drop(guard.unlock().await);
    assert!(
        !client.lock("many7").is_locked().await.unwrap() && !client.lock("{one}b").is_locked().await.unwrap()
    );
    for name in ["a}b", "a{b", "{}x", "x{}y"] {
        let error = client.lock(name).try_lock().await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{name}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_and_a_diagnosis_cover_every_master() {
    let cluster = masters();
    let client = client(&cluster).await;
    let mut names: Vec<String> = (0..3).flat_map(|master| names_at(&cluster, master, "listed", 4)).collect();
    names.sort();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    let found = client.list(Some("listed*"), 100).await.unwrap();
    assert_eq!(found.iter().map(|state| state.name.to_string()).collect::<Vec<_>>(), names);
    let findings = client.diagnose().await.unwrap();
    let text = findings.iter().map(|finding| format!("{finding}\n")).collect::<String>();
    for seed in cluster.seeds() {
        assert!(text.contains(&format!("version: {seed}: Redis")), "{seed}: {text}");
    }
    assert!(text.contains("slots: all 16384 are served, by 3 masters"), "{text}");
    assert!(text.contains("sharded messages are used (decided as Redisson does)"), "{text}");
    assert!(client.store().starts_with("redis-cluster://127.0.0.1:"), "{}", client.store());
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    let server = RedisServer::start().unwrap();
    let url = server.url().replace("redis://", "redis-cluster://");
    let error = Client::connect(&url).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
    assert!(error.to_string().contains("is not a member of a cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_that_is_named_and_answers_will_do() {
    let cluster = masters();
    let gone = RedisServer::start().unwrap();
    let url = format!("redis-cluster://127.0.0.1:{},{}", gone.port(), cluster.seeds()[2]);
    gone.kill9();
    let client = Client::connect(&url).await.unwrap();
    for master in 0..3 {
        let name = &names_at(&cluster, master, "seed", 1)[0];
        client.lock(name.as_str()).lock().await.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_is_followed_key_by_key() {
    let cluster = masters();
    let client = builder(&cluster).watchdog_lease(ms(3_000)).connect().await.unwrap();
    let (held, moved, fresh) = ("{way}held", "{way}moved", "{way}fresh");
    let slot = cluster.slot_of(held);
    let from = cluster.owner_of(slot).unwrap();
    let to = (from + 1) % 3;
    let (stays, goes) = (client.lock(held).lock().await.unwrap(), client.lock(moved).lock().await.unwrap());
    // The other node knows no script, so its refusal for that reason must be met there, too.
    cluster.nodes().iter().for_each(|node| node.flush_scripts().unwrap());
    let step = cluster.begin_move(slot, to).unwrap();
    step.move_key(moved).unwrap();
    // Not there, on its way, and made on the other side.
    for name in [held, moved] {
        assert!(client.lock(name).try_lock().await.unwrap().is_none(), "{name}");
        assert!(client.lock(name).is_locked().await.unwrap(), "{name}");
    }
    // A listing names also what cannot be read where it was found.
    let page = ["EVAL", scripts::LIST.source(), "0", "0", "*", "1000", "1000", "hash"];
    let page: (String, String) = redis::from_redis_value(cluster.node(to).cmd(&page).unwrap()).unwrap();
    assert_eq!(page.1, moved);
    let new = client.lock(fresh).try_lock().await.unwrap().expect("free");
    assert!(keys(cluster.node(to)).contains(&fresh.to_owned()));
    assert!(cluster.node(to).command_counts().unwrap().get("asking").is_some_and(|count| *count >= 3));
    assert_eq!(cluster.owner_of(slot).unwrap(), from, "nobody has been told that the slot has moved");
    new.unlock().await.unwrap();
    goes.unlock().await.unwrap();
    assert!(!client.lock(moved).is_locked().await.unwrap());
    // Renewed all along.
    tokio::time::sleep(ms(4_000)).await;
    assert!(stays.is_valid(), "{:?}", stays.loss());
    while step.move_keys(10).unwrap() > 0 {}
    step.finish().unwrap();
    assert_eq!(stays.unlock().await.unwrap(), Unlocked::Released);
    assert!(cluster.nodes().iter().all(|node| keys(node).is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_on_both_sides_are_waited_for() {
    let cluster = masters();
    let client = client(&cluster).await;
    let lock = client.fair_lock("{half}fair");
    let guard = lock.lock().await.unwrap();
    let slot = cluster.slot_of("{half}");
    let from = cluster.owner_of(slot).unwrap();
    let step = cluster.begin_move(slot, (from + 1) % 3).unwrap();
    // The lock is here and its queue is nowhere, so the server cannot tell where a script with both belongs.
    let attempt = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.try_lock().await.map(|guard| guard.is_some()) })
    };
    until("it is told to wait", || refused(cluster.node(from), "TRYAGAIN") > 0).await;
    while step.move_keys(10).unwrap() > 0 {}
    step.finish().unwrap();
    assert!(!soon("the answer", attempt).await.unwrap().expect("no error reaches the caller"));
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// Moves a slot round the masters until the work is over; answers how often.
async fn travelling<T>(cluster: &Arc<RedisCluster>, slot: u16, work: impl Future<Output = T>) -> (T, u32) {
    let stop = Arc::new(AtomicBool::new(false));
    let mover = {
        let (cluster, stop) = (cluster.clone(), stop.clone());
        tokio::task::spawn_blocking(move || {
            let mut moves = 0;
            while !stop.load(Ordering::Acquire) {
                let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
                cluster.move_slot(slot, to).unwrap();
                moves += 1;
                std::thread::sleep(ms(20));
            }
            moves
        })
    };
    let outcome = work.await;
    stop.store(true, Ordering::Release);
    (outcome, mover.await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_all_the_time_cost_nobody_an_error() {
    let cluster = Arc::new(masters());
    let slot = cluster.slot_of("{m}");
    let holder = builder(&cluster).watchdog_lease(ms(2_000)).connect().await.unwrap();
    let held = holder.lock("{m}held").lock().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let grants = Arc::new(AtomicU64::new(0));
    let clients = [client(&cluster).await, client(&cluster).await];
    // Kinds with one key, and kinds that need several of them in one place.
    for face in [Face::Plain, Face::Fair, Face::Write] {
        let inside = Arc::new(AtomicU32::new(0));
        for at in 0..4 {
            let lock = AnyLock::new(face, &clients[at % 2], format!("{{m}}{face:?}"));
            let (inside, grants) = (inside.clone(), grants.clone());
            tasks.spawn(async move {
                for _ in 0..20 {
                    let guard = lock.lock().await.expect("no error reaches a caller");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::time::sleep(ms(5)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(guard.unlock().await.expect("no error reaches a caller"), Unlocked::Released);
                    grants.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    let work = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap()
        }
    };
    let work = tokio::time::timeout(Duration::from_secs(120), work);
    let (done, moves) = travelling(&cluster, slot, work).await;
    done.expect("all get their turns");
    assert!(moves >= 5, "only {moves} moves");
    assert_eq!(grants.load(Ordering::Relaxed), 240);
    assert!(held.is_valid(), "{:?}", held.loss());
    assert_eq!(held.unlock().await.unwrap(), Unlocked::Released);
}

/// How many calls a server has refused with this word.
fn refused(server: &RedisServer, code: &str) -> u64 {
    let info: String = redis::from_redis_value(server.cmd(&["INFO", "errorstats"]).unwrap()).unwrap();
    let word = format!("errorstat_{code}:count=");
    let count = info.lines().find_map(|line| line.strip_prefix(&word));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_meet_a_moved_slot_are_redirected_once() {
    let cluster = masters();
    let client = client(&cluster).await;
    let slot = cluster.slot_of("{crowd}");
    let from = cluster.owner_of(slot).unwrap();
    let to = (from + 1) % 3;
    client.lock("{crowd}warm").lock().await.unwrap().unlock().await.unwrap();
    cluster.move_slot(slot, to).unwrap();
    let before = refused(cluster.node(from), "MOVED");
    let tasks: Vec<_> = (0..500)
        .map(|n| {
            let lock = client.lock(format!("{{crowd}}{n}"));
            tokio::spawn(async move { lock.lock().await?.unlock().await })
        })
        .collect();
    for task in tasks {
        assert_eq!(soon("its turn", task).await.unwrap().unwrap(), Unlocked::Released);
    }
    let astray = refused(cluster.node(from), "MOVED") - before;
    // At most those that were under way before the first was told.
    assert!((1..=500).contains(&astray), "{astray} calls went to the node that has not the slot any more");
    let scans: u64 = cluster
        .nodes()
        .iter()
        .map(|node| {
            node.command_counts()
                .unwrap()
                .iter()
                .filter(|(command, _)| command.starts_with("cluster|slots"))
                .map(|(_, count)| count)
                .sum::<u64>()
        })
        .sum();
    assert!(scans <= 60, "{scans} looks at the whole picture");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_for_holders_and_waiters() {
    let cluster = RedisCluster::start().unwrap();
    let brisk = builder(&cluster).watchdog_lease(ms(6_000)).connect().await.unwrap();
    let other = client(&cluster).await;
    let name = "failed over";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let elsewhere = names_at(&cluster, (master + 1) % 3, "elsewhere", 1).remove(0);
    let guard = brisk.lock(name).lock().await.unwrap();
    let away = brisk.lock(elsewhere.as_str()).lock().await.unwrap();
    let waiter = {
        let lock = other.lock(name);
        tokio::spawn(async move { lock.lock().await })
    };
    until("the waiter listens", || !home(&cluster, name).subscriber_channels().unwrap().is_empty()).await;
    let replica = cluster.replicas_of(master).unwrap()[0];
    until("the replica has the lock", || keys(cluster.node(replica)).contains(&name.to_owned())).await;
    cluster.node(master).kill9();
    tokio::task::block_in_place(|| cluster.wait_for_owner_other_than(slot, master)).unwrap();
    // The replica had the lock, so it goes on, and its release wakes the waiter at the new master.
    until("the holder has been confirmed at the new master", || guard.is_valid()).await;
    until("the waiter listens there", || !home(&cluster, name).subscriber_channels().unwrap().is_empty())
        .await;
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(away.is_valid(), "{:?}", away.loss());
    soon("a new grant", brisk.lock(name).lock()).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_failover_lost_is_announced_at_once() {
    let cluster = RedisCluster::start().unwrap();
    let client = builder(&cluster).watchdog_lease(Duration::from_secs(60)).connect().await.unwrap();
    let name = "not replicated";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    cluster.block_replication(replica).unwrap();
    let guard = client.lock(name).lock().await.unwrap();
    cluster.node(master).kill9();
    tokio::task::block_in_place(|| cluster.take_over(replica)).unwrap();
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_costs_no_lock_of_another() {
    let cluster = RedisCluster::builder()
        .replicas_per_master(0)
        .node_timeout(Duration::from_secs(120))
        .start()
        .unwrap();
    let lease = ms(4_500);
    let client = builder(&cluster).watchdog_lease(lease).connect().await.unwrap();
    let frozen = 1;
    // More than one connection has room for, so that waiting for the frozen one would cost the others their turns.
    let doomed = names_at(&cluster, frozen, "doomed", 1_500);
    let kept: Vec<String> =
        [0, 2].into_iter().flat_map(|master| names_at(&cluster, master, "kept", 40)).collect();
    let mut held = Vec::new();
    let mut lost = Vec::new();
    for name in &doomed {
        lost.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    for name in &kept {
        held.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    let free = names_at(&cluster, 0, "free", 3);
    cluster.node(frozen).pause().unwrap();
    let start = Instant::now();
    while start.elapsed() < 3 * lease {
        for name in &free {
            let guard = client.lock(name.as_str()).lock_for(ms(2_000)).await.unwrap().expect("free");
            guard.unlock().await.unwrap();
        }
        tokio::time::sleep(ms(100)).await;
    }
    for (name, guard) in kept.iter().zip(&held) {
        assert!(guard.is_valid(), "{name}: {:?}", guard.loss());
    }
    assert!(lost.iter().all(|guard| !guard.is_valid()), "nobody can renew at a frozen node");
    cluster.node(frozen).resume().unwrap();
    let again = client.lock(doomed[0].as_str());
    soon("a grant after the thaw", again.lock()).await.unwrap().unlock().await.unwrap();
    for guard in held {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

/// Holds a lock as a foreign client does; only its message will say that it lets go.
fn hold_by_hand(server: &RedisServer, name: &str) {
    server.cmd(&["HSET", name, "1b671a64-40d5-491e-99b0-da01ff1f3341:1", "1"]).unwrap();
    server.cmd(&["PEXPIRE", name, "60000"]).unwrap();
}

/// How long a waiter needs at best to see that a foreign holder has let go and told so by `publish`. A waiter that has just
/// subscribed looks by itself after 400 ms and more.
async fn fastest_wake_up(
    cluster: &RedisCluster,
    client: &Client,
    name: &str,
    question: &str,
    publish: &str,
) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..6 {
        hold_by_hand(home(cluster, name), name);
        let waiter = {
            let lock = client.lock(name);
            tokio::spawn(async move { lock.lock().await })
        };
        until("the waiter listens", || listening(home(cluster, name), question, &channel(name)) > 0).await;
        // Its second look follows the confirmation.
        tokio::time::sleep(ms(60)).await;
        home(cluster, name).cmd(&["DEL", name]).unwrap();
        let start = Instant::now();
        home(cluster, name).cmd(&[publish, &channel(name), "0"]).unwrap();
        soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
        fastest = fastest.min(start.elapsed());
        until("the channel is left", || listening(home(cluster, name), question, &channel(name)) == 0).await;
    }
    fastest
}

const BY_MESSAGE: Duration = ms(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_heard_the_way_that_was_chosen() {
    let cluster = masters();
    for (mode, questions, heard) in [
        (ShardedPubSub::Auto, &["SHARDNUMSUB"][..], &["SPUBLISH"][..]),
        (ShardedPubSub::On, &["SHARDNUMSUB"], &["SPUBLISH"]),
        (ShardedPubSub::Off, &["NUMSUB"], &["PUBLISH"]),
        (ShardedPubSub::Compat, &["NUMSUB", "SHARDNUMSUB"], &["PUBLISH", "SPUBLISH"]),
    ] {
        let client = builder(&cluster).sharded(mode).connect().await.unwrap();
        for question in questions {
            for publish in heard {
                let time = fastest_wake_up(&cluster, &client, "chosen", question, publish).await;
                assert!(time < BY_MESSAGE, "{mode:?} {question} {publish}: {time:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_talks_both_ways_serves_both_sorts_of_others() {
    let cluster = masters();
    let name = "both";
    let compat = builder(&cluster).sharded(ShardedPubSub::Compat).connect().await.unwrap();
    for (mode, question) in [(ShardedPubSub::On, "SHARDNUMSUB"), (ShardedPubSub::Off, "NUMSUB")] {
        let other = builder(&cluster).sharded(mode).connect().await.unwrap();
        let mut fastest = Duration::MAX;
        for _ in 0..6 {
            let guard = compat.lock(name).lock().await.unwrap();
            let waiter = {
                let lock = other.lock(name);
                tokio::spawn(async move { lock.lock().await })
            };
            until("the waiter listens", || listening(home(&cluster, name), question, &channel(name)) > 0)
                .await;
            tokio::time::sleep(ms(60)).await;
            let start = Instant::now();
            guard.unlock().await.unwrap();
            let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
            fastest = fastest.min(start.elapsed());
            guard.unlock().await.unwrap();
            until("the channel is left", || listening(home(&cluster, name), question, &channel(name)) == 0)
                .await;
        }
        assert!(fastest < BY_MESSAGE, "{mode:?}: {fastest:?}");
    }
    // Every script that publishes can do it both ways.
    for face in EVERY_FACE {
        let lock = AnyLock::new(face, &compat, format!("{face:?}both"));
        let guard = soon("a lock", lock.lock()).await.unwrap();
        let waiter = {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await })
        };
        guard.unlock().await.unwrap();
        soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    let permits = compat.permit_semaphore("permits both");
    permits.set_if_absent(1).await.unwrap();
    permits.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_go_where_their_slot_goes() {
    let cluster = masters();
    for (mode, question, publish) in
        [(ShardedPubSub::On, "SHARDNUMSUB", "SPUBLISH"), (ShardedPubSub::Off, "NUMSUB", "PUBLISH")]
    {
        let client = builder(&cluster).sharded(mode).connect().await.unwrap();
        let name = "goes";
        let slot = cluster.slot_of(name);
        let mut fastest = Duration::MAX;
        for _ in 0..6 {
            let from = cluster.owner_of(slot).unwrap();
            hold_by_hand(cluster.node(from), name);
            let waiter = {
                let lock = client.lock(name);
                tokio::spawn(async move { lock.lock().await })
            };
            until("the waiter listens", || listening(cluster.node(from), question, &channel(name)) > 0).await;
            let to = (from + 1) % 3;
            cluster.move_slot(slot, to).unwrap();
            until("it listens where the slot is", || {
                listening(cluster.node(to), question, &channel(name)) > 0
            })
            .await;
            until("and no longer where it was", || {
                listening(cluster.node(from), question, &channel(name)) == 0
            })
            .await;
            tokio::time::sleep(ms(60)).await;
            cluster.node(to).cmd(&["DEL", name]).unwrap();
            let start = Instant::now();
            cluster.node(to).cmd(&[publish, &channel(name), "0"]).unwrap();
            soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
            fastest = fastest.min(start.elapsed());
            until("the channel is left", || listening(cluster.node(to), question, &channel(name)) == 0).await;
        }
        assert!(fastest < BY_MESSAGE, "{mode:?}: {fastest:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_that_are_cut_come_back() {
    let cluster = masters();
    let client = client(&cluster).await;
    let name = "cut";
    hold_by_hand(home(&cluster, name), name);
    let waiter = {
        let lock = client.lock(name);
        tokio::spawn(async move { lock.lock().await })
    };
    for _ in 0..5 {
        until("the waiter listens", || listening(home(&cluster, name), "SHARDNUMSUB", &channel(name)) > 0)
            .await;
        home(&cluster, name).cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    }
    until("the waiter listens", || listening(home(&cluster, name), "SHARDNUMSUB", &channel(name)) > 0).await;
    home(&cluster, name).cmd(&["DEL", name]).unwrap();
    home(&cluster, name).cmd(&["SPUBLISH", &channel(name), "0"]).unwrap();
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_that_is_replaced_is_not_waited_for() {
    let cluster = RedisCluster::start().unwrap();
    let client = builder(&cluster).watchdog_lease(Duration::from_secs(60)).connect().await.unwrap();
    let name = "frozen and replaced";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let guard = client.lock(name).lock().await.unwrap();
    until("the replica has the lock", || keys(cluster.node(replica)).contains(&name.to_owned())).await;
    let waiter = {
        let lock = client.lock(name);
        let owner = client.owner();
        tokio::spawn(async move { lock.acquire().owner(&owner).wait(Wait::Forever).await })
    };
    cluster.node(master).pause().unwrap();
    tokio::task::block_in_place(|| cluster.wait_for_owner_other_than(slot, master)).unwrap();
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unwrap().unlock().await.unwrap();
    cluster.node(master).resume().unwrap();
    cluster.wait_until_ready().unwrap();
    soon("a grant after the thaw", client.lock(name).lock()).await.unwrap().unlock().await.unwrap();
}

fn allow(cluster: &RedisCluster, rule: &str) {
    cluster.nodes().iter().for_each(|node| drop(node.cmd(&["ACL", "SETUSER", "default", rule]).unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_do_not_know_sharded_messages_get_plain_ones_or_a_clear_error() {
    let cluster = masters();
    allow(&cluster, "-pubsub|shardnumsub");
    let on = builder(&cluster).sharded(ShardedPubSub::On).connect().await.map(drop).unwrap_err();
    assert_eq!(on.kind(), ErrorKind::InvalidOption, "{on}");
    assert!(on.to_string().contains("sharded publish and subscribe is wanted"), "{on}");
    let client = client(&cluster).await;
    let time = fastest_wake_up(&cluster, &client, "plain", "NUMSUB", "PUBLISH").await;
    assert!(time < BY_MESSAGE, "{time:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_ask_who_has_what_learns_it_from_redirections() {
    let cluster = masters();
    allow(&cluster, "-cluster");
    let client = client(&cluster).await;
    let name = "learned";
    for name in (0..3).flat_map(|master| names_at(&cluster, master, "n", 2)) {
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    }
    let guard = client.lock(name).lock().await.unwrap();
    let slot = cluster.slot_of(name);
    cluster.move_slot(slot, (cluster.owner_of(slot).unwrap() + 1) % 3).unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let before: u64 = cluster.nodes().iter().map(|node| refused(node, "MOVED")).sum();
    client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(cluster.nodes().iter().map(|node| refused(node, "MOVED")).sum::<u64>(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_serve_a_cluster_too() {
    let cluster = masters();
    let error = builder(&cluster).scripts(ScriptMode::Functions).connect().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    client(&cluster).await.load_functions().await.unwrap();
    for mode in [ShardedPubSub::Auto, ShardedPubSub::Compat] {
        let client = builder(&cluster).scripts(ScriptMode::Functions).sharded(mode).connect().await.unwrap();
        for master in 0..3 {
            let name = names_at(&cluster, master, "function", 1).remove(0);
            let lock = client.lock(name.as_str());
            let guard = lock.lock().await.unwrap();
            assert_eq!(client.list(Some(name.as_str()), 10).await.unwrap().len(), 1);
            let waiter = {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await })
            };
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
            soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
        }
    }
    let slot = cluster.slot_of("moved function");
    let from = cluster.owner_of(slot).unwrap();
    let client = builder(&cluster).scripts(ScriptMode::Functions).connect().await.unwrap();
    let step = cluster.begin_move(slot, (from + 1) % 3).unwrap();
    client.lock("moved function").try_lock().await.unwrap().expect("free").unlock().await.unwrap();
    step.finish().unwrap();
    client.lock("moved function").try_lock().await.unwrap().expect("free").unlock().await.unwrap();
}
