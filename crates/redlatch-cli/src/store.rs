//! From settings to a connected client.

use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder, ErrorKind, TlsOptions, store::StoreUrl};
use tokio::runtime::{Builder, Runtime};

use crate::{
    config::Settings,
    durations::Wait,
    escape,
    exit::{self, Failure},
    own_program,
    talk::Talk,
};

/// How long the last words to the server may take when a verb is done.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(3);

/// The runtime of a verb. It runs on the main thread, which lives as long as the process: a command must not be started
/// from a thread that may end before it.
pub(crate) struct VerbRuntime(Option<Runtime>);

pub(crate) fn runtime() -> Result<VerbRuntime, Failure> {
    let built = Builder::new_current_thread().enable_all().build();
    built
        .map(|runtime| VerbRuntime(Some(runtime)))
        .map_err(|error| Failure::internal(format!("cannot start: {error}")))
}

impl VerbRuntime {
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.as_ref().expect("it is there until it is dropped").block_on(work)
    }
}

/// The look-up of a server's name and the start of an engine block a thread of the runtime, for a minute at worst. The verb is over and
/// nothing is left that signals would end, so its end must not wait for them.
impl Drop for VerbRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Everything that the settings say, with `lease` for holds that are renewed.
fn builder(settings: &Settings, lease: Duration) -> ClientBuilder {
    let mut builder = match &settings.redisson {
        Some((file, _)) => Client::builder().redisson(file.clone()),
        None => Client::builder().url(&settings.url),
    };
    builder = builder
        .watchdog_lease(lease)
        .presence(settings.presence.clone())
        .redisson_fair_wait(settings.redisson_fair_wait)
        .renewal_batch(settings.renewal_batch)
        .connect_timeout(settings.connect_timeout)
        .response_timeout(settings.response_timeout);
    // A library looks for the command; this is the command, by any name.
    if std::env::var_os("REDLATCH_ENGINE_BIN").is_none()
        && let Ok(own) = own_program::path()
    {
        builder = builder.engine_binary(own);
    }
    if let Some(user) = &settings.username {
        builder = builder.username(user);
    }
    // A file is read again when its password has changed, which a command that runs for weeks may need.
    if let Some(file) = &settings.password_file {
        builder = builder.password_file(file);
    } else if let Some(password) = &settings.password {
        builder = builder.password(password.reveal());
    }
    if let Some(user) = &settings.sentinel_username {
        builder = builder.sentinel_username(user);
    }
    if let Some(file) = &settings.sentinel_password_file {
        builder = builder.sentinel_password_file(file);
    } else if let Some(password) = &settings.sentinel_password {
        builder = builder.sentinel_password(password.reveal());
    }
    if let Some(map) = &settings.address_map {
        builder = builder.address_map(map.clone());
    }
    if let Some(sharded) = settings.sharded {
        builder = builder.sharded(sharded);
    }
    if let Some(scripts) = settings.scripts {
        builder = builder.scripts(scripts);
    }
    if let Some(name) = &settings.client_name {
        builder = builder.client_name(name);
    }
    let mut tls = TlsOptions::default();
    tls.ca_file = settings.tls_ca_file.clone();
    tls.cert_file = settings.tls_cert_file.clone();
    tls.key_file = settings.tls_key_file.clone();
    tls.server_name = settings.tls_server_name.clone();
    tls.danger_accept_any_host_name = settings.tls_any_host_name;
    tls.danger_accept_any_certificate = settings.tls_insecure;
    builder.tls(tls)
}

/// Connects as the settings say and as often as `patience` allows, with `lease` for holds that are renewed.
///
/// # Errors
///
/// Those of the connection, with the URL but without its credentials.
pub(crate) async fn connect(
    settings: &Settings,
    lease: Duration,
    patience: Patience<'_>,
) -> Result<Client, Failure> {
    outlives_us(settings)?;
    // The lease may be a flag; everything else that can be out of range here was configured.
    let is_lease = lease != settings.lease;
    let started = Instant::now();
    let local = settings.redisson.is_none() && settings.url.starts_with("local:");
    let (mut pause, mut told) = (PAUSE, None);
    loop {
        let error = match builder(settings, lease).connect().await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let passes = match error.kind() {
            ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::ServerBusy => true,
            // The engine of this machine starts by itself, and what ended it meanwhile may be over.
            ErrorKind::Engine => local,
            _ => false,
        };
        let local_limit = if local { ENGINE_TIME } else { Duration::ZERO };
        let in_time = match patience.wait {
            Some(Wait::Forever) => true,
            Some(Wait::AtMost(limit)) => started.elapsed() + pause <= limit.max(local_limit),
            None => started.elapsed() + pause <= local_limit,
        };
        let failure = refused(settings, error, is_lease);
        if !passes || !in_time {
            return Err(failure);
        }
        let due = told.is_none_or(|at: Instant| at.elapsed() >= REMINDER_INTERVAL);
        if due && patience.talk.tells_of_waiting() {
            patience.talk.say(format_args!("waiting for the server: {failure}"));
            told = Some(Instant::now());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// How long to wait for a server that cannot be reached, and what to say meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience<'a> {
    /// As --wait says; without it a server that is not there is a mistake in the configuration.
    pub(crate) wait: Option<Wait>,
    pub(crate) talk: &'a Talk,
}

/// The first and the longest pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long an engine of this machine may take to come back.
const ENGINE_TIME: Duration = Duration::from_secs(2);
/// How often it is told that the server is waited for.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// What would keep anybody from connecting with these settings, as far as it shows without a connection.
///
/// # Errors
///
/// As [`connect`] answers it.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    outlives_us(settings)?;
    builder(settings, settings.lease).check().map_err(|error| refused(settings, error, false))
}

/// Refuses a store that ends with this process: a lock there would keep no other command out.
fn outlives_us(settings: &Settings) -> Result<(), Failure> {
    match StoreUrl::parse(&settings.url) {
        Ok(StoreUrl::Memory { .. }) if settings.redisson.is_none() => Err(Failure::config(
            "memory: is a store inside one process, so each command would have locks of its own; use local: for this machine",
        )),
        _ => Ok(()),
    }
}

fn refused(settings: &Settings, error: redlatch::Error, is_flag: bool) -> Failure {
    let configured = error.kind() == ErrorKind::InvalidOption && !is_flag;
    let failure = Failure::from(error);
    let code = if configured { exit::CONFIG } else { failure.code() };
    let place = escape::url(&settings.url);
    let text = failure.to_string();
    // Most errors name the server themselves, and there is no other engine without a name.
    let known = ["local:", "local", ""].contains(&settings.url.trim());
    if known || text.contains(&place.replace("***@", "").replace("?***", "")) {
        return Failure::new(code, text);
    }
    Failure::new(code, format!("{place}: {text}"))
}

/// Connects with the lease of the settings and runs a verb's work, on a runtime of its own.
///
/// # Errors
///
/// Those of the connection and of the work.
pub(crate) fn with_client<F>(settings: &Settings, work: F) -> Result<u8, Failure>
where
    F: AsyncFnOnce(&Client) -> Result<u8, Failure>,
{
    let talk = Talk::new(true, 0);
    with_patient_client(settings, Patience { wait: None, talk: &talk }, work)
}

/// As [`with_client`], for a verb that may wait.
///
/// # Errors
///
/// Those of the connection and of the work.
pub(crate) fn with_patient_client<F>(
    settings: &Settings,
    patience: Patience<'_>,
    work: F,
) -> Result<u8, Failure>
where
    F: AsyncFnOnce(&Client) -> Result<u8, Failure>,
{
    runtime()?.block_on(async {
        let client = connect(settings, settings.lease, patience).await?;
        let result = work(&client).await;
        // Whatever was interrupted is undone now, before the process ends.
        client.shutdown(FAREWELL_TIMEOUT).await;
        result
    })
}
