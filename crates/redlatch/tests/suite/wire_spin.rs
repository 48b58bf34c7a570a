//! Wire facts of the spin lock: it tells nobody, hears nobody, and looks as rarely as its backoff says.

use redlatch::{Backoff, Client};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{LATE, awake, ms},
    wire::{alone, heard},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spin_lock_tells_nobody_and_hears_nobody() {
    let (server, client) = alone().await;
    let other = Client::connect(&server.url()).await.unwrap();
    let (lock, elsewhere) = (client.spin_lock("s"), other.spin_lock("s"));
    server.reset_command_counts().unwrap();
    let messages = heard(&server, async {
        for wait_in_this_process in [true, false] {
            let guard = lock.lock().await.unwrap();
            let inner = guard.reenter().await.unwrap();
            let waiting = if wait_in_this_process { lock.clone() } else { elsewhere.clone() };
            let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
            tokio::time::sleep(ms(60)).await;
            assert!(!waiter.is_finished());
            assert!(server.subscriber_channels().unwrap().is_empty(), "a client listens");
            inner.unlock().await.unwrap();
            guard.unlock().await.unwrap();
            waiter.await.unwrap().unlock().await.unwrap();
            let lost = lock.lock().await.unwrap();
            assert!(elsewhere.force_unlock().await.unwrap());
            lost.unlock().await.unwrap();
            let held = lock.lock().await.unwrap().detach();
            elsewhere.release(&held.owner).await.unwrap();
            // A dropped guard is released in the background, which is waited for.
            drop(lock.lock().await.unwrap());
            elsewhere.lock().await.unwrap().unlock().await.unwrap();
        }
    })
    .await;
    assert_eq!(messages, [], "nobody is told");
    assert_eq!(server.command_count("subscribe").unwrap(), 0);
}

/// How often the server is asked by a waiter during a second, and for how much of it the machine ran.
async fn looks(
    server: &RedisServer,
    client: &Client,
    backoff: Option<Backoff>,
) -> (u64, std::time::Duration) {
    let mut lock = client.spin_lock("held");
    if let Some(backoff) = backoff {
        lock = lock.backoff(backoff);
    }
    // The first call of a connection loads the script.
    assert!(lock.try_lock().await.unwrap().is_none());
    server.reset_command_counts().unwrap();
    let start = std::time::Instant::now();
    assert!(lock.lock_for(ms(1_000)).await.unwrap().is_none());
    let ran = redlatch_testkit::stall::awake_between(start, start + ms(1_000));
    assert!(start.elapsed() >= ms(995) && awake(start) < ms(1_000) + LATE, "{:?}", start.elapsed());
    (server.command_count("evalsha").unwrap() + server.command_count("eval").unwrap(), ran)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spin_lock_looks_as_rarely_as_its_backoff_says() {
    let (server, client) = alone().await;
    server.cmd(&["HSET", "held", "1b671a64-40d5-491e-99b0-da01ff1f3341:64", "1"]).unwrap();
    server.cmd(&["PEXPIRE", "held", "600000"]).unwrap();
    let constant = Backoff::constant(ms(64)).unwrap();
    let lazy = Backoff::exponential(ms(100), ms(400), 2).unwrap();
    // 1, 2, 4, … 64 and then 128 ms each make 14 looks in a second and one at its end; 64 ms each make 17; 100, 200, 400, 400
    // make 5. The random part makes fewer, and so does a busy machine, but nothing makes more.
    for (backoff, most) in [(None, 16), (Some(constant), 18), (Some(lazy), 6)] {
        let (looks, ran) = looks(&server, &client, backoff).await;
        let least = u64::try_from(u128::from(most) * ran.as_millis() / 3_000).unwrap();
        assert!((least..=most).contains(&looks), "{backoff:?}: {looks} looks in a second");
    }
}
