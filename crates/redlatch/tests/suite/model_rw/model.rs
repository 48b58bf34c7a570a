//! What a read-write lock is meant to be, without scripts and keys.

use std::collections::BTreeMap;

/// What the lock is meant to be: who reads until when, who writes, and until when the key lives.
#[derive(Debug, Default, Clone)]
pub(super) struct Model {
    pub(super) now: i64,
    /// Holds and their common end, by owner. Ended ones stay as long as the key does.
    pub(super) reads: BTreeMap<usize, (i64, i64)>,
    pub(super) write: Option<(usize, i64)>,
    pub(super) end: i64,
}

impl Model {
    pub(super) fn settle(&mut self) {
        if self.end <= self.now {
            self.reads.clear();
            self.write = None;
            self.end = 0;
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.reads.is_empty() && self.write.is_none()
    }

    pub(super) fn ttl(&self) -> i64 {
        if self.is_free() { -2 } else { self.end - self.now }
    }

    pub(super) fn live(&self, o: usize) -> Option<(i64, i64)> {
        self.reads.get(&o).copied().filter(|(_, until)| *until > self.now)
    }

    pub(super) fn writes(&self, o: usize) -> bool {
        self.write.is_some_and(|(writer, _)| writer == o)
    }

    pub(super) fn read_acquire(&mut self, o: usize, lease: i64) -> (i64, i64) {
        if self.write.is_some() && !self.writes(o) {
            return (0, self.ttl());
        }
        let (count, until) = self.live(o).unwrap_or((1, 0));
        let until = until.max(self.now + lease);
        self.reads.insert(o, (count, until));
        self.end = self.end.max(until);
        (count, 0)
    }

    pub(super) fn read_enter(&mut self, o: usize, lease: i64) -> (i64, i64) {
        let Some((count, until)) = self.live(o) else { return (0, self.ttl()) };
        let count = count + 1;
        let until = until.max(self.now + lease);
        self.reads.insert(o, (count, until));
        self.end = self.end.max(until);
        (count, 0)
    }

    pub(super) fn read_gone(&mut self, o: usize, until: i64) {
        self.reads.remove(&o);
        if self.write.is_some() || (!self.is_free() && until > self.now && until < self.end) {
            return;
        }
        self.end = self.reads.values().map(|(_, until)| *until).max().unwrap_or(0);
        self.settle();
    }

    /// Another number than the one that is expected stays; 0 expects none.
    pub(super) fn read_release(&mut self, o: usize, expected: i64) -> (i64, i64) {
        let Some((count, until)) = self.reads.get(&o).copied() else { return (0, 0) };
        if expected > 0 && count != expected {
            return (-1, count);
        }
        let held = until > self.now;
        self.read_gone(o, until);
        (i64::from(held), 0)
    }

    pub(super) fn read_leave(&mut self, o: usize, known: i64, lease: i64) -> i64 {
        let Some((count, until)) = self.reads.get(&o).copied() else { return -1 };
        if until <= self.now {
            self.read_gone(o, until);
            return -1;
        }
        if count < known {
            return count;
        }
        if count > 1 {
            let until = until.max(self.now + lease);
            self.reads.insert(o, (count - 1, until));
            self.end = self.end.max(until);
            return count - 1;
        }
        self.read_gone(o, until);
        0
    }

    pub(super) fn read_renew(&mut self, o: usize, lease: i64) -> i64 {
        if let Some((count, until)) = self.live(o) {
            let until = until.max(self.now + lease);
            self.reads.insert(o, (count, until));
            self.end = self.end.max(until);
            return 1;
        }
        if self.reads.len() + usize::from(self.write.is_some()) > 1 {
            self.reads.remove(&o);
        }
        0
    }

    pub(super) fn write_acquire(&mut self, o: usize, lease: i64) -> (i64, i64) {
        match self.write {
            Some((writer, count)) if writer == o => {
                self.end = self.end.max(self.now + lease);
                (count, 0)
            }
            None if self.is_free() => {
                self.write = Some((o, 1));
                self.end = self.now + lease;
                (1, 0)
            }
            None if self.live(o).is_some() => (-2, 0),
            _ => (0, self.ttl()),
        }
    }

    pub(super) fn write_enter(&mut self, o: usize, lease: i64) -> (i64, i64) {
        match &mut self.write {
            Some((writer, count)) if *writer == o => {
                *count += 1;
                self.end = self.end.max(self.now + lease);
                (*count, 0)
            }
            _ => (0, self.ttl()),
        }
    }

    /// The write hold ends: the lock is its owner's for reading, or free.
    pub(super) fn write_gone(&mut self, o: usize) {
        self.write = None;
        match self.live(o) {
            Some((_, until)) => self.end = until,
            None => self.end = 0,
        }
        self.settle();
    }

    pub(super) fn write_release(&mut self, o: usize, expected: i64) -> (i64, i64) {
        match self.write {
            Some((writer, count)) if writer == o && expected > 0 && count != expected => (-1, count),
            Some((writer, _)) if writer == o => {
                self.write_gone(o);
                (1, 0)
            }
            _ => (0, 0),
        }
    }

    pub(super) fn write_leave(&mut self, o: usize, known: i64, lease: i64) -> i64 {
        match &mut self.write {
            Some((writer, count)) if *writer == o => {
                if *count < known {
                    return *count;
                }
                if *count > 1 {
                    *count -= 1;
                    self.end = self.end.max(self.now + lease);
                    return *count;
                }
                self.write_gone(o);
                0
            }
            _ => -1,
        }
    }

    pub(super) fn write_renew(&mut self, o: usize, lease: i64) -> i64 {
        if self.writes(o) {
            self.end = self.end.max(self.now + lease);
        }
        i64::from(self.writes(o))
    }

    /// As `transfer`, of a read hold: only one hold moves.
    pub(super) fn read_transfer(&mut self, from: usize, to: usize, lease: i64, back: bool) -> (i64, i64) {
        let moves = self.reads.get(&from).copied().filter(|(count, _)| *count == 1 && !self.writes(from));
        let there = self.live(to);
        let (count, until) = match (there.filter(|_| !back), self.reads.get(&from)) {
            (Some((count, until)), _) => (count, until.max(self.now + lease)),
            (None, None) => return (0, self.ttl()),
            (None, Some((1, until))) if *until <= self.now => return (0, self.ttl()),
            (None, Some(_)) if moves.is_none() => return (2, 0),
            (None, Some((_, until))) if back => {
                there.map_or((1, *until), |(count, other)| (count + 1, other.max(*until)))
            }
            (None, Some(_)) => (1, self.now + lease),
        };
        let given = moves.filter(|_| from != to);
        if given.is_some() {
            self.reads.remove(&from);
        }
        self.reads.insert(to, (count, until));
        self.end = self.end.max(until);
        if let Some((_, before)) = given
            && before + 10 >= self.end
        {
            self.end = self.longest_read();
        }
        (1, 0)
    }

    fn longest_read(&self) -> i64 {
        self.reads.values().map(|(_, until)| *until).max().unwrap_or_default()
    }

    /// In mode `read` the hash lasts as long as the longest read hold, and no longer.
    pub(super) fn lasts_as_its_readers_need(&self) -> bool {
        self.is_free() || self.write.is_some() || self.end == self.longest_read()
    }

    pub(super) fn read_shorten(&mut self, o: usize, time: i64) -> i64 {
        let Some((count, before)) = self.live(o) else { return 0 };
        let wanted = self.now + time;
        let until = if count == 1 { wanted } else { before.max(wanted) };
        self.reads.insert(o, (count, until));
        self.end = self.end.max(until);
        if self.write.is_none() && before + 10 >= self.end {
            self.end = self.longest_read();
        }
        1
    }

    pub(super) fn write_shorten(&mut self, o: usize, time: i64) -> i64 {
        let Some((_, count)) = self.write.filter(|(writer, _)| *writer == o) else { return 0 };
        let needed = self.live(o).map_or(0, |(_, until)| until).max(self.now + time);
        self.end = if count == 1 { needed } else { self.end.max(needed) };
        1
    }

    pub(super) fn transfer(&mut self, from: usize, to: usize, lease: i64, moves: u64) -> (i64, i64) {
        let (only_one, back) = (moves > 0, moves == 2);
        if self.writes(to) && from != to && !back {
            self.end = self.end.max(self.now + lease);
            return (1, 0);
        }
        if !self.writes(from) {
            return (0, self.ttl());
        }
        if self.live(from).is_some() || (only_one && self.write != Some((from, 1))) {
            return (2, 0);
        }
        if from == to {
            if !back {
                self.end = self.end.max(self.now + lease);
            }
        } else {
            self.write = Some((to, 1));
            self.reads.clear();
            if !back {
                self.end = self.now + lease;
            }
        }
        (1, 0)
    }

    pub(super) fn force(&mut self, write: bool) -> i64 {
        if self.is_free() || self.write.is_some() != write {
            return 0;
        }
        (self.reads, self.write, self.end) = (BTreeMap::new(), None, 0);
        1
    }
}
