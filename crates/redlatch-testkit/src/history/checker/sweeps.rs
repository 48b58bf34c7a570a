//! Sweeps along the time axis: exclusion and permits.

use std::collections::HashMap;

use super::super::event::{Event, Kind, Mode, Outcome};
use super::holds::{Hold, Holds};
use super::{CheckId, Context, Verdict, is_grant};

/// The two spans that reach furthest, of different owners: a new span overlaps an earlier one of another
/// owner exactly if it overlaps one of these.
#[derive(Default)]
struct Furthest<'s, 'a>([Option<&'s Hold<'a>>; 2]);

impl<'s, 'a> Furthest<'s, 'a> {
    fn of_another(&self, owner: &str) -> Option<&'s Hold<'a>> {
        self.0.iter().flatten().find(|hold| hold.owner != owner).copied()
    }

    fn add(&mut self, hold: &'s Hold<'a>) {
        let [first, second] = self.0;
        let same = |other: Option<&Hold<'_>>| other.is_some_and(|other| other.owner == hold.owner);
        let further = |other: Option<&Hold<'_>>| other.is_none_or(|other| hold.end > other.end);
        if same(first) {
            if further(first) {
                self.0[0] = Some(hold);
            }
        } else if further(first) {
            self.0 = [Some(hold), first];
        } else if further(second) {
            self.0[1] = Some(hold);
        }
    }
}

/// C1 and C5, and how many grants had to wait.
pub(super) fn exclusion(holds: &Holds<'_>, verdict: &mut Verdict) {
    let mut spans: Vec<&Hold<'_>> = holds.spans.iter().collect();
    spans.sort_by(|a, b| (a.lock, a.start).cmp(&(b.lock, b.start)));
    for lock in spans.chunk_by(|a, b| a.lock == b.lock) {
        let mut all = Furthest::default();
        let mut writes = Furthest::default();
        for hold in lock {
            let rivals = if hold.mode == Mode::Read { &writes } else { &all };
            if let Some(other) = rivals.of_another(hold.owner) {
                verdict.stats.contended += u64::from(hold.asked < other.end);
                if hold.start < other.end {
                    let reads = matches!(hold.mode, Mode::Read | Mode::Write);
                    let id = if reads { CheckId::C5 } else { CheckId::C1 };
                    let message = format!(
                        "{} ({:?}) held {}..{} while {} ({:?}) held {}..{}",
                        hold.owner,
                        hold.mode,
                        hold.start,
                        hold.end,
                        other.owner,
                        other.mode,
                        other.start,
                        other.end
                    );
                    verdict.add(id, hold.lock, message);
                }
            }
            all.add(hold);
            if hold.mode != Mode::Read {
                writes.add(hold);
            }
        }
    }
}

/// C6: sums the permits that are held for certain, against the capacity of the time.
pub(super) fn permits(context: &Context<'_>, verdict: &mut Verdict) {
    let mut locks: HashMap<&str, Vec<&Event>> = HashMap::new();
    for event in context.events {
        if event.mode == Mode::Permit || event.kind == Kind::Capacity {
            locks.entry(&event.lock).or_default().push(event);
        }
    }
    for (lock, events) in locks {
        permits_of(context, lock, &events, verdict);
    }
}

/// A change at a time; at equal times, what gives room comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Room(u64),
    Less(i64),
    More(i64),
}

fn permits_of(context: &Context<'_>, lock: &str, events: &[&Event], verdict: &mut Verdict) {
    let mut changes: Vec<(u64, Change)> = Vec::new();
    let mut capacities: Vec<&&Event> = events.iter().filter(|e| e.kind == Kind::Capacity).collect();
    capacities.sort_by_key(|e| e.t_call_ns);
    let mut room = 0;
    for event in capacities {
        let next = u64::from(event.permits.unwrap_or(1));
        // While it changes, the larger of the two may be in force.
        changes.push((event.t_call_ns, Change::Room(next.max(room))));
        changes.push((event.t_ret_ns, Change::Room(next)));
        room = next;
    }
    if changes.is_empty() {
        return;
    }
    let mut owners: HashMap<&str, Vec<&Event>> = HashMap::new();
    for event in events {
        owners.entry(&event.owner).or_default().push(event);
    }
    for events in owners.values_mut() {
        let time = |e: &Event| if is_grant(e) { e.t_ret_ns } else { e.t_call_ns };
        events.sort_by_key(|e| time(e));
        // Grants not given back yet, the oldest first: start, deadline, permits.
        let mut open: std::collections::VecDeque<(u64, u64, u64)> = Default::default();
        let mut hold = |start: u64, end: u64, count: u64| {
            if start < end {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                changes.push((start, Change::More(count)));
                changes.push((end, Change::Less(-count)));
            }
        };
        for event in events.iter() {
            let count = u64::from(event.permits.unwrap_or(1));
            let ends = match event.kind {
                _ if is_grant(event) => {
                    open.push_back((event.t_ret_ns, event.valid_until_ns.unwrap_or(u64::MAX), count));
                    continue;
                }
                Kind::RenewRet if event.outcome == Some(Outcome::Ok) => {
                    for grant in &mut open {
                        grant.1 = event.valid_until_ns.unwrap_or(grant.1);
                    }
                    continue;
                }
                Kind::LostNotice => open.iter().map(|grant| grant.2).sum(),
                Kind::ReleaseRet if event.outcome != Some(Outcome::No) => count,
                Kind::ReleaseCall if context.is_open_call(event, Kind::ReleaseCall) => count,
                _ => continue,
            };
            let mut left: u64 = ends;
            while left > 0 {
                let Some((start, deadline, held)) = open.pop_front() else { break };
                let now = held.min(left);
                hold(start, deadline.min(event.t_call_ns), now);
                left -= now;
                if held > now {
                    open.push_front((start, deadline, held - now));
                }
            }
        }
        for (start, deadline, held) in open {
            hold(start, deadline, held);
        }
    }
    changes.sort_unstable();
    let (mut held, mut room) = (0_i64, None);
    for (time, change) in changes {
        match change {
            Change::Room(capacity) => room = Some(capacity),
            Change::Less(by) | Change::More(by) => held = held.saturating_add(by),
        }
        let over = room.filter(|room| u64::try_from(held).unwrap_or(0) > *room);
        if let (Some(room), Change::More(_)) = (over, change) {
            verdict.add(CheckId::C6, lock, format!("{held} permits held of {room} at {time}"));
        }
    }
}
