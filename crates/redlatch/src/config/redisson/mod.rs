//! A Redisson configuration file, read as it is (`docs/configuration.md`, Redisson's file).
//!
//! What a file says and this client cannot do is either refused or told as a [`Notice`], never passed over where it would change
//! which locks are taken or who may listen. No value of the file appears in an error or a notice.

mod delay;
mod keys;
mod read;
mod substitute;
#[cfg(test)]
mod tests;
mod tree;

use std::{env, fmt, fs, io::Read, path::Path};

use super::{TlsOptions, settings::Settings};
use crate::error::{Error, ErrorKind};

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What begins a store URL that names a file: `redisson-yaml:/etc/app/redisson.yaml`.
pub(crate) const URL_SCHEME: &str = "redisson-yaml:";

/// What a Redisson file says, for [`ClientBuilder::redisson`](crate::ClientBuilder::redisson).
#[derive(Clone)]
pub struct RedissonYaml {
    pub(crate) url: String,
    pub(crate) settings: Settings,
    notices: Vec<Notice>,
    values: Vec<RedissonValue>,
    /// A Java key store of authorities, and of the client's certificate, that cannot be read.
    trust_store: Option<usize>,
    key_store: Option<usize>,
}

/// Something in a Redisson file that is not followed, or not as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notice {
    /// The line of the file, from 1.
    pub line: usize,
    /// The section and key, such as `singleServerConfig.retryAttempts`; empty for what has none.
    pub key: String,
    /// What becomes of it.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if !self.key.is_empty() {
            write!(f, ", {}", self.key)?;
        }
        write!(f, ": {}", self.text)
    }
}

/// A setting that a Redisson file gives.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedissonValue {
    /// The setting, named like the method of [`ClientBuilder`](crate::ClientBuilder), or the field of [`TlsOptions`] after
    /// `tls_`.
    pub setting: &'static str,
    /// Its value in words; `***` for a secret.
    pub value: String,
    /// The section and key that say so, such as `singleServerConfig.address`.
    pub key: String,
    /// The line of the file, from 1.
    pub line: usize,
}

/// Why a file cannot be used. The text is made of our own words only.
#[derive(Debug, PartialEq)]
struct Refused {
    line: usize,
    key: String,
    text: String,
    remedy: Option<&'static str>,
}

impl Refused {
    fn at(line: usize, text: impl Into<String>) -> Self {
        Refused { line, key: String::new(), text: text.into(), remedy: None }
    }

    fn into_error(self, name: &str) -> Error {
        let key = if self.key.is_empty() { String::new() } else { format!(", {}", self.key) };
        let error =
            Error::new(ErrorKind::InvalidOption, format!("{name}, line {}{key}: {}", self.line, self.text));
        match self.remedy {
            Some(remedy) => error.remedy(remedy),
            None => error,
        }
    }
}

impl fmt::Debug for RedissonYaml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedissonYaml").field("notices", &self.notices).finish_non_exhaustive()
    }
}

impl RedissonYaml {
    /// Reads a file, with the variables of this process's environment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a file that cannot be read or is over 1 MiB, and as [`parse`](Self::parse).
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = format!("Redisson's file {}", path.display().to_string().escape_debug());
        let bad = |why: &dyn fmt::Display| {
            Error::new(ErrorKind::InvalidOption, format!("{name} cannot be read: {why}"))
        };
        let mut text = String::new();
        let file = fs::File::open(path).map_err(|error| bad(&error))?;
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| bad(&error))?;
        if read as u64 > FILE_BYTES_MAX {
            return Err(bad(&"it is over 1 MiB"));
        }
        Self::named(&name, &text, &of_process)
    }

    /// Reads a file's text. `lookup` gives the values of variables; Java's system properties, which Redisson asks first, do not
    /// exist here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] with line and key, never with a value: no YAML, no section with servers, addresses that
    /// cannot be understood, values of the wrong type, mappers and resolvers of names, commands or credentials, encrypted
    /// values, sections of the commercial edition.
    ///
    /// # Example
    ///
    /// ```
    /// use redlatch::config::RedissonYaml;
    ///
    /// let text = "singleServerConfig: { address: 'redis://${HOST:-127.0.0.1}:6379' }\nlockWatchdogTimeout: 20000\n";
    /// let file = RedissonYaml::parse(text, |name| (name == "HOST").then(|| "db.example".to_owned()))?;
    /// assert_eq!(file.url(), "redis://db.example:6379");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn parse(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        Self::named("Redisson's file", text, &lookup)
    }

    /// The text, with the variables of this process.
    pub(crate) fn parse_here(text: &str) -> Result<Self, Error> {
        Self::named("Redisson's file", text, &of_process)
    }

    fn named(name: &str, text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        read::file(text, lookup).map_err(|refused| refused.into_error(name))
    }

    /// The store's URL that the file means, without credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What is not followed, or not as it stands: unknown keys, settings without a counterpart, unset variables.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Every setting that the file gives, and where; secrets as `***`.
    pub fn values(&self) -> &[RedissonValue] {
        &self.values
    }

    /// Refuses a Java key store that is needed and that nobody has given an equivalent for: connecting with less checks or
    /// another identity than the file asks for is not for us to decide.
    pub(crate) fn check_stores(&self, given: Option<&TlsOptions>) -> Result<(), Error> {
        let trusts = given.is_some_and(|tls| tls.ca_file.is_some() || tls.danger_accept_any_certificate);
        let identified = given.is_some_and(|tls| tls.cert_file.is_some());
        let refused = |line: usize, key: &str, remedy: &'static str| {
            let text =
                format!("Redisson's file, line {line}: {key} is a Java key store, which cannot be read here");
            Err(Error::new(ErrorKind::InvalidOption, text).remedy(remedy))
        };
        match (self.trust_store, self.key_store) {
            (Some(line), _) if !trusts => refused(
                line,
                "sslTruststore",
                "export its certificates as PEM (keytool -exportcert -rfc) and give that file as tls ca_file (REDLATCH_TLS_CA_FILE)",
            ),
            (_, Some(line)) if !identified => refused(
                line,
                "sslKeystore",
                "convert it to PEM (keytool -importkeystore -deststoretype PKCS12, then openssl pkcs12 -nodes) and give tls \
                 cert_file and key_file (REDLATCH_TLS_CERT_FILE, REDLATCH_TLS_KEY_FILE)",
            ),
            _ => Ok(()),
        }
    }
}

fn of_process(name: &str) -> Option<String> {
    env::var(name).ok()
}
