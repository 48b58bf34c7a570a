//! What the scripts of the fair lock are to do, told without them: from `docs/protocol.md`.

use super::{
    keyspace::Keyspace,
    lock::{Lock, Owners},
    world::{HEARD, LEASE_MS, OWNERS, TICK_MS},
};

pub(super) const NAME: &str = "n";
pub(super) const QUEUE: &str = "redisson_lock_queue:{n}";
pub(super) const TIMES: &str = "redisson_lock_timeout:{n}";
/// For how long a waiter of ours counts without being heard of.
pub(super) const WAIT_MS: i64 = 2 * TICK_MS;
/// How long a thread of Redisson waits.
pub(super) const JAVA_WAIT_MS: i64 = 5 * TICK_MS;
/// What a head without a time gets.
const HEAD_MS: i64 = 5_000;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) lock: Lock,
    pub(super) queue: Vec<usize>,
    pub(super) times: [Option<i64>; OWNERS],
}

/// The reply, and who is told.
pub(super) type Answer = (Vec<i64>, Option<usize>);

impl Line {
    pub(super) fn of(keys: &Keyspace, owners: Owners) -> Result<Line, String> {
        let known = |field: &str| owners.at(field).ok_or_else(|| format!("{field} stands in line"));
        let queue = keys.list(QUEUE).iter().map(|field| known(field)).collect::<Result<Vec<_>, _>>()?;
        let mut times = [None; OWNERS];
        for (field, time) in keys.times(TIMES) {
            times[known(field)?] = Some(*time);
        }
        Ok(Line { lock: Lock::of(keys, NAME, owners)?, queue, times })
    }

    fn head(&self) -> Option<usize> {
        self.queue.first().copied()
    }

    fn drop_head(&mut self) {
        let head = self.queue.remove(0);
        self.times[head] = None;
    }

    /// Heads whose time is over go, but not `spared`; how many went.
    fn purge(&mut self, spared: Option<usize>) -> usize {
        let mut dropped = 0;
        while let Some(head) = self.head().filter(|head| Some(*head) != spared) {
            if self.times[head].is_none_or(|time| time > 0) {
                break;
            }
            self.drop_head();
            dropped += 1;
        }
        dropped
    }

    fn next(&mut self) -> Option<usize> {
        self.purge(None);
        self.head()
    }

    /// `recounts` as the caller says it.
    pub(super) fn acquire(&mut self, by: usize, wait: i64, recounts: bool, owners: Owners) -> Answer {
        let dropped = self.purge(Some(by));
        if let Some(head) = self.head().filter(|head| *head != by) {
            self.times[head] = self.times[head].or(Some(HEAD_MS));
        }
        let others = self.head().filter(|head| *head != by);
        let (exists, held) = (self.lock.left.is_some(), self.lock.counts[by] > 0);
        if held || (!exists && others.is_none()) {
            let wanted = self.lock.acquire(by, LEASE_MS, false, false);
            self.lock = wanted.lock;
            if self.head() == Some(by) {
                self.drop_head();
            }
            return (wanted.reply, None);
        }
        let ttl = self.lock.ttl();
        let mut behind_java = false;
        if wait > 0 {
            let alone = ttl.max(0) + wait;
            let mut before = 0;
            if self.times[by].is_none() || recounts {
                let ahead = self.queue.iter().take_while(|member| **member != by);
                before = ahead.filter(|member| owners.is_java(**member)).count() as i64;
                behind_java = before > 0;
            }
            if let Some(head) = others.filter(|head| !owners.is_java(*head)) {
                self.times[head] = self.times[head].map(|time| time.min(alone));
            }
            if !self.queue.contains(&by) {
                self.queue.push(by);
            }
            self.times[by] = Some(alone + before * JAVA_WAIT_MS);
        }
        let reply = match others {
            Some(_) if wait > 0 => vec![0, if behind_java { -4 } else { -3 }],
            _ if exists => vec![0, ttl],
            _ => vec![0, -3],
        };
        (reply, others.filter(|_| dropped > 0))
    }

    pub(super) fn release(&mut self, by: usize, heir: Option<usize>, only: Option<i64>) -> Answer {
        if let Some(only) = only
            && self.lock.counts[by] > 0
            && self.lock.counts[by] != only
        {
            return (vec![-1, self.lock.counts[by]], None);
        }
        let head = self.next();
        if self.lock.counts[by] == 0 {
            return (vec![0, 0], None);
        }
        self.lock = Lock { token: self.lock.token, ..Lock::default() };
        match head {
            None => (vec![1, 0], None),
            Some(head) if Some(head) == heir => {
                self.drop_head();
                self.lock.counts[head] = 1;
                self.lock.left = Some(LEASE_MS);
                (vec![2, 0], None)
            }
            Some(head) => (vec![1, HEARD], Some(head)),
        }
    }

    /// The place of an owner goes; whether it was the first one.
    fn step_out(&mut self, by: usize) -> bool {
        let first = self.head() == Some(by);
        let placed = self.times[by].take().is_some();
        if first || placed {
            self.queue.retain(|member| *member != by);
        }
        first
    }

    pub(super) fn leave(&mut self, by: usize, known: i64) -> Answer {
        let count = self.lock.counts[by];
        let mut left = 0;
        if count == 0 {
            if !self.step_out(by) {
                return (vec![-1, 0], None);
            }
            left = -1;
        } else if count < known {
            return (vec![count, 0], None);
        } else if count > 1 {
            let wanted = self.lock.leave(by, known, TICK_MS);
            self.lock = wanted.lock;
            return (vec![count - 1, 0], None);
        } else {
            self.lock = Lock::default();
        }
        let head = self.next();
        (vec![left, if head.is_some() { HEARD } else { 0 }], head)
    }

    pub(super) fn undo(&mut self, by: usize) -> Answer {
        let held = self.lock.counts[by] > 0;
        let first = self.step_out(by);
        if held {
            self.lock = Lock::default();
        }
        if !held && !first {
            return (vec![0, 0], None);
        }
        let head = self.next();
        (vec![i64::from(held), if head.is_some() { HEARD } else { 0 }], head)
    }

    pub(super) fn force(&mut self) -> Answer {
        let head = self.next();
        let gone = self.lock.left.is_some();
        self.lock = Lock::default();
        (vec![i64::from(gone), if head.is_some() { HEARD } else { 0 }], head)
    }
}
