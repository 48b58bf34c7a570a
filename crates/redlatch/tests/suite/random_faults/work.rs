//! Tasks that take locks of all kinds, hold them, and let go of them in every way there is.

use std::{
    collections::BTreeMap,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{
    AnyGuard, Client, Error, ErrorKind, Guard, Lease, Member, MultiGuard, MultiLock, PermitGuard,
    QuorumGuard, QuorumLock, Unlocked, Wait,
};
use redlatch_testkit::{
    cancel::{DropMoment, poll_n_then_drop_at},
    stall::awake_since,
};

use super::{
    RESPONSE_TIME,
    judge::{Book, Mode, Span},
    rng::Rng,
};
use crate::{
    fixture::ms,
    kinds::{AnyLock, Face},
};

/// Permits of each semaphore.
pub(super) const CAPACITY: u32 = 3;
pub(super) const SEMAPHORE: &str = "sem";
pub(super) const PERMITS: &str = "permits";
pub(super) const LATCH: &str = "latch";
pub(super) const QUORUM: &str = "quorum";
pub(super) const READ_WRITE: &str = "rw";
/// Names that several kinds may share, because their format is the same.
pub(super) const PLAIN: [&str; 2] = ["plain-a", "plain-b"];
pub(super) const SPIN: &str = "spin";
/// The lease of those who hold for seconds: none of them tells by its renewal what only a look can tell.
const LONG_LEASE: Lease = Lease::RenewedEvery(ms(15_000));
/// Names of those who hold for seconds.
pub(super) const LONG: [&str; 4] = ["long-a", "long-b", "long-c", "long-d"];
pub(super) const FAIR: [&str; 2] = ["fair-a", "fair-b"];

/// How much later than its limit a wait may end, besides what one answer may take.
const LATE_MAX: Duration = Duration::from_secs(2);
/// A release ends when its outcome is known or the lease has ended; and one request more.
const GIVE_BACK_MAX: Duration = Duration::from_secs(16);
/// How long after its deadline a holder may be told, on a busy machine.
const NOTICE_MAX: Duration = Duration::from_secs(5);

/// What all tasks share.
pub(super) struct Shared {
    pub(super) book: Book,
    /// One set of clients for each process that is played; replaced when one is shut down.
    pub(super) clients: Vec<Mutex<Clients>>,
    pub(super) stop: AtomicBool,
    /// What each task is at, for those that do not end.
    pub(super) doing: Mutex<BTreeMap<u64, (Instant, String)>>,
    /// Whether the servers keep what they have been told, so that semaphores add up.
    pub(super) keeps_data: bool,
}

/// The clients of one process: of the servers under test, and of those of a quorum.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) main: Client,
    pub(super) quorum: Vec<Client>,
}

enum Held {
    Lock(Guard),
    Multi(MultiGuard),
    Quorum(QuorumGuard),
    Permits(PermitGuard),
}

impl Held {
    fn is_valid(&self) -> bool {
        match self {
            Held::Lock(guard) => guard.is_valid(),
            Held::Multi(guard) => guard.is_valid(),
            Held::Quorum(guard) => guard.is_valid(),
            Held::Permits(guard) => guard.is_valid(),
        }
    }

    fn token(&self) -> Option<u64> {
        match self {
            Held::Lock(guard) => guard.token(),
            _ => None,
        }
    }

    async fn lost(&self) -> String {
        match self {
            Held::Lock(guard) => format!("{:?}", guard.lost().await),
            Held::Multi(guard) => format!("{:?}", guard.lost().await),
            Held::Quorum(guard) => format!("{:?}", guard.lost().await),
            Held::Permits(guard) => format!("{:?}", guard.lost().await),
        }
    }

    async fn release(self) -> Result<bool, Error> {
        let clean = |unlocked: Unlocked| matches!(unlocked, Unlocked::Released | Unlocked::StillHeld(_));
        match self {
            Held::Lock(guard) => guard.unlock().await.map(clean),
            Held::Multi(guard) => Ok(guard.unlock().await.is_clean()),
            Held::Quorum(guard) => Ok(guard.unlock().await.is_clean()),
            Held::Permits(guard) => guard.release().await.map(clean),
        }
    }
}

type Getting<'a> = Pin<Box<dyn Future<Output = Result<Option<Held>, Error>> + Send + 'a>>;

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) process: usize,
    pub(super) task: u64,
    pub(super) rng: Rng,
    /// Holds for seconds, so that there are holders that a change of master takes something from.
    pub(super) long: bool,
}

/// An acquire to come.
struct Order {
    what: String,
    /// The names, with who may be there besides, and how many permits.
    names: Vec<(&'static str, Mode, u32)>,
    wait: Wait,
    quorum: bool,
    stay: Option<Duration>,
}

impl Worker {
    pub(super) async fn work(mut self) {
        let mut turn = 0_u64;
        while !self.shared.stop.load(Ordering::Relaxed) {
            turn += 1;
            let who = format!("{}.{}.{turn}", self.process, self.task);
            let clients = self.shared.clients[self.process].lock().unwrap().clone();
            match self.rng.below(100) {
                _ if self.long => self.long(&clients.main, &who).await,
                0..=9 => self.semaphore(&clients.main, &who).await,
                10..=16 => self.latch(&clients.main, &who).await,
                _ => self.lock(&clients, &who).await,
            }
            self.doing("resting");
            let rest = self.rng.time(0, 12);
            tokio::time::sleep(rest).await;
        }
        self.shared.doing.lock().unwrap().remove(&self.task);
    }

    fn doing(&self, what: impl Into<String>) {
        self.shared.doing.lock().unwrap().insert(self.task, (Instant::now(), what.into()));
    }

    fn book(&self) -> &Book {
        &self.shared.book
    }

    fn some_wait(&mut self) -> Wait {
        match self.rng.below(10) {
            0 => Wait::No,
            1..=5 => Wait::AtMost(self.rng.time(20, 2_500)),
            _ => Wait::Forever,
        }
    }

    fn some_lease(&mut self) -> Lease {
        match self.rng.below(10) {
            0..=1 => Lease::Fixed(self.rng.time(300, 1_500)),
            2 => Lease::RenewedEvery(self.rng.time(1_000, 3_000)),
            _ => Lease::Renewed,
        }
    }

    /// Puts an acquire of some kind together.
    fn order<'a>(&mut self, clients: &'a Clients) -> (Order, Getting<'a>) {
        let (wait, lease) = (self.some_wait(), self.some_lease());
        let client = &clients.main;
        let kind = self.rng.below(100);
        if kind < 8 && !clients.quorum.is_empty() {
            let members: Vec<Member> =
                clients.quorum.iter().map(|client| client.lock(QUORUM).into()).collect();
            let order = Order {
                what: format!("quorum {wait:?} {lease:?}"),
                names: vec![(QUORUM, Mode::Alone, 1)],
                wait,
                quorum: true,
                stay: None,
            };
            let getting = async move {
                let lock = QuorumLock::new(members)?;
                Ok(lock.acquire().wait(wait).lease(lease).await?.map(Held::Quorum))
            };
            return (order, Box::pin(getting));
        }
        if kind < 18 {
            let names = [PLAIN[0], PLAIN[1], FAIR[0]];
            let members: Vec<Member> = vec![
                client.lock(PLAIN[0]).into(),
                client.lock(PLAIN[1]).into(),
                client.fair_lock(FAIR[0]).into(),
            ];
            let order = Order {
                what: format!("multi {wait:?} {lease:?}"),
                names: names.into_iter().map(|name| (name, Mode::Alone, 1)).collect(),
                wait,
                quorum: false,
                stay: None,
            };
            let getting = async move {
                let lock = MultiLock::new(members)?;
                Ok(lock.acquire().wait(wait).lease(lease).await?.map(Held::Multi))
            };
            return (order, Box::pin(getting));
        }
        if kind < 30 {
            let weight = 1 + self.rng.below(2) as u32;
            let order = Order {
                what: format!("{weight} permits {wait:?} {lease:?}"),
                names: vec![(PERMITS, Mode::Permits { capacity: CAPACITY }, weight)],
                wait,
                quorum: false,
                stay: None,
            };
            let permits = client.permit_semaphore(PERMITS);
            let getting = async move {
                let request = permits.request().permits(weight).wait(wait).lease(lease);
                Ok(request.into_future().await?.map(Held::Permits))
            };
            return (order, Box::pin(getting));
        }
        if kind < 42 {
            let order = Order {
                what: format!("read {wait:?} {lease:?}"),
                names: vec![(READ_WRITE, Mode::Read, 1)],
                wait,
                quorum: false,
                stay: None,
            };
            let lock = client.read_write_lock(READ_WRITE);
            let getting = async move {
                let guard = lock.read().acquire().wait(wait).lease(lease).await?;
                Ok(guard.map(|guard| Held::Lock(guard.into_guard())))
            };
            return (order, Box::pin(getting));
        }
        let (face, name) = match kind {
            42..=52 => (Face::Write, READ_WRITE),
            53..=76 => {
                let name = self.rng.of(&FAIR);
                (self.rng.of(&[Face::Fair, Face::Fair, Face::NonReentrantFair]), name)
            }
            77..=82 => (Face::Spin, SPIN),
            _ => {
                let name = self.rng.of(&PLAIN);
                (self.rng.of(&[Face::Plain, Face::Plain, Face::Fenced, Face::NonReentrant]), name)
            }
        };
        let fenced = face != Face::Write && self.rng.percent(20);
        let order = Order {
            what: format!("{face:?} {name} {wait:?} {lease:?} fenced {fenced}"),
            names: vec![(name, Mode::Alone, 1)],
            wait,
            quorum: false,
            stay: None,
        };
        let lock = AnyLock::new(face, client, name);
        let getting = async move {
            let mut acquire = lock.acquire().wait(wait).lease(lease);
            if fenced {
                acquire = acquire.fenced();
            }
            Ok(acquire.await?.map(Held::Lock))
        };
        (order, Box::pin(getting))
    }

    async fn lock(&mut self, clients: &Clients, who: &str) {
        let (order, getting) = self.order(clients);
        self.doing(format!("{who} asks for {}", order.what));
        let asked = Instant::now();
        let Some(outcome) = self.perhaps_dropped(getting).await else {
            self.book().count("dropped acquires");
            return;
        };
        let from = Instant::now();
        if let Wait::AtMost(limit) = order.wait {
            let took = awake_since(asked);
            if took > limit + RESPONSE_TIME * 2 + LATE_MAX {
                self.book().wrong(format!("{who} {} ended after {took:?}", order.what));
            }
        }
        match outcome {
            Ok(Some(held)) => self.hold(&order, who, asked, from, held).await,
            Ok(None) if order.wait == Wait::Forever => {
                self.book().wrong(format!("{who} {} gave up", order.what));
            }
            Ok(None) => self.book().count("busy"),
            Err(error) => self.failed(&order, who, &error),
        }
    }

    async fn long(&mut self, client: &Client, who: &str) {
        let name = self.rng.of(&LONG);
        let wait = Wait::AtMost(ms(400));
        let order = Order {
            what: format!("{name} for long"),
            names: vec![(name, Mode::Alone, 1)],
            wait,
            quorum: false,
            stay: Some(self.rng.time(3_000, 6_000)),
        };
        self.doing(format!("{who} asks for {}", order.what));
        let asked = Instant::now();
        match client.lock(name).acquire().wait(wait).lease(LONG_LEASE).await {
            Ok(Some(guard)) => self.hold(&order, who, asked, Instant::now(), Held::Lock(guard)).await,
            Ok(None) => {}
            Err(error) => self.failed(&order, who, &error),
        }
    }

    fn failed(&self, order: &Order, who: &str, error: &Error) {
        self.book().count(format!("{:?}", error.kind()));
        let harmless = match error.kind() {
            ErrorKind::Closed => true,
            // A failover may have lost the permits that were set.
            ErrorKind::NotInitialised => !self.shared.keeps_data,
            ErrorKind::Timeout
            | ErrorKind::Unreachable
            | ErrorKind::ServerBusy
            | ErrorKind::ReadOnly
            | ErrorKind::Server => order.wait != Wait::Forever || order.quorum,
            _ => false,
        };
        if !harmless {
            self.book().wrong(format!("{who} {}: {:?} {error}", order.what, error.kind()));
        }
    }

    /// Drops some futures half-way: after some polls, or after a time.
    async fn perhaps_dropped<T>(
        &mut self,
        future: Pin<Box<dyn Future<Output = T> + Send + '_>>,
    ) -> Option<T> {
        match self.rng.below(10) {
            0 => {
                let polls = 1 + self.rng.below(8) as usize;
                let moment = self.rng.of(&[DropMoment::AfterPoll, DropMoment::AtWakeUp]);
                let limited = tokio::time::timeout(ms(3_000), poll_n_then_drop_at(future, polls, moment));
                limited.await.ok().flatten()
            }
            1 => {
                let limit = self.rng.time(0, 60);
                tokio::time::timeout(limit, future).await.ok()
            }
            _ => Some(future.await),
        }
    }

    async fn hold(&mut self, order: &Order, who: &str, asked: Instant, from: Instant, held: Held) {
        self.book().count("grants");
        self.doing(format!("{who} holds {}", order.what));
        let stay = match self.rng.below(100) {
            _ if order.stay.is_some() => order.stay.unwrap_or_default(),
            0..=74 => self.rng.time(0, 8),
            75..=94 => self.rng.time(8, 60),
            95..=97 => self.rng.time(200, 800),
            _ => self.rng.time(1_500, 4_000),
        };
        let token = held.token();
        let mut inner = None;
        if let Held::Lock(guard) = &held {
            if !order.what.starts_with("NonReentrant") && self.rng.percent(8) {
                inner = guard.reenter().await.ok();
            } else if self.rng.percent(4) {
                let _ = guard.extend(self.rng.time(500, 2_000)).await;
            }
        }
        let end = Instant::now() + stay;
        let mut until = from;
        loop {
            let now = Instant::now();
            if !held.is_valid() {
                break;
            }
            until = now;
            if now >= end {
                break;
            }
            tokio::time::sleep(ms(4).min(end - now)).await;
        }
        for (name, mode, weight) in &order.names {
            self.book().span(Span {
                name: (*name).to_owned(),
                mode: *mode,
                weight: *weight,
                who: format!("{who} {}", order.what),
                asked,
                from,
                until,
                token,
            });
        }
        if !held.is_valid() {
            match tokio::time::timeout(NOTICE_MAX, held.lost()).await {
                Ok(reason) => {
                    self.book().count(format!("lost {}", reason.split(' ').next().unwrap_or_default()))
                }
                Err(_) => self.book().wrong(format!("{who} {} was lost and not told", order.what)),
            }
        }
        self.doing(format!("{who} lets go of {}", order.what));
        match inner {
            Some(inner) if self.rng.percent(50) => drop(inner),
            Some(inner) => drop(inner.unlock().await),
            None => {}
        }
        let begin = Instant::now();
        match self.rng.below(10) {
            0..=2 => drop(held),
            3 => {
                let polls = 1 + self.rng.below(4) as usize;
                let cut = poll_n_then_drop_at(held.release(), polls, DropMoment::AfterPoll).await;
                self.book().count(if cut.is_some() { "releases" } else { "dropped releases" });
            }
            _ => match held.release().await {
                Ok(true) => self.book().count("releases"),
                Ok(false) => self.book().count("releases of what was lost"),
                Err(error) => self.book().count(format!("release: {:?}", error.kind())),
            },
        }
        let took = awake_since(begin);
        if took > GIVE_BACK_MAX {
            self.book().wrong(format!("{who} {} was given back after {took:?}", order.what));
        }
    }

    async fn semaphore(&mut self, client: &Client, who: &str) {
        let semaphore = client.semaphore(SEMAPHORE);
        let n = 1 + self.rng.below(2) as u32;
        let wait = self.rng.time(10, 1_500);
        self.doing(format!("{who} asks for {n} of the semaphore for {wait:?}"));
        let asked = Instant::now();
        let lock = semaphore.clone();
        let getting = Box::pin(async move { lock.acquire_for(n, wait).await });
        let outcome = self.perhaps_dropped(getting).await;
        let from = Instant::now();
        match outcome {
            Some(Ok(true)) => {}
            Some(Ok(false)) => return self.book().count("semaphore busy"),
            Some(Err(error)) => {
                self.book().count(format!("semaphore {:?}", error.kind()));
                return (0..n).for_each(|_| self.book().count("semaphore permits in doubt"));
            }
            None => return (0..n).for_each(|_| self.book().count("semaphore permits in doubt")),
        }
        let stay = self.rng.time(0, 20);
        tokio::time::sleep(stay).await;
        if self.shared.keeps_data {
            self.book().span(Span {
                name: SEMAPHORE.to_owned(),
                mode: Mode::Permits { capacity: CAPACITY },
                weight: n,
                who: who.to_owned(),
                asked,
                from,
                until: Instant::now(),
                token: None,
            });
        }
        self.doing(format!("{who} gives {n} to the semaphore"));
        if semaphore.release(n).await.is_err() {
            (0..n).for_each(|_| self.book().count("semaphore permits in doubt"));
        }
    }

    async fn latch(&mut self, client: &Client, who: &str) {
        let latch = client.count_down_latch(LATCH);
        self.doing(format!("{who} is at the latch"));
        match self.rng.below(4) {
            0 => {
                let steps = 1 + self.rng.below(2) as u32;
                let _ = latch.set_if_absent(steps).await;
            }
            1 | 2 => drop(latch.count_down().await),
            _ => {
                self.doing(format!("{who} waits for the latch"));
                let for_ever = self.rng.percent(50);
                let limit = self.rng.time(10, 1_500);
                let waiting: Pin<Box<dyn Future<Output = Result<bool, Error>> + Send>> = if for_ever {
                    Box::pin(async move { latch.wait().await.map(|()| true) })
                } else {
                    Box::pin(async move { latch.wait_for(limit).await })
                };
                match self.perhaps_dropped(waiting).await {
                    Some(Err(error)) if for_ever && error.kind() != ErrorKind::Closed => {
                        self.book().wrong(format!("{who} waited for the latch: {error}"));
                    }
                    Some(Err(error)) => self.book().count(format!("latch {:?}", error.kind())),
                    Some(Ok(_)) => self.book().count("latch waits"),
                    None => {}
                }
            }
        }
    }
}
