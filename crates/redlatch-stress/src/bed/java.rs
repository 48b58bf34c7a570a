//! Servers that Redisson uses besides our processes, with the same names.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use redlatch_testkit::{
    redisson::{Connection, JavaThread, Redisson, RedissonVersion},
    server::RedisServer,
};

use super::{
    Bed, Outcome,
    single::{Network, left_on},
};
use crate::{
    clock::boot_ns,
    mix::Numbers,
    record::{Granted, Log},
    rng::Rng,
    worker::{Order, kind::Kind},
};

const THREADS: u64 = 6;
/// How long Java holds at most; its holds count as valid for half of that from their asking.
const LEASE: Duration = Duration::from_secs(8);
const KINDS: [(Kind, &str); 5] = [
    (Kind::Plain, "lock"),
    (Kind::Fair, "fair"),
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Spin, "spin"),
];

/// One Redis with a network that delays, for our processes.
pub(super) struct Java {
    server: RedisServer,
    network: Network,
    users: Users,
}

impl Java {
    pub(super) fn start(numbers: &Numbers, processes: usize, dir: &Path) -> Outcome<Self> {
        let server = RedisServer::start()?;
        let network = Network::start(&server.url(), numbers, processes)?;
        let users = Users::start(Connection::single(&server.url()), numbers, dir)?;
        Ok(Java { server, network, users })
    }
}

/// Another bed, with Java in it.
pub(super) struct WithJava {
    bed: Box<dyn Bed>,
    users: Users,
}

impl WithJava {
    pub(super) fn start(bed: Box<dyn Bed>, numbers: &Numbers, dir: &Path) -> Outcome<Self> {
        let connection = bed.java().ok_or("Java uses single, sentinel and cluster alone")?;
        let users = Users::start(connection, numbers, dir)?;
        Ok(WithJava { bed, users })
    }
}

/// Threads of one Java process that take and give back.
struct Users {
    _redisson: Redisson,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Users {
    fn start(connection: Connection, numbers: &Numbers, dir: &Path) -> Outcome<Self> {
        let connection = connection.watchdog(Duration::from_secs(3));
        let redisson = Redisson::start_with(RedissonVersion::Newest, &connection)?;
        let log = Arc::new(Log::create(&dir.join("java.log"))?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for number in 1..=THREADS {
            let user = User {
                thread: redisson.thread(number),
                label: format!("j{number}"),
                log: log.clone(),
                stop: stop.clone(),
                rng: Rng::new(number),
                names: numbers.names,
            };
            threads.push(std::thread::spawn(move || user.work()));
        }
        Ok(Users { _redisson: redisson, stop, threads })
    }

    fn end(&mut self) -> Outcome<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "a thread of Java's user panicked")?;
        }
        Ok(())
    }
}

struct User {
    thread: JavaThread,
    label: String,
    log: Arc<Log>,
    stop: Arc<AtomicBool>,
    rng: Rng,
    names: u64,
}

impl User {
    fn work(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let (kind, verb) = *self.rng.of(&KINDS);
            let name = kind.name(&mut self.rng, self.names);
            self.turn(kind, verb, &name);
            std::thread::sleep(self.rng.ms(0, 8));
        }
    }

    fn turn(&mut self, kind: Kind, verb: &str, name: &str) {
        let wait = self.rng.ms(100, 2_000).as_millis().to_string();
        let asked_ns = boot_ns();
        self.log.does(&self.label, format!("asks {kind:?} {name} in Java, wait {wait} ms"));
        let lease = LEASE.as_millis().to_string();
        let outcome = self.thread.call(&format!("{verb}.tryLockWait"), &[name, &wait, &lease]);
        let granted = outcome.as_ref().is_ok_and(|reply| reply.as_bool().unwrap_or(false));
        let seen_ns = boot_ns();
        if !granted {
            return self.log.does(&self.label, format!("did not get {name} in Java : {outcome:?}"));
        }
        let valid_ns = asked_ns + LEASE.as_nanos() as u64 / 2;
        if seen_ns < valid_ns {
            let owner = format!("java.{}", self.label);
            let granted = Granted {
                task: &self.label,
                name,
                mode: kind.mode(),
                weight: 1,
                owner: &owner,
                token: None,
                term: "fixed:8000",
            };
            let mut seen = self.log.granted(&granted, seen_ns);
            std::thread::sleep(self.rng.ms(0, 15));
            seen.valid(boot_ns().min(valid_ns));
            seen.end("unlocked");
        }
        self.log.does(&self.label, format!("unlocks {name} in Java"));
        let outcome = self.thread.call(&format!("{verb}.unlock"), &[name]);
        self.log.does(&self.label, format!("unlock of {name} in Java : {:?}", outcome.map(|_| ())));
    }
}

impl Bed for Java {
    fn address(&self, process: usize, order: &mut Order) {
        order.url = self.network.url(process).unwrap_or_else(|| self.server.url());
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, since: Duration) -> Outcome<()> {
        self.network.trouble(rng, log, since);
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        self.users.end()?;
        self.network.heal()
    }

    fn left(&self) -> Outcome<Vec<String>> {
        left_on(&self.server)
    }
}

impl Bed for WithJava {
    fn address(&self, process: usize, order: &mut Order) {
        self.bed.address(process, order);
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, since: Duration) -> Outcome<()> {
        self.bed.trouble(rng, log, since)
    }

    fn heal(&mut self, log: &Log) -> Outcome<()> {
        self.bed.heal(log)?;
        self.users.end()
    }

    fn left(&self) -> Outcome<Vec<String>> {
        self.bed.left()
    }

    fn keeps_data(&self) -> bool {
        self.bed.keeps_data()
    }
}
