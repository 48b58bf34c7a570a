//! What was looked at of the server, the engine or the locks, and whether it endangers their users.

use redlatch::{Finding, Severity, store::StoreUrl};
use redlatch_engine::connect::LocalPaths;
use serde::Serialize;

use crate::{config::Settings, escape, output::Record, recovery::Recovery};

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    pub(crate) result: &'static str,
    pub(crate) check: &'static str,
    pub(crate) detail: String,
    pub(crate) remedy: Option<&'static str>,
}

const PROBLEM: &str = "problem";
const NOTE: &str = "note";

impl Check {
    pub(crate) fn new(severity: Severity, check: &'static str, detail: String) -> Self {
        let result = match severity {
            Severity::Good => "good",
            Severity::Note => NOTE,
            _ => PROBLEM,
        };
        Check { result, check, detail, remedy: None }
    }

    pub(crate) fn remedy(self, remedy: &'static str) -> Self {
        Check { remedy: Some(remedy), ..self }
    }

    pub(crate) fn is_problem(&self) -> bool {
        self.result == PROBLEM
    }

    /// The same, and at most a note.
    pub(crate) fn into_note(self) -> Self {
        if self.is_problem() { Check { result: NOTE, ..self } } else { self }
    }
}

impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
        Check { remedy: finding.remedy, ..Check::new(finding.severity, finding.subject, finding.text) }
    }
}

impl From<Recovery> for Check {
    fn from(recovery: Recovery) -> Self {
        let check = Check::new(Severity::Problem, "journal", recovery.to_string());
        check.remedy("`redlatch engine logs` says what was lost")
    }
}

impl Record for Check {
    const COLUMNS: &'static [&'static str] = &["RESULT", "CHECK", "DETAIL", "REMEDY"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        vec![
            self.result.into(),
            self.check.into(),
            self.detail.clone(),
            self.remedy.unwrap_or_default().into(),
        ]
    }

    fn name(&self) -> String {
        self.check.into()
    }
}

/// That the local engine is in a place which others of this machine do not see.
pub(crate) fn place(settings: &Settings) -> Option<Check> {
    let Ok(StoreUrl::Local { name, dir }) = StoreUrl::parse(&settings.url) else { return None };
    let paths = match dir {
        _ if settings.redisson.is_some() => return None,
        Some(dir) => LocalPaths::in_dir(dir, name.as_deref()),
        None => LocalPaths::for_name(name.as_deref()),
    };
    let paths = paths.ok().filter(|paths| paths.is_apart() == Some(true))?;
    let dir = escape::bytes(paths.dir.as_os_str().as_encoded_bytes());
    let detail = format!(
        "the first process of this system sees another directory at {dir}: this one is in a mount namespace or a chroot of its own, and \
         those outside of it have another engine, whose locks do not exclude ours"
    );
    Some(Check::new(Severity::Note, "engine", detail).remedy(
        "mount one directory into all of them and name it as local:///directory, or use a Redis server",
    ))
}
