//! Samples of all rounds, and what is made of them: medians, a table, JSON.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde::Serialize;

use crate::{options::Options, outcome::Outcome};

/// What was measured, one value a round.
#[derive(Default)]
pub(crate) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    pub(crate) fn push(&mut self, key: impl Into<String>, value: f64) {
        self.0.entry(key.into()).or_default().push(value);
    }

    pub(crate) fn all(&self, key: &str) -> &[f64] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// One key over another, round by round: what disturbs a round disturbs both, so ratios are steadier than figures.
    pub(crate) fn ratios(&self, over: &str, under: &str) -> Vec<f64> {
        self.all(over).iter().zip(self.all(under)).map(|(over, under)| over / under).collect()
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Verdict {
    Pass,
    Fail,
}

/// What a figure has to be.
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
    /// So much and nothing else, in every round: for what is counted, not timed.
    Exactly(f64),
    /// At least so much, where this share less still counts when a round reached it: for two things that are equal.
    AtLeastWithin(f64, f64),
}

impl Bar {
    fn verdict(&self, median: f64, rounds: &[f64]) -> Verdict {
        let cleared = match *self {
            Bar::AtLeast(bar) => median >= bar,
            Bar::AtMost(bar) => median <= bar,
            Bar::Below(bar) => median < bar,
            Bar::Exactly(bar) => !rounds.is_empty() && rounds.iter().all(|round| *round == bar),
            Bar::AtLeastWithin(bar, share) => {
                median >= bar || (median >= bar * (1.0 - share) && rounds.iter().any(|round| *round >= bar))
            }
        };
        if cleared { Verdict::Pass } else { Verdict::Fail }
    }

    fn text(&self) -> String {
        match *self {
            Bar::AtLeast(bar) => format!(">= {}", figure(bar)),
            Bar::AtMost(bar) => format!("<= {}", figure(bar)),
            Bar::Below(bar) => format!("< {}", figure(bar)),
            Bar::Exactly(bar) => format!("= {}", figure(bar)),
            Bar::AtLeastWithin(bar, share) => format!(">= {} (- {:.0} %)", figure(bar), share * 100.0),
        }
    }
}

#[derive(Serialize)]
struct Row {
    section: &'static str,
    what: String,
    median: f64,
    min: f64,
    max: f64,
    unit: &'static str,
    bar: Option<String>,
    verdict: Option<Verdict>,
    rounds: Vec<f64>,
}

#[derive(Serialize)]
struct About {
    rounds: usize,
    quick: bool,
    seconds: f64,
    cores: usize,
    load_average: String,
}

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) samples: Samples,
    rows: Vec<Row>,
    about: Option<About>,
}

impl Report {
    /// A line for a key.
    pub(crate) fn line(
        &mut self,
        section: &'static str,
        what: impl Into<String>,
        key: &str,
        unit: &'static str,
        bar: Option<Bar>,
    ) {
        let rounds = self.samples.all(key).to_vec();
        self.row(section, what.into(), rounds, unit, bar);
    }

    /// A line for one key over another.
    pub(crate) fn ratio(
        &mut self,
        section: &'static str,
        what: impl Into<String>,
        keys: (&str, &str),
        bar: Option<Bar>,
    ) {
        let rounds = self.samples.ratios(keys.0, keys.1);
        self.row(section, what.into(), rounds, "x", bar);
    }

    fn row(
        &mut self,
        section: &'static str,
        what: String,
        rounds: Vec<f64>,
        unit: &'static str,
        bar: Option<Bar>,
    ) {
        let median = median(&rounds);
        self.rows.push(Row {
            section,
            what,
            median,
            min: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            max: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            unit,
            verdict: bar.as_ref().map(|bar| bar.verdict(median, &rounds)),
            bar: bar.map(|bar| bar.text()),
            rounds,
        });
    }

    pub(crate) fn describe(&mut self, options: &Options, took: Duration) {
        self.about = Some(About {
            rounds: options.rounds,
            quick: options.quick,
            seconds: took.as_secs_f64().round(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load_average: std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned(),
        });
    }

    pub(crate) fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.verdict == Some(Verdict::Fail))
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        if let Some(about) = &self.about {
            let quick = if about.quick { ", quick: not for comparison" } else { "" };
            // Writing into a string cannot fail.
            let _ = writeln!(
                text,
                "{} cores, {} rounds in {:.0} s, load average {}{quick}\n",
                about.cores, about.rounds, about.seconds, about.load_average
            );
        }
        let head = ["section", "what", "median", "min … max", "unit", "bar", ""].map(str::to_owned);
        let mut lines = vec![head];
        for row in &self.rows {
            lines.push([
                row.section.to_owned(),
                row.what.clone(),
                figure(row.median),
                format!("{} … {}", figure(row.min), figure(row.max)),
                row.unit.to_owned(),
                row.bar.clone().unwrap_or_default(),
                match row.verdict {
                    Some(Verdict::Pass) => "PASS",
                    Some(Verdict::Fail) => "FAIL",
                    None => "",
                }
                .to_owned(),
            ]);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 7] = std::array::from_fn(width);
        for (at, line) in lines.iter().enumerate() {
            let cell = |column: usize| {
                let (word, width) = (&line[column], widths[column]);
                if column == 2 { format!("{word:>width$}") } else { format!("{word:<width$}") }
            };
            let cells: Vec<String> = (0..7).map(cell).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if at == 0 {
                let rule = |column: usize| {
                    format!("{}{}", "-".repeat(widths[column] + 1), if column == 2 { ":" } else { "-" })
                };
                let rules: Vec<String> = (0..7).map(rule).collect();
                let _ = writeln!(text, "|{}|", rules.join("|"));
            }
        }
        text
    }

    pub(crate) fn json(&self) -> Outcome<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            about: &'a Option<About>,
            results: &'a [Row],
        }
        Ok(serde_json::to_string_pretty(&Whole { about: &self.about, results: &self.rows })?)
    }
}

/// Three digits or more, with thousands apart.
fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value.abs() < 100.0 {
        let digits = if value.abs() < 10.0 { 2 } else { 1 };
        return format!("{value:.digits$}");
    }
    let whole = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report with one line, which has this bar.
    fn of(rounds: &[f64], bar: Bar) -> Report {
        let mut report = Report::default();
        rounds.iter().for_each(|round| report.samples.push("key", *round));
        report.line("section", "what", "key", "unit", Some(bar));
        report
    }

    fn clears(rounds: &[f64], bar: Bar) -> bool {
        let report = of(rounds, bar);
        assert!(report.table().contains(if report.failed() { "FAIL" } else { "PASS" }));
        !report.failed()
    }

    #[test]
    fn what_is_counted_is_right_in_every_round_or_fails() {
        assert!(clears(&[2.0, 2.0, 2.0], Bar::Exactly(2.0)));
        for wrong in [&[2.0, 2.0, 2.01][..], &[2.0, 1.0, 2.0], &[4.0], &[f64::NAN]] {
            assert!(!clears(wrong, Bar::Exactly(2.0)), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_timed_is_judged_by_the_median() {
        assert!(clears(&[900.0, 500.0, 1.0], Bar::AtMost(500.0)) && !clears(&[500.1], Bar::AtMost(500.0)));
        assert!(clears(&[9.0, 10.0, 11.0], Bar::AtLeast(10.0)) && !clears(&[9.9], Bar::AtLeast(10.0)));
        assert!(clears(&[9.9], Bar::Below(10.0)) && !clears(&[10.0], Bar::Below(10.0)));
    }

    #[test]
    fn noise_is_allowed_for_only_where_a_round_reached_the_bar() {
        let bar = || Bar::AtLeastWithin(1.0, 0.05);
        assert!(clears(&[0.96, 0.96, 1.0], bar()));
        assert!(!clears(&[0.96, 0.96, 0.99], bar()) && !clears(&[0.94, 0.94, 1.1], bar()));
    }

    #[test]
    fn what_was_not_measured_has_failed() {
        for bar in [Bar::AtLeast(0.0), Bar::AtMost(1.0), Bar::Below(1.0), Bar::Exactly(1.0)] {
            let text = bar.text();
            assert!(!clears(&[], bar), "{text}");
        }
        assert!(!clears(&[], Bar::AtLeastWithin(0.0, 0.1)));
    }
}
