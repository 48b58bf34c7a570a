//! Which clients live. A client has a lifeline: a connection that says nothing but whose it is, and that the kernel ends when the
//! last process that has it open is gone. Then, and when its own process has ended, what the client holds is given back at once.
//!
//! Freeing what a living client holds would make two holders, so whatever is not certain frees nothing: a process that lives and has
//! closed everything that it had open, a connection that ends in another way than by its end of file, a client that says goodbye, an owner that another process has used, a hold that was
//! detached, and everything that was held before the daemon began.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Notify;

use super::Shared;
use super::process::{Process, Processes};
use crate::engine::Engine;
use crate::number::parse_int;
use crate::trace::{PERMIT_BYTES, Trace, TracePlace, permit, permit_in_digits, permit_mark};
use crate::value::Value;

/// The characters of a client's id: a UUID.
const ID_CHARS: usize = 36;
/// How many owners of one client may be left out before all of them are.
const SPARED_MAX: usize = 65_536;
/// How many clients without a lifeline are remembered by the owners that were used, in each of two generations.
const STRANGERS_MAX: usize = 10_000;
/// How many clients are remembered. Of more than that the lifelines of some have ended.
pub(super) const LIVES_MAX: usize = super::CONNECTIONS_MAX;
/// How many keys are looked at before other clients have their turn.
const KEYS_AT_ONCE: usize = 20_000;

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Step {
    /// Run this script.
    Script {
        /// Its text.
        source: &'static str,
        /// Its keys.
        keys: Vec<Vec<u8>>,
        /// Its arguments.
        args: Vec<Vec<u8>>,
    },
    /// Delete these keys.
    Delete {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Send a message.
    Publish {
        /// The channel.
        channel: Vec<u8>,
        /// The message.
        payload: &'static str,
    },
}

/// Knows what the traces of clients mean, which the engine does not.
pub trait Undertaker: Send {
    /// The sorted sets that have the times of waiters begin with this.
    fn queues_begin_with(&self) -> &'static [u8];

    /// The sorted sets that have permits end with this.
    fn permits_end_with(&self) -> &'static [u8];

    /// Gives back what a dead client has left. Of two keys that a trace may be about, the one is meant that `is_there`.
    fn release(&self, trace: &Trace, is_there: &mut dyn FnMut(&[u8]) -> bool) -> Vec<Step>;

    /// Gives back all that is under this key of a sorted set with these members, or of a list, if it is of holds or places in queues: after
    /// a restart of the machine all holders and waiters are dead.
    fn give_back(
        &self,
        key: &[u8],
        members: &[Vec<u8>],
        is_there: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Vec<Step>;

    /// Sees to it that a hold lasts for so many milliseconds more at least.
    fn keep(&self, trace: &Trace, ms: u64) -> Vec<Step>;
}

/// Whose end a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The client's own.
    Own(Vec<u8>),
    /// One that the processes of the client's command have open.
    Command(Vec<u8>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Absent,
    Open,
    Ended,
}

/// What is known of one client.
#[derive(Debug)]
struct Life {
    process: Process,
    /// Owners with a lower number were there before the lifeline.
    from: i64,
    /// Permits with a lower number may have been used by others before the lifeline was there.
    permits_from: i64,
    own: Stage,
    /// The client has said that its command gets a lifeline of its own.
    has_command: bool,
    command: Stage,
    /// Owners that are left out.
    spared: HashSet<i64>,
    /// Nothing is freed.
    void: bool,
    /// Connections with this number or a higher one came after the client's death.
    dead_from: Option<u64>,
    /// What its command goes on with, found after its death.
    kept: Option<Vec<Trace>>,
}

/// A client whose death has to be seen to.
#[derive(Debug, PartialEq, Eq)]
enum Rite {
    /// All of it is gone.
    Bury,
    /// Its command goes on.
    Keep,
}

/// All that is known of clients.
#[derive(Default)]
pub(crate) struct Lifelines {
    lives: RefCell<HashMap<Vec<u8>, Life>>,
    /// Whose permits begin with what.
    marks: RefCell<HashMap<[u8; 8], Vec<u8>>>,
    /// The numbers of the other connections that each process has.
    present: RefCell<HashMap<i32, Vec<u64>>>,
    /// The daemon has an undertaker.
    attended: Cell<bool>,
    /// Which process has used owners of clients that have no lifeline; `None` for several.
    strangers: RefCell<[HashMap<Vec<u8>, Option<i32>>; 2]>,
    work: Notify,
    pub(super) processes: Processes,
}

/// The client and the number of an owner, if the text looks like one.
fn owner(text: &[u8]) -> Option<(&[u8], i64)> {
    let (id, rest) = text.split_at_checked(ID_CHARS)?;
    let number = rest.strip_prefix(b":")?;
    if id[8] != b'-' || id[13] != b'-' {
        return None;
    }
    let end = number.iter().position(|byte| *byte == b':').unwrap_or(number.len());
    Some((id, parse_int(&number[..end])?))
}

impl Lifelines {
    /// The daemon sees to the dead.
    pub(super) fn attend(&self) {
        self.attended.set(true);
    }

    /// A process has one more connection that is no lifeline.
    pub(crate) fn came(&self, user: &User) {
        if let Some(pid) = user.pid {
            self.present.borrow_mut().entry(pid).or_default().push(user.client);
        }
    }

    /// It has one less.
    pub(crate) fn went(&self, user: &User) {
        let Some(pid) = user.pid else { return };
        let mut present = self.present.borrow_mut();
        if let Some(clients) = present.get_mut(&pid) {
            clients.retain(|client| *client != user.client);
            if clients.is_empty() {
                present.remove(&pid);
            }
            // What a dead client had asked for may have been done by now.
            self.work.notify_one();
        }
    }

    /// A client names its lifeline. Its owners below `from` are older; `next` is the number that comes next, where that is known.
    pub(crate) fn begin(&self, id: &[u8], from: i64, next: Option<i64>, process: Process) -> Option<Line> {
        if id.len() != ID_CHARS || !self.attended.get() {
            return None;
        }
        let mut strangers = self.strangers.borrow_mut();
        let used: Vec<Option<i32>> = strangers.iter_mut().filter_map(|known| known.remove(id)).collect();
        let by_others = used.iter().any(|by| *by != Some(process.pid()));
        self.make_room();
        let mut lives = self.lives.borrow_mut();
        // Nobody has a second one while the first is open; two clients of one id are not told apart.
        let twice = lives.contains_key(id);
        let life = lives.entry(id.to_vec()).or_insert_with(|| Life {
            process,
            from,
            permits_from: next.unwrap_or(i64::MAX),
            own: Stage::Open,
            has_command: false,
            command: Stage::Absent,
            spared: HashSet::new(),
            void: false,
            dead_from: None,
            kept: None,
        });
        life.void |= by_others || twice;
        if let Some(mark) = permit_mark(id) {
            self.marks.borrow_mut().insert(mark, id.to_vec());
        }
        Some(Line::Own(id.to_vec()))
    }

    /// The lifeline of a client's command is there.
    pub(crate) fn begin_command(&self, id: &[u8], pid: i32) -> Option<Line> {
        let mut lives = self.lives.borrow_mut();
        let life =
            lives.get_mut(id).filter(|life| life.process.pid() == pid && life.command == Stage::Absent)?;
        life.command = Stage::Open;
        if life.own == Stage::Ended {
            self.work.notify_one();
        }
        Some(Line::Command(id.to_vec()))
    }

    /// The client says that its command gets a lifeline of its own, which may not be here yet.
    pub(crate) fn expect_command(&self, line: &Line) {
        self.with(line, |life| life.has_command = true);
    }

    /// The hold of this owner is to outlive the client.
    pub(crate) fn spare(&self, line: &Line, number: i64) {
        self.with(line, |life| life.spare(number));
    }

    /// The client ends in order: what it has not given back is left to its lease.
    pub(crate) fn say_goodbye(&self, line: &Line) {
        self.with(line, |life| life.void = true);
    }

    fn with(&self, line: &Line, work: impl FnOnce(&mut Life)) {
        if let Line::Own(id) = line
            && let Some(life) = self.lives.borrow_mut().get_mut(id)
        {
            work(life);
        }
    }

    /// A lifeline is over: by its end of file, which only the kernel makes of a process that is gone, or in another way. Newer
    /// connections than those so far are not the client's.
    pub(crate) fn end(&self, line: &Line, by_end_of_file: bool, next_client: u64) {
        let (Line::Own(id) | Line::Command(id)) = line;
        let mut lives = self.lives.borrow_mut();
        let Some(life) = lives.get_mut(id) else { return };
        life.void |= !by_end_of_file;
        match line {
            Line::Own(_) => {
                life.own = Stage::Ended;
                life.dead_from = Some(next_client);
            }
            Line::Command(_) => life.command = Stage::Ended,
        }
        if life.own != Stage::Ended {
            return;
        }
        if life.void && life.command != Stage::Open {
            drop(lives);
            self.forget(id);
        } else {
            self.work.notify_one();
        }
    }

    /// Forgets the client that has been gone for longest, if there are too many: what it has left is left to its lease. A process can
    /// close what it had open and live on, and a command that was announced may never come.
    fn make_room(&self) {
        let lives = self.lives.borrow();
        if lives.len() < LIVES_MAX {
            return;
        }
        let gone = lives.iter().filter(|(_, life)| life.own == Stage::Ended && life.command != Stage::Open);
        let oldest = gone.min_by_key(|(_, life)| life.dead_from).map(|(id, _)| id.clone());
        drop(lives);
        if let Some(id) = oldest {
            tracing::warn!(
                client = %String::from_utf8_lossy(&id),
                "too many clients have closed their lifelines and are not known to be dead: leases end what this one has left"
            );
            self.forget(&id);
        }
    }

    /// Nothing more is to be seen to for a client.
    fn forget(&self, id: &[u8]) {
        self.lives.borrow_mut().remove(id);
        self.marks.borrow_mut().retain(|_, of| of != id);
    }

    /// A connection runs a script with these arguments: owners and permits of other clients among them are not theirs alone any more.
    pub(crate) fn note_owners(&self, user: &User, known: &mut Vec<u8>, args: &[&[u8]]) {
        if !self.attended.get() {
            return;
        }
        for arg in args {
            match owner(arg) {
                Some((id, number)) if known.as_slice() != id => self.note_owner(user, known, id, number),
                Some(_) => {}
                None if arg.len().is_multiple_of(PERMIT_BYTES) => self.note_permits(user, known, arg),
                None => {}
            }
        }
    }

    fn note_permits(&self, user: &User, known: &mut Vec<u8>, ids: &[u8]) {
        for (mark, number) in ids.chunks_exact(PERMIT_BYTES).filter_map(permit) {
            // Others cannot have used what is older than the lifeline: that is not freed.
            let of = self.marks.borrow().get(&mark).filter(|id| *id != known).cloned();
            if let Some(id) = of {
                self.note_owner(user, known, &id, number);
            }
        }
    }

    fn note_owner(&self, user: &User, known: &mut Vec<u8>, id: &[u8], number: i64) {
        let mut lives = self.lives.borrow_mut();
        if let Some(life) = lives.get_mut(id) {
            let its_own =
                Some(life.process.pid()) == user.pid && life.dead_from.is_none_or(|dead| user.client < dead);
            if its_own {
                known.clear();
                known.extend_from_slice(id);
            } else {
                life.spare(number);
            }
            return;
        }
        let mut strangers = self.strangers.borrow_mut();
        if let Some(by) = strangers[0].get_mut(id) {
            *by = by.filter(|pid| Some(*pid) == user.pid);
            return;
        }
        if strangers[0].len() >= STRANGERS_MAX {
            strangers.swap(0, 1);
            strangers[0].clear();
        }
        strangers[0].insert(id.to_vec(), user.pid);
    }

    /// The next client whose death has to be seen to.
    fn next(&self) -> Option<(Vec<u8>, Rite)> {
        let (lives, present) = (self.lives.borrow(), self.present.borrow());
        let ready = |life: &Life| {
            let dead_from = life.dead_from.filter(|_| !life.void && life.own == Stage::Ended)?;
            // It may have closed what it had open, and what it has asked for last may still be on its way.
            if !life.process.has_ended() {
                return None;
            }
            if present
                .get(&life.process.pid())
                .is_some_and(|clients| clients.iter().any(|client| *client < dead_from))
            {
                return None;
            }
            match life.command {
                Stage::Ended => Some(Rite::Bury),
                Stage::Open => Some(Rite::Keep).filter(|_| life.kept.is_none()),
                // One that never came: nobody knows which processes have it.
                Stage::Absent => Some(Rite::Bury).filter(|_| !life.has_command),
            }
        };
        lives.iter().find_map(|(id, life)| Some((id.clone(), ready(life)?)))
    }

    /// Whether a trace is the client's alone.
    pub(super) fn is_claimed(&self, id: &[u8], trace: &Trace) -> bool {
        let lives = self.lives.borrow();
        let Some(life) = lives.get(id).filter(|life| !life.void) else { return false };
        let number = match trace.place {
            TracePlace::Permit => permit_in_digits(&trace.field)
                .filter(|(of, number)| permit_mark(id) == Some(*of) && *number >= life.permits_from)
                .map(|(_, number)| number),
            _ => owner(trace.field.as_bytes())
                .filter(|(of, number)| *of == id && *number >= life.from)
                .map(|(_, number)| number),
        };
        number.is_some_and(|number| !life.spared.contains(&number))
    }

    /// The command of a dead client goes on with these holds.
    pub(super) fn go_on_with(&self, id: &[u8], held: Vec<Trace>) {
        if let Some(life) = self.lives.borrow_mut().get_mut(id) {
            life.kept = Some(held);
        }
    }

    /// The holds that are to be kept, of those that are the clients' alone.
    pub(super) fn kept(&self) -> Vec<Trace> {
        let lives = self.lives.borrow();
        let open = lives.iter().filter(|(_, life)| life.command == Stage::Open);
        let all = open.flat_map(|(id, life)| life.kept.iter().flatten().map(move |trace| (id, trace)));
        all.filter(|(id, trace)| self.is_claimed(id, trace)).map(|(_, trace)| trace.clone()).collect()
    }

    /// The processes that live, of clients whose lifeline has ended.
    fn dying(&self) -> Vec<Process> {
        let lives = self.lives.borrow();
        let ended = lives.values().filter(|life| life.own == Stage::Ended && !life.void);
        ended.map(|life| life.process.clone()).filter(|process| !process.has_ended()).collect()
    }

    /// The clients that have died and whose commands may go on, before what these go on with has been found.
    pub(super) fn unseen(&self) -> Vec<Vec<u8>> {
        let goes_on = |life: &Life| match life.command {
            Stage::Open => true,
            Stage::Absent => life.has_command && life.own == Stage::Open,
            Stage::Ended => false,
        };
        let lives = self.lives.borrow();
        let open = lives.iter().filter(|(_, life)| !life.void && life.kept.is_none() && goes_on(life));
        open.filter(|(_, life)| life.process.has_ended()).map(|(id, _)| id.clone()).collect()
    }
}

impl Life {
    fn spare(&mut self, number: i64) {
        if self.spared.len() < SPARED_MAX {
            self.spared.insert(number);
        } else {
            self.void = true;
        }
    }
}

/// Who runs a script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) pid: Option<i32>,
    /// The number of its connection.
    pub(crate) client: u64,
}

/// Sees to what dead clients leave, as long as the daemon runs.
pub(super) async fn attend(shared: &Rc<Shared>) {
    let Some(undertaker) = shared.gate.undertaker() else { return std::future::pending().await };
    shared.lifelines.attend();
    loop {
        while let Some((id, rite)) = shared.lifelines.next() {
            let traces = search(shared, undertaker, &id).await;
            let claimed = |trace: &&Trace| shared.lifelines.is_claimed(&id, trace);
            let mut is_there = |key: &[u8]| exists(&mut shared.engine(), key);
            match rite {
                Rite::Bury => {
                    for trace in traces.iter().filter(claimed) {
                        let steps = undertaker.release(trace, &mut is_there);
                        perform(&mut shared.engine(), steps);
                    }
                    tracing::info!(client = %String::from_utf8_lossy(&id), holds = traces.len(), "a client has died");
                    shared.lifelines.forget(&id);
                }
                Rite::Keep => {
                    // Its places in queues are nobody's any more.
                    let (queued, held): (Vec<Trace>, Vec<Trace>) =
                        traces.into_iter().partition(|trace| trace.place == TracePlace::Queue);
                    for trace in queued.iter().filter(claimed) {
                        let steps = undertaker.release(trace, &mut is_there);
                        perform(&mut shared.engine(), steps);
                    }
                    shared.lifelines.go_on_with(&id, held);
                    shared.gate.keep_soon();
                    drop(shared.engine());
                }
            }
        }
        let mut deaths: FuturesUnordered<_> =
            shared.lifelines.dying().into_iter().map(Process::ended).collect();
        tokio::select! {
            () = shared.lifelines.work.notified() => {}
            Some(()) = deaths.next() => {}
        }
    }
}

/// Finds what belongs to a client. It makes nothing new any more, so that others may be served meanwhile.
async fn search(shared: &Rc<Shared>, undertaker: &dyn Undertaker, id: &[u8]) -> Vec<Trace> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let (traces, next) = traces_from(&shared.engine(), undertaker, id, from);
        found.extend(traces);
        match next {
            Some(next) => from = next,
            None => return found,
        }
        tokio::task::yield_now().await;
    }
}

/// What belongs to a client in so many keys from one on, and where to go on.
pub(super) fn traces_from(
    engine: &Engine,
    undertaker: &dyn Undertaker,
    id: &[u8],
    from: usize,
) -> (Vec<Trace>, Option<usize>) {
    let (queues, permits) = (undertaker.queues_begin_with(), undertaker.permits_end_with());
    engine.traces(id, queues, permits, from, KEYS_AT_ONCE)
}

fn exists(engine: &mut Engine, key: &[u8]) -> bool {
    matches!(engine.call(&[b"exists".as_slice(), key]), Ok(Value::Int(1)))
}

/// Gives back what was held and waited for before the machine was started anew, as far as it did not end by itself.
pub(super) fn bury_all(engine: &mut Engine, undertaker: &dyn Undertaker) {
    for (key, members) in engine.collections() {
        let steps = undertaker.give_back(&key, &members, &mut |key| exists(engine, key));
        perform(engine, steps);
    }
}

pub(super) fn perform(engine: &mut Engine, steps: Vec<Step>) {
    for step in steps {
        let outcome = match step {
            Step::Script { source, keys, args } => engine.eval(source.as_bytes(), &keys, &args),
            Step::Delete { keys } => {
                let words: Vec<&[u8]> =
                    std::iter::once(b"del".as_slice()).chain(keys.iter().map(Vec::as_slice)).collect();
                engine.call(&words)
            }
            Step::Publish { channel, payload } => {
                engine.call(&[b"publish".as_slice(), &channel, payload.as_bytes()])
            }
        };
        if let Err(error) = outcome {
            // Its lease ends it.
            tracing::warn!(error = error.message(), "what a dead client held could not be given back");
        }
    }
}

#[cfg(test)]
mod tests;
