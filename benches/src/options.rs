//! What is measured in a run, and how.

use std::path::PathBuf;

/// The sections.
pub(crate) const NAMES: [&str; 16] = [
    "pair",
    "multi",
    "observed",
    "memory",
    "local",
    "handoff",
    "fair",
    "latency",
    "held",
    "contention",
    "kinds",
    "cluster",
    "failover",
    "told",
    "dead",
    "java",
];

pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    pub(crate) only: Vec<String>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) engine: Option<PathBuf>,
}
