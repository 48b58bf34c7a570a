//! One connection for commands, shared by all tasks of a runtime.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    },
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, RedisError, Value, aio::MultiplexedConnection,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, OnceCell},
    task::{AbortHandle, JoinHandle},
};

use super::{
    Dial,
    changes::{self, Changes},
    failure::{Failure, reply},
    life::{self, InTurn, Lived, Lives, Process},
};
use crate::{
    call_hook::{CallHook, Connection},
    error::{Error, ErrorKind},
    store::{Fault, Reply},
};

/// Room for requests between tasks and the driver. The default of the client library is small for thousands of tasks.
const REQUESTS_QUEUED_MAX: usize = 4096;
/// How much may be gathered into one write.
const WRITE_BUFFER_BYTES: usize = 256 * 1024;

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
    /// Of which of the server's processes the connection is, as [`Lives`] counts them.
    life: AtomicU32,
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

/// A connection, the task that drives it, what that task does, and the server's process.
type Parts = (MultiplexedConnection, JoinHandle<()>, Arc<DriverWork>, Process);

/// What drives a connection. A runtime that no longer runs never drops the tasks that it was told to abort, and with them the
/// calls that wait; so this can be dropped from outside.
///
/// What is queued while it ends may stay in the queue, which lives as long as those who wait do: the queue is emptied once, and a task
/// may be about to put something into it. So those who wait look at the phase once they have queued
/// ([`heard`](Self::heard)).
struct DriverWork {
    work: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    phase: AtomicU8,
    /// Wakes those who queued while it was at work, which may have been its end.
    ended: Notify,
}

/// What is in the queue by now is served or dropped later.
const RESTS: u8 = 0;
/// It is being polled, and may come to its end by that.
const WORKS: u8 = 1;
const OVER: u8 = 2;

impl DriverWork {
    fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        let work = Mutex::new(Some(Box::pin(work) as Pin<Box<dyn Future<Output = ()> + Send>>));
        DriverWork { work, phase: AtomicU8::new(RESTS), ended: Notify::new() }
    }

    /// It has come to its end, or was dropped with the runtime that drove it.
    fn is_over(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == OVER
    }

    /// What is in the queue after this may be missed by what follows, and finds the phase; what was there before is seen.
    fn enters(&self, phase: u8) {
        self.phase.store(phase, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Nothing is missed at rest: what follows begins with a phase of its own. So this costs no fence, of which there would be one for each
    /// read from the server.
    fn rests(&self) {
        self.phase.store(RESTS, Ordering::Release);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = work.as_mut() else { return Poll::Ready(()) };
        self.enters(WORKS);
        if driver.as_mut().poll(cx).is_pending() {
            self.rests();
            return Poll::Pending;
        }
        let driver = work.take();
        self.enters(OVER);
        drop(work);
        drop(driver);
        self.ended.notify_waiters();
        Poll::Ready(())
    }

    /// Drops it, unless it is being polled this very moment: then its runtime runs, and aborts it.
    fn end(&self) {
        let mut work = match self.work.try_lock() {
            Ok(work) => work,
            Err(TryLockError::Poisoned(work)) => work.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let driver = work.take();
        self.enters(OVER);
        // Without the mutex, because this wakes those who wait for answers.
        drop(work);
        drop(driver);
        self.ended.notify_waiters();
    }

    /// Waits for the answer to what is put into the driver's queue, or for the driver's end. The answer stays where its caller has it: a
    /// future that is moved in is in each of them twice, and thousands of calls then no longer fit into the processor's cache.
    async fn heard<T, F>(&self, mut answer: Pin<&mut F>) -> Result<T, RedisError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let mut ended = pin!(self.ended.notified());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            // It has been queued, unless the queue is full, and then it comes by here again.
            fence(Ordering::SeqCst);
            if self.phase.load(Ordering::SeqCst) == RESTS {
                return Poll::Pending;
            }
            let is_over = ended.as_mut().poll(cx).is_ready() || self.phase.load(Ordering::SeqCst) == OVER;
            if is_over {
                Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into()))
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

/// The part of the task that drives a connection: when a running runtime drops the aborted task, the work ends with it.
struct Driven(Arc<DriverWork>);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.end();
    }
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
        lives: &Lives,
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Result<Arc<Link>, Error> {
        let parts = dial.bounded(|| async { begin(dial, None).await.map_err(Begun::into_error) }).await?;
        Self::over(dial, lives, parts, false, on_end).await
    }

    /// As [`open`](Self::open), in a protocol in which the server can tell of changes, if it knows that.
    pub(super) async fn open_telling(
        dial: &Dial,
        lives: &Lives,
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Result<Arc<Link>, Error> {
        let Some(changes) = dial.changes_heard() else { return Self::open(dial, lives, on_end).await };
        let opening = || async {
            let mut begun = begin(dial, Some(changes.clone())).await;
            // Sentinels end all connections to a server that they promote, which says nothing of what it knows.
            if matches!(begun, Err(Begun::Ended(_))) {
                begun = begin(dial, Some(changes.clone())).await;
            }
            match begun {
                Ok(parts) => Ok((parts, true)),
                // The server may know the older protocol only. If that is not the reason, the next try tells it.
                Err(Begun::NotLoggedIn(_) | Begun::Ended(_)) => {
                    Ok((begin(dial, None).await.map_err(Begun::into_error)?, false))
                }
                Err(Begun::Elsewhere(error)) => Err(error),
            }
        };
        let (parts, tells) = dial.bounded(opening).await?;
        Self::over(dial, lives, parts, tells, on_end).await
    }

    async fn over(
        dial: &Dial,
        lives: &Lives,
        (connection, driver, work, process): Parts,
        tells: bool,
        on_end: Box<dyn FnOnce() + Send>,
    ) -> Result<Arc<Link>, Error> {
        if process.is_none() {
            lives.prove(|time| dial.sleep(time)).await;
        }
        let abort = driver.abort_handle();
        let link = Arc::new(Link {
            server: dial.describe().into(),
            connection,
            tally: Arc::default(),
            calls: dial.call_hook().clone(),
            mark: Mutex::default(),
            silence_ms: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            life: AtomicU32::new(0),
            driver: abort,
            work,
            home: Handle::current(),
            tells: tells.then(OnceCell::new),
            is_local: dial.is_local(),
        });
        let lived: Arc<dyn Lived> = link.clone();
        if let Err(InTurn { is_news }) = lives.meet(&lived, process) {
            link.cut();
            let error = life::in_turn(&dial.describe());
            if is_news {
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
            let ask = || async { begin(dial, None).await.map_err(Begun::into_error) };
            let (_, driver, work, process) = dial.bounded(ask).await?;
            driver.abort();
            work.end();
            processes.push(process);
        }
        Ok(processes)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) || self.work.is_over()
    }

    pub(super) fn life(&self) -> u32 {
        self.life.load(Ordering::SeqCst)
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
            Ok(value) => reply(value).map_err(|failure| failure.at(&self.server)),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// As [`ask`](Self::ask), with the word that another node has sent the request here. Both go out together, because the word
    /// counts for the next request on the connection, whoever's that is.
    pub(super) async fn ask_sent_on(&self, cmd: &Cmd) -> Result<Reply, Failure> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(cmd.clone());
        let mut connection = self.connection.clone();
        let sent = self.count();
        let outcome = self.work.heard(pin!(connection.send_packed_commands(&both, 1, 1))).await;
        sent.answered();
        match outcome {
            Ok(mut values) => {
                reply(values.pop().unwrap_or(Value::Nil)).map_err(|failure| failure.at(&self.server))
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
            Err(failure) => Err(failure.at(&self.server)),
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
                    // Whoever left between the two has seen a question on its way.
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

    fn failure(&self, error: RedisError) -> Failure {
        if let Some(code) = error.code() {
            return Failure::refused(code, error.detail().unwrap_or("")).at(&self.server);
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

impl Lived for Link {
    fn is_dead(&self) -> bool {
        Link::is_dead(self)
    }

    fn answers(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move { is_answered(&self.work, &mut self.connection.clone()).await })
    }

    fn lives_in(&self, life: u32) {
        self.life.store(life, Ordering::SeqCst);
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

/// How far a connection came that is none.
enum Begun {
    NotLoggedIn(Error),
    /// It ended before there was an answer to the log-in.
    Ended(Error),
    /// Not to the log-in, or beyond it.
    Elsewhere(Error),
}

impl Begun {
    fn into_error(self) -> Error {
        let (Begun::NotLoggedIn(error) | Begun::Ended(error) | Begun::Elsewhere(error)) = self;
        error
    }
}

/// Connects and logs in. With somebody to tell, it speaks the protocol in which the server can tell.
async fn begin(dial: &Dial, changes: Option<Arc<Changes>>) -> Result<Parts, Begun> {
    let stream = dial.stream().await.map_err(Begun::Elsewhere)?;
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(REQUESTS_QUEUED_MAX)
        .set_write_backpressure_boundary(WRITE_BUFFER_BYTES);
    let mut login = dial.login();
    if let Some(changes) = changes {
        login = login.set_protocol(ProtocolVersion::RESP3);
        let tell = move |push: PushInfo| {
            changes.heard(push);
            Ok::<(), std::convert::Infallible>(())
        };
        config = config.set_push_sender(tell);
    }
    let (mut connection, driver) = MultiplexedConnection::new_with_config(&login, stream, config)
        .await
        .map_err(|error| match error.is_io_error() || error.is_connection_dropped() {
            true => Begun::Ended(dial.refused(&error)),
            false => Begun::NotLoggedIn(dial.refused(&error)),
        })?;
    let work = Arc::new(DriverWork::new(driver));
    let driven = Driven(work.clone());
    let driver = tokio::spawn(std::future::poll_fn(move |cx| driven.0.poll(cx)));
    let abort = driver.abort_handle();
    match dial.greet(&mut connection).await {
        Ok(process) => Ok((connection, driver, work, process)),
        Err(error) => {
            abort.abort();
            Err(Begun::Elsewhere(error))
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redlatch_testkit::fake_server::{FakeReply, FakeServer};

    use super::*;
    use crate::{client::Client, config::url::StoreUrl, scripts, store::Call};

    async fn link(server: &FakeServer) -> Arc<Link> {
        let url = server.url();
        let StoreUrl::Redis(addr) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
        let config = Client::builder().url(&url).config().clone();
        let dial = Dial::new(addr, &config, &Handle::current()).unwrap();
        Link::open(&dial, &Lives::default(), Box::new(|| {})).await.unwrap()
    }

    /// Sentinels end all connections to a server as they promote it. One that was just logging in was taken for the sign of a server that knows
    /// the older protocol only, and nobody was told of changes for as long as the next one lived.
    #[tokio::test]
    async fn a_connection_that_ends_while_it_logs_in_is_no_sign_of_the_older_protocol() {
        for (ended, wanted) in [(0, true), (1, true), (100, false)] {
            let hellos = std::sync::atomic::AtomicUsize::new(0);
            let server = FakeServer::start(move |request| match &request[0][..] {
                b"HELLO" if hellos.fetch_add(1, Ordering::SeqCst) < ended => FakeReply::Close,
                _ => FakeReply::Default,
            })
            .unwrap();
            let url = server.url();
            let StoreUrl::Redis(addr) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
            let config = Client::builder().url(&url).config().clone();
            let dial = Dial::new(addr, &config, &Handle::current()).unwrap().telling_changes();
            let link = Link::open_telling(&dial, &Lives::default(), Box::new(|| {})).await.unwrap();
            let tells = link.tells().await.unwrap().is_some();
            // One that always ends them may be worth no more than that.
            assert_eq!(tells, wanted, "after {ended}");
        }
    }

    /// A call whose caller goes away as soon as the server has it.
    async fn left(server: &FakeServer, link: &Link) {
        let before = server.count("LOST");
        let cmd = redis::cmd("LOST");
        let mut call = std::pin::pin!(link.ask(&cmd));
        while server.count("LOST") == before {
            tokio::select! {
                outcome = &mut call => panic!("{outcome:?}"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_still_owed_an_answer() {
        let silent = AtomicBool::new(false);
        let server = FakeServer::start(move |request| {
            if request[0] == b"LOST" || silent.load(Ordering::SeqCst) {
                silent.store(true, Ordering::SeqCst);
                return FakeReply::Silence;
            }
            FakeReply::Default
        })
        .unwrap();
        let link = link(&server).await;
        left(&server, &link).await;
        assert!(link.is_waiting());
        link.check_stall(1_000, 500);
        link.check_stall(1_499, 500);
        assert!(!link.is_dead(), "the time is not up");
        link.check_stall(1_500, 500);
        assert!(link.is_dead(), "nothing has come for as long as that");
    }

    /// What a task queued while the driver came to its end stayed in the queue, and the task waited for ever: the driver empties its queue once,
    /// and a sender may be about to write into it.
    #[tokio::test]
    async fn what_is_queued_while_the_driver_ends_is_not_waited_for() {
        type Waits = Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send>>;
        // Nothing answers what is queued here.
        let waits = |work: &Arc<DriverWork>| {
            let work = work.clone();
            Box::pin(async move { work.heard(pin!(std::future::pending())).await }) as Waits
        };
        let (mut cx, soon) = (Context::from_waker(std::task::Waker::noop()), Duration::from_secs(20));

        // In the middle of the last time that it is polled, by another thread.
        let queued: Arc<Mutex<Option<Waits>>> = Arc::default();
        let ending = queued.clone();
        let work = Arc::new(DriverWork::new(std::future::poll_fn(move |cx| {
            let mut queued = ending.lock().unwrap();
            let waits = queued.as_mut().unwrap();
            assert!(waits.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })));
        *queued.lock().unwrap() = Some(waits(&work));
        assert!(work.poll(&mut cx).is_ready());
        let waits_on = queued.lock().unwrap().take().unwrap();
        tokio::time::timeout(soon, waits_on).await.expect("it ends").unwrap_err();

        // After that, and after it was dropped from outside.
        tokio::time::timeout(soon, waits(&work)).await.expect("it ends").unwrap_err();
        let work = Arc::new(DriverWork::new(std::future::pending()));
        let mut before = waits(&work);
        assert!(work.poll(&mut cx).is_pending());
        assert!(before.as_mut().poll(&mut cx).is_pending(), "it is at rest, and sees what is queued");
        work.end();
        tokio::time::timeout(soon, waits(&work)).await.expect("it ends").unwrap_err();
    }

    /// The same with everything that is real. It needs two threads at one moment, so it proves little when it is green.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn calls_on_a_connection_that_is_cut_come_to_their_end() {
        let server = FakeServer::start(|_| FakeReply::Default).unwrap();
        for _ in 0..200 {
            let link = link(&server).await;
            let calls: Vec<_> = (0..6)
                .map(|_| {
                    let link = link.clone();
                    tokio::spawn(async move { while link.ask(&redis::cmd("PING")).await.is_ok() {} })
                })
                .collect();
            tokio::task::yield_now().await;
            link.cut();
            for call in calls {
                tokio::time::timeout(Duration::from_secs(20), call).await.expect("it ends").unwrap();
            }
        }
    }

    /// A thread stood still for half a second between the announcement of a call and its sending, by when the keeper had stopped looking:
    /// an unlock waited for ever for a server that had died.
    #[tokio::test]
    async fn what_is_sent_is_watched_though_nothing_announces_it() {
        let server = FakeServer::start(|request| match &request[0].to_ascii_uppercase()[..] {
            b"EVALSHA" => FakeReply::Silence,
            _ => FakeReply::Default,
        })
        .unwrap();
        let timeout = Duration::from_millis(200);
        let client = Client::builder().url(server.url()).response_timeout(timeout).connect().await.unwrap();
        let call = Call::new(&scripts::QUERY).key(&Arc::from(&b"x"[..])).text(&"".into());
        let answer = client.core.store.run(call);
        let fault =
            tokio::time::timeout(Duration::from_secs(20), answer).await.expect("it ends").unwrap_err();
        assert!(fault.is_unknown(), "{fault}");
    }

    /// Each future that was moved into another one was in it twice: a call took 6,872 bytes, and pairs of a thousand tasks a third more
    /// processor time, because they no longer fitted into its cache.
    #[tokio::test]
    async fn a_call_is_not_in_memory_twice() {
        let server = FakeServer::start(|_| FakeReply::Default).unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let call = Call::new(&scripts::QUERY).key(&Arc::from(&b"x"[..])).text(&"".into());
        let answer = client.core.store.run(call);
        let bytes = size_of_val(&*answer);
        assert!(bytes < 3_000, "{bytes} bytes");
    }

    /// Its answer is there, and the server has nothing else to answer: the connection was given up.
    #[tokio::test]
    async fn a_call_whose_caller_is_not_polled_leaves_its_connection_alone() {
        let silent = Arc::new(AtomicBool::new(false));
        let hangs = silent.clone();
        let server = FakeServer::start(move |request| match &request[0][..] {
            _ if hangs.load(Ordering::SeqCst) => FakeReply::Silence,
            b"PING" => FakeReply::Error("NOPERM not you".into()),
            _ => FakeReply::Default,
        })
        .unwrap();
        let link = link(&server).await;
        let cmd = redis::cmd("ECHO");
        let mut call = std::pin::pin!(link.ask(&cmd));
        assert!(futures_util::poll!(&mut call).is_pending());
        for n in 0..3 {
            link.check_stall(1_000 * n, 500);
            // Most answers come before that, and are not asked after.
            link.check_stall(1_000 * n + 250, 500);
            let answered = async {
                while link.tally.reached.load(Ordering::Relaxed) <= n {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), answered).await.expect("a refusal is an answer");
            assert!(link.is_waiting(), "its caller has not seen it");
        }
        // From here on nothing is answered, and the time counts as ever.
        silent.store(true, Ordering::SeqCst);
        link.check_stall(5_000, 500);
        link.check_stall(5_499, 500);
        assert!(!link.is_dead(), "the time is not up");
        link.check_stall(5_500, 500);
        assert!(link.is_dead());
        let _ = call.await;
    }

    #[tokio::test]
    async fn an_answer_to_a_later_question_settles_what_nobody_waits_for() {
        // It is slow, and refuses to be pinged, which is an answer.
        let late = AtomicBool::new(false);
        let server = FakeServer::start(move |request| match &request[0][..] {
            b"LOST" => {
                late.store(true, Ordering::SeqCst);
                FakeReply::Silence
            }
            b"PING" if late.swap(false, Ordering::SeqCst) => {
                FakeReply::Raw(b"+OK\r\n-NOPERM not you\r\n".to_vec())
            }
            _ => FakeReply::Default,
        })
        .unwrap();
        let link = link(&server).await;
        for n in 0..3 {
            left(&server, &link).await;
            let settled = async {
                while link.is_waiting() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), settled).await.expect("it is settled");
            link.check_stall(10_000 * n, 500);
            link.check_stall(10_000 * n + 5_000, 500);
            assert!(!link.is_dead());
        }
    }
}
