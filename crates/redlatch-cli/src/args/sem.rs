//! The options of `redlatch sem`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};

use super::{Output, WaitArgs};
use crate::durations;

/// `redlatch sem`.
#[derive(Debug, Args)]
pub(crate) struct SemArgs {
    /// What to do with the semaphore.
    #[command(subcommand)]
    pub(crate) verb: SemVerb,
}

/// Which semaphore, and how to print what it says.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The semaphore.
    pub(crate) name: OsString,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch sem …`.
#[derive(Debug, Subcommand)]
pub(crate) enum SemVerb {
    /// Set the number of permits, if nobody has yet.
    #[command(after_help = "Exit codes: 75 when somebody has set it already (0 with --if-absent).")]
    Set {
        /// The semaphore.
        name: OsString,
        /// How many permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
        permits: u32,
        /// Let the semaphore disappear after this time, whoever has permits of it.
        #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
        ttl: Option<Duration>,
        /// Succeed without changing anything when somebody has set it already.
        #[arg(long)]
        if_absent: bool,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Wait for permits and take them, all at once.
    #[command(
        after_help = "Permits have no owner and no lease: whoever takes them gives them back with `release`, and what a crashed \
                            script took stays taken. Where that is not acceptable, use `redlatch run`.\n\n\
                            Exit codes: 75 too few free in time (see -E); 80 nobody has set permits; 130, 143 interrupted, with \
                            nothing taken."
    )]
    Acquire {
        /// The semaphore.
        name: OsString,
        /// How many permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
        permits: u32,
        /// Waiting.
        #[command(flatten)]
        wait: WaitArgs,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Put permits back.
    #[command(
        after_help = "Nothing checks that they were taken before.\n\nExit codes: 80 when there is no such semaphore."
    )]
    Release {
        /// The semaphore.
        name: OsString,
        /// How many permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
        permits: u32,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Show how many permits are free.
    Show(Which),
    /// Change the number of permits, and print how many are free then.
    Add {
        /// The semaphore; it is created if there is none.
        name: OsString,
        /// By how many, below 0 to take permits out; the number of free ones may become negative.
        #[arg(value_name = "CHANGE", allow_negative_numbers = true)]
        change: i32,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Take all free permits, and print how many there were.
    Drain(Which),
    /// Delete the semaphore, whoever has permits of it.
    #[command(after_help = "Exit codes: 80 when there is no such semaphore.")]
    Delete(Which),
}
