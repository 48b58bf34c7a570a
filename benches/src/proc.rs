//! What the system knows of a process, and the clock that all processes share.

use rustix::time::{ClockId, clock_gettime};

use crate::outcome::Outcome;

/// Nanoseconds on a clock that reads the same in every process of the machine.
pub(crate) fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Resident memory of a process in bytes.
pub(crate) fn rss_bytes(pid: u32) -> Outcome<u64> {
    // The figure in `status` may lag by hundreds of kilobytes, because threads report in batches.
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or("no resident size in smaps_rollup")? * 1024)
}

/// Time that the living threads of a process have spent on a processor, in nanoseconds.
pub(crate) fn cpu_ns(pid: u32) -> Outcome<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ends between listing and reading has no figures any more.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        total += text
            .split_whitespace()
            .next()
            .and_then(|word| word.parse::<u64>().ok())
            .ok_or("schedstat is empty")?;
    }
    Ok(total)
}
