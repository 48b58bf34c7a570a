//! The rate limiter against a model of the sliding window, on a clock that the test owns.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;
use redlatch::{Client, ManualClock, Rate};

use crate::fixture::ms;

#[derive(Debug, Clone)]
enum Step {
    Take(u32),
    Release(u32),
    Update(u32, u64),
    Set(u32, u64),
}

/// Time that passes, and which of the clients does what then.
type Turn = (u64, usize, Step);

const CLIENTS: usize = 2;

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let step = prop_oneof![
        8 => (1..=6_u32).prop_map(Step::Take),
        2 => (1..=8_u32).prop_map(Step::Release),
        1 => (1..=6_u32, prop_oneof![Just(50), Just(100), 1..200_u64]).prop_map(|(rate, ms)| Step::Update(rate, ms)),
        1 => (1..=6_u32, prop_oneof![Just(50), Just(100), 1..200_u64]).prop_map(|(rate, ms)| Step::Set(rate, ms)),
    ];
    // Around the intervals above, so that their very ends are hit often.
    let time = prop_oneof![4 => Just(0), 3 => 0..30_u64, 1 => Just(49), 1 => Just(50), 1 => Just(51), 1 => Just(100), 1 => 0..300_u64];
    prop::collection::vec((time, 0..CLIENTS, step), 1..80)
}

/// Grants with their time, of which those within the interval count.
type Grants = Vec<(u64, i64)>;

/// What a sliding window is.
struct Model {
    rate: i64,
    interval: u64,
    now: u64,
    /// Of each client; the first alone where the rate is shared.
    taken: [Grants; CLIENTS],
}

impl Model {
    /// Forgets what is too old, as a request does. Until then a longer interval finds it again.
    fn forget(&mut self, of: usize) {
        let (now, interval) = (self.now, self.interval);
        self.taken[of].retain(|(at, _)| at + interval > now);
    }

    fn live(&self, grants: &Grants) -> i64 {
        let live = grants.iter().filter(|(at, _)| at + self.interval > self.now);
        live.map(|(_, permits)| permits).sum()
    }

    fn free(&self, of: usize) -> i64 {
        self.rate - self.live(&self.taken[of])
    }

    /// How long until so many are free when nobody takes or gives.
    fn delay(&self, of: usize, permits: i64) -> u64 {
        let mut missing = permits - self.free(of);
        let mut at = self.now;
        for (when, permits) in self.taken[of].iter().filter(|(at, _)| at + self.interval > self.now) {
            if missing <= 0 {
                break;
            }
            (missing, at) = (missing - permits, when + self.interval);
        }
        at - self.now
    }

    fn release(&mut self, of: usize, mut permits: i64) -> i64 {
        let mut back = 0;
        for (at, here) in &mut self.taken[of] {
            if *at + self.interval > self.now {
                let some = permits.min(*here);
                (*here, permits, back) = (*here - some, permits - some, back + some);
            }
        }
        self.taken[of].retain(|(_, permits)| *permits > 0);
        back
    }
}

async fn run(turns: Vec<Turn>, per_client: bool) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(Duration::from_secs(1_700_000_000));
    let mut limiters = Vec::new();
    static STORES: AtomicU64 = AtomicU64::new(0);
    let store = format!("memory:rate-model-{}", STORES.fetch_add(1, Ordering::Relaxed));
    for _ in 0..CLIENTS {
        let client = Client::builder().url(&store).clock(Arc::new(clock.clone())).connect().await.unwrap();
        limiters.push(client.rate_limiter("model"));
    }
    let rate = |permits, interval| {
        let rate = Rate::per(permits, ms(interval));
        if per_client { rate.per_client() } else { rate }
    };
    limiters[0].set(rate(4, 50)).await.unwrap();
    let mut model = Model { rate: 4, interval: 50, now: 0, taken: [vec![], vec![]] };
    // Every grant since the rate was set or changed, less what was given back, as an observer would note it down.
    let mut books: [Grants; CLIENTS] = [vec![], vec![]];
    for (time, client, step) in turns {
        clock.advance(ms(time));
        model.now += time;
        let (limiter, of) = (&limiters[client], if per_client { client } else { 0 });
        match step {
            Step::Take(n) => {
                let permits = i64::from(n);
                if permits > model.rate {
                    prop_assert!(limiter.try_acquire(n).await.is_err());
                    continue;
                }
                model.forget(of);
                let granted = model.free(of) >= permits;
                if !granted {
                    let delay = model.delay(of, permits);
                    let short = limiter.acquire_for(n, ms(delay - 1)).await;
                    prop_assert!(!short.unwrap(), "it comes in {delay} ms");
                }
                prop_assert_eq!(limiter.try_acquire(n).await.unwrap(), granted);
                if granted {
                    model.taken[of].push((model.now, permits));
                    books[of].push((model.now, permits));
                    let sum = model.live(&books[of]);
                    prop_assert!(sum <= model.rate, "{sum} in one interval");
                }
            }
            Step::Release(n) => {
                let back = model.release(of, i64::from(n));
                prop_assert_eq!(limiter.release(n).await.unwrap(), back as u64);
                books[of].clone_from(&model.taken[of]);
            }
            Step::Update(permits, interval) => {
                prop_assert!(limiter.update(rate(permits, interval)).await.unwrap());
                (model.rate, model.interval) = (permits.into(), interval);
                model.forget(of);
                books.clone_from(&model.taken);
            }
            Step::Set(permits, interval) => {
                limiter.set(rate(permits, interval)).await.unwrap();
                (model.rate, model.interval) = (permits.into(), interval);
                model.taken[of].clear();
                books.clone_from(&model.taken);
            }
        }
        for (of, limiter) in limiters.iter().enumerate() {
            let of = if per_client { of } else { 0 };
            prop_assert_eq!(limiter.available().await.unwrap(), model.free(of));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_interval_sees_more_than_its_rate(turns in turns(), per_client in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(turns, per_client))?;
    }
}
