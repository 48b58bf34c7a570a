//! What happens to permits of a rate limiter when things break.

use redlatch::{Client, ErrorKind, Rate, scripts};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{ms, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_grant_was_not_heard_of_are_given_back() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(400)).connect().await.unwrap();
    let direct = Client::connect(&server.url()).await.unwrap();
    // The first call teaches the server the script, so that the one that is hit is the one that takes.
    let warm = client.rate_limiter("warm");
    warm.set(Rate::per(1, ms(1))).await.unwrap();
    warm.acquire(1).await.unwrap();
    for (n, action) in
        [Action::CloseAfterRequest, Action::DropReply, Action::CloseBeforeRequest].into_iter().enumerate()
    {
        for wait in ["acquire", "try", "short"] {
            let name = format!("lost-{n}-{wait}");
            let (limiter, seen) = (client.rate_limiter(name.as_str()), direct.rate_limiter(name.as_str()));
            seen.set(Rate::per(3, ms(3_600_000))).await.unwrap();
            let rule = proxy.rule(Match::script().key_contains(&name).nth(1), action.clone());
            let outcome = match wait {
                "acquire" => soon("an answer", limiter.acquire(2)).await,
                "try" => soon("an answer", limiter.try_acquire(2)).await.map(drop),
                _ => soon("an answer", limiter.acquire_for(2, ms(150))).await.map(drop),
            };
            let error = outcome.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable),
                "{action:?} {wait}: {error}"
            );
            assert_eq!(proxy.fired(rule), 1, "the fault was there");
            proxy.clear_rules();
            proxy.heal().unwrap();
            soon("the permits", async {
                while client.stats().background_jobs > 0 || seen.available().await.unwrap() != 3 {
                    tokio::time::sleep(ms(10)).await;
                }
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_rides_out_a_server_that_is_away() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    let limiter = client.rate_limiter("away");
    limiter.set(Rate::per(1, ms(500))).await.unwrap();
    limiter.acquire(1).await.unwrap();
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(1).await });
    tokio::time::sleep(ms(50)).await;
    proxy.refuse_new().unwrap();
    proxy.reset_all();
    tokio::time::sleep(ms(700)).await;
    assert!(!waiter.is_finished());
    proxy.heal().unwrap();
    soon("the grant", waiter).await.unwrap().unwrap();
}

/// What is given back is named by its grant, so it does nothing at a server that has never counted that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_the_server_has_lost_gives_no_other_permit_back() {
    let server = tokio::task::block_in_place(|| RedisServer::start().unwrap());
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    let limiter = client.rate_limiter("lost");
    let rate = Rate::per(2, ms(3_600_000));
    limiter.set(rate).await.unwrap();
    limiter.acquire(1).await.unwrap();
    let lost = Match::script().arg_contains(scripts::RATE_TAKE.sha1()).nth(1);
    let lost = proxy.rule(lost, Action::CloseAfterRequest);
    let giving = Match::script().arg_contains(scripts::RATE_RELEASE.sha1());
    let giving = proxy.rule(giving, Action::CloseBeforeRequest);
    soon("an answer", limiter.acquire(1)).await.unwrap_err();
    soon("a try to give back", async {
        while proxy.fired(giving) == 0 {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    assert_eq!(proxy.fired(lost), 1);
    proxy.refuse_new().unwrap();
    tokio::task::block_in_place(|| server.restart_empty().unwrap());
    let direct = Client::connect(&server.url()).await.unwrap().rate_limiter("lost");
    direct.set(rate).await.unwrap();
    direct.acquire(2).await.unwrap();
    proxy.clear_rules();
    proxy.heal().unwrap();
    soon("the end of the giving back", async {
        while limiter.available().await.is_err() || client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    assert_eq!(direct.available().await.unwrap(), 0);
}
