//! Finding the master among servers by asking each of them for its role.
//!
//! A server that is promoted knows whose copy it was, so it follows that one however many replicas the old one still lists: it
//! lists those that were cut off from it until `repl-timeout` has passed. One that is the master again after it was a copy tells of
//! that in the same way (`succession.rs`).

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Dial,
    finder::{Finder, Findings, Found, Listed, Look, Quiet},
    life,
    node::{Interruption, Node},
    role::{self, Role},
    succession::{Claim, History, Memory, Right, Said},
};
use crate::{
    config::{
        Config,
        addr::Addr,
        url::{Nodes, Server},
    },
    error::{Error, ErrorKind},
    finding::{Finding, Severity},
    store::Fault,
};

/// How long the others have after a master has answered: one that hangs must delay nobody, and a second master be seen.
const ANSWER_GRACE: Duration = Duration::from_millis(200);
/// How many servers are asked.
const SERVERS_MAX: usize = 64;

/// A master and its replicas.
pub(super) struct Replicated {
    nodes: Vec<(Arc<Node>, Quiet)>,
    /// For each of them the process that was a replica when it said last which of the two it was, and has not become our master since.
    copies: Mutex<Vec<Option<String>>>,
    look: OnceLock<Arc<Look>>,
    text: String,
    place: String,
    connect_timeout: Duration,
    response_timeout: Duration,
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
            let node = Node::new(Arc::new(dial), config, background, Arc::new(Interruption::default()));
            asked.push((node, Quiet::default()));
        }
        Ok(Replicated {
            copies: Mutex::new(vec![None; asked.len()]),
            look: OnceLock::new(),
            nodes: asked,
            text: crate::config::url::StoreUrl::Replicated(nodes.clone()).to_string(),
            place: format!("replicated {}/{}", sorted.join(","), nodes.access.database),
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
        })
    }

    /// Notes a process that says that it is a replica. One that has not said which process it is stays the one that it was: what was never
    /// a replica is not counted for its sake.
    fn is_copy(&self, at: usize, run: Option<String>) {
        if let Some(run) = run {
            self.copies.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(run);
        }
    }

    /// Whether a process was a replica when it said so last.
    fn was_copy(&self, at: usize, run: &str) -> bool {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)[at].as_deref() == Some(run)
    }

    /// Notes the process of our master, by whatever names it goes.
    fn is_master(&self, run: &str) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.iter_mut().filter(|copy| copy.as_deref() == Some(run)).for_each(|copy| *copy = None);
    }

    async fn find(&self, memory: &Memory, limit: Duration) -> Result<Said, Error> {
        let mut until = Instant::now() + limit;
        let mut asks: FuturesUnordered<_> =
            self.nodes
                .iter()
                .enumerate()
                .map(|(at, (node, _))| async move {
                    (at, node.dial().addr(), tokio::join!(ask(node), history(node)))
                })
                .collect();
        let (mut masters, mut replicas, mut errors) = (Vec::new(), 0, Vec::new());
        let mut answered = vec![false; self.nodes.len()];
        while let Ok(Some((at, addr, (answer, history)))) = timeout_at(until, asks.next()).await {
            answered[at] = true;
            match answer {
                Ok(Role::Master { replicas }) => {
                    until = until.min(Instant::now() + ANSWER_GRACE);
                    let is_ours = memory.present().is_some_and(|present| present.addr == *addr);
                    if let Some(run) = history.as_ref().and_then(|history| history.run.as_deref())
                        && is_ours
                    {
                        self.is_master(run);
                    }
                    let right = Right::Own { replicas, history };
                    masters.push((at, Claim { addr: addr.clone(), right, by: addr.clone(), amid: false }));
                }
                Ok(Role::Replica) => {
                    replicas += 1;
                    self.is_copy(at, history.and_then(|history| history.run));
                }
                Err(error) => errors.push(error.within(addr)),
            }
        }
        drop(asks);
        for ((node, quiet), answered) in self.nodes.iter().zip(answered) {
            quiet.note(answered, node, self.response_timeout);
        }
        if !masters.is_empty() {
            masters.sort_by_key(|(at, _)| *at);
            let claims: Vec<Claim> = masters.into_iter().map(|(_, claim)| claim).collect();
            let answered = claims.len() + replicas;
            return Ok(Said { claims, asked: self.nodes.len(), answered });
        }
        if let Some(error) = errors.iter().find(|error| !error.is_retryable()).or(errors.first())
            && (replicas == 0 || !error.is_retryable())
        {
            return Err(error.clone().within(format!("no master found: {}", self.text)));
        }
        if replicas > 0 {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{}: none of the servers that answer is a master", self.text),
            )
            .remedy("name all servers of the set in the URL, and check that one of them is the master"));
        }
        Err(Error::new(ErrorKind::Unreachable, format!("{}: none of the servers answers", self.text)))
    }

    /// How many of the servers say that they are replicas. A server that goes by several names counts once, and one that does not
    /// say who it is counts not at all. A replica that has become a master counts on, because it copies no more and may be granting the
    /// same: until it is followed, what our master grants is confirmed by one too few.
    async fn count_replicas(&self, master: &Addr, limit: Duration) -> Option<u32> {
        let mut until = Instant::now() + limit;
        let asks = self.nodes.iter().enumerate();
        let mut asks: FuturesUnordered<_> =
            asks.map(|(at, (node, _))| async move { (at, who(node).await) }).collect();
        let (mut replicas, mut promoted, mut anybody) = (HashSet::new(), HashSet::new(), false);
        while let Ok(Some((at, answer))) = timeout_at(until, asks.next()).await {
            let Some((role, id)) = answer else { continue };
            until = until.min(Instant::now() + ANSWER_GRACE);
            anybody = true;
            match role {
                Role::Replica => {
                    self.is_copy(at, Some(id.clone()));
                    replicas.insert(id);
                }
                Role::Master { .. } if self.nodes[at].0.dial().addr() == master => self.is_master(&id),
                Role::Master { .. } => drop(promoted.insert((at, id))),
            }
        }
        promoted.retain(|(at, id)| self.was_copy(*at, id));
        if let Some(look) = self.look.get().filter(|_| !promoted.is_empty()) {
            look.ask();
        }
        replicas.extend(promoted.into_iter().map(|(_, id)| id));
        anybody.then(|| u32::try_from(replicas.len()).unwrap_or(u32::MAX))
    }

    async fn findings(&self) -> Vec<Finding> {
        let limit = self.connect_timeout;
        let asks = self.nodes.iter().map(|(node, _)| async move {
            let addr = node.dial().addr();
            let (severity, text) = match timeout(limit, ask(node)).await {
                Ok(Ok(Role::Master { replicas })) => {
                    (Severity::Good, format!("{addr} is a master with {replicas} replicas"))
                }
                Ok(Ok(Role::Replica)) => (Severity::Good, format!("{addr} is a replica")),
                Ok(Err(error)) => (Severity::Problem, format!("{addr}: {error}")),
                Err(_) => (Severity::Problem, format!("{addr} does not answer within {limit:?}")),
            };
            Finding::new(severity, "server", text)
        });
        join_all(asks).await
    }
}

async fn ask(node: &Arc<Node>) -> Result<Role, Error> {
    let mut refused = None;
    for question in role::QUESTIONS {
        match node.send(&role::question(question)).await.map_err(Fault::from) {
            Ok(answer) => {
                if let Some(role) = role::of(&answer) {
                    return Ok(role);
                }
            }
            Err(Fault::Server(error)) => refused = Some(error),
            Err(fault) => return Err(fault.into_error()),
        }
    }
    Err(match refused {
        Some(error) if error.kind() == ErrorKind::Permission => {
            error.remedy("give the account the right to role, or to info")
        }
        Some(error) => error,
        None => Error::new(ErrorKind::Protocol, "the server does not say whether it is a master"),
    })
}

/// Where a server's data come from, if the account may ask for that.
async fn history(node: &Arc<Node>) -> Option<History> {
    let (data, process) = (role::question(role::QUESTIONS[1]), role::question(&life::QUESTION));
    let (data, process) = tokio::join!(node.send(&data), node.send(&process));
    let run = process.ok().as_ref().and_then(life::process).map(String::from);
    Some(History { run, ..role::history(&data.ok()?)? })
}

/// The role of a server, and the id of its process.
async fn who(node: &Arc<Node>) -> Option<(Role, String)> {
    let info = role::question(&life::QUESTION);
    let (role, info) = tokio::join!(ask(node), node.send(&info));
    let (role, info) = (role.ok()?, info.ok()?);
    Some((role, life::process(&info)?.into()))
}

impl Finder for Replicated {
    fn find(self: Arc<Self>, memory: Memory, limit: Duration) -> Found {
        Box::pin(async move { Replicated::find(&self, &memory, limit).await })
    }

    fn replicas(self: Arc<Self>, master: Addr, limit: Duration) -> Listed {
        Box::pin(async move { self.count_replicas(&master, limit).await })
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
        for (node, _) in &self.nodes {
            node.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use redlatch_testkit::fake_server::{FakeReply, FakeServer};

    use super::*;
    use crate::{client::Client, store::StoreUrl};

    const LIMIT: Duration = Duration::from_secs(20);

    /// A server that says that it is a replica until the flag is set, and a master from then on.
    fn server(run: &'static str, is_master: &Arc<AtomicBool>) -> FakeServer {
        let is_master = is_master.clone();
        let bulk = |text: String| FakeReply::Raw(format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        FakeServer::start(move |request| {
            let role = if is_master.load(Ordering::SeqCst) { "master" } else { "slave" };
            match &request.iter().map(|word| word.to_ascii_lowercase()).collect::<Vec<_>>()[..] {
                [role_asked] if role_asked == b"role" => FakeReply::Raw(match role {
                    "master" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
                    _ => b"*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:0\r\n".to_vec(),
                }),
                [info, part] if info == b"info" && part == b"server" => bulk(format!("run_id:{run}\r\n")),
                [info, _] if info == b"info" => bulk(format!("role:{role}\r\nmaster_replid:{run}\r\n")),
                _ => FakeReply::Default,
            }
        })
        .unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_replica_that_was_promoted_is_missing_among_all_and_has_a_look_taken() {
        let (yes, turns) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let servers = [server("aa11", &yes), server("bb22", &turns), server("cc33", &yes)];
        let addrs = servers.each_ref().map(|server| server.url().replace("redis://", "")).join(",");
        let url = format!("redis-replicated://{addrs}");
        let StoreUrl::Replicated(nodes) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
        let config = Client::builder().url(&url).config().clone();
        let finder = Replicated::new(&nodes, &config, &Handle::current()).unwrap();
        let look = Arc::new(Look::default());
        finder.listen(&look);
        let (master, other) = (&nodes.addrs[0], &nodes.addrs[1]);
        // A look has met it as a replica, or a count has.
        for is_found in [true, false] {
            if is_found {
                finder.find(&Memory::default(), LIMIT).await.unwrap();
            } else {
                assert_eq!(finder.count_replicas(master, LIMIT).await, Some(1));
            }
            turns.store(true, Ordering::SeqCst);
            assert_eq!(finder.count_replicas(master, LIMIT).await, Some(1), "found: {is_found}");
            tokio::time::timeout(LIMIT, look.wanted.notified()).await.expect("a look is wanted");
            // Once it is followed, neither the former master nor a server that was never a copy is counted.
            assert_eq!(finder.count_replicas(other, LIMIT).await, Some(0));
            assert_eq!(finder.count_replicas(other, LIMIT).await, Some(0));
            turns.store(false, Ordering::SeqCst);
        }
    }
}
