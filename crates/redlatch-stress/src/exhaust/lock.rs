//! What the scripts of a lock with one hash are to do, told without them: from `docs/protocol.md`.

use super::{
    keyspace::{Content, Keyspace, TOKEN_NOW},
    world::{HEARD, Judged, LEASE_MS, OWNERS, same},
};

/// Owners of three clients. The part that tells that it is ours is where the fair lock's scripts look for it.
const OURS: [&str; OWNERS] = [
    "aaaaaaaa-aaaa-4ed1-a7c4-aaaaaaaaaaaa:1",
    "bbbbbbbb-bbbb-4ed1-a7c4-bbbbbbbbbbbb:2",
    "cccccccc-cccc-4ed1-a7c4-cccccccccccc:3",
];
/// A thread of Redisson, which is the third owner where there is one.
const JAVA: &str = "dddddddd-dddd-4ddd-8ddd-dddddddddddd:4";

/// The owners of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners {
    pub(super) java: bool,
}

impl Owners {
    pub(super) fn is_java(self, at: usize) -> bool {
        self.java && at == OWNERS - 1
    }

    pub(super) fn field(self, at: usize) -> &'static str {
        if self.is_java(at) { JAVA } else { OURS[at] }
    }

    pub(super) fn at(self, field: &str) -> Option<usize> {
        (0..OWNERS).find(|at| self.field(*at) == field)
    }
}

/// A hash with one holder, and its token counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) counts: [i64; OWNERS],
    /// ms; `None` if there is no hash.
    pub(super) left: Option<i64>,
    pub(super) token: Option<i64>,
}

/// What a call is to come to.
#[derive(Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) lock: Lock,
    pub(super) reply: Vec<i64>,
    pub(super) tells: bool,
}

impl Lock {
    /// # Errors
    ///
    /// If the hash has what no lock has.
    pub(super) fn of(keys: &Keyspace, name: &str, owners: Owners) -> Result<Lock, String> {
        let mut lock =
            Lock { token: keys.number(&format!("redisson_lock_token:{{{name}}}")), ..Lock::default() };
        let Some(key) = keys.get(name) else { return Ok(lock) };
        let Content::Hash(fields) = &key.content else { return Err(format!("{name} is no hash")) };
        lock.left = Some(key.left_ms.ok_or_else(|| format!("{name} has no TTL"))?);
        for (field, count) in fields {
            let at = owners.at(field).ok_or_else(|| format!("{name} has a field {field}"))?;
            lock.counts[at] =
                count.parse().ok().filter(|count| *count > 0).ok_or("a count is not above 0")?;
        }
        if fields.len() > 1 {
            return Err(format!("{name} has {} holders", fields.len()));
        }
        if lock.left > Some(LEASE_MS) {
            return Err(format!("{name} outlives the longest lease: {:?} ms", lock.left));
        }
        Ok(lock)
    }

    pub(super) fn ttl(&self) -> i64 {
        self.left.unwrap_or(-2)
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted { lock: *self, reply: Vec::new(), tells: false }
    }

    fn raise(&mut self, lease: i64) {
        self.left = Some(self.ttl().max(lease));
    }

    fn draw(&mut self) -> i64 {
        let token = self.token.map_or(TOKEN_NOW, |last| TOKEN_NOW.max(last + 1));
        self.token = Some(token);
        token
    }

    fn free(&mut self) {
        self.counts = [0; OWNERS];
        self.left = None;
    }

    /// A first hold, or the repeat of the request for it.
    pub(super) fn acquire(&self, by: usize, lease: i64, fenced: bool, first_only: bool) -> Wanted {
        let mut wanted = self.wanted();
        let lock = &mut wanted.lock;
        if self.left.is_some() && self.counts[by] == 0 {
            wanted.reply = vec![0, self.ttl()];
            return wanted;
        }
        if first_only && self.counts[by] > 0 {
            wanted.reply = vec![0, -5];
            return wanted;
        }
        let token = if fenced { lock.draw() } else { 0 };
        lock.counts[by] = self.counts[by].max(1);
        lock.raise(lease);
        wanted.reply = vec![lock.counts[by], token];
        wanted
    }

    pub(super) fn enter(&self, by: usize, lease: i64, fenced: bool) -> Wanted {
        let mut wanted = self.wanted();
        if self.counts[by] == 0 {
            wanted.reply = vec![0, self.ttl()];
            return wanted;
        }
        let token = if fenced { wanted.lock.draw() } else { 0 };
        wanted.lock.counts[by] += 1;
        wanted.lock.raise(lease);
        wanted.reply = vec![wanted.lock.counts[by], token];
        wanted
    }

    /// All holds of an owner, if it counts `only` so many.
    pub(super) fn release(&self, by: usize, only: Option<i64>) -> Wanted {
        let mut wanted = self.wanted();
        wanted.reply = match (self.counts[by], only) {
            (0, _) => vec![0, 0],
            (count, Some(only)) if count != only => vec![-1, count],
            _ => {
                wanted.lock.free();
                wanted.tells = true;
                vec![1, HEARD]
            }
        };
        wanted
    }

    pub(super) fn leave(&self, by: usize, known: i64, lease: i64) -> Wanted {
        let mut wanted = self.wanted();
        let count = self.counts[by];
        wanted.reply = if count == 0 {
            vec![-1, 0]
        } else if count < known {
            vec![count, 0]
        } else if count > 1 {
            wanted.lock.counts[by] -= 1;
            wanted.lock.raise(lease);
            vec![count - 1, 0]
        } else {
            wanted.lock.free();
            wanted.tells = true;
            vec![0, HEARD]
        };
        wanted
    }

    pub(super) fn renew(&self, by: usize, lease: i64) -> Wanted {
        let mut wanted = self.wanted();
        let held = self.counts[by] > 0;
        if held && lease > 0 {
            wanted.lock.raise(lease);
        }
        wanted.reply = vec![i64::from(held)];
        wanted
    }

    /// `end` is when the hold ends that is meant, in ms from now.
    pub(super) fn shorten(&self, by: usize, ms: i64, end: Option<i64>) -> Wanted {
        let mut wanted = self.wanted();
        let held = self.counts[by] > 0;
        wanted.reply = if !held || end.is_some_and(|end| end <= 0) {
            vec![0]
        } else if end.is_some_and(|end| (end - self.ttl()).abs() > 10) {
            vec![2]
        } else {
            wanted.lock.left = Some(if self.counts[by] == 1 { ms } else { self.ttl().max(ms) });
            vec![1]
        };
        wanted
    }

    /// `one`: only if the giver holds once. `back`: to whom it was taken from, with what is left of its lease.
    pub(super) fn transfer(&self, from: usize, to: usize, lease: i64, how: (bool, bool, bool)) -> Wanted {
        let (fenced, one, back) = how;
        let mut wanted = self.wanted();
        let (gives, takes) = (self.counts[from], self.counts[to]);
        if gives == 0 && (back || takes == 0) {
            wanted.reply = vec![0, self.ttl()];
            return wanted;
        }
        if (one || back) && gives > 1 {
            wanted.reply = vec![2, 0];
            return wanted;
        }
        let token = if fenced { wanted.lock.draw() } else { 0 };
        wanted.lock.counts[from] = 0;
        wanted.lock.counts[to] = takes.max(1);
        if !back {
            wanted.lock.left = Some(if takes > 0 { self.ttl().max(lease) } else { lease });
        }
        wanted.reply = vec![1, token];
        wanted
    }

    pub(super) fn force(&self, named: Option<usize>) -> Wanted {
        let mut wanted = self.wanted();
        if named.is_some_and(|named| self.counts[named] == 0 && self.left.is_some()) {
            wanted.reply = vec![-1, 0];
            return wanted;
        }
        wanted.lock.free();
        wanted.reply = vec![i64::from(self.left.is_some()), HEARD];
        wanted.tells = true;
        wanted
    }
}

impl Wanted {
    /// Compares with what was found; messages are those on the lock's channel.
    pub(super) fn compare(
        &self,
        lock: &Lock,
        reply: &[i64],
        told: &[(String, String)],
        channel: &str,
    ) -> Judged {
        same("the reply", &reply, &&self.reply[..])?;
        same("what the server has then", lock, &self.lock)?;
        let wanted: &[(String, String)] =
            if self.tells { &[(channel.to_owned(), "0".to_owned())] } else { &[] };
        same("what is told", &told, &wanted)
    }
}
