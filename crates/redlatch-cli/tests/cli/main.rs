//! The `redlatch` command as its users run it: real processes on a private local engine, and on a real Redis.

mod acl;
mod apart;
mod completions;
mod config;
mod dead;
mod demo;
mod habits;
mod hold;
mod interrupted;
mod kinds;
mod kinds_detached;
mod latch;
mod layout;
mod leaving;
mod looking;
mod place;
mod privileged;
mod rate;
mod run;
mod sem;
mod signals;
mod support;
mod tidied;
mod told;
mod trouble;
mod verbs;
