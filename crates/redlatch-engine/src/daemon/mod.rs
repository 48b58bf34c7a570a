//! The engine behind a unix socket, for all processes of one user on one machine.
//!
//! One thread does everything: it accepts, reads, runs scripts and writes. The connections are futures in one set,
//! so that a request costs no hand-over between threads; what accepts them is one more future of that set, so that
//! a request does not cost a look at everything else that may happen either.

mod access;
mod claim;
mod commands;
mod config;
mod connection;
mod gate;
mod lifelines;
mod process;
mod pubsub;
mod refusals;
mod resp;
mod session;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

pub(crate) use access::{Standing, standing};
pub use config::{DaemonConfig, DaemonError, DaemonErrorKind, ExitReason, MEMORY_MAX_BYTES, ReadyCallback};
pub use lifelines::{Step, Undertaker};

use config::because;

use crate::clock::MachineClock;
use crate::engine::Engine;
use crate::journal::{Boot, FileJournal, is_same_file};
use crate::place::own_uid;
pub use crate::trace::{Trace, TracePlace, permit_mark};
use claim::Claim;
use connection::Stream;
use gate::Gate;
use lifelines::{Lifelines, User};
use pubsub::Hub;
use refusals::Refusals;
#[cfg(any(test, fuzzing))]
pub(crate) use resp::requests_in;

/// The most clients at once.
pub const CLIENTS_MAX: usize = 10_000;
/// The same with a lifeline for each.
const CONNECTIONS_MAX: usize = 2 * CLIENTS_MAX;
/// The same with a process for each, whose end is told by a descriptor.
const DESCRIPTORS_MAX: usize = 3 * CLIENTS_MAX;
/// Of a shared engine no user but its owner has more than this part of the connections.
const USER_SHARE: usize = 4;
/// Descriptors for everything but clients: sockets, the journal and the file that replaces it, the runtime.
const OWN_DESCRIPTORS: usize = 32;
/// How often expired keys are looked for and idleness is judged, at the longest.
const TICK_MAX: Duration = Duration::from_secs(1);
/// How many keys one tick looks at.
const EXPIRE_PER_TICK: usize = 20_000;

/// A journal that takes so long to read that a user may wonder.
const LONG_JOURNAL_BYTES: u64 = 32 << 20;
/// Of the lines that tell when a daemon serves, has ended, and found that the last one had not: one each, and none for what clients do.
const LIFE: &str = "redlatch_engine::life";

/// What all connections share. One thread owns it, hence no locks.
pub(crate) struct Shared {
    gate: Gate,
    hub: Arc<Hub>,
    /// SHA-1 of the scripts that may be run without `compat`.
    allowed: HashSet<String>,
    epoch: u32,
    compat: bool,
    /// How many descriptors clients may take.
    descriptors_max: usize,
    clients: Cell<usize>,
    /// Connections that are no clients, but the lifelines of some.
    lines: Cell<usize>,
    /// Replies that wait for clients to read.
    writing: Cell<usize>,
    /// The connections of each user but the owner.
    users: RefCell<HashMap<u32, usize>>,
    lifelines: Lifelines,
    next_client: Cell<u64>,
    scripts_run: Cell<u64>,
    /// How often something was read.
    reads: Cell<u64>,
    started: Instant,
    stop: Cell<Option<ExitReason>>,
    stopping: Notify,
}

impl Shared {
    fn new(engine: Engine, hub: Arc<Hub>, allowed: HashSet<String>, epoch: u32, compat: bool) -> Shared {
        Shared {
            gate: Gate::new(engine),
            hub,
            allowed,
            epoch,
            compat,
            descriptors_max: DESCRIPTORS_MAX,
            clients: Cell::new(0),
            lines: Cell::new(0),
            writing: Cell::new(0),
            users: RefCell::default(),
            lifelines: Lifelines::default(),
            next_client: Cell::new(1),
            scripts_run: Cell::new(0),
            reads: Cell::new(0),
            started: Instant::now(),
            stop: Cell::new(None),
            stopping: Notify::new(),
        }
    }

    /// The engine, when what has to be kept is kept.
    fn engine(&self) -> RefMut<'_, Engine> {
        self.gate.engine(&self.lifelines)
    }

    /// Whether all that clients may take is taken. What is left then lets one in that is told so, and has the journal be rewritten.
    fn is_full(&self) -> bool {
        let (clients, connections) = (self.clients.get(), self.clients.get() + self.lines.get());
        let descriptors = connections + self.writing.get() + self.lifelines.processes.descriptors();
        clients >= CLIENTS_MAX || connections >= CONNECTIONS_MAX || descriptors >= self.descriptors_max
    }

    /// Counts a connection of a user. The error is what the client is told that is one too many.
    fn has_come(&self, uid: Option<u32>) -> Result<(), &'static str> {
        if self.is_full() {
            return Err("max number of clients reached");
        }
        if let Some(uid) = uid {
            let mut users = self.users.borrow_mut();
            let count = users.entry(uid).or_default();
            if *count >= (self.descriptors_max.min(CONNECTIONS_MAX) / USER_SHARE).max(1) {
                return Err("max number of clients of one user reached");
            }
            *count += 1;
        }
        Ok(())
    }

    /// Whether a client may be served. If not, another daemon has taken the place of this one, which ends.
    fn may_serve(&self) -> bool {
        let may_serve = self.gate.may_serve(&self.lifelines);
        if !may_serve {
            self.end(ExitReason::Displaced);
        }
        may_serve
    }

    fn end(&self, reason: ExitReason) {
        self.stop.set(Some(reason));
        self.stopping.notify_one();
    }

    fn has_gone(&self, uid: Option<u32>) {
        let mut users = self.users.borrow_mut();
        if let Some(count) = uid.and_then(|uid| users.get_mut(&uid)) {
            *count -= 1;
            users.retain(|_, count| *count > 0);
        }
    }
}

/// Runs a daemon on this thread until it is told to end.
///
/// # Errors
///
/// When the directory is open to others, another daemon runs, or the system refuses something. Once clients are
/// served, a failing journal is their error (`UNSAVED`, then `MISCONF`), not the daemon's.
pub fn run(mut config: DaemonConfig) -> Result<ExitReason, DaemonError> {
    if config.detach {
        // Fails only for a process that leads its group already, which then has left the terminal's job anyway.
        let _already_leader = rustix::process::setsid();
    }
    if let Some(address) = config.compat_listen {
        if !config.compat {
            return Err(DaemonError::new(DaemonErrorKind::Config, "a TCP address needs compat mode"));
        }
        if !address.ip().is_loopback() {
            return Err(DaemonError::new(
                DaemonErrorKind::Config,
                format_args!("{address} is not a loopback address: the engine has no passwords"),
            ));
        }
    }
    if let Some(address) = config.compat_listen {
        tracing::warn!(
            %address,
            "every user of this machine can connect to this address, without a password, and see and change every lock"
        );
    }
    if !config.dir.is_absolute() || !config.socket.is_absolute() {
        return Err(DaemonError::new(
            DaemonErrorKind::Config,
            "the directory and the socket of an engine must be absolute paths: relative ones are another place for each \
             working directory",
        ));
    }
    let refused = || because(DaemonErrorKind::Access, "the directory is refused");
    access::prepare_dir(&config.dir, config.shared).map_err(refused())?;
    if let Some(parent) = config.socket.parent().filter(|parent| *parent != config.dir) {
        access::prepare_dir(parent, config.shared).map_err(refused())?;
    }
    let _kept = keep_from_cleaners(&config.dir);
    let stem = config.socket.file_stem().unwrap_or_default().to_owned();
    let beside = |extension: &str| config.dir.join(&stem).with_extension(extension);
    let runs_already =
        || DaemonError::new(DaemonErrorKind::AlreadyRunning, "a daemon already serves this socket");
    let serves = || std::os::unix::net::UnixStream::connect(&config.socket).is_ok();
    // Clients look beside the socket, and two engines must not have one journal.
    let mut claimed = vec![config.socket.with_extension("engine")];
    if claimed[0] != beside("engine") {
        claimed.push(beside("engine"));
    }
    // One whose lock file was deleted makes it again. If it found one that is locked from here, it would take this for its successor and end.
    if !claimed.iter().all(|file| file.exists()) && serves() {
        return Err(runs_already());
    }
    let mut claim = Claim::take(&claimed)
        .map_err(because(DaemonErrorKind::Access, "the lock file cannot be locked"))?
        .ok_or_else(runs_already)?;
    let noted = claim
        .keeps_journal_in(&config.dir)
        .map_err(because(DaemonErrorKind::Access, "the lock file cannot be read and written"))?;
    if let Err(dir) = noted {
        return Err(DaemonError::new(
            DaemonErrorKind::Config,
            format_args!(
                "the engine of this socket keeps its journal in {}: start it with that directory, or delete {} if its locks are of no interest any more",
                dir.display(),
                claimed[0].display()
            ),
        ));
    }
    // It was deleted after that, perhaps.
    if serves() {
        return Err(runs_already());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(because(DaemonErrorKind::System, "no runtime"))?;
    let _full_files_told = {
        let _entered = runtime.enter();
        keep_from_file_limit().map_err(because(DaemonErrorKind::System, "a signal"))?
    };
    let boot = match std::mem::take(&mut config.boot_id) {
        id if id.is_empty() => Boot { id: current_boot_id(), is_vouched: false },
        id => Boot { id, is_vouched: true },
    };
    let journal_error = |error| because(DaemonErrorKind::Journal, "the journal cannot be used")(error);
    let began = Instant::now();
    let found = std::fs::metadata(beside("journal")).ok().filter(|found| found.len() > LONG_JOURNAL_BYTES);
    if let Some(found) = &found {
        tracing::warn!(bytes = found.len(), "reading a long journal; clients are served when that is done");
    }
    let opened = FileJournal::open(&beside("journal"), &boot, Arc::new(MachineClock::of_system()));
    let (journal, recovered) = opened.map_err(journal_error)?;
    let hub: Arc<Hub> = Arc::default();
    let mut engine =
        Engine::with_steady_clock(Arc::clone(&recovered.clock), Arc::clone(&hub) as _, Box::new(journal))
            .map_err(|error| DaemonError::new(DaemonErrorKind::System, error))?;
    engine.restore(recovered.effects, recovered.other_boot);
    if let Some(undertaker) = config.undertaker.as_deref().filter(|_| recovered.other_boot) {
        // The rewrite tells the journal. Until then the old one is there with the old boot, and all of this is done again.
        engine.unrecorded(|engine| lifelines::bury_all(engine, undertaker));
    }
    engine.wait_until(recovered.wait_until_ms);
    // Reading may have taken long, and so may rewriting. Another one that has the claim by now may serve already, from the same journal.
    let mut keep_claim = || match claim.is_held() {
        Ok(true) => Ok(()),
        Ok(false) => Err(runs_already()),
        Err(error) => Err(because(DaemonErrorKind::Access, "the lock file cannot be locked")(error)),
    };
    keep_claim()?;
    match engine.rewrite_journal() {
        // Holders can go on with what is there, and those who ask for more are told why they get nothing.
        Err(error) if recovered.is_current => {
            tracing::warn!(%error, "the journal could not be rewritten, it goes on growing");
        }
        rewritten => rewritten.map_err(journal_error)?,
    }
    if config.compat {
        engine.set_memory_limit(config.memory_max_bytes, resident_bytes);
    }
    if recovered.broke_off {
        tracing::info!(target: LIFE, keys = engine.key_count(), "the last engine did not come to its end; its journal has been read");
    }
    if found.is_some() {
        let (keys, ms) = (engine.key_count(), began.elapsed().as_millis());
        tracing::warn!(keys, ms, "the long journal has been read and rewritten");
    }
    let mut allowed = HashSet::new();
    for (name, source) in &config.allowed_scripts {
        let sha = engine.load(source.as_bytes()).map_err(|error| {
            DaemonError::new(DaemonErrorKind::Config, format_args!("script {name}: {error}"))
        })?;
        allowed.insert(sha);
    }
    keep_claim()?;
    let mut shared = Shared::new(engine, hub, allowed, config.epoch, config.compat);
    shared.descriptors_max = room_for_clients();
    shared.gate.set_undertaker(config.undertaker.take());
    let shared = Rc::new(shared);
    shared.gate.set_claim(claim);
    runtime.block_on(serve(&shared, &mut config))
}

/// Raises the limit of descriptors as far as it may be, and says how many of them clients may take. The journal has to be
/// rewritten also when that many are there.
fn room_for_clients() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let wanted = (DESCRIPTORS_MAX + OWN_DESCRIPTORS) as u64;
    let usable = limit.maximum.map_or(wanted, |most| most.min(wanted));
    let raised = limit.current.is_some_and(|now| now < usable)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(usable), ..limit }).is_ok();
    let present = if raised { usable } else { limit.current.unwrap_or(wanted) };
    let room = usize::try_from(present).unwrap_or(usize::MAX).saturating_sub(OWN_DESCRIPTORS);
    if room < CLIENTS_MAX {
        tracing::warn!(descriptors = present, clients = room, "few descriptors: raise the limit (ulimit -n)");
    }
    room.clamp(1, DESCRIPTORS_MAX)
}

/// Locks the directory for the life of the daemon. systemd-tmpfiles takes old files out of shared places, but nothing out of
/// a directory that is locked. Several daemons may have one directory, so the lock is a shared one; without it all goes on.
fn keep_from_cleaners(dir: &std::path::Path) -> Option<File> {
    let dir = File::open(dir).ok()?;
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockShared).ok()?;
    Some(dir)
}

/// Takes the signal of a file that grows beyond its limit (`ulimit -f`), which would end the process: the write fails instead, as on
/// a full disk.
fn keep_from_file_limit() -> io::Result<Signal> {
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))
}

/// How much memory this process has in use; nothing where the system does not say.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Changes whenever the machine starts, and in some containers whenever the container starts. Empty where the system has nothing of the kind.
fn current_boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

async fn serve(shared: &Rc<Shared>, config: &mut DaemonConfig) -> Result<ExitReason, DaemonError> {
    let system = || because(DaemonErrorKind::System, "the socket cannot be opened");
    access::remove_stale_socket(&config.socket).map_err(because(DaemonErrorKind::Access, "the socket"))?;
    let door = Door::open(&config.socket, config.shared).map_err(system())?;
    let tcp = match config.compat_listen {
        Some(address) => Some(TcpListener::bind(address).await.map_err(system())?),
        None => None,
    };
    let signals = (
        signal(SignalKind::terminate()).map_err(system())?,
        signal(SignalKind::interrupt()).map_err(system())?,
    );
    tracing::info!(target: LIFE, pid = std::process::id(), keys = shared.engine().key_count(), "the engine serves");
    if let Some(ready) = config.ready.take() {
        ready();
    }
    let arrivals = RefCell::new(Vec::new());
    let service = (config.idle_exit, config.shared);
    let mut tasks: FuturesUnordered<LocalBoxFuture<'_, Option<ExitReason>>> = FuturesUnordered::new();
    tasks.push(Box::pin(async {
        Some(oversee(shared, &arrivals, door, tcp.as_ref(), signals, service).await)
    }));
    tasks.push(Box::pin(lifelines::attend(shared).map(|()| None)));
    let reason = poll_fn(|cx| {
        loop {
            match tasks.poll_next_unpin(cx) {
                Poll::Ready(Some(None)) => {}
                Poll::Ready(Some(Some(reason))) => return Poll::Ready(reason),
                // The overseer is always there, so this never happens.
                Poll::Ready(None) => return Poll::Ready(ExitReason::Shutdown),
                Poll::Pending if arrivals.borrow().is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
            for arrival in arrivals.borrow_mut().drain(..) {
                let connection = connection::serve(Rc::clone(shared), arrival);
                tasks.push(Box::pin(connection.map(|()| None)));
            }
        }
    })
    .await;
    if reason == ExitReason::Displaced || matches!(shared.gate.has_claim(), Ok(false)) {
        // Socket and journal are the other one's.
        tracing::error!("the lock file was deleted, and another engine serves this socket: this one ends");
        return Ok(ExitReason::Displaced);
    }
    if let Err(error) = shared.engine().close_journal() {
        tracing::warn!(%error, "the journal could not be ended");
    }
    // While this holds the claim, the socket is its own; a moment later it may be the successor's.
    let _already_gone = std::fs::remove_file(&config.socket);
    tracing::info!(target: LIFE, ?reason, "the engine has ended");
    Ok(reason)
}

/// The socket that clients come to. Its file may be deleted by those who tidy up; nobody could come or stop the daemon then.
struct Door {
    listener: UnixListener,
    socket: PathBuf,
    for_several_users: bool,
    file: std::fs::Metadata,
}

impl Door {
    fn open(socket: &std::path::Path, for_several_users: bool) -> io::Result<Door> {
        let listener = UnixListener::bind(socket)?;
        access::restrict_socket(socket, for_several_users)?;
        let file = std::fs::symlink_metadata(socket)?;
        Ok(Door { listener, socket: socket.to_owned(), for_several_users, file })
    }

    /// Makes the file again when it is gone. The claim is ours, so whatever socket is there is nobody's.
    fn mend(&mut self) {
        let found = std::fs::symlink_metadata(&self.socket);
        if found.is_ok_and(|found| is_same_file(&found, &self.file)) {
            return;
        }
        let again = access::remove_stale_socket(&self.socket)
            .and_then(|()| Door::open(&self.socket, self.for_several_users));
        match again {
            Ok(door) => {
                tracing::warn!(socket = %self.socket.display(), "the socket was deleted and has been made again");
                *self = door;
            }
            Err(error) => tracing::error!(%error, "the socket was deleted and cannot be made again"),
        }
    }
}

/// A client that was let in and is not served yet.
struct Arrival {
    stream: Stream,
    client: u64,
    /// The process at the other end, where that is known.
    pid: Option<i32>,
    /// Its user, unless that is the owner.
    uid: Option<u32>,
    /// Whether it acts for the user that the daemon belongs to.
    is_owner: bool,
}

type Arrivals = RefCell<Vec<Arrival>>;

/// Does everything but serving clients, until the daemon is to end.
async fn oversee(
    shared: &Shared,
    arrivals: &Arrivals,
    mut door: Door,
    tcp: Option<&TcpListener>,
    (mut terminate, mut interrupt): (Signal, Signal),
    (idle_exit, for_several_users): (Option<Duration>, bool),
) -> ExitReason {
    let period = idle_exit.map_or(TICK_MAX, |idle| (idle / 2).clamp(Duration::from_millis(10), TICK_MAX));
    // Claim and socket are a moment old, so there is nothing to look for yet.
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut idle_since = Instant::now();
    let mut refusals = Refusals::default();
    loop {
        tokio::select! {
            accepted = door.listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // The directory already keeps others out; this holds even if a user opened it by hand.
                    let peer = stream.peer_cred().ok();
                    let is_owner = peer.is_some_and(|peer| peer.uid() == own_uid());
                    // Zero stands for all processes that cannot be seen from here.
                    let pid = peer.and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
                    let uid = peer.filter(|_| !is_owner).map(|peer| peer.uid());
                    if is_owner || for_several_users {
                        admit(shared, arrivals, stream.into_std().map(Stream::Unix), (pid, uid, is_owner), &mut refusals);
                    }
                }
                Err(error) => backoff(&error, &mut refusals).await,
            },
            accepted = accept_tcp(tcp) => match accepted {
                Ok(stream) => admit(shared, arrivals, stream.into_std().map(Stream::Tcp), (None, None, false), &mut refusals),
                Err(error) => backoff(&error, &mut refusals).await,
            },
            () = shared.stopping.notified() => return shared.stop.get().unwrap_or(ExitReason::Shutdown),
            _ = terminate.recv() => return ExitReason::Signal,
            _ = interrupt.recv() => return ExitReason::Signal,
            _ = tick.tick() => {
                match shared.gate.has_claim() {
                    Ok(true) => {
                        door.mend();
                        if let Err(error) = shared.engine().mend_journal() {
                            tracing::error!(%error, "the journal was deleted and cannot be made again");
                        }
                    }
                    Ok(false) => return ExitReason::Displaced,
                    Err(error) => tracing::error!(%error, "the lock file was deleted and cannot be made again"),
                }
                shared.engine().expire_some(EXPIRE_PER_TICK);
                // A permit without an end would keep it for ever.
                let has_leases = || {
                    let mut engine = shared.engine();
                    engine.has_expiring_keys() || engine.permits_taken().0 > 0
                };
                if shared.clients.get() + shared.lines.get() > 0 || has_leases() {
                    idle_since = Instant::now();
                } else if idle_exit.is_some_and(|idle| idle_since.elapsed() >= idle) {
                    return ExitReason::Idle;
                }
            }
        }
    }
}

/// Gives a new client its number and has it served, unless there are too many.
fn admit(
    shared: &Shared,
    arrivals: &Arrivals,
    stream: io::Result<Stream>,
    (pid, uid, is_owner): (Option<i32>, Option<u32>, bool),
    refusals: &mut Refusals,
) {
    let stream = match stream {
        Err(error) => return refusals.tell(&error, Instant::now()),
        Ok(stream) => stream,
    };
    match shared.has_come(uid) {
        Err(why) => {
            stream.refuse(why);
            refusals.tell(&io::Error::other(why), Instant::now());
        }
        Ok(()) => {
            shared.clients.set(shared.clients.get() + 1);
            let client = shared.next_client.get();
            shared.next_client.set(client + 1);
            shared.lifelines.came(&User { pid, client });
            arrivals.borrow_mut().push(Arrival { stream, client, pid, uid, is_owner });
        }
    }
}

async fn accept_tcp(listener: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Without file descriptors every accept fails at once; a short pause keeps the thread for those who have one.
async fn backoff(error: &io::Error, refusals: &mut Refusals) {
    refusals.tell(error, Instant::now());
    tokio::time::sleep(Duration::from_millis(10)).await;
}
