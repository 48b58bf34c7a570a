//! `redlatch acl`.

use clap::Args;
use redlatch::acl::Kind;

use super::Output;

/// What comes after the options.
pub(super) const AFTER_HELP: &str = "Without --user there is one line for each kind: its rules, as they follow the name in \
    ACL SETUSER. With --user there is one line `user NAME on …` for all of the kinds, as a users file takes it; without its first \
    word it is what follows ACL SETUSER. No password is in it: add one, as >password or #hash.\n\n\
    Kinds: lock (also non-reentrant locks and sets of locks), fenced (tokens, also those of other kinds: fair,fenced), fair, \
    spin, read-write, semaphore, permits, latch, rate-limiter, stock, look (ls and show, and nothing else).\n\n\
    Scripts run with the rights of whoever calls them. So everybody who may lock under a prefix may also end the locks of \
    others there; those who must not need a prefix and an account of their own.";

/// `redlatch acl`.
#[derive(Debug, Args)]
pub(crate) struct AclArgs {
    /// What the names of the account's locks begin with; empty for all names.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: String,
    /// Only these kinds, with commas between them [default: all].
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    pub(crate) kind: Vec<Kind>,
    /// Print one account of this name for all of the kinds.
    #[arg(long, value_name = "NAME", value_parser = user)]
    pub(crate) user: Option<String>,
    /// The account calls functions that an operator has loaded, and may run no script.
    #[arg(long)]
    pub(crate) functions: bool,
    /// Java services use the account, too: add what Redisson needs.
    #[arg(long, conflicts_with = "functions")]
    pub(crate) redisson: bool,
    /// The servers are a cluster.
    #[arg(long)]
    pub(crate) cluster: bool,
    /// Without sharded messages, for a cluster of Redis below 7.0, which takes no rules with commands that it does not know.
    #[arg(long, requires = "cluster")]
    pub(crate) no_sharded: bool,
    /// Grants wait for replicas.
    #[arg(long)]
    pub(crate) acknowledged: bool,
    /// Output.
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A kind by its word.
///
/// # Errors
///
/// The words there are.
pub(crate) fn kind(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.word() == text);
    found.ok_or_else(|| format!("give one of {}", Kind::ALL.map(Kind::word).join(", ")))
}

fn user(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'".contains(c)) {
        return Err("an account's name has no blanks and no quotes".into());
    }
    Ok(text.to_owned())
}
