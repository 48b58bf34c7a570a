//! Why a request has no good answer, and reading answers.

use std::sync::Arc;

use redis::Value;

use crate::{
    error::{Error, ErrorKind},
    store::{Fault, Reply},
};

/// Why a request has no good answer. Redirections are refusals too, so the server's words are kept apart.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The server refused with these words. `at`: which server, where that is known.
    Refused { code: String, detail: String, at: Option<Arc<str>> },
    /// Everything else.
    Fault(Fault),
}

impl Failure {
    pub(super) fn refused(code: &str, detail: &str) -> Self {
        let detail = without_script_place(detail);
        let (code, detail) = of_script(code, detail).unwrap_or((code, detail));
        Failure::Refused { code: code.to_owned(), detail: detail.to_owned(), at: None }
    }

    /// Whether a server answers like this while it is a replica. A connection to one is of no use for locks.
    pub(super) fn is_of_a_replica(&self) -> bool {
        let Failure::Refused { code, detail, .. } = self else { return false };
        let lower = detail.to_ascii_lowercase();
        matches!(&code[..], "READONLY" | "MASTERDOWN")
            || Fault::server(code, detail).error().kind() == ErrorKind::ReadOnly
            // What `WAIT` is answered with, and ends with.
            || lower.contains("replica instances")
            || lower.contains("slave instances")
            || (code == "UNBLOCKED" && lower.contains("state changed"))
    }

    /// The same, said by this server.
    pub(super) fn at(mut self, server: &Arc<str>) -> Self {
        if let Failure::Refused { at, .. } = &mut self {
            *at = Some(server.clone());
        }
        self
    }
}

/// The words of a server without what it puts behind them from 7.0 on: ` script: SHA1, on @user_script:17.`. No caller can do anything with that.
fn without_script_place(detail: &str) -> &str {
    match detail.rsplit_once(" script: ") {
        Some((words, place))
            if place.len() >= 40 && place.bytes().take(40).all(|byte| byte.is_ascii_hexdigit()) =>
        {
            words
        }
        _ => detail,
    }
}

/// Code and text of an error inside a script, where the server has put words before them. Redis does so before 7.0, as in
/// `ERR Error running script (call to f_1b2c): @user_script:17: WRONGTYPE Operation against …`.
fn of_script<'a>(code: &str, detail: &'a str) -> Option<(&'a str, &'a str)> {
    let wrapped =
        if code == "ERR" { detail.strip_prefix("Error running script (call to f_")? } else { return None };
    let (_, mut inner) = wrapped.split_once("): ")?;
    // The line comes once more where the server refuses a command without running it.
    while let Some((line, rest)) = inner.strip_prefix("@user_script:").and_then(|rest| rest.split_once(": "))
    {
        line.trim_start().parse::<u32>().ok()?;
        inner = rest;
    }
    let (code, detail) = inner.strip_prefix('-').unwrap_or(inner).split_once(' ')?;
    // Some of its refusals have no code, and the whole text is the best that there is to show.
    (!code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase())).then_some((code, detail))
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Fault(fault)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, detail, at } => Fault::server_at(at.as_deref(), &code, &detail),
            Failure::Fault(fault) => fault,
        }
    }
}

pub(super) fn reply(value: Value) -> Result<Reply, Failure> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(value) => Reply::Int(value),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) => Reply::Bytes(text.into_bytes()),
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Boolean(value) => Reply::Int(value.into()),
        Value::VerbatimString { text, .. } => Reply::Bytes(text.into_bytes()),
        Value::Double(value) => Reply::Bytes(value.to_string().into_bytes()),
        // In the older protocol a map is a list of its keys and values by turns.
        Value::Map(pairs) => {
            let items = pairs.into_iter().flat_map(|(key, value)| [key, value]);
            Reply::Array(items.map(reply).collect::<Result<_, _>>()?)
        }
        Value::Array(items) | Value::Set(items) => {
            Reply::Array(items.into_iter().map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => {
            return Err(Failure::refused(error.code(), error.details().unwrap_or("")));
        }
        other => {
            return Err(Failure::Fault(Fault::Server(Error::new(
                ErrorKind::Protocol,
                format!("an answer of an unexpected type: {other:?}"),
            ))));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_in_a_script_an_error_arose_is_left_out() {
        let sha1 = "4578fa2b70c25a9a9b9445de62b27d1d6057b8fa";
        let detail_of = |words: &str| match Failure::refused("OOM", words) {
            Failure::Refused { detail, .. } => detail,
            Failure::Fault(_) => panic!("a refusal"),
        };
        for place in
            [format!("{sha1}, on @user_script:17."), format!("{sha1}, on @user_script."), sha1.to_owned()]
        {
            assert_eq!(detail_of(&format!("command not allowed script: {place}")), "command not allowed");
        }
        for words in ["no script: here", "of a script: 4578fa2b", &format!("script: {sha1}")] {
            assert_eq!(detail_of(words), words);
        }
    }

    #[test]
    fn a_replica_is_known_by_what_it_refuses() {
        for (code, detail, wanted) in [
            ("READONLY", "You can't write against a read only replica.", true),
            ("MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'.", true),
            ("ERR", "WAIT cannot be used with replica instances.", true),
            (
                "UNBLOCKED",
                "force unblock from blocking operation, instance state changed (master -> replica?)",
                true,
            ),
            ("UNBLOCKED", "client unblocked via CLIENT UNBLOCK", false),
            ("LOADING", "Redis is loading the dataset in memory", false),
            ("NOPERM", "this user has no permissions", false),
        ] {
            assert_eq!(Failure::refused(code, detail).is_of_a_replica(), wanted, "{code} {detail}");
        }
        let inside = "Error running script (call to f_a4b3): @user_script:17: @user_script: 17: -READONLY You can't write";
        assert!(Failure::refused("ERR", inside).is_of_a_replica());
    }

    #[test]
    fn an_error_inside_a_script_has_the_code_that_it_has_outside() {
        let refused = |detail: &str| match Failure::refused("ERR", detail) {
            Failure::Refused { code, detail, .. } => (code, detail),
            Failure::Fault(fault) => panic!("{fault}"),
        };
        let script =
            "Error running script (call to f_a4b3bce979b6dfde4324b277660fe80ee57acf7a): @user_script:17: ";
        for (inner, code, detail) in [
            ("WRONGTYPE Operation against a key", "WRONGTYPE", "Operation against a key"),
            ("ERR value is not an integer or out of range", "ERR", "value is not an integer or out of range"),
            ("@user_script: 17: -OOM command not allowed", "OOM", "command not allowed"),
            ("@user_script: 17: -READONLY You can't write", "READONLY", "You can't write"),
        ] {
            assert_eq!(refused(&format!("{script}{inner}")), (code.into(), detail.into()));
        }
        let unknown = "@user_script: 17: Unknown Redis command called from Lua script";
        for whole in
            [format!("{script}{unknown}"), script.to_owned(), "Error running script".into(), "other".into()]
        {
            assert_eq!(refused(&whole), ("ERR".into(), whole));
        }
        let Failure::Refused { code, .. } = Failure::refused("OOM", &format!("{script}WRONGTYPE x")) else {
            panic!("a refusal")
        };
        assert_eq!(code, "OOM");
    }
}
