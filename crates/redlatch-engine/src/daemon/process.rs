//! Whether a process has ended, which its number alone does not tell: it may be another one's by now.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

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
pub(crate) struct Process {
    pid: i32,
    /// Readable once the process has ended.
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    Told(Rc<AsyncFd<OwnedFd>>),
    #[cfg(test)]
    Fake(Rc<std::cell::Cell<bool>>),
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    ///
    /// It has ended, or the system tells nobody of the end of a process.
    #[cfg(target_os = "linux")]
    pub(crate) fn open(pid: i32) -> io::Result<Process> {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};

        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let end = watch(pidfd_open(number, PidfdFlags::empty())?, Interest::READABLE)?;
        Ok(Process { pid, end: End::Told(Rc::new(end)) })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn open(_pid: i32) -> io::Result<Process> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(test)]
    pub(crate) fn fake(pid: i32) -> (Process, Rc<std::cell::Cell<bool>>) {
        let end = Rc::new(std::cell::Cell::new(false));
        (Process { pid, end: End::Fake(end.clone()) }, end)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn has_ended(&self) -> bool {
        match &self.end {
            End::Told(end) => {
                use rustix::event::{PollFd, PollFlags, Timespec, poll};
                let mut polled = [PollFd::new(end.get_ref(), PollFlags::IN)];
                // What cannot be told counts as alive.
                poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            #[cfg(test)]
            End::Fake(end) => end.get(),
        }
    }

    /// Resolves when it has ended.
    pub(crate) async fn ended(self) {
        match self.end {
            End::Told(end) => {
                if end.readable().await.is_err() {
                    std::future::pending().await
                }
            }
            #[cfg(test)]
            End::Fake(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_process_is_told() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!process.has_ended());
        drop(child.stdin.take());
        // It is told before anybody has collected it.
        process.clone().ended().await;
        assert!(process.has_ended());
        child.wait().unwrap();
        assert!(process.has_ended());
        assert!(Process::open(process.pid()).is_err() || process.has_ended());
    }
}
