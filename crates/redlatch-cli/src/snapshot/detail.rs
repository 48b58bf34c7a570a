//! One name by itself.

use serde::Serialize;

use super::lock_row::{HolderRow, LockRow, NAMED_MAX, some, time};
use crate::output::Record;

/// The same as JSON as in a listing, more in words.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Detail(pub(crate) LockRow);

impl Record for Detail {
    const COLUMNS: &'static [&'static str] = &[
        "NAME", "KIND", "OWNER", "HOLDS", "TTL", "WAITERS", "QUEUE", "VALUE", "LASTING", "PERMITS", "TOKEN",
        "WHO", "WORKERS", "FINDINGS",
    ];
    const NARROW: usize = Self::COLUMNS.len();

    fn cells(&self) -> Vec<String> {
        let row = &self.0;
        let queue = some(&row.waiters, NAMED_MAX, row.waiting, |waiter| {
            let stale = match waiter.stale_in_ms {
                None => "without a deadline".into(),
                Some(0) => "overdue".into(),
                Some(ms) => format!("given up in {}", time(ms)),
            };
            format!("{}. {} ({stale})", waiter.position, waiter.owner)
        });
        let readers: Vec<&HolderRow> =
            row.holders.iter().filter(|holder| !holder.lasting_ms.is_empty()).collect();
        let lasting = some(&readers, NAMED_MAX, readers.len() as u64, |holder| {
            let each = some(&holder.lasting_ms, 3, holder.lasting_ms.len() as u64, |left| {
                left.map_or("run out".into(), time)
            });
            format!("{} ({each})", holder.owner)
        });
        let permits = some(&row.permits, NAMED_MAX, row.permits_in_use, |permit| {
            format!("{} ({})", permit.id, permit.ttl_ms.map_or("for ever".into(), time))
        });
        vec![
            row.name.clone(),
            row.kind.into(),
            row.owners(),
            row.holds(),
            row.ttl(),
            row.waiters(),
            queue,
            row.value(),
            lasting,
            permits,
            row.token(),
            row.who(),
            row.workers(),
            row.findings.join("; "),
        ]
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}
