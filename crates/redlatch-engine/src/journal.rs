//! The journal of the daemon: an append-only file of checked records, replayed at a start.
//!
//! Each record is a length, a CRC-32 and a body. A body is the boot id (always first), the changes of one script,
//! the reserved bound of a fencing counter, or the mark of a clean end. Writes are not synced: they survive the
//! end of the daemon, and when the whole machine ends every holder of a lock has ended too. Fencing counters are
//! the exception, since their tokens live on in other systems; a bound above the counter is synced before any
//! value beneath it is handed out, and a start that was not clean continues from the bound.

mod codec;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::effect::Effect;
use crate::engine::Journal;
use crate::number::{format_int, parse_int};
use codec::Record;

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

/// The journal file while it is open.
pub(crate) struct FileJournal {
    file: File,
    path: PathBuf,
    boot_id: String,
    /// Bytes that are known to be whole records.
    len: u64,
    /// Bytes after the last rewrite.
    live_len: u64,
    bounds: HashMap<Vec<u8>, i64>,
    buffer: Vec<u8>,
}

/// What was found in the file.
pub(crate) struct Recovered {
    /// The changes, in order, already continued from the reserved bounds.
    pub(crate) effects: Vec<Effect>,
    /// The machine was started anew since the file was written: its expiry times mean nothing any more.
    pub(crate) other_boot: bool,
}

impl FileJournal {
    /// Reads the file, if there is one, and opens it for appending. Call [`Journal::rewrite`] before the first
    /// append: it brings the header up to date.
    pub(crate) fn open(path: &Path, boot_id: &str) -> io::Result<(FileJournal, Recovered)> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut found = Found::default();
        let mut rest = bytes.as_slice();
        while let Some((record, after)) = codec::decode(rest) {
            rest = after;
            found.add(record);
        }
        if !rest.is_empty() {
            tracing::warn!(
                bytes = rest.len(),
                kept = bytes.len() - rest.len(),
                "the end of the journal is damaged and was dropped"
            );
            std::fs::write(path.with_extension("damaged"), &bytes)?;
        }
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let journal = FileJournal {
            file,
            path: path.to_owned(),
            boot_id: boot_id.to_owned(),
            len: 0,
            live_len: 0,
            bounds: found.bounds.clone(),
            buffer: Vec::new(),
        };
        let other_boot = found.boot_id.as_deref().is_some_and(|old| old != boot_id);
        Ok((journal, Recovered { effects: found.finish(), other_boot }))
    }

    /// Puts the bounds that the changes need in front of them; true when there are any.
    fn reserve(&mut self, effects: &[Effect]) -> bool {
        let mut reserved = false;
        for effect in effects {
            match effect {
                Effect::SetString { key, value, expires_at_ms: None } if key.starts_with(COUNTER_PREFIX) => {
                    let Some(value) = parse_int(value) else { continue };
                    if self.bounds.get(key).is_some_and(|&bound| value <= bound) {
                        continue;
                    }
                    let block = if value >= CLOCK_COUNTER_MIN { CLOCK_COUNTER_BLOCK } else { COUNTER_BLOCK };
                    let bound = value.saturating_add(block);
                    self.bounds.insert(key.clone(), bound);
                    codec::encode(&Record::Bound { key: key.clone(), bound }, &mut self.buffer);
                    reserved = true;
                }
                Effect::Delete { key } => {
                    self.bounds.remove(key);
                }
                Effect::Clear => self.bounds.clear(),
                _ => {}
            }
        }
        reserved
    }

    fn write_buffer(&mut self, sync: bool) -> io::Result<()> {
        let written = self.file.write_all(&self.buffer);
        let written = written.and_then(|()| if sync { self.file.sync_data() } else { Ok(()) });
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
}

impl Journal for FileJournal {
    fn append(&mut self, effects: &[Effect]) -> io::Result<()> {
        if effects.is_empty() {
            return Ok(());
        }
        self.buffer.clear();
        let bounds_before = self.bounds.clone_if(effects);
        let sync = self.reserve(effects);
        codec::encode(&Record::Changes(effects), &mut self.buffer);
        self.write_buffer(sync).inspect_err(|_| {
            if let Some(before) = bounds_before {
                self.bounds = before;
            }
        })
    }

    fn wants_rewrite(&self) -> bool {
        self.len > REWRITE_BYTES_MIN && self.len / REWRITE_FACTOR > self.live_len
    }

    fn rewrite(&mut self, snapshot: &[Effect]) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        self.buffer.clear();
        codec::encode(&Record::Boot(self.boot_id.clone()), &mut self.buffer);
        for (key, &bound) in &self.bounds {
            codec::encode(&Record::Bound { key: key.clone(), bound }, &mut self.buffer);
        }
        self.reserve(snapshot);
        for chunk in snapshot.chunks(1000) {
            codec::encode(&Record::Changes(chunk), &mut self.buffer);
        }
        file.write_all(&self.buffer)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &self.path)?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        self.file = file;
        self.len = self.buffer.len() as u64;
        self.live_len = self.len;
        self.buffer = Vec::new();
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        self.buffer.clear();
        codec::encode(&Record::Clean, &mut self.buffer);
        self.write_buffer(true)
    }
}

/// Copies the bounds only when an append may change them.
trait CloneIf {
    fn clone_if(&self, effects: &[Effect]) -> Option<HashMap<Vec<u8>, i64>>;
}

impl CloneIf for HashMap<Vec<u8>, i64> {
    fn clone_if(&self, effects: &[Effect]) -> Option<HashMap<Vec<u8>, i64>> {
        let touches = effects.iter().any(|effect| match effect {
            Effect::SetString { key, value, expires_at_ms: None } if key.starts_with(COUNTER_PREFIX) => {
                parse_int(value).is_some_and(|value| self.get(key).is_none_or(|&bound| value > bound))
            }
            Effect::Delete { key } => self.contains_key(key),
            Effect::Clear => true,
            _ => false,
        });
        touches.then(|| self.clone())
    }
}

/// Collects what the records say.
#[derive(Default)]
struct Found {
    boot_id: Option<String>,
    effects: Vec<Effect>,
    bounds: HashMap<Vec<u8>, i64>,
    /// The last value of each fencing counter.
    counters: HashMap<Vec<u8>, i64>,
    clean: bool,
}

impl Found {
    fn add(&mut self, record: Record<'_>) {
        self.clean = false;
        match record {
            Record::Boot(id) => self.boot_id = Some(id),
            Record::Bound { key, bound } => {
                self.bounds.insert(key, bound);
            }
            Record::Clean => self.clean = true,
            Record::Changes(_) => {}
            Record::Restored(effects) => {
                for effect in &effects {
                    self.follow(effect);
                }
                self.effects.extend(effects);
            }
        }
    }

    fn follow(&mut self, effect: &Effect) {
        match effect {
            Effect::SetString { key, value, expires_at_ms: None } if key.starts_with(COUNTER_PREFIX) => {
                if let Some(value) = parse_int(value) {
                    self.counters.insert(key.clone(), value);
                }
            }
            Effect::Delete { key } => {
                self.counters.remove(key);
                self.bounds.remove(key);
            }
            Effect::Clear => {
                self.counters.clear();
                self.bounds.clear();
            }
            _ => {}
        }
    }

    fn finish(mut self) -> Vec<Effect> {
        if self.clean {
            return self.effects;
        }
        // A synced bound may be all that is left of a counter whose last values never reached the disk.
        for (key, bound) in self.bounds {
            if self.counters.get(&key).is_none_or(|&value| value < bound) {
                let value = format_int(bound).as_bytes().to_vec();
                self.effects.push(Effect::SetString { key, value, expires_at_ms: None });
            }
        }
        self.effects
    }
}
