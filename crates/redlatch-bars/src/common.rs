//! What several bars need: a verdict, a look at the server that does not go through the library, and child processes.

use std::error::Error as StdError;
use std::io::BufRead as _;
use std::time::{Duration, Instant};

use redlatch_testkit::process::ChildProcess;
use redlatch_testkit::stall;

/// An error of a measurement, not of what is measured.
pub(crate) type Error = Box<dyn StdError + Send + Sync>;
/// The result of a measurement.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// How long a child process may take for a line that nothing holds up.
pub(crate) const LINE_LIMIT: Duration = Duration::from_secs(30);

/// What a bar found.
pub(crate) struct Verdict {
    /// The figure against its bar, in words.
    pub(crate) figure: String,
    /// Whether it is within the bar.
    pub(crate) met: bool,
}

impl Verdict {
    pub(crate) fn new(met: bool, figure: impl Into<String>) -> Self {
        Self { figure: figure.into(), met }
    }
}

/// A runtime for the clients of this process.
pub(crate) fn runtime(threads: usize) -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}

/// A connection of its own to a server, past the library.
pub(crate) fn raw(url: &str) -> Result<redis::Connection> {
    let connection = redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(10))?;
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(connection)
}

/// The same for tasks.
pub(crate) async fn raw_async(url: &str) -> Result<redis::aio::MultiplexedConnection> {
    // A busy machine is no reason to give up a look.
    let settings = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(LINE_LIMIT))
        .set_connection_timeout(Some(LINE_LIMIT));
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&settings).await?)
}

/// Starts a child process of bar `number`; it ends with this process at the latest.
pub(crate) fn worker(number: u32, args: &[&str]) -> Result<ChildProcess> {
    let number = number.to_string();
    let all = ["worker", number.as_str()].into_iter().chain(args.iter().copied());
    Ok(ChildProcess::start(std::env::current_exe()?, all, [])?)
}

/// The lines that a bar writes to its worker, until it closes the pipe.
pub(crate) fn orders() -> impl Iterator<Item = String> {
    std::io::stdin().lock().lines().map_while(std::result::Result::ok)
}

/// How late `now` is for `due`, without the moments in which the machine stood still.
pub(crate) fn late(due: Instant, now: Instant) -> Duration {
    stall::awake_between(due, now)
}

/// The value below which `percent` of them lie.
pub(crate) fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    values.sort_unstable();
    let at = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(at).copied().unwrap_or_default()
}

/// How many processes want a processor, for figures of a few milliseconds: what has to wait for one is late, however fast it is.
pub(crate) fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("load {} on {cores} cores", load.split(' ').next().unwrap_or("unknown"))
}

/// In milliseconds, with one digit behind the point.
pub(crate) fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// A small generator, so that a run's choices are spread and need no further crate.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Runs `lane` on so many threads and gathers what they return.
pub(crate) fn lanes<T: Send>(count: usize, lane: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let lane = &lane;
                scope.spawn(move || lane(number))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a lane panicked".into())))
            .collect()
    })
}
