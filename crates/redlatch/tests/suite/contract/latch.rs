use redlatch::ErrorKind;

use crate::fixture::{Fixture, IN_VAIN, LATE, awake, ms, soon, told};

pub(crate) async fn a_latch_opens_at_zero(on: Fixture) {
    // The waiters do not look by themselves.
    let (client, other) = (on.patient().await, on.patient().await);
    let (ours, theirs) = (client.count_down_latch(on.name("l")), other.count_down_latch(on.name("l")));
    soon("an open latch", ours.wait()).await.unwrap();
    assert!(ours.set_if_absent(3).await.unwrap());
    assert!(!theirs.set_if_absent(5).await.unwrap(), "only the first sets");
    let mut waiters = Vec::new();
    for latch in [&ours, &ours, &ours, &theirs, &theirs] {
        let latch = latch.clone();
        waiters.push(tokio::spawn(async move { latch.wait().await }));
    }
    tokio::time::sleep(ms(50)).await;
    assert_eq!(theirs.count_down().await.unwrap(), 2);
    assert_eq!(ours.count_down().await.unwrap(), 1);
    tokio::time::sleep(ms(30)).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "one is left");
    assert_eq!(ours.count().await.unwrap(), 1);
    assert_eq!(theirs.count_down().await.unwrap(), 0);
    for waiter in waiters {
        told("each waiter's way", waiter).await.unwrap().unwrap();
    }
    assert_eq!(ours.count_down().await.unwrap(), 0, "an open latch stays open");
    assert_eq!(ours.count().await.unwrap(), 0);
    assert!(ours.set_if_absent(1).await.unwrap(), "it can be closed again");
    assert_eq!(client.stats().background_jobs, 0);
}

pub(crate) async fn a_wait_for_a_latch_ends_when_its_time_is_up(on: Fixture) {
    let client = on.client().await;
    let latch = client.count_down_latch(on.name("l"));
    latch.set_if_absent(1).await.unwrap();
    let start = std::time::Instant::now();
    assert!(!latch.wait_for(IN_VAIN).await.unwrap());
    assert!(start.elapsed() >= IN_VAIN - ms(1) && awake(start) < IN_VAIN + LATE, "{:?}", start.elapsed());
    let waiting = latch.clone();
    let waiter = tokio::spawn(async move { waiting.wait_for(ms(5_000)).await });
    tokio::time::sleep(ms(50)).await;
    latch.count_down().await.unwrap();
    assert!(soon("the last step", waiter).await.unwrap().unwrap());
}

pub(crate) async fn deleting_lets_everybody_through(on: Fixture) {
    let (client, other) = (on.patient().await, on.client().await);
    let latch = client.count_down_latch(on.name("l"));
    assert!(!latch.delete().await.unwrap());
    latch.set_if_absent(2).await.unwrap();
    let waiting = latch.clone();
    let waiter = tokio::spawn(async move { waiting.wait().await });
    tokio::time::sleep(ms(50)).await;
    assert!(other.count_down_latch(on.name("l")).delete().await.unwrap());
    told("the waiter's way", waiter).await.unwrap().unwrap();
    assert_eq!(latch.count().await.unwrap(), 0);
}

pub(crate) async fn a_latch_of_zero_and_names_with_braces_are_refused(on: Fixture) {
    let client = on.client().await;
    let latch = client.count_down_latch(on.name("l"));
    for count in [0, i32::MAX as u32 + 1] {
        assert_eq!(latch.set_if_absent(count).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    }
    assert!(latch.set_if_absent(1).await.unwrap(), "nothing was set before");
    for name in ["{t}:x", "a{b}c", "a{b", ""] {
        let latch = client.count_down_latch(name);
        for error in [
            latch.set_if_absent(1).await.unwrap_err(),
            latch.count_down().await.unwrap_err(),
            latch.count().await.unwrap_err(),
            latch.wait().await.unwrap_err(),
            latch.delete().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{name}: {error}");
        }
    }
}

pub(crate) async fn a_key_that_is_no_counter_is_left_alone(on: Fixture) {
    let client = on.client().await;
    let name = on.name("lock");
    let guard = client.lock(name.as_str()).lock().await.unwrap();
    let latch = client.count_down_latch(name.as_str());
    for error in [
        latch.count_down().await.unwrap_err(),
        latch.count().await.unwrap_err(),
        latch.delete().await.unwrap_err(),
        soon("the refusal", latch.wait()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    }
    assert!(!latch.set_if_absent(1).await.unwrap(), "the name is taken");
    assert!(guard.is_valid() && client.lock(name.as_str()).is_locked().await.unwrap());
}
