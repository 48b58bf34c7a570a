//! Looking at a store: what its settings mean for locks.

mod layout;

use std::time::Instant;

use crate::{
    acl::Kind,
    client::Client,
    error::Error,
    finding::{Finding, Severity},
    locks::shared::Forced,
    name::LockName,
    store::Fault,
};

impl Client {
    /// Looks at the store and says what its settings mean for locks. Takes and releases one lock of its own to see that
    /// the account may.
    ///
    /// # Cancel safety
    ///
    /// The lock that is tried may stay until it is released in the background.
    ///
    /// # Errors
    ///
    /// A store that is unreachable. What the store refuses becomes a finding.
    pub async fn diagnose(&self) -> Result<Vec<Finding>, Error> {
        self.diagnose_under("").await
    }

    /// The same for an account that may only use names that begin with `prefix`: the lock that is tried has such a name.
    ///
    /// # Cancel safety
    ///
    /// As [`diagnose`](Self::diagnose).
    ///
    /// # Errors
    ///
    /// As [`diagnose`](Self::diagnose).
    pub async fn diagnose_under(&self, prefix: &str) -> Result<Vec<Finding>, Error> {
        let mut findings = self.diagnose_servers().await?;
        findings.push(self.try_a_lock(prefix).await);
        findings.extend(self.look_at_presence().await);
        Ok(findings)
    }

    /// What the settings of the servers mean for locks, without a lock that is tried: no key is written.
    ///
    /// # Errors
    ///
    /// As [`diagnose`](Self::diagnose).
    ///
    /// # Example
    ///
    /// ```
    /// use redlatch::{Client, Severity};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// let client = Client::connect("memory:").await?;
    /// let findings = client.diagnose_servers().await?;
    /// assert!(findings.iter().all(|finding| finding.severity != Severity::Problem));
    /// # Ok(()) }
    /// ```
    pub async fn diagnose_servers(&self) -> Result<Vec<Finding>, Error> {
        self.core.check_open()?;
        self.core.keeper.note_call();
        let mut findings = vec![Finding::new(Severity::Good, "store", self.store())];
        findings.extend(self.core.store.diagnose().await.map_err(Fault::into_error)?);
        Ok(findings)
    }

    /// What is wrong with the servers at this moment, for looks that are repeated: memory that is nearly full, keys that may be evicted, a server that
    /// is a replica, a clock that is off. It costs two commands for each server and changes nothing. The local engine and stores without servers have no
    /// findings, and neither has a server that may not be asked.
    ///
    /// # Errors
    ///
    /// A server that is unreachable; with several, that is a finding.
    pub async fn server_trouble(&self) -> Result<Vec<Finding>, Error> {
        self.core.check_open()?;
        self.core.keeper.note_call();
        self.core.store.trouble().await.map_err(Fault::into_error)
    }

    /// Tries each right that these kinds need for names that begin with `prefix`, with a name that nobody else uses, and names
    /// the rules that are missing. Nothing is left behind. Stores without accounts have no findings.
    ///
    /// # Cancel safety
    ///
    /// A key of the trial may stay for up to 5 s.
    ///
    /// # Errors
    ///
    /// A prefix with which no valid name begins; a store that is unreachable.
    pub async fn diagnose_rights(&self, kinds: &[Kind], prefix: &str) -> Result<Vec<Finding>, Error> {
        self.core.check_open()?;
        if layout::name_under(prefix, "x").is_none() {
            LockName::new(format!("{prefix}x"))?;
        }
        self.core.keeper.note_call();
        self.core.store.try_rights(kinds, prefix).await.map_err(Fault::into_error)
    }

    /// Whether this account may tell what it holds.
    async fn look_at_presence(&self) -> Option<Finding> {
        if self.core.may_tell_presence().await {
            return None;
        }
        let text =
            "the account may not write what it holds (redlatch:client:*), so nobody sees who a holder is";
        Some(
            Finding::new(Severity::Note, "presence", text)
                .remedy("`redlatch acl --prefix PREFIX --kind presence` prints the rights"),
        )
    }

    async fn try_a_lock(&self, prefix: &str) -> Finding {
        let rest = format!("redlatch-doctor-{}", self.id());
        let name = layout::name_under(prefix, &rest);
        let lock = self.lock(name.unwrap_or_else(|| LockName::from(format!("{prefix}{rest}"))));
        let start = Instant::now();
        let outcome = async {
            let guard = lock.try_lock().await?;
            let owner = guard.as_ref().map(|guard| guard.owner().to_text()).unwrap_or_default();
            if let Some(guard) = guard {
                let inner = guard.reenter().await?;
                inner.unlock().await?;
                guard.unlock().await?;
            }
            lock.force_unlock_if(&owner).await
        };
        match outcome.await {
            Ok(Forced::WasFree) => Finding::new(
                Severity::Good,
                "lock",
                format!(
                    "taking, entering again, and releasing work ({:.1} ms for five calls)",
                    start.elapsed().as_secs_f64() * 1_000.0
                ),
            ),
            Ok(other) => Finding::new(
                Severity::Problem,
                "lock",
                format!("a lock was still there after its release ({other:?})"),
            ),
            Err(error) => Finding::new(Severity::Problem, "lock", error.to_string()),
        }
    }
}
