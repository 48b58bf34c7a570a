//! Signals, caught from the first moment and handed to whoever waits for them.

use std::{fs, io, thread};

use signal_hook::{
    consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH},
    iterator::{SignalsInfo, exfiltrator::origin::WithOrigin},
};
use tokio::sync::mpsc;

/// What `run` catches. Those that end a program come first.
const CAUGHT: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];

/// How many undelivered signals are kept. The kernel itself keeps one of each kind, so more would be luxury.
const PENDING_MAX: usize = 64;

/// One signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// Its number.
    pub(crate) signal: i32,
    /// Whether the kernel sent it for the terminal, and with it to the whole foreground group.
    pub(crate) by_kernel: bool,
}

impl Received {
    /// Whether it asks a program to end.
    pub(crate) fn asks_to_end(self) -> bool {
        matches!(self.signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
    }
}

/// The stream of signals.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::Receiver<Received>);

impl Signals {
    /// Catches the signals from now on.
    ///
    /// A signal that was ignored when the program started stays ignored, here and in the command: that is how `nohup`
    /// and shells without job control work.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub(crate) fn install() -> io::Result<Self> {
        let ignored = ignored_at_start();
        let wanted: Vec<i32> = CAUGHT.into_iter().filter(|signal| ignored & mask(*signal) == 0).collect();
        let mut caught = SignalsInfo::<WithOrigin>::new(&wanted)?;
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for origin in caught.forever() {
                let received = Received { signal: origin.signal, by_kernel: origin.process.is_none() };
                // When full, the reader has 64 signals to look at first; nobody counts them.
                if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(received) {
                    return;
                }
            }
        })?;
        Ok(Signals(receiver))
    }

    /// The next signal.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no signal is lost.
    pub(crate) async fn next(&mut self) -> Received {
        match self.0.recv().await {
            Some(received) => received,
            // The thread only ends with the process.
            None => std::future::pending().await,
        }
    }
}

fn mask(signal: i32) -> u64 {
    1u64.checked_shl(signal.unsigned_abs().saturating_sub(1)).unwrap_or(0)
}

/// The signals that the parent had ignored, as the kernel shows them. Other systems show none.
fn ignored_at_start() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
