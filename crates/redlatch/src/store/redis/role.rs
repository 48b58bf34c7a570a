//! Whether a server is a master, in either of the two ways to ask.

use redis::Cmd;

use super::succession::History;
use crate::{config::addr::Addr, store::Reply};

/// The ways to ask, the better one first; accounts often lack the right to one of them.
pub(super) const QUESTIONS: [&[&str]; 2] = [&["ROLE"], &["INFO", "replication"]];

pub(super) fn question(words: &[&str]) -> Cmd {
    let mut cmd = Cmd::new();
    for word in words {
        cmd.arg(*word);
    }
    cmd
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A master, and how many replicas it has.
    Master {
        replicas: usize,
    },
    Replica,
}

/// Reads an answer to `ROLE` or `INFO replication`; `None` if it tells nothing.
pub(super) fn of(answer: &Reply) -> Option<Role> {
    let Some(items) = answer.array() else {
        return of_info(&String::from_utf8_lossy(answer.bytes()?));
    };
    match items.first()?.bytes()? {
        b"master" => {
            let replicas = items.get(2).and_then(Reply::array).map_or(0, <[_]>::len);
            Some(Role::Master { replicas })
        }
        b"slave" | b"replica" => Some(Role::Replica),
        _ => None,
    }
}

/// Whose replica a server says that it is.
pub(super) fn master(answer: &Reply) -> Option<Addr> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let (host, port) = match answer.array() {
        Some([role, host, port, ..]) if matches!(role.bytes()?, b"slave" | b"replica") => {
            (text(host.bytes()?)?, u16::try_from(port.int()?).ok()?)
        }
        Some(_) => return None,
        None => {
            let text = text(answer.bytes()?)?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            (field("master_host")?.trim().to_owned(), field("master_port")?.trim().parse().ok()?)
        }
    };
    Some(Addr::Tcp { host, port })
}

/// What an answer to `INFO replication` says of where the server's data come from.
pub(super) fn history(answer: &Reply) -> Option<History> {
    let text = String::from_utf8_lossy(answer.bytes()?);
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
        (!value.is_empty() && value.bytes().any(|digit| digit != b'0')).then(|| value.to_owned())
    };
    Some(History { id: field("master_replid")?, before: field("master_replid2"), run: None })
}

/// How far a server's data have gone in their history, as an answer to `INFO replication` says; of a replica, what it has carried out.
pub(super) fn offset(answer: &Reply) -> Option<u64> {
    let text = String::from_utf8_lossy(answer.bytes()?);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field("slave_repl_offset").or_else(|| field("master_repl_offset"))?.trim().parse().ok()
}

/// Whether a replica has its master's data by now, as an answer to `INFO replication` says. One that was just started names a history that no
/// other has.
pub(super) fn is_in_sync(answer: &Reply) -> bool {
    let text = answer.bytes().map(String::from_utf8_lossy).unwrap_or_default();
    !text.lines().any(|line| line.trim_end() == "master_link_status:down")
}

fn of_info(text: &str) -> Option<Role> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    match field("role")?.trim() {
        "master" => {
            let replicas = field("connected_slaves").and_then(|count| count.trim().parse().ok()).unwrap_or(0);
            Some(Role::Master { replicas })
        }
        _ => Some(Role::Replica),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn both_answers_tell_the_role() {
        let replica = Reply::Array(vec![bulk("10.0.0.2"), bulk("6379"), bulk("0")]);
        let role = Reply::Array(vec![bulk("master"), Reply::Int(7), Reply::Array(vec![replica])]);
        assert_eq!(of(&role), Some(Role::Master { replicas: 1 }));
        assert_eq!(of(&Reply::Array(vec![bulk("slave"), bulk("h"), Reply::Int(1)])), Some(Role::Replica));
        assert_eq!(of(&Reply::Array(vec![bulk("sentinel"), Reply::Array(Vec::new())])), None);
        let whose = |text: &str| Some(Addr::Tcp { host: text.into(), port: 7 });
        let slave =
            Reply::Array(vec![bulk("slave"), bulk("h"), Reply::Int(7), bulk("connect"), Reply::Int(-1)]);
        assert_eq!((master(&slave), master(&role)), (whose("h"), None));
        let info = "role:slave\r\nmaster_host:other\r\nmaster_port:7\r\n";
        assert_eq!((master(&bulk(info)), master(&bulk("role:master\r\n"))), (whose("other"), None));
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n";
        assert_eq!(of(&bulk(info)), Some(Role::Master { replicas: 2 }));
        assert_eq!(of(&bulk("# Replication\r\nrole:slave\r\nmaster_host:h\r\n")), Some(Role::Replica));
        assert_eq!(of(&bulk("nothing of the kind")), None);
        let history = |text: &str| history(&bulk(text)).map(|history| (history.id, history.before));
        assert_eq!(
            history("role:master\r\nmaster_replid:a1\r\nmaster_replid2:00\r\n"),
            Some(("a1".into(), None))
        );
        let promoted = history("master_replid:b2\r\nmaster_replid2:a1\r\nmaster_repl_offset:0\r\n");
        assert_eq!(promoted, Some(("b2".into(), Some("a1".into()))));
        assert_eq!(history(info), None);
        let offsets = [
            ("role:master\r\nmaster_repl_offset:12\r\n", Some(12)),
            (
                "role:slave\r\nslave_read_repl_offset:9\r\nslave_repl_offset:8\r\nmaster_repl_offset:9\r\n",
                Some(8),
            ),
            ("role:slave\r\n", None),
        ];
        assert_eq!(offsets.map(|(text, _)| offset(&bulk(text))), offsets.map(|(_, offset)| offset));
        for (text, in_sync) in [
            ("role:slave\r\nmaster_link_status:up\r\n", true),
            ("role:slave\r\nmaster_link_status:down\r\n", false),
            ("role:master\r\n", true),
        ] {
            assert_eq!(is_in_sync(&bulk(text)), in_sync, "{text}");
        }
    }
}
