//! How far the fencing counters may go before the disk has to be told.

use std::collections::HashMap;

/// The bounds by key. Changes are kept until they are on disk, and taken back if they never get there.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    by_key: HashMap<Vec<u8>, i64>,
    undo: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    One(Vec<u8>, Option<i64>),
    All(HashMap<Vec<u8>, i64>),
}

impl Bounds {
    pub(super) fn new(by_key: HashMap<Vec<u8>, i64>) -> Bounds {
        Bounds { by_key, undo: Vec::new() }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<i64> {
        self.by_key.get(key).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, &i64)> {
        self.by_key.iter()
    }

    pub(super) fn set(&mut self, key: &[u8], bound: i64) {
        let before = self.by_key.insert(key.to_vec(), bound);
        self.undo.push(Undo::One(key.to_vec(), before));
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        if let Some((key, before)) = self.by_key.remove_entry(key) {
            self.undo.push(Undo::One(key, Some(before)));
        }
    }

    pub(super) fn clear(&mut self) {
        self.undo.push(Undo::All(std::mem::take(&mut self.by_key)));
    }

    /// What was changed since the last time is on disk.
    pub(super) fn keep(&mut self) {
        self.undo.clear();
    }

    /// What was changed since the last time is not on disk.
    pub(super) fn take_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::All(before) => self.by_key = before,
                Undo::One(key, Some(before)) => {
                    self.by_key.insert(key, before);
                }
                Undo::One(key, None) => {
                    self.by_key.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_reach_the_disk_is_taken_back_step_by_step() {
        let mut bounds = Bounds::default();
        bounds.set(b"a", 1);
        bounds.set(b"b", 2);
        bounds.keep();
        bounds.set(b"a", 10);
        bounds.remove(b"b");
        bounds.set(b"c", 3);
        bounds.clear();
        bounds.set(b"a", 20);
        bounds.take_back();
        assert_eq!((bounds.get(b"a"), bounds.get(b"b"), bounds.get(b"c")), (Some(1), Some(2), None));
        bounds.take_back();
        assert_eq!(bounds.get(b"a"), Some(1));
    }
}
