//! `LockSet`: several locks that are taken as one, and what tells the kinds of sets apart. The methods that take it are in
//! `acquire_set.rs`.

use std::{fmt, sync::Arc};

use super::lock_handle::LockHandle;
use crate::name::LockName;

/// A type that stands for one kind of set: the `S` of [`LockSet<S>`](LockSet).
///
/// This trait is sealed: it is for naming sets of all kinds, not for making new ones. The kinds are
/// [`Multi`](crate::kinds::Multi) and [`Quorum`](crate::kinds::Quorum).
///
/// # Example
///
/// ```
/// use redlatch::{Client, Error, MultiLock, QuorumLock, kinds::{LockSet, SetMarker}};
///
/// async fn is_free<S: SetMarker>(set: &LockSet<S>) -> Result<bool, Error> {
///     Ok(set.try_lock().await?.is_some())
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = Client::connect("memory:").await?;
/// let multi = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// assert!(is_free(&multi).await? && is_free(&QuorumLock::new([client.lock("orders")])?).await?);
/// # Ok(()) }
/// ```
pub trait SetMarker: sealed::Gather + 'static {}

pub(crate) mod sealed {
    use super::{LockSet, SetMarker};
    use crate::{
        error::Error,
        locks::shared::members::{Holding, Options},
    };

    /// Keeps [`SetMarker`] to the kinds of this crate, and says how a set of each kind is taken.
    pub trait Gather: Sized {
        /// What the handle calls itself.
        const LOCK: &'static str;
        /// What the acquire calls itself.
        const ACQUIRE: &'static str;
        /// What the guard calls itself.
        const GUARD: &'static str;

        /// What a handle of this kind has beside its members.
        type Extra: Clone + Send + Sync + 'static;

        /// Takes the members; `None` if the set is busy.
        fn gather(
            set: &LockSet<Self>,
            options: Options,
        ) -> impl Future<Output = Result<Option<Holding>, Error>> + Send
        where
            Self: SetMarker;
    }
}

/// Several locks that are taken as one. `S` is the kind of set; each kind has a name of its own, [`MultiLock`](crate::MultiLock)
/// and [`QuorumLock`](crate::QuorumLock), whose page says what holding the set means.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let both = redlatch::MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// assert_eq!(both.names().count(), 2);
/// # Ok(()) }
/// ```
pub struct LockSet<S: SetMarker> {
    pub(crate) members: Arc<[LockHandle]>,
    pub(crate) extra: S::Extra,
}

impl<S: SetMarker> Clone for LockSet<S> {
    fn clone(&self) -> Self {
        LockSet { members: self.members.clone(), extra: self.extra.clone() }
    }
}

impl<S: SetMarker> fmt::Debug for LockSet<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(S::LOCK).field(&self.names().collect::<Vec<_>>()).finish()
    }
}

impl<S: SetMarker> LockSet<S> {
    /// The members' names, in the order of listing.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.members.iter().map(LockHandle::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, MultiLock, QuorumLock};

    async fn shows<S: SetMarker>(set: &LockSet<S>, kind: &str, names: &str) {
        let lock = format!("{kind}Lock([{names}])");
        assert_eq!(format!("{:?}", set.clone()), lock);
        let acquire = format!("Acquire{kind} {{ set: {lock}, wait: No, lease: Renewed, .. }}");
        assert_eq!(format!("{:?}", set.acquire().clone()), acquire);
        let guard = format!("{:?}", set.lock().await.unwrap());
        assert!(guard.starts_with(&format!("{kind}Guard(Holding {{ guards: [Guard {{")), "{guard}");
    }

    #[tokio::test]
    async fn sets_acquires_and_guards_of_each_kind_show_their_names() {
        let client = Client::connect("memory:").await.unwrap();
        let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
        shows(&both, "Multi", r#"LockName("a"), LockName("b")"#).await;
        let quorum = QuorumLock::new([client.lock("q")]).unwrap();
        shows(&quorum, "Quorum", r#"LockName("q")"#).await;
    }
}
