//! What the tests of one release share: a server, a Java process, and clients of ours.

use std::{
    ops::Deref,
    sync::{
        OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use redlatch::Client;
pub(crate) use redlatch_testkit::stall::{awake_between, awake_since as awake};
use redlatch_testkit::{
    redisson::{Connection, JavaError, JavaThread, PendingReply, Redisson, RedissonVersion, Reply},
    server::RedisServer,
};
use tokio::runtime::Runtime;

/// The lease of the brisk clients of both languages: renewed every 1.5 s, with 3 s left when that is due, so that a machine
/// that stands still for two seconds loses no hold.
pub(crate) const BRISK: Duration = Duration::from_millis(4_500);
/// Far more than anything here takes, so that only a real hang reaches it.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);
/// How long a waiter must stay silent to count as blocked.
pub(crate) const BLOCKED: Duration = Duration::from_millis(250);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The runtime of our side. Tests run outside of it, because calls to Java block their thread.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}

/// A connection for what a test does under a lock. By itself it would give up after half a second, for which any machine may
/// pause, and a task that fails under a lock looks like one that is inside still.
pub(crate) async fn patient_connection(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(LIMIT))
        .set_connection_timeout(Some(LIMIT));
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}

/// Runs our side of a test, bounded.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    runtime().block_on(async {
        tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("nothing within {LIMIT:?}"))
    })
}

/// A server, a Java process and clients, started once for each release and ended with the test process.
/// How often those look who are to be told; the first time after half of it.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Bed {
    pub(crate) server: RedisServer,
    pub(crate) java: Redisson,
    /// Two clients with the usual lease of 30 s, two whose waiters do not look by themselves, and one whose renewed leases are short.
    pub(crate) ours: Client,
    pub(crate) ours_too: Client,
    pub(crate) patient: [Client; 2],
    pub(crate) brisk: Client,
    next: AtomicU64,
}

/// Tests that measure latencies run alone, so that they measure the wire and not the load of other tests.
static TURNS: RwLock<()> = RwLock::new(());

/// A test's turn on the bed: beside other tests, or alone.
pub(crate) struct Turn<G> {
    bed: &'static Bed,
    _guard: G,
}

impl<G> Deref for Turn<G> {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        self.bed
    }
}

/// A turn beside other tests for those who have servers of their own.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

impl Bed {
    /// The bed of this release, beside other tests.
    pub(crate) fn of(version: RedissonVersion) -> Turn<RwLockReadGuard<'static, ()>> {
        let guard = beside_others();
        Turn { bed: Self::started(version), _guard: guard }
    }

    /// The bed of this release while no other test runs.
    pub(crate) fn alone(version: RedissonVersion) -> Turn<RwLockWriteGuard<'static, ()>> {
        let guard = TURNS.write().unwrap_or_else(PoisonError::into_inner);
        Turn { bed: Self::started(version), _guard: guard }
    }

    /// The bed of this release without a turn, for what of it is not measured.
    pub(crate) fn started(version: RedissonVersion) -> &'static Self {
        static OLD: OnceLock<Bed> = OnceLock::new();
        static NEWEST: OnceLock<Bed> = OnceLock::new();
        let bed = match version {
            RedissonVersion::Old3_15_1 => &OLD,
            RedissonVersion::Newest => &NEWEST,
        };
        bed.get_or_init(|| Self::start(version))
    }

    fn start(version: RedissonVersion) -> Self {
        let server = RedisServer::start().unwrap_or_else(|error| panic!("{error}"));
        let java = Redisson::start(version, &server.url(), None).unwrap_or_else(|error| panic!("{error}"));
        let brisk = Connection::single(&server.url()).named("brisk").watchdog(BRISK);
        java.connect(&brisk).unwrap_or_else(|error| panic!("{error}"));
        let builder = || Client::builder().url(server.url());
        let [ours, ours_too] = [(); 2].map(|()| run(builder().connect()).unwrap());
        // Only messages wake them: the server may not tell them of changes.
        let untold = ["ACL", "SETUSER", "untold", "on", ">pw", "~*", "&*", "+@all", "-client|tracking"];
        server.cmd(&untold).unwrap();
        let patient = || builder().username("untold").password("pw").poll_interval_max(PATIENCE);
        let patient = [(); 2].map(|()| run(patient().connect()).unwrap());
        let brisk = run(builder().watchdog_lease(BRISK).connect()).unwrap();
        Self { server, java, ours, ours_too, patient, brisk, next: AtomicU64::new(1) }
    }

    /// A name that no other test uses.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("{what}-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A Java thread of its own, whose locks are renewed by a watchdog of 30 s.
    pub(crate) fn thread(&self) -> Java {
        Java { thread: self.java.thread(self.next.fetch_add(1, Ordering::Relaxed)), kind: "lock".into() }
    }

    /// Waits until a waiter is subscribed to the channel of that lock.
    pub(crate) fn until_waiting(&self, name: &str) {
        self.until_subscribed(&channel_of(name), 1);
    }

    /// Waits until that many clients are subscribed to the channel.
    pub(crate) fn until_subscribed(&self, channel: &str, clients: i64) {
        let deadline = Instant::now() + LIMIT;
        while self.subscribers(channel) < clients {
            assert!(Instant::now() < deadline, "fewer than {clients} subscribed to {channel:?}");
            std::thread::sleep(ms(2));
        }
        // After the subscription a waiter looks once more. No event shows when it has done so.
        std::thread::sleep(ms(60));
    }

    fn subscribers(&self, channel: &str) -> i64 {
        match self.server.cmd(&["PUBSUB", "NUMSUB", channel]).unwrap() {
            redis::Value::Array(pair) => match pair.as_slice() {
                [_, redis::Value::Int(clients)] => *clients,
                other => panic!("NUMSUB answered {other:?}"),
            },
            other => panic!("NUMSUB answered {other:?}"),
        }
    }

    /// The remaining time of the lock's key; zero if there is none.
    pub(crate) fn pttl(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(&["PTTL", name]).try_into().unwrap_or(0))
    }

    /// Whether the hash of that lock has this field.
    pub(crate) fn java_holds(&self, field: &str, name: &str) -> bool {
        self.number(&["HEXISTS", name, field]) == 1
    }

    /// The answer to a command that answers with a number.
    pub(crate) fn number(&self, command: &[&str]) -> i64 {
        match self.server.cmd(command).unwrap() {
            redis::Value::Int(number) => number,
            redis::Value::BulkString(text) => String::from_utf8(text).unwrap().parse().unwrap(),
            other => panic!("{command:?} answered {other:?}"),
        }
    }
}

/// A Java thread with a semaphore or a latch.
#[derive(Clone)]
pub(crate) struct JavaCounter {
    thread: JavaThread,
    kind: String,
    name: String,
}

impl JavaCounter {
    /// The kind is `sem`, `latch` or `permit`, with `client@` before it for another client than `main`.
    pub(crate) fn new(bed: &Bed, kind: &str, name: &str) -> Self {
        Self { thread: bed.thread().thread, kind: kind.into(), name: name.into() }
    }

    /// Runs an operation on it, and fails the test with Java's error.
    pub(crate) fn call(&self, operation: &str, args: &[i64]) -> Reply {
        self.send(operation, args)
            .wait(LIMIT)
            .unwrap_or_else(|error| panic!("{operation} {args:?} of {:?}: {error}", self.name))
    }

    pub(crate) fn bool(&self, operation: &str, args: &[i64]) -> bool {
        self.call(operation, args).as_bool().unwrap()
    }

    pub(crate) fn number(&self, operation: &str) -> i64 {
        self.call(operation, &[]).as_i64().unwrap()
    }

    /// Starts an operation that may block.
    pub(crate) fn send(&self, operation: &str, args: &[i64]) -> PendingReply {
        let args: Vec<String> = args.iter().map(i64::to_string).collect();
        let words: Vec<&str> =
            std::iter::once(self.name.as_str()).chain(args.iter().map(String::as_str)).collect();
        self.thread.send(&format!("{}.{operation}", self.kind), &words).unwrap()
    }
}

/// The channel of a lock, as Redisson derives it.
pub(crate) fn channel_of(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}

/// A Java thread, hence an owner, with one kind of lock of one client.
#[derive(Clone)]
pub(crate) struct Java {
    pub(crate) thread: JavaThread,
    kind: String,
}

impl Java {
    /// The same thread with another kind of lock, perhaps of another client: `spin`, `brisk@lock`.
    pub(crate) fn with(&self, kind: &str) -> Self {
        Self { thread: self.thread.clone(), kind: kind.into() }
    }

    fn verb(&self, operation: &str) -> String {
        format!("{}.{operation}", self.kind)
    }

    fn bool(&self, operation: &str, args: &[&str]) -> bool {
        let reply = self.thread.call(&self.verb(operation), args);
        reply
            .and_then(|reply| reply.as_bool())
            .unwrap_or_else(|error| panic!("{operation} {args:?}: {error}"))
    }

    pub(crate) fn lock(&self, name: &str) {
        self.thread
            .call(&self.verb("lock"), &[name])
            .unwrap_or_else(|error| panic!("lock {name:?}: {error}"));
    }

    pub(crate) fn lock_lease(&self, name: &str, lease_ms: u64) {
        let reply = self.thread.call(&self.verb("lockLease"), &[name, &lease_ms.to_string()]);
        reply.unwrap_or_else(|error| panic!("lock {name:?}: {error}"));
    }

    pub(crate) fn try_lock(&self, name: &str) -> bool {
        self.bool("tryLock", &[name])
    }

    /// Starts to wait for the lock, for at most that long; the reply is whether it came.
    pub(crate) fn wait_for(&self, name: &str, wait_ms: u64, lease_ms: i64) -> PendingReply {
        let args = [name, &wait_ms.to_string(), &lease_ms.to_string()];
        self.thread.send(&self.verb("tryLockWait"), &args).unwrap()
    }

    pub(crate) fn unlock(&self, name: &str) {
        self.try_unlock(name).unwrap_or_else(|error| panic!("unlock {name:?}: {error}"));
    }

    pub(crate) fn try_unlock(&self, name: &str) -> Result<(), JavaError> {
        self.thread.call(&self.verb("unlock"), &[name]).map(drop)
    }

    /// Asserts that this thread is told that it does not hold the lock.
    pub(crate) fn is_refused_to_unlock(&self, name: &str) {
        let error = self.try_unlock(name).expect_err("an unlock of another owner's lock");
        assert_eq!(error.exception(), Some("IllegalMonitorStateException"), "{error}");
    }

    pub(crate) fn force_unlock(&self, name: &str) -> bool {
        self.bool("forceUnlock", &[name])
    }

    pub(crate) fn is_locked(&self, name: &str) -> bool {
        self.bool("isLocked", &[name])
    }

    pub(crate) fn holds(&self, name: &str) -> i64 {
        self.thread.call(&self.verb("holdCount"), &[name]).unwrap().as_i64().unwrap()
    }

    /// The field of this thread in the hashes of the `main` client's locks.
    pub(crate) fn field(&self, bed: &Bed) -> String {
        format!("{}:{}", bed.java.client_id().unwrap(), self.thread.java_thread_id().unwrap())
    }
}
