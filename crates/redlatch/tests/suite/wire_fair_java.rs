//! Wire facts of the fair lock with others in the queue who take Redisson's steps (`docs/protocol.md`, fair lock).

use std::time::{SystemTime, UNIX_EPOCH};

use redlatch::{Client, Unlocked};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{IN_VAIN, ms, soon},
    wire::{alone, heard},
    wire_fair::{
        CHANNEL, QUEUE, TIMES, ended, keys, line, members, move_time, server_now_ms, times, told, waiting,
    },
};

/// A client that takes the steps of a Java thread, by section 6 of the protocol.
pub(crate) struct Java<'a> {
    server: &'a RedisServer,
    pub(crate) field: String,
    wait_ms: i64,
    /// How wrong its clock is.
    ahead_ms: i64,
}

/// Heads whose time is over, by the caller's clock in ARGV[1], are dropped.
const JAVA_PURGE: &str = "
while true do
  local h = redis.call('lindex', KEYS[2], 0)
  local s = h and redis.call('zscore', KEYS[3], h)
  if not s or tonumber(s) > tonumber(ARGV[1]) then break end
  redis.call('zrem', KEYS[3], h)
  redis.call('lpop', KEYS[2])
end
local head = redis.call('lindex', KEYS[2], 0)
";

const JAVA_ACQUIRE: &str = "
local me, wait, now = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[1])
local fields = redis.call('hlen', KEYS[1])
if fields == 0 and (not head or head == me) then
  if head then redis.call('lpop', KEYS[2]) end
  redis.call('zrem', KEYS[3], me)
  for _, other in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do redis.call('zincrby', KEYS[3], -wait, other) end
  redis.call('hset', KEYS[1], me, 1)
  redis.call('pexpire', KEYS[1], 30000)
  return -10
end
if redis.call('hexists', KEYS[1], me) == 1 then
  redis.call('hincrby', KEYS[1], me, 1)
  redis.call('pexpire', KEYS[1], 30000)
  return -10
end
if redis.call('zscore', KEYS[3], me) then return math.max(0, redis.call('pttl', KEYS[1])) end
local tail = redis.call('lindex', KEYS[2], -1)
local base = tail and redis.call('zscore', KEYS[3], tail)
base = base and base - now or redis.call('pttl', KEYS[1])
redis.call('zadd', KEYS[3], string.format('%.0f', base + wait + now), me)
redis.call('rpush', KEYS[2], me)
return base
";

const JAVA_UNLOCK: &str = "
if redis.call('exists', KEYS[1]) == 1 then
  if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return 0 end
  redis.call('del', KEYS[1])
end
if head then redis.call('publish', KEYS[4] .. ':' .. head, '0') end
return 1
";

const JAVA_GIVE_UP: &str = "
local behind = false
for _, other in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
  if behind then redis.call('zincrby', KEYS[3], -ARGV[3], other) end
  behind = behind or other == ARGV[2]
end
redis.call('zrem', KEYS[3], ARGV[2])
redis.call('lrem', KEYS[2], 0, ARGV[2])
return 1
";

impl<'a> Java<'a> {
    pub(crate) fn new(server: &'a RedisServer, thread: u32) -> Self {
        let field = format!("1b671a64-40d5-491e-99b0-da01ff1f3341:{thread}");
        Java { server, field, wait_ms: 300_000, ahead_ms: 0 }
    }

    pub(crate) fn with_wait(self, wait_ms: i64) -> Self {
        Java { wait_ms, ..self }
    }

    pub(crate) fn with_clock(self, ahead_ms: i64) -> Self {
        Java { ahead_ms, ..self }
    }

    fn run(&self, parts: &[&str]) -> i64 {
        let script = parts.concat();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64 + self.ahead_ms;
        let (now, wait) = (now.to_string(), self.wait_ms.to_string());
        let args = ["EVAL", &script, "4", "x", QUEUE, TIMES, CHANNEL, &now, &self.field, &wait];
        match self.server.cmd(&args).unwrap() {
            redis::Value::Int(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Asks once; whether the lock came.
    pub(crate) fn ask(&self) -> bool {
        self.run(&[JAVA_PURGE, JAVA_ACQUIRE]) == -10
    }

    pub(crate) fn unlock(&self) -> bool {
        self.run(&[JAVA_PURGE, JAVA_UNLOCK]) == 1
    }

    pub(crate) fn give_up(&self) {
        self.run(&[JAVA_GIVE_UP]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_tells_the_head_alone_and_heads_whose_time_is_over_are_dropped() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let java = [1, 2, 3, 4].map(|thread| Java::new(&server, thread));
    let fields: Vec<String> = java.iter().map(|java| java.field.clone()).collect();
    // Each way to free the lock: a release, the last of several holds, force.
    for way in 0..3 {
        let messages = heard(&server, async {
            let guard = lock.lock().await.unwrap();
            assert!(java.iter().all(|java| !java.ask()));
            times(&server, &[330, 630, 930, 1_230]);
            move_time(&server, &fields[0], -331_000);
            move_time(&server, &fields[1], -700_000);
            match way {
                0 => assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released),
                1 => {
                    // An owner that was shown counts its holds down.
                    assert!(!guard.owner().to_text().is_empty());
                    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                }
                _ => {
                    assert!(lock.force_unlock().await.unwrap());
                    server.cmd(&["DEL", "redlatch_forced:{x}"]).unwrap();
                }
            }
            keys(&server, None, &fields[2..]);
            assert!(lock.try_lock().await.unwrap().is_none(), "others are first");
            keys(&server, None, &fields[2..]);
            assert!(java[2].ask());
            assert!(java[2].unlock());
            assert!(java[3].ask());
            assert!(java[3].unlock());
        })
        .await;
        assert_eq!(messages, told(&[&fields[2], &fields[3]]), "way {way}");
        keys(&server, None, &[]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_drops_stale_heads_and_gets_a_lock_that_nobody_waits_for() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let (holder, dead) = (Java::new(&server, 1), Java::new(&server, 2));
    assert!(holder.ask() && !dead.ask() && holder.unlock());
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.lock_for(IN_VAIN).await.unwrap().is_none());
    assert_eq!(members(&server), std::slice::from_ref(&dead.field));
    move_time(&server, &dead.field, -340_000);
    let guard = lock.try_lock().await.unwrap().expect("nobody waits who is heard of");
    let owner = format!("{}:{}", client.id(), guard.owner().number());
    keys(&server, Some((&owner, "1")), &[]);
}

/// What those before us subtract when they get the lock, or give up, must not make a waiter stale that is alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_java_subtracts_from_our_time_leaves_us_our_place() {
    for handovers in [1_usize, 2, 7] {
        let (server, client) = alone().await;
        let lock = client.fair_lock("x");
        let holder = Java::new(&server, 1);
        assert!(holder.ask());
        let before: Vec<Java<'_>> = (0..handovers).map(|n| Java::new(&server, 10 + n as u32)).collect();
        assert!(before.iter().all(|java| !java.ask()));
        let (task, member) = waiting(&server, &lock).await;
        let behind = Java::new(&server, 99);
        assert!(!behind.ask());
        // All have waited for nearly as long as Redisson lets them, and our waiter looks once more.
        for java in &before {
            move_time(&server, &java.field, -320_000);
        }
        move_time(&server, &behind.field, -320_000);
        move_time(&server, &member, -320_000);
        soon("its next look", async {
            while line(&server)[handovers].1 < handovers as i64 * 300_000 + 50_000 {
                tokio::time::sleep(ms(20)).await;
            }
        })
        .await;
        // Now they come one after the other, quicker than anybody looks; each asks behind itself as well.
        assert!(holder.unlock());
        for java in &before {
            assert!(java.ask());
            assert_eq!(line(&server).iter().filter(|(who, _)| *who == member).count(), 1, "dropped");
            assert!(java.unlock());
            assert!(!behind.ask(), "overtaken");
        }
        let guard = ended(task, &member).await;
        guard.unlock().await.unwrap();
        // The one behind was stale by its own time, as it is among its own.
        server.flush_all().unwrap();
    }
}

/// Those who give up subtract as well, before our waiter looks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_waiters_that_give_up_leave_us_our_place() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let before: Vec<Java<'_>> = (0..5).map(|n| Java::new(&server, 10 + n)).collect();
    assert!(before.iter().all(|java| !java.ask()));
    let (task, member) = waiting(&server, &lock).await;
    let behind = Java::new(&server, 99);
    assert!(!behind.ask());
    for java in &before {
        java.give_up();
    }
    assert!(holder.unlock());
    assert!(!behind.ask(), "overtaken");
    ended(task, &member).await.unlock().await.unwrap();
    assert!(behind.ask());
    assert!(behind.unlock());
}

/// A waiter of ours adds nothing for good to the times of those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn languages_that_alternate_leave_nobody_a_time_beyond_redissons() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let java: Vec<Java<'_>> = (0..4).map(|n| Java::new(&server, 10 + n)).collect();
    let mut ours = Vec::new();
    for java in &java {
        assert!(!java.ask());
        ours.push(waiting(&server, &lock).await);
    }
    // 30 s of lease, 300 s for each of Java's so far, 30 s for the one of ours.
    times(&server, &[330, 360, 660, 660, 960, 960, 1_260, 1_260]);
    assert!(holder.unlock());
    for (java, (task, member)) in java.iter().zip(ours) {
        assert!(java.ask());
        let head = line(&server)[0].1;
        assert!(head < 70_000, "a head of ours has {head} ms");
        assert!(java.unlock());
        let guard = ended(task, &member).await;
        if let Some((_, left)) = line(&server).first() {
            // Alone in the queue it would have 330 s; and 30 s of ours before it.
            assert!(*left < 365_000, "behind ours it has {left} ms");
        }
        guard.unlock().await.unwrap();
    }
    keys(&server, None, &[]);
}

/// A process of ours that dies in the middle blocks those behind it for no more than 30 s once it is next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_of_ours_that_comes_to_be_next_is_given_a_short_time_by_the_others() {
    let (server, client) = alone().await;
    let dead = Client::connect(&server.url()).await.unwrap();
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let java = Java::new(&server, 2).with_wait(10_000);
    assert!(!java.ask());
    let (task, first) = waiting(&server, &dead.fair_lock("x")).await;
    let (next, _) = waiting(&server, &client.fair_lock("x")).await;
    times(&server, &[40, 360, 360]);
    // Gone without a trace: nothing leaves the queue.
    let field = first.clone();
    task.abort();
    soon("its leaving", async { while members(&server).len() > 2 {} }).await;
    let at = server_now_ms(&server) + 360_000;
    server.cmd(&["LINSERT", QUEUE, "AFTER", &java.field, &field]).unwrap();
    server.cmd(&["ZADD", TIMES, &at.to_string(), &field]).unwrap();
    assert!(holder.unlock());
    assert!(java.ask());
    assert!(line(&server)[0].1 > 300_000);
    soon("the look of the next", async {
        while line(&server)[0].1 > 63_000 {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    assert!(java.unlock());
    move_time(&server, &field, -62_000);
    next.abort();
}

/// An owner that another process may hold under leaves the queue by another way, which must pass the word on too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_owner_that_leaves_as_the_head_of_a_free_lock_tells_the_next() {
    let (server, client) = alone().await;
    let known: redlatch::Owner = "1b671a64-40d5-491e-99b0-da01ff1f3341:7".parse().unwrap();
    let (holder, behind) = (Java::new(&server, 1), Java::new(&server, 2));
    assert!(holder.ask());
    let messages = heard(&server, async {
        let lock = client.fair_lock("x");
        // Long enough to be next when the lock comes free, and not looking at that moment.
        let mut waiter = Box::pin(async { lock.acquire().owner(&known).wait(redlatch::Wait::Forever).await });
        soon("its place", async {
            while members(&server).is_empty() {
                tokio::select! {
                    biased;
                    _ = &mut waiter => panic!("the lock is held"),
                    () = tokio::time::sleep(ms(5)) => {}
                }
            }
        })
        .await;
        assert!(!behind.ask());
        assert!(holder.unlock());
        drop(waiter);
        // A request that was on its way gets the lock, which is given back then.
        let left =
            || members(&server).len() == 1 && !server.keys_dump().unwrap().contains_key(b"x".as_slice());
        soon("its leaving", async { while !left() {} }).await;
    })
    .await;
    assert_eq!(messages, told(&[&known.to_text(), &behind.field]));
}

/// Fleets whose Java services set another time say so to us, and their waiters are counted with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_redissons_waiters_can_be_set() {
    let (server, _) = alone().await;
    let builder = Client::builder().url(server.url()).redisson_fair_wait(ms(60_000));
    let client = builder.connect().await.unwrap();
    assert!(Java::new(&server, 1).ask());
    assert!(!Java::new(&server, 2).with_wait(60_000).ask());
    let (next, _) = waiting(&server, &client.fair_lock("x")).await;
    times(&server, &[90, 120]);
    next.abort();
}
