//! The only way to the engine, and the only place where its time goes on.
//!
//! A daemon may stand still for longer than a hold lasts: it is stopped, or the machine is suspended. What the command of a dead run
//! goes on with must not run out by that. So time stands still in the engine until the gate has looked. What has to be kept is
//! renewed as of the time that the engine saw last, because it was there then.
//!
//! Another daemon may have taken its place meanwhile. So after a pause the gate asks for the claim before anybody is served.

use std::cell::{Cell, RefCell, RefMut};
use std::io;

use super::claim::Claim;
use super::lifelines::{Lifelines, Undertaker, perform, traces_from};
use crate::engine::Engine;
use crate::trace::Trace;

/// How often what is kept is renewed. The overseer asks for the engine each second at least.
const KEEP_INTERVAL_US: u64 = 1_000_000;
/// For how long each time.
const KEEP_MS: u64 = 10_000;
/// After so long without a look another daemon may have taken the place of this one: starting one takes longer.
const CLAIM_PAUSE_US: u64 = 2_000;
/// After so long without a look a run may have died unseen.
const PAUSE_US: u64 = 100_000;
/// For how long its holds are renewed then: the end of its lifeline is read meanwhile, or there is another pause.
const UNSEEN_MS: u64 = 1_000;

pub(crate) struct Gate {
    engine: RefCell<Engine>,
    undertaker: Option<Box<dyn Undertaker>>,
    /// None where nobody else can serve the same.
    claim: RefCell<Option<Claim>>,
    /// Another daemon has the claim.
    displaced: Cell<bool>,
    /// When what is kept was renewed last.
    kept_us: Cell<u64>,
}

impl Gate {
    pub(super) fn new(mut engine: Engine) -> Gate {
        engine.hold_time();
        Gate {
            engine: RefCell::new(engine),
            undertaker: None,
            claim: RefCell::new(None),
            displaced: Cell::new(false),
            kept_us: Cell::new(0),
        }
    }

    pub(super) fn set_undertaker(&mut self, undertaker: Option<Box<dyn Undertaker>>) {
        self.undertaker = undertaker;
    }

    pub(super) fn undertaker(&self) -> Option<&dyn Undertaker> {
        self.undertaker.as_deref()
    }

    pub(super) fn set_claim(&self, claim: Claim) {
        *self.claim.borrow_mut() = Some(claim);
    }

    /// Whether this daemon is the one that serves.
    pub(super) fn has_claim(&self) -> io::Result<bool> {
        let has_claim = self.claim.borrow_mut().as_mut().map_or(Ok(true), Claim::is_held);
        self.displaced.set(self.displaced.get() || matches!(has_claim, Ok(false)));
        has_claim
    }

    /// Whether a client may be served now. Without a pause since the last look the place was this daemon's a moment ago; whether files were
    /// deleted while it ran is looked for each second.
    pub(super) fn may_serve(&self, lifelines: &Lifelines) -> bool {
        drop(self.engine(lifelines));
        !self.displaced.get()
    }

    /// There is more to keep: the next look renews all of it.
    pub(super) fn keep_soon(&self) {
        self.kept_us.set(0);
    }

    /// The engine, at the present time unless what is to be kept could not be renewed.
    pub(super) fn engine(&self, lifelines: &Lifelines) -> RefMut<'_, Engine> {
        let mut engine = self.engine.borrow_mut();
        let (seen_us, now_us) = engine.look();
        if now_us.saturating_sub(seen_us) >= CLAIM_PAUSE_US {
            // A file that cannot be made again is nobody else's, and each second the log says so.
            let _has_claim = self.has_claim();
        }
        if self.displaced.get() {
            return engine;
        }
        let is_kept = match &self.undertaker {
            Some(undertaker) => self.keep(&mut engine, &**undertaker, lifelines, (seen_us, now_us)),
            None => true,
        };
        if is_kept {
            engine.go_on_to(now_us);
        }
        engine
    }

    /// Renews what is to be kept until after this time. Fails while the journal takes nothing: nobody is granted anything then.
    fn keep(
        &self,
        engine: &mut Engine,
        undertaker: &dyn Undertaker,
        lifelines: &Lifelines,
        (seen_us, now_us): (u64, u64),
    ) -> bool {
        let lag_us = now_us.saturating_sub(seen_us);
        let is_due = now_us.saturating_sub(self.kept_us.get()) >= KEEP_INTERVAL_US;
        let unseen = if lag_us >= PAUSE_US { lifelines.unseen() } else { Vec::new() };
        let kept = if is_due { lifelines.kept() } else { Vec::new() };
        if !unseen.is_empty() || !kept.is_empty() {
            if engine.refuses_writes() {
                return false;
            }
            for id in &unseen {
                let mut traces = search(engine, undertaker, id);
                traces.retain(|trace| lifelines.is_claimed(id, trace));
                renew(engine, undertaker, &traces, lag_us, UNSEEN_MS);
            }
            renew(engine, undertaker, &kept, lag_us, KEEP_MS);
            if engine.refuses_writes() {
                return false;
            }
        }
        if is_due {
            self.kept_us.set(now_us);
        }
        true
    }
}

/// Renews holds for so many milliseconds from now on, while the engine's time lags behind.
fn renew(engine: &mut Engine, undertaker: &dyn Undertaker, traces: &[Trace], lag_us: u64, ms: u64) {
    for trace in traces {
        perform(engine, undertaker.keep(trace, ms + lag_us.div_ceil(1000)));
    }
}

fn search(engine: &Engine, undertaker: &dyn Undertaker, id: &[u8]) -> Vec<Trace> {
    let (mut found, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let (traces, next) = traces_from(engine, undertaker, id, at);
        found.extend(traces);
        from = next;
    }
    found
}

#[cfg(test)]
mod tests;
