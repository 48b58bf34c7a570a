//! The stages with simulated servers, and what happens on them: a time of trouble, in which there is one fault after the other, and a time
//! in which all is well, so that what a fault leaves behind shows.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redlatch::{Client, ClientBuilder};
use tokio::time::{Instant, sleep};

use super::{
    net::{Machine, Net, Pace, host},
    node::{Node, Nodes, PORT, Role},
    sentinel::{self, Sentinel, Set, Settings},
};
use crate::{
    bed, clock,
    mix::Numbers,
    record::Log,
    rng::Rng,
    sim::{
        run::{Scene, gain},
        server::MachineClock,
        stage::{Span, Stage},
    },
};

/// The machines of processes begin here.
const PROCESSES: Machine = 1_000;
/// The machines of servers, the first of which is the master.
const SERVERS: [Machine; 3] = [1, 2, 3];
const SENTINELS: [Machine; 3] = [11, 12, 13];
const SENTINEL_SETTINGS: Settings = Settings {
    quorum: 2,
    down_after: Duration::from_millis(1_500),
    failover_timeout: Duration::from_secs(6),
};

struct Servers {
    net: Arc<Net>,
    nodes: Arc<Nodes>,
    set: Option<Arc<Set>>,
    url: String,
    numbers: Numbers,
    next: Machine,
    /// When trouble ends, or begins again.
    turns: Instant,
    in_trouble: bool,
    well_since_ns: Option<u64>,
    well: Vec<Span>,
    troubled: Vec<Span>,
}

/// How long until all works again after all is well.
const HEALS_NS: u64 = 6_000_000_000;
/// How long a change of masters may have two valid holders where all is well.
const CHANGES_NS: u64 = 4_000_000_000;

/// One server.
pub(in crate::sim) fn single(
    scene: &Scene,
    numbers: &Numbers,
    rng: &mut Rng,
) -> bed::Outcome<Box<dyn Stage>> {
    let servers = Servers::new(scene, numbers, rng, format!("redis://{}:{PORT}", host(SERVERS[0])));
    servers.add(scene, rng, SERVERS[0], Role::Master);
    Ok(Box::new(servers))
}

/// A master with two replicas, and three sentinels.
pub(in crate::sim) fn sentinel(
    scene: &Scene,
    numbers: &Numbers,
    rng: &mut Rng,
) -> bed::Outcome<Box<dyn Stage>> {
    let sentinels: Vec<String> =
        SENTINELS.iter().map(|machine| format!("{}:{}", host(*machine), sentinel::PORT)).collect();
    let url = format!("redis-sentinel://{}/{}", sentinels.join(","), sentinel::NAME);
    let mut servers = Servers::new(scene, numbers, rng, url);
    for machine in SERVERS {
        let role = if machine == SERVERS[0] { Role::Master } else { Role::ReplicaOf(SERVERS[0]) };
        servers.add(scene, rng, machine, role);
    }
    let set = Set::new(SENTINEL_SETTINGS);
    set.start(&servers.net, &servers.nodes, &SENTINELS, SERVERS[0], rng);
    servers.set = Some(set);
    Ok(Box::new(servers))
}

impl Servers {
    fn new(scene: &Scene, numbers: &Numbers, rng: &mut Rng, url: String) -> Self {
        let pace = match scene.seed % 3 {
            0 => Pace { slow: 20, late: 0, late_ms_max: 0 },
            1 => Pace { slow: 100, late: 5, late_ms_max: 400 },
            _ => Pace { slow: 100, late: 10, late_ms_max: 1_500 },
        };
        let net = Net::new(pace, Rng::new(rng.next()));
        Servers {
            net,
            nodes: Arc::default(),
            set: None,
            url,
            numbers: numbers.clone(),
            next: PROCESSES,
            turns: Instant::now() + rng.ms(3_000, 8_000),
            in_trouble: false,
            well_since_ns: None,
            well: Vec::new(),
            troubled: Vec::new(),
        }
    }

    fn add(&self, scene: &Scene, rng: &mut Rng, machine: Machine, role: Role) -> Arc<Node> {
        let clock = MachineClock::new(Instant::now(), gain(rng));
        Node::start(&self.net, &self.nodes, machine, role, clock, Rng::new(rng.next()), scene.told.clone())
    }

    fn turn(&mut self, rng: &mut Rng, faults: &Log) {
        let now_ns = clock::boot_ns();
        self.in_trouble = !self.in_trouble;
        if self.in_trouble {
            faults.fault("trouble begins");
            if let Some(since_ns) = self.well_since_ns.take()
                && now_ns > since_ns + HEALS_NS
            {
                self.well.push((since_ns + HEALS_NS, now_ns));
            }
            self.troubled.push((now_ns, now_ns));
            self.turns = Instant::now() + rng.ms(3_000, 20_000);
        } else {
            self.end_trouble();
            faults.fault("all is well");
            self.turns = Instant::now() + rng.ms(20_000, 30_000);
        }
    }

    fn sentinels(&self) -> Vec<Arc<Sentinel>> {
        self.set.as_ref().map(|set| set.all()).unwrap_or_default()
    }

    /// Something happens. Behind sentinels there is time for them to notice.
    fn fault(&mut self, machine: Machine, faults: &Log, rng: &mut Rng) -> bool {
        let node = rng.of(&self.nodes.all()).clone();
        let server = node.machine;
        let long = if self.set.is_some() && rng.percent(40) { 10_000 } else { 0 };
        match rng.below(16) {
            0..3 => {
                let time = rng.ms(1, self.numbers.lease_ms * 3 / 2 + long);
                self.cut(machine, server, time, faults, rng);
            }
            3..6 => {
                // Any two that talk to each other.
                let mut machines: Vec<Machine> = self.nodes.all().iter().map(|node| node.machine).collect();
                machines.extend(self.sentinels().iter().map(|sentinel| sentinel.machine));
                machines.push(machine);
                let (one, other) = (*rng.of(&machines), *rng.of(&machines));
                if one != other {
                    let time = rng.ms(1, self.numbers.lease_ms * 3 / 2 + long);
                    self.cut(one, other, time, faults, rng);
                }
            }
            6 => {
                let time = rng.ms(1, self.numbers.lease_ms / 2 + long / 2);
                faults.fault(format!("m{server} stands still for {time:?}"));
                node.stand_still(time);
            }
            7 => {
                faults.fault(format!("m{server} forgets its scripts"));
                node.forget_scripts();
            }
            8 => return true,
            9 => {
                faults.fault(format!("the connections of m{machine} end"));
                self.net.reset(machine);
            }
            10 => {
                faults.fault(format!("the connections of m{machine} to m{server} end"));
                self.net.reset_between(machine, server);
            }
            11 | 12 if node.is_up() => {
                let time = rng.ms(1, 2_000 + long);
                faults.fault(format!("m{server} is killed, and starts again after {time:?}"));
                node.kill();
                tokio::spawn(async move {
                    sleep(time).await;
                    if !node.is_up() {
                        node.revive(true);
                    }
                });
            }
            13 | 14 if self.set.is_some() => {
                let sentinel = rng.of(&self.sentinels()).clone();
                let time = rng.ms(1, 1_000 + long);
                if rng.percent(50) {
                    faults.fault(format!("sentinel m{} stands still for {time:?}", sentinel.machine));
                    sentinel.stand_still(time);
                } else if sentinel.is_up() {
                    faults.fault(format!(
                        "sentinel m{} is killed, and starts again after {time:?}",
                        sentinel.machine
                    ));
                    sentinel.kill();
                    tokio::spawn(async move {
                        sleep(time).await;
                        if !sentinel.is_up() {
                            sentinel.revive();
                        }
                    });
                }
            }
            15 if self.set.is_some() => self.isolate(faults, rng),
            _ => {}
        }
        false
    }

    /// Cuts two off from each other, in one direction or both, for a time.
    fn cut(&self, one: Machine, other: Machine, time: Duration, faults: &Log, rng: &mut Rng) {
        let way = rng.below(3);
        faults.fault(format!("m{one} and m{other} are cut off ({way}) for {time:?}"));
        let pairs = [(one, other), (other, one)];
        let pairs = match way {
            0 => &pairs[..],
            1 => &pairs[..1],
            _ => &pairs[1..],
        };
        pairs.iter().for_each(|(from, to)| self.net.cut(*from, *to));
        let net = self.net.clone();
        tokio::spawn(async move {
            sleep(time).await;
            net.mend(one, other);
            net.mend(other, one);
        });
    }

    /// The network falls into two parts for a time: some servers, sentinels and processes here, the others there.
    fn isolate(&self, faults: &Log, rng: &mut Rng) {
        let processes = (PROCESSES..self.next).rev().take(3);
        let machines: Vec<Machine> = SERVERS.into_iter().chain(SENTINELS).chain(processes).collect();
        let (here, there): (Vec<_>, Vec<_>) = machines.into_iter().partition(|_| rng.percent(50));
        let time = rng.ms(500, 15_000);
        faults.fault(format!("{here:?} and {there:?} are cut off for {time:?}"));
        let pairs: Vec<_> = here
            .iter()
            .flat_map(|one| there.iter().flat_map(move |other| [(*one, *other), (*other, *one)]))
            .collect();
        pairs.iter().for_each(|(from, to)| self.net.cut(*from, *to));
        let net = self.net.clone();
        tokio::spawn(async move {
            sleep(time).await;
            pairs.iter().for_each(|(from, to)| net.mend(*from, *to));
        });
    }

    fn end_trouble(&mut self) {
        let now_ns = clock::boot_ns();
        self.net.mend_all();
        for node in self.nodes.all().iter().filter(|node| !node.is_up()) {
            node.revive(true);
        }
        for sentinel in self.sentinels().iter().filter(|sentinel| !sentinel.is_up()) {
            sentinel.revive();
        }
        if let Some(last) = self.troubled.last_mut() {
            last.1 = now_ns;
        }
        self.well_since_ns = Some(now_ns);
    }
}

impl Stage for Servers {
    fn join(&mut self) -> (usize, ClientBuilder) {
        let machine = self.next;
        self.next += 1;
        let builder = Client::builder()
            .url(&*self.url)
            .dialer(self.net.dialer(machine))
            .response_timeout(Duration::from_millis(self.numbers.response_ms));
        (usize::from(machine), builder)
    }

    fn kill(&mut self, process: usize) {
        let machine = process as Machine;
        self.net.reset(machine);
        self.net.silence(machine);
    }

    fn trouble<'a>(
        &'a mut self,
        process: usize,
        faults: &'a Arc<Log>,
        rng: &'a mut Rng,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if self.turns <= Instant::now() {
                self.turn(rng, faults);
            }
            if !self.in_trouble {
                return false;
            }
            self.fault(process as Machine, faults, rng)
        })
    }

    fn pause(&mut self, rng: &mut Rng) -> Duration {
        rng.ms(20, 1_500)
    }

    fn heal(&mut self) {
        self.end_trouble();
    }

    fn held(&self) -> Vec<String> {
        self.nodes.all().iter().flat_map(|node| node.held()).collect()
    }

    fn trace(&self) -> u64 {
        self.net.figures().0
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let promotions = self.set.as_ref().map_or(0, |set| set.promotions_ns().len());
        vec![("messages", self.net.figures().1), ("promotions", promotions as u64)]
    }

    fn excused(&self) -> Vec<Span> {
        let Some(set) = &self.set else { return Vec::new() };
        let trouble = self.troubled.iter().map(|(from, to)| (*from, to + HEALS_NS));
        // What the old master had granted last may be missing at the new one.
        let changes =
            set.promotions_ns().into_iter().map(|at| (at.saturating_sub(CHANGES_NS), at + CHANGES_NS));
        let mut spans: Vec<Span> = trouble.chain(changes).collect();
        spans.sort_unstable();
        let mut joined: Vec<Span> = Vec::new();
        for (from, to) in spans {
            match joined.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        joined
    }

    fn well(&self) -> Vec<Span> {
        self.well.clone()
    }

    fn may_vanish(&self) -> bool {
        self.set.is_some()
    }
}
