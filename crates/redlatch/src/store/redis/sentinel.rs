//! Finding the master by asking sentinels.
//!
//! All of them are asked at once. What counts is the highest configuration epoch that was ever heard, which is how sentinels settle
//! it among themselves: one that was cut off with an old master cannot lead us back to it, though it is the only one that
//! answers (`succession.rs`). Sentinels of another set, which may have got the addresses of ours, are not believed (`known_nodes.rs`).

mod read;
mod replicas;
mod votes;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Cmd;
use tokio::{runtime::Handle, time};

#[cfg(any(test, fuzzing))]
pub(super) use self::read::reads;
use self::{
    read::{address, field, promised_master, text},
    votes::{count, ids, of_one_set, one_vote_each},
};
use super::{
    Dial,
    failure::Failure,
    finder::{Finder, Findings, Found, FoundReplicas, Look, Pace, Source, Worth, hear},
    hub::Hub,
    known_nodes::KnownNodes,
    node::{InterruptionHooks, Node},
    succession::{Claim, Memory, Right, Said, Voice},
};
use crate::{
    config::{
        Config,
        addr::Addr,
        url::{Sentinels, Server},
    },
    error::{Error, ErrorKind},
    finding::{Finding, Severity},
    store::{Fault, Reply, SubscribeFuture},
};

/// From how many on they are taken for a whole set.
const KNOWN_SET_MIN: usize = 3;
/// For how long none of a set must have been heard until others may have taken its place.
const REPLACED_TIME: Duration = Duration::from_secs(10);
/// How many sentinels are asked; sets have three to seven.
const SENTINELS_MAX: usize = 32;
/// What sentinels publish when a master changes. The first two come from the sentinel that leads the change, when it has chosen
/// a replica and when it has seen that this one was promoted; the last from each that has learned of it.
const NEWS: [&str; 3] = ["+selected-slave", "+promoted-slave", "+switch-master"];

/// The sentinels of one master.
pub(super) struct SentinelSet {
    master: String,
    text: String,
    database: i64,
    /// How to log in to a sentinel.
    dial: Dial,
    config: Config,
    background: Handle,
    sentinels: Mutex<Vec<Arc<Sentinel>>>,
    look: OnceLock<Arc<Look>>,
    place: OnceLock<String>,
    /// The ids of the set. Sets of strangers often have the same name for their master.
    known_nodes: KnownNodes,
    /// Since when others were heard and none of the set.
    unheard_since: Mutex<Option<time::Instant>>,
}

impl Source for Sentinel {
    fn pace(&self) -> &Pace {
        &self.pace
    }
}

struct Sentinel {
    addr: Addr,
    node: Arc<Node>,
    /// Named by the URL, so never forgotten.
    named: bool,
    /// What it called itself last. The name of a service may lead to one sentinel now, and to another one later.
    id: Mutex<Option<String>>,
    /// It has answered in the last look.
    is_heard: AtomicBool,
    news: Mutex<Option<News>>,
    pace: Pace,
}

/// The subscription to what a sentinel publishes. The hub subscribes by itself; that it is confirmed interests nobody, so the
/// futures are only kept.
struct News {
    hub: Hub,
    _tickets: Vec<SubscribeFuture>,
}

/// What a sentinel knows.
struct Knowledge {
    claim: Claim,
    id: Option<String>,
    others: Vec<(Option<String>, Addr)>,
    quorum: Option<i64>,
    down: bool,
}

/// Why a sentinel could not say.
enum Silence {
    /// It does not watch a master of that name.
    UnknownName,
    Error(Error),
}

impl SentinelSet {
    pub(super) fn new(sentinels: &Sentinels, config: &Config, background: &Handle) -> Result<Self, Error> {
        let Some(addr) = sentinels.sentinels.addrs.first().cloned() else {
            return Err(Error::new(ErrorKind::InvalidUrl, "the store URL names no sentinel"));
        };
        let mut access = sentinels.sentinels.access.clone();
        // Sentinels have no databases.
        access.database = 0;
        let config = Config {
            username: config.sentinel_username.clone(),
            password: config.sentinel_password.clone(),
            password_file: config.sentinel_password_file.clone(),
            ..config.clone()
        };
        let set = SentinelSet {
            master: sentinels.master.clone(),
            text: sentinels.to_string(),
            database: sentinels.access.database,
            dial: Dial::new(Server { addr, access }, &config, background)?,
            config,
            background: background.clone(),
            sentinels: Mutex::default(),
            look: OnceLock::new(),
            place: OnceLock::new(),
            known_nodes: KnownNodes::default(),
            unheard_since: Mutex::default(),
        };
        for addr in sentinels.sentinels.addrs.iter().take(SENTINELS_MAX) {
            set.add(addr.clone(), None, true);
        }
        Ok(set)
    }

    fn list(&self) -> Vec<Arc<Sentinel>> {
        self.sentinels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, addr: Addr, id: Option<String>, named: bool) {
        let dial = Arc::new(self.dial.at(addr.clone()));
        // Nobody holds a lock on a sentinel, so the end of its connections interests nobody.
        let node = Node::new(dial, &self.config, &self.background, Arc::new(InterruptionHooks::default()));
        let (id, is_heard, news, pace) =
            (Mutex::new(id), AtomicBool::new(false), Mutex::default(), Pace::default());
        let sentinel = Arc::new(Sentinel { addr, node, named, id, is_heard, news, pace });
        if let Some(look) = self.look.get() {
            sentinel.listen(look, &self.background);
        }
        self.sentinels.lock().unwrap_or_else(PoisonError::into_inner).push(sentinel);
    }

    async fn find(&self, memory: &Memory, limit: Duration) -> Result<Said, Error> {
        let asked = self.list();
        let (mut known, mut silent) = (Vec::new(), Vec::new());
        let (name, remembered) = (self.master.clone(), memory.clone());
        let ask = move |sentinel: Arc<Sentinel>| {
            let name = name.clone();
            async move { sentinel.ask(&name).await }
        };
        let late = move |_: &Sentinel, knowledge: &Knowledge| remembered.is_news(&knowledge.claim);
        // Who remembers nothing may be told anything, and hears most of them first; if they are slow to answer, not for ever.
        let mute = hear(&asked, limit, self.look.get(), ask, late, |_, answer| match answer {
            Ok(knowledge) => {
                let is_news = memory.is_news(&knowledge.claim);
                known.push(knowledge);
                if is_news || 2 * known.len() > asked.len() { Worth::Enough } else { Worth::Something }
            }
            Err(silence) => {
                silent.push(silence);
                Worth::Nothing
            }
        });
        let mute = mute.await;
        for sentinel in &asked {
            let answered = !mute.iter().any(|mute| Arc::ptr_eq(mute, sentinel));
            sentinel.pace.note(answered, &sentinel.node, self.config.response_timeout);
            let is_heard = known.iter().any(|one: &Knowledge| one.claim.by.addr == sentinel.addr);
            sentinel.is_heard.store(is_heard, Ordering::Relaxed);
        }
        one_vote_each(&mut known);
        let (asked_count, answered) = (count(&asked), known.len());
        let are_told = known.iter().any(|one: &Knowledge| !ids(one).all().is_empty());
        let is_new = self.known_nodes.is_empty() && memory.present().is_none() && are_told;
        if is_new {
            known = of_one_set(known);
        } else {
            self.forget_strangers(&mut known, memory);
        }
        if known.is_empty() {
            return Err(match answered {
                0 => self.nobody_knows(&asked, silent),
                // Others may answer soon, who decide.
                _ if is_new => return Ok(Said { asked: asked_count, answered, ..Said::default() }),
                _ => {
                    let text = format!("{} belong to another set than the one that was used", names(&asked));
                    Error::new(ErrorKind::Unreachable, text)
                        .remedy("if all sentinels were replaced, make a new client")
                }
            });
        }
        // Those that are believed know who belongs to the set. An entry of the URL may lead to another one, or to none.
        let told: BTreeSet<String> = known.iter().flat_map(|one| ids(one).all()).collect();
        let asked_count = if told.len() < KNOWN_SET_MIN { asked_count } else { told.len() };
        if is_new {
            self.known_nodes.admit(&known.iter().flat_map(|one| ids(one).all()).collect());
        }
        self.learn(&known);
        self.settle_place();
        let claims = known.into_iter().map(|knowledge| knowledge.claim).collect();
        Ok(Said { claims, asked: asked_count, answered, ..Said::default() })
    }

    /// Keeps those of our set: who knows others that are known, or, if none of these has been heard for long, names the master that is used, is the
    /// last one and has forgotten the others, or tells nothing of itself.
    fn forget_strangers(&self, known: &mut Vec<Knowledge>, memory: &Memory) {
        if known.is_empty() {
            return;
        }
        // Two sets may name masters of one address, and one may tell nothing of itself.
        let is_known = |one: &Knowledge| !ids(one).all().is_empty() && self.known_nodes.knows_one(&ids(one));
        let may_be_new = self.known_nodes.is_empty() || self.are_replaced(known.iter().any(is_known));
        known.retain(|one| {
            let ids = ids(one);
            let names_ours = memory.present().is_some_and(|present| present.addr == one.claim.addr);
            let is_ours = match ids.all().is_empty() {
                true => may_be_new,
                false => {
                    let is_last = || self.known_nodes.knows_lone(&ids);
                    self.known_nodes.knows_one(&ids) || (may_be_new && (names_ours || is_last()))
                }
            };
            if !is_ours {
                tracing::warn!(sentinel = %one.claim.by.addr, "a sentinel of another set is not believed");
            }
            is_ours
        });
        let all: BTreeSet<String> = known.iter().flat_map(|one| ids(one).all()).collect();
        if !self.known_nodes.admit(&all) && !all.is_empty() {
            tracing::info!("none of the sentinels that were known is heard; these are believed from now on");
            self.known_nodes.replace(&all);
        }
    }

    /// Whether none of the set has been heard for so long that all may have been replaced.
    fn are_replaced(&self, are_known: bool) -> bool {
        let mut since = self.unheard_since.lock().unwrap_or_else(PoisonError::into_inner);
        if are_known {
            *since = None;
            return false;
        }
        since.get_or_insert_with(time::Instant::now).elapsed() >= REPLACED_TIME
    }

    /// Takes in sentinels that others know, and forgets those that nobody knows any more.
    fn learn(&self, known: &[Knowledge]) {
        let others = || known.iter().flat_map(|knowledge| &knowledge.others);
        let list = self.list();
        // One that is not heard at its other address any more is asked where the others say that it is.
        let is = |sentinel: &Sentinel, (id, addr): &(Option<String>, Addr)| {
            let is_heard = sentinel.is_heard.load(Ordering::Relaxed);
            sentinel.addr == *addr || is_heard && id.is_some() && sentinel.id() == *id
        };
        // Where it is announced it may not be reached, so that is asked only as long as its name leads nowhere.
        let by_name = |one: &Sentinel| {
            let is_it = |other: &Arc<Sentinel>| {
                other.named && other.is_heard.load(Ordering::Relaxed) && other.id() == one.id()
            };
            one.id().is_some() && list.iter().any(is_it)
        };
        let is_gone = |one: &Sentinel| !one.named && (by_name(one) || !others().any(|other| is(one, other)));
        for gone in list.iter().filter(|one| is_gone(one)) {
            self.sentinels
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|one| !Arc::ptr_eq(one, gone));
            gone.close();
        }
        for other in others() {
            let list = self.list();
            match (list.iter().find(|sentinel| is(sentinel, other)), &other.0) {
                // One that is named and down cannot say its id, but the others can.
                (Some(sentinel), Some(id)) => {
                    sentinel.lock_id().get_or_insert_with(|| id.clone());
                }
                (Some(_), None) => {}
                (None, id) if list.len() < SENTINELS_MAX => {
                    tracing::debug!(sentinel = %other.1, "another sentinel is known now");
                    self.add(other.1.clone(), id.clone(), false);
                }
                (None, _) => {}
            }
        }
    }

    /// Clients of the same set may name different sentinels of it, and name them differently. Each sentinel has an id for life
    /// and knows those of the others, so the lowest id stands for the set.
    fn settle_place(&self) {
        if self.place.get().is_some() {
            return;
        }
        let mut ids: Vec<String> = self.list().iter().filter_map(|one| one.id()).collect();
        ids.sort();
        let set = ids.into_iter().next().unwrap_or_else(|| self.text.clone());
        let _ = self.place.set(format!("sentinel {set} {}/{}", self.master, self.database));
    }

    fn nobody_knows(&self, asked: &[Arc<Sentinel>], silent: Vec<Silence>) -> Error {
        let names = names(asked);
        if silent.iter().any(|silence| matches!(silence, Silence::UnknownName)) {
            return Error::new(
                ErrorKind::InvalidUrl,
                format!("the sentinels {names} know no master named \"{}\"", self.master.escape_debug()),
            )
            .remedy("use the name from the line \"sentinel monitor\" of their configuration");
        }
        let errors = || {
            silent.iter().filter_map(|silence| match silence {
                Silence::Error(error) => Some(error),
                Silence::UnknownName => None,
            })
        };
        let first = errors().find(|error| !error.is_retryable()).or_else(|| errors().next());
        let Some(first) = first else {
            return Error::new(ErrorKind::Unreachable, format!("none of the sentinels {names} answers"))
                .remedy("check that the sentinels run and that the URL names them, not the master");
        };
        let remedy = match first.kind() {
            ErrorKind::Auth => {
                "check the sentinels' own user name and password (sentinel_username, sentinel_password)"
            }
            ErrorKind::Permission => "give the sentinels' account the right to sentinel, subscribe and ping",
            _ => "check that the sentinels run and that the URL names them, not the master",
        };
        first.clone().within(format!("no answer from the sentinels {names}")).remedy(remedy)
    }

    async fn findings(&self, present: Addr) -> Vec<Finding> {
        let limit = self.config.connect_timeout;
        let (asked, present) = (self.list(), &present);
        let asks = asked.iter().map(|sentinel| async move {
            match time::timeout(limit, sentinel.ask(&self.master)).await {
                Ok(Ok(knowledge)) => sentinel.finding(&knowledge, present),
                Ok(Err(Silence::UnknownName)) => Finding::new(
                    Severity::Problem,
                    "sentinel",
                    format!("{} knows no master named \"{}\"", sentinel.addr, self.master.escape_debug()),
                )
                .remedy("let it monitor the same master as the others"),
                Ok(Err(Silence::Error(error))) => {
                    Finding::new(Severity::Problem, "sentinel", format!("{}: {error}", sentinel.addr))
                }
                Err(_) => Finding::new(
                    Severity::Problem,
                    "sentinel",
                    format!("{} does not answer within {limit:?}", sentinel.addr),
                ),
            }
        });
        futures_util::future::join_all(asks).await
    }
}

fn names(sentinels: &[Arc<Sentinel>]) -> String {
    sentinels.iter().map(|sentinel| sentinel.addr.to_string()).collect::<Vec<_>>().join(", ")
}

impl Finder for SentinelSet {
    fn find(self: Arc<Self>, memory: Memory, limit: Duration) -> Found {
        Box::pin(async move { SentinelSet::find(&self, &memory, limit).await })
    }

    fn replicas(self: Arc<Self>, master: Addr, limit: Duration) -> FoundReplicas {
        Box::pin(async move { self.replicas_of(&master, limit).await })
    }

    fn listen(&self, look: &Arc<Look>) {
        let _ = self.look.set(look.clone());
        for sentinel in self.list() {
            sentinel.listen(look, &self.background);
        }
    }

    fn place(&self) -> String {
        self.place.get().cloned().unwrap_or_default()
    }

    fn describe(&self) -> String {
        self.text.clone()
    }

    fn diagnose(self: Arc<Self>, present: Addr) -> Findings {
        Box::pin(async move { self.findings(present).await })
    }

    fn close(&self) {
        for sentinel in self.list() {
            sentinel.close();
        }
    }
}

/// A question to a sentinel.
fn sentinel(words: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("SENTINEL");
    for word in words {
        cmd.arg(*word);
    }
    cmd
}

impl Sentinel {
    fn lock_id(&self) -> MutexGuard<'_, Option<String>> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> Option<String> {
        self.lock_id().clone()
    }

    /// The replicas that it would choose from; `None` if it does not say, or does not know this master.
    async fn ask(&self, name: &str) -> Result<Knowledge, Silence> {
        let reachable = |announced| self.node.dial().reachable(announced);
        let link = self.node.link().await.map_err(|fault| Silence::Error(fault.into_error()))?;
        let (state, addr) = (sentinel(&["MASTER", name]), sentinel(&["GET-MASTER-ADDR-BY-NAME", name]));
        let (others, id) = (sentinel(&["SENTINELS", name]), sentinel(&["MYID"]));
        // In one go, so that epoch and address belong together. The epoch is asked first: it must not be newer than the address.
        let (state, addr, others, id) =
            tokio::join!(link.ask(&state), link.ask(&addr), link.ask(&others), link.ask(&id));
        let master = match addr {
            Ok(reply) => match reply.array() {
                Some([host, port]) => address(host, port).map(reachable),
                _ => return Err(Silence::UnknownName),
            },
            Err(failure) => return Err(Silence::Error(self.no_answer(failure))),
        };
        let Some(master) = master else {
            let text = format!("{} named a master without an address", self.addr);
            return Err(Silence::Error(Error::new(ErrorKind::Protocol, text)));
        };
        let others = others.ok();
        // Its own id alone tells nobody to which set it belongs.
        let id = id.ok().filter(|_| others.is_some()).as_ref().and_then(text);
        if id.is_some() {
            self.lock_id().clone_from(&id);
        }
        let state = state.ok();
        let flags = state.as_ref().and_then(|state| text(field(state, "flags")?)).unwrap_or_default();
        let is = |name: &str| flags.split(',').any(|flag| flag == name);
        let mut promised = None;
        let amid = is("failover_in_progress");
        if amid {
            let replicas = link.ask(&sentinel(&["REPLICAS", name])).await.ok();
            // One that it names already has been promoted, in an epoch that the others hear of, and what is left of the change is the replicas'.
            promised = replicas.as_ref().and_then(promised_master).map(reachable);
            promised.take_if(|promised| *promised == master);
        }
        let number = |field_name| state.as_ref().and_then(|state| field(state, field_name)?.int());
        let others = others.as_ref().and_then(Reply::array).unwrap_or_default().iter().filter_map(|other| {
            let id = field(other, "runid").and_then(text).filter(|id| !id.is_empty());
            Some((id, address(field(other, "ip")?, field(other, "port")?).map(reachable)?))
        });
        let epoch = number("config-epoch").unwrap_or(-1);
        // The replica that is to be the master counts before the sentinel has seen it promoted, which takes it up to a second.
        // Whether it is a master by now is asked of itself, as of every master.
        let (addr, right) = promised
            .map_or((master, Right::Epoch(epoch)), |promised| (promised, Right::Promise { after: epoch }));
        Ok(Knowledge {
            claim: Claim { addr, right, by: Voice { addr: self.addr.clone(), id: id.clone() }, amid },
            id,
            others: others.collect(),
            quorum: number("quorum"),
            down: is("s_down") || is("o_down"),
        })
    }

    fn no_answer(&self, failure: Failure) -> Error {
        match failure {
            Failure::Refused { code, detail, .. }
                if detail.to_ascii_lowercase().contains("unknown command") =>
            {
                tracing::debug!(code, detail, "asked a server that is no sentinel");
                Error::new(ErrorKind::InvalidUrl, format!("{} is no sentinel", self.addr))
            }
            failure => Fault::from(failure).into_error().within(&self.addr),
        }
    }

    fn listen(&self, look: &Arc<Look>, background: &Handle) {
        let hub = Hub::for_opaque_messages(self.node.dial().clone(), background);
        let tickets = NEWS.map(|channel| {
            let look = look.clone();
            hub.subscribe(channel.as_bytes().into(), Arc::new(move |_| look.news()))
        });
        let news = News { hub, _tickets: tickets.into() };
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(news);
    }

    fn finding(&self, knowledge: &Knowledge, present: &Addr) -> Finding {
        let (addr, master) = (&self.addr, &knowledge.claim.addr);
        if master != present {
            return Finding::new(
                Severity::Problem,
                "sentinel",
                format!("{addr} names {master} as the master, and not {present}"),
            )
            .remedy("look again; if it stays, the sentinels have lost sight of each other");
        }
        let count = knowledge.others.len() + 1;
        let Some(quorum) = knowledge.quorum else {
            return Finding::new(
                Severity::Note,
                "sentinel",
                format!("{addr} agrees on the master, and may not be asked for the quorum"),
            );
        };
        let text = format!("{addr} agrees on the master and knows {count} sentinels; the quorum is {quorum}");
        if knowledge.down {
            Finding::new(Severity::Problem, "sentinel", format!("{text}; it holds the master for down"))
                .remedy("check whether the sentinel can reach the master")
        } else if usize::try_from(quorum).is_ok_and(|quorum| quorum > count) || count < 3 {
            Finding::new(
                Severity::Note,
                "sentinel",
                format!("{text}: a lost machine may leave the master's place empty"),
            )
            .remedy("run three sentinels or more, on machines of their own, with a quorum of more than half")
        } else {
            Finding::new(Severity::Good, "sentinel", text)
        }
    }

    fn close(&self) {
        if let Some(news) = self.news.lock().unwrap_or_else(PoisonError::into_inner).take() {
            news.hub.close();
        }
        self.node.close();
    }
}

#[cfg(test)]
mod tests;
