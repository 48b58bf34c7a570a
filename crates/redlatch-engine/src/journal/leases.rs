//! The longest lease that may run, in a file of its own: when a part of the journal is lost, nobody else knows how long those may
//! hold whom it spoke of.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::codec::{self, Record};

/// The file while it is open.
pub(super) struct Leases {
    file: File,
    boot_id: String,
    longest_ms: u64,
}

impl Leases {
    /// Opens the file, and says which run of the machine and which lease it names.
    pub(super) fn open(path: &Path, boot_id: &str) -> io::Result<(Leases, Option<(String, u64)>)> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let known = match codec::decode(&bytes) {
            Some((Record::Longest { boot_id, lease_ms }, _)) => Some((boot_id, lease_ms)),
            _ => None,
        };
        let longest_ms = known.as_ref().map_or(0, |(_, lease_ms)| *lease_ms);
        Ok((Leases { file, boot_id: boot_id.to_owned(), longest_ms }, known))
    }

    /// Has the file cover a lease of this length. Call this before the lease is written.
    pub(super) fn cover(&mut self, lease_ms: u64) -> io::Result<()> {
        if lease_ms <= self.longest_ms {
            return Ok(());
        }
        // Rounded up, so that leases which grow a little each time do not each cost a write.
        self.set(lease_ms.checked_next_power_of_two().unwrap_or(u64::MAX))
    }

    /// Has the file name this as the longest lease that may run.
    pub(super) fn set(&mut self, lease_ms: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        codec::encode(&Record::Longest { boot_id: self.boot_id.clone(), lease_ms }, &mut bytes);
        self.file.write_all_at(&bytes, 0)?;
        self.longest_ms = lease_ms;
        Ok(())
    }
}
