//! A violation as a short story.

use std::fmt::Write as _;

use super::{Interval, Logs};
use crate::clock::seconds;

/// How many deeds of each task are told, before and behind.
const DEEDS_BEFORE: usize = 12;
const DEEDS_BEHIND: usize = 6;
/// How long before a violation a deed with the same name is told, in ns.
const OTHERS_NS: u64 = 30_000_000;
const OTHERS_MAX: usize = 24;
/// How long before a violation faults are told, in ns.
const FAULTS_NS: u64 = 3_000_000_000;
const FAULTS_MAX: usize = 12;

pub(super) fn tell(logs: &Logs, ns: u64, intervals: &[&Interval], text: &str) -> String {
    let at = |ns: u64| seconds(ns, logs.begin_ns);
    let mut story = format!("{text} (at {} s)", at(ns));
    for one in intervals {
        let token = one.token.map_or(String::new(), |token| format!(", token {token}"));
        let _ = write!(
            story,
            "\n  {} {} held {} ({:?}, {}) as {}{token}: certainly valid from {} to {} s, then {}",
            one.process,
            one.task,
            one.name,
            one.mode,
            one.term,
            one.owner,
            at(one.start_ns),
            at(one.end_ns),
            one.how
        );
    }
    for one in intervals {
        let _ = write!(story, "\n  what {} {} did:", one.process, one.task);
        let own: Vec<_> =
            logs.deeds.iter().filter(|deed| deed.process == one.process && deed.task == one.task).collect();
        let here = own.partition_point(|deed| deed.ns <= ns);
        let from = here.saturating_sub(DEEDS_BEFORE);
        for deed in &own[from..(here + DEEDS_BEHIND).min(own.len())] {
            let _ = write!(story, "\n    {} {}", at(deed.ns), deed.text);
        }
    }
    if let Some(name) = intervals.first().map(|one| &one.name) {
        let same = |text: &str| text.split(' ').any(|word| word == name);
        let others: Vec<_> = logs
            .deeds
            .iter()
            .filter(|deed| deed.ns + OTHERS_NS >= ns && deed.ns <= ns && same(&deed.text))
            .filter(|deed| !intervals.iter().any(|one| one.process == deed.process && one.task == deed.task))
            .collect();
        let _ = write!(story, "\n  what others did with {name}:");
        for deed in &others[others.len().saturating_sub(OTHERS_MAX)..] {
            let _ = write!(story, "\n    {} {} {} {}", at(deed.ns), deed.process, deed.task, deed.text);
        }
    }
    let faults: Vec<_> =
        logs.faults.iter().filter(|(at, _)| *at + FAULTS_NS >= ns && *at <= ns + OTHERS_NS).collect();
    let _ = write!(story, "\n  what was done to them:");
    for (ns, text) in &faults[faults.len().saturating_sub(FAULTS_MAX)..] {
        let _ = write!(story, "\n    {} {text}", at(*ns));
    }
    story
}
