//! The command line: every verb, and the options that all of them share.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};

pub(crate) mod acl;
pub(crate) mod engine;
pub(crate) mod kind;
pub(crate) mod latch;
pub(crate) mod looking;
pub(crate) mod numbers;
pub(crate) mod rate;
pub(crate) mod run;
pub(crate) mod sem;

use self::kind::{HeldKind, KindArgs};
use crate::{durations, run::kind::Holder};

/// Run commands under a distributed lock, and see who holds what.
#[derive(Debug, Parser)]
#[command(
    name = "redlatch",
    version,
    propagate_version = true,
    after_help = "Without --url, REDLATCH_URL or a configuration file, redlatch starts a local engine. Its locks are those of this user \
                  on this machine.\n\nExit codes: the command's own; 75 busy; 80 lease lost; 124 --max-hold reached; \
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
    /// Use the locks of this store: local:, local:name, redis://host:6379/0, rediss://…, redis-sentinel://h1,h2/master,
    /// redis-cluster://h1,h2, redis-replicated://h1,h2, unix:///path [env: REDLATCH_URL].
    ///
    /// Put passwords into a file or REDLATCH_PASSWORD: every user of the machine can read arguments.
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<String>,
    /// Use this context of the configuration file. Its values override the environment [env: REDLATCH_CONTEXT].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Read this configuration file before the usual ones [env: REDLATCH_CONFIG].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Log in to the server as this user [env: REDLATCH_USERNAME].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Read the password from this file. Without it redlatch takes REDLATCH_PASSWORD [env: REDLATCH_PASSWORD_FILE].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) password_file: Option<PathBuf>,
    /// Ask for the password on the terminal.
    #[arg(long, global = true, conflicts_with = "password_file")]
    pub(crate) password_prompt: bool,
    /// Read servers and settings from this configuration file of Redisson [env: REDLATCH_REDISSON_YAML].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "url")]
    pub(crate) redisson_yaml: Option<PathBuf>,
    /// Connect to other addresses than the servers announce: pairs announced=reachable, separated by commas [env:
    /// REDLATCH_ADDRESS_MAP].
    #[arg(long, global = true, value_name = "PAIRS")]
    pub(crate) address_map: Option<String>,
    /// Print errors only.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more on stderr. Given twice, print the library's log as well.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// `run` without the other verbs.
#[derive(Debug, Parser)]
struct RunAlone {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    run: run::RunArgs,
}

/// A command line that begins with `run` and has no mistake; nothing for any other, which [`command`] reads. A script may start `run`
/// often, and building the parsers of all verbs takes several times as long as building this one.
pub(crate) fn run_alone(words: &[OsString]) -> Option<Cli> {
    let words = words.get(1..).filter(|words| words.first().is_some_and(|verb| verb == "run"))?;
    let RunAlone { global, run } = RunAlone::try_parse_from(words).ok()?;
    Some(Cli { global, verb: Verb::Run(Box::new(run)) })
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a lock, several locks or a permit.
    #[command(
        override_usage = "redlatch run [OPTIONS] <NAME>... -- <CMD>...\n       redlatch run [OPTIONS] <NAME> -c <SCRIPT>",
        after_help = "The command's environment has REDLATCH_NAME, REDLATCH_HELD=1, REDLATCH_KIND, REDLATCH_OWNER, REDLATCH_LEASE_MS and \
                            REDLATCH_ACQUIRED_AT, with --fenced REDLATCH_TOKEN, and with --why REDLATCH_WHY. It has no password. \
                            REDLATCH_KIND is lock, fair, read, write or permits. The owner of a permit is its id. With several names, \
                            REDLATCH_NAME, REDLATCH_OWNER and REDLATCH_TOKEN have one line for each, in the order of the command line.\n\n\
                            A process that has REDLATCH_OWNER can enter, renew and release the hold. Nested runs of the same name \
                            enter the hold of the outer run, so two of them that run side by side do not exclude each other. Give such \
                            steps a name of their own.\n\n\
                            Of several names run holds all or none. While one is busy it holds none, and the loss of one is the loss \
                            of all.\n\n\
                            All users of a name use one kind of lock. A name that is taken with --shared or --exclusive once needs one \
                            of them everywhere. All users of permits give the same N. The first run sets the number of permits, and it \
                            stays.\n\n\
                            Exit codes: the command's own, 128 + the signal that ended it; 69 server unreachable, an answer that \
                            cannot be used, or too few replicas; 75 busy (see -E); 77 user, password or a right refused; 78 \
                            configuration; 80 lease lost; 124 --max-hold reached; 64 usage, and a name that is held as another kind of \
                            lock; 125 own failure; 126 not executable; 127 not found; 130, 143 interrupted while waiting. A signal \
                            during the release changes nothing."
    )]
    Run(Box<run::RunArgs>),
    /// Take a lock or a permit and leave it held when this command ends, for scripts.
    Lock(LockArgs),
    /// Release a lock or a permit that `lock` took.
    Unlock(UnlockArgs),
    /// Extend the lease of a lock or a permit that `lock` took.
    Renew(RenewArgs),
    /// Semaphores: set, acquire and release permits.
    Sem(sem::SemArgs),
    /// Latches: set a count, count down, wait for zero.
    Latch(latch::LatchArgs),
    /// Rate limiters: grant at most N permits in any interval.
    Rate(rate::RateArgs),
    /// List locks, permits and rate limiters.
    #[command(
        after_help = "WAITERS is the length of a fair lock's queue. For other kinds it is the number of clients that listen for \
                            a release. VALUE is the number of free permits, or the rate of a limiter.\n\n\
                            Semaphores and latches are bare numbers on the server, like any other counter. ls lists numbers only with \
                            --all or --kind counter."
    )]
    Ls(looking::LsArgs),
    /// Show one lock, semaphore, latch or rate limiter.
    ///
    /// An unused name is shown as free, with exit code 0.
    Show(looking::ShowArgs),
    /// Show what holds a name up: its holder, what that one waits for, and circles of waits.
    ///
    /// Who holds is what the server says. Who the holder is, for how long it has held and what it waits for is what its client told in the last half
    /// minute. Clients of Redisson tell nothing.
    Why(looking::WhyArgs),
    /// Watch locks, waits and clients on a whole terminal; `?` lists the keys.
    Top(looking::TopArgs),
    /// Serve locks, waits and clients as web pages and as metrics for Prometheus. They change nothing.
    #[command(
        after_help = "Every page but /healthz asks for a token: as the password of any user, or as a bearer token. Without --token-file, \
                            serve makes one and tells it on the terminal. There is no TLS: on other addresses than loopback, put a proxy \
                            with TLS before it."
    )]
    Serve(looking::ServeArgs),
    /// Take a lock or a permit away from its holder.
    ForceUnlock(ForceUnlockArgs),
    /// Check the server's settings and the account's rights.
    Doctor(DoctorArgs),
    /// Print the least rights that an account needs.
    #[command(after_help = acl::after_help())]
    Acl(acl::AclArgs),
    /// Print or load the library of server functions, for accounts that may not run scripts.
    Functions(FunctionsArgs),
    /// Start, stop and inspect the local engine.
    Engine(engine::EngineArgs),
    /// Act out a flash sale: with a script, with a lock, without protection.
    Demo(DemoArgs),
    /// Show the configuration.
    Config(ConfigArgs),
    /// Print a completion script for a shell.
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
    /// Columns, with a header on a terminal.
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
    /// Print a table, all columns (wide), json, ndjson or names.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum)]
    pub(crate) format: Option<Format>,
}

/// What to do when the lock is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfBusy {
    /// Wait as long as --wait says.
    Wait,
    /// Fail at once with exit code 75.
    Fail,
    /// Skip the work and succeed.
    Skip,
}

/// How long to wait, shared by `run` and `lock`.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct WaitArgs {
    /// Wait at most this long: seconds, a time such as 30s or 1h30m, or forever [default: forever]. With --wait, redlatch retries a
    /// server that is down at the start for the same time.
    #[arg(short, long, value_name = "TIME", value_parser = durations::parse_wait, conflicts_with = "no_wait")]
    pub(crate) wait: Option<durations::Wait>,
    /// Fail at once when the lock is busy, as --if-busy fail does.
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// What to do when the lock is busy.
    #[arg(long, value_name = "ACTION", value_enum, conflicts_with = "no_wait")]
    pub(crate) if_busy: Option<IfBusy>,
    /// Exit with this code when the lock stays busy [default: 75].
    #[arg(short = 'E', long, value_name = "CODE", value_parser = numbers::within::<u8>(0..=255))]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// `redlatch lock`.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// Hold it for this long. No process renews the lease.
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
    /// The kind that `lock` took. Without it redlatch looks on the server [env: REDLATCH_KIND, together with REDLATCH_OWNER].
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) kind: Option<HeldKind>,
}

/// `redlatch renew`.
#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// The owner that `lock` printed [env: REDLATCH_OWNER].
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<Holder>,
    /// The kind that `lock` took. Without it redlatch looks on the server [env: REDLATCH_KIND, together with REDLATCH_OWNER].
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) kind: Option<HeldKind>,
    /// Let the lease end this long from now. A lock keeps a longer lease. A permit gets exactly this one.
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
    pub(crate) lease: Duration,
}

/// `redlatch force-unlock`.
#[derive(Debug, Args)]
pub(crate) struct ForceUnlockArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// Take it from this holder, as `show` prints it. Another holder keeps it.
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
    /// The kind of hold. Without it redlatch looks on the server.
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) kind: Option<HeldKind>,
    /// Tell the holder this reason.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Tell the holder this name [default: user and machine].
    #[arg(long, value_name = "TEXT")]
    pub(crate) by: Option<String>,
    /// Do not ask for confirmation.
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
    /// Print the library as FUNCTION LOAD takes it.
    Show,
    /// Load the library into the server: Redis 7.0 or later, or Valkey.
    ///
    /// The account needs the right to load functions. Loading again replaces the library in one step. Its name has the number of the
    /// script set, so libraries of several versions stay side by side during an upgrade. FUNCTION DELETE removes an old one. Clients
    /// call the library when their configuration has `scripts = "functions"`.
    Load,
}

/// `redlatch doctor`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("about").args(["name", "prefix"]).multiple(true))]
pub(crate) struct DoctorArgs {
    /// Check that the keys and channels of these names share a cluster slot.
    #[arg(value_name = "NAME")]
    pub(crate) name: Vec<String>,
    /// Check names in use that begin with this, and try the account's rights on unused names that begin with it. An empty prefix
    /// means all names.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Check only these kinds, separated by commas [default: all but look].
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = acl::kind, requires = "about")]
    pub(crate) kind: Vec<redlatch::acl::Kind>,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Let this many processes buy at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = numbers::within::<u16>(2..=64))]
    pub(crate) workers: u16,
    /// Offer this many items.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = numbers::within::<u32>(1..=10_000))]
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
    /// Print every setting and its origin. Secrets stay hidden.
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

    #[test]
    fn run_alone_reads_what_the_whole_command_reads() {
        let read = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let whole = Cli::try_parse_from(&words).ok().map(|cli| format!("{cli:?}"));
            (run_alone(&words).map(|cli| format!("{cli:?}")), whole)
        };
        for line in [
            "redlatch run x -- true",
            "redlatch run a b --shared a --exclusive b -- true --help",
            "redlatch run -qn x -- true",
            "redlatch run x -c true",
            "redlatch run -w 5 --url local:x x --context c -- sh -c true",
            "redlatch run x --lease=9s --why why --at-least 2s --report f -vv -- true",
            "redlatch run --permits 3 --config f x -- true",
        ] {
            let (alone, whole) = read(line);
            assert!(alone.is_some(), "{line}");
            assert_eq!(alone, whole, "{line}");
        }
        for line in [
            "redlatch",
            "redlatch run",
            "redlatch run x",
            "redlatch run x true",
            "redlatch run --help",
            "redlatch run x --version",
            "redlatch run -q -v x -- true",
            "redlatch run help",
            "redlatch -q run x -- true",
            "redlatch ls",
        ] {
            assert_eq!(read(line).0, None, "{line}");
        }
    }

    /// Every text of the help of `command` and of the verbs below it.
    fn texts(command: &clap::Command) -> Vec<String> {
        let own = [command.get_about(), command.get_long_about(), command.get_after_help()];
        let options = command.get_arguments().flat_map(|arg| {
            let values = arg.get_possible_values();
            let values = values.iter().filter_map(|value| value.get_help().map(ToString::to_string));
            let texts = [arg.get_help(), arg.get_long_help()].into_iter().flatten().map(ToString::to_string);
            texts.chain(values).collect::<Vec<_>>()
        });
        let below = command.get_subcommands().flat_map(texts);
        own.into_iter().flatten().map(ToString::to_string).chain(options).chain(below).collect()
    }

    #[test]
    fn help_names_the_actor() {
        let vague = [
            "whoever",
            "whom",
            "somebody",
            "nobody",
            "anybody",
            "everybody",
            "so often",
            "so many",
            "in how long",
        ];
        for text in texts(&command(false)) {
            let words = text.to_lowercase();
            assert!(!vague.iter().any(|word| words.contains(word)), "{text}");
        }
    }
}
