//! What a server says of the holds of one call, whether it is to renew them or only to look.

use std::sync::Arc;

use super::{lease::HeldLease, send::Numbers};
use crate::{
    error::{Error, ErrorKind},
    store::Fault,
};

pub(super) enum BatchStatus {
    Known(Vec<HoldStatus>),
    /// The server refuses the call because of one key, or of some. The other holds are there, so it is asked about parts.
    InParts,
    Unknown(Fault),
}

impl BatchStatus {
    pub(super) fn of(batch: &[Arc<HeldLease>], outcome: Result<Numbers, Fault>) -> BatchStatus {
        match outcome {
            Ok(reply) if reply.len() == batch.len() + 1 => {
                BatchStatus::Known(reply[1..].iter().map(|seen| HoldStatus::of(*seen)).collect())
            }
            Ok(_) => BatchStatus::Unknown(Fault::Server(Error::new(
                ErrorKind::Server,
                "a reply of the wrong length",
            ))),
            Err(fault) if batch.len() > 1 && fault.may_be_of_one_key() => BatchStatus::InParts,
            // Something else has taken the place of the hold: these scripts read no other key of which the type matters.
            Err(Fault::Server(error)) if batch.len() == 1 && error.kind() == ErrorKind::WrongType => {
                BatchStatus::Known(vec![HoldStatus::Gone])
            }
            Err(fault) => BatchStatus::Unknown(fault),
        }
    }
}

/// What a server says of one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldStatus {
    Gone,
    Held,
    /// Its time to live was too short, and the look has raised it. On the connection that watches that ends the watching.
    Raised,
}

impl HoldStatus {
    fn of(number: i64) -> HoldStatus {
        match number {
            1 => HoldStatus::Held,
            2 => HoldStatus::Raised,
            _ => HoldStatus::Gone,
        }
    }

    pub(super) fn is_held(self) -> bool {
        self != HoldStatus::Gone
    }
}

/// Halves, because it is often one key of a hundred.
pub(super) fn parts(batch: &[Arc<HeldLease>]) -> impl Iterator<Item = Vec<Arc<HeldLease>>> {
    batch.chunks(batch.len().div_ceil(2).max(1)).map(<[_]>::to_vec)
}
