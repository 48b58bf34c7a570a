//! Child processes that never outlive the test.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::error::{Error, ErrorKind, Result};

/// How many lines of output wait for a reader before the child blocks.
const LINES_MAX: usize = 65_536;
/// How often a process is asked whether it has ended; no portable event without unsafe code exists.
const WAIT_POLL: Duration = Duration::from_millis(2);

/// A started process that is killed when this value is dropped, and also when the process that holds this
/// value dies without running destructors.
#[derive(Debug)]
pub(crate) struct Owned {
    child: std::process::Child,
    // Holds the write end of the watcher's stdin: its end of file is the message "the test is gone".
    watcher: Option<std::process::Child>,
}

impl Owned {
    /// Spawns `command` and a watcher that kills it, and removes `dir`, once this process is gone.
    pub(crate) fn spawn(command: &mut Command, dir: Option<&Path>) -> std::io::Result<Self> {
        let mut owned = Self { child: command.spawn()?, watcher: None };
        // The pid is not reused while the watcher could act on it: an ended child stays unreaped until we
        // wait for it, and the watcher is stopped together with that.
        let watcher = Command::new("/bin/sh")
            .arg("-c")
            .arg("trap '' INT TERM HUP; read -r _; kill -9 \"$0\" 2>/dev/null; [ -z \"$1\" ] || rm -rf -- \"$1\"")
            .arg(owned.child.id().to_string())
            .arg(dir.map_or(OsStr::new(""), Path::as_os_str))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        owned.watcher = Some(watcher);
        Ok(owned)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child_mut(&mut self) -> &mut std::process::Child {
        &mut self.child
    }

    pub(crate) fn signal(&self, signal: Signal) -> std::io::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| std::io::Error::other("the child has no usable pid"))?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Waits for the end of the process; `None` when the limit ran out.
    pub(crate) fn wait_for_exit(&mut self, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.stop_watcher();
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(WAIT_POLL);
        }
    }

    pub(crate) fn kill9(&mut self) {
        self.stop_watcher();
        // Both fail only when the child has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn stop_watcher(&mut self) {
        if let Some(mut watcher) = self.watcher.take() {
            let _ = watcher.kill();
            let _ = watcher.wait();
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A child binary whose output is read line by line with a deadline.
///
/// Dropping it kills the child (`SIGKILL`) and waits for its end.
#[derive(Debug)]
pub struct ChildProcess {
    owned: Owned,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl ChildProcess {
    /// Starts `program` with arguments and extra environment variables. Its stdin and stdout are pipes, its
    /// stderr is that of the test.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Start`] when the program cannot be started.
    pub fn start<P, A, E>(program: P, args: A, env: E) -> Result<Self>
    where
        P: AsRef<OsStr>,
        A: IntoIterator,
        A::Item: AsRef<OsStr>,
        E: IntoIterator<Item = (String, String)>,
    {
        let mut command = Command::new(program);
        command.args(args).envs(env);
        Self::spawn(command)
    }

    /// Starts a prepared command; its stdin and stdout are replaced by pipes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Start`] when the program cannot be started.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut owned = Owned::spawn(&mut command, None)
            .map_err(|e| Error::because(ErrorKind::Start, format!("cannot start {name}"), e))?;
        let stdin = owned.child_mut().stdin.take();
        let stdout = owned.child_mut().stdout.take();
        let (send, lines) = sync_channel(LINES_MAX);
        if let Some(stdout) = stdout {
            // Ends with the pipe, which ends with the child at the latest.
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines() {
                    let Ok(line) = line else { break };
                    if send.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { owned, stdin, lines, name })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.owned.pid()
    }

    /// The next line of its output.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after `limit`, [`ErrorKind::Io`] when the child closed its output.
    pub fn read_line(&self, limit: Duration) -> Result<String> {
        self.lines.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => {
                Error::new(ErrorKind::Timeout, format!("{} printed no line within {limit:?}", self.name))
            }
            RecvTimeoutError::Disconnected => {
                Error::new(ErrorKind::Io, format!("{} closed its output", self.name))
            }
        })
    }

    /// Reads lines until one starts with `prefix` and returns that one; the others are dropped.
    ///
    /// # Errors
    ///
    /// As for [`read_line`](Self::read_line); `limit` bounds the whole wait.
    pub fn read_until(&self, prefix: &str, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let line = self.read_line(deadline.saturating_duration_since(Instant::now()))?;
            if line.starts_with(prefix) {
                return Ok(line);
            }
        }
    }

    /// Writes one line to its stdin.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the child closed its stdin.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let Some(stdin) = &mut self.stdin else {
            return Err(Error::new(ErrorKind::Io, format!("stdin of {} is closed", self.name)));
        };
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .map_err(|e| Error::io(format!("cannot write to {}", self.name), e))
    }

    /// Closes its stdin.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.owned.signal(signal).map_err(|e| Error::io(format!("cannot signal {}", self.name), e))
    }

    /// Stops the process where it stands (`SIGSTOP`).
    ///
    /// # Errors
    ///
    /// As for [`signal`](Self::signal).
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused process go on (`SIGCONT`).
    ///
    /// # Errors
    ///
    /// As for [`signal`](Self::signal).
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the process (`SIGKILL`) and waits for its end.
    pub fn kill9(&mut self) {
        self.owned.kill9();
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] when it still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        match self.owned.wait_for_exit(limit) {
            Ok(Some(status)) => Ok(status),
            Ok(None) => {
                Err(Error::new(ErrorKind::Timeout, format!("{} still runs after {limit:?}", self.name)))
            }
            Err(e) => Err(Error::io(format!("cannot wait for {}", self.name), e)),
        }
    }
}
