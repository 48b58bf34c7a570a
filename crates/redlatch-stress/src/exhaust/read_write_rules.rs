//! What the scripts of the read-write lock are to do, told without them: from `docs/protocol.md`.

use super::{
    keyspace::{Content, Keyspace},
    lock::Owners,
    world::{HEARD, LEASE_MS, OWNERS, TICK_MS},
};

pub(super) const NAME: &str = "n";
pub(super) const TIMEOUTS: &str = "{n}:";
/// Moments that lie so close together count as the same.
const CLOSE_MS: i64 = 10;
/// The most holds that an owner has of one side.
const HOLDS_MAX: usize = 6;

/// A read-write lock: for each owner its write holds, and its read holds with what is left of their timeout keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sides {
    pub(super) writes: [i64; OWNERS],
    pub(super) reads: [i64; OWNERS],
    /// In order of their numbers; `None` where a timeout key is not there.
    pub(super) timeouts: [Vec<Option<i64>>; OWNERS],
    /// `None` if there is no hash.
    pub(super) left: Option<i64>,
    pub(super) is_writing: bool,
}

/// The reply, and the message if there is one.
pub(super) type Answer = (Vec<i64>, Option<&'static str>);

impl Sides {
    pub(super) fn of(keys: &Keyspace, owners: Owners) -> Result<Sides, String> {
        let mut sides = Sides::default();
        for at in 0..OWNERS {
            let key = |number: usize| format!("{TIMEOUTS}{}:rwlock_timeout:{number}", owners.field(at));
            let left = |number| keys.get(&key(number)).map(|key| key.left_ms.unwrap_or(-1));
            sides.timeouts[at] = (1..=HOLDS_MAX).map(left).collect();
            while sides.timeouts[at].last() == Some(&None) {
                sides.timeouts[at].pop();
            }
        }
        let Some(key) = keys.get(NAME) else { return Ok(sides) };
        let Content::Hash(fields) = &key.content else { return Err("the lock is no hash".to_owned()) };
        sides.left = Some(key.left_ms.ok_or("the lock has no TTL")?);
        let mut mode = None;
        for (field, value) in fields {
            let count = || value.parse::<i64>().map_err(|_| format!("{field} counts {value}"));
            match (field.as_str(), field.strip_suffix(":write")) {
                ("mode", _) => mode = Some(value.as_str()),
                (_, Some(owner)) => sides.writes[owners.at(owner).ok_or("who writes?")?] = count()?,
                _ => sides.reads[owners.at(field).ok_or("who reads?")?] = count()?,
            }
        }
        sides.is_writing = match mode {
            Some("write") => true,
            Some("read") => false,
            other => return Err(format!("the mode is {other:?}")),
        };
        Ok(sides)
    }

    pub(super) fn ttl(&self) -> i64 {
        self.left.unwrap_or(-2)
    }

    pub(super) fn writer(&self) -> Option<usize> {
        (0..OWNERS).find(|at| self.writes[*at] > 0)
    }

    /// How long the read holds of an owner last; 0 if it has none that live.
    pub(super) fn longest(&self, at: usize) -> i64 {
        let own = self.timeouts[at].iter().take(self.reads[at].max(0) as usize);
        own.flatten().copied().max().unwrap_or(0).max(0)
    }

    /// What the readers need of the TTL.
    fn needed(&self) -> i64 {
        (0..OWNERS).map(|at| self.longest(at)).max().unwrap_or(0)
    }

    fn raise(&mut self, ms: i64) {
        self.left = Some(self.ttl().max(ms));
    }

    fn set_reads(&mut self, at: usize, count: i64, ms: i64) {
        self.reads[at] = count;
        let keep = self.timeouts[at].len().max(count as usize);
        self.timeouts[at].resize(keep, None);
        self.timeouts[at][..count as usize].fill(Some(ms));
    }

    fn end(&mut self) {
        (self.writes, self.reads) = ([0; OWNERS], [0; OWNERS]);
        (self.left, self.is_writing) = (None, false);
    }

    fn trimmed(&mut self) {
        for timeouts in &mut self.timeouts {
            while timeouts.last() == Some(&None) {
                timeouts.pop();
            }
        }
    }

    pub(super) fn read(&mut self, by: usize) -> Answer {
        if self.left.is_some() && self.is_writing && self.writes[by] == 0 {
            return (vec![0, self.ttl()], None);
        }
        let longest = self.longest(by);
        let count = if longest == 0 { 1 } else { self.reads[by] };
        let ms = longest.max(LEASE_MS);
        self.set_reads(by, count, ms);
        self.raise(ms);
        (vec![count, 0], None)
    }

    pub(super) fn enter_read(&mut self, by: usize) -> Answer {
        let longest = self.longest(by);
        if longest == 0 {
            // It deletes what is not there.
            self.timeouts[by].iter_mut().take(1).for_each(|left| *left = None);
            self.trimmed();
            return (vec![0, self.ttl()], None);
        }
        let (count, ms) = (self.reads[by] + 1, longest.max(LEASE_MS));
        self.set_reads(by, count, ms);
        self.raise(ms);
        (vec![count, 0], None)
    }

    /// The read holds of an owner go; whether the hash goes with them.
    fn unread(&mut self, by: usize) -> bool {
        let longest = self.longest(by);
        let named = self.reads[by].max(0) as usize;
        self.timeouts[by].iter_mut().take(named).for_each(|left| *left = None);
        self.trimmed();
        self.reads[by] = 0;
        if self.is_writing && self.writer().is_some() {
            return false;
        }
        let (ttl, needed) = (self.ttl(), self.needed());
        let others = self.reads.iter().any(|count| *count > 0);
        // It was not the one that set the TTL.
        if others && longest > 0 && longest < (ttl - CLOSE_MS).max(1) {
            return false;
        }
        if needed == 0 {
            self.end();
            return true;
        }
        if needed < (ttl - CLOSE_MS).max(1) {
            self.left = Some(needed);
        }
        false
    }

    pub(super) fn unlock_read(&mut self, by: usize, only: Option<i64>) -> Answer {
        if self.reads[by] == 0 {
            self.timeouts[by].iter_mut().take(1).for_each(|left| *left = None);
            self.trimmed();
            return (vec![0, 0], None);
        }
        if only.is_some_and(|only| only != self.reads[by]) {
            return (vec![-1, self.reads[by]], None);
        }
        let released = i64::from(self.longest(by) > 0);
        if self.unread(by) { (vec![released, HEARD], Some("0")) } else { (vec![released, 0], None) }
    }

    pub(super) fn leave_read(&mut self, by: usize, known: i64) -> Answer {
        let (count, longest) = (self.reads[by], self.longest(by));
        if count == 0 {
            self.timeouts[by].iter_mut().take(1).for_each(|left| *left = None);
            self.trimmed();
            return (vec![-1, 0], None);
        }
        if longest > 0 && count < known {
            return (vec![count, 0], None);
        }
        if longest > 0 && count > 1 {
            let ms = longest.max(TICK_MS);
            self.reads[by] -= 1;
            self.timeouts[by][count as usize - 1] = None;
            self.timeouts[by].iter_mut().take(count as usize - 1).flatten().for_each(|left| *left = ms);
            self.trimmed();
            self.raise(ms);
            return (vec![count - 1, 0], None);
        }
        let left = if longest == 0 { -1 } else { 0 };
        if self.unread(by) { (vec![left, HEARD], Some("0")) } else { (vec![left, 0], None) }
    }

    pub(super) fn renew_read(&mut self, by: usize, lease: i64) -> Answer {
        let held = self.longest(by) > 0;
        if held {
            let own = self.timeouts[by].iter_mut().take(self.reads[by] as usize).flatten();
            own.filter(|left| **left > 0).for_each(|left| *left = lease.max(*left));
            self.raise(lease);
        } else {
            // The last field stays, for the hash would be one without any.
            let fields = self.reads.iter().chain(&self.writes).filter(|count| **count > 0).count();
            if fields > 1 {
                self.reads[by] = 0;
            }
        }
        (vec![i64::from(held)], None)
    }

    pub(super) fn shorten_read(&mut self, by: usize, ms: i64) -> Answer {
        let (count, longest) = (self.reads[by], self.longest(by));
        if longest == 0 {
            return (vec![0], None);
        }
        let alone = count == 1;
        self.timeouts[by]
            .iter_mut()
            .take(count as usize)
            .flatten()
            .for_each(|left| *left = if alone { ms } else { ms.max(*left) });
        let ttl = self.ttl();
        if ttl < ms {
            self.left = Some(ms);
        } else if !self.is_writing && ms < ttl - CLOSE_MS && longest >= ttl - CLOSE_MS {
            let needed = self.needed().max(ms);
            if needed < ttl - CLOSE_MS {
                self.left = Some(needed);
            }
        }
        (vec![1], None)
    }

    pub(super) fn pass_read(&mut self, from: usize, to: usize) -> Answer {
        let repeated = self.longest(to) > 0;
        let given = self.timeouts[from].first().copied().flatten().unwrap_or(-2);
        if !repeated {
            if self.reads[from] == 0 || self.reads[from] == 1 && given <= 0 {
                return (vec![0, self.ttl()], None);
            }
            if self.reads[from] != 1 || self.writes[from] > 0 {
                return (vec![2, 0], None);
            }
        }
        let ms = self.longest(to).max(LEASE_MS);
        let count = if repeated { self.reads[to] } else { 1 };
        let ttl = self.ttl();
        self.set_reads(to, count, ms);
        self.raise(ms);
        if self.reads[from] == 1 && self.writes[from] == 0 {
            self.reads[from] = 0;
            self.timeouts[from].iter_mut().take(1).for_each(|left| *left = None);
            self.trimmed();
            if ms < ttl - CLOSE_MS && given >= ttl - CLOSE_MS {
                self.left = Some(self.needed().min(self.ttl()));
            }
        }
        (vec![1, 0], None)
    }

    pub(super) fn write(&mut self, by: usize) -> Answer {
        if self.left.is_some() && self.writes[by] == 0 {
            let own = !self.is_writing && self.longest(by) > 0;
            return (if own { vec![-2, 0] } else { vec![0, self.ttl()] }, None);
        }
        self.writes[by] = self.writes[by].max(1);
        self.is_writing = true;
        self.raise(LEASE_MS);
        (vec![self.writes[by], 0], None)
    }

    pub(super) fn enter_write(&mut self, by: usize) -> Answer {
        if self.writes[by] == 0 {
            return (vec![0, self.ttl()], None);
        }
        self.writes[by] += 1;
        self.raise(LEASE_MS);
        (vec![self.writes[by], 0], None)
    }

    /// The last write hold goes, and what its owner reads stays.
    fn unwrite(&mut self, by: usize) {
        let longest = self.longest(by);
        self.writes[by] = 0;
        if longest > 0 {
            self.is_writing = false;
            self.left = Some(longest);
        } else {
            self.end();
        }
    }

    pub(super) fn unlock_write(&mut self, by: usize, only: Option<i64>) -> Answer {
        let count = self.writes[by];
        if count > 0 && only.is_some_and(|only| only != count) {
            return (vec![-1, count], None);
        }
        if count == 0 {
            return (vec![0, 0], None);
        }
        self.unwrite(by);
        (vec![1, HEARD], Some("1"))
    }

    pub(super) fn leave_write(&mut self, by: usize, known: i64) -> Answer {
        let count = self.writes[by];
        if count == 0 {
            return (vec![-1, 0], None);
        }
        if count < known {
            return (vec![count, 0], None);
        }
        if count > 1 {
            self.writes[by] -= 1;
            self.raise(TICK_MS);
            return (vec![count - 1, 0], None);
        }
        self.unwrite(by);
        (vec![0, HEARD], Some("1"))
    }

    pub(super) fn renew_write(&mut self, by: usize) -> Answer {
        let held = self.writes[by] > 0;
        if held {
            self.raise(LEASE_MS);
        }
        (vec![i64::from(held)], None)
    }

    pub(super) fn shorten_write(&mut self, by: usize, ms: i64) -> Answer {
        if self.writes[by] == 0 {
            return (vec![0], None);
        }
        let needed = self.longest(by).max(ms);
        self.left = Some(if self.writes[by] == 1 { needed } else { self.ttl().max(needed) });
        (vec![1], None)
    }

    pub(super) fn pass_write(&mut self, from: usize, to: usize) -> Answer {
        let (gives, takes) = (self.writes[from] > 0, self.writes[to] > 0);
        if !gives && !takes {
            return (vec![0, self.ttl()], None);
        }
        if gives && self.longest(from) > 0 {
            return (vec![2, 0], None);
        }
        if gives {
            (self.writes[from], self.writes[to], self.reads[from]) = (0, 1, 0);
            self.left = Some(LEASE_MS);
        } else {
            self.raise(LEASE_MS);
        }
        (vec![1, 0], None)
    }

    pub(super) fn force(&mut self, writers: bool) -> Answer {
        if self.left.is_none() || self.is_writing != writers {
            return (vec![0, 0], None);
        }
        for at in 0..OWNERS {
            let named = self.reads[at].max(0) as usize;
            self.timeouts[at].iter_mut().take(named).for_each(|left| *left = None);
        }
        self.end();
        self.trimmed();
        (vec![1, HEARD], Some(if writers { "1" } else { "0" }))
    }
}
