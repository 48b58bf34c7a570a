//! `run --metrics`: what a collector of the node exporter reads after a run.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::support::Place;

/// The value of one metric of the file.
fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series))
        .unwrap_or_else(|| panic!("{series} is not in {text}"));
    line.trim().parse().unwrap()
}

#[test]
fn a_run_leaves_metrics_of_how_it_went() {
    let place = Place::local();
    let run = |arguments: &[&str]| {
        let code =
            place.code([&["run", "backup-2026-11-29", "--metrics", "redlatch.prom"][..], arguments].concat());
        let text = place.read("redlatch.prom");
        assert_eq!(value(&text, "redlatch_run_exit_code{lock=\"backup-*\",kind=\"lock\"}"), f64::from(code));
        text
    };
    let done = run(&["--", "sh", "-c", "sleep 0.1; exit 7"]);
    assert_eq!(
        value(&done, "redlatch_run_outcome{lock=\"backup-*\",kind=\"lock\",outcome=\"completed\"}"),
        1.0
    );
    assert!(value(&done, "redlatch_run_hold_seconds{lock=\"backup-*\",kind=\"lock\"}") >= 0.1);
    assert_eq!(value(&done, "redlatch_run_released{lock=\"backup-*\",kind=\"lock\"}"), 1.0);
    let ended = value(&done, "redlatch_run_end_timestamp_seconds{lock=\"backup-*\",kind=\"lock\"}");
    assert!((ended - std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()).abs() < 600.0, "{ended}");
    // The collector runs as another user.
    let mode = fs::metadata(place.path("redlatch.prom")).unwrap().permissions().mode();
    assert_eq!(mode & 0o444, 0o444, "{mode:o}");

    let holder = place.holder("backup-2026-11-29", &[]);
    let busy = run(&["-w", "200ms", "--", "true"]);
    assert_eq!(value(&busy, "redlatch_run_outcome{lock=\"backup-*\",kind=\"lock\",outcome=\"busy\"}"), 1.0);
    assert!(value(&busy, "redlatch_run_wait_seconds{lock=\"backup-*\",kind=\"lock\"}") >= 0.2);
    assert!(!busy.contains("hold_seconds"), "nothing was held: {busy}");
    place.end("backup-2026-11-29");
    assert!(holder.finish().status.success());
    let left: Vec<_> =
        fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".redlatch-")), "{left:?}");
}

#[test]
fn a_run_whose_metrics_cannot_be_written_does_not_begin() {
    let place = Place::local();
    let output = place.output(["run", "job", "--metrics", "/no/such/dir/file.prom", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot write the metrics /no/such/dir/file.prom: "), "{said}");
    assert!(!place.path("ran").exists());
}
