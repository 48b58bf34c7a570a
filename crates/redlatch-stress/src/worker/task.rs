//! One task: what it does again and again, and how it looks at what it holds.

use std::{sync::Arc, time::Duration};

use redlatch::{Lease, Wait};
use tokio::time::Instant;

use super::{
    Pooled, Worker,
    ask::{Ask, Cut},
    kind::{Kind, OneGuard},
};
use crate::{
    clock::boot_ns,
    mix::Deed,
    record::{Granted, Seen},
    rng::Rng,
};

/// How often a hold is looked at that is not valid, until it counts as not told; each look follows a sleep of 10 ms, so time in
/// which the process stands still does not count.
const UNTOLD_LOOKS: u32 = 150;
const UNTOLD_LOOK: Duration = Duration::from_millis(10);

pub(super) struct Task {
    pub(super) worker: Arc<Worker>,
    pub(super) label: String,
    pub(super) rng: Rng,
    pub(super) at: usize,
}

/// A hold and what is written of it; of several locks each is written.
pub(super) struct Noted<'a> {
    pub(super) held: OneGuard,
    pub(super) seen: Vec<Seen<'a>>,
}

impl Task {
    pub(super) async fn work(mut self) {
        let worker = self.worker.clone();
        loop {
            worker.phases.work().await;
            if worker.is_over() {
                return;
            }
            let deed = self.rng.weighted(&worker.numbers.deeds);
            match deed {
                Deed::Hold(kind) => self.hold(&worker, kind).await,
                Deed::Downgrade => self.downgrade(&worker).await,
                Deed::Twice => self.twice(&worker).await,
                Deed::Again => self.again(&worker).await,
                Deed::Cycle => self.cycle(&worker).await,
                Deed::Adopt => self.adopt(&worker).await,
                Deed::Leave => self.leave(&worker).await,
                Deed::TakeUp => self.take_up(&worker).await,
                Deed::Share => self.share(&worker).await,
                Deed::Visit => self.visit(&worker).await,
                Deed::Walk => self.walk(&worker).await,
                Deed::Long => self.long(&worker).await,
                Deed::Pass if self.at == 0 => self.pass(&worker).await,
                // One task of a process conducts the others, which must be quiet otherwise.
                Deed::Pass => return,
            }
            let (least, most) = worker.numbers.pause_ms;
            let pause = self.rng.ms(least, most);
            if !pause.is_zero() && self.rng.percent(70) {
                tokio::time::sleep(pause).await;
            }
        }
    }

    pub(super) fn says(&self, text: impl AsRef<str>) {
        self.worker.log.does(&self.label, text);
    }

    pub(super) fn pooled(&mut self) -> Pooled {
        self.rng.of(&self.worker.owners).clone()
    }

    /// An acquire of this kind with random options.
    pub(super) fn ask(&mut self, kind: Kind) -> Ask {
        let numbers = self.worker.numbers.clone();
        let rng = &mut self.rng;
        let name = kind.name(rng, numbers.names);
        let wait = match rng.below(10) {
            0 => Wait::No,
            1 => Wait::AtMost(rng.ms(0, 20)),
            _ => Wait::AtMost(rng.ms(300, 4_000)),
        };
        let lease = match rng.below(10) {
            0..=5 => Lease::Renewed,
            6 | 7 => Lease::RenewedEvery(rng.ms(600, 2_000)),
            _ => Lease::Fixed(rng.ms(15, 1_500)),
        };
        let lease = if numbers.lease_ms >= 2_000 { Lease::Renewed } else { lease };
        let cut = match rng.below(100) {
            percent if percent >= numbers.cut => Cut::Never,
            percent if percent % 2 == 0 => Cut::Polls(1 + rng.below(4) as usize),
            percent if percent % 4 == 3 => Cut::Dozes { after: rng.ms(0, 40), time: rng.ms(300, 2_500) },
            _ => Cut::After(rng.ms(0, 6)),
        };
        let reuses = !matches!(kind, Kind::Permits | Kind::Quorum) && rng.percent(numbers.reuse);
        let fenced = kind == Kind::Plain && rng.percent(25);
        let permits = 1 + rng.below(2) as u32;
        let mut ask =
            Ask { kind, name, wait, lease, owner: None, label: String::new(), fenced, permits, cut };
        if reuses {
            let Pooled { owner, label } = self.pooled();
            (ask.owner, ask.label) = (Some(owner), label);
        } else {
            ask.label = self.worker.fresh_label(&self.label);
        }
        ask
    }

    /// Asks, and writes down what came of it.
    pub(super) async fn obtain<'a>(&self, worker: &'a Worker, ask: &Ask) -> Option<Noted<'a>> {
        self.says(format!(
            "asks {:?} {} as {} {} wait {:?} cut {:?}",
            ask.kind,
            ask.name,
            ask.label,
            ask.term(),
            ask.wait,
            ask.cut
        ));
        match ask.run(worker).await {
            None => {
                self.says(format!("dropped the acquire of {}", ask.name));
                None
            }
            Some(Ok(None)) => {
                self.says(format!("found {} busy", ask.name));
                None
            }
            Some(Err(error)) => {
                self.says(format!("got an error for {} : {error}", ask.name));
                None
            }
            Some(Ok(Some(held))) => self.note(worker, ask, held),
        }
    }

    /// Begins the interval of a hold.
    pub(super) fn note<'a>(&self, worker: &'a Worker, ask: &Ask, held: OneGuard) -> Option<Noted<'a>> {
        if !held.is_valid() {
            self.says(format!("holds {} no longer", ask.name));
            return None;
        }
        let seen_ns = boot_ns();
        let term = ask.term();
        let seen = ask
            .members()
            .iter()
            .map(|name| {
                let granted = Granted {
                    task: &self.label,
                    name,
                    mode: ask.kind.mode(),
                    weight: if ask.kind == Kind::Permits { ask.permits } else { 1 },
                    owner: &ask.label,
                    token: held.token(),
                    term: &term,
                };
                worker.log.granted(&granted, seen_ns)
            })
            .collect();
        Some(Noted { held, seen })
    }

    /// Holds for some time, and looks again and again; `false` if the hold was lost meanwhile.
    pub(super) async fn keep(&self, noted: &mut Noted<'_>, time: Duration) -> bool {
        let Noted { held, seen } = noted;
        let mut told = held.told();
        let end = Instant::now() + time;
        let step = (time / 4).clamp(Duration::from_micros(500), Duration::from_millis(5));
        let (mut reason, mut untold) = (None, 0);
        loop {
            let before_ns = boot_ns();
            if held.is_valid() {
                seen.iter_mut().for_each(|seen| seen.valid(before_ns));
                if Instant::now() >= end {
                    return reason.is_none();
                }
            } else {
                seen.iter_mut().for_each(Seen::invalid);
                if let Some(reason) = &reason {
                    let how = format!("lost:{reason}");
                    seen.iter_mut().for_each(|seen| seen.end(&how));
                    self.says(format!("was told {how}"));
                    return false;
                }
                untold += 1;
                if untold > UNTOLD_LOOKS {
                    seen.iter_mut().for_each(|seen| {
                        seen.untold();
                        seen.end("lost:untold");
                    });
                    return false;
                }
            }
            let pause = if untold > 0 { UNTOLD_LOOK } else { step };
            if reason.is_some() {
                // Told, and valid all the same: looked at as long as it lasts.
                tokio::time::sleep(pause).await;
                continue;
            }
            tokio::select! {
                biased;
                why = &mut told => reason = Some(why),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Gives back, in one way or another.
    pub(super) async fn give_back(&mut self, noted: Noted<'_>, name: &str) {
        let Noted { held, mut seen } = noted;
        let way = self.rng.below(100);
        let cut = self.worker.numbers.cut;
        if way < cut {
            seen.iter_mut().for_each(|seen| seen.end("dropped"));
            self.says(format!("drops the guard of {name}"));
            drop(held);
        } else if way < 2 * cut {
            let polls = 1 + self.rng.below(3) as usize;
            seen.iter_mut().for_each(|seen| seen.end("unlocked, cancelled"));
            self.says(format!("unlocks {name} and drops that after {polls} polls"));
            let outcome = Cut::Polls(polls).apply(held.unlock()).await;
            self.says(format!("unlock of {name} : {outcome:?}"));
        } else {
            self.unlock(Noted { held, seen }, name).await;
        }
    }

    /// `false` if the server may still be at it.
    pub(super) async fn unlock(&self, noted: Noted<'_>, name: &str) -> bool {
        let Noted { held, mut seen } = noted;
        let before_ns = boot_ns();
        let was_valid = held.is_valid();
        if was_valid {
            seen.iter_mut().for_each(|seen| seen.valid(before_ns));
        }
        seen.iter_mut().for_each(|seen| seen.end("unlocked"));
        self.says(format!("unlocks {name}"));
        let outcome = held.unlock().await;
        self.says(format!("unlock of {name} : {outcome}"));
        if was_valid && (outcome.contains("Deleted") || outcome.contains("TakenOver")) {
            for seen in &seen {
                seen.vanished(&outcome);
            }
        }
        !outcome.starts_with("error")
    }

    pub(super) fn time(&mut self) -> Duration {
        let (least, most) = self.worker.numbers.hold_ms;
        self.rng.ms(least, most)
    }
}
