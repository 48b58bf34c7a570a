//! Grants whose answer comes when their lease has ended: they are given back, and the next grant of the same task is not. And
//! requests that arrive when their hold has gone.

use std::{future::IntoFuture, sync::Arc};

use redlatch::{Client, Lease, ManualClock, MultiLock, Unlocked, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{SOON, ms, soon};

struct Rig {
    server: RedisServer,
    proxy: Proxy,
    client: Client,
}

/// A client whose keeper's requests to undo arrive late, while other connections are quick.
async fn rig() -> Rig {
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder()
        .url(proxy.url())
        .watchdog_lease(ms(3_000))
        .response_timeout(ms(60_000))
        .connect()
        .await
        .unwrap();
    for undo in [&scripts::RELEASE, &scripts::FAIR_UNDO] {
        proxy.rule(Match::script().arg_contains(undo.sha1()), Action::DelayRequest(ms(1_500)));
    }
    Rig { server, proxy, client }
}

impl Rig {
    fn holds(&self, name: &str) -> bool {
        self.server.cmd(&["EXISTS", name]).unwrap() == redis::Value::Int(1)
    }

    /// Acquires while the answer to the first request waits until the server has ended its lease.
    async fn answered_too_late<T>(
        &self,
        script: &scripts::Script,
        name: &str,
        acquire: impl Future<Output = T>,
    ) -> T {
        let gate = Gate::new();
        let first = Match::script().arg_contains(script.sha1()).nth(1);
        let rule = self.proxy.rule(first, Action::HoldReplyUntilReleased(gate.clone()));
        let in_between = async {
            self.proxy.wait_fired(rule, 1, SOON).await.unwrap();
            soon("the end of the lease", async {
                while self.holds(name) {
                    tokio::time::sleep(ms(10)).await;
                }
            })
            .await;
            gate.release();
        };
        soon("a grant in time", async { tokio::join!(acquire, in_between).0 }).await
    }

    /// Until everything that was to be undone has been.
    async fn undone(&self) {
        soon("the undoing", async {
            while self.client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_a_grant_that_came_too_late_does_not_undo_the_next_one() {
    let rig = rig().await;
    let (plain, fair) = (rig.client.lock("plain"), rig.client.fair_lock("fair"));
    let asked = plain.acquire().wait(Wait::Forever).into_future();
    let guard = rig.answered_too_late(&scripts::ACQUIRE, "plain", asked).await.unwrap().unwrap();
    rig.undone().await;
    assert!(rig.holds("plain"), "the grant was undone by what was meant for the one before");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let asked = fair.acquire().wait(Wait::Forever).into_future();
    let guard = rig.answered_too_late(&scripts::FAIR_ACQUIRE, "fair", asked).await.unwrap().unwrap();
    rig.undone().await;
    assert!(rig.holds("fair"), "the grant was undone by what was meant for the one before");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_several_grants_that_came_too_late_does_not_undo_the_next_ones() {
    let rig = rig().await;
    let both = MultiLock::new(["one", "two"].map(|name| rig.client.lock(name))).unwrap();
    let guard = rig.answered_too_late(&scripts::ACQUIRE_ALL, "one", both.lock()).await.unwrap();
    rig.undone().await;
    assert!(
        rig.holds("one") && rig.holds("two"),
        "the grants were undone by what was meant for those before"
    );
    drop(guard.unlock().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_when_its_hold_was_handed_on_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).turn_time(ms(60_000)).connect().await.unwrap();
    let (lock, fenced) = (client.lock("handed-on"), client.fenced_lock("handed-on"));
    // The scripts are known, so that each attempt is one request.
    drop(lock.lock().await.unwrap().unlock().await.unwrap());
    let lost = Match::script().arg_contains(scripts::ACQUIRE.sha1()).nth(1);
    let rule = proxy.rule(lost, Action::CloseBeforeRequest);
    let guard = soon("a grant to the second request", lock.lock()).await.unwrap();
    assert_eq!(proxy.fired(rule), 1, "the first request is lost");
    let owners: Vec<String> = redis::from_redis_value(server.cmd(&["HKEYS", "handed-on"]).unwrap()).unwrap();
    // A hold with a token has an owner of its own, so the lock is handed to it by the server.
    let next = tokio::spawn(async move { fenced.lock().await.unwrap() });
    soon("a waiter in line", async {
        while client.stats().in_line == 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let next = soon("the next hold", next).await.unwrap();
    assert_eq!(next.unlock().await.unwrap(), Unlocked::Released);
    // Now the request that was lost arrives, and is granted to a waiter that has left.
    server.cmd(&["HSET", "handed-on", &owners[0], "1"]).unwrap();
    server.cmd(&["PEXPIRE", "handed-on", "3600000"]).unwrap();
    soon("a free lock", async {
        while server.cmd(&["EXISTS", "handed-on"]).unwrap() == redis::Value::Int(1) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
}

/// A lock was moved to the next task of its process, and the answer came when that task's lease was over. The server had it under an owner that nobody
/// knew, so it was nobody's for the length of a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_moved_too_late_is_given_back() {
    for waits_on in [true, false] {
        let server = RedisServer::start().unwrap();
        for script in scripts::ALL {
            server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
        }
        let proxy = Proxy::start(&server.url()).unwrap();
        let clock = Arc::new(ManualClock::new(ms(0)));
        let builder = Client::builder().url(proxy.url()).clock(clock.clone());
        let client = builder.turn_time(ms(60_000)).response_timeout(ms(60_000)).connect().await.unwrap();
        let other = Client::connect(&server.url()).await.unwrap();
        let lock = client.lock("x");
        let guard = lock.acquire().lease(Lease::Fixed(ms(3_600_000))).await.unwrap().unwrap();
        // A lease of its own has the lock moved on the server.
        let next = client.lock("x");
        let waiter =
            tokio::spawn(
                async move { next.acquire().lease(Lease::Fixed(ms(600_000))).wait(Wait::Forever).await },
            );
        soon("a waiter in line", async {
            while client.stats().in_line == 0 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        let gate = Gate::new();
        let moves = Match::script().arg_contains(scripts::TRANSFER.sha1());
        let rule = proxy.rule(moves, Action::HoldReplyUntilReleased(gate.clone()));
        let leaving = tokio::spawn(guard.unlock());
        proxy.wait_fired(rule, 1, SOON).await.unwrap();
        clock.advance(ms(600_000));
        if !waits_on {
            waiter.abort();
        }
        gate.release();
        assert_eq!(soon("the release", leaving).await.unwrap().unwrap(), Unlocked::Released);
        if waits_on {
            let guard = soon("the lock", waiter).await.unwrap().unwrap().unwrap();
            assert!(guard.is_valid());
            guard.unlock().await.unwrap();
        }
        soon("another client's turn", other.lock("x").lock()).await.unwrap().unlock().await.unwrap();
    }
}

/// A fair waiter's look is on its way for longer than its lease, and meanwhile a task of its process hands the lock to it. The server answers
/// the look as a repeat, and undoing that took the hold away that the waiter was handed: its guard was valid beside the next holder's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_is_late_does_not_undo_what_was_handed_over_meanwhile() {
    const LEASE: std::time::Duration = ms(3_000);
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let lock = client.fair_lock("heir");
    let first = lock.lock().await.unwrap();
    // Its first request lines it up, and the second one is made when it hears messages.
    let looks = Match::script().arg_contains(scripts::FAIR_ACQUIRE.sha1()).key_contains("heir").nth(2);
    let look = proxy.rule(looks, Action::DelayRequest(LEASE + ms(100)));
    let waiter = tokio::spawn(async move {
        lock.acquire().wait(Wait::Forever).lease(redlatch::Lease::Fixed(LEASE)).await.unwrap().unwrap()
    });
    proxy.wait_fired(look, 1, SOON).await.unwrap();
    tokio::time::sleep(LEASE - ms(500)).await;
    let handed = Match::script().arg_contains(scripts::FAIR_RELEASE.sha1());
    let handed = proxy.rule(handed, Action::DelayReply(ms(0)));
    // The keeper gives it back over a connection of its own.
    drop(first);
    let guard = soon("the grant", waiter).await.unwrap();
    assert_eq!(proxy.fired(handed), 1, "it was handed over");
    let owner = guard.owner().to_text();
    let holds = server.cmd(&["HEXISTS", "heir", &owner]).unwrap();
    assert!(!guard.is_valid() || holds == redis::Value::Int(1), "a valid guard of a hold that is not there");
    drop(guard.unlock().await);
}
