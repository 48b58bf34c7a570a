//! What a model is: the calls that there are, what each of three owners knows, and what may happen next.

use std::{fmt::Debug, hash::Hash, sync::Arc};

use super::keyspace::Keyspace;

/// How long a step of time is.
pub(super) const TICK_MS: i64 = 1000;
/// The lease of a hold, in whole ticks, so that ends and looks also come at one moment.
pub(super) const LEASE_MS: i64 = 2 * TICK_MS;
/// By how much an owner's deadline is earlier than the lease, as in `docs/safety.md`.
const MARGIN_MS: i64 = 20;
/// What a holder that is granted a lease may count on, from the sending.
pub(super) const VALID_MS: i16 = (LEASE_MS - MARGIN_MS) as i16;
/// How many hear of each message, so that a reply shows whether there was one.
pub(super) const HEARD: i64 = 3;
pub(super) const OWNERS: usize = 3;

/// A call to the server. What the numbers mean is the verb's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call<V> {
    pub(super) verb: V,
    pub(super) by: u8,
    pub(super) to: u8,
    pub(super) n: i16,
}

/// What goes over the wire for it.
pub(super) struct Words {
    pub(super) script: &'static str,
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<String>,
}

/// Words that are set apart by spaces; `_` is an empty one.
pub(super) fn words(script: &'static str, keys: &str, args: &str) -> Words {
    let split = |text: &str| {
        let words = text.split_whitespace().map(|word| if word == "_" { "" } else { word });
        words.map(str::to_owned).collect()
    };
    Words { script, keys: split(keys), args: split(args) }
}

/// A keyspace that was reached. All that is the same is one.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: u32,
    pub(super) keys: Arc<Keyspace>,
    /// What is wrong with it, whoever knows what.
    pub(super) wrong: Option<String>,
}

/// What a call came to.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) after: Arc<Known>,
    /// Without the number that it begins with.
    pub(super) reply: Vec<i64>,
    pub(super) told: Vec<(String, String)>,
    /// What is wrong with the reply, the messages or the change.
    pub(super) wrong: Option<String>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It ran, and its answer came.
    Answered,
    /// It ran, and its answer was lost.
    Lost,
    /// It never ran, and never will.
    Unsent,
    /// It is on its way, and its sender has given up waiting.
    Delayed,
    /// It runs now, and nobody waits for its answer.
    Late,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What<V> {
    Call(Call<V>, How),
    /// Something that needs no server, and to which of the owners.
    Event(&'static str, usize),
}

#[derive(Debug)]
pub(super) struct World<M: Model> {
    pub(super) server: Arc<Known>,
    pub(super) minds: [M::Mind; OWNERS],
    /// A request that is still on its way.
    pub(super) late: Option<Call<M::Verb>>,
    /// What the oracle remembers.
    pub(super) memory: M::Memory,
}

impl<M: Model> Clone for World<M> {
    fn clone(&self) -> Self {
        World {
            server: Arc::clone(&self.server),
            minds: self.minds,
            late: self.late,
            memory: self.memory.clone(),
        }
    }
}

impl<M: Model> Hash for World<M> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.server.id.hash(state);
        self.minds.hash(state);
        self.late.hash(state);
        self.memory.hash(state);
    }
}

pub(super) struct Step<M: Model> {
    pub(super) what: What<M::Verb>,
    pub(super) next: World<M>,
    pub(super) wrong: Option<String>,
}

/// Runs calls; one for each thread.
pub(super) trait Desk<M: Model> {
    /// Everything that the call may come to: more than one only where the script picks at random.
    fn call(&mut self, before: &Arc<Known>, call: Call<M::Verb>) -> Arc<[Ran]>;
    /// The same server one tick later.
    fn tick(&mut self, before: &Arc<Known>) -> Arc<Known>;
}

pub(super) type Judged = Result<(), String>;

pub(super) trait Model: Sync + Sized {
    type Verb: Copy + Debug + Eq + Hash + Send + Sync;
    type Mind: Copy + Debug + Hash + Send + Sync;
    type Memory: Clone + Debug + Hash + Send + Sync;

    /// Whether answers are lost and requests late. Without that a search comes further for its time.
    fn has_faults(&self) -> bool {
        true
    }
    fn first(&self) -> (Keyspace, [Self::Mind; OWNERS], Self::Memory);
    fn words(&self, call: Call<Self::Verb>) -> Words;
    /// Whether a call that ran did what it should: reply, messages and change.
    fn contract(&self, call: Call<Self::Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged;
    /// Whether a server may look like this, whoever knows what.
    fn sound(&self, keys: &Keyspace) -> Judged;
    /// Whether what the owners know may be so.
    fn judge(&self, world: &World<Self>) -> Judged;
    /// Everything that may happen.
    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>);
    /// What a tick does to what is known.
    fn tick(&self, world: &mut World<Self>);
    /// Forgets what makes no difference any more.
    fn tidy(&self, world: &mut World<Self>);
    /// What is known of it when a request runs that was on its way.
    fn arrives(&self, world: &mut World<Self>, call: Call<Self::Verb>, ran: &Ran);
}

/// The world from which steps are made.
pub(super) struct Asking<'a, M: Model> {
    pub(super) world: &'a World<M>,
    pub(super) has_faults: bool,
}

impl<M: Model> Asking<'_, M> {
    /// A request in all its fates. `answered` says what its sender learns from the answer, `unanswered` what it knows without one.
    pub(super) fn ask(
        &self,
        desk: &mut dyn Desk<M>,
        out: &mut Vec<Step<M>>,
        call: Call<M::Verb>,
        answered: impl Fn(&mut World<M>, &Ran) -> Judged,
        unanswered: impl Fn(&mut World<M>),
    ) {
        let mut add = |how, next, wrong| out.push(Step { what: What::Call(call, how), next, wrong });
        for ran in desk.call(&self.world.server, call).iter() {
            let mut next = self.world.clone();
            next.server = Arc::clone(&ran.after);
            let mut unheard = next.clone();
            let wrong = ran.wrong.clone().or_else(|| answered(&mut next, ran).err());
            add(How::Answered, next, wrong);
            if !self.has_faults {
                continue;
            }
            unanswered(&mut unheard);
            add(How::Lost, unheard, ran.wrong.clone());
        }
        if !self.has_faults {
            return;
        }
        let mut next = self.world.clone();
        unanswered(&mut next);
        if next.late.is_none() {
            let mut delayed = next.clone();
            delayed.late = Some(call);
            add(How::Delayed, delayed, None);
        }
        add(How::Unsent, next, None);
    }

    /// A request whose answer comes.
    pub(super) fn tell(
        &self,
        desk: &mut dyn Desk<M>,
        out: &mut Vec<Step<M>>,
        call: Call<M::Verb>,
        answered: impl Fn(&mut World<M>, &Ran) -> Judged,
    ) {
        for ran in desk.call(&self.world.server, call).iter() {
            let mut next = self.world.clone();
            next.server = Arc::clone(&ran.after);
            let wrong = ran.wrong.clone().or_else(|| answered(&mut next, ran).err());
            out.push(Step { what: What::Call(call, How::Answered), next, wrong });
        }
    }

    pub(super) fn event(
        &self,
        out: &mut Vec<Step<M>>,
        name: &'static str,
        whom: usize,
        change: impl FnOnce(&mut World<M>),
    ) {
        let mut next = self.world.clone();
        change(&mut next);
        out.push(Step { what: What::Event(name, whom), next, wrong: None });
    }
}

/// All steps from a world, with those that every model has: time, and what is on its way.
pub(super) fn steps<M: Model>(model: &M, world: &World<M>, desk: &mut dyn Desk<M>) -> Vec<Step<M>> {
    let mut out = Vec::with_capacity(64);
    let from = Asking { world, has_faults: model.has_faults() };
    from.event(&mut out, "a tick passes", OWNERS, |next| {
        next.server = desk.tick(&world.server);
        model.tick(next);
    });
    if let Some(call) = world.late {
        for ran in desk.call(&world.server, call).iter() {
            let mut next = world.clone();
            next.server = Arc::clone(&ran.after);
            next.late = None;
            if ran.wrong.is_none() {
                model.arrives(&mut next, call, ran);
            }
            out.push(Step { what: What::Call(call, How::Late), next, wrong: ran.wrong.clone() });
        }
        from.event(&mut out, "what was on its way is lost", usize::from(call.by), |next| next.late = None);
    }
    model.steps(&from, desk, &mut out);
    for step in &mut out {
        model.tidy(&mut step.next);
    }
    out
}

/// Whether a time that has been told is what it should be.
pub(super) fn same<T: PartialEq + Debug>(what: &str, found: &T, wanted: &T) -> Judged {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found:?} and should be {wanted:?}")) }
}
