//! Every default, and the limits of what may be set.

use std::{ops::RangeInclusive, time::Duration};

use crate::error::{Error, ErrorKind};

/// The lease of holds that are renewed, unless set otherwise: 30 s, as Redisson's `lockWatchdogTimeout`.
pub const WATCHDOG_LEASE: Duration = Duration::from_secs(30);
/// The shortest lease of a renewed hold. Below it a renewal every third could not survive one slow reply.
pub const WATCHDOG_LEASE_MIN: Duration = Duration::from_millis(150);
/// The longest lease of any kind: one hundred years. Redis keeps expiry in 64-bit milliseconds, and sums must not wrap.
pub const LEASE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How long a connection attempt may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take before the connection counts as dead.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a wait without limit rides out an unreachable server.
pub const OUTAGE_TOLERANCE: Duration = Duration::from_secs(30);
/// The longest a waiter sleeps without looking again, unless set otherwise: the safety net under lost messages.
pub const POLL_INTERVAL_MAX: Duration = Duration::from_millis(800);
/// What may be set for it. Above that a waiter for a fair lock would lose its place, and one whose messages have ceased to come would not find out.
pub(crate) const POLL_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(30);
/// The same for a waiter that has others before it in a queue on the server.
pub const QUEUE_POLL_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// For how long a waiter for a fair lock counts, after the present lease, without being heard of again.
pub const FAIR_WAIT: Duration = Duration::from_secs(30);
/// The same for a waiter of Redisson, by its default: it adds this to its own time in the queue, and subtracts it from the times of waiters behind it.
pub const REDISSON_FAIR_WAIT: Duration = Duration::from_secs(300);
/// The longest of these times that may be set.
pub const FAIR_WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long one process may pass a lock on among its own tasks before others get their turn.
pub const TURN_TIME_MAX: Duration = Duration::from_millis(8);
/// How often one process may pass a lock on among its own tasks before others get their turn.
pub const TURN_PASSES_MAX: u32 = 10_000;
/// How many members a lock over several may have.
pub const MEMBERS_MAX: usize = 1_000;
/// The shortest time that a member of a quorum has for its answer, unless set otherwise.
pub const MEMBER_TIMEOUT_MIN: Duration = Duration::from_millis(50);
/// The longest time that a member of a quorum has for its answer, unless set otherwise.
pub const MEMBER_TIMEOUT_MAX: Duration = Duration::from_millis(500);
/// What is taken off the validity of a quorum, besides each member's own hundredth of the lease: servers keep time in whole
/// milliseconds, and two of them may round against us.
pub const QUORUM_DRIFT: Duration = Duration::from_millis(2);
/// How many names one renewal call refreshes. Larger batches would hold up the server for others.
pub const RENEWAL_BATCH_MAX: usize = 100;

/// The shortest lease. Its holder counts on one millisecond less, and a server on which less than one is left may take the hold for over.
pub const LEASE_MIN: Duration = Duration::from_millis(2);

/// A lease in whole milliseconds, checked.
pub(crate) fn lease_ms(lease: Duration) -> Result<i64, Error> {
    if lease < LEASE_MIN {
        return Err(Error::new(
            ErrorKind::InvalidOption,
            format!("a lease of {lease:?} is under {LEASE_MIN:?}"),
        )
        .remedy("give a lease of at least 2 ms, or none to have it renewed"));
    }
    if lease > LEASE_MAX {
        return Err(Error::new(ErrorKind::InvalidOption, "the lease is over one hundred years")
            .remedy("use a renewed lease, which lasts as long as its holder"));
    }
    Ok(lease.as_millis() as i64)
}
