//! Three servers that know nothing of each other, each with a clock of its own; one of them at a time is killed and comes
//! back with its data.

use std::time::{Duration, Instant};

use redlatch_testkit::server::RedisServer;

use super::{Bed, Outcome, clock, single::left_on};
use crate::{record::Log, rng::Rng, worker::Order};

const SERVERS: usize = 3;
/// How long all servers live at least between two kills.
const LIFE: Duration = Duration::from_secs(2);

pub(super) struct Quorum {
    servers: Vec<RedisServer>,
    next: Instant,
    /// The server that is down, and until when.
    down: Option<(usize, Instant)>,
}

impl Quorum {
    pub(super) fn start() -> Outcome<Self> {
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            servers.push(RedisServer::builder().appendonly(true).own_clock().start()?);
        }
        Ok(Quorum { servers, next: Instant::now() + LIFE, down: None })
    }
}

impl Bed for Quorum {
    fn address(&self, _: usize, order: &mut Order) {
        order.url = self.servers[0].url();
        order.members = self.servers[1..].iter().map(RedisServer::url).collect();
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, _: Duration) -> Outcome<()> {
        if rng.below(300) == 0 {
            clock::trouble(rng.of(&self.servers), rng, log)?;
        }
        if let Some((at, until)) = self.down {
            if Instant::now() >= until {
                self.servers[at].restart()?;
                log.fault(format!("server {at} is back"));
                self.down = None;
                self.next = Instant::now() + LIFE + rng.ms(0, 1_000);
            }
        } else if Instant::now() >= self.next {
            let at = rng.below(SERVERS as u64) as usize;
            log.fault(format!("server {at} is killed"));
            self.servers[at].kill9();
            self.down = Some((at, Instant::now() + rng.ms(0, 2_500)));
        }
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        if let Some((at, _)) = self.down.take() {
            self.servers[at].restart()?;
        }
        Ok(())
    }

    fn left(&self) -> Outcome<Vec<String>> {
        let mut left = Vec::new();
        for server in &self.servers {
            left.extend(left_on(server)?);
        }
        Ok(left)
    }
}
