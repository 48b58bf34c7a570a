//! A simulated Redis: the engine with the scripts that are shipped, as a master or a replica, behind connections.
//!
//! A master's changes go to its replicas as a stream with a delay. A server that was killed comes back with the data that it had, or with none.

mod copying;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use redlatch_engine::{Effect, Engine, Publisher};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::copying::{Record, Stream};
use super::{
    net::{Machine, Net, host},
    wire::{self, Connection, Connections, Request, Service, array, bulk, error, int, ok, verb},
};
use crate::{
    rng::Rng,
    sim::{
        left::{self, Left},
        server::MachineClock,
    },
};

pub(super) const PORT: u16 = 6379;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    ReplicaOf(Machine),
}

/// What makes a server a node of a cluster.
pub(super) trait ClusterPart: Send + Sync {
    /// The refusal of a request that is about keys of others, or comes while the cluster is down.
    fn refusal(&self, request: &Request) -> Option<Vec<u8>>;
    /// The answer to `CLUSTER`.
    fn tell(&self, request: &Request) -> Vec<u8>;
    /// Hands a message to the subscribers at the other nodes.
    fn spread(&self, channel: &[u8], payload: &[u8]);
}

/// Where the engine's messages and changes go: to the connections, in the name of the one whose request runs.
struct Board {
    connections: Connections,
    runs_for: AtomicU64,
    cluster: OnceLock<Arc<dyn ClusterPart>>,
}

impl Publisher for Board {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        if let Some(member) = self.cluster.get() {
            member.spread(channel, payload);
        }
        self.connections.publish("message", channel, payload)
    }

    fn publish_sharded(&self, channel: &[u8], payload: &[u8]) -> usize {
        self.connections.publish("smessage", channel, payload)
    }

    fn changed(&self, key: &[u8]) {
        let by = self.runs_for.load(Ordering::Relaxed);
        self.connections.changed(key, (by > 0).then_some(by));
    }

    fn cleared(&self) {
        self.connections.cleared();
    }
}

struct State {
    engine: Engine,
    stream: Arc<Mutex<Stream>>,
    role: Role,
    run_id: String,
    history: String,
    history_before: String,
    /// It has what its master has, and hears of changes.
    linked: bool,
    /// It has had its master's data.
    has_copied: bool,
    /// What its replicas have.
    acked: BTreeMap<Machine, u64>,
    is_up: bool,
    stands_until: Instant,
    loads_until: Instant,
    /// It refuses scripts until then, in these words.
    refuses: Option<(Instant, &'static str)>,
    /// What it tells its replicas takes so much longer until then.
    lags: Option<(Instant, Duration)>,
    /// Counts starts and changes of role: what was begun before is not gone on with.
    era: u64,
}

pub(super) struct Node {
    pub(super) machine: Machine,
    net: Arc<Net>,
    board: Arc<Board>,
    clock: MachineClock,
    state: Mutex<State>,
    rng: Mutex<Rng>,
    /// There are changes, or acknowledgements, or another role.
    news: Notify,
    nodes: Arc<Nodes>,
    pub(super) told: Option<String>,
}

/// All servers, by their machines.
#[derive(Default)]
pub(super) struct Nodes(Mutex<BTreeMap<Machine, Arc<Node>>>);

impl Nodes {
    pub(super) fn at(&self, machine: Machine) -> Option<Arc<Node>> {
        locked(&self.0).get(&machine).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        locked(&self.0).values().cloned().collect()
    }
}

/// What `INFO` and `ROLE` are asked for, as sentinels read it.
#[derive(Debug, Clone)]
pub(super) struct About {
    pub(super) role: Role,
    pub(super) linked: bool,
    pub(super) offset: u64,
    pub(super) run_id: String,
    /// The replicas that are connected.
    pub(super) replicas: Vec<Machine>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_id(rng: &mut Rng) -> String {
    format!("{:016x}{:016x}{:08x}", rng.next(), rng.next(), rng.next() as u32)
}

fn engine(clock: MachineClock, board: &Arc<Board>, stream: &Arc<Mutex<Stream>>) -> Engine {
    let record = Box::new(Record(stream.clone()));
    Engine::with_journal(Arc::new(clock), board.clone(), record).expect("there is memory for a Lua state")
}

impl Node {
    pub(super) fn start(
        net: &Arc<Net>,
        nodes: &Arc<Nodes>,
        machine: Machine,
        role: Role,
        clock: MachineClock,
        mut rng: Rng,
        told: Option<String>,
    ) -> Arc<Node> {
        let board = Arc::new(Board {
            connections: Connections::default(),
            runs_for: AtomicU64::new(0),
            cluster: OnceLock::new(),
        });
        let stream = Arc::default();
        let state = State {
            engine: engine(clock, &board, &stream),
            stream,
            role,
            run_id: new_id(&mut rng),
            history: new_id(&mut rng),
            history_before: String::new(),
            linked: false,
            has_copied: false,
            acked: BTreeMap::new(),
            is_up: true,
            stands_until: Instant::now(),
            loads_until: Instant::now(),
            refuses: None,
            lags: None,
            era: 1,
        };
        let node = Arc::new(Node {
            machine,
            net: net.clone(),
            board,
            clock,
            state: Mutex::new(state),
            rng: Mutex::new(rng),
            news: Notify::new(),
            nodes: nodes.clone(),
            told,
        });
        locked(&nodes.0).insert(machine, node.clone());
        node.listen();
        node.follow();
        node
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn listen(self: &Arc<Self>) {
        let node = self.clone();
        self.net.listen(
            (self.machine, PORT),
            Arc::new(move |end, peer| {
                wire::serve(node.clone(), end, peer);
            }),
        );
    }

    /// The process is killed. What its replicas do not have is on its disk.
    pub(super) fn kill(&self) {
        self.net.close((self.machine, PORT));
        {
            let mut state = self.state();
            state.is_up = false;
            state.linked = false;
            state.era += 1;
        }
        self.board.connections.end();
        self.net.reset(self.machine);
        self.news.notify_waiters();
    }

    /// The process is started again, with the data on its disk or without, and in the role that its configuration says.
    pub(super) fn revive(self: &Arc<Self>, with_data: bool) {
        let (run_id, history, loads) = {
            let mut rng = locked(&self.rng);
            (new_id(&mut rng), new_id(&mut rng), rng.ms(1, 300))
        };
        {
            let mut state = self.state();
            let data = state.engine.snapshot();
            let since = locked(&state.stream).offset();
            let stream = Arc::new(Mutex::new(Stream { effects: Vec::new(), since }));
            state.engine = engine(self.clock, &self.board, &stream);
            if with_data {
                state.engine.restore(data, false);
            }
            state.stream = stream;
            (state.run_id, state.history, state.history_before) = (run_id, history, String::new());
            state.acked.clear();
            state.is_up = true;
            state.loads_until = Instant::now() + loads;
            state.era += 1;
        }
        self.listen();
        self.follow();
    }

    /// The process stands still.
    pub(super) fn stand_still(&self, time: Duration) {
        self.state().stands_until = Instant::now() + time;
    }

    /// Whether it serves, as a master or as a replica that has its master's data.
    pub(super) fn is_well(&self) -> bool {
        let state = self.state();
        let now = Instant::now();
        let is_busy = state.loads_until > now || state.stands_until > now;
        state.is_up && !is_busy && (state.role == Role::Master || state.linked)
    }

    /// Nothing is the matter with it any more.
    pub(super) fn recover(&self) {
        let mut state = self.state();
        (state.refuses, state.lags, state.stands_until) = (None, None, Instant::now());
    }

    /// Refuses scripts for a time, as one that is full does, or that has taken a right away.
    pub(super) fn refuse(&self, words: &'static str, time: Duration) {
        self.state().refuses = Some((Instant::now() + time, words));
    }

    /// Its replicas hear of each change so much later for a time.
    pub(super) fn lag(&self, lag: Duration, time: Duration) {
        self.state().lags = Some((Instant::now() + time, lag));
    }

    fn lag_now(&self) -> Duration {
        let lags = self.state().lags.filter(|(until, _)| *until > Instant::now());
        lags.map_or(Duration::ZERO, |(_, lag)| lag)
    }

    pub(super) fn forget_scripts(&self) {
        self.state().engine.flush_scripts();
    }

    pub(super) fn is_up(&self) -> bool {
        self.state().is_up
    }

    /// Whether it answers now.
    pub(super) fn answers(&self) -> bool {
        let state = self.state();
        state.is_up && state.stands_until <= Instant::now()
    }

    pub(super) fn about(&self) -> About {
        let state = self.state();
        let (role, linked) = (state.role, state.linked);
        let offset = locked(&state.stream).offset();
        let run_id = state.run_id.clone();
        drop(state);
        About { role, linked, offset, run_id, replicas: self.replicas() }
    }

    /// The replicas that hear of its changes.
    fn replicas(&self) -> Vec<Machine> {
        let is_mine = |node: &Arc<Node>| {
            let state = node.state();
            node.machine != self.machine
                && state.is_up
                && state.linked
                && state.role == Role::ReplicaOf(self.machine)
        };
        self.nodes.all().iter().filter(|node| is_mine(node)).map(|node| node.machine).collect()
    }

    /// It is a node of a cluster.
    pub(super) fn join(&self, part: Arc<dyn ClusterPart>) {
        let _first = self.board.cluster.set(part);
    }

    /// A message of another node of the cluster.
    pub(super) fn deliver(&self, channel: &[u8], payload: &[u8]) {
        self.board.connections.publish("message", channel, payload);
    }

    pub(super) fn has_copied(&self) -> bool {
        self.state().has_copied
    }

    /// `REPLICAOF`, and the end of all clients' connections, as sentinels have it.
    pub(super) fn become_a(self: &Arc<Self>, role: Role) {
        if self.turn_into(role) {
            self.board.connections.end();
        }
    }

    /// Takes another role. `false` if it is the one that it has.
    pub(super) fn turn_into(self: &Arc<Self>, role: Role) -> bool {
        {
            let mut state = self.state();
            if state.role == role {
                return false;
            }
            if role == Role::Master {
                let next = new_id(&mut locked(&self.rng));
                state.history_before = std::mem::replace(&mut state.history, next);
            }
            state.role = role;
            (state.linked, state.has_copied) = (false, false);
            state.acked.clear();
            state.era += 1;
        }
        self.news.notify_waiters();
        self.follow();
        true
    }

    pub(super) fn left(&self) -> Vec<Left> {
        left::all(self.state().engine.dump())
    }

    /// Runs a script; a replica lets it read and takes back what it would write.
    fn script(&self, to: &Connection, request: &Request) -> Vec<u8> {
        let text =
            |at: usize| String::from_utf8_lossy(request.get(at).map_or(&[][..], Vec::as_slice)).into_owned();
        let Ok(count) = text(2).parse::<usize>() else { return error("ERR value is not an integer") };
        if request.len() < 3 + count {
            return error("ERR Number of keys can't be greater than number of args");
        }
        let (keys, args) = request[3..].split_at(count);
        let mut state = self.state();
        if let Some((_, words)) = state.refuses.filter(|(until, _)| *until > Instant::now()) {
            return error(words);
        }
        let is_master = state.role == Role::Master;
        let before = if is_master { Vec::new() } else { state.engine.snapshot() };
        let recorded = locked(&state.stream).effects.len();
        self.board.runs_for.store(to.id, Ordering::Relaxed);
        let outcome = match verb(request).as_str() {
            "EVALSHA" => state.engine.eval_sha(&text(1), keys, args),
            _ => state.engine.eval(&request[1], keys, args),
        };
        self.board.runs_for.store(0, Ordering::Relaxed);
        let wrote = locked(&state.stream).effects.len() > recorded;
        if wrote && !is_master {
            locked(&state.stream).effects.truncate(recorded);
            state.engine.restore(std::iter::once(Effect::Clear).chain(before), false);
            return error("READONLY You can't write against a read only replica.");
        }
        if wrote {
            to.written.store(locked(&state.stream).offset(), Ordering::Relaxed);
            self.news.notify_waiters();
        }
        drop(state);
        if let Some(part) = &self.told
            && keys.iter().any(|key| String::from_utf8_lossy(key).contains(part))
        {
            let args: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
            println!(
                "{} m{} {} {} {} : {outcome:?}",
                crate::clock::seconds(crate::clock::boot_ns(), 0),
                self.machine,
                to.peer,
                text(1).chars().take(8).collect::<String>(),
                args.join(" ")
            );
        }
        match outcome {
            Ok(found) => wire::value(&found),
            Err(refused) => error(&refused.to_string()),
        }
    }

    fn exists(&self, to: &Connection, keys: &[Vec<u8>]) -> Vec<u8> {
        let armed = to.caching.swap(false, Ordering::Relaxed) && to.is_tracking.load(Ordering::Relaxed);
        if armed {
            self.board.connections.track(to, keys);
        }
        int(self.state().engine.watch(keys) as i64)
    }

    fn info(&self, section: &str) -> Vec<u8> {
        let about = self.about();
        let state = self.state();
        if section == "server" {
            return bulk(format!("# Server\r\nredis_version:7.2.4\r\nrun_id:{}\r\n", state.run_id));
        }
        let role = match state.role {
            Role::Master => format!("role:master\r\nconnected_slaves:{}\r\n", about.replicas.len()),
            Role::ReplicaOf(master) => format!(
                "role:slave\r\nmaster_host:{}\r\nmaster_port:{PORT}\r\nmaster_link_status:{}\r\nconnected_slaves:{}\r\n",
                host(master),
                if state.linked { "up" } else { "down" },
                about.replicas.len()
            ),
        };
        bulk(format!(
            "# Replication\r\n{role}master_replid:{}\r\nmaster_replid2:{:0>40}\r\nmaster_repl_offset:{}\r\n",
            state.history, state.history_before, about.offset
        ))
    }

    fn role(&self) -> Vec<u8> {
        let About { role, linked, offset, replicas, .. } = self.about();
        match role {
            Role::Master => {
                let replica = |machine: &Machine| {
                    array([bulk(host(*machine)), bulk(PORT.to_string()), bulk(offset.to_string())])
                };
                array([bulk("master"), int(offset as i64), array(replicas.iter().map(replica))])
            }
            Role::ReplicaOf(master) => array([
                bulk("slave"),
                bulk(host(master)),
                int(i64::from(PORT)),
                bulk(if linked { "connected" } else { "connect" }),
                int(offset as i64),
            ]),
        }
    }

    /// `WAIT`: how many replicas have what the connection wrote last.
    async fn wait(&self, wanted: usize, time: Duration, written: u64) -> Vec<u8> {
        let era = self.state().era;
        let until = Instant::now() + time;
        loop {
            let news = self.news.notified();
            let (is_here, count) = {
                let state = self.state();
                let count = state.acked.values().filter(|acked| **acked >= written).count();
                (state.era == era, count)
            };
            if !is_here {
                return error(
                    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
                );
            }
            if count >= wanted || Instant::now() >= until {
                return int(count as i64);
            }
            tokio::select! {
                biased;
                () = news => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

impl Service for Node {
    fn connections(&self) -> &Connections {
        &self.board.connections
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
            let loads = self.state().loads_until > Instant::now();
            let (verb, member) = (verb(&request), self.board.cluster.get());
            if let Some(refusal) = member.and_then(|member| member.refusal(&request)).filter(|_| !loads) {
                return Some(refusal);
            }
            let mode = if member.is_some() { "cluster" } else { "standalone" };
            if let Some(bytes) = wire::common(&self.board.connections, &to, &request, mode) {
                return Some(bytes);
            }
            let section = || request.get(1).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase());
            Some(match verb.as_str() {
                "INFO" => self.info(&section().unwrap_or_default()),
                _ if loads => error("LOADING Redis is loading the dataset in memory"),
                "ROLE" => self.role(),
                "EVALSHA" | "EVAL" => self.script(&to, &request),
                "EXISTS" => self.exists(&to, &request[1..]),
                "WAIT" => {
                    let number =
                        |at: usize| String::from_utf8_lossy(&request[at]).parse::<u64>().unwrap_or(0);
                    let (wanted, ms) = (number(1) as usize, number(2));
                    self.wait(wanted, Duration::from_millis(ms), to.written.load(Ordering::Relaxed)).await
                }
                "CLUSTER" => match member {
                    Some(member) => member.tell(&request),
                    None => error("ERR This instance has cluster support disabled"),
                },
                "READONLY" | "ASKING" => ok(),
                _ => error(&format!("ERR unknown command '{verb}', with args beginning with: ")),
            })
        })
    }
}
