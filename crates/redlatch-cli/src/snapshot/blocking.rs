//! Waits as trees: at the root a name whose holder waits for nothing, below it those who wait for it and what they hold up in turn.

use std::collections::{HashMap, HashSet};

use redlatch::{BlockedName, LockName, WaitCycle, Why};

use super::lock_row;
use crate::{durations::human, escape, who};

/// How many waiters of one name are shown.
const WAITERS_MAX: usize = 20;
/// How deep a tree is shown.
const DEPTH_MAX: usize = 50;

/// One line of the trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// How far it is below its root.
    pub(crate) depth: usize,
    /// What it says. Safe to print.
    pub(crate) text: String,
    /// It is about a circle of waits.
    pub(crate) is_cycle: bool,
    /// The name that it is about; `None` for a waiter.
    pub(crate) name: Option<LockName>,
}

/// `deadlock: "a" waits for "b" waits for "a"`. Safe to print.
pub(crate) fn cycle(cycle: &WaitCycle) -> String {
    escape::text(&cycle_raw(cycle)).to_string()
}

/// The same, not escaped.
pub(super) fn cycle_raw(cycle: &WaitCycle) -> String {
    let quoted = |name: &LockName| format!("\"{}\"", lock_row::text_and_hex(name).0);
    let mut names: Vec<String> = cycle.names.iter().map(quoted).collect();
    names.extend(names.first().cloned());
    let certain = if cycle.is_certain { "deadlock" } else { "perhaps a deadlock" };
    format!("{certain}: {}", names.join(" waits for "))
}

/// All trees, circles first, then by the number of waiters below the root.
pub(crate) fn lines(why: &Why) -> Vec<Line> {
    let mut forest = Forest::of(why);
    for found in &why.cycles {
        forest.lines.push(Line { depth: 0, text: cycle(found), is_cycle: true, name: None });
        let first = found.names.first().and_then(|name| forest.numbers.get(name)).copied();
        if let Some(first) = first {
            forest.tree(first, 1);
        }
    }
    let mut roots: Vec<usize> = (0..why.names.len()).filter(|number| forest.is_root(*number)).collect();
    roots.sort_by_key(|number| std::cmp::Reverse(why.names[*number].waiting.len()));
    for root in roots {
        forest.tree(root, 0);
    }
    forest.lines
}

struct Forest<'a> {
    why: &'a Why,
    numbers: HashMap<&'a LockName, usize>,
    /// The names whose holders wait for each name.
    held_up: Vec<Vec<usize>>,
    shown: HashSet<usize>,
    lines: Vec<Line>,
}

impl<'a> Forest<'a> {
    fn of(why: &'a Why) -> Self {
        let numbers: HashMap<&LockName, usize> =
            why.names.iter().enumerate().map(|(number, blocked)| (&blocked.state.name, number)).collect();
        let mut held_up = vec![Vec::new(); why.names.len()];
        for (number, blocked) in why.names.iter().enumerate() {
            let all = blocked.blockers.iter().flat_map(|blocker| &blocker.waits_for);
            for awaited in all.filter_map(|waits_for| numbers.get(&waits_for.name)) {
                if !held_up[*awaited].contains(&number) {
                    held_up[*awaited].push(number);
                }
            }
        }
        Forest { why, numbers, held_up, shown: HashSet::new(), lines: Vec::new() }
    }

    /// Tasks wait for it, and its holders for nothing that was looked at.
    fn is_root(&self, number: usize) -> bool {
        let blocked = &self.why.names[number];
        let waits = |name| self.numbers.contains_key(name);
        let mut waits_for = blocked.blockers.iter().flat_map(|blocker| &blocker.waits_for);
        count(blocked) > 0 && !waits_for.any(|waits_for| waits(&waits_for.name))
    }

    fn tree(&mut self, number: usize, depth: usize) {
        let blocked = &self.why.names[number];
        let (name, quoted) = (blocked.state.name.clone(), escape::quoted(&blocked.state.name));
        if !self.shown.insert(number) || depth > DEPTH_MAX {
            let text = format!("{quoted}, as above");
            return self.lines.push(Line { depth, text, is_cycle: false, name: Some(name) });
        }
        self.lines.push(Line {
            depth,
            text: format!("{quoted} {}", held(blocked)),
            is_cycle: false,
            name: Some(name),
        });
        let mut below = self.held_up[number].clone();
        for waiter in blocked.waiting.iter().take(WAITERS_MAX) {
            let text = format!("{} waits since {}", who::named(&waiter.client), human(waiter.told.lasts));
            self.lines.push(Line { depth: depth + 1, text, is_cycle: false, name: None });
            let (its, others): (Vec<usize>, Vec<usize>) = below
                .into_iter()
                .partition(|held_up| is_held_by(&self.why.names[*held_up], &waiter.client.id));
            its.into_iter().for_each(|held_up| self.tree(held_up, depth + 2));
            below = others;
        }
        // Held by clients that are not shown, or by a process that has started the one that waits.
        below.into_iter().for_each(|held_up| self.tree(held_up, depth + 1));
        let more = count(blocked).saturating_sub(blocked.waiting.len().min(WAITERS_MAX) as u64);
        if more > 0 {
            let text = format!("{more} more");
            self.lines.push(Line { depth: depth + 1, text, is_cycle: false, name: None });
        }
    }
}

fn is_held_by(blocked: &BlockedName, id: &str) -> bool {
    let mut clients = blocked.blockers.iter().filter_map(|blocker| blocker.client.as_ref());
    clients.any(|client| client.id == id)
}

/// How many wait: those that tell, or those that the server counts.
fn count(blocked: &BlockedName) -> u64 {
    let state = &blocked.state;
    let counted = if state.waiting > 0 { state.waiting } else { state.listening.unwrap_or(0) };
    counted.max(blocked.waiting.len() as u64)
}

/// `held for 41s by billing@web-7:812 (deploy), because nightly import`.
fn held(blocked: &BlockedName) -> String {
    let Some(first) = blocked.blockers.first() else {
        return match blocked.state.permits_in_use {
            0 => "is held by nobody".into(),
            permits => format!("has {permits} permits in use"),
        };
    };
    let lasts = first.lasts.map(|lasts| format!(" for {}", human(lasts))).unwrap_or_default();
    let client =
        first.client.as_ref().map_or_else(|| escape::text(&first.owner).to_string(), who::with_reason);
    let more = match blocked.blockers.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("is held{lasts} by {client}{more}")
}
