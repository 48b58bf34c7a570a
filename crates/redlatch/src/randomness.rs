//! Where everything comes from that is random: identities of clients, pauses, orders.
//!
//! Nothing in the library draws random numbers elsewhere, so a thread whose randomness was [seeded](seed_thread) repeats what it
//! did, given the same calls, clock and store.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    future::Future,
    hash::{BuildHasher, DefaultHasher, Hasher as _},
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::future::select;

use crate::fork;

/// A thread of this process was seeded.
static IS_SEEDED: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy)]
struct State {
    /// The process: one that was forked off must not move in step with its parent.
    process: u64,
    next: u64,
    is_seeded: bool,
}

thread_local! {
    static STATE: Cell<State> =
        Cell::new(State { process: fork::here(), next: unpredictable(), is_seeded: false });
}

fn unpredictable() -> u64 {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        // Spreading needs no secrecy; two processes must merely differ.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        bytes = (nanos as u64 ^ u64::from(std::process::id())).to_ne_bytes();
    }
    u64::from_ne_bytes(bytes) | 1
}

/// Lets all that the library draws on this thread from now on follow from a seed, identities of clients included. It is for tests that
/// repeat a run: two processes with one seed would take each other's locks for their own.
///
/// Only what runs on this thread is seeded, so the client's background work has to be there, too
/// ([`ClientBuilder::background_on`](crate::ClientBuilder::background_on)).
///
/// # Example
///
/// ```
/// use redlatch::{Client, randomness};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// randomness::seed_thread(7);
/// let first = Client::connect("memory:").await?;
/// randomness::seed_thread(7);
/// assert_eq!(first.id(), Client::connect("memory:").await?.id());
/// # Ok(()) }
/// ```
pub fn seed_thread(seed: u64) {
    // xorshift stays at zero, and begins slowly with small numbers.
    let next = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    IS_SEEDED.store(true, Ordering::Relaxed);
    STATE.set(State { process: fork::here(), next, is_seeded: true });
}

/// The next number. It is predictable, so nothing that must not be guessed comes from it, unless a test wants that.
pub(crate) fn number() -> u64 {
    let mut state = STATE.get();
    let here = fork::here();
    if state.process != here {
        state = State { process: here, next: unpredictable(), is_seeded: false };
    }
    // xorshift: enough for spreading.
    let mut x = state.next;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    STATE.set(State { next: x, ..state });
    x
}

/// An identity that nothing else has and nobody can guess; on a seeded thread the next one of its seed.
pub(crate) fn identity() -> uuid::Uuid {
    if STATE.get().is_seeded && STATE.get().process == fork::here() {
        return uuid::Builder::from_random_bytes(
            (u128::from(number()) << 64 | u128::from(number())).to_ne_bytes(),
        )
        .into_uuid();
    }
    uuid::Uuid::new_v4()
}

/// Hashes that others cannot foresee.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Salted(u64);

impl Default for Salted {
    fn default() -> Self {
        // One for the whole process, so it is the same for all seeds.
        Salted(if IS_SEEDED.load(Ordering::Relaxed) { 1 } else { unpredictable() })
    }
}

impl BuildHasher for Salted {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// Hashes that others cannot foresee, and that follow from the seed on a seeded thread: a map that is walked through has the same order
/// again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeded(Salted);

impl Default for Seeded {
    fn default() -> Self {
        Seeded(Salted(number()))
    }
}

impl BuildHasher for Seeded {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.build_hasher()
    }
}

pub(crate) type SeededMap<K, V> = HashMap<K, V, Seeded>;
pub(crate) type SeededSet<K> = HashSet<K, Seeded>;

/// What comes first of two: each is looked at first as often as the other, so that none waits for ever behind one that is always
/// ready. Both are dropped then, so they must not lose anything by that.
pub(crate) async fn first_of<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (one, other) = (pin!(one), pin!(other));
    if number() & 1 == 0 {
        select(one, other).await.factor_first().0
    } else {
        select(other, one).await.factor_first().0
    }
}
