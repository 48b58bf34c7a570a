//! Which addresses names stand for, as this machine knows them: asked for by one task at a time for each name, and remembered for a second.

use std::{
    future::Future,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::randomness::SeededMap;

const REMEMBERED_TIME: Duration = Duration::from_secs(1);
/// How many names are remembered.
const NAMES_MAX: usize = 64;

/// When a name was found out, and what it stands for; `None` until then.
type Answer = Option<(Instant, Vec<IpAddr>)>;

pub(super) struct Lookups {
    names: Mutex<SeededMap<String, watch::Receiver<Answer>>>,
    /// For how long an answer is remembered.
    remembered: Duration,
}

impl Default for Lookups {
    fn default() -> Self {
        Lookups { names: Mutex::default(), remembered: REMEMBERED_TIME }
    }
}

impl Lookups {
    /// The addresses of a name; none if it is unknown. A resolver that hangs has one call for each name, however many tasks wait for it.
    pub(super) async fn look_up<F>(&self, host: String, resolve: impl FnOnce(String) -> F) -> Vec<IpAddr>
    where
        F: Future<Output = Vec<IpAddr>> + Send + 'static,
    {
        let mut answer = {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            let is_good = |answer: &watch::Receiver<Answer>| match &*answer.borrow() {
                Some((at, _)) => at.elapsed() < self.remembered,
                // Of a lookup that has ended without an answer nothing comes any more.
                None => answer.has_changed().is_ok(),
            };
            match names.get(&host).filter(|answer| is_good(answer)) {
                Some(answer) => answer.clone(),
                None => {
                    if names.len() >= NAMES_MAX {
                        names.retain(|_, answer| is_good(answer));
                    }
                    let (tell, answer) = watch::channel(None);
                    if names.len() < NAMES_MAX {
                        names.insert(host.clone(), answer.clone());
                    }
                    let found = resolve(host);
                    tokio::spawn(async move {
                        let found = found.await;
                        tell.send_replace(Some((Instant::now(), found)));
                    });
                    answer
                }
            }
        };
        let found = answer.wait_for(Option::is_some).await.ok();
        found.and_then(|found| found.clone()).map_or_else(Vec::new, |(_, found)| found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{sync::Semaphore, time::timeout};

    use super::*;

    /// When the resolver hung, each acquire had lookups of its own, which went on when its time was up: 400 threads in ten seconds.
    #[tokio::test]
    async fn a_resolver_that_hangs_has_one_call_for_a_name() {
        let (asked, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let mut lookups = Lookups { remembered: Duration::from_secs(300), ..Lookups::default() };
        let look_up = async |lookups: &Lookups| {
            lookups
                .look_up("a.test".into(), |_| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let answers = answers.clone();
                    async move {
                        answers.acquire().await.unwrap().forget();
                        vec![[10, 0, 0, 1].into()]
                    }
                })
                .await
        };
        for _ in 0..20 {
            assert!(timeout(Duration::from_millis(1), look_up(&lookups)).await.is_err());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        answers.add_permits(1);
        for _ in 0..3 {
            assert_eq!(look_up(&lookups).await, [IpAddr::from([10, 0, 0, 1])]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        lookups.remembered = Duration::ZERO;
        answers.add_permits(1);
        assert_eq!(look_up(&lookups).await.len(), 1);
        assert_eq!(asked.load(Ordering::SeqCst), 2, "what may have changed is asked for again");
    }
}
