//! `redlatch why`: what holds a name up, and who.

use std::fmt::Write as _;

use redlatch::{BlockedName, Blocker, LockName, Why};
use serde::Serialize;

use super::{Context, lock_name};
use crate::{
    args::{Format, looking::WhyArgs},
    durations::{self, human},
    escape,
    exit::{self, Failure},
    output::{self, SCHEMA},
    recovery::Recovery,
    snapshot::{
        Snapshot,
        alarms::{ASK_WHY, Alarm, DEADLOCK, alarms},
        blocking,
        lock_row::text_and_hex,
    },
    store,
    who::{self, Who},
};

/// How many waiters of a name are named in words; JSON has them all.
const NAMED_MAX: usize = 3;

#[derive(Serialize)]
struct WhyDocument {
    schema: u32,
    names: Vec<NameRow>,
    cycles: Vec<CycleRow>,
    alarms: Vec<AlarmRow>,
    is_cut: bool,
}

#[derive(Serialize)]
struct NameRow {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    kind: &'static str,
    ttl_ms: Option<u64>,
    blockers: Vec<BlockerRow>,
    waiting: Vec<WaitingRow>,
}

#[derive(Serialize)]
struct BlockerRow {
    owner: String,
    client: Option<Who>,
    held_ms: Option<u64>,
    waits_for: Vec<WaitsForRow>,
}

#[derive(Serialize)]
struct WaitsForRow {
    name: String,
    waited_ms: u64,
    is_certain: bool,
}

#[derive(Serialize)]
struct WaitingRow {
    client: Who,
    kind: String,
    waited_ms: u64,
}

#[derive(Serialize)]
struct CycleRow {
    names: Vec<String>,
    is_certain: bool,
}

#[derive(Serialize)]
struct AlarmRow {
    result: &'static str,
    check: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    detail: String,
    remedy: Option<&'static str>,
}

impl From<&Alarm> for AlarmRow {
    fn from(alarm: &Alarm) -> Self {
        AlarmRow {
            result: alarm.result(),
            check: alarm.subject,
            name: alarm.name.as_ref().map(text),
            detail: alarm.text.clone(),
            remedy: alarm.remedy,
        }
    }
}

fn text(name: &LockName) -> String {
    text_and_hex(name).0
}

impl WhyDocument {
    fn of(why: &Why, alarms: &[Alarm]) -> Self {
        let blocker = |blocker: &Blocker| BlockerRow {
            owner: blocker.owner.clone(),
            client: blocker.client.as_ref().map(Who::from),
            held_ms: blocker.lasts.map(durations::ms),
            waits_for: blocker
                .waits_for
                .iter()
                .map(|waits_for| WaitsForRow {
                    name: text(&waits_for.name),
                    waited_ms: durations::ms(waits_for.lasts),
                    is_certain: waits_for.is_certain,
                })
                .collect(),
        };
        let name = |blocked: &BlockedName| {
            let (name, name_hex) = text_and_hex(&blocked.state.name);
            NameRow {
                name,
                name_hex,
                kind: blocked.state.kind.word(),
                ttl_ms: blocked.state.ttl.map(durations::ms),
                blockers: blocked.blockers.iter().map(blocker).collect(),
                waiting: blocked
                    .waiting
                    .iter()
                    .map(|waits| WaitingRow {
                        client: Who::from(&waits.client),
                        kind: waits.told.kind.clone(),
                        waited_ms: durations::ms(waits.told.lasts),
                    })
                    .collect(),
            }
        };
        WhyDocument {
            schema: SCHEMA,
            names: why.names.iter().map(name).collect(),
            cycles: why
                .cycles
                .iter()
                .map(|cycle| CycleRow {
                    names: cycle.names.iter().map(text).collect(),
                    is_certain: cycle.is_certain,
                })
                .collect(),
            alarms: alarms.iter().map(AlarmRow::from).collect(),
            is_cut: why.is_cut,
        }
    }
}

/// In words, the circles first, and at the end what else is wrong.
fn told(why: &Why, alarms: &[Alarm]) -> String {
    let mut words = String::new();
    for cycle in &why.cycles {
        _ = writeln!(words, "{}; none of these goes on until one holder gives up", blocking::cycle(cycle));
    }
    for blocked in &why.names {
        tell(&mut words, blocked);
    }
    for alarm in alarms.iter().filter(|alarm| alarm.subject != DEADLOCK) {
        let remedy = alarm
            .remedy
            .filter(|remedy| *remedy != ASK_WHY)
            .map(|remedy| format!("; {remedy}"))
            .unwrap_or_default();
        _ = writeln!(words, "{}: {alarm}{remedy}", alarm.result());
    }
    if why.is_cut {
        words.push_str("there is more than was looked at\n");
    }
    words
}

fn tell(words: &mut String, blocked: &BlockedName) {
    let name = escape::quoted(&blocked.state.name);
    let ttl = blocked.state.ttl.map(|ttl| format!(", lease {}", human(ttl))).unwrap_or_default();
    match (blocked.blockers.is_empty(), blocked.state.permits_in_use, blocked.state.value) {
        (false, ..) => {}
        (true, 1.., _) => _ = writeln!(words, "{name}: {} permits are in use", blocked.state.permits_in_use),
        (true, 0, Some(value)) => _ = writeln!(words, "{name}: {value} left"),
        (true, 0, None) => _ = writeln!(words, "{name} is free"),
    }
    for blocker in &blocked.blockers {
        let client = blocker.client.as_ref().map_or_else(
            || format!("{}, whose client tells nothing of itself", escape::text(&blocker.owner)),
            |record| format!("{} ({})", who::with_reason(record), escape::text(&blocker.owner)),
        );
        let lasts = blocker.lasts.map(|lasts| format!(" for {}", human(lasts))).unwrap_or_default();
        _ = writeln!(words, "{name} is held{lasts} by {client}{ttl}");
        for waits_for in &blocker.waits_for {
            let perhaps = if waits_for.is_certain { "" } else { "perhaps " };
            let other = escape::quoted(&waits_for.name);
            _ = writeln!(words, "  which {perhaps}waits for {other}, since {}", human(waits_for.lasts));
        }
        if blocker.waits_for.is_empty() && blocker.client.is_some() {
            words.push_str("  which waits for nothing\n");
        }
    }
    let some: Vec<String> = blocked
        .waiting
        .iter()
        .take(NAMED_MAX)
        .map(|waits| format!("{} since {}", who::named(&waits.client), human(waits.told.lasts)))
        .collect();
    let more = blocked.waiting.len().saturating_sub(some.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if !some.is_empty() {
        _ = writeln!(words, "  {} wait for it: {}{more}", blocked.waiting.len(), some.join(", "));
    }
}

pub(super) fn why(args: WhyArgs, context: &Context) -> Result<u8, Failure> {
    let name = lock_name(args.name)?;
    let settings = context.settings()?;
    if let Some(recovery) = Recovery::behind(&settings) {
        context.talk.say(recovery);
    }
    store::with_client(&settings, async |client| {
        let snapshot = Snapshot::about(client, &name).await?;
        let (why, alarms) = (&snapshot.why, alarms(&snapshot, settings.lease));
        output::emit(&match output::format(args.output, &settings) {
            Format::Json | Format::Ndjson => output::json(&WhyDocument::of(why, &alarms))?,
            Format::Name => why
                .names
                .iter()
                .map(|blocked| escape::bytes(blocked.state.name.as_bytes()).to_string() + "\n")
                .collect(),
            Format::Table | Format::Wide => told(why, &alarms),
        })?;
        Ok(exit::OK)
    })
}
