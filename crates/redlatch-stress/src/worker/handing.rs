//! Handing a hold or its owner to other processes, also while requests of it are on their way.

use std::{sync::Arc, time::Duration};

use redlatch::{AnyGuard as _, Lease, Owner, Wait};

use super::{
    Worker,
    ask::{Ask, Cut},
    board::{Door, Keeper, Left},
    kind::{Kind, OneGuard},
    task::{Noted, Task},
};
use crate::rng::Rng;

/// How often a task looks for an owner that was handed out.
const VISIT_LOOKS_MAX: u32 = 50;
const VISIT_LOOK: Duration = Duration::from_millis(1);

impl Task {
    /// A renewed hold of an owner that nobody used before.
    fn ask_afresh(&mut self, worker: &Worker) -> Ask {
        let kind = *self.rng.of(&[Kind::Plain, Kind::Plain, Kind::Fair, Kind::Write, Kind::Read]);
        let mut ask = self.ask(kind);
        (ask.cut, ask.lease, ask.fenced) = (Cut::Never, Lease::Renewed, false);
        (ask.owner, ask.label) = (None, worker.fresh_label(&self.label));
        ask
    }

    pub(super) fn beside(&mut self) -> Task {
        let rng = Rng::new(self.rng.next());
        Task { worker: self.worker.clone(), label: self.label.clone(), rng, at: self.at }
    }

    /// Leaves a hold without a guard to another process.
    pub(super) async fn leave(&mut self, worker: &Worker) {
        let ask = self.ask_afresh(worker);
        let Some(mut noted) = self.obtain(worker, &ask).await else { return };
        let time = self.time();
        if self.keep(&mut noted, time).await {
            self.part_with(worker, &ask, noted).await;
        }
    }

    /// Ends what this process has of a hold, and hangs it up for another one: before, while or after that becomes known to the server.
    async fn part_with(&mut self, worker: &Worker, ask: &Ask, noted: Noted<'_>) {
        let Noted { held, mut seen } = noted;
        let (kind, guard) = match held {
            OneGuard::One(guard) => (ask.kind, guard),
            OneGuard::Read(guard) => (Kind::Read, guard.into_guard()),
            OneGuard::Write(guard) => (Kind::Write, guard.into_guard()),
            _ => return,
        };
        seen.iter_mut().for_each(|seen| seen.end("left to another process"));
        let owner = guard.owner().to_text();
        let left = Left { kind, name: ask.name.clone(), label: ask.label.clone(), owner, door: None };
        if self.rng.percent(50) {
            self.says(format!("leaves {} as {}", ask.name, ask.label));
            drop(guard.detach());
            worker.board.put(left);
            return;
        }
        let time = self.rng.ms(1, worker.numbers.lease_ms);
        let cut = if self.rng.percent(30) { Cut::After(self.rng.ms(0, 20)) } else { Cut::Never };
        let pause = self.rng.ms(0, 20);
        self.says(format!("leaves {} as {} for {time:?}, cut {cut:?}", ask.name, ask.label));
        let (outcome, ()) = tokio::join!(cut.apply(guard.detach_for(time)), async {
            tokio::time::sleep(pause).await;
            worker.board.put(left);
        });
        self.says(format!("left {} as {} : {outcome:?}", ask.name, ask.label));
    }

    /// Takes up a hold that another process has left.
    pub(super) async fn take_up(&mut self, worker: &Worker) {
        let own = worker.fresh_label(&self.label);
        let Some(left) = worker.board.take(&mut self.rng, &own) else { return };
        let Ok(owner) = left.owner.parse::<Owner>() else { return };
        let mut ask = self.ask(left.kind);
        (ask.name, ask.lease, ask.owner, ask.fenced) = (left.name, Lease::Renewed, None, false);
        let cut = ask.cut;
        self.says(format!("takes up {} as {}, which was {}, cut {cut:?}", ask.name, own, left.label));
        let (client, name) = (&worker.client, ask.name.as_str());
        let both = client.read_write_lock(name);
        let renewed = Lease::Renewed;
        let taken = match left.kind {
            Kind::Fair => {
                let lock = client.fair_lock(name);
                cut.apply(lock.adopt(&owner, renewed))
                    .await
                    .map(|taken| taken.map(|guard| guard.map(OneGuard::One)))
            }
            Kind::Read => {
                let taken = cut.apply(both.read().adopt(&owner, renewed)).await;
                taken.map(|taken| taken.map(|guard| guard.map(OneGuard::Read)))
            }
            Kind::Write => {
                let taken = cut.apply(both.write().adopt(&owner, renewed)).await;
                taken.map(|taken| taken.map(|guard| guard.map(OneGuard::Write)))
            }
            _ => {
                let lock = client.lock(name);
                cut.apply(lock.adopt(&owner, renewed))
                    .await
                    .map(|taken| taken.map(|guard| guard.map(OneGuard::One)))
            }
        };
        match taken {
            None => self.says(format!("dropped the taking up of {name}")),
            Some(Ok(None)) => self.says(format!("could not take up {name}")),
            Some(Err(error)) => self.says(format!("could not take up {name} : {error}")),
            Some(Ok(Some(held))) => {
                // From now on it is another owner's, unless others hold under the old one.
                let stays = held.guard().is_some_and(|guard| *guard.owner() == owner);
                ask.label = if stays { left.label } else { own };
                let name = ask.name.clone();
                let Some(mut noted) = self.note(worker, &ask, held) else { return };
                let time = self.time();
                if self.keep(&mut noted, time).await {
                    self.give_back(noted, &name).await;
                }
            }
        }
    }

    /// Holds, lets other processes enter under its owner while it enters and leaves itself, and gives back or leaves the hold.
    pub(super) async fn share(&mut self, worker: &Worker) {
        let mut ask = self.ask_afresh(worker);
        let own = worker.client.owner();
        if self.rng.percent(25) {
            (ask.cut, ask.owner) = (Cut::After(self.rng.ms(0, 12)), Some(own.clone()));
        }
        let Some(noted) = self.obtain(worker, &ask).await else {
            if ask.owner.is_some() {
                // What it may have been granted is on its way back.
                self.hands_out_late(worker, &ask, &own).await;
            }
            return;
        };
        let door = Arc::new(Door::default());
        let _keeper = Keeper(door.clone());
        let (mut inside, pause) = (self.beside(), self.rng.ms(0, 12));
        let hands_out = async {
            tokio::time::sleep(pause).await;
            let Some(guard) = noted.held.guard() else { return };
            let (name, label, owner) = (ask.name.clone(), ask.label.clone(), guard.owner().to_text());
            self.says(format!("hands out {label} of {name}"));
            worker.board.put(Left { kind: ask.kind, name, label, owner, door: Some(door.clone()) });
        };
        tokio::join!(inside.comes_and_goes(worker, &ask, &noted.held), hands_out);
        let Some(mut noted) = self.perhaps_turned(worker, &ask, noted).await else { return };
        let time = self.time() * 2;
        let kept = self.keep(&mut noted, time).await;
        door.shut().await;
        if !kept || !self.keep(&mut noted, Duration::ZERO).await {
            return;
        }
        match (self.rng.below(10), noted.held.guard()) {
            (0..4, _) => self.part_with(worker, &ask, noted).await,
            (4..8, Some(guard)) => {
                let owner = guard.owner().clone();
                let mut beside = self.beside();
                tokio::join!(self.give_back(noted, &ask.name), beside.hands_out_late(worker, &ask, &owner));
            }
            _ => self.give_back(noted, &ask.name).await,
        }
    }

    /// Lets another process in while what ends the hold is on its way.
    async fn hands_out_late(&mut self, worker: &Worker, ask: &Ask, owner: &Owner) {
        tokio::time::sleep(self.rng.ms(0, 20)).await;
        let door = Arc::new(Door::closing());
        let _keeper = Keeper(door.clone());
        let (name, label, owner) = (ask.name.clone(), ask.label.clone(), owner.to_text());
        self.says(format!("hands out {label} of {name}, which is on its way back"));
        worker.board.put(Left { kind: ask.kind, name, label, owner, door: Some(door.clone()) });
        tokio::time::sleep(self.rng.ms(0, 60)).await;
        door.shut().await;
    }

    /// A write hold may be turned into a read hold, while others enter under its owner.
    async fn perhaps_turned<'a>(
        &mut self,
        worker: &'a Worker,
        ask: &Ask,
        noted: Noted<'a>,
    ) -> Option<Noted<'a>> {
        let turns = self.rng.percent(30);
        let Noted { held, mut seen } = noted;
        let guard = match held {
            OneGuard::Write(guard) if turns => guard,
            held => return Some(Noted { held, seen }),
        };
        seen.iter_mut().for_each(|seen| seen.end("downgraded"));
        self.says(format!("turns {} into reading", ask.name));
        match guard.downgrade().await {
            Ok(guard) => self.note(worker, &Ask { kind: Kind::Read, ..ask.clone() }, OneGuard::Read(guard)),
            Err(error) => {
                self.says(format!("could not turn {} : {error}", ask.name));
                None
            }
        }
    }

    async fn comes_and_goes(&mut self, worker: &Worker, ask: &Ask, outer: &OneGuard) {
        for _ in 0..1 + self.rng.below(3) {
            self.says(format!("enters {} once more as {}", ask.name, ask.label));
            let cut = if self.rng.percent(20) { Cut::After(self.rng.ms(0, 6)) } else { Cut::Never };
            let Some(Some(Ok(held))) = cut.apply(outer.reenter()).await else { continue };
            let Some(inner) = self.note(worker, ask, held) else { return };
            let Some(mut inner) = self.perhaps_turned(worker, ask, inner).await else { continue };
            let time = self.time() / 4;
            if !self.keep(&mut inner, time).await {
                return;
            }
            self.give_back(inner, &ask.name).await;
        }
    }

    /// Enters a hold of another process under its owner.
    pub(super) async fn visit(&mut self, worker: &Worker) {
        let mut looks = 0..VISIT_LOOKS_MAX;
        let (left, visit) = loop {
            if let Some(found) = worker.board.visit(&mut self.rng) {
                break found;
            }
            if worker.is_over() || looks.next().is_none() {
                return;
            }
            tokio::time::sleep(VISIT_LOOK).await;
        };
        let Ok(owner) = left.owner.parse::<Owner>() else { return };
        let mut ask = self.ask(left.kind);
        (ask.name, ask.label, ask.lease) = (left.name, left.label, Lease::Renewed);
        (ask.owner, ask.wait, ask.fenced) = (Some(owner), Wait::No, false);
        let entered = if visit.is_late() {
            self.come_late(worker, &ask).await
        } else {
            self.obtain(worker, &ask).await
        };
        drop(visit);
        let Some(mut noted) = entered else { return };
        if matches!(ask.kind, Kind::Read | Kind::Write) && self.rng.percent(40) {
            return self.walk_as_visitor(worker, &ask, noted).await;
        }
        let time = self.time() * 2;
        if self.keep(&mut noted, time).await {
            self.give_back(noted, &ask.name).await;
        }
    }

    /// Enters, and sees that the other process has not gone before: a lock that was free may go with what is still on its way for that one.
    async fn come_late<'a>(&mut self, worker: &'a Worker, ask: &Ask) -> Option<Noted<'a>> {
        self.says(format!("comes to {} as {}", ask.name, ask.label));
        let Some(Ok(Some(held))) = ask.run(worker).await else { return None };
        let (client, owner) = (&worker.client, ask.owner.as_ref()?);
        let both = client.read_write_lock(ask.name.as_str());
        let count = match ask.kind {
            Kind::Fair => client.fair_lock(ask.name.as_str()).hold_count(owner).await,
            Kind::Read => both.read().hold_count(owner).await,
            Kind::Write => both.write().hold_count(owner).await,
            _ => client.lock(ask.name.as_str()).hold_count(owner).await,
        };
        self.says(format!("came to {} as {} : {count:?}", ask.name, ask.label));
        if count.is_ok_and(|count| count > 1) { self.note(worker, ask, held) } else { None }
    }
}
