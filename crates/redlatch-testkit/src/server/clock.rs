//! A wall clock of a server's own: a small library that is preloaded into it. The clock that its event loop waits on stays
//! the machine's.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use super::lock;
use crate::error::{Error, ErrorKind, Result};

const SOURCE: &str = include_str!("clock.c");
/// The size of one setting in the file.
const SETTING_BYTES: usize = 24;

/// The wall clock of one server, or of a child process that it is preloaded into.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Which of the two settings of the file counts.
    in_use: u64,
    setting: Setting,
}

/// As `clock.c` has it.
#[derive(Debug, Clone, Copy, Default)]
struct Setting {
    since_us: i64,
    offset_us: i64,
    gain_ppm: i64,
}

impl Clock {
    /// Builds the library in `dir`, which has no other clock; the clock is the machine's as yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingTool`] without a C compiler, [`ErrorKind::Start`] and [`ErrorKind::Io`] when it is not built.
    pub fn new(dir: &Path) -> Result<Self> {
        let io = |e| Error::io("cannot make a clock for the server", e);
        let (source, library, path) = (dir.join("clock.c"), dir.join("clock.so"), dir.join("clock"));
        std::fs::write(&source, SOURCE).map_err(io)?;
        let built = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| {
                Error::because(ErrorKind::MissingTool, "no C compiler `cc` for a server's clock", e)
            })?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(Error::new(ErrorKind::Start, format!("a server's clock was not built: {said}")));
        }
        let file = File::create_new(&path).map_err(io)?;
        file.set_len(8 + 2 * SETTING_BYTES as u64).map_err(io)?;
        Ok(Self { library, path, state: Mutex::new(State { file, in_use: 0, setting: Setting::default() }) })
    }

    /// Lets `command` read this clock.
    pub fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("REDLATCH_TEST_CLOCK", &self.path);
    }

    /// Moves the clock by `step_ms` now, and lets it gain (or lose) `gain_ppm` millionths from now on; `None` leaves that as
    /// it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when its file cannot be written.
    pub fn set(&self, step_ms: i64, gain_ppm: Option<i64>) -> Result<()> {
        let mut state = lock(&self.state);
        let last = state.setting;
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
        let gained_us = (now_us - last.since_us) * last.gain_ppm / 1_000_000;
        let setting = Setting {
            since_us: now_us,
            offset_us: last.offset_us + gained_us + step_ms * 1_000,
            gain_ppm: gain_ppm.unwrap_or(last.gain_ppm),
        };
        let next = 1 - state.in_use;
        state
            .file
            .write_all_at(&setting.bytes(), 8 + next * SETTING_BYTES as u64)
            .and_then(|()| state.file.write_all_at(&next.to_ne_bytes(), 0))
            .map_err(|e| Error::io("cannot set the clock of the server", e))?;
        (state.in_use, state.setting) = (next, setting);
        Ok(())
    }
}

impl Setting {
    fn bytes(self) -> [u8; SETTING_BYTES] {
        let mut bytes = [0; SETTING_BYTES];
        for (place, value) in bytes.chunks_exact_mut(8).zip([self.since_us, self.offset_us, self.gain_ppm]) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }
}
