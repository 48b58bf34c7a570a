//! What is to be seen of the locks at one moment: what `ls` and `top` show, so that they cannot disagree.

pub(crate) mod alarms;
pub(crate) mod blocking;
pub(crate) mod detail;
pub(crate) mod lock_row;
pub(crate) mod order;

use redlatch::{Client, ClientRecord, Finding, LockKind, LockName, LockState, LostHold, Why};

use redlatch_engine::glob_matches;

use self::lock_row::LockRow;
use crate::who::Holders;

/// How many clients are asked who they are.
const CLIENTS_MAX: usize = 1_000;

/// Which names are looked at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    /// Of these kinds; the usual ones if none is named.
    pub(crate) kinds: Vec<LockKind>,
    /// That match this pattern.
    pub(crate) glob: Option<String>,
    /// At most so many.
    pub(crate) limit: usize,
}

/// The names and the clients at one moment. The server is asked for one after the other, so two lines may be some milliseconds apart.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The names, sorted.
    pub(crate) rows: Vec<LockRow>,
    /// The clients that tell of themselves.
    pub(crate) clients: Vec<ClientRecord>,
    /// Holders, waiters, and circles of waits.
    pub(crate) why: Why,
    /// What is wrong with the servers.
    pub(crate) server: Vec<Finding>,
    /// There are more names than were looked at.
    pub(crate) is_cut: bool,
    covered: Covered,
}

/// The names that a look was for.
#[derive(Debug)]
enum Covered {
    All,
    Matching(String),
    These(Vec<LockName>),
}

impl Covered {
    fn has(&self, name: &LockName) -> bool {
        match self {
            Covered::All => true,
            Covered::Matching(glob) => glob_matches(glob.as_bytes(), name.as_bytes()),
            Covered::These(names) => names.contains(name),
        }
    }
}

impl Snapshot {
    /// Looks at everything in the scope.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses. An account that may not see the clients sees none.
    pub(crate) async fn take(client: &Client, scope: &Scope) -> Result<Self, redlatch::Error> {
        let glob = scope.glob.as_deref();
        let states = if scope.kinds.is_empty() {
            client.list(glob, scope.limit).await?
        } else {
            client.list_kinds(&scope.kinds, glob, scope.limit).await?
        };
        let clients = client.clients(CLIENTS_MAX).await.unwrap_or_default();
        let known = Holders::among(&clients, &states);
        let row = |state: &LockState| {
            let mut row = LockRow::from(state);
            row.name_holders(state, &known);
            row
        };
        let rows: Vec<LockRow> = states.iter().map(row).collect();
        let is_cut = rows.len() >= scope.limit;
        let why = Why::among(states, &clients);
        let server = client.server_trouble().await.unwrap_or_default();
        let covered = scope.glob.clone().map_or(Covered::All, Covered::Matching);
        Ok(Snapshot { rows, why, clients, server, is_cut, covered })
    }

    /// What holds this name up, without rows.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub(crate) async fn about(client: &Client, name: &LockName) -> Result<Self, redlatch::Error> {
        let why = client.why(name).await?;
        let clients = client.clients(CLIENTS_MAX).await.unwrap_or_default();
        let server = client.server_trouble().await.unwrap_or_default();
        let is_cut = why.is_cut;
        let covered = Covered::These(why.names.iter().map(|blocked| blocked.state.name.clone()).collect());
        Ok(Snapshot { rows: Vec::new(), why, clients, server, is_cut, covered })
    }

    /// What clients have lost of the names that were looked at.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (&ClientRecord, &LostHold)> {
        let all = self.clients.iter().flat_map(|client| client.losses.iter().map(move |lost| (client, lost)));
        all.filter(|(_, lost)| self.covered.has(&lost.name))
    }
}
