//! The Java process: its pipes, the replies that are due, and its end.

use super::build;
use super::wire::{JavaError, JavaErrorKind, Reply, encode, parse_reply};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How many lines of the log are kept for error messages.
const LOG_LINES_MAX: usize = 60;

/// A small heap and only the first compiler: a test process lives for seconds, and many live at once.
const JVM_FLAGS: [&str; 7] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    // Its file for `jstat` may belong to a process of another namespace with the same number, and Java says so where replies are read.
    "-XX:-UsePerfData",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dfile.encoding=UTF-8",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];

type Outcome = Result<Reply, JavaError>;

/// The replies that are due. `None` once the process has ended, so that no later command waits in vain.
type Due = Option<HashMap<u64, Sender<Outcome>>>;

pub(super) struct Process {
    child: Mutex<Child>,
    pid: u32,
    /// The lines to write, taken by a thread of its own, so that sending never blocks on a stopped process.
    lines: Sender<String>,
    due: Mutex<Due>,
    next_seq: AtomicU64,
    log: Mutex<VecDeque<String>>,
}

impl Process {
    pub(super) fn spawn(classpath: &str) -> Result<Arc<Self>, JavaError> {
        let mut child = Command::new(build::java_program())
            .args(JVM_FLAGS)
            .arg("-cp")
            .arg(classpath)
            .arg("redlatch.interop.Driver")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| build::tool_error("java", &error))?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(JavaError::new(JavaErrorKind::Build, "the Java process has no pipes"));
        };
        let (lines, queue) = channel::<String>();
        let process = Arc::new(Self {
            pid: child.id(),
            child: Mutex::new(child),
            lines,
            due: Mutex::new(Some(HashMap::new())),
            next_seq: AtomicU64::new(1),
            log: Mutex::new(VecDeque::new()),
        });

        thread::spawn(move || {
            for line in queue {
                // A failed write means that the process has ended, which the thread that reads its replies reports.
                if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        // The readers hold no strong reference between lines: the process must end when its last handle is dropped.
        let weak = Arc::downgrade(&process);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let (Ok(line), Some(process)) = (line, weak.upgrade()) else { break };
                process.deliver(&line);
            }
            if let Some(process) = weak.upgrade() {
                process.fail_all();
            }
        });
        let weak = Arc::downgrade(&process);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let (Ok(line), Some(process)) = (line, weak.upgrade()) else { break };
                let mut log = locked(&process.log);
                if log.len() == LOG_LINES_MAX {
                    log.pop_front();
                }
                log.push_back(line);
            }
        });
        Ok(process)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn send(
        self: &Arc<Self>,
        thread: u64,
        verb: &str,
        args: &[&str],
    ) -> Result<PendingReply, JavaError> {
        let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
        let mut line = format!("{seq} {thread} {verb}");
        for arg in args {
            line.push(' ');
            line.push_str(&encode(arg));
        }
        line.push('\n');
        let (reply_to, reply) = channel();
        match locked(&self.due).as_mut() {
            Some(due) => due.insert(seq, reply_to),
            None => return Err(self.gone(verb)),
        };
        // If the writing thread has ended, the process has too, and the reader fails what is due.
        let _ = self.lines.send(line);
        Ok(PendingReply { process: Arc::clone(self), verb: verb.to_owned(), reply, taken: Cell::new(false) })
    }

    fn deliver(&self, line: &str) {
        let Some((seq, outcome)) = parse_reply(line) else {
            // Only replies belong on this stream, so a stray line ends the conversation instead of hiding in it.
            let message = format!("not a reply line: {line}");
            if let Some(due) = locked(&self.due).as_mut() {
                for (_, reply_to) in due.drain() {
                    let _ = reply_to.send(Err(JavaError::new(JavaErrorKind::Protocol, message.clone())));
                }
            }
            return;
        };
        let reply_to = locked(&self.due).as_mut().and_then(|due| due.remove(&seq));
        if let Some(reply_to) = reply_to {
            // The caller may have dropped its handle.
            let _ = reply_to.send(outcome);
        }
    }

    /// Dropping the senders ends every wait.
    fn fail_all(&self) {
        locked(&self.due).take();
    }

    fn gone(&self, verb: &str) -> JavaError {
        let log: Vec<String> = locked(&self.log).iter().cloned().collect();
        let mut message = format!("the Java process {} has ended during {verb}", self.pid);
        if !log.is_empty() {
            message.push_str("; its log:\n");
            message.push_str(&log.join("\n"));
        }
        JavaError::new(JavaErrorKind::Gone, message)
    }

    pub(super) fn kill9(&self) {
        let mut child = locked(&self.child);
        // An error means that it has ended already. After SIGKILL the wait is short.
        let _ = child.kill();
        let _ = child.wait();
        drop(child);
        self.fail_all();
    }

    pub(super) fn pause(&self) -> Result<(), JavaError> {
        self.signal(Signal::STOP, "pause")?;
        let pid = self.live_pid("pause")?;
        // Returns when the process has stopped or has been killed meanwhile, and reaps nothing.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), options).map_err(|_| self.gone("pause"))?;
        Ok(())
    }

    pub(super) fn resume(&self) -> Result<(), JavaError> {
        self.signal(Signal::CONT, "resume")
    }

    fn signal(&self, signal: Signal, what: &str) -> Result<(), JavaError> {
        // Held while signalling, so that the process is not reaped and its number not given to another one.
        let mut child = locked(&self.child);
        match child.try_wait() {
            Ok(None) => {}
            _ => return Err(self.gone(what)),
        }
        kill_process(self.live_pid(what)?, signal).map_err(|_| self.gone(what))
    }

    fn live_pid(&self, what: &str) -> Result<Pid, JavaError> {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(|| self.gone(what))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A command whose reply has not been taken yet. Dropping it leaves the command running.
pub struct PendingReply {
    process: Arc<Process>,
    verb: String,
    reply: Receiver<Outcome>,
    taken: Cell<bool>,
}

impl PendingReply {
    /// Waits for the reply. After a timeout it can be waited for again; once taken it is not given a second time.
    ///
    /// # Errors
    ///
    /// The exception that Redisson throws, by its simple class name; a timeout; or the end of the process.
    pub fn wait(&self, limit: Duration) -> Result<Reply, JavaError> {
        match self.reply.recv_timeout(limit) {
            Ok(outcome) => {
                self.taken.set(true);
                outcome
            }
            Err(RecvTimeoutError::Timeout) => Err(JavaError::new(
                JavaErrorKind::Timeout,
                format!("no reply to {} within {limit:?}", self.verb),
            )),
            Err(RecvTimeoutError::Disconnected) if self.taken.get() => Err(JavaError::new(
                JavaErrorKind::Protocol,
                format!("the reply to {} has been taken already", self.verb),
            )),
            Err(RecvTimeoutError::Disconnected) => Err(self.process.gone(&self.verb)),
        }
    }

    /// Whether no reply comes within `limit`: the way to see that a thread is blocked.
    #[must_use]
    pub fn is_still_waiting_after(&self, limit: Duration) -> bool {
        matches!(self.wait(limit), Err(error) if error.kind() == JavaErrorKind::Timeout)
    }
}

impl std::fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingReply").field("verb", &self.verb).finish_non_exhaustive()
    }
}

/// A panic of another test thread leaves nothing half done under these locks, so poison is ignored.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
