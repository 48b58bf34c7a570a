//! The options of `redlatch rate`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};

use super::{Output, WaitArgs, numbers};
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
    /// Set the rate and forget the permits that were taken.
    #[command(
        after_help = "Exit codes: 80 with --update when no rate is set.\n\nFor example: redlatch rate set mails 100 --per 1m"
    )]
    Set {
        /// The rate limiter.
        name: OsString,
        /// Permits in each interval, 1 to 2147483647.
        #[arg(value_name = "PERMITS", value_parser = numbers::within::<u32>(numbers::COUNT))]
        permits: u32,
        /// Length of the interval.
        #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
        per: Duration,
        /// Give each client this rate of its own. Each call of `redlatch` is a client.
        #[arg(long)]
        per_client: bool,
        /// Delete the limiter after this long without requests; at least --per.
        #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
        keep_alive: Option<Duration>,
        /// Succeed and change nothing when a rate is set already.
        #[arg(long)]
        if_absent: bool,
        /// Change the rate and remember the permits that were taken.
        #[arg(long, conflicts_with = "if_absent")]
        update: bool,
    },
    /// Wait for permits and take all of them at once.
    #[command(
        after_help = "Permits come free when their interval is over. With --wait, acquire fails as soon as it knows that the \
                            time is too short.\n\n\
                            Exit codes: 75 too few free in time (see -E); 80 no rate is set; 130, 143 interrupted, with nothing taken."
    )]
    Acquire {
        /// The rate limiter.
        name: OsString,
        /// Permits to take, 1 to the rate.
        #[arg(value_name = "PERMITS", default_value_t = 1, value_parser = numbers::within::<u32>(numbers::COUNT))]
        permits: u32,
        /// Waiting.
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Show the rate and the number of free permits.
    #[command(after_help = "A name without a rate is shown as such, with exit code 0.")]
    Show {
        /// The rate limiter.
        name: OsString,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Delete the rate limiter and fail its waiters.
    #[command(after_help = "Exit codes: 80 when no rate is set.")]
    Delete {
        /// The rate limiter.
        name: OsString,
    },
}
