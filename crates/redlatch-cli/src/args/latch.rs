//! The options of `redlatch latch`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::{Output, WaitArgs};

/// `redlatch latch`.
#[derive(Debug, Args)]
pub(crate) struct LatchArgs {
    /// What to do with the latch.
    #[command(subcommand)]
    pub(crate) verb: LatchVerb,
}

/// Which latch, and how to print what it says.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The latch.
    pub(crate) name: OsString,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `redlatch latch …`.
#[derive(Debug, Subcommand)]
pub(crate) enum LatchVerb {
    /// Close the latch until it has been counted down so often.
    #[command(after_help = "Exit codes: 75 when the latch is closed already (0 with --if-absent).")]
    Set {
        /// The latch.
        name: OsString,
        /// How many steps, 1 to 2147483647.
        #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
        count: u32,
        /// Succeed without changing anything when the latch is closed already.
        #[arg(long)]
        if_absent: bool,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Count down by one, and print what is left. The last step opens the latch; on an open one nothing happens.
    Down(Which),
    /// Wait until the latch is open. One that nobody has set is open.
    #[command(after_help = "Exit codes: 75 not open in time (see -E); 130, 143 interrupted.")]
    Wait {
        /// The latch.
        name: OsString,
        /// Waiting.
        #[command(flatten)]
        wait: WaitArgs,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Show what is left.
    Show(Which),
    /// Delete the count and let everybody through.
    #[command(after_help = "Exit codes: 80 when there is no such latch.")]
    Delete(Which),
}
