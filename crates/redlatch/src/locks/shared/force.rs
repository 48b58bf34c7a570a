//! Freeing a lock by force: the options, and the record from which the holder learns who did it and why.

use crate::{
    core::Core,
    error::{Error, ErrorKind},
    keys::Keys,
    recipes::Record,
};

/// The longest reason, and the longest word for who forces, in bytes.
const TEXT_BYTES_MAX: usize = 1_000;

/// How a lock is freed by force: from which owner, by which user, and why.
///
/// The reason and who did it are kept on the server for a short time (the rest of the lease, 1 to 10 minutes), under a key beside
/// the lock, so that the holder's [loss](crate::Guard::lost) can be [`LossReason::Forced`](crate::LossReason::Forced).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// use redlatch::{Client, Force, LossReason};
///
/// let client = Client::connect("memory:").await?;
/// let lock = client.lock("report");
/// let guard = lock.lock().await?;
/// let owner = guard.owner().to_text();
/// lock.force(Force::new().owner(owner).by("anna").reason("it hangs since noon")).await?;
/// let LossReason::Forced { by, reason } = guard.lost().await else { panic!("it was forced") };
/// assert_eq!((by.as_str(), reason.as_deref()), ("anna", Some("it hangs since noon")));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "it does nothing until a lock is freed with it"]
pub struct Force {
    owner: Option<String>,
    by: Option<String>,
    reason: Option<String>,
}

impl Force {
    /// From any holder, by this client, without a reason.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only while this owner, as [`Client::inspect`](crate::Client::inspect) shows it, holds the lock.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Who does it, in words for the holder: 1 to 1,000 bytes on one line. Unless set it is the client's name, if it has one, and its
    /// id.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    /// Why, in words for the holder: 1 to 1,000 bytes.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    pub(super) fn named_owner(&self) -> &str {
        self.owner.as_deref().unwrap_or_default()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |why: &str| Err(Error::new(ErrorKind::InvalidOption, why.to_owned()));
        if self.owner.as_deref() == Some("") {
            return invalid("no owner was named");
        }
        for text in [&self.by, &self.reason].into_iter().flatten() {
            if text.is_empty() || text.len() > TEXT_BYTES_MAX {
                return invalid("who forces a lock free, and why, have 1 to 1,000 bytes each");
            }
        }
        if self.by.as_ref().is_some_and(|by| by.contains('\n')) {
            return invalid("who forces a lock free is named on one line");
        }
        Ok(())
    }

    pub(super) fn record(&self, core: &Core, keys: &Keys) -> Record {
        let by = self.by.clone().unwrap_or_else(|| match &core.config.client_name {
            Some(name) => format!("{} ({})", name.replace('\n', " "), core.id),
            None => core.id.to_string(),
        });
        let text = format!("{by}\n{}", self.reason.as_deref().unwrap_or_default());
        Record::new(keys, text)
    }
}

/// What [`Lock::force_unlock_if`](crate::Lock::force_unlock_if) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forced {
    /// The lock was held as expected and is free now.
    Released,
    /// Nobody held it.
    WasFree,
    /// Another owner holds it; nothing was changed.
    OtherOwner,
}
