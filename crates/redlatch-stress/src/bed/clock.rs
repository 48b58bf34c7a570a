//! Wall clocks of servers that nobody looks after: they go back at times, and gain or lose less than the margin of a deadline.
//! None goes forward by a step, which ends leases early (`docs/dangers.md` says so).

use redlatch_testkit::server::RedisServer;

use super::Outcome;
use crate::{record::Log, rng::Rng};

/// What a clock gains or loses at most, in millionths: half of the margin, which is a hundredth.
const GAIN_PPM_MAX: u64 = 5_000;
/// How far a clock goes back at most.
const BACK_MS_MAX: u64 = 300;

/// Lets the clock go back a little, or run at another rate.
pub(super) fn trouble(server: &RedisServer, rng: &mut Rng, log: &Log) -> Outcome<()> {
    if rng.percent(50) {
        let back_ms = 1 + rng.below(BACK_MS_MAX) as i64;
        log.fault(format!("the server's clock goes back by {back_ms} ms"));
        server.set_clock(-back_ms, None)?;
    } else {
        let gain_ppm = rng.below(2 * GAIN_PPM_MAX + 1) as i64 - GAIN_PPM_MAX as i64;
        log.fault(format!("the server's clock gains {gain_ppm} millionths"));
        server.set_clock(0, Some(gain_ppm))?;
    }
    Ok(())
}
