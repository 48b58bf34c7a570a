//! Bar 20, as far as it needs no further tools: every kind of lock works with the rights that `redlatch acl` prints; each single one
//! taken away ends in a typed refusal or is done without, and `redlatch doctor` names it; no password is in any output. The control
//! takes nothing away, so that what is asked for can be found nowhere.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use redlatch::{Client, Error, ErrorKind, Rate};
use redlatch_testkit::server::RedisServer;

use crate::common::{Result, Verdict, lanes, runtime};

const LANES: usize = 3;
const PASSWORD: &str = "hunter2-never-to-be-seen";
/// Kinds that only look have nothing to exercise.
const KINDS: [&str; 9] =
    ["lock", "fenced", "fair", "spin", "read-write", "semaphore", "permits", "latch", "rate-limiter"];
/// A wait that has no time to hide a refusal behind others.
const WAIT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Seen {
    /// Kinds that did not work with all their rights.
    broken: Vec<String>,
    taken: usize,
    done_without: usize,
    /// Refusals of another kind than a missing right.
    untyped: Vec<String>,
    unnamed: Vec<String>,
    passwords: usize,
    bytes: usize,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.broken.extend(other.broken);
        self.taken += other.taken;
        self.done_without += other.done_without;
        self.untyped.extend(other.untyped);
        self.unnamed.extend(other.unnamed);
        self.passwords += other.passwords;
        self.bytes += other.bytes;
    }
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let mut seen = Seen::default();
    for part in lanes(LANES, |lane| one_lane(lane, control))? {
        seen.add(part);
    }
    for (what, list) in [("broken", &seen.broken), ("untyped", &seen.untyped), ("unnamed", &seen.unnamed)] {
        for one in list {
            eprintln!("{what}: {one}");
        }
    }
    let figure = format!(
        "{} of {} kinds fail with their least rights; {} rights {}, {} done without, {} refused without a kind, {} not named by doctor; \
         the password {} times in {} KiB of output at -vv; not part of it: the whole suite as that account (scripts/test-store acl), \
         cargo deny, audit and vet (not set up), the fuzzers (scripts/fuzz)",
        seen.broken.len(),
        KINDS.len(),
        seen.taken,
        if control { "left as they are" } else { "taken away one by one" },
        seen.done_without,
        seen.untyped.len(),
        seen.unnamed.len(),
        seen.passwords,
        seen.bytes / 1024
    );
    let bad = seen.broken.len() + seen.untyped.len() + seen.unnamed.len() + seen.passwords;
    Ok(Verdict::new(bad == 0 && seen.taken > 100, figure))
}

fn one_lane(lane: usize, control: bool) -> Result<Seen> {
    let server = RedisServer::start()?;
    let url = server.url().replace("redis://", &format!("redis://app:{PASSWORD}@"));
    let runtime = runtime(1)?;
    let mut seen = Seen::default();
    for (_, kind) in KINDS.iter().enumerate().filter(|(number, _)| number % LANES == lane) {
        let rules = rules_of(kind)?;
        give(&server, &rules, None)?;
        if let Err(e) = runtime.block_on(exercise(&url, kind, "app:all-rights")) {
            seen.broken.push(format!("{kind}: {e}"));
        }
        for taken in rules.iter().filter(|rule| !rule.starts_with("reset") && !rule.starts_with('-')) {
            give(&server, &rules, (!control).then_some(taken))?;
            seen.taken += 1;
            // What was refused may have left a hold, so each has a name of its own.
            let name = format!("app:{}", seen.taken);
            match runtime.block_on(exercise(&url, kind, &name)) {
                Ok(()) => seen.done_without += 1,
                Err(e) if e.kind() == ErrorKind::Permission => {}
                Err(e) => seen.untyped.push(format!("{kind} without {taken}: {:?} {e}", e.kind())),
            }
            let said = command(&url, &["doctor", "-vv", "--prefix", "app:", "--kind", kind], &mut seen)?;
            let words: BTreeSet<&str> = said.split_whitespace().collect();
            if !words.contains(taken.as_str()) {
                seen.unnamed.push(format!("{kind} without {taken}"));
            }
        }
        server.flush_all()?;
    }
    // What is said when the password is wrong, and when nobody answers.
    let wrong = url.replace("app:", "nobody:");
    command(&wrong, &["run", "-vv", "-w", "1s", "app:x", "--", "true"], &mut seen)?;
    command(&wrong, &["config", "show"], &mut seen)?;
    server.stop();
    command(&url, &["ls", "-vv"], &mut seen)?;
    Ok(seen)
}

fn rules_of(kind: &str) -> Result<Vec<String>> {
    let printed = Command::new(std::env::current_exe()?.with_file_name("redlatch"))
        .args(["acl", "--prefix", "app:", "--kind", kind])
        .output()?;
    let text = String::from_utf8(printed.stdout)?;
    let (_, rules) = text.trim().split_once('\t').ok_or("acl printed no rules")?;
    Ok(rules.split(' ').map(str::to_owned).collect())
}

fn give(server: &RedisServer, rules: &[String], without: Option<&String>) -> Result<()> {
    let mut command = vec![
        "ACL".to_owned(),
        "SETUSER".into(),
        "app".into(),
        "reset".into(),
        "on".into(),
        format!(">{PASSWORD}"),
    ];
    command.extend(rules.iter().filter(|rule| Some(*rule) != without).cloned());
    server.cmd(&command)?;
    Ok(())
}

/// Runs the command and counts the password in what it says.
fn command(url: &str, args: &[&str], seen: &mut Seen) -> Result<String> {
    let said = Command::new(std::env::current_exe()?.with_file_name("redlatch"))
        .args(args)
        .env("REDLATCH_URL", url)
        .output()?;
    let text = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    seen.passwords += text.matches(PASSWORD).count();
    seen.bytes += text.len();
    Ok(text)
}

/// A use of each kind, with a waiter where there is waiting. Errors come back as they are.
async fn exercise(url: &str, kind: &str, name: &str) -> std::result::Result<(), Error> {
    let settings = || Client::builder().url(url).outage_tolerance(Duration::from_millis(100));
    let (client, other) = (settings().connect().await?, settings().connect().await?);
    let busy = || Error::new(ErrorKind::Server, "a name of its own was not granted in time");
    match kind {
        "lock" | "spin" | "fair" | "fenced" => both_use(&client, &other, kind, name).await?.ok_or_else(busy),
        "read-write" => {
            let lock = client.read_write_lock(name);
            lock.read().lock_for(WAIT).await?.ok_or_else(busy)?.unlock().await?;
            lock.write().lock_for(WAIT).await?.ok_or_else(busy)?.unlock().await.map(drop)
        }
        "semaphore" => {
            let semaphore = client.semaphore(name);
            semaphore.set_if_absent(1, None).await?;
            if !semaphore.acquire_for(1, WAIT).await? {
                return Err(busy());
            }
            semaphore.release(1).await
        }
        "permits" => {
            let permits = client.permit_semaphore(name);
            permits.set_if_absent(1).await?;
            permits.acquire_for(WAIT).await?.ok_or_else(busy)?.release().await.map(drop)
        }
        "latch" => {
            let latch = client.count_down_latch(name);
            latch.set_if_absent(1).await?;
            latch.count_down().await?;
            latch.wait_for(WAIT).await.map(drop)
        }
        _ => {
            let rate = client.rate_limiter(name);
            rate.set_if_absent(Rate::per(1_000, Duration::from_secs(1))).await?;
            rate.try_acquire(1).await.map(drop)
        }
    }
}

/// One holds, the other one waits, and the first one gives back.
async fn both_use(
    client: &Client,
    other: &Client,
    kind: &str,
    name: &str,
) -> std::result::Result<Option<()>, Error> {
    macro_rules! one_after_the_other {
        ($method:ident) => {{
            let (first, second) = (client.$method(name), other.$method(name));
            let Some(guard) = first.lock_for(WAIT).await? else { return Ok(None) };
            let (waited, given) = tokio::join!(second.lock_for(WAIT), guard.unlock());
            given?;
            let Some(guard) = waited? else { return Ok(None) };
            guard.unlock().await?;
        }};
    }
    match kind {
        "lock" => one_after_the_other!(lock),
        "spin" => one_after_the_other!(spin_lock),
        "fair" => one_after_the_other!(fair_lock),
        _ => one_after_the_other!(fenced_lock),
    }
    Ok(Some(()))
}
