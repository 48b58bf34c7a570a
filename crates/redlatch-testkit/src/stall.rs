//! Time as this process lived it: machines stop for a second or two, and what they did not do meanwhile is not late.
//!
//! A thread that only looks at the clock notices when it did not run for a while, and so nothing else did. Upper limits
//! of a test are compared with the time that is left without these moments, so that they can be as tight as the promise
//! that they are about. Lower limits are compared with the time that really went by.

use std::{
    sync::{Mutex, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Longer than a test runs, mostly.
const LATELY: Duration = Duration::from_secs(60);
/// How often the clock is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Two looks that are further apart than this were kept apart by the machine.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// How many pauses are remembered; more than any test has.
const PAUSES_MAX: usize = 100_000;

struct Watch {
    last_look: Option<Instant>,
    /// From when to when nothing ran, in order.
    pauses: Vec<(Instant, Instant)>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { last_look: None, pauses: Vec::new() });

/// Begins to watch, unless that has begun. What was before is not known, so tests call this before they look at the clock;
/// starting a server does.
pub fn watch() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        look(Instant::now());
        thread::spawn(|| {
            loop {
                thread::sleep(LOOK_INTERVAL);
                look(Instant::now());
            }
        });
    });
}

fn look(now: Instant) {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(last) = watch.last_look
        && now.saturating_duration_since(last) > PAUSE_MIN
        && watch.pauses.len() < PAUSES_MAX
    {
        watch.pauses.push((last + LOOK_INTERVAL, now));
    }
    watch.last_look = Some(watch.last_look.map_or(now, |last| last.max(now)));
}

/// The time since then in which this process could run.
#[must_use]
pub fn awake_since(begin: Instant) -> Duration {
    awake_between(begin, Instant::now())
}

/// The time since then in which this process did not run.
#[must_use]
pub fn paused_since(begin: Instant) -> Duration {
    let awake = awake_since(begin);
    begin.elapsed().saturating_sub(awake)
}

/// The time of the last minute in which this process did not run: by so much a time to live may have run down unseen.
#[must_use]
pub fn paused_lately() -> Duration {
    let now = Instant::now();
    paused_since(now.checked_sub(LATELY).unwrap_or(now))
}

/// The time between two moments in which this process could run; zero if `end` is not after `begin`.
#[must_use]
pub fn awake_between(begin: Instant, end: Instant) -> Duration {
    watch();
    // A pause that is just over may not have been noticed by the thread.
    look(Instant::now());
    let watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    without(&watch.pauses, begin, end)
}

fn without(pauses: &[(Instant, Instant)], begin: Instant, end: Instant) -> Duration {
    let paused: Duration = pauses
        .iter()
        .rev()
        .take_while(|(_, to)| *to > begin)
        .map(|(from, to)| (*to).min(end).saturating_duration_since((*from).max(begin)))
        .sum();
    end.saturating_duration_since(begin).saturating_sub(paused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_between_the_moments_is_taken_off() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let pauses = [(at(100), at(300)), (at(500), at(900)), (at(1_000), at(1_100))];
        let awake = |from, to| without(&pauses, at(from), at(to)).as_millis();
        assert_eq!(awake(0, 100), 100);
        assert_eq!(awake(0, 400), 200);
        assert_eq!(awake(200, 600), 200, "half of the first, a quarter of the second");
        assert_eq!(awake(300, 500), 200);
        assert_eq!(awake(550, 800), 0);
        assert_eq!(awake(0, 2_000), 1_300);
        assert_eq!(awake(1_200, 1_000), 0);
    }

    #[test]
    fn time_goes_on_while_the_process_runs() {
        watch();
        let begin = Instant::now();
        while awake_since(begin) < Duration::from_millis(40) {
            assert!(awake_since(begin) <= begin.elapsed());
            assert!(begin.elapsed() < Duration::from_secs(30), "all of it taken for one pause");
            thread::sleep(Duration::from_millis(2));
        }
    }
}
