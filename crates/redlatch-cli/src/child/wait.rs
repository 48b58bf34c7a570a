//! Waiting for the command and its group, on a thread of its own.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{
        Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpgrp, test_kill_process_group, waitid,
        waitpgid, waitpid,
    },
};
use tokio::sync::mpsc;

use super::{Ended, Event, Gone, Group, trampoline::PROCESS_NAME};

/// How often to look whether processes that are not our children are still in the group; no event tells.
const STRANGERS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Reports when the command ends, and when nobody of its group is left.
pub(super) fn watch(
    pid: Pid,
    group: Group,
    adopts: bool,
    gone: Arc<Mutex<Gone>>,
) -> io::Result<mpsc::Receiver<Event>> {
    // A full channel holds up the thread that waits, and stops of the command wait in the kernel meanwhile.
    let (sender, receiver) = mpsc::channel(2);
    let watcher = Arc::new(Watcher { pid, group, gone });
    if adopts {
        let watcher = watcher.clone();
        thread::Builder::new().name("reap".into()).spawn(move || watcher.collect_orphans())?;
    }
    thread::Builder::new().name("wait".into()).spawn(move || {
        // Nobody listens any more when supervision has ended.
        let send = |event| _ = sender.blocking_send(event);
        // The command comes first and by its id: it may leave the group, and must not be taken for gone then.
        watcher.stops(send);
        send(Event::Ended(watcher.command()));
        if adopts {
            watcher.rest_of_group();
        }
        watcher.strangers();
        send(Event::GroupEmpty);
    })?;
    Ok(receiver)
}

struct Watcher {
    pid: Pid,
    group: Group,
    gone: Arc<Mutex<Gone>>,
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

    fn group_id(&self) -> Pid {
        match self.group {
            Group::Own => self.pid,
            Group::Shared => getpgrp(),
        }
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
        if let Ok(Some((_, status))) = waitpid(Some(self.pid), WaitOptions::NOHANG) {
            gone.status = Some(status);
        }
        gone.child = true;
        decode(gone.status, name.trim_end() == PROCESS_NAME)
    }

    /// Collects the orphans that end while the command runs, which a long-lived command may make many of.
    fn collect_orphans(&self) {
        while block(WaitId::Pgid(Some(self.group_id()))) {
            let mut gone = self.lock();
            if gone.child || self.has_ended() {
                return;
            }
            match waitpgid(self.group_id(), WaitOptions::NOHANG) {
                // It ended between the two looks.
                Ok(Some((pid, status))) if pid == self.pid => gone.status = Some(status),
                _ => {}
            }
        }
    }

    /// Waits for what the ended command left in the group, which has become ours.
    fn rest_of_group(&self) {
        while block(WaitId::Pgid(Some(self.group_id()))) {
            let _gone = self.lock();
            // Whoever it is has ended and was waited for; nothing more is wanted of it.
            _ = waitpgid(self.group_id(), WaitOptions::NOHANG);
        }
    }

    /// Waits for members of the group that are nobody's orphans: their parents left the group and still live.
    fn strangers(&self) {
        if self.group == Group::Own {
            while test_kill_process_group(self.pid).is_ok() {
                thread::sleep(STRANGERS_POLL_INTERVAL);
            }
        }
        let mut gone = self.lock();
        gone.child = true;
        gone.group = true;
    }
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
