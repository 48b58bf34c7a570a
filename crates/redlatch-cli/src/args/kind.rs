//! What kind of lock `run` and `lock` hold, and which options contradict each other.

use std::{ffi::OsString, fmt};

use clap::{
    Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use redlatch::LockKind;

use crate::{escape, exit::Failure};

/// The options that choose the kind.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct KindArgs {
    /// Hold the read side of a read-write lock, together with other readers.
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Hold the write side of a read-write lock, alone.
    ///
    /// A name that is taken with --shared once needs --shared or --exclusive everywhere. Without either, redlatch takes a plain lock,
    /// which is exclusive too. The server refuses that while readers or a writer hold the name.
    #[arg(short = 'x', long)]
    pub(crate) exclusive: bool,
    /// Hold a fair lock: its waiters get it in the order of asking, over all machines.
    #[arg(long)]
    pub(crate) fair: bool,
    /// Hold one of N permits: the name has at most N holders at once. All its users give the same N.
    #[arg(long, value_name = "N", value_parser = super::numbers::within::<u32>(super::numbers::COUNT))]
    pub(crate) permits: Option<u32>,
    /// Draw a fencing token and pass it on as REDLATCH_TOKEN.
    #[arg(long)]
    pub(crate) fenced: bool,
}

/// How a name is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By one, as a plain lock.
    Lock,
    /// By one, in the order of asking.
    Fair,
    /// The read side of a read-write lock.
    Read,
    /// The write side of a read-write lock.
    Write,
    /// One of so many permits.
    Permits(u32),
}

/// A kind by its name, for holds that are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeldKind {
    /// A plain or a fenced lock.
    Lock,
    /// A fair lock (--fair).
    Fair,
    /// The read side of a read-write lock (--shared).
    Read,
    /// The write side of a read-write lock (--exclusive).
    Write,
    /// A permit (--permits); its id is the owner.
    Permits,
}

/// What `ls` lists, by its word or another that means it.
pub(crate) fn listed() -> impl TypedValueParser<Value = LockKind> {
    let words = LockKind::LISTED.map(|kind| {
        PossibleValue::new(kind.word()).aliases(kind.aliases().iter().copied()).help(kind.about())
    });
    PossibleValuesParser::new(words).try_map(|word| {
        let means = |kind: &LockKind| kind.word() == word || kind.aliases().contains(&&*word);
        LockKind::LISTED.into_iter().find(means).ok_or("no such kind")
    })
}

impl Kind {
    /// The kind without its number.
    pub(crate) fn held(self) -> HeldKind {
        match self {
            Kind::Lock => HeldKind::Lock,
            Kind::Fair => HeldKind::Fair,
            Kind::Read => HeldKind::Read,
            Kind::Write => HeldKind::Write,
            Kind::Permits(_) => HeldKind::Permits,
        }
    }
}

impl HeldKind {
    /// The word for it, as `--kind` takes it and REDLATCH_KIND has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            HeldKind::Lock => "lock",
            HeldKind::Fair => "fair",
            HeldKind::Read => "read",
            HeldKind::Write => "write",
            HeldKind::Permits => "permits",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.held().word())
    }
}

impl KindArgs {
    /// The kind that the options choose for these names.
    ///
    /// # Errors
    ///
    /// Usage, for options that contradict each other.
    pub(crate) fn kind(self, names: &[OsString]) -> Result<Kind, Failure> {
        let several = names.len() > 1;
        let side = self.shared || self.exclusive;
        let contradictions = [
            (
                self.shared && self.exclusive,
                "--shared and --exclusive are the two sides of one lock; give one of them",
            ),
            (
                self.fair && side,
                "--fair orders holders that come one after the other, and a read-write lock has no queue; leave out --fair, or --shared and --exclusive",
            ),
            (
                self.permits.is_some() && side,
                "--permits counts holders that are all alike; leave out --permits, or --shared and --exclusive",
            ),
            (
                self.permits.is_some() && self.fair,
                "permits are not granted in any order; leave out --fair or --permits",
            ),
            (
                self.permits.is_some() && self.fenced,
                "permits have no fencing tokens, because several hold at once; leave out --fenced or --permits",
            ),
            (
                self.shared && self.fenced,
                "a fencing token tells the newest holder from older ones, and those of --shared hold together; leave out --fenced, or use --exclusive",
            ),
            (
                several && self.fair,
                "several names with --fair: while one of them is busy the others are given back, so no place in line could be kept; leave out --fair or give one name",
            ),
            (
                several && self.permits.is_some(),
                "several names with --permits: permits are taken for one name; give one name, or nest one `redlatch run` in another",
            ),
        ];
        if let Some((_, why)) = contradictions.iter().find(|(given, _)| *given) {
            return Err(Failure::usage(*why));
        }
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            let name = escape::bytes(name.as_encoded_bytes());
            return Err(Failure::usage(format!("the name \"{name}\" is given twice; give each name once")));
        }
        Ok(match self.permits {
            Some(permits) => Kind::Permits(permits),
            None if self.shared => Kind::Read,
            None if self.exclusive => Kind::Write,
            None if self.fair => Kind::Fair,
            None => Kind::Lock,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_has_its_kind_and_each_contradiction_its_remedy() {
        let none = KindArgs::default();
        let one = [OsString::from("a")];
        let kind = |args: KindArgs| args.kind(&one).unwrap();
        assert_eq!(kind(none), Kind::Lock);
        assert_eq!(kind(KindArgs { fenced: true, ..none }), Kind::Lock);
        assert_eq!(kind(KindArgs { fair: true, fenced: true, ..none }), Kind::Fair);
        assert_eq!(kind(KindArgs { shared: true, ..none }), Kind::Read);
        assert_eq!(kind(KindArgs { exclusive: true, fenced: true, ..none }), Kind::Write);
        assert_eq!(kind(KindArgs { permits: Some(3), ..none }), Kind::Permits(3));

        let refused = |args: KindArgs, names: &[&str], word: &str| {
            let names: Vec<OsString> = names.iter().map(OsString::from).collect();
            let failure = args.kind(&names).unwrap_err();
            assert_eq!(failure.code(), crate::exit::USAGE);
            let text = failure.to_string();
            assert!(text.contains(word) && text.contains("give") | text.contains("leave out"), "{text}");
        };
        refused(KindArgs { shared: true, exclusive: true, ..none }, &["a"], "--exclusive");
        refused(KindArgs { shared: true, fair: true, ..none }, &["a"], "--fair");
        refused(KindArgs { exclusive: true, fair: true, ..none }, &["a"], "--fair");
        refused(KindArgs { shared: true, permits: Some(1), ..none }, &["a"], "--permits");
        refused(KindArgs { exclusive: true, permits: Some(1), ..none }, &["a"], "--permits");
        refused(KindArgs { fair: true, permits: Some(1), ..none }, &["a"], "--permits");
        refused(KindArgs { fenced: true, permits: Some(1), ..none }, &["a"], "--permits");
        refused(KindArgs { fenced: true, shared: true, ..none }, &["a"], "--fenced");
        refused(KindArgs { fair: true, ..none }, &["a", "b"], "several names");
        refused(KindArgs { permits: Some(1), ..none }, &["a", "b"], "several names");
        refused(none, &["a", "b", "a"], "twice");
        let two = [OsString::from("a"), OsString::from("b")];
        assert_eq!(KindArgs { shared: true, ..none }.kind(&two).unwrap(), Kind::Read);
    }
}
