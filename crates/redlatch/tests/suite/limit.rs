//! A contract that hangs ends all the same, and says what it waited for.
//!
//! Two limits, because a future that does not come and a thread that does not move look different: the first one gives up the
//! test's future; the second one ends the whole process, because nothing else ends a thread.

use std::{
    cell::RefCell,
    fmt::Write as _,
    panic::Location,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::fixture::{Fixture, awake, soon};

/// How long a contract may take, without the moments in which the machine stood still. Alone none needs a minute.
const LIMIT: Duration = Duration::from_secs(150);
/// How much later a test that did not end then takes the process with it.
const GRACE: Duration = Duration::from_secs(60);
/// How often a test's time is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Names of one test that are shown.
const NAMES_SHOWN: usize = 20;

/// What a test is doing: where it was last seen, and which of its calls have not returned.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    seen: Option<&'static Location<'static>>,
    calls: Vec<(u64, Instant, String)>,
}

impl Steps {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The test has come to where this is called.
    #[track_caller]
    pub(crate) fn come_here(&self) {
        self.book().seen = Some(Location::caller());
    }

    /// A call begins; it has returned when the value is dropped.
    pub(crate) fn begin(&self, what: &str, at: &'static Location<'static>) -> Call {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut book = self.book();
        book.seen = Some(at);
        book.calls.push((number, Instant::now(), format!("{what} at {at}")));
        drop(book);
        Call { steps: self.clone(), number }
    }

    fn told(&self) -> String {
        let book = self.book();
        let mut text = String::new();
        if let Some(at) = book.seen {
            let _ = writeln!(text, "  last seen at {at}");
        }
        for (_, since, what) in &book.calls {
            let _ = writeln!(text, "  waits since {:?} for {what}", since.elapsed());
        }
        text
    }
}

/// A call that is under way.
pub(crate) struct Call {
    steps: Steps,
    number: u64,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.steps.book().calls.retain(|(number, ..)| *number != self.number);
    }
}

/// Runs a contract within its limits.
pub(crate) async fn within(on: Fixture, contract: impl AsyncFnOnce(Fixture)) {
    bounded(LIMIT, on, contract).await;
}

async fn bounded(limit: Duration, on: Fixture, contract: impl AsyncFnOnce(Fixture)) {
    let (steps, store) = (on.steps().clone(), on.again());
    let begin = Instant::now();
    watch(&steps, limit + GRACE);
    let mut work = std::pin::pin!(contract(on));
    loop {
        let left = limit.saturating_sub(awake(begin));
        if tokio::time::timeout(left.max(Duration::from_millis(10)), work.as_mut()).await.is_ok() {
            return unwatch();
        }
        if awake(begin) >= limit {
            panic!("the test did not end within {limit:?}\n{}{}", steps.told(), shown(&store).await);
        }
    }
}

/// What the store has under the names of a test.
async fn shown(store: &Fixture) -> String {
    let look = async {
        let client = store.builder().connect().await?;
        client.list(Some(&store.name("*")), NAMES_SHOWN).await
    };
    let mut text = String::new();
    match tokio::time::timeout(Duration::from_secs(10), look).await {
        Ok(Ok(states)) if states.is_empty() => text.push_str("  the store has no lock of this test\n"),
        Ok(Ok(states)) => states.iter().for_each(|state| {
            let _ = writeln!(text, "  the store has {state:?}");
        }),
        Ok(Err(error)) => {
            let _ = writeln!(text, "  the store answers: {error}");
        }
        Err(_) => text.push_str("  the store does not answer\n"),
    }
    text
}

/// A test that runs.
struct Running {
    name: String,
    begin: Instant,
    limit: Duration,
    steps: Steps,
}

type Tests = Mutex<Vec<Arc<Running>>>;

static RUNNING: Tests = Mutex::new(Vec::new());

/// The end of a thread is the end of its test, also of one that has failed.
struct Entry(Arc<Running>);

impl Drop for Entry {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|test| !Arc::ptr_eq(test, &self.0));
    }
}

thread_local! {
    static ENTRY: RefCell<Option<Entry>> = const { RefCell::new(None) };
}

/// Ends the process if this thread's test is still running after the limit.
fn watch(steps: &Steps, limit: Duration) {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(LOOK_INTERVAL);
                look();
            }
        });
    });
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let test = Arc::new(Running { name, begin: Instant::now(), limit, steps: steps.clone() });
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(test.clone());
    ENTRY.set(Some(Entry(test)));
}

fn unwatch() {
    ENTRY.set(None);
}

fn look() {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let stuck: Vec<_> = running.iter().filter(|test| awake(test.begin) >= test.limit).cloned().collect();
    drop(running);
    if stuck.is_empty() {
        return;
    }
    for test in stuck {
        use std::io::Write as _;
        let text = format!(
            "\ntest {} is stuck, with a thread that does not move, so all tests end\n{}",
            test.name,
            test.steps.told()
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    std::process::exit(101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contract_that_hangs_says_what_it_waited_for() {
    let hangs = async |on: Fixture| {
        let (a, b) = (on.client().await, on.client().await);
        let _guard = on.lock(&a, on.name("x")).lock().await.unwrap();
        let _never = on.lock(&b, on.name("x")).lock().await.unwrap();
    };
    let limit = Duration::from_millis(500);
    let test = tokio::spawn(async move { bounded(limit, Fixture::memory(), hangs).await });
    let panic = soon("the limit", test).await.unwrap_err().into_panic();
    let text = panic.downcast_ref::<String>().expect("a message");
    let calls: Vec<_> = text.lines().filter(|line| line.contains("waits since")).collect();
    assert_eq!(calls.len(), 1, "the call that did not return: {text}");
    assert!(calls[0].contains("lock of ") && calls[0].contains("limit.rs:"), "{text}");
    assert!(text.contains("holders: [Holder"), "what it waited for: {text}");
}
