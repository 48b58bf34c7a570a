//! What the tasks of a round do, and what is done to them. Each mix but the first is aimed at one way to two valid holders.

use serde::{Deserialize, Serialize};

use crate::worker::kind::Kind;

/// What a round is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mix {
    /// Everything with every kind of lock.
    All,
    /// Every kind of lock, each acquire with an owner of its own.
    Fresh,
    /// Renewed leases that are passed on inside the process at awkward moments and then held for long.
    Passes,
    /// Owners that queue while their cancelled requests are still under way.
    Heirs,
    /// Releases that arrive late, when their owner holds again.
    Late,
    /// Downgrades that are dropped, and reads of the same owner right behind them.
    Turns,
    /// One owner that acquires twice at the same moment.
    Twice,
    /// Answers that take longer than a third of the lease.
    Slow,
    /// A master that is superseded, and a process that still reaches it and not the new one.
    Superseded,
    /// A sentinel that was left behind and answers first.
    Stale,
    /// A node whose address another cluster takes.
    ReusedAddress,
    /// Slots that move all the time.
    Slots,
    /// Masters that change on purpose.
    Failovers,
    /// Masters that change or are killed, while owners enter again, turn into readers, are used again, leave their holds to others and pass them on.
    Heritage,
    /// Owners that other processes are given while requests are on their way. Only simulated processes see each other's.
    Handed,
    /// Owners with write holds and read holds of one lock, which come, turn and go at once; simulated processes enter under them, too.
    Walks,
    /// Servers that are killed and come back with their data.
    Restarts,
    /// Locks on most of several servers.
    Quorum,
    /// Leases that outlast the run's rests, so that what a request has left behind is still there.
    Rests,
}

/// Something that a task does again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Takes a lock of this kind, holds it, gives it back.
    Hold(Kind),
    /// Writes, turns into a reader, holds on.
    Downgrade,
    /// Asks twice at once with one owner.
    Twice,
    /// Cancels an acquire and asks again with the same owner while others come and go.
    Again,
    /// Takes and gives back with one owner of its own, again and again.
    Cycle,
    /// Leaves a hold without a guard, and takes it up again.
    Adopt,
    /// Leaves a hold without a guard to another process.
    Leave,
    /// Takes up a hold that another process has left.
    TakeUp,
    /// Holds, and hands its owner to other processes meanwhile.
    Share,
    /// Enters under the owner that another process has handed out.
    Visit,
    /// Has write holds and read holds as one owner, which come, turn and go.
    Walk,
    /// Passes leases on at the moments of the background thread's looks.
    Pass,
    /// Holds for several leases.
    Long,
}

/// The numbers of a mix.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    pub(crate) deeds: Vec<(u64, Deed)>,
    /// How many names there are of each kind.
    pub(crate) names: u64,
    /// How many acquires in a hundred reuse an owner of the process.
    pub(crate) reuse: u64,
    pub(crate) owners: u64,
    /// How many calls in a hundred are dropped half-way.
    pub(crate) cut: u64,
    pub(crate) hold_ms: (u64, u64),
    pub(crate) pause_ms: (u64, u64),
    /// The lease of renewed holds, in ms.
    pub(crate) lease_ms: u64,
    pub(crate) response_ms: u64,
    /// Tasks run by threads with the blocking face.
    pub(crate) threads: usize,
    /// Processes are killed and stopped, servers stop, forget their scripts and are full, connections end.
    pub(crate) processes: bool,
    /// Requests are delayed by so much in the network, every so many ms; a delay is longer than the response timeout or not.
    pub(crate) delay_ms: Option<(u64, u64)>,
    pub(crate) delay_every_ms: u64,
    /// Each message takes so long in each direction, as soon as the processes are connected.
    pub(crate) latency_ms: Option<u64>,
    /// Grants are confirmed by all replicas.
    pub(crate) acknowledged: bool,
    /// Simulated processes rest now and then, and whatever is on the server then is of processes that were killed.
    pub(crate) rests: bool,
    /// How many of the delays in a hundred are aimed at requests that end a hold.
    pub(crate) delay_endings: u64,
    /// How many of the requests in a hundred that end a hold take some ms longer in the simulated network.
    pub(crate) slow_endings: u64,
}

/// A lease that outlasts rests does not make outages longer, which have to be over by then.
const OUTAGE_LEASE_MS_MAX: u64 = 6_000;

impl Numbers {
    /// The same with so many times the names.
    pub(crate) fn spread(mut self, times: u64) -> Self {
        self.names *= times;
        self
    }

    /// The lease by which simulated outages are measured.
    pub(crate) fn outage_lease_ms(&self) -> u64 {
        if self.rests { self.lease_ms.min(OUTAGE_LEASE_MS_MAX) } else { self.lease_ms }
    }
}

impl Mix {
    /// How long a round has to be to come to its point.
    pub(crate) fn least_s(self) -> u64 {
        match self {
            Mix::Stale => 14,
            Mix::Superseded | Mix::ReusedAddress | Mix::Failovers | Mix::Heritage => 9,
            Mix::Passes | Mix::Slow => 8,
            _ => 1,
        }
    }

    pub(crate) fn numbers(self) -> Numbers {
        let base = Numbers {
            deeds: Vec::new(),
            names: 2,
            reuse: 30,
            owners: 6,
            cut: 12,
            hold_ms: (0, 12),
            pause_ms: (0, 6),
            lease_ms: 1_500,
            response_ms: 500,
            threads: 3,
            processes: true,
            delay_ms: None,
            delay_every_ms: 40,
            delay_endings: 50,
            slow_endings: 0,
            latency_ms: None,
            acknowledged: false,
            rests: false,
        };
        let long = Numbers {
            deeds: vec![
                (4, Deed::Long),
                (2, Deed::Hold(Kind::Plain)),
                (1, Deed::Hold(Kind::Write)),
                (1, Deed::Hold(Kind::Read)),
                (1, Deed::Hold(Kind::Fair)),
            ],
            names: 4,
            reuse: 10,
            cut: 5,
            hold_ms: (50, 2_500),
            lease_ms: 2_000,
            response_ms: 700,
            threads: 2,
            processes: false,
            ..base.clone()
        };
        match self {
            Mix::All => Numbers {
                deeds: vec![
                    (10, Deed::Hold(Kind::Plain)),
                    (6, Deed::Hold(Kind::Fair)),
                    (6, Deed::Hold(Kind::Read)),
                    (5, Deed::Hold(Kind::Write)),
                    (4, Deed::Hold(Kind::Fenced)),
                    (3, Deed::Hold(Kind::Spin)),
                    (3, Deed::Hold(Kind::NonReentrant)),
                    (2, Deed::Hold(Kind::NonReentrantFair)),
                    (4, Deed::Hold(Kind::Permits)),
                    (3, Deed::Hold(Kind::Multi)),
                    (5, Deed::Downgrade),
                    (4, Deed::Twice),
                    (4, Deed::Again),
                    (2, Deed::Adopt),
                    (2, Deed::Leave),
                    (3, Deed::TakeUp),
                    (2, Deed::Cycle),
                ],
                delay_ms: Some((5, 900)),
                delay_every_ms: 250,
                ..base
            },
            Mix::Fresh => Numbers {
                deeds: vec![
                    (10, Deed::Hold(Kind::Plain)),
                    (6, Deed::Hold(Kind::Fair)),
                    (6, Deed::Hold(Kind::Read)),
                    (5, Deed::Hold(Kind::Write)),
                    (4, Deed::Hold(Kind::Fenced)),
                    (3, Deed::Hold(Kind::Spin)),
                    (3, Deed::Hold(Kind::NonReentrant)),
                    (2, Deed::Hold(Kind::NonReentrantFair)),
                    (4, Deed::Hold(Kind::Permits)),
                    (3, Deed::Hold(Kind::Multi)),
                    (2, Deed::Adopt),
                ],
                reuse: 0,
                threads: 0,
                delay_ms: Some((5, 900)),
                delay_every_ms: 250,
                ..base
            },
            Mix::Passes => Numbers {
                deeds: vec![(1, Deed::Pass)],
                cut: 0,
                reuse: 0,
                lease_ms: 900,
                threads: 0,
                processes: false,
                ..base
            },
            Mix::Heirs => Numbers {
                deeds: vec![
                    (6, Deed::Again),
                    (4, Deed::Hold(Kind::Plain)),
                    (2, Deed::Hold(Kind::Write)),
                    (1, Deed::Hold(Kind::Read)),
                ],
                names: 1,
                reuse: 40,
                cut: 25,
                hold_ms: (0, 6),
                pause_ms: (0, 2),
                delay_ms: Some((10, 120)),
                delay_every_ms: 50,
                delay_endings: 30,
                threads: 5,
                processes: false,
                ..base
            },
            Mix::Late => Numbers {
                deeds: vec![(1, Deed::Cycle)],
                // Few for each name, so that an owner soon has it again.
                names: 8,
                reuse: 100,
                cut: 0,
                hold_ms: (100, 800),
                pause_ms: (0, 2),
                lease_ms: 6_000,
                response_ms: 250,
                threads: 6,
                processes: false,
                delay_ms: Some((300, 1_000)),
                delay_every_ms: 120,
                delay_endings: 90,
                ..base
            },
            Mix::Turns => Numbers {
                deeds: vec![(5, Deed::Downgrade), (2, Deed::Hold(Kind::Write)), (1, Deed::Hold(Kind::Read))],
                reuse: 40,
                cut: 30,
                processes: false,
                // Requests of one owner meet on their way.
                latency_ms: Some(1),
                ..base
            },
            Mix::Twice => Numbers {
                deeds: vec![
                    (5, Deed::Twice),
                    (1, Deed::Hold(Kind::Fair)),
                    (1, Deed::Hold(Kind::Write)),
                    (1, Deed::Hold(Kind::Plain)),
                ],
                cut: 5,
                processes: false,
                latency_ms: Some(1),
                ..base
            },
            Mix::Handed => Numbers {
                deeds: vec![
                    (6, Deed::Share),
                    (10, Deed::Visit),
                    (3, Deed::Leave),
                    (6, Deed::TakeUp),
                    (1, Deed::Hold(Kind::Plain)),
                    (1, Deed::Hold(Kind::Write)),
                ],
                names: 1,
                reuse: 0,
                // Until what was delayed or repeated has arrived.
                hold_ms: (0, 400),
                pause_ms: (0, 2),
                threads: 0,
                delay_ms: Some((5, 900)),
                delay_every_ms: 100,
                // So that other processes enter meanwhile.
                slow_endings: 40,
                ..base
            },
            Mix::Walks => Numbers {
                deeds: vec![
                    (8, Deed::Walk),
                    (8, Deed::Visit),
                    (2, Deed::Hold(Kind::Write)),
                    (2, Deed::Hold(Kind::Read)),
                ],
                names: 1,
                reuse: 20,
                // Until what was delayed or repeated has arrived.
                hold_ms: (0, 400),
                pause_ms: (0, 2),
                threads: 0,
                processes: false,
                delay_ms: Some((5, 900)),
                delay_every_ms: 100,
                latency_ms: Some(1),
                ..base
            },
            Mix::Slow => Numbers {
                deeds: vec![(1, Deed::Long)],
                names: 14,
                reuse: 0,
                cut: 0,
                hold_ms: (4_000, 9_000),
                lease_ms: 3_000,
                response_ms: 3_000,
                threads: 0,
                processes: false,
                latency_ms: Some(525),
                ..base
            },
            Mix::Superseded | Mix::Stale | Mix::ReusedAddress => long,
            Mix::Slots => Numbers { hold_ms: (0, 400), ..long },
            Mix::Restarts => Numbers { hold_ms: (0, 1_200), lease_ms: 4_000, reuse: 30, ..long },
            Mix::Quorum => Numbers {
                deeds: vec![(1, Deed::Hold(Kind::Quorum))],
                hold_ms: (0, 120),
                lease_ms: 3_000,
                threads: 0,
                processes: true,
                cut: 10,
                names: 6,
                ..long
            },
            Mix::Rests => Numbers {
                deeds: vec![
                    (10, Deed::Hold(Kind::Plain)),
                    (8, Deed::Hold(Kind::Fair)),
                    (6, Deed::Hold(Kind::Read)),
                    (5, Deed::Hold(Kind::Write)),
                    (3, Deed::Hold(Kind::Fenced)),
                    (2, Deed::Hold(Kind::Spin)),
                    (3, Deed::Hold(Kind::NonReentrant)),
                    (2, Deed::Hold(Kind::NonReentrantFair)),
                    (3, Deed::Hold(Kind::Permits)),
                    (3, Deed::Hold(Kind::Multi)),
                    (4, Deed::Downgrade),
                    (3, Deed::Twice),
                    (4, Deed::Again),
                    (2, Deed::Cycle),
                ],
                names: 4,
                // None of those that are known outside: another process may hold under them, so what they leave ends with its lease.
                owners: 4,
                cut: 20,
                lease_ms: 60_000,
                threads: 0,
                rests: true,
                ..base
            },
            Mix::Heritage => Numbers {
                // No permits and no sets: nobody asks replicas to confirm them here.
                deeds: vec![
                    (3, Deed::Long),
                    (5, Deed::Hold(Kind::Plain)),
                    (3, Deed::Hold(Kind::Fair)),
                    (2, Deed::Hold(Kind::Fenced)),
                    (2, Deed::Hold(Kind::Spin)),
                    (1, Deed::Hold(Kind::NonReentrant)),
                    (3, Deed::Hold(Kind::Write)),
                    (4, Deed::Hold(Kind::Read)),
                    (5, Deed::Downgrade),
                    (4, Deed::Twice),
                    (4, Deed::Again),
                    (3, Deed::Cycle),
                    (2, Deed::Adopt),
                    (2, Deed::Leave),
                    (3, Deed::TakeUp),
                ],
                names: 2,
                reuse: 40,
                cut: 12,
                threads: 0,
                // Far longer than a failover takes, because renewals are not confirmed.
                lease_ms: 8_000,
                hold_ms: (0, 120),
                acknowledged: true,
                ..long
            },
            Mix::Failovers => Numbers {
                deeds: vec![
                    (3, Deed::Long),
                    (3, Deed::Hold(Kind::Plain)),
                    (2, Deed::Hold(Kind::Write)),
                    (1, Deed::Hold(Kind::Read)),
                ],
                threads: 0,
                // Far longer than a failover takes, because renewals are not confirmed.
                lease_ms: 8_000,
                hold_ms: (0, 3_000),
                acknowledged: true,
                ..long
            },
        }
    }
}
