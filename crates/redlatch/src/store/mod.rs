//! The seam below the lock logic: two verbs, *run script* and *subscribe*, and nothing that knows of locks.
//!
//! A new backend or topology implements [`Store`]; no primitive changes. The built-in ones are the in-process engine
//! (`memory:`), the engine behind a socket (`local:`) and Redis or Valkey.

mod backend;
mod fault;
mod lazy;
mod local;
mod memory;
mod open;
pub(crate) mod redis;

use backend::no_functions;
pub use backend::{
    AckedFuture, Change, ChangeHook, Confirm, ConfirmFuture, DiagnoseFuture, Event, Listener,
    ListenersFuture, LoadFuture, RunFuture, Store, SubscribeFuture, Subscription, WatchFuture,
};
pub(crate) use backend::{of_stale_incarnation, without_replicas};
pub use fault::Fault;
pub use local::DeadClientCleanup;
pub(crate) use open::{is_at_hand, open, open_lazily};
pub(crate) use redis::slot_of;

pub(crate) use crate::call::{PUBLISH_LATER, protocol_error};
pub use crate::{
    call::{Arg, Call, Reply},
    config::url::StoreUrl,
    replica_ack::ReplicaCount,
};
