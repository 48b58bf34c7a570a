//! A file a bar.

mod b02_stale_writes;
mod b03_lost_notice;
mod b04_data_loss;
mod b05_handoff;
mod b06_cancellations;
mod b08_out_of_memory;
mod b09_slots;
mod b10_replicas;
mod b11_restart;
mod b12_isolation;
mod b13_many_holds;
mod b14_many_waiters;
mod b15_fair;
mod b16_errors;
mod b17_names;
mod b18_exits;
mod b20_rights;

use crate::common::{Result, Verdict};

/// One bar.
pub(crate) struct Bar {
    pub(crate) number: u32,
    pub(crate) title: &'static str,
    pub(crate) run: fn(bool) -> Result<Verdict>,
}

/// All of them that this program measures; the others are scripts alone.
pub(crate) const BARS: &[Bar] = &[
    Bar { number: 2, title: "stale writes", run: b02_stale_writes::run },
    Bar { number: 3, title: "notice of a loss", run: b03_lost_notice::run },
    Bar { number: 4, title: "loss of the server's data", run: b04_data_loss::run },
    Bar { number: 5, title: "hand-off after lost messages", run: b05_handoff::run },
    Bar { number: 6, title: "cancellations", run: b06_cancellations::run },
    Bar { number: 8, title: "server out of memory", run: b08_out_of_memory::run },
    Bar { number: 9, title: "slots on the move", run: b09_slots::run },
    Bar { number: 10, title: "replicas that lag", run: b10_replicas::run },
    Bar { number: 11, title: "restart within half a lease", run: b11_restart::run },
    Bar { number: 12, title: "a master that stands still", run: b12_isolation::run },
    Bar { number: 13, title: "10,000 held locks", run: b13_many_holds::run },
    Bar { number: 14, title: "10,000 waiters", run: b14_many_waiters::run },
    Bar { number: 15, title: "order of fair locks", run: b15_fair::run },
    Bar { number: 16, title: "errors of the server", run: b16_errors::run },
    Bar { number: 17, title: "random names", run: b17_names::run },
    Bar { number: 18, title: "exits of holders", run: b18_exits::run },
    Bar { number: 20, title: "least rights and secrets", run: b20_rights::run },
];

/// What a child process of a bar does.
pub(crate) fn work(number: u32, args: &[String]) -> Result<()> {
    match number {
        2 => b02_stale_writes::work(args),
        3 => b03_lost_notice::work(args),
        13 => b13_many_holds::work(args),
        14 => b14_many_waiters::work(args),
        15 => b15_fair::work(args),
        18 => b18_exits::work(args),
        _ => Err(format!("bar {number} has no workers").into()),
    }
}
