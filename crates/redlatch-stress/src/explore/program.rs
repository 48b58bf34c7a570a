//! What tasks of some processes do with one name, as short texts.
//!
//! Tasks are parted by `|`, and `1:` begins one of the second process. An acquire is a kind (`P`lain, `F`air, `R`ead, `W`rite; `M` a set of
//! the plain lock and another one, `N` a set of the write lock and another one), an owner
//! (`.` a fresh one; `a`, `b` one that several tasks of this process use; `A`, `B` the same of the first process, from its text) and
//! options (`?` does not wait, `!` has a fixed lease, `-` has a shorter one than an answer may take, `+` has a longer one that is renewed, `#` draws a token). The other words are in [`Op`]. With a `~` at the beginning a lease is passed on inside a
//! process for as long as tasks wait there.

use std::{str::FromStr, time::Duration};

/// The lock of every program.
pub(super) const NAME: &str = "n";
/// The lease that is renewed.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// What an extension asks for, and the longer lease that is renewed.
pub(super) const EXTENDED: Duration = Duration::from_secs(6);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Fair,
    Read,
    Write,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Fresh,
    /// One of the owners that the tasks of a process use.
    Shared(usize),
    /// One of those of the first process, from its text.
    Text(usize),
}

/// For how long a hold is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Renewed,
    RenewedForLonger,
    Fixed,
    /// Fixed, and over before it is known that an answer does not come.
    Brief,
}

impl Length {
    pub(super) fn is_renewed(self) -> bool {
        matches!(self, Length::Renewed | Length::RenewedForLonger)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Acquire {
        kind: Kind,
        who: Who,
        waits: bool,
        lease: Length,
        fenced: bool,
        /// With another lock, as a set.
        set: bool,
    },
    /// `o`: takes up a hold that a task has left.
    Adopt,
    /// `u`: gives the last hold back.
    Unlock,
    /// `U`: gives the first hold back.
    UnlockFirst,
    /// `d`: drops the guard of the last hold.
    Drop,
    /// `e`: enters the last hold once more.
    Reenter,
    /// `x`: makes the last hold last longer.
    Extend,
    /// `g`: turns the last hold from writing to reading.
    Downgrade,
    /// `r`: reads beside the last hold.
    ReadBeside,
    /// `t`: leaves the last hold without a guard.
    Detach,
}

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) process: usize,
    pub(super) ops: Vec<Op>,
}

#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) text: String,
    /// Leases are passed on without an end.
    pub(super) passes_on: bool,
    pub(super) tasks: Vec<Task>,
}

/// How many shared owners a process has.
pub(super) const OWNERS: usize = 2;

fn acquire(word: &str) -> Option<Op> {
    let mut chars = word.chars();
    let (kind, set) = match chars.next()? {
        'P' => (Kind::Plain, false),
        'F' => (Kind::Fair, false),
        'R' => (Kind::Read, false),
        'W' => (Kind::Write, false),
        'M' => (Kind::Plain, true),
        'N' => (Kind::Write, true),
        _ => return None,
    };
    let who = match chars.next()? {
        '.' => Who::Fresh,
        'a' => Who::Shared(0),
        'b' => Who::Shared(1),
        'A' => Who::Text(0),
        'B' => Who::Text(1),
        _ => return None,
    };
    let (mut waits, mut lease, mut fenced) = (true, Length::Renewed, false);
    for option in chars {
        match option {
            '?' => waits = false,
            '#' => fenced = true,
            _ if lease != Length::Renewed => return None,
            '!' => lease = Length::Fixed,
            '-' => lease = Length::Brief,
            '+' => lease = Length::RenewedForLonger,
            _ => return None,
        }
    }
    Some(Op::Acquire { kind, who, waits, lease, fenced, set })
}

fn op(word: &str) -> Result<Op, String> {
    Ok(match word {
        "u" => Op::Unlock,
        "U" => Op::UnlockFirst,
        "d" => Op::Drop,
        "e" => Op::Reenter,
        "x" => Op::Extend,
        "g" => Op::Downgrade,
        "r" => Op::ReadBeside,
        "t" => Op::Detach,
        "o" => Op::Adopt,
        _ => return acquire(word).ok_or_else(|| format!("no step is called {word}")),
    })
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut tasks = Vec::new();
        let steps = text.trim_start_matches('~');
        for task in steps.split('|') {
            let task = task.trim();
            let (process, steps) = match task.split_once(':') {
                Some((process, steps)) => {
                    (process.parse().map_err(|_| format!("no process {process}"))?, steps)
                }
                None => (0, task),
            };
            if process > 1 {
                return Err("there are two processes, 0 and 1".into());
            }
            let ops = steps.split_whitespace().map(op).collect::<Result<Vec<_>, _>>()?;
            tasks.push(Task { process, ops });
        }
        Ok(Program { text: text.to_owned(), passes_on: steps != text, tasks })
    }
}

impl Program {
    pub(super) fn processes(&self) -> usize {
        self.tasks.iter().map(|task| task.process).max().unwrap_or(0) + 1
    }

    /// Whether some hold is over before it is known that an answer does not come.
    pub(super) fn has_brief(&self) -> bool {
        let is_brief = |op: &Op| matches!(op, Op::Acquire { lease: Length::Brief, .. });
        self.tasks.iter().any(|task| task.ops.iter().any(is_brief))
    }
}

/// Programs that stand for something that was found once, or for a kind with what is special about it.
const TABLE: &[&str] = &[
    // Tasks of one process and of two that want the same lock.
    "P. u | P. u",
    "P. u | 1:P. u",
    "P. u | P.",
    "~P. u | P.",
    "~P. u | P.! u | P.",
    "P. u | P. u | 1:P. u",
    "P. u | P. d | P. u",
    "P. e u u | P. u",
    "P. x u | P.! u",
    "P.? u P.? u | 1:P.? u",
    // An owner that is used again.
    "Pa u Pa u",
    "Pa u Fa",
    "Fa u Pa",
    "Pa u Pa u | P. u",
    "Pa u Pa u | 1:P. u",
    "Pa d Pa u | P. u",
    "Pa? Pa u | P. u",
    "Pa Pa u | P. u | P. u",
    "Pa u | Pa u",
    "Pa u | Pa u | P. u",
    "Pa u | Pa u | 1:P. u",
    "Pa Pa u u | P. u",
    // An owner that is handed out.
    "Pa u | 1:PA u",
    "Pa u | 1:PA",
    "Pa u | 1:PA? u",
    "Pa e u u | 1:PA u",
    "Pa u | P. u | 1:PA u",
    "Pa u | P. | 1:PA",
    "Pa t | 1:P. u",
    // Holds of one owner that are renewed for different times.
    "Pa Pa+ u u | 1:P. u",
    "Pa Pa+ U u | 1:P. u",
    "Pa+ Pa U u | 1:PA u",
    "Pa Pa+ u u | 1:PA u",
    "Wa+ Wa g u u | 1:R. u",
    "Wa Wa+ u g u | 1:WA u",
    "Ra Ra+ u u | 1:W. u",
    "Ra+ Ra U u | 1:RA u",
    "Fa Fa+ u u | 1:F. u",
    "Ma Ma+ u u | 1:P. u",
    "P.+ u | P. u | 1:P. u",
    // Fair locks.
    "F. u | F. u",
    "F. u | 1:F. u",
    "Fa u | Fa u",
    "Fa u Fa u | F. u",
    "Fa u Fa u | 1:F. u",
    "Fa u | Fa u | 1:F. u",
    "F. u | P. u",
    "Fa u | 1:FA u",
    "Fa u | 1:FA",
    // Readers and writers.
    "R. u | W. u",
    "R. u | 1:W. u",
    "W. g u | 1:R. u",
    "Ra u Ra u",
    "Ra d Ra u | 1:W. u",
    "Wa g Ra u",
    "Wa g | Ra u | 1:W. u",
    "Wa r u U | Ra u",
    "Wa r U u | 1:W. u",
    "Wa u Wa u | 1:W. u",
    "Wa e g u u | 1:R. u",
    "Ra u | Ra u | 1:W. u",
    "Wa u | Wa u | R. u",
    "Wa u | 1:WA u",
    "Wa u | 1:WA",
    "Ra u | 1:RA",
    "Wa u | W. | 1:WA",
    "Wa g u | 1:RA u",
    "Ra u | 1:RA u",
    "Wa r u u | 1:WA u",
    "Wa r u | 1:RA",
    // Tokens, which keep a hold from being passed on as it is.
    "P.# u | P. u",
    "P. u | P.# u",
    "P.# u | P.# u | 1:P. u",
    "F.# u | F. u",
    "F.! | F. u | 1:F. u",
    // Leases that end while an answer is still waited for.
    "P. u | P.- u | 1:P. u",
    "F. d | F.- u",
    "F. u | F.- u | 1:F. u",
    "F.- u | F.- u | 1:F.- u",
    "W. u | W.- u | 1:R. u",
    "R. u | R.- u | 1:W. u",
    "Fa u Fa- u | F. u",
    // Sets.
    "M. u | P. u",
    "M. u | M. u",
    "M. u | 1:M. u",
    "M. d | P. u | 1:P. u",
    "M.? u | P. u",
    "Ma u Pa u",
    "Ma u Ma u | 1:P. u",
    "Ma Pa u u | P. u",
    "Ma Pa U u | 1:P. u",
    "Ma u | Pa u | 1:P. u",
    "Ma x u | P. u",
    "Ma u | 1:PA u",
    "N. u | R. u",
    "Na u Ra u | 1:W. u",
    "Na u Wa g u | 1:W. u",
    // Holds that are left and taken up.
    "P. t | 1:o u",
    "Pa t | o u",
    "Pa t | 1:o u | 1:o u",
    "Pa t Pa u | 1:o u",
    "Pa t | 1:o u | P. u",
    "R. t | 1:o u | W. u",
    "W. t | 1:o u | R. u",
    "M. t | 1:o u | P. u",
];

/// What one task may do, for all pairs.
const ALPHABET: [&[&str]; 2] = [
    &[
        "P. u",
        "P. d",
        "Pa u",
        "Pa d Pa u",
        "Pa? u",
        "Pa e u u",
        "F. u",
        "Fa u",
        "P.! u",
        "Pa x u",
        "Ma u",
        "P.# u",
    ],
    &["R. u", "W. u", "Ra u", "Wa u", "Ra d Ra u", "Wa g u", "Wa r u u", "Ra e u u", "Wa d Wa u", "Wa? u"],
];
/// What a task of the other process may do beside them.
const OTHERS: [&[&str]; 2] = [&["P. u", "PA u", "F. u"], &["W. u", "R. u", "RA u", "WA u"]];

/// The programs that are written out.
pub(super) fn table() -> Vec<Program> {
    TABLE.iter().map(|text| text.parse().expect("the table is well-formed")).collect()
}

/// All pairs of an alphabet, in one process and in two, and with a third task in another process.
pub(super) fn generated() -> Vec<Program> {
    let mut texts = Vec::new();
    for (alphabet, others) in ALPHABET.iter().zip(OTHERS) {
        for (at, one) in alphabet.iter().enumerate() {
            for other in &alphabet[at..] {
                texts.push(format!("{one} | {other}"));
            }
            for other in others {
                texts.push(format!("{one} | 1:{other}"));
            }
        }
        for (at, one) in alphabet.iter().enumerate() {
            for other in &alphabet[at..] {
                texts.extend(others.iter().map(|third| format!("{one} | {other} | 1:{third}")));
            }
        }
    }
    texts.retain(|text| !TABLE.contains(&text.as_str()));
    texts.iter().map(|text| text.parse().expect("the alphabet is well-formed")).collect()
}
