//! All subscriptions of a cluster store: each channel is listened to at the master of its slot, and goes where the slot goes.
//!
//! Plain messages reach every node, but a script only counts listeners at its own, and Redisson too listens at the slot's
//! master. When a channel has changed its place, or its connection was interrupted, every listener is told that anything may
//! have happened meanwhile. Until then waiters live on their poll interval.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    hub::REFUSED_PAUSE,
    lasting::spawn_lasting,
    redirect::Redirect,
    sharded_link::{Channel, Heard, ShardedLink, Way},
    slots::slot_of,
    topology::Topology,
};
use crate::{
    catch_panic::catch_panic,
    config::addr::Addr,
    error::{Error, ErrorKind},
    jitter::jittered,
    randomness::SeededMap,
    store::{Event, Fault, Listener, SubscribeFuture, Subscription},
};

/// How long a channel stays subscribed after its last listener left: the next waiter often comes at once.
const LINGER: Duration = Duration::from_millis(250);
/// How long a channel rests that was refused where it should have been welcome.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The ways of listening. Servers before 7 know only plain messages, and are content with those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ways {
    One(Way),
    Both,
}

impl Ways {
    pub(super) fn each(self) -> &'static [Way] {
        match self {
            Ways::One(Way::Plain) => &[Way::Plain],
            Ways::One(Way::Sharded) => &[Way::Sharded],
            Ways::Both => &[Way::Plain, Way::Sharded],
        }
    }
}

/// Some of the ways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Set(u8);

impl Set {
    fn with(self, way: Way) -> Set {
        Set(self.0 | 1 << way as u8)
    }

    fn without(self, way: Way) -> Set {
        Set(self.0 & !(1 << way as u8))
    }

    fn has(self, way: Way) -> bool {
        self.with(way) == self
    }

    fn len(self) -> i64 {
        self.0.count_ones().into()
    }
}

type Confirmation = oneshot::Sender<Result<(), Fault>>;

/// Where the channels are confirmed that others may ask for, and in how many ways.
type Subscribed = Arc<Mutex<SeededMap<Channel, (Addr, i64)>>>;

pub(super) struct ShardedHub {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicU64,
    subscribed: Subscribed,
}

enum Order {
    Add { channel: Channel, id: u64, listener: Listener, confirm: Confirmation },
    Remove { channel: Channel, id: u64 },
    Heard { ear: u64, heard: Heard },
    Close,
}

struct Ticket {
    orders: mpsc::UnboundedSender<Order>,
    channel: Channel,
    id: u64,
}

impl Subscription for Ticket {}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Remove { channel: self.channel.clone(), id: self.id });
    }
}

impl ShardedHub {
    pub(super) fn start(topology: Arc<Topology>, ways: Ways, background: &Handle) -> ShardedHub {
        let (orders, inbox) = mpsc::unbounded_channel();
        let subscribed = Subscribed::default();
        let task = Task {
            topology,
            ways,
            background: background.clone(),
            orders: orders.downgrade(),
            channels: SeededMap::default(),
            ears: SeededMap::default(),
            next_ear: 0,
            requests: 0,
            later: BinaryHeap::new(),
            subscribed: subscribed.clone(),
        };
        let kept = Arc::new(tokio::sync::Mutex::new((task, inbox)));
        spawn_lasting(background, "subscriptions of a cluster", move || {
            let kept = kept.clone();
            async move {
                let (task, inbox) = &mut *kept.lock().await;
                task.run(inbox).await;
            }
        });
        ShardedHub { orders, next: AtomicU64::new(1), subscribed }
    }

    pub(super) fn subscribe(&self, channel: Channel, listener: Listener) -> SubscribeFuture {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (confirm, confirmed) = oneshot::channel();
        let orders = self.orders.clone();
        let sent = orders.send(Order::Add { channel: channel.clone(), id, listener, confirm });
        // The ticket exists before the confirmation, so that a dropped future takes its order back.
        let ticket = Ticket { orders, channel, id };
        Box::pin(async move {
            let closed = || Fault::NotSent(Error::new(ErrorKind::Closed, "the client was shut down"));
            sent.map_err(|_| closed())?;
            confirmed.await.map_err(|_| closed())??;
            Ok(Box::new(ticket) as Box<dyn Subscription>)
        })
    }

    /// In how many ways this channel is heard at that server.
    pub(super) fn heard_at(&self, channel: &[u8], addr: &Addr) -> i64 {
        let subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        subscribed.get(channel).filter(|(at, _)| at == addr).map_or(0, |(_, ways)| *ways)
    }

    pub(super) fn close(&self) {
        let _ = self.orders.send(Order::Close);
    }
}

#[derive(Default)]
struct Entry {
    slot: u16,
    listeners: Vec<(u64, Listener)>,
    waiting: Vec<Confirmation>,
    /// The server that listens for it, and what it has been asked. An answer to anything else says nothing: the channel was left since.
    at: Option<Addr>,
    asked: Option<u64>,
    /// The ways in which it is heard there, and those that the server does not know.
    heard: Set,
    lacking: Set,
    confirmed: bool,
    /// It was refused, and is asked for again later.
    is_refused: bool,
}

impl Entry {
    /// Nothing is heard any more.
    fn silent(&mut self) {
        (self.asked, self.confirmed) = (None, false);
        (self.heard, self.lacking) = (Set::default(), Set::default());
    }
}

/// A server that is listened to.
struct Spot {
    id: u64,
    /// The age of the address when it was connected to.
    age: u64,
    ear: ShardedLink,
    up: bool,
    channels: usize,
}

struct Task {
    topology: Arc<Topology>,
    ways: Ways,
    background: Handle,
    orders: mpsc::WeakUnboundedSender<Order>,
    channels: SeededMap<Channel, Entry>,
    ears: SeededMap<Addr, Spot>,
    next_ear: u64,
    /// How many requests were made.
    requests: u64,
    /// Channels to look at again: to be left, or to be asked for again.
    later: BinaryHeap<Reverse<(Instant, Channel)>>,
    subscribed: Subscribed,
}

impl Task {
    async fn run(&mut self, inbox: &mut mpsc::UnboundedReceiver<Order>) {
        let mut changes = self.topology.changes();
        self.begin_anew();
        loop {
            let due = self.later.peek().map(|Reverse((at, _))| *at);
            tokio::select! {
                biased;
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.leave_those_led_astray();
                    for channel in self.channels.keys().cloned().collect::<Vec<_>>() {
                        self.settle(&channel);
                    }
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.look_again(),
                order = inbox.recv() => match order {
                    Some(Order::Close) | None => return,
                    Some(order) => self.take(order),
                },
            }
        }
    }

    /// Listens to all channels over new connections. What a task that has panicked left half done is done by that.
    fn begin_anew(&mut self) {
        self.ears.clear();
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for entry in self.channels.values_mut() {
            entry.at = None;
            entry.silent();
        }
        let now = Instant::now();
        self.later = self.channels.keys().map(|channel| Reverse((now, channel.clone()))).collect();
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Add { channel, id, listener, confirm } => {
                let entry = self.channels.entry(channel.clone()).or_default();
                entry.slot = slot_of(&channel);
                entry.listeners.push((id, listener));
                if entry.confirmed {
                    catch_panic(|| confirm.send(Ok(())));
                } else {
                    entry.waiting.push(confirm);
                    self.settle(&channel);
                }
            }
            Order::Remove { channel, id } => {
                if let Some(entry) = self.channels.get_mut(&channel) {
                    entry.listeners.retain(|(other, _)| *other != id);
                    entry.waiting.retain(|confirm| !confirm.is_closed());
                    if entry.listeners.is_empty() {
                        self.later.push(Reverse((Instant::now() + LINGER, channel)));
                    }
                }
            }
            Order::Heard { ear, heard } => self.heard(ear, heard),
            Order::Close => {}
        }
    }

    /// Sees to it that a channel is listened to where its slot is.
    fn settle(&mut self, channel: &Channel) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        let Some(owner) = self.topology.owner(entry.slot) else {
            self.topology.look();
            self.later.push(Reverse((Instant::now() + jittered(RETRY_DELAY), channel.clone())));
            return;
        };
        if entry.at.as_ref() == Some(&owner.addr) {
            if entry.asked.is_none()
                && !entry.confirmed
                && self.ears.get(&owner.addr).is_some_and(|spot| spot.up)
            {
                self.ask(channel, &owner.addr);
            }
            return;
        }
        let before = entry.at.replace(owner.addr.clone());
        entry.silent();
        self.unlisted(channel);
        if let Some(before) = before {
            self.leave_spot(channel, &before);
        }
        let (next, background, orders) = (&mut self.next_ear, &self.background, &self.orders);
        let spot = self.ears.entry(owner.addr.clone()).or_insert_with(|| {
            *next += 1;
            let (id, orders) = (*next, orders.clone());
            let tell = Box::new(move |heard| {
                if let Some(orders) = orders.upgrade() {
                    let _ = orders.send(Order::Heard { ear: id, heard });
                }
            });
            // Before it connects: an address that comes to lead elsewhere meanwhile is connected to once more.
            let age = owner.age();
            let ear = ShardedLink::open(owner.dial.clone(), background, tell);
            Spot { id, age, ear, up: false, channels: 0 }
        });
        spot.channels += 1;
        if spot.up {
            self.ask(channel, &owner.addr);
        }
    }

    /// Leaves the servers whose address leads elsewhere by now than the connection does. Their channels are nowhere then.
    fn leave_those_led_astray(&mut self) {
        let is_astray = |(addr, spot): &(&Addr, &Spot)| self.topology.member(addr).age() != spot.age;
        let astray: Vec<Addr> = self.ears.iter().filter(is_astray).map(|(addr, _)| addr.clone()).collect();
        for addr in astray {
            self.ears.remove(&addr);
            for channel in self.at(&addr) {
                if let Some(entry) = self.channels.get_mut(&channel) {
                    entry.at = None;
                    entry.silent();
                }
                self.unlisted(&channel);
            }
        }
    }

    /// Asks a server for a channel.
    fn ask(&mut self, channel: &Channel, addr: &Addr) {
        let (Some(entry), Some(spot)) = (self.channels.get_mut(channel), self.ears.get(addr)) else { return };
        self.requests += 1;
        entry.asked = Some(self.requests);
        for way in self.ways.each() {
            spot.ear.order(true, *way, channel, self.requests);
        }
    }

    /// Ends to listen at a server, which is left altogether with its last channel.
    fn leave_spot(&mut self, channel: &Channel, addr: &Addr) {
        let Some(spot) = self.ears.get_mut(addr) else { return };
        spot.channels -= 1;
        if spot.channels == 0 {
            self.ears.remove(addr);
        } else if spot.up {
            for way in self.ways.each() {
                spot.ear.order(false, *way, channel, self.requests);
            }
        }
    }

    fn unlisted(&self, channel: &Channel) {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).remove(channel);
    }

    fn heard(&mut self, ear: u64, heard: Heard) {
        // What an ear told before it was left is of no interest.
        let Some((addr, up)) = self
            .ears
            .iter_mut()
            .find(|(_, spot)| spot.id == ear)
            .map(|(addr, spot)| (addr.clone(), &mut spot.up))
        else {
            return;
        };
        match heard {
            Heard::Up => {
                *up = true;
                for channel in self.at(&addr) {
                    self.ask(&channel, &addr);
                }
            }
            Heard::Down => {
                *up = false;
                for channel in self.at(&addr) {
                    if let Some(entry) = self.channels.get_mut(&channel) {
                        entry.silent();
                    }
                    self.unlisted(&channel);
                }
                self.topology.look();
            }
            Heard::Confirmed { way, channel, number } => {
                if let Some(entry) = self.channels.get_mut(&channel)
                    && entry.at.as_ref() == Some(&addr)
                    && entry.asked == Some(number)
                {
                    entry.heard = entry.heard.with(way);
                    self.check(&channel, &addr);
                }
            }
            Heard::Refused { way, channel, number, code, detail } => {
                if self.channels.get(&channel).is_some_and(|entry| entry.asked == Some(number)) {
                    self.refused(&addr, way, &channel, &code, &detail);
                }
            }
            Heard::Ended(channel) => {
                if let Some(entry) = self.channels.get_mut(&channel[..])
                    && entry.at.as_ref() == Some(&addr)
                {
                    entry.heard = entry.heard.without(Way::Sharded);
                    (entry.confirmed, entry.asked) = (false, None);
                    let channel: Channel = channel.into();
                    self.unlisted(&channel);
                    self.topology.look();
                    self.later.push(Reverse((Instant::now() + jittered(RETRY_DELAY), channel)));
                }
            }
            Heard::Message { channel, payload } => {
                if let Some(entry) = self.channels.get(&channel[..]) {
                    for (_, listener) in &entry.listeners {
                        catch_panic(|| listener(Event::Message(payload)));
                    }
                }
            }
        }
    }

    /// The channels that are, or are to be, listened to at a server.
    fn at(&self, addr: &Addr) -> Vec<Channel> {
        let there = self.channels.iter().filter(|(_, entry)| entry.at.as_ref() == Some(addr));
        there.map(|(channel, _)| channel.clone()).collect()
    }

    /// Tells everybody when a channel is heard in every way there is.
    fn check(&mut self, channel: &Channel, addr: &Addr) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        let complete = self.ways.each().iter().all(|way| entry.heard.has(*way) || entry.lacking.has(*way));
        if !complete || std::mem::replace(&mut entry.confirmed, true) {
            return;
        }
        let place = (addr.clone(), entry.heard.len());
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.clone(), place);
        let early = entry.waiting.len();
        for confirm in entry.waiting.drain(..) {
            catch_panic(|| confirm.send(Ok(())));
        }
        if entry.listeners.len() > early || early == 0 {
            for (_, listener) in &entry.listeners {
                catch_panic(|| listener(Event::Resumed));
            }
        }
    }

    fn refused(&mut self, addr: &Addr, way: Way, channel: &Channel, code: &str, detail: &str) {
        let Some(entry) = self.channels.get_mut(channel).filter(|entry| entry.at.as_ref() == Some(addr))
        else {
            return;
        };
        let member = self.topology.member(addr);
        match Redirect::read(code, detail, &member.dial) {
            Some(redirect) => {
                entry.asked = None;
                match redirect {
                    Redirect::Moved { slot, to: Some(to) } => self.topology.moved(slot, addr, &to),
                    Redirect::Here => self.topology.connect_anew(&member),
                    Redirect::Moved { to: None, .. }
                    | Redirect::Ask(_)
                    | Redirect::Split
                    | Redirect::Later
                    | Redirect::Astray
                    | Redirect::Halfway => self.topology.look(),
                }
                // In case that the slot is here after all.
                self.later.push(Reverse((Instant::now() + jittered(RETRY_DELAY), channel.clone())));
            }
            // A server that knows no sharded messages sends none.
            None if self.ways == Ways::Both && way == Way::Sharded && detail.contains("unknown command") => {
                entry.lacking = entry.lacking.with(way);
                self.check(channel, addr);
            }
            // As a script that runs too long.
            None if Fault::server(code, detail).error().is_retryable() => {
                entry.asked = None;
                self.later.push(Reverse((Instant::now() + jittered(RETRY_DELAY), channel.clone())));
            }
            // Waiting for it would be in vain, so those that wait for it are told and poll. Those that have heard messages before are told
            // again when the right has come back.
            None => {
                entry.asked = None;
                if !std::mem::replace(&mut entry.is_refused, true) {
                    self.later.push(Reverse((Instant::now() + jittered(REFUSED_PAUSE), channel.clone())));
                }
                let error = Fault::server(code, detail).into_error();
                for confirm in entry.waiting.drain(..) {
                    catch_panic(|| confirm.send(Err(Fault::Server(error.clone()))));
                }
            }
        }
    }

    fn look_again(&mut self) {
        let now = Instant::now();
        while self.later.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, channel))) = self.later.pop() else { return };
            if let Some(entry) = self.channels.get_mut(&channel) {
                entry.is_refused = false;
            }
            match self.channels.get(&channel) {
                Some(entry) if entry.listeners.is_empty() => {
                    let at = self.channels.remove(&channel).and_then(|entry| entry.at);
                    self.unlisted(&channel);
                    if let Some(addr) = at {
                        self.leave_spot(&channel, &addr);
                    }
                }
                Some(_) => self.settle(&channel),
                None => {}
            }
        }
    }
}
