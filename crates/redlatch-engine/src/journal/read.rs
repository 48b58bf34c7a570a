//! Reading a journal: what is intact, and what may be missing.

use std::collections::HashMap;

use super::COUNTER_PREFIX;
use super::boot::ClockNote;
use super::codec::{self, Record};
use crate::effect::Effect;
use crate::number::{format_int, parse_int};

/// Collects what the records say.
#[derive(Default)]
pub(super) struct Found {
    pub(super) boot_id: Option<String>,
    /// The last of the notes of the clocks.
    pub(super) noted: Option<ClockNote>,
    /// Those that were reserved since the last clean end, which the journal goes on with.
    pub(super) bounds: HashMap<Vec<u8>, i64>,
    /// Those from before it. All values were on disk by then, so nothing is handed out beneath these.
    spent: HashMap<Vec<u8>, i64>,
    /// Nothing is granted before this time, because of damage that was found earlier.
    pub(super) wait_until_ms: u64,
    /// Bytes that are in no record and may have been confirmed.
    pub(super) damaged_bytes: usize,
    /// Bytes up to the end of the last record that is no part of a change without its end: what is appended must not become that end.
    pub(super) intact_len: usize,
    /// Nothing comes behind the mark of a clean end.
    pub(super) is_clean: bool,
    effects: Vec<Effect>,
    /// Changes whose last record has not come yet.
    parts: Vec<Effect>,
    /// The last value of each fencing counter.
    counters: HashMap<Vec<u8>, i64>,
}

impl Found {
    pub(super) fn read(bytes: &[u8]) -> Found {
        let mut found = Found::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some((record, after)) = codec::decode(rest) {
                rest = after;
                found.add(record);
                if found.parts.is_empty() {
                    found.intact_len = bytes.len() - after.len();
                }
                continue;
            }
            match codec::skip_damage(rest) {
                Some(skipped) => {
                    found.damaged_bytes += skipped;
                    rest = &rest[skipped..];
                    // More was written after these, so they were confirmed.
                    let parts = std::mem::take(&mut found.parts);
                    found.take(parts);
                }
                None => {
                    if !codec::is_torn(rest) {
                        found.damaged_bytes += rest.len();
                    }
                    break;
                }
            }
        }
        found
    }

    fn add(&mut self, record: Record<'_>) {
        if !matches!(record, Record::RestoredPart(_) | Record::Restored(_)) {
            // Another change begins, so the end of these never came.
            self.parts.clear();
        }
        self.is_clean = matches!(record, Record::Clean);
        match record {
            Record::Boot(id) => self.boot_id = Some(id),
            Record::Clock(noted) => self.noted = Some(noted),
            Record::Bound { key, bound } => {
                self.bounds.insert(key, bound);
            }
            Record::Wait { until_ms } => self.wait_until_ms = self.wait_until_ms.max(until_ms),
            Record::Clean => self.spent.extend(self.bounds.drain()),
            Record::Changes(_) | Record::Part(_) | Record::Longest { .. } => {}
            Record::RestoredPart(effects) => self.parts.extend(effects),
            Record::Restored(effects) => {
                let parts = std::mem::take(&mut self.parts);
                self.take(parts);
                self.take(effects);
            }
        }
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in &effects {
            self.follow(effect);
        }
        self.effects.extend(effects);
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
                self.spent.remove(key);
            }
            Effect::Clear => {
                self.counters.clear();
                self.bounds.clear();
                self.spent.clear();
            }
            _ => {}
        }
    }

    /// The changes, continued from the bounds that were reserved since the last clean end. Damage may have hidden values, so all bounds count then.
    pub(super) fn finish(mut self) -> Vec<Effect> {
        let mut bounds = if self.damaged_bytes > 0 { self.spent } else { HashMap::new() };
        bounds.extend(self.bounds);
        // A synced bound may be all that is left of a counter whose last values never reached the disk.
        for (key, bound) in bounds {
            if self.counters.get(&key).is_none_or(|&value| value < bound) {
                let value = format_int(bound).as_bytes().to_vec();
                self.effects.push(Effect::SetString { key, value, expires_at_ms: None });
            }
        }
        self.effects
    }
}
