//! What is to be seen of the locks at one moment: what `ls` and `top` show, so that they cannot disagree.

pub(crate) mod alarms;
pub(crate) mod blocking;
pub(crate) mod detail;
pub(crate) mod lock_row;
pub(crate) mod order;

use redlatch::{Client, ClientRecord, LockKind, LockState, Why};

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
    /// There are more names than were looked at.
    pub(crate) is_cut: bool,
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
        Ok(Self::of(states, clients, scope.limit))
    }

    /// The same of what was looked at already.
    pub(crate) fn of(states: Vec<LockState>, clients: Vec<ClientRecord>, limit: usize) -> Self {
        let known = Holders::among(&clients, &states);
        let row = |state: &LockState| {
            let mut row = LockRow::from(state);
            row.name_holders(state, &known);
            row
        };
        let rows: Vec<LockRow> = states.iter().map(row).collect();
        let is_cut = rows.len() >= limit;
        Snapshot { rows, why: Why::among(states, &clients), clients, is_cut }
    }
}
