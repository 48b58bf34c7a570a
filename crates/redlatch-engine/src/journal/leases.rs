//! The longest lease that may run, in a file of its own: when a part of the journal is lost, nothing else tells how long the holders
//! that it spoke of may hold.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::boot::ClockNote;
use super::codec::{self, Record};
use crate::clock::{Clock, SteadyClock};
use crate::effect::Effect;
use crate::trace::{NEVER_SCORE_MS, PERMITS_SUFFIX};

fn make(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The longest lease among these changes, from now on: of keys by the boot clock, of permits by the wall time that scripts are told.
pub(super) fn longest_ms(effects: &[Effect], clock: &dyn Clock) -> u64 {
    let (boot_ms, unix_ms) = (clock.boot_ms(), clock.unix_us() / 1000);
    let leases = effects.iter().map(|effect| match effect {
        Effect::SetString { expires_at_ms: Some(ends_ms), .. }
        | Effect::Expire { expires_at_ms: Some(ends_ms), .. } => ends_ms.saturating_sub(boot_ms),
        // A permit without an end has no lease to wait for. A negative score becomes 0.
        Effect::SortedSet { key, score, .. } if key.ends_with(PERMITS_SUFFIX) && *score < NEVER_SCORE_MS => {
            (*score as u64).saturating_sub(unix_ms)
        }
        _ => 0,
    });
    leases.max().unwrap_or(0)
}

/// Has no key end later than this on the boot clock.
pub(super) fn end_by(effects: &mut [Effect], latest_ms: u64) {
    for effect in effects {
        if let Effect::SetString { expires_at_ms: Some(ends_ms), .. }
        | Effect::Expire { expires_at_ms: Some(ends_ms), .. } = effect
        {
            *ends_ms = latest_ms.min(*ends_ms);
        }
    }
}

/// The file while it is open.
pub(super) struct Leases {
    file: File,
    path: PathBuf,
    boot_id: String,
    longest_ms: u64,
}

/// What the file says.
pub(super) struct Known {
    pub(super) boot_id: String,
    pub(super) lease_ms: u64,
    pub(super) noted: ClockNote,
}

impl Leases {
    /// Opens the file, and says what it says.
    pub(super) fn open(path: &Path, boot_id: &str) -> io::Result<(Leases, Option<Known>)> {
        let mut file = make(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let known = match codec::decode(&bytes) {
            Some((Record::Longest { boot_id, lease_ms, noted }, _)) => {
                Some(Known { boot_id, lease_ms, noted })
            }
            _ => None,
        };
        let longest_ms = known.as_ref().map_or(0, |known| known.lease_ms);
        Ok((Leases { file, path: path.to_owned(), boot_id: boot_id.to_owned(), longest_ms }, known))
    }

    /// Whether the next start will find the file.
    pub(super) fn is_in_place(&self) -> bool {
        super::is_at(&self.file, &self.path)
    }

    /// Makes the file again if it was deleted.
    pub(super) fn put_in_place(&mut self, clock: &SteadyClock) -> io::Result<()> {
        if !self.is_in_place() {
            let file = make(&self.path)?;
            // It is in place from when it says something.
            self.write(&file, self.longest_ms, clock)?;
            self.file = file;
        }
        Ok(())
    }

    /// Has the file cover a lease of this length. Call this before the lease is written.
    pub(super) fn cover(&mut self, lease_ms: u64, clock: &SteadyClock) -> io::Result<()> {
        if lease_ms <= self.longest_ms {
            return Ok(());
        }
        // Rounded up, so that leases which grow a little each time do not each cost a write.
        self.set(lease_ms.checked_next_power_of_two().unwrap_or(u64::MAX), clock)
    }

    /// Has the file name this as the longest lease that may run.
    pub(super) fn set(&mut self, lease_ms: u64, clock: &SteadyClock) -> io::Result<()> {
        self.write(&self.file, lease_ms, clock)?;
        self.longest_ms = lease_ms;
        Ok(())
    }

    fn write(&self, file: &File, lease_ms: u64, clock: &SteadyClock) -> io::Result<()> {
        let mut bytes = Vec::new();
        let noted = ClockNote::now(clock);
        codec::encode(&Record::Longest { boot_id: self.boot_id.clone(), lease_ms, noted }, &mut bytes);
        file.write_all_at(&bytes, 0)
    }
}
