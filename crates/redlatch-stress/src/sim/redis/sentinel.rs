//! Simulated sentinels: they watch a master and its replicas, agree that it is down, elect a leader, and promote a replica, at the pace and
//! with the rules of the real ones.
//!
//! What they say to each other and to servers takes no time; whether it arrives depends on the network and on who stands still.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    net::{Machine, Net, host},
    node::{About, Node, Nodes, PORT as SERVER_PORT, Role},
    wire::{self, Connection, Connections, Request, Service, array, bulk, error, verb},
};
use crate::{clock, rng::Rng};

pub(super) const PORT: u16 = 26379;
/// The name of the master.
pub(super) const NAME: &str = "main";

const TICK: Duration = Duration::from_millis(100);
const PING_PERIOD: Duration = Duration::from_secs(1);
const ASK_PERIOD: Duration = Duration::from_secs(1);
const INFO_PERIOD: Duration = Duration::from_secs(10);
const HELLO_PERIOD: Duration = Duration::from_secs(2);
const ELECTION_TIME: Duration = Duration::from_secs(10);
const TILT_TRIGGER: Duration = Duration::from_secs(2);
const TILT_PERIOD: Duration = Duration::from_secs(30);
const DESYNC_MS_MAX: u64 = 1_000;

/// The settings of the set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) quorum: usize,
    pub(super) down_after: Duration,
    pub(super) failover_timeout: Duration,
}

/// What a sentinel has seen of a server.
#[derive(Debug, Clone)]
struct Seen {
    answered: Instant,
    about: Option<About>,
    informed: Option<Instant>,
    role_since: Instant,
    is_down: bool,
    /// When it began to be down for the last time.
    down_since: Option<Instant>,
    ping_due: Instant,
    is_promoted: bool,
    /// It was told in this failover which server to copy.
    is_told: bool,
}

impl Seen {
    fn new() -> Self {
        let now = Instant::now();
        Seen {
            answered: now,
            about: None,
            informed: None,
            role_since: now,
            is_down: false,
            down_since: None,
            ping_due: now,
            is_promoted: false,
            is_told: false,
        }
    }

    fn role(&self) -> Option<Role> {
        self.about.as_ref().map(|about| about.role)
    }
}

/// What a sentinel knows of another one.
#[derive(Debug, Clone)]
struct Peer {
    machine: Machine,
    /// When it said last that the master is down.
    said_down: Option<Instant>,
    /// Whom it chose, and in which epoch.
    vote: Option<(String, u64)>,
    ask_due: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    WaitsForVotes,
    Promotes,
    WaitsForPromotion,
    TellsReplicas,
}

#[derive(Debug, Clone)]
struct Failover {
    epoch: u64,
    phase: Phase,
    changed: Instant,
    promoted: Option<Machine>,
}

struct State {
    is_up: bool,
    stands_until: Instant,
    ticked: Instant,
    tilts_until: Instant,
    epoch: u64,
    config_epoch: u64,
    master: Machine,
    servers: BTreeMap<Machine, Seen>,
    peers: BTreeMap<String, Peer>,
    /// Whom it chose last, and in which epoch.
    vote: Option<(String, u64)>,
    failover: Option<Failover>,
    /// When it tried last, or let another one try.
    tried: Option<Instant>,
    hello_due: Instant,
    /// Its next hellos are due now.
    says_now: bool,
}

pub(super) struct Sentinel {
    pub(super) machine: Machine,
    id: String,
    net: Arc<Net>,
    nodes: Arc<Nodes>,
    set: Arc<Set>,
    connections: Connections,
    state: Mutex<State>,
    rng: Mutex<Rng>,
}

/// The sentinels of one set.
pub(super) struct Set {
    settings: Settings,
    /// What they publish is printed.
    is_told: bool,
    all: Mutex<Vec<Arc<Sentinel>>>,
    /// From when to when servers were being promoted, and when the master was demoted.
    changes_ns: Mutex<Vec<(u64, u64)>>,
    /// When each sentinel last led a change that no other one had heard of.
    promises_ns: Mutex<BTreeMap<Machine, u64>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Set {
    pub(super) fn new(settings: Settings, is_told: bool) -> Arc<Self> {
        Arc::new(Set {
            settings,
            is_told,
            all: Mutex::default(),
            changes_ns: Mutex::default(),
            promises_ns: Mutex::default(),
        })
    }

    pub(super) fn all(&self) -> Vec<Arc<Sentinel>> {
        locked(&self.all).clone()
    }

    /// From when to when servers were being promoted, and when the master was demoted.
    pub(super) fn changes_ns(&self) -> Vec<(u64, u64)> {
        locked(&self.changes_ns).clone()
    }

    /// The sentinels that have led a change since, of which no other one had heard: it may never be told.
    pub(super) fn promised_since(&self, since_ns: u64) -> Vec<Machine> {
        let promises = locked(&self.promises_ns);
        promises.iter().filter(|(_, at_ns)| **at_ns >= since_ns).map(|(machine, _)| *machine).collect()
    }

    /// A server is made a replica. If it is the master of the latest epoch, or the one that a leader has chosen, which stands still before it tells the others,
    /// a sentinel that has not heard of it yet takes its place away.
    fn note_correction(&self, machine: Machine) {
        let (epoch, _) = self.know();
        let is_its = |sentinel: &Arc<Sentinel>| {
            let is_named = sentinel.config_epoch() == epoch && sentinel.names() == machine;
            is_named || sentinel.has_chosen() == Some(machine)
        };
        if self.all().iter().any(is_its) {
            let now_ns = clock::boot_ns();
            locked(&self.changes_ns).push((now_ns, now_ns));
        }
    }

    /// Whether all agree on a master that is one.
    pub(super) fn agree(&self, nodes: &Nodes) -> bool {
        let all = self.all();
        let master = all.first().map(|sentinel| sentinel.names());
        let names_it = |sentinel: &Arc<Sentinel>| {
            sentinel.answers() && !sentinel.is_changing() && Some(sentinel.names()) == master
        };
        let is_master =
            master.and_then(|master| nodes.at(master)).is_some_and(|node| node.about().role == Role::Master);
        is_master && all.iter().all(names_it)
    }

    /// The latest epoch that one that answers knows, and those that name the same master by it.
    pub(super) fn know(&self) -> (u64, Vec<Machine>) {
        let answer: Vec<_> = self.all().into_iter().filter(|sentinel| sentinel.answers()).collect();
        let epoch = answer.iter().map(|sentinel| sentinel.config_epoch()).max().unwrap_or_default();
        let know = answer.iter().filter(|sentinel| sentinel.config_epoch() == epoch);
        (epoch, know.map(|sentinel| sentinel.machine).collect())
    }

    /// Starts a sentinel on each of these machines, which know each other.
    pub(super) fn start(
        self: &Arc<Self>,
        net: &Arc<Net>,
        nodes: &Arc<Nodes>,
        machines: &[Machine],
        master: Machine,
        rng: &mut Rng,
    ) {
        let ids: Vec<String> = machines.iter().map(|machine| format!("{:040x}", machine + 0x5e00)).collect();
        for (machine, id) in machines.iter().zip(&ids) {
            let others = machines.iter().zip(&ids).filter(|(other, _)| *other != machine);
            let now = Instant::now();
            let peer = |(other, id): (&Machine, &String)| {
                (id.clone(), Peer { machine: *other, said_down: None, vote: None, ask_due: now })
            };
            let state = State {
                is_up: true,
                stands_until: now,
                ticked: now,
                tilts_until: now,
                epoch: 0,
                config_epoch: 0,
                master,
                servers: nodes.all().iter().map(|node| (node.machine, Seen::new())).collect(),
                peers: others.map(peer).collect(),
                vote: None,
                failover: None,
                tried: None,
                hello_due: now,
                says_now: false,
            };
            let sentinel = Arc::new(Sentinel {
                machine: *machine,
                id: id.clone(),
                net: net.clone(),
                nodes: nodes.clone(),
                set: self.clone(),
                connections: Connections::default(),
                state: Mutex::new(state),
                rng: Mutex::new(Rng::new(rng.next())),
            });
            sentinel.listen();
            locked(&self.all).push(sentinel.clone());
            tokio::spawn(async move {
                loop {
                    let beat = locked(&sentinel.rng).ms(80, 120).max(TICK * 4 / 5);
                    sleep(beat).await;
                    let until = locked(&sentinel.state).stands_until;
                    sleep_until(until).await;
                    if sentinel.is_up() {
                        sentinel.tick();
                    } else {
                        locked(&sentinel.state).ticked = Instant::now();
                    }
                }
            });
        }
    }
}

impl Sentinel {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn listen(self: &Arc<Self>) {
        let sentinel = self.clone();
        let accept = move |end, peer| wire::serve(sentinel.clone(), end, peer);
        self.net.listen((self.machine, PORT), Arc::new(accept));
    }

    pub(super) fn is_up(&self) -> bool {
        self.state().is_up
    }

    fn is_changing(&self) -> bool {
        self.state().failover.is_some()
    }

    /// The server that it promotes just now.
    fn has_chosen(&self) -> Option<Machine> {
        self.state().failover.as_ref()?.promoted
    }

    fn config_epoch(&self) -> u64 {
        self.state().config_epoch
    }

    pub(super) fn kill(&self) {
        self.net.close((self.machine, PORT));
        self.state().is_up = false;
        self.connections.end();
        self.net.reset(self.machine);
    }

    /// It comes back with what it has on its disk: the master, the epochs, its vote, and who there is.
    pub(super) fn revive(self: &Arc<Self>) {
        {
            let mut state = self.state();
            let now = Instant::now();
            state.is_up = true;
            state.ticked = now;
            // Who has seen its choice promoted has that one on its disk, with the epoch.
            if let Some(Failover { phase: Phase::TellsReplicas, promoted: Some(promoted), .. }) =
                state.failover.take()
            {
                state.master = promoted;
            }
            state.tried = None;
            state.servers.values_mut().for_each(|seen| *seen = Seen::new());
            for peer in state.peers.values_mut() {
                (peer.said_down, peer.vote) = (None, None);
            }
        }
        self.listen();
    }

    /// Nothing is the matter with it any more.
    pub(super) fn recover(&self) {
        self.state().stands_until = Instant::now();
    }

    pub(super) fn stand_still(&self, time: Duration) {
        self.state().stands_until = Instant::now() + time;
    }

    fn answers(&self) -> bool {
        let state = self.state();
        state.is_up && state.stands_until <= Instant::now()
    }

    fn hears(&self, machine: Machine) -> bool {
        self.net.meet(self.machine, machine)
    }

    fn node(&self, machine: Machine) -> Option<Arc<Node>> {
        self.nodes.at(machine).filter(|node| self.hears(machine) && node.answers())
    }

    /// The master that it names.
    pub(super) fn names(&self) -> Machine {
        let state = self.state();
        match &state.failover {
            Some(Failover { phase: Phase::TellsReplicas, promoted: Some(promoted), .. }) => *promoted,
            _ => state.master,
        }
    }

    fn publish(&self, channel: &str, text: &str) {
        if self.set.is_told {
            let epoch = self.state().config_epoch;
            println!(
                "{} sentinel m{}: {channel} {text} (epoch {epoch})",
                clock::seconds(clock::boot_ns(), 0),
                self.machine
            );
        }
        self.connections.publish("message", channel.as_bytes(), text.as_bytes());
    }

    fn tick(self: &Arc<Self>) {
        let now = Instant::now();
        {
            let mut state = self.state();
            if now.duration_since(state.ticked) > TILT_TRIGGER {
                state.tilts_until = now + TILT_PERIOD;
            }
            state.ticked = now;
        }
        self.look(now);
        self.note_down(now);
        self.greet(now);
        if self.state().tilts_until > now {
            return;
        }
        self.ask_others(now, false);
        self.begin_failover(now);
        self.go_on(now);
        self.correct(now);
    }

    fn flags(&self, state: &State, machine: Machine, now: Instant) -> String {
        let mut flags = vec![if machine == state.master { "master" } else { "slave" }];
        let seen = state.servers.get(&machine);
        if self.is_down(state, machine, now) {
            flags.push("s_down");
        }
        if machine == state.master && self.is_down_for_most(state, now) {
            flags.push("o_down");
        }
        if machine == state.master && state.failover.is_some() {
            flags.push("failover_in_progress");
        }
        if seen.is_some_and(|seen| now.duration_since(seen.answered) > 2 * PING_PERIOD) {
            flags.push("disconnected");
        }
        if seen.is_some_and(|seen| seen.is_promoted) && state.failover.is_some() {
            flags.push("promoted");
        }
        flags.join(",")
    }

    fn server_fields(&self, state: &State, machine: Machine, now: Instant) -> Vec<Vec<u8>> {
        let seen = state.servers.get(&machine);
        let quiet_ms = seen.map_or(0, |seen| now.duration_since(seen.answered).as_millis());
        let run_id = seen.and_then(|seen| seen.about.as_ref()).map_or("", |about| &about.run_id);
        let pairs = [
            ("name", NAME.to_owned()),
            ("ip", host(machine)),
            ("port", SERVER_PORT.to_string()),
            ("runid", run_id.to_owned()),
            ("flags", self.flags(state, machine, now)),
            ("last-ok-ping-reply", quiet_ms.to_string()),
            ("config-epoch", state.config_epoch.to_string()),
            ("quorum", self.set.settings.quorum.to_string()),
        ];
        pairs.into_iter().flat_map(|(field, value)| [bulk(field), bulk(value)]).collect()
    }

    fn sentinel(&self, request: &Request) -> Vec<u8> {
        let word = |at: usize| {
            request.get(at).map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default()
        };
        let now = Instant::now();
        let names = self.names();
        let state = self.state();
        let is_ours = word(2) == NAME;
        match word(1).to_ascii_uppercase().as_str() {
            "MYID" => bulk(&self.id),
            "GET-MASTER-ADDR-BY-NAME" if is_ours => array([bulk(host(names)), bulk(SERVER_PORT.to_string())]),
            "GET-MASTER-ADDR-BY-NAME" => wire::nil(),
            _ if !is_ours => error("ERR No such master with that name"),
            "MASTER" => array(self.server_fields(&state, state.master, now)),
            "REPLICAS" => {
                let replicas = state.servers.keys().filter(|machine| **machine != state.master);
                array(replicas.map(|machine| array(self.server_fields(&state, *machine, now))))
            }
            "SENTINELS" => array(state.peers.iter().map(|(id, peer)| {
                let pairs = [("runid", id.clone()), ("ip", host(peer.machine)), ("port", PORT.to_string())];
                array(pairs.into_iter().flat_map(|(field, value)| [bulk(field), bulk(value)]))
            })),
            other => error(&format!("ERR Unknown sentinel subcommand '{other}'")),
        }
    }
}

impl Service for Sentinel {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn is_awake(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            loop {
                let until = self.state().stands_until;
                if until <= Instant::now() {
                    return;
                }
                sleep_until(until).await;
            }
        })
    }

    fn answer(self: Arc<Self>, to: Arc<Connection>, request: Request) -> BoxFuture<'static, Option<Vec<u8>>> {
        Box::pin(async move {
            if !self.is_up() {
                return None;
            }
            if let Some(bytes) = wire::common(&self.connections, &to, &request, "sentinel") {
                return Some(bytes);
            }
            Some(match verb(&request).as_str() {
                "SENTINEL" => self.sentinel(&request),
                "ROLE" => array([bulk("sentinel"), array([bulk(NAME)])]),
                "INFO" => bulk(format!("# Server\r\nredis_version:7.2.4\r\nrun_id:{}\r\n", self.id)),
                other => error(&format!("ERR unknown command '{other}', with args beginning with: ")),
            })
        })
    }
}

mod failover;
mod watch;
