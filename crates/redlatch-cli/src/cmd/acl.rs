//! `redlatch acl`: the least rights that an account needs.

use redlatch::acl::{Kind, Rights};
use serde::Serialize;

use super::Context;
use crate::{
    args::acl::AclArgs,
    exit::{self, Failure},
    output::{self, Record},
};

/// The rights for one kind, or of one account.
#[derive(Debug, Serialize)]
struct Row {
    kinds: Vec<&'static str>,
    user: Option<String>,
    commands: Vec<&'static str>,
    /// Patterns, without the sign before them.
    keys: Vec<String>,
    channels: Vec<String>,
    /// The whole line.
    rules: String,
}

impl Record for Row {
    const COLUMNS: &'static [&'static str] = &["KIND", "RULES"];
    const NARROW: usize = 2;

    fn cells(&self) -> Vec<String> {
        vec![self.kinds.join(","), self.rules.clone()]
    }

    fn name(&self) -> String {
        self.rules.clone()
    }
}

pub(super) fn acl(args: &AclArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let kinds = if args.kind.is_empty() { &Kind::ALL[..] } else { &args.kind };
    let row = |kinds: &[Kind]| {
        let rights = Rights::of(kinds, &args.prefix)
            .functions(args.functions)
            .redisson(args.redisson)
            .cluster(args.cluster)
            .sharded(!args.no_sharded)
            .acknowledged(args.acknowledged);
        let rules = match &args.user {
            Some(user) => format!("user {user} on {rights}"),
            None => rights.rules(),
        };
        Row {
            kinds: rights.kinds().iter().map(|kind| kind.word()).collect(),
            user: args.user.clone(),
            commands: rights.commands(),
            keys: rights.keys(),
            channels: rights.channels(),
            rules,
        }
    };
    let format = output::format(args.output, &settings);
    if args.user.is_none() {
        let rows: Vec<Row> = kinds.iter().map(|kind| row(&[*kind])).collect();
        output::list(format, &rows)?;
        return Ok(exit::OK);
    }
    match args.output.format {
        // A line that is meant for a file comes alone.
        None => output::emit(&format!("{}\n", row(kinds).rules))?,
        Some(format) => output::one(format, &row(kinds))?,
    }
    Ok(exit::OK)
}
