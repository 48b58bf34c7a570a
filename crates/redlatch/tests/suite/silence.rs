//! A server that is gone or silent, as those learn of it who wait behind others of their process and ask nobody themselves.

use std::{future::IntoFuture, time::Duration};

use futures_util::{FutureExt, future::join_all};
use redlatch::{Client, ErrorKind, Guard, Lease, MultiLock, QuorumLock, Unlocked, Wait};
use redlatch_testkit::server::RedisServer;
use tokio::task::JoinSet;

use crate::fixture::{ms, quiet, soon};

const WAITERS: usize = 40;
const LONG: Lease = Lease::Fixed(Duration::from_secs(600));

/// A client that rides out outages of a second, and another one that holds all that there is.
async fn held(server: &RedisServer) -> (Client, Client) {
    let builder = quiet().url(server.url()).outage_tolerance(ms(1_000));
    let client = builder.connect().await.unwrap();
    let other = quiet().url(server.url()).connect().await.unwrap();
    other.semaphore("permits").set_if_absent(1, None).await.unwrap();
    other.semaphore("permits").acquire(1).await.unwrap();
    other.permit_semaphore("leased").set_if_absent(1).await.unwrap();
    other.permit_semaphore("leased").request().lease(LONG).await.unwrap().unwrap().detach();
    other.lock("lock").acquire().lease(LONG).await.unwrap().unwrap().detach();
    (client, other)
}

/// The one that asks had the turn for as long as its request had no answer, 3 to 5 s, and then the next one had it: 40 took two minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_wait_learn_of_a_silent_server_at_the_same_time() {
    let server = RedisServer::start().unwrap();
    let (client, _other) = held(&server).await;
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let [one, two, three] = [(); 3].map(|()| client.clone());
        waiters.spawn(async move { one.semaphore("permits").acquire(1).await.unwrap_err() });
        waiters.spawn(async move { two.permit_semaphore("leased").acquire().await.unwrap_err() });
        waiters.spawn(async move { three.lock("lock").lock().await.unwrap_err() });
    }
    tokio::time::sleep(ms(300)).await;
    server.pause().unwrap();
    let errors = soon("the end of all waits", waiters.join_all()).await;
    server.resume().unwrap();
    assert!(errors.iter().all(redlatch::Error::is_retryable), "{errors:?}");
}

/// All but the one that asked said that it was busy, also of what was free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_not_busy_for_those_who_wait_behind_others() {
    let server = RedisServer::start().unwrap();
    let (client, _other) = held(&server).await;
    server.pause().unwrap();
    let mut waiters = JoinSet::new();
    for name in ["lock", "free"] {
        for _ in 0..WAITERS {
            let client = client.clone();
            waiters
                .spawn(async move { client.lock(name).lock_for(ms(1_000)).await.map(|held| held.is_some()) });
        }
    }
    for _ in 0..WAITERS {
        let client = client.clone();
        waiters.spawn(async move { client.semaphore("permits").acquire_for(1, ms(1_000)).await });
    }
    let ends = soon("the end of all waits", waiters.join_all()).await;
    server.resume().unwrap();
    let told = ends.iter().filter(|end| matches!(end, Err(error) if error.kind() == ErrorKind::Timeout));
    assert_eq!(told.count(), 3 * WAITERS, "{ends:?}");
    // It was not busy either, as is seen now.
    assert!(client.lock("free").lock_for(ms(20_000)).await.unwrap().is_some());
}

/// The first in line rides an outage out for as long as its limit is, and those behind it have none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_without_a_limit_ends_in_an_outage_though_the_one_before_it_waits_on() {
    let server = RedisServer::start().unwrap();
    let (client, _other) = held(&server).await;
    let (before, behind) = (client.lock("lock"), client.lock("lock"));
    let before = tokio::spawn(async move { before.lock_for(Duration::from_secs(600)).await.map(drop) });
    tokio::time::sleep(ms(300)).await;
    let behind = tokio::spawn(async move { behind.lock().await.map(drop) });
    tokio::time::sleep(ms(100)).await;
    server.pause().unwrap();
    let error = soon("an end", behind).await.unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!before.is_finished(), "it has a limit");
    before.abort();
    server.resume().unwrap();
}

/// Nothing told of an outage, at the end of a limit it was called busy, and without one the wait lasted as long as the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_release_has_no_answer_learns_of_the_outage() {
    for is_dead in [true, false] {
        let server = RedisServer::start().unwrap();
        let (client, _other) = held(&server).await;
        let guard = client.lock("x").acquire().lease(LONG).await.unwrap().unwrap();
        let owner = guard.owner().clone();
        if is_dead {
            server.stop()
        } else {
            server.pause().unwrap()
        }
        drop(guard);
        let lock = client.lock("x");
        for wait in [Wait::AtMost(ms(1_000)), Wait::Forever, Wait::No] {
            let end = soon("an end", async { lock.acquire().owner(&owner).wait(wait).await }).await;
            let error = end.map(|held| held.is_some()).unwrap_err();
            assert!(error.is_retryable(), "{wait:?}: {error}");
        }
        if !is_dead {
            server.resume().unwrap();
        }
    }
}

/// Each round of a set has an outage tolerance of its own, and nobody counted the rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_waits_for_a_server_that_is_away_no_longer_than_a_single_lock() {
    let [one, two] = [(); 2].map(|()| RedisServer::start().unwrap());
    let (first, _) = held(&one).await;
    let (second, _) = held(&two).await;
    let both = MultiLock::new([first.lock("a"), second.lock("b")]).unwrap();
    two.stop();
    let error = soon("an end", both.lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

/// It kept readers of its process out for as long as nobody polled it, 3 s each, and those that do not wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_is_not_polled_holds_no_reader_up() {
    let server = RedisServer::start().unwrap();
    let (client, other) = held(&server).await;
    let _reading = other.read_write_lock("rw").read().lock().await.unwrap();
    let (rw, preferring) = (client.read_write_lock("rw"), client.read_write_lock("rw").prefer_writers());
    let (writing, reading) = (rw.write(), preferring.read());
    let mut writer = Box::pin(writing.lock());
    // It asks, and waits for the reader; then nobody polls it.
    assert!(tokio::time::timeout(ms(200), &mut writer).await.is_err());
    assert!(reading.try_lock().await.unwrap().is_none(), "the writer goes first");
    soon("a read hold", async {
        while reading.try_lock().await.unwrap().is_none() {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    drop(writer);
}

/// A reader that lets a writer go first asks nobody itself, and called a lock busy whose server was gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_lets_a_writer_go_first_learns_of_an_outage() {
    let server = RedisServer::start().unwrap();
    let (client, _other) = held(&server).await;
    server.stop();
    let rw = client.read_write_lock("rw").prefer_writers();
    let its = rw.clone();
    let writer =
        tokio::spawn(async move { its.write().lock_for(ms(20_000)).await.map(|held| held.is_some()) });
    tokio::time::sleep(ms(300)).await;
    let error = rw.read().lock_for(ms(500)).await.map(|held| held.is_some()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    writer.abort();
}

/// The member that answers was busy with another task's round, so a round with one error more was called busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_process_hide_the_outage_of_a_quorum_from_nobody() {
    let servers = [(); 3].map(|()| RedisServer::start().unwrap());
    let mut members = Vec::new();
    for server in &servers {
        let builder = quiet().url(server.url()).outage_tolerance(ms(1_000));
        members.push(builder.connect_lazy().unwrap().lock("x"));
    }
    let quorum = QuorumLock::new(members).unwrap();
    quorum.lock().await.unwrap().unlock().await.into_result().unwrap();
    servers[1..].iter().for_each(|server| server.pause().unwrap());
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let [one, two] = [(); 2].map(|()| quorum.clone());
        tasks.spawn(async move { one.lock_for(ms(2_500)).await.map(|held| held.is_some()) });
        tasks.spawn(async move { two.lock().await.map(|_| true) });
    }
    let ends = soon("the end of all waits", tasks.join_all()).await;
    servers[1..].iter().for_each(|server| server.resume().unwrap());
    assert!(ends.iter().all(|end| end.as_ref().is_err_and(|error| error.is_retryable())), "{ends:?}");
}

/// Each left a job until its lease ended, and when the server answered again their requests were sent all the same: names were taken for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_were_given_up_before_they_were_sent_leave_nothing_to_do_and_take_nothing() {
    let hour = Lease::Fixed(Duration::from_secs(3_600));
    for (was_connected, is_dropped) in [(false, false), (false, true), (true, false), (true, true)] {
        let server = RedisServer::start().unwrap();
        let builder = quiet().url(server.url()).connect_timeout(ms(2_000)).response_timeout(ms(300));
        let client = if was_connected { builder.connect().await } else { builder.connect_lazy() }.unwrap();
        server.pause().unwrap();
        if was_connected {
            // Its request is sent, and its silence ends the connection. What it leaves is over with its lease.
            let probe = client.lock("probe");
            let probe = probe.acquire().lease(Lease::Fixed(ms(500))).wait(Wait::AtMost(ms(900)));
            assert!(soon("the end of a request", probe.into_future()).await.is_err());
        }
        let asked = (0..200).map(|n| {
            let acquire = client.lock(format!("n{n}"));
            async move {
                let acquire = acquire.acquire().lease(hour);
                if is_dropped {
                    drop(tokio::time::timeout(ms(150), acquire.into_future()).await);
                } else {
                    drop(acquire.wait(Wait::AtMost(ms(150))).await);
                }
            }
        });
        soon("the end of the acquires", join_all(asked)).await;
        soon("the end of what they left", async {
            while client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        server.resume().unwrap();
        // What comes after is answered after whatever was sent before.
        client.lock("last").lock().await.unwrap().unlock().await.unwrap();
        let keys = server.keys_dump().unwrap();
        assert!(keys.is_empty(), "connected: {was_connected}, dropped: {is_dropped}: {keys:?}");
        let counts = server.command_counts().unwrap();
        let scripts = counts.get("evalsha").copied().unwrap_or(0) + counts.get("eval").copied().unwrap_or(0);
        assert!(scripts <= 20, "connected: {was_connected}, dropped: {is_dropped}: {counts:?}");
    }
}

/// The request of the task that leads is dropped when its time is up, and the next one begins. The silence goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_connected_to_is_not_busy_for_those_whose_time_is_up_in_line() {
    let server = RedisServer::start().unwrap();
    let client = quiet().url(server.url()).connect_timeout(ms(20_000)).connect_lazy().unwrap();
    server.pause().unwrap();
    let tasks = [0, 0, 50, 100].map(|later| {
        let lock = client.lock("x");
        async move {
            tokio::time::sleep(ms(later)).await;
            lock.lock_for(ms(300)).await.map(|guard| guard.is_some())
        }
    });
    for outcome in soon("the end of the waits", join_all(tasks)).await {
        let error = outcome.expect_err("nobody knows whether it is busy");
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable), "{error}");
    }
    server.resume().unwrap();
}

/// The answer to a task that was polled once lies there unseen, and those in line elsewhere were told that the server answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_not_polled_makes_no_server_look_silent() {
    let server = RedisServer::start().unwrap();
    let builder = quiet().url(server.url()).outage_tolerance(ms(1_000));
    let client = builder.connect().await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    let (aside, name) = (client.lock("aside"), client.lock("held"));
    let mut unpolled = Box::pin(aside.lock().into_future());
    server.pause().unwrap();
    assert!((&mut unpolled).now_or_never().is_none(), "its request is under way");
    server.resume().unwrap();
    let without_limit = tokio::spawn({
        let lock = client.lock("held");
        async move { lock.lock().await }
    });
    for limit_ms in [200, 700, 1_500] {
        let waited = soon("a wait with a limit", name.lock_for(ms(limit_ms))).await;
        assert!(matches!(waited, Ok(None)), "{limit_ms} ms: {waited:?}");
    }
    // A request that is under way and that nobody looks at is still the only sign of an outage when the tolerance has passed.
    tokio::time::sleep(ms(1_500)).await;
    assert!(!without_limit.is_finished(), "{:?}", without_limit.await);
    held.unlock().await.unwrap();
    assert!(soon("the grant", without_limit).await.unwrap().is_ok());
    drop(unpolled);
}

/// Guards of one owner were given back, or entered, one after the other, each two response timeouts after the last, long after their lease
/// had ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_of_a_silent_server_are_given_back_when_their_lease_is_over() {
    join_all([(false, false), (false, true), (true, false), (true, true)].map(
        async |(handed_out, entered)| {
            let server = RedisServer::start().unwrap();
            let builder = quiet().url(server.url()).response_timeout(ms(1_000));
            let client = builder.connect().await.unwrap();
            let guards = guards_of_one_owner(&client, Lease::RenewedEvery(ms(3_000)), 40).await;
            if handed_out {
                let _handed_out = guards[0].owner().to_text();
            }
            server.pause().unwrap();
            if entered {
                let entries = join_all(guards.iter().map(|guard| guard.reenter()));
                assert!(soon("the entries", entries).await.iter().all(Result::is_err));
            } else {
                let releases = join_all(guards.into_iter().map(|guard| guard.unlock()));
                let answers = soon("the releases", releases).await;
                assert!(
                    !answers.iter().any(|answer| matches!(answer, Ok(Unlocked::Released))),
                    "{answers:?}"
                );
            }
            server.resume().unwrap();
        },
    ))
    .await;
}

/// A release that was left to the lease, because one before it had no answer, said that the lock was free once the last guard was gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_no_server_has_heard_of_does_not_say_that_the_lock_is_free() {
    let server = RedisServer::start().unwrap();
    let client = quiet().url(server.url()).response_timeout(ms(300)).connect().await.unwrap();
    let guards = guards_of_one_owner(&client, LONG, 4).await;
    let _handed_out = guards[0].owner().to_text();
    server.pause().unwrap();
    let mut releases: JoinSet<_> = guards.into_iter().map(|guard| guard.unlock()).collect();
    let first = soon("the first answer", releases.join_next()).await.unwrap().unwrap();
    server.resume().unwrap();
    let mut answers = soon("the others", releases.join_all()).await;
    answers.push(first);
    assert!(!answers.iter().any(|answer| matches!(answer, Ok(Unlocked::Released))), "{answers:?}");
}

async fn guards_of_one_owner(client: &Client, lease: Lease, count: usize) -> Vec<Guard> {
    let mut guards = vec![client.lock("x").acquire().lease(lease).await.unwrap().unwrap()];
    while guards.len() < count {
        let another = guards[0].reenter().await.unwrap();
        guards.push(another);
    }
    guards
}
