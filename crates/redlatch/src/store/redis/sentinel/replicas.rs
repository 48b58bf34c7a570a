//! Which replicas sentinels list that may become the next master.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::{
    super::{
        finder::{Worth, hear},
        listed::{Listed, Names},
    },
    Sentinel, SentinelSet,
    read::{Sight, Told, address, replicas_of},
    sentinel,
};
use crate::config::addr::Addr;

/// A replica as the sentinels list it.
struct Candidate {
    run: Option<String>,
    names: Names,
    sight: Sight,
}

impl SentinelSet {
    /// The replicas that sentinels list which agree on the master: what one of them does not see, another may promote.
    pub(super) async fn replicas_of(&self, master: &Addr, limit: Duration) -> Option<Listed> {
        let end = Instant::now() + limit;
        let (name, of) = (self.master.clone(), master.clone());
        let ask = move |sentinel: Arc<Sentinel>| {
            let (name, of) = (name.clone(), of.clone());
            async move { sentinel.replicas_of(&name, &of).await.ok_or(()) }
        };
        let mut listed: Option<Vec<Candidate>> = None;
        let late = |_: &Sentinel, _: &_| false;
        hear(&self.list(), limit, self.look.get(), ask, late, |_, replicas| match replicas {
            Ok(replicas) => {
                note(listed.get_or_insert_default(), replicas);
                Worth::Enough
            }
            Err(()) => Worth::Nothing,
        })
        .await;
        let mut listed = listed?;
        let ended = listed.iter().map(|replica| async {
            replica.sight == Sight::Lost && self.are_refused(&replica.names, end).await
        });
        let mut ended = join_all(ended).await.into_iter();
        listed.retain(|_| ended.next() != Some(true));
        Some(Listed::Servers(listed.into_iter().map(|replica| replica.names).collect()))
    }

    /// Whether no process listens at any of these addresses. A sentinel that has lost its connection to a replica does not say how: a process that has
    /// ended may be left out at once, but not one that hangs or cannot be reached, which may be the next master in a moment.
    async fn are_refused(&self, names: &Names, end: Instant) -> bool {
        let refused = names.iter().map(|addr| async {
            let dial = self.dial.at(addr.clone());
            _ = timeout_at(end, dial.stream()).await;
            dial.is_refused()
        });
        join_all(refused).await.into_iter().all(|refused| refused)
    }
}

/// Takes in what one more sentinel has told. One process may be listed under several addresses.
fn note(all: &mut Vec<Candidate>, told: Vec<Told>) {
    for Told { run, addr, sight } in told {
        let is_it =
            |known: &&mut Candidate| known.names.contains(&addr) || (run.is_some() && known.run == run);
        match all.iter_mut().find(is_it) {
            Some(known) => {
                if !known.names.contains(&addr) {
                    known.names.push(addr);
                }
                if sight == Sight::Seen {
                    known.sight = sight;
                }
            }
            None => all.push(Candidate { run, names: vec![addr], sight }),
        }
    }
}

impl Sentinel {
    async fn replicas_of(&self, name: &str, master: &Addr) -> Option<Vec<Told>> {
        let link = self.node.link().await.ok()?;
        let (addr, replicas) = (sentinel(&["GET-MASTER-ADDR-BY-NAME", name]), sentinel(&["REPLICAS", name]));
        let (addr, replicas) = tokio::join!(link.ask(&addr), link.ask(&replicas));
        let (addr, replicas) = (addr.ok()?, replicas.ok()?);
        let [host, port] = addr.array()? else { return None };
        let reachable = |announced| self.node.dial().reachable(announced);
        replicas_of(master, &reachable(address(host, port)?), replicas.array()?, reachable)
    }
}
