//! What the system and the allocator know of a process.

use std::{alloc::System, env, fs, os::unix::process::CommandExt as _, process::Command};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::bed::Outcome;

/// Counts what is allocated, on top of the allocator that programs have unless they choose one. What is alive shows a leak of a few
/// bytes a call, which the resident size hides behind what the allocator keeps.
#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What has the allocator give back what is free at its end, and have one end only: by how much the resident size grows says then what
/// is in use. As it is usually, each thread takes memory from a place of its own, and a few bytes in the middle hold a place of many.
const SETTLED: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "65536")];

/// Starts this program again where the allocator is not set up for measuring, which it reads once, before anything else runs.
pub(super) fn settle_allocator() -> Outcome<()> {
    if SETTLED.iter().all(|(name, _)| env::var_os(name).is_some()) {
        return Ok(());
    }
    // It comes back only with an error.
    Err(Command::new(env::current_exe()?).args(env::args_os().skip(1)).envs(SETTLED).exec().into())
}

/// Bytes that this process has allocated and not freed.
pub(super) fn live_bytes() -> u64 {
    let stats = COUNTING.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated) as u64
}

/// Resident memory in bytes.
pub(super) fn resident_bytes(pid: u32) -> Outcome<u64> {
    // The figure in `statm` may lag by hundreds of kilobytes, because threads report in batches.
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or("no resident size in smaps_rollup")? * 1024)
}

/// How many descriptors are open. The one that reads the folder counts when a process asks for itself, each time.
pub(super) fn descriptors(pid: u32) -> Outcome<u64> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64)
}

pub(super) fn threads(pid: u32) -> Outcome<u64> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count() as u64)
}
