//! Permits: what several may have at once, counted on the server.

pub(crate) mod counter;
pub(crate) mod latch;
pub(crate) mod permit_semaphore;
pub(crate) mod rate;
pub(crate) mod semaphore;
