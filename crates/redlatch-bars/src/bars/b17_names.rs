//! Bar 17: 100,000 random names of bytes. Each is refused as a name, or all keys and channels that are made of it lie in one slot of a
//! cluster and are no other name's. No byte of a name reaches a terminal, a log or an error's text unescaped. (Nothing in this project
//! writes HTML.) The control puts names between prefix and braces, and prints them as they are.

use std::collections::HashMap;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redlatch::store::{Arg, Call, Fault, Listener, RunFuture, Store, SubscribeFuture};
use redlatch::{Client, Error, ErrorKind, LockName};
use redlatch_testkit::server::RedisServer;
use redlatch_testkit::topology::slot_of;

use crate::common::{Random, Result, Verdict, raw, runtime};

const NAMES: usize = 100_000;
const CONTROL_NAMES: usize = 5_000;
/// So many of them are listed by the command, too.
const LISTED: usize = 5_000;
/// Signs that mean something to keys, terminals or patterns come more often than others.
const SPECIAL: &[&[u8]] = &[
    b"{",
    b"}",
    b"{}",
    b":",
    b"\x1b[2J",
    b"\n",
    b"\r",
    b"\0",
    b"*",
    b"?",
    b"[",
    b"\\",
    b"\"",
    b"<b>",
    b"\x7f",
    b"\xc2\x9b",
    "\u{202e}".as_bytes(),
    "\u{2066}".as_bytes(),
    "ä".as_bytes(),
    b"\xff",
    b"redisson_lock_queue:",
    b"timeout",
];

/// Remembers what it is asked, and refuses it.
#[derive(Default)]
struct Recorder(Mutex<Vec<Vec<u8>>>);

impl Recorder {
    fn note(&self, parts: impl Iterator<Item = Vec<u8>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(parts);
    }

    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn refusal() -> Fault {
    Fault::Server(Error::new(ErrorKind::Server, "ERR only the keys are wanted"))
}

impl Store for Recorder {
    fn run(&self, call: Call) -> RunFuture {
        self.note(call.keys.iter().map(|key| key.to_vec()));
        self.note(call.args.iter().filter_map(|arg| match arg {
            Arg::Bytes(bytes) => Some(bytes.to_vec()),
            Arg::Text(text) => Some(text.as_bytes().to_vec()),
            _ => None,
        }));
        Box::pin(std::future::ready(Err(refusal())))
    }

    fn subscribe(&self, channel: Arc<[u8]>, _listener: Listener) -> SubscribeFuture {
        self.note(std::iter::once(channel.to_vec()));
        Box::pin(std::future::ready(Err(refusal())))
    }

    fn describe(&self) -> String {
        "a recorder".into()
    }
}

/// Whether this is a key or a channel that is made of the name. Other arguments are owners, figures and random bytes.
fn is_derived(arg: &[u8], name: &[u8]) -> bool {
    let braced = [b"{", name, b"}"].concat();
    arg == name || arg.starts_with(&braced) || arg.starts_with(b"redisson_") || arg.starts_with(b"redlatch_")
}

fn is_tag_of(name: &[u8], other: &[u8]) -> bool {
    other.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}")) == Some(name)
}

fn random_name(random: &mut Random) -> Vec<u8> {
    let mut name = Vec::new();
    for _ in 0..1 + random.below(9) {
        match random.below(3) {
            0 => name.extend_from_slice(SPECIAL[random.below(SPECIAL.len() as u64) as usize]),
            1 => name.push(random.below(256) as u8),
            _ => name.push(b'a' + random.below(26) as u8),
        }
    }
    name
}

/// Bytes that a terminal may act on, and signs that turn a line of text around.
fn unescaped(text: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(text) else { return 1 };
    text.chars()
        .filter(|c| {
            let turns =
                matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            turns || c.is_control()
        })
        .count()
}

/// Looks at each event of the log; its own end of line is the only one that it may have.
#[derive(Clone, Default)]
struct LogCheck(Arc<(AtomicUsize, AtomicUsize)>);

impl Write for LogCheck {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        self.0.0.fetch_add(1, Ordering::Relaxed);
        self.0.1.fetch_add(unescaped(line), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Seen {
    names: usize,
    refused: usize,
    split: usize,
    shared: usize,
    of_tag: usize,
    bytes: usize,
    keys: usize,
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let log = LogCheck::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let count = if control { CONTROL_NAMES } else { NAMES };
    let mut random = Random::new(17);
    let mut names: Vec<Vec<u8>> = (0..count * 2).map(|_| random_name(&mut random)).collect();
    names.sort();
    names.dedup();
    // Spread again, and as many as were asked for.
    names.sort_by_cached_key(|name| slot_of(name));
    names.truncate(count);
    let recorder = Arc::new(Recorder::default());
    let client = Client::builder().custom_store(recorder.clone()).connect_lazy()?;
    let mut seen = Seen { names: names.len(), ..Seen::default() };
    let mut of_key: HashMap<Vec<u8>, usize> = HashMap::new();
    let runtime = runtime(1)?;
    for (number, name) in names.iter().enumerate() {
        let keys = if control {
            naive_keys(name, &mut seen)
        } else {
            runtime.block_on(ask(&client, name, &mut seen));
            recorder.take().into_iter().filter(|part| is_derived(part, name)).collect()
        };
        let mut slots: Vec<u16> = keys.iter().map(slot_of).collect();
        slots.sort_unstable();
        slots.dedup();
        seen.split += usize::from(slots.len() > 1);
        seen.keys += keys.len();
        for key in keys {
            let first = *of_key.entry(key).or_insert(number);
            // `x` and `{x}` have the same tag in a cluster, in Redisson as here (docs/dangers.md).
            let is_tag = is_tag_of(&names[first], name) || is_tag_of(name, &names[first]);
            seen.of_tag += usize::from(first != number && is_tag);
            seen.shared += usize::from(first != number && !is_tag);
        }
    }
    let (terminal, json) = if control { (0, 0) } else { list(&names[..LISTED.min(names.len())])? };
    let (events, in_log) = (log.0.0.load(Ordering::Relaxed), log.0.1.load(Ordering::Relaxed));
    let figure = format!(
        "{} names, {} refused as names, {} split over slots, {} of {} keys and channels shared by two names (and {} by `x` and `{{x}}`, which is documented and Redisson's way), unescaped bytes: {} in texts \
         of errors and names, {terminal} in tables of the command ({LISTED} listed), {json} in its JSON, {in_log} in the log ({events} events); no HTML is written",
        seen.names, seen.refused, seen.split, seen.shared, seen.keys, seen.of_tag, seen.bytes
    );
    let met = seen.split + seen.shared + seen.bytes + terminal + json + in_log == 0 && seen.keys > seen.names;
    Ok(Verdict::new(met && (control || seen.refused < seen.names / 2), figure))
}

/// Has every kind of lock ask something of the store.
async fn ask(client: &Client, name: &[u8], seen: &mut Seen) {
    let both = LockName::from(name);
    let read_write = client.read_write_lock(&both);
    let errors = [
        client.lock(&both).try_lock().await.err(),
        client.lock(&both).force_unlock().await.err(),
        client.fenced_lock(&both).try_lock().await.err(),
        client.fair_lock(&both).try_lock().await.err(),
        client.fair_lock(&both).force_unlock().await.err(),
        read_write.read().try_lock().await.err(),
        read_write.write().try_lock().await.err(),
        read_write.write().force_unlock().await.err(),
        client.semaphore(&both).try_acquire(1).await.err(),
        client.semaphore(&both).release(1).await.err(),
        client.permit_semaphore(&both).try_acquire().await.err(),
        client.count_down_latch(&both).count_down().await.err(),
        client.rate_limiter(&both).try_acquire(1).await.err(),
    ];
    seen.refused += usize::from(errors.iter().flatten().all(|error| error.kind() == ErrorKind::InvalidName));
    for error in errors.iter().flatten() {
        tracing::debug!(name = %both, "refused: {error}");
        seen.bytes += unescaped(error.to_string().as_bytes()) + unescaped(format!("{error:?}").as_bytes());
    }
    seen.bytes += unescaped(both.to_string().as_bytes()) + unescaped(format!("{both:?}").as_bytes());
}

/// As simple code would make them, and as it would print the name.
fn naive_keys(name: &[u8], seen: &mut Seen) -> Vec<Vec<u8>> {
    seen.bytes += unescaped(name);
    let around = |before: &str| [before.as_bytes(), b"{", name, b"}"].concat();
    vec![name.to_vec(), around("redisson_lock__channel:"), around("redisson_lock_queue:")]
}

/// What the command prints when it lists locks with these names.
fn list(names: &[Vec<u8>]) -> Result<(usize, usize)> {
    let server = RedisServer::start()?;
    let mut raw = raw(&server.url())?;
    let mut pipe = redis::pipe();
    for name in names {
        pipe.cmd("HSET").arg(name).arg("6b1c0f53-0c1a-4b0a-9d3e-000000000000:1").arg(1).ignore();
        pipe.cmd("PEXPIRE").arg(name).arg(600_000).ignore();
    }
    let () = pipe.query(&mut raw)?;
    let (mut on_terminal, mut in_json) = (0, 0);
    for format in ["table", "wide", "json", "ndjson", "name"] {
        let listed = Command::new(std::env::current_exe()?.with_file_name("redlatch"))
            .args(["ls", "--limit", "100000", "-o", format])
            .env("REDLATCH_URL", server.url())
            .output()?;
        let lines = listed.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        if !listed.status.success() || (format == "name" && lines.clone().count() < names.len() / 2) {
            return Err(format!("ls -o {format}: {}", String::from_utf8_lossy(&listed.stderr)).into());
        }
        // The columns of a table are kept apart by tabs where it is not read on a terminal.
        let all = lines.chain(listed.stderr.split(|byte| *byte == b'\n'));
        if format.ends_with("json") {
            in_json += all.map(unescaped).sum::<usize>();
        } else {
            on_terminal +=
                all.flat_map(|line| line.split(|byte| *byte == b'\t')).map(unescaped).sum::<usize>();
        }
    }
    Ok((on_terminal, in_json))
}
