//! Signals: handed to those who wait for them, and what they do while nobody does.
//!
//! Until a task listens, a signal does what it does to any program, so that nothing that blocks before can keep a request to
//! end from being heard. The one thing done first is to put a terminal right whose echo was switched off.

use std::{
    fs, io,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::termios::{OptionalActions, Termios, tcsetattr};
use signal_hook::{
    consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH},
    iterator::{SignalsInfo, exfiltrator::origin::WithOrigin},
    low_level::emulate_default_handler,
};
use tokio::sync::mpsc;

/// What is caught. Those that end a program come first.
const CAUGHT: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];

/// How many undelivered signals are kept. The kernel itself keeps one of each kind, so more would be luxury.
const PENDING_MAX: usize = 64;

/// One signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// Its number.
    pub(crate) signal: i32,
    /// Whether the kernel sent it for the terminal.
    pub(crate) by_kernel: bool,
}

impl Received {
    /// Whether it asks a program to end.
    pub(crate) fn asks_to_end(self) -> bool {
        matches!(self.signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
    }
}

/// Who hears of signals. Once caught they stay caught, so this decides what each of them does.
struct Hub {
    catches: bool,
    listener: Option<mpsc::Sender<Received>>,
    terminal: Option<Silenced>,
}

/// The modes of a terminal whose echo is off.
#[derive(Clone)]
struct Silenced {
    before: Termios,
    silent: Termios,
}

static HUB: Mutex<Hub> = Mutex::new(Hub { catches: false, listener: None, terminal: None });

fn hub() -> MutexGuard<'static, Hub> {
    HUB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream of signals. While it lives, they come to it and do nothing else.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::Receiver<Received>);

impl Signals {
    /// Listens to the signals from now on. Do it when you are about to wait for them: what blocks in between cannot be
    /// interrupted.
    ///
    /// A signal that was ignored when the program started stays ignored, here and in the command: that is how `nohup`
    /// and shells without job control work.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub(crate) fn install() -> io::Result<Self> {
        let mut hub = hub();
        catch(&mut hub)?;
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        hub.listener = Some(sender);
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

/// A terminal whose echo is off until this is dropped, or until a signal ends or stops the process.
#[derive(Debug)]
pub(crate) struct Silence(());

impl Silence {
    /// Switches from the modes `before` to `silent` on stdin.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub(crate) fn begin(before: Termios, silent: Termios) -> io::Result<Self> {
        let mut hub = hub();
        catch(&mut hub)?;
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        hub.terminal = Some(Silenced { before, silent });
        Ok(Silence(()))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Some(terminal) = hub().terminal.take() {
            terminal.restore();
        }
    }
}

impl Silenced {
    fn restore(&self) {
        // There is nobody to tell; the shell puts its terminal right as well.
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Starts the thread that hears all signals, unless it runs.
fn catch(hub: &mut Hub) -> io::Result<()> {
    if hub.catches {
        return Ok(());
    }
    let ignored = ignored_at_start();
    let wanted: Vec<i32> = CAUGHT.into_iter().filter(|signal| ignored & mask(*signal) == 0).collect();
    let mut caught = SignalsInfo::<WithOrigin>::new(&wanted)?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for origin in caught.forever() {
            arrived(Received { signal: origin.signal, by_kernel: origin.process.is_none() });
        }
    })?;
    hub.catches = true;
    Ok(())
}

fn arrived(received: Received) {
    let mut hub = hub();
    // When full, the reader has 64 signals to look at first; nobody counts them.
    let unheard = match &hub.listener {
        Some(listener) => {
            matches!(listener.try_send(received), Err(mpsc::error::TrySendError::Closed(_)))
        }
        None => true,
    };
    if !unheard {
        return;
    }
    hub.listener = None;
    let terminal = hub.terminal.clone();
    drop(hub);
    match received.signal {
        SIGWINCH => {}
        // The shell that stopped us has had the terminal meanwhile, and has changed its modes.
        SIGCONT => silence_again(),
        signal => {
            if let Some(terminal) = terminal {
                terminal.restore();
            }
            // A stop returns here when it is over; the others do not.
            if signal != SIGTSTP || !crate::child::is_orphaned() {
                _ = emulate_default_handler(signal);
            }
            silence_again();
        }
    }
}

fn silence_again() {
    if let Some(terminal) = &hub().terminal {
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &terminal.silent);
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
