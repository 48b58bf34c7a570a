//! `redlatch acl`.

use clap::Args;
use redlatch::acl::Kind;

use super::Output;

/// What comes after the options.
pub(super) fn after_help() -> String {
    let kinds = Kind::ALL.map(|kind| match kind.note() {
        "" => kind.word().to_owned(),
        note => format!("{} ({note})", kind.word()),
    });
    format!(
        "Without --user, acl prints one line for each kind: its rules, as they follow the name in ACL \
         SETUSER. With --user, acl prints one line `user NAME on …` for all of the kinds, as a users file takes it. ACL SETUSER takes that line \
         without its first word. The line has no password: add one, as >password or #hash.\n\n\
         Kinds: {}.\n\n\
         Scripts run with the rights of the account that calls them. An account that may lock under a prefix may also end the locks of \
         other accounts there. Accounts that must not end each other's locks need a prefix each.",
        kinds.join(", ")
    )
}

/// `redlatch acl`.
#[derive(Debug, Args)]
pub(crate) struct AclArgs {
    /// Prefix of the names that the account locks. An empty one means all names.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: String,
    /// Print the rules of these kinds only, separated by commas [default: all].
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    pub(crate) kind: Vec<Kind>,
    /// Print one account with this name and the rules of all the kinds.
    #[arg(long, value_name = "NAME", value_parser = user)]
    pub(crate) user: Option<String>,
    /// Let the account call functions that an operator has loaded, and no script.
    #[arg(long)]
    pub(crate) functions: bool,
    /// Add what Redisson needs, for Java services that use the same account.
    #[arg(long, conflicts_with = "functions")]
    pub(crate) redisson: bool,
    /// Print rules for a cluster.
    #[arg(long)]
    pub(crate) cluster: bool,
    /// Leave out sharded messages. A cluster of Redis below 7.0 refuses rules with commands that it lacks.
    #[arg(long, requires = "cluster")]
    pub(crate) no_sharded: bool,
    /// Add what grants need that wait for replicas.
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
        return Err("give a name without blanks and quotes".into());
    }
    Ok(text.to_owned())
}
