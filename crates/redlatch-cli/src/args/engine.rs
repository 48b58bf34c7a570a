//! The options of `redlatch engine`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueHint};

use super::{Output, numbers};
use crate::durations;

/// `redlatch engine`.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// What to do with the engine.
    #[command(subcommand)]
    pub(crate) verb: EngineVerb,
}

/// Which local engine.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Which {
    /// Name of the engine, as in local:NAME. Without it all verbs but `run` take it from the URL.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Directory of the engine, an absolute path, as in local:///DIR. Without it all verbs but `run` take it from the URL.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

/// `redlatch engine …`.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineVerb {
    /// Run an engine in this process until it is stopped. Clients of local: start one by themselves.
    Run(EngineRunArgs),
    /// Start the engine if none runs.
    Start(Which),
    /// Stop the engine. It refuses while it holds locks or permits with leases.
    Stop {
        /// Which engine.
        #[command(flatten)]
        which: Which,
        /// Stop the engine although it holds locks or permits. Its journal keeps their leases.
        #[arg(long)]
        force: bool,
    },
    /// Print whether the engine runs, since when, and what it holds.
    Status {
        /// Which engine.
        #[command(flatten)]
        which: Which,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Print the engine's log.
    Logs {
        /// Which engine.
        #[command(flatten)]
        which: Which,
        /// Print only the last N lines.
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = numbers::within::<u32>(0..=u32::MAX.into()))]
        lines: u32,
    },
}

/// `redlatch engine run`.
#[derive(Debug, Args)]
pub(crate) struct EngineRunArgs {
    /// Which engine.
    #[command(flatten)]
    pub(crate) which: Which,
    /// Listen on this socket [default: in the directory].
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// Serve all users in the group of the directory, and run until stopped unless --idle-exit is given.
    #[arg(long)]
    pub(crate) shared: bool,
    /// Exit after this long without clients and locks, or never [default: 10m].
    #[arg(long, value_name = "TIME", value_parser = durations::parse_idle)]
    pub(crate) idle_exit: Option<durations::Wait>,
    /// Serve other clients too, such as redis-cli and Redisson, and run their scripts.
    #[arg(long)]
    pub(crate) compat: bool,
    /// With --compat, store nothing more while the engine uses more memory than this (512M, 2G) [default: 1G].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "compat")]
    pub(crate) memory_max: Option<u64>,
    /// Listen on this loopback address as well; needs --compat. There is no password: every user of the machine can connect, and see and change every lock.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = numbers::address, requires = "compat")]
    pub(crate) listen: Option<SocketAddr>,
}

/// A number of bytes, or of K, M or G of them.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "give a number of bytes, or a size such as 512M or 2G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            (size("7"), size("2k"), size("512M"), size("1G")),
            (Ok(7), Ok(2048), Ok(512 << 20), Ok(1 << 30))
        );
        for bad in ["", "G", "0", "-1M", "1T", "99999999999G", "1.5G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
