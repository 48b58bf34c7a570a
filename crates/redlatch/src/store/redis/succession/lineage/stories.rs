//! Short stories of three servers and some clients, all of them: clients that hear all servers never use different masters, whatever has happened and
//! whatever each remembers, and where one server alone says that it is the master all of them use that one.

use super::super::*;

const SERVERS: usize = 3;
/// The client that can be cut off.
const CUT: usize = 1;
/// Two from the start, and one that comes later.
const CLIENTS_MAX: usize = 3;
/// How many events a story has, unless `REDLATCH_STORY_EVENTS` says how many.
const EVENTS: usize = 4;
/// Longer than anything that is waited for.
const QUIET_LOOKS: u64 = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Master,
    ReplicaOf(usize),
}

#[derive(Debug, Clone)]
struct Server {
    role: Role,
    history: u32,
    before: Option<u32>,
    run: u32,
    is_paused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Promote(usize),
    Follow(usize, usize),
    Pause(usize),
    Resume(usize),
    /// A master is started anew without its data, or with them.
    Empty(usize),
    Restart(usize),
    /// A master that has had no replica for long gives its data a new name.
    Rename(usize),
    /// One of the clients does not hear that server any more.
    Cut(usize),
    Heal,
    /// Nothing happens for longer than clients wait for a master that is away.
    Wait,
    /// A client is made that remembers nothing.
    Connect,
}

/// How a server is away for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    /// It says nothing.
    Silent,
    /// Its machine says that no process listens.
    Refuses,
    /// A replica has been started anew, and does not have its master's data yet.
    Anew,
}

#[derive(Clone)]
struct World {
    servers: Vec<Server>,
    cut: [bool; SERVERS],
    clients: Vec<Memory>,
    began: Instant,
    looks: u64,
    numbers: u32,
}

fn addr(server: usize) -> Addr {
    Addr::Tcp { host: "h".into(), port: server as u16 }
}

impl World {
    /// A master with two replicas, which the clients know. It may have been promoted once, as most are.
    fn new(was_promoted: bool) -> World {
        let role = |at| if at == 0 { Role::Master } else { Role::ReplicaOf(0) };
        let before = |at| (at == 0 && was_promoted).then_some(0);
        let server = |at: usize| Server {
            role: role(at),
            history: 1,
            before: before(at),
            run: at as u32,
            is_paused: false,
        };
        let mut world = World {
            servers: (0..SERVERS).map(server).collect(),
            cut: [false; SERVERS],
            clients: vec![Memory::default(); 2],
            began: Instant::now(),
            looks: 0,
            numbers: 100,
        };
        world.looks(2);
        world
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn replicate(&mut self) {
        for _ in 0..SERVERS {
            for at in 0..SERVERS {
                if let Role::ReplicaOf(master) = self.servers[at].role
                    && !self.servers[master].is_paused
                    && !self.servers[at].is_paused
                {
                    self.servers[at].history = self.servers[master].history;
                    self.servers[at].before = None;
                }
            }
        }
    }

    fn said(&self, hears: impl Fn(usize) -> bool) -> Option<Said> {
        self.said_while(hears, None)
    }

    /// The same while one of the servers is away for a moment.
    fn said_while(&self, hears: impl Fn(usize) -> bool, away: Option<(usize, Away)>) -> Option<Said> {
        let is_away = |at| away.filter(|(server, _)| *server == at).map(|(_, how)| how);
        let mut said = Said { asked: SERVERS, ..Said::default() };
        let heard = (0..SERVERS).filter(|at| hears(*at) && !self.servers[*at].is_paused);
        for at in heard {
            let server = &self.servers[at];
            match is_away(at) {
                Some(Away::Silent) => continue,
                Some(Away::Refuses) => {
                    said.refused.push(addr(at));
                    continue;
                }
                Some(Away::Anew) if server.role != Role::Master => {
                    said.answered += 1;
                    let (history, run) = (Some("anew".into()), Some("anew".into()));
                    said.replicas.push(Replica { addr: addr(at), history, run, is_in_sync: false });
                    continue;
                }
                Some(Away::Anew) | None => {}
            }
            said.answered += 1;
            if server.role != Role::Master {
                said.replicas.push(Replica {
                    addr: addr(at),
                    history: Some(server.history.to_string()),
                    run: Some(server.run.to_string()),
                    is_in_sync: true,
                });
                continue;
            }
            let history = History {
                id: server.history.to_string(),
                before: server.before.map(|before| before.to_string()),
                run: Some(server.run.to_string()),
            };
            let right = Right::Own { history: Some(history) };
            said.claims.push(Claim { addr: addr(at), right, by: addr(at), amid: false });
        }
        (!said.claims.is_empty()).then_some(said)
    }

    /// So many looks of each client, a second apart.
    fn looks(&mut self, count: u64) {
        for _ in 0..count {
            self.replicate();
            self.looks += 1;
            let now = self.began + Duration::from_secs(self.looks);
            for client in 0..self.clients.len() {
                match self.said(|at| client != CUT || !self.cut[at]) {
                    Some(said) => drop(self.clients[client].judge(&said, now)),
                    None => self.clients[client].hear_nobody(),
                }
            }
        }
    }

    /// `false` if that cannot happen here, or changes nothing.
    fn happens(&mut self, event: Event) -> bool {
        let number = self.number();
        let can = match event {
            Event::Promote(at) => {
                let server = &mut self.servers[at];
                let can = server.role != Role::Master && !server.is_paused;
                if can {
                    server.role = Role::Master;
                    server.before = Some(std::mem::replace(&mut server.history, number));
                }
                can
            }
            Event::Follow(at, master) => {
                let is_back = self.servers[master].role == Role::ReplicaOf(at);
                let server = &mut self.servers[at];
                let can =
                    at != master && !is_back && !server.is_paused && server.role != Role::ReplicaOf(master);
                if can {
                    server.role = Role::ReplicaOf(master);
                }
                can
            }
            Event::Pause(at) => !std::mem::replace(&mut self.servers[at].is_paused, true),
            Event::Resume(at) => std::mem::take(&mut self.servers[at].is_paused),
            Event::Empty(at) => {
                let server = &mut self.servers[at];
                let can = server.role == Role::Master && !server.is_paused;
                if can {
                    (server.history, server.before, server.run) = (number, None, number);
                }
                can
            }
            Event::Restart(at) | Event::Rename(at) => {
                let is_copied = self.servers.iter().any(|other| other.role == Role::ReplicaOf(at));
                let server = &mut self.servers[at];
                let is_master = server.role == Role::Master && !server.is_paused;
                let can = is_master && (!is_copied || matches!(event, Event::Restart(_)));
                if can {
                    let before = std::mem::replace(&mut server.history, number);
                    server.before = matches!(event, Event::Restart(_)).then_some(before);
                    if matches!(event, Event::Restart(_)) {
                        server.run = number;
                    }
                }
                can
            }
            Event::Cut(at) => !std::mem::replace(&mut self.cut[at], true),
            Event::Heal => std::mem::take(&mut self.cut) != [false; SERVERS],
            Event::Wait => {
                self.looks(RESET_TIME.as_secs() + 2);
                return true;
            }
            Event::Connect => {
                let can = self.clients.len() < CLIENTS_MAX;
                if can {
                    self.clients.push(Memory::default());
                }
                can
            }
        };
        self.looks(2);
        can
    }

    /// What comes of it when everybody hears everybody again, at each moment from the third look on; also when a server is `away` for a moment.
    fn check(&self, story: &[Event], away: bool) {
        let mut world = self.clone();
        // Replicas of each other grant nothing.
        if world.servers.iter().all(|server| server.role != Role::Master) {
            return;
        }
        world.servers.iter_mut().for_each(|server| server.is_paused = false);
        world.cut = [false; SERVERS];
        world.clients.push(Memory::default());
        world.looks(2);
        for _ in 0..2 {
            let used: Vec<_> = world.clients.iter().map(|client| client.present()).collect();
            let addrs: Vec<_> = used.iter().flatten().map(|claim| &claim.addr).collect();
            assert!(addrs.iter().all(|addr| *addr == addrs[0]), "{story:?}: {used:?}");
            let masters: Vec<_> =
                (0..SERVERS).filter(|at| world.servers[*at].role == Role::Master).map(addr).collect();
            if let [only] = &masters[..] {
                assert!(addrs.len() == used.len() && addrs[0] == only, "{story:?}: {used:?}");
            }
            world.is_deaf_for_a_moment(story);
            if away && masters.len() > 1 {
                world.is_away_for_a_moment(story);
            }
            world.looks(QUIET_LOOKS);
        }
    }

    /// One server is away for as long as each client takes one look or two.
    fn is_away_for_a_moment(&self, story: &[Event]) {
        for (at, how, looks) in (0..SERVERS).flat_map(|at| {
            [Away::Silent, Away::Refuses, Away::Anew]
                .into_iter()
                .flat_map(move |how| [(at, how, 1), (at, how, 2)])
        }) {
            let mut world = self.clone();
            for _ in 0..looks {
                world.looks += 1;
                let now = world.began + Duration::from_secs(world.looks);
                for client in 0..world.clients.len() {
                    match self.said_while(|_| true, Some((at, how))) {
                        Some(said) => drop(world.clients[client].judge(&said, now)),
                        None => world.clients[client].hear_nobody(),
                    }
                    world.agrees(story, &(at, how));
                }
            }
            for _ in 0..3 {
                world.looks(1);
                world.agrees(story, &(at, how));
            }
        }
    }

    /// No two clients use different servers.
    fn agrees(&self, story: &[Event], then: &impl std::fmt::Debug) {
        let used: Vec<_> = self.clients.iter().filter_map(|client| client.present()).collect();
        assert!(used.iter().all(|claim| claim.addr == used[0].addr), "{story:?}, {then:?}: {used:?}");
    }

    /// One client does not hear one server in one look.
    fn is_deaf_for_a_moment(&self, story: &[Event]) {
        for (client, deaf_to) in
            (0..self.clients.len()).flat_map(|client| (0..SERVERS).map(move |at| (client, at)))
        {
            let Some(said) = self.said(|at| at != deaf_to) else { continue };
            let mut world = self.clone();
            let now = world.began + Duration::from_secs(world.looks) + Duration::from_millis(500);
            world.clients[client].judge(&said, now);
            world.agrees(story, &(client, "deaf to", deaf_to));
        }
    }
}

fn events() -> Vec<Event> {
    let mut events = vec![Event::Wait, Event::Heal, Event::Connect];
    for at in 0..SERVERS {
        events.extend([
            Event::Promote(at),
            Event::Pause(at),
            Event::Resume(at),
            Event::Empty(at),
            Event::Restart(at),
            Event::Rename(at),
            Event::Cut(at),
        ]);
        events.extend((0..SERVERS).filter(|master| *master != at).map(|master| Event::Follow(at, master)));
    }
    events
}

/// Clients went back to a master that had been superseded when its successor had been away for ten seconds, and stayed there when it was back, for good; others
/// had never left it, and new ones went to it. And they went to different ones when a successor was started anew, or named its parent no more.
#[test]
fn clients_that_hear_all_servers_use_one_master_or_none_whatever_happened() {
    all_stories(false);
}

/// They went back to the former master when the present one was demoted and promoted again, or took another's place in between.
#[test]
fn clients_that_hear_all_servers_use_one_master_or_none_though_the_first_had_been_promoted() {
    all_stories(true);
}

fn all_stories(was_promoted: bool) {
    let events_max = std::env::var("REDLATCH_STORY_EVENTS").map_or(EVENTS, |count| count.parse().unwrap());
    let mut layer = vec![(Vec::new(), World::new(was_promoted))];
    let mut stories = 0;
    for _ in 0..events_max {
        let mut longer = Vec::new();
        for (story, world) in &layer {
            for event in events() {
                let mut world: World = world.clone();
                if story.last() == Some(&event) || !world.happens(event) {
                    continue;
                }
                let story: Vec<Event> = story.iter().copied().chain([event]).collect();
                // The longest are too many for that; the random ones below are not.
                world.check(&story, story.len() < events_max);
                stories += 1;
                longer.push((story, world));
            }
        }
        layer = longer;
    }
    assert!(stories > 20_000, "{stories}");
}

/// How many long stories are told, unless `REDLATCH_STORY_COUNT` says how many, and how many events they have at most.
const LONG_STORIES: u64 = 4_000;
const LONG_EVENTS: u64 = 16;

/// After more events than can be tried out one by one clients stayed at different masters, because each remembered another part of the story.
#[test]
fn clients_that_hear_all_servers_use_one_master_or_none_after_long_stories_too() {
    let count = std::env::var("REDLATCH_STORY_COUNT").map_or(LONG_STORIES, |count| count.parse().unwrap());
    let events = events();
    for seed in 1..=count {
        // A xorshift generator, which each seed sets going elsewhere.
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let mut world = World::new(below(2) == 0);
        let mut story = Vec::new();
        let count = 2 + below(LONG_EVENTS - 1);
        for at in 1..=count {
            let event = events[below(events.len() as u64) as usize];
            if world.happens(event) {
                story.push(event);
                world.check(&story, at == count);
            }
        }
    }
}
