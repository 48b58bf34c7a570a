//! The stages with simulated servers, and what happens on them: a time of trouble, in which there is one fault after the other, and a time
//! in which all is well, so that what a fault leaves behind shows.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use redlatch::{Client, ClientBuilder};
use tokio::time::{Instant, sleep};

use super::{
    authority::{Authority, Knows},
    cluster::Bus,
    net::{Machine, Net, Pace, host},
    node::{Node, Nodes, PORT, Role},
    operator::Operator,
    sentinel::{self, Sentinel, Set, Settings},
};
use crate::{
    bed, clock,
    mix::Numbers,
    record::Log,
    rng::Rng,
    sim::{
        left::Left,
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
/// The machines of a cluster, the masters first.
const NODES: [Machine; 6] = [1, 2, 3, 4, 5, 6];
const MASTERS: usize = 3;
const SENTINEL_SETTINGS: Settings = Settings {
    quorum: 2,
    down_after: Duration::from_millis(1_500),
    failover_timeout: Duration::from_secs(6),
};

struct Servers {
    net: Arc<Net>,
    nodes: Arc<Nodes>,
    set: Option<Arc<Set>>,
    bus: Option<Arc<Bus>>,
    operator: Option<Arc<Operator>>,
    url: String,
    numbers: Numbers,
    next: Arc<AtomicU16>,
    /// When trouble ends, or begins again.
    turns: Instant,
    in_trouble: bool,
    /// When all servers worked, and those who decide agreed.
    agreed: Arc<Mutex<Vec<Span>>>,
    well_since_ns: Option<u64>,
    well: Vec<Span>,
    /// When a process reached no sentinel that knew the master.
    blind: Arc<Mutex<BTreeMap<Machine, Vec<Span>>>>,
}

/// How long until all works again after all is well.
const HEALS_NS: u64 = 6_000_000_000;
/// In what time each process is granted something then.
const GRANTS_NS: u64 = 8_000_000_000;
/// What servers refuse scripts with.
const REFUSALS: [&str; 2] = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
];
/// For how long two may be valid after a change of masters.
const CHANGES_NS: u64 = 4_000_000_000;
/// How often it is noted who knows the master.
const LOOK: Duration = Duration::from_millis(100);

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
    let set = Set::new(SENTINEL_SETTINGS, scene.told.is_some());
    set.start(&servers.net, &servers.nodes, &SENTINELS, SERVERS[0], rng);
    servers.look_after(Authority::Sentinels(set.clone()));
    servers.set = Some(set);
    Ok(Box::new(servers))
}

/// Three masters, and a replica of each.
pub(in crate::sim) fn cluster(
    scene: &Scene,
    numbers: &Numbers,
    rng: &mut Rng,
) -> bed::Outcome<Box<dyn Stage>> {
    let seeds: Vec<String> = NODES.iter().map(|machine| format!("{}:{PORT}", host(*machine))).collect();
    let mut servers = Servers::new(scene, numbers, rng, format!("redis-cluster://{}", seeds.join(",")));
    for (at, machine) in NODES.into_iter().enumerate() {
        let role = if at < MASTERS { Role::Master } else { Role::ReplicaOf(NODES[at % MASTERS]) };
        servers.add(scene, rng, machine, role);
    }
    let bus = Bus::start(&servers.net, &servers.nodes, MASTERS, rng);
    servers.look_after(Authority::Cluster(bus.clone()));
    servers.bus = Some(bus);
    Ok(Box::new(servers))
}

/// A master with two replicas that the URL names, and an operator.
pub(in crate::sim) fn replicated(
    scene: &Scene,
    numbers: &Numbers,
    rng: &mut Rng,
) -> bed::Outcome<Box<dyn Stage>> {
    let names: Vec<String> = SERVERS.iter().map(|machine| format!("{}:{PORT}", host(*machine))).collect();
    let mut servers = Servers::new(scene, numbers, rng, format!("redis-replicated://{}", names.join(",")));
    for machine in SERVERS {
        let role = if machine == SERVERS[0] { Role::Master } else { Role::ReplicaOf(SERVERS[0]) };
        servers.add(scene, rng, machine, role);
    }
    let operator = Operator::new(&servers.nodes, SERVERS[0]);
    servers.look_after(Authority::Operator(operator.clone()));
    servers.operator = Some(operator);
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
            bus: None,
            operator: None,
            url,
            numbers: numbers.clone(),
            next: Arc::new(AtomicU16::new(PROCESSES)),
            turns: Instant::now() + rng.ms(3_000, 8_000),
            in_trouble: false,
            agreed: Arc::default(),
            well_since_ns: None,
            well: Vec::new(),
            blind: Arc::default(),
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
            if let Some(since_ns) = self.well_since_ns.take() {
                self.well.push((since_ns, now_ns));
            }
            self.turns = Instant::now() + rng.ms(3_000, 20_000);
        } else {
            self.end_trouble();
            faults.fault("all is well");
            self.turns = Instant::now() + rng.ms(20_000, 30_000);
        }
    }

    /// Notes which processes cannot know the master: they have not reached a sentinel that knows it for long enough since it has its place.
    fn look_after(&self, authority: Authority) {
        let (net, nodes, agreed) = (self.net.clone(), self.nodes.clone(), self.agreed.clone());
        let (next, blind) = (self.next.clone(), self.blind.clone());
        tokio::spawn(async move {
            let mut all: BTreeMap<Machine, Knows> = BTreeMap::new();
            loop {
                let from_ns = clock::boot_ns();
                sleep(LOOK).await;
                let (epoch, know) = authority.know();
                let promised = authority.promised_since(from_ns);
                let now_ns = clock::boot_ns();
                if authority.agree(&nodes) && nodes.all().iter().all(|node| node.is_well()) {
                    extend(&mut agreed.lock().unwrap_or_else(PoisonError::into_inner), (from_ns, now_ns));
                }
                let mut blind = blind.lock().unwrap_or_else(PoisonError::into_inner);
                for process in PROCESSES..next.load(Ordering::Relaxed) {
                    let knows = all.entry(process).or_default();
                    if promised.iter().any(|sentinel| net.meet(process, *sentinel)) {
                        knows.hear_promise(epoch);
                    }
                    let heard = know.iter().filter(|sentinel| net.meet(process, **sentinel)).count();
                    let hears = heard >= knows.needs(epoch, authority.most());
                    if knows.has_heard(epoch, hears.then_some(now_ns), authority.hears_ns()) {
                        continue;
                    }
                    extend(blind.entry(process).or_default(), (from_ns, now_ns));
                }
            }
        });
    }

    /// From when to when masters were changing.
    fn changes_ns(&self) -> Vec<Span> {
        let changes = self.set.as_ref().map(|set| set.changes_ns());
        let taken = || Some(self.bus.as_ref()?.changes_ns().into_iter().map(|at| (at, at)).collect());
        let told = || self.operator.as_ref().map(|operator| operator.changes_ns());
        changes.or_else(taken).or_else(told).unwrap_or_default()
    }

    fn has_replicas(&self) -> bool {
        self.set.is_some() || self.bus.is_some() || self.operator.is_some()
    }

    fn sentinels(&self) -> Vec<Arc<Sentinel>> {
        self.set.as_ref().map(|set| set.all()).unwrap_or_default()
    }

    /// Something happens. Behind sentinels there is time for them to notice.
    fn fault(&mut self, machine: Machine, faults: &Log, rng: &mut Rng) -> bool {
        let node = rng.of(&self.nodes.all()).clone();
        let server = node.machine;
        let long = if self.has_replicas() && rng.percent(40) { 10_000 } else { 0 };
        match rng.below(19) {
            // A release that the server refuses is told as an error, and what it was about stays for its lease.
            16 if !self.numbers.rests => {
                let words = *rng.of(&REFUSALS);
                let time = rng.ms(1, 3_000);
                faults.fault(format!("m{server} refuses scripts for {time:?}: {words}"));
                node.refuse(words, time);
            }
            17..19 => {
                let (lag, time) = (rng.ms(1, 1_500), rng.ms(500, 10_000));
                faults.fault(format!("m{server}'s replicas are {lag:?} behind for {time:?}"));
                node.lag(lag, time);
            }
            0..3 => {
                let time = rng.ms(1, self.numbers.outage_lease_ms() * 3 / 2 + long);
                self.cut(machine, server, time, faults, rng);
            }
            3..6 => {
                // Any two that talk to each other.
                let mut machines: Vec<Machine> = self.nodes.all().iter().map(|node| node.machine).collect();
                machines.extend(self.sentinels().iter().map(|sentinel| sentinel.machine));
                machines.push(machine);
                let (one, other) = (*rng.of(&machines), *rng.of(&machines));
                if one != other {
                    let time = rng.ms(1, self.numbers.outage_lease_ms() * 3 / 2 + long);
                    self.cut(one, other, time, faults, rng);
                }
            }
            6 => {
                let time = rng.ms(1, self.numbers.outage_lease_ms() / 2 + long / 2);
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
            14 | 15 if self.operator.is_some() => {
                self.operator.iter().for_each(|operator| operator.promote(faults, rng));
            }
            13..16 if self.set.is_none() && self.has_replicas() => self.isolate(faults, rng),
            15 if self.set.is_some() => match rng.below(5) {
                0 => self.isolate(faults, rng),
                1 => self.leave_behind(faults, rng),
                2 => self.deafen(machine, faults, rng),
                _ => self.overtake(machine, faults, rng),
            },
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

    /// A sentinel hears of nobody but the processes for a time, which hear it.
    fn leave_behind(&self, faults: &Log, rng: &mut Rng) {
        let sentinel = *rng.of(&SENTINELS);
        let time = rng.ms(3_000, 30_000);
        faults.fault(format!("sentinel m{sentinel} is cut off from all servers and sentinels for {time:?}"));
        let others = SERVERS.into_iter().chain(SENTINELS).filter(|other| *other != sentinel);
        self.cut_all(others.map(|other| (sentinel, other)).collect(), time);
    }

    /// A process hears one sentinel alone for a time.
    fn deafen(&self, machine: Machine, faults: &Log, rng: &mut Rng) {
        let sentinel = *rng.of(&SENTINELS);
        let time = rng.ms(1_000, 10_000);
        faults.fault(format!("m{machine} hears no sentinel but m{sentinel} for {time:?}"));
        let others = SENTINELS.into_iter().filter(|other| *other != sentinel);
        self.cut_all(others.map(|other| (machine, other)).collect(), time);
    }

    /// The master and one sentinel lose sight of the others, which promote a replica; the processes see both sides. Then one process hears
    /// that sentinel alone.
    fn overtake(&self, machine: Machine, faults: &Log, rng: &mut Rng) {
        let sentinel = *rng.of(&SENTINELS);
        let Some(named) = self.sentinels().iter().find(|one| one.machine == sentinel).map(|one| one.names())
        else {
            return;
        };
        let (time, later, deaf) = (rng.ms(8_000, 25_000), rng.ms(3_000, 12_000), rng.ms(1_000, 10_000));
        faults.fault(format!(
            "m{named} and sentinel m{sentinel} are cut off from the others for {time:?}; after {later:?} m{machine} hears no other one for {deaf:?}"
        ));
        let others: Vec<Machine> =
            SERVERS.into_iter().chain(SENTINELS).filter(|other| ![named, sentinel].contains(other)).collect();
        let pairs =
            [named, sentinel].into_iter().flat_map(|one| others.iter().map(move |other| (one, *other)));
        self.cut_all(pairs.collect(), time);
        let net = self.net.clone();
        tokio::spawn(async move {
            sleep(later).await;
            let others = SENTINELS.into_iter().filter(|other| *other != sentinel);
            cut_all(&net, others.map(|other| (machine, other)).collect(), deaf);
        });
    }

    /// Cuts these pairs off from each other for a time.
    fn cut_all(&self, pairs: Vec<(Machine, Machine)>, time: Duration) {
        cut_all(&self.net, pairs, time);
    }

    /// The network falls into two parts for a time: some servers, sentinels and processes here, the others there.
    fn isolate(&self, faults: &Log, rng: &mut Rng) {
        let processes = (PROCESSES..self.next.load(Ordering::Relaxed)).rev().take(3);
        let servers = self.nodes.all().into_iter().map(|node| node.machine);
        let sentinels = self.sentinels().into_iter().map(|sentinel| sentinel.machine);
        let machines: Vec<Machine> = servers.chain(sentinels).chain(processes).collect();
        let (here, there): (Vec<_>, Vec<_>) = machines.into_iter().partition(|_| rng.percent(50));
        let time = rng.ms(500, 15_000);
        faults.fault(format!("{here:?} and {there:?} are cut off for {time:?}"));
        let pairs = here.iter().flat_map(|one| there.iter().map(move |other| (*one, *other)));
        self.cut_all(pairs.collect(), time);
    }

    fn end_trouble(&mut self) {
        let now_ns = clock::boot_ns();
        self.net.mend_all();
        for node in self.nodes.all() {
            node.recover();
            if !node.is_up() {
                node.revive(true);
            }
        }
        for sentinel in self.sentinels() {
            sentinel.recover();
            if !sentinel.is_up() {
                sentinel.revive();
            }
        }
        if let Some(operator) = &self.operator {
            operator.settle();
        }
        self.well_since_ns = Some(now_ns);
    }
}

impl Stage for Servers {
    fn join(&mut self) -> (usize, ClientBuilder) {
        let machine = self.next.fetch_add(1, Ordering::Relaxed);
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

    fn left(&self) -> Vec<Left> {
        self.nodes.all().iter().flat_map(|node| node.left()).collect()
    }

    fn trace(&self) -> u64 {
        self.net.figures().0
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let changes = self.changes_ns().len();
        vec![("messages", self.net.figures().1), ("changes of masters", changes as u64)]
    }

    fn excused(&self) -> Vec<(Option<usize>, Span)> {
        // What the old master had granted last may be missing at the new one.
        let changes = self.changes_ns().into_iter().map(|(from, to)| (None, (from, to + CHANGES_NS)));
        let blind = self.blind.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = blind.iter().flat_map(|(machine, spans)| spans.iter().map(move |span| (*machine, *span)));
        let blind = spans.map(|(machine, span)| (Some(usize::from(machine)), span));
        changes.chain(blind).collect()
    }

    fn well(&self) -> Vec<Span> {
        if !self.has_replicas() {
            let healed = self.well.iter().map(|(from, to)| (from + HEALS_NS, *to));
            return healed.filter(|(from, to)| to.saturating_sub(*from) > GRANTS_NS).collect();
        }
        let agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        let both = self.well.iter().flat_map(|well| {
            agreed.iter().map(move |agreed| (well.0.max(agreed.0) + HEALS_NS, well.1.min(agreed.1)))
        });
        both.filter(|(from, to)| to.saturating_sub(*from) > GRANTS_NS).collect()
    }

    fn may_vanish(&self) -> bool {
        self.has_replicas()
    }
}

/// Adds a time that may go on from the last one.
fn extend(spans: &mut Vec<Span>, (from_ns, to_ns): Span) {
    match spans.last_mut() {
        Some(last) if last.1 >= from_ns => last.1 = to_ns,
        _ => spans.push((from_ns, to_ns)),
    }
}

fn cut_all(net: &Arc<Net>, pairs: Vec<(Machine, Machine)>, time: Duration) {
    let both: Vec<_> = pairs.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]).collect();
    both.iter().for_each(|(from, to)| net.cut(*from, *to));
    let net = net.clone();
    tokio::spawn(async move {
        sleep(time).await;
        both.iter().for_each(|(from, to)| net.mend(*from, *to));
    });
}
