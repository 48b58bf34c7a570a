//! A write acquire of an owner whose read hold is over here, while the server still counts it.

use std::future::IntoFuture;

use redlatch::{AnyGuard, Client, ErrorKind, Guard, Lease, Owner, Unlocked, Wait, scripts};
use redlatch_testkit::proxy::{Action, Gate};

use super::{Rig, begun, rig, script, text};
use crate::fixture::{SOON, ms, soon};

async fn reads(client: &Client, owner: &Owner, lease: Lease) -> Guard {
    let lock = client.read_write_lock("x");
    lock.read().acquire().owner(owner).lease(lease).await.unwrap().expect("it is free").into_guard()
}

/// Has the server keep a read hold for longer than its reader knows.
fn keeps_reading(rig: &Rig, owner: &Owner, ms: &str) {
    let timeout = format!("{{x}}:{}:rwlock_timeout:1", text(owner));
    for key in ["x", &timeout] {
        assert_eq!(rig.server.cmd(&["PEXPIRE", key, ms]).unwrap(), redis::Value::Int(1), "{key}");
    }
}

/// In the moments between the two ends it was refused, though the owner held nothing here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_read_hold_is_over_waits_for_the_servers_end_of_it_before_it_writes() {
    for shown in [false, true] {
        let rig = rig().await;
        let (both, owner) = (rig.client.read_write_lock("x"), rig.client.owner());
        let reading = reads(&rig.client, &owner, Lease::Fixed(ms(3_000))).await;
        if shown {
            let _text = owner.to_text();
        }
        keeps_reading(&rig, &owner, "600000");
        soon("the end of reading", reading.lost()).await;
        if shown {
            // What is left of another process's owner is left alone; what is left of this one's is removed meanwhile.
            keeps_reading(&rig, &owner, "3000");
        }
        let writing = both.write().acquire().owner(&owner).wait(Wait::Forever).into_future();
        let writing = soon("the write hold", writing).await;
        let writing = writing.unwrap_or_else(|error| panic!("shown: {shown}: {error}")).expect("it waits");
        assert!(writing.is_valid());
        writing.unlock().await.unwrap();
    }
}

/// Another task of the process waited to write, and the owner's stood in line behind it, where nobody refused it: the release of its read hold waited for it until
/// the response timeout, and with it all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_reads_here_is_refused_at_once_though_others_wait_to_write() {
    let rig = rig().await;
    let (both, owner) = (rig.client.read_write_lock("x"), rig.client.owner());
    let reading = reads(&rig.client, &owner, Lease::Renewed).await;
    let asks = rig.proxy.rule(script(&scripts::WRITE_ACQUIRE), Action::DelayRequest(ms(1)));
    let first = tokio::spawn({
        let both = both.clone();
        async move { both.write().lock().await }
    });
    rig.proxy.wait_fired(asks, 1, SOON).await.unwrap();
    for wait in [Wait::No, Wait::Forever] {
        let writing = both.write().acquire().owner(&owner).wait(wait).into_future();
        let error = soon("a refusal", writing).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    }
    soon("the release", reading.unlock()).await.unwrap();
    soon("the first one's turn", first).await.unwrap().unwrap().unlock().await.unwrap();
}

/// The server had refused the write hold because the owner read, and the read hold was given back before the answer came. The task that asked went on asking,
/// the release waited for it, and the lock was nobody's until the response timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_is_given_back_while_its_owner_asks_to_write_waits_for_nothing() {
    for wait in [Wait::Forever, Wait::No] {
        let rig = rig().await;
        let (both, owner) = (rig.client.read_write_lock("x"), rig.client.owner());
        // No guard here says that the owner reads.
        reads(&rig.client, &owner, Lease::Fixed(ms(600_000))).await.detach();
        let gate = Gate::new();
        let refused = rig
            .proxy
            .rule(script(&scripts::WRITE_ACQUIRE).nth(1), Action::HoldReplyUntilReleased(gate.clone()));
        let writing = begun(both.write().acquire().owner(&owner).wait(wait).into_future());
        rig.proxy.wait_fired(refused, 1, SOON).await.unwrap();
        let readers = both.read();
        let leaving = begun(readers.release(&owner));
        gate.release();
        let both = async { tokio::join!(leaving, writing) };
        let (left, writing) = soon("the release and the write hold", both).await;
        assert_eq!(left.unwrap(), Unlocked::Released);
        let writing = writing.unwrap().expect("nobody has it");
        assert!(writing.is_valid());
        writing.unlock().await.unwrap();
    }
}

/// The same without waiting: it is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_read_hold_is_over_finds_the_lock_busy_while_the_server_counts_it() {
    let rig = rig().await;
    let (both, owner) = (rig.client.read_write_lock("x"), rig.client.owner());
    let reading = reads(&rig.client, &owner, Lease::Fixed(ms(1_000))).await;
    let _text = owner.to_text();
    keeps_reading(&rig, &owner, "600000");
    soon("the end of reading", reading.lost()).await;
    assert!(both.write().acquire().owner(&owner).await.unwrap().is_none());
}

/// Its own read hold is no other: that is refused at once, as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_reads_here_is_refused_at_once() {
    let rig = rig().await;
    let (both, owner) = (rig.client.read_write_lock("x"), rig.client.owner());
    let reading = reads(&rig.client, &owner, Lease::Renewed).await;
    for wait in [Wait::No, Wait::Forever] {
        let writing = both.write().acquire().owner(&owner).wait(wait).into_future();
        let error = soon("an answer", writing).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    }
    assert!(reading.is_valid());
}

/// Where the reader is another process, it may be there for longer than what was seen of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_reads_elsewhere_is_refused_when_it_goes_on_reading() {
    let rig = rig().await;
    let owner: Owner = rig.client.owner().to_text().parse().unwrap();
    let reading = reads(&rig.other, &owner, Lease::Fixed(ms(600_000))).await;
    let both = rig.client.read_write_lock("x");
    assert!(both.write().acquire().owner(&owner).await.unwrap().is_none(), "it is busy");
    let asked = rig.proxy.rule(script(&scripts::WRITE_ACQUIRE), Action::DelayRequest(ms(0)));
    let writing = begun(both.write().acquire().owner(&owner).wait(Wait::Forever).into_future());
    let going_on = async {
        rig.proxy.wait_fired(asked, 2, SOON).await.unwrap();
        reading.extend(ms(900_000)).await.unwrap();
    };
    let (writing, ()) = soon("an answer", async { tokio::join!(writing, going_on) }).await;
    let error = writing.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    assert!(reading.is_valid());
}

/// A nested command waited for the end of the outer one's read hold, which waited for the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_of_another_client_that_reads_is_refused_at_once() {
    let rig = rig().await;
    let owner = rig.other.owner();
    let reading = reads(&rig.other, &owner, Lease::Fixed(ms(600_000))).await;
    let handed: Owner = owner.to_text().parse().unwrap();
    let both = rig.client.read_write_lock("x");
    for wait in [Wait::No, Wait::Forever] {
        let writing = both.write().acquire().owner(&handed).wait(wait).into_future();
        let error = soon("an answer", writing).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    }
    assert!(reading.is_valid());
}
