//! The processes that a command started, found where no group of their own marks them.

use rustix::process::Pid;

use super::Group;

/// Makes the orphans of the command our children, so that their end can be waited for.
///
/// Answers whether we may wait for every child in the command's group. In a shared group that is so only if we had no
/// children before: `server & exec redlatch run …` would otherwise wait for the server.
#[cfg(target_os = "linux")]
pub(super) fn adopt_orphans(group: Group) -> bool {
    use rustix::process::{getpid, set_child_subreaper};

    let no_others = group == Group::Own || descendants_in_group().is_empty();
    no_others && set_child_subreaper(Some(getpid())).is_ok()
}

/// Elsewhere orphans go to the first process of the system.
#[cfg(not(target_os = "linux"))]
pub(super) fn adopt_orphans(group: Group) -> bool {
    group == Group::Own
}

/// Our descendants that share our process group.
#[cfg(target_os = "linux")]
pub(super) fn descendants_in_group() -> Vec<Pid> {
    use rustix::process::{getpgrp, getpid};

    let own = getpid().as_raw_nonzero().get();
    let group = getpgrp().as_raw_nonzero().get();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<Process> = pids.filter_map(Process::read).collect();
    let mut found = vec![own];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    let in_group = all
        .iter()
        .filter(|process| process.group == group && process.pid != own && found.contains(&process.pid));
    in_group.filter_map(|process| Pid::from_raw(process.pid)).collect()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn descendants_in_group() -> Vec<Pid> {
    Vec::new()
}

#[cfg(target_os = "linux")]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
}

#[cfg(target_os = "linux")]
impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Process::parse(pid, &stat)
    }

    /// The name in parentheses may itself contain parentheses and spaces, so the fields count from the last one.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Process { pid, parent, group })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_shift_the_fields() {
        let process = Process::parse(7, "7 (a) S 1 2 (x) S 4 5 6 0\n").unwrap();
        assert_eq!((process.parent, process.group), (4, 5));
        assert!(Process::parse(7, "").is_none());
    }
}
