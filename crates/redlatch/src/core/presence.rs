//! The record in which a client tells others what it holds and waits for (`presence.rs` has its format).
//!
//! Nothing is noted while a hold begins or ends: the keeper finds holds in the lanes when the record is due. A wait is noted when its task first goes to
//! sleep at the server, and those who wait behind it are found in their lane.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use tokio::task::Id as TaskId;

use super::{Core, lease::HeldLease};
use crate::{
    error::{ErrorKind, LossReason},
    kind::key_pattern::CLIENT_RECORD,
    name::LockName,
    observe::Subject,
    owner::Owner,
    panic_safe::Signal,
    presence::{HoldOrWait, ITEMS_MAX, Items, LOSS_TOLD, LOSSES_MAX, LostHold, RECORD_TTL},
    scripts::PRESENCE_SET,
    store::Call,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// For how long something has to be held or waited for to be told.
const WORTH_TELLING_MS: u64 = 1_000;
/// How soon after a look the next one comes while there is something new.
const LOOK_EVERY_MS: u64 = 500;
/// One write each, on average; and how many at once after a quiet time.
const WRITE_EVERY_MS: u64 = 10_000;
const WRITES_AT_ONCE: u64 = 2;
/// When a record of which nothing has changed is written again.
const REFRESH_MS: u64 = 25_000;
/// How many waits are noted at once, and how many tasks in line are looked at.
const NOTED_MAX: usize = 1_000;
/// The record that is written to see whether it may be.
const TRIAL_ID: &str = "redlatch-doctor-trial";
const TRIAL_TTL_MS: i64 = 1_000;

/// A task that waits.
#[derive(Clone)]
pub(crate) struct Waiting {
    kind: &'static str,
    name: LockName,
    owner: Option<Owner>,
    task: Option<TaskId>,
    since_ms: u64,
}

impl Waiting {
    /// The task that runs now waits for a lock or permits, since then.
    pub(crate) fn here(subject: Subject<'_>, owner: Option<&Owner>, since_ms: u64) -> Self {
        let (kind, name) = (subject.kind, subject.name.clone());
        Waiting { kind, name, owner: owner.cloned(), task: tokio::task::try_id(), since_ms }
    }
}

/// What has to be known to keep the record.
pub(super) struct PresenceState {
    /// Since when there is the client.
    began_ms: u64,
    budget: Mutex<Budget>,
    waits: Mutex<BTreeMap<u64, Waiting>>,
    /// The last ones, with the time of each; the oldest first.
    losses: Mutex<VecDeque<(u64, LostHold)>>,
    next: AtomicU64,
    /// There may be something new to tell.
    changed: AtomicBool,
    /// A task keeps the record.
    is_kept: AtomicBool,
    news: Arc<Signal>,
    /// The account may not write it.
    refused: AtomicBool,
}

impl PresenceState {
    pub(super) fn new(now_ms: u64) -> Self {
        PresenceState {
            began_ms: now_ms,
            budget: Mutex::new(Budget { writes: WRITES_AT_ONCE, since_ms: now_ms }),
            waits: Mutex::default(),
            losses: Mutex::default(),
            next: AtomicU64::default(),
            changed: AtomicBool::default(),
            is_kept: AtomicBool::default(),
            news: Arc::default(),
            refused: AtomicBool::default(),
        }
    }

    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits(&self) -> MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was lost before long, the last first.
    fn losses(&self, now_ms: u64) -> Vec<LostHold> {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let ago = |at_ms: u64| Duration::from_millis(now_ms.saturating_sub(at_ms));
        losses.retain(|(at_ms, _)| ago(*at_ms) < LOSS_TOLD);
        losses.iter().rev().map(|(at_ms, lost)| LostHold { ago: ago(*at_ms), ..lost.clone() }).collect()
    }
}

/// The waits of one task, noted until this is dropped.
pub(super) struct NotedWaits {
    core: Arc<Core>,
    numbers: Vec<u64>,
}

impl Drop for NotedWaits {
    fn drop(&mut self) {
        let mut waits = self.core.presence.waits();
        let gone: Vec<_> = self.numbers.iter().filter_map(|number| waits.remove(number)).collect();
        drop(waits);
        // One that was never told is no news.
        let now_ms = self.core.now_ms();
        if gone.iter().any(|wait| now_ms.saturating_sub(wait.since_ms) >= WORTH_TELLING_MS) {
            self.core.presence_changed();
        }
    }
}

/// The oldest of many.
struct Oldest<T> {
    items: Vec<(u64, T)>,
    /// How many there are beyond these.
    more: u64,
}

impl<T> Default for Oldest<T> {
    fn default() -> Self {
        Oldest { items: Vec::new(), more: 0 }
    }
}

impl<T> Oldest<T> {
    fn add(&mut self, since_ms: u64, item: impl FnOnce() -> T) {
        if self.items.len() < ITEMS_MAX {
            self.items.push((since_ms, item()));
            return;
        }
        self.more += 1;
        if let Some(youngest) = self.items.iter_mut().max_by_key(|(since_ms, _)| *since_ms)
            && since_ms < youngest.0
        {
            *youngest = (since_ms, item());
        }
    }
}

/// Keeps writes to their rate.
struct Budget {
    writes: u64,
    since_ms: u64,
}

impl Budget {
    /// When the next write may be.
    fn due_ms(&mut self, now_ms: u64) -> u64 {
        let more = now_ms.saturating_sub(self.since_ms) / WRITE_EVERY_MS;
        self.writes = (self.writes + more).min(WRITES_AT_ONCE);
        self.since_ms =
            if self.writes == WRITES_AT_ONCE { now_ms } else { self.since_ms + more * WRITE_EVERY_MS };
        if self.writes > 0 { now_ms } else { self.since_ms + WRITE_EVERY_MS }
    }

    fn take(&mut self) {
        self.writes = self.writes.saturating_sub(1);
    }
}

impl Core {
    /// A task goes to sleep that waits for these.
    pub(super) fn note_waits(self: &Arc<Self>, waiting: impl FnOnce() -> Vec<Waiting>) -> Option<NotedWaits> {
        if !self.tells_presence() {
            return None;
        }
        let mut waits = self.presence.waits();
        let mut numbers = Vec::new();
        for wait in waiting() {
            if waits.len() >= NOTED_MAX {
                break;
            }
            let number = self.presence.next.fetch_add(1, Ordering::Relaxed);
            waits.insert(number, wait);
            numbers.push(number);
        }
        drop(waits);
        self.presence_changed();
        Some(NotedWaits { core: self.clone(), numbers })
    }

    /// A hold was lost, which others are told for a while, unless it was too short to be told of.
    pub(super) fn note_loss(&self, lease: &HeldLease, reason: &LossReason) {
        let now_ms = self.now_ms();
        let since_ms = lease.schedule.seen_ms.load(Ordering::Relaxed);
        let is_worth_telling = since_ms != 0 && now_ms.saturating_sub(since_ms) >= WORTH_TELLING_MS;
        // These are no news: the client is about to end, or is another one than the holder.
        let is_its_end = matches!(reason, LossReason::Shutdown | LossReason::Forked);
        if !self.tells_presence() || !is_worth_telling || is_its_end {
            return;
        }
        let has_moved = self.store.incarnation(&lease.keys.key) != lease.last_seen_in();
        let since =
            if has_moved { "; another server process has taken over since it was last seen" } else { "" };
        let lost = LostHold {
            name: lease.keys.name.clone(),
            kind: lease.keys.subject().kind.to_owned(),
            owner: lease.owner.field().to_string(),
            reason: format!("{reason}{since}"),
            ago: Duration::ZERO,
        };
        let mut losses = self.presence.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if losses.len() == LOSSES_MAX {
            losses.pop_front();
        }
        losses.push_back((now_ms, lost));
        drop(losses);
        self.presence_changed();
    }

    fn tells_presence(&self) -> bool {
        self.config.presence.is_told && !self.presence.refused.load(Ordering::Relaxed)
    }

    /// Whether the account may write a record. Tries it with one that is no client's.
    pub(crate) async fn may_tell_presence(&self) -> bool {
        let key: Arc<[u8]> = CLIENT_RECORD.of(TRIAL_ID.as_bytes()).into();
        for (ttl_ms, fields) in [(TRIAL_TTL_MS, &["host", "trial"][..]), (0, &[])] {
            let call = Call::new(&PRESENCE_SET).key(&key).int(ttl_ms);
            let call = fields.iter().fold(call, |call, text| call.constant(text));
            if self.query(call).await.is_err_and(|fault| fault.error().kind() == ErrorKind::Permission) {
                return false;
            }
        }
        true
    }

    /// There may be something new to tell.
    pub(super) fn presence_changed(&self) {
        if !self.tells_presence() || self.presence.changed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.presence.news.tell();
        if !self.presence.is_kept.swap(true, Ordering::SeqCst) {
            let core = self.me.clone();
            // Not counted as work that shutting down waits for.
            self.keeper.handle().spawn(keep_record(core));
        }
    }

    /// What is to be told now, and whether something will be before long.
    fn gather(&self, now_ms: u64) -> (Items, bool) {
        let lasts_ms = |since_ms: u64| now_ms.saturating_sub(since_ms);
        let (mut holds, mut waits, mut is_young) = (Oldest::default(), Oldest::default(), false);
        self.lanes.each_lease(|lease| {
            let since_ms = lease.schedule.seen_ms.load(Ordering::Relaxed);
            if since_ms != 0 && lasts_ms(since_ms) >= WORTH_TELLING_MS && lease.is_held() {
                holds.add(since_ms, || lease.clone());
            } else {
                is_young = true;
            }
        });
        let mut add_wait = |since_ms, wait: &dyn Fn() -> Waiting| {
            if lasts_ms(since_ms) >= WORTH_TELLING_MS {
                waits.add(since_ms, wait);
            } else {
                is_young = true;
            }
        };
        self.presence.waits().values().for_each(|wait| add_wait(wait.since_ms, &|| wait.clone()));
        self.lanes.each_in_line(NOTED_MAX, |entry| {
            add_wait(entry.since_ms, &|| Waiting {
                kind: entry.request.keys.subject().kind,
                name: entry.request.keys.name.clone(),
                owner: entry.owner.clone(),
                task: entry.task,
                since_ms: entry.since_ms,
            });
        });
        let more = holds.more + waits.more;
        let hold = |lease: Arc<HeldLease>, since_ms| {
            let told = HoldOrWait {
                name: lease.keys.name.clone(),
                kind: lease.keys.subject().kind.to_owned(),
                owner: Some(lease.owner.field().to_string()),
                task: None,
                lasts: Duration::from_millis(lasts_ms(since_ms)),
            };
            (told, lease.task(), true)
        };
        let wait = |wait: Waiting, since_ms| {
            let told = HoldOrWait {
                name: wait.name,
                kind: wait.kind.to_owned(),
                owner: wait.owner.map(|owner| owner.field().to_string()),
                task: None,
                lasts: Duration::from_millis(lasts_ms(since_ms)),
            };
            (told, wait.task, false)
        };
        let mut all: Vec<(HoldOrWait, Option<TaskId>, bool)> =
            holds.items.into_iter().map(|(since_ms, lease)| hold(lease, since_ms)).collect();
        all.extend(waits.items.into_iter().map(|(since_ms, waiting)| wait(waiting, since_ms)));
        all.sort_by_cached_key(|(told, _, is_hold)| (told.rank(), *is_hold));
        // Tasks are numbered anew for each record: two runs of a program give them different ids.
        let mut numbers: HashMap<TaskId, u64> = HashMap::new();
        let mut items = Items { more, losses: self.presence.losses(now_ms), ..Items::default() };
        for (mut told, task, is_hold) in all {
            let next = numbers.len() as u64 + 1;
            told.task = task.map(|task| *numbers.entry(task).or_insert(next));
            if is_hold { items.holds.push(told) } else { items.waits.push(told) }
        }
        (items, is_young)
    }

    /// Writes the record for so long, or ends it if it has no items.
    async fn write_record(&self, items: &Items, ttl: Duration, is_over: bool) {
        let lives_ms = self.now_ms().saturating_sub(self.presence.began_ms);
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let mut call =
            Call::new(&PRESENCE_SET).key(&Arc::from(CLIENT_RECORD.of(self.id.as_bytes()))).int(ttl_ms);
        if !items.is_empty() {
            let own = self
                .config
                .presence
                .identity()
                .into_iter()
                .map(|(field, text)| (field.to_owned(), text.into_bytes()));
            let number = |field: &str, number: u64| (field.to_owned(), number.to_string().into_bytes());
            let now = [
                number("lives", lives_ms),
                number("ttl", ttl_ms.unsigned_abs()),
                number("over", is_over.into()),
            ];
            for (field, value) in own.chain(now).chain(items.fields()) {
                call = call.text(&field.into()).bytes(&Arc::from(value));
            }
        }
        if let Err(fault) = self.query_as_keeper(call).await
            && fault.error().kind() == ErrorKind::Permission
        {
            self.presence.refused.store(true, Ordering::Relaxed);
            tracing::debug!(error = %fault, "the account may not tell what it holds");
        }
    }

    /// At the end of the client, if it has told anything. What it has lost stays told for a while: its program may have ended because of it.
    pub(super) async fn withdraw_record(&self) {
        if self.presence.is_kept.load(Ordering::SeqCst) && self.tells_presence() {
            let losses = self.presence.losses(self.now_ms());
            let left = losses.first().map_or(Duration::ZERO, |last| LOSS_TOLD.saturating_sub(last.ago));
            self.write_record(&Items { losses, ..Items::default() }, left, true).await;
        }
    }
}

/// What a record tells of a name.
#[derive(Clone, Copy, PartialEq)]
enum ToldAs {
    Hold,
    Wait,
    Lost,
}

/// Keeps the record while there is something to tell.
async fn keep_record(core: Weak<Core>) {
    let mut written: Option<(u64, Vec<(LockName, ToldAs)>)> = None;
    loop {
        let Some(here) = core.upgrade() else { return };
        if here.is_closed() || !here.tells_presence() {
            return;
        }
        let news = here.presence.news.next_owned();
        let now_ms = here.now_ms();
        let may_write_ms = here.presence.budget().due_ms(now_ms);
        let refresh_ms = written.as_ref().map_or(u64::MAX, |(at_ms, _)| at_ms + REFRESH_MS);
        let mut again = here.presence.changed.load(Ordering::SeqCst);
        if (again || now_ms >= refresh_ms) && now_ms >= may_write_ms {
            here.presence.changed.store(false, Ordering::SeqCst);
            let (items, is_young) = here.gather(now_ms);
            let of = |items: &[HoldOrWait], told_as| {
                items.iter().map(|told| (told.name.clone(), told_as)).collect::<Vec<_>>()
            };
            let lost = items.losses.iter().map(|lost| (lost.name.clone(), ToldAs::Lost)).collect();
            let told = [of(&items.holds, ToldAs::Hold), of(&items.waits, ToldAs::Wait), lost].concat();
            let is_news = match &written {
                None => !items.is_empty(),
                Some((_, before)) => *before != told || now_ms >= refresh_ms,
            };
            if is_news {
                here.presence.budget().take();
                here.write_record(&items, RECORD_TTL, false).await;
                written = (!items.is_empty()).then_some((now_ms, told));
            }
            again = is_young;
            if is_young {
                here.presence.changed.store(true, Ordering::SeqCst);
            }
        }
        let now_ms = here.now_ms();
        let next_ms = if again {
            (now_ms + LOOK_EVERY_MS).max(here.presence.budget().due_ms(now_ms))
        } else if let Some((at_ms, _)) = &written {
            at_ms + REFRESH_MS
        } else {
            here.presence.is_kept.store(false, Ordering::SeqCst);
            // What changed since the last look has found the record kept.
            if !here.presence.changed.load(Ordering::SeqCst)
                || here.presence.is_kept.swap(true, Ordering::SeqCst)
            {
                return;
            }
            continue;
        };
        drop(here);
        tokio::select! {
            biased;
            () = news.comes() => {}
            () = tokio::time::sleep(Duration::from_millis(next_ms.saturating_sub(now_ms))) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is the client's, and not that of one time in which there is something to tell: those may follow each other.
    #[test]
    fn writes_are_one_in_ten_seconds_on_average_and_two_at_once() {
        let state = PresenceState::new(1_000);
        let mut writes = Vec::new();
        for now_ms in (1_000..101_000).step_by(100) {
            if state.budget().due_ms(now_ms) <= now_ms {
                state.budget().take();
                writes.push(now_ms);
            }
        }
        assert_eq!(writes[..4], [1_000, 1_100, 11_000, 21_000]);
        assert!(writes.len() <= 12, "{writes:?}");
        assert_eq!(state.budget().due_ms(500_000), 500_000);
        assert_eq!(state.budget().writes, WRITES_AT_ONCE, "a long quiet time saves no more");
    }
}
