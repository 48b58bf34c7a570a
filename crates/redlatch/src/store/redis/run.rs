//! Running one script over one connection.

use redis::Cmd;

use super::{failure::Failure, link::Link, server_process};
use crate::{
    config::ScriptMode,
    error::{Error, ErrorKind},
    scripts,
    store::{Arg, Call, Fault, Reply, of_stale_incarnation},
};

pub(super) fn closed_error() -> Fault {
    Fault::NotSent(Error::new(ErrorKind::Closed, "the client was shut down"))
}

/// The command that runs a script the cheapest way that the mode allows.
pub(super) fn first_try(mode: ScriptMode, call: &Call) -> Cmd {
    match mode {
        ScriptMode::Eval => command("EVALSHA", call.script.sha1(), call),
        ScriptMode::Functions => command("FCALL", call.script.function(), call),
    }
}

pub(super) async fn run_on(
    link: &Link,
    mode: ScriptMode,
    first: Cmd,
    call: &Call,
    with_asking_command: bool,
) -> Result<Reply, Failure> {
    if call.in_incarnation.is_some_and(|incarnation| {
        server_process::incarnation(server_process::mastership(incarnation), link.process_number())
            != incarnation
    }) {
        return Err(of_stale_incarnation().into());
    }
    if !call.begin_sending() {
        return Err(Fault::NotSent(Call::given_up()).into());
    }
    let outcome =
        if with_asking_command { link.ask_with_asking_command(&first).await } else { link.ask(&first).await };
    match (outcome, mode) {
        // Nothing ran, so sending the whole text is no second try. `ASKING` was used up by the failed `EVALSHA`.
        (Err(Failure::Refused { code, .. }), ScriptMode::Eval) if code == "NOSCRIPT" => {
            let whole = command("EVAL", call.script.source(), call);
            if with_asking_command {
                link.ask_with_asking_command(&whole).await
            } else {
                link.ask(&whole).await
            }
        }
        (Err(failure), ScriptMode::Functions) => Err(without_functions(failure)),
        (outcome, _) => outcome,
    }
}

/// Tells a server that lacks our functions, or all functions, from other refusals.
pub(super) fn without_functions(failure: Failure) -> Failure {
    let Failure::Refused { code, detail, .. } = &failure else { return failure };
    let lower = detail.to_ascii_lowercase();
    let (why, remedy) = if lower.contains("function not found") {
        (
            format!("the server does not have the function library {}", scripts::library_name()),
            "load it with `redlatch functions load`, as an operator",
        )
    } else if code == "ERR" && lower.contains("unknown command") {
        ("the server has no functions".to_owned(), "use scripts, or Redis 7.0 or later, or Valkey")
    } else {
        return failure;
    };
    Failure::Fault(Fault::Server(Error::new(ErrorKind::FunctionMissing, why).remedy(remedy)))
}

fn command(verb: &str, script: &str, call: &Call) -> Cmd {
    let mut cmd = Cmd::with_capacity(3 + call.keys.len() + call.args.len(), 256);
    cmd.arg(verb).arg(script).arg(call.keys.len());
    for key in &call.keys {
        cmd.arg(&key[..]);
    }
    for arg in &call.args {
        match arg {
            Arg::Int(value) => cmd.arg(*value),
            Arg::Text(text) => cmd.arg(text.as_bytes()),
            Arg::Bytes(bytes) => cmd.arg(&bytes[..]),
            Arg::Static(text) => cmd.arg(text.as_bytes()),
        };
    }
    cmd
}
