//! Calls that end in the program's own code: a waker, its log, a listener. One that panics there is no reason not to do the rest.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does it; `None` if it has panicked, which the program's panic hook has told by then.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    // What it panicked with is the program's own, too, and may panic again when it is dropped.
    catch_unwind(AssertUnwindSafe(call)).map_err(std::mem::forget).ok()
}
