//! The processes that a command started, found where no group of their own marks them.

use rustix::process::{Pid, getpgid, getpgrp, test_kill_process_group};

use super::{
    Group,
    process::{Process, all},
};

/// Makes the orphans of the command our children, so that their end can be waited for and collected.
///
/// Answers whether what shares our group and descends from us belongs to the command. In a shared group that is so only if
/// nothing did before: `server & exec redlatch run …` would otherwise wait for the server.
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

/// The members of a group that have not ended.
pub(super) fn members(group: Pid) -> Vec<Pid> {
    let group = group.as_raw_nonzero().get();
    living(|process| process.group == group)
}

/// The members of our own session that have not ended.
pub(super) fn members_of_session() -> Vec<Pid> {
    let own = Process::read(std::process::id().cast_signed());
    own.map_or_else(Vec::new, |own| living(|process| process.session == own.session))
}

fn living(belongs: impl Fn(&Process) -> bool) -> Vec<Pid> {
    let all = all().into_iter().filter(|process| !process.ended && belongs(process));
    all.filter_map(|process| Pid::from_raw(process.pid)).collect()
}

/// Whether nobody of a group is left. Who has ended counts as gone, even if its parent never collects it.
pub(super) fn is_empty(group: Pid) -> bool {
    match test_kill_process_group(group) {
        Err(rustix::io::Errno::SRCH) => true,
        // All of it belongs to other users, and perhaps they are hidden from us.
        Err(_) => false,
        Ok(()) => cfg!(target_os = "linux") && members(group).is_empty(),
    }
}

/// Our descendants that share our process group and have not ended.
pub(super) fn descendants_in_group() -> Vec<Pid> {
    let own = std::process::id().cast_signed();
    let group = getpgrp().as_raw_nonzero().get();
    let all = all();
    let mut found = vec![own];
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
    let (group, session) = (getpgrp(), rustix::process::getsid(None));
    let watches = |parent: Option<Pid>| {
        let Some(parent) = parent else { return false };
        rustix::process::getsid(Some(parent)) == session
            && getpgid(Some(parent)).is_ok_and(|its| its != group)
    };
    let ours = all().into_iter().filter(|process| process.group == group.as_raw_nonzero().get());
    let parents = ours.map(|process| Pid::from_raw(process.parent));
    !parents.chain([rustix::process::getppid()]).any(watches)
}
