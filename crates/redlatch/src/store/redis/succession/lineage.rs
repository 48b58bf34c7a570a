//! Where nobody counts epochs, servers say themselves that they are the master, and what their data come from.
//!
//! Who is promoted begins a history and remembers the one that it was copying. **One server counts, or none.** Of those who claim, the ones that
//! another one names as its parent do not count. If one is left it is the master. Beside others it is the present one, if most servers are it or copy it;
//! or the one that is known to have gone on from all others. If these contradict each other, or say nothing, none counts until
//! a person has made the others replicas: a guess might be another one than the next client's.
//!
//! So clients that hear the same servers never use different masters, whatever each of them remembers. Who is named as a parent, and whom most servers
//! copy, is the same for all, and nobody takes another one than that. The rest goes by lineage, which may be known in part; but a history
//! is younger than its parent, so of two histories at most one has gone on from the other, and nobody can know the contrary.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::{Claim, Doubt, Memory, RESET_TIME, Said, Verdict, keep};

/// How many parents are remembered. What is forgotten makes a server count less, never more.
const PARENTS_MAX: usize = 256;

/// Which history has gone on from which.
#[derive(Debug, Clone, Default)]
pub(super) struct Lineage(VecDeque<(String, String)>);

impl Lineage {
    fn parent(&self, id: &str) -> Option<&str> {
        self.0.iter().find(|(child, _)| child == id).map(|(_, parent)| &**parent)
    }

    /// A history has one parent for good, and no circle of them is believed.
    fn learn(&mut self, id: &str, parent: &str) {
        if id == parent || self.parent(id).is_some() || self.goes_on_from(parent, id) {
            return;
        }
        self.0.push_back((id.into(), parent.into()));
        if self.0.len() > PARENTS_MAX {
            self.0.pop_front();
        }
    }

    /// Whether the later history is known to go on from the earlier one, over any number of steps.
    fn goes_on_from(&self, later: &str, earlier: &str) -> bool {
        self.line(later).skip(1).any(|id| id == earlier)
    }

    fn follows(&self, later: &Claim, earlier: &Claim) -> bool {
        let (Some(later), Some(earlier)) = (later.history(), earlier.history()) else { return false };
        self.goes_on_from(&later.id, &earlier.id)
    }

    /// The history and all that it is known to have gone on from.
    fn line<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        std::iter::successors(Some(id), |id| self.parent(id))
    }

    /// The server that counts.
    fn master<'a>(&self, said: &'a Said, present: Option<&Claim>) -> Option<&'a Claim> {
        let claims = said.unfollowed();
        if let [only] = claims[..] {
            return Some(only);
        }
        let others = |claim: &'a Claim| claims.iter().copied().filter(|other| other.addr != claim.addr);
        if let Some(most) = claims.iter().copied().find(|claim| said.is_most_copied(claim)) {
            let is_known = present.is_some_and(|present| present.addr == most.addr)
                || others(most).all(|other| self.follows(most, other));
            let is_past = others(most).any(|other| self.follows(other, most));
            return (is_known && !is_past).then_some(most);
        }
        claims.iter().copied().find(|claim| others(claim).all(|other| self.follows(claim, other)))
    }
}

impl Said {
    /// The claims that no other one names as its parent, one of each server, which may have several names.
    fn unfollowed(&self) -> Vec<&Claim> {
        let mut claims: Vec<&Claim> = Vec::new();
        for claim in &self.claims {
            let is_named = |other: &Claim| match (other.history(), claim.history()) {
                (Some(other), Some(history)) => {
                    other.before.as_ref() == Some(&history.id) && other.id != history.id
                }
                _ => false,
            };
            let is_twice = |other: &&Claim| match (other.history(), claim.history()) {
                (Some(other), Some(history)) => other.run.is_some() && other.run == history.run,
                _ => false,
            };
            if !self.claims.iter().any(is_named) && !claims.iter().any(is_twice) {
                claims.push(claim);
            }
        }
        claims
    }

    /// Whether most of the servers that are asked copy it, by their own words, or are it. The list that a master gives does not count: one that
    /// was cut off goes on naming replicas that have left it.
    fn is_most_copied(&self, claim: &Claim) -> bool {
        let Some(history) = claim.history() else { return false };
        let copies = self.replicas.iter().filter(|(_, copied)| copied.as_ref() == Some(&history.id)).count();
        2 * (copies + 1) > self.asked
    }

    fn has_heard(&self, claim: &Claim) -> bool {
        self.claims.iter().any(|other| other.addr == claim.addr)
            || self.replicas.iter().any(|(addr, _)| *addr == claim.addr)
    }
}

impl Memory {
    pub(super) fn judge_servers(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Verdict {
        self.learn(said);
        let was_contested = std::mem::take(&mut self.was_contested);
        let Some(master) = self.lineage.master(said, self.present.as_ref()) else {
            self.was_contested = true;
            // One look may show both the old master and the next one while they change.
            if !was_contested || self.present().is_none() {
                return Verdict::Stays;
            }
            self.is_vacant = true;
            return Verdict::Nobody;
        };
        let (master, may_move) = (master.clone(), self.may_leave_for(master, said));
        match may_move {
            Move::Never => Verdict::Stays,
            Move::Now => self.seat(master),
            Move::WhenMostInsist => {
                if 2 * said.answered > said.asked && self.most_insist(doubt, &master.addr, now) >= RESET_TIME
                {
                    self.seat(master)
                } else {
                    Verdict::Stays
                }
            }
        }
    }

    fn learn(&mut self, said: &Said) {
        let present = self.present.as_ref().map(|present| (&present.addr, present.history()));
        for claim in &said.claims {
            let Some(history) = claim.history() else { continue };
            if let Some(before) = &history.before {
                self.lineage.learn(&history.id, before);
            } else if let Some((addr, Some(last))) = present
                && *addr == claim.addr
                && history.run.is_some()
                && history.run == last.run
            {
                // A master that has had no replica for long gives its data another name, and tells no parent.
                self.lineage.learn(&history.id, &last.id);
            }
        }
    }

    /// Whether, and when, the server that counts takes the place of the one that did.
    fn may_leave_for(&self, master: &Claim, said: &Said) -> Move {
        let Some(present) = &self.present else { return Move::Now };
        if present.addr == master.addr {
            return if self.is_vacant || self.is_renewed(master) { Move::Now } else { Move::Never };
        }
        // It gives its place up, or does not count any more.
        if said.has_heard(present) {
            return Move::Now;
        }
        let goes_on = |later: &str, earlier: &str| self.lineage.goes_on_from(later, earlier);
        let is_ours = |id: &String| self.histories.iter().any(|ours| ours == id || goes_on(id, ours));
        if let Some(history) = master.history() {
            if self.histories.iter().any(|ours| goes_on(&history.id, ours)) {
                return Move::Now;
            }
            // The present one has gone on from it, however long it is away. A person may have ended it for good, and then has to say so.
            if self.histories.iter().any(|ours| *ours == history.id || goes_on(ours, &history.id)) {
                return Move::Never;
            }
        }
        let is_copied = said.replicas.iter().any(|(_, copied)| copied.as_ref().is_some_and(is_ours));
        if is_copied { Move::Never } else { Move::WhenMostInsist }
    }

    /// Whether the present master tells a history that it has not told before: it lost its place and has got it back, or was started anew, or has
    /// had no replica for long. Which of them cannot always be told, so each makes it a new master.
    fn is_renewed(&self, claim: &Claim) -> bool {
        claim.history().is_some_and(|history| !self.histories.contains(&history.id))
    }

    fn seat(&mut self, claim: Claim) -> Verdict {
        if self.present.as_ref().is_none_or(|present| present.addr != claim.addr) {
            self.histories.clear();
        }
        if let Some(history) = claim.history() {
            keep(&mut self.histories, history.id.clone());
        }
        (self.doubt, self.is_vacant) = (None, false);
        self.present = Some(claim.clone());
        Verdict::Is(claim)
    }
}

/// Whether the server that counts takes the place of the one that did.
enum Move {
    Now,
    /// When most servers have answered for a while, and have said nothing else.
    WhenMostInsist,
    Never,
}

#[cfg(test)]
mod stories;
#[cfg(test)]
mod tests;
