//! Long stories of more servers and clients, told at random: each client looks at moments of its own, so each has heard another part, and some know a
//! server by a name that others do not have. Those that hear all servers leave for one master, or none, within seconds, whatever happens meanwhile.

use super::{
    super::*,
    world::{Away, Change, Role, Servers, addr},
};

const STEP: Duration = Duration::from_millis(100);
/// How many stories are told, unless `REDLATCH_CROWD_SEEDS` names the seeds.
const SEEDS: std::ops::Range<u64> = 1..1_500;
/// Two looks that cannot tell, the two that an answer is late, and the moment that one takes.
const SPLIT_MAX: Duration = Duration::from_secs(4);
/// Between two looks, and sometimes one more.
const LOOK_STEPS: u64 = 10;
/// For how long things happen, and then none do.
const BUSY_STEPS: [u64; 3] = [60, 150, 600];
const QUIET_STEPS: u64 = 450;
const CLIENTS_MAX: usize = 5;

const AWAY: [Away; 3] = [Away::Silent, Away::Refuses, Away::Anew];

/// A xorshift generator, which each seed sets going elsewhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct Client {
    memory: Memory,
    names: Vec<(Addr, Option<usize>)>,
    /// When it looks next.
    due: u64,
    /// The server that it does not hear, and until when.
    deaf_to: Option<(usize, u64)>,
}

struct Crowd {
    servers: Servers,
    /// A step ago: in one look some servers have said what they were then.
    before: Servers,
    away: Vec<Option<(Away, u64)>>,
    /// A server that goes away again and again, and how often.
    flaps: Option<(usize, Away, u64)>,
    /// So many steps are between two events, as a rule.
    gap: u64,
    clients: Vec<Client>,
    /// Since when each pair of clients has used two masters.
    splits: Vec<(usize, usize, u64)>,
    dice: Dice,
    began: Instant,
    step: u64,
    story: Vec<(u64, String)>,
}

impl Crowd {
    fn new(seed: u64) -> Crowd {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let count = [2, 3, 3, 4, 5, 7][dice.below(6) as usize];
        let servers = Servers::new(count, dice.once_in(2));
        let away = AWAY[dice.below(3) as usize];
        let flaps = dice.once_in(3).then(|| (dice.below(count as u64) as usize, away, 8 + dice.below(14)));
        let mut crowd = Crowd {
            before: servers.clone(),
            away: vec![None; count],
            flaps,
            gap: [3, 8, 15, 30][dice.below(4) as usize],
            servers,
            clients: Vec::new(),
            splits: Vec::new(),
            dice,
            began: Instant::now(),
            step: 0,
            story: Vec::new(),
        };
        crowd.connects();
        crowd.connects();
        crowd.steps(3 * LOOK_STEPS, false);
        crowd
    }

    fn connects(&mut self) {
        let count = self.servers.all.len();
        let mut names: Vec<_> = (0..count).map(|at| (addr(at), Some(at))).collect();
        if self.dice.once_in(4) {
            // One more name of one server, or one that leads nowhere.
            let leads = self.dice.once_in(2).then_some(self.dice.below(count as u64) as usize);
            let place = self.dice.below(count as u64 + 1) as usize;
            names.insert(place, (addr(100), leads));
        }
        let client = Client {
            memory: Memory::default(),
            names,
            due: self.step + self.dice.below(LOOK_STEPS),
            deaf_to: None,
        };
        self.tells(format!("client {} with {:?}", self.clients.len(), client.names));
        self.clients.push(client);
    }

    fn tells(&mut self, what: String) {
        self.story.push((self.step, what));
    }

    fn steps(&mut self, count: u64, is_busy: bool) {
        for _ in 0..count {
            self.before = self.servers.clone();
            if is_busy {
                self.happens();
            }
            self.servers.replicate();
            self.step += 1;
            for away in &mut self.away {
                away.take_if(|(_, until)| *until <= self.step);
            }
            if let Some((at, how, each)) =
                self.flaps.filter(|(_, _, each)| is_busy && self.step.is_multiple_of(*each))
            {
                self.away[at].get_or_insert((how, self.step + 1 + self.dice.below(each)));
            }
            for client in 0..self.clients.len() {
                self.clients[client].deaf_to.take_if(|(_, until)| *until <= self.step);
                if self.step >= self.clients[client].due {
                    self.clients[client].due = self.step + LOOK_STEPS + self.dice.below(2);
                    self.looks(client);
                }
            }
            self.judges();
        }
    }

    fn looks(&mut self, client: usize) {
        let mut seen = self.servers.clone();
        for at in 0..seen.all.len() {
            if self.dice.once_in(2) {
                seen.all[at] = self.before.all[at].clone();
            }
        }
        let now = self.began + STEP * self.step as u32;
        let (away, client) = (&self.away, &mut self.clients[client]);
        let how = |at: usize| match away[at] {
            _ if client.deaf_to.is_some_and(|(deaf_to, _)| deaf_to == at) => Some(Away::Silent),
            how => how.map(|(how, _)| how),
        };
        match seen.said(&client.names, how) {
            Some(said) => drop(client.memory.judge(&said, now)),
            None => client.memory.hear_nobody(),
        }
    }

    fn happens(&mut self) {
        let count = self.servers.all.len() as u64;
        let (at, other) = (self.dice.below(count) as usize, self.dice.below(count) as usize);
        // Most stories have long pauses, in which clients forget.
        if self.dice.once_in(200) {
            self.story.push((self.step, "pause".into()));
            self.steps(130, false);
            // Only a master that has had no replica for an hour does that.
            let renamed = (0..self.servers.all.len()).find(|at| self.servers.happens(Change::Rename(*at)));
            renamed.inspect(|at| self.tells(format!("{:?}", Change::Rename(*at))));
        }
        if !self.dice.once_in(self.gap) {
            return;
        }
        let until = self.step + 1 + self.dice.below(3 * LOOK_STEPS);
        let masters: Vec<_> = self.servers.masters().collect();
        let master =
            if masters.is_empty() { other } else { masters[self.dice.below(masters.len() as u64) as usize] };
        let change = match self.dice.below(24) {
            0..=3 => Change::Promote(at),
            4..=8 => Change::Follow(at, master),
            9 => Change::Follow(at, other),
            10 => Change::Follow(master, other),
            11 => Change::Pause(at),
            12 | 13 => Change::Resume(at),
            14 => Change::Empty(master),
            15 | 16 => Change::Restart(master),
            17 | 18 => Change::Part(at),
            19 => Change::Meet(at),
            20 => {
                let client = self.dice.below(self.clients.len() as u64) as usize;
                self.clients[client].deaf_to = Some((at, until));
                return self.tells(format!("client {client} is deaf to {at} until {until}"));
            }
            21 | 22 => {
                self.away[at] = Some((AWAY[self.dice.below(3) as usize], until));
                return self.tells(format!("{at} is away: {:?}", self.away[at]));
            }
            _ if self.clients.len() < CLIENTS_MAX => return self.connects(),
            _ => return,
        };
        if self.servers.happens(change) {
            self.tells(format!("{change:?}"));
        }
    }

    /// The master that a client uses, as far as it is one that grants.
    fn used(&self, client: usize) -> Option<usize> {
        let client = &self.clients[client];
        let present = client.memory.present()?;
        let at = client.names.iter().find(|(name, _)| *name == present.addr)?.1?;
        let server = &self.servers.all[at];
        let grants = server.role == Role::Master && !server.is_paused && self.away[at].is_none();
        grants.then_some(at)
    }

    fn judges(&mut self) {
        for one in 0..self.clients.len() {
            for other in 0..one {
                let is_split = self.clients[one].deaf_to.is_none()
                    && self.clients[other].deaf_to.is_none()
                    && matches!((self.used(one), self.used(other)), (Some(one), Some(other)) if one != other);
                let since = self.splits.iter().position(|(a, b, _)| (*a, *b) == (one, other));
                match since {
                    Some(at) if !is_split => drop(self.splits.swap_remove(at)),
                    None if is_split => self.splits.push((one, other, self.step)),
                    Some(at) => {
                        let lasts = STEP * (self.step - self.splits[at].2) as u32;
                        assert!(lasts <= SPLIT_MAX, "clients {one} and {other}:\n{self}");
                    }
                    None => {}
                }
            }
        }
    }

    /// Everybody hears everybody, and nothing happens.
    fn ends(&mut self) {
        self.tells("quiet".into());
        for server in &mut self.servers.all {
            (server.is_paused, server.is_apart) = (false, false);
        }
        self.away.fill(None);
        self.clients.iter_mut().for_each(|client| client.deaf_to = None);
        self.connects();
        self.steps(QUIET_STEPS, false);
        let used: Vec<_> = (0..self.clients.len()).map(|client| self.used(client)).collect();
        let masters: Vec<_> = self.servers.masters().collect();
        if let [only] = masters[..] {
            assert!(used.iter().all(|used| *used == Some(only)), "{used:?}\n{self}");
        }
    }
}

impl std::fmt::Display for Crowd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (step, what) in &self.story {
            writeln!(f, "{:6.1} s  {what}", *step as f64 / 10.0)?;
        }
        writeln!(f, "{:6.1} s", self.step as f64 / 10.0)?;
        for (at, server) in self.servers.all.iter().enumerate() {
            writeln!(f, "server {at}: {server:?}, {:?}", self.away[at])?;
        }
        for (at, client) in self.clients.iter().enumerate() {
            writeln!(f, "client {at}: {:?}", client.memory.present().map(|claim| claim.addr.to_string()))?;
        }
        Ok(())
    }
}

/// Clients stayed at different masters that had heard different parts of a story: a server that was the master for less than a second, one that came and
/// went in step with their looks, one more name of a server.
#[test]
fn clients_that_look_at_moments_of_their_own_use_one_master_or_none() {
    let seeds = std::env::var("REDLATCH_CROWD_SEEDS").map_or(SEEDS, |seeds| {
        let (first, end) = seeds.split_once('-').unwrap();
        first.parse().unwrap()..end.parse::<u64>().unwrap() + 1
    });
    for seed in seeds {
        let mut crowd = Crowd::new(seed);
        crowd.tells(format!("seed {seed}, flaps {:?}", crowd.flaps));
        let busy = BUSY_STEPS[crowd.dice.below(3) as usize];
        crowd.steps(busy, true);
        crowd.ends();
    }
}
