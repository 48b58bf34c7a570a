//! The process that ends what a killed run leaves behind.
//!
//! The kernel ends the command with us (see the trampoline), but not what the command started. So a process of our own stands
//! beside the command and reads from a pipe that only we write to. When the pipe closes, we are gone: the guard then ends
//! whatever is left of the command's group. It is killed itself as soon as the group is empty.
//!
//! What it may not end it names on stderr, because nobody else is left to say so.
//!
//! Where the engine frees what dead processes held, the guard has the lifeline open like the command, and stays until the group is
//! empty: what it may not end, and what has closed its own end of the lifeline, keeps the lock all the same.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    process::Stdio,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, kill_process, kill_process_group, test_kill_process},
};
use signal_hook::consts::{FORBIDDEN, SIGBUS};

use super::{
    Group, Left,
    process::{self, Process},
    tree,
};
use crate::{group, own_program, talk};

/// The hidden verb of the guard.
pub(crate) const VERB: &str = "__guard";

/// The name of the process.
#[cfg(target_os = "linux")]
const PROCESS_NAME: &std::ffi::CStr = c"redlatch:guard";

/// How long it goes on: what is in the kernel's hands may take a moment to die.
const KILLING_TIME: Duration = Duration::from_secs(5);
/// Between two looks at what is left.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// The same for what could not be ended.
const STAY_INTERVAL: Duration = Duration::from_millis(20);
/// The highest number that a signal has, those for real time included.
const SIGNAL_MAX: i32 = 64;
/// How many processes a message names.
const NAMED_MAX: usize = 3;
/// The line that says that what is left has been named.
const TOLD: &str = "told";
/// The longest order that is read, in bytes.
const ORDER_BYTES_MAX: u64 = 4096;

/// A guard that has been started. It goes when this is dropped, and does what it has been told to do.
#[derive(Debug)]
pub(super) struct Guard {
    pid: Pid,
    order: std::process::ChildStdin,
}

impl Guard {
    /// Starts one that has no orders yet.
    ///
    /// # Errors
    ///
    /// Those of the system: no process, no memory.
    pub(super) fn start() -> io::Result<Self> {
        use std::os::unix::process::CommandExt;

        let mut command = own_program::command()?;
        command.arg(VERB).stdin(Stdio::piped()).stdout(Stdio::null());
        // Nothing that is sent to the command or to us may reach it.
        let mut child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let order = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Guard { pid, order })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Says what to end, before there is a command: the processes that have the variable `mark` in their environment, in a shared group
    /// those of that group. If it `stays`, it goes only when they have.
    ///
    /// The command may have started others before this process runs again, so what they are known by is said first.
    ///
    /// # Errors
    ///
    /// When the guard has died.
    pub(super) fn watch_over(&mut self, group: Group, stays: bool, mark: &str) -> io::Result<()> {
        let stays = if stays { "stays" } else { "goes" };
        let order = match group {
            Group::Own => format!("own {stays} {mark}\n"),
            Group::Shared => format!("shared {stays} {mark}\n{}\n", group::own()),
        };
        self.order.write_all(order.as_bytes())
    }

    /// Says which process is the command. Its own group is to be ended as a whole.
    ///
    /// # Errors
    ///
    /// When the guard has died.
    pub(super) fn command(&mut self, command: Pid) -> io::Result<()> {
        self.order.write_all(format!("{}\n", command.as_raw_nonzero()).as_bytes())
    }

    /// Says that the run itself has named what it leaves.
    ///
    /// # Errors
    ///
    /// When the guard has died.
    pub(super) fn is_told(&mut self) -> io::Result<()> {
        self.order.write_all(format!("{TOLD}\n").as_bytes())
    }
}

/// The guard itself: waits until the run is gone, and ends what is left.
pub(crate) fn guard(_: impl Iterator<Item = OsString>) -> u8 {
    name_process();
    outlive_signals();
    let mut order = String::new();
    if io::stdin().take(ORDER_BYTES_MAX).read_to_string(&mut order).is_err() {
        return crate::exit::INTERNAL;
    }
    // Without an order there is no command: the kernel has ended the step before it.
    if order.lines().any(|line| line == TOLD) {
        let_go_of_stderr();
    }
    let mut lines = order.lines();
    let Some(line) = lines.next() else { return crate::exit::OK };
    let mut number = || lines.next().and_then(|number| Pid::from_raw(number.parse().ok()?));
    let (group, command) = (number(), number());
    let mut words = line.split(' ');
    let (word, stays, mark) = (words.next(), words.next() == Some("stays"), words.next().unwrap_or_default());
    match (word, group) {
        (Some("own"), Some(group)) => {
            until_none(|| own_group(group));
            tell_of(tree::members(group.as_raw_nonzero().get()), stays);
            while stays && members_of_own(group) {
                thread::sleep(STAY_INTERVAL);
            }
        }
        (Some("own" | "shared"), _) if mark.is_empty() => return crate::exit::INTERNAL,
        // The run was killed before it knew which process its command is.
        (Some("own"), None) => {
            let session = group::own_session();
            end_marked(|process| process.session == session, mark, stays, None);
        }
        (Some("shared"), Some(group)) => {
            let group = group.as_raw_nonzero().get();
            end_marked(|process| process.group == group, mark, stays, command);
        }
        _ => return crate::exit::INTERNAL,
    }
    crate::exit::OK
}

/// Does nothing about any signal that can be caught. A service manager sends one to all processes at once, be it a request to end or one that only
/// the command knows, and the run still needs its guard.
fn outlive_signals() {
    // A fault of this process itself raises these, and would raise them again for ever: the program cannot go on behind it.
    let of_faults = |signal: &i32| FORBIDDEN.contains(signal) || *signal == SIGBUS;
    for signal in (1..=SIGNAL_MAX).filter(|signal| !of_faults(signal)) {
        // The system has no signal of this number, or keeps it for itself.
        _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}

#[cfg(target_os = "linux")]
fn name_process() {
    _ = rustix::thread::set_name(PROCESS_NAME);
}

#[cfg(not(target_os = "linux"))]
fn name_process() {}

/// Goes on until `kill` finds no process any more that it can end.
fn until_none(mut kill: impl FnMut() -> bool) {
    let deadline = Instant::now() + KILLING_TIME;
    while kill() && Instant::now() < deadline {
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Ends a group at once.
fn own_group(group: Pid) -> bool {
    members_of_own(group) && kill_process_group(group, Signal::KILL).is_ok()
}

/// Whether anybody is left of a group. The session is compared, because the number may have been given to others since.
fn members_of_own(group: Pid) -> bool {
    let session = group::own_session();
    let number = group.as_raw_nonzero().get();
    let is_one = |process: &Process| process.group == number && process.session == session && !process.ended;
    !process::finds_nothing(|listed| listed.iter().any(is_one))
}

/// Ends those of the processes in question that descend from the command, and waits for them if it `stays`. The command itself is known
/// also when it has become another user and shows nobody its environment.
fn end_marked(in_question: impl Fn(&Process) -> bool, mark: &str, stays: bool, command: Option<Pid>) {
    until_none(|| any_marked(&in_question, mark));
    let refused = || {
        let command = command.filter(|command| test_kill_process(*command) == Err(Errno::PERM))?;
        let its = Process::read(command.as_raw_nonzero().get())?;
        (!its.ended && in_question(&its)).then_some(command)
    };
    tell_of(refused().into_iter().collect(), stays);
    while stays && (any_marked(&in_question, mark) || refused().is_some()) {
        thread::sleep(STAY_INTERVAL);
    }
}

/// Names what works on after its run was killed. Nobody who does not read this is waited for, and stderr is let go of.
fn tell_of(left: Vec<Pid>, stays: bool) {
    let left: Vec<String> = left.into_iter().filter_map(Left::look).map(|left| left.to_string()).collect();
    let (named, more) = left.split_at(left.len().min(NAMED_MAX));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    let meanwhile = if stays {
        "the lock stays held until it ends"
    } else {
        "it works on WITHOUT THE LOCK once the lease is over: end it by hand"
    };
    // A terminal may want to stop a background process that writes.
    let mut writes = SigSet::empty();
    writes.add(nix::sys::signal::Signal::SIGTTOU);
    _ = writes.thread_block();
    let stderr = io::stderr();
    let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec::default()));
    if !named.is_empty() && ready == Ok(1) {
        let named = named.join(", ");
        talk::error(format_args!(
            "CANNOT STOP {named}{more}: its run has gone, and only another user can stop it; {meanwhile}"
        ));
    }
    let_go_of_stderr();
}

/// Lets go of stderr: who waits for the end of it waits for nothing more of ours.
fn let_go_of_stderr() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        _ = rustix::stdio::dup2_stderr(null);
    }
}

/// Ends those that descend from the command, however fast they follow each other; whether there were any. Their parents are gone, but they have
/// inherited its environment.
fn any_marked(in_question: &impl Fn(&Process) -> bool, mark: &str) -> bool {
    !process::finds_nothing(|listed| {
        let mut found = false;
        for process in listed.into_iter().filter(|process| !process.ended && in_question(process)) {
            if process::carries(process.pid, mark)
                && let Some(pid) = Pid::from_raw(process.pid)
            {
                found |= kill_process(pid, Signal::KILL).is_ok();
            }
        }
        found
    })
}
