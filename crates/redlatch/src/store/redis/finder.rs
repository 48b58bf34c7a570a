//! Those who know which server is the master, as a store that follows it asks them.

use std::{
    future::{Future, ready},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, timeout_at},
};

use super::{
    listed::Listed,
    node::Node,
    succession::{Memory, Said},
};
use crate::{config::addr::Addr, error::Error, finding::Finding};

/// A source that knows which server is the master.
pub(super) trait Finder: Send + Sync + 'static {
    /// Asks who is the master, for no longer than this. `memory`: what is known by now. It is an error if no server
    /// claims anything, though some may have answered.
    fn find(self: Arc<Self>, memory: Memory, limit: Duration) -> Found;
    /// The replicas of this master that may take its place, as far as anybody who lists them answers within this time; `None` if nobody does.
    fn replicas(self: Arc<Self>, _master: Addr, _limit: Duration) -> FoundReplicas {
        Box::pin(ready(None))
    }
    /// How many of those that may take this master's place lack what it had done by this point, as far as they are asked themselves: again until it is
    /// none, or the time is over.
    fn lacking(self: Arc<Self>, _master: Addr, _offset: u64, _limit: Duration) -> FoundLacking {
        Box::pin(ready(0))
    }
    /// Begins to listen to news of changes, and asks for a look at each of them.
    fn listen(&self, look: &Arc<Look>);
    /// What tells that two clients use the same master, now and later; called after the first success.
    fn place(&self) -> String;
    /// Those who are asked, in words, without secrets.
    fn describe(&self) -> String;
    /// What there is to say about those who are asked.
    fn diagnose(self: Arc<Self>, present: Addr) -> Findings;
    /// Ends connections.
    fn close(&self);
}

pub(super) type Found = Pin<Box<dyn Future<Output = Result<Said, Error>> + Send>>;
pub(super) type FoundReplicas = Pin<Box<dyn Future<Output = Option<Listed>> + Send>>;
pub(super) type FoundLacking = Pin<Box<dyn Future<Output = u32> + Send>>;
pub(super) type Findings = Pin<Box<dyn Future<Output = Vec<Finding>> + Send>>;

/// Asking for a look at who is the master.
#[derive(Default)]
pub(super) struct Look {
    pub(super) wanted: Notify,
    pub(super) news: Notify,
    pub(super) begun: AtomicU64,
}

impl Look {
    /// Answers the number of the look that will begin after this call at the latest.
    pub(super) fn ask(&self) -> u64 {
        let number = self.begun.load(Ordering::SeqCst) + 1;
        self.wanted.notify_one();
        number
    }

    /// A source that knows has said that there is something to see.
    pub(super) fn news(&self) {
        self.news.notify_one();
    }
}

/// How long the others have after enough was heard: one that hangs must delay nobody.
pub(super) const ANSWER_GRACE: Duration = Duration::from_millis(200);
/// How long one that has never answered has, as long as most have not.
pub(super) const MOST_TIME_MAX: Duration = Duration::from_millis(2_000);
/// How many times as long as its last answer took a source is waited for: it may have to be connected to anew.
const TIMES_LAST_ANSWER: u32 = 4;

/// One of several sources that are asked the same.
pub(super) trait Source: Send + Sync + 'static {
    fn pace(&self) -> &Pace;
}

/// How a source answers.
#[derive(Default)]
pub(super) struct Pace {
    /// Since when it has not answered.
    quiet: Mutex<Option<Instant>>,
    /// How long its last answer took, if it has given any.
    took: Mutex<Option<Duration>>,
    /// It did not answer when it was asked last.
    missed: AtomicBool,
}

impl Pace {
    /// A connection over which nothing comes any more looks like one that is slow, and is given up after the time that an answer may take.
    pub(super) fn note(&self, answered: bool, node: &Node, limit: Duration) {
        self.missed.store(!answered, Ordering::Relaxed);
        let mut since = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            *since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= limit {
            *since = None;
            node.drop_connections();
        }
    }

    pub(super) fn has_answered(&self) -> bool {
        self.took().is_some()
    }

    /// It has answered, in time or not.
    fn answers(&self, took: Duration) {
        *self.took() = Some(took);
        self.missed.store(false, Ordering::Relaxed);
        *self.quiet.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn took(&self) -> MutexGuard<'_, Option<Duration>> {
        self.took.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when it is waited for, once enough was heard from the others. `most`: most of them have answered.
    fn due(&self, began: Instant, most: bool) -> Instant {
        let soon = Instant::now() + ANSWER_GRACE;
        // One that hangs has had its time.
        if self.missed.load(Ordering::Relaxed) {
            return soon;
        }
        match *self.took() {
            Some(took) => soon.max(began + took * TIMES_LAST_ANSWER),
            None if most => soon,
            None => soon.max(began + MOST_TIME_MAX),
        }
    }
}

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    Nothing,
    /// The others have two seconds to say more.
    Something,
    /// The others are waited for as long as they may be expected to take.
    Enough,
}

/// Asks all sources at once, and hands their answers on until enough was heard and the others have had their time. One that is far away has as
/// much as it takes; one that hangs has as much as it took before. What comes later is for the next time, and has a look taken at
/// once if it is worth that (`late`). Returns those that have not answered.
pub(super) async fn hear<S: Source, T, E, F>(
    sources: &[Arc<S>],
    limit: Duration,
    look: Option<&Arc<Look>>,
    ask: impl Fn(Arc<S>) -> F,
    late: impl Fn(&S, &T) -> bool + Clone + Send + 'static,
    mut take: impl FnMut(&Arc<S>, Result<T, E>) -> Worth,
) -> Vec<Arc<S>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let began = Instant::now();
    let (tell, mut answers) = mpsc::unbounded_channel();
    for (at, source) in sources.iter().enumerate() {
        let (work, source, tell) = (ask(source.clone()), source.clone(), tell.clone());
        let (late, look) = (late.clone(), look.cloned());
        // It goes on when time is up, so that it is known for the next time how long it takes. Its node bounds it.
        tokio::spawn(async move {
            let answer = work.await;
            if answer.is_ok() {
                source.pace().answers(began.elapsed());
            }
            if let Err(mpsc::error::SendError((_, Ok(answer)))) = tell.send((at, answer))
                && late(&source, &answer)
                && let Some(look) = look
            {
                look.ask();
            }
        });
    }
    drop(tell);
    let mut silent: Vec<Option<&Arc<S>>> = sources.iter().map(Some).collect();
    let (mut until, mut worth, mut answered) = (began + limit, Worth::Nothing, 0);
    while let Ok(Some((at, answer))) = timeout_at(until, answers.recv()).await {
        let Some(source) = silent[at].take() else { continue };
        answered += 1;
        worth = worth.max(take(source, answer));
        until = match worth {
            Worth::Nothing => until,
            Worth::Something => until.min((began + MOST_TIME_MAX).max(Instant::now() + ANSWER_GRACE)),
            Worth::Enough => {
                let dues = silent
                    .iter()
                    .flatten()
                    .map(|other| other.pace().due(began, 2 * answered > sources.len()));
                until.min(dues.max().unwrap_or(began))
            }
        };
    }
    silent.into_iter().flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers of which one has hung from the start: each look for the master took a second, and so did each count of replicas.
    #[test]
    fn one_that_has_never_answered_is_waited_for_once() {
        let (pace, began) = (Pace::default(), Instant::now());
        let waits = || pace.due(began, false) >= began + MOST_TIME_MAX;
        assert!(waits());
        pace.missed.store(true, Ordering::Relaxed);
        assert!(pace.due(began, false) <= Instant::now() + ANSWER_GRACE);
        // Its first answer, however late, tells how long it takes.
        pace.answers(Duration::from_secs(2));
        assert_eq!(pace.due(began, false), began + 4 * Duration::from_secs(2));
        // Then it hangs: it was waited for in each look, for good.
        pace.missed.store(true, Ordering::Relaxed);
        assert!(pace.due(began, false) <= Instant::now() + ANSWER_GRACE);
    }
}
