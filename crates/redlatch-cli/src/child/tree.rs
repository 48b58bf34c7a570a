//! The processes that a command started, found where no group of their own marks them.

use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, test_kill_process_group, waitid},
};

use super::{
    Group,
    process::{Process, all, carries, finds_nothing},
};
use crate::group;

/// Who belongs to the command in a group that it shares with us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kin {
    /// All that descends from us.
    Descendants,
    /// What carries this variable in its environment, and what descends from the command.
    Marked(String),
}

impl Kin {
    /// Whether none is left, however fast they follow each other.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Kin::Descendants => has_no_descendants(),
            Kin::Marked(mark) => {
                let group = group::own();
                let is_one = |process: &Process| {
                    process.group == group && !process.ended && carries(process.pid, mark)
                };
                finds_nothing(|listed| listed.iter().any(is_one))
            }
        }
    }

    /// The members of our group that have not ended and belong to the command, which is `command` as long as it is there.
    pub(super) fn members(&self, command: Option<Pid>) -> Vec<Pid> {
        match self {
            Kin::Descendants => descendants_in_group(std::process::id().cast_signed()),
            Kin::Marked(mark) => {
                let mut found = members(group::own());
                found.retain(|pid| carries(pid.as_raw_nonzero().get(), mark));
                let of_command = command.map(|command| descendants_in_group(command.as_raw_nonzero().get()));
                for pid in of_command.unwrap_or_default() {
                    if !found.contains(&pid) {
                        found.push(pid);
                    }
                }
                found
            }
        }
    }
}

/// Makes the orphans of the command our children, so that their end can be waited for and collected, and answers who belongs to
/// the command in a shared group. All that descends from us does so only if nothing did before: `server & exec redlatch run …` would
/// otherwise wait for the server.
#[cfg(target_os = "linux")]
pub(super) fn adopt_orphans(group: Group, mark: &str) -> Kin {
    use rustix::process::{getpid, set_child_subreaper};

    let own = std::process::id().cast_signed();
    let no_others = group == Group::Own || descendants_in_group(own).is_empty();
    if no_others && set_child_subreaper(Some(getpid())).is_ok() {
        Kin::Descendants
    } else {
        Kin::Marked(mark.to_owned())
    }
}

/// Elsewhere orphans go to the first process of the system.
#[cfg(not(target_os = "linux"))]
pub(super) fn adopt_orphans(group: Group, mark: &str) -> Kin {
    if group == Group::Own { Kin::Descendants } else { Kin::Marked(mark.to_owned()) }
}

/// The members of a group that have not ended.
pub(super) fn members(group: i32) -> Vec<Pid> {
    let all = all().into_iter().filter(|process| !process.ended && process.group == group);
    all.filter_map(|process| Pid::from_raw(process.pid)).collect()
}

/// Whether nobody of a group is left. Who has ended counts as gone, even if its parent never collects it.
pub(super) fn is_empty(group: Pid) -> bool {
    let number = group.as_raw_nonzero().get();
    is_empty_by(test_kill_process_group(group), || {
        no_child_of_ours_in(Some(group), || {
            all().iter().filter(|process| process.group == number).map(|process| process.ended).collect()
        })
        // A child of ours is there, or is still to be collected.
        .unwrap_or_default()
    })
}

/// What a look shows, if no child of ours was in the group, ours unless named, before it and after it.
///
/// A look at `/proc` takes its time, and one process may begin another and end meanwhile. What has lost its parent is our child at once, so one of a
/// row of such processes is, at every moment. What has another parent was there all the time, and is shown. Where orphans are not adopted this says nothing.
fn no_child_of_ours_in<T>(group: Option<Pid>, look: impl FnOnce() -> T) -> Option<T> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let none = || matches!(waitid(WaitId::Pgid(group), options), Err(Errno::CHILD));
    let seen = none().then(look)?;
    none().then_some(seen)
}

/// Whether nobody of our group is left that descends from us.
pub(super) fn has_no_descendants() -> bool {
    let own = std::process::id().cast_signed();
    no_child_of_ours_in(None, || descendants_in_group(own).is_empty()).unwrap_or(false)
}

/// What the kernel says of a signal to the group decides. It counts those who have ended, so where it would reach a process, all of the group that are shown
/// have to have ended. Where none is shown, they are hidden: `/proc` is another namespace's, or hides them.
fn is_empty_by(reached: Result<(), Errno>, shown: impl FnOnce() -> Vec<bool>) -> bool {
    match reached {
        Err(Errno::SRCH) => true,
        // All of it belongs to other users.
        Err(_) => false,
        Ok(()) => {
            let shown = shown();
            !shown.is_empty() && shown.iter().all(|has_ended| *has_ended)
        }
    }
}

/// The descendants of a process that share our process group and have not ended.
fn descendants_in_group(of: i32) -> Vec<Pid> {
    let own = std::process::id().cast_signed();
    let group = group::own();
    let all = all();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    let in_group = all.iter().filter(|process| {
        process.group == group && process.pid != own && !process.ended && found.contains(&process.pid)
    });
    in_group.filter_map(|process| Pid::from_raw(process.pid)).collect()
}

/// Our children, whichever of our threads has them.
pub(super) fn children() -> Vec<Pid> {
    let own = std::process::id().cast_signed();
    let listed = || {
        let mut pids = Vec::new();
        for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
            // A thread may have ended meanwhile; a kernel without these files has none of them.
            match std::fs::read_to_string(thread.path().join("children")) {
                Ok(text) => {
                    pids.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()))
                }
                Err(_) if !thread.path().exists() => {}
                Err(_) => return None,
            }
        }
        Some(pids)
    };
    let scanned = || {
        let children = all().into_iter().filter(|process| process.parent == own);
        children.map(|process| process.pid).collect::<Vec<i32>>()
    };
    let pids = listed().unwrap_or_else(scanned);
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

/// Whether a stop from the terminal would stop our group for ever, because no shell watches over it. The kernel discards such stops.
pub(crate) fn is_orphaned() -> bool {
    let (group, session) = (group::own(), Some(group::own_session()));
    let watches = |parent: Option<Pid>| {
        let Some(parent) = parent else { return false };
        group::session_of(parent) == session && group::of(parent).is_some_and(|its| its != group)
    };
    let ours = all().into_iter().filter(|process| process.group == group);
    let parents = ours.map(|process| Pid::from_raw(process.parent));
    !parents.chain([rustix::process::getppid()]).any(watches)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a namespace of processes with the `/proc` of another one, and where `/proc` hides a process, a run gave its lock back beside it.
    #[test]
    fn a_group_that_the_kernel_knows_and_nobody_shows_is_not_empty() {
        assert!(!is_empty_by(Ok(()), Vec::new));
        assert!(is_empty_by(Ok(()), || vec![true, true]));
        assert!(!is_empty_by(Ok(()), || vec![true, false]));
        assert!(is_empty_by(Err(Errno::SRCH), || unreachable!("nobody is there")));
        assert!(!is_empty_by(Err(Errno::PERM), || unreachable!("the kernel has told")));
    }
}
