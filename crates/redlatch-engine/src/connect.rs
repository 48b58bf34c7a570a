//! Finding the daemon of this user, and starting it when there is none.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};

pub use crate::connect_error::{ConnectError, ConnectErrorKind};
use crate::daemon::{Standing, standing};
pub use crate::place::LocalPaths;
use crate::place::hidden;

/// The line that a daemon writes to its standard output when clients can connect.
pub const READY_LINE: &str = "READY\n";
/// How long to wait before trying a file lock again; there is no form of `flock` that waits for a limited time.
const LOCK_RETRY: Duration = Duration::from_millis(2);
/// How long a daemon may take that lives and has no socket yet: it reads its journal, which takes seconds for a million keys, and
/// ending it would only make the next one begin anew.
const READING_TIME: Duration = Duration::from_secs(60);
/// A daemon that is there gets so long for its answer, or to start, also when waiting for another has used up the time.
const ANSWER_TIME_MIN: Duration = Duration::from_secs(1);
/// How often to look whether it does.
const READING_LOOK: Duration = Duration::from_millis(20);
/// How long another daemon, which was quicker than ours, may take from its claim to its socket.
const OTHERS_READY_TIME: Duration = Duration::from_millis(500);

fn because(kind: ConnectErrorKind, what: &'static str) -> impl FnOnce(io::Error) -> ConnectError {
    move |error| ConnectError::new(kind, format_args!("{what}: {error}"))
}

/// A reached daemon.
#[derive(Debug)]
#[non_exhaustive]
pub struct StartOutcome {
    /// The connection that proved it.
    pub stream: UnixStream,
    /// Whether this call started the daemon.
    pub started: bool,
}

/// Whether a daemon that is there may be connected to as it is. [`ensure_running`] says what is wrong with another directory.
pub fn is_usable(paths: &LocalPaths) -> bool {
    hidden(&paths.dir).is_none() && standing(&paths.dir).is_ok()
}

/// Connects to the daemon, starting it first when nobody listens. Of any number of processes that call this at the
/// same time, one starts a daemon and all of them reach it. A daemon that listens is never replaced. In a directory that
/// serves several users none is started: that is for its owner to do, with rights that are meant.
///
/// `launcher` makes the command that runs the daemon in the foreground. Its standard output must be left alone: the
/// daemon writes [`READY_LINE`] there. Its standard error goes to the log file.
///
/// # Errors
///
/// When the directory can be written by others or is seen by this unit only, or no daemon was ready within `timeout`.
pub fn ensure_running(
    paths: &LocalPaths,
    launcher: &dyn Fn(&LocalPaths) -> io::Result<Command>,
    timeout: Duration,
) -> Result<StartOutcome, ConnectError> {
    let deadline = Instant::now() + timeout;
    let refused = |why: &dyn fmt::Display| {
        ConnectError::new(ConnectErrorKind::Directory, format_args!("the directory is refused: {why}"))
    };
    if let Some(why) = hidden(&paths.dir) {
        return Err(refused(&why));
    }
    let standing = standing(&paths.dir).map_err(|error| refused(&error))?;
    if let Some(stream) = connect(&paths.socket, deadline)? {
        return Ok(StartOutcome { stream, started: false });
    }
    if let Standing::Shared(problem) = standing {
        let text = format_args!("the directory is refused: {problem}");
        return Err(ConnectError::new(ConnectErrorKind::NotRunning, text));
    }
    let _starting = lock_until(paths, deadline)?;
    if paths.is_claimed() {
        // It lives, and was not started by us: started by hand, or by a process that has ended meanwhile.
        let socket = &paths.socket;
        let mut patience = Patience::new(paths);
        while paths.is_claimed()
            && !others_serve(socket, Instant::now())
            && Instant::now() < deadline + READING_TIME
        {
            patience.tell();
            std::thread::sleep(READING_LOOK);
        }
    }
    if let Some(stream) = connect(&paths.socket, deadline)? {
        return Ok(StartOutcome { stream, started: false });
    }
    start(paths, launcher, deadline.max(Instant::now() + ANSWER_TIME_MIN))?;
    match connect(&paths.socket, deadline)? {
        Some(stream) => Ok(StartOutcome { stream, started: true }),
        None => Err(ConnectError::new(
            ConnectErrorKind::NotReady,
            format_args!("the engine ended right after its start; see {}", paths.log_file.display()),
        )),
    }
}

/// A connection that was answered on, or none when nobody serves it. A connection alone proves nothing: the system
/// still accepts them for a daemon that is just ending, and drops them with it.
fn connect(socket: &Path, deadline: Instant) -> Result<Option<UnixStream>, ConnectError> {
    match UnixStream::connect(socket).and_then(|stream| greet(stream, deadline)) {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(because(ConnectErrorKind::Connect, "the engine cannot be reached")(error)),
    }
}

fn greet(mut stream: UnixStream, deadline: Instant) -> io::Result<UnixStream> {
    let left = deadline.saturating_duration_since(Instant::now()).max(ANSWER_TIME_MIN);
    stream.set_read_timeout(Some(left))?;
    stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    if &answer != b"+PONG\r\n" {
        return Err(io::Error::other("it answers like no engine"));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

fn lock_until(paths: &LocalPaths, deadline: Instant) -> Result<Starting, ConnectError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&paths.lock_file)
        .map_err(because(ConnectErrorKind::Lock, "the lock file cannot be opened"))?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Starting(file)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if !is_late(paths, deadline) => {
                std::thread::sleep(LOCK_RETRY);
            }
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {
                return Err(ConnectError::new(
                    ConnectErrorKind::Lock,
                    "another process has been starting the engine for too long",
                ));
            }
            Err(error) => {
                return Err(because(ConnectErrorKind::Lock, "the lock file cannot be locked")(error.into()));
            }
        }
    }
}

/// How often those who wait for an engine are told that they do.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The right to start an engine. It is given up by name: a child that was forked off meanwhile has a copy of the descriptor, and
/// closing ours alone would leave the lock with it.
struct Starting(File);

impl Drop for Starting {
    fn drop(&mut self) {
        // Closing gives it up as well, if there is no copy.
        _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Says from time to time that an engine is being waited for, and what for.
struct Patience<'a> {
    paths: &'a LocalPaths,
    since: Instant,
    tell_at: Instant,
}

impl<'a> Patience<'a> {
    fn new(paths: &'a LocalPaths) -> Self {
        let since = Instant::now();
        Patience { paths, since, tell_at: since + TELL_INTERVAL }
    }

    fn tell(&mut self) {
        let now = Instant::now();
        if now < self.tell_at {
            return;
        }
        self.tell_at = now + TELL_INTERVAL;
        let journal = std::fs::metadata(self.paths.socket.with_extension("journal"));
        let mib = journal.map_or(0, |journal| journal.len() >> 20);
        let seconds = (now - self.since).as_secs();
        tracing::warn!(
            seconds,
            journal_mib = mib,
            "waiting for the local engine, which starts or reads its journal"
        );
    }
}

/// Whether there is no more use in waiting for a daemon.
fn is_late(paths: &LocalPaths, deadline: Instant) -> bool {
    let now = Instant::now();
    now >= deadline && (now >= deadline + READING_TIME || !paths.is_claimed())
}

/// Has a thread collect the exit status, or the daemon would stay as a zombie of a long-lived client. Without a thread to
/// spare, that is all that happens.
fn leave_to_reaper(mut child: Child) {
    let reaper = std::thread::Builder::new().name("redlatch-engine-reaper".to_owned());
    let _no_thread = reaper.stack_size(64 << 10).spawn(move || child.wait());
}

/// Whether an engine listens on the socket, now or before long.
fn others_serve(socket: &Path, deadline: Instant) -> bool {
    loop {
        if UnixStream::connect(socket).is_ok() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

fn start(
    paths: &LocalPaths,
    launcher: &dyn Fn(&LocalPaths) -> io::Result<Command>,
    deadline: Instant,
) -> Result<(), ConnectError> {
    let spawn_error = || because(ConnectErrorKind::Spawn, "the engine cannot be started");
    let log = open_log(&paths.log_file);
    let log_begins = std::fs::metadata(&paths.log_file).map_or(0, |log| log.len());
    let mut command = launcher(paths).map_err(spawn_error())?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_err(spawn_error())?)
        .spawn()
        .map_err(spawn_error())?;
    let mut patience = Patience::new(paths);
    let is_late = || {
        patience.tell();
        is_late(paths, deadline)
    };
    match wait_ready(&mut child, is_late) {
        Ok(()) => {
            leave_to_reaper(child);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut && paths.is_claimed() => {
            leave_to_reaper(child);
            let log = paths.log_file.display();
            Err(ConnectError::new(
                ConnectErrorKind::NotReady,
                format_args!("the engine still reads its journal, try again later; {log} says how far it is"),
            ))
        }
        Err(error) => {
            let _already_gone = child.kill();
            let status = child.wait().map(|status| status.to_string()).unwrap_or_default();
            // Started by hand at the same moment, it may have been a moment quicker, and serve us as well as ours would have.
            if others_serve(&paths.socket, deadline.min(Instant::now() + OTHERS_READY_TIME)) {
                return Ok(());
            }
            let (log, said) = (paths.log_file.display(), last_words(&paths.log_file, log_begins));
            Err(ConnectError::new(
                ConnectErrorKind::NotReady,
                format_args!("the engine did not get ready: {error} ({status}); {log} ends with: {said}"),
            ))
        }
    }
}

/// How much of the end of a log is looked at, in bytes.
const LOG_END_BYTES: u64 = 2000;

/// A longer log is set aside, and the one that was set aside before goes.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Opens the log for another daemon. Each one writes a few lines about its life, and what goes wrong at most once in a while.
fn open_log(log: &Path) -> io::Result<File> {
    if std::fs::metadata(log).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        std::fs::rename(log, log.with_extension("log.old"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(log)
}

/// The last line of a log that begins there for a daemon. A full disk shows here and nowhere else.
fn last_words(log: &Path, begins: u64) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_END_BYTES).max(begins)))?;
        let mut end = Vec::new();
        file.take(LOG_END_BYTES).read_to_end(&mut end)?;
        Ok::<_, io::Error>(end)
    };
    match read() {
        Ok(end) => {
            let text = String::from_utf8_lossy(&end);
            let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
            line.chars().filter(|c| !c.is_control()).collect()
        }
        Err(error) => error.to_string(),
    }
}

/// Waits for the ready line on the child's output.
fn wait_ready(child: &mut Child, mut is_late: impl FnMut() -> bool) -> io::Result<()> {
    let Some(mut output) = child.stdout.take() else { return Err(io::Error::other("it has no output")) };
    let mut seen = Vec::new();
    loop {
        let pause =
            Timespec::try_from(READING_LOOK).map_err(|_| io::Error::other("the pause is too long"))?;
        match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&pause)) {
            Ok(0) if is_late() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) => continue,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 256];
        match output.read(&mut chunk)? {
            0 => return Err(io::Error::other("it ended")),
            count => seen.extend_from_slice(&chunk[..count]),
        }
        if seen.windows(READY_LINE.len()).any(|window| window == READY_LINE.as_bytes()) {
            return Ok(());
        }
        if seen.len() > 64 << 10 {
            return Err(io::Error::other("it wrote something else than that it is ready"));
        }
    }
}
