//! Reading a URL. Written by hand because a list of hosts is no URL to a general parser, and one reader for all forms
//! treats credentials alike in all of them.

use std::net::Ipv6Addr;

use super::{Access, Nodes, Sentinels, Server, StoreUrl, UrlOptions};
use crate::{
    config::{Secret, addr::Addr},
    error::{Error, ErrorKind},
};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// How many addresses one URL may name.
const ADDRS_MAX: usize = 1_000;
/// The highest number of a database. No server has so many, and the sum of anything with it fits.
const DATABASE_MAX: u32 = 1_000_000;

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidUrl, message).remedy(
        "use local:, local:///directory, memory: (one client only), memory:name (one process only), redis://[user:password@]host:port/database, redis-sentinel://host,host/master, \
         redis-cluster://host,host, redis-replicated://host,host, rediss… for TLS, or unix:///path/to/socket",
    )
}

/// What the scheme says.
enum Form {
    One,
    Sentinel,
    Cluster,
    Replicated,
}

pub(super) fn url(text: &str) -> Result<(StoreUrl, UrlOptions), Error> {
    let text = text.trim();
    if text.is_empty() {
        return Err(bad("the store URL is empty, as that of a variable that is not set"));
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return Err(bad("the store URL has no scheme"));
    };
    let (form, tls) = match scheme {
        "memory" => return Ok((StoreUrl::Memory { name: memory_name(rest)? }, UrlOptions::default())),
        "local" => return Ok((local(rest)?, UrlOptions::default())),
        "unix" | "redis+unix" | "valkey+unix" | "redis+uds" | "valkey+uds" => return unix(rest),
        "redis" | "valkey" => (Form::One, false),
        "rediss" | "valkeys" => (Form::One, true),
        "redis-sentinel" | "valkey-sentinel" => (Form::Sentinel, false),
        "rediss-sentinel" | "valkeys-sentinel" => (Form::Sentinel, true),
        "redis-cluster" | "valkey-cluster" => (Form::Cluster, false),
        "rediss-cluster" | "valkeys-cluster" => (Form::Cluster, true),
        "redis-replicated" | "valkey-replicated" => (Form::Replicated, false),
        "rediss-replicated" | "valkeys-replicated" => (Form::Replicated, true),
        _ => return Err(bad("the store URL's scheme is not known")),
    };
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(bad("the store URL lacks the // after its scheme"));
    };
    network(&form, tls, rest)
}

fn network(form: &Form, tls: bool, rest: &str) -> Result<(StoreUrl, UrlOptions), Error> {
    if rest.contains('#') {
        // Whatever stands behind it would be lost, and it is as a rule part of a password.
        return Err(bad("a # in the store URL must be written as %23"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user_info, hosts) = match authority.rsplit_once('@') {
        Some((user_info, hosts)) => (Some(user_info), hosts),
        None => (None, authority),
    };
    let query = Query::read(query)?;
    let (username, password) = user_info.map_or(Ok((None, None)), credentials)?;
    let (master, database) = match form {
        Form::Sentinel => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            if master.is_empty() {
                return Err(bad("the store URL lacks the master's name after the sentinels"));
            }
            (decode(master)?, database)
        }
        _ => (String::new(), path),
    };
    let database = query.database(database)?;
    let access = Access { tls, username, password: Secret(password), database };
    let nodes = |default_port, access| Ok::<_, Error>(Nodes { addrs: addrs(hosts, default_port)?, access });
    if !matches!(form, Form::Sentinel)
        && (query.sentinel_username.is_some() || query.sentinel_password.is_some())
    {
        return Err(bad("the store URL has credentials for sentinels but names none"));
    }
    let url = match form {
        Form::One => {
            let mut addrs = addrs(hosts, REDIS_PORT)?;
            match (addrs.pop(), addrs.is_empty()) {
                (Some(addr), true) => StoreUrl::Redis(Server { addr, access }),
                _ => {
                    return Err(bad(
                        "the store URL names several hosts, but its scheme is that of one server",
                    ));
                }
            }
        }
        Form::Sentinel => {
            let own = Access {
                tls,
                username: query.sentinel_username,
                password: Secret(query.sentinel_password),
                database: 0,
            };
            StoreUrl::Sentinel(Sentinels { sentinels: nodes(SENTINEL_PORT, own)?, master, access })
        }
        Form::Cluster if database != 0 => {
            return Err(bad("the store URL names a database, but a cluster has only database 0"));
        }
        Form::Cluster => StoreUrl::Cluster(nodes(REDIS_PORT, access)?),
        Form::Replicated => StoreUrl::Replicated(nodes(REDIS_PORT, access)?),
    };
    Ok((url, query.options))
}

fn unix(rest: &str) -> Result<(StoreUrl, UrlOptions), Error> {
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err(bad("the path of a unix socket must be absolute"));
    }
    let mut query = Query::read_with_login(query)?;
    if query.sentinel_username.is_some() || query.sentinel_password.is_some() {
        return Err(bad("the store URL has credentials for sentinels but names none"));
    }
    let access = Access {
        tls: false,
        username: query.username.take(),
        password: Secret(query.password.take()),
        database: query.database("")?,
    };
    let addr = Addr::Unix(decode(path)?.into());
    Ok((StoreUrl::Redis(Server { addr, access }), query.options))
}

/// What a name in memory ends with whose engine refuses keys that a script has not declared, as some servers do. An engine of the
/// same name without it is another one.
pub(crate) const STRICT_KEYS: &str = "?strict_keys";

fn memory_name(rest: &str) -> Result<Option<String>, Error> {
    let Some(name) = rest.strip_suffix(STRICT_KEYS) else { return engine_name(rest) };
    Ok(Some(engine_name(name)?.unwrap_or_default() + STRICT_KEYS))
}

/// A name is one engine among those of this user; a path is a directory that has an engine of its own.
fn local(rest: &str) -> Result<StoreUrl, Error> {
    let place = rest.strip_prefix("//").unwrap_or(rest);
    if !place.starts_with('/') {
        return Ok(StoreUrl::Local { name: engine_name(rest)?, dir: None });
    }
    if place.contains(['?', '#']) {
        return Err(bad("the directory of a local engine takes no parameters; write ? as %3F and # as %23"));
    }
    Ok(StoreUrl::Local { name: None, dir: Some(decode(place)?.into()) })
}

fn engine_name(rest: &str) -> Result<Option<String>, Error> {
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

/// User and password. As in Redisson a single piece is the password; `user:` is a user whose password comes from elsewhere.
fn credentials(text: &str) -> Result<(Option<String>, Option<String>), Error> {
    let full = |text: &str| Ok::<_, Error>(Some(decode(text)?).filter(|text| !text.is_empty()));
    match text.split_once(':') {
        Some((username, password)) => Ok((full(username)?, full(password)?)),
        None => Ok((None, full(text)?)),
    }
}

/// The hosts between commas. One that is named twice is refused: it is as a rule a slip for another one, which nobody would
/// notice until it is needed.
fn addrs(hosts: &str, default_port: u16) -> Result<Vec<Addr>, Error> {
    if hosts.is_empty() {
        return Err(bad("the store URL has no host"));
    }
    let mut addrs: Vec<Addr> = Vec::new();
    for host in hosts.split(',') {
        let addr = addr(host, default_port)?;
        if addrs.contains(&addr) {
            return Err(bad("the store URL names a host twice"));
        }
        if addrs.len() == ADDRS_MAX {
            return Err(bad("the store URL names over 1,000 hosts"));
        }
        addrs.push(addr);
    }
    Ok(addrs)
}

fn addr(text: &str, default_port: u16) -> Result<Addr, Error> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((ip, port)) = rest.split_once(']') else {
                return Err(bad("the store URL has a [ without a ]"));
            };
            let ip: Ipv6Addr = ip.parse().map_err(|_| bad("what stands in [] is not an IPv6 address"))?;
            let port = match port.strip_prefix(':') {
                Some(port) => Some(port),
                None if port.is_empty() => None,
                None => return Err(bad("only a port may follow the address in []")),
            };
            (ip.to_string(), port)
        }
        None => {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            if port.is_some_and(|port| port.contains(':')) {
                return Err(bad("an IPv6 address in the store URL must stand in []"));
            }
            (host_name(host)?, port)
        }
    };
    let port = match port {
        None => default_port,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(bad("a port in the store URL is not between 1 and 65535")),
        },
        Some(_) => return Err(bad("a port in the store URL is not a number")),
    };
    Ok(Addr::Tcp { host, port })
}

/// A host name or an IPv4 address, in lower case because its case means nothing and addresses are compared.
fn host_name(text: &str) -> Result<String, Error> {
    let host = decode(text)?.to_lowercase();
    if host.is_empty() {
        return Err(bad("the store URL lacks a host name"));
    }
    if host.len() > 255
        || host
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || "[]{}()<>@/\\?#,:;\"'`$%&*|^".contains(c))
    {
        return Err(bad("a host name in the store URL is malformed"));
    }
    Ok(host)
}

/// What stands behind the `?`.
#[derive(Default)]
struct Query {
    database: Option<i64>,
    username: Option<String>,
    password: Option<String>,
    sentinel_username: Option<String>,
    sentinel_password: Option<String>,
    options: UrlOptions,
}

impl Query {
    fn read(text: &str) -> Result<Self, Error> {
        let query = Query::read_with_login(text)?;
        if query.username.is_some() || query.password.is_some() {
            return Err(bad("user and password stand before the host in a URL of this scheme"));
        }
        Ok(query)
    }

    fn read_with_login(text: &str) -> Result<Self, Error> {
        fn put<T>(place: &mut Option<T>, value: T) -> Result<(), Error> {
            match place.replace(value) {
                None => Ok(()),
                Some(_) => Err(bad("the store URL gives a parameter twice")),
            }
        }
        let mut query = Query::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            match key {
                "db" | "database" => put(&mut query.database, database(&value)?)?,
                "user" => put(&mut query.username, value)?,
                "pass" | "password" => put(&mut query.password, value)?,
                "sentinel_username" => put(&mut query.sentinel_username, value)?,
                "sentinel_password" => put(&mut query.sentinel_password, value)?,
                "sharded" => put(
                    &mut query.options.sharded,
                    value
                        .parse()
                        .map_err(|_| bad("sharded in the store URL is not auto, on, off or compat"))?,
                )?,
                "scripts" => put(
                    &mut query.options.scripts,
                    value.parse().map_err(|_| bad("scripts in the store URL is not eval or functions"))?,
                )?,
                "address_map" => put(
                    &mut query.options.address_map,
                    // What it complains about has nothing of the URL in it.
                    value
                        .parse()
                        .map_err(|error: Error| bad(format!("in the store URL {}", error.message())))?,
                )?,
                _ => return Err(bad("the store URL has a parameter that is not known")),
            }
        }
        Ok(query)
    }

    /// The database, which may stand in the path or in the query.
    fn database(&self, path: &str) -> Result<i64, Error> {
        match (path, self.database) {
            ("", number) => Ok(number.unwrap_or(0)),
            (path, None) => database(path),
            _ => Err(bad("the store URL names the database twice")),
        }
    }
}

fn database(text: &str) -> Result<i64, Error> {
    match text.parse::<u32>() {
        Ok(number) if number <= DATABASE_MAX && text.bytes().all(|b| b.is_ascii_digit()) => Ok(number.into()),
        _ => Err(bad("the database in the store URL is not a number")),
    }
}

fn decode(text: &str) -> Result<String, Error> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    let digit =
        |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16)).map(|digit| digit as u8);
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return Err(bad("a % in the store URL is not followed by two hexadecimal digits"));
        };
        out.push(high * 16 + low);
    }
    String::from_utf8(out).map_err(|_| bad("the store URL is not UTF-8 after decoding"))
}
