//! Who is the master, and by what right: the memory behind a master that may move.
//!
//! Those who know of masters ([`Finder`](super::finder::Finder)) only say what they have heard. What comes of it is decided here,
//! with all that was said before in mind, and nowhere else does a store get another master. So nobody who is behind the times leads
//! it back, however quick the answer.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use self::lineage::Lineage;
use crate::config::addr::Addr;

mod lineage;

/// For how long most of those who know must contradict what is remembered, with one voice, until they are believed. Nothing in
/// the normal course of things makes an epoch smaller: an operator has set them up anew.
const RESET_TIME: Duration = Duration::from_secs(10);
/// For how long they must contradict what only a sentinel has said that is not heard any more. One that has kept a promise tells the others at once, and
/// each two seconds.
const PROMISE_TIME: Duration = Duration::from_secs(4);
/// How many histories of the present master are remembered.
const HISTORIES_MAX: usize = 64;

/// By what right a server is called the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Right {
    /// The sentinels have made it the master in this epoch, which grows with each change; -1 where they may not be asked for it.
    Epoch(i64),
    /// The sentinel that leads a change, begun after this epoch, has chosen it, and may still give that up.
    Promise { after: i64 },
    /// It says so itself. `history`: what its data come from, where it may be asked for that.
    Own { history: Option<History> },
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
    pub(super) by: Voice,
    /// That sentinel leads a change just now.
    pub(super) amid: bool,
}

/// One that makes claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Voice {
    pub(super) addr: Addr,
    /// The id of a sentinel, as far as it may be asked. One address may lead to several, and one of them be heard at two.
    pub(super) id: Option<String>,
}

impl Voice {
    /// Of a server, which is known by its address alone.
    pub(super) fn at(addr: Addr) -> Voice {
        Voice { addr, id: None }
    }

    fn is(&self, other: &Voice) -> bool {
        match (&self.id, &other.id) {
            (Some(id), Some(other)) => id == other,
            _ => self.addr == other.addr,
        }
    }
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
}

/// What was said in one look.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    /// In the order in which those who claim are named.
    pub(super) claims: Vec<Claim>,
    pub(super) replicas: Vec<Replica>,
    /// Those whose machines refuse connections.
    pub(super) refused: Vec<Addr>,
    /// How many were asked, and how many have answered.
    pub(super) asked: usize,
    pub(super) answered: usize,
}

/// The word of a server that is a replica, as far as it may be asked: which history it copies, and which process it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) addr: Addr,
    pub(super) history: Option<String>,
    pub(super) run: Option<String>,
    /// It has the data of the master that it is to copy.
    pub(super) is_in_sync: bool,
}

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Stays,
    /// Several servers say that they are the master, and it cannot be told which one counts. None does until it can.
    Nobody,
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
    /// No server counts, because several claim. What is said next is compared with `present` all the same.
    is_vacant: bool,
    /// Another source has named the present master since, so that the word of the one that did first is not all there is.
    has_spread: bool,
    /// Since when a promised master has answered in no look.
    unanswered_since: Option<Instant>,
    /// The server that most of those who know call the master against what is remembered, and since when.
    doubt: Option<Doubt>,
    /// The histories that the present master has told.
    histories: VecDeque<String>,
    lineage: Lineage,
    /// The last word of each server that says that it is the master, and when it was heard.
    words: Vec<(Claim, Instant)>,
    /// When a look could not tell lately which one counts.
    contested_at: Option<Instant>,
}

impl Memory {
    pub(super) fn present(&self) -> Option<&Claim> {
        self.present.as_ref().filter(|_| !self.is_vacant)
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
            let verdict = self.judge_sentinels(said, doubt, now);
            self.has_spread |= self.present.as_ref().is_some_and(|present| {
                let names_it = |claim: &Claim| claim.addr == present.addr && claim.rank() >= present.rank();
                said.claims.iter().any(|claim| !claim.by.is(&present.by) && names_it(claim))
            });
            verdict
        }
    }

    /// Nobody who knows was heard in a look.
    pub(super) fn hear_nobody(&mut self) {
        self.doubt = None;
    }

    fn judge_sentinels(&mut self, said: &Said, doubt: Option<Doubt>, now: Instant) -> Verdict {
        if let Some(present) = &mut self.present
            && let Right::Promise { after } = present.right
            && said
                .claims
                .iter()
                .any(|claim| claim.by.is(&present.by) && !claim.amid && claim.rank() < (after, true))
        {
            // Who has promised it says something else now.
            present.right = Right::Epoch(after - 1);
        }
        let Some(best) = newest(&said.claims, self.present.as_ref()) else { return Verdict::Stays };
        // Who has just come, or has left a promise that was not kept, begins where the others are until one is kept.
        let settled: Vec<Claim> = said.claims.iter().filter(|claim| !claim.is_promise()).cloned().collect();
        let settled = newest(&settled, self.present.as_ref());
        let Some(present) = &self.present else { return self.take(settled.unwrap_or(best)) };
        if let Some(settled) = settled.filter(|settled| settled.rank() > present.rank()) {
            return self.take(settled);
        }
        if best.rank() > present.rank() {
            // Who is promised the place that it has in a later epoch has lost it since.
            if best.is_promise() && best.addr == present.addr && best.rank().0 == present.rank().0 {
                return Verdict::Stays;
            }
            return self.take(best);
        }
        // Sentinels that are told to fail over ask nobody for votes, so two may name different masters in one epoch. Each goes on with its own;
        // most of them decide here. So they do where they may not be asked for epochs.
        let votes = said.claims.iter().filter(|claim| claim.addr == best.addr && claim.rank() == best.rank());
        if best.rank() == present.rank() && best.addr != present.addr && 2 * votes.count() > said.asked {
            return self.take(best);
        }
        if said.claims.iter().any(|claim| claim.addr == present.addr && claim.rank() == present.rank()) {
            return Verdict::Stays;
        }
        let one_voice = said.claims.iter().all(|claim| claim.addr == best.addr && !claim.is_promise());
        let for_long = if self.is_abandoned(said) { PROMISE_TIME } else { RESET_TIME };
        // Of sentinels that tell no epochs those that are heard may be all that are left.
        let is_enough = 2 * said.claims.len() > said.asked || present.rank() == (-1, false);
        if one_voice && is_enough && self.insist(doubt, &best.addr, now) >= for_long {
            // Forgotten, so that the smaller epoch counts. The same server may have lost its place meanwhile.
            self.sits(&best);
            return Verdict::Is(best);
        }
        Verdict::Stays
    }

    /// Whether nobody that is heard has named the present master: the source that led the change may have ended before it told any other.
    pub(super) fn is_abandoned(&self, said: &Said) -> bool {
        self.present.as_ref().is_some_and(|present| {
            let is_alone = present.is_promise() || !self.has_spread;
            is_alone && !said.claims.is_empty() && !said.claims.iter().any(|claim| claim.by.is(&present.by))
        })
    }

    /// What comes before it is no reason to doubt any more, nor to tell whether its data have changed.
    fn sits(&mut self, claim: &Claim) {
        (self.doubt, self.has_spread, self.unanswered_since) = (None, false, None);
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
            (self.present, self.has_spread) = (Some(claim), false);
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

    /// Those who know insist on this server: for how long, by what was doubted before.
    fn insist(&mut self, doubt: Option<Doubt>, addr: &Addr, now: Instant) -> Duration {
        let same = doubt.filter(|(doubted, _)| doubted == addr);
        let (_, since) = self.doubt.insert(same.unwrap_or_else(|| (addr.clone(), now)));
        now.saturating_duration_since(*since)
    }

    /// One that was about to be the master says that it is. `false` if another has become it meanwhile.
    pub(super) fn admit(&mut self, claim: &Claim) -> bool {
        let newer = self.present.as_ref().is_none_or(|present| claim.rank() > present.rank());
        if newer {
            self.sits(claim);
        }
        newer
    }

    /// A promised master has answered, or not. One that does not for a while is given up for the server that most sentinels go on naming: the one that leads the change would
    /// name it, too, had it seen it as the master.
    pub(super) fn hear_promised(&mut self, answers: bool, said: &Said, now: Instant) -> Option<Claim> {
        if answers || !self.present.as_ref().is_some_and(Claim::is_promise) {
            self.unanswered_since = None;
            return None;
        }
        let since = *self.unanswered_since.get_or_insert(now);
        let settled: Vec<Claim> = said.claims.iter().filter(|claim| !claim.is_promise()).cloned().collect();
        let best = newest(&settled, None)?;
        let votes = settled.iter().filter(|claim| claim.addr == best.addr).count();
        if now.saturating_duration_since(since) < PROMISE_TIME || 2 * votes <= said.asked {
            return None;
        }
        self.sits(&best);
        Some(best)
    }

    /// Whether another server is called the master by the same right, so that only the two can tell which of them is.
    pub(super) fn has_rival(&self, said: &Said) -> bool {
        self.present.as_ref().is_some_and(|present| {
            let is_rival = |claim: &Claim| claim.rank() == present.rank() && claim.addr != present.addr;
            !present.is_promise() && said.claims.iter().any(is_rival)
        })
    }

    /// The present master says that it is a `replica` of `master`, which is followed if a source calls it the master, too.
    pub(super) fn follow(&mut self, replica: &Addr, master: &Addr, said: &Said) -> Option<Claim> {
        self.present.as_ref().filter(|present| present.addr == *replica)?;
        let mut settled = said.claims.iter().filter(|claim| !claim.is_promise());
        let claim = settled.find(|claim| claim.addr == *master)?;
        self.sits(claim);
        Some(claim.clone())
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
mod tests;
