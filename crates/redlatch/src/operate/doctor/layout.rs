//! Where the keys and channels beside a name lie: what must share a slot of a cluster, and what the braces of a name make of it.
//!
//! Other stores have no slots, but names are refused there, too, and Java may hold locks by names that would not survive a move
//! to a cluster. So the same is looked at everywhere, and only a cluster makes a problem of it.

use std::collections::BTreeSet;

use crate::{
    acl::{self, Kind},
    client::Client,
    finding::{Finding, Severity},
    keys::hash_tag,
    name::LockName,
    operate::inspect::LockState,
    store::slot_of,
};

const SUBJECT: &str = "slot layout";
/// How many names of one call are looked at; the rest is counted.
const NAMES_MAX: usize = 1_000;
/// How many keys elsewhere one finding names.
const SHOWN_MAX: usize = 4;

/// How the braces of a name put what is beside it elsewhere, and what to do.
fn remedy(name: &[u8]) -> &'static str {
    let open = name.iter().position(|byte| *byte == b'{');
    let Some(open) = open else {
        return "leave out the }: around the name go braces, and the tag would end at yours";
    };
    match name[open + 1..].iter().position(|byte| *byte == b'}') {
        None => "close the brace: a { keeps other braces away, and without its } there is no tag",
        Some(0) => "put something between the first { and its }: an empty tag is none",
        Some(_) => {
            "leave braces out of the names of latches: their channel gets its own, whatever the name looks like"
        }
    }
}

/// What Redisson takes for the tag: it ends at the first `}` of the whole key, not at the first one after the `{`.
fn tag_of_redisson(key: &[u8]) -> &[u8] {
    let at = |brace| key.iter().position(|byte| *byte == brace);
    match (at(b'{'), at(b'}')) {
        (Some(open), Some(close)) if open + 1 < close => &key[open + 1..close],
        _ => key,
    }
}

/// What one name means for some kinds.
struct Layout<'a> {
    name: &'a [u8],
    slot: u16,
    /// Kinds whose keys are together, and how many keys and channels these are beside the first.
    together: Vec<Kind>,
    beside: BTreeSet<Vec<u8>>,
    /// Kinds with keys or channels elsewhere.
    split: Vec<Kind>,
    elsewhere: BTreeSet<Vec<u8>>,
}

impl<'a> Layout<'a> {
    fn of(name: &'a [u8], kinds: &[Kind]) -> Self {
        let (slot, tag) = (slot_of(name), hash_tag(name));
        let mut layout = Layout {
            name,
            slot,
            together: Vec::new(),
            beside: BTreeSet::new(),
            split: Vec::new(),
            elsewhere: BTreeSet::new(),
        };
        for kind in kinds {
            let all = acl::companions(*kind, name);
            // By tags, because different ones may have the same slot by chance.
            let (near, far): (Vec<_>, Vec<_>) = all.into_iter().partition(|key| hash_tag(key) == tag);
            if far.is_empty() { &mut layout.together } else { &mut layout.split }.push(*kind);
            layout.beside.extend(near);
            layout.elsewhere.extend(far);
        }
        layout
    }

    fn words(kinds: &[Kind]) -> String {
        kinds.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ")
    }

    fn where_else(&self) -> String {
        let shown = self.elsewhere.iter().take(SHOWN_MAX);
        let shown: Vec<String> =
            shown.map(|key| format!("\"{}\" to {}", LockName::unchecked(key), slot_of(key))).collect();
        let more = self.elsewhere.len().saturating_sub(SHOWN_MAX);
        let more = if more == 0 { String::new() } else { format!(", and {more} more") };
        format!("{}{more}", shown.join(", "))
    }
}

impl Client {
    /// Whether keys are spread by slot.
    fn has_slots(&self) -> bool {
        // The tags of these have different slots.
        self.core.store.slot(b"a") != self.core.store.slot(b"b")
    }

    /// Says whether all keys and channels that belong to a name, for some kinds of lock, have one cluster slot, and which do not.
    /// A name that splits is refused here on every store; Java takes it, and in a cluster cannot release it.
    ///
    /// Nothing is asked of the server.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # use redlatch::{Severity, acl::Kind};
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// assert_eq!(client.diagnose_name("order:7", &Kind::ALL)[0].severity, Severity::Good);
    /// assert_eq!(client.diagnose_name("order}7", &Kind::ALL)[0].severity, Severity::Problem);
    /// # Ok(()) }
    /// ```
    pub fn diagnose_name(&self, name: impl AsRef<[u8]>, kinds: &[Kind]) -> Vec<Finding> {
        let name = LockName::unchecked(name.as_ref());
        let layout = Layout::of(name.as_bytes(), kinds);
        if let Err(error) = name.check()
            && layout.split.is_empty()
        {
            // Too long, or empty.
            return vec![Finding::new(Severity::Problem, SUBJECT, error.to_string())];
        }
        let mut findings = Vec::new();
        if !layout.split.is_empty() {
            // Latches of names with braces: those who have no latch by that name lose nothing.
            let harmless = name.check().is_ok() && layout.split.len() < kinds.len();
            let text = format!(
                "the key of \"{name}\" belongs to slot {}, but for {} there belongs {}",
                layout.slot,
                Layout::words(&layout.split),
                layout.where_else()
            );
            let severity = if harmless { Severity::Note } else { Severity::Problem };
            findings.push(Finding::new(severity, SUBJECT, text).remedy(remedy(layout.name)));
        }
        if !layout.together.is_empty() && name.check().is_ok() {
            let text = format!(
                "\"{name}\" and the {} keys and channels beside it share slot {} ({})",
                layout.beside.len(),
                layout.slot,
                Layout::words(&layout.together)
            );
            findings.push(Finding::new(Severity::Good, SUBJECT, text));
        }
        findings.extend(self.redisson_looks_elsewhere(&name));
        findings
    }

    /// A tag that Redisson reads in another way than servers do.
    fn redisson_looks_elsewhere(&self, name: &LockName) -> Option<Finding> {
        let bytes = name.as_bytes();
        if name.check().is_err() || tag_of_redisson(bytes) == hash_tag(bytes) {
            return None;
        }
        let text = format!(
            "the first }} of \"{name}\" comes before its {{: Redisson takes it for the end of the tag and looks for the lock at another \
             node of a cluster, so that its waiters are not told of releases"
        );
        let severity = if self.has_slots() { Severity::Problem } else { Severity::Note };
        Some(
            Finding::new(severity, SUBJECT, text)
                .remedy("leave out the }, or have no Java service use the name"),
        )
    }

    /// The same for all names that begin with a prefix: whether they are fine, need something, or are all refused.
    pub fn diagnose_prefix(&self, prefix: &str, kinds: &[Kind]) -> Vec<Finding> {
        let shown = LockName::unchecked(prefix.as_bytes());
        let bytes = prefix.as_bytes();
        let Some(sample) = name_under(prefix, "x") else {
            let text = format!(
                "the braces in \"{shown}\" put the keys beside a name into other slots than the name, so names that begin with it are refused"
            );
            return vec![Finding::new(Severity::Problem, SUBJECT, text).remedy(remedy(bytes))];
        };
        let layout = Layout::of(sample.as_bytes(), kinds);
        let mut findings = Vec::new();
        let whole_tag = hash_tag(bytes) != bytes;
        if whole_tag {
            let text = format!(
                "all names that begin with \"{shown}\" have slot {}, so sets of them are taken in one step, and in a cluster one master \
                 has them all",
                slot_of(bytes)
            );
            findings.push(Finding::new(
                if self.has_slots() { Severity::Note } else { Severity::Good },
                SUBJECT,
                text,
            ));
        } else if sample.as_bytes().ends_with(b"}") {
            let text = format!(
                "\"{shown}\" opens a brace: names that begin with it and do not close it are refused, because the keys beside them would \
                 have other slots"
            );
            let finding = Finding::new(Severity::Note, SUBJECT, text);
            findings.push(finding.remedy("go on with a tag and its }, as in prefix{order-7}"));
        } else {
            let text = format!(
                "names that begin with \"{shown}\" keep what is beside them in their slot, unless they have braces of their own and not \
                 exactly one {{tag}}"
            );
            findings.push(Finding::new(Severity::Good, SUBJECT, text));
        }
        // What is left are latches, whose channel gets braces in any case.
        if !layout.split.is_empty() {
            let text = format!(
                "the braces in \"{shown}\" put the channel of a latch elsewhere, so it is no prefix for latches ({})",
                layout.where_else()
            );
            let asked_for = kinds.len() == layout.split.len();
            let severity = if asked_for { Severity::Problem } else { Severity::Note };
            findings.push(Finding::new(severity, SUBJECT, text).remedy("give latches names without braces"));
        }
        findings
    }

    /// Looks at names that are in use, as [`list`](Self::list) finds them: those whose keys lie apart in a cluster were taken by
    /// Java, which does not refuse them. One finding for each, at most 1,000, and one that sums up if there is none.
    pub fn diagnose_found(&self, states: &[LockState]) -> Vec<Finding> {
        let in_cluster = self.has_slots();
        let mut findings = Vec::new();
        for state in states.iter().take(NAMES_MAX) {
            let kind = Kind::behind(state.kind);
            let layout = Layout::of(state.name.as_bytes(), &[kind]);
            if layout.split.is_empty() {
                findings.extend(self.redisson_looks_elsewhere(&state.name));
                continue;
            }
            let text = format!(
                "\"{}\" is in use ({kind}) with its key in slot {}, and what is beside it in others: {}; {}",
                state.name,
                layout.slot,
                layout.where_else(),
                if in_cluster {
                    "its holder cannot release it, and nothing wakes its waiters"
                } else {
                    "no Redlatch takes it, and in a cluster nobody could release it"
                }
            );
            let severity = if in_cluster { Severity::Problem } else { Severity::Note };
            findings.push(Finding::new(severity, SUBJECT, text).remedy(remedy(state.name.as_bytes())));
        }
        if findings.is_empty() {
            let text =
                format!("{} names in use, each with all that is beside it", states.len().min(NAMES_MAX));
            findings.push(Finding::new(Severity::Good, SUBJECT, text));
        }
        findings
    }
}

/// A valid name that begins with a prefix. A brace that the prefix opens is closed by the rest.
pub(super) fn name_under(prefix: &str, rest: &str) -> Option<LockName> {
    let closed = || LockName::new(format!("{prefix}{rest}}}"));
    LockName::new(format!("{prefix}{rest}")).or_else(|_| closed()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redissons_tag_ends_at_the_first_closing_brace_of_all() {
        for (key, tag) in [
            ("plain", "plain"),
            ("a{b}c", "b"),
            ("a}b{c}", "a}b{c}"),
            ("{}x", "{}x"),
            ("a{b", "a{b"),
            ("{a}{b}", "a"),
        ] {
            assert_eq!(tag_of_redisson(key.as_bytes()), tag.as_bytes(), "{key}");
        }
    }

    #[test]
    fn a_name_is_refused_exactly_when_a_kind_other_than_the_latch_splits() {
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Latch).collect();
        for name in
            ["plain", "a}b", "a{b", "{}x", "x{}y", "a{b}c", "{t}:x", "a{b}{c}", "a}b{c}", "a{b}}", "}"]
        {
            let layout = Layout::of(name.as_bytes(), &kinds);
            assert_eq!(layout.split.is_empty(), LockName::new(name).is_ok(), "{name} {:?}", layout.elsewhere);
        }
    }
}
