//! When the connections to an address are made anew, since they lead elsewhere than it does by now.

use std::time::Duration;

use tokio::time::Instant;

/// For how long new connections are believed to lead to where their address does, whatever the server says; twice as long each time that it goes on saying so.
const AGE_TIME_MIN: Duration = Duration::from_millis(100);
const AGE_TIME_MAX: Duration = Duration::from_secs(10);

/// What connections are believed to lead to where their address does.
#[derive(Default)]
pub(super) struct Age {
    /// How often the address has come to lead elsewhere than connections of before do.
    count: u64,
    /// Since when, and for how long that is believed.
    since: Option<(Instant, Duration)>,
}

impl Age {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether all connections are to be made anew, since a server has sent on to its own address.
    pub(super) fn ends(&mut self, now: Instant) -> bool {
        let time = match self.since {
            // Answers over the connections of before are still to come; or new ones help no more than these, and cost those whose slots are there.
            Some((since, time)) if now < since + time => return false,
            Some((since, time)) if now < since + 4 * time => AGE_TIME_MAX.min(2 * time),
            _ => AGE_TIME_MIN,
        };
        (self.count, self.since) = (self.count + 1, Some((now, time)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sent on to itself for good, for slots whose master was gone, had all connections to it cut ten times a second, those for its own slots as well.
    #[test]
    fn a_server_that_goes_on_sending_on_to_itself_is_connected_to_less_and_less_often() {
        let (begin, mut age) = (Instant::now(), Age::default());
        let mut told = |seconds: u64| {
            (0..seconds * 1_000)
                .filter(|ms| age.ends(begin + Duration::from_millis(*ms)))
                .collect::<Vec<u64>>()
        };
        let made = told(60);
        assert_eq!(made, [0, 100, 300, 700, 1_500, 3_100, 6_300, 12_700, 22_700, 32_700, 42_700, 52_700]);
        // After a while of silence it is news again.
        assert!(
            age.ends(begin + Duration::from_secs(120)) && !age.ends(begin + Duration::from_millis(120_050))
        );
        assert!(age.ends(begin + Duration::from_millis(120_250)));
        assert_eq!(age.count(), 14);
    }
}
