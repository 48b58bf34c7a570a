//! Random choices that a seed repeats.

use std::time::Duration;

/// A SplitMix64 generator: small, and good enough for choosing.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed ^ 0x5851_f42d_4c95_7f2d);
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below the bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// A time from the one to the other, in microseconds inside.
    pub(crate) fn ms(&mut self, least: u64, most: u64) -> Duration {
        let (least, most) = (least * 1_000, most * 1_000);
        Duration::from_micros(least + self.below(most.saturating_sub(least) + 1))
    }

    /// The choice of a list of weighted ones.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let sum: u64 = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(sum);
        for (weight, choice) in choices {
            if at < *weight {
                return *choice;
            }
            at -= weight;
        }
        choices[0].1
    }
}
