//! The stores that contract tests run on.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redlatch::{Client, ClientBuilder, LockName, Presence};
pub(crate) use redlatch_testkit::stall::awake_since as awake;

use crate::{
    kinds::{AnyLock, Face},
    limit::Steps,
    under_test::{self, NAME_PREFIX},
};

/// A store for one test, with names that no other test uses.
pub(crate) struct Fixture {
    kind: Kind,
    /// The kind of lock that the test is run for.
    face: Face,
    tag: String,
    /// What the test is doing, in case it hangs.
    steps: Steps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Local,
    /// The engine of this process, where scripts may only use the keys that they have declared.
    Strict,
    /// One server, or whatever this run is about.
    Redis,
}

fn tag() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    redlatch_testkit::stall::watch();
    format!("{NAME_PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The command, which holds the local engine. `cargo test --workspace` builds it before any test runs. Where only this package is
/// tested it is built here, if it is missing or older than its sources; in CI, where nobody would notice what that takes, it is
/// an error.
pub(crate) fn redlatch_command() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let exe = std::env::current_exe().expect("the test knows its own path");
            let profile = exe.ancestors().nth(2).expect("tests live in target/<profile>/deps");
            let command = profile.join("redlatch");
            if let Err(why) = is_built(&command) {
                let what = format!("{}: {why}", command.display());
                let is_ci = std::env::var_os("CI").is_some();
                assert!(!is_ci, "{what}; run the tests with `cargo test --workspace`, which builds it first");
                eprintln!("{what}; it is built now");
                build_command(profile);
            }
            command
        })
        .clone()
}

/// Whether a program is as new as everything that it is made of. Tests inside the sources count, too, though it has none of them.
fn is_built(program: &Path) -> Result<(), String> {
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let built = changed(program).map_err(|error| error.to_string())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut parts = vec![root.join("Cargo.toml"), root.join("Cargo.lock")];
    for package in ["redlatch", "redlatch-engine", "redlatch-cli"] {
        let package = root.join("crates").join(package);
        parts.extend([package.join("Cargo.toml"), package.join("src")]);
    }
    while let Some(part) = parts.pop() {
        if part.is_dir() {
            let entries = part.read_dir().map_err(|error| format!("{}: {error}", part.display()))?;
            parts.extend(entries.flatten().map(|entry| entry.path()));
        } else if !changed(&part).is_ok_and(|changed| changed <= built) {
            return Err(format!("{} is newer", part.display()));
        }
    }
    Ok(())
}

fn build_command(profile: &Path) {
    let mut build = Command::new(env!("CARGO"));
    // With its tests, because cargo puts the features of all packages together only where it builds tests of all of them.
    build.args(["test", "--quiet", "--no-run", "--workspace", "--test", "cli"]);
    build.arg("--target-dir").arg(profile.parent().expect("target/<profile> has a parent"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the redlatch command was not built");
}

/// The name of the engine that all tests share. It is started here and not by its first client, so that it can be ended with them.
fn shared_engine() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = format!("suite-{}", std::process::id());
        let mut engine = Command::new(redlatch_command());
        engine.args(["engine", "run", "--name", &name, "--idle-exit", "20s"]);
        engine.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut engine = engine.spawn().expect("the engine starts");
        std::thread::spawn(move || engine.wait());
        stop_with_this_process(&name);
        name
    })
}

/// No test knows that it is the last one, and an engine does not end by itself while a permit is taken. What reads the end of its input
/// knows that this process is gone.
fn stop_with_this_process(name: &str) {
    let mut watcher = Command::new("sh");
    watcher.args(["-c", "cat >/dev/null; exec \"$0\" engine stop --name \"$1\" --force"]);
    watcher.arg(redlatch_command()).arg(name);
    watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut watcher = watcher.spawn().expect("sh starts");
    std::mem::forget(watcher.stdin.take());
    std::thread::spawn(move || watcher.wait());
}

impl Fixture {
    fn new(kind: Kind) -> Self {
        Fixture { kind, face: Face::Plain, tag: tag(), steps: Steps::default() }
    }

    pub(crate) fn memory() -> Self {
        Self::new(Kind::Memory)
    }

    pub(crate) fn local() -> Self {
        Self::new(Kind::Local)
    }

    pub(crate) fn redis() -> Self {
        Self::new(Kind::Redis)
    }

    pub(crate) fn strict() -> Self {
        Self::new(Kind::Strict)
    }

    /// The same store for a test of another kind of lock.
    pub(crate) fn of(self, face: Face) -> Self {
        Fixture { face, ..self }
    }

    /// The same names in the same store, for a client that only looks.
    pub(crate) fn again(&self) -> Self {
        Fixture { kind: self.kind, face: self.face, tag: self.tag.clone(), steps: Steps::default() }
    }

    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// The lock that the test is about.
    #[track_caller]
    pub(crate) fn lock(&self, client: &Client, name: impl Into<LockName>) -> AnyLock {
        self.steps.come_here();
        AnyLock::new(self.face, client, name).noted_in(&self.steps)
    }

    #[track_caller]
    pub(crate) fn builder(&self) -> ClientBuilder {
        self.steps.come_here();
        match self.kind {
            Kind::Memory => Client::builder().url(format!("memory:{}", self.tag)),
            Kind::Strict => Client::builder().url(format!("memory:{}?strict_keys", self.tag)),
            // One daemon serves all tests, as it serves all programs of a user.
            Kind::Local => {
                let url = format!("local:{}", shared_engine());
                Client::builder().url(url).engine_binary(redlatch_command())
            }
            Kind::Redis => under_test::builder(),
        }
    }

    #[track_caller]
    pub(crate) fn client(&self) -> impl Future<Output = Client> + Send + use<> {
        let builder = self.builder();
        async { builder.connect().await.expect("the store is there") }
    }

    /// A client whose waiters wake by a message or not in time: they look after 15 s at the earliest, and leases last longer.
    #[track_caller]
    pub(crate) fn patient(&self) -> impl Future<Output = Client> + Send + use<> {
        let builder = patient(self.builder());
        async { builder.connect().await.expect("the store is there") }
    }

    /// A client whose renewed leases are short, so that tests of renewal are.
    #[track_caller]
    pub(crate) fn brisk(&self, lease: Duration) -> impl Future<Output = Client> + Send + use<> {
        let builder = self.builder().watchdog_lease(lease);
        async { builder.connect().await.expect("the store is there") }
    }

    #[track_caller]
    pub(crate) fn name(&self, name: &str) -> String {
        self.steps.come_here();
        format!("{}:{name}", self.tag)
    }
}

/// The settings of such a client.
pub(crate) fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder.poll_interval_max(Duration::from_secs(30)).watchdog_lease(Duration::from_secs(600))
}

/// A client whose requests are counted, and which therefore tells nothing of itself.
pub(crate) fn quiet() -> ClientBuilder {
    Client::builder().presence(Presence::untold())
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a busy machine may add to a moment. What would happen instead comes later still: how exact a moment is, is for the benchmark
/// to say.
pub(crate) const LATE: Duration = ms(5_000);

/// The lease in tests of renewal. It is renewed every 1.5 s and has 3 s left when that is due, so that a machine that stands
/// still for two seconds loses no hold.
pub(crate) const RENEWED: Duration = ms(4_500);

/// How soon a renewal of that lease must have come: a third of it, and the moment that it takes.
pub(crate) const NEXT_RENEWAL: Duration = ms(1_500 + 500);

/// How long to wait in vain for what others hold. Of a server that takes longer to answer it is not known whether it is busy, and a busy
/// machine keeps a server from answering.
pub(crate) const IN_VAIN: Duration = ms(3_000);

/// A limit for things that must happen, generous because the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Waits for what a message tells those who do not look by themselves so soon.
pub(crate) async fn told<T>(what: &str, work: impl Future<Output = T>) -> T {
    const LIMIT: Duration = ms(12_000);
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("nobody was told: {what}, {LIMIT:?}"))
}

/// Waits for something that must happen, and says what did not.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.unwrap_or_else(|_| panic!("{what} did not happen within {SOON:?}"))
}

/// Waits until a time to live has been renewed so often. `look` answers what is left of it, and checks what must hold
/// meanwhile.
pub(crate) async fn renewed(times: u32, look: impl AsyncFn() -> Duration) {
    let mut last = look().await;
    for _ in 0..times {
        soon("a renewal", async {
            loop {
                tokio::time::sleep(ms(50)).await;
                let before = std::mem::replace(&mut last, look().await);
                if last > before {
                    return;
                }
            }
        })
        .await;
    }
}
