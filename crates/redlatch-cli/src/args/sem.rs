//! The options of `redlatch sem`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};

use super::{Output, WaitArgs, numbers};
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
    /// Set the number of permits of a new semaphore.
    #[command(after_help = "Exit codes: 75 when the number is set already (0 with --if-absent).")]
    Set {
        /// The semaphore.
        name: OsString,
        /// Number of permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", value_parser = numbers::within::<u32>(numbers::COUNT))]
        permits: u32,
        /// Delete the semaphore after this long, even while permits are taken.
        #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
        ttl: Option<Duration>,
        /// Succeed and change nothing when the number is set already.
        #[arg(long)]
        if_absent: bool,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Wait for permits and take all of them at once.
    #[command(
        after_help = "Permits have no owner and no lease. A script gives back what it took with `release`. Permits of a crashed \
                            script stay taken. `redlatch run --permits N` gives them back in any case.\n\n\
                            Exit codes: 75 too few free in time (see -E); 80 no permits are set; 130, 143 interrupted, with nothing \
                            taken."
    )]
    Acquire {
        /// The semaphore.
        name: OsString,
        /// Number of permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", default_value_t = 1, value_parser = numbers::within::<u32>(numbers::COUNT))]
        permits: u32,
        /// Waiting.
        #[command(flatten)]
        wait: WaitArgs,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Give permits back.
    #[command(
        after_help = "The server does not check that they were taken before.\n\nExit codes: 80 when no permits are set."
    )]
    Release {
        /// The semaphore.
        name: OsString,
        /// Number of permits, 1 to 2147483647.
        #[arg(value_name = "PERMITS", default_value_t = 1, value_parser = numbers::within::<u32>(numbers::COUNT))]
        permits: u32,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Show the number of free permits.
    Show(Which),
    /// Change the number of permits and print how many are free.
    Add {
        /// The semaphore. Redlatch creates a missing one.
        name: OsString,
        /// Permits to add, or with a minus sign to take away. Fewer than zero may then be free.
        #[arg(value_name = "CHANGE", allow_negative_numbers = true, value_parser = numbers::within::<i32>(i32::MIN.into()..=i32::MAX.into()))]
        change: i32,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Take all free permits and print their number.
    Drain(Which),
    /// Delete the semaphore, even while permits are taken.
    #[command(after_help = "Exit codes: 80 when no permits are set.")]
    Delete(Which),
}
