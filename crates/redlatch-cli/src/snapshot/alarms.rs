//! What is wrong in a snapshot, who is responsible for it, and what helps.

use std::time::Duration;

use redlatch::{BlockedName, BlockedWaiter, ClientRecord, Finding, HoldMode, LockName, LostHold, Severity};

use super::{Snapshot, blocking, lock_row::text_and_hex};
use crate::{durations::human, escape, who};

/// A wait of so many leases is long.
const LONG_WAIT_LEASES: u32 = 10;
/// So many waiters of one name are a herd.
const HERD: u64 = 100;
/// A client that lives writes its record again after 25 s.
const SILENT: Duration = Duration::from_secs(35);
/// How many waiters are looked at for each name.
const WAITERS_MAX: usize = 1_000;

/// The remedy that shows more.
pub(crate) const ASK_WHY: &str = "`redlatch why NAME` shows what it hangs on";
/// The subject of a circle of waits.
pub(crate) const DEADLOCK: &str = "deadlock";

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alarm {
    /// How bad it is: a problem needs a person, a note may be as it is meant to be.
    pub(crate) severity: Severity,
    /// What it is about in a word or two, as the checks of `doctor`.
    pub(crate) subject: &'static str,
    /// The name that it is about.
    pub(crate) name: Option<LockName>,
    /// What is wrong and who is responsible, as it comes from the server: not escaped.
    pub(crate) text: String,
    /// What helps.
    pub(crate) remedy: Option<&'static str>,
}

/// All alarms, problems first. Locks of which nobody says otherwise have this lease.
pub(crate) fn alarms(snapshot: &Snapshot, lease: Duration) -> Vec<Alarm> {
    let long = lease.saturating_mul(LONG_WAIT_LEASES);
    let mut alarms: Vec<Alarm> = snapshot.why.cycles.iter().map(cycle).collect();
    alarms.extend(snapshot.server.iter().map(Alarm::from));
    for blocked in &snapshot.why.names {
        findings(blocked, &mut alarms);
        alarms.extend(dead_head(blocked));
        alarms.extend(silent(blocked));
        alarms.extend(long_wait(blocked, long));
        alarms.extend(entered_again(blocked, long));
        alarms.extend(herd(blocked));
    }
    alarms.extend(snapshot.losses().map(|(client, lost)| lost_hold(client, lost)));
    alarms.sort_by_key(|alarm| alarm.severity != Severity::Problem);
    alarms
}

impl Alarm {
    fn new(severity: Severity, subject: &'static str, blocked: &BlockedName, text: &str) -> Self {
        let text = format!("\"{}\": {text}", text_and_hex(&blocked.state.name).0);
        Alarm { severity, subject, name: Some(blocked.state.name.clone()), text, remedy: None }
    }

    /// Its severity in a word.
    pub(crate) fn result(&self) -> &'static str {
        match self.severity {
            Severity::Problem => "problem",
            _ => "note",
        }
    }

    fn remedy(self, remedy: &'static str) -> Self {
        Alarm { remedy: Some(remedy), ..self }
    }
}

impl From<&Finding> for Alarm {
    fn from(finding: &Finding) -> Self {
        Alarm {
            severity: finding.severity,
            subject: finding.subject,
            name: None,
            text: finding.text.clone(),
            remedy: finding.remedy,
        }
    }
}

fn cycle(cycle: &redlatch::WaitCycle) -> Alarm {
    let severity = if cycle.is_certain { Severity::Problem } else { Severity::Note };
    Alarm {
        severity,
        subject: DEADLOCK,
        name: cycle.names.first().cloned(),
        text: blocking::cycle_raw(cycle),
        remedy: Some(
            "end one of them, or take its lock with force-unlock; take several names with one `run a b` or all()",
        ),
    }
}

/// What is odd about the keys.
fn findings(blocked: &BlockedName, alarms: &mut Vec<Alarm>) {
    for finding in &blocked.state.findings {
        let held = if blocked.blockers.is_empty() { String::new() } else { held_by(blocked) };
        let alarm = Alarm::new(Severity::Problem, "lock state", blocked, &format!("{finding}{held}"));
        let remedy = "something other than a lock client wrote the key; force-unlock frees it";
        alarms.push(if blocked.state.ttl_missing { alarm.remedy(remedy) } else { alarm });
    }
}

/// Who holds it and why, as another clause.
fn held_by(blocked: &BlockedName) -> String {
    let Some(first) = blocked.blockers.first() else { return "; nobody holds it".into() };
    let lasts = first.lasts.map(|lasts| format!(" for {}", human(lasts))).unwrap_or_default();
    let who = first.client.as_ref().map_or_else(|| first.owner.clone(), who::with_reason_raw);
    let more = match blocked.blockers.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; it is held{lasts} by {who}{more}")
}

/// What a client has lost, and how.
fn lost_hold(client: &ClientRecord, lost: &LostHold) -> Alarm {
    let name = text_and_hex(&lost.name).0;
    let ended = if client.is_over { "; the client has ended" } else { "" };
    let (ago, who) = (human(lost.ago), who::with_reason_raw(client));
    Alarm {
        severity: Severity::Note,
        subject: "lost",
        name: Some(lost.name.clone()),
        text: format!("\"{name}\": {ago} ago by {who}: {}{ended}", lost.reason),
        remedy: None,
    }
}

/// A holder that has not told for longer than one that lives does.
fn silent(blocked: &BlockedName) -> Option<Alarm> {
    let client = blocked.blockers.iter().filter_map(|blocker| blocker.client.as_ref());
    let client =
        client.filter(|client| client.age >= SILENT && !client.is_over).max_by_key(|client| client.age)?;
    let ends = blocked.state.ttl.map(|ttl| format!("; the lease ends in {}", human(ttl))).unwrap_or_default();
    let text = format!(
        "nothing was heard for {} of {}, which holds it: it has died or hangs, or cannot reach the server{ends}",
        human(client.age),
        who::named_raw(client)
    );
    let alarm = Alarm::new(Severity::Note, "silent holder", blocked, &text);
    Some(alarm.remedy("if it has ended, `redlatch force-unlock NAME --owner ID` frees the name"))
}

/// The first in a fair queue should have asked again long ago.
fn dead_head(blocked: &BlockedName) -> Option<Alarm> {
    let head = blocked.state.waiters.first().filter(|waiter| waiter.stale_in == Some(Duration::ZERO))?;
    let behind = blocked.state.waiting.saturating_sub(1);
    let told = blocked.waiting.iter().find(|waits| waits.told.owner.as_deref() == Some(&*head.owner));
    let who = told.map_or_else(|| head.owner.clone(), |waits| who::named_raw(&waits.client));
    let text = format!(
        "{who} is first in the queue and overdue, so it has died or hangs; {behind} behind it pass it at their next request"
    );
    Some(Alarm::new(Severity::Note, "queue", blocked, &text))
}

/// The one that has waited for longest, if that is long.
fn long_wait(blocked: &BlockedName, long: Duration) -> Option<Alarm> {
    let is_long = |waits: &&BlockedWaiter| waits.told.lasts >= long;
    let waiting: Vec<&BlockedWaiter> = blocked.waiting.iter().take(WAITERS_MAX).filter(is_long).collect();
    let first = waiting.first()?;
    let others = match waiting.len() - 1 {
        0 => String::new(),
        others => format!(" ({others} more for as long)"),
    };
    let (who, lasts) = (who::named_raw(&first.client), human(first.told.lasts));
    let reads = blocked.state.holders.iter().all(|holder| holder.mode == HoldMode::Read);
    let starves = first.told.kind == "write" && reads && !blocked.state.holders.is_empty();
    let text = format!("{who} has waited for {lasts}{others}{}", held_by(blocked));
    if starves {
        let text = format!("{text}; readers that come later pass a waiting writer");
        let alarm = Alarm::new(Severity::Note, "starving writer", blocked, &text);
        return Some(alarm.remedy("let readers hold it for a shorter time, or use a fair lock"));
    }
    Some(Alarm::new(Severity::Note, "long wait", blocked, &text).remedy(ASK_WHY))
}

/// A hold that was entered several times and lasts may have lost one of its releases.
fn entered_again(blocked: &BlockedName, long: Duration) -> Option<Alarm> {
    let holders = blocked.state.holders.iter().zip(&blocked.blockers);
    let mut leaked = holders.filter(|(holder, blocker)| {
        holder.holds > 1 && holder.mode != HoldMode::Read && blocker.lasts.is_some_and(|lasts| lasts >= long)
    });
    let (holder, _) = leaked.next()?;
    let text = format!("entered {} times{}; a release may be missing", holder.holds, held_by(blocked));
    Some(Alarm::new(Severity::Note, "re-entry", blocked, &text))
}

fn herd(blocked: &BlockedName) -> Option<Alarm> {
    let state = &blocked.state;
    let (count, what) = match state.waiting {
        0 => (
            state.listening.unwrap_or(0),
            "clients listen for its release, and each release wakes all of them",
        ),
        waiting => (waiting, "wait in its queue"),
    };
    let text = format!("{count} {what}{}", held_by(blocked));
    (count >= HERD).then(|| Alarm::new(Severity::Note, "herd", blocked, &text))
}

/// For a screen or a message: safe to print.
impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.subject {
            // It begins with that word.
            DEADLOCK => write!(f, "{}", escape::text(&self.text)),
            subject => write!(f, "{subject}: {}", escape::text(&self.text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use redlatch::Client;

    use super::*;
    use crate::snapshot::Scope;

    /// Clients that wait for a held name, and what is seen of them.
    async fn herd_of(count: u64, place: &str) -> Vec<Alarm> {
        let holder = Client::connect(place).await.unwrap();
        let _guard = holder.lock("ticket").lock().await.unwrap();
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = Client::connect(place).await.unwrap();
            let lock = client.lock("ticket");
            clients.push((client, tokio::spawn(async move { lock.lock().await })));
        }
        let scope = Scope { limit: 10, ..Scope::default() };
        loop {
            let snapshot = Snapshot::take(&holder, &scope).await.unwrap();
            if snapshot.rows[0].waiting() == count {
                return alarms(&snapshot, Duration::from_secs(3_600));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_hundred_clients_that_wait_for_one_name_are_a_herd() {
        assert_eq!(herd_of(HERD - 1, "memory:few").await, []);
        let herd = herd_of(HERD, "memory:many").await;
        assert_eq!((herd.len(), herd[0].subject, herd[0].severity), (1, "herd", Severity::Note));
        assert!(herd[0].text.starts_with("\"ticket\": 100 clients listen"), "{herd:?}");
    }
}
