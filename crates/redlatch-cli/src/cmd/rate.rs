//! `redlatch rate`: no more than so many in any interval.

use std::time::Duration;

use redlatch::{Client, ErrorKind, LockName, Rate};
use serde::Serialize;

use super::{Context, count::too_few, lock_name};
use crate::{
    args::rate::{RateArgs, RateVerb},
    durations::{self, Wait},
    exit::{self, Failure},
    output::{self, Record},
    run::acquire::{Patience, ending, quoted},
    signals::Signals,
    store,
};

#[derive(Serialize)]
struct Limiter {
    name: String,
    exists: bool,
    permits: Option<u64>,
    interval_ms: Option<u64>,
    per_client: Option<bool>,
    keep_alive_ms: Option<u64>,
    available: Option<i64>,
}

impl Record for Limiter {
    const COLUMNS: &'static [&'static str] =
        &["NAME", "EXISTS", "PERMITS", "INTERVAL", "FOR", "AVAILABLE", "KEEP-ALIVE"];
    const NARROW: usize = 6;

    fn cells(&self) -> Vec<String> {
        let time = |ms| durations::human(Duration::from_millis(ms));
        vec![
            self.name.clone(),
            self.exists.to_string(),
            self.permits.map(|permits| permits.to_string()).unwrap_or_default(),
            self.interval_ms.map(time).unwrap_or_default(),
            self.per_client.map_or("", |each| if each { "each client" } else { "all clients" }).into(),
            self.available.map(|available| available.to_string()).unwrap_or_default(),
            self.keep_alive_ms.map(time).unwrap_or_default(),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

pub(super) fn rate(args: RateArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let wait = match &args.verb {
        RateVerb::Acquire { wait, .. } => wait.wait,
        _ => None,
    };
    let connecting = store::Patience { wait, talk: &context.talk };
    store::with_patient_client(&settings, connecting, async |client| match args.verb {
        RateVerb::Set { name, permits, per, per_client, keep_alive, if_absent, update } => {
            let name = lock_name(name)?;
            let mut rate = Rate::per(permits, per);
            if per_client {
                rate = rate.per_client();
            }
            if let Some(time) = keep_alive {
                rate = rate.keep_alive(time);
            }
            let limiter = client.rate_limiter(&name);
            if if_absent {
                if !limiter.set_if_absent(rate).await? {
                    context.talk.detail(format_args!("{} has a rate already", quoted(&name)));
                }
            } else if update {
                if !limiter.update(rate).await? {
                    return Err(absent(&name));
                }
            } else {
                limiter.set(rate).await?;
            }
            Ok(exit::OK)
        }
        RateVerb::Acquire { name, permits, wait } => {
            acquire(client, &lock_name(name)?, permits, wait.into(), context).await
        }
        RateVerb::Show { name, output } => {
            let name = lock_name(name)?;
            let limiter = client.rate_limiter(&name);
            let rate = limiter.config().await?;
            let shown = Limiter {
                name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
                exists: rate.is_some(),
                permits: rate.map(|rate| rate.permits()),
                interval_ms: rate.map(|rate| durations::ms(rate.interval())),
                per_client: rate.map(|rate| rate.is_per_client()),
                keep_alive_ms: rate.and_then(|rate| rate.keep_alive_time()).map(durations::ms),
                available: match rate {
                    Some(_) => Some(limiter.available().await?),
                    None => None,
                },
            };
            output::one(output::format(output, &settings), &shown)?;
            Ok(exit::OK)
        }
        RateVerb::Delete { name } => {
            let name = lock_name(name)?;
            if client.rate_limiter(&name).delete().await? { Ok(exit::OK) } else { Err(absent(&name)) }
        }
    })
}

async fn acquire(
    client: &Client,
    name: &LockName,
    permits: u32,
    patience: Patience,
    context: &Context,
) -> Result<u8, Failure> {
    let mut signals =
        Signals::install().map_err(|error| Failure::internal(format!("cannot catch signals: {error}")))?;
    let limiter = client.rate_limiter(name);
    let work = async {
        match patience.wait {
            Wait::Forever => limiter.acquire(permits).await.map(|()| true),
            Wait::AtMost(Duration::ZERO) => limiter.try_acquire(permits).await,
            Wait::AtMost(limit) => limiter.acquire_for(permits, limit).await,
        }
    };
    let taken = tokio::select! {
        biased;
        signal = ending(&mut signals) => return Ok(exit::by_signal(signal)),
        taken = work => taken.map_err(|error| match error.kind() {
            ErrorKind::NotInitialised => absent(name),
            _ => Failure::from(error),
        })?,
    };
    if taken {
        return Ok(exit::OK);
    }
    if patience.skips {
        context.talk.detail(format_args!("{} has too few free permits", quoted(name)));
    } else {
        context.talk.say(format_args!(
            "{} has {} in that time; look with `redlatch rate show`",
            quoted(name),
            too_few(permits)
        ));
    }
    Ok(patience.busy_code)
}

fn absent(name: &LockName) -> Failure {
    Failure::new(exit::LOST, format!("no rate is set for {}; set one with `redlatch rate set`", quoted(name)))
}
