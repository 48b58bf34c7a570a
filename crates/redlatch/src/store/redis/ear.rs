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

use super::{Dial, backoff::Backoff, connect::Stream, lasting::lasting};
use crate::{error::Error, store::Fault};

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
pub(super) struct Ear {
    orders: mpsc::UnboundedSender<Order>,
}

struct Order {
    listen: bool,
    way: Way,
    channel: Channel,
    number: u64,
}

impl Ear {
    pub(super) fn open(dial: Arc<Dial>, background: &Handle, tell: Tell) -> Ear {
        let (orders, inbox) = mpsc::unbounded_channel();
        let kept = Arc::new(tokio::sync::Mutex::new((inbox, tell)));
        let mut is_new = true;
        lasting(background, "a subscription connection", move || {
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
        Ear { orders }
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
        backoff.ended();
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
            let outcome = tokio::select! {
                order = inbox.recv() => match order {
                    Some(order) => {
                        talk.ask(Asked::Channel(order));
                        Ok(())
                    }
                    None => return false,
                },
                read = reader.read_buf(&mut talk.input) => match read {
                    Ok(0) => return true,
                    Ok(_) => talk.hear(tell),
                    Err(error) => Err(error),
                },
                written = push(&mut writer, &talk.output), if !flushed || !talk.output.is_empty() => {
                    flushed = talk.output.is_empty();
                    written.map(|len| drop(talk.output.drain(..len)))
                }
                _ = ping.tick() => {
                    talk.ask(Asked::Ping);
                    Ok(())
                }
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
mod tests {
    use std::sync::Mutex;

    use super::*;

    type Told = Arc<Mutex<Vec<String>>>;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_that_ends_each_connection_is_connected_to_with_pauses() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicU32::new(0));
        let count = connections.clone();
        let accepting = tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let crate::config::url::StoreUrl::Redis(server) = crate::config::url::StoreUrl::parse(&url).unwrap()
        else {
            panic!("{url}")
        };
        let config = crate::client::Client::builder().url(&url).config().clone();
        let dial = Arc::new(Dial::new(server, &config, &Handle::current()).unwrap());
        let _ear = Ear::open(dial, &Handle::current(), Box::new(|_| {}));
        let began = std::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (connections, seconds) = (connections.load(Ordering::SeqCst), began.elapsed().as_secs_f64());
        assert!(f64::from(connections) <= 15.0 * seconds, "{connections} connections in {seconds} s");
        accepting.abort();
    }

    fn listening() -> (Talk, Told, Tell) {
        let told = Told::default();
        let tell = {
            let told = told.clone();
            Box::new(move |heard| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                told.lock().unwrap().push(match heard {
                    Heard::Up | Heard::Down => "connection".to_owned(),
                    Heard::Confirmed { way, channel, .. } => format!("{way:?} {}", text(&channel)),
                    Heard::Refused { way, channel, code, detail, .. } => {
                        format!("{way:?} {} {code} {detail}", text(&channel))
                    }
                    Heard::Ended(channel) => format!("ended {}", text(&channel)),
                    Heard::Message { channel, payload } => format!("{} {payload}", text(&channel)),
                });
            })
        };
        (Talk::default(), told, tell)
    }

    fn array(items: &[&str]) -> String {
        let items: String = items.iter().map(|item| format!("${}\r\n{item}\r\n", item.len())).collect();
        format!("*{}\r\n{items}", items.matches('$').count())
    }

    fn hear(talk: &mut Talk, tell: &Tell, told: &Told, text: &str) -> Vec<String> {
        talk.input.extend_from_slice(text.as_bytes());
        talk.hear(tell).unwrap();
        std::mem::take(&mut told.lock().unwrap())
    }

    fn order(listen: bool, way: Way, channel: &str) -> Asked {
        Asked::Channel(Order { listen, way, channel: channel.as_bytes().into(), number: 0 })
    }

    #[test]
    fn a_subscription_that_the_server_ends_is_not_the_answer_to_a_request() {
        let (mut talk, told, tell) = listening();
        talk.ask(order(true, Way::Sharded, "a"));
        talk.ask(order(true, Way::Sharded, "b"));
        talk.ask(order(false, Way::Sharded, "a"));
        assert!(talk.output.starts_with(b"*2\r\n$10\r\nSSUBSCRIBE\r\n$1\r\na\r\n"));
        let text = array(&["ssubscribe", "a"]) + &array(&["sunsubscribe", "b"]) + "-MOVED 7 h:1\r\n";
        assert_eq!(hear(&mut talk, &tell, &told, &text), ["Sharded a", "ended b", "Sharded b MOVED 7 h:1"]);
        assert_eq!(hear(&mut talk, &tell, &told, &array(&["sunsubscribe", "a"])), [""; 0]);
        assert_eq!(hear(&mut talk, &tell, &told, &array(&["sunsubscribe", "a"])), ["ended a"]);
    }

    #[test]
    fn an_answer_says_which_request_it_is_for() {
        let (mut talk, ..) = listening();
        let (told, heard) = std::sync::mpsc::channel();
        let tell: Tell = Box::new({
            let told = Mutex::new(told);
            move |heard| {
                if let Heard::Confirmed { number, .. } | Heard::Refused { number, .. } = heard {
                    told.lock().unwrap().send(number).unwrap();
                }
            }
        });
        for (listen, number) in [(true, 1), (false, 1), (true, 2), (true, 3)] {
            let (way, channel) = (Way::Sharded, b"a"[..].into());
            talk.ask(Asked::Channel(Order { listen, way, channel, number }));
        }
        let (on, off) = (array(&["ssubscribe", "a"]), array(&["sunsubscribe", "a"]));
        talk.input.extend_from_slice(format!("{on}{off}{on}-MOVED 7 h:1\r\n").as_bytes());
        talk.hear(&tell).unwrap();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_message_that_comes_both_ways_together_counts_once() {
        let (mut talk, told, tell) = listening();
        let (plain, sharded) = (array(&["message", "c", "0"]), array(&["smessage", "c", "0"]));
        assert_eq!(hear(&mut talk, &tell, &told, &format!("{plain}{sharded}")), ["c 0"]);
        // Two of each: two messages that were sent both ways.
        assert_eq!(
            hear(&mut talk, &tell, &told, &format!("{plain}{sharded}{plain}{sharded}")),
            ["c 0", "c 0"]
        );
        // Of two sharded messages none is the other's twin, and one that comes later may be news.
        assert_eq!(hear(&mut talk, &tell, &told, &format!("{sharded}{sharded}")), ["c 0", "c 0"]);
        assert_eq!(hear(&mut talk, &tell, &told, &plain), ["c 0"]);
        assert_eq!(hear(&mut talk, &tell, &told, &sharded), ["c 0"]);
        let other = array(&["smessage", "d", "0"]);
        assert_eq!(hear(&mut talk, &tell, &told, &format!("{plain}{other}")), ["c 0", "d 0"]);
    }

    #[test]
    fn a_refused_sign_of_life_is_one() {
        let (mut talk, told, tell) = listening();
        talk.ask(Asked::Ping);
        talk.ask(order(true, Way::Plain, "a"));
        let text = "-NOPERM no rights\r\n".to_owned() + &array(&["subscribe", "a"]);
        assert_eq!(hear(&mut talk, &tell, &told, &text), ["Plain a"]);
        assert!(talk.due.is_empty(), "it would end the connection");
    }

    #[test]
    fn frames_may_come_in_pieces_and_nonsense_ends_the_connection() {
        let (mut talk, told, tell) = listening();
        let text = array(&["message", "c", "-5"]);
        let (last, rest) = text.as_bytes().split_last().unwrap();
        for byte in rest {
            talk.input.push(*byte);
            talk.hear(&tell).unwrap();
            assert!(told.lock().unwrap().is_empty());
        }
        talk.input.push(*last);
        talk.hear(&tell).unwrap();
        assert_eq!(*told.lock().unwrap(), ["c -5"]);
        for nonsense in ["%1\r\n", "*1\r\n*1\r\n", "$-7\r\n", "+PONG\r\n", "*99999\r\n", ":1\r\n"] {
            talk.input = nonsense.as_bytes().to_vec();
            assert!(talk.hear(&tell).is_err(), "{nonsense:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let (mut talk, _, tell) = listening();
            talk.input = bytes;
            let _ = talk.hear(&tell);
        }
    }
}
