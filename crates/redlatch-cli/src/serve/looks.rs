//! Looks at the server, shared by all who read pages: however many there are, it is asked once in an interval.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redlatch::Client;
use tokio::sync::Mutex;

use crate::{
    escape,
    snapshot::{
        Scope, Snapshot,
        alarms::{Alarm, alarms},
    },
};

/// One look.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) snapshot: Snapshot,
    pub(super) alarms: Vec<Alarm>,
    /// How long it took.
    pub(super) took: Duration,
    /// When it began.
    pub(super) at: Instant,
}

/// What is known: the last look that succeeded, and why a later one failed.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) look: Option<Arc<Look>>,
    /// Safe to print.
    pub(super) trouble: Option<String>,
    looked_at: Option<Instant>,
}

impl Known {
    /// How old what is shown is.
    pub(super) fn age(&self) -> Duration {
        self.look.as_ref().map_or(Duration::ZERO, |look| look.at.elapsed())
    }
}

/// Looks when a page is asked for, at most once in an interval.
#[derive(Debug)]
pub(super) struct Looks {
    client: Client,
    pub(super) scope: Scope,
    pub(super) interval: Duration,
    pub(super) lease: Duration,
    known: Mutex<Known>,
}

impl Looks {
    pub(super) fn new(client: Client, scope: Scope, interval: Duration, lease: Duration) -> Self {
        Looks { client, scope, interval, lease, known: Mutex::default() }
    }

    /// The client that looks.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Something was changed: what is known is out of date.
    pub(super) async fn look_again(&self) {
        self.known.lock().await.looked_at = None;
    }

    /// What is known, no older than the interval. Those who ask meanwhile wait for the same look.
    pub(super) async fn known(&self) -> Known {
        let mut known = self.known.lock().await;
        if known.looked_at.is_none_or(|at| at.elapsed() >= self.interval) {
            let at = Instant::now();
            match Snapshot::take(&self.client, &self.scope).await {
                Ok(snapshot) => {
                    let alarms = alarms(&snapshot, self.lease);
                    known.look = Some(Arc::new(Look { snapshot, alarms, took: at.elapsed(), at }));
                    known.trouble = None;
                }
                Err(error) => known.trouble = Some(escape::text(&error.to_string()).to_string()),
            }
            known.looked_at = Some(Instant::now());
        }
        known.clone()
    }
}
