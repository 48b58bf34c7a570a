//! `--metrics`: how the run went, as a file for the textfile collector of Prometheus' node exporter.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use redlatch::observe::Classes;
use tempfile::NamedTempFile;

use super::report::Report;
use crate::{escape, exit::Failure};

/// The file of the metrics. It is put in place as a whole, so that a collector never reads half of it.
#[derive(Debug)]
pub(crate) struct MetricsFile(Option<(NamedTempFile, PathBuf)>);

impl MetricsFile {
    /// Sees at the start whether the file can be written. What an earlier run wrote stays until this one ends.
    ///
    /// # Errors
    ///
    /// Internal, when its directory cannot be written to.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(MetricsFile(None)) };
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The collector reads `*.prom` only, so this one is not read.
        let file = tempfile::Builder::new()
            .prefix(".redlatch-")
            .suffix(".tmp")
            // The collector is another user.
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(directory)
            .map_err(|error| cannot_write(path, &error))?;
        Ok(MetricsFile(Some((file, path.to_owned()))))
    }

    /// Puts the file in place. A failure is told, and changes nothing about the outcome.
    pub(crate) fn write(self, report: &Report, now: SystemTime) {
        let Some((mut file, path)) = self.0 else { return };
        let written = file.write_all(text(report, now).as_bytes()).and_then(|()| {
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        });
        if let Err(error) = written {
            crate::talk::error(cannot_write(&path, &error));
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.to_string_lossy();
    Failure::internal(format!("cannot write the metrics {}: {error}", escape::text(&path)))
}

/// The text format. The label is the class of the names, so that a name with a date in it makes no new series each day.
fn text(report: &Report, now: SystemTime) -> String {
    let classes: Vec<String> = report.names.iter().map(|name| Classes::template(name)).collect();
    let labels = format!("lock=\"{}\",kind=\"{}\"", escape::label(&classes.join(",")), report.kind);
    let seconds = |ms: u64| ms as f64 / 1_000.0;
    let ended = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut text = String::new();
    let mut add = |name: &str, help: &str, more: &str, value: f64| {
        _ = write!(
            text,
            "# HELP redlatch_run_{name} {help}\n# TYPE redlatch_run_{name} gauge\nredlatch_run_{name}{{{labels}{more}}} {value}\n"
        );
    };
    add("end_timestamp_seconds", "When the last run ended.", "", ended);
    add("exit_code", "The exit code of the last run.", "", report.exit_code.into());
    let outcome = format!(",outcome=\"{}\"", report.outcome.word());
    add("outcome", "How the last run ended: always 1.", &outcome, 1.0);
    add("wait_seconds", "How long the last run waited for the lock.", "", seconds(report.waited_ms));
    if let Some(held_ms) = report.held_ms {
        add("hold_seconds", "How long the command of the last run had the lock.", "", seconds(held_ms));
    }
    if let Some(released) = report.released {
        let value = f64::from(u8::from(released));
        add("released", "Whether the server confirmed the release of the last run.", "", value);
    }
    let left = report.left_running.len();
    add("left_running", "Processes of the command that the last run could not end.", "", left as f64);
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redlatch::LockName;

    use super::*;
    use crate::args::kind::Kind;

    #[test]
    fn a_name_is_told_as_its_class_and_acts_on_no_format() {
        let name = LockName::new("night\"ly\\\n:2026-11-29").unwrap();
        let report = Report::new(&[name], Kind::Lock, None);
        let text = text(&report, UNIX_EPOCH + Duration::from_millis(1_500));
        let first = "# HELP redlatch_run_end_timestamp_seconds When the last run ended.\n\
                     # TYPE redlatch_run_end_timestamp_seconds gauge\n\
                     redlatch_run_end_timestamp_seconds{lock=\"*:*\",kind=\"lock\"} 1.5\n";
        assert!(text.starts_with(first), "{text}");
        assert!(!text.contains("hold_seconds"), "nothing was held: {text}");
    }
}
