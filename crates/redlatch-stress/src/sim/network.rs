//! The simulated network between processes and the server: it delays, reorders, loses, and is cut.
//!
//! A message that is lost is lost without a word. A cut ends the connections of a process, as TCP would have it: what was told
//! meanwhile is missing, and when the cut is over, listeners are told that they may have missed something.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redlatch::{
    Error, ErrorKind,
    store::{
        Call, ChangeHook, Event, Fault, Listener, Reply, RunFuture, Store, SubscribeFuture, Subscription,
        WatchFuture,
    },
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::server::{Carrier, Server, bytes};
use crate::{bed::ends_a_hold, rng::Rng};

/// How long it takes a process to learn that nobody can be reached.
const REFUSAL: Duration = Duration::from_millis(30);
/// How much longer than everything else a message may take that comes late.
const LATE_MS_MAX: u64 = 2_500;

/// How bad the network is, in thousandths of all messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) lost: u64,
    /// Some ms instead of parts of one.
    pub(super) slow: u64,
    /// So late that nobody waits any more.
    pub(super) late: u64,
    /// Some ms longer, of the requests that end a hold.
    pub(super) slow_endings: u64,
}

/// Which way of a process to the server is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Both,
    Requests,
    Replies,
}

/// One process, as the network sees it.
#[derive(Clone)]
struct Node {
    cut: Option<Cut>,
    /// It was killed: nothing of it is sent any more, and nothing arrives.
    dead: bool,
    interrupted: Option<Arc<dyn Fn() + Send + Sync>>,
}

pub(super) struct Network {
    server: Server,
    weather: Weather,
    response: Duration,
    rng: Mutex<Rng>,
    nodes: Mutex<Vec<Node>>,
    /// Nothing is lost or late.
    calm: AtomicBool,
    /// The server answers nothing until then.
    stands_until: Mutex<Instant>,
    begin: Instant,
    trace: AtomicU64,
    calls: AtomicU64,
    lost: AtomicU64,
    tickets: AtomicU64,
    /// The longest lease that is renewed.
    lease: Duration,
    /// Which names had a hold counted down by a request that was on its way for longer than a lease, and when.
    counted_late: Mutex<Vec<(String, u64)>>,
    /// Whose calls are told: those with a key in which this occurs.
    told: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Carrier for Network {
    fn deliver(self: Arc<Self>, process: usize, message: Box<dyn FnOnce() + Send>) {
        if self.is_lost() || self.is_cut(process, Cut::Replies) {
            return;
        }
        let (network, delay) = (self.clone(), self.delay());
        tokio::spawn(async move {
            sleep(delay).await;
            if !network.is_cut(process, Cut::Replies) {
                network.note(process as u64 + 101);
                message();
            }
        });
    }
}

impl Network {
    pub(super) fn new(
        server: Server,
        weather: Weather,
        response: Duration,
        lease: Duration,
        told: Option<String>,
        rng: Rng,
    ) -> Arc<Self> {
        let begin = Instant::now();
        let network = Arc::new(Network {
            server,
            weather,
            response,
            rng: Mutex::new(rng),
            nodes: Mutex::default(),
            calm: AtomicBool::new(false),
            stands_until: Mutex::new(begin),
            begin,
            trace: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            tickets: AtomicU64::new(0),
            lease,
            counted_late: Mutex::default(),
            told,
        });
        let carrier: Arc<dyn Carrier> = network.clone();
        network.server.connect(Arc::downgrade(&carrier));
        network
    }

    /// A new process, and its way to the server.
    pub(super) fn join(self: &Arc<Self>) -> (usize, Arc<dyn Store>) {
        let mut nodes = locked(&self.nodes);
        nodes.push(Node { cut: None, dead: false, interrupted: None });
        let process = nodes.len() - 1;
        (process, Arc::new(Link { network: self.clone(), process }))
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Numbers of this run: the hash of what happened when, how many calls were run, how many messages were lost.
    pub(super) fn figures(&self) -> (u64, u64, u64) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (read(&self.trace), read(&self.calls), read(&self.lost))
    }

    pub(super) fn counted_late(&self) -> Vec<(String, u64)> {
        locked(&self.counted_late).clone()
    }

    /// What runs now may end the hold that another process has taken under the same owner since.
    fn note_if_counted_late(&self, call: &Call, sent: Duration) {
        let now = self.begin.elapsed();
        if call.script.name().ends_with("release_one") && now - sent > self.lease {
            let name = String::from_utf8_lossy(&call.keys[0]).into_owned();
            locked(&self.counted_late).push((name, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)));
        }
    }

    fn note(&self, what: u64) {
        let now_us = self.begin.elapsed().as_micros() as u64;
        let mixed = (self.trace.load(Ordering::Relaxed) ^ now_us ^ what.rotate_left(40))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace.store(mixed.rotate_left(29), Ordering::Relaxed);
    }

    fn delay(&self) -> Duration {
        let mut rng = locked(&self.rng);
        match rng.below(1_000) {
            part if part < self.weather.late && !self.is_calm() => rng.ms(0, LATE_MS_MAX),
            part if part < self.weather.late + self.weather.slow => rng.ms(1, 40),
            _ => rng.ms(0, 1),
        }
    }

    /// How much longer a request takes for what it is.
    fn longer(&self, call: &Call) -> Duration {
        if self.weather.slow_endings == 0 || !ends_a_hold(call.script) {
            return Duration::ZERO;
        }
        let mut rng = locked(&self.rng);
        if rng.below(1_000) < self.weather.slow_endings { rng.ms(1, 60) } else { Duration::ZERO }
    }

    fn is_lost(&self) -> bool {
        let lost = locked(&self.rng).below(1_000) < self.weather.lost && !self.is_calm();
        self.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
        lost
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    pub(super) fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    fn is_cut(&self, process: usize, way: Cut) -> bool {
        let node = &locked(&self.nodes)[process];
        node.dead || node.cut.is_some_and(|cut| cut == Cut::Both || cut == way)
    }

    /// Cuts a process off.
    pub(super) fn cut(&self, process: usize, cut: Cut) {
        locked(&self.nodes)[process].cut = Some(cut);
    }

    /// Mends the way of a process; those who listened there are told, and what is held is looked after.
    pub(super) fn mend(&self, process: usize) {
        let interrupted = {
            let node = &mut locked(&self.nodes)[process];
            if node.dead || node.cut.take().is_none() {
                return;
            }
            node.interrupted.clone()
        };
        if let Some(interrupted) = interrupted {
            interrupted();
        }
        for listener in self.server.listeners_of(process) {
            listener(Event::Resumed);
        }
    }

    pub(super) fn kill(&self, process: usize) {
        locked(&self.nodes)[process].dead = true;
    }

    /// The server's process stands still.
    pub(super) fn stand_still(&self, time: Duration) {
        let mut until = locked(&self.stands_until);
        *until = (*until).max(Instant::now() + time);
    }

    /// Prints a call that was asked for.
    fn tell(&self, process: usize, sent: Duration, call: &Call, outcome: &str) {
        let Some(part) = &self.told else { return };
        let keys: Vec<_> = call.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        if keys.iter().any(|key| key.contains(part)) {
            let now = self.begin.elapsed().as_secs_f64();
            let (sent, script) = (sent.as_secs_f64(), call.script.name());
            let args: Vec<_> =
                call.args.iter().map(|arg| String::from_utf8_lossy(&bytes(arg)).into_owned()).collect();
            println!(
                "{now:.3} n{process} {script} (sent {sent:.3}) {} {} : {outcome}",
                keys.join(" "),
                args.join(" "),
            );
        }
    }

    fn unanswered() -> Fault {
        Fault::Unknown(Error::new(ErrorKind::Unreachable, "no answer in time"))
    }

    async fn call(self: Arc<Self>, process: usize, call: Call) -> Result<Reply, Fault> {
        if self.is_cut(process, Cut::Both) && locked(&self.rng).percent(50) {
            sleep(REFUSAL).await;
            return Err(Fault::NotSent(Error::new(ErrorKind::Unreachable, "nobody answers")));
        }
        let (answer, answered) = oneshot::channel();
        let (network, sent) = (self.clone(), self.begin.elapsed());
        // What has been sent goes on its way, also when its caller has gone.
        let longer = self.longer(&call);
        tokio::spawn(async move {
            sleep(network.delay() + longer).await;
            let until = *locked(&network.stands_until);
            sleep_until(until).await;
            if network.is_lost() || network.is_cut(process, Cut::Requests) {
                network.tell(process, sent, &call, "never arrives");
                return;
            }
            network.note_if_counted_late(&call, sent);
            let outcome = network.server.run(&call);
            network.tell(process, sent, &call, &format!("{outcome:?}"));
            network.calls.fetch_add(1, Ordering::Relaxed);
            network.note((call.script.name().len() * 1_000 + process) as u64);
            sleep(network.delay()).await;
            if network.is_lost() || network.is_cut(process, Cut::Replies) {
                network.tell(process, sent, &call, "its answer never arrives");
            } else if answer.send(outcome).is_err() {
                network.tell(process, sent, &call, "nobody waits for its answer any more");
            }
        });
        match timeout(self.response, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => {
                // The message is lost, which its sender learns when the time is up.
                sleep(self.response).await;
                Err(Self::unanswered())
            }
            Err(_) => Err(Self::unanswered()),
        }
    }
}

/// The way of one process.
struct Link {
    network: Arc<Network>,
    process: usize,
}

struct Ticket {
    network: Arc<Network>,
    channel: Arc<[u8]>,
    number: u64,
}

impl Subscription for Ticket {}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.network.server.unsubscribe(self.number, &self.channel);
    }
}

impl Store for Link {
    fn run(&self, call: Call) -> RunFuture {
        Box::pin(self.network.clone().call(self.process, call))
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        let (network, process) = (self.network.clone(), self.process);
        Box::pin(async move {
            sleep(network.delay()).await;
            if network.is_cut(process, Cut::Requests) {
                sleep(network.response).await;
                return Err(Network::unanswered());
            }
            let number = network.tickets.fetch_add(1, Ordering::Relaxed);
            network.server.subscribe(number, process, &channel, listener);
            let ticket: Box<dyn Subscription> =
                Box::new(Ticket { network: network.clone(), channel, number });
            sleep(network.delay()).await;
            if network.is_cut(process, Cut::Replies) {
                sleep(network.response).await;
                return Err(Network::unanswered());
            }
            Ok(ticket)
        })
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        locked(&self.network.nodes)[self.process].interrupted = Some(hook);
    }

    fn on_change(&self, hook: ChangeHook) {
        self.network.server.on_change(self.process, hook);
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        let (network, process) = (self.network.clone(), self.process);
        Box::pin(async move {
            sleep(network.delay()).await;
            if network.is_cut(process, Cut::Requests) {
                sleep(network.response).await;
                return Err(Network::unanswered());
            }
            let there = network.server.watch(&keys);
            sleep(network.delay()).await;
            Ok(Some(there))
        })
    }

    fn describe(&self) -> String {
        "a simulated server".into()
    }
}
