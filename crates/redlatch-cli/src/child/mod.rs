//! The command: started, signalled, and waited for together with everything it leaves in its process group.
//!
//! With a terminal the command shares our group, because the terminal sends Ctrl-C to the whole group already; sending it
//! again would deliver it twice. Without one it gets a group of its own, and signals go to all of that.
//! The lock is released only when nobody of the group is left: releasing early is the unsafe direction.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::process::CommandExt,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, Signal, WaitStatus, getpgid, kill_process, kill_process_group};
use tokio::sync::mpsc;

pub(crate) mod trampoline;
mod tree;
mod wait;

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(i32),
    /// It never ran: not found, or not executable.
    NotStarted(u8),
    /// Somebody else collected its status, so how it ended is not known.
    Unknown,
}

/// What happens to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The command itself was stopped.
    Stopped,
    /// The command itself goes on after a stop.
    Continued,
    /// The command itself ended; others of its group may go on.
    Ended(Ended),
    /// Nobody of the group is left.
    GroupEmpty,
}

/// The process group of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// One of its own, so that all of it can be signalled.
    Own,
    /// Ours, because a terminal signals it as one.
    Shared,
}

impl Group {
    /// Shared if there is a controlling terminal, else its own.
    pub(crate) fn choose() -> Self {
        if File::open("/dev/tty").is_ok() { Group::Shared } else { Group::Own }
    }
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Spec {
    /// The program, looked up in PATH, and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Variables to set, and those to take away.
    pub(crate) env: Vec<(&'static str, Option<OsString>)>,
    /// The process group.
    pub(crate) group: Group,
}

/// What of the command still exists. Signals are sent under its lock, so that none can hit a process id that was
/// given to somebody else meanwhile.
#[derive(Debug, Default)]
struct Gone {
    child: bool,
    group: bool,
    status: Option<WaitStatus>,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    group: Group,
    gone: Arc<Mutex<Gone>>,
    events: mpsc::Receiver<Event>,
}

impl Child {
    /// Starts the command. Call it on a thread that lives as long as the process: the kernel ends the command when the
    /// *thread* that started it ends.
    ///
    /// # Errors
    ///
    /// Those of the system: no process, no memory. That the program does not exist shows up as [`Ended::NotStarted`].
    pub(crate) fn spawn(spec: &Spec) -> io::Result<Self> {
        let adopts = tree::adopt_orphans(spec.group);
        let mut command = trampoline::command(&spec.command)?;
        for (name, value) in &spec.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if spec.group == Group::Own {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let gone = Arc::new(Mutex::new(Gone::default()));
        let events = wait::watch(pid, spec.group, adopts, gone.clone())?;
        Ok(Child { pid, group: spec.group, gone, events })
    }

    /// The process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The process group.
    pub(crate) fn group(&self) -> Group {
        self.group
    }

    /// What happens next.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no event is lost.
    pub(crate) async fn event(&mut self) -> Event {
        self.events.recv().await.unwrap_or(Event::GroupEmpty)
    }

    /// Forwards a signal: to the group if it is the command's own, else to the command.
    pub(crate) fn forward(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let gone = self.lock();
        self.to_group(signal, &gone);
        if self.group == Group::Shared {
            self.to_command(signal, &gone);
        }
    }

    /// Asks the command and all that it started to end.
    pub(crate) fn terminate(&self) {
        self.to_all(Signal::TERM);
        // A stopped process acts on TERM only when it goes on.
        self.to_all(Signal::CONT);
    }

    /// Ends the command and all that it started.
    pub(crate) fn kill(&self) {
        self.to_all(Signal::KILL);
    }

    fn to_all(&self, signal: Signal) {
        let gone = self.lock();
        self.to_group(signal, &gone);
        if self.group == Group::Shared {
            // The group is not ours to signal as a whole: it has this process and perhaps a pipeline in it.
            for pid in tree::descendants_in_group().into_iter().filter(|pid| *pid != self.pid) {
                _ = kill_process(pid, signal);
            }
            self.to_command(signal, &gone);
        }
    }

    /// To the command's own group, and to the command itself if it has left that group.
    fn to_group(&self, signal: Signal, gone: &Gone) {
        if self.group == Group::Own && !gone.group {
            // An error means that nobody is there any more, which the events will tell.
            _ = kill_process_group(self.pid, signal);
            if !gone.child && getpgid(Some(self.pid)) != Ok(self.pid) {
                self.to_command(signal, gone);
            }
        }
    }

    fn to_command(&self, signal: Signal, gone: &Gone) {
        if !gone.child {
            _ = kill_process(self.pid, signal);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Gone> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a script for `/bin/sh -c` in front of its arguments.
pub(crate) fn in_shell(command: Vec<OsString>) -> Vec<OsString> {
    let mut words = command.into_iter();
    let script = words.next().unwrap_or_default();
    ["/bin/sh".into(), "-c".into(), script, "sh".into()].into_iter().chain(words).collect()
}

/// The command as it is, without the help of the trampoline.
fn direct(words: &[OsString]) -> Command {
    let (program, arguments) =
        words.split_first().map_or((OsStr::new(""), &[][..]), |(first, rest)| (first.as_os_str(), rest));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
