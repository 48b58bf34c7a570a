//! The first master of a store: it is looked for until one is found, or the time for connecting is over.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    super::{
        Dial,
        finder::{Finder, MOST_TIME_MAX},
        node::{InterruptionHooks, Node},
        succession::{Memory, Said, Verdict},
    },
    LOOK_PAUSE_MIN,
    replica::master_of,
};
use crate::{
    config::{Config, addr::Addr},
    error::{Error, ErrorKind},
};

/// How long one try to find the first master may take, so that one that hangs leaves time for the one that takes its place. A server that has never
/// answered is waited for as long beside others.
const TRY_TIME_MAX: Duration = MOST_TIME_MAX;

/// The search for the first master.
pub(super) struct First {
    pub(super) finder: Arc<dyn Finder>,
    pub(super) dial: Dial,
    pub(super) config: Config,
    pub(super) background: Handle,
    pub(super) ends: Arc<InterruptionHooks>,
}

impl First {
    /// Asks again while the master that is named does not accept or answer: there may be a change of masters right now.
    pub(super) async fn find(self) -> Result<(Memory, Arc<Node>), Error> {
        let (mut memory, mut candidate, mut vain) = (Memory::default(), None, None);
        let end = Instant::now() + self.config.connect_timeout;
        // The last thing that was learned: time that runs out in the middle of another try says less.
        let mut last = None;
        let error = loop {
            let until = end.min(Instant::now() + TRY_TIME_MAX);
            match self.try_once(&mut memory, &mut candidate, &mut vain, until).await {
                Ok(node) => return Ok((memory, node)),
                Err(Vain::ForGood(error)) => {
                    break if error.is_retryable() { last.unwrap_or(error) } else { error };
                }
                Err(Vain::Now(error)) => last = Some(error),
                Err(Vain::OutOfTime(error)) => last = Some(last.unwrap_or(error)),
            }
            if Instant::now() + LOOK_PAUSE_MIN >= end
                && let Some(error) = last
            {
                break error;
            }
            sleep(LOOK_PAUSE_MIN).await;
        };
        if let Some(node) = candidate {
            node.close();
        }
        Err(error)
    }

    /// Tries once. `candidate`: the server that is being connected to, kept between tries so that a slow one need not begin anew with each. `vain`: the one
    /// that was promised its place and could not be reached in the last try; in this one it is the turn of the master that the others use until then.
    async fn try_once(
        &self,
        memory: &mut Memory,
        candidate: &mut Option<Arc<Node>>,
        vain: &mut Option<Addr>,
        until: Instant,
    ) -> Result<Arc<Node>, Vain> {
        let said = match self.finder.clone().find(memory.clone(), until - Instant::now()).await {
            Ok(said) => said,
            Err(error) if error.kind() == ErrorKind::ReadOnly => return Err(Vain::Now(error)),
            // One that knows hangs, and another one may know soon.
            Err(error) if Instant::now() >= until => return Err(Vain::OutOfTime(error)),
            // Those who know are not there, which waiting does not change.
            Err(error) => return Err(Vain::ForGood(error)),
        };
        let mut verdict = memory.judge(&said, Instant::now());
        if let Verdict::Is(_) = verdict
            && let becomes @ Verdict::Becomes(_) = memory.judge(&said, Instant::now())
        {
            verdict = becomes;
        }
        let claim = match verdict {
            Verdict::Is(claim) => Some(claim),
            Verdict::Becomes(claim) if vain.as_ref() != Some(&claim.addr) => Some(claim),
            Verdict::Becomes(claim) => Some(memory.present().cloned().unwrap_or(claim)),
            Verdict::Stays | Verdict::Nobody => memory.present().cloned(),
        };
        let Some(claim) = claim else {
            return Err(Vain::Now(self.no_master(&said, memory)));
        };
        let addr = &claim.addr;
        *vain = claim.is_promise().then(|| addr.clone());
        if let Some(other) = candidate.take_if(|node| node.dial().addr() != addr) {
            other.close();
        }
        let node = candidate.get_or_insert_with(|| {
            let dial = Arc::new(self.dial.at(addr.clone()));
            Node::new(dial, &self.config, &self.background, self.ends.clone())
        });
        let node = node.clone();
        let told = |error: Error| {
            let remedy = match error.kind() {
                ErrorKind::Auth => "check the master's user name and password; sentinels have their own",
                _ => "check that the master runs, and that its address as announced can be reached from here",
            };
            error.within(format!("{} (master at {addr})", self.finder.describe())).remedy(remedy)
        };
        match timeout_at(until, node.link()).await {
            Ok(Ok(_)) => {
                *candidate = None;
                memory.admit(&claim);
                Ok(node)
            }
            Ok(Err(fault)) => {
                let error = fault.into_error();
                if error.kind() == ErrorKind::ReadOnly && memory.has_rival(&said) {
                    let limit = until - Instant::now();
                    let master = master_of(addr, &self.dial, &self.config, &self.background, limit).await;
                    master.and_then(|master| memory.follow(addr, &master, &said));
                }
                let error = told(error);
                Err(if error.is_retryable() { Vain::Now(error) } else { Vain::ForGood(error) })
            }
            Err(_) => {
                let text = format!("no answer within {:?}", self.config.connect_timeout);
                Err(Vain::OutOfTime(told(Error::new(ErrorKind::Unreachable, text))))
            }
        }
    }
}

impl First {
    fn no_master(&self, said: &Said, memory: &Memory) -> Error {
        let who = self.finder.describe();
        if said.claims.is_empty() && said.answered > 0 {
            let text = format!("{who}: those who answer belong to different sets");
            return Error::new(ErrorKind::Unreachable, text)
                .remedy("name more sentinels of the set in the URL, and none of another one");
        }
        let masters = memory.claimants();
        if masters.is_empty() {
            let text = format!("{who}: nobody says who is the master");
            return Error::new(ErrorKind::Unreachable, text);
        }
        undecided(&who, &masters)
    }
}

/// Why none of those that claim is used.
pub(super) fn undecided(who: &str, masters: &[String]) -> Error {
    if let [only] = masters {
        let text = format!(
            "{who}: {only} says that it is the master, and most servers copy another one, which is not heard"
        );
        return Error::new(ErrorKind::Unreachable, text)
            .remedy("see where the names in the URL lead, and make the former master a replica (REPLICAOF)");
    }
    let masters = masters.join(" and ");
    let text = format!(
        "{who}: {masters} say, or have said, that they are the master, and it cannot be told which of them counts"
    );
    Error::new(ErrorKind::Unreachable, text)
        .remedy("see which of them has the locks, and make the others its replicas (REPLICAOF)")
}

/// A try without success.
enum Vain {
    /// Another one may succeed soon.
    Now(Error),
    /// So it may, though it is not known what kept this one.
    OutOfTime(Error),
    ForGood(Error),
}
