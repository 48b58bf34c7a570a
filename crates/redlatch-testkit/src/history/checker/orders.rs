//! Checks of order: tokens, the log of the resource, the queue, and what became of unknown ends.

use std::collections::{HashMap, HashSet};

use super::super::event::{Event, Kind, Mode, Outcome};
use super::holds::Holds;
use super::{CheckId, Context, Op, Verdict, is_grant, op};

fn by_lock<'a>(events: impl Iterator<Item = &'a Event>) -> HashMap<&'a str, Vec<&'a Event>> {
    let mut locks: HashMap<&str, Vec<&Event>> = HashMap::new();
    for event in events {
        locks.entry(&event.lock).or_default().push(event);
    }
    locks
}

/// C3: tokens are unique, and grow from each grant to all that were asked for behind it.
pub(super) fn tokens(holds: &Holds<'_>, verdict: &mut Verdict) {
    for (lock, grants) in by_lock(holds.first_grants.iter().copied().filter(|e| e.token.is_some())) {
        let mut by_token = grants.clone();
        by_token.sort_by_key(|e| e.token);
        for pair in by_token.windows(2).filter(|pair| pair[0].token == pair[1].token) {
            let (a, b) = (&pair[0].owner, &pair[1].owner);
            verdict.add(CheckId::C3, lock, format!("token {:?} given to {a} and {b}", pair[0].token));
        }
        let mut asked = grants.clone();
        asked.sort_by_key(|e| e.t_call_ns);
        let mut given = grants;
        given.sort_by_key(|e| e.t_ret_ns);
        let mut given = given.into_iter().peekable();
        let mut highest: Option<&Event> = None;
        for event in asked {
            while let Some(before) = given.next_if(|before| before.t_ret_ns < event.t_call_ns) {
                if highest.is_none_or(|highest| before.token > highest.token) {
                    highest = Some(before);
                }
            }
            if let Some(before) = highest.filter(|before| before.token > event.token) {
                let (old, new) = (before.token, event.token);
                let message =
                    format!("{} got token {new:?} after {} had got {old:?}", event.owner, before.owner);
                verdict.add(CheckId::C3, lock, message);
            }
        }
    }
}

/// C4: what the resource accepted.
pub(super) fn resource(context: &Context<'_>, verdict: &mut Verdict) {
    let accepted =
        |e: &&Event| e.kind == Kind::WriteSeen && e.outcome == Some(Outcome::Ok) && e.token.is_some();
    for (lock, mut writes) in by_lock(context.events.iter().filter(accepted)) {
        writes.sort_by_key(|e| e.t_ret_ns);
        let mut highest: Option<&Event> = None;
        for write in writes {
            if let Some(before) = highest {
                let (old, new) = (before.token, write.token);
                if new < old || (new == old && write.owner != before.owner) {
                    let message =
                        format!("accepted {new:?} of {} after {old:?} of {}", write.owner, before.owner);
                    verdict.add(CheckId::C4, lock, message);
                }
                if new <= old {
                    continue;
                }
            }
            highest = Some(write);
        }
    }
}

/// C8: A was queued before B asked, both were granted, and A gave its place up in no way: then A was first.
pub(super) fn queue(context: &Context<'_>, verdict: &mut Verdict) {
    let fair = || context.events.iter().filter(|e| e.mode == Mode::Fair);
    let mut queued: HashMap<Op, u64> = HashMap::new();
    let mut excused: HashSet<Op> = HashSet::new();
    for event in fair() {
        match event.kind {
            Kind::Queued => {
                queued.entry(op(event)).or_insert(event.t_ret_ns);
            }
            Kind::PlaceLost => {
                excused.insert(op(event));
            }
            _ => {}
        }
    }
    for (lock, mut asked) in by_lock(fair().filter(|e| is_grant(e))) {
        let waited = |event: &&&Event| {
            let id = op(event);
            let crashed = context.crashed.contains_key(&event.proc);
            queued.contains_key(&id) && !excused.contains(&id) && !context.cancelled.contains(&id) && !crashed
        };
        let mut waiters: Vec<(u64, &Event)> =
            asked.iter().filter(waited).map(|event| (queued[&op(event)], *event)).collect();
        waiters.sort_by_key(|(at, _)| *at);
        let mut waiters = waiters.into_iter().peekable();
        asked.sort_by_key(|e| e.t_call_ns);
        let mut last: Option<&Event> = None;
        for event in asked {
            while let Some((_, waiter)) = waiters.next_if(|(at, _)| *at < event.t_call_ns) {
                if last.is_none_or(|last| waiter.t_ret_ns > last.t_ret_ns) {
                    last = Some(waiter);
                }
            }
            if let Some(passed) = last.filter(|last| last.t_ret_ns > event.t_ret_ns) {
                let message =
                    format!("{} was granted before {}, which was queued first", event.owner, passed.owner);
                verdict.add(CheckId::C8, lock, message);
            }
        }
    }
}

/// C15: a release by the same owner, a grant to it that adopts the hold, a grant to another owner of an
/// exclusive lock, or an observer that found the lock free, each begun after the acquire was.
pub(super) fn unknown(context: &Context<'_>, verdict: &mut Verdict) {
    let unknown: Vec<&Event> = context.events.iter().filter(|e| context.is_unknown_acquire(e)).collect();
    if unknown.is_empty() {
        return;
    }
    // The last time of each kind of evidence, for an owner of a lock and for the lock as a whole. Of grants
    // to others, the last two of different owners.
    let mut by_owner: HashMap<(&str, &str), u64> = HashMap::new();
    let mut free: HashMap<&str, u64> = HashMap::new();
    let mut grants: HashMap<&str, [Option<(&str, u64)>; 2]> = HashMap::new();
    for event in context.events {
        let owned = is_grant(event)
            || (event.kind == Kind::ReleaseRet && event.outcome != Some(Outcome::Unknown))
            || (event.kind == Kind::SeenFree && !event.owner.is_empty());
        if owned {
            let last = by_owner.entry((&event.lock, &event.owner)).or_default();
            *last = (*last).max(event.t_ret_ns);
        }
        if event.kind == Kind::SeenFree && event.owner.is_empty() {
            let last = free.entry(&event.lock).or_default();
            *last = (*last).max(event.t_call_ns);
        }
        if is_grant(event) && !matches!(event.mode, Mode::Read | Mode::Permit) {
            let slots = grants.entry(&event.lock).or_default();
            let new = (event.owner.as_str(), event.t_ret_ns);
            match slots.iter_mut().flatten().find(|slot| slot.0 == new.0) {
                Some(slot) => slot.1 = slot.1.max(new.1),
                None => {
                    let [first, second] = *slots;
                    // Keeps the two latest.
                    let mut all: Vec<_> = [first, second, Some(new)].into_iter().flatten().collect();
                    all.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
                    *slots = [all.first().copied(), all.get(1).copied()];
                }
            }
        }
    }
    for event in unknown {
        let lock = event.lock.as_str();
        let end = event.t_ret_ns.max(event.t_call_ns);
        let resolved = by_owner.get(&(lock, &event.owner)).is_some_and(|at| *at > end)
            || free.get(lock).is_some_and(|at| *at > end)
            || grants.get(lock).is_some_and(|slots| {
                slots.iter().flatten().any(|(owner, at)| *owner != event.owner && *at > end)
            });
        if !resolved {
            let message = format!(
                "nothing tells what became of the acquire of {} sent at {}",
                event.owner, event.t_call_ns
            );
            verdict.add(CheckId::C15, lock, message);
        }
    }
}
