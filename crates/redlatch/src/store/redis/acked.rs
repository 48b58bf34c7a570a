//! Calls that replicas are to confirm: a script, and then `WAIT` on the same connection.
//!
//! `WAIT` blocks its connection until the replicas have answered or time is up, so these calls have connections of their own,
//! a few for each server, each used by one call at a time, and by a task of the background thread: a caller that waits for a place among
//! them must not wait for one that is not polled. The script's answer is read before anything is waited for:
//! most askers of a busy lock are refused, and must not keep the server and its replicas busy for that.

use std::{
    future::Future,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use redis::Cmd;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Dial,
    census::{Account, Census, cannot_wait, refused, wait},
    failure::Failure,
    link::Link,
    listed::{Listed, Listing, Names},
    lookups::Lookups,
    run::{closed_error, first_try, run_on},
    server_process::ServerProcesses,
};
use crate::{
    config::ScriptMode,
    error::{Error, ErrorKind},
    panic_safe::panic_safe,
    replica_ack::{ReplicaCount, Replicas},
    store::{Call, Confirm, Fault, Reply, protocol_error},
};

/// How many calls of one server may wait for replicas at a time; more queue up.
const SEATS_MAX: usize = 8;
/// How many more may have a connection that they do not use: their callers are not polled.
const WAITING_MAX: usize = 64;
/// For how long a caller may leave its connection unused before others are let in.
const UNUSED_TIME_MAX: Duration = Duration::from_millis(100);
/// For how long it may besides when there is no room for one more of that kind.
const GIVEN_UP_TIME: Duration = Duration::from_secs(3);
/// After this time without use a connection is closed.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// One server's connections for these calls.
pub(super) struct AckPool {
    dial: Arc<Dial>,
    processes: Arc<ServerProcesses>,
    background: Handle,
    checkouts: Arc<Semaphore>,
    /// The places of those who have a connection and do not use it.
    waiting: Arc<Semaphore>,
    state: Mutex<State>,
    /// `WAIT` is there and allowed. Only the good news is kept: an account that is given the right need not reconnect.
    waits: AtomicBool,
    census: AtomicU8,
    lookups: Lookups,
    /// The node is left for good.
    closed: CancellationToken,
}

#[derive(Default)]
struct State {
    /// The last one is the last one used.
    idle: Vec<(Arc<Blocked>, Instant)>,
    open: Vec<Weak<Blocked>>,
    sweeping: bool,
    /// Counts the times at which all connections were given up; those of before are not used again.
    age: u64,
}

/// A connection that may be blocked on purpose.
struct Blocked {
    link: Arc<Link>,
    age: u64,
}

/// The right to use one connection alone.
struct Checkout {
    pool: Arc<AckPool>,
    blocked: Arc<Blocked>,
    /// An answer is outstanding. The next call would have to wait for it.
    asking: bool,
    place: OwnedSemaphorePermit,
    /// The place is one of those whose callers do nothing.
    waits: bool,
}

impl Checkout {
    /// Waits for what the caller wants next; `None` if that is nothing. One who is not polled gives its place to others and keeps the
    /// connection, on which alone its replicas can be asked, as long as there is room for that.
    async fn next<T>(&mut self, mut order: oneshot::Receiver<T>) -> Option<T> {
        if !self.waits {
            tokio::select! {
                biased;
                order = &mut order => return order.ok(),
                () = tokio::time::sleep(UNUSED_TIME_MAX) => {}
            }
            tokio::select! {
                biased;
                order = &mut order => return order.ok(),
                place = self.pool.waiting.clone().acquire_owned() => self.place = place.ok()?,
                () = tokio::time::sleep(GIVEN_UP_TIME) => return None,
            }
            self.waits = true;
        }
        order.await.ok()
    }

    /// Runs a script whose change replicas are to confirm.
    async fn run(
        &mut self,
        mode: ScriptMode,
        call: &Call,
        with_asking_command: bool,
    ) -> Result<Reply, Failure> {
        let link = self.blocked.link.clone();
        // The caller may not have been polled for a while, and nothing has been sent yet.
        if self.pool.closed.is_cancelled() {
            return Err(closed_error().into());
        }
        if !link.is_usable() {
            let error = Error::new(ErrorKind::Unreachable, "the connection ended before it was used");
            return Err(Fault::NotSent(error).into());
        }
        self.asking = true;
        let reply = run_on(&link, mode, first_try(mode, call), call, with_asking_command).await;
        self.asking = false;
        reply
    }

    /// Asks the master for its replicas.
    async fn account(&mut self, census: Census) -> Result<Account, Fault> {
        let said = self.ask(&census.question()).await.map_err(Fault::from)?;
        // They are compared with those that others list, by the addresses under which they are reached.
        let (Account { in_sync, offset }, dial) = (census.read(&said)?, &self.pool.dial);
        let reachable = |names: Names| names.into_iter().map(|addr| dial.reachable(addr)).collect();
        let in_sync = in_sync.into_iter().map(reachable).collect();
        Ok(Account { in_sync, offset })
    }

    async fn ask(&mut self, cmd: &Cmd) -> Result<Reply, Failure> {
        self.asking = true;
        let outcome = self.blocked.link.ask(cmd).await;
        self.asking = false;
        outcome
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if self.asking {
            self.blocked.link.cut();
        } else {
            self.pool.put_back(&self.blocked);
        }
    }
}

/// A connection on which a script can run, and its replicas be asked. A task of the background thread has it, and does there what
/// the caller wants next: one that is not polled any more keeps no place from others.
pub(super) struct Ready {
    orders: oneshot::Sender<Order>,
}

/// A script to run, and where its answer goes.
struct Order {
    mode: ScriptMode,
    call: Call,
    with_asking_command: bool,
    listing: Option<Arc<dyn Listing>>,
    answer: oneshot::Sender<Result<(Reply, oneshot::Sender<Question>), Failure>>,
}

/// For how long to ask the replicas, and where their answer goes.
struct Question {
    within: Duration,
    answer: oneshot::Sender<Result<Replicas, Fault>>,
}

impl Ready {
    /// Runs a script whose change replicas are to confirm. `with_asking_command`: another node has named this one for this once. `listing`:
    /// who knows of replicas that the master itself may have lost sight of.
    pub(super) async fn run(
        self,
        mode: ScriptMode,
        call: &Call,
        with_asking_command: bool,
        listing: Option<Arc<dyn Listing>>,
    ) -> Result<(Reply, Confirm), Failure> {
        let (answer, answered) = oneshot::channel();
        let order = Order { mode, call: call.clone(), with_asking_command, listing, answer };
        self.orders.send(order).map_err(|_| Fault::NotSent(given_up()))?;
        let (reply, questions) = answered.await.map_err(|_| Fault::Unknown(background_gone()))??;
        let confirm: Confirm = Box::new(move |within| {
            Box::pin(async move {
                let (answer, answered) = oneshot::channel();
                questions.send(Question { within, answer }).map_err(|_| Fault::Unknown(given_up()))?;
                answered.await.map_err(|_| Fault::Unknown(background_gone()))?
            })
        });
        Ok((reply, confirm))
    }
}

fn background_gone() -> Error {
    Error::new(ErrorKind::Unreachable, "the background thread has ended")
}

/// Too many callers have connections and do not use them.
fn given_up() -> Error {
    let text = "an acquire was not polled for so long that its connection for asking replicas was given up";
    Error::new(ErrorKind::Timeout, text).remedy("poll what acquires all the time, as in a task of its own")
}

/// Does the work of one call, as far as its caller wants it done. A caller that goes while there is an answer to come has the connection cut.
async fn attend(pool: Arc<AckPool>, count: ReplicaCount, mut tell: oneshot::Sender<Result<Ready, Failure>>) {
    let checked_out = async {
        let mut checkout = pool.check_out().await?;
        let census = pool.prepare(&mut checkout, count).await?;
        Ok((checkout, census))
    };
    let (mut checkout, census) = match unless_gone(&mut tell, checked_out).await {
        Some(Ok(checked_out)) => checked_out,
        Some(Err(failure)) => return drop(tell.send(Err(failure))),
        None => return,
    };
    let (orders, order) = oneshot::channel();
    if tell.send(Ok(Ready { orders })).is_err() {
        return;
    }
    let Some(Order { mode, call, with_asking_command, listing, mut answer }) = checkout.next(order).await
    else {
        return;
    };
    let reply = match unless_gone(&mut answer, checkout.run(mode, &call, with_asking_command)).await {
        Some(Ok(reply)) => reply,
        Some(Err(failure)) => {
            drop(checkout);
            return drop(answer.send(Err(failure)));
        }
        None => return,
    };
    let (questions, question) = oneshot::channel();
    if answer.send(Ok((reply, questions))).is_err() {
        return;
    }
    let Some(Question { within, mut answer }) = checkout.next(question).await else { return };
    let confirmed = async {
        match count {
            ReplicaCount::AtLeast(count) => checkout.confirm(count, within).await,
            ReplicaCount::All => checkout.confirm_by_all(census, listing.as_deref(), within).await,
        }
    };
    let Some(confirmed) = unless_gone(&mut answer, confirmed).await else { return };
    // The caller may want the connection again at once.
    drop(checkout);
    let _ = answer.send(confirmed);
}

/// Does some work, unless nobody waits for it (any more).
async fn unless_gone<T, U>(tell: &mut oneshot::Sender<U>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = tell.closed() => None,
        outcome = work => Some(outcome),
    }
}

impl AckPool {
    pub(super) fn new(
        dial: Arc<Dial>,
        processes: Arc<ServerProcesses>,
        background: &Handle,
        closed: CancellationToken,
    ) -> Arc<AckPool> {
        Arc::new(AckPool {
            dial,
            processes,
            background: background.clone(),
            checkouts: Arc::new(Semaphore::new(SEATS_MAX)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            state: Mutex::default(),
            waits: AtomicBool::new(false),
            census: AtomicU8::new(Census::UNKNOWN),
            lookups: Lookups::default(),
            closed,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for a script whose change replicas are to confirm. What is in the way of asking them is reported here.
    pub(super) async fn ready(self: Arc<Self>, count: ReplicaCount) -> Result<Ready, Failure> {
        let (tell, told) = oneshot::channel();
        // The connections outlive the runtime that asked first.
        self.background.clone().spawn(attend(self, count, tell));
        told.await.map_err(|_| Fault::NotSent(background_gone()))?
    }

    /// Makes sure, once for each server, that it can be asked for its replicas.
    async fn prepare(&self, checkout: &mut Checkout, count: ReplicaCount) -> Result<Census, Failure> {
        if !self.waits.load(Ordering::Relaxed) {
            match checkout.ask(&wait(0, 0)).await {
                Ok(_) => self.waits.store(true, Ordering::Relaxed),
                Err(Failure::Refused { code, detail, .. }) => return Err(cannot_wait(&code, &detail)),
                // Nothing has been asked for yet, so nothing can have run.
                Err(Failure::Fault(fault)) => return Err(Fault::NotSent(fault.into_error()).into()),
            }
        }
        if count != ReplicaCount::All {
            return Ok(Census::Role);
        }
        if let Some(known) = Census::of(self.census.load(Ordering::Relaxed)) {
            return Ok(known);
        }
        let mut refusal = None;
        for census in [Census::Role, Census::Info] {
            match checkout.ask(&census.question()).await {
                Ok(reply) => {
                    census.read(&reply)?;
                    self.census.store(census.code(), Ordering::Relaxed);
                    return Ok(census);
                }
                Err(Failure::Refused { code, detail, .. }) => {
                    let error = Fault::server(&code, &detail).into_error();
                    let error = refused("ROLE and INFO", error, &detail);
                    // A missing right can be given, a missing command cannot.
                    if refusal.is_none() || error.kind() == ErrorKind::Permission {
                        refusal = Some(error);
                    }
                }
                Err(Failure::Fault(fault)) => return Err(Fault::NotSent(fault.into_error()).into()),
            }
        }
        Err(Fault::Server(
            refusal.unwrap_or_else(|| Error::new(ErrorKind::Unsupported, "no way to count replicas")),
        )
        .into())
    }

    /// Waits for a connection of its own.
    async fn check_out(self: &Arc<Self>) -> Result<Checkout, Fault> {
        let place = panic_safe(async || {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => Err(closed_error()),
                place = self.checkouts.clone().acquire_owned() => place.map_err(|_| closed_error()),
            }
        });
        let place = place.await?;
        let (idle, age) = {
            let mut state = self.state();
            let idle = std::iter::from_fn(|| state.idle.pop()).find(|(blocked, _)| blocked.link.is_usable());
            (idle, state.age)
        };
        let blocked = match idle {
            Some((blocked, _)) => blocked,
            None => self.open_one(age).await.map_err(Fault::NotSent)?,
        };
        Ok(Checkout { pool: self.clone(), blocked, asking: false, place, waits: false })
    }

    /// Opens a connection, unless all are given up meanwhile.
    async fn open_one(&self, age: u64) -> Result<Arc<Blocked>, Error> {
        let link = Link::open(&self.dial, &self.processes, Box::new(|| {})).await?;
        let blocked = Arc::new(Blocked { link, age });
        let mut state = self.state();
        state.open.retain(|open| open.strong_count() > 0);
        state.open.push(Arc::downgrade(&blocked));
        let given_up = state.age != age || self.closed.is_cancelled();
        drop(state);
        if given_up {
            blocked.link.cut();
        }
        Ok(blocked)
    }

    fn put_back(self: &Arc<Self>, blocked: &Arc<Blocked>) {
        let mut state = self.state();
        if !blocked.link.is_usable() || blocked.age != state.age {
            return;
        }
        state.idle.push((blocked.clone(), Instant::now()));
        if !std::mem::replace(&mut state.sweeping, true) {
            self.background.spawn(sweep(Arc::downgrade(self)));
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.open().iter().any(|blocked| blocked.link.is_waiting())
    }

    /// Ends every connection; the next call makes a new one.
    pub(super) fn cut(&self) {
        let open = {
            let mut state = self.state();
            state.age += 1;
            state.idle.clear();
            std::mem::take(&mut state.open)
        };
        open.iter().filter_map(Weak::upgrade).for_each(|blocked| blocked.link.cut());
    }

    fn open(&self) -> Vec<Arc<Blocked>> {
        self.state().open.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Checkout {
    /// Asks all replicas of either account for what was last done on this connection. The master is asked for its own behind each grant, and they are not
    /// remembered.
    async fn confirm_by_all(
        &mut self,
        census: Census,
        listing: Option<&dyn Listing>,
        within: Duration,
    ) -> Result<Replicas, Fault> {
        let end = Instant::now() + within;
        let left = || end.saturating_duration_since(Instant::now());
        let pool = self.pool.clone();
        let look_up = |host| pool.lookups.look_up(host, resolve);
        let Account { mut in_sync, offset: granted } = self.account(census).await?;
        let mut confirmed = Replicas::new(0, 0);
        loop {
            let listed = match listing {
                Some(listing) => listing.listed(left()).await,
                None => None,
            };
            let wanted = listed.unwrap_or(Listed::Count(0)).all(&in_sync, look_up, left() / 2).await;
            if wanted <= confirmed.acknowledged {
                confirmed.wanted = wanted;
                break;
            }
            confirmed = self.confirm(wanted, left()).await?;
            if !confirmed.is_complete() {
                return Ok(confirmed);
            }
            // Any may have confirmed: one that has come meanwhile stands in for none that the master has lost meanwhile.
            in_sync = self.account(census).await?.in_sync;
        }
        let lacking = match listing {
            Some(listing) => listing.lacking(granted, left()).await,
            None => 0,
        };
        let Replicas { acknowledged, wanted, .. } = confirmed;
        Ok(Replicas::new(acknowledged.min(wanted), wanted.saturating_add(lacking)))
    }

    /// Asks so many replicas for what was last done on this connection.
    async fn confirm(&mut self, wanted: u32, within: Duration) -> Result<Replicas, Fault> {
        // To the server 0 ms means for ever.
        let limit_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
        self.blocked.link.allow_silence(limit_ms);
        let outcome = self.ask(&wait(wanted, limit_ms)).await;
        self.blocked.link.allow_silence(0);
        match outcome {
            Ok(reply) => match reply.int().and_then(|count| u32::try_from(count).ok()) {
                Some(acknowledged) => Ok(Replicas::new(acknowledged, wanted)),
                None => Err(Fault::Unknown(protocol_error("WAIT", &reply))),
            },
            Err(Failure::Refused { code, detail, .. }) => {
                self.pool.waits.store(false, Ordering::Relaxed);
                Err(cannot_wait(&code, &detail).into())
            }
            Err(Failure::Fault(fault)) => Err(fault),
        }
    }
}

/// The addresses that a name stands for here; none if it is unknown.
async fn resolve(host: String) -> Vec<IpAddr> {
    // The port is of no interest.
    let found = tokio::net::lookup_host((host, 0)).await;
    found.map(|found| found.map(|found| found.ip()).collect()).unwrap_or_default()
}

/// Closes what has not been used for a while, until nothing is left.
async fn sweep(pool: Weak<AckPool>) {
    loop {
        tokio::time::sleep(IDLE_TIME / 2).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.state();
        state.idle.retain(|(blocked, since)| blocked.link.is_usable() && since.elapsed() < IDLE_TIME);
        if state.idle.is_empty() {
            state.sweeping = false;
            return;
        }
    }
}
