//! Recorded changes made again at a start, and the changes that build a keyspace.

use std::collections::VecDeque;

use super::hash::Hash;
use super::list::remove_equal;
use super::zset::SortedSet;
use super::{Core, Data, NEVER};
use crate::effect::Effect;

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
                    remove_equal(list, &value, count);
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
        self.expiring_key_count();
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
