//! What happens is a list of choices. Runs are repeated from the beginning with other lists until each list has had its turn, those
//! with few choices off the usual way first.

use std::collections::VecDeque;

use crate::rng::Rng;

/// The choices of one run: those that were given, and then the usual way.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    given: Vec<u8>,
    taken: Vec<(u8, u8)>,
    /// A given choice was not there: the run did not repeat what another one did.
    pub(super) differs: bool,
}

impl Chooser {
    pub(super) fn new(given: Vec<u8>) -> Self {
        Chooser { given, ..Chooser::default() }
    }

    /// One of so many; the first is the usual way.
    pub(super) fn pick(&mut self, of: usize) -> usize {
        let of = of.min(usize::from(u8::MAX)) as u8;
        if of < 2 {
            return 0;
        }
        let mut choice = self.given.get(self.taken.len()).copied().unwrap_or(0);
        if choice >= of {
            self.differs = true;
            choice = 0;
        }
        self.taken.push((choice, of));
        usize::from(choice)
    }

    /// The list of this run, without the usual way at its end.
    pub(super) fn list(&self) -> Vec<u8> {
        let mut list: Vec<u8> = self.taken.iter().map(|(choice, _)| *choice).collect();
        while list.last() == Some(&0) {
            list.pop();
        }
        list
    }
}

/// The lists that are still to be run. A list leaves the usual way so often; those that do so less often come first.
pub(super) struct Frontier {
    now: VecDeque<Vec<u8>>,
    next: Vec<Vec<u8>>,
    /// How many lists belong to the next level, of which `next` has a fair sample.
    next_seen: u64,
    /// Lists of this level that are left out.
    left_out: u64,
    level: usize,
    level_max: usize,
    /// How many runs there may be still.
    left: usize,
    rng: Rng,
}

impl Frontier {
    pub(super) fn new(executions_max: usize, level_max: usize) -> Self {
        Frontier {
            now: VecDeque::from([Vec::new()]),
            next: Vec::new(),
            next_seen: 0,
            left_out: 0,
            level: 0,
            level_max,
            left: executions_max,
            rng: Rng::new(1),
        }
    }

    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(1)?;
        if self.now.is_empty() && self.left_out == 0 && !self.next.is_empty() {
            self.left_out = self.next_seen - self.next.len() as u64;
            self.now = std::mem::take(&mut self.next).into();
            self.next_seen = 0;
            self.level += 1;
        }
        self.now.pop_front()
    }

    /// How often every list has left the usual way that was run: all lists up to this level had their turn.
    pub(super) fn whole_levels(&self) -> usize {
        if self.now.is_empty() && self.left_out == 0 { self.level + 1 } else { self.level }
    }

    /// Nothing is left.
    pub(super) fn is_exhausted(&self) -> bool {
        self.now.is_empty() && self.next_seen == 0 && self.left_out == 0
    }

    /// What can follow from a run that has been done: each way to leave its usual way once more.
    pub(super) fn extend(&mut self, run: &Chooser) {
        if self.level >= self.level_max || self.left_out > 0 {
            return;
        }
        for at in run.given.len()..run.taken.len() {
            for choice in 1..run.taken[at].1 {
                self.next_seen += 1;
                let make = || {
                    let mut list: Vec<u8> = run.taken[..at].iter().map(|(choice, _)| *choice).collect();
                    list.push(choice);
                    list
                };
                // Those of this level come first, so more than this are never run.
                let room = self.left.saturating_sub(self.now.len()).max(1);
                if self.next.len() < room {
                    self.next.push(make());
                } else {
                    let at = self.rng.below(self.next_seen) as usize;
                    if at < self.next.len() {
                        self.next[at] = make();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a tree in which each of `depth` steps has `of` choices.
    fn lists(depth: usize, of: usize, executions_max: usize, level_max: usize) -> (Vec<Vec<usize>>, bool) {
        let mut frontier = Frontier::new(executions_max, level_max);
        let mut seen = Vec::new();
        while let Some(list) = frontier.next() {
            let mut chooser = Chooser::new(list);
            seen.push((0..depth).map(|_| chooser.pick(of)).collect());
            frontier.extend(&chooser);
        }
        (seen, frontier.is_exhausted())
    }

    #[test]
    fn every_list_has_one_turn_and_those_near_the_usual_way_come_first() {
        let (seen, exhausted) = lists(4, 3, 1_000, 9);
        assert!(exhausted);
        assert_eq!(seen.len(), 81);
        let off = |list: &Vec<usize>| list.iter().filter(|choice| **choice > 0).count();
        assert!(seen.is_sorted_by_key(off));
        let mut different = seen.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 81);
    }

    #[test]
    fn what_is_cut_short_is_not_exhausted() {
        assert!(!lists(4, 3, 80, 9).1);
        let (seen, exhausted) = lists(4, 3, 1_000, 1);
        assert_eq!(seen.len(), 9);
        assert!(exhausted, "as far as was asked for");
    }
}
