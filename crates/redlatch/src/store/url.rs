//! Which store a URL means (DESIGN D3). Parse errors never repeat the URL, because it may hold a password.

use std::{fmt, path::PathBuf};

use crate::{
    config::Secret,
    error::{Error, ErrorKind},
};

/// A parsed store URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// `memory:` (a new private engine) or `memory:name` (shared by that name within the process).
    Memory {
        /// The shared engine's name.
        name: Option<String>,
    },
    /// `local:` or `local:name`: the per-user daemon on a unix socket.
    Local {
        /// The daemon's name, for isolated daemons.
        name: Option<String>,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Addr {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Addr::Tcp { host, port } => write!(f, "{host}:{port}"),
            Addr::Unix(path) => write!(f, "{}", path.display()),
        }
    }
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
            StoreUrl::Local { name } => write!(f, "local:{}", name.as_deref().unwrap_or("")),
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

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidUrl, message).remedy(
        "use memory:, local:, redis://[user:password@]host:port/database, rediss://… for TLS, or unix:///path/to/socket",
    )
}

impl StoreUrl {
    /// Reads a URL; the empty string means `local:`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`], with a text that names the fault but never repeats the URL.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(StoreUrl::Local { name: None });
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(bad("the store URL has no scheme"));
        };
        match scheme {
            "memory" => Ok(StoreUrl::Memory { name: local_name(rest)? }),
            "local" => Ok(StoreUrl::Local { name: local_name(rest)? }),
            "redis" | "rediss" | "valkey" | "valkeys" => {
                server(text, scheme.ends_with("ss") || scheme == "valkeys")
            }
            "unix" | "redis+unix" | "valkey+unix" | "redis+uds" | "valkey+uds" => unix(text),
            "redis-sentinel" | "redis-cluster" => {
                Err(bad("Sentinel and Cluster URLs are not supported by this version; name one server"))
            }
            _ => Err(bad("the store URL's scheme is not known")),
        }
    }
}

fn local_name(rest: &str) -> Result<Option<String>, Error> {
    let name = rest.trim_start_matches("//");
    if name.is_empty() {
        return Ok(None);
    }
    let fits = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if fits {
        Ok(Some(name.to_owned()))
    } else {
        Err(bad("the engine name must be 1 to 64 letters, digits, - or _"))
    }
}

fn decode(text: &str) -> Result<String, Error> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
            out.push(
                hex.ok_or_else(|| bad("a % in the store URL is not followed by two hexadecimal digits"))?,
            );
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).map_err(|_| bad("the store URL is not UTF-8 after decoding"))
}

fn server(text: &str, tls: bool) -> Result<StoreUrl, Error> {
    let url = ::url::Url::parse(text).map_err(|error| bad(format!("the store URL is malformed: {error}")))?;
    let host = match url.host() {
        Some(::url::Host::Ipv6(ip)) => ip.to_string(),
        Some(host) if !host.to_string().is_empty() => decode(&host.to_string())?,
        _ => return Err(bad("the store URL has no host")),
    };
    let (mut username, mut password) = (None, None);
    if !url.username().is_empty() {
        username = Some(decode(url.username())?);
    }
    if let Some(secret) = url.password() {
        password = Some(decode(secret)?);
    } else if username.is_some() {
        // As in Redisson: a single piece of user info is the password.
        password = username.take();
    }
    let path = url.path().trim_start_matches('/');
    let mut database = if path.is_empty() { "0".to_owned() } else { path.to_owned() };
    for (key, value) in url.query_pairs() {
        match &*key {
            "db" | "database" if path.is_empty() => database = value.into_owned(),
            _ => return Err(bad("the store URL has a parameter that is not known")),
        }
    }
    let addr = Addr::Tcp { host, port: url.port().unwrap_or(6379) };
    let database = parse_database(&database)?;
    let access = Access { tls, username, password: Secret(password), database };
    Ok(StoreUrl::Redis(Server { addr, access }))
}

fn parse_database(text: &str) -> Result<i64, Error> {
    match text.parse::<u32>() {
        Ok(number) if number <= 1_000_000 => Ok(number.into()),
        _ => Err(bad("the database in the store URL is not a number")),
    }
}

fn unix(text: &str) -> Result<StoreUrl, Error> {
    let rest = text.split_once(':').map_or("", |(_, rest)| rest);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err(bad("the path of a unix socket must be absolute"));
    }
    let mut access = Access::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        match key {
            "db" | "database" => access.database = parse_database(&value)?,
            "user" => access.username = Some(value),
            "pass" | "password" => access.password = Secret(Some(value)),
            _ => return Err(bad("the store URL has a parameter that is not known")),
        }
    }
    Ok(StoreUrl::Redis(Server { addr: Addr::Unix(decode(path)?.into()), access }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_server(text: &str) -> Server {
        match StoreUrl::parse(text).unwrap() {
            StoreUrl::Redis(server) => server,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_scheme_is_understood() {
        assert_eq!(StoreUrl::parse("").unwrap(), StoreUrl::Local { name: None });
        assert_eq!(StoreUrl::parse("local:ci").unwrap(), StoreUrl::Local { name: Some("ci".into()) });
        assert_eq!(StoreUrl::parse("memory:").unwrap(), StoreUrl::Memory { name: None });
        let server = parse_server("redis://alice:p%40ss@db.example:7000/3");
        assert_eq!(server.addr, Addr::Tcp { host: "db.example".into(), port: 7000 });
        assert_eq!(
            (server.access.username.as_deref(), server.access.password.0.as_deref()),
            (Some("alice"), Some("p@ss"))
        );
        assert_eq!(server.access.database, 3);
        let server = parse_server("rediss://secret@[::1]");
        assert!(server.access.tls);
        assert_eq!(server.addr, Addr::Tcp { host: "::1".into(), port: 6379 });
        assert_eq!((server.access.username, server.access.password.0.as_deref()), (None, Some("secret")));
        assert!(parse_server("valkeys://h").access.tls && !parse_server("valkey://h").access.tls);
        let server = parse_server("unix:///run/redis.sock?db=2&user=u&pass=p");
        assert_eq!(server.addr, Addr::Unix("/run/redis.sock".into()));
        assert_eq!(server.access.database, 2);
    }

    #[test]
    fn faults_are_named_and_secrets_are_not() {
        for text in [
            "redis://user:hunter2@",
            "redis://user:hunter2@host:notaport",
            "nonsense",
            "http://user:hunter2@h",
            "redis://h/hunter2",
            "unix:relative?pass=hunter2",
            "redis://:hunter2%zz@h",
            "local:../hunter2",
            "redis://h/0?pw=hunter2",
            "redis-cluster://hunter2@h",
        ] {
            let error = StoreUrl::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{text}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let server = parse_server("redis://alice:hunter2@h/1");
        assert!(!format!("{server} {server:?}").contains("hunter2"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            let _ = StoreUrl::parse(&text);
            let _ = StoreUrl::parse(&format!("redis://{text}"));
            let _ = StoreUrl::parse(&format!("unix:///{text}"));
        }
    }
}
