//! The options of `redlatch engine`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueHint};

use super::Output;
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
    /// The engine's name, as in local:NAME; taken from the URL unless given.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The engine's directory, an absolute path, as in local:///DIR; taken from the URL unless given.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

/// `redlatch engine …`.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineVerb {
    /// Run the engine in the foreground of its own session; this is what starts by itself.
    Run(EngineRunArgs),
    /// Start the engine unless it runs.
    Start(Which),
    /// Stop the engine; refuses while locks are held.
    Stop {
        /// Which engine.
        #[command(flatten)]
        which: Which,
        /// Stop it although locks are held. Their leases are kept in the journal.
        #[arg(long)]
        force: bool,
    },
    /// Say whether the engine runs, since when, and what it holds.
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
        /// Only the last lines.
        #[arg(long, value_name = "N", default_value_t = 200)]
        lines: u32,
    },
}

/// `redlatch engine run`.
#[derive(Debug, Args)]
pub(crate) struct EngineRunArgs {
    /// Which engine.
    #[command(flatten)]
    pub(crate) which: Which,
    /// The socket to listen on.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// Serve all users in the group of the directory, and stay until stopped unless --idle-exit is given.
    #[arg(long)]
    pub(crate) shared: bool,
    /// Exit after this long without clients and without locks, or never [default: 10m].
    #[arg(long, value_name = "TIME", value_parser = durations::parse_idle)]
    pub(crate) idle_exit: Option<durations::Wait>,
    /// Let other clients in, such as redis-cli and Redisson: any script, not only our own.
    #[arg(long)]
    pub(crate) compat: bool,
    /// With --compat, refuse to keep more while this much memory is in use (512M, 2G) [default: 1G].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "compat")]
    pub(crate) memory_max: Option<u64>,
    /// Listen on this loopback address as well; needs --compat.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "compat")]
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
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "not a size such as 512M or 2G".into())
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
