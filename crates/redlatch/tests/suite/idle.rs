//! What lies between client and server forgets connections on which nothing goes, and answers what comes then with a reset.

use std::sync::Arc;

use redlatch::{ManualClock, Unlocked, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{SOON, ms, quiet, soon};

/// Who releases by a written-out owner has no guard that would try again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_owner_goes_over_a_connection_that_answers() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let clock = ManualClock::new(ms(1_000_000));
    let holder = quiet().url(server.url()).connect().await.unwrap();
    let client = quiet().url(proxy.url()).clock(Arc::new(clock.clone())).connect().await.unwrap();
    // Both connections are there, the keeper's as well.
    let used = client.lock("another").lock().await.unwrap();
    let _handed_out = used.owner().to_text();
    assert_eq!(soon("a release", used.unlock()).await.unwrap(), Unlocked::Released);
    let guard = holder.lock("x").acquire().await.unwrap().unwrap();
    let owner = guard.owner().to_text().parse().unwrap();
    clock.advance(ms(20_000));
    let last = proxy.with_log(|log| log.requests().map(|request| request.connection).max().unwrap());
    let forgotten = proxy.rule(Match::any().connection_up_to(last), Action::CloseBeforeRequest);
    assert_eq!(soon("the release", client.lock("x").release(&owner)).await.unwrap(), Unlocked::Released);
    assert!(proxy.fired(forgotten) > 0, "a connection was forgotten");
}

/// Its time was over, so the connection was not looked after, and what the extension had kept on the server stayed there for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_late_extension_has_kept_is_given_back_over_a_connection_that_answers() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let clock = ManualClock::new(ms(1_000_000));
    let client = quiet().url(proxy.url()).clock(Arc::new(clock.clone())).connect().await.unwrap();
    // Both connections are there, the keeper's as well.
    let used = client.lock("another").lock().await.unwrap();
    let _handed_out = used.owner().to_text();
    assert_eq!(soon("a release", used.unlock()).await.unwrap(), Unlocked::Released);
    let guard = client.lock("x").lock_with_lease(ms(1_000)).await.unwrap();
    let _handed_out = guard.owner().to_text();
    let gate = Gate::new();
    let extends = Match::script().arg_contains(scripts::RENEW.sha1()).nth(1);
    let extends = proxy.rule(extends, Action::HoldReplyUntilReleased(gate.clone()));
    let mut extension = std::pin::pin!(guard.extend(ms(3_600_000)));
    assert!(futures_util::poll!(extension.as_mut()).is_pending());
    proxy.wait_fired(extends, 1, SOON).await.unwrap();
    clock.advance(ms(20_000));
    let last = proxy.with_log(|log| log.requests().map(|request| request.connection).max().unwrap());
    let forgotten = proxy.rule(Match::any().connection_up_to(last), Action::CloseBeforeRequest);
    gate.release();
    assert!(soon("the answer", extension).await.is_err(), "the hold was over");
    soon("what is left", async {
        while server.cmd(&["EXISTS", "x"]).unwrap() != redis::Value::Int(0) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert!(proxy.fired(forgotten) > 0, "a connection was forgotten");
}

/// Their requests can be neither repeated nor undone, so they were lost with their connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_steps_are_given_back_over_a_connection_that_answers() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let clock = ManualClock::new(ms(1_000_000));
    let client = quiet().url(proxy.url()).clock(Arc::new(clock.clone())).connect().await.unwrap();
    let (permits, latch) = (client.semaphore("permits"), client.count_down_latch("latch"));
    permits.set_if_absent(2, None).await.unwrap();
    latch.set_if_absent(2).await.unwrap();
    permits.acquire(2).await.unwrap();
    let forget = || {
        clock.advance(ms(20_000));
        let last = proxy.with_log(|log| log.requests().map(|request| request.connection).max().unwrap());
        proxy.rule(Match::any().connection_up_to(last), Action::CloseBeforeRequest)
    };
    let forgotten = forget();
    soon("giving back", permits.release(2)).await.unwrap();
    assert!(proxy.fired(forgotten) > 0, "a connection was forgotten");
    let forgotten = forget();
    assert_eq!(soon("a step", latch.count_down()).await.unwrap(), 1);
    assert!(proxy.fired(forgotten) > 0, "a connection was forgotten");
    assert_eq!(permits.available().await.unwrap(), 2);
}
