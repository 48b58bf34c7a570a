//! One connection for commands, shared by all tasks of a runtime.

mod parts;

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::{runtime::Handle, sync::OnceCell, task::AbortHandle};

use self::parts::Parts;
use super::{
    Dial, changes,
    driver::DriverWork,
    failure::{Failure, reply},
    known_nodes::Trust,
    server_process::{self, Process, ProcessLink, ServerProcesses, Unused},
};
use crate::{
    call_hook::{CallHook, Connection},
    error::{Error, ErrorKind},
    store::{Fault, Reply},
};

pub(super) struct Link {
    /// What the server is called in errors.
    server: Arc<str>,
    connection: MultiplexedConnection,
    tally: Arc<Tally>,
    /// Has what is sent watched.
    calls: CallHook,
    mark: Mutex<Mark>,
    /// For how long the server has been asked to be silent.
    silence_ms: AtomicU64,
    dead: AtomicBool,
    /// Nothing more is to be sent on it, though it goes on.
    retired: AtomicBool,
    trust: Trust,
    /// Of which of the server's processes the connection is, as [`ServerProcesses`] counts them.
    process_number: AtomicU32,
    processes: Arc<ServerProcesses>,
    driver: AbortHandle,
    work: Arc<DriverWork>,
    /// The runtime that drives the connection.
    home: Handle,
    /// Where the server can send what nobody has asked for: whether it tells of changes, once that was asked for.
    tells: Option<OnceCell<Tells>>,
    /// The server is the local engine, which has a command of its own for that.
    is_local: bool,
}

/// Whether a server tells of changes over a connection.
pub(super) struct Tells {
    /// Why it does not, in its own words.
    refused: Mutex<Option<String>>,
}

/// What has been asked on a connection, and what has come back.
#[derive(Default)]
struct Tally {
    sent: Counter,
    answered: Counter,
    /// Calls whose callers went before their answers came. They count as unanswered until a question that was asked after them
    /// has its answer.
    left: AtomicU64,
    /// Such a question is on its way.
    asking: AtomicBool,
    /// The last mark whose own question has been answered.
    reached: AtomicU64,
}

/// A counter on a cache line of its own: one is written by senders, the other by receivers.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

/// A request that has been counted as sent.
struct Sent<'a> {
    link: &'a Link,
    is_answered: bool,
}

impl Sent<'_> {
    fn answered(mut self) {
        self.is_answered = true;
        self.link.tally.answered.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.link.left();
        }
    }
}

/// What had been sent at some past moment; when it is still unanswered much later, the connection is stuck. Counting
/// replaces a timer for every call, because answers come in the order of the requests.
///
/// Callers count answers when they are polled, and those that are not polled have had theirs unseen. So a mark behind which answers
/// seem to be due gets a question of its own when it is looked at again, and the server is only held for silent if that one is not answered either.
#[derive(Default)]
struct Mark {
    number: u64,
    sent: u64,
    at_ms: u64,
    is_asked: bool,
}

impl Link {
    pub(super) async fn open(
        dial: &Dial,
        processes: &Arc<ServerProcesses>,
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Result<Arc<Link>, Error> {
        let parts = dial.bounded(|| Parts::ask(dial)).await?;
        Self::over(dial, processes, parts, false, on_end).await
    }

    /// As [`open`](Self::open), in a protocol in which the server can tell of changes, if it knows that.
    pub(super) async fn open_telling(
        dial: &Dial,
        processes: &Arc<ServerProcesses>,
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Result<Arc<Link>, Error> {
        let Some(changes) = dial.changes_heard() else { return Self::open(dial, processes, on_end).await };
        let (parts, tells) = dial.bounded(|| Parts::ask_to_tell(dial, changes)).await?;
        Self::over(dial, processes, parts, tells, on_end).await
    }

    async fn over(
        dial: &Dial,
        processes: &Arc<ServerProcesses>,
        Parts { connection, driver, work, trust, process, asked }: Parts,
        tells: bool,
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Result<Arc<Link>, Error> {
        processes.prove(&process, |time| dial.sleep(time)).await;
        let abort = driver.abort_handle();
        let link = Arc::new(Link {
            server: dial.describe().into(),
            connection,
            tally: Arc::default(),
            calls: dial.call_hook().clone(),
            mark: Mutex::default(),
            silence_ms: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            trust,
            process_number: AtomicU32::new(0),
            processes: processes.clone(),
            driver: abort,
            work,
            home: Handle::current(),
            tells: tells.then(OnceCell::new),
            is_local: dial.is_local(),
        });
        let process_link: Arc<dyn ProcessLink> = link.clone();
        if let Err(unused) = processes.admit_link(&process_link, process, asked) {
            link.cut();
            let error = match unused {
                Unused::InTurn { .. } => server_process::in_turn(&dial.describe()),
                Unused::Late => server_process::late(&dial.describe()),
            };
            if unused == (Unused::InTurn { is_news: true }) {
                tracing::warn!(%error, "a server is not used");
            }
            return Err(error);
        }
        let weak = Arc::downgrade(&link);
        dial.call_hook().opened(weak.clone());
        tokio::spawn(async move {
            let _ = driver.await;
            if let Some(link) = weak.upgrade() {
                link.dead.store(true, Ordering::Release);
            }
            on_end();
        });
        Ok(link)
    }

    /// Asks which process answers, over so many new connections, one after the other.
    pub(super) async fn processes(dial: &Dial, count: usize) -> Result<Vec<Process>, Error> {
        let mut processes = Vec::new();
        for _ in 0..count {
            let parts = dial.bounded(|| Parts::ask(dial)).await?;
            processes.push(parts.process.clone());
            parts.end();
        }
        Ok(processes)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) || self.work.is_over()
    }

    /// Whether requests may be sent on it.
    pub(super) fn is_usable(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && !self.is_dead() && self.is_trusted()
    }

    /// Whether its server has been asked whose side it is on, or need not be.
    pub(super) fn is_trusted(&self) -> bool {
        self.trust.lasts()
    }

    /// What its server has said over it is believed.
    pub(super) fn trust(&self) {
        self.trust.give();
    }

    pub(super) fn process_number(&self) -> u32 {
        self.process_number.load(Ordering::SeqCst)
    }

    /// Ends the connection; every call on it gets an unknown outcome at once.
    pub(super) fn cut(&self) {
        self.dead.store(true, Ordering::Release);
        self.driver.abort();
        self.work.end();
    }

    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Reply, Fault> {
        Ok(self.ask(cmd).await?)
    }

    /// Sends one command; a refusal keeps the server's own words.
    pub(super) async fn ask(&self, cmd: &Cmd) -> Result<Reply, Failure> {
        let mut connection = self.connection.clone();
        let sent = self.count();
        let outcome = self.work.heard(pin!(connection.send_packed_command(cmd))).await;
        sent.answered();
        match outcome {
            Ok(value) => reply(value).map_err(|failure| self.refused(failure)),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// As [`ask`](Self::ask), with the word that another node has sent the request here. Both go out together, because the word
    /// counts for the next request on the connection, also of another task.
    pub(super) async fn ask_with_asking_command(&self, cmd: &Cmd) -> Result<Reply, Failure> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(cmd.clone());
        let mut connection = self.connection.clone();
        let sent = self.count();
        let outcome = self.work.heard(pin!(connection.send_packed_commands(&both, 1, 1))).await;
        sent.answered();
        match outcome {
            Ok(mut values) => {
                reply(values.pop().unwrap_or(Value::Nil)).map_err(|failure| self.refused(failure))
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Has the next change of each of these keys told, and answers how many of them exist; `None` where changes are not told.
    pub(super) async fn watch(&self, keys: &[Arc<[u8]>]) -> Result<Option<u64>, Failure> {
        let Some(tells) = self.tells().await? else { return Ok(None) };
        if tells.refused().is_some() {
            return Ok(None);
        }
        let mut both = redis::Pipeline::with_capacity(2);
        if self.is_local {
            both.cmd("REDLATCH").arg("WATCH");
        } else {
            both.cmd("CLIENT").arg("CACHING").arg("YES");
            both.cmd("EXISTS");
        }
        for key in keys {
            both.arg(&key[..]);
        }
        let mut connection = self.connection.clone();
        let sent = self.count();
        let outcome = self.work.heard(pin!(connection.send_packed_commands(&both, 0, both.len()))).await;
        sent.answered();
        let values = outcome.map_err(|error| self.failure(error))?;
        // The word before counts for the next request, so they go out together, and a refusal of either is a refusal.
        let replies: Result<Vec<Reply>, Failure> = values.into_iter().map(reply).collect();
        match replies {
            Ok(replies) => {
                Ok(replies.last().and_then(Reply::int).and_then(|count| u64::try_from(count).ok()))
            }
            Err(failure) if changes::is_for_good(&failure) => {
                tells.refuse(failure);
                Ok(None)
            }
            Err(failure) => Err(self.refused(failure)),
        }
    }

    /// Whether changes are told over this connection; `None` if its protocol has no way to.
    pub(super) async fn tells(&self) -> Result<Option<&Tells>, Failure> {
        let Some(cell) = &self.tells else { return Ok(None) };
        let ask = || async {
            let tells = Tells { refused: Mutex::default() };
            if !self.is_local {
                match self.ask(&changes::tracking()).await {
                    Ok(_) => {}
                    Err(failure) if changes::is_for_good(&failure) => tells.refuse(failure),
                    Err(failure) => return Err(failure),
                }
            }
            Ok(tells)
        };
        cell.get_or_try_init(ask).await.map(Some)
    }

    fn count(&self) -> Sent<'_> {
        self.tally.sent.0.fetch_add(1, Ordering::Relaxed);
        self.calls.call();
        Sent { link: self, is_answered: false }
    }

    /// The caller of a request has gone. Answers come in the order of the requests, so the answer to another question tells that
    /// this one has been answered, too; a refusal will do.
    fn left(&self) {
        self.tally.left.fetch_add(1, Ordering::SeqCst);
        if self.is_dead() || self.tally.asking.swap(true, Ordering::SeqCst) {
            return;
        }
        let (tally, work, mut connection) = (self.tally.clone(), self.work.clone(), self.connection.clone());
        self.home.spawn(async move {
            loop {
                let left = tally.left.swap(0, Ordering::SeqCst);
                if left == 0 {
                    tally.asking.store(false, Ordering::SeqCst);
                    // A task that left between the two has seen a question on its way.
                    if tally.left.load(Ordering::SeqCst) == 0 || tally.asking.swap(true, Ordering::SeqCst) {
                        return;
                    }
                    continue;
                }
                if !is_answered(&work, &mut connection).await {
                    return;
                }
                tally.answered.0.fetch_add(left, Ordering::Relaxed);
            }
        });
    }

    /// Asks the question of a mark. Whatever was queued before is answered before it.
    fn ask_for_mark(&self, number: u64) {
        let (tally, work, mut connection) = (self.tally.clone(), self.work.clone(), self.connection.clone());
        self.home.spawn(async move {
            if is_answered(&work, &mut connection).await {
                tally.reached.fetch_max(number, Ordering::Relaxed);
            }
        });
    }

    /// Notes that the server has been asked to answer later than usual by this much.
    pub(super) fn allow_silence(&self, silence_ms: u64) {
        self.silence_ms.store(silence_ms, Ordering::Relaxed);
    }

    pub(super) fn is_waiting(&self) -> bool {
        let Tally { sent, answered, .. } = &*self.tally;
        !self.is_dead() && sent.0.load(Ordering::Relaxed) > answered.0.load(Ordering::Relaxed)
    }

    pub(super) fn check_stall(&self, now_ms: u64, timeout_ms: u64) {
        let timeout_ms = timeout_ms.saturating_add(self.silence_ms.load(Ordering::Relaxed));
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.tally.sent.0.load(Ordering::Relaxed);
        let answered = self.tally.answered.0.load(Ordering::Relaxed);
        if answered >= mark.sent || self.tally.reached.load(Ordering::Relaxed) >= mark.number {
            *mark = Mark { number: mark.number + 1, sent, at_ms: now_ms, is_asked: false };
            return;
        }
        if !std::mem::replace(&mut mark.is_asked, true) && !self.is_dead() {
            self.ask_for_mark(mark.number);
        }
        if now_ms.saturating_sub(mark.at_ms) >= timeout_ms {
            tracing::warn!(timeout_ms, "the server has not answered in time; the connection is dropped");
            self.cut();
        }
    }

    /// A refusal of this server. One that has become a replica is left.
    fn refused(&self, failure: Failure) -> Failure {
        if failure.is_of_a_replica() {
            self.processes.demoted(self.process_number());
        }
        failure.at(&self.server)
    }

    fn failure(&self, error: RedisError) -> Failure {
        if let Some(code) = error.code() {
            return self.refused(Failure::refused(code, error.detail().unwrap_or("")));
        }
        self.dead.store(true, Ordering::Release);
        self.driver.abort();
        Failure::Fault(Fault::Unknown(Error::new(
            ErrorKind::Unreachable,
            format!("the connection ended while waiting for an answer ({})", error.category()),
        )))
    }
}

/// Asks something that any server answers, if only by a refusal.
async fn is_answered(work: &DriverWork, connection: &mut MultiplexedConnection) -> bool {
    match work.heard(pin!(connection.send_packed_command(&redis::cmd("PING")))).await {
        Ok(_) => true,
        Err(error) => error.code().is_some(),
    }
}

impl ProcessLink for Link {
    fn is_dead(&self) -> bool {
        !self.is_usable()
    }

    fn answers(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move { is_answered(&self.work, &mut self.connection.clone()).await })
    }

    fn belongs_to(&self, process_number: u32) {
        self.process_number.store(process_number, Ordering::SeqCst);
    }

    fn process_number(&self) -> u32 {
        Link::process_number(self)
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    fn cut(&self) {
        Link::cut(self);
    }
}

impl Connection for Link {
    fn is_waiting(&self) -> bool {
        self.is_waiting()
    }

    fn check_stall(&self, now_ms: u64, timeout_ms: u64) {
        self.check_stall(now_ms, timeout_ms);
    }
}

impl Tells {
    fn refuse(&self, failure: Failure) {
        let why = Fault::from(failure).to_string();
        tracing::debug!(
            why,
            "the server does not tell of changes; holds are looked at with each renewal only"
        );
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// Why changes are not told, if they are not.
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests;
