//! What a node of a cluster means by refusing: another node has the slot, or it is too early.

use super::{
    Dial,
    slots::{SLOTS, address},
};
use crate::{config::addr::Addr, store::fault::CLUSTER_IS_DOWN};

/// Why a node did not run a script, as far as that says where or when to try again. In all cases but the last the script has
/// not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot belongs to another node, by an address if the node knows it.
    Moved { slot: u16, to: Option<Addr> },
    /// The slot is on its way to that node, and what was asked for is there already, or will be made there.
    Ask(Addr),
    /// To the very address that was asked, which leads elsewhere by now than the connection does.
    Here,
    /// The slot is on its way, and not all keys are at this node.
    Split,
    /// The node is loading its data.
    Later,
    /// The node knows that it is not the right one, or that its cluster is down, and not who is right.
    Astray,
    /// A script that had begun met a key that is on its way: it may have changed something before.
    Halfway,
}

impl Redirect {
    /// Reads a refusal of the server that is dialled like this; addresses in it are those at which it is reached from here.
    pub(super) fn read(code: &str, detail: &str, asked: &Dial) -> Option<Redirect> {
        Some(match Self::read_as_told(code, detail, asked.addr())? {
            Redirect::Moved { slot, to: Some(to) } => match asked.reachable(to) {
                to if to == *asked.addr() => Redirect::Here,
                to => Redirect::Moved { slot, to: Some(to) },
            },
            Redirect::Ask(to) => match asked.reachable(to) {
                to if to == *asked.addr() => Redirect::Here,
                to => Redirect::Ask(to),
            },
            other => other,
        })
    }

    pub(super) fn read_as_told(code: &str, detail: &str, asked: &Addr) -> Option<Redirect> {
        Some(match code {
            "MOVED" => {
                let (slot, to) = place(detail, asked)?;
                Redirect::Moved { slot, to }
            }
            "ASK" => place(detail, asked)?.1.map_or(Redirect::Later, Redirect::Ask),
            "TRYAGAIN" => Redirect::Split,
            "LOADING" => Redirect::Later,
            "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" => Redirect::Astray,
            // Inside a script the text has no code of its own; servers before 7 put words before it. The cluster does not go down in the middle of one, so its first
            // write was refused.
            _ if detail.contains(CLUSTER_IS_DOWN) => Redirect::Astray,
            _ if detail.contains("non local key") => Redirect::Halfway,
            _ if detail.contains("during rehashing of the slot") => Redirect::Halfway,
            _ => return None,
        })
    }
}

/// Reads `slot host:port`; hosts may be names, addresses of either kind, empty, or `?`.
fn place(detail: &str, asked: &Addr) -> Option<(u16, Option<Addr>)> {
    let (slot, place) = detail.split_once(' ')?;
    let slot = slot.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
    let (host, port) = place.trim_end().rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((slot, address(Some(host.as_bytes()), port.parse().ok()?, asked)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_where_and_when() {
        let asked = Addr::Tcp { host: "here".into(), port: 7000 };
        let tcp = |host: &str, port| Addr::Tcp { host: host.into(), port };
        let moved = |slot, to| Some(Redirect::Moved { slot, to });
        for (code, detail, meaning) in [
            ("MOVED", "3999 127.0.0.1:6381", moved(3999, Some(tcp("127.0.0.1", 6381)))),
            ("MOVED", "3999 ::1:6381", moved(3999, Some(tcp("::1", 6381)))),
            ("MOVED", "3999 [fe80::2]:6381", moved(3999, Some(tcp("fe80::2", 6381)))),
            ("MOVED", "3999 node.example:6381", moved(3999, Some(tcp("node.example", 6381)))),
            ("MOVED", "3999 :6381", moved(3999, Some(tcp("here", 6381)))),
            ("MOVED", "3999 ?:6381", moved(3999, None)),
            ("MOVED", "16384 h:6381", None),
            ("MOVED", "nonsense", None),
            ("ASK", "1 h:6381", Some(Redirect::Ask(tcp("h", 6381)))),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", Some(Redirect::Split)),
            ("LOADING", "Redis is loading the dataset in memory", Some(Redirect::Later)),
            ("CLUSTERDOWN", "Hash slot not served", Some(Redirect::Astray)),
            ("READONLY", "You can't write against a read only replica.", Some(Redirect::Astray)),
            (
                "ERR",
                "Script attempted to execute a write command while the cluster is down and readonly script: f, on @user_script:1.",
                Some(Redirect::Astray),
            ),
            (
                "ERR",
                "Script attempted to access a non local key in a cluster node script: f, on @user_script:1.",
                Some(Redirect::Halfway),
            ),
            (
                "ERR",
                "Unable to execute command 'del' in script because undeclared keys were accessed during rehashing of the slot script: f",
                Some(Redirect::Halfway),
            ),
            ("ERR", "unknown command", None),
            ("NOPERM", "this user has no permissions", None),
        ] {
            assert_eq!(Redirect::read_as_told(code, detail, &asked), meaning, "{code} {detail}");
        }
    }
}
