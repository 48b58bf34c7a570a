//! Which server program runs.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, ErrorKind};

/// A server program that the kit can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ServerProgram {
    /// The `redis-server` of the system, or the program named by `REDLATCH_REDIS_SERVER`.
    #[default]
    System,
    /// Redis 6.2, the oldest that is supported, as fetched by `scripts/install-servers`.
    Redis62,
    /// Redis 8.0, as fetched by `scripts/install-servers`.
    Redis8,
    /// Valkey 8.1, as fetched by `scripts/install-servers`.
    Valkey8,
}

impl ServerProgram {
    /// All programs, for tests that run on each.
    pub const ALL: [Self; 4] = [Self::System, Self::Redis62, Self::Redis8, Self::Valkey8];

    /// The program file, or a name to be looked for in `PATH`.
    pub fn path(self) -> OsString {
        match self {
            Self::System => {
                std::env::var_os("REDLATCH_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
            }
            Self::Redis62 => servers_dir().join("redis-6.2").into(),
            Self::Redis8 => servers_dir().join("redis-8.0").into(),
            Self::Valkey8 => servers_dir().join("valkey-8.1").into(),
        }
    }

    /// Whether it can encrypt: the one of Redis 6.2 is built without TLS.
    pub fn has_tls(self) -> bool {
        self != Self::Redis62
    }

    pub(super) fn command(self) -> Command {
        Command::new(self.path())
    }

    pub(super) fn cannot_start(self, e: io::Error) -> Error {
        let program = self.path();
        let program = program.to_string_lossy();
        if e.kind() != io::ErrorKind::NotFound {
            return Error::because(ErrorKind::Start, format!("cannot start `{program}`"), e);
        }
        let remedy = match self {
            Self::System => {
                "Install one with:\n\n    apt-get install redis-server\n\n\
                 or set REDLATCH_REDIS_SERVER to the path of redis-server or valkey-server"
            }
            Self::Redis62 | Self::Redis8 | Self::Valkey8 => "Fetch it with:\n\n    scripts/install-servers",
        };
        Error::because(ErrorKind::MissingTool, format!("no server program `{program}`. {remedy}"), e)
    }
}

/// The name of the program, for messages.
impl fmt::Display for ServerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "the server of the system",
            Self::Redis62 => "Redis 6.2",
            Self::Redis8 => "Redis 8.0",
            Self::Valkey8 => "Valkey 8.1",
        })
    }
}

/// Where a program is that the scripts fetch for the tests: in their folder, or as the system has it.
pub fn tool(name: &str) -> PathBuf {
    let fetched = servers_dir().join(name);
    if fetched.exists() { fetched } else { name.into() }
}

/// The folder of `scripts/install-servers`; the rule is the same there.
fn servers_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("REDLATCH_SERVERS").unwrap_or_else(|| {
        let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        cache.unwrap_or_default().join("redlatch/servers")
    })
}
