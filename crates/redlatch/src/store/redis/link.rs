//! One connection for commands, shared by all tasks of a runtime.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use redis::{AsyncConnectionConfig, Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::task::AbortHandle;

use super::Dial;
use crate::{
    error::{Error, ErrorKind},
    store::{Fault, Reply},
};

/// Room for requests between tasks and the driver. The default of the client library is small for thousands of tasks.
const REQUESTS_QUEUED_MAX: usize = 4096;
/// How much may be gathered into one write.
const WRITE_BUFFER_BYTES: usize = 256 * 1024;

/// Why a request has no good answer. Redirections are refusals too, so the server's words are kept apart.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The server refused with these words.
    Refused { code: String, detail: String },
    /// Everything else.
    Fault(Fault),
}

impl Failure {
    pub(super) fn refused(code: &str, detail: &str) -> Self {
        Failure::Refused { code: code.to_owned(), detail: detail.to_owned() }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Fault(fault)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, detail } => Fault::server(&code, &detail),
            Failure::Fault(fault) => fault,
        }
    }
}

pub(super) struct Link {
    connection: MultiplexedConnection,
    sent: Counter,
    answered: Counter,
    mark: Mutex<Mark>,
    dead: AtomicBool,
    driver: AbortHandle,
}

/// A counter on a cache line of its own: one is written by senders, the other by receivers.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

/// Counts a request as answered, also when its caller no longer waits.
struct Counted<'a>(&'a Counter);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What had been sent at some past moment; when it is still unanswered much later, the connection is stuck. Counting
/// replaces a timer for every call, because answers come in the order of the requests.
#[derive(Default)]
struct Mark {
    sent: u64,
    at_ms: u64,
}

impl Link {
    pub(super) async fn open(dial: &Dial, on_end: Box<dyn FnOnce() + Send>) -> Result<Arc<Link>, Error> {
        let (connection, driver) = dial
            .bounded(async {
                let stream = dial.stream().await?;
                let config = AsyncConnectionConfig::new()
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(REQUESTS_QUEUED_MAX)
                    .set_write_backpressure_boundary(WRITE_BUFFER_BYTES);
                let (mut connection, driver) =
                    MultiplexedConnection::new_with_config(&dial.login(), stream, config)
                        .await
                        .map_err(|error| dial.refused(&error))?;
                let driver = tokio::spawn(driver);
                let abort = driver.abort_handle();
                if let Err(error) = dial.greet(&mut connection).await {
                    abort.abort();
                    return Err(error);
                }
                Ok((connection, driver))
            })
            .await?;
        let abort = driver.abort_handle();
        let link = Arc::new(Link {
            connection,
            sent: Counter::default(),
            answered: Counter::default(),
            mark: Mutex::default(),
            dead: AtomicBool::new(false),
            driver: abort,
        });
        let weak = Arc::downgrade(&link);
        tokio::spawn(async move {
            let _ = driver.await;
            if let Some(link) = weak.upgrade() {
                link.dead.store(true, Ordering::Release);
            }
            on_end();
        });
        Ok(link)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Ends the connection; every call on it gets an unknown outcome at once.
    pub(super) fn cut(&self) {
        self.dead.store(true, Ordering::Release);
        self.driver.abort();
    }

    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Reply, Fault> {
        Ok(self.ask(cmd).await?)
    }

    /// Sends one command; a refusal keeps the server's own words.
    pub(super) async fn ask(&self, cmd: &Cmd) -> Result<Reply, Failure> {
        let mut connection = self.connection.clone();
        self.sent.0.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(&self.answered);
        let outcome = connection.send_packed_command(cmd).await;
        drop(counted);
        match outcome {
            Ok(value) => reply(value),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// As [`ask`](Self::ask), with the word that another node has sent the request here. Both go out together, because the word
    /// counts for the next request on the connection, whoever's that is.
    pub(super) async fn ask_sent_on(&self, cmd: &Cmd) -> Result<Reply, Failure> {
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(cmd.clone());
        let mut connection = self.connection.clone();
        self.sent.0.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(&self.answered);
        let outcome = connection.send_packed_commands(&both, 1, 1).await;
        drop(counted);
        match outcome {
            Ok(mut values) => reply(values.pop().unwrap_or(Value::Nil)),
            Err(error) => Err(self.failure(error)),
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.is_dead() && self.sent.0.load(Ordering::Relaxed) > self.answered.0.load(Ordering::Relaxed)
    }

    pub(super) fn check_stall(&self, now_ms: u64, timeout_ms: u64) {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.sent.0.load(Ordering::Relaxed);
        let answered = self.answered.0.load(Ordering::Relaxed);
        if answered >= mark.sent {
            *mark = Mark { sent, at_ms: now_ms };
        } else if now_ms.saturating_sub(mark.at_ms) >= timeout_ms {
            tracing::warn!(timeout_ms, "the server has not answered in time; the connection is dropped");
            self.cut();
        }
    }

    fn failure(&self, error: RedisError) -> Failure {
        if let Some(code) = error.code() {
            return Failure::refused(code, error.detail().unwrap_or(""));
        }
        self.dead.store(true, Ordering::Release);
        self.driver.abort();
        Failure::Fault(Fault::Unknown(Error::new(
            ErrorKind::Unreachable,
            format!("the connection ended while waiting for an answer ({})", error.category()),
        )))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub(super) fn reply(value: Value) -> Result<Reply, Failure> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(value) => Reply::Int(value),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) => Reply::Bytes(text.into_bytes()),
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Boolean(value) => Reply::Int(value.into()),
        Value::Array(items) => Reply::Array(items.into_iter().map(reply).collect::<Result<_, _>>()?),
        Value::ServerError(error) => {
            return Err(Failure::refused(error.code(), error.details().unwrap_or("")));
        }
        other => {
            return Err(Failure::Fault(Fault::Server(Error::new(
                ErrorKind::Protocol,
                format!("an answer of an unexpected type: {other:?}"),
            ))));
        }
    })
}
