//! Moving a slot from one master to another, step by step.

use redis::Value;

use super::{RedisCluster, SLOTS, slot_of};
use crate::error::{Error, ErrorKind, Result};
use crate::server::{ADMIN_USER, RedisServer};

/// How long one `MIGRATE` may take, in milliseconds; all nodes are on this machine.
const MIGRATE_TIMEOUT_MS: &str = "10000";
/// How many keys one `MIGRATE` takes along when a whole slot is moved.
const BATCH_KEYS_MAX: usize = 100;

/// A slot on its way, made by [`RedisCluster::begin_move`].
///
/// While it lives, the old owner answers `ASK` for keys that it does not have, and both answer `TRYAGAIN` for
/// several keys of which only some are there. Dropping it leaves the slot as it is.
#[derive(Debug)]
pub struct SlotMove<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl RedisCluster {
    /// Moves a slot with all its keys to another master.
    ///
    /// # Errors
    ///
    /// As for [`begin_move`](Self::begin_move).
    pub fn move_slot(&self, slot: u16, to: usize) -> Result<()> {
        let step = self.begin_move(slot, to)?;
        while step.move_keys(BATCH_KEYS_MAX)? > 0 {}
        step.finish()
    }

    /// Marks a slot as leaving its owner for another master; no key moves yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when the slot does not exist or is there already, [`ErrorKind::Server`] when a
    /// node refuses, for example since it is no master; [`ErrorKind::Io`] when one is down.
    pub fn begin_move(&self, slot: u16, to: usize) -> Result<SlotMove<'_>> {
        if slot >= SLOTS {
            return Err(Error::new(ErrorKind::Invalid, format!("there is no slot {slot}")));
        }
        let from = self.owner_of(slot)?;
        if from == to {
            return Err(Error::new(ErrorKind::Invalid, format!("node {to} has the slot {slot} already")));
        }
        let slot_move = SlotMove { cluster: self, slot, from, to };
        // In this order nobody is sent to a node that would send him back.
        slot_move.set_slot(to, &["IMPORTING", self.id(from)])?;
        slot_move.set_slot(from, &["MIGRATING", self.id(to)])?;
        Ok(slot_move)
    }
}

impl SlotMove<'_> {
    /// The slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The index of the node that had the slot.
    pub fn from(&self) -> usize {
        self.from
    }

    /// The index of the node that gets it.
    pub fn to(&self) -> usize {
        self.to
    }

    /// Moves up to `count` keys and returns how many keys of the slot the old owner had for that; 0 when all
    /// are over.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when the old owner cannot, [`ErrorKind::Io`] when it is down.
    pub fn move_keys(&self, count: usize) -> Result<usize> {
        let (slot, count) = (self.slot.to_string(), count.to_string());
        let command: [&[u8]; 4] = [b"CLUSTER", b"GETKEYSINSLOT", slot.as_bytes(), count.as_bytes()];
        let keys: Vec<Vec<u8>> = self.source().query(&command)?;
        self.migrate(&keys)?;
        Ok(keys.len())
    }

    /// Moves one key, if the old owner has it.
    ///
    /// # Errors
    ///
    /// As for [`move_keys`](Self::move_keys), and [`ErrorKind::Invalid`] for a key of another slot.
    pub fn move_key(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        if slot_of(key) != self.slot {
            let text = format!("`{}` is not in the slot {}", key.escape_ascii(), self.slot);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.migrate(&[key.to_vec()])
    }

    fn migrate(&self, keys: &[Vec<u8>]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let port = self.cluster.node(self.to).port().to_string();
        let password = self.cluster.admin_password();
        let head = ["MIGRATE", "127.0.0.1", &port, "", "0", MIGRATE_TIMEOUT_MS, "AUTH2"];
        let mut command: Vec<&[u8]> = head.iter().map(|arg| arg.as_bytes()).collect();
        command.extend([ADMIN_USER.as_bytes(), password.as_bytes(), b"KEYS"]);
        command.extend(keys.iter().map(Vec::as_slice));
        // `NOKEY` is an answer as well: a key may have expired since it was listed.
        self.source().cmd(&command).map(drop)
    }

    /// Gives the slot to its new owner and tells all masters. The old owner must have no key of it left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when the old owner has keys left, [`ErrorKind::Io`] when one of both is down.
    pub fn finish(self) -> Result<()> {
        let slot = self.slot.to_string();
        let left: Value = self.source().cmd(&["CLUSTER", "COUNTKEYSINSLOT", &slot])?;
        if left != Value::Int(0) {
            let text = format!("node {} has keys of the slot {slot} left: {left:?}", self.from);
            return Err(Error::new(ErrorKind::Server, text));
        }
        let owner = self.cluster.id(self.to);
        // The new owner comes first: between both steps each of them serves the slot or names the other.
        self.set_slot(self.to, &["NODE", owner])?;
        self.set_slot(self.from, &["NODE", owner])?;
        for master in self.cluster.masters()? {
            if master != self.to && master != self.from && self.cluster.node(master).is_up() {
                self.set_slot(master, &["NODE", owner])?;
            }
        }
        Ok(())
    }

    /// Leaves the slot with its old owner; keys that were moved already come back. Until they have, the old owner takes requests
    /// for them as if they did not exist, so locks on that slot may be granted twice: not for tests of exclusion.
    ///
    /// # Errors
    ///
    /// As for [`move_keys`](Self::move_keys).
    pub fn abandon(self) -> Result<()> {
        // Without its mark the old owner takes new keys again, while the other one still has its mark, which
        // it needs to send keys of a slot that it does not own.
        self.set_slot(self.from, &["STABLE"])?;
        let back = SlotMove { cluster: self.cluster, slot: self.slot, from: self.to, to: self.from };
        while back.move_keys(BATCH_KEYS_MAX)? > 0 {}
        self.set_slot(self.to, &["STABLE"])
    }

    fn source(&self) -> &RedisServer {
        self.cluster.node(self.from)
    }

    fn set_slot(&self, node: usize, how: &[&str]) -> Result<()> {
        let slot = self.slot.to_string();
        let mut command = vec!["CLUSTER", "SETSLOT", &slot];
        command.extend(how);
        self.cluster.node(node).cmd(&command).map(drop)
    }
}
