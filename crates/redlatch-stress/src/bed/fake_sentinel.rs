//! Two real servers, and sentinels of which each process has its own, so that each can be told something else.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use redis::Value;
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    proxy::{Proxy, Scope},
    resp,
    topology::MasterReplica,
};

use super::{Bed, Outcome, single::left_on};
use crate::{mix::Mix, record::Log, rng::Rng, worker::Order};

const SENTINELS: usize = 3;
/// The process that something happens to.
const VICTIM: usize = 0;
/// When the master moves.
const MOVE_AT: Duration = Duration::from_millis(2_500);
/// How long nobody can write at the old master then, so that what it has is at the new one and all clients have heard of it.
const PAUSE: Duration = Duration::from_millis(2_500);
/// When the sentinel that was left behind speaks.
const STALE_AT: Duration = Duration::from_millis(7_000);
/// How long each message of one of the others takes then; the third one is silent.
const SLOW: Duration = Duration::from_millis(240);
/// When no other one answers any more.
const ALONE_AT: Duration = Duration::from_millis(9_500);
/// How long the replica may take to have what the master has.
const CAUGHT_UP_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy)]
struct Says {
    port: u16,
    epoch: i64,
}

struct Voice {
    _server: FakeServer,
    /// In front of it.
    proxy: Proxy,
    says: Arc<Mutex<Says>>,
}

/// What one process reaches.
struct View {
    /// In front of the old and the new master.
    masters: [Proxy; 2],
    sentinels: Vec<Voice>,
}

pub(super) struct FakeSentinel {
    mix: Mix,
    nodes: MasterReplica,
    views: Vec<View>,
    moved: bool,
    stale: bool,
    alone: bool,
}

impl Voice {
    fn start(port: u16) -> Outcome<Self> {
        let says = Arc::new(Mutex::new(Says { port, epoch: 1 }));
        let shared = says.clone();
        let server = FakeServer::start(move |request| {
            let Says { port, epoch } = *shared.lock().unwrap_or_else(PoisonError::into_inner);
            let words: Vec<String> =
                request.iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            FakeReply::Reply(match words[..] {
                ["sentinel", "get-master-addr-by-name", _] => {
                    resp::array(&[resp::bulk("127.0.0.1"), resp::bulk(port.to_string())])
                }
                ["sentinel", "master", _] => {
                    let epoch = epoch.to_string();
                    let port = port.to_string();
                    let fields = [
                        "ip",
                        "127.0.0.1",
                        "port",
                        &port,
                        "flags",
                        "master",
                        "config-epoch",
                        &epoch,
                        "quorum",
                        "2",
                    ];
                    resp::array(&fields.map(resp::bulk))
                }
                ["sentinel", "sentinels" | "replicas", _] => resp::array::<Vec<u8>>(&[]),
                _ => return FakeReply::Default,
            })
        })?;
        let proxy = Proxy::start(&server.url())?;
        Ok(Voice { _server: server, proxy, says })
    }

    fn say(&self, port: u16, epoch: i64) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = Says { port, epoch };
    }
}

impl FakeSentinel {
    pub(super) fn start(mix: Mix, processes: usize) -> Outcome<Self> {
        let nodes = MasterReplica::builder().replica_count(1).start()?;
        let mut views = Vec::new();
        for _ in 0..processes {
            let masters = [Proxy::start(&nodes.node(0).url())?, Proxy::start(&nodes.node(1).url())?];
            let mut sentinels = Vec::new();
            for _ in 0..SENTINELS {
                sentinels.push(Voice::start(masters[0].port())?);
            }
            views.push(View { masters, sentinels });
        }
        Ok(FakeSentinel { mix, nodes, views, moved: false, stale: false, alone: false })
    }

    /// The replica gets all that the master has, and takes over; each sentinel says so.
    fn take_over(&mut self, log: &Log) -> Outcome<()> {
        let (old, new) = (self.nodes.node(0), self.nodes.node(1));
        old.cmd(&["CLIENT", "PAUSE", &PAUSE.as_millis().to_string(), "WRITE"])?;
        let begin = Instant::now();
        while offset(&old.cmd(&["ROLE"])?) != offset(&new.cmd(&["ROLE"])?) {
            if begin.elapsed() > CAUGHT_UP_MAX {
                return Err("the replica does not catch up".into());
            }
        }
        self.nodes.promote_alone(1)?;
        if self.mix == Mix::Superseded {
            log.fault(format!("process {VICTIM} is cut off from the new master"));
            let way = &self.views[VICTIM].masters[1];
            way.refuse_new()?;
            way.reset_all();
        }
        for view in &self.views {
            view.sentinels.iter().for_each(|voice| voice.say(view.masters[1].port(), 2));
        }
        log.fault("the sentinels name the new master");
        Ok(())
    }
}

/// How far a master has written, or a replica has read.
fn offset(role: &Value) -> Option<i64> {
    let Value::Array(items) = role else { return None };
    let at = match items.first() {
        Some(Value::BulkString(word)) if word == b"master" => 1,
        _ => 4,
    };
    match items.get(at) {
        Some(Value::Int(offset)) => Some(*offset),
        _ => None,
    }
}

impl Bed for FakeSentinel {
    fn address(&self, process: usize, order: &mut Order) {
        let sentinels = &self.views[process].sentinels;
        let addrs: Vec<String> =
            sentinels.iter().map(|voice| format!("127.0.0.1:{}", voice.proxy.port())).collect();
        order.url = format!("redis-sentinel://{}/any", addrs.join(","));
    }

    fn trouble(&mut self, _: &mut Rng, log: &Log, since: Duration) -> Outcome<()> {
        if !self.moved && since > MOVE_AT {
            self.moved = true;
            self.take_over(log)?;
        }
        if self.mix == Mix::Stale && !self.stale && since > STALE_AT {
            self.stale = true;
            log.fault(format!("a sentinel of process {VICTIM} was left behind, the others are slow"));
            let view = &self.views[VICTIM];
            view.sentinels[0].say(view.masters[0].port(), 1);
            view.sentinels[1].proxy.latency(SLOW, Duration::ZERO, 1);
            view.sentinels[2].proxy.stall(Scope::Both);
        }
        if self.mix == Mix::Stale && !self.alone && since > ALONE_AT {
            self.alone = true;
            log.fault(format!("only that sentinel answers process {VICTIM}"));
            self.views[VICTIM].sentinels[1].proxy.stall(Scope::Both);
        }
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        for view in &self.views {
            for proxy in view.masters.iter().chain(view.sentinels.iter().map(|voice| &voice.proxy)) {
                proxy.heal()?;
            }
            let (port, epoch) =
                if self.moved { (view.masters[1].port(), 2) } else { (view.masters[0].port(), 1) };
            view.sentinels.iter().for_each(|voice| voice.say(port, epoch));
        }
        Ok(())
    }

    fn left(&self) -> Outcome<Vec<String>> {
        left_on(self.nodes.node(usize::from(self.moved)))
    }
}
