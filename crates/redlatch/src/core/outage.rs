//! Whether the server answers, as far as the requests of this process have shown.
//!
//! A task that waits behind another one of its process asks nobody itself, so it learns of an outage from here. Otherwise the tasks in line
//! would find the outage one after the other, and a task whose time is up would call the lock busy.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::{FutureExt, future::BoxFuture};

use super::{
    Core,
    wait::{ANSWER_TIME, WaitDeadline},
};
use redlatch_engine::Clock;

use crate::{
    error::{Error, ErrorKind},
    panic_safe::Signal,
    scripts::QUERY,
    store::{Call, Fault},
};

/// For how long a failure is news. After that nobody knows.
const NEWS_MS: u64 = 1_000;
/// After how long without an answer a server counts as silent for those whose lock was busy before: for a task in line as for one that asks itself. A busy
/// machine leaves an answer unread for some hundred milliseconds.
pub(super) const SILENT_MS: u64 = 1_000;

/// How soon after a request that was given up without an answer the next one has to come for the silence to go on. Otherwise nothing was asked meanwhile.
const SILENCE_GOES_ON_MS: u64 = 100;

/// A connection on which nothing went for so long may have been forgotten by what lies between.
pub(super) const IDLE_MS: u64 = 5_000;

/// What is known of a server that cannot be asked.
pub(super) struct Outage {
    /// Since when no request was answered.
    pub(super) since_ms: u64,
    pub(super) error: Error,
    /// No request failed, and one has no answer: or its task has the answer and is not polled.
    is_silence: bool,
}

/// The requests for one slot of the keyspace. Each that is under way has an `Arc` of it, beside the one that is kept: counting them apart would
/// pass one more line between the threads.
struct Requests {
    clock: Arc<dyn Clock>,
    /// Since when none was answered, while some are under way or have just failed.
    since_ms: AtomicU64,
    /// When the last one failed, if none was answered since; 0 for never.
    failed_ms: AtomicU64,
    error: Mutex<Option<Error>>,
    /// When the last one was given up, if none was answered since; 0 for never.
    given_up_ms: AtomicU64,
    /// When the keeper's connection last had an answer; 0 for never.
    keeper_heard_ms: AtomicU64,
}

impl Requests {
    fn new(clock: &Arc<dyn Clock>) -> Arc<Self> {
        let error = Mutex::new(None);
        let [since_ms, failed_ms, given_up_ms, keeper_heard_ms] = [(); 4].map(|()| AtomicU64::new(0));
        Arc::new(Requests { clock: clock.clone(), since_ms, failed_ms, error, given_up_ms, keeper_heard_ms })
    }

    fn is_under_way(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// A request begins, before it has its `Arc`.
    fn begin(self: &Arc<Self>, now_ms: impl FnOnce() -> u64) -> Arc<Self> {
        if !self.is_under_way() {
            self.begin_first(now_ms());
        }
        self.clone()
    }

    /// A request begins while none is under way.
    fn begin_first(&self, now_ms: u64) {
        let failed_ms = self.failed_ms.load(Ordering::Relaxed);
        let is_news = failed_ms != 0 && now_ms.saturating_sub(failed_ms) <= NEWS_MS;
        // The one before has just been given up, so the silence goes on.
        let given_up_ms = self.given_up_ms.load(Ordering::Relaxed);
        let goes_on = given_up_ms != 0 && now_ms.saturating_sub(given_up_ms) <= SILENCE_GOES_ON_MS;
        if !is_news && !goes_on {
            self.failed_ms.store(0, Ordering::Relaxed);
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    fn answered(&self, now_ms: u64) {
        // Looking first keeps the line shared between threads.
        for (moment, new_ms) in [(&self.given_up_ms, 0), (&self.failed_ms, 0), (&self.since_ms, now_ms)] {
            if moment.load(Ordering::Relaxed) != new_ms {
                moment.store(new_ms, Ordering::Relaxed);
            }
        }
    }

    /// Without an error it was given up before it was answered.
    fn failed(&self, now_ms: u64, error: Option<Error>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.failed_ms.store(now_ms.max(1), Ordering::Relaxed);
    }

    /// A caller no longer waits for an answer.
    fn given_up(&self, now_ms: u64) {
        self.given_up_ms.store(now_ms, Ordering::Relaxed);
        let silent_ms = now_ms.saturating_sub(self.since_ms.load(Ordering::Relaxed));
        if silent_ms >= SILENT_MS && self.failed_ms.load(Ordering::Relaxed) == 0 {
            self.failed(now_ms, None);
        }
    }

    /// Whether there may be an outage for some of those who wait.
    fn may_be_away(self: &Arc<Self>, now_ms: u64) -> bool {
        let silent_ms = now_ms.saturating_sub(self.since_ms.load(Ordering::Relaxed));
        let is_silent = self.is_under_way() && silent_ms >= ANSWER_TIME.as_millis() as u64;
        self.failed_ms.load(Ordering::Relaxed) != 0 || is_silent
    }

    /// The outage as a task sees it that has waited for an answer of the server since `came_ms`.
    fn outage(self: &Arc<Self>, came_ms: u64, now_ms: u64) -> Option<Outage> {
        let under_way = self.is_under_way();
        let (since_ms, failed_ms) =
            (self.since_ms.load(Ordering::Relaxed), self.failed_ms.load(Ordering::Relaxed));
        let silent_ms = now_ms.saturating_sub(since_ms);
        let has_failed = failed_ms != 0 && (under_way || now_ms.saturating_sub(failed_ms) <= NEWS_MS);
        let is_silent = under_way
            && (silent_ms >= SILENT_MS
                || (since_ms <= came_ms && silent_ms >= ANSWER_TIME.as_millis() as u64));
        if !has_failed && !is_silent {
            return None;
        }
        let known = || self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let error = has_failed.then(known).flatten();
        // What was given up before it was answered is no more than that.
        let is_silence = error.is_none();
        let error = error.unwrap_or_else(|| {
            Error::new(ErrorKind::Timeout, format!("the server has answered nothing for {silent_ms} ms"))
                .remedy("look at the server and at the network; what is waited for may be free or not")
        });
        Some(Outage { since_ms, error, is_silence })
    }
}

/// The requests of one client.
pub(super) struct Outages {
    clock: Arc<dyn Clock>,
    /// Those for the slot that a single server has.
    first: Arc<Requests>,
    others: Mutex<HashMap<u16, Arc<Requests>>>,
    /// Where the keeper asks a question.
    questions: Mutex<HashSet<u16>>,
    /// Tells when one of them is over.
    question_over: Signal,
    /// Whether there was one when the keeper last looked.
    troubled: AtomicBool,
}

impl Outages {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Outages {
            first: Requests::new(&clock),
            clock,
            others: Mutex::default(),
            questions: Mutex::default(),
            question_over: Signal::default(),
            troubled: AtomicBool::default(),
        }
    }

    fn questions(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the last such look found trouble.
    pub(super) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Looks whether some may wait for a server that is away. The keeper does so while there are lines, and wakes those in them then.
    pub(super) fn look_for_trouble(&self, now_ms: u64) -> bool {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let troubled =
            self.first.may_be_away(now_ms) || others.values().any(|requests| requests.may_be_away(now_ms));
        self.troubled.store(troubled, Ordering::Relaxed);
        troubled
    }

    /// What `of` finds in the requests for a slot.
    fn requests<R>(&self, slot: u16, of: impl FnOnce(&Arc<Requests>) -> R) -> R {
        if slot == 0 {
            return of(&self.first);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        of(others.entry(slot).or_insert_with(|| Requests::new(&self.clock)))
    }

    /// Makes a request of which it is noted whether it is answered.
    pub(super) fn noting_outage<T: 'static>(
        &self,
        slot: u16,
        as_keeper: bool,
        run: BoxFuture<'static, Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> + Send + 'static + use<T> {
        let requests = self.requests(slot, |requests| requests.begin(|| requests.clock.boot_ms()));
        let owed = Owed { requests, as_keeper, has_come: false };
        run.map(move |outcome| {
            owed.comes(outcome.as_ref().err());
            outcome
        })
    }
}

/// An answer that the server owes.
struct Owed {
    requests: Arc<Requests>,
    as_keeper: bool,
    has_come: bool,
}

impl Owed {
    fn comes(mut self, fault: Option<&Fault>) {
        self.has_come = true;
        let now_ms = self.requests.clock.boot_ms();
        if self.as_keeper && fault.is_none_or(|fault| matches!(fault, Fault::Server(_))) {
            self.requests.keeper_heard_ms.store(now_ms, Ordering::Relaxed);
        }
        match fault {
            // A refusal is an answer, but one that another try may get rid of says nothing of what is asked. Keys that are on their way
            // are the trouble of one name.
            Some(fault) if fault.is_outage() => self.requests.failed(now_ms, Some(fault.error().clone())),
            _ => self.requests.answered(now_ms),
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.has_come {
            self.requests.given_up(self.requests.clock.boot_ms());
        }
    }
}

impl Core {
    /// Before a request over the keeper's connection that is sent once: asks something else first if the connection has been idle, because what
    /// lies between forgets connections on which nothing goes. The second time goes over a new one, if the first has shown that. It may take for longer
    /// than a lease, so whether to send at all is decided after it.
    pub(crate) async fn until_keeper_is_heard<'a>(
        &self,
        key: &[u8],
        look: impl Fn() -> BoxFuture<'a, Result<(), Fault>> + Send,
    ) {
        for _ in 0..2 {
            if self.keeper_heard_lately(key)
                || !matches!(look().await, Err(Fault::NotSent(_) | Fault::Unknown(_)))
            {
                return;
            }
        }
    }

    fn keeper_heard_lately(&self, key: &[u8]) -> bool {
        let heard_ms = |requests: &Arc<Requests>| requests.keeper_heard_ms.load(Ordering::Relaxed);
        let heard_ms = self.outages.requests(self.store.slot(key), heard_ms);
        heard_ms != 0 && self.now_ms().saturating_sub(heard_ms) < IDLE_MS
    }

    /// What is known of the server of a key if it cannot be asked, for a task that waits since then.
    pub(super) fn outage(&self, key: &[u8], came_ms: u64) -> Option<Outage> {
        let now_ms = self.now_ms();
        self.outages.requests(self.store.slot(key), |requests| requests.outage(came_ms, now_ms))
    }

    /// The same, after a question of the keeper's own where a request has no answer: a task that is not polled does not see its answer.
    async fn confirmed_outage(&self, key: &[u8], came_ms: u64) -> Option<Outage> {
        let outage = self.outage(key, came_ms)?;
        if !outage.is_silence {
            return Some(outage);
        }
        self.ask_question(key);
        tokio::select! {
            biased;
            () = self.outages.question_over.until(|| self.outage(key, came_ms).is_none().then_some(())) => {}
            () = self.keeper.sleep(ANSWER_TIME) => {}
        }
        self.outage(key, came_ms)
    }

    /// Has the keeper ask the server of a key, unless it does so already. The answer is noted like that to any request.
    fn ask_question(&self, key: &[u8]) {
        let slot = self.store.slot(key);
        if !self.outages.questions().insert(slot) {
            return;
        }
        let question = self.query_as_keeper(Call::new(&QUERY).key(&Arc::from(key)).text(&"".into()));
        let core = self.me.clone();
        self.keeper.spawn(async move {
            let _ = question.await;
            if let Some(core) = core.upgrade() {
                core.outages.questions().remove(&slot);
                core.outages.question_over.tell();
            }
        });
    }

    /// The time of a task is up that has had no answer of its own: `None` means busy, as far as this process knows.
    pub(super) async fn busy_or_outage<T>(
        &self,
        key: &[u8],
        deadline: &WaitDeadline,
    ) -> Result<Option<T>, Error> {
        if self.outage(key, deadline.began_ms()).is_none() {
            return Ok(None);
        }
        match Box::pin(self.confirmed_outage(key, deadline.began_ms())).await {
            Some(outage) => Err(outage.error),
            None => Ok(None),
        }
    }

    /// An error for a task without a limit that has waited through an outage for as long as one is ridden out.
    pub(super) async fn check_outage_tolerance(
        &self,
        key: &[u8],
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        if !self.may_exceed_outage_tolerance(key, deadline) {
            return Ok(());
        }
        Box::pin(self.confirmed_outage(key, deadline.began_ms())).await;
        match self.outage_lasts(key, deadline) {
            Some((lasts_ms, error)) if self.exceeds_tolerance(lasts_ms) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether that is worth a look.
    pub(super) fn may_exceed_outage_tolerance(&self, key: &[u8], deadline: &WaitDeadline) -> bool {
        self.outage_lasts(key, deadline).is_some_and(|(lasts_ms, _)| self.exceeds_tolerance(lasts_ms))
    }

    fn exceeds_tolerance(&self, lasts_ms: u64) -> bool {
        u128::from(lasts_ms) >= self.config.outage_tolerance.as_millis()
    }

    /// For how long a task has waited through an outage, and which.
    pub(super) fn outage_lasts(&self, key: &[u8], deadline: &WaitDeadline) -> Option<(u64, Error)> {
        let outage = self.outage(key, deadline.began_ms())?;
        Some((self.now_ms().saturating_sub(outage.since_ms.max(deadline.began_ms())), outage.error))
    }
}

#[cfg(test)]
mod tests {
    use redlatch_engine::SystemClock;

    use super::*;

    fn requests() -> Arc<Requests> {
        Requests::new(&(Arc::new(SystemClock) as Arc<dyn Clock>))
    }

    #[test]
    fn a_server_is_silent_when_it_owes_an_answer_for_long() {
        let requests = requests();
        assert!(requests.outage(0, 5_000).is_none(), "it was never asked");
        let _asked = requests.begin(|| 5_000);
        assert!(requests.outage(5_050, 5_099).is_none());
        assert!(requests.outage(5_050, 5_100).is_some(), "it has answered nothing since the task came");
        assert!(
            requests.outage(4_000, 5_999).is_none(),
            "the lock was busy by the last answer, less than a second ago"
        );
        assert!(requests.outage(4_000, 6_000).is_some());
        requests.answered(6_500);
        assert!(requests.outage(5_500, 7_400).is_none());
    }

    /// A request that its task gave up, after it had not polled it for long, was taken for a failure, which the keeper asks nobody about.
    #[test]
    fn a_request_that_was_given_up_is_a_silence_and_no_failure() {
        let requests = requests();
        let asked = requests.begin(|| 5_000);
        requests.given_up(6_200);
        drop(asked);
        assert!(requests.outage(6_190, 6_210).is_some_and(|outage| outage.is_silence));
    }

    #[test]
    fn a_silence_goes_on_when_the_next_request_follows_one_that_was_given_up() {
        let requests = requests();
        let asked = requests.begin(|| 5_000);
        requests.given_up(5_320);
        drop(asked);
        let asked = requests.begin(|| 5_325);
        assert!(requests.outage(5_050, 5_350).is_some(), "nothing was answered since the task came");
        requests.given_up(5_350);
        drop(asked);
        let _asked = requests.begin(|| 9_000);
        assert!(requests.outage(5_050, 9_050).is_none(), "nothing was asked for long");
    }

    #[test]
    fn a_failure_is_news_until_there_is_an_answer_and_for_a_second() {
        let (requests, error) = (requests(), Error::new(ErrorKind::Unreachable, "away"));
        let asked = requests.begin(|| 100);
        requests.failed(200, Some(error));
        drop(asked);
        let known = requests.outage(150, 1_200).unwrap();
        assert_eq!((known.since_ms, known.error.kind()), (100, ErrorKind::Unreachable));
        assert!(requests.outage(150, 1_201).is_none());
        let asked = requests.begin(|| 1_000);
        assert_eq!(requests.outage(150, 2_000).unwrap().since_ms, 100, "the outage goes on");
        requests.answered(2_100);
        assert!(requests.outage(150, 2_150).is_none());
        drop(asked);
        let _asked = requests.begin(|| 9_000);
        assert!(requests.outage(8_000, 9_100).is_none(), "this is another one");
    }
}
