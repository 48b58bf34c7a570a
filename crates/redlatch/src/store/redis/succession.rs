//! Who is the master, and by what right: the memory behind a master that may move.
//!
//! Those who know of masters ([`Finder`](super::finder::Finder)) only say what they have heard. What comes of it is decided here,
//! with all that was said before in mind, and nowhere else does a store get another master. So nobody who is behind the times leads
//! it back, however quick the answer.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::config::addr::Addr;

/// For how long most of those who know must contradict what is remembered, with one voice, until they are believed. Nothing in
/// the normal course of things makes an epoch smaller: somebody has set them up anew.
const RESET_TIME: Duration = Duration::from_secs(10);
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
/// copying, so it tells whom it has followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    pub(super) id: String,
    pub(super) before: Option<String>,
}

/// Somebody's word that a server is the master.
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
    /// How many were asked, and how many have answered.
    pub(super) asked: usize,
    pub(super) answered: usize,
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

/// What is remembered of what was said before.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    present: Option<Claim>,
    /// Whom most of those who know call the master against what is remembered, and since when.
    doubt: Option<(Addr, Instant)>,
    /// The histories of the present master, and those that others have gone on from.
    histories: Vec<String>,
    past: VecDeque<String>,
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
        if said.claims.iter().any(is_own) || self.present.as_ref().is_some_and(is_own) {
            self.judge_servers(said, now)
        } else {
            self.judge_sentinels(said, now)
        }
    }

    fn judge_sentinels(&mut self, said: &Said, now: Instant) -> Verdict {
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
            if best.is_promise() && best.addr == present.addr {
                return Verdict::Stays;
            }
            return self.take(best);
        }
        if said.claims.iter().any(|claim| claim.addr == present.addr && claim.rank() == present.rank()) {
            self.doubt = None;
            return Verdict::Stays;
        }
        let is_same = best.addr == present.addr;
        let one_voice = said.claims.iter().all(|claim| claim.addr == best.addr && !claim.is_promise());
        if self.most_insist(one_voice && 2 * said.claims.len() > said.asked, &best.addr, now) {
            // Forgotten, so that the smaller epoch counts.
            self.doubt = None;
            self.present = Some(best.clone());
            return if is_same { Verdict::Stays } else { Verdict::Is(best) };
        }
        Verdict::Stays
    }

    /// Takes over what is newer than all before.
    fn take(&mut self, claim: Claim) -> Verdict {
        self.doubt = None;
        if claim.is_promise() {
            return Verdict::Becomes(claim);
        }
        // A promise that is kept is no change, nor is an epoch that was unknown. A later epoch with the same server is two changes, of
        // which one was missed.
        let known = self.present.as_ref().filter(|present| present.addr == claim.addr);
        let is_no_change =
            known.is_some_and(|present| present.is_promise() || present.right == Right::Epoch(-1));
        self.present = Some(claim.clone());
        if is_no_change { Verdict::Stays } else { Verdict::Is(claim) }
    }

    /// Whether most of those who know have insisted for long enough.
    fn most_insist(&mut self, most: bool, addr: &Addr, now: Instant) -> bool {
        match &self.doubt {
            _ if !most => {
                self.doubt = None;
                false
            }
            Some((doubted, since)) if doubted == addr => now.saturating_duration_since(*since) >= RESET_TIME,
            _ => {
                self.doubt = Some((addr.clone(), now));
                false
            }
        }
    }

    /// Where nobody counts epochs, servers still tell whom they have followed.
    fn judge_servers(&mut self, said: &Said, now: Instant) -> Verdict {
        let followed = |claim: &&Claim| !said.claims.iter().any(|other| other.follows(claim));
        let live: Vec<&Claim> =
            said.claims.iter().filter(followed).filter(|claim| !self.is_past(claim)).collect();
        let Some(present) = &self.present else {
            return match strongest(&live, None) {
                Some(claim) => self.seat(claim.clone()),
                None => Verdict::Stays,
            };
        };
        if present.history().is_none() {
            return match strongest(&live, Some(&present.addr)) {
                Some(claim) if claim.addr != present.addr => self.seat(claim.clone()),
                Some(claim) => {
                    let claim = claim.clone();
                    drop(self.seat(claim));
                    Verdict::Stays
                }
                None => Verdict::Stays,
            };
        }
        let goes_on = |claim: &&&Claim| {
            claim.history().is_some_and(|history| {
                let known = |id: &String| self.histories.contains(id);
                !known(&history.id) && history.before.as_ref().is_some_and(known)
            })
        };
        if let Some(next) = live.iter().find(goes_on) {
            return self.seat((*next).clone());
        }
        if let Some(same) = live.iter().find(|claim| claim.addr == present.addr) {
            // One that was restarted may have a new history; its connections tell of that.
            let same = (*same).clone();
            if let Some(history) = same.history()
                && !self.histories.contains(&history.id)
                && self.histories.len() < HISTORIES_MAX
            {
                self.histories.push(history.id.clone());
            }
            self.doubt = None;
            self.present = Some(same);
            return Verdict::Stays;
        }
        // The master is away, and nobody has gone on from it as far as can be seen.
        let all: Vec<&Claim> = said.claims.iter().collect();
        let Some(other) = strongest(&live, None).or_else(|| strongest(&all, None)).cloned() else {
            return Verdict::Stays;
        };
        if other.addr != present.addr
            && self.most_insist(2 * said.answered > said.asked, &other.addr.clone(), now)
        {
            return self.seat(other);
        }
        Verdict::Stays
    }

    /// Whether somebody has gone on from where this one is.
    fn is_past(&self, claim: &Claim) -> bool {
        claim.history().is_some_and(|history| {
            let is_past = |id: &String| self.past.contains(id);
            !self.histories.contains(&history.id)
                && (is_past(&history.id) || history.before.as_ref().is_some_and(is_past))
        })
    }

    fn seat(&mut self, claim: Claim) -> Verdict {
        self.past.extend(self.histories.drain(..));
        while self.past.len() > HISTORIES_MAX {
            self.past.pop_front();
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
            self.doubt = None;
            self.present = Some(claim.clone());
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

/// The claim with the highest rank; among equals the one that most make, and then the one for the present master.
fn newest(claims: &[Claim], present: Option<&Claim>) -> Option<Claim> {
    let votes = |addr: &Addr| claims.iter().filter(|other| other.addr == *addr).count();
    let newest = claims.iter().max_by_key(|claim| {
        (claim.rank(), votes(&claim.addr), present.is_some_and(|present| present.addr == claim.addr))
    });
    newest.cloned()
}

/// The master with the most replicas: one that was given up and came back has none. Among equals the present one, and then the one
/// that is named first.
fn strongest<'a>(claims: &[&'a Claim], present: Option<&Addr>) -> Option<&'a Claim> {
    let key = |at: usize, claim: &Claim| match claim.right {
        Right::Own { replicas, .. } => (replicas, present == Some(&claim.addr), usize::MAX - at),
        _ => (0, false, 0),
    };
    claims.iter().enumerate().max_by_key(|(at, claim)| key(*at, claim)).map(|(_, claim)| *claim)
}

#[cfg(test)]
mod tests;
