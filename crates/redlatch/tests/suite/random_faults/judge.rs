//! What must not have happened.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use redlatch_testkit::stall::awake_between;

/// How long what was wrong is felt: a connection that is silent is given up after the time for answers.
const AFTERMATH: Duration = Duration::from_millis(1_200);

/// Which holds may be there at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nobody else.
    Alone,
    /// Others like it.
    Read,
    /// Others, as long as all of them together have at most this many.
    Permits { capacity: u32 },
}

/// A hold from when its acquire returned to when its release began, or to when it was last seen valid.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) weight: u32,
    pub(super) who: String,
    pub(super) asked: Instant,
    pub(super) from: Instant,
    pub(super) until: Instant,
    pub(super) token: Option<u64>,
}

/// A change of master that may have lost what was not replicated yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub(super) from: Instant,
    /// When the next master was known, and the old one demoted or gone.
    pub(super) to: Instant,
}

/// What is written down during a run.
#[derive(Clone)]
pub(super) struct Book(Arc<Mutex<Notes>>, Instant);

#[derive(Default)]
struct Notes {
    spans: Vec<Span>,
    losses: Vec<Loss>,
    /// When something was wrong, from when to when.
    troubles: Vec<(Instant, Instant)>,
    faults: Vec<(Instant, String)>,
    wrong: Vec<String>,
    counts: BTreeMap<String, u64>,
}

impl Book {
    pub(super) fn new() -> Book {
        Book(Arc::default(), Instant::now())
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.0.lock().unwrap()
    }

    pub(super) fn span(&self, span: Span) {
        self.notes().spans.push(span);
    }

    pub(super) fn loss(&self, from: Instant) {
        self.notes().losses.push(Loss { from, to: Instant::now() });
    }

    /// Whether a master has been replaced since then.
    pub(super) fn lost_since(&self, moment: Instant) -> bool {
        self.notes().losses.iter().any(|loss| loss.to >= moment)
    }

    pub(super) fn trouble_since(&self, from: Instant) {
        self.notes().troubles.push((from, Instant::now()));
    }

    pub(super) fn fault(&self, what: impl Into<String>) {
        self.notes().faults.push((Instant::now(), what.into()));
    }

    /// Something that must not happen, and did.
    pub(super) fn wrong(&self, what: impl Into<String>) {
        let what = format!("{} {}", self.at(Instant::now()), what.into());
        self.notes().wrong.push(what);
    }

    pub(super) fn count(&self, what: impl Into<String>) {
        *self.notes().counts.entry(what.into()).or_default() += 1;
    }

    pub(super) fn counted(&self, what: &str) -> u64 {
        self.notes().counts.get(what).copied().unwrap_or(0)
    }

    /// A moment, in milliseconds since the run began.
    pub(super) fn at(&self, moment: Instant) -> String {
        format!("[{} ms]", moment.saturating_duration_since(self.1).as_millis())
    }

    /// What was found. `told` is how long after a change of master a hold that it lost may count as valid, not counting the time
    /// in which something else was wrong; its own deadline comes before in any case.
    pub(super) fn verdict(&self, told: Duration) -> Result<String, String> {
        self.exclusion(told);
        self.tokens();
        let notes = self.notes();
        let mut text = format!("{} holds, {} changes of master; ", notes.spans.len(), notes.losses.len());
        let _ = writeln!(text, "{:?}", notes.counts);
        let tells = std::env::var_os("REDLATCH_CHAOS_TELLS").is_some();
        if notes.wrong.is_empty() && !tells {
            return Ok(text);
        }
        for (at, what) in &notes.faults {
            let _ = writeln!(text, "  {} {what}", self.at(*at));
        }
        for what in notes.wrong.iter().take(40) {
            let _ = writeln!(text, "WRONG {what}");
        }
        if notes.wrong.is_empty() { Ok(text) } else { Err(text) }
    }

    fn exclusion(&self, told: Duration) {
        let (mut spans, losses, troubles) = {
            let notes = self.notes();
            (notes.spans.clone(), notes.losses.clone(), notes.troubles.clone())
        };
        let calm = |from: Instant, to: Instant| {
            let troubled: Duration = troubles
                .iter()
                .map(|(begin, end)| awake_between((*begin).max(from), (*end + AFTERMATH).min(to)))
                .sum();
            awake_between(from, to).saturating_sub(troubled)
        };
        spans.retain(|span| span.until > span.from);
        spans.sort_by(|a, b| (&a.name, a.from).cmp(&(&b.name, b.from)));
        for of_name in spans.chunk_by(|a, b| a.name == b.name) {
            let mut open: Vec<&Span> = Vec::new();
            for span in of_name {
                open.retain(|other| other.until > span.from);
                for other in &open {
                    let end = span.until.min(other.until);
                    let excused = losses.iter().any(|loss| {
                        loss.from <= end
                            && (end <= loss.to || calm(loss.to, end) <= told)
                            && other.from <= loss.to
                    });
                    let together: u32 = span.weight + open.iter().map(|other| other.weight).sum::<u32>();
                    let allowed = match (span.mode, other.mode) {
                        (Mode::Read, Mode::Read) => true,
                        (Mode::Permits { capacity }, _) => together <= capacity,
                        _ => false,
                    };
                    if !allowed && excused {
                        self.count("overlaps after a change of master");
                    } else if !allowed {
                        let show = |span: &Span| {
                            let (asked, from, until) =
                                (self.at(span.asked), self.at(span.from), self.at(span.until));
                            format!("{} {:?} asked {asked} from {from} until {until}", span.who, span.mode)
                        };
                        self.wrong(format!("two hold {}: {} and {}", span.name, show(other), show(span)));
                    }
                }
                open.push(span);
            }
        }
    }

    fn tokens(&self) {
        let mut spans: Vec<Span> =
            self.notes().spans.iter().filter(|span| span.token.is_some()).cloned().collect();
        spans.sort_by(|a, b| (&a.name, a.token).cmp(&(&b.name, b.token)));
        for of_name in spans.chunk_by(|a, b| a.name == b.name) {
            // In the order of tokens, nobody may have asked only after one with a higher token had its grant.
            let mut first_later = Instant::now() + Duration::from_secs(3600);
            for (at, span) in of_name.iter().enumerate().rev() {
                if span.asked > first_later {
                    self.wrong(format!(
                        "tokens of {} went back: {:?} of {}",
                        span.name, span.token, span.who
                    ));
                }
                if at > 0 && of_name[at - 1].token == span.token {
                    self.wrong(format!("two grants of {} have the token {:?}", span.name, span.token));
                }
                first_later = first_later.min(span.from);
            }
        }
    }
}

mod tests {
    use super::*;

    const TOLD: Duration = Duration::from_millis(500);

    fn span(book: &Book, mode: Mode, from_ms: u64, until_ms: u64, token: Option<u64>) -> Span {
        let at = |ms| book.1 + Duration::from_millis(ms);
        let (asked, from, until) = (at(from_ms), at(from_ms), at(until_ms));
        Span { name: "x".into(), mode, weight: 1, who: format!("{from_ms}"), asked, from, until, token }
    }

    fn wrong(spans: &[(Mode, u64, u64, Option<u64>)], loss: Option<(u64, u64)>) -> usize {
        let book = Book::new();
        for (mode, from_ms, until_ms, token) in spans {
            book.span(span(&book, *mode, *from_ms, *until_ms, *token));
        }
        if let Some((from_ms, to_ms)) = loss {
            let at = |ms| book.1 + Duration::from_millis(ms);
            book.notes().losses.push(Loss { from: at(from_ms), to: at(to_ms) });
        }
        let _ = book.verdict(TOLD);
        book.notes().wrong.len()
    }

    #[test]
    fn the_judge_sees_which_holds_are_there_at_once() {
        let (alone, read, permits) = (Mode::Alone, Mode::Read, Mode::Permits { capacity: 2 });
        assert_eq!(wrong(&[(alone, 0, 10, None), (alone, 10, 20, None)], None), 0);
        assert_eq!(wrong(&[(alone, 0, 11, None), (alone, 10, 20, None)], None), 1);
        assert_eq!(wrong(&[(read, 0, 11, None), (read, 10, 20, None)], None), 0);
        assert_eq!(wrong(&[(read, 0, 11, None), (alone, 10, 20, None)], None), 1);
        assert_eq!(wrong(&[(permits, 0, 9, None), (permits, 1, 9, None)], None), 0);
        assert!(wrong(&[(permits, 0, 9, None), (permits, 1, 9, None), (permits, 2, 9, None)], None) > 0);
    }

    #[test]
    fn the_judge_excuses_what_a_change_of_master_may_lose_and_not_for_long() {
        let two = |until_ms| [(Mode::Alone, 0, until_ms, None), (Mode::Alone, 150, 10_000, None)];
        assert_eq!(wrong(&two(1_000), None), 1);
        assert_eq!(wrong(&two(500), Some((100, 200))), 0, "told within the time");
        assert_eq!(wrong(&two(60_000), Some((100, 200))), 1, "told too late");
        let later = [(Mode::Alone, 300, 400, None), (Mode::Alone, 350, 400, None)];
        assert_eq!(wrong(&later, Some((100, 200))), 1, "both were granted by the new master");
    }

    #[test]
    fn the_judge_sees_tokens_that_go_back_or_come_twice() {
        let at = |from_ms, token| (Mode::Alone, from_ms, from_ms + 5, Some(token));
        assert_eq!(wrong(&[at(0, 5), at(10, 6), at(20, 9)], None), 0);
        assert_eq!(wrong(&[at(0, 5), at(10, 4)], None), 1);
        assert_eq!(wrong(&[at(0, 5), at(10, 5)], None), 1);
    }
}
