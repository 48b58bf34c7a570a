//! The verbs, one file each.

use std::{env, ffi::OsString, os::unix::ffi::OsStringExt};

use clap::ValueEnum;
use redlatch::{LockKind, LockName};

use crate::{
    args::{Cli, Global, Verb, kind::HeldKind, looking::Names},
    config::{Settings, Surroundings},
    exit::{self, Failure},
    run::kind::Holder,
    snapshot::Scope,
    talk::Talk,
};

mod acl;
mod apart;
mod completions;
mod config;
mod count;
mod demo;
mod doctor;
mod engine;
mod force_unlock;
mod functions;
mod latch;
mod lock;
mod ls;
mod man;
mod offered;
mod rate;
mod renew;
mod run;
mod sem;
mod serve;
mod show;
mod top;
mod unlock;
mod why;

/// What every verb gets.
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) talk: Talk,
}

impl Context {
    /// The settings in force.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        Settings::load(&self.global, &Surroundings::of_process())
    }

    /// The settings for those who only look at them.
    pub(crate) fn settings_to_show(&self) -> Result<Settings, Failure> {
        Settings::look(&self.global, &Surroundings::of_process())
    }
}

/// Does what the command line says and answers the exit code.
///
/// # Errors
///
/// Those of the verb.
pub(crate) fn dispatch(cli: Cli, talk: Talk) -> Result<u8, Failure> {
    let context = Context { global: cli.global, talk };
    match cli.verb {
        Verb::Run(args) => run::run(*args, &context),
        Verb::Lock(args) => lock::lock(args, &context),
        Verb::Unlock(args) => unlock::unlock(args, &context),
        Verb::Renew(args) => renew::renew(args, &context),
        Verb::Sem(args) => sem::sem(args, &context),
        Verb::Latch(args) => latch::latch(args, &context),
        Verb::Rate(args) => rate::rate(args, &context),
        Verb::Ls(args) => ls::ls(&args, &context),
        Verb::Show(args) => show::show(args, &context),
        Verb::Why(args) => why::why(args, &context),
        Verb::Serve(args) => serve::serve(&args, &context),
        Verb::Top(args) => top::top(&args, &context),
        Verb::ForceUnlock(args) => force_unlock::force_unlock(args, &context),
        Verb::Acl(args) => acl::acl(&args, &context),
        Verb::Functions(args) => functions::functions(&args, &context),
        Verb::Doctor(args) => doctor::doctor(&args, &context),
        Verb::Engine(args) => engine::engine(args, &context),
        Verb::Demo(args) => demo::demo(&args, &context),
        Verb::Config(args) => config::config(&args, &context),
        Verb::Completions { shell } => completions::completions(shell),
        Verb::Man { dir } => man::man(&dir),
        Verb::DemoWorker(args) => demo::worker(&args, &context),
        Verb::Complete { words } => completions::complete(&words, &context),
    }
}

/// What to look at, at most so many names.
fn scope(names: &Names, limit: u32) -> Scope {
    let kinds = if names.all { LockKind::LISTED.to_vec() } else { names.kind.clone() };
    Scope { kinds, glob: names.glob.clone(), limit: usize::try_from(limit).unwrap_or(usize::MAX) }
}

/// A lock name from the command line: any bytes.
fn lock_name(raw: OsString) -> Result<LockName, Failure> {
    Ok(LockName::new(raw.into_vec())?)
}

/// The owner of a detached hold, and its kind if that is known: the flags, else what `lock --export` put into the environment.
fn owner(flag: Option<Holder>, kind: Option<HeldKind>) -> Result<(Holder, Option<HeldKind>), Failure> {
    if let Some(owner) = flag {
        return Ok((owner, kind));
    }
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let Some(text) = variable("REDLATCH_OWNER") else {
        return Err(Failure::usage(
            "no owner was given; pass --owner ID or set REDLATCH_OWNER to what `redlatch lock` printed",
        ));
    };
    let owner = text
        .parse()
        .map_err(|error: redlatch::Error| Failure::new(exit::USAGE, format!("REDLATCH_OWNER: {error}")))?;
    // An unknown word is one of a later version: then looking has to do.
    let known = variable("REDLATCH_KIND").and_then(|word| HeldKind::from_str(&word, false).ok());
    Ok((owner, kind.or(known)))
}
