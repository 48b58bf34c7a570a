//! Recording what happened in a run, and judging it afterwards.
//!
//! Every process of a run writes its events with a [`Recorder`], one JSON line each. The times are those of
//! the boot-time clock, which all processes of a machine share and which runs on through suspend, so that
//! [`merge`] needs no correction. [`check`] then looks for what must not happen.

mod checker;
mod event;

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use self::checker::{CheckId, CheckOptions, Floors, Stats, Verdict, Violation, check};
pub use self::event::{Event, Kind, Mode, Outcome, now_ns};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug)]
struct Sink {
    run: String,
    proc: u32,
    next_op: AtomicU64,
    written: Mutex<(Vec<Event>, Option<File>)>,
}

/// Collects events from all threads of a process. Clones write to the same place.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Sink>);

impl Recorder {
    /// A recorder that keeps events in memory.
    pub fn new(run: impl Into<String>, proc: u32) -> Self {
        Self::build(run.into(), proc, None)
    }

    /// A recorder that also appends every event to a file at once, so that a killed process leaves all but
    /// its last line.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the file cannot be opened.
    pub fn with_file(run: impl Into<String>, proc: u32, path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| Error::io("cannot open the history file", e))?;
        Ok(Self::build(run.into(), proc, Some(file)))
    }

    fn build(run: String, proc: u32, file: Option<File>) -> Self {
        let written = Mutex::new((Vec::new(), file));
        Self(Arc::new(Sink { run, proc, next_op: AtomicU64::new(1), written }))
    }

    /// A number for a new operation.
    pub fn next_op_id(&self) -> u64 {
        self.0.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an event; run and process are filled in.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would be judged wrongly.
    pub fn record(&self, mut event: Event) {
        event.run.clone_from(&self.0.run);
        event.proc = self.0.proc;
        let mut written = self.written();
        if let Some(file) = &mut written.1 {
            let line = serde_json::to_vec(&event).map(|mut line| {
                line.push(b'\n');
                line
            });
            let wrote = line.map_err(std::io::Error::from).and_then(|line| file.write_all(&line));
            assert!(wrote.is_ok(), "cannot write the history file: {wrote:?}");
        }
        written.0.push(event);
    }

    /// All events so far, in the order in which they were recorded.
    pub fn events(&self) -> Vec<Event> {
        self.written().0.clone()
    }

    fn written(&self) -> MutexGuard<'_, (Vec<Event>, Option<File>)> {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the files of all processes into one history, by the time at which the events ended. The last line
/// of a file may be cut off, as a killed process leaves it.
///
/// # Errors
///
/// [`ErrorKind::Io`] when a file cannot be read, [`ErrorKind::Invalid`] when a line is no event.
pub fn merge<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let io = |e| Error::io(format!("cannot read {}", path.display()), e);
        let mut reader = BufReader::new(File::open(path).map_err(io)?);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(io)? == 0 {
                break;
            }
            match serde_json::from_slice(&line) {
                Ok(event) => events.push(event),
                Err(_) if line.last() != Some(&b'\n') => {}
                Err(e) => {
                    let text = format!("line {number} of {} is no event", path.display());
                    return Err(Error::because(ErrorKind::Invalid, text, e));
                }
            }
        }
    }
    events.sort_by_key(|event: &Event| event.t_ret_ns);
    Ok(events)
}
