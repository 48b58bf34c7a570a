//! Leases that are passed on inside the process just behind a look of the background thread, and then held for long while
//! nobody else of the process is granted anything.

use std::time::Duration;

use futures_util::future::join_all;
use redlatch::{Lease, Wait};

use super::{
    Worker,
    ask::{Ask, Cut},
    kind::Kind,
    task::Task,
};
use crate::rng::Rng;

/// The background thread takes a new lease in at a sixth of it.
const LOOK_AT: u32 = 6;
/// How many leases change hands in one go.
const COUPLES: u64 = 5;

impl Task {
    fn renewed(&self, worker: &Worker, name: &str, lease: Duration) -> Ask {
        Ask {
            kind: Kind::Plain,
            name: format!("{name}.{}", worker.process),
            wait: Wait::AtMost(Duration::from_secs(3)),
            lease: Lease::RenewedEvery(lease),
            owner: None,
            label: worker.fresh_label(&self.label),
            fenced: false,
            permits: 0,
            cut: Cut::Never,
        }
    }

    /// A first lease decides when the background thread looks. Others are granted some ms before that and passed on behind it.
    pub(super) async fn pass(&mut self, worker: &Worker) {
        let lease = self.rng.ms(500, 900);
        let Some(mut first) = self.obtain(worker, &self.renewed(worker, "first", lease)).await else {
            return;
        };
        let look = tokio::time::Instant::now() + lease / LOOK_AT;
        let seeds: Vec<u64> = (0..COUPLES).map(|_| self.rng.next()).collect();
        let couples = seeds.iter().enumerate().map(|(at, seed)| {
            let task = &*self;
            async move {
                let mut rng = Rng::new(*seed);
                tokio::time::sleep_until(look - rng.ms(1, 9)).await;
                let name = format!("pass{at}");
                let ask = task.renewed(worker, &name, lease);
                let Some(giver) = task.obtain(worker, &ask).await else { return };
                let granted = tokio::time::Instant::now();
                let heir = task.renewed(worker, &name, lease);
                let taking = task.obtain(worker, &heir);
                let giving = async {
                    // The turn of a process is over after 8 ms.
                    let latest = granted + Duration::from_micros(7_300);
                    tokio::time::sleep_until((look + rng.ms(0, 2)).min(latest)).await;
                    task.unlock(giver, &ask.name).await;
                };
                let (taken, ()) = tokio::join!(taking, giving);
                let Some(mut taken) = taken else { return };
                if task.keep(&mut taken, lease * 2).await {
                    task.unlock(taken, &heir.name).await;
                }
            }
        });
        join_all(couples).await;
        if self.keep(&mut first, Duration::ZERO).await {
            self.unlock(first, "first").await;
        }
    }
}
