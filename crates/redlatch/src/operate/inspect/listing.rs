//! Walking the keyspace for names that look like locks and their kin.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use redlatch_engine::glob_matches;

use super::{FIELDS_MAX, LockState};
use crate::{
    client::Client,
    error::{Error, ErrorKind},
    kind::{LockKind, found::Walk},
    name::LockName,
    scripts,
    store::{Call, Fault, protocol_error},
};

/// How many keys one step of a listing looks at; small enough to hold nobody up.
const KEYS_PER_STEP: i64 = 1_000;
/// The longest pattern for a listing, in bytes.
const PATTERN_BYTES_MAX: usize = 256;
/// How many names are read at once.
const LOOKS_UNDER_WAY_MAX: usize = 32;
/// How many channels one call asks for.
const CHANNELS_PER_CALL_MAX: usize = 1_000;

impl Client {
    /// Lists locks, permits with leases and rate limiters whose names match a glob pattern (`*`, `?`, `[…]`; everything
    /// unless given), at most `limit` of them, sorted by name.
    ///
    /// The store is walked in small steps, so a listing of a large keyspace takes its time and holds nobody up. Hashes
    /// that do not look like locks are left out, and so are bare numbers: see [`list_kinds`](Self::list_kinds).
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// A pattern over 256 bytes; a server that is unreachable or refuses.
    pub async fn list(&self, pattern: Option<&str>, limit: usize) -> Result<Vec<LockState>, Error> {
        let usual: Vec<LockKind> = LockKind::LISTED.into_iter().filter(|kind| kind.is_usual()).collect();
        self.list_kinds(&usual, pattern, limit).await
    }

    /// Lists names of some kinds only; [`LockKind::Free`] and [`LockKind::Other`] are never listed.
    ///
    /// Semaphores and latches are [`LockKind::Counter`], and so is every other number in the store: ask for them with a
    /// pattern that only they match.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # use redlatch::LockKind;
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// client.semaphore("uploads").set_if_absent(3, None).await?;
    /// assert!(client.list(None, 10).await?.is_empty());
    /// let counters = client.list_kinds(&[LockKind::Counter], None, 10).await?;
    /// assert_eq!(counters[0].value, Some(3));
    /// # Ok(()) }
    /// ```
    pub async fn list_kinds(
        &self,
        kinds: &[LockKind],
        pattern: Option<&str>,
        limit: usize,
    ) -> Result<Vec<LockState>, Error> {
        self.core.check_open()?;
        let pattern = pattern.unwrap_or("*");
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("a pattern of over {PATTERN_BYTES_MAX} bytes"),
            ));
        }
        let wanted: Vec<LockKind> =
            LockKind::LISTED.into_iter().filter(|kind| kinds.contains(kind)).collect();
        // Names that were looked at. A walk may meet a key twice while the keyspace grows, and two walks may meet in one name.
        let mut seen: BTreeSet<LockName> = BTreeSet::new();
        let mut found: Vec<LockState> = Vec::new();
        self.core.keeper.note_call();
        self.core.store.ready().await.map_err(Fault::into_error)?;
        let slots = self.core.store.slot_of_each_server();
        let kinds: BTreeSet<Walk> = wanted.iter().flat_map(|kind| kind.walks()).copied().collect();
        let mut walks: Vec<(Walk, u16)> = Vec::new();
        for walk in kinds {
            walks.extend(slots.iter().map(|slot| (walk, *slot)));
        }
        for (walk, slot) in walks {
            let mut cursor: Arc<str> = "0".into();
            while found.len() < limit {
                let (next, mut names) = self.step(walk, slot, &cursor, pattern).await?;
                names.retain(|name| seen.insert(name.clone()));
                let looks = stream::iter(names).map(|name| self.look(name)).buffered(LOOKS_UNDER_WAY_MAX);
                let states: Vec<LockState> = looks.try_collect().await?;
                found.extend(states.into_iter().filter(|state| wanted.contains(&state.kind)));
                if &*next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.truncate(limit);
        self.count_listeners(&mut found).await;
        Ok(found)
    }

    /// One step of a walk: the next cursor, and the names found.
    async fn step(
        &self,
        walk: Walk,
        slot: u16,
        cursor: &Arc<str>,
        pattern: &str,
    ) -> Result<(Arc<str>, Vec<LockName>), Error> {
        self.core.keeper.note_call();
        let (key_type, helpers) = walk.keys();
        let keys: Arc<str> = helpers.map_or_else(|| pattern.into(), |place| place.of_any().into());
        let call = Call::new(&scripts::LIST).text(cursor).text(&keys).int(KEYS_PER_STEP).int(FIELDS_MAX);
        let reply = self.core.query_in(slot, call.constant(key_type)).await.map_err(Fault::into_error)?;
        let wrong = || protocol_error("list", &reply);
        let [next, names @ ..] = reply.array().ok_or_else(wrong)? else { return Err(wrong()) };
        let next = next.bytes().and_then(|text| std::str::from_utf8(text).ok());
        let next = next.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(wrong)?;
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let name = name.bytes().ok_or_else(wrong)?;
            if helpers.is_none() || glob_matches(pattern.as_bytes(), name) {
                found.push(LockName::unchecked(name));
            }
        }
        Ok((next.into(), found))
    }

    /// Adds to each state how many clients listen for its release. Only a courtesy: a store that refuses leaves it out.
    pub(super) async fn count_listeners(&self, states: &mut [LockState]) {
        let mut channels: Vec<Arc<[u8]>> = Vec::new();
        let of = |state: &LockState| state.kind.channels();
        for state in &*states {
            channels.extend(of(state).into_iter().map(|place| Arc::from(place.of(state.name.as_bytes()))));
        }
        if channels.is_empty() {
            return;
        }
        let mut counts = Vec::with_capacity(channels.len());
        for some in channels.chunks(CHANNELS_PER_CALL_MAX) {
            match self.core.store.listeners(some.to_vec()).await {
                Ok(Some(known)) => counts.extend(known),
                _ => return,
            }
        }
        let mut counts = counts.into_iter();
        for state in states {
            let own = of(state).len();
            if own > 0 {
                state.listening = Some(counts.by_ref().take(own).sum());
            }
        }
    }
}
