//! The verbs that look at locks, and which names they look at.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueHint};
use redlatch::LockKind;

use super::{Output, kind, numbers};
use crate::durations;

/// Which names are shown.
#[derive(Debug, Clone, Args)]
pub(crate) struct Names {
    /// Show only names that match this pattern of `*`, `?` and `[abc]`.
    pub(crate) glob: Option<String>,
    /// Show only these kinds, separated by commas.
    #[arg(long, value_name = "KIND", value_parser = kind::listed(), value_delimiter = ',', conflicts_with = "all")]
    pub(crate) kind: Vec<LockKind>,
    /// Show every kind, bare numbers included.
    #[arg(long)]
    pub(crate) all: bool,
}

/// `redlatch ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// The names.
    #[command(flatten)]
    pub(crate) names: Names,
    /// List again after each TIME until interrupted [default: 2s].
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = durations::parse_positive)]
    pub(crate) watch: Option<Duration>,
    /// List at most this many names.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = numbers::within::<u32>(1..=100_000))]
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

/// `redlatch why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The lock.
    pub(crate) name: OsString,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The names.
    #[command(flatten)]
    pub(crate) names: Names,
    /// Look at the server again after each TIME.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = durations::parse_positive)]
    pub(crate) interval: Duration,
    /// Show at most this many names.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = numbers::within::<u32>(1..=100_000))]
    pub(crate) limit: u32,
    /// Tell a holder that loses its lock this name [default: user and machine].
    #[arg(long, value_name = "TEXT")]
    pub(crate) by: Option<String>,
}

/// `redlatch serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The names.
    #[command(flatten)]
    pub(crate) names: Names,
    /// Listen on this address; port 0 is any free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7117")]
    pub(crate) listen: SocketAddr,
    /// Read the token that every request has to know from this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
    /// Let a person who knows the token take a name from its holder.
    #[arg(long)]
    pub(crate) allow_actions: bool,
    /// Look at the server at most once in each TIME, however many pages are open.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = durations::parse_positive)]
    pub(crate) interval: Duration,
    /// Show at most this many names.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = numbers::within::<u32>(1..=100_000))]
    pub(crate) limit: u32,
}
