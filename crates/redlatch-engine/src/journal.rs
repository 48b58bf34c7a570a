//! The journal of the daemon: an append-only file of checked records, replayed at a start.
//!
//! Each record is a length, a CRC-32 and a body. A body is the boot id (always first), the time, the changes of one script,
//! the reserved bound of a fencing counter, or the mark of a clean end. Writes are not synced: they survive the
//! end of the daemon, and when the whole machine ends every holder of a lock has ended too. Fencing counters are
//! the exception, since their tokens live on in other systems; a bound above the counter is synced before any
//! value beneath it is handed out, and a start that was not clean continues from the bound.
//!
//! Where a part of the file is damaged, what is intact counts, before and behind it. What is missing may be a hold, so nothing is
//! granted until the longest lease has passed that may have been in it.

mod boot;
mod bounds;
mod codec;
mod leases;
mod read;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::effect::Effect;
use crate::engine::Journal;
use crate::number::parse_int;
pub(crate) use boot::Boot;
use boot::{ClockNote, Run};
use bounds::Bounds;
use codec::Record;
use leases::Leases;
use read::Found;

/// Keys that hold fencing counters begin so.
const COUNTER_PREFIX: &[u8] = b"redisson_lock_token:";
/// How far ahead of a counter its bound is synced.
const COUNTER_BLOCK: i64 = 1000;
/// Counters this large follow the wall clock in microseconds, so a block of them is ten seconds.
const CLOCK_COUNTER_MIN: i64 = 1 << 49;
const CLOCK_COUNTER_BLOCK: i64 = 10_000_000;
/// A rewrite is worth it above this size, when most of the file is history. It waits for the disk, so a busy engine
/// must not come here several times a second; and a start has to read all of it.
const REWRITE_BYTES_MIN: u64 = 16 << 20;
const REWRITE_FACTOR: u64 = 4;
/// How often the time is noted between changes.
const NOTE_INTERVAL_US: u64 = 10_000_000;
/// A rewrite writes this much at once.
const WRITE_BYTES: usize = 4 << 20;

/// The journal file while it is open.
pub(crate) struct FileJournal {
    file: File,
    path: PathBuf,
    /// The directory, open from the start: a rewrite must not need it when descriptors have run out.
    dir: File,
    /// The file has replaced another one, and the disk may not know yet.
    rename_unsynced: bool,
    boot_id: String,
    clock: Arc<SteadyClock>,
    leases: Leases,
    /// When the time was noted last, on the boot clock.
    noted_us: u64,
    /// Bytes that are known to be whole records.
    len: u64,
    /// Bytes after the last rewrite.
    live_len: u64,
    bounds: Bounds,
    /// Nothing is granted before this time on the boot clock.
    wait_until_ms: u64,
    buffer: Vec<u8>,
}

/// What was found in the file.
pub(crate) struct Recovered {
    /// The changes, in order, already continued from the reserved bounds.
    pub(crate) effects: Vec<Effect>,
    /// The machine was started anew since the file was written: its expiry times mean nothing any more.
    pub(crate) other_boot: bool,
    /// Nothing may be granted before this time on the boot clock, because what holds it may be missing.
    pub(crate) wait_until_ms: u64,
    /// The file can be appended to as it is.
    pub(crate) is_current: bool,
    /// The daemon that wrote the file did not come to its end.
    pub(crate) broke_off: bool,
    /// What the engine has to tell scripts the time by: the journal reckons with the times that they write.
    pub(crate) clock: Arc<SteadyClock>,
}

impl FileJournal {
    /// Reads the file, if there is one, and opens it for appending. Call [`Journal::rewrite`] before the first append, unless what was
    /// found is current: it brings the header up to date.
    pub(crate) fn open(
        path: &Path,
        boot: &Boot,
        clock: Arc<dyn Clock>,
    ) -> io::Result<(FileJournal, Recovered)> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (leases, known) = Leases::open(&path.with_extension("leases"), &boot.id)?;
        let found = Found::read(&bytes);
        if found.damaged_bytes > 0 {
            set_aside(&path.with_extension("damaged"), &bytes);
        }
        let before = found.boot_id.as_deref().or(known.as_ref().map(|known| known.boot_id.as_str()));
        let noted = found.noted.or(known.as_ref().map(|known| known.noted));
        let (run, clock) = boot.run_of(before, noted, clock);
        let clock = Arc::new(clock);
        let other_boot = run == Run::Another;
        // A journal that is gone may have had as much in it as one that is damaged.
        let is_missing = bytes.is_empty() && known.is_some();
        let mut wait_until_ms = found.wait_until_ms;
        if found.damaged_bytes > 0 || is_missing {
            let longest_ms = known.as_ref().map_or(u64::MAX, |known| known.lease_ms);
            wait_until_ms = wait_until_ms.max(clock.boot_ms().saturating_add(longest_ms));
            tracing::error!(
                bytes = found.damaged_bytes,
                is_missing,
                other_boot,
                longest_ms,
                "the journal is damaged; what is intact counts, and nothing is granted for the longest lease"
            );
        }
        if other_boot {
            wait_until_ms = 0;
        }
        let is_current = found.damaged_bytes == 0 && !other_boot && found.boot_id.is_some();
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut len = 0;
        if is_current {
            len = found.intact_len as u64;
            file.set_len(len)?;
            file.seek(SeekFrom::Start(len))?;
        }
        let dir =
            File::open(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        let journal = FileJournal {
            file,
            path: path.to_owned(),
            dir,
            rename_unsynced: false,
            boot_id: boot.id.clone(),
            clock: Arc::clone(&clock),
            leases,
            noted_us: 0,
            len,
            live_len: len,
            bounds: Bounds::new(found.bounds.clone()),
            wait_until_ms,
            buffer: Vec::new(),
        };
        let broke_off = !bytes.is_empty() && !found.is_clean;
        let mut effects = found.finish();
        if run == Run::Unsure
            && let Some(known) = known
        {
            // If it is another one, what was held ends as if it had been taken just now.
            leases::end_by(&mut effects, journal.clock.boot_ms().saturating_add(known.lease_ms));
        }
        Ok((journal, Recovered { effects, other_boot, wait_until_ms, is_current, broke_off, clock }))
    }

    /// Puts the bounds that the changes need in front of them; true when there are any.
    fn reserve(&mut self, effects: &[Effect]) -> bool {
        let mut reserved = false;
        for effect in effects {
            match effect {
                Effect::SetString { key, value, expires_at_ms: None } if key.starts_with(COUNTER_PREFIX) => {
                    let Some(value) = parse_int(value) else { continue };
                    if self.bounds.get(key).is_some_and(|bound| value <= bound) {
                        continue;
                    }
                    let block = if value >= CLOCK_COUNTER_MIN { CLOCK_COUNTER_BLOCK } else { COUNTER_BLOCK };
                    let bound = value.saturating_add(block);
                    self.bounds.set(key, bound);
                    codec::encode(&Record::Bound { key: key.clone(), bound }, &mut self.buffer);
                    reserved = true;
                }
                Effect::Delete { key } => self.bounds.remove(key),
                Effect::Clear => self.bounds.clear(),
                _ => {}
            }
        }
        reserved
    }

    fn write_buffer(&mut self, sync: bool) -> io::Result<()> {
        let written = self.file.write_all(&self.buffer);
        let written = written.and_then(|()| if sync { self.sync() } else { Ok(()) });
        match written {
            Ok(()) => {
                self.len += self.buffer.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a record must not stay in front of later ones.
                self.file.set_len(self.len)?;
                self.file.seek(SeekFrom::Start(self.len))?;
                Err(error)
            }
        }
    }

    /// Has the disk know what is in the file, and that this is the file.
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        if self.rename_unsynced {
            self.dir.sync_all()?;
            self.rename_unsynced = false;
        }
        Ok(())
    }

    fn write_snapshot(&mut self, file: &mut File, snapshot: &[Effect]) -> io::Result<u64> {
        let mut len = 0;
        let mut flush = |buffer: &mut Vec<u8>, at_least: usize| {
            if buffer.len() >= at_least {
                file.write_all(buffer)?;
                len += buffer.len() as u64;
                buffer.clear();
            }
            Ok::<_, io::Error>(())
        };
        self.buffer.clear();
        codec::encode(&Record::Boot(self.boot_id.clone()), &mut self.buffer);
        codec::encode(&Record::Clock(ClockNote::now(&self.clock)), &mut self.buffer);
        if self.wait_until_ms > self.clock.boot_ms() {
            codec::encode(&Record::Wait { until_ms: self.wait_until_ms }, &mut self.buffer);
        }
        for (key, &bound) in self.bounds.iter() {
            codec::encode(&Record::Bound { key: key.clone(), bound }, &mut self.buffer);
            flush(&mut self.buffer, WRITE_BYTES)?;
        }
        self.reserve(snapshot);
        let mut rest = snapshot;
        while !rest.is_empty() {
            let (first, after) = codec::cut(rest);
            codec::encode(&Record::Changes(first), &mut self.buffer);
            flush(&mut self.buffer, WRITE_BYTES)?;
            rest = after;
        }
        flush(&mut self.buffer, 1)?;
        file.sync_all()?;
        Ok(len)
    }
}

/// The changes that any bytes mean as a journal.
#[cfg(any(test, fuzzing))]
pub(crate) fn changes_in(bytes: &[u8]) -> Vec<Effect> {
    Found::read(bytes).finish()
}

/// The same if the sums of all records were right.
#[cfg(any(test, fuzzing))]
pub(crate) fn changes_in_sealed(bytes: &[u8]) -> Vec<Effect> {
    changes_in(&codec::sealed(bytes))
}

/// A journal of these changes.
#[cfg(any(test, fuzzing))]
pub(crate) fn as_bytes(effects: &[Effect]) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_changes(effects, &mut bytes);
    bytes
}

/// Whether both are one file.
pub(crate) fn is_same_file(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether the file is found under this name.
fn is_at(file: &File, path: &Path) -> bool {
    let found = std::fs::metadata(path).and_then(|found| Ok((found, file.metadata()?)));
    found.is_ok_and(|(found, own)| is_same_file(&found, &own))
}

/// Keeps a damaged journal for those who want to know. That it cannot be kept is no reason not to start.
fn set_aside(path: &Path, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    if let Err(error) = file.and_then(|mut file| file.write_all(bytes)) {
        tracing::warn!(%error, "the damaged journal could not be set aside");
    }
}

impl Journal for FileJournal {
    fn append(&mut self, effects: &[Effect]) -> io::Result<()> {
        if effects.is_empty() {
            return Ok(());
        }
        self.leases.cover(leases::longest_ms(effects, &*self.clock), &self.clock)?;
        self.buffer.clear();
        let now_us = self.clock.boot_us();
        let is_noted = now_us.saturating_sub(self.noted_us) >= NOTE_INTERVAL_US;
        if is_noted {
            codec::encode(&Record::Clock(ClockNote::now(&self.clock)), &mut self.buffer);
        }
        let sync = self.reserve(effects);
        codec::encode_changes(effects, &mut self.buffer);
        let written = self.write_buffer(sync);
        match &written {
            Ok(()) => {
                self.bounds.keep();
                if is_noted {
                    self.noted_us = now_us;
                }
            }
            Err(_) => self.bounds.take_back(),
        }
        if self.buffer.capacity() > WRITE_BYTES {
            self.buffer = Vec::new();
        }
        written
    }

    fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path) && self.leases.is_in_place()
    }

    fn wants_rewrite(&self) -> bool {
        self.len > REWRITE_BYTES_MIN && self.len / REWRITE_FACTOR > self.live_len
    }

    fn rewrite(&mut self, snapshot: &[Effect]) -> io::Result<()> {
        self.leases.put_in_place(&self.clock)?;
        let waits_ms = self.wait_until_ms.saturating_sub(self.clock.boot_ms());
        let longest_ms = leases::longest_ms(snapshot, &*self.clock).max(waits_ms);
        self.leases.cover(longest_ms, &self.clock)?;
        let temporary = self.path.with_extension("new");
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary);
        let replaced = open.and_then(|mut file| {
            let len = self.write_snapshot(&mut file, snapshot)?;
            std::fs::rename(&temporary, &self.path)?;
            Ok((file, len))
        });
        self.buffer = Vec::new();
        match replaced {
            // From the renaming on, this is the journal: nothing may fail before appends go to it.
            Ok((file, len)) => {
                (self.file, self.len, self.live_len) = (file, len, len);
                self.bounds.keep();
                self.rename_unsynced = true;
            }
            Err(error) => {
                self.bounds.take_back();
                // What is left of it only takes room.
                let _never_made = std::fs::remove_file(&temporary);
                return Err(error);
            }
        }
        if self.dir.sync_all().is_ok() {
            self.rename_unsynced = false;
        }
        // Whatever may be lost from here on is in this snapshot, comes later, or is waited for now. The file names at least as much already, so
        // that it cannot name less is no failure: the journal is replaced.
        if let Err(error) = self.leases.set(longest_ms, &self.clock) {
            tracing::warn!(%error, "the longest lease that may run could not be written; a damaged journal would be waited for longer");
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        self.buffer.clear();
        codec::encode(&Record::Clean, &mut self.buffer);
        self.write_buffer(true)
    }
}
