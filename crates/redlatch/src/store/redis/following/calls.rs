//! Calls to a master that another server may follow: what is tried again there, and whose answers count.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{LISTED_TIME, LOOK_TIME_MAX, MASTERS_TRIED_MAX, Shared};
use crate::{
    error::{Error, ErrorKind},
    replica_ack::ReplicaCount,
    store::{
        Call, Confirm, Fault, Reply, of_stale_incarnation,
        redis::{
            failure::Failure,
            listed::{Listed, Listing},
            node::Node,
            server_process,
        },
    },
};

impl Shared {
    /// Runs something at the master, and if that fails, asks who is the master and runs it at the one who is by then, unless it
    /// may have run. `first` is on its way already, to the master of that time.
    pub(super) async fn follow<T, F>(
        &self,
        mut mastership: u64,
        first: F,
        again: impl Fn(&Arc<Node>, u64) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut failure = match first.await {
            Ok(answer) => return self.believe(answer, mastership),
            Err(failure) => failure,
        };
        let _searching = self.searching.begin();
        for _ in 1..MASTERS_TRIED_MAX {
            if self.closed.load(Ordering::SeqCst) {
                break;
            }
            match standing(&failure) {
                Standing::Answered => break,
                Standing::MayHaveRun => {
                    self.look.ask();
                    break;
                }
                Standing::NotRun => self.await_look(mastership).await,
            }
            if self.master.mastership() == mastership {
                break;
            }
            let (now, node) = self.master.present();
            mastership = now;
            failure = match again(&node, mastership).await {
                Ok(answer) => return self.believe(answer, mastership),
                Err(failure) => failure,
            };
        }
        let fault = Fault::from(failure);
        if fault.error().kind() == ErrorKind::Closed && !self.closed.load(Ordering::SeqCst) {
            return Err(Fault::NotSent(Error::new(ErrorKind::Unreachable, "the master is just changing")));
        }
        Err(fault)
    }

    /// As [`follow`](Self::follow), for what no other master may be asked.
    pub(super) async fn ask_in(
        &self,
        incarnation: u64,
        mastership: u64,
        first: impl Future<Output = Result<Reply, Failure>>,
    ) -> Result<Reply, Fault> {
        if server_process::mastership(incarnation) != mastership {
            return Err(of_stale_incarnation());
        }
        match first.await {
            Ok(answer) => self.believe(answer, mastership),
            Err(failure) => {
                if !matches!(standing(&failure), Standing::Answered) {
                    self.look.ask();
                }
                Err(failure.into())
            }
        }
    }

    /// Runs a script at one master, and asks the replicas of that one: their answer counts only while it is the master.
    pub(super) fn run_acked_at(
        self: &Arc<Self>,
        node: &Arc<Node>,
        mastership: u64,
        call: Call,
        count: ReplicaCount,
        must: bool,
    ) -> impl Future<Output = Result<(Reply, Confirm), Failure>> + Send + use<> {
        let shared = self.clone();
        let listing = Arc::new(InEra { shared, mastership });
        let (shared, answer) = (self.clone(), node.run_acked(call, count, must, Some(listing)));
        async move {
            let (reply, confirm) = answer.await?;
            let confirm: Confirm = Box::new(move |within| {
                Box::pin(async move {
                    match confirm(within).await {
                        Ok(replicas) => shared.believe(replicas, mastership),
                        Err(fault) => {
                            shared.look.ask();
                            Err(fault)
                        }
                    }
                })
            });
            Ok((reply, confirm))
        }
    }

    /// The replicas of a master that those list who know of it.
    async fn heard(&self, mastership: u64, within: Duration) -> Option<Listed> {
        let end = Instant::now() + LOOK_TIME_MAX.min(within / 2);
        let _turn = timeout_at(end, self.listing.lock()).await.ok()?;
        if let Some((.., listed)) = self.known(mastership).filter(|(_, at, _)| at.elapsed() < LISTED_TIME) {
            return Some(listed);
        }
        let master = self.master().dial().addr().clone();
        let listed = self.finder.clone().replicas(master, end - Instant::now()).await?;
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((mastership, Instant::now(), listed.clone()));
        Some(listed)
    }

    fn known(&self, mastership: u64) -> Option<(u64, Instant, Listed)> {
        self.listed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .filter(|(of, ..)| *of == mastership)
    }

    /// An answer counts only if the one who gave it is still the master: what it granted is perhaps unknown to the next one.
    pub(super) fn believe<T>(&self, reply: T, mastership: u64) -> Result<T, Fault> {
        if self.master.mastership() == mastership {
            return Ok(reply);
        }
        let error = Error::new(ErrorKind::Unreachable, "the master changed while it answered");
        Err(Fault::Unknown(error.answered()))
    }

    /// Waits for a look that begins after this call, unless the master has changed since then.
    pub(super) async fn await_look(&self, mastership: u64) {
        let looked = self.looked.clone();
        let number = self.look.ask();
        if self.master.mastership() == mastership {
            // An error means that nobody looks any more, because the store is closed.
            let _closed_is_over = looked.wait_for(|done| *done >= number).await;
        }
    }
}

/// Those who know of the replicas of a master.
struct InEra {
    shared: Arc<Shared>,
    mastership: u64,
}

impl Listing for InEra {
    /// When nobody answers, what was said before counts.
    fn listed(&self, within: Duration) -> Pin<Box<dyn Future<Output = Option<Listed>> + Send + '_>> {
        Box::pin(async move {
            let heard = self.shared.heard(self.mastership, within).await;
            heard.or_else(|| self.shared.known(self.mastership).map(|(.., listed)| listed))
        })
    }

    fn lacking(&self, offset: u64, within: Duration) -> Pin<Box<dyn Future<Output = u32> + Send + '_>> {
        let master = self.shared.master().dial().addr().clone();
        self.shared.finder.clone().lacking(master, offset, within)
    }
}

/// What a failed call may have done.
enum Standing {
    /// The server has answered, and another master would answer the same.
    Answered,
    NotRun,
    MayHaveRun,
}

fn standing(failure: &Failure) -> Standing {
    match failure {
        Failure::Fault(Fault::NotSent(_)) => Standing::NotRun,
        Failure::Fault(Fault::Unknown(_)) => Standing::MayHaveRun,
        // A server that is a replica now cannot ask replicas, and says so before the script.
        Failure::Fault(Fault::Server(error)) if error.kind() == ErrorKind::ReadOnly => Standing::NotRun,
        Failure::Fault(Fault::Server(_)) => Standing::Answered,
        // A script is refused at its first write, before which it has only read.
        Failure::Refused { code, detail, .. } => {
            if matches!(&code[..], "READONLY" | "MASTERDOWN" | "LOADING")
                || Fault::server(code, detail).error().kind() == ErrorKind::ReadOnly
            {
                Standing::NotRun
            } else {
                Standing::Answered
            }
        }
    }
}
