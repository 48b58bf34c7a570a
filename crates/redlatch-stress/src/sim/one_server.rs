//! One server behind the seam of the store: the library without its connections.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redlatch::{Client, ClientBuilder};
use tokio::time::{Instant, sleep};

use super::{
    left::Left,
    network::{Cut, Network, Weather},
    run::{Scene, gain},
    server::{MachineClock, Server},
    stage::Stage,
};
use crate::{bed, mix::Numbers, record::Log, rng::Rng};

struct OneServer {
    network: Arc<Network>,
    /// What outages are measured by.
    lease_ms: u64,
    processes: Vec<usize>,
}

pub(super) fn set(scene: &Scene, numbers: &Numbers, rng: &mut Rng) -> bed::Outcome<Box<dyn Stage>> {
    let server = Server::start(MachineClock::new(Instant::now(), gain(rng)))?;
    // Every third seed has a network that loses nothing, so that what no loss excuses is seen.
    let (lost, slow, late) = match scene.seed % 3 {
        0 => (0, 20, 0),
        1 => (0, 100, 20),
        _ => (10, 100, 20),
    };
    let weather = Weather { lost, slow, late, slow_endings: 10 * numbers.slow_endings };
    let response = Duration::from_millis(numbers.response_ms);
    let lease = Duration::from_millis(numbers.lease_ms);
    let network = Network::new(server, weather, response, lease, scene.told.clone(), Rng::new(rng.next()));
    Ok(Box::new(OneServer { network, lease_ms: numbers.outage_lease_ms(), processes: Vec::new() }))
}

impl Stage for OneServer {
    fn join(&mut self) -> (usize, ClientBuilder) {
        let (process, store) = self.network.join();
        self.processes.push(process);
        (process, Client::builder().url("memory:").custom_store(store))
    }

    fn kill(&mut self, process: usize) {
        self.network.kill(process);
    }

    fn trouble<'a>(
        &'a mut self,
        process: usize,
        faults: &'a Arc<Log>,
        rng: &'a mut Rng,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            self.network.set_calm(false);
            match rng.below(12) {
                0..4 => {
                    let cut = *rng.of(&[Cut::Both, Cut::Requests, Cut::Replies]);
                    let time = rng.ms(1, self.lease_ms * 3 / 2);
                    faults.fault(format!("process {process} is cut off ({cut:?}) for {time:?}"));
                    self.network.cut(process, cut);
                    let network = self.network.clone();
                    tokio::spawn(async move {
                        sleep(time).await;
                        network.mend(process);
                    });
                }
                4..6 => {
                    let time = rng.ms(1, self.lease_ms / 2);
                    faults.fault(format!("the server stands still for {time:?}"));
                    self.network.stand_still(time);
                }
                6 => {
                    faults.fault("the server forgets its scripts");
                    self.network.server().flush_scripts();
                }
                7 => return true,
                8 => {
                    faults.fault(format!("the connections of process {process} end"));
                    self.network.cut(process, Cut::Both);
                    self.network.mend(process);
                }
                _ => {}
            }
            false
        })
    }

    fn pause(&mut self, rng: &mut Rng) -> Duration {
        rng.ms(20, 1_500)
    }

    fn heal(&mut self) {
        self.network.set_calm(true);
        self.processes.iter().for_each(|process| self.network.mend(*process));
    }

    fn left(&self) -> Vec<Left> {
        self.network.server().left()
    }

    fn counted_late(&self) -> Vec<(String, u64)> {
        self.network.counted_late()
    }

    fn trace(&self) -> u64 {
        self.network.figures().0
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let (_, calls, lost) = self.network.figures();
        vec![("calls", calls), ("lost", lost)]
    }
}
