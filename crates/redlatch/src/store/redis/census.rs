//! What a server says about its replicas: how many there are, and why they cannot be asked.

use redis::Cmd;

use super::{
    failure::Failure,
    listed::{InSync, Names},
    role,
};
use crate::{
    config::addr::Addr,
    error::{Error, ErrorKind},
    store::{Fault, Reply, protocol_error},
};

/// How to learn how many replicas a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Census {
    Role,
    Info,
}

/// What a master says of its replicas.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Those in sync.
    pub(super) in_sync: InSync,
    /// How far its data had gone by then; nothing that it cannot tell is had by a replica.
    pub(super) offset: u64,
}

impl Census {
    pub(super) const UNKNOWN: u8 = 0;

    pub(super) fn code(self) -> u8 {
        match self {
            Census::Role => 1,
            Census::Info => 2,
        }
    }

    pub(super) fn of(code: u8) -> Option<Census> {
        [Census::Role, Census::Info].into_iter().find(|census| census.code() == code)
    }

    pub(super) fn question(self) -> Cmd {
        match self {
            Census::Role => redis::cmd("ROLE"),
            Census::Info => {
                let mut cmd = redis::cmd("INFO");
                cmd.arg("replication");
                cmd
            }
        }
    }

    pub(super) fn read(self, reply: &Reply) -> Result<Account, Fault> {
        let account = match self {
            Census::Role => match reply.array() {
                Some([role, offset, replicas, ..]) if role.bytes() == Some(b"master") => {
                    let in_sync = replicas.array().map(|replicas| {
                        replicas.iter().map(|replica| of_role(replica).into_iter().collect()).collect()
                    });
                    let offset = offset.int().and_then(|offset| u64::try_from(offset).ok());
                    in_sync.map(|in_sync| (in_sync, offset))
                }
                Some([role, ..]) if matches!(role.bytes(), Some(b"slave" | b"replica")) => {
                    return Err(demoted());
                }
                _ => None,
            },
            Census::Info => {
                let text = reply.bytes().map(String::from_utf8_lossy).unwrap_or_default();
                let mut lines = text.lines().map(str::trim);
                match lines.find_map(|line| line.strip_prefix("role:")) {
                    Some("master") => Some((text.lines().filter_map(of_info).collect(), role::offset(reply))),
                    Some(_) => return Err(demoted()),
                    None => None,
                }
            }
        };
        let (in_sync, offset) =
            account.ok_or_else(|| Fault::Server(protocol_error("ROLE or INFO", reply)))?;
        Ok(Account { in_sync, offset: offset.unwrap_or(u64::MAX) })
    }
}

/// The address of a replica in a reply to `ROLE`: host, port, offset.
fn of_role(replica: &Reply) -> Option<Addr> {
    let [host, port, ..] = replica.array()? else { return None };
    let host = String::from_utf8(host.bytes()?.to_vec()).ok()?;
    Some(Addr::Tcp { host, port: u16::try_from(port.int()?).ok()? })
}

/// The address of a replica in sync that a line of `INFO replication` tells of: `slave0:ip=…,port=…,state=online,…`.
fn of_info(line: &str) -> Option<Names> {
    let (head, fields) = line.trim().split_once(':')?;
    let number =
        head.strip_prefix("slave").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if !number || !fields.split(',').any(|field| field == "state=online") {
        return None;
    }
    let field = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let addr = || Some(Addr::Tcp { host: field("ip")?.to_owned(), port: field("port")?.parse().ok()? });
    Some(addr().into_iter().collect())
}

fn demoted() -> Fault {
    Fault::Server(Error::new(ErrorKind::ReadOnly, "the server is a replica now, and has none to confirm"))
}

pub(super) fn wait(replicas: u32, limit_ms: u64) -> Cmd {
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(replicas).arg(limit_ms);
    cmd
}

/// What a refusal of `WAIT` means. One that has nothing to do with `WAIT` stays as it is: it may say where to go instead.
pub(super) fn cannot_wait(code: &str, detail: &str) -> Failure {
    let lower = detail.to_ascii_lowercase();
    if lower.contains("replica instances") || lower.contains("slave instances") {
        return demoted().into();
    }
    // It was asked as a master, and has become a replica while it waited; or an operator has ended the wait.
    if code == "UNBLOCKED" {
        return match lower.contains("state changed") {
            true => demoted().into(),
            false => {
                Fault::Unknown(Error::new(ErrorKind::ServerBusy, format!("the server ended WAIT: {detail}")))
                    .into()
            }
        };
    }
    let error = Fault::server(code, detail).into_error();
    if error.kind() == ErrorKind::Permission || lower.contains("unknown command") {
        return Fault::Server(refused("WAIT", error, detail)).into();
    }
    Failure::refused(code, detail)
}

pub(super) fn refused(command: &str, error: Error, detail: &str) -> Error {
    match error.kind() {
        ErrorKind::Permission => error.remedy(
            "give the account the rights to WAIT, and to ROLE or INFO if all replicas are to confirm",
        ),
        ErrorKind::Server if detail.to_ascii_lowercase().contains("unknown command") => Error::new(
            ErrorKind::Unsupported,
            format!("the server does not know {command}, so its replicas cannot be asked"),
        )
        .remedy("acquire without replica acknowledgement there"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn replicas_in_sync_are_counted_from_either_answer() {
        let replica = Reply::Array(vec![text("127.0.0.1"), text("7001"), text("42")]);
        let role = |replicas| Reply::Array(vec![text("master"), Reply::Int(42), Reply::Array(replicas)]);
        let addr = |host: &str, port| vec![Addr::Tcp { host: host.into(), port }];
        let read = Census::Role.read(&role(vec![replica, Reply::Nil])).unwrap();
        assert_eq!(read, Account { in_sync: vec![addr("127.0.0.1", 7001), Vec::new()], offset: 42 });
        assert!(Census::Role.read(&role(vec![])).unwrap().in_sync.is_empty());
        let slave =
            Reply::Array(vec![text("slave"), text("h"), Reply::Int(1), text("connected"), Reply::Int(1)]);
        assert_eq!(Census::Role.read(&slave).unwrap_err().error().kind(), ErrorKind::ReadOnly);
        assert_eq!(Census::Role.read(&Reply::Nil).unwrap_err().error().kind(), ErrorKind::Protocol);
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\nmaster_repl_offset:7\r\n\
                    slave0:ip=1.2.3.4,port=1,state=online,offset=1,lag=0\r\n\
                    slave1:ip=1.2.3.4,port=2,state=wait_bgsave,offset=0,lag=0\r\n\
                    slave2:ip=1.2.3.4,port=3,state=online,offset=1,lag=1\r\nslave_x:state=online\r\n";
        let in_sync = vec![addr("1.2.3.4", 1), addr("1.2.3.4", 3)];
        assert_eq!(Census::Info.read(&text(info)).unwrap(), Account { in_sync, offset: 7 });
        assert_eq!(
            Census::Info.read(&text("role:slave\r\n")).unwrap_err().error().kind(),
            ErrorKind::ReadOnly
        );
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let kind = |code, detail| Fault::from(cannot_wait(code, detail)).into_error();
        assert_eq!(kind("ERR", "unknown command 'WAIT', with args").kind(), ErrorKind::Unsupported);
        let denied = kind("NOPERM", "this user has no permissions to run the 'wait' command");
        assert_eq!(denied.kind(), ErrorKind::Permission);
        assert!(denied.to_string().contains("rights to WAIT"), "{denied}");
        assert_eq!(kind("ERR", "WAIT cannot be used with replica instances.").kind(), ErrorKind::ReadOnly);
        assert_eq!(kind("LOADING", "wait").kind(), ErrorKind::ServerBusy);
        let ended = "force unblock from blocking operation, instance state changed (master -> replica?)";
        assert_eq!(kind("UNBLOCKED", ended).kind(), ErrorKind::ReadOnly);
        let ended = kind("UNBLOCKED", "client unblocked via CLIENT UNBLOCK");
        assert!(ended.kind() == ErrorKind::ServerBusy && ended.is_retryable(), "{ended}");
        assert!(matches!(cannot_wait("LOADING", "wait"), Failure::Refused { code, .. } if code == "LOADING"));
    }
}
