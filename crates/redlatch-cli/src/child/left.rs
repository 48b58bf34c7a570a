//! Processes that do not end although they were told to.

use std::{fmt, fs};

use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use serde::Serialize;

use crate::escape;

/// A process of the command that is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Left {
    pid: i32,
    /// Its program's short name.
    name: String,
    /// The user that it runs as, where that can be seen.
    uid: Option<u32>,
    /// Whether the system refuses to signal it for us.
    refused: bool,
}

impl Left {
    /// Looks at a process; nothing if it has gone.
    pub(super) fn look(pid: Pid) -> Option<Self> {
        let refused = match test_kill_process(pid) {
            Err(Errno::SRCH) => return None,
            answer => answer == Err(Errno::PERM),
        };
        let pid = pid.as_raw_nonzero().get();
        let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let status = read("status");
        // Real, effective, saved, file system: what it may do follows from the effective one.
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let uid = uid.and_then(|uids| uids.split_ascii_whitespace().nth(1)?.parse().ok());
        Some(Left { pid, name: read("comm").trim_end().to_owned(), uid, refused })
    }

    /// Whether the system refuses to signal it for us.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" (pid {}", escape::text(&self.name), self.pid)?;
        if let Some(uid) = self.uid {
            write!(f, ", uid {uid}")?;
        }
        f.write_str(")")
    }
}
