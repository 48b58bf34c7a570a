//! Bar 16: every error that a server can answer with, and answers that are none, at every operation: an error of the right kind that
//! says rightly whether asking again may help, within its time; no panic, and no descriptor left. The control sorts errors by whether
//! the connection broke, as simple code does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Error, ErrorKind, Guard, scripts};
use redlatch_testkit::fake_server::{FakeReply, FakeServer};
use redlatch_testkit::{resp, stall};

use crate::common::{Result, Verdict, ms, runtime};

const WAIT: Duration = Duration::from_millis(200);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const LEASE: Duration = Duration::from_millis(1_500);
/// The longest that an operation may take that is answered: its wait, and time for a look and an undo.
const BUDGET: Duration = Duration::from_millis(1_500);
/// The same where no answer comes, or none with an end: each request costs a response timeout, and a few are made.
const SILENT_BUDGET: Duration = Duration::from_millis(3_000);
/// A renewal that is refused ends its hold by its lease; the last answer to a release may come so much later.
const LOSS_BUDGET: Duration = Duration::from_millis(1_500 + 1_000);
const CLEAN_LIMIT: Duration = Duration::from_secs(20);

/// What is answered, and the kinds of error that are right for it.
struct Class {
    answer: FakeReply,
    kinds: Vec<ErrorKind>,
}

impl Class {
    fn budget(&self) -> Duration {
        match &self.answer {
            FakeReply::Silence | FakeReply::Raw(_) => SILENT_BUDGET,
            _ => BUDGET,
        }
    }
}

fn classes() -> Vec<Class> {
    use ErrorKind::*;
    let said = [
        ("NOPERM User x has no permissions to run the 'evalsha' command", Permission),
        (
            "ERR The user executing the script can't run this command or subcommand script: abc, on @user_script:1.",
            Permission,
        ),
        ("ERR ACL failure in script: User x has no permissions to access the 'k' key", Permission),
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
        ("READONLY You can't write against a read only replica.", ReadOnly),
        ("NOREPLICAS Not enough good replicas to write.", ServerBusy),
        ("MISCONF Redis is configured to save RDB snapshots", ServerBusy),
        ("LOADING Redis is loading the dataset in memory", ServerBusy),
        ("BUSY Redis is busy running a script.", ServerBusy),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ServerBusy),
        ("ASK 3999 127.0.0.1:1", InvalidUrl),
        ("MOVED 3999 127.0.0.1:1", InvalidUrl),
        ("CLUSTERDOWN The cluster is down", ServerBusy),
        ("MASTERDOWN Link with MASTER is down", ServerBusy),
        ("NOSCRIPT No matching script. Please use EVAL.", Server),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", WrongType),
        ("NOAUTH Authentication required.", Auth),
        ("WRONGPASS invalid username-password pair or user is disabled.", Auth),
        ("NOPROTO unsupported protocol version", Server),
        ("CROSSSLOT Keys in request don't hash to the same slot", Server),
        ("EXECABORT Transaction discarded because of previous errors.", Server),
        ("UNKILLABLE Sorry the script already executed write commands", ServerBusy),
        ("ERR max number of clients reached", ServerBusy),
        ("ERR unknown command 'evalsha'", Server),
        ("ERR something nobody has seen before", Server),
    ];
    let garbled = [
        FakeReply::Truncated(b"*3\r\n:1\r\n:".to_vec()),
        FakeReply::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        FakeReply::Close,
        FakeReply::Silence,
        FakeReply::Reply(b"$-1\r\n".to_vec()),
        FakeReply::Reply(b"*0\r\n".to_vec()),
        FakeReply::Raw(b"*999999999\r\n".to_vec()),
    ];
    let said =
        said.map(|(text, kind)| Class { answer: FakeReply::Error(text.to_owned()), kinds: vec![kind] });
    let kinds = vec![Protocol, Unreachable, Timeout, ServerBusy];
    let garbled = garbled.map(|answer| Class { answer, kinds: kinds.clone() });
    said.into_iter().chain(garbled).collect()
}

/// A server that grants everything until it is told to fail.
fn server(answer: FakeReply) -> Result<(FakeServer, Arc<AtomicBool>)> {
    let fails = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&fails);
    let server = FakeServer::start(move |request| {
        let verb = request[0].to_ascii_uppercase();
        if verb != b"EVALSHA" && verb != b"EVAL" {
            return FakeReply::Default;
        }
        if asked.load(Ordering::SeqCst) {
            return answer.clone();
        }
        grant(request)
    })?;
    Ok((server, fails))
}

fn grant(request: &[Vec<u8>]) -> FakeReply {
    let number_at =
        |at: usize| request.get(at).and_then(|arg| std::str::from_utf8(arg).ok()?.parse::<i64>().ok());
    let keys = usize::try_from(number_at(2).unwrap_or(0)).unwrap_or(0);
    let number = number_at(3 + keys).unwrap_or(0);
    let is = |name: &str| {
        scripts::ALL.iter().any(|s| {
            s.name() == name && (request[1] == s.sha1().as_bytes() || request[1] == s.source().as_bytes())
        })
    };
    let items = if is("renew") { [vec![number], vec![1; keys]].concat() } else { vec![number, 1, 0] };
    FakeReply::Reply(resp::array(&items.into_iter().map(resp::integer).collect::<Vec<_>>()))
}

#[derive(Default)]
struct Seen {
    asked: AtomicUsize,
    wrong: AtomicUsize,
    late: AtomicUsize,
    longest_ms: AtomicUsize,
}

impl Seen {
    /// Notes how an operation ended that had to fail.
    fn note(&self, what: &str, class: &Class, begin: Instant, outcome: std::result::Result<(), Error>) {
        let (time, kinds) = (stall::awake_since(begin), &class.kinds);
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.longest_ms.fetch_max(time.as_millis() as usize, Ordering::Relaxed);
        if time > class.budget() {
            eprintln!("{what} with {:?} took {time:?}", class.answer);
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let right =
            matches!(&outcome, Err(e) if kinds.contains(&e.kind()) && e.is_retryable() == may_help(e.kind()));
        if !right {
            eprintln!("{what} with {:?}: {outcome:?} and not {kinds:?}", class.answer);
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether the same request may succeed later although nobody has changed anything.
fn may_help(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(kind, Unreachable | Timeout | ReadOnly | ServerBusy | OutOfMemory | NotReplicated)
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        PANICS.fetch_add(1, Ordering::Relaxed);
    }));
    let seen = Arc::new(Seen::default());
    let before = descriptors()?;
    let runtime = runtime(2)?;
    // The runtime has some of its own from here on.
    let own = descriptors()? - before;
    let classes = classes();
    let count = classes.len();
    let tasks: Vec<_> = classes
        .into_iter()
        .map(|class| {
            let seen = Arc::clone(&seen);
            runtime.spawn(async move {
                if control { naive(&class, &seen).await } else { one_class(&class, &seen).await }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)??;
    }
    let begin = Instant::now();
    while descriptors()? > before + own && begin.elapsed() < CLEAN_LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = descriptors()?.saturating_sub(before + own);
    let get = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (asked, wrong, late, panics) = (get(&seen.asked), get(&seen.wrong), get(&seen.late), get(&PANICS));
    let figure = format!(
        "{wrong} of {asked} answers of the wrong kind or class ({count} classes of errors at {} operations), {late} later than {} ({} without an \
         answer), longest {} ms, {panics} panics, {left} descriptors left",
        asked / count,
        ms(BUDGET),
        ms(SILENT_BUDGET),
        get(&seen.longest_ms)
    );
    Ok(Verdict::new(wrong == 0 && late == 0 && panics == 0 && left == 0 && count >= 25, figure))
}

fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

async fn one_class(class: &Class, seen: &Seen) -> Result<()> {
    let (server, fails) = server(class.answer.clone())?;
    let settings =
        Client::builder().url(server.url()).watchdog_lease(LEASE).response_timeout(RESPONSE_TIMEOUT);
    let client = settings.outage_tolerance(Duration::from_millis(100)).connect().await?;
    let read_write = client.read_write_lock("rw");
    let (semaphore, permits) = (client.semaphore("semaphore"), client.permit_semaphore("permits"));
    let (latch, rate) = (client.count_down_latch("latch"), client.rate_limiter("rate"));
    fails.store(true, Ordering::SeqCst);
    macro_rules! fails {
        ($($what:literal $call:expr;)*) => {$({
            let begin = Instant::now();
            let outcome = $call.await.map(drop);
            seen.note($what, class, begin, outcome);
        })*};
    }
    fails! {
        "try_lock" client.lock("plain").try_lock();
        "lock_for" client.lock("plain").lock_for(WAIT);
        "force_unlock" client.lock("plain").force_unlock();
        "is_locked" client.lock("plain").is_locked();
        "remaining_ttl" client.lock("plain").remaining_ttl();
        "fenced try_lock" client.fenced_lock("fenced").try_lock();
        "fair try_lock" client.fair_lock("fair").try_lock();
        "fair lock_for" client.fair_lock("fair").lock_for(WAIT);
        "spin try_lock" client.spin_lock("spin").try_lock();
        "read" read_write.read().try_lock();
        "write" read_write.write().try_lock();
        "semaphore try_acquire" semaphore.try_acquire(1);
        "semaphore acquire_for" semaphore.acquire_for(1, WAIT);
        "semaphore release" semaphore.release(1);
        "semaphore available" semaphore.available();
        "permits try_acquire" permits.try_acquire();
        "permits available" permits.available();
        "permits add" permits.add(1);
        "latch count" latch.count();
        "latch count_down" latch.count_down();
        "latch wait_for" latch.wait_for(WAIT);
        "rate try_acquire" rate.try_acquire(1);
    }
    on_holds(class, seen, &client, &fails).await
}

/// What a holder asks for. A release whose answer says nothing is repeated, so its kind is left open.
async fn on_holds(class: &Class, seen: &Seen, client: &Client, fails: &AtomicBool) -> Result<()> {
    for what in ["unlock", "extend", "reenter", "renewal"] {
        fails.store(false, Ordering::SeqCst);
        let lock = client.lock(format!("held {what}"));
        let guard: Guard =
            lock.lock_for(Duration::from_secs(10)).await?.ok_or("a lock of its own is busy")?;
        fails.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        let failed = match what {
            "unlock" => guard.unlock().await.is_err(),
            "extend" => guard.extend(LEASE).await.is_err(),
            "reenter" => guard.reenter().await.is_err(),
            _ => tokio::time::timeout(CLEAN_LIMIT, guard.lost()).await.is_ok(),
        };
        let time = stall::awake_since(begin);
        seen.asked.fetch_add(1, Ordering::Relaxed);
        if !failed {
            eprintln!("{what} with {:?} did not fail", class.answer);
        }
        seen.wrong.fetch_add(usize::from(!failed), Ordering::Relaxed);
        // A release is asked for again until its lease has ended.
        let budget = if matches!(what, "renewal" | "unlock") { LOSS_BUDGET } else { class.budget() };
        if time > budget {
            eprintln!("{what} with {:?} took {time:?}", class.answer);
            seen.late.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Knows broken connections and errors, and nothing else.
async fn naive(class: &Class, seen: &Seen) -> Result<()> {
    let (server, fails) = server(class.answer.clone())?;
    let mut connection = crate::common::raw_async(&server.url()).await?;
    fails.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    let mut call = redis::cmd("EVALSHA");
    call.arg(scripts::ACQUIRE.sha1()).arg(1).arg("plain").arg(1).arg("owner").arg(1_000);
    let outcome = tokio::time::timeout(WAIT, call.query_async::<redis::Value>(&mut connection)).await;
    let outcome = match outcome {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) if e.is_io_error() => Err(Error::new(ErrorKind::Unreachable, "no connection")),
        Ok(Err(_)) => Err(Error::new(ErrorKind::Server, "refused")),
        Err(_) => Err(Error::new(ErrorKind::Timeout, "no answer")),
    };
    seen.note("a simple request", class, begin, outcome);
    Ok(())
}
