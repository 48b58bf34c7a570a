//! Who is the master, and by what right: the memory behind a master that may move.
//!
//! Those who know of masters ([`Finder`](super::finder::Finder)) only say what they have heard. What comes of it is decided here,
//! with all that was said before in mind, and nowhere else does a store get another master. So nobody who is behind the times leads
//! it back, however quick the answer.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::config::addr::Addr;

/// For how long most of those who know must contradict what is remembered, with one voice, until they are believed. Nothing in
/// the normal course of things makes an epoch smaller: an operator has set them up anew.
const RESET_TIME: Duration = Duration::from_secs(10);
/// For how long they must contradict a promise whose sentinel is not heard any more. One that has kept it tells the others at once, and
/// each two seconds.
const PROMISE_TIME: Duration = Duration::from_secs(4);
/// How many histories are remembered that others have gone on from, and of the present master.
const HISTORIES_MAX: usize = 64;

/// By what right a server is called the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Right {
    /// The sentinels have made it the master in this epoch, which grows with each change; -1 where they may not be asked for it.
    Epoch(i64),
    /// The sentinel that leads a change, begun after this epoch, has chosen it, and may still give that up.
    Promise { after: i64 },
    /// It says so itself. `replicas`: how many it has; `history`: what its data come from, where it may be asked for that.
    Own { replicas: usize, history: Option<History> },
}

/// The name of the stream of changes that a master makes. Who is promoted begins a new one and remembers the one that it has been
/// copying, so it tells which master it has followed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct History {
    pub(super) id: String,
    pub(super) before: Option<String>,
    /// The process that says so, where it may be asked for that.
    pub(super) run: Option<String>,
}

/// The word of a source that a server is the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) addr: Addr,
    pub(super) right: Right,
    /// Who says so.
    pub(super) by: Addr,
    /// That sentinel leads a change just now.
    pub(super) amid: bool,
}

impl Claim {
    /// Of two claims that sentinels make the higher one is the newer one.
    fn rank(&self) -> (i64, bool) {
        match self.right {
            Right::Epoch(epoch) => (epoch, false),
            Right::Promise { after } => (after, true),
            Right::Own { .. } => (-1, false),
        }
    }

    pub(super) fn is_promise(&self) -> bool {
        matches!(self.right, Right::Promise { .. })
    }

    fn history(&self) -> Option<&History> {
        match &self.right {
            Right::Own { history, .. } => history.as_ref(),
            _ => None,
        }
    }

    /// Whether it has gone on from where the other one was.
    fn follows(&self, other: &Claim) -> bool {
        let (Some(mine), Some(other)) = (self.history(), other.history()) else { return false };
        mine.id != other.id && mine.before.as_ref() == Some(&other.id)
    }
}

/// What was said in one look.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// In the order in which those who claim are named.
    pub(super) claims: Vec<Claim>,
    /// The replicas that tell which history they copy, and that.
    pub(super) copied: Vec<(Addr, String)>,
    /// How many were asked, and how many have answered.
    pub(super) asked: usize,
    pub(super) answered: usize,
}

impl Said {
    /// The claims that no other claim has gone on from.
    fn unfollowed(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| !self.claims.iter().any(|other| other.follows(claim)))
    }

    /// How many servers copy the one that claims: by their own words, where it tells its history, and by its word otherwise. A master that was cut
    /// off goes on listing replicas that have left it.
    fn copies(&self, claim: &Claim) -> usize {
        match &claim.right {
            Right::Own { history: Some(history), .. } => {
                self.copied.iter().filter(|(_, id)| *id == history.id).count()
            }
            Right::Own { replicas, .. } => *replicas,
            Right::Epoch(_) | Right::Promise { .. } => 0,
        }
    }

    /// The master for a client that has no memory. Of several that have not gone on from each other it is the one that most servers copy, if that
    /// one was promoted. Otherwise nobody can tell: clients that do remember may hold at either.
    fn the_one<'a>(&self, live: &[&'a Claim]) -> Option<&'a Claim> {
        let is_promoted = |claim: &Claim| claim.history().is_some_and(|history| history.before.is_some());
        match live {
            [] => None,
            [claim] => Some(claim),
            // An account that may not ask for histories has nothing but the numbers.
            _ if live.iter().all(|claim| claim.history().is_none()) => self.strongest(live, None),
            // One that did not tell its history this time may be the one that counts.
            _ if live.iter().any(|claim| claim.history().is_none()) => None,
            _ => live.iter().find(|claim| self.is_most_copied(claim) && is_promoted(claim)).copied(),
        }
    }

    /// The master for a client without memory where all servers have answered and have told their histories, so that it is the same for all clients.
    fn plain_master(&self) -> Option<&Claim> {
        let told = self.copied.len() + self.claims.iter().filter(|claim| claim.history().is_some()).count();
        if told < self.asked {
            return None;
        }
        self.the_one(&self.unfollowed().collect::<Vec<_>>())
    }

    /// Whether most of all servers copy it or are it.
    fn is_most_copied(&self, claim: &Claim) -> bool {
        2 * (self.copies(claim) + 1) > self.asked
    }

    /// The master whose data the server has, by its own words, where it is a replica; or who has gone on from that one.
    fn copied_by(&self, addr: &Addr) -> Option<&Claim> {
        let (_, id) = self.copied.iter().find(|(replica, _)| replica == addr)?;
        let is_it = |claim: &&Claim| claim.history().is_some_and(|history| history.id == *id);
        let mut master = self.claims.iter().find(is_it)?;
        for _ in &self.claims {
            let next: Vec<&Claim> = self.claims.iter().filter(|claim| claim.follows(master)).collect();
            master = self.strongest(&next, None).unwrap_or(master);
        }
        Some(master)
    }

    /// The master that most servers copy: one that was given up and came back has no replicas. Among equals the present one, then the one with
    /// the smaller history, which is the same for all clients, and then the one that is named first.
    fn strongest<'a>(&self, claims: &[&'a Claim], present: Option<&Addr>) -> Option<&'a Claim> {
        let key = |claim: &Claim| {
            let id = claim.history().map(|history| history.id.clone());
            (self.copies(claim), present == Some(&claim.addr), std::cmp::Reverse(id))
        };
        // The last one of several is taken.
        claims.iter().rev().max_by_key(|claim| key(claim)).copied()
    }
}

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Stays,
    /// This one is the master now, whether it can be reached from here or not.
    Is(Claim),
    /// This one is about to be the master, and is as soon as it says so itself.
    Becomes(Claim),
}

/// A server, and since when each look has insisted on it.
type Doubt = (Addr, Instant);

/// What is remembered of what was said before.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    present: Option<Claim>,
    /// The server that most of those who know call the master against what is remembered, and since when.
    doubt: Option<Doubt>,
    /// The server that the words of all servers make the master for a client without memory, against what is remembered, and since when.
    shown: Option<Doubt>,
    /// Histories of former masters that the present one was seen to have gone on from, though it may not say so any more.
    line: VecDeque<String>,
    /// The histories of the present master, and those that others have gone on from.
    histories: VecDeque<String>,
    past: VecDeque<String>,
    /// Who made those of `past` that were a master's here, and the process that did.
    former: VecDeque<(String, Addr, Option<String>)>,
    /// What is remembered of the master in whose absence the present one counts. When that one is back, or another one goes on from it, all clients
    /// are there again: those that left it, and those that never saw it away.
    regency_for: Option<Box<Memory>>,
}

impl Memory {
    pub(super) fn present(&self) -> Option<&Claim> {
        self.present.as_ref()
    }

    /// Whether this is more than is known, and worth no more waiting.
    pub(super) fn is_news(&self, claim: &Claim) -> bool {
        self.present.as_ref().is_some_and(|present| claim.rank() > present.rank())
    }

    pub(super) fn judge(&mut self, said: &Said, now: Instant) -> Verdict {
        let is_own = |claim: &Claim| matches!(claim.right, Right::Own { .. });
        // Only a look that insists on it, too, keeps it.
        let doubt = self.doubt.take();
        if said.claims.iter().any(is_own) || self.present.as_ref().is_some_and(is_own) {
            self.judge_servers(said, doubt, now)
        } else {
            self.judge_sentinels(said, doubt, now)
        }
    }

    /// Nobody who knows was heard in a look.
    pub(super) fn hear_nobody(&mut self) {
        (self.doubt, self.shown) = (None, None);
        if let Some(absent) = &mut self.regency_for {
            absent.doubt = None;
        }
    }

    fn judge_sentinels(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Verdict {
        if let Some(present) = &mut self.present
            && let Right::Promise { after } = present.right
            && said
                .claims
                .iter()
                .any(|claim| claim.by == present.by && !claim.amid && claim.rank() < (after, true))
        {
            // Who has promised it says something else now.
            present.right = Right::Epoch(after - 1);
        }
        let Some(best) = newest(&said.claims, self.present.as_ref()) else { return Verdict::Stays };
        let Some(present) = &self.present else {
            return self.take(best);
        };
        if best.rank() > present.rank() || present.rank() == (-1, false) {
            // Who is promised the place that it has in a later epoch has lost it since.
            if best.is_promise() && best.addr == present.addr && best.rank().0 == present.rank().0 {
                return Verdict::Stays;
            }
            return self.take(best);
        }
        // Sentinels that are told to fail over ask nobody for votes, so two may name different masters in one epoch. Each goes on with its own;
        // most of them decide here.
        let votes = said.claims.iter().filter(|claim| claim.addr == best.addr && claim.rank() == best.rank());
        if best.rank() == present.rank() && best.addr != present.addr && 2 * votes.count() > said.asked {
            return self.take(best);
        }
        if said.claims.iter().any(|claim| claim.addr == present.addr && claim.rank() == present.rank()) {
            return Verdict::Stays;
        }
        let one_voice = said.claims.iter().all(|claim| claim.addr == best.addr && !claim.is_promise());
        let is_abandoned = present.is_promise() && !said.claims.iter().any(|claim| claim.by == present.by);
        let for_long = if is_abandoned { PROMISE_TIME } else { RESET_TIME };
        if one_voice
            && 2 * said.claims.len() > said.asked
            && self.most_insist(doubt, &best.addr, now) >= for_long
        {
            // Forgotten, so that the smaller epoch counts. The same server may have lost its place meanwhile.
            self.sits(&best);
            return Verdict::Is(best);
        }
        Verdict::Stays
    }

    /// What comes before it is no reason to doubt any more, nor to tell whether its data have changed.
    fn sits(&mut self, claim: &Claim) {
        self.doubt = None;
        self.histories.clear();
        self.present = Some(claim.clone());
    }

    /// Takes over what is newer than all before.
    fn take(&mut self, claim: Claim) -> Verdict {
        if claim.is_promise() {
            return Verdict::Becomes(claim);
        }
        // A later epoch with the same server is two changes, of which one was missed, unless it is known to be none. A promise that needed
        // several elections is taken for a change that was missed, because nothing tells the one from the other.
        let is_known = self.present.as_ref().is_some_and(|present| {
            let is_kept =
                matches!(present.right, Right::Promise { after } if claim.right == Right::Epoch(after + 1));
            present.addr == claim.addr && (is_kept || present.right == claim.right)
        });
        if is_known {
            self.present = Some(claim);
            return Verdict::Stays;
        }
        self.sits(&claim);
        Verdict::Is(claim)
    }

    /// Whether nobody counts the changes of the present master's place, so that it has to be asked itself.
    pub(super) fn is_uncounted(&self) -> bool {
        self.present.as_ref().is_some_and(|present| present.right == Right::Epoch(-1))
    }

    /// A master whose changes nobody counts has said what its data come from.
    pub(super) fn hear_of(&mut self, addr: &Addr, history: &History) -> Verdict {
        let Some(present) = self.present.as_ref().filter(|present| present.addr == *addr) else {
            return Verdict::Stays;
        };
        if !self.is_uncounted() || self.histories.contains(&history.id) {
            return Verdict::Stays;
        }
        let (is_first, claim) = (self.histories.is_empty(), present.clone());
        keep(&mut self.histories, history.id.clone());
        if is_first { Verdict::Stays } else { Verdict::Is(claim) }
    }

    /// Most of those who know insist on this server: for how long, by what was doubted before.
    fn most_insist(&mut self, doubt: Option<Doubt>, addr: &Addr, now: Instant) -> Duration {
        let same = doubt.filter(|(doubted, _)| doubted == addr);
        let (_, since) = self.doubt.insert(same.unwrap_or_else(|| (addr.clone(), now)));
        now.saturating_duration_since(*since)
    }

    /// Where nobody counts epochs, servers still tell which master they have followed.
    fn judge_servers(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Verdict {
        let shown = self.shown.take();
        let verdict = self.judge_by_memory(said, doubt, now);
        // What is remembered of a long story may differ between clients, and then each of them would stay at its own for good. All of them
        // hear all servers say the same, and so does a client that comes now. But none goes back to what the present master has gone on from:
        // that one says so no more when it was started anew, or has had no replica for long, and a client that comes now cannot know.
        let is_news = |claim: &&Claim| self.is_elsewhere(claim) && !self.has_gone_on_from(claim);
        let Some(claim) = said.plain_master().filter(is_news) else { return verdict };
        let since = shown.filter(|(addr, _)| *addr == claim.addr).map_or(now, |(_, since)| since);
        if now.saturating_duration_since(since) < RESET_TIME {
            self.shown = Some((claim.addr.clone(), since));
            return verdict;
        }
        self.regency_for = None;
        self.seat(claim.clone())
    }

    fn is_elsewhere(&self, claim: &Claim) -> bool {
        self.present.as_ref().is_some_and(|present| present.addr != claim.addr)
    }

    fn has_gone_on_from(&self, claim: &Claim) -> bool {
        claim.history().is_some_and(|history| self.line.contains(&history.id))
    }

    /// What is remembered decides, and what servers say only adds to it.
    fn judge_by_memory(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Verdict {
        if let Some(mut absent) = self.regency_for.take() {
            let earlier = absent.doubt.take();
            match absent.judge_line(said, earlier, now) {
                // One that most servers have left meanwhile, and that those who stayed are about to leave.
                Some(Verdict::Stays) if absent.doubt.is_some() => {}
                Some(Verdict::Stays) => {
                    *self = *absent;
                    return self.present.clone().map_or(Verdict::Stays, Verdict::Is);
                }
                Some(verdict) => {
                    *self = *absent;
                    return verdict;
                }
                None => {}
            }
            self.regency_for = Some(absent);
        }
        if let Some(verdict) = self.judge_line(said, doubt.clone(), now) {
            return verdict;
        }
        // The master is away, and nobody has gone on from it as far as can be seen. One that another server has gone on from is none.
        let Some(other) = said.strongest(&self.live(said), None).cloned() else { return Verdict::Stays };
        let is_other = self.present.as_ref().is_some_and(|present| present.addr != other.addr);
        if is_other
            && 2 * said.answered > said.asked
            && self.most_insist(doubt, &other.addr, now) >= RESET_TIME
        {
            return self.stand_in(other);
        }
        Verdict::Stays
    }

    /// The claims that nobody has gone on from.
    fn live<'a>(&self, said: &'a Said) -> Vec<&'a Claim> {
        said.unfollowed().filter(|claim| !self.is_past(claim)).collect()
    }

    /// What servers say that have to do with the present master; `None` if it is away, and nobody has gone on from it.
    fn judge_line(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Option<Verdict> {
        let live = self.live(said);
        let Some(present) = &self.present else {
            return Some(match said.the_one(&live) {
                Some(claim) => self.seat(claim.clone()),
                None => Verdict::Stays,
            });
        };
        if self.histories.is_empty() {
            return Some(match said.strongest(&live, Some(&present.addr)) {
                // One that tells its history for the first time may have begun it since.
                Some(claim) if claim.addr != present.addr || claim.history().is_some() => {
                    self.seat(claim.clone())
                }
                _ => Verdict::Stays,
            });
        }
        let goes_on = |claim: &&&Claim| {
            claim.addr != present.addr
                && claim.history().is_some_and(|history| {
                    let known = |id: &String| self.histories.contains(id);
                    !known(&history.id) && history.before.as_ref().is_some_and(known)
                })
        };
        // Of two that were promoted from the same one the others copy one.
        let next: Vec<&Claim> = live.iter().filter(goes_on).copied().collect();
        if let Some(next) = said.strongest(&next, None) {
            return Some(self.seat(next.clone()));
        }
        // It has given its place up itself.
        if let Some(master) = said.copied_by(&present.addr) {
            return Some(self.seat(master.clone()));
        }
        let same = live.iter().find(|claim| claim.addr == present.addr)?;
        // It may have gone on from where the present one has, too.
        let may_be = |claim: &&Claim| !self.is_over(claim) && self.may_have_gone_on(present, claim);
        let most = said.unfollowed().filter(may_be).find(|claim| said.is_most_copied(claim)).cloned();
        let verdict = self.go_on((*same).clone());
        // Its successor may have been seen by nobody here: between two looks there were two changes.
        Some(match most {
            Some(other)
                if self.most_insist(doubt, &other.addr, now) >= RESET_TIME && verdict == Verdict::Stays =>
            {
                self.seat(other)
            }
            _ => verdict,
        })
    }

    /// The present master says that it is one. With a history that is new it lost its place and has got it back, or was started anew, or had
    /// no replicas for long: which of them cannot always be told, so each makes it a new master.
    fn go_on(&mut self, claim: Claim) -> Verdict {
        // Where it does not tell its history this time, what it told before is compared with the next one.
        let Some(history) = claim.history().filter(|history| !self.histories.contains(&history.id)) else {
            return Verdict::Stays;
        };
        let run = self.present.as_ref().and_then(|present| present.history()?.run.clone());
        if let Some(before) = history.before.as_ref().filter(|before| !self.histories.contains(before)) {
            // Its data come from elsewhere.
            self.line.clear();
            // Nothing but a promotion gives the same process another one to have gone on from. After a restart it may be what was saved
            // long ago, and a replica may have gone on from the last one.
            if run.is_some() && run == history.run {
                while let Some(id) = self.histories.pop_front() {
                    keep(&mut self.past, id);
                }
            }
            keep(&mut self.past, before.clone());
        }
        keep(&mut self.histories, history.id.clone());
        self.present = Some(claim.clone());
        Verdict::Is(claim)
    }

    /// Whether another server has gone on from where this one is. Of the present master only one that claims is believed to have done so.
    fn is_past(&self, claim: &Claim) -> bool {
        if self.present.as_ref().is_some_and(|present| present.addr == claim.addr) {
            return false;
        }
        claim.history().is_some_and(|history| {
            let is_past = |id: &String| self.past.contains(id);
            !self.histories.contains(&history.id)
                && (is_past(&history.id) || history.before.as_ref().is_some_and(is_past))
        })
    }

    /// Whether another server has gone on from what this one makes now, or made before it was started anew. The same process has another history
    /// because it was promoted.
    fn is_over(&self, claim: &Claim) -> bool {
        claim.history().is_some_and(|history| {
            let made = |before: &String| {
                self.former.iter().any(|(id, addr, run)| {
                    id == before && *addr == claim.addr && (run.is_none() || *run != history.run)
                })
            };
            self.past.contains(&history.id) || history.before.as_ref().is_some_and(made)
        })
    }

    /// Whether another server may be the successor of the present master's, of which two changes were missed, or of the one that the
    /// present master has gone on from. One that has gone on from nobody is a server that was made anew.
    fn may_have_gone_on(&self, present: &Claim, claim: &Claim) -> bool {
        let before = |claim: &Claim| claim.history().and_then(|history| history.before.clone());
        claim.addr != present.addr
            && before(claim).is_some_and(|id| {
                before(present).as_ref() == Some(&id)
                    || !self.past.contains(&id) && !self.histories.contains(&id)
            })
    }

    /// Counts as the master while the present one is away. Nobody has gone on from that one.
    fn stand_in(&mut self, claim: Claim) -> Verdict {
        let absent =
            self.regency_for.take().unwrap_or_else(|| Box::new(Memory { doubt: None, ..self.clone() }));
        self.histories.clear();
        let verdict = self.seat(claim);
        self.regency_for = Some(absent);
        verdict
    }

    /// Takes the place of the present master, which is past.
    fn seat(&mut self, claim: Claim) -> Verdict {
        let before = claim.history().and_then(|history| history.before.as_ref());
        match before.and_then(|before| self.histories.iter().position(|id| id == before)) {
            Some(at) => self.histories.iter().take(at + 1).for_each(|id| keep(&mut self.line, id.clone())),
            None => self.line.clear(),
        }
        while let Some(id) = self.histories.pop_front() {
            if let Some(former) = &self.present {
                let run = former.history().and_then(|history| history.run.clone());
                keep(&mut self.former, (id.clone(), former.addr.clone(), run));
            }
            keep(&mut self.past, id);
        }
        self.histories.extend(claim.history().map(|history| history.id.clone()));
        self.past.retain(|id| !self.histories.contains(id));
        self.doubt = None;
        self.present = Some(claim.clone());
        Verdict::Is(claim)
    }

    /// One that was about to be the master says that it is. `false` if another has become it meanwhile.
    pub(super) fn admit(&mut self, claim: &Claim) -> bool {
        let newer = self.present.as_ref().is_none_or(|present| claim.rank() > present.rank());
        if newer {
            self.sits(claim);
        }
        newer
    }

    /// The master that was promised says that it is none.
    pub(super) fn withdraw(&mut self) {
        if let Some(Claim { right: right @ Right::Promise { .. }, .. }) = &mut self.present
            && let Right::Promise { after } = *right
        {
            *right = Right::Epoch(after - 1);
        }
    }
}

/// Adds to what is remembered, of which the oldest goes when it is too much.
fn keep<T: PartialEq>(ids: &mut VecDeque<T>, id: T) {
    if !ids.contains(&id) {
        ids.push_back(id);
    }
    if ids.len() > HISTORIES_MAX {
        ids.pop_front();
    }
}

/// The claim with the highest rank; among equals the one that most make, and then the one for the present master.
fn newest(claims: &[Claim], present: Option<&Claim>) -> Option<Claim> {
    let votes = |addr: &Addr| claims.iter().filter(|other| other.addr == *addr).count();
    let newest = claims.iter().max_by_key(|claim| {
        (claim.rank(), votes(&claim.addr), present.is_some_and(|present| present.addr == claim.addr))
    });
    newest.cloned()
}

#[cfg(test)]
mod stories;
#[cfg(test)]
mod tests;
