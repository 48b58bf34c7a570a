//! What must hold after each step, judged by the guards and by what the server has.
//!
//! Whether the server has a hold is judged, and for how long it keeps one is not: a renewal of an owner's earlier hold that arrives late has it keep the next
//! one for longer (`docs/dangers.md`, fixed holds of an owner that was handed out; `Pa u Pa!` with a held renewal shows it).

use std::sync::Arc;

use super::program::Kind;
use crate::worker::kind::OneGuard;

/// A guard that a task has.
pub(super) struct Slot {
    pub(super) held: Arc<OneGuard>,
    /// The text of its owner.
    pub(super) owner: String,
    pub(super) kind: Kind,
    /// Its lease is renewed.
    pub(super) renewed: bool,
}

/// What a valid guard stands for on the server.
fn field(slot: &Slot) -> String {
    if slot.kind == Kind::Write { format!("{}:write", slot.owner) } else { slot.owner.clone() }
}

/// What is wrong, if anything is. If nothing is under way, the server counts `exactly` the guards.
pub(super) fn judge(slots: &[&Slot], fields: &[(String, u64)], exactly: bool) -> Option<String> {
    let valid: Vec<_> = slots.iter().filter(|slot| slot.held.is_valid()).collect();
    for one in &valid {
        for other in &valid {
            if one.owner != other.owner && !(one.kind == Kind::Read && other.kind == Kind::Read) {
                return Some(format!(
                    "two valid holds: {:?} of {} and {:?} of {}",
                    one.kind, one.owner, other.kind, other.owner
                ));
            }
        }
    }
    for slot in &valid {
        let field = field(slot);
        let guards = valid.iter().filter(|other| self::field(other) == field).count() as u64;
        let count = fields.iter().find(|(known, _)| *known == field).map_or(0, |(_, count)| *count);
        if count < guards {
            return Some(format!("{guards} valid guards stand for {field}, of which the server has {count}"));
        }
    }
    if let Some(slot) = slots.iter().find(|slot| slot.renewed && !slot.held.is_valid()) {
        let reason = slot.held.guard().and_then(redlatch::Guard::loss);
        return Some(format!("a renewed hold of {} was lost: {reason:?}", slot.owner));
    }
    if exactly {
        for (field, count) in fields {
            let guards = valid.iter().filter(|slot| self::field(slot) == *field).count() as u64;
            if *count > guards && slots.len() == valid.len() {
                return Some(format!(
                    "nothing is under way, and the server has {count} of {field} for {guards} guards"
                ));
            }
        }
    }
    None
}
