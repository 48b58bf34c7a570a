//! What a node says about the cluster (`CLUSTER NODES`).

use std::ops::RangeInclusive;

use crate::error::{Error, ErrorKind, Result};
use crate::server::RedisServer;

/// One line of a node's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) id: String,
    pub(super) has_address: bool,
    pub(super) flags: Vec<String>,
    pub(super) master_id: Option<String>,
    pub(super) epoch: u64,
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

impl Line {
    pub(super) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    pub(super) fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

/// The lines of a node, itself included.
pub(super) fn view(node: &RedisServer) -> Result<Vec<Line>> {
    let text: String = node.query(&[b"CLUSTER", b"NODES"])?;
    let lines = text.lines().map(line).collect::<Option<Vec<_>>>();
    lines.ok_or_else(|| Error::new(ErrorKind::Server, format!("CLUSTER NODES is not understood:\n{text}")))
}

/// `id host:port@bus[,name] flags master ping pong epoch link slot...`
fn line(text: &str) -> Option<Line> {
    let mut fields = text.split(' ');
    let id = fields.next()?.to_owned();
    let has_address = !fields.next()?.starts_with(':');
    let flags = fields.next()?.split(',').map(str::to_owned).collect();
    let master_id = fields.next().filter(|id| *id != "-").map(str::to_owned);
    let epoch = fields.nth(2)?.parse().ok()?;
    // A slot on the move is listed once more, in brackets.
    let slots = fields.skip(1).filter(|slot| !slot.starts_with('[')).map(range).collect::<Option<_>>()?;
    Some(Line { id, has_address, flags, master_id, epoch, slots })
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_master_and_of_a_replica() {
        let master = "aa 127.0.0.1:7000@17000,host myself,master - 0 0 3 connected 0-5460 9000 [7->-bb]";
        let master = line(master).unwrap();
        assert_eq!((master.id.as_str(), master.epoch, master.has_address), ("aa", 3, true));
        assert_eq!(master.master_id, None);
        assert_eq!(master.slots, [0..=5460, 9000..=9000]);
        assert!(master.is("myself") && !master.is("my") && master.owns(7) && !master.owns(8999));
        let replica = line("bb :7001@17001 slave aa 0 1426238317239 4 connected").unwrap();
        assert_eq!((replica.master_id.as_deref(), replica.epoch), (Some("aa"), 4));
        assert!(!replica.has_address && replica.slots.is_empty());
        assert_eq!(line("aa 127.0.0.1:7000@17000 master - 0 0 x connected"), None);
    }
}
