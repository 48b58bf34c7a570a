//! Whether the machine was started anew since a journal was written.
//!
//! The id that the system gives is not enough: containers of one run of the machine have ids of their own, and one that is started
//! anew has another id while the processes of other containers go on holding. So the clocks have to say it as well.

use crate::clock::Clock;

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
}

impl ClockNote {
    pub(super) fn now(clock: &dyn Clock) -> ClockNote {
        ClockNote { boot_us: clock.boot_us(), wall_us: clock.wall_us() }
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
    pub(super) fn run_of(&self, before: Option<&str>, noted: Option<ClockNote>, clock: &dyn Clock) -> Run {
        let Some(before) = before else { return Run::Same };
        if before.is_empty() || self.id.is_empty() {
            return Run::Unsure;
        }
        if before == self.id {
            return Run::Same;
        }
        let is_proved = noted.is_some_and(|noted| noted.is_of_earlier_run(ClockNote::now(clock)));
        if self.is_vouched || is_proved { Run::Another } else { Run::Unsure }
    }
}
