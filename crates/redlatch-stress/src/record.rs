//! What a process writes down: one line an event, written at once, so that it is there when the process is killed.
//!
//! | line | meaning |
//! |---|---|
//! | `G hold task name mode weight owner token term ns` | a hold was granted, and seen valid at that moment |
//! | `S hold ns` | it was seen valid |
//! | `E hold ns how` | the last moment at which it was seen valid, and what ended it |
//! | `U hold ns` | it has not been valid for long, and its holder was not told |
//! | `V hold ns` | it was seen valid after it had been seen not valid |
//! | `A hold ns reason` | giving it back while it was valid found that it had been lost |
//! | `O task ns text` | what a task does |
//! | `L begun ns` | an answer that a hold may need came late |
//! | `F ns text` | what was done to the processes, the network and the servers |

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::clock::boot_ns;

/// How long a hold is seen valid before another line says so, in ns.
const SEEN_EVERY_NS: u64 = 10_000_000;

/// How a hold shuts others out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permits,
}

impl Mode {
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Mode::Exclusive => "X",
            Mode::Shared => "S",
            Mode::Permits => "P",
        }
    }

    pub(crate) fn of_letter(letter: &str) -> Option<Self> {
        [Mode::Exclusive, Mode::Shared, Mode::Permits].into_iter().find(|mode| mode.letter() == letter)
    }
}

/// What is written of a hold when it is granted.
#[derive(Debug, Clone)]
pub(crate) struct Granted<'a> {
    pub(crate) task: &'a str,
    pub(crate) name: &'a str,
    pub(crate) mode: Mode,
    /// How many permits.
    pub(crate) weight: u32,
    pub(crate) owner: &'a str,
    pub(crate) token: Option<u64>,
    /// How it lasts, in words without blanks.
    pub(crate) term: &'a str,
}

/// The log of one process.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Mutex<Lines>,
    next: AtomicU64,
}

#[derive(Debug)]
enum Lines {
    /// They outlive the process.
    File(File),
    /// They are of a simulated process.
    Kept(String),
}

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Log { lines: Mutex::new(Lines::File(File::create(path)?)), next: AtomicU64::new(1) })
    }

    /// One that is kept in memory.
    pub(crate) fn kept() -> Self {
        Log { lines: Mutex::new(Lines::Kept(String::new())), next: AtomicU64::new(1) }
    }

    /// What has been written to one that is kept in memory.
    pub(crate) fn text(&self) -> String {
        match &*self.lines.lock().unwrap_or_else(PoisonError::into_inner) {
            Lines::File(_) => String::new(),
            Lines::Kept(text) => text.clone(),
        }
    }

    fn write(&self, mut line: String) {
        line.push('\n');
        match &mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner) {
            // A log that cannot be written would hide what it is for.
            Lines::File(file) => file.write_all(line.as_bytes()).expect("the log can be written"),
            Lines::Kept(text) => text.push_str(&line),
        }
    }

    pub(crate) fn does(&self, task: &str, text: impl AsRef<str>) {
        self.write(format!("O {task} {} {}", boot_ns(), text.as_ref()));
    }

    pub(crate) fn fault(&self, text: impl AsRef<str>) {
        self.write(format!("F {} {}", boot_ns(), text.as_ref()));
    }

    /// An answer that a hold may need comes late.
    pub(crate) fn late_answer(&self, begun_ns: u64) {
        self.write(format!("L {begun_ns} {}", boot_ns()));
    }

    /// A hold that was seen valid before this moment.
    pub(crate) fn granted(&self, granted: &Granted<'_>, seen_ns: u64) -> Seen<'_> {
        let hold = self.next.fetch_add(1, Ordering::Relaxed);
        let Granted { task, name, mode, weight, owner, token, term } = granted;
        let token = token.map_or_else(|| "-".to_owned(), |token| token.to_string());
        self.write(format!(
            "G {hold} {task} {name} {} {weight} {owner} {token} {term} {seen_ns}",
            mode.letter()
        ));
        Seen { log: self, hold, last_ns: seen_ns, written_ns: seen_ns, gone: false, ended: false }
    }
}

/// A hold that is being looked at.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    log: &'a Log,
    hold: u64,
    last_ns: u64,
    written_ns: u64,
    gone: bool,
    ended: bool,
}

impl Seen<'_> {
    /// It was valid after this moment.
    pub(crate) fn valid(&mut self, before_ns: u64) {
        if self.gone {
            self.gone = false;
            self.log.write(format!("V {} {before_ns}", self.hold));
        }
        self.last_ns = before_ns;
        if before_ns.saturating_sub(self.written_ns) >= SEEN_EVERY_NS {
            self.written_ns = before_ns;
            self.log.write(format!("S {} {before_ns}", self.hold));
        }
    }

    /// It is not valid.
    pub(crate) fn invalid(&mut self) {
        self.gone = true;
    }

    /// It has not been valid for long, and its holder was not told.
    pub(crate) fn untold(&self) {
        self.log.write(format!("U {} {}", self.hold, boot_ns()));
    }

    /// It was valid, and giving it back found that it had been lost.
    pub(crate) fn vanished(&self, reason: &str) {
        self.log.write(format!("A {} {} {reason}", self.hold, boot_ns()));
    }

    /// It is given back from here on, or it is over.
    pub(crate) fn end(&mut self, how: &str) {
        if !std::mem::replace(&mut self.ended, true) {
            self.log.write(format!("E {} {} {how}", self.hold, self.last_ns));
        }
    }
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        self.end("dropped");
    }
}
