//! The command: started, signalled, and waited for together with everything it leaves in its process group.
//!
//! With a terminal the command shares our group, because the terminal sends Ctrl-C to the whole group already; sending it
//! again would deliver it twice. Without one it gets a group of its own, and signals go to all of that.
//! The lock is released only when nobody of the group is left: releasing early is the unsafe direction.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
    process::{Pid, Signal, kill_process, kill_process_group},
};
use signal_hook::consts::SIGCHLD;
use tokio::sync::mpsc;

use self::{guard::Guard, tree::Kin};
use crate::{exit::Failure, group};

pub(crate) mod guard;
mod left;
mod process;
pub(crate) mod program;
pub(crate) mod trampoline;
mod tree;
mod wait;

pub(crate) use left::Left;
pub(crate) use process::{environment, has_ended};
pub(crate) use trampoline::Deadline;
pub(crate) use tree::is_orphaned;

/// Descriptors of ours in the command begin here: below, scripts choose their own.
const INHERITED_FD_MIN: i32 = 72;

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(i32),
    /// It never ran: not found, not executable, or too late, which [`crate::exit::LOST`] says.
    NotStarted(u8),
    /// Another part of this process collected its status, so how it ended is not known.
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

    /// Whether the processes of a command in this group can be found, so that they end with the lock.
    ///
    /// # Errors
    ///
    /// Configuration, when `/proc` is another namespace's or is not there, and when our group, which the command would share, was begun
    /// outside of our namespace.
    pub(crate) fn check_is_seen(self) -> Result<(), Failure> {
        if cfg!(target_os = "linux") && !process::are_shown() {
            return Err(Failure::config(
                "/proc does not show the processes of this namespace, so what the command starts could not be found and ended with the lock; \
                 mount it there: `unshare --mount-proc`, or `mount -t proc proc /proc`",
            ));
        }
        if self == Group::Shared && group::own() == 0 {
            return Err(Failure::config(
                "the process group of this run was begun outside of its namespace of processes, so the terminal could not stop the command with it; \
                 start it by `setsid`, or from a shell inside",
            ));
        }
        Ok(())
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
    /// What is in the environment of the command and of nobody else's.
    pub(crate) mark: String,
    /// When it may not start any more.
    pub(crate) deadline: Deadline,
    /// Whether set-user-ID programs may give it the rights of another user.
    pub(crate) gains_rights: bool,
    /// Where its output goes, both stdout and stderr; where ours goes unless given.
    pub(crate) output: Option<File>,
    /// What every process of the command has open, so that the lock stays held while one of them is left.
    pub(crate) lifeline: Option<OwnedFd>,
}

/// What of the command still exists. Signals are sent under its lock, so that none can hit a process id that was
/// given to another process meanwhile.
#[derive(Debug, Default)]
struct Gone {
    child: bool,
    group: bool,
    /// The guard, until it has been collected.
    guard: Option<Pid>,
}

/// How often to list the processes that a KILL has to reach. What starts processes faster than that is left to the guard.
const KILL_ROUNDS_MAX: usize = 32;

/// A descriptor that every process has which is started while it is open.
fn heritable(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let copy = fcntl_dupfd_cloexec(fd, INHERITED_FD_MIN)?;
    fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    group: Group,
    kin: Kin,
    gone: Arc<Mutex<Gone>>,
    events: mpsc::Receiver<Event>,
    /// Ends the command's group should we be killed. It goes when the group has.
    guard: Guard,
}

impl Child {
    /// Starts the command. Call it on a thread that lives as long as the process: the kernel ends the command when the
    /// *thread* that started it ends.
    ///
    /// # Errors
    ///
    /// Those of the system: no process, no memory. That the program does not exist shows up as [`Ended::NotStarted`].
    pub(crate) fn spawn(spec: Spec) -> io::Result<Self> {
        // A program that ignores the ends of its children passes that on, and then the system tells nobody how they ended. The command has
        // the usual way again.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let kin = tree::adopt_orphans(spec.group, &spec.mark);
        // For what is started here and nobody else. A process without room for one more goes on with the lease alone.
        let lifeline = spec.lifeline.as_ref().and_then(|end| heritable(end).ok());
        let mut guard = Guard::start()?;
        let mut command = trampoline::command(&spec.command, spec.deadline, spec.gains_rights)?;
        for (name, value) in &spec.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if spec.group == Group::Own {
            command.process_group(0);
        }
        if let Some(output) = &spec.output {
            command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        }
        let threads = wait::Threads::start()?;
        guard.watch_over(spec.group, lifeline.is_some(), &spec.mark)?;
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        // A guard that has died since is no reason to stop the command, which is under way.
        _ = guard.command(pid);
        drop(lifeline);
        let gone = Arc::new(Mutex::new(Gone { guard: Some(guard.pid()), ..Gone::default() }));
        let events = threads.watch(pid, spec.group, kin.clone(), gone.clone());
        Ok(Child { pid, group: spec.group, kin, gone, events, guard })
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

    /// Waits until the guard has been collected, once the group is gone: a process that this one leaves as a zombie may stay one.
    pub(crate) async fn collected(&mut self) {
        while self.events.recv().await.is_some() {}
    }

    /// Who of the command and of what it started in its group is still there.
    pub(crate) fn left(&self) -> Vec<Left> {
        let gone = self.lock();
        let mut pids = self.members(&gone);
        if !gone.child && !pids.contains(&self.pid) {
            pids.insert(0, self.pid);
        }
        pids.into_iter().filter_map(Left::look).collect()
    }

    /// Says that who is left has been named, so that nobody names them again when we are gone.
    pub(crate) fn left_is_told(&mut self) {
        _ = self.guard.is_told();
    }

    /// One of the command and of what it started in its group that is neither stopped nor at its end.
    pub(crate) fn working(&self) -> Option<Left> {
        let members = self.members(&self.lock());
        let mut working =
            members.into_iter().filter(|pid| !process::stands_still(pid.as_raw_nonzero().get()));
        working.find_map(Left::look)
    }

    /// Those of the group that belong to the command and have not ended.
    fn members(&self, gone: &Gone) -> Vec<Pid> {
        match self.group {
            Group::Own if gone.group => Vec::new(),
            Group::Own => tree::members(self.pid.as_raw_nonzero().get()),
            Group::Shared => self.kin.members(Some(self.pid).filter(|_| !gone.child)),
        }
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

    /// Forwards a signal to the command and all that it started.
    pub(crate) fn forward_to_all(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.to_all(signal);
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
            // First, or it starts another process in place of one that has ended.
            if signal == Signal::KILL {
                self.to_command(signal, &gone);
            }
            // The group is not ours to signal as a whole: it has this process and perhaps a pipeline in it. One that is listed may start
            // another one before the signal reaches it.
            let mut reached = vec![self.pid];
            for _ in 0..if signal == Signal::KILL { KILL_ROUNDS_MAX } else { 1 } {
                let listed = self.members(&gone).into_iter();
                let new: Vec<Pid> = listed.filter(|pid| !reached.contains(pid)).collect();
                for pid in &new {
                    _ = kill_process(*pid, signal);
                }
                if new.is_empty() {
                    break;
                }
                reached.extend(new);
            }
            if signal != Signal::KILL {
                self.to_command(signal, &gone);
            }
        }
    }

    /// To the command's own group, and to the command itself if it has left that group.
    fn to_group(&self, signal: Signal, gone: &Gone) {
        if self.group == Group::Own && !gone.group {
            // An error means that nobody is there any more, which the events will tell, or that nobody of them may be
            // signalled by us, which `left` tells.
            _ = kill_process_group(self.pid, signal);
            if !gone.child && group::of(self.pid) != Some(self.pid.as_raw_nonzero().get()) {
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
