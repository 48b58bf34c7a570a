//! `examples/monitoring`: Prometheus takes its files, its alerts fire for what they are for, and every metric in them exists.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use redlatch_testkit::server::{RedisServer, tool};
use serde_json::Value;

use crate::{
    serve::Serve,
    support::{LEASE, Place},
};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/monitoring")
}

fn read(file: &str) -> String {
    fs::read_to_string(dir().join(file)).unwrap()
}

#[track_caller]
fn promtool(arguments: &[&str]) {
    let output = Command::new(tool("promtool")).current_dir(dir()).args(arguments).output();
    let output = output.expect("scripts/install-test-tools fetches promtool");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
}

/// The questions of the dashboard, with its variables as Grafana sets them.
fn questions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("redlatch-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut questions = Vec::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title} says what it shows");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows something");
        let question = |target: &Value| target["expr"].as_str().unwrap().to_owned();
        questions.extend(targets.iter().map(question));
    }
    let set = |question: String| question.replace("$__rate_interval", "1m").replace("$class", ".*");
    questions.into_iter().map(set).collect()
}

#[test]
fn prometheus_takes_the_files_and_the_alerts_fire_for_what_they_are_for() {
    promtool(&["check", "config", "--syntax-only", "prometheus.yml"]);
    promtool(&["check", "rules", "redlatch-alerts.yml"]);
    promtool(&["test", "rules", "redlatch-alerts.test.yml"]);
    // It checks rules only, so each question of the dashboard becomes one.
    let rule = |(at, question): (usize, String)| {
        format!("  - record: q{at}\n    expr: {}\n", serde_json::to_string(&question).unwrap())
    };
    let rules: String = questions().into_iter().enumerate().map(rule).collect();
    let place = Place::local();
    let file = place.path("questions.yml");
    fs::write(&file, format!("groups:\n- name: dashboard\n  rules:\n{rules}")).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()]);
}

/// The metrics that are named in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let parts = ["_bucket", "_sum", "_count"];
    words
        .filter(|word| word.starts_with("redlatch_"))
        .map(|word| parts.iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word).to_owned())
        .collect()
}

#[test]
fn every_metric_of_the_alerts_and_of_the_dashboard_exists() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let _holder = place.holder("deploy", &["--lease", LEASE]);
    server.cmd(&["HSET", "never", "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "1"]).unwrap();
    let serve = Serve::start(&place, &[]);
    let page = serve.page("/metrics");
    let samples: String =
        page.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let mut known = metrics(&samples);
    // Those of the services, as their crate lists them.
    let listed = include_str!("../../../redlatch-metrics/src/lib.rs").lines();
    known.extend(metrics(&listed.filter(|line| line.starts_with("//! | `")).collect::<String>()));
    let asked = metrics(&[read("redlatch-alerts.yml"), questions().join("\n")].concat());
    let asked: BTreeSet<_> = asked.into_iter().filter(|name| !name.starts_with("redlatch_metrics")).collect();
    assert!(asked.len() > 15, "{asked:?}");
    assert!(asked.is_subset(&known), "{:?}", asked.difference(&known).collect::<Vec<_>>());
    place.end("deploy");
}
