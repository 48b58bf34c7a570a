//! Which store a URL means (decision D3). Parse errors never repeat the URL, because it may hold a password.

mod parse;
#[cfg(test)]
mod tests;

pub(crate) use parse::STRICT_KEYS;

use std::{fmt, path::PathBuf};

use super::addr::Addr;
use crate::{
    config::{AddressMap, ScriptMode, Secret, ShardedPubSub},
    error::Error,
};

/// A parsed store URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// `memory:` (a new private engine for each client that is connected) or `memory:name` (shared by that name within the process). With `?strict_keys` at the end
    /// the engine refuses keys that a script has not declared, as some servers do.
    Memory {
        /// The shared engine's name.
        name: Option<String>,
    },
    /// `local:` or `local:name`: the per-user daemon on a unix socket. `local:///directory`: the daemon of that directory, which
    /// may be one for several users.
    Local {
        /// The daemon's name, for isolated daemons.
        name: Option<String>,
        /// Its directory, if the URL names one.
        dir: Option<PathBuf>,
    },
    /// One Redis or Valkey server.
    Redis(Server),
    /// A master that sentinels watch over.
    Sentinel(Sentinels),
    /// Redis or Valkey Cluster.
    Cluster(Nodes),
    /// A master and its replicas without sentinels; which is which is asked of them.
    Replicated(Nodes),
}

/// How to log in, the same for every server of a set.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Secret,
    pub(crate) database: i64,
}

/// What a URL says about the client rather than about the store. Settings of the builder win.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UrlOptions {
    pub(crate) sharded: Option<ShardedPubSub>,
    pub(crate) scripts: Option<ScriptMode>,
    pub(crate) address_map: Option<AddressMap>,
}

/// One server: where it is and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    pub(crate) addr: Addr,
    pub(crate) access: Access,
}

/// Several servers with the same way to log in: those that the others are asked of.
#[derive(Clone, PartialEq, Eq)]
pub struct Nodes {
    pub(crate) addrs: Vec<Addr>,
    pub(crate) access: Access,
}

/// Sentinels, and the master that they know by name.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinels {
    pub(crate) sentinels: Nodes,
    /// The name that the sentinels have for the master.
    pub(crate) master: String,
    /// How to log in to the master, which has credentials of its own.
    pub(crate) access: Access,
}

impl fmt::Display for Nodes {
    /// The addresses without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, addr) in self.addrs.iter().enumerate() {
            write!(f, "{}{addr}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Sentinels {
    /// The sentinels and the master's name, without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.access.tls { "rediss-sentinel" } else { "redis-sentinel" };
        write!(f, "{scheme}://{}/{}", self.sentinels, self.master)?;
        if self.access.database != 0 {
            write!(f, " database {}", self.access.database)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Server {
    /// The server without its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.addr {
            Addr::Tcp { .. } => {
                write!(f, "{}://{}", if self.access.tls { "rediss" } else { "redis" }, self.addr)?
            }
            Addr::Unix(_) => write!(f, "unix://{}", self.addr)?,
        }
        if self.access.database != 0 {
            write!(f, " database {}", self.access.database)?;
        }
        Ok(())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory { name } => write!(f, "memory:{}", name.as_deref().unwrap_or("")),
            StoreUrl::Local { dir: Some(dir), .. } => write!(f, "local://{}", dir.display()),
            StoreUrl::Local { name, dir: None } => write!(f, "local:{}", name.as_deref().unwrap_or("")),
            StoreUrl::Redis(server) => server.fmt(f),
            StoreUrl::Sentinel(sentinels) => sentinels.fmt(f),
            StoreUrl::Cluster(nodes) => {
                write!(f, "{}://{nodes}", if nodes.access.tls { "rediss-cluster" } else { "redis-cluster" })
            }
            StoreUrl::Replicated(nodes) => {
                write!(
                    f,
                    "{}://{nodes}",
                    if nodes.access.tls { "rediss-replicated" } else { "redis-replicated" }
                )
            }
        }
    }
}

impl StoreUrl {
    /// Reads a URL. The empty one is an error, because a variable that is not set must not lock one machine only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`](crate::ErrorKind::InvalidUrl), with a text that names the fault but never repeats the URL.
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse::url(text).map(|(url, _)| url)
    }

    /// The same, with what the URL says about the client.
    pub(crate) fn parse_with_options(text: &str) -> Result<(Self, UrlOptions), Error> {
        parse::url(text)
    }
}
