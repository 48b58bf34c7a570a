//! `/metrics`: what the server says of the locks, for Prometheus. The label is the class of a name, never the name.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use redlatch::{Severity, observe::Classes};

use super::looks::Known;
use crate::escape;

/// The type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is summed up of one class of names of one kind.
#[derive(Default)]
struct Sum {
    names: u64,
    waiting: u64,
    held: Duration,
    waited: Duration,
    without_ttl: u64,
}

/// Everything as text.
pub(super) fn text(known: &Known, classes: &Classes) -> String {
    let mut text = String::new();
    let up = known.look.is_some() && known.trouble.is_none();
    family(
        &mut text,
        "up",
        "Whether the last look at the server succeeded.",
        [(String::new(), f64::from(u8::from(up)))],
    );
    let Some(look) = &known.look else { return text };
    let age = known.age().as_secs_f64();
    family(&mut text, "look_age_seconds", "How old these figures are.", [(String::new(), age)]);
    let took = look.took.as_secs_f64();
    family(&mut text, "look_duration_seconds", "How long the last look took.", [(String::new(), took)]);
    let cut = f64::from(u8::from(look.snapshot.is_cut));
    family(
        &mut text,
        "look_cut",
        "Whether there are more names than were looked at.",
        [(String::new(), cut)],
    );
    let clients = look.snapshot.clients.iter().filter(|client| !client.is_over).count() as f64;
    family(&mut text, "clients", "Clients that tell what they hold or wait for.", [(String::new(), clients)]);

    let mut sums: BTreeMap<(&'static str, Arc<str>), Sum> = BTreeMap::new();
    for (row, blocked) in look.snapshot.rows.iter().zip(&look.snapshot.why.names) {
        let kind = row.kind();
        let sum = sums.entry((kind, classes.of(kind, &row.key))).or_default();
        sum.names += 1;
        sum.waiting += row.waiting();
        sum.held = sum.held.max(Duration::from_millis(row.held_ms().unwrap_or(0)));
        sum.waited = blocked.waiting.iter().map(|waits| waits.told.lasts).fold(sum.waited, Duration::max);
        sum.without_ttl += u64::from(blocked.state.ttl_missing);
    }
    let labels =
        |(kind, class): &(&str, Arc<str>)| format!("{{kind=\"{kind}\",class=\"{}\"}}", escape::label(class));
    let mut of_each = |name: &str, help: &str, value: fn(&Sum) -> f64| {
        family(&mut text, name, help, sums.iter().map(|(key, sum)| (labels(key), value(sum))));
    };
    of_each("names", "Names that are in use.", |sum| sum.names as f64);
    of_each("waiters", "Waiters in queues, or clients that listen for a release.", |sum| sum.waiting as f64);
    of_each("hold_age_max_seconds", "How long the oldest hold has lasted, as clients tell.", |sum| {
        sum.held.as_secs_f64()
    });
    of_each("wait_age_max_seconds", "How long the oldest wait has lasted, as clients tell.", |sum| {
        sum.waited.as_secs_f64()
    });
    of_each("names_without_ttl", "Names that never end by themselves.", |sum| sum.without_ttl as f64);

    let mut alarms: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for alarm in &look.alarms {
        let severity = if alarm.severity == Severity::Problem { "problem" } else { "note" };
        *alarms.entry((alarm.subject, severity)).or_default() += 1;
    }
    let alarms = alarms.iter().map(|((subject, severity), count)| {
        (format!("{{check=\"{subject}\",severity=\"{severity}\"}}"), *count as f64)
    });
    family(&mut text, "alarms", "What is wrong, by check.", alarms);
    text
}

fn family(text: &mut String, name: &str, help: &str, values: impl IntoIterator<Item = (String, f64)>) {
    _ = write!(text, "# HELP redlatch_server_{name} {help}\n# TYPE redlatch_server_{name} gauge\n");
    for (labels, value) in values {
        _ = writeln!(text, "redlatch_server_{name}{labels} {value}");
    }
}
