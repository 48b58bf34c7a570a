//! Where nobody counts epochs, servers say themselves that they are the master, and what their data come from.
//!
//! Who is promoted begins a history and remembers the one that it was copying. **One server counts, or none.** Of those who claim, the ones that
//! another one names as its parent do not count. If one is left it is the master. Beside others it is the present one, if most servers are it or copy it;
//! or the one that is known to have gone on from all others. If these contradict each other, or say nothing, none counts until
//! a person has made the others replicas: a guess might be another one than the next client's. Nor does one count where most servers copy another one, which
//! is not heard.
//!
//! So clients that hear the same servers never use different masters, whatever each of them remembers. Which server is named as a parent, and which one most
//! servers copy, is the same for all, and no client takes another one than that. The rest goes by lineage, which may be known in part; but a history
//! is younger than its parent, so of two histories at most one has gone on from the other, and nobody can know the contrary.
//!
//! A master that is not heard in a look counts as it spoke last, and a server that is not heard, or has not got its master's data yet, may copy any.
//! So one that is slow for a moment, or is started anew, leads nobody anywhere. Clients leave a master that does not count any more within a few looks,
//! and go to one of several only when all looks of ten seconds have insisted on it.

use std::collections::{BTreeSet, VecDeque};

use tokio::time::Instant;

use super::{Claim, Doubt, History, Memory, RESET_TIME, Said, Verdict, keep};
use crate::config::addr::Addr;

/// How many parents are remembered: more than the promotions and restarts that a client lives through. What is forgotten speaks for no server any more, and
/// against none.
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

    /// The one of several claims that counts, as a client sees it that uses `used`, or none, and has used `present`.
    fn master<'a>(
        &self,
        claims: &[&'a Claim],
        (said, remembered): (&Said, usize),
        present: Option<&Claim>,
        used: Option<&Claim>,
    ) -> Option<&'a Claim> {
        if said.most_copy_another(self, claims) {
            return None;
        }
        if let [only] = claims {
            return Some(only);
        }
        let others = |claim: &'a Claim| claims.iter().copied().filter(|other| other.addr != claim.addr);
        if let Some(most) = claims.iter().copied().find(|claim| said.is_most_copied(claim)) {
            let is_known = present.is_some_and(|present| is_same(present, most))
                || others(most).all(|other| self.follows(most, other));
            let is_past = others(most).any(|other| self.follows(other, most));
            return (is_known && !is_past).then_some(most);
        }
        claims.iter().copied().find(|claim| {
            // Where no process listens none copies anything. But it may come back, so it is no reason to go anywhere.
            let is_used = used.is_some_and(|used| is_same(used, claim));
            let is_claim = |addr: &&Addr| claims.iter().any(|claim| claim.addr == **addr);
            let refused = said.refused.iter().filter(|addr| !is_claim(addr)).count();
            let undecided = said.undecided(remembered) + if is_used { 0 } else { refused };
            others(claim)
                .all(|other| self.follows(claim, other) && !said.may_be_most_copied(other, undecided))
        })
    }
}

fn run(claim: &Claim) -> Option<&String> {
    claim.history()?.run.as_ref()
}

/// Whether two claims are of one server, which may have several names.
fn is_same(one: &Claim, other: &Claim) -> bool {
    one.addr == other.addr || (run(one).is_some() && run(one) == run(other))
}

/// The claims that no other one names as its parent, one of each server. One that is only remembered, and is followed itself, hides none: not all clients
/// have heard it.
fn unfollowed<'a>(claims: &'a [Claim], said: &Said) -> Vec<&'a Claim> {
    let names = |other: &Claim, claim: &Claim| {
        let id = claim.history().map(|history| &history.id);
        other
            .history()
            .is_some_and(|other| id.is_some() && other.before.as_ref() == id && Some(&other.id) != id)
    };
    let is_followed = |claim: &Claim| claims.iter().any(|other| names(other, claim));
    let counts = |claim: &Claim| said.has_heard(&claim.addr) || !is_followed(claim);
    let is_named = |claim: &Claim| claims.iter().any(|other| names(other, claim) && counts(other));
    let mut left: Vec<&Claim> = Vec::new();
    for claim in claims {
        if !is_named(claim) && !left.iter().any(|other| is_same(other, claim)) {
            left.push(claim);
        }
    }
    left
}

impl Said {
    /// How many of the names that were heard are further names of a server.
    fn spare_names(&self) -> usize {
        let runs = || {
            let claimed = self.claims.iter().filter_map(run);
            claimed.chain(self.replicas.iter().filter_map(|replica| replica.run.as_ref()))
        };
        runs().count() - runs().collect::<BTreeSet<_>>().len()
    }

    /// How many servers copy it, by their own words, or are it. The list that a master gives does not count: one that
    /// was cut off goes on naming replicas that have left it.
    fn copies(&self, claim: &Claim) -> usize {
        claim.history().map_or(0, |history| self.replicas_of(&history.id)) + 1
    }

    fn replicas_of(&self, id: &str) -> usize {
        let copies = self.replicas.iter().filter(|replica| replica.history.as_deref() == Some(id));
        let (nameless, named): (Vec<_>, Vec<_>) =
            copies.map(|replica| replica.run.as_ref()).partition(Option::is_none);
        nameless.len() + named.into_iter().collect::<BTreeSet<_>>().len()
    }

    /// Whether so many are most of the servers that are asked.
    fn are_most(&self, servers: usize) -> bool {
        2 * servers > self.asked - self.spare_names()
    }

    /// Whether most servers may copy it, if these do that have not said it. A name that leads nowhere may be another one of a server that is
    /// heard, so those that are heard may be all that there are.
    fn may_be_most_copied(&self, claim: &Claim, undecided: usize) -> bool {
        let copies = self.copies(claim);
        let listening = self.asked - self.spare_names() - self.refused.len();
        claim.history().is_some() && (self.are_most(copies + undecided) || 2 * copies > listening)
    }

    /// Whether most servers copy a master that is none of these, and that none of these has gone on from: it is not heard, or a name leads to another server
    /// by now than it did.
    fn most_copy_another(&self, lineage: &Lineage, claims: &[&Claim]) -> bool {
        // Where a master may not be asked nothing is known of it.
        let Some(histories) = claims.iter().map(|claim| claim.history()).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let is_theirs = |id: &str| {
            let has_gone_on = |history: &&History| history.id == id || lineage.goes_on_from(&history.id, id);
            histories.iter().any(has_gone_on)
        };
        let itself = usize::from(self.answered < self.asked);
        let in_sync = self.replicas.iter().filter(|replica| replica.is_in_sync);
        let ids: BTreeSet<&str> = in_sync.filter_map(|replica| replica.history.as_deref()).collect();
        ids.into_iter().any(|id| !is_theirs(id) && self.are_most(self.replicas_of(id) + itself))
    }

    fn is_most_copied(&self, claim: &Claim) -> bool {
        claim.history().is_some() && self.are_most(self.copies(claim))
    }

    /// How many servers may copy any of these, and are none of them: they are not heard, or have not said which one. So it is with a replica
    /// that has been started anew, until it has its master's data again. Those whose machines refuse are not counted, nor masters that are `remembered`.
    fn undecided(&self, remembered: usize) -> usize {
        let unsaid = self.replicas.iter().filter(|replica| replica.history.is_none() || !replica.is_in_sync);
        self.asked.saturating_sub(self.answered + self.refused.len() + remembered) + unsaid.count()
    }

    /// Whether most servers have answered, of those whose machines do not say that there is none.
    fn has_heard_most(&self) -> bool {
        let spare = self.spare_names();
        2 * (self.answered - spare) > self.asked - spare - self.refused.len()
    }

    /// Whether the server of a claim says by any name that it is a replica now.
    fn is_replica(&self, claim: &Claim) -> bool {
        run(claim).is_some_and(|run| self.replicas.iter().any(|replica| replica.run.as_ref() == Some(run)))
    }

    fn has_heard(&self, addr: &Addr) -> bool {
        self.claims.iter().any(|other| other.addr == *addr)
            || self.replicas.iter().any(|replica| replica.addr == *addr)
    }
}

impl Memory {
    pub(super) fn judge_servers(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Verdict {
        self.learn(said);
        self.hear(said, now);
        let claims: Vec<Claim> = self.words.iter().map(|(claim, _)| claim.clone()).collect();
        let remembered =
            claims.iter().filter(|claim| !said.has_heard(&claim.addr) && !said.refused.contains(&claim.addr));
        let remembered = remembered.count();
        let claims = unfollowed(&claims, said);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < RESET_TIME;
        self.contested_at = self.contested_at.filter(is_recent);
        let used = self.present().cloned();
        let master = self
            .lineage
            .master(&claims, (said, remembered), self.present.as_ref(), used.as_ref())
            .filter(|master| {
                // Clients leave within a few looks, and go to one of several only when each look has insisted on it for longer than that.
                claims.len() == 1
                    || used.is_some_and(|used| is_same(&used, master))
                    || self.insist(doubt, &master.addr, now) >= RESET_TIME
            });
        let Some(master) = master else {
            // One look may show both the old master and the next one while they change. Looks in between that decided do not count: a replica that
            // comes and goes would keep clients at different masters.
            if self.contested_at.replace(now).is_none() || self.present().is_none() {
                return Verdict::Stays;
            }
            self.is_vacant = true;
            return Verdict::Nobody;
        };
        if self.is_taken_by(master, said) { self.install(master.clone()) } else { Verdict::Stays }
    }

    /// Those who claim, as they were heard last.
    pub(in crate::store::redis) fn claimants(&self) -> Vec<String> {
        self.words.iter().map(|(claim, _)| claim.addr.to_string()).collect()
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

    /// Takes in what is said now. Who is not heard counts as it spoke last, for a while, and until most servers are heard and none of them copies it.
    fn hear(&mut self, said: &Said, now: Instant) {
        let mut words = std::mem::take(&mut self.words);
        words.retain(|(claim, heard)| {
            // What one that is heard has gone on to is that one's.
            let is_others = |id: &String| {
                said.claims.iter().any(|other| other.history().is_some_and(|history| history.id == *id))
            };
            let goes_on = |id: &String| {
                claim.history().is_some_and(|history| {
                    *id == history.id || (!is_others(id) && self.lineage.goes_on_from(id, &history.id))
                })
            };
            let is_copied = said.replicas.iter().any(|replica| replica.history.as_ref().is_some_and(goes_on));
            let is_fresh = now.saturating_duration_since(*heard) < RESET_TIME;
            // By another of its names it says what counts now.
            let is_heard = said.claims.iter().any(|other| is_same(other, claim)) || said.is_replica(claim);
            !is_heard && !said.has_heard(&claim.addr) && (is_fresh || is_copied || !said.has_heard_most())
        });
        words.extend(said.claims.iter().map(|claim| (claim.clone(), now)));
        self.words = words;
    }

    /// Whether the server that counts takes the place of the one that did.
    fn is_taken_by(&self, master: &Claim, said: &Said) -> bool {
        let Some(present) = &self.present else { return true };
        if is_same(present, master) {
            let is_gone = present.addr != master.addr && !said.has_heard(&present.addr);
            return is_gone || self.is_vacant || self.is_renewed(master);
        }
        // It gives its place up, or does not count any more, by whatever name it says so.
        if said.has_heard(&present.addr) || said.is_replica(present) {
            return true;
        }
        // The present one has gone on from it, however long it is away. A person may have ended it for good, and then has to say so.
        !master.history().is_some_and(|history| {
            let has_gone_on =
                |ours: &String| *ours == history.id || self.lineage.goes_on_from(ours, &history.id);
            self.histories.iter().any(has_gone_on)
        })
    }

    /// Whether the present master tells a history that it has not told before: it lost its place and has got it back, or was started anew, or has
    /// had no replica for long. Which of them cannot always be told, so each makes it a new master.
    fn is_renewed(&self, claim: &Claim) -> bool {
        claim.history().is_some_and(|history| !self.histories.contains(&history.id))
    }

    fn install(&mut self, claim: Claim) -> Verdict {
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

#[cfg(test)]
mod crowds;
#[cfg(test)]
mod stories;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
