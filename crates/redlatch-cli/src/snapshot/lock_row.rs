//! One name in a listing, as a line of a table and as JSON.

use std::time::Duration;

use redlatch::{HoldMode, LockName, LockState};
use serde::Serialize;

use crate::{
    durations::{self, human},
    output::Record,
    run::workers::{self, Worker},
    who::{Holders, Who},
};

/// How many holders, waiters or permits a line names; JSON has them all.
pub(super) const NAMED_MAX: usize = 10;

/// One name in a listing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LockRow {
    /// The name itself, of any bytes.
    #[serde(skip)]
    pub(crate) key: LockName,
    pub(super) name: String,
    /// The name's bytes in hexadecimal, where they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name_hex: Option<String>,
    pub(super) kind: &'static str,
    pub(super) holders: Vec<HolderRow>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) ttl_missing: bool,
    pub(super) token: Option<u64>,
    /// How many queue for a fair lock, and who.
    pub(super) waiting: u64,
    pub(super) waiters: Vec<WaiterRow>,
    /// How many clients listen for a release.
    pub(super) listening: Option<u64>,
    /// Free permits, or what is left of a latch.
    pub(super) value: Option<i64>,
    pub(super) permits_in_use: u64,
    pub(super) permits: Vec<PermitRow>,
    pub(super) rate: Option<RateRow>,
    pub(super) findings: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct HolderRow {
    pub(super) owner: String,
    pub(super) holds: i64,
    pub(super) mode: &'static str,
    /// What its client tells of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<Who>,
    /// For how long it has held, as its client tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_ms: Option<u64>,
    /// The same in words.
    #[serde(skip)]
    pub(super) told: String,
    /// How long each read hold lasts; null for one that has run out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lasting_ms: Vec<Option<u64>>,
    /// The processes on this machine that work under it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) workers: Vec<Worker>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct WaiterRow {
    pub(super) owner: String,
    pub(super) position: usize,
    pub(super) stale_in_ms: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct PermitRow {
    pub(super) id: String,
    pub(super) ttl_ms: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct RateRow {
    pub(super) rate: i64,
    interval_ms: u64,
    per_client: bool,
    keep_alive_ms: Option<u64>,
}

/// A name as text, and as bytes in hexadecimal where it is none.
pub(crate) fn text_and_hex(name: &LockName) -> (String, Option<String>) {
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
            key: state.name.clone(),
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

pub(super) fn time(ms: u64) -> String {
    human(Duration::from_millis(ms))
}

/// The first few, and how many there are besides.
pub(super) fn some<T>(items: &[T], max: usize, total: u64, cell: impl Fn(&T) -> String) -> String {
    let mut named: Vec<String> = items.iter().take(max).map(cell).collect();
    let more = total.saturating_sub(named.len() as u64);
    if more > 0 && !named.is_empty() {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

impl LockRow {
    /// Names the processes that work under each hold, and says of those whose run is gone that they are what keeps it.
    pub(crate) fn find_workers(&mut self, name: &LockName) {
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
    pub(crate) fn name_holders(&mut self, state: &LockState, known: &Holders) {
        for holder in &mut self.holders {
            let Some((who, told, lasts)) = known.get(state, &holder.owner) else { continue };
            (holder.client, holder.told, holder.held_ms) = (Some(who), told, lasts.map(durations::ms));
        }
    }

    pub(crate) fn who(&self) -> String {
        let told: Vec<&HolderRow> = self.holders.iter().filter(|holder| !holder.told.is_empty()).collect();
        some(&told, 3, told.len() as u64, |holder| holder.told.clone())
    }

    pub(crate) fn workers(&self) -> String {
        let all: Vec<&Worker> = self.holders.iter().flat_map(|holder| &holder.workers).collect();
        some(&all, NAMED_MAX, all.len() as u64, |worker| worker.to_string())
    }

    pub(crate) fn ttl(&self) -> String {
        match self.ttl_ms {
            Some(ms) => time(ms),
            None if self.ttl_missing => "never ends".into(),
            None => String::new(),
        }
    }

    pub(crate) fn owners(&self) -> String {
        some(&self.holders, 3, self.holders.len() as u64, |holder| holder.owner.clone())
    }

    /// `2` of a lock, `1 write, 2 read` of a read-write lock, permits in use.
    pub(crate) fn holds(&self) -> String {
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

    /// For how long the oldest of its holds has lasted, as the clients tell.
    pub(crate) fn held_ms(&self) -> Option<u64> {
        self.holders.iter().filter_map(|holder| holder.held_ms).max()
    }

    /// Those that a hold can be taken from: owners, or permits.
    pub(crate) fn takeable(&self) -> Vec<(String, String)> {
        let holders = self.holders.iter().map(|holder| (holder.owner.clone(), holder.told.clone()));
        holders.chain(self.permits.iter().map(|permit| (permit.id.clone(), String::new()))).collect()
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// When it ends unless it is renewed; the last of all if it never does.
    pub(crate) fn ends_in_ms(&self) -> u64 {
        self.ttl_ms.unwrap_or(u64::MAX)
    }

    pub(crate) fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }

    /// Whether its name, its kind, an owner or what a client tells has this text in it, in small or large letters.
    pub(crate) fn contains(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let has = |part: &str| part.to_lowercase().contains(&text);
        let of = |holder: &HolderRow| has(&holder.owner) || has(&holder.told);
        has(&self.name) || has(self.kind) || self.holders.iter().any(of)
    }

    /// How many wait: those in the queue of a fair lock, or the clients that listen.
    pub(crate) fn waiting(&self) -> u64 {
        if self.waiting > 0 { self.waiting } else { self.listening.unwrap_or(0) }
    }

    pub(crate) fn waiters(&self) -> String {
        match self.waiting() {
            0 => String::new(),
            waiting => waiting.to_string(),
        }
    }

    pub(crate) fn value(&self) -> String {
        match (self.value, &self.rate) {
            (Some(value), _) => value.to_string(),
            (None, Some(rule)) => {
                let each = if rule.per_client { " each" } else { "" };
                format!("{} in {}{each}", rule.rate, time(rule.interval_ms))
            }
            (None, None) => String::new(),
        }
    }

    pub(crate) fn token(&self) -> String {
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
