//! `redlatch ls`: the locks there are.

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use redlatch::{HoldMode, LockKind, LockName, LockState};
use serde::Serialize;

use super::Context;
use crate::{
    args::LsArgs,
    durations::{self, human},
    exit::{self, Failure},
    output::{self, Record},
    recovery::Recovery,
    run::workers::{self, Worker},
    store,
    who::{Holders, Who},
};

/// How many holders, waiters or permits a line names; JSON has them all.
const NAMED_MAX: usize = 10;
/// How many clients are asked who they are.
const CLIENTS_MAX: usize = 1_000;

/// One name in a listing.
#[derive(Debug, Serialize)]
pub(super) struct LockRow {
    name: String,
    /// The name's bytes in hexadecimal, where they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    kind: &'static str,
    holders: Vec<HolderRow>,
    ttl_ms: Option<u64>,
    ttl_missing: bool,
    token: Option<u64>,
    /// How many queue for a fair lock, and who.
    waiting: u64,
    waiters: Vec<WaiterRow>,
    /// How many clients listen for a release.
    listening: Option<u64>,
    /// Free permits, or what is left of a latch.
    value: Option<i64>,
    permits_in_use: u64,
    permits: Vec<PermitRow>,
    rate: Option<RateRow>,
    findings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HolderRow {
    owner: String,
    holds: i64,
    mode: &'static str,
    /// What its client tells of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<Who>,
    /// For how long it has held, as its client tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    /// The same in words.
    #[serde(skip)]
    told: String,
    /// How long each read hold lasts; null for one that has run out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lasting_ms: Vec<Option<u64>>,
    /// The processes on this machine that work under it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workers: Vec<Worker>,
}

#[derive(Debug, Serialize)]
struct WaiterRow {
    owner: String,
    position: usize,
    stale_in_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct PermitRow {
    id: String,
    ttl_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct RateRow {
    rate: i64,
    interval_ms: u64,
    per_client: bool,
    keep_alive_ms: Option<u64>,
}

/// A name as text, and as bytes in hexadecimal where it is none.
pub(super) fn text_and_hex(name: &LockName) -> (String, Option<String>) {
    let bytes = name.as_bytes();
    let is_text = name.as_str().is_some();
    let hex = (!is_text).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    (String::from_utf8_lossy(bytes).into_owned(), hex)
}

impl From<&LockState> for LockRow {
    fn from(state: &LockState) -> Self {
        let (name, name_hex) = text_and_hex(&state.name);
        let holders = state.holders.iter().map(|holder| HolderRow {
            owner: holder.owner.clone(),
            holds: holder.holds,
            mode: match holder.mode {
                HoldMode::Read => "read",
                HoldMode::Write => "write",
                _ => "exclusive",
            },
            client: None,
            held_ms: None,
            told: String::new(),
            lasting_ms: holder.lasting.iter().map(|time| time.map(durations::ms)).collect(),
            workers: Vec::new(),
        });
        let waiters = state.waiters.iter().map(|waiter| WaiterRow {
            owner: waiter.owner.clone(),
            position: waiter.position,
            stale_in_ms: waiter.stale_in.map(durations::ms),
        });
        let permits = state
            .permits
            .iter()
            .map(|permit| PermitRow { id: permit.id.clone(), ttl_ms: permit.ttl.map(durations::ms) });
        LockRow {
            name,
            name_hex,
            kind: state.kind.word(),
            holders: holders.collect(),
            ttl_ms: state.ttl.map(durations::ms),
            ttl_missing: state.ttl_missing,
            token: state.token,
            waiting: state.waiting,
            waiters: waiters.collect(),
            listening: state.listening,
            value: state.value,
            permits_in_use: state.permits_in_use,
            permits: permits.collect(),
            rate: state.rate.map(|rule| RateRow {
                rate: rule.rate,
                interval_ms: durations::ms(rule.interval),
                per_client: rule.per_client,
                keep_alive_ms: rule.keep_alive.map(durations::ms),
            }),
            findings: state.findings.clone(),
        }
    }
}

fn time(ms: u64) -> String {
    human(Duration::from_millis(ms))
}

/// The first few, and how many there are besides.
fn some<T>(items: &[T], max: usize, total: u64, cell: impl Fn(&T) -> String) -> String {
    let mut named: Vec<String> = items.iter().take(max).map(cell).collect();
    let more = total.saturating_sub(named.len() as u64);
    if more > 0 && !named.is_empty() {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

impl LockRow {
    /// Names the processes that work under each hold, and says of those whose run is gone that they are what keeps it.
    pub(super) fn find_workers(&mut self, name: &LockName) {
        for holder in &mut self.holders {
            holder.workers =
                workers::under(name, holder.owner.strip_suffix(":write").unwrap_or(&holder.owner));
            let left = holder.workers.iter().filter(|worker| worker.run_is_gone);
            let left: Vec<String> = left.take(NAMED_MAX).map(|worker| worker.to_string()).collect();
            if !left.is_empty() {
                self.findings.push(format!(
                    "the run of {} is gone; the hold stays until what it left has ended: {}",
                    holder.owner,
                    left.join(", ")
                ));
            }
        }
    }

    /// Says who the holders are, as far as their clients tell.
    pub(super) fn name_holders(&mut self, state: &LockState, known: &Holders) {
        for holder in &mut self.holders {
            let Some((who, told, lasts)) = known.get(state, &holder.owner) else { continue };
            (holder.client, holder.told, holder.held_ms) = (Some(who), told, lasts.map(durations::ms));
        }
    }

    fn who(&self) -> String {
        let told: Vec<&HolderRow> = self.holders.iter().filter(|holder| !holder.told.is_empty()).collect();
        some(&told, 3, told.len() as u64, |holder| holder.told.clone())
    }

    fn workers(&self) -> String {
        let all: Vec<&Worker> = self.holders.iter().flat_map(|holder| &holder.workers).collect();
        some(&all, NAMED_MAX, all.len() as u64, |worker| worker.to_string())
    }

    fn ttl(&self) -> String {
        match self.ttl_ms {
            Some(ms) => time(ms),
            None if self.ttl_missing => "never ends".into(),
            None => String::new(),
        }
    }

    fn owners(&self) -> String {
        some(&self.holders, 3, self.holders.len() as u64, |holder| holder.owner.clone())
    }

    /// `2` of a lock, `1 write, 2 read` of a read-write lock, permits in use.
    fn holds(&self) -> String {
        if self.permits_in_use > 0 {
            return self.permits_in_use.to_string();
        }
        let sums = ["exclusive", "write", "read"].map(|mode| {
            let holders = self.holders.iter().filter(|holder| holder.mode == mode);
            let sum = holders.map(|holder| holder.holds).reduce(i64::saturating_add);
            sum.map(|sum| if mode == "exclusive" { sum.to_string() } else { format!("{sum} {mode}") })
        });
        sums.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn waiters(&self) -> String {
        match (self.waiting, self.listening) {
            (0, None | Some(0)) => String::new(),
            (0, Some(listening)) => listening.to_string(),
            (waiting, _) => waiting.to_string(),
        }
    }

    fn value(&self) -> String {
        match (self.value, &self.rate) {
            (Some(value), _) => value.to_string(),
            (None, Some(rule)) => {
                let each = if rule.per_client { " each" } else { "" };
                format!("{} in {}{each}", rule.rate, time(rule.interval_ms))
            }
            (None, None) => String::new(),
        }
    }

    fn token(&self) -> String {
        self.token.map(|token| token.to_string()).unwrap_or_default()
    }
}

impl Record for LockRow {
    const COLUMNS: &'static [&'static str] =
        &["NAME", "KIND", "OWNER", "HOLDS", "TTL", "WAITERS", "VALUE", "TOKEN", "WHO", "FINDINGS"];
    const NARROW: usize = 7;

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.kind.into(),
            self.owners(),
            self.holds(),
            self.ttl(),
            self.waiters(),
            self.value(),
            self.token(),
            self.who(),
            self.findings.join("; "),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// One name by itself: the same as JSON, more in words.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Detail(pub(super) LockRow);

impl Record for Detail {
    const COLUMNS: &'static [&'static str] = &[
        "NAME", "KIND", "OWNER", "HOLDS", "TTL", "WAITERS", "QUEUE", "VALUE", "LASTING", "PERMITS", "TOKEN",
        "WHO", "WORKERS", "FINDINGS",
    ];
    const NARROW: usize = Self::COLUMNS.len();

    fn cells(&self) -> Vec<String> {
        let row = &self.0;
        let queue = some(&row.waiters, NAMED_MAX, row.waiting, |waiter| {
            let stale = match waiter.stale_in_ms {
                None => "without a deadline".into(),
                Some(0) => "overdue".into(),
                Some(ms) => format!("given up in {}", time(ms)),
            };
            format!("{}. {} ({stale})", waiter.position, waiter.owner)
        });
        let readers: Vec<&HolderRow> =
            row.holders.iter().filter(|holder| !holder.lasting_ms.is_empty()).collect();
        let lasting = some(&readers, NAMED_MAX, readers.len() as u64, |holder| {
            let each = some(&holder.lasting_ms, 3, holder.lasting_ms.len() as u64, |left| {
                left.map_or("run out".into(), time)
            });
            format!("{} ({each})", holder.owner)
        });
        let permits = some(&row.permits, NAMED_MAX, row.permits_in_use, |permit| {
            format!("{} ({})", permit.id, permit.ttl_ms.map_or("for ever".into(), time))
        });
        vec![
            row.name.clone(),
            row.kind.into(),
            row.owners(),
            row.holds(),
            row.ttl(),
            row.waiters(),
            queue,
            row.value(),
            lasting,
            permits,
            row.token(),
            row.who(),
            row.workers(),
            row.findings.join("; "),
        ]
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}

pub(super) fn ls(args: &LsArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    if let Some(recovery) = Recovery::behind(&settings) {
        context.talk.say(recovery);
    }
    // None means the usual ones.
    let kinds = if args.all { &LockKind::LISTED[..] } else { &args.kind };
    store::with_client(&settings, async |client| {
        let glob = args.glob.as_deref();
        let mut watch = Screen::default();
        // Nothing is held here, so a signal ends it as it ends any program.
        loop {
            let states = if kinds.is_empty() {
                client.list(glob, limit).await?
            } else {
                client.list_kinds(kinds, glob, limit).await?
            };
            let mut rows: Vec<LockRow> = states.iter().map(LockRow::from).collect();
            // Only a courtesy: an account without the right learns of nobody.
            let known = Holders::among(&client.clients(CLIENTS_MAX).await.unwrap_or_default(), &states);
            rows.iter_mut().zip(&states).for_each(|(row, state)| row.name_holders(state, &known));
            let format = output::format(args.output, &settings);
            let Some(interval) = args.watch else {
                output::list(format, &rows)?;
                if rows.len() >= limit {
                    context.talk.say(format_args!("the list stops at {limit}; see more with --limit"));
                }
                return Ok(exit::OK);
            };
            watch.show(output::listed(format, &rows)?)?;
            tokio::time::sleep(interval).await;
        }
    })
}

/// A list that is shown again and again: in the same place on a terminal, and elsewhere whenever it has changed.
#[derive(Default)]
struct Screen {
    shown: Option<String>,
}

impl Screen {
    fn show(&mut self, text: String) -> Result<(), Failure> {
        if stdout().is_terminal() {
            // To the top, each line over the one before, and away with what is left below.
            let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            let clear = if self.shown.is_none() { "\x1b[2J" } else { "" };
            output::emit(&format!("{clear}\x1b[H{lines}\x1b[J"))?;
        } else if self.shown.as_ref() != Some(&text) {
            output::emit(&text)?;
        }
        self.shown = Some(text);
        Ok(())
    }
}
