//! Settings that are words or groups of their own.

use std::{fmt, path::PathBuf};

use crate::error::{Error, ErrorKind};

/// A secret that never shows in debug output.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) Option<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "<redacted>" } else { "none" })
    }
}

/// How to check and authenticate an encrypted connection (`rediss://`).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TlsOptions {
    /// A PEM file of certificate authorities to trust instead of the public ones.
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the client's certificate chain.
    pub cert_file: Option<PathBuf>,
    /// A PEM file with the client's private key.
    pub key_file: Option<PathBuf>,
    /// The name to expect in the server's certificate, when it is not the host of the URL.
    pub server_name: Option<String>,
    /// Accept a certificate of a trusted authority whatever name is in it, as Redisson's `sslVerificationMode: CA_ONLY` does.
    /// A process with any certificate of that authority can then pose as the server; a warning is logged on each connect.
    pub danger_accept_any_host_name: bool,
    /// Accept any certificate. Anybody on the path can then read and change everything; a warning is logged on each connect.
    pub danger_accept_any_certificate: bool,
}

/// Which kind of publish and subscribe a cluster's locks use. All clients of a lock must agree, Java's included, or waiters only
/// notice a release when they look by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardedPubSub {
    /// As Redisson decides: sharded in a cluster whose servers know it (Redis 7.0, Valkey), plain otherwise.
    #[default]
    Auto,
    /// Always sharded.
    On,
    /// Always plain, as Redisson before 3.22.0 does.
    Off,
    /// Publish and listen both ways, for fleets with clients of either kind.
    Compat,
}

/// How scripts reach the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScriptMode {
    /// By hash, with the text when the server does not know it.
    #[default]
    Eval,
    /// As functions of a library that an operator has loaded before ([`Client::load_functions`](crate::Client::load_functions)),
    /// so that clients need no right to run scripts of their own. Redis 7.0 or later, or Valkey; `memory:` and `local:` have the
    /// scripts built in and ignore it.
    Functions,
}

impl std::str::FromStr for ShardedPubSub {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "auto" => ShardedPubSub::Auto,
            "on" => ShardedPubSub::On,
            "off" => ShardedPubSub::Off,
            "compat" => ShardedPubSub::Compat,
            _ => return Err(Error::new(ErrorKind::InvalidOption, "sharded is not auto, on, off or compat")),
        })
    }
}

impl std::str::FromStr for ScriptMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "eval" => ScriptMode::Eval,
            "functions" => ScriptMode::Functions,
            _ => return Err(Error::new(ErrorKind::InvalidOption, "scripts is not eval or functions")),
        })
    }
}
