//! From a tree of values to settings.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    Notice, RedissonValue, RedissonYaml, Refused,
    delay::Delay,
    keys::{self, SECTIONS, Treatment},
    substitute, tree,
    tree::{Entry, Kind, Value},
};
use crate::config::{
    FAIR_WAIT_MAX, RENEWAL_BATCH_MAX, Secret, ShardedPubSub, TlsOptions,
    addr::Addr,
    settings::Settings,
    url::{Access, Server, StoreUrl},
};

/// The longest time-out of a file that is followed; a longer one counts as this.
const TIMEOUT_MS_MAX: u64 = 3_600_000;

const MAPPER_REMEDY: &str = "give locks the mapped names, or the client the credentials, in your own code, and leave the line out \
                             of the file that is read here";

pub(super) fn file(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<RedissonYaml, Refused> {
    let Some((text, unset)) = substitute::substitute(text, lookup) else {
        return Err(Refused::at(1, "the values of its variables make it larger than 4 MiB"));
    };
    settings(&text, &unset).map_err(|refused| match &refused {
        // A variable that was forgotten is as a rule why the line makes no sense.
        Refused { line, remedy: None, .. } if unset.contains(line) => {
            Refused { remedy: Some("a variable on this line has neither a value nor a default"), ..refused }
        }
        _ => refused,
    })
}

fn settings(text: &str, unset: &[usize]) -> Result<RedissonYaml, Refused> {
    let mut reader = Reader::default();
    for &line in unset {
        reader.notice(line, "", "a variable has neither a value nor a default and stays as it is written");
    }
    let root = match tree::read(text)? {
        Value { kind: Kind::Map(entries), .. } => reader.layer(None, entries)?,
        Value { kind: Kind::Null, .. } => BTreeMap::new(),
        value => return Err(Refused::at(value.line, "this is not a map of settings")),
    };
    let mut sections = SECTIONS.iter().filter_map(|name| Some((*name, root.get(name)?.clone())));
    let Some((name, value)) = sections.next() else {
        return Err(Refused {
            line: 1,
            key: String::new(),
            text: "no section says where the servers are".to_owned(),
            remedy: Some(
                "add singleServerConfig, masterSlaveServersConfig, sentinelServersConfig, clusterServersConfig or \
                 replicatedServersConfig",
            ),
        });
    };
    for (other, value) in sections {
        reader.notice(value.line, other, format!("not used: {name} comes first"));
    }
    let section = match value.kind {
        Kind::Map(entries) => reader.layer(Some(name), entries)?,
        _ => return Err(refused(value.line, name, "this is not a map of settings")),
    };
    reader.name = name;
    reader.root = root;
    reader.section = section;
    reader.settings()
}

fn refused(line: usize, key: impl Into<String>, text: impl Into<String>) -> Refused {
    Refused { line, key: key.into(), text: text.into(), remedy: None }
}

type Layer = BTreeMap<&'static str, Value>;

#[derive(Default)]
struct Reader {
    notices: Vec<Notice>,
    values: Vec<RedissonValue>,
    name: &'static str,
    root: Layer,
    section: Layer,
}

/// A value with the place that it was found at.
struct Found {
    value: Value,
    key: String,
}

impl Found {
    fn refuse(&self, text: impl Into<String>) -> Refused {
        refused(self.value.line, self.key.clone(), text)
    }

    fn text(&self) -> Result<&str, Refused> {
        text(&self.value).map_err(|why| self.refuse(why))
    }

    /// A whole number, also one in quotes or with `_` between its digits, as Java takes it.
    fn number(&self) -> Result<u64, Refused> {
        let digits = self.text()?.trim().replace('_', "");
        let digits = digits.strip_prefix('+').unwrap_or(&digits);
        match digits.parse() {
            Ok(number) if digits.bytes().all(|b| b.is_ascii_digit()) => Ok(number),
            _ => Err(self.refuse("this is not a whole number from 0 up")),
        }
    }

    fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Refused> {
        let text = self.text()?;
        words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, value)| *value).ok_or_else(
            || {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                self.refuse(format!("this is none of {}", words.join(", ")))
            },
        )
    }

    fn list(&self) -> Result<Vec<&str>, Refused> {
        match &self.value.kind {
            Kind::List(items) => items
                .iter()
                .map(|item| text(item).map_err(|why| refused(item.line, self.key.clone(), why)))
                .collect(),
            _ => Ok(vec![self.text()?]),
        }
    }
}

fn text(value: &Value) -> Result<&str, &'static str> {
    match &value.kind {
        Kind::Scalar(text) if text.trim_start().starts_with("{aes}") => Err(
            "values encrypted by Redisson's commercial edition cannot be read; put it into a variable instead",
        ),
        Kind::Scalar(text) => Ok(text),
        _ => Err("this is not a single value"),
    }
}

impl Reader {
    fn notice(&mut self, line: usize, key: impl Into<String>, text: impl Into<String>) {
        self.notices.push(Notice { line, key: key.into(), text: text.into() });
    }

    /// The values of one level that are read by name; what becomes of the others is decided here.
    fn layer(&mut self, section: Option<&'static str>, entries: Vec<Entry>) -> Result<Layer, Refused> {
        let mut layer = Layer::new();
        for Entry { key, line, mut value } in entries {
            // What begins on the next line is looked for under its key.
            value.line = line;
            let path = |key: &str| match section {
                Some(section) => format!("{section}.{key}"),
                None => key.to_owned(),
            };
            let Some((name, treatment)) = keys::find(section, &key) else {
                // An unquoted value with a comma in it (`{password: a,b}`) goes on as a key: text that is no setting's name
                // may be part of a secret.
                match keys::elsewhere(&key) {
                    Some(name) => self.notice(line, path(name), "Redisson has no such setting here"),
                    None => self.notice(
                        line,
                        section.unwrap_or_default(),
                        "a key that Redisson does not have here",
                    ),
                }
                continue;
            };
            if name != key {
                self.notice(line, path(name), "read although its capital letters differ");
            }
            let path = path(name);
            if value.kind == Kind::Null && value.class.is_none() {
                continue;
            }
            match treatment {
                Treatment::Used => {
                    if layer.insert(name, value).is_some() {
                        self.notice(line, path, "given twice; the last one counts");
                    }
                }
                Treatment::Silent => {}
                Treatment::Noted(_, defaults)
                    if defaults.iter().any(|text| value.kind == Kind::Scalar((*text).into())) => {}
                Treatment::Noted(..) | Treatment::Class if is_default(&value, &OBJECTS) => {}
                Treatment::Noted(why, _) => self.notice(line, path, why),
                Treatment::Class => self.notice(line, path, "an object of Java, which is not needed here"),
                Treatment::Delay => {
                    let text = match Delay::read(&value) {
                        Ok(delay) if delay.is_default() => continue,
                        Ok(delay) => format!("not used ({delay}): pauses between attempts are our own"),
                        Err(why) => format!("not used, and not to be understood: {why}"),
                    };
                    self.notice(line, path, text);
                }
                Treatment::Mapper if is_default(&value, &MAPPERS) => {}
                Treatment::Mapper => {
                    let text = "a Java class that changes names, commands or credentials; without it other locks than those \
                                of the Java services would be taken";
                    return Err(Refused { remedy: Some(MAPPER_REMEDY), ..refused(line, path, text) });
                }
                Treatment::Commercial => {
                    return Err(refused(
                        line,
                        path,
                        "sections of Redisson's commercial edition are not supported",
                    ));
                }
            }
        }
        Ok(layer)
    }

    fn in_root(&self, key: &'static str) -> Option<Found> {
        self.root.get(key).map(|value| Found { value: value.clone(), key: key.to_owned() })
    }

    fn in_section(&self, key: &'static str) -> Option<Found> {
        let value = self.section.get(key)?.clone();
        Some(Found { value, key: format!("{}.{key}", self.name) })
    }

    /// Of what may stand in both places the root's wins.
    fn in_both(&self, key: &'static str) -> Option<Found> {
        self.in_root(key).or_else(|| self.in_section(key))
    }

    fn taken(&mut self, setting: &'static str, value: impl fmt::Display, found: &Found) {
        let (key, line) = (found.key.clone(), found.value.line);
        self.values.push(RedissonValue { setting, value: value.to_string(), key, line });
    }

    fn settings(mut self) -> Result<RedissonYaml, Refused> {
        let mut settings = Settings::default();
        let (url, of_addresses) = self.store()?;
        let sentinel = self.name == "sentinelServersConfig";
        // The credentials in addresses are those of the servers with these addresses, so of sentinels if there are any.
        let (data, sentinels) =
            if sentinel { (None, of_addresses.as_ref()) } else { (of_addresses.as_ref(), None) };
        settings.username = self.credential("username", false, data, "username")?;
        settings.password = Secret(self.credential("password", true, data, "password")?);
        if sentinel {
            settings.sentinel_username =
                self.credential("sentinel_username", false, sentinels, "sentinelUsername")?;
            settings.sentinel_password =
                Secret(self.credential("sentinel_password", true, sentinels, "sentinelPassword")?);
        }
        settings.connect_timeout = self.time_limit("connect_timeout", "connectTimeout")?;
        settings.response_timeout = self.time_limit("response_timeout", "timeout")?;
        if let Some(found) = self.in_root("lockWatchdogTimeout") {
            let lease = Duration::from_millis(found.number()?);
            settings.watchdog_lease = Some(lease);
            self.taken("watchdog_lease", format_args!("{}ms", lease.as_millis()), &found);
        }
        if let Some(found) = self.in_root("lockWatchdogBatchSize") {
            let asked = found.number()?;
            let most = RENEWAL_BATCH_MAX as u64;
            if !(1..=most).contains(&asked) {
                self.notice(found.value.line, &*found.key, format!("counts as between 1 and {most}"));
            }
            let batch = asked.clamp(1, most);
            settings.renewal_batch = Some(batch as usize);
            self.taken("renewal_batch", batch, &found);
        }
        if let Some(found) = self.in_root("fairLockWaitTimeout") {
            let wait = Duration::from_millis(found.number()?);
            if wait > FAIR_WAIT_MAX {
                return Err(found.refuse("this is over a day"));
            }
            settings.redisson_fair_wait = Some(wait);
            self.taken("redisson_fair_wait", format_args!("{}ms", wait.as_millis()), &found);
        }
        if let Some(found) = self.in_section("clientName") {
            let name = found.text()?.to_owned();
            if name.bytes().any(|b| !(0x21..=0x7e).contains(&b)) {
                return Err(found.refuse("a client's name has no blanks, and only ASCII letters and signs"));
            }
            self.taken("client_name", &name, &found);
            settings.client_name = Some(name).filter(|name| !name.is_empty());
        }
        if let Some(found) = self.in_section("shardedSubscriptionMode") {
            let words =
                [("AUTO", ShardedPubSub::Auto), ("ON", ShardedPubSub::On), ("OFF", ShardedPubSub::Off)];
            let sharded = found.word(&words)?;
            settings.sharded = Some(sharded);
            self.taken("sharded", format_args!("{sharded:?}").to_string().to_lowercase(), &found);
        }
        let mut file = RedissonYaml {
            url: url.to_string(),
            settings,
            notices: Vec::new(),
            values: Vec::new(),
            trust_store: None,
            key_store: None,
        };
        let encrypted = url.starts_with("rediss");
        self.tls(&mut file, encrypted)?;
        self.notices.sort_by_key(|notice| notice.line);
        file.notices = self.notices;
        file.values = self.values;
        Ok(file)
    }

    /// A user name or password: of the address, else of the root, else of the section.
    fn credential(
        &mut self,
        setting: &'static str,
        secret: bool,
        address: Option<&(Access, Found)>,
        key: &'static str,
    ) -> Result<Option<String>, Refused> {
        let of_address = address.and_then(|(access, found)| {
            let part = if secret { access.password.0.clone() } else { access.username.clone() };
            Some((part?, Found { value: found.value.clone(), key: found.key.clone() }))
        });
        let (text, found) = match (of_address, self.in_both(key)) {
            (Some(of_address), _) => of_address,
            (None, Some(found)) => (found.text()?.to_owned(), found),
            (None, None) => return Ok(None),
        };
        if text.is_empty() {
            return Ok(None);
        }
        self.taken(setting, if secret { "***" } else { &text }, &found);
        Ok(Some(text))
    }

    fn time_limit(&mut self, setting: &'static str, key: &'static str) -> Result<Option<Duration>, Refused> {
        let Some(found) = self.in_section(key) else { return Ok(None) };
        let ms = match found.number()? {
            0 => {
                self.notice(
                    found.value.line,
                    &*found.key,
                    "0 is no limit that can be kept; the default counts",
                );
                return Ok(None);
            }
            ms if ms > TIMEOUT_MS_MAX => {
                self.notice(found.value.line, &*found.key, "counts as one hour");
                TIMEOUT_MS_MAX
            }
            ms => ms,
        };
        self.taken(setting, format_args!("{ms}ms"), &found);
        Ok(Some(Duration::from_millis(ms)))
    }

    /// The URL without credentials, and the first address with its credentials.
    fn store(&mut self) -> Result<(String, Option<(Access, Found)>), Refused> {
        let database = match self.in_section("database") {
            Some(found) => match found.number()? {
                number if self.name == "clusterServersConfig" && number != 0 => {
                    return Err(found.refuse("a cluster has only database 0 here"));
                }
                number if number > 1_000_000 => return Err(found.refuse("there is no such database")),
                number => number,
            },
            None => 0,
        };
        let need = |reader: &Self, key: &'static str| {
            let line = reader.root.get(reader.name).map_or(1, |value| value.line);
            reader
                .in_section(key)
                .ok_or_else(|| refused(line, format!("{}.{key}", reader.name), "this is missing"))
        };
        let (scheme, found, mut texts) = match self.name {
            "singleServerConfig" => {
                let found = need(self, "address")?;
                let text = found.text()?.to_owned();
                ("", found, vec![text])
            }
            "masterSlaveServersConfig" => {
                let found = need(self, "masterAddress")?;
                let text = found.text()?.to_owned();
                ("-replicated", found, vec![text])
            }
            "sentinelServersConfig" => ("-sentinel", need(self, "sentinelAddresses")?, vec![]),
            "clusterServersConfig" => ("-cluster", need(self, "nodeAddresses")?, vec![]),
            _ => ("-replicated", need(self, "nodeAddresses")?, vec![]),
        };
        let more =
            if self.name == "masterSlaveServersConfig" { self.in_section("slaveAddresses") } else { None };
        if texts.is_empty() {
            texts.extend(found.list()?.into_iter().map(str::to_owned));
        }
        if let Some(more) = &more {
            texts.extend(more.list()?.into_iter().map(str::to_owned));
        }
        let mut servers: Vec<Server> = Vec::new();
        for text in &texts {
            let server = address(text).map_err(|why| found.refuse(why))?;
            if matches!(server.addr, Addr::Unix(_)) && self.name != "singleServerConfig" {
                return Err(found.refuse("a unix socket is for a single server only"));
            }
            if servers.iter().any(|other| other.addr == server.addr) {
                self.notice(found.value.line, &*found.key, "an address is given twice and counts once");
                continue;
            }
            servers.push(server);
        }
        let Some(first) = servers.first().cloned() else { return Err(found.refuse("there is no address")) };
        if servers.iter().any(|server| server.access.tls != first.access.tls) {
            return Err(found.refuse("some addresses are encrypted and others are not"));
        }
        if servers.iter().any(|server| !same_login(&server.access, &first.access)) {
            self.notice(
                found.value.line,
                &*found.key,
                "addresses differ in their credentials; the first one's count for all",
            );
        }
        let scheme = format!("redis{}{scheme}://", if first.access.tls { "s" } else { "" });
        let url = match &first.addr {
            Addr::Unix(path) => {
                let path = encode(&path.to_string_lossy(), b"/");
                format!(
                    "unix://{path}{}",
                    if database == 0 { String::new() } else { format!("?db={database}") }
                )
            }
            Addr::Tcp { .. } => {
                let hosts: Vec<_> = servers.iter().map(|server| server.addr.to_string()).collect();
                let master = match self.in_section("masterName") {
                    Some(found) => format!("/{}", encode(found.text()?, b"")),
                    None if self.name == "sentinelServersConfig" => {
                        return Err(refused(
                            found.value.line,
                            format!("{}.masterName", self.name),
                            "this is missing",
                        ));
                    }
                    None => String::new(),
                };
                let database = if database == 0 { String::new() } else { format!("/{database}") };
                format!("{scheme}{}{master}{database}", hosts.join(","))
            }
        };
        // What we have made must be what we would read.
        StoreUrl::parse(&url).map_err(|error| found.refuse(error.message()))?;
        self.taken("url", &url, &found);
        Ok((url, Some((first.access, found))))
    }

    fn tls(&mut self, file: &mut RedissonYaml, encrypted: bool) -> Result<(), Refused> {
        let mut tls = TlsOptions::default();
        let mut said = false;
        #[derive(Clone, Copy, PartialEq)]
        enum Check {
            Strict,
            CaOnly,
            None,
        }
        let check =
            match (self.in_both("sslVerificationMode"), self.in_both("sslEnableEndpointIdentification")) {
                (Some(found), _) => {
                    let words =
                        [("STRICT", Check::Strict), ("CA_ONLY", Check::CaOnly), ("NONE", Check::None)];
                    Some((found.word(&words)?, found))
                }
                // Its old name, which knew two of the three.
                (None, Some(found)) => {
                    Some((found.word(&[("true", Check::Strict), ("false", Check::CaOnly)])?, found))
                }
                (None, None) => None,
            };
        if let Some((check, found)) = check {
            tls.danger_accept_any_host_name = check == Check::CaOnly;
            tls.danger_accept_any_certificate = check == Check::None;
            match check {
                Check::Strict => {}
                Check::CaOnly => self.taken("tls_danger_accept_any_host_name", true, &found),
                Check::None => self.taken("tls_danger_accept_any_certificate", true, &found),
            }
            said = true;
        }
        let pem = match self.in_both("sslKeystoreType") {
            Some(found) => found.text()?.eq_ignore_ascii_case("PEM"),
            None => false,
        };
        for (key, is_trust) in [("sslTruststore", true), ("sslKeystore", false)] {
            let Some(found) = self.in_both(key) else { continue };
            let path = found.text()?.to_owned();
            if path.is_empty() {
                continue;
            }
            if !encrypted {
                self.notice(
                    found.value.line,
                    &*found.key,
                    "not used: the addresses are not encrypted (rediss://)",
                );
                continue;
            }
            match (pem_file(&path, pem), is_trust) {
                (Some(path), true) => {
                    self.taken("tls_ca_file", path, &found);
                    tls.ca_file = Some(path.into());
                }
                (Some(path), false) => {
                    self.taken("tls_cert_file", path, &found);
                    self.taken("tls_key_file", path, &found);
                    (tls.cert_file, tls.key_file) = (Some(path.into()), Some(path.into()));
                }
                (None, true) => file.trust_store = Some(found.value.line),
                (None, false) => file.key_store = Some(found.value.line),
            }
            said = true;
        }
        // A check of nothing needs no authorities.
        if tls.danger_accept_any_certificate {
            file.trust_store = None;
        }
        file.settings.tls = said.then_some(tls);
        Ok(())
    }
}

/// Redisson's own mappers and resolvers that change nothing, and other objects that it has unless told otherwise. It writes them
/// out when it saves a file.
const MAPPERS: [&str; 3] = ["DefaultNameMapper", "DefaultCommandMapper", "DefaultCredentialsResolver"];
const OBJECTS: [&str; 6] = [
    "DefaultNatMapper",
    "DefaultNettyHook",
    "FailedConnectionDetector",
    "RoundRobinLoadBalancer",
    "DnsAddressResolverGroupFactory",
    "SequentialDnsAddressResolverFactory",
];

fn is_default(value: &Value, defaults: &[&str]) -> bool {
    let class = value.class.as_deref().unwrap_or("");
    class.starts_with("org.redisson.") && defaults.iter().any(|name| class.rsplit('.').next() == Some(name))
}

fn same_login(one: &Access, other: &Access) -> bool {
    one.username == other.username && one.password == other.password
}

/// One address as Redisson takes it: with scheme and port, and without a path.
fn address(text: &str) -> Result<Server, String> {
    let text = text.trim();
    if text.starts_with("{aes}") {
        return Err("encrypted values cannot be read".to_owned());
    }
    let server = match StoreUrl::parse(text) {
        Ok(StoreUrl::Redis(server)) => server,
        Ok(_) => return Err("this is not an address like redis://host:6379".to_owned()),
        Err(error) => return Err(error.message().replace("the store URL", "the address")),
    };
    if let Addr::Tcp { .. } = server.addr {
        let host = text.rsplit('@').next().unwrap_or(text);
        let host = host.split_once("://").map_or(host, |(_, rest)| rest);
        let host = host.split(['/', '?']).next().unwrap_or(host);
        if host
            .rsplit_once(':')
            .is_none_or(|(_, port)| port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()))
        {
            return Err("an address needs a port, like redis://host:6379".to_owned());
        }
        if server.access.database != 0 || text.contains('?') {
            return Err("an address has neither path nor parameters; use the key database".to_owned());
        }
    }
    Ok(server)
}

/// The path of a file of PEM, if that is what a key store's URL names.
fn pem_file(url: &str, is_pem: bool) -> Option<&str> {
    let path = url.strip_prefix("file:").map_or(url, |rest| rest.strip_prefix("//").unwrap_or(rest));
    let by_name = [".pem", ".crt", ".cer"].iter().any(|end| path.to_ascii_lowercase().ends_with(end));
    let plain = path.starts_with('/') && !path.contains('%');
    (plain && (is_pem || by_name)).then_some(path)
}

/// Percent-encodes all but letters, digits and a few signs.
fn encode(text: &str, keep: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || keep.contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
