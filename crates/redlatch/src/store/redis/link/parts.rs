//! A connection is made: the log-in, the protocol, the greeting.

use std::sync::Arc;

use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, aio::MultiplexedConnection};
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    error::Error,
    store::redis::{
        Dial,
        changes::Changes,
        driver::{Driven, DriverWork},
        known_nodes::Trust,
        server_process::Process,
    },
};

/// Room for requests between tasks and the driver. The default of the client library is small for thousands of tasks.
const REQUESTS_QUEUED_MAX: usize = 4096;
/// How much may be gathered into one write.
const WRITE_BUFFER_BYTES: usize = 256 * 1024;

/// What a link is made of.
pub(super) struct Parts {
    pub(super) connection: MultiplexedConnection,
    /// The task that drives it, and what that task does.
    pub(super) driver: JoinHandle<()>,
    pub(super) work: Arc<DriverWork>,
    pub(super) trust: Trust,
    pub(super) process: Process,
    /// A moment before the process was asked for.
    pub(super) asked: Instant,
}

impl Parts {
    pub(super) async fn ask(dial: &Dial) -> Result<Parts, Error> {
        begin(dial, None).await.map_err(Begun::into_error)
    }

    /// Asks for the protocol in which the server can tell of changes, and for the older one if it does not know that; which it is comes with it.
    pub(super) async fn ask_to_tell(dial: &Dial, changes: &Arc<Changes>) -> Result<(Parts, bool), Error> {
        let telling = || begin(dial, Some(changes.clone()));
        match telling().await {
            Ok(parts) => return Ok((parts, true)),
            Err(Begun::Elsewhere(error)) => return Err(error),
            Err(Begun::NotLoggedIn(_) | Begun::Ended(_)) => {}
        }
        // A server that is full refuses a connection, too, and sentinels end all those to one that they promote. So this server knows the older
        // protocol only if it refuses once more, beside a connection that lives on.
        let older = Parts::ask(dial).await?;
        match telling().await {
            Ok(parts) => {
                older.end();
                Ok((parts, true))
            }
            Err(Begun::NotLoggedIn(_) | Begun::Ended(_)) if older.is_alive().await => Ok((older, false)),
            Err(refused) => {
                older.end();
                Err(refused.into_error())
            }
        }
    }

    /// Whether the server still answers on it.
    async fn is_alive(&self) -> bool {
        // A refusal is an answer.
        match self.connection.clone().send_packed_command(&redis::cmd("PING")).await {
            Ok(_) => true,
            Err(error) => error.code().is_some(),
        }
    }

    pub(super) fn end(self) {
        self.driver.abort();
        self.work.end();
    }
}

/// Where a failed attempt to connect stopped.
enum Begun {
    NotLoggedIn(Error),
    /// It ended before there was an answer to the log-in.
    Ended(Error),
    /// Not to the log-in, or beyond it.
    Elsewhere(Error),
}

impl Begun {
    fn into_error(self) -> Error {
        let (Begun::NotLoggedIn(error) | Begun::Ended(error) | Begun::Elsewhere(error)) = self;
        error
    }
}

/// Connects and logs in. With a listener to tell, it speaks the protocol in which the server can tell.
async fn begin(dial: &Dial, changes: Option<Arc<Changes>>) -> Result<Parts, Begun> {
    let stream = dial.stream().await.map_err(Begun::Elsewhere)?;
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(REQUESTS_QUEUED_MAX)
        .set_write_backpressure_boundary(WRITE_BUFFER_BYTES);
    let mut login = dial.login();
    if let Some(changes) = changes {
        login = login.set_protocol(ProtocolVersion::RESP3);
        let tell = move |push: PushInfo| {
            changes.heard(push);
            Ok::<(), std::convert::Infallible>(())
        };
        config = config.set_push_sender(tell);
    }
    let (mut connection, driver) = MultiplexedConnection::new_with_config(&login, stream, config)
        .await
        .map_err(|error| match error.is_io_error() || error.is_connection_dropped() {
            true => Begun::Ended(dial.refused(&error)),
            false => Begun::NotLoggedIn(dial.refused(&error)),
        })?;
    let work = Arc::new(DriverWork::new(driver));
    let driven = Driven(work.clone());
    let driver = tokio::spawn(std::future::poll_fn(move |cx| driven.0.poll(cx)));
    let abort = driver.abort_handle();
    let (trust, asked) = (dial.trust(), Instant::now());
    match dial.greet(&mut connection).await {
        Ok(process) => Ok(Parts { connection, driver, work, trust, process, asked }),
        Err(error) => {
            abort.abort();
            Err(Begun::Elsewhere(error))
        }
    }
}
