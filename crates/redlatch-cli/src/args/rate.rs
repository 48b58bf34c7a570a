//! The options of `redlatch rate`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};

use super::{Output, WaitArgs};
use crate::durations;

/// `redlatch rate`.
#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    /// What to do with the rate limiter.
    #[command(subcommand)]
    pub(crate) verb: RateVerb,
}

/// `redlatch rate …`.
#[derive(Debug, Subcommand)]
pub(crate) enum RateVerb {
    /// Set how many permits there are in any interval; what was taken is forgotten.
    #[command(
        after_help = "Exit codes: 80 with --update, when nobody has set a rate.\n\nFor example: redlatch rate set mails 100 --per 1m"
    )]
    Set {
        /// The rate limiter.
        name: OsString,
        /// How many permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
        permits: u32,
        /// In how long.
        #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
        per: Duration,
        /// For each client on its own, not for all together. Every call of `redlatch` is a client of its own.
        #[arg(long)]
        per_client: bool,
        /// Forget the rate limiter when nobody has asked for permits for this long, which is no shorter than --per.
        #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
        keep_alive: Option<Duration>,
        /// Change nothing, and succeed, when somebody has set a rate already.
        #[arg(long)]
        if_absent: bool,
        /// Change the rate of a limiter that is there, and remember what was taken.
        #[arg(long, conflicts_with = "if_absent")]
        update: bool,
    },
    /// Wait for permits and take them, all at once.
    #[command(
        after_help = "Permits come free by themselves when their interval is over. With --wait this ends as soon as it is known \
                            that the time is too short.\n\n\
                            Exit codes: 75 too few free in time (see -E); 80 nobody has set a rate; 130, 143 interrupted, with \
                            nothing taken."
    )]
    Acquire {
        /// The rate limiter.
        name: OsString,
        /// How many permits, 1 to the rate.
        #[arg(value_name = "PERMITS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
        permits: u32,
        /// Waiting.
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Show the rate, and how many permits are free now.
    #[command(after_help = "Without a rate it says that none exists, with exit code 0.")]
    Show {
        /// The rate limiter.
        name: OsString,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Delete the rate limiter, whoever waits for it.
    #[command(after_help = "Exit codes: 80 when there is none.")]
    Delete {
        /// The rate limiter.
        name: OsString,
    },
}
