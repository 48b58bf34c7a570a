//! Random faults of every kind on every topology, while tasks use every kind of lock in every way. What a seed brings about
//! depends on time as well, so a seed repeats a schedule of faults, not a run.
//!
//! Longer runs: `REDLATCH_CHAOS_SEEDS=100-140` runs these seeds one after the other, `REDLATCH_SOAK_S` says for how long each.

mod bed;
mod judge;
mod rng;
mod work;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{Client, Unlocked};
use redlatch_testkit::{server::RedisServer, stall::awake_since};

use self::{
    bed::{Bed, Topology},
    judge::Book,
    rng::Rng,
    work::{CAPACITY, Clients, LATCH, PERMITS, SEMAPHORE, Shared, Worker},
};
use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
    topology_faults::keys,
};

const PROCESSES: usize = 3;
const TASKS: u64 = 8;
/// The lease of renewed holds.
const LEASE: Duration = ms(9_000);
const RESPONSE_TIME: Duration = ms(800);
/// How long a run has trouble, unless told.
const TROUBLE_TIME: Duration = Duration::from_secs(5);
/// Until when everybody is served, once the trouble is over. What lost requests left, or a failover brought back, ends with its
/// lease; a place in a fair queue 30 s after that.
const SERVED_MAX: Duration = Duration::from_secs(60);
/// How long after a change of master a hold that it lost may count as valid. The next renewal comes later.
const TOLD_MAX: Duration = ms(1_500);
/// How long it is calm after some changes of master: longer than a loss may stay untold, and than until the next renewal.
const CALM: Duration = ms(3_500);
const GRANTS_MIN: u64 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_on_one_server() {
    run(Topology::Single, &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_with_replicas_and_nobody_who_watches() {
    run(Topology::Replicated, &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_behind_sentinels() {
    run(Topology::Sentinel, &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_in_a_cluster() {
    run(Topology::Cluster, &[1]).await;
}

async fn run(topology: Topology, seeds: &[u64]) {
    let told: Option<Vec<u64>> = std::env::var("REDLATCH_CHAOS_SEEDS").ok().map(|range| {
        let (first, last) = range.split_once('-').expect("REDLATCH_CHAOS_SEEDS: first-last");
        (first.parse().expect("a number")..=last.parse().expect("a number")).collect()
    });
    for seed in told.unwrap_or_else(|| seeds.to_vec()) {
        one(topology, seed).await;
    }
}

async fn clients(bed: &Bed) -> Clients {
    let set =
        |builder: redlatch::ClientBuilder| builder.watchdog_lease(LEASE).response_timeout(RESPONSE_TIME);
    let (main, quorum) = bed.builders();
    let connected = |builder: redlatch::ClientBuilder| async move {
        let begin = Instant::now();
        loop {
            match set(builder.clone()).connect().await {
                Ok(client) => return client,
                Err(error) => assert!(awake_since(begin) < SERVED_MAX, "no connection: {error}"),
            }
            tokio::time::sleep(ms(20)).await;
        }
    };
    let mut clients = Clients { main: connected(main).await, quorum: Vec::new() };
    for builder in quorum {
        clients.quorum.push(set(builder).connect_lazy().expect("nothing is asked yet"));
    }
    clients
}

async fn one(topology: Topology, seed: u64) {
    let bed = tokio::task::block_in_place(|| Bed::start(topology));
    let book = Book::new();
    let mut sets = Vec::new();
    for _ in 0..PROCESSES {
        sets.push(Mutex::new(clients(&bed).await));
    }
    let shared = Arc::new(Shared {
        book: book.clone(),
        clients: sets,
        stop: AtomicBool::new(false),
        doing: Mutex::new(BTreeMap::new()),
        keeps_data: bed.keeps_data(),
    });
    let main = |process: usize| shared.clients[process].lock().unwrap().main.clone();
    main(0).semaphore(SEMAPHORE).set_if_absent(CAPACITY, None).await.unwrap();
    main(0).permit_semaphore(PERMITS).set_if_absent(CAPACITY).await.unwrap();
    let copies = bed.copies();
    soon("copies of the semaphores", async {
        while tokio::task::block_in_place(|| bed.nodes().iter().map(|node| keys([node]).len()).sum::<usize>())
            < copies
        {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    let tasks: Vec<_> = (0..TASKS * PROCESSES as u64)
        .map(|task| {
            let rng = Rng::new(seed * 1_000 + task);
            let (process, long) = (task as usize % PROCESSES, task < 2 * PROCESSES as u64);
            let worker = Worker { shared: shared.clone(), process, task, rng, long };
            tokio::spawn(worker.work())
        })
        .collect();

    let mut rng = Rng::new(seed);
    let begin = Instant::now();
    let time = super::topology_faults::soak(TROUBLE_TIME);
    while begin.elapsed() < time || book.counted("grants") < GRANTS_MIN {
        assert!(
            begin.elapsed() < time + SERVED_MAX,
            "too few grants to mean anything: {:?}",
            book.verdict(TOLD_MAX)
        );
        tokio::time::sleep(rng.time(5, 200)).await;
        if rng.percent(6) {
            replace(&bed, &shared, &mut rng).await;
        } else {
            let since = Instant::now();
            tokio::task::block_in_place(|| bed.trouble(&mut rng, &book));
            book.trouble_since(since);
            if book.lost_since(since) && rng.percent(70) {
                // Nothing else goes wrong for so long that a holder that lost something has to be told.
                tokio::time::sleep(CALM).await;
            }
        }
    }
    tokio::task::block_in_place(|| bed.heal());
    book.fault("the trouble is over");
    shared.stop.store(true, Ordering::Relaxed);
    served(&bed, &shared, tasks).await;
    let last = last_round(&shared).await;
    quiet(&shared).await;
    clean(&bed, &shared).await;
    match book.verdict(TOLD_MAX) {
        Ok(text) => println!("{topology:?}, seed {seed}: last round {last:?}; {text}"),
        Err(text) => panic!("{topology:?}, seed {seed}: {text}"),
    }
}

/// A process ends, and another one comes in its place.
async fn replace(bed: &Bed, shared: &Shared, rng: &mut Rng) {
    let process = rng.below(PROCESSES as u64) as usize;
    let new = clients(bed).await;
    let old = std::mem::replace(&mut *shared.clients[process].lock().unwrap(), new);
    shared.book.fault(format!("process {process} is replaced"));
    shared.book.count("processes replaced");
    let begin = Instant::now();
    for client in std::iter::once(old.main).chain(old.quorum) {
        drop(client.shutdown(ms(1_000)).await);
    }
    if awake_since(begin) > ms(1_000) * 4 + Duration::from_secs(2) {
        shared.book.wrong(format!("shutting down took {:?}", begin.elapsed()));
    }
}

/// Everybody who waits is served or gives up by a limit of its own.
async fn served(bed: &Bed, shared: &Shared, mut tasks: Vec<tokio::task::JoinHandle<()>>) {
    let (begin, mut told) = (Instant::now(), 1);
    let latch = shared.clients[0].lock().unwrap().main.count_down_latch(LATCH);
    while !tasks.is_empty() {
        // Those who wait at the latch count on others to open it.
        let _ = latch.count_down().await;
        tokio::time::sleep(ms(20)).await;
        let mut left = Vec::new();
        for task in tasks {
            if task.is_finished() {
                task.await.unwrap();
            } else {
                left.push(task);
            }
        }
        tasks = left;
        if begin.elapsed() > Duration::from_secs(told * 3) {
            told += 1;
            for (since, what) in shared.doing.lock().unwrap().values() {
                shared.book.fault(format!("still, since {}: {what}", shared.book.at(*since)));
            }
        }
        if awake_since(begin) > SERVED_MAX {
            shared.book.wrong("a waiter is still waiting");
            for what in bed.nodes().iter().flat_map(leftovers) {
                shared.book.fault(what);
            }
            panic!("not served: {:#}", shared.book.verdict(TOLD_MAX).unwrap_or_else(|text| text));
        }
    }
    shared.book.fault(format!("everybody was served within {:?}", begin.elapsed()));
}

/// Each process takes each lock once more; how long that took.
async fn last_round(shared: &Shared) -> Duration {
    let begin = Instant::now();
    let mut all = Vec::new();
    for clients in &shared.clients {
        let client = clients.lock().unwrap().main.clone();
        let names = work::PLAIN.map(|name| (Face::Plain, name)).into_iter();
        let names = names.chain(work::FAIR.map(|name| (Face::Fair, name)));
        for (face, name) in names.chain([(Face::Spin, work::SPIN), (Face::Write, work::READ_WRITE)]) {
            let lock = AnyLock::new(face, &client, name);
            all.push(tokio::spawn(async move {
                let guard = tokio::time::timeout(SERVED_MAX, lock.lock()).await;
                let guard = guard.unwrap_or_else(|_| panic!("{name} is not to be had")).unwrap();
                tokio::time::sleep(ms(2)).await;
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{name}");
            }));
        }
    }
    for turn in all {
        turn.await.unwrap();
    }
    begin.elapsed()
}

/// No client has anything under way.
async fn quiet(shared: &Shared) {
    let begin = Instant::now();
    loop {
        let sets: Vec<Clients> =
            shared.clients.iter().map(|clients| clients.lock().unwrap().clone()).collect();
        let busy: Vec<_> = sets
            .iter()
            .flat_map(|set| std::iter::once(&set.main).chain(&set.quorum))
            .map(Client::stats)
            .filter(|stats| stats.names + stats.in_line + stats.background_jobs > 0)
            .collect();
        if busy.is_empty() {
            return;
        }
        if awake_since(begin) > SERVED_MAX {
            shared.book.wrong(format!("clients are not quiet: {busy:?}"));
            return;
        }
        tokio::time::sleep(ms(20)).await;
    }
}

/// Nothing is left on the servers but counters of tokens, and connections end with their clients.
async fn clean(bed: &Bed, shared: &Shared) {
    let book = &shared.book;
    let client = shared.clients[0].lock().unwrap().main.clone();
    if bed.keeps_data() {
        let free = client.semaphore(SEMAPHORE).available().await.unwrap();
        let doubt = book.counted("semaphore permits in doubt") as i64;
        if !(i64::from(CAPACITY) - doubt..=i64::from(CAPACITY)).contains(&free) {
            book.wrong(format!("{free} permits of the semaphore are free, {doubt} in doubt"));
        }
    }
    let permits = client.permit_semaphore(PERMITS);
    let begin = Instant::now();
    // A permit whose answer was lost comes back with its lease.
    while permits.acquired().await.unwrap() > 0 && awake_since(begin) < SERVED_MAX {
        tokio::time::sleep(ms(50)).await;
    }
    let (free, total) = (permits.available().await.unwrap(), permits.total().await.unwrap());
    if free != i64::from(CAPACITY) || total != i64::from(CAPACITY) {
        book.wrong(format!("{free} permits of {total} are free"));
    }
    let _ = (client.semaphore(SEMAPHORE).delete().await, permits.delete().await);
    let begin = Instant::now();
    loop {
        let left: Vec<String> =
            tokio::task::block_in_place(|| bed.everywhere().flat_map(leftovers).collect());
        if left.is_empty() {
            break;
        }
        if awake_since(begin) > SERVED_MAX {
            book.wrong(format!("left behind: {left:?}"));
            break;
        }
        tokio::time::sleep(ms(50)).await;
    }
    book.fault(format!("clean after {:?}", begin.elapsed()));
    drop(client);
    for clients in &shared.clients {
        let clients = clients.lock().unwrap().clone();
        for client in std::iter::once(clients.main).chain(clients.quorum) {
            let report = client.shutdown(ms(3_000)).await;
            if report.released > 0 || !report.failed.is_empty() {
                book.wrong(format!("shutting down found {report:?}"));
            }
        }
    }
}

/// Keys and subscriptions that should be gone.
fn leftovers(node: &RedisServer) -> Vec<String> {
    let port = node.port();
    // A replica in a cluster tells its keys and not what is in them.
    let Ok(keys) = node.keys() else { return vec![format!("no answer of port {port}")] };
    let keys = keys.iter().filter(|key| !key.starts_with("redisson_lock_token:"));
    let mut left: Vec<String> = keys
        .map(|key| {
            let look = |command: &[&str]| node.cmd(command).ok();
            let what = look(&["HGETALL", key])
                .or_else(|| look(&["LRANGE", key, "0", "-1"]))
                .or_else(|| look(&["ZRANGE", key, "0", "-1"]));
            format!("{key} at port {port}, {:?} ms left: {what:?}", look(&["PTTL", key]))
        })
        .collect();
    match node.subscriber_channels() {
        Ok(channels) => {
            let channels = channels.iter().filter(|channel| channel.starts_with(b"redisson"));
            left.extend(channels.map(|channel| format!("channel {} at port {port}", channel.escape_ascii())));
        }
        Err(error) => left.push(error.to_string()),
    }
    left
}
