//! A process as the system shows it: whose it is, and whether it works.

use std::{
    fs,
    io::{self, ErrorKind, Read as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// How often to look for the environment of a process that shows none.
const ENVIRONMENT_LOOKS_MAX: u32 = 10;
/// Between two of these looks.
const ENVIRONMENT_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// A process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// It has ended, and only its parent has not collected it yet.
    pub(super) ended: bool,
}

impl Process {
    pub(super) fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let process = Process::parse(pid, &stat)?;
        Some(Process { ended: process.ended && !has_living_thread(pid), ..process })
    }

    /// What is shown of the main thread. The name in parentheses may itself contain parentheses and spaces, so the fields count from the
    /// last one.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let ended = is_end(fields.next()?);
        let mut number = || fields.next()?.parse().ok();
        Some(Process { pid, parent: number()?, group: number()?, session: number()?, ended })
    }
}

/// Whether `/proc` shows processes by the numbers that they have for us.
pub(super) fn are_shown() -> bool {
    let own = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse::<u32>().ok());
    own == Some(std::process::id())
}

/// Every process that can be seen. Systems without `/proc` show none.
pub(super) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(Process::read).collect()
}

/// How often to look again because processes were begun meanwhile.
const UNSETTLED_LOOKS_MAX: u32 = 50;
/// Of how many that were begun meanwhile each is looked at by its number; of more, all that are there are listed.
const BEGUN_MAX: usize = 8192;

/// The number that was given last to a process of this namespace.
fn last_number() -> Option<i32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split_ascii_whitespace().last()?.parse().ok()
}

/// The numbers that are given after one up to another, in this order: behind the highest the lowest follow.
fn numbers_after(before: i32, last: i32, highest: i32) -> Vec<i32> {
    if before <= last {
        (before + 1..=last).collect()
    } else {
        (before + 1..=highest).chain(1..=last).collect()
    }
}

/// The processes that were given a number after one up to another.
fn begun_after(before: i32, last: i32) -> Vec<Process> {
    let highest = fs::read_to_string("/proc/sys/kernel/pid_max").ok();
    let highest = highest.and_then(|text| text.trim().parse().ok());
    let numbers = highest.map(|highest| numbers_after(before, last, highest));
    match numbers.filter(|numbers| numbers.len() <= BEGUN_MAX) {
        Some(numbers) => numbers.into_iter().filter_map(Process::read).collect(),
        None => all(),
    }
}

/// Whether nothing is there that a look finds, which is given the processes to look at.
///
/// A look takes its time: what is listed last may have been begun after what is listed first has begun another one and ended. What a look at all has not
/// seen has a number that was given since, so these are looked at next. That ends when no process was begun meanwhile, or when many looks in a
/// row find nothing.
pub(super) fn finds_nothing(mut look: impl FnMut(Vec<Process>) -> bool) -> bool {
    let mut before = last_number();
    let mut listed = all();
    for _ in 0..UNSETTLED_LOOKS_MAX {
        if look(listed) {
            return false;
        }
        let last = last_number();
        let (Some(known), Some(given)) = (before, last) else { break };
        if known == given {
            break;
        }
        listed = begun_after(known, given);
        before = last;
    }
    true
}

/// Whether a process does nothing until it is continued, or for ever.
pub(super) fn stands_still(pid: i32) -> bool {
    let all = threads(pid).into_iter().chain([PathBuf::from(format!("/proc/{pid}"))]);
    let states = all.map(|thread| Some(state(&fs::read_to_string(thread.join("stat")).ok()?)?.to_owned()));
    // What cannot be read may have gone since; the next look knows.
    states.into_iter().all(|state| state.is_some_and(|state| is_end(&state) || matches!(&*state, "T" | "t")))
}

/// Whether there is no such process, or it has ended and waits to be collected.
pub(crate) fn has_ended(pid: i32) -> bool {
    Process::read(pid).is_none_or(|process| process.ended)
}

/// The environment that a process was started with; nothing if it may not be seen.
pub(crate) fn environment(pid: i32) -> Option<Vec<u8>> {
    match read_at_once(format!("/proc/{pid}/environ").as_ref()) {
        Ok(own) if !own.is_empty() => return Some(own),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
        _ => {}
    }
    // With its main thread a process seems to have lost it, and the others show it still.
    let mut others = threads(pid).into_iter().filter_map(|thread| read_at_once(&thread.join("environ")).ok());
    Some(others.find(|environment| !environment.is_empty()).unwrap_or_default())
}

/// The room for an environment at first, in bytes.
const ENVIRONMENT_BYTES: usize = 1 << 16;

/// Reads a file of `/proc` by one call. Of a process that becomes another program between two calls, the second one reads nothing, and what the first
/// has read looks whole.
fn read_at_once(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ENVIRONMENT_BYTES];
    loop {
        let read = fs::File::open(path)?.read(&mut bytes)?;
        if read < bytes.len() {
            bytes.truncate(read);
            return Ok(bytes);
        }
        bytes = vec![0; 2 * read];
    }
}

/// Whether a process was started with this variable in its environment.
pub(super) fn carries(pid: i32, variable: &str) -> bool {
    for _ in 0..ENVIRONMENT_LOOKS_MAX {
        let Some(environment) = environment(pid) else { return false };
        if !environment.is_empty() {
            return environment.split(|byte| *byte == 0).any(|line| line == variable.as_bytes());
        }
        // One that has just become another program shows none for a moment.
        if has_ended(pid) {
            return false;
        }
        thread::sleep(ENVIRONMENT_LOOK_INTERVAL);
    }
    false
}

/// What says that a main thread or another one has ended.
fn is_end(state: &str) -> bool {
    matches!(state, "Z" | "X")
}

/// Whether another thread works on after the main one, which alone is shown as the state of the process.
fn has_living_thread(pid: i32) -> bool {
    // One that ends while we look may have started another one that was not listed, so it counts as living: the next look decides.
    threads(pid)
        .iter()
        .any(|thread| fs::read_to_string(thread.join("stat")).map_or(true, |stat| lives(&stat)))
}

fn lives(stat: &str) -> bool {
    !state(stat).is_some_and(is_end)
}

/// The letter that says what a thread does.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

/// The threads of a process but the main one.
fn threads(pid: i32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !path.ends_with(pid.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_shift_the_fields() {
        let process = Process::parse(7, "7 (a) S 1 2 (x) Z 4 5 6 0\n").unwrap();
        assert_eq!(process, Process { pid: 7, parent: 4, group: 5, session: 6, ended: true });
        assert!(!Process::parse(7, "7 (a) S 4 5 6 0\n").unwrap().ended);
        assert!(Process::parse(7, "").is_none());
    }

    #[test]
    fn numbers_begin_again_behind_the_highest() {
        assert_eq!(numbers_after(7, 9, 32), [8, 9]);
        assert_eq!(numbers_after(30, 2, 32), [31, 32, 1, 2]);
        assert!(numbers_after(7, 7, 32).is_empty());
    }

    /// Each look was at all processes, and a guard on a machine that begins some all the time took a minute for them.
    #[test]
    fn only_what_was_begun_meanwhile_is_looked_at_again() {
        let mut looks = Vec::new();
        let mut child = None;
        let found_none = finds_nothing(|listed| {
            let first = looks.is_empty();
            looks.push(listed.iter().map(|process| process.pid).collect::<Vec<i32>>());
            if first {
                child = Some(std::process::Command::new("sleep").arg("600").spawn().unwrap());
            }
            false
        });
        let mut child = child.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found_none);
        let (own, child) = (std::process::id().cast_signed(), child.id().cast_signed());
        let [all, again @ ..] = &*looks else { unreachable!("the closure was called") };
        assert!(all.contains(&own) && !all.contains(&child), "the first look is at all");
        assert!(
            again.iter().any(|look| look.contains(&child)),
            "what was begun during the first look is seen"
        );
        assert!(!again.iter().any(|look| look.contains(&own)), "what was there before is looked at once");
    }

    #[test]
    fn a_thread_lives_until_it_is_shown_as_ended() {
        assert!(lives("8 (a) Z) R 4 5 6 0\n") && lives("8 (a) D 4 5 6 0\n"));
        assert!(!lives("8 (a) Z 4 5 6 0\n") && !lives("8 (a) X 4 5 6 0\n"));
    }
}
