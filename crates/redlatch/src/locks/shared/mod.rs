//! What the locks share: the handle, its options, its methods and the hold; and the same for several locks taken as one.

mod acquire;
pub(crate) mod acquire_set;
mod any_guard;
pub(crate) mod force;
mod guard;
pub(crate) mod guard_of;
mod lease;
pub(crate) mod lock;
pub(crate) mod lock_handle;
pub(crate) mod lock_set;
pub(crate) mod marker;
pub(crate) mod members;
pub(crate) mod membership;
mod protect;
pub(crate) mod set_guard;
mod with;

pub use acquire::Acquire;
pub use any_guard::AnyGuard;
pub(crate) use any_guard::sealed;
pub use force::{Force, Forced};
pub use guard::{DetachedHold, Guard};
pub use lease::Lease;
pub use with::WithError;
