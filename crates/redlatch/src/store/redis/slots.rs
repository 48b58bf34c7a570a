//! Which node of a cluster holds a key: the slot of a key, and what a node says of all slots.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use redis::Cmd;

use super::failure::Failure;
use crate::{config::addr::Addr, keys::hash_tag, randomness::SeededMap, store::Reply};

/// How many slots a cluster has.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key or channel: CRC-16 (XMODEM) of its hash tag.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let crc =
        hash_tag(key).iter().fold(0_u16, |crc, byte| (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOTS as u16
}

const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// What is asked of a node to learn who has which slot.
pub(super) fn question() -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CLUSTER").arg("SLOTS");
    cmd
}

/// What is asked of a node to learn the configuration epochs of the masters.
pub(super) fn question_for_epochs() -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("CLUSTER").arg("NODES");
    cmd
}

/// Whether the account may not ask that.
pub(super) fn may_not_ask(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused { code, detail, .. } if code == "NOPERM" || detail.contains("unknown command"))
}

/// Whether a refusal says that the server is in no cluster.
pub(super) fn says_it_is_no_cluster(detail: &str) -> bool {
    detail.contains("cluster support disabled")
}

/// What one node says of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Runs of slots and the master that has them.
    pub(super) runs: Vec<(RangeInclusive<u16>, Addr)>,
    /// The replicas that are not known to have failed, each with its master if that one's address is known.
    pub(super) replicas: Vec<(Addr, Option<Addr>)>,
    /// The ids of all nodes, which a failover does not change.
    pub(super) ids: BTreeSet<String>,
    /// The ids of the masters.
    masters: BTreeMap<String, Addr>,
    /// Of each address that is told, the id of the node.
    pub(super) nodes: SeededMap<Addr, String>,
    /// The configuration epochs of the masters, as far as they are known.
    pub(super) epochs: SeededMap<Addr, u64>,
}

impl Layout {
    /// Reads the answer to `CLUSTER SLOTS` (servers before 7 know nothing better). `asked` is who gave it: nodes leave the
    /// host empty when they do not know by which one they are reached. Runs of a master whose address is not known are left
    /// out. `None` when it is no such answer.
    pub(super) fn read(reply: &Reply, asked: &Addr) -> Option<Layout> {
        let mut layout = Layout::default();
        for run in reply.array()? {
            let [first, last, nodes @ ..] = run.array()? else { return None };
            let slot =
                |number: &Reply| u16::try_from(number.int()?).ok().filter(|slot| usize::from(*slot) < SLOTS);
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last {
                return None;
            }
            let mut master = None;
            for (at, node) in nodes.iter().enumerate() {
                let parts = node.array()?;
                let addr = match parts {
                    [host, port, rest @ ..] => {
                        let host = match host.bytes() {
                            Some(b"?") => ip(rest).or(host.bytes()),
                            told => told,
                        };
                        address(host, u16::try_from(port.int()?).ok()?, asked)
                    }
                    _ => return None,
                };
                if let Some(id) = parts.get(2).and_then(Reply::bytes) {
                    let id = String::from_utf8_lossy(id).into_owned();
                    if let Some(addr) = &addr {
                        layout.nodes.insert(addr.clone(), id.clone());
                        if at == 0 {
                            layout.masters.insert(id.clone(), addr.clone());
                        }
                    }
                    layout.ids.insert(id);
                }
                match (at, addr) {
                    (0, Some(addr)) => {
                        layout.runs.push((first..=last, addr.clone()));
                        master = Some(addr);
                    }
                    (_, Some(addr)) if layout.replicas.iter().all(|(other, _)| *other != addr) => {
                        layout.replicas.push((addr, master.clone()));
                    }
                    _ => {}
                }
            }
        }
        Some(layout)
    }
}

impl Layout {
    /// The same with what the answer to `CLUSTER NODES` says of its masters: a line for each node, whose first word is the id and whose seventh
    /// is the configuration epoch.
    pub(super) fn with_epochs(mut self, nodes: &Reply) -> Layout {
        let text = nodes.bytes().map(String::from_utf8_lossy).unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (id, epoch) = (words.next(), words.nth(5).and_then(|epoch| epoch.parse().ok()));
            if let (Some(id), Some(epoch)) = (id, epoch)
                && let Some(addr) = self.masters.get(id)
            {
                self.epochs.insert(addr.clone(), epoch);
            }
        }
        self
    }

    /// The same with each address replaced.
    pub(super) fn mapped(self, map: impl Fn(Addr) -> Addr) -> Layout {
        let runs = self.runs.into_iter().map(|(run, addr)| (run, map(addr))).collect();
        let replicas =
            self.replicas.into_iter().map(|(addr, master)| (map(addr), master.map(&map))).collect();
        let masters = self.masters.into_iter().map(|(id, addr)| (id, map(addr))).collect();
        let nodes = self.nodes.into_iter().map(|(addr, id)| (map(addr), id)).collect();
        let epochs = self.epochs.into_iter().map(|(addr, epoch)| (map(addr), epoch)).collect();
        Layout { runs, replicas, ids: self.ids, masters, nodes, epochs }
    }
}

/// The IP address that a node tells besides, where hosts are to be told by name. One that is told no name is at that address all the same.
fn ip(rest: &[Reply]) -> Option<&[u8]> {
    let [_id, more, ..] = rest else { return None };
    let pairs = more.array()?.chunks_exact(2);
    pairs.filter(|pair| pair[0].bytes() == Some(b"ip")).find_map(|pair| pair[1].bytes())
}

/// The address that a node gives. An empty host is that of the node itself; `?` is one that it does not know.
pub(super) fn address(host: Option<&[u8]>, port: u16, asked: &Addr) -> Option<Addr> {
    let host = match host {
        None | Some(b"") => match asked {
            Addr::Tcp { host, .. } => host.clone(),
            Addr::Unix(_) => return None,
        },
        Some(b"?") => return None,
        Some(host) => String::from_utf8(host.to_vec()).ok()?,
    };
    (port != 0).then_some(Addr::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    fn tcp(host: &str, port: u16) -> Addr {
        Addr::Tcp { host: host.into(), port }
    }

    fn run(first: i64, last: i64, nodes: Vec<Reply>) -> Reply {
        Reply::Array([vec![Reply::Int(first), Reply::Int(last)], nodes].concat())
    }

    #[test]
    fn slots_are_those_of_the_servers() {
        // As answered by CLUSTER KEYSLOT.
        for (key, slot) in [
            ("", 0),
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("redisson_lock__channel:{foo}", 12_182),
            ("foo{}{bar}", 8_363),
            ("foo{bar}{zap}", 5_061),
            ("foo{{bar}}zap", 4_015),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn a_layout_names_masters_replicas_and_hosts_of_every_form() {
        let asked = tcp("seed", 7000);
        let named = |ip: &str| Reply::Array(vec![text("ip"), text(ip)]);
        let reply = Reply::Array(vec![
            run(
                0,
                5460,
                vec![
                    Reply::Array(vec![text(""), Reply::Int(7000), text("a")]),
                    Reply::Array(vec![
                        text("10.0.0.2"),
                        Reply::Int(7003),
                        text("d"),
                        Reply::Array(Vec::new()),
                    ]),
                ],
            ),
            run(
                5461,
                5461,
                vec![Reply::Array(vec![Reply::Nil, Reply::Int(7001), text("b"), named("10.0.0.6")])],
            ),
            run(5462, 9000, vec![Reply::Array(vec![text("?"), Reply::Int(7005), text("e")])]),
            run(9001, 9002, vec![Reply::Array(vec![text("::1"), Reply::Int(7006)])]),
            // Told by names, of a node that has none.
            run(
                9003,
                9003,
                vec![Reply::Array(vec![text("?"), Reply::Int(7007), text("f"), named("10.0.0.7")])],
            ),
            run(9004, 16_383, vec![Reply::Array(vec![text("c.example"), Reply::Int(7002), text("c")])]),
        ]);
        let layout = Layout::read(&reply, &asked).unwrap();
        assert_eq!(
            layout.runs,
            [
                (0..=5460, tcp("seed", 7000)),
                (5461..=5461, tcp("seed", 7001)),
                (9001..=9002, tcp("::1", 7006)),
                (9003..=9003, tcp("10.0.0.7", 7007)),
                (9004..=16_383, tcp("c.example", 7002)),
            ]
        );
        assert_eq!(layout.replicas, [(tcp("10.0.0.2", 7003), Some(tcp("seed", 7000)))]);
        assert_eq!(layout.ids.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn nonsense_is_no_layout() {
        let asked = tcp("seed", 7000);
        for reply in [
            Reply::Nil,
            Reply::Array(vec![Reply::Int(1)]),
            Reply::Array(vec![run(0, 16_384, Vec::new())]),
            Reply::Array(vec![run(-1, 5, Vec::new())]),
            Reply::Array(vec![run(0, 5, vec![Reply::Array(vec![text("h")])])]),
            Reply::Array(vec![run(0, 5, vec![Reply::Array(vec![text("h"), Reply::Int(70_000)])])]),
        ] {
            assert_eq!(Layout::read(&reply, &asked), None, "{reply:?}");
        }
        assert_eq!(Layout::read(&Reply::Array(Vec::new()), &asked), Some(Layout::default()));
    }

    proptest::proptest! {
        #[test]
        fn all_that_belongs_to_a_name_that_is_not_refused_has_one_slot(name in "[a{}]{1,8}|[^{}]{1,8}") {
            use crate::{keys::{Keys, KeyKind}, name::LockName};
            let Ok(name) = LockName::new(&name) else { return Ok(()) };
            let slot = slot_of(name.as_bytes());
            for kind in [KeyKind::Lock, KeyKind::Fair, KeyKind::Read, KeyKind::Write, KeyKind::Permits] {
                let keys = Keys::new(name.clone(), kind);
                for key in [&keys.key, keys.channel(), keys.token(), &keys.queue, &keys.timeouts] {
                    proptest::prop_assert!(key.is_empty() || slot_of(key) == slot, "{kind:?} {name}");
                }
                let suffixed = [&keys.timeouts[..], b"owner:rwlock_timeout:1"].concat();
                proptest::prop_assert!(keys.timeouts.is_empty() || slot_of(&suffixed) == slot);
            }
        }
    }
}
