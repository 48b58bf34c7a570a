//! Finding the master among servers by asking each of them for its role.
//!
//! They also say what their data come from, by which one of several that claim may be known for the master
//! (`succession/lineage.rs`).

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use super::{
    Dial,
    finder::{Finder, Findings, Found, FoundLacking, Look, Pace, Source, Worth, hear},
    node::{InterruptionHooks, Node},
    role::{self, Role},
    role_of::role_of,
    server_process,
    succession::{Claim, History, Memory, Replica, Right, Said, Voice},
};
use crate::{
    config::{
        Config,
        addr::Addr,
        url::{Nodes, Server},
    },
    error::{Error, ErrorKind},
    finding::{Finding, Severity},
    randomness::SeededSet,
    store::Fault,
};

/// For how long a server that says nothing any more counts as the replica that it was. Redis's own masters let go of a silent replica after
/// that (`repl-timeout`).
const REPLICA_MEMORY: Duration = Duration::from_secs(60);
/// How long those that lack a grant have until they are asked again, at first and at most.
const QUESTION_PAUSE_MIN: Duration = Duration::from_millis(1);
const QUESTION_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How many servers are asked.
const SERVERS_MAX: usize = 64;

/// A master and its replicas.
pub(super) struct Replicated {
    servers: Vec<Arc<Asked>>,
    look: OnceLock<Arc<Look>>,
    text: String,
    place: String,
    connect_timeout: Duration,
    response_timeout: Duration,
}

/// One of the servers.
struct Asked {
    node: Arc<Node>,
    pace: Pace,
    /// Since when it is asked.
    since: Instant,
    copy: Mutex<Option<Copy>>,
}

/// The process that was a replica when it said last which of the two it was, and has not become our master since.
#[derive(Clone)]
struct Copy {
    run: String,
    at: Instant,
}

impl Source for Asked {
    fn pace(&self) -> &Pace {
        &self.pace
    }
}

impl Asked {
    fn copy(&self) -> MutexGuard<'_, Option<Copy>> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a process that says that it is a replica. One that has not said which process it is stays the one that it was: what was never
    /// a replica is not counted for its sake.
    fn is_copy(&self, run: Option<String>) {
        if let Some(run) = run {
            *self.copy() = Some(Copy { run, at: Instant::now() });
        }
    }

    /// The replica that it was not long ago, or that it may be if it has never said anything, by some name. Where the machine refuses the
    /// connection there is none.
    fn silent_replica(&self) -> Option<String> {
        if self.node.dial().is_refused() {
            return None;
        }
        if self.pace.has_answered() {
            return self
                .copy()
                .clone()
                .filter(|copy| copy.at.elapsed() < REPLICA_MEMORY)
                .map(|copy| copy.run);
        }
        (self.since.elapsed() < REPLICA_MEMORY).then(|| self.node.dial().addr().to_string())
    }
}

impl Replicated {
    pub(super) fn new(nodes: &Nodes, config: &Config, background: &Handle) -> Result<Self, Error> {
        let mut sorted: Vec<String> = nodes.addrs.iter().map(Addr::to_string).collect();
        sorted.sort();
        sorted.dedup();
        let mut asked = Vec::new();
        for addr in nodes.addrs.iter().take(SERVERS_MAX) {
            let dial =
                Dial::new(Server { addr: addr.clone(), access: nodes.access.clone() }, config, background)?;
            // Locks are held over the master's own connections, so the end of these interests nobody.
            let node = Node::new(Arc::new(dial), config, background, Arc::new(InterruptionHooks::default()));
            let (pace, copy) = Default::default();
            asked.push(Arc::new(Asked { node, pace, since: Instant::now(), copy }));
        }
        Ok(Replicated {
            look: OnceLock::new(),
            servers: asked,
            text: crate::config::url::StoreUrl::Replicated(nodes.clone()).to_string(),
            place: format!("replicated {}/{}", sorted.join(","), nodes.access.database),
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
        })
    }

    /// Notes the process of our master, by whatever names it goes.
    fn is_master(&self, run: &str) {
        for server in &self.servers {
            server.copy().take_if(|copy| copy.run == run);
        }
    }

    async fn find(&self, memory: &Memory, limit: Duration) -> Result<Said, Error> {
        let present = memory.present().map(|present| present.addr.clone());
        let (mut masters, mut replicas) = (Vec::new(), Vec::new());
        let (mut errors, mut failed) = (Vec::new(), Vec::new());
        let ask = async |server: Arc<Asked>| {
            let (role, history) = tokio::join!(role_of(&server.node), history(&server.node));
            let (history, is_in_sync) =
                history.map_or((None, true), |(history, in_sync)| (Some(history), in_sync));
            Ok::<_, Error>((role?, history, is_in_sync))
        };
        // What the present master says is no news.
        let ours = present.clone();
        let late = move |server: &Asked, (role, history, _): &(Role, Option<History>, bool)| match role {
            Role::Master { .. } => ours.as_ref() != Some(server.node.dial().addr()),
            Role::Replica => {
                server.is_copy(history.as_ref().and_then(|history| history.run.clone()));
                false
            }
        };
        let silent = hear(&self.servers, limit, self.look.get(), ask, late, |server, answer| {
            let addr = server.node.dial().addr();
            match answer {
                Ok((Role::Master { .. }, history, _)) => {
                    if let Some(run) = history.as_ref().and_then(|history: &History| history.run.as_deref())
                        && present.as_ref() == Some(addr)
                    {
                        self.is_master(run);
                    }
                    let right = Right::Own { history };
                    masters.push(Claim {
                        addr: addr.clone(),
                        right,
                        by: Voice::at(addr.clone()),
                        amid: false,
                    });
                }
                Ok((Role::Replica, history, is_in_sync)) => {
                    let (copied, run) =
                        history.map_or((None, None), |history| (Some(history.id), history.run));
                    server.is_copy(run.clone());
                    replicas.push(Replica { addr: addr.clone(), history: copied, run, is_in_sync });
                }
                Err(error) => {
                    errors.push(error.within(addr));
                    failed.push(server.clone());
                }
            }
            if masters.is_empty() { Worth::Nothing } else { Worth::Enough }
        });
        let silent = silent.await;
        for server in &self.servers {
            let answered = !silent.iter().any(|silent| Arc::ptr_eq(silent, server));
            server.pace.note(answered, &server.node, self.response_timeout);
        }
        if !masters.is_empty() {
            let place = |claim: &Claim| {
                self.servers.iter().position(|server| *server.node.dial().addr() == claim.addr)
            };
            masters.sort_by_key(place);
            let answered = masters.len() + replicas.len();
            let refused = silent.iter().chain(&failed).filter(|server| server.node.dial().is_refused());
            let refused = refused.map(|server| server.node.dial().addr().clone()).collect();
            return Ok(Said { claims: masters, replicas, refused, asked: self.servers.len(), answered });
        }
        if let Some(error) = errors.iter().find(|error| !error.is_retryable()).or(errors.first())
            && (replicas.is_empty() || !error.is_retryable())
        {
            return Err(error.clone().within(format!("no master found: {}", self.text)));
        }
        if !replicas.is_empty() {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{}: none of the servers that answer is a master", self.text),
            )
            .remedy("name all servers of the set in the URL, and check that one of them is the master"));
        }
        Err(Error::new(ErrorKind::Unreachable, format!("{}: none of the servers answers", self.text)))
    }

    /// How many servers lack what was granted at this point of our master's history, or may lack it. A replica says itself how far it is, so it does not
    /// matter by which way it copies, nor what its master calls it. A server that goes by several names counts once, and one that does not
    /// say who it is counts not at all. Another master lacks it, because it copies no more and may be granting the
    /// same, until one of the two is followed. For the same reason one that says nothing counts for a while: it may have become one.
    ///
    /// `have`: the processes that have it, as they have said in this call or an earlier one.
    async fn lack(&self, master: &Addr, offset: u64, have: &mut SeededSet<String>, limit: Duration) -> u32 {
        let (mut copies, mut promoted, mut mute) = (Vec::new(), Vec::new(), Vec::new());
        let mut ours = None;
        let ask = async |server: Arc<Asked>| who(&server.node).await;
        // One that is too far away to be heard in time is a replica all the same.
        let late = |server: &Asked, who: &Who| {
            if let Role::Replica = who.role {
                server.is_copy(who.data.run.clone());
            }
            false
        };
        let silent = hear(&self.servers, limit, self.look.get(), ask, late, |server, answer| {
            match answer {
                Ok(who) if who.role == Role::Replica => {
                    server.is_copy(who.data.run.clone());
                    copies.push(who);
                }
                Ok(who) if server.node.dial().addr() == master => {
                    who.data.run.iter().for_each(|run| self.is_master(run));
                    ours = Some(who.data);
                }
                Ok(who) => promoted.push(who.data),
                Err(_) => {
                    mute.push(server.clone());
                    return Worth::Nothing;
                }
            }
            Worth::Enough
        });
        let silent = silent.await;
        mute.extend(silent);
        // Our own by another name counts not, nor does the one that it has gone on from.
        promoted.retain(|other| {
            ours.as_ref().is_none_or(|ours| other.run != ours.run && ours.before.as_ref() != Some(&other.id))
        });
        if let Some(look) = self.look.get().filter(|_| !promoted.is_empty()) {
            look.ask();
        }
        // An offset is one of a history: another master's may be greater.
        let has_it = |who: &Who| {
            let ours = ours.as_ref().map(|ours| &ours.id).filter(|id| !id.is_empty());
            ours == Some(&who.data.id) && who.offset.is_some_and(|its| its >= offset)
        };
        let (having, lack): (Vec<_>, Vec<_>) = copies.into_iter().partition(has_it);
        have.extend(having.into_iter().filter_map(|who| who.data.run));
        let mut lacking: SeededSet<String> = lack.into_iter().filter_map(|who| who.data.run).collect();
        lacking.extend(promoted.into_iter().filter_map(|other| other.run));
        lacking.extend(mute.iter().filter_map(|server| server.silent_replica()));
        lacking.retain(|run| !have.contains(run));
        u32::try_from(lacking.len()).unwrap_or(u32::MAX)
    }

    /// As [`lack`](Self::lack), until it is none, or the time is over.
    async fn lack_at_last(&self, master: &Addr, offset: u64, limit: Duration) -> u32 {
        let (end, mut pause) = (Instant::now() + limit, QUESTION_PAUSE_MIN);
        let mut have = SeededSet::default();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let lacking = self.lack(master, offset, &mut have, left).await;
            if lacking == 0 || Instant::now() + pause >= end {
                return lacking;
            }
            // No server tells when a replica of its replica has something.
            sleep(pause).await;
            pause = (2 * pause).min(QUESTION_PAUSE_MAX);
        }
    }

    async fn findings(&self) -> Vec<Finding> {
        let limit = self.connect_timeout;
        let asks = self.servers.iter().map(|server| async move {
            let addr = server.node.dial().addr();
            let role = timeout(limit, role_of(&server.node)).await;
            let (severity, text) = match &role {
                Ok(Ok(Role::Master { replicas })) => {
                    (Severity::Good, format!("{addr} is a master with {replicas} replicas"))
                }
                Ok(Ok(Role::Replica)) => (Severity::Good, format!("{addr} is a replica")),
                Ok(Err(error)) => (Severity::Problem, format!("{addr}: {error}")),
                Err(_) => (Severity::Problem, format!("{addr} does not answer within {limit:?}")),
            };
            (
                Finding::new(severity, "server", text),
                matches!(role, Ok(Ok(Role::Master { .. }))).then_some(addr),
            )
        });
        let (mut findings, masters): (Vec<_>, Vec<_>) = join_all(asks).await.into_iter().unzip();
        let masters: Vec<String> = masters.into_iter().flatten().map(Addr::to_string).collect();
        if masters.len() > 1 {
            let text = format!(
                "{} say that they are the master; locks are granted only while it can be told which of them counts: make the others its replicas (REPLICAOF)",
                masters.join(" and ")
            );
            findings.push(Finding::new(Severity::Problem, "masters", text));
        }
        findings
    }
}

/// Where a server's data come from, if the account may ask for that.
async fn history(node: &Arc<Node>) -> Option<(History, bool)> {
    let (data, process) = (role::question(role::QUESTIONS[1]), role::question(&server_process::QUESTION));
    let (data, process) = tokio::join!(node.send(&data), node.send(&process));
    let run = process.ok().as_ref().and_then(server_process::process).map(String::from);
    let data = data.ok()?;
    Some((History { run, ..role::history(&data)? }, role::is_in_sync(&data)))
}

/// What a server says of itself.
struct Who {
    role: Role,
    /// What its data come from, with the id of its process.
    data: History,
    /// How far they have gone.
    offset: Option<u64>,
}

async fn who(node: &Arc<Node>) -> Result<Who, Error> {
    let (data, process) = (role::question(role::QUESTIONS[1]), role::question(&server_process::QUESTION));
    let (role, data, process) = tokio::join!(role_of(node), node.send(&data), node.send(&process));
    let process = process.map_err(|failure| Fault::from(failure).into_error())?;
    let nameless = || Error::new(ErrorKind::Protocol, "the server does not say which process it is");
    let run = Some(server_process::process(&process).ok_or_else(nameless)?.into());
    // What an account may not hear is no history that any other has.
    let data = data.ok();
    let offset = data.as_ref().and_then(role::offset);
    let data = data.as_ref().and_then(role::history).unwrap_or_default();
    Ok(Who { role: role?, data: History { run, ..data }, offset })
}

impl Finder for Replicated {
    fn find(self: Arc<Self>, memory: Memory, limit: Duration) -> Found {
        Box::pin(async move { Replicated::find(&self, &memory, limit).await })
    }

    fn lacking(self: Arc<Self>, master: Addr, offset: u64, limit: Duration) -> FoundLacking {
        Box::pin(async move { self.lack_at_last(&master, offset, limit).await })
    }

    fn listen(&self, look: &Arc<Look>) {
        // Nobody tells, so the interval is all there is, and what comes up when replicas are counted.
        let _ = self.look.set(look.clone());
    }

    fn place(&self) -> String {
        self.place.clone()
    }

    fn describe(&self) -> String {
        self.text.clone()
    }

    fn diagnose(self: Arc<Self>, _present: Addr) -> Findings {
        Box::pin(async move { self.findings().await })
    }

    fn close(&self) {
        for server in &self.servers {
            server.node.close();
        }
    }
}

#[cfg(test)]
mod tests;
