//! Changes of the keyspace, for the journal: recorded while a script runs, applied again at a start.

use std::collections::VecDeque;

use crate::keyspace::hash::Hash;
use crate::keyspace::zset::SortedSet;
use crate::keyspace::{Core, Data, NEVER};

/// One change. Times are absolute on the boot clock, so that replaying late changes nothing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// A string was set, whatever was there.
    SetString {
        /// The key.
        key: Vec<u8>,
        /// The new value.
        value: Vec<u8>,
        /// When the key expires, in ms of the boot clock.
        expires_at_ms: Option<u64>,
    },
    /// A key went away.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// The expiry of a key was set or taken away.
    Expire {
        /// The key.
        key: Vec<u8>,
        /// When the key expires, in ms of the boot clock.
        expires_at_ms: Option<u64>,
    },
    /// A field of a hash was set.
    HashSet {
        /// The key.
        key: Vec<u8>,
        /// The field.
        field: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// A field of a hash was removed.
    HashDelete {
        /// The key.
        key: Vec<u8>,
        /// The field.
        field: Vec<u8>,
    },
    /// A value was added to an end of a list.
    ListPush {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// At the head instead of the tail.
        front: bool,
    },
    /// Values were taken from an end of a list.
    ListPop {
        /// The key.
        key: Vec<u8>,
        /// How many.
        count: u64,
        /// At the head instead of the tail.
        front: bool,
    },
    /// Equal values were removed from a list.
    ListRemove {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// How many and from which end, as in `LREM`.
        count: i64,
    },
    /// A member of a sorted set got a score.
    SortedSet {
        /// The key.
        key: Vec<u8>,
        /// The member.
        member: Vec<u8>,
        /// Its new score.
        score: f64,
    },
    /// A member of a sorted set was removed.
    SortedRemove {
        /// The key.
        key: Vec<u8>,
        /// The member.
        member: Vec<u8>,
    },
    /// Every key went away.
    Clear,
}

impl Effect {
    /// Roughly what the change takes, in memory and in the journal.
    pub(crate) fn size_bytes(&self) -> usize {
        let texts = match self {
            Effect::SetString { key, value, .. }
            | Effect::ListPush { key, value, .. }
            | Effect::ListRemove { key, value, .. } => key.len() + value.len(),
            Effect::HashSet { key, field, value } => key.len() + field.len() + value.len(),
            Effect::HashDelete { key, field } => key.len() + field.len(),
            Effect::SortedSet { key, member, .. } | Effect::SortedRemove { key, member } => {
                key.len() + member.len()
            }
            Effect::Delete { key } | Effect::Expire { key, .. } | Effect::ListPop { key, .. } => key.len(),
            Effect::Clear => 0,
        };
        texts + 32
    }
}

impl Core {
    /// Makes a recorded change again. Expiry is not looked at, because later changes of the same journal may
    /// still prolong a key that would be dead by now. A change that does not fit what is there is skipped.
    pub(crate) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::SetString { key, value, expires_at_ms } => {
                self.put(&key, Data::Str(value), expires_at_ms.unwrap_or(NEVER));
            }
            Effect::Delete { key } => {
                self.remove(&key);
            }
            Effect::Expire { key, expires_at_ms } => self.set_expiry(&key, expires_at_ms.unwrap_or(NEVER)),
            Effect::HashSet { key, field, value } => {
                if let Ok(hash) = self.hash_or_new(&key) {
                    hash.set(&field, value);
                }
            }
            Effect::HashDelete { key, field } => {
                if let Ok(Some(hash)) = self.hash(&key) {
                    hash.remove(&field);
                    self.remove_if_empty(&key);
                }
            }
            Effect::ListPush { key, value, front } => {
                if let Ok(list) = self.list_or_new(&key) {
                    if front { list.push_front(value) } else { list.push_back(value) }
                }
            }
            Effect::ListPop { key, count, front } => {
                if let Ok(Some(list)) = self.list(&key) {
                    for _ in 0..count {
                        if front {
                            list.pop_front()
                        } else {
                            list.pop_back()
                        };
                    }
                    self.remove_if_empty(&key);
                }
            }
            Effect::ListRemove { key, value, count } => {
                if let Ok(Some(list)) = self.list(&key) {
                    crate::keyspace::list::remove_equal(list, &value, count);
                    self.remove_if_empty(&key);
                }
            }
            Effect::SortedSet { key, member, score } => {
                if let Ok(set) = self.sorted_or_new(&key) {
                    set.insert(&member, score);
                }
            }
            Effect::SortedRemove { key, member } => {
                if let Ok(Some(set)) = self.sorted(&key) {
                    set.remove(&member);
                    self.remove_if_empty(&key);
                }
            }
            Effect::Clear => self.clear(),
        }
    }

    /// The shortest list of changes that builds the keyspace from nothing.
    pub(crate) fn snapshot(&mut self) -> Vec<Effect> {
        self.has_expiring_keys();
        let mut out = Vec::new();
        for (_, slot) in self.slots_from(0) {
            let key = || slot.key.to_vec();
            let expires_at_ms = (slot.expires_at_ms != NEVER).then_some(slot.expires_at_ms);
            match &slot.data {
                Data::Str(value) => {
                    out.push(Effect::SetString { key: key(), value: value.clone(), expires_at_ms });
                    continue;
                }
                Data::Hash(hash) => snapshot_hash(&mut out, &slot.key, hash),
                Data::List(list) => snapshot_list(&mut out, &slot.key, list),
                Data::SortedSet(set) => snapshot_sorted(&mut out, &slot.key, set),
            }
            if expires_at_ms.is_some() {
                out.push(Effect::Expire { key: key(), expires_at_ms });
            }
        }
        out
    }
}

fn snapshot_hash(out: &mut Vec<Effect>, key: &[u8], hash: &Hash) {
    out.extend(hash.iter().map(|(field, value)| Effect::HashSet {
        key: key.to_vec(),
        field: field.to_vec(),
        value: value.to_vec(),
    }));
}

fn snapshot_list(out: &mut Vec<Effect>, key: &[u8], list: &VecDeque<Vec<u8>>) {
    out.extend(list.iter().map(|value| Effect::ListPush {
        key: key.to_vec(),
        value: value.clone(),
        front: false,
    }));
}

fn snapshot_sorted(out: &mut Vec<Effect>, key: &[u8], set: &SortedSet) {
    out.extend(set.iter().map(|(member, score)| Effect::SortedSet {
        key: key.to_vec(),
        member: member.to_vec(),
        score,
    }));
}
