//! Leases and what comes late: no late request makes a lease shorter, and no hold that has said that it is over comes back.

use std::sync::Arc;

use redlatch::{Client, Clock, Lease, ManualClock, QuorumLock, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{ms, soon};

struct Rig {
    server: RedisServer,
    proxy: Proxy,
    client: Client,
    other: Client,
}

/// The first request of the script is lost.
async fn rig_that_loses(script: &scripts::Script) -> Rig {
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    proxy.rule(Match::script().arg_contains(script.sha1()).nth(1), Action::CloseBeforeRequest);
    let client = Client::builder().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    Rig { server, proxy, client, other }
}

impl Rig {
    /// Sends what was lost after all, as a network may that had only delayed it.
    fn arrives_late(&self, script: &scripts::Script) {
        let args = self.proxy.with_log(|log| {
            let mut asked = log
                .requests()
                .filter(|request| request.args.iter().any(|arg| arg == script.sha1().as_bytes()));
            let first = asked.next().expect("it was sent").args.clone();
            assert!(asked.next().is_some(), "it was asked for again");
            first
        });
        self.server.cmd(&args).unwrap();
    }
}

/// It set its own lease once more for a hold that had been extended since, which the server then ended long before its guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_acquire_shortens_no_lease() {
    let lease = Lease::Fixed(ms(10_000));
    for kind in ["plain", "fair"] {
        let asked = if kind == "fair" { &scripts::FAIR_ACQUIRE } else { &scripts::ACQUIRE };
        let rig = rig_that_loses(asked).await;
        let guard = soon("the hold", async {
            let wait = Wait::Forever;
            match kind {
                "fair" => rig.client.fair_lock("x").acquire().lease(lease).wait(wait).await,
                _ => rig.client.lock("x").acquire().lease(lease).wait(wait).await,
            }
        })
        .await;
        let guard = guard.unwrap().expect("it waits");
        soon("the extension", guard.extend(ms(3_600_000))).await.unwrap();
        rig.arrives_late(asked);
        assert!(guard.is_valid() && guard.remaining() > ms(600_000), "{kind}: {:?}", guard.loss());
        let redis::Value::Int(left) = rig.server.cmd(&["PTTL", "x"]).unwrap() else { panic!("{kind}") };
        assert!(
            left > 600_000,
            "{kind}: the guard is valid for {:?}, the server ends it in {left} ms",
            guard.remaining()
        );
        soon("the end", guard.unlock()).await.unwrap();
    }
}

/// The same for a permit, of which there was one and then two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_for_a_permit_shortens_no_lease() {
    let rig = rig_that_loses(&scripts::PERMIT_TAKE).await;
    let permits = rig.client.permit_semaphore("s");
    permits.set_if_absent(1).await.unwrap();
    let request = permits.request().lease(Lease::Fixed(ms(10_000))).wait(Wait::Forever);
    let guard = soon("the permit", async { request.await.unwrap().unwrap() }).await;
    soon("the extension", guard.extend(ms(3_600_000))).await.unwrap();
    rig.arrives_late(&scripts::PERMIT_TAKE);
    assert!(guard.is_valid() && guard.remaining() > ms(600_000), "{:?}", guard.loss());
    let left = rig.other.permit_semaphore("s").lease_of(guard.id()).await.unwrap();
    let redlatch::PermitLease::Ends(left) = left.expect("it is taken") else { panic!() };
    assert!(
        left > ms(600_000),
        "the guard is valid for {:?}, the server ends it in {left:?}",
        guard.remaining()
    );
}

/// It was not valid, and a renewal that came after its deadline made it valid again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_hold_that_was_over_does_not_come_back() {
    let clock = ManualClock::new(ms(1_000_000_000));
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let members = |to: usize| {
        let url = format!("memory:quorum-that-was-over-{to}-{}", std::process::id());
        Client::builder().url(url).clock(shared.clone()).watchdog_lease(ms(1_000)).connect_lazy().unwrap()
    };
    let clients: Vec<Client> = (0..3).map(members).collect();
    let lock = QuorumLock::new(clients.iter().map(|client| client.lock("q"))).unwrap();
    let guard = soon("the hold", lock.lock()).await.unwrap();
    clock.advance(guard.remaining());
    assert!(!guard.is_valid(), "its time is up");
    let told = guard.check().map_err(|error| error.to_string());
    assert!(told.is_err());
    for _ in 0..30 {
        tokio::time::sleep(ms(50)).await;
        assert!(!guard.is_valid(), "it is valid again after {told:?}");
    }
}
