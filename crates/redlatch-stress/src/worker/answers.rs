//! How long answers take, asked beside the library on a connection of its own: a machine that runs nothing for a while makes
//! answers late that the network brings in time.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use super::phase::Phases;
use crate::{clock::boot_ns, record::Log};

const PAUSE: Duration = Duration::from_millis(100);
/// An answer that takes longer is written down. A lease of 3 s that is renewed after one has 2 s for its answer.
const LATE: Duration = Duration::from_millis(1_500);
/// An answer that takes longer is waited for no more.
const LIMIT: Duration = Duration::from_secs(10);

/// Asks until it is to stop.
pub(super) fn watch(url: &str, log: &Arc<Log>, phases: &Phases) -> redis::RedisResult<JoinHandle<()>> {
    let client = redis::Client::open(url)?;
    let (log, phases) = (log.clone(), phases.clone());
    Ok(std::thread::spawn(move || {
        let mut connection = None;
        while !phases.is_over() {
            std::thread::sleep(PAUSE);
            let Some(asked) = &mut connection else {
                connection = client.get_connection_with_timeout(LIMIT).ok();
                if let Some(new) = &connection {
                    _ = new.set_read_timeout(Some(LIMIT));
                }
                continue;
            };
            let begun_ns = boot_ns();
            let outcome = redis::cmd("PING").query::<String>(asked);
            if outcome.is_err() {
                connection = None;
            }
            if Duration::from_nanos(boot_ns() - begun_ns) > LATE {
                log.late_answer(begun_ns);
            }
        }
    }))
}
