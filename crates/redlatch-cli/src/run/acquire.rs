//! Getting the lock: re-entry, waiting, and telling who has it meanwhile.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use redlatch::{Client, Guard, Lease, LockName, LockState};
use tokio::time::{interval, sleep};

use super::environment;
use crate::{
    args::{IfBusy, WaitArgs, run::Reenter},
    durations::{self, Wait},
    escape,
    exit::{self, Failure},
    signals::Signals,
    talk::Talk,
};

/// A wait shorter than this is not worth a word.
pub(crate) const TELL_AFTER: Duration = Duration::from_millis(200);
/// How often the live line is renewed.
pub(crate) const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How often `-v` looks for a new holder when nobody watches.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// What to do about a busy lock, from `--wait`, `--no-wait`, `--if-busy` and `-E`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// How long to wait.
    pub(crate) wait: Wait,
    /// The exit code when that was not enough.
    pub(crate) busy_code: u8,
    /// Whether a busy lock is fine.
    pub(crate) skips: bool,
}

impl From<WaitArgs> for Patience {
    fn from(args: WaitArgs) -> Self {
        // `--if-busy fail` means at once, unless --wait says how long is acceptable first.
        let at_once = args.no_wait || matches!(args.if_busy, Some(IfBusy::Fail | IfBusy::Skip));
        let default = if at_once { Wait::AtMost(Duration::ZERO) } else { Wait::Forever };
        let skips = args.if_busy == Some(IfBusy::Skip);
        let busy_code = args.conflict_exit_code.unwrap_or(if skips { exit::OK } else { exit::BUSY });
        Patience { wait: args.wait.unwrap_or(default), busy_code, skips }
    }
}

/// How the attempt ended.
#[derive(Debug)]
pub(crate) enum Acquired {
    /// The lock is ours; `nested` when an outer run holds it too.
    Held { guard: Guard, nested: bool },
    /// Somebody else has it.
    Busy,
    /// A signal asked us to end.
    Interrupted(i32),
}

/// What to ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) client: &'a Client,
    pub(crate) name: &'a LockName,
    pub(crate) lease: Lease,
    pub(crate) fenced: bool,
    pub(crate) patience: Patience,
    pub(crate) reenter: Reenter,
    pub(crate) talk: Talk,
}

/// Takes the lock, or says why not.
///
/// # Errors
///
/// Those of the store.
pub(crate) async fn acquire(request: Request<'_>, signals: &mut Signals) -> Result<Acquired, Failure> {
    let started = Instant::now();
    let result = tokio::select! {
        biased;
        signal = ending(signals) => Ok(Acquired::Interrupted(signal)),
        result = take(request) => result,
        never = tell(request, started) => match never {},
    };
    if started.elapsed() >= TELL_AFTER {
        request.talk.live("");
    }
    result
}

/// The next signal that asks us to end. Others mean nothing before there is a command.
pub(crate) async fn ending(signals: &mut Signals) -> i32 {
    loop {
        let received = signals.next().await;
        if received.asks_to_end() {
            return received.signal;
        }
    }
}

async fn take(request: Request<'_>) -> Result<Acquired, Failure> {
    if let Some(guard) = reenter(request).await? {
        return Ok(Acquired::Held { guard, nested: true });
    }
    let lock = request.client.lock(request.name);
    let mut attempt = lock.acquire().lease(request.lease);
    if request.fenced {
        attempt = attempt.fenced();
    }
    let attempt = match request.patience.wait {
        Wait::Forever => attempt.wait(redlatch::Wait::Forever),
        Wait::AtMost(Duration::ZERO) => attempt.wait(redlatch::Wait::No),
        Wait::AtMost(limit) => attempt.wait(redlatch::Wait::AtMost(limit)),
    };
    Ok(match attempt.await? {
        Some(guard) => Acquired::Held { guard, nested: false },
        None => Acquired::Busy,
    })
}

/// Enters with an outer run, once the server has confirmed that its owner still holds the lock.
async fn reenter(request: Request<'_>) -> Result<Option<Guard>, Failure> {
    let outer = match request.reenter {
        Reenter::Auto => environment::outer_owner(request.name),
        Reenter::Never => None,
    };
    let Some(outer) = outer else { return Ok(None) };
    let lock = request.client.lock(request.name);
    if !lock.is_held_by(&outer).await? {
        request.talk.detail(format_args!("the outer run does not hold {} any more", quoted(request.name)));
        return Ok(None);
    }
    let mut attempt = lock.acquire().lease(request.lease).owner(&outer).wait(redlatch::Wait::No);
    if request.fenced {
        attempt = attempt.fenced();
    }
    Ok(attempt.await?)
}

/// Says who has the lock, for as long as we wait: in one line that is updated, or with `-v` in one line for each holder.
async fn tell(request: Request<'_>, started: Instant) -> std::convert::Infallible {
    let talk = request.talk;
    if !talk.is_live() && !talk.is_verbose() {
        return pending().await;
    }
    sleep(TELL_AFTER).await;
    let mut ticks = interval(if talk.is_live() { LIVE_INTERVAL } else { LOG_INTERVAL });
    let mut told = None;
    loop {
        ticks.tick().await;
        // The wait itself reports what is wrong with the server; this line is a courtesy.
        let Ok(state) = request.client.inspect(request.name).await else { continue };
        if talk.is_live() {
            talk.live(&line(&state, started.elapsed()));
            continue;
        }
        // Read holds last a little less at each look; who holds them is what matters.
        let holders: Vec<(String, i64)> =
            state.holders.iter().map(|holder| (holder.owner.clone(), holder.holds)).collect();
        if told.as_ref() != Some(&holders) {
            talk.detail(line(&state, started.elapsed()));
            told = Some(holders);
        }
    }
}

/// `"order:42" — held by 1b67…:7, lease 28s; waited 1m12s`
fn line(state: &LockState, waited: Duration) -> String {
    let holders: Vec<String> =
        state.holders.iter().take(3).map(|holder| escape::text(&holder.owner).to_string()).collect();
    let held = if holders.is_empty() {
        "free, being handed over".into()
    } else {
        format!("held by {}", holders.join(", "))
    };
    let lease = state.ttl.map(|ttl| format!(", lease {}", durations::human(ttl))).unwrap_or_default();
    format!("{} — {held}{lease}; waited {}", quoted(&state.name), durations::human(waited))
}

/// A lock name in messages.
pub(crate) fn quoted(name: &LockName) -> String {
    format!("\"{}\"", escape::bytes(name.as_bytes()))
}

/// Why the command did not run.
///
/// # Errors
///
/// Those of the look at the lock are swallowed: the message then names no holder.
pub(crate) async fn busy_message(request: Request<'_>) -> String {
    let name = quoted(request.name);
    let state = request.client.inspect(request.name).await.ok();
    let holder = state.as_ref().and_then(|state| state.holders.first());
    let Some(holder) = holder else { return format!("{name} is busy") };
    let lease = state.as_ref().and_then(|state| state.ttl);
    let lease = lease.map(|ttl| format!(" with {} of lease left", durations::human(ttl))).unwrap_or_default();
    format!(
        "{name} is busy: held by {}{lease}; wait with --wait, or look with `redlatch show`",
        escape::text(&holder.owner)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_combines_the_options() {
        let zero = Wait::AtMost(Duration::ZERO);
        let five = Wait::AtMost(Duration::from_secs(5));
        let args = WaitArgs::default();
        let of = |args| {
            let patience = Patience::from(args);
            (patience.wait, patience.busy_code, patience.skips)
        };
        assert_eq!(of(args), (Wait::Forever, 75, false));
        assert_eq!(of(WaitArgs { no_wait: true, ..args }), (zero, 75, false));
        assert_eq!(of(WaitArgs { if_busy: Some(IfBusy::Fail), ..args }), (zero, 75, false));
        assert_eq!(of(WaitArgs { if_busy: Some(IfBusy::Skip), ..args }), (zero, 0, true));
        assert_eq!(of(WaitArgs { wait: Some(five), if_busy: Some(IfBusy::Skip), ..args }), (five, 0, true));
        assert_eq!(of(WaitArgs { wait: Some(five), conflict_exit_code: Some(9), ..args }), (five, 9, false));
    }
}
