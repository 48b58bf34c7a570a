//! What handles hold of a client: the core of the process that they are used in.

use std::{ops::Deref, sync::Arc};

use super::Core;

/// Gives the core that this process works with: the one that it was made with, or in a forked child, the child's own. Guards hold
/// the core itself, because a hold stays with the process that has it.
#[derive(Clone)]
pub(crate) struct ForkSafeCore(Arc<Core>);

impl ForkSafeCore {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        ForkSafeCore(core)
    }
}

impl Deref for ForkSafeCore {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        self.0.for_this_process()
    }
}
