//! Where each setting comes from: flag, environment, configuration file, default — in that order.
//!
//! Configuration files are looked for in fixed places only. One in the working directory is not picked up: a stray file
//! must not send locks to another server. For the same reason an unknown key is an error, not a warning: `urll = …` would
//! otherwise leave everybody locking on their own machine.

mod redisson;
mod secret;
mod surroundings;
mod url;

use std::{
    fmt, fs, io,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use redlatch::{
    Presence, ScriptMode, ShardedPubSub,
    config::{AddressMap, RedissonYaml},
};
use toml::{Table, Value};

pub(crate) use secret::Secret;
pub(crate) use surroundings::Surroundings;
pub(crate) use url::without_credentials;

use redisson::{Found, Source};

use crate::{
    args::{Format, Global},
    durations, escape,
    exit::Failure,
};

/// The largest configuration or password file read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// One setting: its key in files, its environment variable, its default.
struct Key {
    name: &'static str,
    env: &'static str,
    default: Option<&'static str>,
    is_path: bool,
}

const fn key(name: &'static str, env: &'static str, default: Option<&'static str>) -> Key {
    Key { name, env, default, is_path: false }
}

const fn path(name: &'static str, env: &'static str) -> Key {
    Key { name, env, default: None, is_path: true }
}

const KEYS: [Key; 23] = [
    key("url", URL_ENV, Some("local:")),
    key("username", "REDLATCH_USERNAME", None),
    path("password_file", "REDLATCH_PASSWORD_FILE"),
    key("sentinel_username", "REDLATCH_SENTINEL_USERNAME", None),
    path("sentinel_password_file", "REDLATCH_SENTINEL_PASSWORD_FILE"),
    path("redisson_yaml", "REDLATCH_REDISSON_YAML"),
    // Unset, what the URL says counts.
    key("sharded", "REDLATCH_SHARDED", None),
    key("scripts", "REDLATCH_SCRIPTS", None),
    key("client_name", "REDLATCH_CLIENT_NAME", None),
    key("address_map", "REDLATCH_ADDRESS_MAP", None),
    key("presence", "REDLATCH_PRESENCE", Some("true")),
    key("redisson_fair_wait", "REDLATCH_REDISSON_FAIR_WAIT", Some("300s")),
    key("renewal_batch", "REDLATCH_RENEWAL_BATCH", Some("100")),
    key("lease", "REDLATCH_LEASE", Some("30s")),
    key("connect_timeout", "REDLATCH_CONNECT_TIMEOUT", Some("5s")),
    key("response_timeout", "REDLATCH_RESPONSE_TIMEOUT", Some("3s")),
    key("output", "REDLATCH_OUTPUT", Some("table")),
    path("tls_ca_file", "REDLATCH_TLS_CA_FILE"),
    path("tls_cert_file", "REDLATCH_TLS_CERT_FILE"),
    path("tls_key_file", "REDLATCH_TLS_KEY_FILE"),
    key("tls_server_name", "REDLATCH_TLS_SERVER_NAME", None),
    key("tls_any_host_name", "REDLATCH_TLS_ANY_HOST_NAME", Some("false")),
    key("tls_insecure", "REDLATCH_TLS_INSECURE", Some("false")),
];

/// The environment variable of the store's URL, which may have credentials in it.
pub(crate) const URL_ENV: &str = "REDLATCH_URL";
/// The environment variable of the password, which has no flag and no key in files.
pub(crate) const PASSWORD_ENV: &str = "REDLATCH_PASSWORD";
/// The same for the sentinels' own.
pub(crate) const SENTINEL_PASSWORD_ENV: &str = "REDLATCH_SENTINEL_PASSWORD";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag of the command line.
    Flag(&'static str),
    /// An environment variable.
    Env(&'static str),
    /// A configuration file, and the named context in it.
    File(PathBuf, Option<String>),
    /// A Redisson file, and the section and key in it.
    Redisson(PathBuf, String),
    /// The URL itself, and where that came from.
    Url(Box<Origin>),
    /// A user typed it.
    Typed,
    /// Built in.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => f.write_str(flag),
            Origin::Env(name) => f.write_str(name),
            Origin::File(path, None) => write!(f, "{}", escape::text(&path.to_string_lossy())),
            Origin::File(path, Some(context)) => {
                write!(f, "{} [{}]", escape::text(&path.to_string_lossy()), escape::text(context))
            }
            Origin::Redisson(path, key) => {
                write!(f, "{} {}", escape::text(&path.to_string_lossy()), escape::text(key))
            }
            Origin::Url(of) => write!(f, "url of {of}"),
            Origin::Typed => f.write_str("--password-prompt"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One line of `config show`.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) key: &'static str,
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
}

/// All settings in force.
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    /// The file that the password is from, if it is from one.
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) sentinel_username: Option<String>,
    pub(crate) sentinel_password: Option<Secret>,
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// The Redisson file that says where the locks live, and its path.
    pub(crate) redisson: Option<(RedissonYaml, String)>,
    pub(crate) sharded: Option<ShardedPubSub>,
    pub(crate) scripts: Option<ScriptMode>,
    pub(crate) client_name: Option<String>,
    pub(crate) address_map: Option<AddressMap>,
    /// What is told of this command while it holds or waits.
    pub(crate) presence: Presence,
    pub(crate) redisson_fair_wait: Duration,
    pub(crate) renewal_batch: usize,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) output: Format,
    pub(crate) tls_ca_file: Option<PathBuf>,
    pub(crate) tls_cert_file: Option<PathBuf>,
    pub(crate) tls_key_file: Option<PathBuf>,
    pub(crate) tls_server_name: Option<String>,
    pub(crate) tls_any_host_name: bool,
    pub(crate) tls_insecure: bool,
    pub(crate) shown: Vec<Shown>,
    /// Why a secret could not be read.
    pub(crate) unread: Option<Failure>,
}

impl Settings {
    /// Works out every setting.
    ///
    /// # Errors
    ///
    /// Configuration: an unreadable file, an unknown key or context, or a value that cannot be understood.
    pub(crate) fn load(global: &Global, around: &Surroundings) -> Result<Self, Failure> {
        let settings = Settings::look(global, around)?;
        match settings.unread {
            Some(unread) => Err(unread),
            None => Ok(settings),
        }
    }

    /// The same for those who only look: a secret that cannot be read is kept as what is wrong.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`], but for secrets.
    pub(crate) fn look(global: &Global, around: &Surroundings) -> Result<Self, Failure> {
        let files = files(global, around)?;
        let (context, context_is_flag) = match &global.context {
            Some(flag) => (Some(flag.clone()), true),
            None => {
                let variable = around.text("REDLATCH_CONTEXT")?;
                (variable.or_else(|| files.iter().find_map(|file| file.context.clone())), false)
            }
        };
        if let Some(context) = &context
            && !files.iter().any(|file| file.contexts.iter().any(|(name, _)| name == context))
        {
            return Err(Failure::config(format!(
                "no configuration file defines the context \"{}\"; add a table [contexts.{0}] to one",
                escape::text(context)
            )));
        }
        let lookup = |key: &Key| -> Result<Found, Failure> {
            if let Some((flag, value)) = flag(key.name, global) {
                return Ok((Some(value), Origin::Flag(flag), 0));
            }
            // A context asked for by flag is a flag: a forgotten variable must not redirect `--context prod`.
            let (context_rank, env_rank) = if context_is_flag { (1, 2) } else { (2, 1) };
            let from_context = || {
                let context = context.as_deref()?;
                files.iter().find_map(|file| {
                    let (_, layer) = file.contexts.iter().find(|(name, _)| name == context)?;
                    let (_, value) = layer.iter().find(|(name, _)| *name == key.name)?;
                    let origin = Origin::File(file.path.clone(), Some(context.to_owned()));
                    Some((Some(value.clone()), origin, context_rank))
                })
            };
            let from_env = || -> Result<Option<Found>, Failure> {
                Ok(around.text(key.env)?.map(|value| (Some(value), Origin::Env(key.env), env_rank)))
            };
            let found = match (context_is_flag, from_context()) {
                (true, Some(found)) => Some(found),
                (_, from_context) => from_env()?.or(from_context),
            };
            let found = found.or_else(|| {
                files.iter().enumerate().find_map(|(at, file)| {
                    let (_, value) = file.top.iter().find(|(name, _)| *name == key.name)?;
                    Some((Some(value.clone()), Origin::File(file.path.clone(), None), 3 + at))
                })
            });
            Ok(found.unwrap_or((key.default.map(str::to_owned), Origin::Default, usize::MAX)))
        };
        let found = KEYS.iter().map(|key| Ok((key, lookup(key)?))).collect::<Result<Vec<_>, Failure>>()?;
        let by_name = |name: &str| found.iter().find(|(key, _)| key.name == name).map(|(_, found)| found);
        let source = match (by_name("url"), by_name("redisson_yaml")) {
            (Some(url), Some(named)) => Source::find(url, named)?,
            _ => None,
        };
        let mut values = Vec::with_capacity(KEYS.len());
        for (key, found) in &found {
            let of_file = source.as_ref().and_then(|source| source.value(key, found));
            let (value, origin, _) = of_file.unwrap_or_else(|| found.clone());
            values.push((*key, value, origin));
        }
        if let (Some(source), Some(row)) =
            (&source, values.iter_mut().find(|(key, ..)| key.name == "redisson_yaml"))
        {
            row.1 = Some(source.path.clone());
        }
        let mut settings = Settings::typed(&values)?;
        (settings.password, settings.password_file) = settings.secret(
            &DATA_PASSWORD,
            if global.password_prompt { Some(secret::typed()?) } else { None },
            around,
            source.as_ref(),
            by_name("password_file").map_or(usize::MAX, |found| found.2),
            if context_is_flag { 2 } else { 1 },
        )?;
        (settings.sentinel_password, settings.sentinel_password_file) = settings.secret(
            &SENTINEL_PASSWORD,
            None,
            around,
            source.as_ref(),
            by_name("sentinel_password_file").map_or(usize::MAX, |found| found.2),
            if context_is_flag { 2 } else { 1 },
        )?;
        settings.show_what_the_url_says();
        if let Some(source) = source {
            settings.shown.extend(source.notices());
            settings.redisson = Some((source.file, source.path));
        }
        if let (Some(context), false) = (&context, settings.shown.iter().any(|shown| shown.key == "context"))
        {
            let origin =
                if context_is_flag { Origin::Flag("--context") } else { Origin::Env("REDLATCH_CONTEXT") };
            let origin = match files.iter().find(|file| file.context.as_ref() == Some(context)) {
                Some(file) if !context_is_flag && around.text("REDLATCH_CONTEXT")?.is_none() => {
                    Origin::File(file.path.clone(), None)
                }
                _ => origin,
            };
            settings
                .shown
                .insert(0, Shown { key: "context", value: Some(escape::text(context).to_string()), origin });
        }
        Ok(settings)
    }

    /// The names of all contexts that files define.
    ///
    /// # Errors
    ///
    /// Those of the files.
    pub(crate) fn contexts(global: &Global, around: &Surroundings) -> Result<Vec<String>, Failure> {
        let files = files(global, around)?;
        Ok(files.into_iter().flat_map(|file| file.contexts).map(|(name, _)| name).collect())
    }

    /// What the URL says by itself counts where nothing else was said.
    fn show_what_the_url_says(&mut self) {
        let of = self
            .shown
            .iter()
            .find(|shown| shown.key == "url")
            .map_or(Origin::Default, |url| url.origin.clone());
        if matches!(of, Origin::Redisson(..)) {
            return;
        }
        for (key, value) in url::settings(&self.url) {
            let said = Shown { key, value: Some(value), origin: Origin::Url(Box::new(of.clone())) };
            match self.shown.iter_mut().find(|shown| shown.key == key) {
                Some(shown) if shown.origin == Origin::Default => *shown = said,
                Some(_) => {}
                None => self.shown.push(said),
            }
        }
    }

    fn typed(values: &[(&Key, Option<String>, Origin)]) -> Result<Self, Failure> {
        let find = |name: &str| values.iter().find(|(key, ..)| key.name == name);
        let get = |name: &str| find(name).and_then(|(_, value, _)| value.clone());
        let bad = |name: &str, why: &str| {
            let origin = find(name).map_or(Origin::Default, |(.., origin)| origin.clone());
            Failure::config(format!("{name} (from {origin}): {why}"))
        };
        let duration = |name: &str| {
            let text = get(name).unwrap_or_default();
            durations::parse_positive(&text).map_err(|why| bad(name, &why))
        };
        let output = get("output").unwrap_or_default();
        let insecure = get("tls_insecure").unwrap_or_default();
        let shown = values.iter().map(|(key, value, origin)| Shown {
            key: key.name,
            value: value.as_ref().map(|value| {
                if key.name == "url" { escape::url(value) } else { escape::text(value).to_string() }
            }),
            origin: origin.clone(),
        });
        Ok(Settings {
            url: get("url").unwrap_or_default(),
            username: get("username"),
            password: None,
            password_file: None,
            sentinel_username: get("sentinel_username"),
            sentinel_password: None,
            sentinel_password_file: None,
            redisson: None,
            sharded: get("sharded")
                .map(|text| text.parse().map_err(|_| bad("sharded", "give auto, on, off or compat")))
                .transpose()?,
            scripts: get("scripts")
                .map(|text| text.parse().map_err(|_| bad("scripts", "give eval or functions")))
                .transpose()?,
            client_name: get("client_name"),
            address_map: get("address_map")
                .map(|text| {
                    text.parse().map_err(|error: redlatch::Error| bad("address_map", &error.to_string()))
                })
                .transpose()?,
            presence: match get("presence").unwrap_or_default().parse() {
                Ok(true) => Presence::told(),
                Ok(false) => Presence::untold(),
                Err(_) => return Err(bad("presence", "give true or false")),
            },
            redisson_fair_wait: durations::parse(&get("redisson_fair_wait").unwrap_or_default())
                .map_err(|why| bad("redisson_fair_wait", &why))?,
            renewal_batch: match get("renewal_batch").unwrap_or_default().parse() {
                Ok(names) if (1..=100).contains(&names) => names,
                _ => return Err(bad("renewal_batch", "give a number from 1 to 100")),
            },
            lease: duration("lease")?,
            connect_timeout: duration("connect_timeout")?,
            response_timeout: duration("response_timeout")?,
            output: clap::ValueEnum::from_str(&output, true)
                .map_err(|_| bad("output", "give table, wide, json, ndjson or name"))?,
            tls_ca_file: get("tls_ca_file").map(PathBuf::from),
            tls_cert_file: get("tls_cert_file").map(PathBuf::from),
            tls_key_file: get("tls_key_file").map(PathBuf::from),
            tls_server_name: get("tls_server_name"),
            tls_any_host_name: get("tls_any_host_name")
                .unwrap_or_default()
                .parse()
                .map_err(|_| bad("tls_any_host_name", "give true or false"))?,
            tls_insecure: insecure.parse().map_err(|_| bad("tls_insecure", "give true or false"))?,
            shown: shown.collect(),
            unread: None,
        })
    }

    /// Typed in or a file by flag, then the variable, then the other ways to name a file, then a Redisson file unless that comes
    /// before; the URL's own comes last.
    fn secret(
        &mut self,
        names: &SecretNames,
        typed: Option<Secret>,
        around: &Surroundings,
        source: Option<&Source>,
        file_rank: usize,
        env_rank: usize,
    ) -> Result<(Option<Secret>, Option<PathBuf>), Failure> {
        let file = self.shown.iter().find(|shown| shown.key == names.file_key);
        let (path, file_origin) =
            file.map_or((None, Origin::Default), |shown| (shown.value.clone(), shown.origin.clone()));
        let variable = around.text(names.env)?;
        let of_source = source.and_then(|source| Some((source.secret(names.setting)?, source.rank)));
        let before = |rank: usize| of_source.as_ref().is_none_or(|(_, of_source)| rank <= *of_source);
        let mut of_file = None;
        let (secret, origin) = match (typed, path, variable) {
            (Some(typed), ..) => (Some(typed), Origin::Typed),
            (_, Some(path), variable)
                if before(file_rank) && (variable.is_none() || matches!(file_origin, Origin::Flag(_))) =>
            {
                // Read now so that a mistake is told as one of the configuration; the client reads it by itself.
                let secret = secret::from_file(&path).unwrap_or_else(|failure| {
                    self.unread = Some(failure);
                    secret::unread()
                });
                of_file = Some(PathBuf::from(path));
                (Some(secret), file_origin)
            }
            (_, _, Some(password)) if before(env_rank) => (Some(Secret(password)), Origin::Env(names.env)),
            _ => match of_source {
                Some((origin, _)) => (None, origin),
                None => return Ok((None, None)),
            },
        };
        self.shown.push(Shown { key: names.setting, value: Some("***".into()), origin });
        Ok((secret, of_file))
    }
}

/// What a password is called in each place.
struct SecretNames {
    setting: &'static str,
    file_key: &'static str,
    env: &'static str,
}

const DATA_PASSWORD: SecretNames =
    SecretNames { setting: "password", file_key: "password_file", env: PASSWORD_ENV };
const SENTINEL_PASSWORD: SecretNames = SecretNames {
    setting: "sentinel_password",
    file_key: "sentinel_password_file",
    env: SENTINEL_PASSWORD_ENV,
};

fn flag(name: &str, global: &Global) -> Option<(&'static str, String)> {
    let path = |path: &PathBuf| path.to_string_lossy().into_owned();
    match name {
        "url" => global.url.clone().map(|url| ("--url", url)),
        "address_map" => global.address_map.clone().map(|map| ("--address-map", map)),
        "username" => global.username.clone().map(|user| ("--username", user)),
        "redisson_yaml" => global.redisson_yaml.as_ref().map(|file| ("--redisson-yaml", path(file))),
        "password_file" => global.password_file.as_ref().map(|file| ("--password-file", path(file))),
        _ => None,
    }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is over 1 MiB"));
    }
    Ok(text)
}

type Layer = Vec<(&'static str, String)>;

/// One configuration file, read and checked.
struct File {
    path: PathBuf,
    context: Option<String>,
    contexts: Vec<(String, Layer)>,
    top: Layer,
}

fn files(global: &Global, around: &Surroundings) -> Result<Vec<File>, Failure> {
    let asked = match &global.config {
        Some(flag) => Some(flag.clone()),
        None => around.raw("REDLATCH_CONFIG")?.map(PathBuf::from),
    };
    let required = asked.is_some();
    let mut files = Vec::new();
    for (index, path) in asked.iter().chain(&around.files).enumerate() {
        match read_bounded(path) {
            Ok(text) => files.push(File::parse(path, &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !(required && index == 0) => {}
            Err(error) => {
                let path = path.to_string_lossy();
                // To go on without it may mean another store, and two holders.
                let remedy = match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        "; if it is another user's, set HOME to this user's, or name a file in REDLATCH_CONFIG"
                    }
                    _ => "",
                };
                return Err(Failure::config(format!(
                    "cannot read the configuration file {}: {error}{remedy}",
                    escape::text(&path)
                )));
            }
        }
    }
    Ok(files)
}

impl File {
    fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let shown = escape::text(&path.to_string_lossy()).to_string();
        // The error's own text quotes the line, which may hold a URL with a password; its position is enough.
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line =
                error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            Failure::config(format!("{shown}, line {line}: {}", error.message()))
        })?;
        let mut file = File { path: path.to_owned(), context: None, contexts: Vec::new(), top: Vec::new() };
        for (name, value) in &table {
            match (name.as_str(), value) {
                ("context", Value::String(context)) => file.context = Some(context.clone()),
                ("contexts", Value::Table(contexts)) => {
                    for (context, layer) in contexts {
                        let place = format!("{shown}, [contexts.{}]", escape::text(context));
                        let Value::Table(layer) = layer else {
                            return Err(Failure::config(format!("{place} is not a table")));
                        };
                        let layer = layer.iter().map(|(name, value)| entry(&place, path, name, value));
                        file.contexts.push((context.clone(), layer.collect::<Result<_, _>>()?));
                    }
                }
                (name, value) => file.top.push(entry(&shown, path, name, value)?),
            }
        }
        Ok(file)
    }
}

fn entry(place: &str, file: &Path, name: &str, value: &Value) -> Result<(&'static str, String), Failure> {
    let Some(key) = KEYS.iter().find(|key| key.name == name) else {
        let known: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        return Err(Failure::config(format!(
            "{place}: unknown key \"{}\"; known are context, contexts, {}",
            escape::text(name),
            known.join(", ")
        )));
    };
    let text = match value {
        Value::String(text) if key.is_path => {
            // Relative to the file that says so: the working directory is whatever the caller happened to be in.
            file.parent().unwrap_or(Path::new("")).join(text).to_string_lossy().into_owned()
        }
        Value::String(text) => text.clone(),
        Value::Boolean(flag) => flag.to_string(),
        // A number of something needs no quotes; a time without a unit is refused where it is read.
        Value::Integer(number) => number.to_string(),
        _ => {
            return Err(Failure::config(format!(
                "{place}: {name} must be a text in quotes, such as \"30s\", a whole number, or true or false"
            )));
        }
    };
    Ok((key.name, text))
}

#[cfg(test)]
mod tests;
