//! One subscription connection to a node of a cluster: plain and sharded channels over one socket.
//!
//! The client library offers no sharded subscriptions over the older form of the protocol, and in the newer form it takes a
//! subscription that a server ended on its own for the answer to some request. So this connection speaks for itself: each
//! request names one channel and has one answer, in order, and everything else was not asked for.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use futures_util::future::Either;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    runtime::Handle,
    sync::mpsc,
    time::Instant,
};

use super::{Dial, backoff::Backoff, connect::Stream, lasting::spawn_lasting};
use crate::{error::Error, randomness::first_of, store::Fault};

/// How often the connection is asked for a sign of life, and how long an answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The largest message that is read; those about locks are numbers.
const MESSAGE_BYTES_MAX: i64 = 1 << 20;
const ITEMS_MAX: i64 = 16;
/// How much may be read before it makes sense.
const FRAME_BYTES_MAX: usize = 2 << 20;
/// Room for each read.
const READ_BYTES: usize = 16 * 1024;

pub(super) type Channel = Arc<[u8]>;

/// The two kinds of publish and subscribe. Neither hears the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Every node passes every message on to all others.
    Plain,
    /// Messages stay with the nodes of the channel's slot.
    Sharded,
}

impl Way {
    fn verb(self, listen: bool) -> &'static str {
        match (self, listen) {
            (Way::Plain, true) => "SUBSCRIBE",
            (Way::Plain, false) => "UNSUBSCRIBE",
            (Way::Sharded, true) => "SSUBSCRIBE",
            (Way::Sharded, false) => "SUNSUBSCRIBE",
        }
    }
}

/// What comes first: the program wants something, or the server has sent something.
enum Came {
    Order(Option<Order>),
    Bytes(io::Result<usize>),
}

/// What an ear tells.
pub(super) enum Heard {
    /// Connected: nothing is subscribed yet.
    Up,
    /// The connection ended; it is being made again.
    Down,
    Confirmed {
        way: Way,
        channel: Channel,
        number: u64,
    },
    Refused {
        way: Way,
        channel: Channel,
        number: u64,
        code: String,
        detail: String,
    },
    /// The server ended a sharded subscription on its own: the slot has gone.
    Ended(Vec<u8>),
    Message {
        channel: Vec<u8>,
        payload: i64,
    },
}

pub(super) type Tell = Box<dyn Fn(Heard) + Send + Sync>;

/// A subscription connection that comes back by itself; dropping it ends it.
pub(super) struct ShardedLink {
    orders: mpsc::UnboundedSender<Order>,
}

struct Order {
    listen: bool,
    way: Way,
    channel: Channel,
    number: u64,
}

impl ShardedLink {
    pub(super) fn open(dial: Arc<Dial>, background: &Handle, tell: Tell) -> ShardedLink {
        let (orders, inbox) = mpsc::unbounded_channel();
        let kept = Arc::new(tokio::sync::Mutex::new((inbox, tell)));
        let mut is_new = true;
        spawn_lasting(background, "a subscription connection", move || {
            let (kept, dial) = (kept.clone(), dial.clone());
            let is_new = std::mem::replace(&mut is_new, false);
            async move {
                let (inbox, tell) = &mut *kept.lock().await;
                if !is_new {
                    tell(Heard::Down);
                }
                run(&dial, inbox, tell).await;
            }
        });
        ShardedLink { orders }
    }

    /// Begins or ends to listen. Orders that are given while it is not connected are forgotten, see [`Heard::Up`]. Answers have the
    /// number of what they are answers to.
    pub(super) fn order(&self, listen: bool, way: Way, channel: &Channel, number: u64) {
        let _ = self.orders.send(Order { listen, way, channel: channel.clone(), number });
    }
}

async fn run(dial: &Dial, inbox: &mut mpsc::UnboundedReceiver<Order>, tell: &Tell) {
    let mut backoff = Backoff::default();
    loop {
        let pause = std::pin::pin!(tokio::time::sleep(backoff.pause()));
        if meanwhile(pause, inbox).await.is_none() {
            return;
        }
        let attempt = std::pin::pin!(connect(dial));
        let Some(outcome) = meanwhile(attempt, inbox).await else { return };
        match outcome {
            Ok(wire) => {
                backoff.connected();
                // What was ordered before is asked for again by the hub, which hears of the connection.
                while inbox.try_recv().is_ok() {}
                tell(Heard::Up);
                if !wire.serve(inbox, tell).await {
                    return;
                }
                tell(Heard::Down);
            }
            Err(error) => {
                tracing::debug!(%error, "a subscription connection failed; waiters poll meanwhile");
                tell(Heard::Down);
            }
        }
        backoff.failed();
    }
}

/// Waits for some work, unless the ear is dropped (`None`); orders come to nothing meanwhile.
async fn meanwhile<T>(
    mut work: impl Future<Output = T> + Unpin,
    inbox: &mut mpsc::UnboundedReceiver<Order>,
) -> Option<T> {
    loop {
        let order = std::pin::pin!(inbox.recv());
        match futures_util::future::select(work, order).await {
            Either::Left((outcome, _)) => return Some(outcome),
            Either::Right((None, _)) => return None,
            Either::Right((Some(_), rest)) => work = rest,
        }
    }
}

/// An answer that is due.
struct Due {
    what: Asked,
    since: Instant,
}

enum Asked {
    Channel(Order),
    Ping,
}

/// A connection, and what has been read and not understood yet, or said and not sent.
struct Wire {
    stream: Stream,
    talk: Talk,
}

#[derive(Default)]
struct Talk {
    input: Vec<u8>,
    output: Vec<u8>,
    due: VecDeque<Due>,
}

async fn connect(dial: &Dial) -> Result<Wire, Error> {
    dial.bounded(|| async {
        let mut wire = Wire { stream: dial.stream().await?, talk: Talk::default() };
        let (username, password) = dial.credentials();
        let login: &[&[u8]] = match (username, &password.0) {
            (Some(username), Some(password)) => &[b"AUTH", username.as_bytes(), password.as_bytes()],
            (None, Some(password)) => &[b"AUTH", password.as_bytes()],
            (_, None) => return Ok(wire),
        };
        wire.talk.write(login);
        match wire.answer().await.map_err(|error| dial.unreachable(error))? {
            Frame::Error(text) => {
                // A server that does not know the command repeats its arguments, the password among them.
                let (code, _) = words(&text);
                Err(Fault::server_at(Some(&dial.describe()), code, "the log-in was refused").into_error())
            }
            _ => Ok(wire),
        }
    })
    .await
}

impl Wire {
    /// Sends what is to be sent and reads one answer, for the log-in.
    async fn answer(&mut self) -> io::Result<Frame> {
        self.stream.write_all(&std::mem::take(&mut self.talk.output)).await?;
        self.stream.flush().await?;
        loop {
            if let Some(frame) = self.talk.next()? {
                return Ok(frame);
            }
            if self.stream.read_buf(&mut self.talk.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Serves the connection until it ends (`true`) or nobody wants it any more (`false`).
    async fn serve(self, inbox: &mut mpsc::UnboundedReceiver<Order>, tell: &Tell) -> bool {
        let Wire { stream, mut talk } = self;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut ping = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut flushed = true;
        loop {
            talk.input.reserve(READ_BYTES);
            let late = talk.due.front().map(|due| due.since + ANSWER_TIMEOUT);
            let order = async { Came::Order(inbox.recv().await) };
            let read = async { Came::Bytes(reader.read_buf(&mut talk.input).await) };
            let outcome = tokio::select! {
                biased;
                written = push(&mut writer, &talk.output), if !flushed || !talk.output.is_empty() => {
                    flushed = talk.output.is_empty();
                    written.map(|len| drop(talk.output.drain(..len)))
                }
                _ = ping.tick() => {
                    talk.ask(Asked::Ping);
                    Ok(())
                }
                heard = first_of(order, read) => match heard {
                    Came::Order(Some(order)) => {
                        talk.ask(Asked::Channel(order));
                        Ok(())
                    }
                    Came::Order(None) => return false,
                    Came::Bytes(Ok(0)) => return true,
                    Came::Bytes(Ok(_)) => talk.hear(tell),
                    Came::Bytes(Err(error)) => Err(error),
                },
                () = tokio::time::sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                    Err(io::ErrorKind::TimedOut.into())
                }
            };
            if let Err(error) = outcome {
                tracing::debug!(%error, "a subscription connection ended");
                return true;
            }
        }
    }
}

/// Sends some of the bytes, or sees to it that those before have gone.
async fn push(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    writer.write(bytes).await
}

impl Talk {
    fn write(&mut self, parts: &[&[u8]]) {
        self.output.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
        for part in parts {
            self.output.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            self.output.extend_from_slice(part);
            self.output.extend_from_slice(b"\r\n");
        }
    }

    fn ask(&mut self, what: Asked) {
        match &what {
            Asked::Channel(order) => self.write(&[order.way.verb(order.listen).as_bytes(), &order.channel]),
            Asked::Ping => self.write(&[b"PING"]),
        }
        self.due.push_back(Due { what, since: Instant::now() });
    }

    /// The next whole frame that was read.
    fn next(&mut self) -> io::Result<Option<Frame>> {
        let Some((frame, len)) = frame(&self.input, 0)? else {
            let long = self.input.len() > FRAME_BYTES_MAX;
            return if long { Err(io::ErrorKind::InvalidData.into()) } else { Ok(None) };
        };
        self.input.drain(..len);
        Ok(Some(frame))
    }

    /// Passes on what was read.
    fn hear(&mut self, tell: &Tell) -> io::Result<()> {
        let mut last: Option<(Vec<u8>, i64)> = None;
        while let Some(frame) = self.next()? {
            match frame {
                Frame::Error(text) => match self.due.pop_front().map(|due| due.what) {
                    Some(Asked::Channel(Order { listen: true, way, channel, number })) => {
                        let (code, detail) = words(&text);
                        tell(Heard::Refused {
                            way,
                            channel,
                            number,
                            code: code.to_owned(),
                            detail: detail.to_owned(),
                        });
                    }
                    Some(_) => {}
                    None => return Err(io::ErrorKind::InvalidData.into()),
                },
                Frame::Text(_) => match self.due.pop_front().map(|due| due.what) {
                    Some(Asked::Ping) => {}
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                },
                Frame::Array(items) => {
                    let mut items = items.into_iter().filter_map(Frame::bytes);
                    let (kind, channel) =
                        (items.next().unwrap_or_default(), items.next().unwrap_or_default());
                    match &kind[..] {
                        b"message" | b"smessage" => {
                            let payload =
                                items.next().and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
                            let Some(payload) = payload else {
                                tracing::debug!("a message that is no number was ignored");
                                continue;
                            };
                            // A message that was sent both ways says nothing new when it comes with its twin.
                            let twin = kind[0] == b's'
                                && last
                                    .take()
                                    .is_some_and(|(before, said)| before == channel && said == payload);
                            if twin {
                                continue;
                            }
                            last = (kind[0] == b'm').then(|| (channel.clone(), payload));
                            tell(Heard::Message { channel, payload });
                        }
                        b"subscribe" | b"ssubscribe" => match self.due.pop_front().map(|due| due.what) {
                            Some(Asked::Channel(order)) if order.listen && *order.channel == channel[..] => {
                                let Order { way, channel, number, .. } = order;
                                tell(Heard::Confirmed { way, channel, number });
                            }
                            _ => return Err(io::ErrorKind::InvalidData.into()),
                        },
                        b"unsubscribe" | b"sunsubscribe" => {
                            let asked = matches!(
                                self.due.front().map(|due| &due.what),
                                Some(Asked::Channel(order)) if !order.listen && *order.channel == channel[..]
                            );
                            if asked {
                                self.due.pop_front();
                            } else {
                                tell(Heard::Ended(channel));
                            }
                        }
                        b"pong" => match self.due.pop_front().map(|due| due.what) {
                            Some(Asked::Ping) => {}
                            _ => return Err(io::ErrorKind::InvalidData.into()),
                        },
                        _ => return Err(io::ErrorKind::InvalidData.into()),
                    }
                }
                Frame::Other => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }
}

/// What a server says, as far as it matters on a subscription connection.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Text(Vec<u8>),
    Error(String),
    Array(Vec<Frame>),
    Other,
}

impl Frame {
    fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Frame::Text(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The first word of an error, and the rest.
fn words(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// Reads the frame that the bytes begin with, and its length; `None` when it is not whole yet.
fn frame(bytes: &[u8], depth: u8) -> io::Result<Option<(Frame, usize)>> {
    let bad = || Err(io::ErrorKind::InvalidData.into());
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, mut at) = (&bytes[1.min(end)..end], end + 2);
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    let frame = match bytes[0] {
        b'+' => Frame::Text(line.to_vec()),
        b'-' => Frame::Error(String::from_utf8_lossy(line).into_owned()),
        b':' => Frame::Other,
        b'$' => match number() {
            Some(-1) => Frame::Other,
            Some(len @ 0..=MESSAGE_BYTES_MAX) => {
                let start = at;
                at += len as usize + 2;
                match bytes.get(start..at) {
                    Some(body) => Frame::Text(body[..len as usize].to_vec()),
                    None => return Ok(None),
                }
            }
            _ => return bad(),
        },
        b'*' if depth == 0 => match number() {
            Some(len @ 0..=ITEMS_MAX) => {
                let mut items = Vec::new();
                for _ in 0..len {
                    let Some((item, len)) = frame_within(&bytes[at..])? else { return Ok(None) };
                    items.push(item);
                    at += len;
                }
                Frame::Array(items)
            }
            _ => return bad(),
        },
        _ => return bad(),
    };
    Ok(Some((frame, at)))
}

fn frame_within(bytes: &[u8]) -> io::Result<Option<(Frame, usize)>> {
    frame(bytes, 1)
}

#[cfg(test)]
mod tests;
