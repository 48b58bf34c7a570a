use std::time::Duration;

use redlatch::{
    ErrorKind, Lease, LockKind,
    config::{LEASE_MAX, LEASE_MIN},
};

use crate::fixture::{Fixture, ms};

pub(crate) async fn bad_names_are_refused(on: Fixture) {
    let client = on.client().await;
    let long = "x".repeat(5_000);
    for bad in ["", "a}b", "a{b", "{}x", long.as_str()] {
        let lock = client.lock(bad);
        for error in [
            lock.try_lock().await.map(|_| ()).unwrap_err(),
            lock.lock().await.map(|_| ()).unwrap_err(),
            lock.force_unlock().await.map(|_| ()).unwrap_err(),
            lock.is_locked().await.map(|_| ()).unwrap_err(),
            client.inspect(bad).await.map(|_| ()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
        }
    }
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn bad_leases_are_refused(on: Fixture) {
    let client = on.client().await;
    let lock = client.lock(on.name("x"));
    for lease in [Duration::ZERO, Duration::from_nanos(1_999_999), LEASE_MAX + ms(1), Duration::MAX] {
        for lease in [Lease::Fixed(lease), Lease::RenewedEvery(lease)] {
            let error = lock.acquire().lease(lease).await.map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
            assert!(error.to_string().contains("lease"), "{error}");
        }
    }
    assert!(lock.acquire().lease(Lease::RenewedEvery(ms(100))).await.is_err(), "too short to renew");
    for lease in [ms(0), Duration::MAX] {
        assert_eq!(
            on.builder().watchdog_lease(lease).connect().await.unwrap_err().kind(),
            ErrorKind::InvalidOption
        );
    }
    assert!(!lock.is_locked().await.unwrap());
    let guard = lock.lock_with_lease(LEASE_MAX).await.unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.extend(Duration::MAX).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    guard.unlock().await.unwrap();
    let _ = lock.lock_with_lease(LEASE_MIN).await;
}

pub(crate) async fn a_key_of_another_type_is_left_alone(on: Fixture) {
    let client = on.client().await;
    let name = on.name("x");
    client.set_stock(name.as_str(), 15).await.unwrap();
    let lock = client.lock(name.as_str());
    for error in [
        lock.try_lock().await.map(|_| ()).unwrap_err(),
        lock.lock().await.map(|_| ()).unwrap_err(),
        lock.lock_for(ms(300)).await.map(|_| ()).unwrap_err(),
        lock.force_unlock().await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(error.to_string().contains(&name), "the message names the lock: {error}");
    }
    assert_eq!(client.stock(name.as_str()).await.unwrap(), Some(15), "nothing was changed");
    assert_eq!(client.inspect(name.as_str()).await.unwrap().kind, LockKind::Counter);
    assert_eq!(client.stats().names, 0);
}
