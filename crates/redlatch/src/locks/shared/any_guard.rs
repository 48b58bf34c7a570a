//! What the guards of all kinds have in common.

use super::Guard;

/// A guard of any kind.
///
/// This trait is sealed: it is for naming guards of all kinds, not for making new ones.
pub trait AnyGuard: sealed::Sealed + Send + Sized {
    /// The kind's own guard.
    #[doc(hidden)]
    fn from_guard(guard: Guard) -> Self;

    /// What all kinds of guards have in common.
    fn as_guard(&self) -> &Guard;

    /// The guard without what is special about its kind.
    fn into_guard(self) -> Guard;
}

pub(crate) mod sealed {
    /// Keeps [`AnyGuard`](crate::AnyGuard) to the guards of this crate.
    pub trait Sealed {}
}

impl sealed::Sealed for Guard {}

impl AnyGuard for Guard {
    fn from_guard(guard: Guard) -> Self {
        guard
    }

    fn as_guard(&self) -> &Guard {
        self
    }

    fn into_guard(self) -> Guard {
        self
    }
}
