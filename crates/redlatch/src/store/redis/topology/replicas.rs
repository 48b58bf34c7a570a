//! The replicas of the masters of a cluster: those that the last picture names, and those that it may not name yet.
//!
//! Right after a failover the new master lists none of the replicas that its predecessor had, until they have turned to it. A picture of a node that has
//! just joined lacks some, too. What is missing for such a reason is counted on for a while: a grant that all replicas are to confirm
//! would be content with fewer than there are.

use std::time::Duration;

use tokio::time::Instant;

use crate::{config::addr::Addr, randomness::SeededMap};

/// For how long a replica counts that no picture names. The nodes of a cluster tell each other such news within a second or two.
pub(super) const UNTOLD_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    addr: Addr,
    /// By which it is known under any address, where nodes tell that.
    id: Option<String>,
    /// Its master, if that one's address is known.
    of: Option<Addr>,
    told_at: Instant,
    /// The last picture does not name it.
    is_untold: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Replicas(Vec<Known>);

impl Replicas {
    pub(super) fn addrs(&self) -> impl Iterator<Item = &Addr> {
        self.0.iter().map(|known| &known.addr)
    }

    pub(super) fn count_of(&self, master: &Addr) -> usize {
        self.0.iter().filter(|known| known.of.as_ref() == Some(master)).count()
    }

    fn names(&self, addr: &Addr) -> bool {
        self.addrs().any(|known| known == addr)
    }

    /// These, as a picture tells them, which knows these nodes by id.
    pub(super) fn told(
        told: Vec<(Addr, Option<Addr>)>,
        nodes: &SeededMap<Addr, String>,
        now: Instant,
    ) -> Self {
        Replicas(
            told.into_iter()
                .map(|(addr, of)| {
                    let id = nodes.get(&addr).cloned();
                    Known { addr, id, of, told_at: now, is_untold: false }
                })
                .collect(),
        )
    }

    /// Adds those that were known before and that the picture may not name yet: all if it `is_partial`, and those whose master has lost all slots to the
    /// `heir`. One that the picture tells as a master, or by another address, is none of them.
    pub(super) fn keep(
        &mut self,
        before: &Replicas,
        is_partial: bool,
        heir: impl Fn(&Addr) -> Option<Addr>,
        is_told: impl Fn(&Addr, Option<&String>) -> bool,
        now: Instant,
    ) {
        for known in &before.0 {
            let is_old = now.saturating_duration_since(known.told_at) >= UNTOLD_TIME;
            if is_old || is_told(&known.addr, known.id.as_ref()) || self.names(&known.addr) {
                continue;
            }
            let heir = known.of.as_ref().and_then(&heir);
            if is_partial || known.is_untold || heir.is_some() {
                let of = heir.or_else(|| known.of.clone());
                self.0.push(Known { of, is_untold: true, ..known.clone() });
            }
        }
    }

    /// A redirection has named `to` as the master of a slot that `from` had. If it was a replica of that one the others are its replicas from now on, whether
    /// they know that yet or not.
    pub(super) fn promoted(&mut self, from: &Addr, to: &Addr) {
        let is_of = |known: &&Known| known.of.as_ref() == Some(from);
        if !self.0.iter().any(|known| known.addr == *to && known.of.as_ref() == Some(from)) {
            return;
        }
        let others: Vec<Known> =
            self.0.iter().filter(is_of).filter(|known| known.addr != *to).cloned().collect();
        let has =
            |addr: &Addr| self.0.iter().any(|known| known.addr == *addr && known.of.as_ref() == Some(to));
        let new: Vec<Known> = others
            .into_iter()
            .filter(|known| !has(&known.addr))
            .map(|known| Known { of: Some(to.clone()), is_untold: true, ..known })
            .collect();
        self.0.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Addr {
        Addr::Tcp { host: "h".into(), port }
    }

    fn told(replicas: &[(u16, u16)], now: Instant) -> Replicas {
        let ids = replicas.iter().map(|(addr, _)| (at(*addr), (addr % 100).to_string())).collect();
        Replicas::told(replicas.iter().map(|(addr, of)| (at(*addr), Some(at(*of)))).collect(), &ids, now)
    }

    /// `ReplicaAck::all()` was content with no replica at all at a master that had just taken over, though another one was there.
    #[test]
    fn the_replicas_of_a_master_count_at_its_heir_until_they_are_told_of() {
        let now = Instant::now();
        let before = told(&[(11, 1), (12, 1), (13, 1), (21, 2)], now);
        let heir = |of: &Addr| (*of == at(1)).then(|| at(11));
        let is_master = |addr: &Addr, _: Option<&String>| [at(11), at(2)].contains(addr);
        // One has turned to the new master, one has not yet; of a master that has its slots those count that it names.
        let mut after = told(&[(12, 11)], now);
        after.keep(&before, false, heir, is_master, now);
        assert_eq!((after.count_of(&at(11)), after.count_of(&at(1)), after.count_of(&at(2))), (2, 0, 0));
        // So it is in the next picture, in which the old master is unknown, and not for ever.
        for (later, wanted) in [(UNTOLD_TIME / 2, 2), (UNTOLD_TIME, 1)] {
            let mut next = told(&[(12, 11)], now + later);
            next.keep(&after, false, |_| None, is_master, now + later);
            assert_eq!(next.count_of(&at(11)), wanted, "{later:?}");
        }
        // Another picture names it again.
        let mut next = told(&[(12, 11), (13, 11)], now);
        next.keep(&after, false, |_| None, is_master, now);
        assert_eq!(next.count_of(&at(11)), 2);
    }

    /// Nodes that tell hosts in different ways, some by name: each picture looked like a failover, and each replica counted twice.
    #[test]
    fn a_replica_that_is_told_by_another_address_counts_once() {
        let now = Instant::now();
        let before = told(&[(12, 1), (13, 1)], now);
        let mut after = told(&[(112, 101)], now);
        let is_told = |_: &Addr, id: Option<&String>| id.is_some_and(|id| id == "12");
        after.keep(&before, false, |_| Some(at(101)), is_told, now);
        assert_eq!((after.count_of(&at(101)), after.count_of(&at(1))), (2, 0));
    }

    #[test]
    fn a_redirection_to_a_replica_takes_the_others_along() {
        let now = Instant::now();
        let mut replicas = told(&[(11, 1), (12, 1), (21, 2)], now);
        replicas.promoted(&at(1), &at(2));
        assert_eq!(
            (replicas.count_of(&at(1)), replicas.count_of(&at(2))),
            (2, 1),
            "a slot that moves takes none"
        );
        for _ in 0..2 {
            replicas.promoted(&at(1), &at(11));
            assert_eq!((replicas.count_of(&at(11)), replicas.count_of(&at(2))), (1, 1));
        }
    }

    /// As long as one slot had no master every picture was taken for a partial one, and a replica that had ended for good counted for good.
    #[test]
    fn what_no_picture_names_any_more_counts_for_a_while() {
        let now = Instant::now();
        let mut known = told(&[(11, 1), (12, 1)], now);
        for (later, wanted) in
            [(Duration::ZERO, 2), (UNTOLD_TIME - Duration::from_millis(1), 2), (UNTOLD_TIME, 1)]
        {
            let mut next = told(&[(11, 1)], now + later);
            next.keep(&known, true, |_| None, |_, _| false, now + later);
            assert_eq!(next.count_of(&at(1)), wanted, "{later:?}");
            known = next;
        }
    }
}
