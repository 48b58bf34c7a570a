//! What the keys of a read-write lock are meant to be, step by step, in the way of Java and in ours. Where Java's way is a trap
//! the model has it, too: it says what happens on the wire, and checks that nobody ever is beside a writer.

use std::collections::BTreeMap;

use redlatch_testkit::redisson::RedissonVersion;

use crate::read_write::timeout_key;

#[derive(Debug, Clone)]
pub(crate) struct Model {
    version: RedissonVersion,
    /// In ms since the beginning, as are all ends.
    pub(crate) now: i64,
    reads: BTreeMap<String, i64>,
    write: Option<(String, i64)>,
    end: i64,
    /// The ends of single read holds, by owner and number. Some have outlived their hash (R7).
    timeouts: BTreeMap<(String, u64), i64>,
    /// The lease that Java's write lock remembers: a partial unlock sets the TTL to it.
    java_write_lease: i64,
    pub(crate) messages: Vec<String>,
}

impl Model {
    pub(crate) fn new(version: RedissonVersion) -> Self {
        Self {
            version,
            now: 0,
            reads: BTreeMap::new(),
            write: None,
            end: 0,
            timeouts: BTreeMap::new(),
            java_write_lease: 30_000,
            messages: Vec::new(),
        }
    }

    /// Keys, contents, and ends, in the order of the keys.
    pub(crate) fn keyspace(&self, name: &str) -> Vec<(String, Vec<String>, i64)> {
        let mut keys: Vec<_> = self
            .timeouts
            .iter()
            .map(|((owner, i), end)| (timeout_key(name, owner, *i), vec!["1".to_owned()], *end))
            .collect();
        if !self.is_free() {
            let mut fields: Vec<String> =
                self.reads.iter().map(|(owner, count)| format!("{owner}={count}")).collect();
            fields.extend(self.write.iter().map(|(owner, count)| format!("{owner}:write={count}")));
            fields.push(format!("mode={}", if self.write.is_some() { "write" } else { "read" }));
            // As the hash's fields are sorted: by name, without the value.
            fields.sort_by(|a, b| a.split('=').next().cmp(&b.split('=').next()));
            keys.push((name.to_owned(), fields, self.end));
        }
        keys.sort();
        keys
    }

    fn is_free(&self) -> bool {
        self.reads.is_empty() && self.write.is_none()
    }

    fn is_kept_out(&self, owner: &str) -> bool {
        self.write.as_ref().is_some_and(|(writer, _)| writer != owner)
    }

    /// The latest end of an owner's read holds, if any lives.
    fn longest(&self, owner: &str) -> Option<i64> {
        let count = self.reads.get(owner).map_or(0, |count| count.unsigned_abs());
        (1..=count).filter_map(|i| self.timeouts.get(&(owner.to_owned(), i)).copied()).max()
    }

    /// What the readers need who live.
    fn needed(&self) -> Option<i64> {
        self.reads.keys().filter_map(|owner| self.longest(owner)).max()
    }

    fn free(&mut self, message: &str) {
        self.reads.clear();
        self.write = None;
        self.messages.push(message.to_owned());
    }

    pub(crate) fn counted(&self, owner: &str) -> (i64, i64) {
        let writes = self.write.as_ref().filter(|(writer, _)| writer == owner).map_or(0, |(_, count)| *count);
        (self.reads.get(owner).copied().unwrap_or(0), writes)
    }

    pub(crate) fn living(&self, owner: &str) -> i64 {
        self.longest(owner).map_or(0, |_| self.reads[owner])
    }

    pub(crate) fn is_locked(&self) -> (bool, bool) {
        (!self.reads.is_empty(), self.write.is_some())
    }

    pub(crate) fn nobody_is_beside_a_writer(&self) {
        let Some((writer, _)) = &self.write else { return };
        assert!(self.reads.keys().all(|owner| owner == writer), "{self:?}");
    }

    // In Java's way.

    pub(crate) fn java_read(&mut self, me: &str, lease: i64) -> bool {
        if self.is_kept_out(me) {
            return false;
        }
        let until = self.now + lease;
        self.end = if self.is_free() { until } else { self.end.max(until) };
        let count = self.reads.entry(me.to_owned()).or_default();
        *count += 1;
        self.timeouts.insert((me.to_owned(), count.unsigned_abs()), until);
        true
    }

    pub(crate) fn java_write(&mut self, me: &str, lease: i64) -> bool {
        let was_free = self.is_free();
        let granted = match &mut self.write {
            None if was_free => {
                self.write = Some((me.to_owned(), 1));
                self.end = self.now + lease;
                true
            }
            Some((writer, count)) if writer == me => {
                *count += 1;
                // R1: the sum.
                self.end += lease;
                true
            }
            _ => false,
        };
        if granted || self.version == RedissonVersion::Old3_15_1 {
            self.java_write_lease = lease;
        }
        granted
    }

    pub(crate) fn java_leave_read(&mut self, me: &str) -> bool {
        if self.is_free() {
            self.messages.push("0".to_owned());
            return self.version == RedissonVersion::Old3_15_1;
        }
        let Some(count) = self.reads.get_mut(me) else { return false };
        *count -= 1;
        let left = count.unsigned_abs();
        if left == 0 {
            self.reads.remove(me);
        }
        // R4: the newest goes, whichever lives longer. R5: nobody asks whether it lives at all.
        self.timeouts.remove(&(me.to_owned(), left + 1));
        match self.needed() {
            // R2: also under a write hold.
            Some(end) => self.end = end,
            None if self.write.is_some() => {}
            None => self.free("0"),
        }
        true
    }

    pub(crate) fn java_leave_write(&mut self, me: &str) -> bool {
        if self.is_free() {
            self.messages.push("1".to_owned());
            return self.version == RedissonVersion::Old3_15_1;
        }
        match &mut self.write {
            Some((writer, count)) if writer == me => {
                *count -= 1;
                if *count > 0 {
                    self.end = self.now + self.java_write_lease;
                } else if self.reads.is_empty() {
                    self.free("1");
                } else {
                    // R3, R6: the TTL stays, and nobody is told.
                    self.write = None;
                }
                true
            }
            _ => false,
        }
    }

    // In our way.

    pub(crate) fn our_read(&mut self, me: &str, lease: i64) -> bool {
        if self.is_kept_out(me) {
            return false;
        }
        self.raise_read(me, lease);
        true
    }

    fn raise_read(&mut self, me: &str, lease: i64) {
        let was_free = self.is_free();
        let count = self.living(me) + 1;
        let until = self.longest(me).unwrap_or(0).max(self.now + lease);
        self.reads.insert(me.to_owned(), count);
        for i in 1..=count.unsigned_abs() {
            self.timeouts.insert((me.to_owned(), i), until);
        }
        self.end = if was_free { until } else { self.end.max(until) };
    }

    pub(crate) fn our_write(&mut self, me: &str, lease: i64) -> bool {
        let was_free = self.is_free();
        match &mut self.write {
            None if was_free => {
                self.write = Some((me.to_owned(), 1));
                self.end = self.now + lease;
                true
            }
            Some((writer, count)) if writer == me => {
                *count += 1;
                self.end = self.end.max(self.now + lease);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn our_leave_read(&mut self, me: &str, lease: i64) -> Option<i64> {
        let Some(count) = self.reads.get(me).copied() else {
            // The hash is gone, perhaps by force; what is certainly one's own goes as well.
            self.timeouts.remove(&(me.to_owned(), 1));
            return None;
        };
        let longest = self.longest(me);
        if let (Some(longest), true) = (longest, count > 1) {
            self.reads.insert(me.to_owned(), count - 1);
            self.timeouts.remove(&(me.to_owned(), count.unsigned_abs()));
            let until = longest.max(self.now + lease);
            for i in 1..count.unsigned_abs() {
                self.timeouts.insert((me.to_owned(), i), until);
            }
            self.end = self.end.max(until);
            return Some(count - 1);
        }
        self.reads.remove(me);
        for i in 1..=count.unsigned_abs() {
            self.timeouts.remove(&(me.to_owned(), i));
        }
        let others_need_more = longest.is_some_and(|longest| longest + 10 < self.end) && !self.is_free();
        if self.write.is_none() && !others_need_more {
            match self.needed() {
                Some(end) => self.end = end,
                None => self.free("0"),
            }
        }
        longest.map(|_| 0)
    }

    fn our_write_goes(&mut self, me: &str) {
        self.write = None;
        match self.longest(me) {
            Some(end) => {
                self.end = end;
                self.messages.push("1".to_owned());
            }
            None => self.free("1"),
        }
    }

    pub(crate) fn our_leave_write(&mut self, me: &str, lease: i64) -> Option<i64> {
        match &mut self.write {
            Some((writer, count)) if writer == me => {
                *count -= 1;
                let left = *count;
                if left == 0 {
                    self.our_write_goes(me);
                } else {
                    self.end = self.end.max(self.now + lease);
                }
                Some(left)
            }
            _ => None,
        }
    }

    pub(crate) fn our_downgrade(&mut self, me: &str, lease: i64) {
        self.raise_read(me, lease);
        let Some((_, count)) = &mut self.write else { panic!("nobody writes: {self:?}") };
        *count -= 1;
        if *count == 0 {
            self.our_write_goes(me);
        }
    }

    // From outside.

    pub(crate) fn force(&mut self, write: bool, by_java: bool) -> bool {
        if self.is_free() || self.write.is_some() != write {
            return false;
        }
        if !by_java {
            for (owner, count) in &self.reads {
                for i in 1..=count.unsigned_abs() {
                    self.timeouts.remove(&(owner.clone(), i));
                }
            }
        }
        self.free(if write { "1" } else { "0" });
        true
    }

    pub(crate) fn all_ends(&mut self) {
        (self.reads, self.write, self.timeouts) = (BTreeMap::new(), None, BTreeMap::new());
    }

    /// Ends one read hold of an owner, or all, and says which keys go with it.
    pub(crate) fn reader_ends(&mut self, owner: &str, only: Option<u64>) -> Vec<u64> {
        let all = self.timeouts.keys().filter(|(o, i)| o == owner && only.is_none_or(|only| only == *i));
        let ended: Vec<u64> = all.map(|(_, i)| *i).collect();
        for i in &ended {
            self.timeouts.remove(&(owner.to_owned(), *i));
        }
        ended
    }
}
