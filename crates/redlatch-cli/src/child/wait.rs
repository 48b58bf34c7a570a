//! Waiting for the command and its group, on threads of their own.
//!
//! No wait here is for a *group*: the kernel looks at a process's group when the wait begins and when the process ends, so a
//! wait for a group never returns when the last member moves to another one. Waits are for a process, or for any child.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, waitid, waitpid},
};
use tokio::sync::mpsc;

use super::{Ended, Event, Gone, Group, trampoline::PROCESS_NAME, tree, tree::Kin};
use crate::group;

/// How often to look whether members of the group have moved to another one; no event tells.
const MOVED_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A child that another part of this process waits for is left alone for this long.
const OTHERS_FIRST: Duration = Duration::from_millis(2);
/// How many members of the group are watched at once, each with a descriptor.
#[cfg(target_os = "linux")]
const WATCHED_MAX: usize = 64;

/// The threads, before there is a command: when it has been started nothing may fail any more, or it would work on without its lock.
pub(super) struct Threads {
    reap: Option<std_mpsc::Sender<Arc<Watcher>>>,
    wait: std_mpsc::Sender<(Arc<Watcher>, mpsc::Sender<Event>)>,
}

/// Starts a thread that does its work once it has been told of what. Without that it ends.
fn thread_for<T: Send + 'static>(
    name: &str,
    work: impl FnOnce(T) + Send + 'static,
) -> io::Result<std_mpsc::Sender<T>> {
    let (tell, told) = std_mpsc::channel();
    thread::Builder::new().name(name.into()).spawn(move || {
        if let Ok(of) = told.recv() {
            work(of);
        }
    })?;
    Ok(tell)
}

impl Threads {
    pub(super) fn start() -> io::Result<Threads> {
        // Where orphans are not adopted there are no others, and no list of them either.
        let reap = match cfg!(target_os = "linux") {
            true => Some(thread_for("reap", |watcher: Arc<Watcher>| watcher.collect_others())?),
            false => None,
        };
        let wait = thread_for("wait", |(watcher, sender): (Arc<Watcher>, mpsc::Sender<Event>)| {
            // Nobody listens any more when supervision has ended.
            let send = |event| _ = sender.blocking_send(event);
            // The command comes first and by its id: it may leave the group, and must not be taken for gone then.
            watcher.stops(send);
            send(Event::Ended(watcher.command()));
            let guard = watcher.rest_of_group();
            send(Event::GroupEmpty);
            // Its end takes as long as giving the lock back, which goes on meanwhile.
            if let Some(guard) = guard {
                _ = waitpid(Some(guard), WaitOptions::empty());
            }
        })?;
        Ok(Threads { reap, wait })
    }

    /// Reports when the command ends, and when nobody of its group is left.
    pub(super) fn watch(
        self,
        pid: Pid,
        group: Group,
        kin: Kin,
        gone: Arc<Mutex<Gone>>,
    ) -> mpsc::Receiver<Event> {
        // A full channel holds up the thread that waits, and stops of the command wait in the kernel meanwhile.
        let (sender, receiver) = mpsc::channel(2);
        let watcher = Arc::new(Watcher { pid, group, kin, gone, collected: Condvar::new() });
        // Both threads are there until they have been told.
        if let Some(reap) = self.reap {
            _ = reap.send(watcher.clone());
        }
        _ = self.wait.send((watcher, sender));
        receiver
    }
}

struct Watcher {
    pid: Pid,
    group: Group,
    kin: Kin,
    gone: Arc<Mutex<Gone>>,
    /// Notified when the command has been collected.
    collected: Condvar,
}

/// Blocks until `id` has something to collect; false when there is nobody to wait for.
fn block(id: WaitId<'_>) -> bool {
    loop {
        match waitid(id.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, Gone> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Reports that the command stops and goes on, until it ends.
    fn stops(&self, send: impl Fn(Event)) {
        let all = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED;
        let taken = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        loop {
            // The end is left where it is, because the process id is free once it is collected.
            match waitid(WaitId::Pid(self.pid), all | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) if status.stopped() || status.continued() => {}
                Err(Errno::INTR) => continue,
                _ => return,
            }
            if let Ok(Some(status)) = waitid(WaitId::Pid(self.pid), taken) {
                send(if status.stopped() { Event::Stopped } else { Event::Continued });
            }
        }
    }

    /// Waits for the command. Its name is read before it is collected: a process that never became the command still
    /// carries the name of the step before.
    fn command(&self) -> Ended {
        block(WaitId::Pid(self.pid));
        let mut gone = self.lock();
        let name =
            std::fs::read_to_string(format!("/proc/{}/comm", self.pid.as_raw_nonzero())).unwrap_or_default();
        let status = waitpid(Some(self.pid), WaitOptions::NOHANG).ok().flatten();
        gone.child = true;
        drop(gone);
        self.collected.notify_all();
        decode(status.map(|(_, status)| status), name.trim_end() == PROCESS_NAME)
    }

    /// Collects every child but the command: the orphans that were adopted, in whatever group or session they ended, or the
    /// process table would fill up with them. Ends when there is no child any more.
    fn collect_others(&self) {
        while block(WaitId::All) {
            let mut gone = self.lock();
            if !gone.child && self.has_ended() {
                while !gone.child {
                    gone = self.collected.wait(gone).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            }
            drop(gone);
            thread::sleep(OTHERS_FIRST);
            for child in tree::children() {
                let mut gone = self.lock();
                if child != self.pid || gone.child {
                    let collected = waitpid(Some(child), WaitOptions::NOHANG);
                    if gone.guard == Some(child) && !matches!(collected, Ok(None)) {
                        gone.guard = None;
                    }
                }
            }
        }
    }

    /// Waits for what the ended command left in the group, and ends the guard, which then has to be collected.
    fn rest_of_group(&self) -> Option<Pid> {
        while let Some(left) = self.left() {
            await_departure(left, self.group_id());
        }
        let mut gone = self.lock();
        gone.group = true;
        // From here on the number of the group may be given to others, so nobody may kill it any more.
        let guard = gone.guard.take()?;
        _ = kill_process(guard, Signal::KILL);
        Some(guard)
    }

    /// Who is left in the group, as far as they can be seen; nothing when it is empty.
    fn left(&self) -> Option<Vec<Pid>> {
        match self.group {
            Group::Own if tree::is_empty(self.pid) => None,
            Group::Own => Some(tree::members(self.pid.as_raw_nonzero().get())),
            Group::Shared if self.kin.is_gone() => None,
            Group::Shared => Some(self.kin.members(None)),
        }
    }

    fn group_id(&self) -> i32 {
        match self.group {
            Group::Own => self.pid.as_raw_nonzero().get(),
            Group::Shared => group::own(),
        }
    }
}

/// Waits until all of these have ended or moved to another group; for a moment if they cannot be watched.
#[cfg(target_os = "linux")]
fn await_departure(left: Vec<Pid>, group: i32) {
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        process::{PidfdFlags, pidfd_open},
    };

    let watched = left.into_iter().take(WATCHED_MAX);
    let mut watched: Vec<_> =
        watched.filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?))).collect();
    if watched.is_empty() {
        thread::sleep(MOVED_POLL_INTERVAL);
    }
    let limit = Timespec::try_from(MOVED_POLL_INTERVAL).ok();
    while !watched.is_empty() {
        let mut ends: Vec<PollFd<'_>> =
            watched.iter().map(|(_, end)| PollFd::new(end, PollFlags::IN)).collect();
        if poll(&mut ends, limit.as_ref()).is_err() {
            thread::sleep(MOVED_POLL_INTERVAL);
        }
        let mut ended = ends.iter().map(|end| !end.revents().is_empty()).collect::<Vec<_>>().into_iter();
        watched.retain(|(pid, _)| !ended.next().unwrap_or(false) && group::of(*pid) == Some(group));
    }
}

#[cfg(not(target_os = "linux"))]
fn await_departure(_left: Vec<Pid>, _group: i32) {
    thread::sleep(MOVED_POLL_INTERVAL);
}

fn decode(status: Option<WaitStatus>, never_ran: bool) -> Ended {
    let Some(status) = status else { return Ended::Unknown };
    match (status.exit_status().and_then(|code| u8::try_from(code).ok()), status.terminating_signal()) {
        (Some(code), _) if never_ran => Ended::NotStarted(code),
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Unknown,
    }
}
