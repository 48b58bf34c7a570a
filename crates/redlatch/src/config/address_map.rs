//! Servers that are reached elsewhere than where they say they are.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::{
    config::addr::Addr,
    error::{Error, ErrorKind},
};

/// How many pairs there may be.
const PAIRS_MAX: usize = 1_000;
/// The longest host name, in bytes.
const HOST_BYTES_MAX: usize = 255;

/// Where servers are reached that announce addresses which this client cannot use: behind port forwarding, in containers, in
/// another network.
///
/// It is used for every address that a server tells: redirections and the layout of a cluster, and the masters, replicas and
/// other sentinels that sentinels know. Addresses of the URL are used as they are.
///
/// As text it is pairs `announced=reachable` with commas between them, at most 1,000. Either side is `host` or `host:port`, IPv6
/// addresses in brackets. Without a port on the left side all ports of that host are meant and stay as they are; without one on
/// the right side the port stays. A pair with a port comes before one without.
///
/// # Example
///
/// ```
/// use redlatch::config::AddressMap;
///
/// let map: AddressMap = "10.0.0.5=db.example, 10.0.0.6:6379=localhost:16379".parse()?;
/// assert_eq!(map.to_string(), "10.0.0.5=db.example,10.0.0.6:6379=localhost:16379");
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressMap(BTreeMap<Place, Place>);

/// A host, and a port unless all are meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    host: String,
    port: Option<u16>,
}

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("the address map: {why}"))
        .remedy("give pairs announced=reachable with commas between them, each side host or host:port")
}

impl AddressMap {
    /// Where the server is reached that announces this address.
    pub(crate) fn reachable(&self, announced: Addr) -> Addr {
        let Addr::Tcp { host, port } = announced else { return announced };
        if self.0.is_empty() {
            return Addr::Tcp { host, port };
        }
        let mut place = Place { host: host.to_lowercase(), port: Some(port) };
        let exact = self.0.get(&place).or_else(|| {
            place.port = None;
            self.0.get(&place)
        });
        match exact {
            Some(to) => Addr::Tcp { host: to.host.clone(), port: to.port.unwrap_or(port) },
            None => Addr::Tcp { host, port },
        }
    }
}

impl FromStr for AddressMap {
    type Err = Error;

    /// Reads pairs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for what is no list of pairs, for an announced address that is given twice, and for a host
    /// whose ports would all become one.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut map = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (announced, reachable) = pair.split_once('=').ok_or_else(|| bad("a pair has no ="))?;
            let (announced, reachable) = (Place::read(announced.trim())?, Place::read(reachable.trim())?);
            if announced.port.is_none() && reachable.port.is_some() {
                return Err(bad("all ports of a host would become one; give the announced port, too"));
            }
            if map.len() == PAIRS_MAX {
                return Err(bad("there are over 1,000 pairs"));
            }
            if map.insert(announced, reachable).is_some() {
                return Err(bad("an announced address is given twice"));
            }
        }
        Ok(AddressMap(map))
    }
}

impl Place {
    fn read(text: &str) -> Result<Place, Error> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(|| bad("a [ has no ]"))?;
                let ip: std::net::Ipv6Addr =
                    host.parse().map_err(|_| bad("what stands in [] is no IPv6 address"))?;
                let port = match rest.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if rest.is_empty() => None,
                    None => return Err(bad("only a port may follow the address in []")),
                };
                (ip.to_string(), port)
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(bad("an IPv6 address must stand in []")),
                Some((host, port)) => (host.to_lowercase(), Some(port)),
                None => (text.to_lowercase(), None),
            },
        };
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "/@?#[]=\"'".contains(c);
        if host.is_empty() || host.len() > HOST_BYTES_MAX || host.contains(is_odd) {
            return Err(bad("a host name is missing or malformed"));
        }
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port != 0 => Some(port),
            Some(_) => return Err(bad("a port is not between 1 and 65535")),
        };
        Ok(Place { host, port })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?
        } else {
            f.write_str(&self.host)?
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for AddressMap {
    /// The pairs, as they are read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (announced, reachable)) in self.0.iter().enumerate() {
            write!(f, "{}{announced}={reachable}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Addr {
        Addr::Tcp { host: host.into(), port }
    }

    #[test]
    fn addresses_are_mapped_by_port_before_they_are_by_host() {
        let map: AddressMap =
            "10.0.0.1=near,10.0.0.1:7001=far:17001, Inner.Example:6379=localhost,[fe80::1]=[::1]"
                .parse()
                .unwrap();
        for (announced, reachable) in [
            (tcp("10.0.0.1", 7000), tcp("near", 7000)),
            (tcp("10.0.0.1", 7001), tcp("far", 17_001)),
            (tcp("inner.EXAMPLE", 6379), tcp("localhost", 6379)),
            (tcp("inner.example", 6380), tcp("inner.example", 6380)),
            (tcp("fe80::1", 1), tcp("::1", 1)),
            (tcp("Other", 1), tcp("Other", 1)),
            (Addr::Unix("/run/s".into()), Addr::Unix("/run/s".into())),
        ] {
            assert_eq!(map.reachable(announced), reachable);
        }
        assert_eq!(map.to_string().parse::<AddressMap>().unwrap(), map);
        assert_eq!(AddressMap::default().to_string(), "");
        assert_eq!("".parse::<AddressMap>().unwrap(), AddressMap::default());
    }

    #[test]
    fn slips_are_refused() {
        for slip in [
            "a",
            "a=",
            "=b",
            "a:1=b:0",
            "a:1=b:70000",
            "a:x=b",
            "a=b:1",
            "a=b,a=c",
            "fe80::1=b",
            "[fe80::1=b",
            "[h]=b",
            "[::1]x=b",
            "a b=c",
            "redis://a=b",
            "a=b=c",
        ] {
            let error = slip.parse::<AddressMap>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{slip}: {error}");
        }
        let many: Vec<String> = (0..=PAIRS_MAX).map(|n| format!("h{n}=x")).collect();
        assert!(many.join(",").parse::<AddressMap>().is_err());
        many[1..].join(",").parse::<AddressMap>().unwrap();
    }
}
