//! Subscriptions: one connection, each channel subscribed once however many listen.
//!
//! The hub never gives up: when its connection ends it connects again, subscribes to everything, and tells every
//! listener that anything may have happened meanwhile. Until then waiters live on their poll interval.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{Dial, backoff::Backoff, lasting::spawn_lasting};
use crate::{
    catch_panic::catch_panic,
    error::{Error, ErrorKind},
    jitter::jittered,
    randomness::{SeededMap, SeededSet, first_of},
    store::{Event, Fault, Listener, SubscribeFuture, Subscription},
};

/// How long a channel stays subscribed after its last listener left: the next waiter often comes at once.
const LINGER: Duration = Duration::from_millis(250);
/// How often the connection is asked for a sign of life, and how long it may take.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a channel is left alone that the account may not listen to.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_secs(5);

type Channel = Arc<[u8]>;
type Confirmation = oneshot::Sender<Result<(), Fault>>;

pub(super) struct Hub {
    orders: mpsc::UnboundedSender<Order>,
    next_listener_id: AtomicU64,
    subscribed: Subscribed,
}

/// The channels that the server has confirmed, for others to ask.
type Subscribed = Arc<Mutex<SeededSet<Channel>>>;

enum Order {
    Add { channel: Channel, id: u64, listener: Listener, confirm: Confirmation },
    Remove { channel: Channel, id: u64 },
    Confirmed { channel: Channel, request: u64, outcome: Result<(), Fault> },
    Pong { connection: u64, alive: bool },
    Redirect(Arc<Dial>),
    Close,
}

/// What comes over the connection, and what the program wants.
enum Heard {
    Message(Option<redis::Msg>),
    Order(Option<Order>),
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

impl Hub {
    pub(super) fn start(dial: Arc<Dial>, background: &Handle) -> Hub {
        Self::start_with(dial, background, false)
    }

    /// A hub for channels whose messages are no numbers: each of them means that anything may have happened.
    pub(super) fn for_opaque_messages(dial: Arc<Dial>, background: &Handle) -> Hub {
        Self::start_with(dial, background, true)
    }

    fn start_with(dial: Arc<Dial>, background: &Handle, opaque_payloads: bool) -> Hub {
        let (orders, inbox) = mpsc::unbounded_channel();
        let task = Task::new(dial, opaque_payloads, orders.downgrade());
        let subscribed = task.subscribed.clone();
        let kept = Arc::new(tokio::sync::Mutex::new((task, inbox)));
        spawn_lasting(background, "subscriptions", move || {
            let kept = kept.clone();
            async move {
                let (task, inbox) = &mut *kept.lock().await;
                task.run(inbox).await;
            }
        });
        Hub { orders, next_listener_id: AtomicU64::new(1), subscribed }
    }

    pub(super) fn subscribe(&self, channel: Channel, listener: Listener) -> SubscribeFuture {
        let id = self.next_listener_id.fetch_add(1, Ordering::Relaxed);
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

    pub(super) fn is_subscribed(&self, channel: &[u8]) -> bool {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).contains(channel)
    }

    /// Another server is to be listened to from now on. Listeners are told when that has begun.
    pub(super) fn redirect(&self, dial: Arc<Dial>) {
        let _ = self.orders.send(Order::Redirect(dial));
    }

    pub(super) fn close(&self) {
        let _ = self.orders.send(Order::Close);
    }
}

#[derive(Default)]
struct Entry {
    listeners: Vec<(u64, Listener)>,
    waiting: Vec<Confirmation>,
    confirmed: bool,
    /// The request that was made for it on this connection. An answer to an earlier one says nothing: the channel was left since.
    request: Option<u64>,
    /// The pauses between requests that are refused in passing.
    refusals: Backoff,
    /// It is in [`retries`](Task::retries).
    is_to_retry: bool,
}

struct Task {
    dial: Arc<Dial>,
    /// Messages are words, as with [`for_opaque_messages`](Hub::for_opaque_messages).
    opaque_payloads: bool,
    orders: mpsc::WeakUnboundedSender<Order>,
    channels: SeededMap<Channel, Entry>,
    /// Which connection answers belong to; an answer about an earlier one is stale.
    connection: u64,
    /// How many requests were made.
    requests: u64,
    linger: Vec<(Instant, Channel)>,
    /// Channels that were refused, and when each of them is asked for again.
    retries: BinaryHeap<Reverse<(Instant, Channel)>>,
    subscribed: Subscribed,
    backoff: Backoff,
}

impl Task {
    fn new(dial: Arc<Dial>, opaque_payloads: bool, orders: mpsc::WeakUnboundedSender<Order>) -> Self {
        let (channels, linger, retries, subscribed, backoff) = Default::default();
        Task {
            dial,
            opaque_payloads,
            orders,
            channels,
            connection: 0,
            requests: 0,
            linger,
            retries,
            subscribed,
            backoff,
        }
    }

    /// Serves one connection after the other until the hub is closed.
    async fn run(&mut self, inbox: &mut mpsc::UnboundedReceiver<Order>) {
        loop {
            for entry in self.channels.values_mut() {
                entry.confirmed = false;
                entry.request = None;
                entry.is_to_retry = false;
            }
            self.retries.clear();
            self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).clear();
            // Nothing is connected before a waiter listens.
            while self.channels.is_empty() {
                match inbox.recv().await {
                    Some(Order::Close) | None => return,
                    Some(order) => self.note(order),
                }
            }
            let Some((sink, stream)) = self.connect(inbox).await else { return };
            let dial = self.dial.clone();
            if !self.serve(sink, stream, inbox).await {
                return;
            }
            if Arc::ptr_eq(&dial, &self.dial) {
                self.backoff.failed();
            }
        }
    }

    /// Connects however long it takes, while orders are noted down. `None` when the hub is closed.
    async fn connect(
        &mut self,
        inbox: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Option<(PubSubSink, PubSubStream)> {
        loop {
            let dial = self.dial.clone();
            let pause = self.backoff.pause();
            let attempt = async {
                tokio::time::sleep(pause).await;
                let connected = dial.bounded(|| async {
                    let stream = dial.stream().await?;
                    PubSub::new(&dial.login(), stream).await.map_err(|error| dial.refused(&error))
                });
                connected.await
            };
            let mut attempt = std::pin::pin!(attempt);
            let outcome = loop {
                tokio::select! {
                    biased;
                    outcome = &mut attempt => break Some(outcome),
                    order = inbox.recv() => match order {
                        Some(Order::Close) | None => return None,
                        Some(order) => self.note(order),
                    },
                }
                if !Arc::ptr_eq(&dial, &self.dial) {
                    break None;
                }
            };
            match outcome {
                Some(Ok(pubsub)) => {
                    self.connection += 1;
                    self.backoff.connected();
                    return Some(pubsub.split());
                }
                Some(Err(error)) => {
                    self.backoff.failed();
                    tracing::debug!(%error, "the subscription connection failed; waiters poll meanwhile");
                }
                // Another server is to be listened to.
                None => {}
            }
        }
    }

    /// Serves one connection until it ends (`true`) or the hub is closed (`false`).
    async fn serve(
        &mut self,
        mut sink: PubSubSink,
        mut stream: PubSubStream,
        inbox: &mut mpsc::UnboundedReceiver<Order>,
    ) -> bool {
        let channels: Vec<Channel> = self.channels.keys().cloned().collect();
        for channel in channels {
            self.request(&sink, channel);
        }
        let mut ping = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let leaving = self.linger.first().map(|(at, _)| *at);
            let asking = self.retries.peek().map(|Reverse((at, _))| *at);
            let message = async { Heard::Message(stream.next().await) };
            let order = async { Heard::Order(inbox.recv().await) };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(leaving.unwrap_or_else(Instant::now)), if leaving.is_some() => {
                    self.leave(&mut sink);
                }
                () = tokio::time::sleep_until(asking.unwrap_or_else(Instant::now)), if asking.is_some() => {
                    self.ask_again(&sink);
                }
                _ = ping.tick() => self.ping(&sink),
                heard = first_of(message, order) => match heard {
                    Heard::Message(Some(message)) => self.deliver(&message),
                    Heard::Message(None) => return true,
                    Heard::Order(Some(Order::Close) | None) => return false,
                    Heard::Order(Some(Order::Add { channel, id, listener, confirm })) => {
                        self.note(Order::Add { channel: channel.clone(), id, listener, confirm });
                        self.request(&sink, channel);
                    }
                    Heard::Order(Some(Order::Confirmed { channel, request, outcome })) => {
                        self.confirmed(&channel, request, outcome);
                    }
                    Heard::Order(Some(order @ Order::Redirect(_))) => {
                        self.note(order);
                        return true;
                    }
                    Heard::Order(Some(Order::Pong { connection, alive: false })) if connection == self.connection => {
                        tracing::debug!("the subscription connection gives no sign of life");
                        return true;
                    }
                    Heard::Order(Some(order)) => self.note(order),
                },
            }
        }
    }

    /// Takes an order down; what it means on the wire is up to the caller, which has a connection.
    fn note(&mut self, order: Order) {
        match order {
            Order::Add { channel, id, listener, confirm } => {
                let entry = self.channels.entry(channel).or_default();
                entry.listeners.push((id, listener));
                if entry.confirmed {
                    catch_panic(|| confirm.send(Ok(())));
                } else {
                    entry.waiting.push(confirm);
                }
            }
            Order::Remove { channel, id } => {
                if let Some(entry) = self.channels.get_mut(&channel) {
                    entry.listeners.retain(|(other, _)| *other != id);
                    entry.waiting.retain(|confirm| !confirm.is_closed());
                    if entry.listeners.is_empty() {
                        match entry.request {
                            Some(_) => self.linger.push((Instant::now() + LINGER, channel)),
                            // It was never asked for, because there is no connection; nor need it be.
                            None => drop(self.channels.remove(&channel)),
                        }
                    }
                }
            }
            Order::Redirect(dial) => {
                // The same address may lead to another server by now.
                if !Arc::ptr_eq(&dial, &self.dial) {
                    self.backoff.begin_anew();
                }
                self.dial = dial;
            }
            Order::Confirmed { .. } | Order::Pong { .. } | Order::Close => {}
        }
    }

    fn request(&mut self, sink: &PubSubSink, channel: Channel) {
        let Some(entry) = self.channels.get_mut(&channel) else { return };
        if entry.request.is_some() {
            return;
        }
        self.requests += 1;
        let request = self.requests;
        entry.request = Some(request);
        let (mut sink, orders) = (sink.clone(), self.orders.clone());
        begin(async move {
            let outcome = match sink.subscribe(&channel[..]).await {
                Ok(()) => Ok(()),
                Err(error) => Err(match error.code() {
                    Some(code) => Fault::server(code, error.detail().unwrap_or("")),
                    None => Fault::NotSent(Error::new(ErrorKind::Unreachable, error.category().to_owned())),
                }),
            };
            if let Some(orders) = orders.upgrade() {
                let _ = orders.send(Order::Confirmed { channel, request, outcome });
            }
        });
    }

    /// A server has answered a request.
    fn confirmed(&mut self, channel: &Channel, request: u64, outcome: Result<(), Fault>) {
        let asked = |entry: &&mut Entry| entry.request == Some(request);
        let Some(entry) = self.channels.get_mut(channel).filter(asked) else { return };
        match outcome {
            Ok(()) => {
                entry.confirmed = true;
                entry.refusals.begin_anew();
                self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.clone());
                let newly_waiting = entry.waiting.len();
                for confirm in entry.waiting.drain(..) {
                    catch_panic(|| confirm.send(Ok(())));
                }
                // Listeners from before this connection may have missed messages.
                if entry.listeners.len() > newly_waiting || newly_waiting == 0 {
                    for (_, listener) in &entry.listeners {
                        catch_panic(|| listener(Event::Resumed));
                    }
                }
            }
            // For instance BUSY or LOADING. The other channels stay as they are.
            Err(Fault::Server(error)) if error.is_retryable() => {
                entry.request = None;
                entry.refusals.failed();
                let pause = entry.refusals.pause();
                self.ask_later(channel, pause);
            }
            // The server refuses: waiting for it would be in vain, so those that wait for it are told and poll. Those that have heard
            // messages before are told again when the right has come back.
            Err(Fault::Server(error)) => {
                entry.request = None;
                for confirm in entry.waiting.drain(..) {
                    catch_panic(|| confirm.send(Err(Fault::Server(error.clone()))));
                }
                self.ask_later(channel, jittered(REFUSED_PAUSE));
            }
            // The connection is about to end; the next one asks again.
            Err(_) => entry.request = None,
        }
    }

    fn ask_later(&mut self, channel: &Channel, pause: Duration) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        if !std::mem::replace(&mut entry.is_to_retry, true) {
            self.retries.push(Reverse((Instant::now() + pause, channel.clone())));
        }
    }

    /// Asks again for channels that were refused, each for itself.
    fn ask_again(&mut self, sink: &PubSubSink) {
        let now = Instant::now();
        while self.retries.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, channel))) = self.retries.pop() else { return };
            if let Some(entry) = self.channels.get_mut(&channel) {
                entry.is_to_retry = false;
            }
            self.request(sink, channel);
        }
    }

    fn deliver(&self, message: &redis::Msg) {
        let payload =
            std::str::from_utf8(message.get_payload_bytes()).ok().and_then(|text| text.parse().ok());
        let event = match payload {
            _ if self.opaque_payloads => Event::Resumed,
            Some(payload) => Event::Message(payload),
            None => {
                tracing::debug!("a message that is no number was ignored");
                return;
            }
        };
        if let Some(entry) = self.channels.get(message.get_channel_name().as_bytes()) {
            for (_, listener) in &entry.listeners {
                catch_panic(|| listener(event));
            }
        }
    }

    fn leave(&mut self, sink: &mut PubSubSink) {
        let now = Instant::now();
        let due = self.linger.partition_point(|(at, _)| *at <= now);
        for (_, channel) in self.linger.drain(..due).collect::<Vec<_>>() {
            if self.channels.get(&channel).is_some_and(|entry| entry.listeners.is_empty()) {
                self.channels.remove(&channel);
                self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).remove(&channel);
                let mut sink = sink.clone();
                begin(async move {
                    let _ = sink.unsubscribe(&channel[..]).await;
                });
            }
        }
    }

    fn ping(&self, sink: &PubSubSink) {
        let (mut sink, orders, connection) = (sink.clone(), self.orders.clone(), self.connection);
        begin(async move {
            // A refusal is an answer: an account need not have the right to PING.
            let alive = match tokio::time::timeout(PING_TIMEOUT, sink.ping::<redis::Value>()).await {
                Ok(Ok(_)) => true,
                Ok(Err(error)) => error.code().is_some(),
                Err(_) => false,
            };
            if let Some(orders) = orders.upgrade() {
                let _ = orders.send(Order::Pong { connection, alive });
            }
        });
    }
}

/// Makes a request here and now, and has it wait for its answer by itself: requests go out in the order in which they were made, and many
/// are on the way at once. The first poll of a request puts it into the queue of the connection, which is always open for it.
fn begin(request: impl Future<Output = ()> + Send + 'static) {
    let mut request = Box::pin(request);
    if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(request);
    }
}

#[cfg(test)]
mod tests;
