//! Slots that move to and fro for as long as two minutes.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use redlatch::{Client, Unlocked};
use redlatch_testkit::{history::Recorder, topology::RedisCluster};

use super::{
    NEVER,
    load::{Load, Plan, judge},
    soak,
};
use crate::{fixture::ms, kinds::Face};

/// The tags of the names: as many slots are on their way again and again.
const TAGS: usize = 6;
const MOVED_EVERY: Duration = ms(60);
/// How long the keys of a slot are in two places after each key that goes alone.
const HALF_WAY: Duration = ms(10);

/// Moves one slot after the other; every fifth goes key by key and stays half-way for a while. Answers how many moved.
fn move_slots(cluster: &RedisCluster, slots: &[u16], stop: &AtomicBool) -> u32 {
    let mut moves = 0;
    while !stop.load(Ordering::Acquire) {
        let slot = slots[moves as usize % slots.len()];
        let to = (cluster.owner_of(slot).unwrap() + 1 + moves as usize % 2) % 3;
        let step = cluster.begin_move(slot, to).unwrap();
        let at_once = if moves % 5 == 4 { 1 } else { 1_000 };
        while step.move_keys(at_once).unwrap() > 0 {
            std::thread::sleep(HALF_WAY / at_once as u32);
        }
        step.finish().unwrap();
        moves += 1;
        std::thread::sleep(MOVED_EVERY);
    }
    moves
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_to_and_fro_for_two_minutes_and_nobody_notices() {
    let cluster = RedisCluster::builder().replicas_per_master(0).node_timeout(NEVER).start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let builder = Client::builder().url(cluster.url()).watchdog_lease(ms(8_000));
        clients.push(builder.connect().await.unwrap());
    }
    let slots: Vec<u16> = (0..TAGS).map(|tag| cluster.slot_of(format!("{{s{tag}}}"))).collect();
    // One key each, and kinds that need several keys in one place.
    let faces = [Face::Plain, Face::Fair, Face::Write, Face::Plain];
    let mut plan = Plan::of(Vec::new());
    plan.locks = (0..TAGS * 4).map(|n| (faces[n % 4], format!("{{s{}}}{n}", n % TAGS))).collect();
    (plan.tasks_of_each, plan.rest) = (6, ms(50));
    let mut held = Vec::new();
    for n in 0..TAGS * 5 {
        held.push(clients[n % 2].lock(format!("{{s{}}}held{n}", n % TAGS)).lock().await.unwrap());
    }
    let recorder = Recorder::new("moving", 0);
    let load = Load::start(&recorder, &clients, &plan);
    let stop = AtomicBool::new(false);
    let (start, time) = (Instant::now(), soak(Duration::from_secs(120)));
    let moves = std::thread::scope(|scope| {
        let mover = scope.spawn(|| move_slots(&cluster, &slots, &stop));
        tokio::task::block_in_place(|| std::thread::sleep(time));
        stop.store(true, Ordering::Release);
        mover.join().unwrap()
    });
    let lasted = start.elapsed();
    let notes = load.end().await;
    let verdict = judge(&recorder);
    println!("{moves} moves in {lasted:?}: {verdict}");
    assert_eq!(notes.errors(), [], "no error reaches a caller");
    assert_eq!(notes.losses(), [] as [String; 0]);
    verdict.assert_ok();
    for guard in held {
        assert!(guard.is_valid(), "{}: {:?}", guard.name(), guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
    let seconds = time.as_secs();
    assert!(u64::from(moves) > seconds, "only {moves} moves");
    assert!(verdict.stats.grants > 10 * seconds, "too few grants to mean anything: {verdict}");
}
