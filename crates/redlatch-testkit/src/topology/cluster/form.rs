//! Making one cluster out of single nodes.

use super::view::view;
use super::{RedisCluster, SLOTS};
use crate::error::{Error, ErrorKind, Result};
use crate::server::RedisServer;
use crate::topology::replication::{link_of, online_replicas};
use crate::topology::wait::{Missing, wait_until};

/// The name that a node has for itself.
pub(super) fn id_of(node: &RedisServer) -> Result<String> {
    node.query(&[b"CLUSTER", b"MYID"])
}

/// The slots of a master when all are shared out evenly.
pub(super) fn share(master: usize, masters: usize) -> Option<(u16, u16)> {
    let bound = |n: usize| u16::try_from(n * usize::from(SLOTS) / masters).ok();
    Some((bound(master)?, bound(master + 1)?.checked_sub(1)?))
}

impl RedisCluster {
    pub(super) fn form(&self) -> Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            // Different from the start, or the masters would have to sort it out first.
            node.cmd(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            if index < self.master_count {
                let no_share = || Error::new(ErrorKind::Invalid, "more masters than slots");
                let (first, last) = share(index, self.master_count).ok_or_else(no_share)?;
                let slots: Vec<String> = (first..=last).map(|slot| slot.to_string()).collect();
                let mut command = vec!["CLUSTER", "ADDSLOTS"];
                command.extend(slots.iter().map(String::as_str));
                node.cmd(&command)?;
            }
        }
        // Only now: a node that has met another one takes no epoch any more.
        for (index, node) in self.nodes.iter().enumerate() {
            // Everybody with everybody: hearsay takes seconds.
            for (other, bus) in self.nodes.iter().zip(&self.buses).skip(index + 1) {
                let (port, bus) = (other.port().to_string(), bus.port().to_string());
                node.cmd(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        for (index, node) in self.nodes.iter().enumerate().skip(self.master_count) {
            let master = &self.ids[index % self.master_count];
            wait_until("a replica that knows its master", || {
                let known = view(node)?.iter().any(|line| line.id == *master && !line.is("handshake"));
                Ok(if known { Ok(()) } else { Err("not yet".to_owned()) })
            })?;
            node.cmd(&["CLUSTER", "REPLICATE", master])?;
        }
        self.wait_until_ready()
    }

    /// Waits until all nodes that are up know each other, call the cluster's state ok and agree on who owns
    /// which slot, and until every replica is linked. A manual failover is possible from then on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after 60 seconds.
    pub fn wait_until_ready(&self) -> Result<()> {
        wait_until("a cluster that is ready", || {
            let mut ownership = None;
            for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_up()) {
                if let Some(missing) = self.missing_on(node)? {
                    return Ok(Err(format!("node {index}: {missing}")));
                }
                let mut owned: Vec<_> = view(node)?.into_iter().map(|line| (line.id, line.slots)).collect();
                owned.retain(|(_, slots)| !slots.is_empty());
                owned.sort_by(|a, b| a.0.cmp(&b.0));
                if ownership.get_or_insert_with(|| owned.clone()) != &owned {
                    return Ok(Err(format!("node {index} does not agree on who owns which slot")));
                }
            }
            Ok(Ok(()))
        })
    }

    fn missing_on(&self, node: &RedisServer) -> Result<Option<Missing>> {
        let info: String = node.query(&[b"CLUSTER", b"INFO"])?;
        if !info.lines().any(|line| line == "cluster_state:ok") {
            return Ok(Some("the state is not ok".to_owned()));
        }
        let lines = view(node)?;
        for (id, other) in self.ids.iter().zip(&self.nodes).filter(|(_, other)| other.is_up()) {
            let port = other.port();
            let Some(line) = lines.iter().find(|line| line.id == *id) else {
                return Ok(Some(format!("the node on port {port} is unknown")));
            };
            if !line.has_address || ["handshake", "noaddr", "fail", "fail?"].iter().any(|flag| line.is(flag))
            {
                return Ok(Some(format!("the node on port {port} is {}", line.flags.join(","))));
            }
        }
        let Some(own) = lines.iter().find(|line| line.is("myself")) else {
            return Ok(Some("it does not list itself".to_owned()));
        };
        let Some(master_id) = &own.master_id else {
            let followers = lines.iter().filter(|line| line.master_id.as_ref() == Some(&own.id));
            let wanted = followers.filter(|line| self.is_up(&line.id)).count();
            let online = online_replicas(node)?;
            return Ok((online < wanted).then(|| format!("{online} of {wanted} replicas are online")));
        };
        // A replica of a master that is down is as ready as it can be.
        Ok(if self.is_up(master_id) { link_of(node)?.err() } else { None })
    }

    fn is_up(&self, id: &str) -> bool {
        self.ids.iter().zip(&self.nodes).any(|(other, node)| other == id && node.is_up())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_have_every_slot_once() {
        for masters in [1, 2, 3, 7] {
            let mut next = 0;
            for master in 0..masters {
                let (first, last) = share(master, masters).unwrap();
                assert_eq!(first, next);
                next = last + 1;
            }
            assert_eq!(next, SLOTS);
        }
    }
}
