//! Changes that a server tells at once (`CLIENT TRACKING`), over the connection of the background thread.
//!
//! That connection speaks RESP3, in which a server may send what nobody has asked for. Keys are watched one by one and once
//! (`OPTIN`, `CLIENT CACHING YES`), and what the connection itself changes is not told (`NOLOOP`), so that renewals are silent.

use std::sync::{Mutex, PoisonError};

use redis::{Cmd, PushInfo, PushKind, Value};

use super::failure::Failure;
use crate::store::{Change, ChangeHook};

/// The listeners to changes; all connections of a store share one.
#[derive(Default)]
pub(super) struct Changes(Mutex<Option<ChangeHook>>);

impl Changes {
    pub(super) fn set(&self, hook: ChangeHook) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    /// Passes on what a server has sent unasked.
    pub(super) fn heard(&self, push: PushInfo) {
        if push.kind != PushKind::Invalidate {
            return;
        }
        let hook = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(hook) = hook else { return };
        match push.data.into_iter().next() {
            Some(Value::Array(keys)) => {
                for key in keys {
                    match key {
                        Value::BulkString(key) => hook(Change::Key(key)),
                        Value::SimpleString(key) => hook(Change::Key(key.into_bytes())),
                        _ => hook(Change::All),
                    }
                }
            }
            // Everything is gone.
            _ => hook(Change::All),
        }
    }
}

/// What makes a connection tell of changes.
pub(super) fn tracking() -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
    cmd
}

/// Whether a server that answers like this will not tell of changes by itself later: it lacks a command, or the account a right.
pub(super) fn is_for_good(failure: &Failure) -> bool {
    let Failure::Refused { code, detail, .. } = failure else { return false };
    let detail = detail.to_ascii_lowercase();
    code == "NOPERM"
        || (code == "ERR" && ["unknown", "syntax", "not allowed"].iter().any(|why| detail.contains(why)))
}
