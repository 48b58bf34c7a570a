//! Bar 9: the slots of busy locks move to and fro for two minutes. No release fails, no lock has two holders, and no release is
//! followed by a gap of more than a second. The control releases as Redisson does, with three keys, while a slot is on its way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redlatch::{Client, Lock, Unlocked};
use redlatch_testkit::topology::{RedisCluster, slot_of};

use crate::common::{Result, Verdict, late, runtime};

/// Two names share a slot, and each slot moves.
const NAMES: [&str; 6] = ["{a}:1", "{a}:2", "{b}:1", "{b}:2", "{c}:1", "{c}:2"];
const CLIENTS: usize = 3;
const TASKS_PER_NAME: usize = 2;
const TIME: Duration = Duration::from_secs(120);
const HOLD: Duration = Duration::from_millis(10);
const GAP_MAX: Duration = Duration::from_secs(1);
const CONTROL_MOVES: usize = 10;
const END_LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Name {
    /// How many are inside at this moment.
    inside: AtomicUsize,
    /// When it was last given free, and the longest time from that to a grant.
    gap: Mutex<(Option<Instant>, Duration)>,
}

#[derive(Default)]
struct Run {
    names: [Name; NAMES.len()],
    end: AtomicBool,
    grants: AtomicUsize,
    double: AtomicUsize,
    errors: AtomicUsize,
    acquire_errors: AtomicUsize,
}

impl Name {
    fn granted(&self) {
        let mut gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        gap.1 = gap.1.max(gap.0.take().map_or(Duration::ZERO, |freed| late(freed, Instant::now())));
    }

    fn freed(&self) {
        self.gap.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(Instant::now());
    }

    fn longest(&self) -> Duration {
        let gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        gap.1.max(gap.0.map_or(Duration::ZERO, |freed| late(freed, Instant::now())))
    }
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let cluster =
        RedisCluster::builder().replicas_per_master(0).node_timeout(Duration::from_secs(60)).start()?;
    if control {
        return naive(&cluster);
    }
    let runtime = runtime(2)?;
    let run = Arc::new(Run::default());
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let client = runtime.block_on(Client::connect(&cluster.url()))?;
        for (number, name) in NAMES.iter().enumerate() {
            for _ in 0..TASKS_PER_NAME {
                tasks.push(runtime.spawn(use_lock(Arc::clone(&run), client.lock(*name), number)));
            }
        }
    }
    let end = Instant::now() + TIME;
    let mut moves = 0;
    while Instant::now() < end {
        let slot = slot_of(NAMES[(moves * 2) % NAMES.len()]);
        let to = (cluster.owner_of(slot)? + 1) % 3;
        let moving = cluster.begin_move(slot, to)?;
        // Requests are to meet the slot half way, before its keys have gone and behind that.
        std::thread::sleep(Duration::from_millis(15));
        while moving.move_keys(1)? > 0 {}
        std::thread::sleep(Duration::from_millis(15));
        // A key may have come meanwhile.
        while moving.move_keys(10)? > 0 {}
        moving.finish()?;
        moves += 1;
        std::thread::sleep(Duration::from_millis(30));
    }
    let gap = run.names.iter().map(Name::longest).max().unwrap_or_default();
    run.end.store(true, Ordering::SeqCst);
    let mut hanging = 0;
    for task in tasks {
        hanging +=
            usize::from(runtime.block_on(async { tokio::time::timeout(END_LIMIT, task).await }).is_err());
    }
    let (errors, double) = (run.errors.load(Ordering::Relaxed), run.double.load(Ordering::Relaxed));
    let (grants, acquires) = (run.grants.load(Ordering::Relaxed), run.acquire_errors.load(Ordering::Relaxed));
    let figure = format!(
        "{errors} releases failed, {double} double holds, longest gap {:.2} s of at most 1 s; {acquires} acquires failed, {hanging} \
         hang, {grants} grants, {moves} moves of slots",
        gap.as_secs_f64()
    );
    let met = errors == 0 && double == 0 && hanging == 0 && gap <= GAP_MAX;
    Ok(Verdict::new(met && grants >= 1_000 && moves >= 100, figure))
}

async fn use_lock(run: Arc<Run>, lock: Lock, number: usize) {
    let name = &run.names[number];
    while !run.end.load(Ordering::SeqCst) {
        let guard = match lock.lock().await {
            Ok(guard) => guard,
            Err(e) => {
                eprintln!("an acquire: {e}");
                run.acquire_errors.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        name.granted();
        run.grants.fetch_add(1, Ordering::Relaxed);
        if name.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            run.double.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(HOLD).await;
        name.inside.fetch_sub(1, Ordering::SeqCst);
        match guard.unlock().await {
            Ok(Unlocked::Released) => {}
            other => {
                eprintln!("a release: {other:?}");
                run.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        name.freed();
    }
}

/// Three keys in one call, of which the old owner of the slot has one.
fn naive(cluster: &RedisCluster) -> Result<Verdict> {
    const UNLOCK: &str = "redis.call('del', KEYS[1]) redis.call('set', KEYS[3], 1, 'px', 1000) return 1";
    let mut failed = 0;
    for number in 0..CONTROL_MOVES {
        let name = format!("{{a}}:naive:{number}");
        let slot = slot_of(&name);
        let from = cluster.owner_of(slot)?;
        cluster.node(from).cmd(&["HSET", &name, "naive", "1"])?;
        let moving = cluster.begin_move(slot, (from + 1) % 3)?;
        let (channel, latch) = (format!("channel:{{a}}:{number}"), format!("latch:{{a}}:{number}"));
        let released = cluster.node(from).cmd(&["EVAL", UNLOCK, "3", &name, &channel, &latch]);
        failed += usize::from(released.is_err_and(|e| e.to_string().to_ascii_lowercase().contains("again")));
        while moving.move_keys(10)? > 0 {}
        moving.finish()?;
    }
    let figure =
        format!("{failed} of {CONTROL_MOVES} releases with three keys failed with TRYAGAIN, at most 0");
    Ok(Verdict::new(failed == 0, figure))
}
