//! Wire facts of the fair lock: hash, queue, times and messages after each step (`docs/protocol.md`, fair lock). What is with
//! others in the queue who take Redisson's steps is in `wire_fair_java.rs`.

use redlatch::{Client, FairLock, Guard, Unlocked};
use redlatch_testkit::server::{KeyContent, RedisServer};
use tokio::task::JoinHandle;

use crate::{
    fixture::{ms, soon},
    wire::{alone, heard, take_record},
    wire_fair_java::Java,
};

pub(crate) const QUEUE: &str = "redisson_lock_queue:{x}";
pub(crate) const TIMES: &str = "redisson_lock_timeout:{x}";
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{x}";

/// What a busy machine may add to or take from a time.
const SLACK_MS: i64 = 3_000;

/// Reads queue and times at one moment: what is left to each, in ms, by the server's clock.
const LINE: &str = "
local time, all = redis.call('time'), {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, member in ipairs(redis.call('lrange', KEYS[1], 0, -1)) do
  local score = redis.call('zscore', KEYS[2], member)
  all[#all + 1] = member
  all[#all + 1] = score and string.format('%.0f', score - now) or 'none'
end
return all
";

/// The queue of the lock `x`: who waits, and in how many ms each is stale.
pub(crate) fn line(server: &RedisServer) -> Vec<(String, i64)> {
    let redis::Value::Array(all) = server.cmd(&["EVAL", LINE, "2", QUEUE, TIMES]).unwrap() else { panic!() };
    let text = |item: &redis::Value| match item {
        redis::Value::BulkString(text) => String::from_utf8(text.clone()).unwrap(),
        other => panic!("{other:?}"),
    };
    let each = all.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1])));
    each.map(|(member, left)| {
        let left = left.parse().unwrap_or_else(|_| panic!("{member} has no time: {left}"));
        (member, left)
    })
    .collect()
}

pub(crate) fn server_now_ms(server: &RedisServer) -> i64 {
    let redis::Value::Array(time) = server.cmd(&["TIME"]).unwrap() else { panic!() };
    let part = |n: usize| match &time[n] {
        redis::Value::BulkString(text) => String::from_utf8(text.clone()).unwrap().parse::<i64>().unwrap(),
        other => panic!("{other:?}"),
    };
    part(0) * 1_000 + part(1) / 1_000
}

pub(crate) fn members(server: &RedisServer) -> Vec<String> {
    line(server).into_iter().map(|(member, _)| member).collect()
}

/// Asserts which keys there are, the lock's holder and count, and that each waiter is in the queue and has a time, once.
#[track_caller]
pub(crate) fn keys(server: &RedisServer, holder: Option<(&str, &str)>, waiters: &[String]) {
    let dump = server.keys_dump().unwrap();
    let mut want = Vec::new();
    if let Some((owner, count)) = holder {
        assert_eq!(dump[b"x".as_slice()].content, KeyContent::hash([(owner, count)]));
        let left = dump[b"x".as_slice()].pttl_ms.expect("a lock ends");
        assert!((28_000..=30_000).contains(&left), "{left}");
    }
    if !waiters.is_empty() {
        want.extend([QUEUE, TIMES]);
        assert_eq!(members(server), waiters);
        let redis::Value::Int(times) = server.cmd(&["ZCARD", TIMES]).unwrap() else { panic!() };
        assert_eq!(times, waiters.len() as i64);
        assert!([QUEUE, TIMES].iter().all(|key| dump[key.as_bytes()].pttl_ms.is_none()));
    }
    if holder.is_some() {
        want.push("x");
    }
    let have: Vec<_> = dump.keys().map(|key| String::from_utf8_lossy(key)).collect();
    assert_eq!(have, want);
}

/// Moves a waiter's time, as the passing of time does to who is not heard of.
pub(crate) fn move_time(server: &RedisServer, member: &str, by_ms: i64) {
    server.cmd(&["ZINCRBY", TIMES, &by_ms.to_string(), member]).unwrap();
}

async fn grown_to(server: &RedisServer, waiters: usize) -> Vec<String> {
    soon("a queue of that length", async {
        loop {
            let members = members(server);
            if members.len() == waiters {
                return members;
            }
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await
}

pub(crate) type Waiter = JoinHandle<Guard>;

/// A task that waits for the lock, and the field under which it stands in the queue.
pub(crate) async fn waiting(server: &RedisServer, lock: &FairLock) -> (Waiter, String) {
    let before = members(server).len();
    let lock = lock.clone();
    let task = tokio::spawn(async move { lock.lock().await.unwrap() });
    let member = grown_to(server, before + 1).await.pop().unwrap();
    // Its wait for a handoff, the answer to its subscription, and its second look.
    tokio::time::sleep(ms(50)).await;
    (task, member)
}

/// Asserts that each time is what is expected, in seconds from now, give or take what a busy machine needs.
#[track_caller]
pub(crate) fn times(server: &RedisServer, seconds: &[i64]) {
    let line = line(server);
    assert_eq!(line.len(), seconds.len(), "{line:?}");
    for ((member, left), seconds) in line.iter().zip(seconds) {
        let off = left - seconds * 1_000;
        assert!((-SLACK_MS..=SLACK_MS).contains(&off), "{member}: {left} ms, not {seconds} s: {line:?}");
    }
}

pub(crate) async fn ended(task: Waiter, member: &str) -> Guard {
    let guard = soon("the grant", task).await.unwrap();
    assert_eq!(
        guard.owner().number().to_string(),
        member.rsplit_once(':').unwrap().1,
        "another owner's grant"
    );
    guard
}

pub(crate) fn told(members: &[&String]) -> Vec<(String, String)> {
    members.iter().map(|member| (format!("{CHANNEL}:{member}"), "0".to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_a_fair_lock_leaves_the_documented_keys_and_messages() {
    let (server, a) = alone().await;
    let b = Client::connect(&server.url()).await.unwrap();
    let (ours, others) = (a.fair_lock("x"), b.fair_lock("x"));
    let messages = heard(&server, async {
        let guard = ours.lock().await.unwrap();
        let holder = format!("{}:{}", a.id(), guard.owner().number());
        keys(&server, Some((&holder, "1")), &[]);
        // Three wait; the lease of 30 s is over before they are stale, and each counts for 30 s more.
        let mut waiters = Vec::new();
        for lock in [&others, &ours, &others] {
            waiters.push(waiting(&server, lock).await);
        }
        let fields: Vec<String> = waiters.iter().map(|(_, member)| member.clone()).collect();
        keys(&server, Some((&holder, "1")), &fields);
        times(&server, &[60, 60, 60]);
        // Who does not wait is not in the queue, held or free.
        assert!(others.try_lock().await.unwrap().is_none());
        keys(&server, Some((&holder, "1")), &fields);
        let inner = guard.reenter().await.unwrap();
        keys(&server, Some((&holder, "2")), &fields);
        assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
        keys(&server, Some((&holder, "1")), &fields);
        // The second gives up.
        waiters.remove(1).0.abort();
        let left = [fields[0].clone(), fields[2].clone()];
        soon("the place in the middle", async { while members(&server) != left {} }).await;
        keys(&server, Some((&holder, "1")), &left);
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        let (task, member) = waiters.remove(0);
        let guard = ended(task, &member).await;
        keys(&server, Some((&member, "1")), &left[1..]);
        times(&server, &[60]);
        // By force; the holder finds out later.
        let forced = guard.owner().to_text();
        assert!(ours.force_unlock().await.unwrap());
        take_record(&server, "x", &a, &[&forced]);
        let (task, member) = waiters.remove(0);
        let last = ended(task, &member).await;
        keys(&server, Some((&member, "1")), &[]);
        assert!(matches!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(_)));
        keys(&server, Some((&member, "1")), &[]);
        assert_eq!(last.unlock().await.unwrap(), Unlocked::Released);
        keys(&server, None, &[]);
        assert!(!ours.force_unlock().await.unwrap());
        keys(&server, None, &[]);
    })
    .await;
    let to: Vec<&str> = messages.iter().map(|(channel, _)| channel.rsplit_once(':').unwrap().1).collect();
    assert_eq!(messages.len(), 2, "one for each release that a waiter waited for: {to:?}");
}

/// The grant of one release needs no second request, and a repeat of anything leaves one place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_inside_the_process_is_one_command() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let mut guard = lock.lock().await.unwrap();
    for _ in 0..3 {
        let (task, member) = waiting(&server, &lock).await;
        soon("the waiter in line", async {
            while client.stats().in_line == 0 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        server.reset_command_counts().unwrap();
        guard.unlock().await.unwrap();
        guard = ended(task, &member).await;
        let scripts = server.command_count("evalsha").unwrap();
        assert_eq!(scripts, 1, "the release grants");
        assert_eq!(server.command_count("publish").unwrap(), 0, "nobody has to be told");
    }
    guard.unlock().await.unwrap();
}

/// Tasks that come back at once are handed over to before they look a second time, also when the release overtakes the
/// answer to their first look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_take_turns_need_two_requests_a_turn() {
    const TURNS: usize = 300;
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.reset_command_counts().unwrap();
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon("the turns", task).await.unwrap();
    }
    // Only a task that waits for longer than for a handoff subscribes and looks again.
    let scripts = server.command_count("evalsha").unwrap() as usize;
    assert!((4 * TURNS..5 * TURNS).contains(&scripts), "{scripts} scripts for {} turns", 2 * TURNS);
    let subscriptions = server.command_count("subscribe").unwrap() as usize;
    assert!(subscriptions < TURNS / 2, "{subscriptions} subscriptions");
    assert_eq!((client.stats().in_line, client.stats().names), (0, 0), "nobody is left in line");
}

/// Looks again often enough to be counted as alive, and seldom enough to cost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_time_ahead_and_one_place_however_long_it_waits() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let (first, member) = waiting(&server, &lock).await;
    let (second, other) = waiting(&server, &lock).await;
    for _ in 0..2 {
        // Nearly over.
        move_time(&server, &member, -50_000);
        move_time(&server, &other, -50_000);
        soon("their next looks", async {
            while line(&server).iter().any(|(_, left)| *left < 40_000) {
                tokio::time::sleep(ms(20)).await;
            }
        })
        .await;
        assert_eq!(members(&server), [member.clone(), other.clone()]);
        assert_eq!(server.cmd(&["ZCARD", TIMES]).unwrap(), redis::Value::Int(2));
    }
    assert!(holder.unlock());
    ended(first, &member).await.unlock().await.unwrap();
    ended(second, &other).await.unlock().await.unwrap();
    keys(&server, None, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_and_times_keep_the_hash_tag_of_the_name() {
    let (server, client) = alone().await;
    for (name, tagged) in [("plain", "{plain}"), ("a{b}c", "a{b}c"), ("{t}:x", "{t}:x")] {
        let lock = client.fair_lock(name);
        let guard = lock.lock().await.unwrap();
        let waiter = lock.clone();
        let waiter = tokio::spawn(async move { waiter.lock().await.unwrap() });
        soon("its place", async {
            while client.inspect(name).await.unwrap().waiters.is_empty() {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        let mut want = [
            name.to_owned(),
            format!("redisson_lock_queue:{tagged}"),
            format!("redisson_lock_timeout:{tagged}"),
        ];
        want.sort();
        let keys = server.keys_dump().unwrap().into_keys();
        let keys: Vec<_> = keys.map(|key| String::from_utf8(key).unwrap()).collect();
        assert_eq!(keys, want);
        let member = client.inspect(name).await.unwrap().waiters[0].owner.to_string();
        let channel = format!("redisson_lock__channel:{tagged}:{member}");
        soon("its subscription", async {
            while server.subscriber_channels().unwrap() != [channel.as_bytes()] {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        guard.unlock().await.unwrap();
        soon("the grant", waiter).await.unwrap().unlock().await.unwrap();
        soon("the end of the subscription", async {
            while !server.subscriber_channels().unwrap().is_empty() {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        assert!(server.keys_dump().unwrap().is_empty());
    }
}
