//! From events to definite holds, one owner of one lock at a time.

use std::collections::HashMap;

use super::super::event::{Event, Kind, Mode, Outcome};
use super::{CheckId, Context, Verdict, is_grant};

/// A span in which an owner may rely on its hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold<'a> {
    pub(super) lock: &'a str,
    pub(super) owner: &'a str,
    pub(super) mode: Mode,
    pub(super) start: u64,
    pub(super) end: u64,
    /// When the acquire was sent, for telling whether it waited.
    pub(super) asked: u64,
}

/// What the checks of spans and tokens work on.
#[derive(Debug, Default)]
pub(super) struct Holds<'a> {
    pub(super) spans: Vec<Hold<'a>>,
    /// Acquires that began a hold, as opposed to re-entries.
    pub(super) first_grants: Vec<&'a Event>,
}

/// The group: lock, owner, and the side of a read-write lock.
type Group<'a> = (&'a str, &'a str, Mode);

pub(super) fn build<'a>(context: &Context<'a>, verdict: &mut Verdict) -> Holds<'a> {
    let mut numbers: HashMap<Group<'a>, u32> = HashMap::new();
    let mut points: Vec<(u32, u64, &'a Event)> = Vec::new();
    for event in context.events {
        let time = match event.kind {
            _ if event.mode == Mode::Permit => continue,
            // An acquire holds for certain from its answer on, a release ends that when it is sent.
            Kind::AcquireRet if event.outcome != Some(Outcome::No) => event.t_ret_ns,
            Kind::AcquireCall if context.is_open_call(event, Kind::AcquireCall) => event.t_ret_ns,
            Kind::RenewRet if event.outcome == Some(Outcome::Ok) => event.t_ret_ns,
            Kind::ReleaseRet | Kind::LostNotice => event.t_call_ns,
            Kind::ReleaseCall if context.is_open_call(event, Kind::ReleaseCall) => event.t_call_ns,
            _ => continue,
        };
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let group = *numbers.entry((&event.lock, &event.owner, event.mode)).or_insert(next);
        points.push((group, time, event));
    }
    points.sort_by_key(|(group, time, _)| (*group, *time));
    let mut holds = Holds::default();
    for group in points.chunk_by(|a, b| a.0 == b.0) {
        Owner { context, verdict, holds: &mut holds, now: None, depth: 0, doubt: false, busy_until: 0 }
            .run(group);
    }
    holds
}

/// The hold that is going on.
#[derive(Debug, Clone, Copy)]
struct Current<'a> {
    grant: &'a Event,
    /// `None` while it is interrupted: the deadline has passed or the loss was announced.
    start: Option<u64>,
    valid_until: Option<u64>,
    lost: bool,
}

struct Owner<'c, 'a> {
    context: &'c Context<'a>,
    verdict: &'c mut Verdict,
    holds: &'c mut Holds<'a>,
    now: Option<Current<'a>>,
    depth: u32,
    /// An end is unknown, so that depths are not compared any more until all is released.
    doubt: bool,
    busy_until: u64,
}

impl<'a> Owner<'_, 'a> {
    fn run(mut self, points: &[(u32, u64, &'a Event)]) {
        for (at, (_, time, event)) in points.iter().enumerate() {
            self.pass_deadline(*time, event);
            // Operations of one owner at the same time may take effect in either order.
            let overlaps = event.t_call_ns < self.busy_until;
            match event.kind {
                Kind::AcquireRet if is_grant(event) => self.acquired(event, overlaps),
                Kind::AcquireRet | Kind::AcquireCall => self.doubt = true,
                Kind::RenewRet => self.renewed(event),
                Kind::LostNotice => self.lost(event),
                _ => self.released(event, overlaps, &points[at + 1..]),
            }
            if event.kind != Kind::RenewRet {
                self.busy_until = self.busy_until.max(event.t_ret_ns);
            }
        }
        if let Some((_, _, last)) = points.last() {
            self.pass_deadline(self.context.end_ns.saturating_add(1), last);
            self.close(u64::MAX);
        }
    }

    /// Ends the span at its deadline, if that lies before `time`, and asks for a notice.
    fn pass_deadline(&mut self, time: u64, next: &Event) {
        let Some(Current { grant, start: Some(_), valid_until: Some(deadline), .. }) = self.now else {
            return;
        };
        if time <= deadline {
            return;
        }
        self.close(deadline);
        let late = next.t_call_ns.saturating_sub(deadline);
        let by = self.notice_due(grant.proc, deadline);
        if next.kind == Kind::LostNotice && next.t_call_ns > deadline && next.t_call_ns <= by {
            let stats = &mut self.verdict.stats;
            stats.notices_late += 1;
            stats.notice_late_ns = stats.notice_late_ns.max(late);
            return;
        }
        let crashed = self.context.crashed.get(&grant.proc).is_some_and(|at| *at <= by);
        if !crashed && self.context.end_ns > by {
            let message =
                format!("the hold of {} ran out at {deadline} without a notice by {by}", grant.owner);
            self.verdict.add(CheckId::C11, &grant.lock, message);
        }
    }

    /// Until when a notice about a deadline may come: later for a process that was stopped over it.
    fn notice_due(&self, proc: u32, deadline: u64) -> u64 {
        let late_max = self.context.options.notice_late_max_ns;
        let mut due = deadline.saturating_add(late_max);
        for (from, to) in self.context.paused.get(&proc).into_iter().flatten() {
            if *from <= due && *to > deadline {
                due = due.max(to.saturating_add(late_max));
            }
        }
        due
    }

    fn close(&mut self, end: u64) {
        let Some(current) = &mut self.now else { return };
        let Some(start) = current.start.take() else { return };
        let end = current.valid_until.map_or(end, |deadline| end.min(deadline));
        if start < end {
            let grant = current.grant;
            self.holds.spans.push(Hold {
                lock: &grant.lock,
                owner: &grant.owner,
                mode: grant.mode,
                start,
                end,
                asked: grant.t_call_ns,
            });
        }
    }

    fn acquired(&mut self, event: &'a Event, overlaps: bool) {
        let reentry = self.now.filter(|current| self.depth > 0 && current.start.is_some());
        match reentry {
            Some(current) => {
                self.depth += 1;
                let kept = event.token.is_none() || event.token == current.grant.token;
                if !kept && !self.context.options.reentry_draws_token {
                    let (old, new) = (current.grant.token, event.token);
                    let message = format!("re-entry of {} changed the token {old:?} to {new:?}", event.owner);
                    self.verdict.add(CheckId::C3, &event.lock, message);
                }
                let valid_until = current.valid_until.zip(event.valid_until_ns).map(|(a, b)| a.max(b));
                self.now = Some(Current { valid_until, ..current });
            }
            None => {
                // Behind a loss the count on the server is not known from here.
                self.doubt |= self.depth > 0;
                self.depth = 1;
                let start = Some(event.t_ret_ns);
                self.now =
                    Some(Current { grant: event, start, valid_until: event.valid_until_ns, lost: false });
                self.holds.first_grants.push(event);
            }
        }
        self.compare_depth(event, overlaps);
    }

    fn compare_depth(&mut self, event: &Event, overlaps: bool) {
        self.doubt |= overlaps && self.depth > 0;
        if let Some(reported) = event.depth.filter(|reported| *reported != self.depth && !self.doubt) {
            let message = format!("{} has depth {}, but was told {reported}", event.owner, self.depth);
            self.verdict.add(CheckId::C7, &event.lock, message);
        }
    }

    fn renewed(&mut self, event: &Event) {
        let Some(current) = &mut self.now else { return };
        if current.lost {
            let message = format!("the hold of {} came back after its notice of loss", event.owner);
            self.verdict.add(CheckId::C11, &event.lock, message);
            return;
        }
        if current.start.is_none() && self.depth > 0 {
            current.start = Some(event.t_ret_ns);
        }
        current.valid_until = event.valid_until_ns.or(current.valid_until);
    }

    fn lost(&mut self, event: &Event) {
        self.close(event.t_call_ns);
        if let Some(current) = &mut self.now {
            current.lost = true;
        }
    }

    fn released(&mut self, event: &'a Event, overlaps: bool, later: &[(u32, u64, &'a Event)]) {
        match event.outcome {
            Some(Outcome::No) => {
                self.close(event.t_call_ns);
                self.depth = 0;
                self.doubt = false;
            }
            Some(Outcome::Ok) if self.depth == 0 => {
                // An acquire that was under way may have come first. More than a few at the same time by
                // one owner do not occur.
                let under_way = later.iter().take(64).any(|(_, _, other)| {
                    matches!(other.kind, Kind::AcquireRet | Kind::AcquireCall)
                        && other.t_call_ns < event.t_ret_ns
                });
                if !under_way && !self.doubt && !overlaps {
                    let message = format!("{} released at depth 0 and was told ok", event.owner);
                    self.verdict.add(CheckId::C7, &event.lock, message);
                }
            }
            outcome => {
                if self.depth <= 1 {
                    self.close(event.t_call_ns);
                }
                self.depth = self.depth.saturating_sub(1);
                self.doubt |= outcome != Some(Outcome::Ok);
                if outcome == Some(Outcome::Ok) {
                    self.compare_depth(event, overlaps);
                }
            }
        }
        if self.depth == 0 {
            self.now = None;
        }
    }
}
