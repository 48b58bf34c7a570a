//! Which process answers at an address.
//!
//! A server that was started anew has the data that it could save. What its predecessor counted since may be missing, so a count
//! belongs to one process, as it belongs to one master (`Store::reign`). Servers name their process (`run_id`); where an account may
//! not ask, the process is taken for the same one if another connection is answered after the new one was made.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, Either, join_all, select};
use tokio::time::Sleep;

use crate::store::Reply;

/// How long a connection has to show that the process is still there.
const PROOF_TIME_MAX: Duration = Duration::from_secs(1);

/// Words that make a server name its process.
pub(super) const QUESTION: [&str; 2] = ["INFO", "server"];

/// The name of a server's process, where it may be asked for it.
pub(super) type Process = Option<Box<str>>;

/// Reads the answer to [`QUESTION`].
pub(super) fn process(answer: &Reply) -> Process {
    let text = String::from_utf8_lossy(answer.bytes()?);
    let id = text.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    (!id.is_empty()).then(|| id.into())
}

/// One number for a master that may move (`seat`) and the life of its process.
pub(super) fn reign(seat: u64, life: u32) -> u64 {
    (seat << 32) | u64::from(life)
}

pub(super) fn seat(reign: u64) -> u64 {
    reign >> 32
}

/// A connection, which is to one process of the server.
pub(super) trait Lived: Send + Sync {
    fn is_dead(&self) -> bool;

    /// Whether the server answers on it now.
    fn answers(&self) -> BoxFuture<'_, bool>;

    /// Notes of which process of the server the connection is.
    fn lives_in(&self, life: u32);

    /// Ends the connection; every call on it gets an unknown outcome at once.
    fn cut(&self);
}

/// The processes that were met at one address, counted from 0. The first one has its number before it is met.
#[derive(Default)]
pub(super) struct Lives {
    number: AtomicU32,
    met: Mutex<Met>,
}

#[derive(Default)]
struct Met {
    /// `None` before the first connection.
    process: Option<Process>,
    links: Vec<Weak<dyn Lived>>,
}

impl Lives {
    /// The life of the process that was met last.
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Cuts the connections that do not answer now: a process without a name is the same one only if another connection shows it.
    pub(super) async fn prove(&self, sleep: impl Fn(Duration) -> Sleep) {
        let others: Vec<Arc<dyn Lived>> = self.open();
        let proofs = others.iter().filter(|other| !other.is_dead()).map(async |other| {
            let late = pin!(sleep(PROOF_TIME_MAX));
            if !matches!(select(other.answers(), late).await, Either::Left((true, _))) {
                other.cut();
            }
        });
        join_all(proofs).await;
    }

    fn open(&self) -> Vec<Arc<dyn Lived>> {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes a new connection and tells it whose it is. Connections to an earlier process are cut before the next one counts, so no
    /// request goes to one of them under the number of another.
    pub(super) fn meet(&self, link: &Arc<dyn Lived>, process: Process) {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others: Vec<Arc<dyn Lived>> = met.links.iter().filter_map(Weak::upgrade).collect();
        others.retain(|other| !other.is_dead());
        let is_same = match &met.process {
            None => true,
            Some(before) if process.is_some() => *before == process,
            Some(before) => before.is_none() && !others.is_empty(),
        };
        if is_same {
            met.links = others.iter().map(Arc::downgrade).collect();
        } else {
            others.iter().for_each(|other| other.cut());
            met.links.clear();
            self.number.fetch_add(1, Ordering::SeqCst);
        }
        link.lives_in(self.number());
        met.links.push(Arc::downgrade(link));
        met.process = Some(process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_names_its_process() {
        let info = |text: &str| process(&Reply::Bytes(text.as_bytes().to_vec()));
        assert_eq!(info("# Server\r\nrun_id:ab12\r\ntcp_port:1\r\n").as_deref(), Some("ab12"));
        for nothing in ["", "# Server\r\nredis_version:7\r\n", "run_id:\r\n"] {
            assert_eq!(info(nothing), None, "{nothing:?}");
        }
        assert_eq!(process(&Reply::Nil), None);
    }

    #[test]
    fn a_reign_has_both_numbers() {
        assert_eq!(reign(0, 0), 0);
        assert_eq!((seat(reign(7, 3)), reign(7, 3) as u32), (7, 3));
        assert_ne!(reign(7, 3), reign(3, 7));
    }
}
