//! Which processes on this machine work under a hold: those of a `redlatch run`, which have it in their environment.

use std::{fs, path::Path};

use redlatch::LockName;
use serde::Serialize;

use crate::run::environment::{self, Hold};

/// A process of a command that holds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Worker {
    pub(super) pid: i32,
    /// Its program's short name.
    pub(super) name: String,
    /// Whether the run that started it is gone, so that it is all that keeps the hold.
    pub(super) run_is_gone: bool,
}

/// The processes that have been given this hold, as far as this user may look at them.
pub(super) fn under(name: &LockName, owner: &str) -> Vec<Worker> {
    let wanted = environment::held_as(name, owner);
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut workers: Vec<Worker> = pids.filter_map(|pid| look(pid, &wanted)).collect();
    workers.sort_by_key(|worker| worker.pid);
    workers
}

fn look(pid: i32, wanted: &str) -> Option<Worker> {
    let place = Path::new("/proc").join(pid.to_string());
    let hold = Hold::read(&fs::read(place.join("environ")).ok()?)?;
    // Nobody can read the environment of a process that has ended.
    if !hold.holds(wanted) {
        return None;
    }
    let name = fs::read_to_string(place.join("comm")).ok()?.trim_end().to_owned();
    Some(Worker { pid, name, run_is_gone: hold.run().is_none_or(is_gone) })
}

/// Whether the process has ended, or its number is another program's by now.
fn is_gone(run: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{run}/stat")).unwrap_or_default();
    // A name may have brackets and blanks in it; what is behind it has neither.
    let alive = stat.rsplit_once(") ").filter(|(_, rest)| !rest.starts_with(['Z', 'X']));
    !alive.is_some_and(|(name, _)| name.contains("(redlatch"))
}
