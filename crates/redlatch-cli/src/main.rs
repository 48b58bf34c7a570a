//! The `redlatch` command: run commands under a distributed lock, and see who holds what.

mod args;
mod checks;
mod child;
mod cmd;
mod config;
mod demo;
mod door;
mod durations;
mod escape;
mod exit;
mod forcing;
mod group;
mod hint;
mod output;
mod own_program;
mod recovery;
mod run;
mod serve;
mod signals;
mod snapshot;
mod store;
mod talk;
mod timestamp;
mod top;
mod who;

use std::{env, ffi::OsString, process::ExitCode, time::Duration};

use clap::{FromArgMatches, error::ErrorKind};

use crate::{
    args::{Cli, Verb},
    child::{guard, trampoline},
    output::quiet_end,
    talk::Talk,
};

/// How long the last words may take to reach a reader who is slow.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // The step before every command comes first: it must cost next to nothing.
    let mut words = env::args_os();
    match words.nth(1) {
        Some(verb) if verb == trampoline::VERB => return ExitCode::from(trampoline::exec(words)),
        Some(verb) if verb == guard::VERB => return ExitCode::from(guard::guard(words)),
        _ => {}
    }
    let cli = match parse(env::args_os().collect()) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    let talk = Talk::new(cli.global.quiet, cli.global.verbose);
    log(&cli);
    let code = cmd::dispatch(cli, talk).unwrap_or_else(|failure| {
        talk::error(&failure);
        failure.code()
    });
    talk::flush(LAST_WORDS_TIMEOUT);
    ExitCode::from(code)
}

/// Reads the command line, or says what is wrong with it and answers the exit code.
fn parse(words: Vec<OsString>) -> Result<Cli, u8> {
    if let Some(cli) = args::run_alone(&words) {
        return Ok(cli);
    }
    // Help is asked of the whole command only when no verb is named.
    let mut command = args::command(hint::names_a_verb(&words));
    let parsed = command.try_get_matches_from_mut(&words);
    let parsed = parsed
        .and_then(|matches| Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command)));
    parsed.map_err(|error| {
        let code = refuse(&error);
        if let Some(hint) = hint::with_dashes(&words).filter(|_| code == exit::USAGE) {
            talk::error(hint);
        }
        code
    })
}

/// Prints what the parser has to say. Its own exit code for mistakes is 2, which scripts could not tell from the command's.
fn refuse(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Colours only where the parser itself would use them.
            if error.print().is_err() {
                _ = quiet_end();
            }
            exit::OK
        }
        _ => {
            _ = error.print();
            exit::USAGE
        }
    }
}

/// Sends the library's log to stderr: warnings by default, everything with `-vv`, or what REDLATCH_LOG asks for.
fn log(cli: &Cli) {
    use tracing_subscriber::{EnvFilter, fmt};

    let default = match (cli.global.quiet, cli.global.verbose) {
        (true, _) => "error",
        // When an engine started and ended is what its log is read for.
        (_, 0 | 1) if matches!(cli.verb, Verb::Engine(_)) => "warn,redlatch_engine::life=info",
        // The end of an outage is told like its beginning.
        (_, 0 | 1) => "warn,redlatch::core::contest=info",
        (_, 2) => "redlatch=debug,redlatch_engine=debug,warn",
        _ => "trace",
    };
    let filter = env::var("REDLATCH_LOG").ok().and_then(|directives| EnvFilter::try_new(directives).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(default));
    let log = fmt().with_env_filter(filter).with_writer(|| talk::Log).with_ansi(false);
    // The engine's log is read much later; what a verb says is read at once.
    _ = if matches!(cli.verb, Verb::Engine(_)) { log.try_init() } else { log.without_time().try_init() };
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn mistakes_are_usage_errors_and_help_is_not() {
        let code = |words: &[&str]| refuse(&Cli::try_parse_from(words).unwrap_err());
        assert_eq!(code(&["redlatch", "--no-such-flag"]), exit::USAGE);
        assert_eq!(code(&["redlatch"]), exit::USAGE);
        assert_eq!(code(&["redlatch", "run"]), exit::USAGE);
    }
}
