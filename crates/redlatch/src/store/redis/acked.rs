//! Calls that replicas are to confirm: a script, and then `WAIT` on the same connection.
//!
//! `WAIT` blocks its connection until the replicas have answered or time is up, so these calls have connections of their own,
//! a few for each server, each used by one call at a time. The script's answer is read before anything is waited for:
//! most askers of a busy lock are refused, and must not keep the server and its replicas busy for that.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use redis::Cmd;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Dial,
    link::{Failure, Link},
    node::{closed_error, first_try, run_on},
};
use crate::{
    config::ScriptMode,
    error::{Error, ErrorKind},
    replica_ack::Replicas,
    store::{Call, Confirm, Fault, ReplicaCount, Reply, protocol_error},
};

/// How many calls of one server may wait for replicas at a time; more queue up.
const SEATS_MAX: usize = 8;
/// After this time without use a connection is closed.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// How to learn how many replicas a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Census {
    Role,
    Info,
}

impl Census {
    const UNKNOWN: u8 = 0;

    fn code(self) -> u8 {
        match self {
            Census::Role => 1,
            Census::Info => 2,
        }
    }

    fn of(code: u8) -> Option<Census> {
        [Census::Role, Census::Info].into_iter().find(|census| census.code() == code)
    }

    fn question(self) -> Cmd {
        match self {
            Census::Role => redis::cmd("ROLE"),
            Census::Info => {
                let mut cmd = redis::cmd("INFO");
                cmd.arg("replication");
                cmd
            }
        }
    }

    /// How many replicas are in sync.
    fn read(self, reply: &Reply) -> Result<u32, Fault> {
        let replicas = match self {
            Census::Role => match reply.array() {
                Some([role, _, replicas, ..]) if role.bytes() == Some(b"master") => {
                    replicas.array().map(<[Reply]>::len)
                }
                Some([role, ..]) if matches!(role.bytes(), Some(b"slave" | b"replica")) => {
                    return Err(demoted());
                }
                _ => None,
            },
            Census::Info => {
                let text = reply.bytes().map(String::from_utf8_lossy).unwrap_or_default();
                let mut lines = text.lines().map(str::trim);
                match lines.find_map(|line| line.strip_prefix("role:")) {
                    Some("master") => Some(text.lines().filter(|line| is_in_sync(line)).count()),
                    Some(_) => return Err(demoted()),
                    None => None,
                }
            }
        };
        let replicas = replicas.and_then(|count| u32::try_from(count).ok());
        replicas.ok_or_else(|| Fault::Server(protocol_error("ROLE or INFO", reply)))
    }
}

/// Whether a line of `INFO replication` tells of a replica that is in sync: `slave0:ip=…,port=…,state=online,…`.
fn is_in_sync(line: &str) -> bool {
    let Some((head, fields)) = line.trim().split_once(':') else { return false };
    let number =
        head.strip_prefix("slave").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    number && fields.split(',').any(|field| field == "state=online")
}

fn demoted() -> Fault {
    Fault::Server(Error::new(ErrorKind::ReadOnly, "the server is a replica now, and has none to confirm"))
}

fn wait(replicas: u32, limit_ms: u64) -> Cmd {
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(replicas).arg(limit_ms);
    cmd
}

/// What a refusal of `WAIT` means. One that has nothing to do with `WAIT` stays as it is: it may say where to go instead.
fn cannot_wait(code: &str, detail: &str) -> Failure {
    let lower = detail.to_ascii_lowercase();
    if lower.contains("replica instances") || lower.contains("slave instances") {
        return demoted().into();
    }
    // It was asked as a master, and has become a replica while it waited; or an operator has ended the wait.
    if code == "UNBLOCKED" {
        return match lower.contains("state changed") {
            true => demoted().into(),
            false => {
                Fault::Unknown(Error::new(ErrorKind::ServerBusy, format!("the server ended WAIT: {detail}")))
                    .into()
            }
        };
    }
    let error = Fault::server(code, detail).into_error();
    if error.kind() == ErrorKind::Permission || lower.contains("unknown command") {
        return Fault::Server(refused("WAIT", error, detail)).into();
    }
    Failure::refused(code, detail)
}

fn refused(command: &str, error: Error, detail: &str) -> Error {
    match error.kind() {
        ErrorKind::Permission => error.remedy(
            "give the account the rights to WAIT, and to ROLE or INFO if all replicas are to confirm",
        ),
        ErrorKind::Server if detail.to_ascii_lowercase().contains("unknown command") => Error::new(
            ErrorKind::Unsupported,
            format!("the server does not know {command}, so its replicas cannot be asked"),
        )
        .remedy("acquire without replica acknowledgement there"),
        _ => error,
    }
}

/// How many replicas those who watch over the master list for it, asked for within a time. It runs only when a grant is to be
/// confirmed by all, and needs no timers of the caller's runtime.
pub(super) type Listing = Box<dyn FnOnce(Duration) -> Pin<Box<dyn Future<Output = u32> + Send>> + Send>;

/// One server's connections for these calls.
pub(super) struct Desk {
    dial: Arc<Dial>,
    background: Handle,
    seats: Arc<Semaphore>,
    state: Mutex<State>,
    /// `WAIT` is there and allowed. Only the good news is kept: an account that is given the right need not reconnect.
    waits: AtomicBool,
    census: AtomicU8,
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
struct Seat {
    desk: Arc<Desk>,
    blocked: Arc<Blocked>,
    /// An answer is outstanding. Whoever came next would have to wait for it.
    asking: bool,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    async fn ask(&mut self, cmd: &Cmd) -> Result<Reply, Failure> {
        self.asking = true;
        let outcome = self.blocked.link.ask(cmd).await;
        self.asking = false;
        outcome
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.asking {
            self.blocked.link.cut();
        } else {
            self.desk.put_back(&self.blocked);
        }
    }
}

/// A connection on which a script can run, and its replicas be asked.
pub(super) struct Ready {
    seat: Seat,
    census: Census,
    count: ReplicaCount,
}

impl Ready {
    /// Runs a script whose change replicas are to confirm. `sent_on`: another node has named this one for this once. `listing`:
    /// who knows of replicas that the master itself may have lost sight of.
    pub(super) async fn run(
        mut self,
        mode: ScriptMode,
        call: &Call,
        sent_on: bool,
        listing: Option<Listing>,
    ) -> Result<(Reply, Confirm), Failure> {
        let first = first_try(mode, call);
        let blocked = self.seat.blocked.clone();
        self.seat.asking = true;
        let script = run_on(&blocked.link, mode, first, call, sent_on);
        // How many replicas there are is asked behind each script and not remembered: it is true for this very grant.
        let (reply, wanted) = match self.count {
            ReplicaCount::AtLeast(n) => (script.await, Ok(n)),
            ReplicaCount::All => {
                let question = self.census.question();
                let (reply, counted) = tokio::join!(script, blocked.link.ask(&question));
                (reply, counted.map_err(Fault::from).and_then(|reply| self.census.read(&reply)))
            }
        };
        self.seat.asking = false;
        let (reply, seat) = (reply?, self.seat);
        let listing = listing.filter(|_| self.count == ReplicaCount::All);
        let confirm: Confirm = Box::new(move |within| {
            Box::pin(async move {
                let (mut wanted, mut left) = (wanted?, within);
                if let Some(listing) = listing {
                    let began = Instant::now();
                    // A replica that was cut off from its master may be promoted all the same.
                    wanted = wanted.max(listing(within).await);
                    left = within.saturating_sub(began.elapsed());
                }
                match wanted {
                    0 => Ok(Replicas::new(0, 0)),
                    wanted => seat.confirm(wanted, left).await,
                }
            })
        });
        Ok((reply, confirm))
    }
}

impl Desk {
    pub(super) fn new(dial: Arc<Dial>, background: &Handle, closed: CancellationToken) -> Arc<Desk> {
        Arc::new(Desk {
            dial,
            background: background.clone(),
            seats: Arc::new(Semaphore::new(SEATS_MAX)),
            state: Mutex::default(),
            waits: AtomicBool::new(false),
            census: AtomicU8::new(Census::UNKNOWN),
            closed,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for a script whose change replicas are to confirm. What is in the way of asking them is reported here.
    pub(super) async fn ready(self: Arc<Self>, count: ReplicaCount) -> Result<Ready, Failure> {
        let mut seat = self.seat().await?;
        let census = self.prepare(&mut seat, count).await?;
        Ok(Ready { seat, census, count })
    }

    /// Makes sure, once for each server, that it can be asked for its replicas.
    async fn prepare(&self, seat: &mut Seat, count: ReplicaCount) -> Result<Census, Failure> {
        if !self.waits.load(Ordering::Relaxed) {
            match seat.ask(&wait(0, 0)).await {
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
            match seat.ask(&census.question()).await {
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
    async fn seat(self: &Arc<Self>) -> Result<Seat, Fault> {
        let gone = || Fault::NotSent(Error::new(ErrorKind::Unreachable, "the background thread has ended"));
        let permit = self.seats.clone().acquire_owned().await.map_err(|_| gone())?;
        let (idle, age) = {
            let mut state = self.state();
            let idle = std::iter::from_fn(|| state.idle.pop()).find(|(blocked, _)| !blocked.link.is_dead());
            (idle, state.age)
        };
        let blocked = match idle {
            Some((blocked, _)) => blocked,
            None => {
                // Driven by the background thread: these connections outlive the runtime that asked first.
                let opening = self.background.spawn(self.clone().open_one(age));
                opening.await.map_err(|_| gone())?.map_err(Fault::NotSent)?
            }
        };
        // The caller may not have been polled for a while, and nothing has been sent yet.
        if self.closed.is_cancelled() {
            return Err(closed_error());
        }
        if blocked.link.is_dead() {
            let error = Error::new(ErrorKind::Unreachable, "the connection ended before it was used");
            return Err(Fault::NotSent(error));
        }
        Ok(Seat { desk: self.clone(), blocked, asking: false, _permit: permit })
    }

    /// Opens a connection, unless all are given up meanwhile.
    async fn open_one(self: Arc<Self>, age: u64) -> Result<Arc<Blocked>, Error> {
        let link = Link::open(&self.dial, Box::new(|| {})).await?;
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
        if blocked.link.is_dead() || blocked.age != state.age {
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

impl Seat {
    /// Asks the replicas for what was last done on this connection.
    async fn confirm(mut self, wanted: u32, within: Duration) -> Result<Replicas, Fault> {
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
                self.desk.waits.store(false, Ordering::Relaxed);
                Err(cannot_wait(&code, &detail).into())
            }
            Err(Failure::Fault(fault)) => Err(fault),
        }
    }
}

/// Closes what has not been used for a while, until nothing is left.
async fn sweep(desk: Weak<Desk>) {
    loop {
        tokio::time::sleep(IDLE_TIME / 2).await;
        let Some(desk) = desk.upgrade() else { return };
        let mut state = desk.state();
        state.idle.retain(|(blocked, since)| !blocked.link.is_dead() && since.elapsed() < IDLE_TIME);
        if state.idle.is_empty() {
            state.sweeping = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn replicas_in_sync_are_counted_from_either_answer() {
        let replica = Reply::Array(vec![text("127.0.0.1"), text("7001"), text("42")]);
        let role = |replicas| Reply::Array(vec![text("master"), Reply::Int(42), Reply::Array(replicas)]);
        assert_eq!(Census::Role.read(&role(vec![replica.clone(), replica])).unwrap(), 2);
        assert_eq!(Census::Role.read(&role(vec![])).unwrap(), 0);
        let slave =
            Reply::Array(vec![text("slave"), text("h"), Reply::Int(1), text("connected"), Reply::Int(1)]);
        assert_eq!(Census::Role.read(&slave).unwrap_err().error().kind(), ErrorKind::ReadOnly);
        assert_eq!(Census::Role.read(&Reply::Nil).unwrap_err().error().kind(), ErrorKind::Protocol);
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\n\
                    slave0:ip=1.2.3.4,port=1,state=online,offset=1,lag=0\r\n\
                    slave1:ip=1.2.3.4,port=2,state=wait_bgsave,offset=0,lag=0\r\n\
                    slave2:ip=1.2.3.4,port=3,state=online,offset=1,lag=1\r\nslave_x:state=online\r\n";
        assert_eq!(Census::Info.read(&text(info)).unwrap(), 2);
        assert_eq!(
            Census::Info.read(&text("role:slave\r\n")).unwrap_err().error().kind(),
            ErrorKind::ReadOnly
        );
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let kind = |code, detail| Fault::from(cannot_wait(code, detail)).into_error();
        assert_eq!(kind("ERR", "unknown command 'WAIT', with args").kind(), ErrorKind::Unsupported);
        let denied = kind("NOPERM", "this user has no permissions to run the 'wait' command");
        assert_eq!(denied.kind(), ErrorKind::Permission);
        assert!(denied.to_string().contains("rights to WAIT"), "{denied}");
        assert_eq!(kind("ERR", "WAIT cannot be used with replica instances.").kind(), ErrorKind::ReadOnly);
        assert_eq!(kind("LOADING", "wait").kind(), ErrorKind::ServerBusy);
        let ended = "force unblock from blocking operation, instance state changed (master -> replica?)";
        assert_eq!(kind("UNBLOCKED", ended).kind(), ErrorKind::ReadOnly);
        let ended = kind("UNBLOCKED", "client unblocked via CLIENT UNBLOCK");
        assert!(ended.kind() == ErrorKind::ServerBusy && ended.is_retryable(), "{ended}");
        assert!(matches!(cannot_wait("LOADING", "wait"), Failure::Refused { code, .. } if code == "LOADING"));
    }
}
