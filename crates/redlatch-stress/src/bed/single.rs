//! One server, with a proxy for each process where the network is to delay.

use std::time::{Duration, Instant};

use redlatch::scripts;
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    redisson::Connection,
    server::RedisServer,
};

use super::{Bed, Outcome, clock, ends_a_hold};
use crate::{
    mix::{Mix, Numbers},
    record::Log,
    rng::Rng,
    worker::Order,
};

/// How long a rule for the network stays that met nothing.
const RULES_MAX: Duration = Duration::from_millis(900);

/// When the tasks have made their connections.
const CONNECTED: Duration = Duration::from_millis(1_500);

pub(super) struct Single {
    server: RedisServer,
    network: Network,
    /// It stops, forgets its scripts, is full and has its clock set at times.
    troubled: bool,
    /// When it is killed next, if it is.
    kill: Option<Instant>,
}

/// How long it lives at least between two kills.
const LIFE: Duration = Duration::from_secs(2);

/// The proxies, and when they delay next.
pub(super) struct Network {
    proxies: Vec<Proxy>,
    delay_ms: Option<(u64, u64)>,
    latency: Option<Duration>,
    is_slow: bool,
    every: Duration,
    at_endings: u64,
    next: Instant,
    cleared: Instant,
    /// The hashes of what ends a hold.
    endings: Vec<&'static str>,
}

impl Network {
    pub(super) fn start(url: &str, numbers: &Numbers, processes: usize) -> Outcome<Self> {
        let mut proxies = Vec::new();
        if numbers.delay_ms.is_some() || numbers.latency_ms.is_some() {
            for _ in 0..processes {
                proxies.push(Proxy::start(url)?);
            }
        }
        let endings =
            scripts::ALL.iter().filter(|script| ends_a_hold(script)).map(|script| script.sha1()).collect();
        Ok(Network {
            proxies,
            delay_ms: numbers.delay_ms,
            latency: numbers.latency_ms.map(Duration::from_millis),
            is_slow: numbers.latency_ms.is_some_and(|latency_ms| latency_ms > 100),
            every: Duration::from_millis(numbers.delay_every_ms),
            at_endings: numbers.delay_endings,
            next: Instant::now(),
            cleared: Instant::now(),
            endings,
        })
    }

    pub(super) fn url(&self, process: usize) -> Option<String> {
        self.proxies.get(process).map(Proxy::url)
    }

    /// Delays one of the next script calls of a process, or everything.
    pub(super) fn trouble(&mut self, rng: &mut Rng, log: &Log, since: Duration) {
        if since > CONNECTED
            && let Some(latency) = self.latency.take()
        {
            log.fault(format!("each message takes {latency:?} in each direction"));
            self.proxies.iter().for_each(|proxy| proxy.latency(latency, Duration::ZERO, 1));
        }
        let Some((least, most)) = self.delay_ms else { return };
        if self.cleared.elapsed() > RULES_MAX {
            self.cleared = Instant::now();
            self.proxies.iter().for_each(Proxy::clear_rules);
        }
        if Instant::now() < self.next || self.proxies.is_empty() {
            return;
        }
        self.next = Instant::now() + self.every;
        let process = rng.below(self.proxies.len() as u64) as usize;
        let time = rng.ms(least, most);
        let ends = rng.percent(self.at_endings);
        let which = if ends { Match::script().arg_contains(*rng.of(&self.endings)) } else { Match::script() };
        let what = if rng.percent(75) { Action::DelayRequest(time) } else { Action::DelayReply(time) };
        log.fault(format!(
            "network of process {process}: {what:?} to {}",
            if ends { "a release" } else { "a script" }
        ));
        self.proxies[process].rule(which.nth(1 + rng.below(3)), what);
    }

    pub(super) fn heal(&self) -> Outcome<()> {
        for proxy in &self.proxies {
            proxy.clear_rules();
            proxy.heal()?;
        }
        Ok(())
    }
}

impl Single {
    pub(super) fn start(mix: Mix, numbers: &Numbers, processes: usize) -> Outcome<Self> {
        let restarts = mix == Mix::Restarts;
        let server = RedisServer::builder().appendonly(restarts).own_clock().start()?;
        let network = Network::start(&server.url(), numbers, processes)?;
        Ok(Single {
            server,
            network,
            troubled: numbers.processes,
            kill: restarts.then(|| Instant::now() + LIFE),
        })
    }
}

impl Bed for Single {
    fn java(&self) -> Option<Connection> {
        Some(Connection::single(&self.server.url()))
    }

    fn address(&self, process: usize, order: &mut Order) {
        order.url = self.network.url(process).unwrap_or_else(|| self.server.url());
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, since: Duration) -> Outcome<()> {
        self.network.trouble(rng, log, since);
        if self.kill.is_some_and(|at| Instant::now() >= at) {
            let away = rng.ms(0, 600);
            log.fault(format!("the server is killed, and away for {away:?}"));
            self.server.kill9();
            std::thread::sleep(away);
            self.server.restart()?;
            self.kill = Some(Instant::now() + LIFE + rng.ms(0, 2_000));
        } else if !self.network.is_slow && rng.below(400) == 0 {
            // Asking a slow server twice takes too long for a renewal.
            log.fault("the server forgets its scripts");
            self.server.flush_scripts()?;
        }
        if self.troubled {
            match rng.below(1_500) {
                0 => {
                    let time = rng.ms(5, 300);
                    log.fault(format!("the server stands still for {time:?}"));
                    self.server.pause()?;
                    std::thread::sleep(time);
                    self.server.resume()?;
                }
                1 => {
                    let time = rng.ms(5, 200);
                    log.fault(format!("the server has no memory left for {time:?}"));
                    self.server.cmd(&["CONFIG", "SET", "maxmemory", "1"])?;
                    std::thread::sleep(time);
                    self.server.cmd(&["CONFIG", "SET", "maxmemory", "0"])?;
                }
                2 => {
                    log.fault("the server ends all connections");
                    self.server.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])?;
                }
                3 => {
                    log.fault("the server ends all subscriptions");
                    self.server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
                }
                4..7 => clock::trouble(&self.server, rng, log)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        self.network.heal()
    }

    fn left(&self) -> Outcome<Vec<String>> {
        left_on(&self.server)
    }
}

/// The hashes of a server, which are locks.
pub(super) fn left_on(server: &RedisServer) -> Outcome<Vec<String>> {
    let keys = server.keys()?;
    let mut left = Vec::new();
    for key in keys {
        let kind: String = redis::from_redis_value(server.cmd(&["TYPE", &key])?)?;
        if kind == "hash" {
            let fields: Vec<String> = redis::from_redis_value(server.cmd(&["HGETALL", &key])?)?;
            let ttl: i64 = redis::from_redis_value(server.cmd(&["PTTL", &key])?)?;
            left.push(format!("{key} for {ttl} ms: {fields:?}"));
        }
    }
    Ok(left)
}
