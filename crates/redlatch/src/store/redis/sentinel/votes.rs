//! Which sentinels have a vote: each one, of one set.

use std::{collections::BTreeSet, sync::Arc};

use super::{KNOWN_SET_MIN, Knowledge, Sentinel};
use crate::store::redis::known_nodes::{self, Ids};

pub(super) fn ids(one: &Knowledge) -> Ids {
    Ids { own: one.id.clone(), others: one.others.iter().filter_map(|(id, _)| id.clone()).collect() }
}

/// A sentinel that goes by several names has one vote.
pub(super) fn one_vote_each(known: &mut Vec<Knowledge>) {
    let mut heard = BTreeSet::new();
    known.retain(|one| one.id.as_ref().is_none_or(|id| heard.insert(id.clone())));
}

/// How many sentinels these are. Those of a set know each other, so one without an id is another name of one that has one, or not of the set. Two or
/// fewer may have been started just now, and not know the others yet.
pub(super) fn count(list: &[Arc<Sentinel>]) -> usize {
    let ids: BTreeSet<_> = list.iter().filter_map(|one| one.id()).collect();
    let nameless = list.iter().filter(|one| one.id().is_none()).count();
    if ids.len() < KNOWN_SET_MIN { ids.len() + nameless } else { ids.len() }
}

/// Who knows no set yet believes the one that most of the sentinels are of that answer, and none where nobody can tell which that is.
pub(super) fn of_one_set(known: Vec<Knowledge>) -> Vec<Knowledge> {
    let mut sets = known_nodes::largest_groups(known, ids);
    if sets.len() > 1 {
        let names: Vec<String> = sets.iter().flatten().map(|one| one.claim.by.addr.to_string()).collect();
        tracing::warn!(sentinels = names.join(", "), "sentinels of different sets; none of them is believed");
        return Vec::new();
    }
    sets.pop().unwrap_or_default()
}
