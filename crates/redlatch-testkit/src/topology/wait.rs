//! Waiting for what several servers say; none of them offers an event for it.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};

/// How long a topology may take for one change: start, failover, link of a replica.
pub(super) const CHANGE_LIMIT: Duration = Duration::from_secs(60);
/// How often the servers are asked.
const POLL: Duration = Duration::from_millis(10);

/// What is still missing, for the message of a wait that ran out.
pub(super) type Missing = String;

/// Asks until nothing is missing, for at most [`CHANGE_LIMIT`]. Errors of the server count as missing: it
/// may be about to start, or to change its role.
pub(super) fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Result<Result<T, Missing>>) -> Result<T> {
    let deadline = Instant::now() + CHANGE_LIMIT;
    loop {
        let missing = match ask() {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(missing)) => missing,
            Err(e) => e.to_string(),
        };
        if Instant::now() >= deadline {
            let text = format!("{what}: not within {} s: {missing}", CHANGE_LIMIT.as_secs());
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        std::thread::sleep(POLL);
    }
}
