//! `CountDownLatch`: a gate that opens when a count reaches zero; shares its state with Redisson's `RCountDownLatch`
//! (`docs/protocol.md`, latch).

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    core::observing::ObservedAcquire,
    core::{
        Core, Wait,
        contest::{Attempt, Contender},
        fork_safe::ForkSafeCore,
        presence::Waiting,
        wait::WaitDeadline,
    },
    error::{Error, ErrorKind},
    keys::hash_tag,
    kind::key_pattern::LATCH_CHANNEL,
    name::LockName,
    observe::Subject,
    permits::counter::{Counter, amount, item},
    scripts,
    store::Fault,
};

/// A gate that stays closed until a count has been counted down to zero.
///
/// A latch without a count is open. After it has opened, a new count can be set.
#[derive(Clone)]
pub struct CountDownLatch(Arc<Counter>);

impl fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDownLatch").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl CountDownLatch {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        // It has braces of its own, whatever the name looks like.
        let channel = LATCH_CHANNEL.of(name.as_bytes());
        let fault = (hash_tag(&channel) != hash_tag(name.as_bytes())).then(|| {
            Error::new(
                ErrorKind::InvalidName,
                "the braces in the latch name would put its channel into another cluster slot",
            )
            .remedy("leave braces out of the names of latches")
        });
        CountDownLatch(Counter::new(core, name, channel, fault))
    }

    /// The latch's name.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Closes the latch with a count (1 to 2,147,483,647) if it has none; `false` if it has one.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a count out of range; [`ErrorKind::InvalidName`] for a name with braces; a server
    /// that is unreachable or refuses.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::connect("memory:").await?;
    /// let ready = client.count_down_latch("workers-ready");
    /// ready.set_if_absent(2).await?;
    /// ready.count_down().await?;
    /// ready.count_down().await?;
    /// ready.wait().await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_if_absent(&self, count: u32) -> Result<bool, Error> {
        let count = amount("steps", count, self.name())?;
        self.0.set_if_absent(count, None, 1).await
    }

    /// Counts down by one, and answers what is left. The last step opens the latch; on an open one nothing happens.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses. The request is sent once; when its answer was lost
    /// ([`ErrorKind::Timeout`]) it may have happened.
    pub async fn count_down(&self) -> Result<u64, Error> {
        let reply = self.0.run(&scripts::LATCH_DOWN, |call| self.0.with_channel(call)).await?;
        Ok(u64::try_from(item(&reply, 1)).unwrap_or(0))
    }

    /// The count; 0 when the latch is open.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn count(&self) -> Result<u64, Error> {
        Ok(u64::try_from(self.0.value().await?).unwrap_or(0))
    }

    /// Waits as long as it takes until the latch is open.
    ///
    /// A latch without a count is open. So this also ends, uncounted, when the server has lost the count: after a restart without data, a
    /// flush, or a failover to a server that had not got it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and changes nothing.
    ///
    /// # Errors
    ///
    /// A name that is not valid; a server that stays unreachable for the
    /// [outage tolerance](crate::ClientBuilder::outage_tolerance); a key of another type under the name.
    pub async fn wait(&self) -> Result<(), Error> {
        if self.pass(Wait::Forever).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one").on(self.name()))
    }

    /// Waits at most this long until the latch is open; `false` if it stayed closed.
    ///
    /// # Cancel safety
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); trouble that lasts until the end of the time is reported, not hidden as `false`.
    pub async fn wait_for(&self, limit: Duration) -> Result<bool, Error> {
        self.pass(Wait::AtMost(limit)).await
    }

    async fn pass(&self, wait: Wait) -> Result<bool, Error> {
        let core = &self.0.core;
        let _under_way = core.keeper.hold_off_shutdown();
        self.0.ready()?;
        let wait = wait.zero_as_no_wait();
        let deadline = WaitDeadline::new(core, wait);
        let observed = core.observed_acquire(Subject::new("latch", self.name()));
        let passed = core.contest(&mut Passer(self), wait, &deadline, false).await;
        ObservedAcquire::contest_ended(observed, &passed);
        Ok(passed.map_err(|error| error.on(self.name()))?.is_some())
    }

    /// Takes the count away and lets everybody through, waiters of Redisson too; `false` if there was none.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a key of another type, which is left alone.
    pub async fn delete(&self) -> Result<bool, Error> {
        let reply = self.0.run(&scripts::LATCH_DELETE, |call| self.0.with_channel(call)).await?;
        Ok(item(&reply, 1) == 1)
    }
}

/// A waiter at the latch.
struct Passer<'a>(&'a CountDownLatch);

impl Contender for Passer<'_> {
    type Gain = ();

    fn key(&self) -> &[u8] {
        self.0.0.key()
    }

    fn channel(&self) -> Option<Arc<[u8]>> {
        Some(self.0.0.channel.clone())
    }

    /// A latch that is not there is open.
    fn key_to_watch(&self) -> Option<Arc<[u8]>> {
        Some(self.0.0.key.clone())
    }

    fn waiting(&self, since_ms: u64) -> Vec<Waiting> {
        vec![Waiting::here(Subject::new("latch", self.0.name()), None, since_ms)]
    }

    async fn attempt(&mut self) -> Result<Attempt<()>, Fault> {
        let reply = self.0.0.ask(&scripts::COUNTER_GET, |call| call, |_| None).await?;
        Ok(if item(&reply, 2) > 0 { Attempt::Busy(None) } else { Attempt::Won(()) })
    }

    fn mark_outcome_unknown(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_always_has_braces() {
        assert_eq!(LATCH_CHANNEL.of(b"plain"), b"redisson_countdownlatch__channel__{plain}");
        assert_eq!(LATCH_CHANNEL.of(b"a{b}"), b"redisson_countdownlatch__channel__{a{b}}");
    }
}
