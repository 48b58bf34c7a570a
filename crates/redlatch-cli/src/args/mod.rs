//! The command line: every verb, and the options that all of them share.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};

pub(crate) mod acl;
pub(crate) mod engine;
pub(crate) mod kind;
pub(crate) mod latch;
pub(crate) mod rate;
pub(crate) mod run;
pub(crate) mod sem;

use self::kind::{Held, KindArgs};
use crate::{durations, run::kind::Holder};

/// Run commands under a distributed lock, and see who holds what.
#[derive(Debug, Parser)]
#[command(
    name = "redlatch",
    version,
    propagate_version = true,
    after_help = "Without --url, REDLATCH_URL or a configuration file, locks live in a local engine that is started by itself and \
                  protects this machine and user.\n\nExit codes: the command's own; 75 busy; 80 lease lost; 124 --max-hold reached; \
                  64 usage; 69 unreachable; 77 refused; 78 configuration; 125 own failure; 126 not executable; 127 not found."
)]
pub(crate) struct Cli {
    /// Options of every verb.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options of every verb.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Where the locks live: local:, local:name, redis://host:6379/0, rediss://…, redis-sentinel://h1,h2/master,
    /// redis-cluster://h1,h2, redis-replicated://h1,h2, unix:///path [env: REDLATCH_URL].
    ///
    /// Put passwords into a file or REDLATCH_PASSWORD: everybody on the machine can read arguments.
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<String>,
    /// A named context of the configuration file; its values then win over the environment [env: REDLATCH_CONTEXT].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Read this configuration file before the usual ones [env: REDLATCH_CONFIG].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// The server user [env: REDLATCH_USERNAME].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Read the password from this file; otherwise REDLATCH_PASSWORD is used [env: REDLATCH_PASSWORD_FILE].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) password_file: Option<PathBuf>,
    /// Ask for the password on the terminal.
    #[arg(long, global = true, conflicts_with = "password_file")]
    pub(crate) password_prompt: bool,
    /// Take servers and other settings from this configuration file of Redisson, as it is [env: REDLATCH_REDISSON_YAML].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "url")]
    pub(crate) redisson_yaml: Option<PathBuf>,
    /// Where servers are reached that announce other addresses: announced=reachable, with commas between pairs [env:
    /// REDLATCH_ADDRESS_MAP].
    #[arg(long, global = true, value_name = "PAIRS")]
    pub(crate) address_map: Option<String>,
    /// Say nothing but errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more on stderr; twice for the library's own log.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Hold a lock, several, or a permit while a command runs.
    #[command(
        override_usage = "redlatch run [OPTIONS] <NAME>... -- <CMD>...\n       redlatch run [OPTIONS] <NAME> -c <SCRIPT>",
        after_help = "The command sees REDLATCH_NAME, REDLATCH_HELD=1, REDLATCH_KIND, REDLATCH_OWNER, REDLATCH_LEASE_MS, \
                            REDLATCH_ACQUIRED_AT, with --fenced REDLATCH_TOKEN, and with --why REDLATCH_WHY. It never sees the password. \
                            REDLATCH_KIND is lock, fair, read, write or permits; the owner of a permit is its id. With several names, REDLATCH_NAME, \
                            REDLATCH_OWNER and REDLATCH_TOKEN have one line for each, in the order of the command line.\n\n\
                            Several names are held all or not at all: while one is busy none is held, whatever the order, and the \
                            loss of one is the loss of all.\n\n\
                            One name is one kind of lock for all its users: a name that is taken with --shared or --exclusive \
                            anywhere is to be taken with one of them everywhere, and all users of permits say the same N. The \
                            permits are made by whoever comes first, and stay.\n\n\
                            Exit codes: the command's own, 128 + the signal that ended it; 69 server unreachable, or too few replicas; \
                            75 busy (see -E); 77 user, password or a right refused; 78 configuration; 80 lease lost; 124 --max-hold \
                            reached; 64 usage, and a name that is held as another kind of lock; 125 own failure; 126 not executable; \
                            127 not found; 130, 143 interrupted while waiting."
    )]
    Run(Box<run::RunArgs>),
    /// Take a lock or a permit and leave it held, for scripts.
    Lock(LockArgs),
    /// Give back a lock taken by `lock`.
    Unlock(UnlockArgs),
    /// Make a lock taken by `lock` last longer.
    Renew(RenewArgs),
    /// Semaphores: permits that scripts take and put back.
    Sem(sem::SemArgs),
    /// Latches: gates that open when a count reaches zero.
    Latch(latch::LatchArgs),
    /// Rate limiters: no more than so many in any interval.
    Rate(rate::RateArgs),
    /// List the locks.
    #[command(
        after_help = "WAITERS is the length of a fair lock's queue; of other kinds, the number of clients that listen for a \
                            release. VALUE is the number of free permits, or the rate of a limiter.\n\n\
                            A semaphore or a latch is a bare number on the server, like any other counter there, so these are \
                            listed only with --all or --kind counter."
    )]
    Ls(LsArgs),
    /// Show one lock, semaphore, latch or rate limiter.
    ///
    /// A name that nobody uses is shown as free, with exit code 0: looking at what is not there is no failure.
    Show(ShowArgs),
    /// Take a lock away from its holder.
    ForceUnlock(ForceUnlockArgs),
    /// Check the server's settings and rights.
    Doctor(DoctorArgs),
    /// Print the least rights that an account needs.
    #[command(after_help = acl::AFTER_HELP)]
    Acl(acl::AclArgs),
    /// The scripts as a library of server functions, for clients without the right to run scripts.
    Functions(FunctionsArgs),
    /// The local engine.
    Engine(engine::EngineArgs),
    /// Act out a flash sale: with a script, with a lock, and with neither.
    Demo(DemoArgs),
    /// The configuration.
    Config(ConfigArgs),
    /// Print a completion script.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory.
    Man {
        /// The directory, which must exist.
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    #[command(name = "__demo-worker", hide = true)]
    DemoWorker(DemoWorkerArgs),
    /// What completion scripts ask for.
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The command line up to the cursor, with the program as its first word.
        #[arg(last = true)]
        words: Vec<OsString>,
    },
}

/// The whole command line. The options that all verbs share are listed once, by `redlatch --help`: the help of a verb leads with
/// its own.
pub(crate) fn command(for_a_verb: bool) -> clap::Command {
    let command = Cli::command();
    if !for_a_verb {
        return command;
    }
    command.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg }).mut_subcommands(with_link)
}

/// Says below the help of a verb where the options are that it shares.
fn with_link(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(with_link);
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_help(format!(
        "{before}Also -q, -v, --url, --context, --config and others: `redlatch --help` lists the common options."
    ))
}

/// How to print data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns; with a header on a terminal.
    Table,
    /// All columns.
    Wide,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    Ndjson,
    /// Names only.
    Name,
}

/// The choice of output format.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Output {
    /// How to print: table, wide, json, ndjson or name.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum)]
    pub(crate) format: Option<Format>,
}

/// What to do when the lock is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfBusy {
    /// Wait, as long as --wait says.
    Wait,
    /// Fail at once with exit code 75.
    Fail,
    /// Do nothing and succeed.
    Skip,
}

/// How long to wait, shared by `run` and `lock`.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct WaitArgs {
    /// Wait at most this long (30s, 1h30m; 5 is 5s) or forever [default: forever]. A server that is down at the start is waited for
    /// as long, unless no time is given.
    #[arg(short, long, value_name = "TIME", value_parser = durations::parse_wait, conflicts_with = "no_wait")]
    pub(crate) wait: Option<durations::Wait>,
    /// Do not wait: the same as --if-busy fail.
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// When the lock is busy: wait, fail, or skip (succeed without doing anything).
    #[arg(long, value_name = "ACTION", value_enum, conflicts_with = "no_wait")]
    pub(crate) if_busy: Option<IfBusy>,
    /// The exit code when the lock stays busy [default: 75].
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// `redlatch lock`.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// How long to hold it; nobody renews it.
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
    pub(crate) lease: Duration,
    /// Waiting.
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    /// The kind of lock.
    #[command(flatten)]
    pub(crate) kind: KindArgs,
    /// Print shell assignments for `eval`.
    #[arg(long, conflicts_with = "format")]
    pub(crate) export: bool,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch unlock`.
#[derive(Debug, Args)]
pub(crate) struct UnlockArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// The owner that `lock` printed [env: REDLATCH_OWNER].
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<Holder>,
    /// How it was taken; found out by looking unless given [env: REDLATCH_KIND, together with REDLATCH_OWNER].
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) kind: Option<Held>,
}

/// `redlatch renew`.
#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// The owner that `lock` printed [env: REDLATCH_OWNER].
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<Holder>,
    /// How it was taken; found out by looking unless given [env: REDLATCH_KIND, together with REDLATCH_OWNER].
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) kind: Option<Held>,
    /// How long to hold it from now on. A lock that lasts longer already is left as it is; a permit gets exactly this.
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
    pub(crate) lease: Duration,
}

/// What to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Locks with one holder.
    Lock,
    /// Fair locks that somebody queues for.
    Fair,
    /// Read-write locks.
    ReadWrite,
    /// Permits with leases, while some are taken.
    Permits,
    /// Bare numbers: semaphores, latches, stocks, and counters of others.
    #[value(alias = "semaphore", alias = "latch")]
    Counter,
    /// Rate limiters.
    RateLimiter,
}

/// `redlatch ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only names that match a pattern of `*`, `?` and `[abc]`.
    pub(crate) glob: Option<String>,
    /// Only these kinds, with commas between them.
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',', conflicts_with = "all")]
    pub(crate) kind: Vec<Kind>,
    /// Every kind, bare numbers included.
    #[arg(long)]
    pub(crate) all: bool,
    /// List again and again, every 2 s unless given, until interrupted.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = durations::parse_positive)]
    pub(crate) watch: Option<Duration>,
    /// List at most this many.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch force-unlock`.
#[derive(Debug, Args)]
pub(crate) struct ForceUnlockArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// The holder to take it from, as `show` prints it; nothing happens when somebody else holds it by then.
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
    /// How it is held; found out by looking unless given.
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) kind: Option<Held>,
    /// Why: the holder is told.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Who does it, as the holder is told; the user and the machine unless given.
    #[arg(long, value_name = "TEXT")]
    pub(crate) by: Option<String>,
    /// Do it without asking.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `redlatch functions`.
#[derive(Debug, Args)]
pub(crate) struct FunctionsArgs {
    /// What to do with the library.
    #[command(subcommand)]
    pub(crate) verb: FunctionsVerb,
}

/// `redlatch functions …`.
#[derive(Debug, Subcommand)]
pub(crate) enum FunctionsVerb {
    /// Print the library, as FUNCTION LOAD takes it.
    Show,
    /// Load the library into the server, as an account that may: Redis 7.0 or later, or Valkey.
    ///
    /// Loading again does no harm: a library of the same name is replaced in one step. The name carries the number of the script
    /// set, so the libraries of several versions stay side by side while a fleet is upgraded; FUNCTION DELETE removes an old one.
    /// Clients use the library when their configuration has `scripts = "functions"`.
    Load,
}

/// `redlatch doctor`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("about").args(["name", "prefix"]).multiple(true))]
pub(crate) struct DoctorArgs {
    /// Say whether the keys and channels of these names share a cluster slot, as they must.
    #[arg(value_name = "NAME")]
    pub(crate) name: Vec<String>,
    /// The same for names that begin with this and for those in use; and try the rights of the account for names that begin with
    /// this, with names that nobody else uses; all names if it is empty.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Only for these kinds, with commas between them [default: all but look].
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = acl::kind, requires = "about")]
    pub(crate) kind: Vec<redlatch::acl::Kind>,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How many processes buy at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(crate) workers: u16,
    /// How many items are for sale.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) items: u32,
    /// Output of the final table.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How the workers of the demo buy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// One atomic script.
    Script,
    /// A lock around reading and writing.
    Lock,
    /// Reading and writing without protection.
    Nothing,
}

/// `redlatch __demo-worker`, started by `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoWorkerArgs {
    /// How to buy.
    #[arg(long, value_enum)]
    pub(crate) way: Way,
    /// The stock's name.
    #[arg(long)]
    pub(crate) stock: String,
}

/// `redlatch config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// What to do with the configuration.
    #[command(subcommand)]
    pub(crate) verb: ConfigVerb,
}

/// `redlatch config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print every value and where it came from; secrets are hidden.
    Show {
        /// Output.
        #[command(flatten)]
        output: Output,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command(false).debug_assert();
        command(true).debug_assert();
    }
}
