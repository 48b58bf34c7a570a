//! Leased permits when answers are lost: nothing is counted twice, nothing leaks, and nobody is told of a loss that is none.

use std::time::{Duration, Instant};

use redlatch::{Client, ErrorKind, Lease, PermitSemaphore, Unlocked, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{LATE, RENEWED, SOON, awake, ms, renewed, soon};

/// A server with a semaphore of five, a proxy before it, and a client that goes through the proxy.
struct Rig {
    server: RedisServer,
    proxy: Proxy,
    client: Client,
    ours: PermitSemaphore,
    /// The same, past the proxy.
    direct: PermitSemaphore,
}

async fn rig(lease: Duration) -> Rig {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let builder = Client::builder().url(proxy.url()).watchdog_lease(lease).response_timeout(ms(600));
    let client = builder.connect_timeout(ms(1_000)).connect().await.unwrap();
    let direct = Client::connect(&server.url()).await.unwrap().permit_semaphore("p");
    direct.set_if_absent(5).await.unwrap();
    let ours = client.permit_semaphore("p");
    // The first calls teach the server the scripts, so that later calls are one command each.
    ours.request().permanent().await.unwrap().unwrap().release().await.unwrap();
    Rig { server, proxy, client, ours, direct }
}

impl Rig {
    /// How many permits the server has without an end.
    fn permanent(&self) -> i64 {
        let keys: Vec<String> =
            redis::from_redis_value(self.server.cmd(&["KEYS", "*timeout*"]).unwrap()).unwrap();
        let count = |key: &String| self.server.cmd(&["ZCOUNT", key, "922337203685477", "+inf"]).unwrap();
        keys.iter().map(|key| redis::from_redis_value::<i64>(count(key)).unwrap()).sum()
    }

    /// Waits until so many permits are taken and nothing is under way, late looks after lost requests included.
    async fn settles(&self, taken: i64, what: &str) {
        soon(what, async {
            while self.client.stats().background_jobs > 0 || self.direct.acquired().await.unwrap() != taken {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        let found = (self.direct.available().await.unwrap(), self.direct.acquired().await.unwrap());
        assert_eq!(found, (5 - taken, taken), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_takes_permits_once_or_not_at_all() {
    for action in [Action::CloseAfterRequest, Action::DropReply, Action::CloseBeforeRequest] {
        let rig = rig(ms(30_000)).await;
        for wait in [Wait::Forever, Wait::No, Wait::AtMost(ms(200))] {
            rig.proxy.clear_rules();
            let lost = Match::script().arg_contains(scripts::PERMIT_TAKE.sha1()).nth(1);
            let rule = rig.proxy.rule(lost, action.clone());
            let what = format!("{action:?} and {wait:?}");
            let begin = Instant::now();
            let taken = soon(&what, rig.ours.request().permits(2).wait(wait).into_future()).await;
            assert_eq!(rig.proxy.fired(rule), 1, "the fault was there");
            assert!(
                wait != Wait::AtMost(ms(200)) || awake(begin) < ms(200) + LATE,
                "{what}: {:?}",
                begin.elapsed()
            );
            rig.proxy.heal().unwrap();
            match taken {
                Ok(Some(guard)) => {
                    assert!(guard.is_valid());
                    assert_eq!(rig.direct.acquired().await.unwrap(), 2, "counted once: {what}");
                    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
                }
                Ok(None) => panic!("five are free: {what}"),
                Err(error) => assert!(error.is_retryable() && wait != Wait::Forever, "{what}: {error}"),
            }
            rig.settles(0, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_gives_permits_back_once() {
    for action in [Action::CloseAfterRequest, Action::DropReply, Action::CloseBeforeRequest] {
        let rig = rig(ms(30_000)).await;
        let (kept, guard) = (rig.direct.acquire().await.unwrap(), rig.ours.acquire().await.unwrap());
        let lost = Match::script().arg_contains(scripts::PERMIT_GIVE.sha1()).nth(1);
        let rule = rig.proxy.rule(lost, action.clone());
        let what = format!("{action:?}");
        assert_eq!(soon(&what, guard.release()).await.unwrap(), Unlocked::Released, "{what}");
        assert_eq!(rig.proxy.fired(rule), 1, "the fault was there");
        rig.proxy.heal().unwrap();
        rig.settles(1, &what).await;
        assert!(kept.is_valid());
        // By id the request is made once, and made again by a caller that wants to know.
        let lease = Lease::Fixed(ms(60_000));
        let ids = rig.direct.request().permits(2).lease(lease).await.unwrap().unwrap().detach();
        rig.proxy.clear_rules();
        let lost = Match::script().arg_contains(scripts::PERMIT_GIVE.sha1()).nth(1);
        rig.proxy.rule(lost, action.clone());
        let error = soon(&what, rig.ours.release_all(&ids)).await.unwrap_err();
        assert!(error.is_retryable(), "{what}: {error}");
        rig.proxy.heal().unwrap();
        match rig.ours.release_all(&ids).await {
            Ok(()) => assert!(matches!(action, Action::CloseBeforeRequest), "{what}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotOwner, "{what}: {error}"),
        }
        rig.settles(1, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_second_renewal_may_fail_and_permits_and_locks_hold() {
    let rig = rig(RENEWED).await;
    let lock = rig.client.lock("beside").lock().await.unwrap();
    let (one, two) =
        (rig.ours.acquire().await.unwrap(), rig.ours.request().permits(2).await.unwrap().unwrap());
    for script in [&scripts::PERMIT_RENEW, &scripts::RENEW] {
        for nth in (1..40).step_by(2) {
            rig.proxy.rule(Match::script().arg_contains(script.sha1()).nth(nth), Action::CloseAfterRequest);
        }
    }
    renewed(4, async || {
        assert!(one.is_valid() && two.is_valid() && lock.is_valid(), "{:?} {:?}", one.loss(), lock.loss());
        assert_eq!(rig.direct.acquired().await.unwrap(), 3);
        one.remaining().min(two.remaining()).min(lock.remaining())
    })
    .await;
}

/// They were taken for ever by a request that came when nobody looked for it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_permits_that_are_asked_for_late_come_back() {
    let rig = rig(ms(1_000)).await;
    let late = Match::script().arg_contains(scripts::PERMIT_TAKE.sha1()).nth(1);
    let rule = rig.proxy.rule(late, Action::DelayRequest(ms(6_000)));
    let asked = rig.ours.request().permanent().permits(2).into_future();
    let gone = tokio::time::timeout(ms(300), asked).await;
    assert!(gone.is_err() && rig.proxy.fired(rule) == 1, "the task has gone, and the request is on its way");
    rig.settles(2, "the late request").await;
    rig.settles(0, "the end of what nobody has").await;
}

/// The request that takes the lease off is lost, or its answer: the permits are permanent all the same, and given back they are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_makes_permits_permanent_or_gives_them_back() {
    for action in [Action::CloseAfterRequest, Action::DropReply, Action::CloseBeforeRequest] {
        let rig = rig(ms(1_000)).await;
        let lost = Match::script().arg_contains(scripts::PERMIT_RENEW.sha1()).nth(1);
        let rule = rig.proxy.rule(lost, action.clone());
        let what = format!("{action:?}");
        let guard = soon(&what, rig.ours.request().permanent().permits(2).into_future()).await;
        assert_eq!(rig.proxy.fired(rule), 1, "the fault was there");
        let guard = match guard {
            Ok(guard) => guard.expect("five are free"),
            Err(error) => {
                assert!(error.is_retryable(), "{what}: {error}");
                rig.settles(0, &what).await;
                continue;
            }
        };
        assert_eq!(guard.remaining(), Duration::MAX, "{what}");
        let lease = rig.direct.lease_of(guard.id()).await.unwrap();
        assert_eq!(lease, Some(redlatch::PermitLease::Permanent), "{what}");
        assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
        rig.settles(0, &what).await;
    }
}

/// The server had taken the lease off, its answer was lost, and the permits were given up when their lease would have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_are_permanent_unseen_are_given_back_after_a_long_outage() {
    let rig = rig(ms(1_000)).await;
    let lost = Match::script().arg_contains(scripts::PERMIT_RENEW.sha1()).nth(1);
    let rule = rig.proxy.rule(lost, Action::DropReply);
    let outage = async {
        rig.proxy.wait_fired(rule, 1, SOON).await.unwrap();
        soon("permits without an end", async {
            while rig.permanent() == 0 {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        rig.proxy.refuse_new().unwrap();
        rig.proxy.reset_all();
    };
    let asked = rig.ours.request().permanent().permits(2).into_future();
    let (taken, ()) = soon("the end of the request", async { tokio::join!(asked, outage) }).await;
    assert!(taken.is_err(), "the lease was not taken off for all that is known");
    // For longer than the lease that they were taken with.
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(rig.direct.acquired().await.unwrap(), 2);
    rig.proxy.heal().unwrap();
    rig.settles(0, "after the outage").await;
}

/// A repeat that changed nothing was confirmed by replicas that had never heard of what it repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taking_the_lease_off_once_more_writes_once_more() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(2).await.unwrap();
    let guard = semaphore.request().permanent().await.unwrap().unwrap();
    let member: Vec<u8> =
        (0..32).step_by(2).map(|at| u8::from_str_radix(&guard.id()[at..at + 2], 16).unwrap()).collect();
    let written = || -> i64 {
        let info: String = redis::from_redis_value(server.cmd(&["INFO", "persistence"]).unwrap()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().trim().parse().unwrap()
    };
    let keys: Vec<String> = redis::from_redis_value(server.cmd(&["KEYS", "*timeout*"]).unwrap()).unwrap();
    let before = written();
    let mut repeat = redis::cmd("EVAL");
    repeat
        .arg(scripts::PERMIT_RENEW.source())
        .arg(1)
        .arg(&keys[0])
        .arg(1)
        .arg(922_337_203_685_477_i64)
        .arg(member);
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    assert_eq!(repeat.query::<Vec<i64>>(&mut connection).unwrap(), [1, 1]);
    assert!(written() > before, "so that replicas can be waited for");
    assert_eq!(semaphore.acquired().await.unwrap(), 1, "and nothing is taken by it");
    guard.release().await.unwrap();
}
