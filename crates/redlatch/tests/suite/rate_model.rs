//! The rate limiter against a model of the sliding window, on a clock that the test owns.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use redlatch::{Client, ManualClock, Rate};

use crate::fixture::ms;

#[derive(Debug, Clone)]
enum Step {
    Take(u32),
    Wait(u64),
    Release(u32),
    Update(u32, u64),
    Set(u32, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1..=6_u32).prop_map(Step::Take),
        // Around the intervals below, so that their very ends are hit often.
        6 => prop_oneof![0..30_u64, Just(49), Just(50), Just(51), Just(100), 0..300_u64].prop_map(Step::Wait),
        2 => (1..=8_u32).prop_map(Step::Release),
        1 => (1..=6_u32, prop_oneof![Just(50), Just(100), 1..200_u64]).prop_map(|(rate, ms)| Step::Update(rate, ms)),
        1 => (1..=6_u32, prop_oneof![Just(50), Just(100), 1..200_u64]).prop_map(|(rate, ms)| Step::Set(rate, ms)),
    ];
    prop::collection::vec(step, 1..80)
}

/// What a sliding window is: grants with their time, of which those within the interval count.
struct Model {
    rate: i64,
    interval: u64,
    now: u64,
    taken: Vec<(u64, i64)>,
}

impl Model {
    /// Forgets what is too old, as a request does. Until then a longer interval finds it again.
    fn forget(&mut self) {
        let (now, interval) = (self.now, self.interval);
        self.taken.retain(|(at, _)| at + interval > now);
    }

    fn live(&self) -> impl Iterator<Item = (u64, i64)> {
        self.taken.iter().copied().filter(|(at, _)| at + self.interval > self.now)
    }

    fn free(&self) -> i64 {
        self.rate - self.live().map(|(_, permits)| permits).sum::<i64>()
    }

    /// How long until so many are free when nobody takes or gives.
    fn delay(&self, permits: i64) -> u64 {
        let mut missing = permits - self.free();
        let mut at = self.now;
        for (when, permits) in self.live() {
            if missing <= 0 {
                break;
            }
            (missing, at) = (missing - permits, when + self.interval);
        }
        at - self.now
    }

    fn release(&mut self, mut permits: i64) -> i64 {
        let mut back = 0;
        for (at, here) in &mut self.taken {
            if *at + self.interval > self.now {
                let some = permits.min(*here);
                (*here, permits, back) = (*here - some, permits - some, back + some);
            }
        }
        self.taken.retain(|(_, permits)| *permits > 0);
        back
    }
}

async fn run(steps: Vec<Step>, per_client: bool) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(Duration::from_secs(1_700_000_000));
    let client = Client::builder().url("memory:").clock(Arc::new(clock.clone())).connect().await.unwrap();
    let limiter = client.rate_limiter("model");
    let rate = |permits, interval| {
        let rate = Rate::per(permits, ms(interval));
        if per_client { rate.per_client() } else { rate }
    };
    limiter.set(rate(4, 50)).await.unwrap();
    let mut model = Model { rate: 4, interval: 50, now: 0, taken: Vec::new() };
    // Every grant since the rate was set or changed, less what was given back, as an observer would note it down.
    let mut book: Vec<(u64, i64)> = Vec::new();
    for step in steps {
        match step {
            Step::Take(n) => {
                let permits = i64::from(n);
                if permits > model.rate {
                    prop_assert!(limiter.try_acquire(n).await.is_err());
                    continue;
                }
                model.forget();
                let granted = model.free() >= permits;
                if !granted {
                    let delay = model.delay(permits);
                    let short = limiter.acquire_for(n, ms(delay - 1)).await;
                    prop_assert!(!short.unwrap(), "it comes in {delay} ms");
                }
                prop_assert_eq!(limiter.try_acquire(n).await.unwrap(), granted);
                if granted {
                    model.taken.push((model.now, permits));
                    book.push((model.now, permits));
                    let window = book.iter().filter(|(at, _)| at + model.interval > model.now);
                    let sum: i64 = window.map(|(_, permits)| permits).sum();
                    prop_assert!(sum <= model.rate, "{sum} in one interval");
                }
            }
            Step::Wait(time) => {
                clock.advance(ms(time));
                model.now += time;
            }
            Step::Release(n) => {
                let back = model.release(i64::from(n));
                prop_assert_eq!(limiter.release(n).await.unwrap(), back as u64);
                book.clone_from(&model.taken);
            }
            Step::Update(permits, interval) => {
                prop_assert!(limiter.update(rate(permits, interval)).await.unwrap());
                (model.rate, model.interval) = (permits.into(), interval);
                model.forget();
                book.clone_from(&model.taken);
            }
            Step::Set(permits, interval) => {
                limiter.set(rate(permits, interval)).await.unwrap();
                (model.rate, model.interval) = (permits.into(), interval);
                model.taken.clear();
                book.clear();
            }
        }
        prop_assert_eq!(limiter.available().await.unwrap(), model.free());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_interval_sees_more_than_its_rate(steps in steps(), per_client in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps, per_client))?;
    }
}
