//! `redlatch sem`: permits without owners.

use std::time::Duration;

use redlatch::{Client, LockName, Semaphore};

use super::{
    Context,
    count::{self, Answer, Ended, too_few},
    lock_name,
};
use crate::{
    args::{
        Format,
        sem::{SemArgs, SemVerb},
    },
    durations::Wait,
    exit::{self, Failure},
    output,
    run::acquire::{Patience, quoted},
    store,
};

pub(super) fn sem(args: SemArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let wait = match &args.verb {
        SemVerb::Acquire { wait, .. } => wait.wait,
        _ => None,
    };
    let connecting = store::Patience { wait, talk: &context.talk };
    store::with_patient_client(&settings, connecting, async |client| match args.verb {
        SemVerb::Set { name, permits, ttl, if_absent, output } => {
            let name = lock_name(name)?;
            let set = client.semaphore(&name).set_if_absent(permits, ttl).await?;
            if !set && !if_absent {
                return Err(Failure::new(
                    exit::BUSY,
                    format!(
                        "{} is set already and was left as it is; change it with `redlatch sem add`, or delete it first",
                        quoted(&name)
                    ),
                ));
            }
            Answer { set: Some(set), ..Answer::of(&name) }.if_asked(output)?;
            Ok(exit::OK)
        }
        SemVerb::Acquire { name, permits, wait, output } => {
            let name = lock_name(name)?;
            let request =
                Request { client, name: &name, permits, patience: wait.into(), format: output.format };
            acquire(request, context).await
        }
        SemVerb::Release { name, permits, output } => {
            let name = lock_name(name)?;
            if !client.semaphore(&name).release_if_exists(permits).await? {
                return Err(absent(&name));
            }
            Answer { released: Some(permits.into()), ..Answer::of(&name) }.if_asked(output)?;
            Ok(exit::OK)
        }
        SemVerb::Show(which) => {
            let name = lock_name(which.name)?;
            let (state, answer) = count::look(client, &name, "semaphore").await?;
            let available = Some(state.value.unwrap_or(0));
            Answer { available, ..answer }.print(which.output, &settings)?;
            Ok(exit::OK)
        }
        SemVerb::Add { name, change, output } => {
            let name = lock_name(name)?;
            let available = Some(client.semaphore(&name).add(change).await?);
            Answer { available, ..Answer::of(&name) }.print(output, &settings)?;
            Ok(exit::OK)
        }
        SemVerb::Drain(which) => {
            let name = lock_name(which.name)?;
            let semaphore = client.semaphore(&name);
            let taken = semaphore.drain().await?;
            let answer = Answer { acquired: Some(taken), ..Answer::of(&name) };
            let format = output::format(which.output, &settings);
            hand_over(&semaphore, taken, &answer.rendered(Some(format))?).await
        }
        SemVerb::Delete(which) => {
            let name = lock_name(which.name)?;
            // Permits with leases have a key beside the number, which would stay.
            count::look(client, &name, "semaphore").await?;
            if !client.semaphore(&name).delete().await? {
                return Err(absent(&name));
            }
            Answer { deleted: Some(true), ..Answer::of(&name) }.if_asked(which.output)?;
            Ok(exit::OK)
        }
    })
}

struct Request<'a> {
    client: &'a Client,
    name: &'a LockName,
    permits: u32,
    patience: Patience,
    format: Option<Format>,
}

async fn acquire(request: Request<'_>, context: &Context) -> Result<u8, Failure> {
    let Request { client, name, permits, patience, format } = request;
    let semaphore = client.semaphore(name);
    let work = async {
        match patience.wait {
            Wait::Forever => semaphore.acquire(permits).await.map(|()| true),
            Wait::AtMost(Duration::ZERO) => semaphore.try_acquire(permits).await,
            Wait::AtMost(limit) => semaphore.acquire_for(permits, limit).await,
        }
    };
    let describe =
        |state: &redlatch::LockState| format!("{} free, {permits} wanted", state.value.unwrap_or(0));
    let ended = count::wait(client, name, context, work, describe).await.map_err(|failure| {
        // The one thing that can be missing while permits are waited for is their number.
        if failure.code() == exit::LOST { unset(name) } else { failure }
    });
    match ended? {
        Ended::By(signal) => Ok(exit::by_signal(signal)),
        Ended::With(true) => {
            let answer = Answer { acquired: Some(permits.into()), ..Answer::of(name) };
            hand_over(&semaphore, permits.into(), &answer.rendered(format)?).await
        }
        Ended::With(false) => {
            let name = quoted(name);
            if patience.skips {
                context.talk.detail(format_args!("{name} has too few free permits"));
            } else {
                let advice = patience.advice();
                context
                    .talk
                    .say(format_args!("{name} has {}; {advice} `redlatch sem show`", too_few(permits)));
            }
            Ok(patience.busy_code)
        }
    }
}

/// Prints what was taken. If nobody reads it, nobody would give it back, so that is done here.
async fn hand_over(semaphore: &Semaphore, taken: i64, text: &str) -> Result<u8, Failure> {
    let Err(error) = output::try_emit(text) else { return Ok(exit::OK) };
    // A drain may have found a debt; there is nothing to give back then.
    if let Some(taken) = u32::try_from(taken).ok().filter(|taken| *taken > 0) {
        semaphore.release_if_exists(taken).await?;
    }
    Err(Failure::internal(format!("cannot write to stdout: {error}; the permits were given back")))
}

fn unset(name: &LockName) -> Failure {
    let name = quoted(name);
    Failure::new(exit::LOST, format!("no permits are set for {name}; set them with `redlatch sem set`"))
}

fn absent(name: &LockName) -> Failure {
    Failure::new(exit::LOST, format!("there is no semaphore {}; nothing was changed", quoted(name)))
}
