//! A thread is started, and takes its first step.
//!
//! The standard library has each thread take one and the same lock with its first step and with its last one (it notes where the stack ends,
//! for the message about an overflow). A process that was forked off while a thread of its parent had that lock has it taken for ever: its
//! threads start, and none of them runs. Nothing in safe Rust starts a thread without it, so this is told instead of waited for.

use std::{
    io,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind},
    fork,
};

/// How long a thread may take to its first step. A busy machine takes milliseconds.
const FIRST_STEP_TIME_MAX: Duration = Duration::from_secs(10);

/// The process in which a thread did not take its first step; 0 when there is none.
static STUCK: AtomicU64 = AtomicU64::new(0);

/// Starts a thread, and returns once it runs.
pub(super) fn run_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    run_thread_by(&STUCK, FIRST_STEP_TIME_MAX, work, |step| {
        thread::Builder::new().name(name.into()).spawn(step).map(drop)
    })
}

/// Why no thread runs here, where that is known.
pub(super) fn no_thread() -> Option<Error> {
    is_stuck(&STUCK).then(stuck)
}

fn is_stuck(mark: &AtomicU64) -> bool {
    mark.load(Ordering::Acquire) == fork::here()
}

fn stuck() -> Error {
    Error::new(
        ErrorKind::Forked,
        "no thread runs in this process, which was forked off while a thread of its parent began or ended",
    )
    .remedy("fork while no thread begins or ends, or have the child start a program")
}

type Step = Box<dyn FnOnce() + Send>;

fn run_thread_by(
    mark: &'static AtomicU64,
    time_max: Duration,
    work: impl FnOnce() + Send + 'static,
    start: impl FnOnce(Step) -> io::Result<()>,
) -> Result<(), Error> {
    if is_stuck(mark) {
        return Err(stuck());
    }
    // Nothing is told unless it is received, so either the thread goes on or the caller was refused.
    let (tell, told) = mpsc::sync_channel(0);
    let step = Box::new(move || match tell.send(()) {
        Ok(()) => work(),
        // It is late, but threads do run here.
        Err(_) => mark.store(0, Ordering::Release),
    });
    start(step).map_err(|error| {
        Error::new(ErrorKind::Engine, format!("the background thread did not start: {error}"))
    })?;
    told.recv_timeout(time_max).map_err(|_| {
        // Before `told` goes, so that a late thread finds the mark.
        mark.store(fork::here(), Ordering::Release);
        stuck()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_takes_no_step_is_refused_and_so_is_the_next_until_one_runs() {
        static MARK: AtomicU64 = AtomicU64::new(0);
        let (run, ran) = mpsc::channel();
        let mut late = None;
        let work = || unreachable!("the caller was refused");
        let refused = run_thread_by(&MARK, Duration::from_millis(20), work, |step| {
            late = Some(step);
            Ok(())
        });
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Forked);
        assert!(error.to_string().contains("no thread runs in this process"), "{error}");
        let again =
            run_thread_by(&MARK, FIRST_STEP_TIME_MAX, || {}, |_| unreachable!("it is not tried again"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Forked);
        late.expect("it was started")();
        run_thread_by(
            &MARK,
            FIRST_STEP_TIME_MAX,
            move || run.send(()).unwrap(),
            |step| {
                thread::spawn(step);
                Ok(())
            },
        )
        .unwrap();
        ran.recv().unwrap();
    }

    #[test]
    fn a_thread_that_cannot_start_is_an_error() {
        static MARK: AtomicU64 = AtomicU64::new(0);
        let refused =
            run_thread_by(&MARK, FIRST_STEP_TIME_MAX, || {}, |_| Err(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Engine);
        assert!(!is_stuck(&MARK));
    }
}
