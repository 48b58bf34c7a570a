//! How many replicas have to confirm a grant before it counts, and what becomes of one that too few have confirmed.

use std::{fmt, time::Duration};

use crate::error::{Error, ErrorKind};

/// How long to wait for replicas that are to confirm a grant, unless set otherwise: 1 s, as Redisson's `slavesSyncTimeout`.
pub const REPLICA_ACK_TIME: Duration = Duration::from_secs(1);
/// The longest time to wait for them.
pub const REPLICA_ACK_TIME_MAX: Duration = Duration::from_secs(3600);
/// How many replicas may be asked for.
pub const REPLICAS_MAX: u32 = 1_000;

/// How many replicas are to confirm a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaCount {
    /// So many, or more.
    AtLeast(u32),
    /// All that are in sync, and all that are known to the store besides.
    All,
}

/// Replica acknowledgement: an acquire that is not done before so many replicas have the grant.
///
/// None unless asked for. It is asked for at an acquire and concerns the grant alone, never renewals and releases. It makes it
/// unlikely that a grant is forgotten when the master dies; it is no consensus, and does not make it impossible
/// (`docs/topologies.md`, replica acknowledgement).
///
/// # Example
///
/// ```
/// # use std::time::Duration;
/// # use redlatch::{ErrorKind, ReplicaAck};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// // All replicas that the server has, which are none here.
/// let held = client.lock("a").acquire().replica_ack(ReplicaAck::all()).await?.expect("it is free");
/// assert_eq!(held.replicas().map(|replicas| replicas.is_complete()), Some(true));
/// // One at least, or the lock is given back. A store without replicas refuses before it takes the lock.
/// let one = ReplicaAck::at_least(1).within(Duration::from_millis(200));
/// let refused = client.lock("b").acquire().replica_ack(one).await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::InvalidOption);
/// // The same, but the lock is kept, and its guard says how many have it.
/// let kept = client.lock("b").acquire().replica_ack(one.keep_on_shortfall()).await?.expect("it is free");
/// assert_eq!(kept.replicas().map(|replicas| replicas.to_string()).as_deref(), Some("0 of 1"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaAck {
    pub(crate) count: Option<ReplicaCount>,
    pub(crate) within: Duration,
    pub(crate) keep: bool,
}

impl Default for ReplicaAck {
    fn default() -> Self {
        Self::none()
    }
}

impl ReplicaAck {
    fn of(count: Option<ReplicaCount>) -> Self {
        ReplicaAck { count, within: REPLICA_ACK_TIME, keep: false }
    }

    /// No replica is asked: an uncontended acquire is one request.
    pub fn none() -> Self {
        Self::of(None)
    }

    /// At least `n` replicas (1 to 1,000) have to confirm.
    pub fn at_least(n: u32) -> Self {
        Self::of(Some(ReplicaCount::AtLeast(n)))
    }

    /// All replicas have to confirm: as many as the master has in sync when it grants, and no fewer than sentinels, the cluster
    /// or the servers of the URL have in sight, where there are such (`docs/topologies.md`, replica acknowledgement). Where there are
    /// none this is met, so ask for [`at_least`](Self::at_least) where there must be one.
    pub fn all() -> Self {
        Self::of(Some(ReplicaCount::All))
    }

    /// How long to wait for them (1 ms to 1 h), 1 s unless set; but no longer than half the lease, nor than three quarters of
    /// what is left of the time for waiting for the lock. It ends as soon as enough have confirmed.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    /// Keeps the lock when too few have confirmed in time; [`Guard::replicas`](crate::Guard::replicas) says how many. Unless
    /// set, it is released and the acquire fails with [`ErrorKind::NotReplicated`].
    #[must_use]
    pub fn keep_on_shortfall(mut self) -> Self {
        self.keep = true;
        self
    }

    /// The acknowledgement to ask for, if any, with its values checked.
    pub(crate) fn checked(self) -> Result<Option<Replication>, Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::InvalidOption, text));
        let Some(count) = self.count else { return Ok(None) };
        if let ReplicaCount::AtLeast(n) = count
            && !(1..=REPLICAS_MAX).contains(&n)
        {
            return invalid(format!("{n} replicas are not between 1 and {REPLICAS_MAX}"));
        }
        if !(Duration::from_millis(1)..=REPLICA_ACK_TIME_MAX).contains(&self.within) {
            return invalid(format!(
                "a time for replicas of {:?} is not between 1 ms and {REPLICA_ACK_TIME_MAX:?}",
                self.within
            ));
        }
        Ok(Some(Replication { count, within: self.within, keep: self.keep }))
    }
}

/// An acknowledgement that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replication {
    pub(crate) count: ReplicaCount,
    pub(crate) within: Duration,
    pub(crate) keep: bool,
}

impl Replication {
    /// Whether a hold that was confirmed like that is what this asks for.
    pub(crate) fn is_met_by(&self, confirmed: Option<Confirmed>) -> bool {
        let Some(Confirmed { count, replicas }) = confirmed else { return false };
        match self.count {
            ReplicaCount::AtLeast(n) => replicas.acknowledged >= n,
            ReplicaCount::All => count == ReplicaCount::All && replicas.is_complete(),
        }
    }

    /// The error of a grant that too few have confirmed. `undone`: it is certain that it was given back.
    pub(crate) fn shortfall(&self, replicas: Replicas, undone: bool) -> Error {
        let back = if undone { "was given back" } else { "is being given back" };
        Error::new(
            ErrorKind::NotReplicated,
            format!("only {replicas} replicas confirmed the grant within the time allowed, so it {back}"),
        )
    }
}

/// How a hold was confirmed when it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) count: ReplicaCount,
    pub(crate) replicas: Replicas,
}

/// How many replicas had a grant when its acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replicas {
    /// So many had it for certain.
    pub acknowledged: u32,
    /// So many were asked for; for all, as many as were known of.
    pub wanted: u32,
}

impl Replicas {
    /// The two numbers.
    pub fn new(acknowledged: u32, wanted: u32) -> Self {
        Replicas { acknowledged, wanted }
    }

    /// Whether as many had it as were asked for.
    pub fn is_complete(&self) -> bool {
        self.acknowledged >= self.wanted
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.acknowledged, self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused() {
        let refused = |ack: ReplicaAck| ack.checked().unwrap_err().kind();
        assert_eq!(refused(ReplicaAck::at_least(0)), ErrorKind::InvalidOption);
        assert_eq!(refused(ReplicaAck::at_least(1_001)), ErrorKind::InvalidOption);
        assert_eq!(refused(ReplicaAck::all().within(Duration::ZERO)), ErrorKind::InvalidOption);
        assert_eq!(refused(ReplicaAck::all().within(Duration::from_secs(3_601))), ErrorKind::InvalidOption);
        assert_eq!(ReplicaAck::none().within(Duration::ZERO).checked().unwrap(), None);
        assert!(ReplicaAck::at_least(1_000).within(Duration::from_millis(1)).checked().unwrap().is_some());
    }

    #[test]
    fn a_hold_stands_for_what_it_was_confirmed_with() {
        let met = |asks: ReplicaAck, count, acknowledged, wanted| {
            let replicas = Replicas::new(acknowledged, wanted);
            asks.checked().unwrap().unwrap().is_met_by(Some(Confirmed { count, replicas }))
        };
        let (all, one, two) = (ReplicaAck::all(), ReplicaAck::at_least(1), ReplicaAck::at_least(2));
        assert!(!one.checked().unwrap().unwrap().is_met_by(None), "a hold that nobody has confirmed");
        assert!(met(one, ReplicaCount::AtLeast(2), 1, 2), "a shortfall for one may be enough for another");
        assert!(!met(two, ReplicaCount::AtLeast(1), 1, 1));
        assert!(met(two, ReplicaCount::All, 2, 2));
        assert!(met(all, ReplicaCount::All, 2, 2));
        assert!(!met(all, ReplicaCount::All, 1, 2));
        assert!(!met(all, ReplicaCount::AtLeast(2), 2, 2), "there may be three");
    }
}
