//! Who the clients are: the records in which they tell of themselves.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    client::Client,
    error::Error,
    kind::key_pattern::CLIENT_RECORD,
    owner::client_of,
    presence::ClientRecord,
    scripts,
    store::{Call, Fault, protocol_error},
};

/// How many keys one step of a listing looks at.
const KEYS_PER_STEP: i64 = 1_000;
/// How many records are read at once.
const LOOKS_UNDER_WAY_MAX: usize = 32;
/// The longest key of a record that is looked at, in bytes.
const KEY_BYTES_MAX: usize = 512;

impl Client {
    /// What a client tells of itself ([`Presence`](crate::Presence)): that with this id, or the one that made this owner. `None` for one that tells nothing,
    /// as those of Redisson, and for one that has neither held nor waited for longer than a second lately.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// for holder in client.inspect("report").await?.holders {
    ///     if let Some(record) = client.client_record(&holder.owner).await? {
    ///         println!("{} on {}", record.program, record.host);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn client_record(&self, owner_or_id: &str) -> Result<Option<ClientRecord>, Error> {
        self.core.check_open()?;
        self.core.keeper.note_call();
        self.read_record(client_of(owner_or_id)).await
    }

    /// The clients that tell of themselves, sorted by id, at most `limit` of them.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn clients(&self, limit: usize) -> Result<Vec<ClientRecord>, Error> {
        self.core.check_open()?;
        self.core.keeper.note_call();
        self.core.store.ready().await.map_err(Fault::into_error)?;
        let mut ids: BTreeSet<String> = BTreeSet::new();
        for slot in self.core.store.slot_of_each_server() {
            let mut cursor: Arc<str> = "0".into();
            while ids.len() < limit {
                let (next, some) = self.record_ids(slot, &cursor).await?;
                ids.extend(some);
                if &*next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        let records = stream::iter(ids.into_iter().take(limit))
            .map(|id| async move { self.read_record(&id).await })
            .buffered(LOOKS_UNDER_WAY_MAX)
            .try_collect::<Vec<_>>();
        Ok(records.await?.into_iter().flatten().collect())
    }

    /// One step of the listing: the next cursor, and the ids found.
    async fn record_ids(&self, slot: u16, cursor: &Arc<str>) -> Result<(Arc<str>, Vec<String>), Error> {
        let pattern = CLIENT_RECORD.of_any();
        let call = Call::new(&scripts::PRESENCE_LIST).text(cursor).text(&pattern.into()).int(KEYS_PER_STEP);
        let reply = self.core.query_in(slot, call).await.map_err(Fault::into_error)?;
        let wrong = || protocol_error("presence_list", &reply);
        let [next, keys @ ..] = reply.array().ok_or_else(wrong)? else { return Err(wrong()) };
        let next = next.bytes().and_then(|text| std::str::from_utf8(text).ok());
        let next = next.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(wrong)?;
        let id = |key: &[u8]| {
            let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= KEY_BYTES_MAX)?;
            let id = key.strip_prefix(CLIENT_RECORD.word())?.strip_prefix('{')?.strip_suffix('}')?;
            Some(id.to_owned())
        };
        Ok((next.into(), keys.iter().filter_map(|key| id(key.bytes()?)).collect()))
    }

    async fn read_record(&self, id: &str) -> Result<Option<ClientRecord>, Error> {
        let key: Arc<[u8]> = CLIENT_RECORD.of(id.as_bytes()).into();
        let reply = self.core.query(Call::new(&scripts::PRESENCE_GET).key(&key)).await;
        let reply = reply.map_err(Fault::into_error)?;
        let wrong = || protocol_error("presence_get", &reply);
        let [ttl, fields @ ..] = reply.array().ok_or_else(wrong)? else { return Err(wrong()) };
        if fields.is_empty() {
            return Ok(None);
        }
        let left_ms = ttl.int().and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0);
        let pairs = fields.chunks_exact(2).filter_map(|pair| Some((pair[0].bytes()?, pair[1].bytes()?)));
        Ok(Some(ClientRecord::of(id, Duration::from_millis(left_ms), pairs)))
    }
}
