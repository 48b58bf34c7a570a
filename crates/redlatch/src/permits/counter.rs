//! A counter under a name: what semaphores and latches are made of, with a channel on which its changes are told, and rate limiters, without one.

use std::{sync::Arc, time::Duration};

use crate::{
    config::lease_ms,
    core::{
        Numbers,
        flight::{Flight, OnAbandon},
        fork_safe::ForkSafeCore,
    },
    error::{Error, ErrorKind},
    name::LockName,
    scripts::{self, Script},
    store::{Call, Fault, Reply},
};
use futures_util::{FutureExt as _, TryFutureExt as _};

fn stopped() -> Error {
    Error::new(ErrorKind::Closed, "the client was shut down")
}

pub(crate) struct Counter {
    pub(crate) core: ForkSafeCore,
    pub(crate) name: LockName,
    pub(crate) channel: Arc<[u8]>,
    pub(crate) key: Arc<[u8]>,
    /// What is wrong with the name, found out once.
    fault: Option<Error>,
}

impl Counter {
    /// `fault` is what its kind has against the name, besides what every kind has.
    pub(crate) fn new(
        core: &ForkSafeCore,
        name: LockName,
        channel: Vec<u8>,
        fault: Option<Error>,
    ) -> Arc<Self> {
        Arc::new(Counter {
            core: core.clone(),
            channel: channel.into(),
            key: name.as_bytes().into(),
            fault: name.check().err().or(fault),
            name,
        })
    }

    /// Whether it can be used at all.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        self.core.check_open().map_err(|error| error.on(&self.name))?;
        match &self.fault {
            Some(error) => Err(error.clone().on(&self.name)),
            None => Ok(()),
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// In which [incarnation](crate::store::Store::incarnation) the server answers that is asked now.
    pub(crate) fn incarnation(&self) -> u64 {
        self.core.store.incarnation(&self.key)
    }

    /// Runs a script once. A dropped future is finished in the background, and `abandoned` is told the outcome then.
    pub(crate) async fn ask(
        &self,
        script: &'static Script,
        args: impl FnOnce(Call) -> Call + Send,
        abandoned: impl FnOnce(i64) -> OnAbandon<Result<Reply, Fault>> + Send,
    ) -> Result<Numbers, Fault> {
        let number = self.core.fresh_number();
        let call = args(Call::new(script).key(&self.key).request_number(number));
        self.core.keeper.note_call();
        // Such a request can be neither repeated nor undone, so its answer must be read, also when its task is dropped and the task's runtime
        // does not run on or ends, which would drive the connection.
        let (core, keeper) = (Arc::clone(&self.core), self.core.keeper.handle().clone());
        let key = self.key.clone();
        let once = async move {
            let look = || {
                let number = core.fresh_number();
                let call = Call::new(&scripts::COUNTER_GET).key(&key).request_number(number);
                core.run_checked(call, number, true).map_ok(drop).boxed()
            };
            core.until_keeper_is_heard(&key, look).await;
            core.run(call).await
        };
        let asked = async move { keeper.spawn(once).await };
        let asked = asked.map(|outcome| outcome.unwrap_or_else(|_| Err(Fault::Unknown(stopped())))).boxed();
        let outcome = Flight::new(&self.core, asked, || abandoned(number)).await;
        self.read(script, outcome, number)
    }

    /// Reads a reply that must begin with a number that was sent.
    pub(crate) fn read(
        &self,
        script: &Script,
        outcome: Result<Reply, Fault>,
        number: i64,
    ) -> Result<Numbers, Fault> {
        self.core.read(script, &self.key, outcome, number)
    }

    /// As [`ask`](Self::ask), for operations that happen or do not happen.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        args: impl FnOnce(Call) -> Call + Send,
    ) -> Result<Numbers, Error> {
        self.ready()?;
        let _under_way = self.core.keeper.hold_off_shutdown();
        self.ask(script, args, |_| None).await.map_err(|fault| fault.into_error().on(&self.name))
    }

    /// The channel and the command to publish with, as arguments of a script.
    pub(crate) fn with_channel(&self, call: Call) -> Call {
        call.bytes(&self.channel).constant(self.core.store.publish_command())
    }

    /// The value, 0 when there is none.
    pub(crate) async fn value(&self) -> Result<i64, Error> {
        Ok(item(&self.run(&scripts::COUNTER_GET, |call| call).await?, 2))
    }

    /// Sets the value if there is none, and says so with `message`.
    pub(crate) async fn set_if_absent(
        &self,
        value: i64,
        ttl: Option<Duration>,
        message: i64,
    ) -> Result<bool, Error> {
        let ttl_ms = ttl.map_or(Ok(0), lease_ms).map_err(|error| {
            error.on(&self.name).remedy("give a time to live of 2 ms to 100 years, or none")
        })?;
        let reply = self
            .run(&scripts::COUNTER_SET, |call| self.with_channel(call.int(value).int(ttl_ms)).int(message))
            .await?;
        Ok(item(&reply, 1) == 1)
    }
}

/// One item of a reply; scripts of ours always send as many as are asked for.
pub(crate) fn item(reply: &[i64], at: usize) -> i64 {
    reply.get(at).copied().unwrap_or(0)
}

/// An amount from 1 to what an `int` of Java holds.
pub(crate) fn amount(what: &str, n: u32, name: &LockName) -> Result<i64, Error> {
    if n == 0 || i32::try_from(n).is_err() {
        return Err(Error::new(
            ErrorKind::InvalidOption,
            format!("{n} {what} are outside 1 to {}", i32::MAX),
        )
        .on(name)
        .remedy("ask for at least 1 and at most 2147483647"));
    }
    Ok(n.into())
}
