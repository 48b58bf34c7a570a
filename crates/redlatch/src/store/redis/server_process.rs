//! Which process answers at an address.
//!
//! A server that was started anew has the data that it could save. What its predecessor counted since may be missing, so a count
//! belongs to one process, as it belongs to one master (`Store::incarnation`). Servers name their process (`run_id`); where an account may
//! not ask, the process is taken for the same one if another connection is answered after the new one was made.
//!
//! A process does not come back once another one has its place. If that happens again and again, several servers answer at the address in
//! turn, as behind a proxy that spreads connections. None of them knows the locks of the others, and another client may be at another
//! one. So none is used: staying with one of them would look as if all were well, and following each would cut connections for
//! ever.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, Either, join_all, select};
use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind},
    store::Reply,
};

/// How long a connection has to show that the process is still there.
const PROOF_TIME_MAX: Duration = Duration::from_secs(1);

/// A process that comes back within this time is counted. An address that is given to another server and back is older by then.
const RETURN_TIME: Duration = Duration::from_secs(60);
/// How many have to come back, one after the other, until it is clear that they answer in turn.
const TURNS_MIN: u32 = 2;
/// For how long one process alone has to answer after that until it is used again.
const ALONE_TIME: Duration = Duration::from_secs(10);
/// How many processes are remembered.
const EARLIER_MAX: usize = 8;

/// Words that make a server name its process.
pub(super) const QUESTION: [&str; 2] = ["INFO", "server"];

/// The name of a server's process, where it may be asked for it.
pub(super) type Process = Option<Box<str>>;

/// Reads the answer to [`QUESTION`].
pub(super) fn process(answer: &Reply) -> Process {
    let text = String::from_utf8_lossy(answer.bytes()?);
    let id = text.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    (!id.is_empty()).then(|| id.into())
}

/// One number for a master that may move (`mastership`) and the number of its process.
pub(super) fn incarnation(mastership: u64, process_number: u32) -> u64 {
    (mastership << 32) | u64::from(process_number)
}

pub(super) fn mastership(incarnation: u64) -> u64 {
    incarnation >> 32
}

/// A connection, which is to one process of the server.
pub(super) trait ProcessLink: Send + Sync {
    /// Whether it is of no use any more: it has ended, or was retired.
    fn is_dead(&self) -> bool;

    /// Whether the server answers on it now.
    fn answers(&self) -> BoxFuture<'_, bool>;

    /// Notes of which process of the server the connection is.
    fn belongs_to(&self, process_number: u32);

    fn process_number(&self) -> u32;

    /// Has nothing more sent on it; what is under way is answered yet.
    fn retire(&self);

    /// Ends the connection; every call on it gets an unknown outcome at once.
    fn cut(&self);
}

/// The processes that were met at one address, counted from 0. The first one has its number before it is met.
#[derive(Default)]
pub(super) struct ServerProcesses {
    number: AtomicU32,
    met: Mutex<Met>,
    /// Is told of a process that has become a replica.
    on_demotion: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Met {
    /// `None` before the first connection.
    process: Option<Process>,
    /// When the first connection to it was met.
    since: Option<Instant>,
    links: Vec<Weak<dyn ProcessLink>>,
    /// Those of before, and when another one was met.
    earlier: VecDeque<(Process, Instant)>,
    /// How often in a row an earlier one has come back.
    turns: u32,
    /// Several answer in turn: who did last, and since when nobody else has.
    last: Option<(Process, Instant)>,
}

/// Why a new connection is not to be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unused {
    /// Several servers answer in turn. `is_news`: that was found out just now.
    InTurn { is_news: bool },
    /// Its process may have gone before the present one was met.
    Late,
}

/// What has to happen before a new connection counts: these are cut, without the mutex, because that wakes those who wait on them.
struct CutFirst(Vec<Arc<dyn ProcessLink>>);

pub(super) fn in_turn(server: &str) -> Error {
    let text =
        format!("several servers answer in turn at {server}, and none of them has the locks of the others");
    Error::new(ErrorKind::InvalidUrl, text).remedy(
        "name one server in the URL, or have the proxy send all connections to one; for a master that moves use redis-sentinel:// or redis-replicated://, for a cluster redis-cluster://",
    )
}

pub(super) fn late(server: &str) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("another process answers at {server} since the connection was begun"),
    )
}

impl ServerProcesses {
    pub(super) fn telling(on_demotion: Box<dyn Fn() + Send + Sync>) -> Self {
        ServerProcesses { on_demotion: Some(on_demotion), ..ServerProcesses::default() }
    }

    /// A process has become a replica: all connections to it are retired.
    pub(super) fn demoted(&self, process_number: u32) {
        let mut its = self.open();
        its.retain(|link| link.process_number() == process_number && !link.is_dead());
        its.iter().for_each(|link| link.retire());
        if let Some(told) = self.on_demotion.as_ref().filter(|_| !its.is_empty()) {
            told();
        }
    }

    /// The name of the process that was met last, where it may be asked for it.
    pub(super) fn process(&self) -> Option<String> {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.process.as_ref()?.as_deref().map(str::to_owned)
    }

    /// The number of the process that was met last.
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Cuts the connections that do not answer now where names do not tell the process: it is the same one only if another
    /// connection shows it.
    pub(super) async fn prove<F: Future<Output = ()>>(
        &self,
        process: &Process,
        sleep: impl Fn(Duration) -> F,
    ) {
        let is_named = {
            let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
            process.is_some() && !matches!(met.process, Some(None))
        };
        if is_named {
            return;
        }
        let others: Vec<Arc<dyn ProcessLink>> = self.open();
        let proofs = others.iter().filter(|other| !other.is_dead()).map(async |other| {
            let late = pin!(sleep(PROOF_TIME_MAX));
            if !matches!(select(other.answers(), late).await, Either::Left((true, _))) {
                other.cut();
            }
        });
        join_all(proofs).await;
    }

    fn open(&self) -> Vec<Arc<dyn ProcessLink>> {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes a new connection and tells it whose it is. Connections to an earlier process are cut before the next one counts, so no
    /// request goes to one of them under the number of another. `asked`: a moment before its process was asked for its name.
    pub(super) fn admit_link(
        &self,
        link: &Arc<dyn ProcessLink>,
        process: Process,
        asked: Instant,
    ) -> Result<(), Unused> {
        self.meet_at(link, process, asked, Instant::now())
    }

    fn meet_at(
        &self,
        link: &Arc<dyn ProcessLink>,
        process: Process,
        asked: Instant,
        now: Instant,
    ) -> Result<(), Unused> {
        loop {
            match self.count(link, &process, asked, now) {
                Ok(outcome) => return outcome,
                // Others may have been met meanwhile.
                Err(CutFirst(others)) => others.iter().for_each(|other| other.cut()),
            }
        }
    }

    fn count(
        &self,
        link: &Arc<dyn ProcessLink>,
        process: &Process,
        asked: Instant,
        now: Instant,
    ) -> Result<Result<(), Unused>, CutFirst> {
        // Dropped after the mutex.
        let mut others: Vec<Arc<dyn ProcessLink>>;
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, since)) = &mut met.last {
            if last != process {
                (*last, *since) = (process.clone(), now);
                return Ok(Err(Unused::InTurn { is_news: false }));
            }
            if now.saturating_duration_since(*since) < ALONE_TIME {
                return Ok(Err(Unused::InTurn { is_news: false }));
            }
            (met.last, met.turns) = (None, 0);
            met.earlier.clear();
        }
        others = met.links.iter().filter_map(Weak::upgrade).collect();
        others.retain(|other| !other.is_dead());
        let is_same = match &met.process {
            None => true,
            Some(Some(before)) if process.is_some() => Some(before) == process.as_ref(),
            // A right to ask that comes or goes is no other process.
            Some(_) => !others.is_empty(),
        };
        if is_same {
            met.links = others.iter().map(Arc::downgrade).collect();
        } else {
            // Its answer may be older than the one that made the present process known.
            if process.is_some() && met.since.is_some_and(|since| asked < since) {
                return Ok(Err(Unused::Late));
            }
            if !others.is_empty() {
                return Err(CutFirst(others));
            }
            met.links.clear();
            self.number.fetch_add(1, Ordering::SeqCst);
            met.since = None;
            if met.is_turn(process, now) {
                met.last = Some((process.clone(), now));
                return Ok(Err(Unused::InTurn { is_news: true }));
            }
        }
        link.belongs_to(self.number());
        met.links.push(Arc::downgrade(link));
        let before = met.process.take().flatten().filter(|_| is_same);
        met.process = Some(process.clone().or(before));
        met.since.get_or_insert(now);
        Ok(Ok(()))
    }
}

impl Met {
    /// Whether the process that follows on another one shows that several answer in turn.
    fn is_turn(&mut self, process: &Process, now: Instant) -> bool {
        let is_back = process.is_some()
            && self
                .earlier
                .iter()
                .any(|(earlier, at)| earlier == process && now.saturating_duration_since(*at) < RETURN_TIME);
        self.turns = if is_back { self.turns + 1 } else { 0 };
        self.earlier.retain(|(earlier, _)| earlier != process);
        if let Some(before) = self.process.take() {
            self.earlier.push_back((before, now));
        }
        if self.earlier.len() > EARLIER_MAX {
            self.earlier.pop_front();
        }
        self.turns >= TURNS_MIN
    }
}

#[cfg(test)]
mod tests;
