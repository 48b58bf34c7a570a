//! One sale: starting the buyers, counting what they say, and what came of it.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use super::{
    progress::Progress,
    worker::{READY, SOLD},
};
use crate::{
    args::Way,
    config::{PASSWORD_ENV, SENTINEL_PASSWORD_ENV, Settings},
    exit::Failure,
    output::Record,
    own_program,
    talk::Talk,
};

/// How long one sale may take before it is given up.
const SALE_TIMEOUT: Duration = Duration::from_secs(120);
/// Words of buyers that were said and not yet counted; more make them wait.
const WORDS_PENDING_MAX: usize = 256;

/// What came of one sale.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    way: &'static str,
    sold: u64,
    oversold: u64,
    seconds: f64,
    elapsed_ms: u64,
    protected: bool,
}

impl Row {
    /// Whether it sold exactly what there was; nobody expects that of an unprotected sale.
    pub(crate) fn is_broken(&self, items: u32) -> bool {
        self.protected && self.sold != u64::from(items)
    }
}

impl Record for Row {
    const COLUMNS: &'static [&'static str] = &["WAY", "SOLD", "OVERSOLD", "SECONDS"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        vec![
            self.way.into(),
            self.sold.to_string(),
            self.oversold.to_string(),
            format!("{:.3}", self.seconds),
        ]
    }

    fn name(&self) -> String {
        self.way.into()
    }
}

/// What a sale is called.
pub(crate) fn title(way: Way) -> &'static str {
    match way {
        Way::Script => "script",
        Way::Lock => "lock",
        Way::Nothing => "no lock",
    }
}

/// Sells `items` through `workers` processes.
///
/// # Errors
///
/// Internal, when a buyer cannot be started, fails, or takes too long.
pub(crate) async fn sell(
    settings: &Settings,
    way: Way,
    stock: &str,
    items: u32,
    workers: u16,
    talk: Talk,
) -> Result<Row, Failure> {
    let progress = Progress::new(title(way), items, talk);
    let result = timeout(SALE_TIMEOUT, run(settings, way, stock, workers, &progress)).await;
    progress.end();
    let (sold, took) = result.map_err(|_| Failure::internal("the sale did not end in time"))??;
    talk.say_plain(format_args!("{}: sold {sold} of {items} in {:.3} s", title(way), took.as_secs_f64()));
    Ok(Row {
        way: title(way),
        sold,
        oversold: sold.saturating_sub(u64::from(items)),
        seconds: took.as_secs_f64(),
        elapsed_ms: crate::durations::ms(took),
        protected: way != Way::Nothing,
    })
}

async fn run(
    settings: &Settings,
    way: Way,
    stock: &str,
    workers: u16,
    progress: &Progress,
) -> Result<(u64, Duration), Failure> {
    let (words, mut heard) = mpsc::channel(WORDS_PENDING_MAX);
    let mut buyers = Vec::with_capacity(usize::from(workers));
    let mut readers = JoinSet::new();
    for _ in 0..workers {
        let mut child = start(settings, way, stock)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::internal("a buyer has no pipes"));
        };
        let words = words.clone();
        readers.spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if words.send(line).await.is_err() {
                    return;
                }
            }
        });
        buyers.push((child, input));
    }
    drop(words);
    for _ in 0..workers {
        if heard.recv().await.as_deref() != Some(READY) {
            return Err(Failure::internal("a buyer did not get ready"));
        }
    }
    let started = Instant::now();
    for (_, input) in &mut buyers {
        open_shop(input).await?;
    }
    let mut sold = 0;
    while let Some(word) = heard.recv().await {
        if word == SOLD {
            sold += 1;
            progress.sold(sold);
        }
    }
    let took = started.elapsed();
    for (child, _) in &mut buyers {
        let status = child.wait().await.map_err(|error| Failure::internal(format!("a buyer: {error}")))?;
        if !status.success() {
            return Err(Failure::internal(format!("a buyer failed: {status}")));
        }
    }
    Ok((sold, took))
}

async fn open_shop(input: &mut ChildStdin) -> Result<(), Failure> {
    input.write_all(b"go\n").await.map_err(|error| Failure::internal(format!("a buyer went away: {error}")))
}

/// A buyer gets its settings by environment, where other users of the machine cannot read them.
fn start(settings: &Settings, way: Way, stock: &str) -> Result<Child, Failure> {
    let failed = |error| Failure::internal(format!("cannot start a buyer: {error}"));
    let mut command = Command::from(own_program::command().map_err(failed)?);
    let way = match way {
        Way::Script => "script",
        Way::Lock => "lock",
        Way::Nothing => "nothing",
    };
    command.args(["__demo-worker", "--way", way, "--stock", stock]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
        .env_remove("REDLATCH_CONTEXT")
        .env_remove("REDLATCH_PASSWORD_FILE")
        .env_remove("REDLATCH_SENTINEL_PASSWORD_FILE");
    match &settings.redisson {
        Some((_, path)) => command.env("REDLATCH_REDISSON_YAML", path).env_remove("REDLATCH_URL"),
        None => command.env("REDLATCH_URL", &settings.url).env_remove("REDLATCH_REDISSON_YAML"),
    };
    match &settings.sentinel_password {
        Some(password) => command.env(SENTINEL_PASSWORD_ENV, password.reveal()),
        None => command.env_remove(SENTINEL_PASSWORD_ENV),
    };
    for (name, value) in [
        ("REDLATCH_SENTINEL_USERNAME", settings.sentinel_username.clone()),
        ("REDLATCH_SHARDED", settings.sharded.map(|sharded| format!("{sharded:?}"))),
        ("REDLATCH_SCRIPTS", settings.scripts.map(|scripts| format!("{scripts:?}"))),
    ] {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    match &settings.password {
        Some(password) => command.env(PASSWORD_ENV, password.reveal()),
        None => command.env_remove(PASSWORD_ENV),
    };
    if let Some(user) = &settings.username {
        command.env("REDLATCH_USERNAME", user);
    }
    if let Some(map) = &settings.address_map {
        command.env("REDLATCH_ADDRESS_MAP", map.to_string());
    }
    let files = [
        ("REDLATCH_TLS_CA_FILE", &settings.tls_ca_file),
        ("REDLATCH_TLS_CERT_FILE", &settings.tls_cert_file),
        ("REDLATCH_TLS_KEY_FILE", &settings.tls_key_file),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            command.env(name, file);
        }
    }
    if let Some(name) = &settings.tls_server_name {
        command.env("REDLATCH_TLS_SERVER_NAME", name);
    }
    command.env("REDLATCH_TLS_ANY_HOST_NAME", settings.tls_any_host_name.to_string());
    command.env("REDLATCH_TLS_INSECURE", settings.tls_insecure.to_string());
    command.spawn().map_err(failed)
}
