//! Which process answers at an address.
//!
//! A server that was started anew has the data that it could save. What its predecessor counted since may be missing, so a count
//! belongs to one process, as it belongs to one master (`Store::reign`). Servers name their process (`run_id`); where an account may
//! not ask, the process is taken for the same one if another connection is answered after the new one was made.
//!
//! A process does not come back once another one has its place. If that happens again and again, several servers answer at the address in
//! turn, as behind a proxy that spreads connections. None of them knows the locks of the others, and another client may be at another
//! one. So none is used: staying with one of them would look as if all were well, and following each would cut connections for
//! ever.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, Either, join_all, select};
use tokio::time::Sleep;

use crate::{
    error::{Error, ErrorKind},
    store::Reply,
};

/// How long a connection has to show that the process is still there.
const PROOF_TIME_MAX: Duration = Duration::from_secs(1);

/// A process that comes back within this time is counted. An address that is given to another server and back is older by then.
const TURN_TIME: Duration = Duration::from_secs(60);
/// How many have to come back, one after the other, until it is clear that they answer in turn.
const TURNS_MIN: u32 = 2;
/// For how long one process alone has to answer after that until it is used again.
const ALONE_TIME: Duration = Duration::from_secs(10);
/// How many processes are remembered.
const EARLIER_MAX: usize = 8;

/// Words that make a server name its process.
pub(super) const QUESTION: [&str; 2] = ["INFO", "server"];

/// The name of a server's process, where it may be asked for it.
pub(super) type Process = Option<Box<str>>;

/// Reads the answer to [`QUESTION`].
pub(super) fn process(answer: &Reply) -> Process {
    let text = String::from_utf8_lossy(answer.bytes()?);
    let id = text.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    (!id.is_empty()).then(|| id.into())
}

/// One number for a master that may move (`seat`) and the life of its process.
pub(super) fn reign(seat: u64, life: u32) -> u64 {
    (seat << 32) | u64::from(life)
}

pub(super) fn seat(reign: u64) -> u64 {
    reign >> 32
}

/// A connection, which is to one process of the server.
pub(super) trait Lived: Send + Sync {
    /// Whether it is of no use any more: it has ended, or was retired.
    fn is_dead(&self) -> bool;

    /// Whether the server answers on it now.
    fn answers(&self) -> BoxFuture<'_, bool>;

    /// Notes of which process of the server the connection is.
    fn lives_in(&self, life: u32);

    fn life(&self) -> u32;

    /// Has nothing more sent on it; what is under way is answered yet.
    fn retire(&self);

    /// Ends the connection; every call on it gets an unknown outcome at once.
    fn cut(&self);
}

/// The processes that were met at one address, counted from 0. The first one has its number before it is met.
#[derive(Default)]
pub(super) struct Lives {
    number: AtomicU32,
    met: Mutex<Met>,
    /// Is told of a process that has become a replica.
    on_demotion: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Met {
    /// `None` before the first connection.
    process: Option<Process>,
    links: Vec<Weak<dyn Lived>>,
    /// Those of before, and when another one was met.
    earlier: VecDeque<(Process, Instant)>,
    /// How often in a row an earlier one has come back.
    turns: u32,
    /// Several answer in turn: who did last, and since when nobody else has.
    last: Option<(Process, Instant)>,
}

/// Several servers answer in turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InTurn {
    /// It was found out just now.
    pub(super) is_news: bool,
}

pub(super) fn in_turn(server: &str) -> Error {
    let text =
        format!("several servers answer in turn at {server}, and none of them has the locks of the others");
    Error::new(ErrorKind::InvalidUrl, text).remedy(
        "name one server in the URL, or have the proxy send all connections to one; for a master that moves use redis-sentinel:// or redis-replicated://, for a cluster redis-cluster://",
    )
}

impl Lives {
    pub(super) fn telling(on_demotion: Box<dyn Fn() + Send + Sync>) -> Self {
        Lives { on_demotion: Some(on_demotion), ..Lives::default() }
    }

    /// A process has become a replica: all connections to it are retired.
    pub(super) fn demoted(&self, life: u32) {
        let mut its = self.open();
        its.retain(|link| link.life() == life && !link.is_dead());
        its.iter().for_each(|link| link.retire());
        if let Some(told) = self.on_demotion.as_ref().filter(|_| !its.is_empty()) {
            told();
        }
    }

    /// The life of the process that was met last.
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Cuts the connections that do not answer now where names do not tell the process: it is the same one only if another
    /// connection shows it.
    pub(super) async fn prove(&self, process: &Process, sleep: impl Fn(Duration) -> Sleep) {
        let is_named = {
            let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
            process.is_some() && !matches!(met.process, Some(None))
        };
        if is_named {
            return;
        }
        let others: Vec<Arc<dyn Lived>> = self.open();
        let proofs = others.iter().filter(|other| !other.is_dead()).map(async |other| {
            let late = pin!(sleep(PROOF_TIME_MAX));
            if !matches!(select(other.answers(), late).await, Either::Left((true, _))) {
                other.cut();
            }
        });
        join_all(proofs).await;
    }

    fn open(&self) -> Vec<Arc<dyn Lived>> {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes a new connection and tells it whose it is. Connections to an earlier process are cut before the next one counts, so no
    /// request goes to one of them under the number of another.
    pub(super) fn meet(&self, link: &Arc<dyn Lived>, process: Process) -> Result<(), InTurn> {
        self.meet_at(link, process, Instant::now())
    }

    fn meet_at(&self, link: &Arc<dyn Lived>, process: Process, now: Instant) -> Result<(), InTurn> {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, since)) = &mut met.last {
            if *last != process {
                (*last, *since) = (process, now);
                return Err(InTurn { is_news: false });
            }
            if now.saturating_duration_since(*since) < ALONE_TIME {
                return Err(InTurn { is_news: false });
            }
            (met.last, met.turns) = (None, 0);
            met.earlier.clear();
        }
        let mut others: Vec<Arc<dyn Lived>> = met.links.iter().filter_map(Weak::upgrade).collect();
        others.retain(|other| !other.is_dead());
        let is_same = match &met.process {
            None => true,
            Some(Some(before)) if process.is_some() => Some(before) == process.as_ref(),
            // A right to ask that comes or goes is no other process.
            Some(_) => !others.is_empty(),
        };
        if is_same {
            met.links = others.iter().map(Arc::downgrade).collect();
        } else {
            others.iter().for_each(|other| other.cut());
            met.links.clear();
            self.number.fetch_add(1, Ordering::SeqCst);
            if met.is_turn(&process, now) {
                met.last = Some((process, now));
                return Err(InTurn { is_news: true });
            }
        }
        link.lives_in(self.number());
        met.links.push(Arc::downgrade(link));
        let before = met.process.take().flatten().filter(|_| is_same);
        met.process = Some(process.or(before));
        Ok(())
    }
}

impl Met {
    /// Whether the process that follows on another one shows that several answer in turn.
    fn is_turn(&mut self, process: &Process, now: Instant) -> bool {
        let is_back = process.is_some()
            && self
                .earlier
                .iter()
                .any(|(earlier, at)| earlier == process && now.saturating_duration_since(*at) < TURN_TIME);
        self.turns = if is_back { self.turns + 1 } else { 0 };
        self.earlier.retain(|(earlier, _)| earlier != process);
        if let Some(before) = self.process.take() {
            self.earlier.push_back((before, now));
        }
        if self.earlier.len() > EARLIER_MAX {
            self.earlier.pop_front();
        }
        self.turns >= TURNS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_names_its_process() {
        let info = |text: &str| process(&Reply::Bytes(text.as_bytes().to_vec()));
        assert_eq!(info("# Server\r\nrun_id:ab12\r\ntcp_port:1\r\n").as_deref(), Some("ab12"));
        for nothing in ["", "# Server\r\nredis_version:7\r\n", "run_id:\r\n"] {
            assert_eq!(info(nothing), None, "{nothing:?}");
        }
        assert_eq!(process(&Reply::Nil), None);
    }

    #[derive(Default)]
    struct Connection {
        life: AtomicU32,
        is_cut: std::sync::atomic::AtomicBool,
    }

    impl Lived for Connection {
        fn is_dead(&self) -> bool {
            self.is_cut.load(Ordering::SeqCst)
        }

        fn answers(&self) -> BoxFuture<'_, bool> {
            Box::pin(std::future::ready(!self.is_dead()))
        }

        fn lives_in(&self, life: u32) {
            self.life.store(life, Ordering::SeqCst);
        }

        fn life(&self) -> u32 {
            self.life.load(Ordering::SeqCst)
        }

        fn retire(&self) {
            self.cut();
        }

        fn cut(&self) {
            self.is_cut.store(true, Ordering::SeqCst);
        }
    }

    /// Connections to processes, which are letters or have no name (`?`), each so many seconds after the start; `!` for those that
    /// were refused.
    fn met(lives: &Lives, start: Instant, processes: &[(char, u64)]) -> (String, Vec<Arc<Connection>>) {
        let mut connections = Vec::new();
        let outcome = processes.iter().map(|(process, at_s)| {
            let connection = Arc::new(Connection::default());
            let link: Arc<dyn Lived> = connection.clone();
            let now = start + Duration::from_secs(*at_s);
            let name = (*process != '?').then(|| process.to_string().into());
            let outcome = lives.meet_at(&link, name, now);
            connections.push(connection);
            if outcome.is_ok() { *process } else { '!' }
        });
        (outcome.collect(), connections)
    }

    #[test]
    fn servers_that_answer_in_turn_are_refused_until_one_answers_alone() {
        let start = Instant::now();
        for (turns, wanted) in [
            (&[('a', 0), ('b', 1), ('a', 2), ('b', 3), ('b', 4), ('a', 5)][..], "aba!!!"),
            (&[('a', 0), ('a', 1), ('b', 2), ('b', 3), ('a', 3), ('a', 4), ('b', 5)], "aabbaa!"),
            (&[('a', 0), ('b', 0), ('c', 0), ('a', 0), ('b', 0), ('c', 0)], "abca!!"),
            // One alone is used again, as a new life.
            (
                &[
                    ('a', 0),
                    ('b', 1),
                    ('a', 2),
                    ('b', 3),
                    ('b', 9),
                    ('a', 10),
                    ('a', 19),
                    ('a', 20),
                    ('a', 21),
                ],
                "aba!!!!aa",
            ),
            // Restarts, and an address that goes to another server and back.
            (&[('a', 0), ('b', 0), ('c', 0), ('d', 0), ('e', 0)], "abcde"),
            (&[('a', 0), ('b', 1), ('a', 62), ('b', 123), ('a', 184)], "ababa"),
            (&[('a', 0), ('b', 1), ('a', 2), ('c', 3), ('a', 4)], "abaca"),
        ] {
            let lives = Lives::default();
            let (outcome, connections) = met(&lives, start, turns);
            assert_eq!(outcome, wanted, "{turns:?}");
            let last = outcome.chars().rev().find(|process| *process != '!').unwrap();
            for ((process, connection), at) in outcome.chars().zip(&connections).zip(0..) {
                let is_live = !connection.is_dead() && process != '!';
                assert!(!is_live || process == last, "{turns:?}: connection {at}");
                assert!(!is_live || connection.life.load(Ordering::SeqCst) == lives.number());
            }
        }
    }

    #[test]
    fn a_right_to_ask_that_comes_or_goes_is_no_other_process() {
        for (turns, lives_wanted) in [
            ("a?", "00"),
            ("?a", "00"),
            ("a?a", "000"),
            ("a?b", "001"),
            ("?a?b?a", "000112"),
            ("ab?b", "0111"),
        ] {
            let lives = Lives::default();
            let processes: Vec<(char, u64)> = turns.chars().zip(0..).collect();
            let (outcome, connections) = met(&lives, Instant::now(), &processes);
            assert_eq!(outcome, turns);
            let numbers: String = connections.iter().map(|link| link.life().to_string()).collect();
            assert_eq!(numbers, lives_wanted, "{turns}");
            let last = lives.number();
            assert!(connections.iter().all(|link| link.is_dead() == (link.life() != last)), "{turns}");
        }
        // Nothing shows it once no other connection is left.
        let lives = Lives::default();
        let (_, connections) = met(&lives, Instant::now(), &[('a', 0)]);
        connections[0].cut();
        let (_, connections) = met(&lives, Instant::now(), &[('?', 1)]);
        assert_eq!(connections[0].life(), 1);
    }

    #[test]
    fn a_reign_has_both_numbers() {
        assert_eq!(reign(0, 0), 0);
        assert_eq!((seat(reign(7, 3)), reign(7, 3) as u32), (7, 3));
        assert_ne!(reign(7, 3), reign(3, 7));
    }
}
