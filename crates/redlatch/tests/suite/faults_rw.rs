//! Faults under the read-write lock: replies that are lost, and holders that are cut off.

use redlatch::{LossReason, Unlocked, scripts, scripts::Script};
use redlatch_testkit::proxy::{Action, Match, Scope};

use crate::{
    faults::{Rig, nothing_left, rig},
    fixture::{LATE, awake, ms, soon},
};

impl Rig {
    /// The reply of the next call of a script about a lock is lost. Late looks for earlier locks go on in the background, with the same
    /// scripts.
    fn lose(&self, strict: bool, script: &Script, name: &str, action: Action) -> impl Fn(&Rig) {
        let calls = Match::script().arg_contains(sha1(strict, script)).key_contains(name);
        let rule = self.proxy.rule(calls.nth(1), action);
        move |rig| assert_eq!(rig.proxy.fired(rule), 1, "the fault was there")
    }

    /// The holds that the server knows of, by owner field.
    async fn holds(&self, name: &str) -> Vec<(String, i64)> {
        let state = self.direct.inspect(name).await.unwrap();
        let mut holds: Vec<_> =
            state.holders.into_iter().map(|holder| (holder.owner, holder.holds)).collect();
        holds.sort();
        // Without the client, which is the same for all.
        holds.into_iter().map(|(owner, holds)| (owner[37..].to_owned(), holds)).collect()
    }
}

/// By what the server knows a script, or the form of it that has its keys declared.
fn sha1(strict: bool, script: &Script) -> String {
    // The one that touches no timeout key has one form only.
    if !strict || script.name() == "write_enter" {
        return script.sha1().to_owned();
    }
    let text = format!("{}{}", include_str!("../../src/scripts/declared.lua"), script.source());
    sha1_smol::Sha1::from(text).hexdigest()
}

/// All scripts are known to the server, so that each call is one command. A strict one seems to be refusing a key.
async fn warm(strict: bool) -> Rig {
    let rig = rig(ms(30_000)).await;
    let lock = rig.client.read_write_lock("warm");
    if strict {
        let refusal = b"-ERR script tried accessing undeclared key 'x'\r\n".to_vec();
        let first = rig.lose(false, &scripts::READ_ACQUIRE, "warm", Action::ReplaceReply(refusal));
        lock.read().lock().await.unwrap().unlock().await.unwrap();
        first(&rig);
    }
    let write = lock.write().lock().await.unwrap();
    let (again, read) = (write.reenter().await.unwrap(), write.read().await.unwrap());
    let twice = read.reenter().await.unwrap();
    again.unlock().await.unwrap();
    let down = write.downgrade().await.unwrap();
    for guard in [read, twice, down] {
        guard.unlock().await.unwrap();
    }
    lock.write().lock().await.unwrap().unlock().await.unwrap();
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_of_reading_never_count_too_few() {
    lost_replies_of_reading(warm(false).await, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_of_reading_never_count_too_few_where_keys_have_to_be_declared() {
    lost_replies_of_reading(warm(true).await, true).await;
}

async fn lost_replies_of_reading(rig: Rig, strict: bool) {
    for (n, action) in [Action::CloseAfterRequest, Action::DropReply].into_iter().enumerate() {
        let name = format!("read-{n}");
        let lock = rig.client.read_write_lock(name.as_str());
        let fired = rig.lose(strict, &scripts::READ_ACQUIRE, &name, action.clone());
        let guard = soon("the grant", lock.read().lock()).await.unwrap();
        fired(&rig);
        let number = rig.holds(&name).await[0].0.clone();
        assert_eq!(rig.holds(&name).await, [(number.clone(), 1)]);
        let fired = rig.lose(strict, &scripts::READ_ENTER, &name, Action::CloseAfterRequest);
        let inner = soon("the re-entry", guard.reenter()).await.unwrap();
        fired(&rig);
        // Each try has counted.
        assert_eq!(rig.holds(&name).await, [(number.clone(), 3)]);
        // What was not answered is not counted down, because a repeat could not be told.
        assert_eq!(soon("the partial release", inner.unlock()).await.unwrap(), Unlocked::StillHeld(1));
        assert_eq!(rig.holds(&name).await, [(number.clone(), 3)]);
        let fired = rig.lose(strict, &scripts::READ_RELEASE, &name, action);
        let outcome = soon("the release", guard.unlock()).await.unwrap();
        assert_eq!(outcome, Unlocked::Released, "a repeat that finds nothing is no loss");
        fired(&rig);
        nothing_left(&rig.server, &name).await;
        rig.proxy.clear_rules();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_of_writing_and_downgrading_keep_the_count_exact() {
    lost_replies_of_writing_and_downgrading(warm(false).await, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_of_writing_and_downgrading_keep_the_count_exact_where_keys_have_to_be_declared() {
    lost_replies_of_writing_and_downgrading(warm(true).await, true).await;
}

async fn lost_replies_of_writing_and_downgrading(rig: Rig, strict: bool) {
    for (n, action) in [Action::CloseAfterRequest, Action::DropReply].into_iter().enumerate() {
        let name = format!("write-{n}");
        let lock = rig.client.read_write_lock(name.as_str());
        let fired = rig.lose(strict, &scripts::WRITE_ACQUIRE, &name, action.clone());
        let write = soon("the grant", lock.write().lock()).await.unwrap();
        fired(&rig);
        let field = rig.holds(&name).await[0].0.clone();
        let number = field.strip_suffix(":write").unwrap().to_owned();
        let again = soon("the re-entry", write.reenter()).await.unwrap();
        assert_eq!(rig.holds(&name).await, [(field.clone(), 2)]);
        let fired = rig.lose(strict, &scripts::READ_ACQUIRE, &name, action.clone());
        let first = soon("the downgrade of one of two", again.downgrade()).await.unwrap();
        fired(&rig);
        assert_eq!(rig.holds(&name).await, [(number.clone(), 1), (field, 1)]);
        let fired = rig.lose(strict, &scripts::WRITE_RELEASE, &name, action.clone());
        let second = soon("the downgrade of the last", write.downgrade()).await.unwrap();
        fired(&rig);
        assert_eq!(rig.holds(&name).await, [(number, 2)]);
        assert_eq!(first.unlock().await.unwrap(), Unlocked::StillHeld(1));
        assert_eq!(second.unlock().await.unwrap(), Unlocked::Released);
        let write = lock.write().lock().await.unwrap();
        let fired = rig.lose(strict, &scripts::WRITE_RELEASE, &name, action);
        assert_eq!(soon("the release", write.unlock()).await.unwrap(), Unlocked::Released);
        fired(&rig);
        nothing_left(&rig.server, &name).await;
        rig.proxy.clear_rules();
    }
}

/// The server may count a write hold too many. Beside the read hold it would have kept all other readers out, renewed with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_write_hold_of_a_shared_owner_whose_count_is_in_doubt_is_not_downgraded() {
    for lost in [Action::CloseBeforeRequest, Action::CloseAfterRequest] {
        let rig = warm(false).await;
        let lock = rig.client.read_write_lock("doubt");
        let write = lock.write().lock().await.unwrap();
        let fired = rig.lose(false, &scripts::WRITE_ENTER, "doubt", lost);
        let again = soon("the re-entry", write.reenter()).await.unwrap();
        fired(&rig);
        let read = soon("the downgrade of one of two", again.downgrade()).await.unwrap();
        assert!(write.is_valid() && redlatch::AnyGuard::as_guard(&write).hold_count() == 1);
        let _handed_out = redlatch::AnyGuard::as_guard(&write).owner().to_text();
        read.unlock().await.unwrap();
        let error = soon("the downgrade of the last", write.downgrade()).await.unwrap_err();
        assert_eq!(error.kind(), redlatch::ErrorKind::OwnerInDoubt, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_never_gets_an_answer_leaves_nothing() {
    let rig = warm(false).await;
    for (n, nested) in [false, true].into_iter().enumerate() {
        let name = format!("dark-{n}");
        let lock = rig.client.read_write_lock(name.as_str());
        let write = lock.write().lock().await.unwrap();
        let beside = if nested { Some(write.read().await.unwrap()) } else { None };
        let asked = if nested { &scripts::READ_ENTER } else { &scripts::READ_ACQUIRE };
        rig.proxy.rule(Match::script().arg_contains(asked.sha1()), Action::CloseAfterRequest);
        let outcome = soon("an end", write.downgrade()).await;
        assert!(outcome.is_err(), "nobody could know that it worked");
        rig.proxy.clear_rules();
        rig.proxy.heal().unwrap();
        if let Some(beside) = beside {
            soon("the end of the write hold", async { while lock.write().is_locked().await.unwrap() {} })
                .await;
            // What may have been taken unseen goes with it.
            assert!(beside.is_valid());
            assert_eq!(beside.unlock().await.unwrap(), Unlocked::Released);
        }
        nothing_left(&rig.server, &name).await;
        soon("quiet", async {
            while rig.client.stats().names > 0 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_are_cut_off_are_told_in_time_and_block_nobody_for_longer() {
    let rig = rig(ms(900)).await;
    let lock = rig.client.read_write_lock("cut");
    let readers = [lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap()];
    let direct = rig.direct.read_write_lock("cut");
    rig.proxy.blackhole(Scope::Both);
    let start = std::time::Instant::now();
    let writer = tokio::spawn(async move { direct.write().lock().await.unwrap() });
    for reader in &readers {
        assert_eq!(soon("the notice", reader.lost()).await, LossReason::Expired);
    }
    assert!(awake(start) <= ms(900) + LATE, "{:?}", start.elapsed());
    let write = soon("the writer", writer).await.unwrap();
    assert!(readers.iter().all(|reader| !reader.is_valid()), "never both");
    rig.proxy.heal().unwrap();
    write.unlock().await.unwrap();
    nothing_left(&rig.server, "cut").await;
}

/// The read hold has the hash renewed, and the write hold in it: without an end to its own time it would keep all others out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_hold_beside_a_renewed_read_hold_is_released_however_long_the_release_cannot_be_sent() {
    let rig = rig(ms(600)).await;
    let lock = rig.client.read_write_lock("beside");
    let write = lock.write().lock().await.unwrap();
    let read = write.read().await.unwrap();
    let releases = Match::script().arg_contains(scripts::WRITE_RELEASE.sha1()).key_contains("beside");
    rig.proxy.rule(releases, Action::CloseBeforeRequest);
    let mut release = std::pin::pin!(write.unlock());
    // Three times the lease.
    let early = tokio::time::timeout(ms(1_800), &mut release).await;
    assert!(early.is_err(), "{early:?}");
    assert!(read.is_valid(), "it is renewed all the while");
    rig.proxy.clear_rules();
    let released = soon("the release", release).await;
    assert!(matches!(released, Ok(Unlocked::Released | Unlocked::AlreadyLost(_))), "{released:?}");
    soon("another reader", rig.direct.read_write_lock("beside").read().lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    read.unlock().await.unwrap();
    nothing_left(&rig.server, "beside").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_hold_that_was_lost_beside_a_renewed_read_hold_is_cleared_away_however_late() {
    let rig = rig(ms(2_000)).await;
    let lock = rig.client.read_write_lock("lost");
    let owner = rig.client.owner();
    let fixed = redlatch::Lease::Fixed(ms(600));
    let write = lock.write().acquire().owner(&owner).lease(fixed).await.unwrap().unwrap();
    let read = lock.read().acquire().owner(&owner).await.unwrap().unwrap();
    let releases = Match::script().arg_contains(scripts::WRITE_RELEASE.sha1()).key_contains("lost");
    rig.proxy.rule(releases, Action::CloseBeforeRequest);
    soon("the loss", write.lost()).await;
    drop(write);
    // Three times the lease of the write hold.
    tokio::time::sleep(ms(1_800)).await;
    assert!(read.is_valid(), "it is renewed all the while");
    rig.proxy.clear_rules();
    soon("another reader", rig.direct.read_write_lock("lost").read().lock())
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    read.unlock().await.unwrap();
    nothing_left(&rig.server, "lost").await;
}
