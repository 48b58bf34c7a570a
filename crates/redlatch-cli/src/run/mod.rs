//! The parts of `redlatch run`: getting the lock, the command's environment, watching over it, what works under it, the report and the metrics.

pub(crate) mod acquire;
pub(crate) mod environment;
pub(crate) mod holding;
pub(crate) mod kept;
pub(crate) mod kind;
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod supervise;
pub(crate) mod workers;
