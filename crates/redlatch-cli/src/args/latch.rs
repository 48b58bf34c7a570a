//! The options of `redlatch latch`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::{Output, WaitArgs, numbers};

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
    /// Set the count and close the latch until the count is zero.
    #[command(after_help = "Exit codes: 75 when the latch is closed already (0 with --if-absent).")]
    Set {
        /// The latch.
        name: OsString,
        /// The count, 1 to 2147483647.
        #[arg(value_name = "COUNT", value_parser = numbers::within::<u32>(numbers::COUNT))]
        count: u32,
        /// Succeed and keep the count when the latch is closed already.
        #[arg(long)]
        if_absent: bool,
        /// Output.
        #[command(flatten)]
        output: Output,
    },
    /// Count down by one and print the rest. At zero the latch opens. An open latch stays open.
    Down(Which),
    /// Wait until the latch is open. A latch without a count is open.
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
    /// Show the count.
    Show(Which),
    /// Delete the latch and let all waiters through.
    #[command(after_help = "Exit codes: 80 when the latch has no count.")]
    Delete(Which),
}
