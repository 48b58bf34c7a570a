//! The engine behind Redlatch's `memory:` and `local:` stores: a small keyspace that runs lock scripts on Lua 5.1.
//!
//! It implements the commands in [`COMMANDS`] with the semantics of Redis and nothing else: one machine, no
//! replication, no cluster. [`Engine`] does no input or output; time, messages and the journal come in from outside.

mod clock;
mod command;
pub mod connect;
mod connect_error;
pub mod daemon;
mod effect;
mod engine;
mod fast_hash;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod journal;
mod keyspace;
mod lua;
mod lua_pattern;
mod lua_struct;
mod lua_text;
mod number;
mod place;
mod publisher;
mod recovery;
mod trace;
mod value;

pub use clock::{Clock, ManualClock, SystemClock};
pub use command::{COMMANDS, writes};
pub use effect::Effect;
pub use engine::{DumpedKey, Engine, Journal, NoJournal};
pub use glob::matches as glob_matches;
pub use publisher::Publisher;
pub use recovery::only_takes_away;
pub use value::{EngineError, Value};
