//! The library with its connections: over simulated TCP to simulated servers that run the scripts that are shipped.

mod authority;
mod cluster;
mod net;
mod node;
mod operator;
mod play;
mod sentinel;
mod wire;

pub(super) use self::play::{cluster, replicated, sentinel, single};
