//! What is held in the keyspace, and by whose traces: for the daemon, which has no script for it.

use super::Engine;
use crate::keyspace::{Data, NEVER};
use crate::trace::{NEVER_SCORE_MS, PERMITS_SUFFIX, Trace, TracePlace, permit, permit_mark};

impl Engine {
    /// How many live keys have an expiry and stand for something that is held.
    pub(crate) fn lease_count(&mut self) -> usize {
        self.begin();
        let core = self.core();
        core.slots_from(0).filter(|(_, slot)| slot.is_lease(core.now_ms)).count()
    }

    /// How many permits are taken whose time is not over: those that have an end, and those that have none.
    pub(crate) fn permits_taken(&mut self) -> (usize, usize) {
        self.begin();
        let core = self.core();
        let now_ms = (core.unix_us() / 1000) as f64;
        let (mut ending, mut endless) = (0, 0);
        // A set that expires is an expiring key already.
        for (_, slot) in core.slots_from(0).filter(|(_, slot)| slot.expires_at_ms == NEVER) {
            let Data::SortedSet(set) = &slot.data else { continue };
            if slot.key.ends_with(PERMITS_SUFFIX) {
                ending += set.iter().filter(|(_, ends)| *ends > now_ms && *ends < NEVER_SCORE_MS).count();
                endless += set.iter().filter(|(_, ends)| *ends >= NEVER_SCORE_MS).count();
            }
        }
        (ending, endless)
    }

    /// The keys of sorted sets, with their members, and of lists.
    pub(crate) fn collections(&self) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
        let core = self.core();
        let found = core.slots_from(0).filter_map(|(_, slot)| {
            let members = match &slot.data {
                Data::SortedSet(set) => set.iter().map(|(member, _)| member.to_vec()).collect(),
                Data::List(_) => Vec::new(),
                Data::Str(_) | Data::Hash(_) => return None,
            };
            Some((slot.key.to_vec(), members))
        });
        found.collect()
    }

    /// Keys that expire and stand for something that is held, with the milliseconds they have left; at most `limit` of them.
    pub fn expiring_keys(&mut self, limit: usize) -> Vec<(Vec<u8>, u64)> {
        self.begin();
        let core = self.core();
        let live = core.slots_from(0).filter(|(_, slot)| slot.is_lease(core.now_ms));
        live.take(limit).map(|(_, slot)| (slot.key.to_vec(), slot.expires_at_ms - core.now_ms)).collect()
    }

    /// What the owners of a client have in hashes and in the sorted sets whose keys begin with `queues`, among `limit` slots from
    /// `from` on; and where to go on, if there are more.
    pub(crate) fn traces(
        &self,
        client: &[u8],
        queues: &[u8],
        permits: &[u8],
        from: usize,
        limit: usize,
    ) -> (Vec<Trace>, Option<usize>) {
        let core = self.core();
        let mut found = Vec::new();
        let belongs = |text: &[u8]| text.strip_prefix(client).is_some_and(|rest| rest.starts_with(b":"));
        let mark = permit_mark(client);
        for (_, slot) in core.slots_from(from).take_while(|(at, _)| *at < from + limit) {
            let mut note = |field: &[u8], place| {
                if belongs(field) {
                    let field = String::from_utf8_lossy(field).into_owned();
                    found.push(Trace { key: slot.key.to_vec(), field, place });
                }
            };
            match &slot.data {
                Data::Hash(hash) => {
                    let place = match hash.get(b"mode") {
                        Some(_) => TracePlace::ReadWrite,
                        None => TracePlace::Lock,
                    };
                    hash.iter().for_each(|(field, _)| note(field, place));
                }
                Data::SortedSet(set) if slot.key.starts_with(queues) => {
                    set.iter().for_each(|(member, _)| note(member, TracePlace::Queue));
                }
                Data::SortedSet(set) if slot.key.ends_with(permits) => {
                    let own = |id: &[u8]| permit(id).is_some_and(|(of, _)| Some(of) == mark);
                    for (id, _) in set.iter().filter(|(id, _)| own(id)) {
                        let field = id.iter().map(|byte| format!("{byte:02x}")).collect();
                        found.push(Trace { key: slot.key.to_vec(), field, place: TracePlace::Permit });
                    }
                }
                _ => {}
            }
        }
        let next = from + limit;
        (found, (next < core.slot_count()).then_some(next))
    }
}
