//! A fast hash for keys that come from the user who owns the engine.
//!
//! The standard hash withstands strangers who choose keys that collide. Here a secret start value, drawn once a map,
//! is enough: a client that may send keys may also flood the engine in simpler ways.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A hash map with the fast hash.
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, FastState>;

/// Odd, and with bits spread evenly: the golden ratio in 64 bits.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Makes the hashers of one map.
#[derive(Clone, Debug)]
pub(crate) struct FastState {
    seed: u64,
}

impl Default for FastState {
    fn default() -> FastState {
        FastState { seed: RandomState::new().hash_one(MULTIPLIER) }
    }
}

impl BuildHasher for FastState {
    type Hasher = FastHasher;

    fn build_hasher(&self) -> FastHasher {
        FastHasher { state: self.seed, seed: self.seed | 1 }
    }
}

pub(crate) struct FastHasher {
    state: u64,
    seed: u64,
}

impl FastHasher {
    /// Both halves of a full product depend on every bit that goes in.
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(MULTIPLIER ^ self.seed.rotate_left(32));
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(last));
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(number as u64);
    }

    fn finish(&self) -> u64 {
        self.state.wrapping_mul(MULTIPLIER) ^ (self.state >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_keys_spread_and_maps_differ() {
        let state = FastState::default();
        let hashes: std::collections::HashSet<u64> =
            (0..10_000).map(|i| state.hash_one(format!("lock:{i}").as_bytes()) % 65_536).collect();
        // 10,000 balls fall into about 9,270 of 65,536 boxes.
        assert!(hashes.len() > 8_900, "{}", hashes.len());
        let upper: std::collections::HashSet<u64> =
            (0..10_000).map(|i| state.hash_one(format!("lock:{i}").as_bytes()) >> 48).collect();
        assert!(upper.len() > 8_900, "{}", upper.len());
        assert_ne!(state.hash_one(b"k".as_slice()), state.hash_one(b"k\0".as_slice()));
        assert_ne!(state.hash_one(b"k".as_slice()), FastState::default().hash_one(b"k".as_slice()));
    }
}
