//! Walks along the intervals of one name, which come in the order of their beginnings.

use super::Interval;
use crate::record::Mode;

fn excludes(one: &Interval, other: &Interval) -> bool {
    let pair = (one.mode, other.mode);
    matches!(pair, (Mode::Exclusive, Mode::Exclusive | Mode::Shared) | (Mode::Shared, Mode::Exclusive))
        && one.owner != other.owner
}

/// Tells each pair that shuts each other out and overlaps.
pub(super) fn overlaps<'a>(intervals: &[&'a Interval], mut found: impl FnMut(&'a Interval, &'a Interval)) {
    let mut open: Vec<&Interval> = Vec::new();
    for next in intervals {
        open.retain(|earlier| earlier.end_ns > next.start_ns);
        for earlier in &open {
            if excludes(earlier, next) {
                found(earlier, next);
            }
        }
        open.push(next);
    }
}

/// Tells each hold with which there are more permits in valid hands than there are permits.
pub(super) fn permits<'a>(
    intervals: &[&'a Interval],
    capacity: u32,
    mut found: impl FnMut(u32, &'a Interval),
) {
    let mut open: Vec<&Interval> = Vec::new();
    for next in intervals.iter().filter(|interval| interval.mode == Mode::Permits) {
        open.retain(|earlier| earlier.end_ns > next.start_ns);
        open.push(next);
        let taken = open.iter().map(|interval| interval.weight).sum();
        if taken > capacity {
            found(taken, next);
        }
    }
}

/// Tells each hold whose token is not higher than that of another owner's hold that had ended before.
pub(super) fn tokens<'a>(intervals: &[&'a Interval], mut found: impl FnMut(&'a Interval, &'a Interval)) {
    let mut ended: Vec<&Interval> = intervals.iter().copied().filter(|one| one.token.is_some()).collect();
    ended.sort_by_key(|interval| interval.end_ns);
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<&Interval> = None;
    for next in intervals.iter().filter(|interval| interval.token.is_some()) {
        while let Some(earlier) = ended.next_if(|earlier| earlier.end_ns <= next.start_ns) {
            if !std::ptr::eq(earlier, *next) && highest.is_none_or(|highest| highest.token < earlier.token) {
                highest = Some(earlier);
            }
        }
        if let Some(earlier) = highest
            && (next.token < earlier.token || (next.token == earlier.token && next.owner != earlier.owner))
        {
            found(earlier, next);
        }
    }
}
