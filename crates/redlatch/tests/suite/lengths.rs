//! Holds of one owner that are to last for different times: for how long the server keeps the lock.

use std::future::IntoFuture;

use redlatch::{AnyGuard, Lease, Owner, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy, RequestLog},
    server::RedisServer,
};

use crate::{
    fixture::{SOON, ms, quiet, soon},
    sentinel_fakes::until,
};

/// What renewals have asked for, in ms; looks are left out.
fn renewed_for(log: &RequestLog) -> Vec<u64> {
    let number = |arg: &[u8]| std::str::from_utf8(arg).ok()?.parse::<u64>().ok();
    let asked = log
        .requests()
        .filter(|request| request.args.get(1).is_some_and(|sha1| *sha1 == scripts::RENEW.sha1().as_bytes()));
    let leases = asked.filter_map(|request| {
        let keys = number(request.args.get(2)?)? as usize;
        number(request.args.get(3 + keys + 1)?)
    });
    leases.filter(|lease_ms| *lease_ms > 0).collect()
}

/// It was renewed for an hour for as long as the outer hold lasted, so a crash of its process kept the lock for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_re_entry_that_was_given_back_makes_no_renewal_longer() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = quiet().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let (lock, owner) = (client.lock("x"), client.owner());
    let hold = |lease_ms| {
        let acquire = lock.acquire().owner(&owner).lease(Lease::RenewedEvery(ms(lease_ms)));
        async move { soon("the hold", acquire.into_future()).await.unwrap().unwrap() }
    };
    let outer = hold(6_000).await;
    let inner = hold(12_000).await;
    soon("the end of the inner hold", inner.unlock()).await.unwrap();
    proxy.clear_log();
    proxy
        .wait_for(2 * SOON, |log| renewed_for(log).iter().any(|lease_ms| [6_000, 12_000].contains(lease_ms)))
        .await
        .unwrap();
    let asked = proxy.with_log(renewed_for);
    // Until what the inner one was promised is over, no more than what is left of that is asked for.
    assert!(asked.iter().all(|lease_ms| *lease_ms < 12_000), "{asked:?}");
    assert!(outer.is_valid(), "{:?}", outer.loss());
}

/// The server kept the fixed hold for the whole lease once more, and its guard ended when its own was over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_hold_lasts_no_longer_when_a_re_entry_is_given_back() {
    let server = RedisServer::start().unwrap();
    let client = quiet().url(server.url()).connect().await.unwrap();
    let fixed = Lease::Fixed(ms(60_000));
    let both = client.read_write_lock("write");
    let reads = client.read_write_lock("read");
    let holds = [
        ("plain", client.lock("plain").acquire().lease(fixed).await.unwrap().unwrap()),
        ("fair", client.fair_lock("fair").acquire().lease(fixed).await.unwrap().unwrap()),
        ("write", both.write().acquire().lease(fixed).await.unwrap().unwrap().into_guard()),
        ("read", reads.read().acquire().lease(fixed).await.unwrap().unwrap().into_guard()),
    ];
    let ttl = |key| match server.cmd(&["PTTL", key]).unwrap() {
        redis::Value::Int(left) => left,
        other => panic!("{other:?}"),
    };
    let mut longer = Vec::new();
    for (name, outer) in &holds {
        let inner = outer.reenter().await.unwrap();
        until("some time passes", || ttl(name) < 59_900).await;
        let before = ttl(name);
        inner.unlock().await.unwrap();
        let after = ttl(name);
        longer.extend(
            (after > before).then(|| format!("{name}: it had {before} ms left, and has {after} ms now")),
        );
        assert!(outer.is_valid(), "{:?}", outer.loss());
    }
    assert!(longer.is_empty(), "{longer:?}");
}

/// A renewal for the longer lease was taken for an extension, because that hold had gone when it was answered: the late answer counted
/// down what another process had taken under the owner meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_for_a_longer_hold_that_has_gone_counts_nothing_down() {
    // As a text among the arguments it is the longer lease and nothing else.
    const LONGER: u64 = 3_333;
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = quiet().url(proxy.url()).response_timeout(2 * SOON).connect().await.unwrap();
    let other = quiet().url(server.url()).connect().await.unwrap();
    let (lock, owner) = (client.lock("x"), client.owner());
    let acquire =
        |lease_ms| lock.acquire().owner(&owner).lease(Lease::RenewedEvery(ms(lease_ms))).into_future();
    let outer = soon("the hold", acquire(900)).await.unwrap().unwrap();
    let inner = soon("the hold", acquire(LONGER)).await.unwrap().unwrap();
    // The other process has it as text.
    let text = owner.to_text();
    let late = Gate::new();
    let longer = Match::script().arg_contains(LONGER.to_string()).nth(1);
    let renewal = proxy.rule(longer, Action::HoldReplyUntilReleased(late.clone()));
    until("a renewal for the longer lease", || proxy.fired(renewal) > 0).await;
    proxy.rule(Match::script().arg_contains(scripts::RENEW.sha1()), Action::DropRequest);
    // It goes on the same connection, which answers in order.
    let going = tokio::spawn(inner.unlock());
    soon("the end of the other one", outer.lost()).await;
    let is_gone = || server.cmd(&["EXISTS", "x"]).unwrap() == redis::Value::Int(0);
    until("the end on the server", is_gone).await;
    let theirs = other.lock("x").acquire().owner(&text.parse::<Owner>().unwrap()).await.unwrap().unwrap();
    late.release();
    drop(soon("the end of the longer one", going).await.unwrap());
    until("quiet, or the end of theirs", || client.stats().background_jobs == 0 || is_gone()).await;
    let third = quiet().url(server.url()).connect().await.unwrap();
    let second = third.lock("x").try_lock().await.unwrap();
    assert!(theirs.is_valid() && second.is_none(), "two valid holders: {:?}", theirs.loss());
}
