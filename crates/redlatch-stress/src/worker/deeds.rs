//! What tasks do.

use std::time::Duration;

use redlatch::{Lease, Wait};

use super::{
    Pooled, Worker,
    ask::{Ask, Cut},
    kind::{Kind, OneGuard},
    task::{Noted, Task},
};
use crate::rng::Rng;

impl Task {
    /// Takes a lock and gives it back; another task may do so at the same time in the name of the same owner.
    pub(super) async fn hold(&mut self, worker: &Worker, kind: Kind) {
        let ask = self.ask(kind);
        let company = if self.rng.percent(30) { self.company(&ask) } else { None };
        let with = async {
            if let Some((mut other, ask)) = company {
                tokio::time::sleep(other.rng.ms(0, 8)).await;
                other.hold_as(worker, &ask).await;
            }
        };
        tokio::join!(self.hold_as(worker, &ask), with);
    }

    /// Another task that asks in the name of the same owner, for either side of a read-write lock.
    fn company(&mut self, ask: &Ask) -> Option<(Task, Ask)> {
        ask.owner.as_ref()?;
        let rng = Rng::new(self.rng.next());
        let mut other = Task { worker: self.worker.clone(), label: self.label.clone(), rng, at: self.at };
        let kind = match ask.kind {
            Kind::Read | Kind::Write => *other.rng.of(&[Kind::Read, Kind::Read, Kind::Write]),
            kind => kind,
        };
        let drawn = other.ask(kind);
        let same = Ask { kind, wait: drawn.wait, lease: drawn.lease, cut: drawn.cut, ..ask.clone() };
        Some((other, same))
    }

    /// Takes a lock, perhaps enters it once more, and gives it back.
    async fn hold_as(&mut self, worker: &Worker, ask: &Ask) {
        let kind = ask.kind;
        let Some(mut noted) = self.obtain(worker, ask).await else { return };
        let time = self.time();
        if !self.keep(&mut noted, time).await {
            return;
        }
        if kind.enters_again() && self.rng.percent(20) {
            self.says(format!("enters {} once more as {}", ask.name, ask.label));
            let again = noted.held.reenter().await;
            if let Some(Ok(held)) = again
                && let Some(mut inner) = self.note(worker, ask, held)
            {
                let time = self.time();
                let kept = self.keep(&mut inner, time).await;
                if kept && self.rng.percent(50) {
                    // The outer one goes first.
                    self.give_back(noted, &ask.name).await;
                    let time = self.time();
                    if self.keep(&mut inner, time).await {
                        self.give_back(inner, &ask.name).await;
                    }
                    return;
                }
                if kept {
                    self.give_back(inner, &ask.name).await;
                }
            }
            if !self.keep(&mut noted, Duration::ZERO).await {
                return;
            }
        }
        if self.rng.percent(10)
            && let Some(guard) = noted.held.guard()
        {
            let lease = self.rng.ms(50, 1_500);
            let outcome = guard.extend(lease).await.map_err(|error| error.to_string());
            self.says(format!("extends {} to {lease:?} : {outcome:?}", ask.name));
            let time = self.time();
            if !self.keep(&mut noted, time).await {
                return;
            }
        }
        self.give_back(noted, &ask.name).await;
    }

    /// Writes, turns into a reader or gives up turning, and reads as the same owner.
    pub(super) async fn downgrade(&mut self, worker: &Worker) {
        let mut ask = self.ask(Kind::Write);
        if self.rng.percent(60) && ask.owner.is_none() {
            let owner = worker.client.owner();
            ask.owner = Some(owner);
        }
        let company = if self.rng.percent(50) { self.company(&ask) } else { None };
        let with = async {
            if let Some((mut other, ask)) = company {
                tokio::time::sleep(other.rng.ms(0, 8)).await;
                other.hold_as(worker, &ask).await;
            }
        };
        tokio::join!(self.turn(worker, &ask), with);
    }

    async fn turn(&mut self, worker: &Worker, ask: &Ask) {
        let Some(mut noted) = self.obtain(worker, ask).await else { return };
        let time = self.time() / 4;
        if !self.keep(&mut noted, time).await {
            return;
        }
        let Noted { held: OneGuard::Write(guard), mut seen } = noted else { return };
        seen.iter_mut().for_each(|seen| seen.end("downgraded"));
        let cut = match self.rng.below(3) {
            0 => Cut::Never,
            _ => Cut::Polls(1),
        };
        self.says(format!("turns {} into reading, cut {cut:?}", ask.name));
        let mut reading = ask.clone();
        (reading.kind, reading.cut, reading.fenced) = (Kind::Read, Cut::Never, false);
        match cut.apply(guard.downgrade()).await {
            Some(Ok(guard)) => {
                let Some(mut noted) = self.note(worker, &reading, OneGuard::Read(guard)) else { return };
                let time = self.time();
                if self.keep(&mut noted, time).await {
                    self.give_back(noted, &ask.name).await;
                }
            }
            Some(Err(error)) => self.says(format!("could not turn {} : {error}", ask.name)),
            None if reading.owner.is_some() => {
                reading.wait = Wait::AtMost(Duration::from_millis(800));
                let Some(mut noted) = self.obtain(worker, &reading).await else { return };
                let time = self.time() + Duration::from_millis(5);
                if self.keep(&mut noted, time).await {
                    self.give_back(noted, &ask.name).await;
                }
            }
            None => {}
        }
    }

    /// One owner asks twice at the same moment; one guard goes, the other one stays for some time.
    pub(super) async fn twice(&mut self, worker: &Worker) {
        let kind = *self.rng.of(&[Kind::Fair, Kind::Read, Kind::Fair, Kind::Read, Kind::Plain, Kind::Write]);
        let mut ask = self.ask(kind);
        if ask.owner.is_none() {
            ask.owner = Some(worker.client.owner());
        }
        (ask.cut, ask.wait, ask.lease) = (Cut::Never, Wait::AtMost(Duration::from_secs(2)), Lease::Renewed);
        let other = ask.clone();
        let (first, second) = {
            let task = &*self;
            tokio::join!(task.obtain(worker, &ask), task.obtain(worker, &other))
        };
        let (Some(first), Some(mut second)) = (first, second) else { return };
        self.unlock(first, &ask.name).await;
        let time = self.time() + Duration::from_millis(8);
        if self.keep(&mut second, time).await {
            self.give_back(second, &ask.name).await;
        }
    }

    /// An owner gives up asking, others take and give back, and it asks again.
    pub(super) async fn again(&mut self, worker: &Worker) {
        let kind = *self.rng.of(&[Kind::Plain, Kind::Plain, Kind::Write]);
        let mut ask = self.ask(kind);
        if ask.owner.is_none() {
            let Pooled { owner, label } = self.pooled();
            (ask.owner, ask.label) = (Some(owner), label);
        }
        ask.lease = Lease::Renewed;
        ask.cut = if self.rng.percent(50) { Cut::Polls(1) } else { Cut::After(self.rng.ms(0, 3)) };
        ask.wait = Wait::AtMost(Duration::from_secs(1));
        if let Some(noted) = self.obtain(worker, &ask).await {
            self.give_back(noted, &ask.name).await;
        }
        ask.cut = Cut::Never;
        ask.wait = Wait::AtMost(Duration::from_secs(2));
        let Some(mut noted) = self.obtain(worker, &ask).await else { return };
        // Long enough for what was on its way to arrive.
        let most = worker.numbers.delay_ms.map_or(20, |(_, most)| most);
        let time = if self.rng.percent(30) { self.rng.ms(5, most) } else { self.time() };
        if self.keep(&mut noted, time).await {
            self.give_back(noted, &ask.name).await;
        }
    }

    /// Takes and gives back with an owner of its own, as a thread does.
    pub(super) async fn cycle(&mut self, worker: &Worker) {
        let kind = *self.rng.of(&[Kind::Plain, Kind::Plain, Kind::Fair, Kind::Write, Kind::Read]);
        let mut ask = self.ask(kind);
        (ask.cut, ask.lease) = (Cut::Never, Lease::Renewed);
        let owner = worker.client.owner();
        // Another process may hold under one that was written out, so what it leaves behind ends with its lease.
        if self.rng.percent(50) && !worker.numbers.rests {
            let _ = owner.to_text();
        }
        (ask.owner, ask.label) = (Some(owner), worker.fresh_label(&self.label));
        ask.wait = Wait::AtMost(Duration::from_secs(4));
        for _ in 0..1 + self.rng.below(6) {
            if worker.is_over() {
                return;
            }
            let Some(mut noted) = self.obtain(worker, &ask).await else { return };
            // Short ones so that the next comes soon, long ones so that it meets what comes late.
            let time = if self.rng.percent(50) { self.rng.ms(0, 3) } else { self.time() };
            if !self.keep(&mut noted, time).await {
                return;
            }
            self.unlock(noted, &ask.name).await;
        }
    }

    /// Leaves a hold without a guard and takes it up again.
    pub(super) async fn adopt(&mut self, worker: &Worker) {
        let mut ask = self.ask(Kind::Plain);
        (ask.cut, ask.lease, ask.fenced) = (Cut::Never, Lease::Renewed, false);
        (ask.owner, ask.label) = (None, worker.fresh_label(&self.label));
        let Some(noted) = self.obtain(worker, &ask).await else { return };
        let Noted { held: OneGuard::One(guard), mut seen } = noted else { return };
        seen.iter_mut().for_each(|seen| seen.end("detached"));
        let left = guard.detach();
        self.says(format!("left {} as {}", ask.name, ask.label));
        tokio::time::sleep(self.time()).await;
        let lock = worker.client.lock(ask.name.as_str());
        match lock.adopt(&left.owner, Lease::Renewed).await {
            Ok(Some(guard)) => {
                if *guard.owner() != left.owner {
                    ask.label = worker.fresh_label(&self.label);
                }
                let Some(mut noted) = self.note(worker, &ask, OneGuard::One(guard)) else { return };
                let time = self.time();
                if self.keep(&mut noted, time).await {
                    self.give_back(noted, &ask.name).await;
                }
            }
            Ok(None) => self.says(format!("could not take {} up again", ask.name)),
            Err(error) => self.says(format!("could not take {} up again : {error}", ask.name)),
        }
    }

    /// Holds for several leases.
    pub(super) async fn long(&mut self, worker: &Worker) {
        let kind = *self.rng.of(&[Kind::Plain, Kind::Plain, Kind::Write, Kind::Fenced, Kind::Fair]);
        let ask = Ask { lease: Lease::Renewed, ..self.ask(kind) };
        let Some(mut noted) = self.obtain(worker, &ask).await else { return };
        let time = self.time();
        let end = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < end && !worker.is_over() {
            if !self.keep(&mut noted, Duration::from_millis(40).min(time)).await {
                return;
            }
        }
        self.give_back(noted, &ask.name).await;
    }
}
