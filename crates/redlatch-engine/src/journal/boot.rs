//! Whether the machine was started anew since a journal was written.
//!
//! The id that the system gives is not enough: containers of one run of the machine have ids of their own, and one that is started
//! anew has another id while the processes of other containers go on holding. So the clocks have to say it as well.

use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};

/// Which run of the machine this is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot {
    /// Empty where the system does not say.
    pub(crate) id: String,
    /// Another id alone is another run: the program that has given it vouches for that.
    pub(crate) is_vouched: bool,
}

/// What the clocks showed when a part of a journal was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockNote {
    /// Since the machine was started.
    pub(super) boot_us: u64,
    /// Since 1970, as the wall clock was set then.
    pub(super) wall_us: u64,
    /// When the boot clock began, by the wall time that scripts were told. Journals of earlier releases lack it.
    pub(super) boot_began_us: Option<i64>,
}

impl ClockNote {
    pub(super) fn now(clock: &SteadyClock) -> ClockNote {
        let boot_began_us = Some(clock.boot_began_us());
        ClockNote { boot_us: clock.boot_us(), wall_us: clock.wall_us(), boot_began_us }
    }

    /// Whether the machine was certainly started after that. Within one run the boot clock never goes back, and the run began before
    /// all that it wrote. Only a wall clock that was set ahead by more than the machine had been running says otherwise.
    fn is_of_earlier_run(self, now: ClockNote) -> bool {
        now.boot_us < self.boot_us || now.wall_us.saturating_sub(now.boot_us) > self.wall_us
    }
}

/// What a journal says of the run of the machine that wrote it, compared with this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    Same,
    /// All that held something then has ended.
    Another,
    /// It may be the same.
    Unsure,
}

impl Boot {
    /// Which run of the machine wrote the journal, and the clock to go on with. Within one run that is the clock of the engine before
    /// this one: what it wrote has ends by its time, and a step of the wall clock between the two must end nothing.
    pub(super) fn run_of(
        &self,
        before: Option<&str>,
        noted: Option<ClockNote>,
        clock: Arc<dyn Clock>,
    ) -> (Run, SteadyClock) {
        let anew = SteadyClock::new(Arc::clone(&clock));
        let is_proved = noted.is_some_and(|noted| noted.is_of_earlier_run(ClockNote::now(&anew)));
        let run = match before {
            Some(before) if before.is_empty() || self.id.is_empty() => Run::Unsure,
            Some(before) if before != self.id => {
                if self.is_vouched || is_proved {
                    Run::Another
                } else {
                    Run::Unsure
                }
            }
            _ => Run::Same,
        };
        let goes_on = run == Run::Same || run == Run::Unsure && !is_proved;
        let began_us = noted.and_then(|noted| noted.boot_began_us).filter(|_| goes_on);
        (run, began_us.map_or(anew, |began_us| SteadyClock::continued(clock, began_us)))
    }
}
