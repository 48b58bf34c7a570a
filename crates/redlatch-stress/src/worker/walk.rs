//! One owner with write holds and read holds of one lock, which come, turn and go in any order, also at once, and while other
//! processes enter under the owner.

use std::{sync::Arc, time::Duration};

use redlatch::{Lease, Wait};

use super::{
    Worker,
    ask::{Ask, Cut},
    board::{Door, Keeper, Left},
    kind::{Kind, OneGuard},
    task::{Noted, Task},
};

/// A hold with the side that it is on.
struct Step<'a> {
    kind: Kind,
    noted: Noted<'a>,
}

/// How freely the walk goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// What ends a hold is waited for: the owner may be handed out next.
    Orderly,
    /// Calls are dropped half-way.
    Free,
}

impl Task {
    /// Writes and reads as one owner, and perhaps hands that owner out on the way.
    pub(super) async fn walk(&mut self, worker: &Worker) {
        let mut ask = self.ask(Kind::Write);
        let owner = self.rng.percent(50).then(|| worker.client.owner());
        (ask.owner, ask.label) = (owner, worker.fresh_label(&self.label));
        (ask.cut, ask.fenced) = (Cut::Never, false);
        if self.rng.percent(70) {
            ask.lease = Lease::Renewed;
        }
        let Some(noted) = self.obtain(worker, &ask).await else { return };
        let mut steps = vec![Step { kind: Kind::Write, noted }];
        if !worker.board.has_doors() || self.rng.percent(30) {
            self.walk_on(worker, &ask, &mut steps, Manner::Free).await;
            self.end_walk(&ask, steps).await;
            return;
        }
        let certain = self.walk_on(worker, &ask, &mut steps, Manner::Orderly).await;
        let door = Arc::new(Door::default());
        let _keeper = Keeper(door.clone());
        // It stays until nobody comes in any more.
        let anchor = if certain { steps.pop() } else { None };
        if let Some(anchor) = &anchor
            && let Some(guard) = anchor.noted.held.guard()
        {
            let kind = if anchor.kind == Kind::Write {
                *self.rng.of(&[Kind::Write, Kind::Read])
            } else {
                Kind::Read
            };
            let (name, label, owner) = (ask.name.clone(), ask.label.clone(), guard.owner().to_text());
            self.says(format!("hands out {label} of {name} for {kind:?}"));
            worker.board.put(Left { kind, name, label, owner, door: Some(door.clone()) });
        }
        if let Some(Step { kind: Kind::Write, noted }) = &anchor {
            self.perhaps_beside(worker, &ask, noted, &mut steps).await;
        }
        self.walk_on(worker, &ask, &mut steps, Manner::Free).await;
        door.shut().await;
        steps.extend(anchor);
        self.end_walk(&ask, steps).await;
    }

    /// Goes on as a visitor.
    pub(super) async fn walk_as_visitor(&mut self, worker: &Worker, ask: &Ask, noted: Noted<'_>) {
        let mut steps = vec![Step { kind: ask.kind, noted }];
        self.walk_on(worker, ask, &mut steps, Manner::Free).await;
        self.end_walk(ask, steps).await;
    }

    /// Some steps, up to two at once; `false` if something of them may still be under way.
    async fn walk_on<'a>(
        &mut self,
        worker: &'a Worker,
        ask: &Ask,
        steps: &mut Vec<Step<'a>>,
        manner: Manner,
    ) -> bool {
        let mut certain = true;
        for _ in 0..1 + self.rng.below(5) {
            if worker.is_over() {
                break;
            }
            let one = self.draw(steps);
            let other = if self.rng.percent(35) { self.draw(steps) } else { None };
            let (mut first, mut second) = (self.beside(), self.beside());
            let (here, there) = tokio::join!(first.step(worker, ask, one, manner), async {
                tokio::time::sleep(second.rng.ms(0, 3)).await;
                second.step(worker, ask, other, manner).await
            });
            for (found, is_certain) in [here, there] {
                steps.extend(found);
                certain &= is_certain;
            }
            if steps.is_empty() {
                return certain;
            }
            let at = self.rng.below(steps.len() as u64) as usize;
            let time = if self.rng.percent(30) { self.time() } else { self.rng.ms(0, 4) };
            self.keep_all(steps, at, time).await;
        }
        certain
    }

    fn draw<'a>(&mut self, steps: &mut Vec<Step<'a>>) -> Option<Step<'a>> {
        if steps.is_empty() {
            return None;
        }
        let at = self.rng.below(steps.len() as u64) as usize;
        Some(steps.swap_remove(at))
    }

    /// Holds all, looks at one for some time, and drops what is lost.
    async fn keep_all(&self, steps: &mut Vec<Step<'_>>, at: usize, time: Duration) {
        let mut kept = Vec::with_capacity(steps.len());
        for (n, mut step) in steps.drain(..).enumerate() {
            let time = if n == at { time } else { Duration::ZERO };
            if self.keep(&mut step.noted, time).await {
                kept.push(step);
            }
        }
        *steps = kept;
    }

    /// What becomes of one hold, and whether all that was begun has ended.
    async fn step<'a>(
        &mut self,
        worker: &'a Worker,
        ask: &Ask,
        step: Option<Step<'a>>,
        manner: Manner,
    ) -> (Vec<Step<'a>>, bool) {
        let Some(Step { kind, noted }) = step else { return (Vec::new(), true) };
        let mut kept = Vec::new();
        match self.rng.below(10) {
            0..=2 => {
                let more = self.once_more(worker, ask, kind, &noted).await;
                kept.push(Step { kind, noted });
                kept.extend(more);
                (kept, true)
            }
            3..=5 if kind == Kind::Write => {
                self.perhaps_beside(worker, ask, &noted, &mut kept).await;
                kept.push(Step { kind, noted });
                (kept, true)
            }
            6 | 7 if kind == Kind::Write => {
                let (read, certain) = self.turn_around(worker, ask, noted, manner).await;
                kept.extend(read);
                (kept, certain)
            }
            8 | 9 => {
                if manner == Manner::Orderly {
                    return (kept, self.unlock(noted, &ask.name).await);
                }
                self.give_back(noted, &ask.name).await;
                (kept, false)
            }
            _ => {
                kept.push(Step { kind, noted });
                (kept, true)
            }
        }
    }

    fn cut(&mut self) -> Cut {
        match self.rng.below(100) {
            percent if percent >= 2 * self.worker.numbers.cut => Cut::Never,
            percent if percent % 2 == 0 => Cut::Polls(1 + self.rng.below(3) as usize),
            _ => Cut::After(self.rng.ms(0, 6)),
        }
    }

    /// One more hold of the same kind, by its guard or by its owner.
    async fn once_more<'a>(
        &mut self,
        worker: &'a Worker,
        ask: &Ask,
        kind: Kind,
        noted: &Noted<'a>,
    ) -> Option<Step<'a>> {
        let mut ask = Ask { kind, cut: self.cut(), ..ask.clone() };
        let noted = if self.rng.percent(30) {
            ask.owner = noted.held.guard().map(|guard| guard.owner().clone());
            ask.wait = if self.rng.percent(50) { Wait::No } else { Wait::AtMost(self.rng.ms(0, 400)) };
            self.obtain(worker, &ask).await
        } else {
            self.says(format!("enters {kind:?} {} once more as {}, cut {:?}", ask.name, ask.label, ask.cut));
            match ask.cut.apply(noted.held.reenter()).await {
                Some(Some(Ok(held))) => self.note(worker, &ask, held),
                Some(Some(Err(error))) => {
                    self.says(format!("could not enter {} once more : {error}", ask.name));
                    None
                }
                _ => None,
            }
        };
        noted.map(|noted| Step { kind, noted })
    }

    /// A read hold beside a write hold.
    async fn perhaps_beside<'a>(
        &mut self,
        worker: &'a Worker,
        ask: &Ask,
        noted: &Noted<'a>,
        steps: &mut Vec<Step<'a>>,
    ) {
        let OneGuard::Write(guard) = &noted.held else { return };
        let reading = Ask { kind: Kind::Read, cut: self.cut(), ..ask.clone() };
        self.says(format!("reads {} beside as {}, cut {:?}", ask.name, ask.label, reading.cut));
        match reading.cut.apply(guard.read()).await {
            Some(Ok(guard)) => {
                let noted = self.note(worker, &reading, OneGuard::Read(guard));
                steps.extend(noted.map(|noted| Step { kind: Kind::Read, noted }));
            }
            Some(Err(error)) => self.says(format!("could not read {} beside : {error}", ask.name)),
            None => self.says(format!("dropped the reading of {} beside", ask.name)),
        }
    }

    /// A write hold turns into a read hold.
    async fn turn_around<'a>(
        &mut self,
        worker: &'a Worker,
        ask: &Ask,
        noted: Noted<'a>,
        manner: Manner,
    ) -> (Option<Step<'a>>, bool) {
        let Noted { held: OneGuard::Write(guard), mut seen } = noted else { return (None, true) };
        seen.iter_mut().for_each(|seen| seen.end("downgraded"));
        let cut = if manner == Manner::Orderly { Cut::Never } else { self.cut() };
        self.says(format!("turns {} of {} into reading, cut {cut:?}", ask.name, ask.label));
        let reading = Ask { kind: Kind::Read, cut: Cut::Never, ..ask.clone() };
        match cut.apply(guard.downgrade()).await {
            Some(Ok(guard)) => {
                let noted = self.note(worker, &reading, OneGuard::Read(guard));
                (noted.map(|noted| Step { kind: Kind::Read, noted }), true)
            }
            Some(Err(error)) => {
                self.says(format!("could not turn {} : {error}", ask.name));
                (None, false)
            }
            None => (None, false),
        }
    }

    /// Gives everything back: one after the other, or two at once.
    async fn end_walk(&mut self, ask: &Ask, mut steps: Vec<Step<'_>>) {
        while let Some(one) = self.draw(&mut steps) {
            let other = if self.rng.percent(30) { self.draw(&mut steps) } else { None };
            let (mut first, mut second) = (self.beside(), self.beside());
            tokio::join!(first.give_back(one.noted, &ask.name), async {
                if let Some(step) = other {
                    second.give_back(step.noted, &ask.name).await;
                }
            });
            if !steps.is_empty() {
                let at = self.rng.below(steps.len() as u64) as usize;
                let time = if self.rng.percent(40) { self.time() } else { self.rng.ms(0, 4) };
                self.keep_all(&mut steps, at, time).await;
            }
        }
    }
}
