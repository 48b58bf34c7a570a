//! Which processes on this machine work under a hold: those of a `redlatch run`, which have it in their environment.

use std::{fmt, fs};

use redlatch::{LockName, LockState};
use serde::Serialize;

use super::environment::{self, Hold};
use crate::{child, escape};

/// A process of a command that holds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Worker {
    pub(crate) pid: i32,
    /// Its program's short name.
    pub(crate) name: String,
    /// Whether the run that started it is gone, so that it is all that keeps the hold.
    pub(crate) run_is_gone: bool,
}

/// The most processes that a message names for one hold.
const NAMED_MAX: usize = 2;

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", escape::text(&self.name), self.pid)
    }
}

/// ` for sleep (pid 12)`: what works on this machine under a hold that is in the way; nothing where it is elsewhere or no run's.
pub(crate) fn told(state: &LockState, owner: &str) -> String {
    let all = under(&state.name, owner.strip_suffix(":write").unwrap_or(owner));
    let named: Vec<String> = all.iter().take(NAMED_MAX).map(Worker::to_string).collect();
    match all.len().saturating_sub(named.len()) {
        _ if named.is_empty() => String::new(),
        0 => format!(" for {}", named.join(", ")),
        more => format!(" for {} and {more} more", named.join(", ")),
    }
}

/// The processes that have been given this hold, as far as this user may look at them.
pub(crate) fn under(name: &LockName, owner: &str) -> Vec<Worker> {
    let wanted = environment::held_as(name, owner);
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut workers: Vec<Worker> = pids.filter_map(|pid| look(pid, &wanted)).collect();
    workers.sort_by_key(|worker| worker.pid);
    workers
}

fn look(pid: i32, wanted: &str) -> Option<Worker> {
    let hold = Hold::read(&child::environment(pid)?)?;
    // Nobody can read the environment of a process that has ended.
    if !hold.holds(wanted) {
        return None;
    }
    Some(Worker { pid, name: name_of(pid)?, run_is_gone: hold.run().is_none_or(is_gone) })
}

/// Whether the process has ended, or its number is another program's by now.
fn is_gone(run: i32) -> bool {
    child::has_ended(run) || !name_of(run).is_some_and(|name| name.starts_with("redlatch"))
}

/// The short name of a process's program.
fn name_of(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}
