//! Looking at locks and their kin from outside: who holds what, for how long, and who waits for it.

mod listing;
mod state;

use std::time::Duration;

use crate::{
    client::Client,
    error::{Error, ErrorKind},
    keys::{KeyKind, Keys, hash_tag},
    kind::LockKind,
    name::LockName,
    scripts,
    store::{Call, Fault, protocol_error},
};

/// The most holders, waiters and permits of one name that are read.
const FIELDS_MAX: i64 = 1_000;

/// What a hold lets its holder do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldMode {
    /// The whole lock, which has no modes.
    Exclusive,
    /// Reading, together with other readers.
    Read,
    /// Writing, alone.
    Write,
}

/// One holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner field, as it is in the lock's hash; that of a write hold ends with `:write`.
    pub owner: String,
    /// How many holds the owner has.
    pub holds: i64,
    /// What they are for.
    pub mode: HoldMode,
    /// How long each read hold lasts if it is not renewed; `None` for one that has run out. Empty for other holds, which
    /// last as long as the lock's own TTL.
    pub lasting: Vec<Option<Duration>>,
}

/// A waiter in the queue of a fair lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner who waits.
    pub owner: String,
    /// The place in the queue, from 1.
    pub position: usize,
    /// When the place is given up unless the waiter asks again; zero when it is overdue and goes at the next attempt of
    /// anybody, `None` when no deadline is on the server.
    pub stale_in: Option<Duration>,
}

/// One permit in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitInUse {
    /// Its id, as Redisson shows it: 32 hexadecimal digits.
    pub id: String,
    /// How long it lasts if it is not renewed; `None` for ever.
    pub ttl: Option<Duration>,
}

/// The rule of a rate limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateRule {
    /// How many permits each interval has.
    pub rate: i64,
    /// The interval.
    pub interval: Duration,
    /// Whether each client has the rate for itself; otherwise all share it.
    pub per_client: bool,
    /// How long the limiter is kept after its last use; `None` for ever.
    pub keep_alive: Option<Duration>,
}

/// The state of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The name.
    pub name: LockName,
    /// What it is.
    pub kind: LockKind,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// How long the hold lasts if it is not renewed; of other kinds, how long the key lasts.
    pub ttl: Option<Duration>,
    /// The key has no TTL, so a crashed holder's lock would never end: something other than a lock client made it so.
    pub ttl_missing: bool,
    /// The last fencing token drawn for the name.
    pub token: Option<u64>,
    /// Who queues for a fair lock, the next one first, at most 1,000.
    pub waiters: Vec<Waiter>,
    /// How many queue for a fair lock, also those beyond the list.
    pub waiting: u64,
    /// How many clients listen for a release: processes with waiters, not waiters. Those of a fair lock listen each on a
    /// channel of their own and are not counted here. `None` where the store cannot or may not tell.
    pub listening: Option<u64>,
    /// The number: free permits, or what is left of a latch.
    pub value: Option<i64>,
    /// Permits in use, the first to end first, at most 1,000.
    pub permits: Vec<PermitInUse>,
    /// How many permits are in use, also those beyond the list.
    pub permits_in_use: u64,
    /// The rule of a rate limiter.
    pub rate: Option<RateRule>,
    /// What is odd about the state, in words; empty for a healthy lock.
    pub findings: Vec<String>,
}

impl Client {
    /// Reads the state of one name, whatever kind of lock or counter is there.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// A name that is not valid; a server that is unreachable or refuses.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let guard = client.lock("report").lock().await?;
    /// let state = client.inspect("report").await?;
    /// assert_eq!(state.kind, redlatch::LockKind::Lock);
    /// assert_eq!(state.holders[0].owner, guard.owner().to_text());
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<LockState, Error> {
        let name = name.into();
        self.core.check_open()?;
        name.check()?;
        let mut found = [self.look(name).await?];
        self.count_listeners(&mut found).await;
        let [state] = found;
        Ok(state)
    }

    /// Reads one name that need not be one of ours.
    async fn look(&self, name: LockName) -> Result<LockState, Error> {
        let [keys, fair, permits] =
            [KeyKind::Lock, KeyKind::Fair, KeyKind::Permits].map(|kind| Keys::new(name.clone(), kind));
        self.core.keeper.note_call();
        let alone = Call::new(&scripts::SHOW).key(&keys.key);
        let beside = [keys.token(), &fair.queue, &fair.timeouts, &permits.timeouts];
        // A name that only others use may have braces that put these into another slot, and a call names keys of one slot only.
        let is_whole = hash_tag(keys.token()) == hash_tag(&keys.key);
        let all = beside.into_iter().filter(|_| is_whole).fold(alone.clone(), Call::key);
        let reply = match self.core.query(all.int(FIELDS_MAX)).await.map_err(Fault::into_error) {
            // An account without a right to what lies beside the key may still look at the key.
            Err(error) if error.kind() == ErrorKind::Permission => {
                self.core.query(alone.int(FIELDS_MAX)).await.map_err(Fault::into_error)
            }
            outcome => outcome,
        };
        let reply = reply.map_err(|error| error.on(&name))?;
        state::decode(name.clone(), &reply).ok_or_else(|| protocol_error("show", &reply).on(&name))
    }
}
