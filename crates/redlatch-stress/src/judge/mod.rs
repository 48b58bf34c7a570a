//! The oracle: it reads what the processes wrote, knows nothing of the library, and says what cannot be.
//!
//! An interval begins after a moment and ends before a moment at which its holder was told that its hold is valid. So it is
//! certain that the hold was valid all the time, and two intervals that shut each other out and overlap are two valid holders.

mod read;
mod story;
mod sweeps;

use std::{fmt, io, path::PathBuf, time::Duration};

pub(crate) use self::read::{Interval, Logs};
use crate::clock::seconds;

/// What must not be.
#[derive(Debug)]
pub(crate) struct Violation {
    /// A few words that are the same for all of a kind.
    pub(crate) kind: &'static str,
    pub(crate) story: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.story)
    }
}

/// What is expected besides exclusion.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expect {
    /// How many permits there are.
    pub(crate) capacity: u32,
    /// All answers come in time for renewals, so no renewed hold may expire.
    pub(crate) nothing_expires: bool,
    /// Nobody deletes anything, and no process is stopped for longer than a lease.
    pub(crate) nothing_vanishes: bool,
    /// When two valid holders are what was promised to be possible.
    pub(crate) excuses: Vec<Excuse>,
    /// Names, and when a request that was on its way for longer than a lease counted down a hold of one of their owners: it may be a hold that
    /// another process has taken under that owner since, which is what the documents say.
    pub(crate) counted_late: Vec<(String, u64)>,
}

/// A time in which a hold may be valid beside another one.
#[derive(Debug, Clone)]
pub(crate) struct Excuse {
    /// Of this process; of any unless set.
    pub(crate) process: Option<String>,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// How long before the first moment at which its holder knew of it a hold may have been granted.
const GRANTED_BEFORE_NS: u64 = 1_000_000_000;

impl Expect {
    /// Whether a hold may have been counted down by a request that came late.
    fn may_be_counted_down(&self, hold: &Interval, lost_ns: u64) -> bool {
        let span = hold.start_ns.saturating_sub(GRANTED_BEFORE_NS)..=lost_ns;
        self.counted_late.iter().any(|(name, ns)| *name == hold.name && span.contains(ns))
    }

    /// Whether all of this time is excused for one of these holds or the other.
    fn excuses(&self, holds: [&Interval; 2], mut from_ns: u64, to_ns: u64) -> bool {
        let concerns = |excuse: &&Excuse| {
            excuse.process.as_ref().is_none_or(|process| holds.iter().any(|hold| hold.process == *process))
        };
        let mut spans: Vec<_> =
            self.excuses.iter().filter(concerns).map(|excuse| (excuse.from_ns, excuse.to_ns)).collect();
        spans.sort_unstable();
        for (begin, end) in spans {
            if begin <= from_ns {
                from_ns = from_ns.max(end);
            }
        }
        from_ns >= to_ns && !self.excuses.is_empty()
    }
}

/// What a round came to.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) holds: usize,
    pub(crate) lost: usize,
    pub(crate) operations: usize,
    /// What was promised to be possible: two valid holders at a certain time, or a hold that a late request counted down.
    pub(crate) excused: usize,
    pub(crate) violations: Vec<Violation>,
    /// How long after the first line of a log the first violation was there.
    pub(crate) first_after: Option<Duration>,
}

/// For how long after a late answer a hold may end because of it: for the lease of those that are expected to last.
const LATE_SHOWS_NS: u64 = 3_000_000_000;

/// How many violations are told of one kind.
const TOLD_MAX: usize = 3;

/// Judges the logs in these files, and in the folders among them.
pub(crate) fn judge(places: &[PathBuf], expect: &Expect) -> io::Result<Verdict> {
    Ok(judge_logs(&Logs::read(places)?, expect))
}

/// Judges logs.
pub(crate) fn judge_logs(logs: &Logs, expect: &Expect) -> Verdict {
    let mut found: Vec<(u64, &'static str, Vec<&Interval>, String)> = Vec::new();
    let mut excused = 0;
    for (name, intervals) in logs.by_name() {
        sweeps::overlaps(&intervals, |first, second| {
            let until = first.end_ns.min(second.end_ns);
            if expect.excuses([first, second], second.start_ns, until) {
                excused += 1;
                return;
            }
            let shared = until - second.start_ns;
            let text = format!("{name}: two valid holders for {:.3} ms", shared as f64 / 1e6);
            found.push((second.start_ns, "two valid holders", vec![first, second], text));
        });
        if expect.capacity > 0 {
            sweeps::permits(&intervals, expect.capacity, |taken, at| {
                if expect.excuses([at, at], at.start_ns, at.start_ns + 1) {
                    return;
                }
                let text = format!("{name}: {taken} permits of {} are in valid hands", expect.capacity);
                found.push((at.start_ns, "permits above capacity", vec![at], text));
            });
        }
        sweeps::tokens(&intervals, |earlier, later| {
            // A counter that went back with the data counts anew what was granted shortly before.
            let granted = |one: &Interval| expect.excuses([earlier, later], one.start_ns, one.start_ns + 1);
            if granted(earlier) || granted(later) {
                return;
            }
            let text = format!("{name}: a later grant has a token that is not higher");
            found.push((later.start_ns, "a token that does not grow", vec![earlier, later], text));
        });
    }
    for interval in &logs.intervals {
        if let Some(ns) = interval.untold_ns {
            let text = format!(
                "{}: not valid since about {} s, and its holder was not told until {} s",
                interval.name,
                seconds(interval.end_ns, logs.begin_ns),
                seconds(ns, logs.begin_ns)
            );
            found.push((ns, "a loss that was not told", vec![interval], text));
        }
        if let Some(ns) = interval.back_ns {
            let text = format!("{}: valid again at {} s", interval.name, seconds(ns, logs.begin_ns));
            found.push((ns, "a hold that came back", vec![interval], text));
        }
        let gone = ["deleted", "taken-over"].iter().any(|word| interval.how.contains(word));
        let renewed = interval.term.starts_with("renewed");
        if expect.nothing_vanishes && renewed && (gone || interval.vanished.is_some()) {
            let (ns, what) = interval.vanished.clone().unwrap_or((interval.end_ns, interval.how.clone()));
            if expect.may_be_counted_down(interval, ns) {
                excused += 1;
                continue;
            }
            let text = format!("{}: nobody took it away, and it was lost: {what}", interval.name);
            found.push((ns, "a hold that vanished", vec![interval], text));
        }
        // Where answers were late, it is the machine that let the hold expire.
        let late = logs.late.iter().any(|(begun_ns, ns)| {
            *begun_ns <= interval.end_ns && interval.end_ns <= ns.saturating_add(LATE_SHOWS_NS)
        });
        if expect.nothing_expires && interval.how.contains("expired") && renewed && !late {
            let text = format!("{}: a renewed hold expired though all answers came", interval.name);
            found.push((interval.end_ns, "a renewed hold that expired", vec![interval], text));
        }
    }
    found.sort_by_key(|(ns, ..)| *ns);
    let mut verdict = Verdict {
        holds: logs.intervals.len(),
        lost: logs.intervals.iter().filter(|interval| interval.how.starts_with("lost")).count(),
        operations: logs.operations(),
        excused,
        first_after: found.first().map(|(ns, ..)| Duration::from_nanos(ns.saturating_sub(logs.begin_ns))),
        violations: Vec::new(),
    };
    for (ns, kind, intervals, text) in found {
        let told = verdict.violations.iter().filter(|violation| violation.kind == kind).count();
        let story = if told < TOLD_MAX { story::tell(logs, ns, &intervals, &text) } else { text };
        verdict.violations.push(Violation { kind, story });
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(files: &[(&str, &str)], expect: &Expect) -> Vec<&'static str> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(format!("{name}.log")), text).unwrap();
        }
        judge(&[dir.path().to_owned()], expect)
            .unwrap()
            .violations
            .iter()
            .map(|violation| violation.kind)
            .collect()
    }

    #[test]
    fn holds_of_two_owners_that_overlap_are_found() {
        let first = "G 1 t0 plain X 1 a - renewed:1000 100\nE 1 200 unlocked\n";
        let beside = "G 1 t0 plain X 1 b - renewed:1000 150\nE 1 160 unlocked\n";
        let behind = "G 1 t0 plain X 1 b - renewed:1000 200\nE 1 260 unlocked\n";
        assert_eq!(judged(&[("p0", first), ("p1", beside)], &Expect::default()), ["two valid holders"]);
        assert!(judged(&[("p0", first), ("p1", behind)], &Expect::default()).is_empty());
    }

    #[test]
    fn a_long_hold_meets_all_that_begin_in_it() {
        let long = "G 1 t0 plain X 1 a - r 100\nE 1 900 unlocked\n";
        let short =
            "G 1 t0 plain X 1 b - r 150\nE 1 160 unlocked\nG 2 t0 plain X 1 c - r 500\nE 2 510 unlocked\n";
        assert_eq!(judged(&[("p0", long), ("p1", short)], &Expect::default()).len(), 2);
    }

    #[test]
    fn one_owner_may_hold_twice_and_readers_stand_beside_readers() {
        let twice =
            "G 1 t0 plain X 1 a - r 100\nG 2 t1 plain X 1 a - r 120\nE 1 200 unlocked\nE 2 300 unlocked\n";
        assert!(judged(&[("p0", twice)], &Expect::default()).is_empty());
        let readers =
            "G 1 t0 rw S 1 a - r 100\nG 2 t1 rw S 1 b - r 120\nE 1 200 unlocked\nE 2 300 unlocked\n";
        assert!(judged(&[("p0", readers)], &Expect::default()).is_empty());
        let writer = "G 1 t0 rw X 1 c - r 250\nE 1 260 unlocked\n";
        assert_eq!(judged(&[("p0", readers), ("p1", writer)], &Expect::default()), ["two valid holders"]);
    }

    #[test]
    fn a_hold_of_a_killed_process_ends_with_its_last_line() {
        let killed = "G 1 t0 plain X 1 a - r 100\nS 1 150\nS 1 1";
        let next = |ns: u64| format!("G 1 t0 plain X 1 b - r {ns}\nE 1 900 unlocked\n");
        assert_eq!(judged(&[("p0", killed), ("p1", &next(149))], &Expect::default()).len(), 1);
        assert!(judged(&[("p0", killed), ("p1", &next(150))], &Expect::default()).is_empty());
    }

    #[test]
    fn permits_are_counted() {
        let line = |hold: u32, weight: u32| {
            format!("G {hold} t{hold} permits P {weight} o{hold} - r 100\nE {hold} 200 unlocked\n")
        };
        let expect = Expect { capacity: 3, ..Expect::default() };
        assert!(judged(&[("p0", &(line(1, 1) + &line(2, 2)))], &expect).is_empty());
        assert_eq!(judged(&[("p0", &(line(1, 2) + &line(2, 2)))], &expect), ["permits above capacity"]);
    }

    #[test]
    fn tokens_grow_with_grants() {
        let grant = |hold: u32, owner: &str, token: u64, at: u64| {
            format!("G {hold} t0 fenced X 1 {owner} {token} r {at}\nE {hold} {} unlocked\n", at + 10)
        };
        let grows = grant(1, "a", 5, 100) + &grant(2, "b", 6, 200);
        assert!(judged(&[("p0", &grows)], &Expect::default()).is_empty());
        let same_owner = grant(1, "a", 5, 100) + &grant(2, "a", 5, 200);
        assert!(judged(&[("p0", &same_owner)], &Expect::default()).is_empty());
        for (owner, token) in [("b", 5), ("b", 4), ("a", 4)] {
            let falls = grant(1, "a", 5, 100) + &grant(2, owner, token, 200);
            assert_eq!(judged(&[("p0", &falls)], &Expect::default()), ["a token that does not grow"]);
        }
    }

    #[test]
    fn untold_losses_and_holds_that_come_back_are_found() {
        let untold = "G 1 t0 plain X 1 a - renewed:1000 100\nU 1 900\nE 1 200 lost:untold\n";
        assert_eq!(judged(&[("p0", untold)], &Expect::default()), ["a loss that was not told"]);
        let back = "G 1 t0 plain X 1 a - renewed:1000 100\nV 1 300\nE 1 400 unlocked\n";
        assert_eq!(judged(&[("p0", back)], &Expect::default()), ["a hold that came back"]);
        let expired = "G 1 t0 plain X 1 a - renewed:3000 100\nE 1 200 lost:expired\n";
        assert!(judged(&[("p0", expired)], &Expect::default()).is_empty());
        let strict = Expect { nothing_expires: true, ..Expect::default() };
        assert_eq!(judged(&[("p0", expired)], &strict), ["a renewed hold that expired"]);
        let other = "G 1 t0 plain X 1 a - renewed:3000 5000000000\nE 1 6000000000 lost:expired\n";
        for (late, judged_so) in
            [("L 1 2000000000\n", 1), ("L 1 3500000000\n", 0), ("L 6500000000 8000000000\n", 1)]
        {
            assert_eq!(judged(&[("p0", other), ("p1", late)], &strict).len(), judged_so, "{late}");
        }
        let strict = Expect { nothing_vanishes: true, ..Expect::default() };
        for line in ["A 1 300 Deleted\nE 1 200 unlocked\n", "E 1 200 lost:taken-over-by-b:1\n"] {
            let text = format!("G 1 t0 plain X 1 a - renewed:3000 100\n{line}");
            assert_eq!(judged(&[("p0", &text)], &strict), ["a hold that vanished"]);
            for (late, judged_so) in [(150, 0), (350, 1)] {
                let counted_late = vec![("plain".to_owned(), late)];
                let late = Expect { counted_late, ..strict.clone() };
                assert_eq!(judged(&[("p0", &text)], &late).len(), judged_so, "{late:?}");
            }
        }
    }
}
