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
    process_number: AtomicU32,
    is_cut: std::sync::atomic::AtomicBool,
}

impl ProcessLink for Connection {
    fn is_dead(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    fn answers(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(!self.is_dead()))
    }

    fn belongs_to(&self, process_number: u32) {
        self.process_number.store(process_number, Ordering::SeqCst);
    }

    fn process_number(&self) -> u32 {
        self.process_number.load(Ordering::SeqCst)
    }

    fn retire(&self) {
        self.cut();
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }
}

/// Connections to processes, which are letters or have no name (`?`), each so many seconds after the start; `!` for those that were
/// refused.
fn met(known: &ServerProcesses, start: Instant, processes: &[(char, u64)]) -> (String, Vec<Arc<Connection>>) {
    let mut connections = Vec::new();
    let outcome = processes.iter().map(|(process, at_s)| {
        let connection = Arc::new(Connection::default());
        let link: Arc<dyn ProcessLink> = connection.clone();
        let now = start + Duration::from_secs(*at_s);
        let name = (*process != '?').then(|| process.to_string().into());
        let outcome = known.meet_at(&link, name, now, now);
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
        // One alone is used again, as a new process.
        (
            &[('a', 0), ('b', 1), ('a', 2), ('b', 3), ('b', 9), ('a', 10), ('a', 19), ('a', 20), ('a', 21)],
            "aba!!!!aa",
        ),
        // Restarts, and an address that goes to another server and back.
        (&[('a', 0), ('b', 0), ('c', 0), ('d', 0), ('e', 0)], "abcde"),
        (&[('a', 0), ('b', 1), ('a', 62), ('b', 123), ('a', 184)], "ababa"),
        (&[('a', 0), ('b', 1), ('a', 2), ('c', 3), ('a', 4)], "abaca"),
    ] {
        let known = ServerProcesses::default();
        let (outcome, connections) = met(&known, start, turns);
        assert_eq!(outcome, wanted, "{turns:?}");
        let last = outcome.chars().rev().find(|process| *process != '!').unwrap();
        for ((process, connection), at) in outcome.chars().zip(&connections).zip(0..) {
            let is_live = !connection.is_dead() && process != '!';
            assert!(!is_live || process == last, "{turns:?}: connection {at}");
            assert!(!is_live || connection.process_number.load(Ordering::SeqCst) == known.number());
        }
    }
}

/// The old process counted as one that had come back, and the new one then as another, so a server that was started anew once was taken
/// for two that answer in turn.
#[test]
fn a_connection_that_is_met_when_its_process_has_gone_is_refused_and_counts_for_nothing() {
    let start = Instant::now();
    let known = ServerProcesses::default();
    let meet = |process: &str, asked_s: u64, met_s: u64| {
        let connection = Arc::new(Connection::default());
        let link: Arc<dyn ProcessLink> = connection.clone();
        let at = |s| start + Duration::from_secs(s);
        (known.meet_at(&link, Some(process.into()), at(asked_s), at(met_s)), connection)
    };
    assert!(meet("a", 0, 0).0.is_ok());
    let (outcome, present) = meet("b", 2, 3);
    assert!(outcome.is_ok());
    let number = known.number();
    // It was asked before the other one was met, by a runtime that was busy in between.
    for _ in 0..3 {
        assert_eq!(meet("a", 1, 4).0, Err(Unused::Late));
        assert_eq!((known.number(), present.is_dead()), (number, false));
        assert!(meet("b", 4, 4).0.is_ok());
    }
    // One that is asked after that is back.
    assert!(meet("a", 5, 5).0.is_ok());
    assert_eq!((known.number(), present.is_dead()), (number + 1, true));
}

/// Those who wait on a connection are woken as it is cut, and what they wake may connect here and now.
#[test]
fn connections_are_cut_without_the_mutex_and_before_the_next_process_counts() {
    struct Looks {
        known: Arc<ServerProcesses>,
        seen: Mutex<Option<(bool, u32)>>,
    }
    impl ProcessLink for Looks {
        fn is_dead(&self) -> bool {
            self.seen.lock().unwrap().is_some()
        }
        fn answers(&self) -> BoxFuture<'_, bool> {
            Box::pin(std::future::ready(true))
        }
        fn belongs_to(&self, _: u32) {}
        fn process_number(&self) -> u32 {
            0
        }
        fn retire(&self) {}
        fn cut(&self) {
            *self.seen.lock().unwrap() = Some((self.known.met.try_lock().is_ok(), self.known.number()));
        }
    }
    let known = Arc::new(ServerProcesses::default());
    let looks = Arc::new(Looks { known: known.clone(), seen: Mutex::default() });
    let link: Arc<dyn ProcessLink> = looks.clone();
    let process = |name: &str| Some(name.into());
    known.admit_link(&link, process("a"), Instant::now()).unwrap();
    let next: Arc<dyn ProcessLink> = Arc::new(Connection::default());
    known.admit_link(&next, process("b"), Instant::now()).unwrap();
    assert_eq!((*looks.seen.lock().unwrap(), known.number()), (Some((true, 0)), 1));
}

#[test]
fn a_right_to_ask_that_comes_or_goes_is_no_other_process() {
    for (turns, lives_wanted) in
        [("a?", "00"), ("?a", "00"), ("a?a", "000"), ("a?b", "001"), ("?a?b?a", "000112"), ("ab?b", "0111")]
    {
        let known = ServerProcesses::default();
        let processes: Vec<(char, u64)> = turns.chars().zip(0..).collect();
        let (outcome, connections) = met(&known, Instant::now(), &processes);
        assert_eq!(outcome, turns);
        let numbers: String = connections.iter().map(|link| link.process_number().to_string()).collect();
        assert_eq!(numbers, lives_wanted, "{turns}");
        let last = known.number();
        assert!(connections.iter().all(|link| link.is_dead() == (link.process_number() != last)), "{turns}");
    }
    // Nothing shows it once no other connection is left.
    let known = ServerProcesses::default();
    let (_, connections) = met(&known, Instant::now(), &[('a', 0)]);
    connections[0].cut();
    let (_, connections) = met(&known, Instant::now(), &[('?', 1)]);
    assert_eq!(connections[0].process_number(), 1);
}

#[test]
fn a_reign_has_both_numbers() {
    assert_eq!(incarnation(0, 0), 0);
    assert_eq!((mastership(incarnation(7, 3)), incarnation(7, 3) as u32), (7, 3));
    assert_ne!(incarnation(7, 3), incarnation(3, 7));
}
