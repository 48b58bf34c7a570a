//! Bar 5: the connections that carry messages are killed every 200 ms while 200 waiters want locks, semaphores and latches. No release
//! is followed by a gap of more than a second. The control waits for messages alone, as a waiter without a timer does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use redlatch::{Client, CountDownLatch};
use redlatch_testkit::server::RedisServer;
use tokio::sync::{Barrier, watch};

use crate::common::{Result, Verdict, late, raw_async, runtime};

const CLIENTS: usize = 10;
const LOCKS: usize = 4;
const SEMAPHORES: usize = 4;
const LATCHES: usize = 4;
/// Per client: 8 and 8 and 4 make 200 waiters with 10 clients.
const TASKS: [usize; 3] = [8, 8, 4];
const WAITERS: usize = CLIENTS * (TASKS[0] + TASKS[1] + TASKS[2]);
const TIME: Duration = Duration::from_secs(120);
const CONTROL_TIME: Duration = Duration::from_secs(20);
const KILL_EVERY: Duration = Duration::from_millis(200);
/// Longer than the turn in which a process passes a lock on among its own tasks, so that each release needs its message.
const HOLD: Duration = Duration::from_millis(15);
const GAP_MAX: Duration = Duration::from_secs(1);
/// The round of a latch that is closed no more.
const END: u64 = u64::MAX;
/// What has not ended by then hangs.
const END_LIMIT: Duration = Duration::from_secs(20);

/// One name: when it was last given free, and the longest time from that to a grant.
#[derive(Default)]
struct Name(Mutex<(Option<Instant>, Duration, usize)>);

impl Name {
    fn freed(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(Instant::now());
    }

    /// A grant, behind which the name is not free any more.
    fn granted(&self) {
        self.passed();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = None;
    }

    /// One of several that pass, as through a latch.
    fn passed(&self) {
        let mut name = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        name.1 = name.1.max(name.0.map_or(Duration::ZERO, |freed| late(freed, Instant::now())));
        name.2 += 1;
    }

    /// The longest gap, with one that is still open, and how many grants there were.
    fn figures(&self) -> (Duration, usize) {
        let name = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (name.1.max(name.0.map_or(Duration::ZERO, |freed| late(freed, Instant::now()))), name.2)
    }
}

/// A latch that is closed again when all have passed.
struct Rounds {
    /// How often it was closed.
    closed: watch::Sender<u64>,
    all_passed: Barrier,
}

struct Run {
    url: String,
    names: Vec<Name>,
    latches: Vec<Rounds>,
    end: AtomicBool,
    hanging: AtomicUsize,
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::start()?;
    let runtime = runtime(2)?;
    let run = Arc::new(Run {
        url: server.url(),
        names: (0..LOCKS + SEMAPHORES + LATCHES).map(|_| Name::default()).collect(),
        latches: (0..LATCHES)
            .map(|_| Rounds { closed: watch::Sender::new(0), all_passed: Barrier::new(CLIENTS) })
            .collect(),
        end: AtomicBool::new(false),
        hanging: AtomicUsize::new(0),
    });
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for client in 0..if control { 0 } else { CLIENTS } {
            tasks.extend(start_tasks(&run, client).await?);
        }
        if control {
            tasks = start_naive(&run).await?;
        }
        let kills = kill_messages(&server, if control { CONTROL_TIME } else { TIME }).await?;
        // What is open at this moment counts, before the end helps anybody.
        let figures: Vec<_> = run.names.iter().map(Name::figures).collect();
        run.end.store(true, Ordering::SeqCst);
        let deadline = tokio::time::Instant::now() + END_LIMIT;
        for mut task in tasks {
            match tokio::time::timeout_at(deadline, &mut task).await {
                Ok(ended) => ended??,
                Err(_) => {
                    task.abort();
                    run.hanging.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let gap = figures.iter().map(|(gap, _)| *gap).max().unwrap_or_default();
        let grants: usize = figures.iter().map(|(_, grants)| grants).sum();
        let hanging = run.hanging.load(Ordering::Relaxed);
        let figure = format!(
            "longest gap {:.2} s of at most 1 s, {hanging} hang, {WAITERS} waiters, {grants} grants, {kills} kills of {} connections in all",
            gap.as_secs_f64(),
            if control { "the control's" } else { "10 clients'" },
        );
        Ok(Verdict::new(gap <= GAP_MAX && hanging == 0 && grants >= 1_000, figure))
    })
}

/// Kills the connections with subscriptions, every 200 ms.
async fn kill_messages(server: &RedisServer, time: Duration) -> Result<i64> {
    let mut admin = raw_async(&server.url()).await?;
    let end = Instant::now() + time;
    let mut kills = 0;
    while Instant::now() < end {
        tokio::time::sleep(KILL_EVERY).await;
        kills +=
            redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query_async::<i64>(&mut admin).await?;
    }
    Ok(kills)
}

type Task = tokio::task::JoinHandle<Result<()>>;

async fn start_tasks(run: &Arc<Run>, number: usize) -> Result<Vec<Task>> {
    let client = Client::connect(&run.url).await?;
    let mut tasks = Vec::new();
    for task in 0..TASKS[0] {
        let (run, lock) = (Arc::clone(run), client.lock(format!("bar5:lock:{}", task % LOCKS)));
        tasks.push(tokio::spawn(async move {
            let name = &run.names[task % LOCKS];
            while !run.end.load(Ordering::SeqCst) {
                let guard = lock.lock().await?;
                name.granted();
                tokio::time::sleep(HOLD).await;
                guard.unlock().await?;
                name.freed();
            }
            Ok(())
        }));
    }
    for task in 0..TASKS[1] {
        let (run, semaphore) = (Arc::clone(run), client.semaphore(format!("bar5:sem:{}", task % SEMAPHORES)));
        semaphore.set_if_absent(1, None).await?;
        tasks.push(tokio::spawn(async move {
            let name = &run.names[LOCKS + task % SEMAPHORES];
            while !run.end.load(Ordering::SeqCst) {
                semaphore.acquire(1).await?;
                name.granted();
                tokio::time::sleep(HOLD).await;
                semaphore.release(1).await?;
                name.freed();
            }
            Ok(())
        }));
    }
    for at in 0..LATCHES {
        let latch = client.count_down_latch(format!("bar5:latch:{at}"));
        let run = Arc::clone(run);
        // One task of the first client opens the latch; one of each other client waits for it.
        tasks.push(tokio::spawn(async move {
            if number == 0 {
                open_again_and_again(&run, at, &latch).await
            } else {
                pass(&run, at, &latch).await
            }
        }));
    }
    Ok(tasks)
}

async fn open_again_and_again(run: &Run, at: usize, latch: &CountDownLatch) -> Result<()> {
    let (name, rounds) = (&run.names[LOCKS + SEMAPHORES + at], &run.latches[at]);
    while !run.end.load(Ordering::SeqCst) {
        latch.set_if_absent(1).await?;
        rounds.closed.send_modify(|round| *round += 1);
        // The others are to wait on the server by then.
        tokio::time::sleep(Duration::from_millis(100)).await;
        name.freed();
        latch.count_down().await?;
        rounds.all_passed.wait().await;
        name.granted();
    }
    rounds.closed.send_modify(|round| *round = END);
    Ok(())
}

async fn pass(run: &Run, at: usize, latch: &CountDownLatch) -> Result<()> {
    let (name, rounds) = (&run.names[LOCKS + SEMAPHORES + at], &run.latches[at]);
    let mut closed = rounds.closed.subscribe();
    let mut last = 0;
    loop {
        last = *closed.wait_for(|round| *round > last).await?;
        if last == END {
            return Ok(());
        }
        latch.wait().await?;
        name.passed();
        rounds.all_passed.wait().await;
    }
}

/// Semaphores whose waiters look again when a message comes, and at no other time.
async fn start_naive(run: &Arc<Run>) -> Result<Vec<Task>> {
    let mut connection = raw_async(&run.url).await?;
    for at in 0..SEMAPHORES {
        let () = redis::cmd("SET").arg(format!("naive:{at}")).arg(1).query_async(&mut connection).await?;
    }
    let take =
        "if tonumber(redis.call('get', KEYS[1])) > 0 then redis.call('decr', KEYS[1]) return 1 end return 0";
    let mut tasks = Vec::new();
    for waiter in 0..WAITERS {
        let (run, mut connection) = (Arc::clone(run), connection.clone());
        tasks.push(tokio::spawn(async move {
            let key = format!("naive:{}", waiter % SEMAPHORES);
            let name = &run.names[LOCKS + waiter % SEMAPHORES];
            let client = redis::Client::open(run.url.as_str())?;
            let mut messages = listen(&client, &key).await?;
            while !run.end.load(Ordering::SeqCst) {
                if redis::cmd("EVAL").arg(take).arg(1).arg(&key).query_async::<i64>(&mut connection).await?
                    == 1
                {
                    name.granted();
                    tokio::time::sleep(HOLD).await;
                    let () = redis::cmd("INCR").arg(&key).query_async(&mut connection).await?;
                    let () = redis::cmd("PUBLISH").arg(&key).arg(1).query_async(&mut connection).await?;
                    name.freed();
                }
                // After a killed connection it subscribes anew and goes on waiting for a message.
                while messages.next().await.is_none() {
                    messages = listen(&client, &key).await?;
                }
            }
            Ok(())
        }));
    }
    Ok(tasks)
}

async fn listen(client: &redis::Client, key: &str) -> Result<redis::aio::PubSubStream> {
    let mut messages = client.get_async_pubsub().await?;
    // A connection that is killed at this moment ends the stream, and the caller subscribes anew.
    let _ = messages.subscribe(key).await;
    Ok(messages.into_on_message())
}
