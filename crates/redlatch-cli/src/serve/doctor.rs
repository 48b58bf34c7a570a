//! What the settings of the server mean for locks, looked at when its page is asked for.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use redlatch::Client;
use tokio::sync::Mutex;

use super::looks::Known;
use crate::{
    checks::{self, Check},
    config::Settings,
    escape,
    recovery::{self, Recovery},
};

/// How old what is shown may be. Settings change seldom, and a look at them makes connections.
const DIAGNOSIS_AGE_MAX: Duration = Duration::from_secs(10);

/// What was found, or why nothing was. Safe to print.
pub(super) type Diagnosis = Result<Vec<Check>, String>;

/// Looks when the page is asked for, at most once in [`DIAGNOSIS_AGE_MAX`].
pub(crate) struct Doctor {
    /// What does not change while this process runs.
    place: Option<Check>,
    /// Where a local engine is.
    socket: Option<PathBuf>,
    last: Mutex<Option<(Instant, Diagnosis)>>,
}

impl Doctor {
    pub(crate) fn new(settings: &Settings) -> Self {
        Doctor { place: checks::place(settings), socket: recovery::socket(settings), last: Mutex::default() }
    }

    /// The checks of the server, and what is odd about the names that were looked at. No key is written. Those who ask meanwhile wait for the same look.
    pub(super) async fn diagnosis(&self, client: &Client, known: &Known) -> Diagnosis {
        let mut last = self.last.lock().await;
        if let Some((at, diagnosis)) = &*last
            && at.elapsed() < DIAGNOSIS_AGE_MAX
        {
            return diagnosis.clone();
        }
        let diagnosis = self.look(client, known).await;
        *last = Some((Instant::now(), diagnosis.clone()));
        diagnosis
    }

    async fn look(&self, client: &Client, known: &Known) -> Diagnosis {
        let findings = client.diagnose_servers().await;
        let findings = findings.map_err(|error| escape::text(&error.to_string()).to_string())?;
        let mut checks: Vec<Check> = findings.into_iter().map(Check::from).collect();
        checks.extend(self.place.clone());
        if let Some(socket) = self.socket.clone() {
            // The engine is asked over a connection of its own, and may stand still.
            let recovery = tokio::task::spawn_blocking(move || Recovery::at(&socket)).await;
            checks.extend(recovery.ok().flatten().map(Check::from));
        }
        if let Some(look) = &known.look {
            let states = look.snapshot.why.names.iter().map(|blocked| blocked.state.clone());
            let found = client.diagnose_found(&states.collect::<Vec<_>>());
            checks.extend(found.into_iter().map(Check::from));
        }
        Ok(checks)
    }
}
