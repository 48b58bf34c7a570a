//! Whether a process has ended, which its number alone does not tell: it may be another one's by now.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor. The wrappers that watch both ways are no choice: they wake the task that reads each
/// time that the other side has taken a reply.
#[allow(
    deprecated,
    reason = "its successor is `unsafe`, for types that change their descriptor; ours own theirs for life"
)]
pub(super) fn watch<T: AsRawFd>(inner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(inner, interest)
}

/// A process that was there when this was made.
#[derive(Clone, Debug)]
pub(crate) struct Process(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    pid: i32,
    end: RefCell<End>,
}

#[derive(Debug)]
enum End {
    Told(Rc<Watched>),
    /// It has ended, and its descriptor is given back.
    Over,
    #[cfg(test)]
    Fake(Rc<Cell<bool>>),
}

/// A descriptor that is readable once the process has ended.
#[derive(Debug)]
struct Watched {
    fd: AsyncFd<OwnedFd>,
    count: Rc<Cell<usize>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

/// The processes whose end is waited for. However many clients one of them has, it takes one descriptor, until it has ended.
#[derive(Default)]
pub(crate) struct Processes {
    known: RefCell<HashMap<i32, Weak<Inner>>>,
    count: Rc<Cell<usize>>,
}

impl Processes {
    /// How many descriptors they take.
    pub(crate) fn descriptors(&self) -> usize {
        self.count.get()
    }

    fn known(&self, pid: i32) -> Option<Process> {
        let process = Process(self.known.borrow().get(&pid)?.upgrade()?);
        // Its number may be another one's by now.
        (!process.has_ended()).then_some(process)
    }

    /// Whether one more client of it takes no descriptor.
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.known(pid).is_some()
    }

    /// The process that has this number now.
    ///
    /// # Errors
    ///
    /// It has ended, or the system tells nobody of the end of a process.
    pub(crate) fn open(&self, pid: i32) -> io::Result<Process> {
        if let Some(process) = self.known(pid) {
            return Ok(process);
        }
        let fd = watch(pidfd(pid)?, Interest::READABLE)?;
        self.count.set(self.count.get() + 1);
        let end = RefCell::new(End::Told(Rc::new(Watched { fd, count: Rc::clone(&self.count) })));
        let process = Process(Rc::new(Inner { pid, end }));
        let mut known = self.known.borrow_mut();
        if known.len() > 2 * self.count.get() {
            known.retain(|_, process| process.strong_count() > 0);
        }
        known.insert(pid, Rc::downgrade(&process.0));
        Ok(process)
    }
}

#[cfg(target_os = "linux")]
fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

#[cfg(not(target_os = "linux"))]
fn pidfd(_pid: i32) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Process {
    #[cfg(test)]
    pub(crate) fn fake(pid: i32) -> (Process, Rc<Cell<bool>>) {
        let end = Rc::new(Cell::new(false));
        (Process(Rc::new(Inner { pid, end: RefCell::new(End::Fake(end.clone())) })), end)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut end = self.0.end.borrow_mut();
        let has_ended = match &*end {
            End::Told(watched) => {
                use rustix::event::{PollFd, PollFlags, Timespec, poll};
                let mut polled = [PollFd::new(watched.fd.get_ref(), PollFlags::IN)];
                // What cannot be told counts as alive.
                poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            End::Over => return true,
            #[cfg(test)]
            End::Fake(end) => return end.get(),
        };
        if has_ended {
            *end = End::Over;
        }
        has_ended
    }

    /// Resolves when it has ended.
    pub(crate) async fn ended(self) {
        let watched = match &*self.0.end.borrow() {
            End::Told(watched) => Some(Rc::clone(watched)),
            End::Over => return,
            #[cfg(test)]
            End::Fake(_) => None,
        };
        let Some(watched) = watched else { return std::future::pending().await };
        if watched.fd.readable().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn child() -> (Child, i32) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        (child, pid)
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_told() {
        let (processes, (mut child, pid)) = (Processes::default(), child());
        let process = processes.open(pid).unwrap();
        assert!(!process.has_ended());
        drop(child.stdin.take());
        // It is told before anybody has collected it.
        process.clone().ended().await;
        assert!(process.has_ended());
        child.wait().unwrap();
        assert!(process.has_ended());
        assert!(processes.open(pid).is_err() || process.has_ended());
    }

    #[tokio::test]
    async fn a_process_takes_one_descriptor_for_all_of_its_clients_and_none_when_it_has_ended() {
        let (processes, (mut child, pid)) = (Processes::default(), child());
        let clients: Vec<Process> = (0..100).map(|_| processes.open(pid).unwrap()).collect();
        assert_eq!((processes.descriptors(), processes.has(pid)), (1, true));
        drop(child.stdin.take());
        clients[0].clone().ended().await;
        assert!(clients.iter().all(Process::has_ended));
        assert_eq!((processes.descriptors(), processes.has(pid)), (0, false));
        child.wait().unwrap();
        for _ in 0..100 {
            let (mut child, pid) = self::child();
            let process = processes.open(pid).unwrap();
            child.kill().and_then(|()| child.wait()).unwrap();
            drop(process);
        }
        assert_eq!(processes.descriptors(), 0);
        assert!(processes.known.borrow().len() < 5, "what nobody asks for is forgotten");
    }
}
