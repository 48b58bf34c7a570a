//! `redlatch latch`: a gate that opens when a count reaches zero.

use std::time::Duration;

use redlatch::{Client, LockName};

use super::{
    Context,
    count::{self, Answer, Ended},
    lock_name,
};
use crate::{
    args::{
        Output,
        latch::{LatchArgs, LatchVerb},
    },
    durations::Wait,
    exit::{self, Failure},
    run::acquire::{Patience, quoted},
    store,
};

pub(super) fn latch(args: LatchArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let wait = match &args.verb {
        LatchVerb::Wait { wait, .. } => wait.wait,
        _ => None,
    };
    let connecting = store::Patience { wait, talk: &context.talk };
    store::with_patient_client(&settings, connecting, async |client| match args.verb {
        LatchVerb::Set { name, count, if_absent, output } => {
            let name = lock_name(name)?;
            let set = client.count_down_latch(&name).set_if_absent(count).await?;
            if !set && !if_absent {
                return Err(Failure::new(
                    exit::BUSY,
                    format!("{} is closed already and was left as it is; delete it first", quoted(&name)),
                ));
            }
            Answer { set: Some(set), ..Answer::of(&name) }.if_asked(output)?;
            Ok(exit::OK)
        }
        LatchVerb::Down(which) => {
            let name = lock_name(which.name)?;
            let left = client.count_down_latch(&name).count_down().await?;
            Answer { count: Some(left), ..Answer::of(&name) }.print(which.output, &settings)?;
            Ok(exit::OK)
        }
        LatchVerb::Wait { name, wait, output } => {
            let name = lock_name(name)?;
            pass(client, &name, wait.into(), output, context).await
        }
        LatchVerb::Show(which) => {
            let name = lock_name(which.name)?;
            let (state, answer) = count::look(client, &name, "latch").await?;
            let left = u64::try_from(state.value.unwrap_or(0)).unwrap_or(0);
            Answer { count: Some(left), open: Some(left == 0), ..answer }.print(which.output, &settings)?;
            Ok(exit::OK)
        }
        LatchVerb::Delete(which) => {
            let name = lock_name(which.name)?;
            count::look(client, &name, "latch").await?;
            if !client.count_down_latch(&name).delete().await? {
                let message = format!("there is no latch {}; nothing was changed", quoted(&name));
                return Err(Failure::new(exit::LOST, message));
            }
            Answer { deleted: Some(true), ..Answer::of(&name) }.if_asked(which.output)?;
            Ok(exit::OK)
        }
    })
}

async fn pass(
    client: &Client,
    name: &LockName,
    patience: Patience,
    output: Output,
    context: &Context,
) -> Result<u8, Failure> {
    let latch = client.count_down_latch(name);
    let work = async {
        match patience.wait {
            Wait::Forever => latch.wait().await.map(|()| true),
            Wait::AtMost(Duration::ZERO) => latch.count().await.map(|left| left == 0),
            Wait::AtMost(limit) => latch.wait_for(limit).await,
        }
    };
    let describe = |state: &redlatch::LockState| format!("closed, {} left", state.value.unwrap_or(0));
    match count::wait(client, name, context, work, describe).await? {
        Ended::By(signal) => Ok(exit::by_signal(signal)),
        Ended::With(true) => {
            Answer { open: Some(true), ..Answer::of(name) }.if_asked(output)?;
            Ok(exit::OK)
        }
        Ended::With(false) => {
            let name = quoted(name);
            if patience.skips {
                context.talk.detail(format_args!("{name} is closed"));
            } else {
                let advice = patience.advice();
                context.talk.say(format_args!("{name} is still closed; {advice} `redlatch latch show`"));
            }
            Ok(patience.busy_code)
        }
    }
}
