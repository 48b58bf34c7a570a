//! Locks: a file a primitive. What waits and renews is the core's; what all of them share is in `shared/`.

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod multi;
pub(crate) mod non_reentrant;
pub(crate) mod quorum;
pub(crate) mod read_write;
pub(crate) mod shared;
pub(crate) mod spin;
