//! Servers of which each may be a master or a replica, and what can happen to them.

use super::super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    ReplicaOf(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) role: Role,
    pub(super) history: u32,
    before: Option<u32>,
    run: u32,
    pub(super) is_paused: bool,
    /// A replica that does not reach its master.
    pub(super) is_apart: bool,
}

/// What happens to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Promote(usize),
    Follow(usize, usize),
    Pause(usize),
    Resume(usize),
    /// A master is started anew without its data, or with them.
    Empty(usize),
    Restart(usize),
    /// A master that has had no replica for long gives its data a new name.
    Rename(usize),
    /// A replica does not reach its master, or does again.
    Part(usize),
    Meet(usize),
}

/// How a server is away for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Away {
    /// It says nothing.
    Silent,
    /// Its machine says that no process listens.
    Refuses,
    /// A replica has been started anew, and does not have its master's data yet.
    Anew,
}

#[derive(Debug, Clone)]
pub(super) struct Servers {
    pub(super) all: Vec<Server>,
    numbers: u32,
}

/// The name of a server, and of one that has several.
pub(super) fn addr(server: usize) -> Addr {
    Addr::Tcp { host: "h".into(), port: server as u16 }
}

impl Servers {
    /// A master and its replicas. It may have been promoted once, as most are.
    pub(super) fn new(count: usize, was_promoted: bool) -> Servers {
        let role = |at| if at == 0 { Role::Master } else { Role::ReplicaOf(0) };
        let before = |at| (at == 0 && was_promoted).then_some(0);
        let server = |at: usize| Server {
            role: role(at),
            history: 1,
            before: before(at),
            run: at as u32,
            is_paused: false,
            is_apart: false,
        };
        Servers { all: (0..count).map(server).collect(), numbers: 100 }
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = usize> {
        (0..self.all.len()).filter(|at| self.all[*at].role == Role::Master)
    }

    pub(super) fn replicate(&mut self) {
        for _ in 0..self.all.len() {
            for at in 0..self.all.len() {
                if let Role::ReplicaOf(master) = self.all[at].role
                    && !self.all[master].is_paused
                    && !self.all[at].is_paused
                    && !self.all[at].is_apart
                {
                    self.all[at].history = self.all[master].history;
                    self.all[at].before = None;
                }
            }
        }
    }

    /// Whether a replica copies a master, maybe by way of others. Replicas of each other copy nothing.
    fn has_master(&self, at: usize) -> bool {
        let copied = |at: &usize| match self.all[*at].role {
            Role::Master => None,
            Role::ReplicaOf(master) => Some(master),
        };
        let chain = std::iter::successors(Some(at), copied);
        chain.take(self.all.len()).any(|at| self.all[at].role == Role::Master)
    }

    /// `false` if that cannot happen here, or changes nothing.
    pub(super) fn happens(&mut self, change: Change) -> bool {
        self.numbers += 1;
        let number = self.numbers;
        match change {
            Change::Promote(at) => {
                let server = &mut self.all[at];
                let can = server.role != Role::Master && !server.is_paused;
                if can {
                    server.role = Role::Master;
                    server.before = Some(std::mem::replace(&mut server.history, number));
                }
                can
            }
            Change::Follow(at, master) => {
                let is_back = self.all[master].role == Role::ReplicaOf(at);
                let server = &mut self.all[at];
                let can =
                    at != master && !is_back && !server.is_paused && server.role != Role::ReplicaOf(master);
                if can {
                    server.role = Role::ReplicaOf(master);
                }
                can
            }
            Change::Pause(at) => !std::mem::replace(&mut self.all[at].is_paused, true),
            Change::Resume(at) => std::mem::take(&mut self.all[at].is_paused),
            Change::Empty(at) => {
                let server = &mut self.all[at];
                let can = server.role == Role::Master && !server.is_paused;
                if can {
                    (server.history, server.before, server.run) = (number, None, number);
                }
                can
            }
            Change::Restart(at) | Change::Rename(at) => {
                let is_copied = self.all.iter().any(|other| other.role == Role::ReplicaOf(at));
                let server = &mut self.all[at];
                let is_master = server.role == Role::Master && !server.is_paused;
                let can = is_master && (!is_copied || matches!(change, Change::Restart(_)));
                if can {
                    let before = std::mem::replace(&mut server.history, number);
                    server.before = matches!(change, Change::Restart(_)).then_some(before);
                    if matches!(change, Change::Restart(_)) {
                        server.run = number;
                    }
                }
                can
            }
            Change::Part(at) => {
                let server = &mut self.all[at];
                server.role != Role::Master && !std::mem::replace(&mut server.is_apart, true)
            }
            Change::Meet(at) => std::mem::take(&mut self.all[at].is_apart),
        }
    }

    /// What the servers with these names say. `how` tells which server a name leads to, and how that is away; `None` leads nowhere.
    pub(super) fn said(
        &self,
        names: &[(Addr, Option<usize>)],
        how: impl Fn(usize) -> Option<Away>,
    ) -> Option<Said> {
        let mut said = Said { asked: names.len(), ..Said::default() };
        for (name, at) in names {
            let Some(at) = *at else {
                said.refused.push(name.clone());
                continue;
            };
            let server = &self.all[at];
            let is_anew = match how(at) {
                _ if server.is_paused => continue,
                Some(Away::Silent) => continue,
                Some(Away::Refuses) => {
                    said.refused.push(name.clone());
                    continue;
                }
                how => how == Some(Away::Anew),
            };
            said.answered += 1;
            if server.role != Role::Master {
                let anew = |told: u32| Some(if is_anew { format!("anew {at}") } else { told.to_string() });
                said.replicas.push(Replica {
                    addr: name.clone(),
                    history: anew(server.history),
                    run: anew(server.run),
                    is_in_sync: !is_anew && !server.is_apart && self.has_master(at),
                });
                continue;
            }
            let history = History {
                id: server.history.to_string(),
                before: server.before.map(|before| before.to_string()),
                run: Some(server.run.to_string()),
            };
            let right = Right::Own { history: Some(history) };
            said.claims.push(Claim { addr: name.clone(), right, by: Voice::at(name.clone()), amid: false });
        }
        (!said.claims.is_empty()).then_some(said)
    }
}
