//! What the program gives the library to call may panic or take long. That costs no lock, and no loss goes untold.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use redlatch::{Client, ErrorKind, Lease, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy, Scope},
    server::RedisServer,
};
use tokio::runtime::Handle;

use crate::{
    fixture::{ms, renewed, soon, told},
    watched::until_watched,
};

/// A log that cannot be written.
struct Broken;

impl tracing::Subscriber for Broken {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redlatch") && *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        assert!(std::thread::panicking(), "the log cannot be written");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The background work told of its panic in the same log, and ended with that.
#[tokio::test]
async fn a_log_that_panics_costs_no_lock_and_no_loss_goes_untold() {
    let _broken = tracing::subscriber::set_default(Broken);
    // It works on this thread, which has the log.
    let client = Client::builder()
        .url("memory:")
        .watchdog_lease(ms(900))
        .background_on(Handle::current())
        .connect()
        .await
        .unwrap();
    let short = client.lock("short").lock_with_lease(ms(200)).await.unwrap();
    let long = client.lock("long").lock().await.unwrap();
    soon("the loss", short.lost()).await;
    renewed(4, async || {
        assert!(long.is_valid());
        client.lock("long").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    soon("the next hold", client.lock("short").lock()).await.unwrap().unlock().await.unwrap();
    let later = client.lock("later").lock_with_lease(ms(200)).await.unwrap();
    soon("its loss", later.lost()).await;
}

/// The look at all of them ended with the log of the first loss, and the others were to be told by their renewals.
#[tokio::test]
async fn a_log_that_panics_at_one_loss_leaves_no_other_untold_until_its_renewal() {
    let server = RedisServer::start().unwrap();
    let _broken = tracing::subscriber::set_default(Broken);
    let builder = Client::builder().url(server.url()).watchdog_lease(ms(600_000));
    let client = builder.background_on(Handle::current()).connect().await.unwrap();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    until_watched(&[&server], 3).await;
    server.cmd(&["FLUSHALL"]).unwrap();
    for guard in &guards {
        soon("the loss", guard.lost()).await;
    }
}

/// The background thread was held up, and a hold that was over had not been told. A grant that had been asked for before that hold was last seen
/// was given up for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_not_given_up_for_a_hold_that_is_over_and_has_not_been_told() {
    struct Slow;
    impl Wake for Slow {
        fn wake(self: Arc<Self>) {
            std::thread::sleep(ms(500));
        }
    }
    for kind in ["fair", "write"] {
        let server = RedisServer::start().unwrap();
        for script in scripts::ALL {
            server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
        }
        let proxy = Proxy::start(&server.url()).unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        let beside = client.lock("y").lock_with_lease(ms(650)).await.unwrap();
        let mut lost = Box::pin(beside.lost());
        let waker = Waker::from(Arc::new(Slow));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let first = client.fair_lock("x").lock_with_lease(ms(700)).await.unwrap();
        let (script, nth) =
            if kind == "fair" { (&scripts::FAIR_ACQUIRE, 2) } else { (&scripts::WRITE_ACQUIRE, 1) };
        proxy.rule(Match::script().arg_contains(script.sha1()).nth(nth), Action::DelayRequest(ms(400)));
        tokio::time::sleep(ms(440)).await;
        let (wait, lease) = (Wait::AtMost(ms(10_000)), Lease::Fixed(ms(60_000)));
        let both = client.read_write_lock("x");
        let next = match kind {
            "fair" => client.fair_lock("x").acquire().wait(wait).lease(lease).await.unwrap(),
            _ => {
                let granted = both.write().acquire().wait(wait).lease(lease).await.unwrap();
                granted.map(redlatch::AnyGuard::into_guard)
            }
        };
        let next = next.expect("the first one has ended");
        assert!(next.is_valid(), "{kind}: {:?}", next.loss());
        assert!(!first.is_valid());
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the program's own fault");
    }
}

/// Polls it as a task would whose waker panics.
fn poll_once<F: Future + ?Sized>(work: Pin<&mut F>) {
    assert!(work.poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
}

/// Those that waited for the same event were dropped from its list with the waker that panicked, and waited for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_keeps_no_other_task_from_being_told_of_a_loss() {
    for lease in [ms(700), ms(60_000)] {
        let client = Client::connect("memory:").await.unwrap();
        let first = client.lock("x").lock_with_lease(lease).await.unwrap();
        let second = Arc::new(first.reenter().await.unwrap());
        let mut panics = Box::pin(first.lost());
        poll_once(panics.as_mut());
        let (token, told) = (first.loss_token(), tokio::spawn(first.lost()));
        let works = second.clone();
        let protected = tokio::spawn(async move { works.protect(std::future::pending::<()>()).await });
        tokio::time::sleep(ms(100)).await;
        if lease > ms(1_000) {
            assert!(client.lock("x").force_unlock().await.unwrap());
        }
        soon("the notice", told).await.unwrap();
        soon("the token", token.cancelled()).await;
        assert_eq!(
            soon("the end of the work", protected).await.unwrap().unwrap_err().kind(),
            ErrorKind::Lost
        );
    }
}

/// The same, of the turns of one owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_keeps_no_other_task_from_its_owners_turn() {
    let client = Client::connect("memory:").await.unwrap();
    let (owner, lock) = (client.owner(), client.lock("x"));
    let held = lock.lock().await.unwrap();
    let attempt = || {
        let (lock, owner) = (lock.clone(), owner.clone());
        async move { lock.acquire().wait(Wait::Forever).owner(&owner).await.unwrap().expect("a wait without end") }
    };
    let first = tokio::spawn(attempt());
    tokio::time::sleep(ms(100)).await;
    let mut panics = Box::pin(attempt());
    poll_once(panics.as_mut());
    let next = tokio::spawn(attempt());
    tokio::time::sleep(ms(100)).await;
    held.unlock().await.unwrap();
    let _first = soon("the first one's turn", first).await.unwrap();
    let _next = soon("the next one's turn", next).await.unwrap();
}

/// It ended the shutdown, which gave nothing back, and those that waited were told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_does_not_end_a_shutdown() {
    let store = "memory:a_waker_that_panics_does_not_end_a_shutdown";
    let (client, other) = (Client::connect(store).await.unwrap(), Client::connect(store).await.unwrap());
    let held = client.lock("held").lock().await.unwrap();
    let _theirs = other.lock("theirs").lock().await.unwrap();
    let lock = client.lock("theirs");
    let mut panics = Box::pin(lock.lock());
    for _ in 0..3 {
        poll_once(panics.as_mut());
        tokio::time::sleep(ms(30)).await;
    }
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    tokio::time::sleep(ms(200)).await;
    let report = soon("the shutdown", client.clone().shutdown(ms(5_000))).await;
    assert_eq!((report.released, report.failed.len()), (1, 0), "{report:?}");
    assert!(!held.is_valid() && !other.lock("held").is_locked().await.unwrap());
    for waiter in waiting {
        assert_eq!(soon("the end of a wait", waiter).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}

/// Two of them ended the process, one kept others waiting for as long as connecting may take, and a shutdown panicked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakers_that_panic_keep_no_other_task_from_a_connection_that_is_being_made() {
    let server = RedisServer::start().unwrap();
    let way = Proxy::start(&server.url()).unwrap();
    way.stall(Scope::Both);
    let client = Client::builder().url(way.url()).connect_timeout(ms(20_000)).connect_lazy().unwrap();
    for round in ["first", "second"] {
        let waits = |name: String| {
            let lock = client.lock(name);
            async move { lock.lock().await }
        };
        let mut panics = [Box::pin(waits(format!("{round}-a"))), Box::pin(waits(format!("{round}-b")))];
        let mut healthy = Vec::new();
        for (at, panics) in panics.iter_mut().enumerate() {
            healthy.push(tokio::spawn(waits(format!("{round}-{at}-before"))));
            tokio::time::sleep(ms(50)).await;
            poll_once(panics.as_mut());
            healthy.push(tokio::spawn(waits(format!("{round}-{at}-after"))));
        }
        tokio::time::sleep(ms(100)).await;
        if round == "first" {
            way.heal().unwrap();
            for waiting in healthy {
                soon("a grant", waiting).await.unwrap().unwrap().unlock().await.unwrap();
            }
            way.stall(Scope::Both);
            way.reset_all();
            tokio::time::sleep(ms(100)).await;
            continue;
        }
        soon("the shutdown", client.clone().shutdown(ms(500))).await;
        for waiting in healthy {
            assert_eq!(told("the end", waiting).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
    }
}
