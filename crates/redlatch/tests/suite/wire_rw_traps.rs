//! One test for each trap of the read-write lock (`docs/protocol.md`, read-write lock).

use redlatch::{Client, ErrorKind, Lease, LossReason, Unlocked};
use redlatch_testkit::{assert_keyspace, server::KeyContent};

use crate::{
    fixture::{LATE, RENEWED, awake, ms, patient, renewed, soon, told},
    forms::{Form, in_every_form},
    wire_rw::{hash, near, one, pttl, timeout},
};

in_every_form! {
    trap_g1_a_lock_of_another_kind_is_never_entered,
    trap_r1_entering_a_write_lock_again_does_not_add_leases_up,
    trap_r2_a_read_unlock_keeps_the_lease_of_the_write_hold,
    trap_r3_a_nested_read_lasts_as_long_as_its_writer,
    trap_r3_a_write_hold_whose_time_is_over_does_not_live_on_under_a_longer_read_hold,
    readers_whose_time_is_over_leave_no_fields_behind,
    trap_r4_the_holds_of_one_reader_last_alike_and_go_in_any_order,
    trap_r5_a_reader_whose_time_is_over_is_told_though_others_keep_the_hash,
    trap_r6_a_downgrade_lets_waiting_readers_in_at_once,
    trap_r8_read_and_write_holds_of_one_owner_are_renewed_apart,
    trap_r9_asking_to_write_while_reading_is_refused_at_once,
}

async fn trap_g1_a_lock_of_another_kind_is_never_entered(on: Form) {
    let (server, client) = on.alone().await;
    let guard = client.lock("x").lock().await.unwrap();
    let owner = guard.owner().to_text();
    let lock = client.read_write_lock("x");
    assert_eq!(lock.read().try_lock().await.unwrap_err().kind(), ErrorKind::WrongLockKind);
    assert_eq!(lock.write().try_lock().await.unwrap_err().kind(), ErrorKind::WrongLockKind);
    assert_eq!(
        lock.read().lock().await.unwrap_err().kind(),
        ErrorKind::WrongLockKind,
        "waiting would not help"
    );
    for side in [lock.read().force_unlock().await, lock.write().force_unlock().await] {
        assert_eq!(side.unwrap_err().kind(), ErrorKind::WrongLockKind);
    }
    assert_keyspace!(server, tolerance_ms = 1_000, [("x", KeyContent::hash([(owner, "1")]), Some(30_000))]);
    guard.unlock().await.unwrap();
    let read = lock.read().lock().await.unwrap();
    assert_eq!(client.lock("x").try_lock().await.unwrap_err().kind(), ErrorKind::WrongLockKind);
    assert!(read.is_valid());
}

async fn trap_r1_entering_a_write_lock_again_does_not_add_leases_up(on: Form) {
    let (server, client) = on.alone().await;
    let write = client.read_write_lock("x").write().lock_with_lease(ms(30_000)).await.unwrap();
    let _twice = write.reenter().await.unwrap();
    let _thrice = write.reenter().await.unwrap();
    let ttl = pttl(&server, "x");
    assert!(near(ttl, 30_000), "three times 30 s are 30 s: {ttl}");
}

async fn trap_r2_a_read_unlock_keeps_the_lease_of_the_write_hold(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let long = Lease::Fixed(ms(60_000));
    let write = lock.write().acquire().owner(&owner).lease(long).await.unwrap().unwrap();
    let short = || lock.read().acquire().owner(&owner).lease(Lease::Fixed(ms(5_000)));
    let (one, two) = (short().await.unwrap().unwrap(), short().await.unwrap().unwrap());
    one.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000), "{}", pttl(&server, "x"));
    two.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000), "{}", pttl(&server, "x"));
    let alike = write.read().await.unwrap();
    assert_eq!(alike.reenter().await.unwrap().unlock().await.unwrap(), Unlocked::StillHeld(1));
    alike.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000), "{}", pttl(&server, "x"));
    assert!(write.is_valid());
}

async fn trap_r3_a_nested_read_lasts_as_long_as_its_writer(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let write = lock.write().lock_with_lease(ms(7_000)).await.unwrap();
    let read = write.read().await.unwrap();
    assert!(near(pttl(&server, "x"), 7_000), "the lock is not prolonged: {}", pttl(&server, "x"));
    assert!(near(pttl(&server, &timeout(&write.owner().to_text(), 1)), 7_000));
    // A longer read hold by the owner's own wish outlives the write hold, for reading only.
    let owner = write.owner().clone();
    let long = Lease::Fixed(ms(60_000));
    let longer = lock.read().acquire().owner(&owner).lease(long).await.unwrap().unwrap();
    write.unlock().await.unwrap();
    read.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000));
    assert!(longer.is_valid() && lock.read().try_lock().await.unwrap().is_some());
}

async fn trap_r3_a_write_hold_whose_time_is_over_does_not_live_on_under_a_longer_read_hold(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let hold = |lease| Lease::Fixed(ms(lease));
    let write = lock.write().acquire().owner(&owner).lease(hold(400)).await.unwrap().unwrap();
    let read = lock.read().acquire().owner(&owner).lease(hold(20_000)).await.unwrap().unwrap();
    assert_eq!(soon("the end", write.lost()).await, LossReason::Expired);
    soon("another reader", lock.read().lock()).await.unwrap().unlock().await.unwrap();
    assert!(read.is_valid());
    let field = owner.to_text();
    assert_keyspace!(
        server,
        tolerance_ms = 1_500,
        [
            ("x", hash("read", &[(&field, "1")]), Some(20_000)),
            (timeout(&field, 1).as_str(), one(), Some(20_000)),
        ]
    );
}

async fn readers_whose_time_is_over_leave_no_fields_behind(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let stays = lock.read().lock().await.unwrap();
    for _ in 0..20 {
        let short = lock.read().lock_with_lease(ms(60)).await.unwrap();
        assert_eq!(soon("the end", short.lost()).await, LossReason::Expired);
        drop(short);
    }
    soon("the end of the fields", async { while client.inspect("x").await.unwrap().holders.len() > 1 {} })
        .await;
    let owner = stays.owner().to_text();
    assert_keyspace!(
        server,
        tolerance_ms = 10_000,
        [
            ("x", hash("read", &[(&owner, "1")]), Some(30_000)),
            (timeout(&owner, 1).as_str(), one(), Some(30_000)),
        ]
    );
}

async fn trap_r4_the_holds_of_one_reader_last_alike_and_go_in_any_order(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let hold = |lease| lock.read().acquire().owner(&owner).lease(Lease::Fixed(ms(lease)));
    let short = hold(3_000).await.unwrap().unwrap();
    let long = hold(20_000).await.unwrap().unwrap();
    let field = owner.to_text();
    for i in [1, 2] {
        assert!(near(pttl(&server, &timeout(&field, i)), 20_000), "hold {i}");
    }
    long.unlock().await.unwrap();
    // In Redisson the newest key goes, the older one ends, and the lock is deleted under a count of 1.
    tokio::time::sleep(ms(3_200)).await;
    assert!(lock.write().try_lock().await.unwrap().is_none(), "the first hold still reads");
    assert!(short.is_valid() && lock.read().hold_count(&owner).await.unwrap() == 1);
    short.unlock().await.unwrap();
    assert!(lock.write().try_lock().await.unwrap().is_some());
}

async fn trap_r5_a_reader_whose_time_is_over_is_told_though_others_keep_the_hash(on: Form) {
    let (server, client) = on.with(|builder| builder.watchdog_lease(RENEWED)).await;
    let other = Client::connect(&server.url()).await.unwrap();
    let lock = client.read_write_lock("x");
    let stays = other.read_write_lock("x").read().lock().await.unwrap();
    // A hold whose owner nobody knows is released by another script, so its field is looked up on the server.
    let unnamed = lock.read().lock().await.unwrap();
    let state = other.inspect("x").await.unwrap();
    let field = state.holders.iter().find(|holder| holder.owner.starts_with(client.id())).unwrap();
    server.cmd(&["DEL", &timeout(&field.owner, 1)]).unwrap();
    assert_eq!(unnamed.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    assert_eq!(other.inspect("x").await.unwrap().holders.len(), 1, "and its field is gone");
    let (late, told) = (lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap());
    let (late_owner, told_owner) = (late.owner().clone(), told.owner().clone());
    for owner in [&late_owner, &told_owner] {
        server.cmd(&["DEL", &timeout(&owner.to_text(), 1)]).unwrap();
    }
    assert_eq!(lock.read().hold_count(&late_owner).await.unwrap(), 0, "the field alone is no hold");
    assert_eq!(late.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    assert_eq!(soon("the renewal", told.lost()).await, LossReason::Deleted);
    assert!(stays.is_valid());
    soon("the end of the dead fields", async {
        let only = hash("read", &[(&stays.owner().to_text(), "1")]);
        while server.keys_dump().unwrap()[b"x".as_slice()].content != only {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // The same owner may read again, and counts from one.
    let again = lock.read().acquire().owner(&late_owner).await.unwrap().unwrap();
    assert_eq!(lock.read().hold_count(&late_owner).await.unwrap(), 1);
    again.unlock().await.unwrap();
}

async fn trap_r6_a_downgrade_lets_waiting_readers_in_at_once(on: Form) {
    let (server, client) = on.with(patient).await;
    let other = patient(Client::builder().url(server.url())).connect().await.unwrap();
    let write = client.read_write_lock("x").write().lock().await.unwrap();
    let waiting = other.read_write_lock("x");
    let reader = tokio::spawn(async move { waiting.read().lock().await.unwrap() });
    soon("the subscription", async {
        while server.subscriber_channels().unwrap() != [b"redisson_rwlock:{x}".to_vec()] {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // Past the second look, from which the reader sleeps until a message.
    tokio::time::sleep(ms(50)).await;
    let read = write.downgrade().await.unwrap();
    let beside = told("the reader", reader).await.unwrap();
    assert!(read.is_valid() && beside.is_valid());
}

async fn trap_r8_read_and_write_holds_of_one_owner_are_renewed_apart(on: Form) {
    let (server, client) = on.with(|builder| builder.watchdog_lease(RENEWED)).await;
    let other = Client::connect(&server.url()).await.unwrap();
    let lock = client.read_write_lock("x");
    let write = lock.write().lock().await.unwrap();
    write.read().await.unwrap().unlock().await.unwrap();
    renewed(4, async || write.remaining()).await;
    assert!(write.is_valid(), "giving the read hold back has not stopped the renewal of the write hold");
    assert!(other.read_write_lock("x").read().try_lock().await.unwrap().is_none());
    let read = write.read().await.unwrap();
    write.unlock().await.unwrap();
    renewed(4, async || read.remaining()).await;
    assert!(read.is_valid(), "nor the other way round");
    assert!(other.read_write_lock("x").write().try_lock().await.unwrap().is_none());
}

async fn trap_r9_asking_to_write_while_reading_is_refused_at_once(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let read = lock.read().acquire().owner(&owner).await.unwrap().unwrap();
    let start = std::time::Instant::now();
    let upgrade = lock.write().acquire().owner(&owner).wait(redlatch::Wait::Forever);
    let error = soon("the refusal", std::future::IntoFuture::into_future(upgrade)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    assert!(error.to_string().contains("\"x\""), "{error}");
    assert!(awake(start) < LATE, "{:?}", start.elapsed());
    assert!(read.is_valid());
    let other = client.owner();
    assert!(lock.write().acquire().owner(&other).await.unwrap().is_none(), "others are merely busy");
    // A read hold that is just being given back is none.
    for _ in 0..50 {
        drop(lock.read().acquire().owner(&other).wait(redlatch::Wait::Forever).await.unwrap().unwrap());
        let wait = redlatch::Wait::AtMost(ms(0));
        let outcome = lock.write().acquire().owner(&other).wait(wait).await;
        assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    }
    read.unlock().await.unwrap();
    for _ in 0..50 {
        drop(lock.read().acquire().owner(&owner).wait(redlatch::Wait::Forever).await.unwrap().unwrap());
        let write = lock.write().acquire().owner(&owner).wait(redlatch::Wait::Forever).await;
        write.unwrap().unwrap().unlock().await.unwrap();
    }
    drop(server);
}
