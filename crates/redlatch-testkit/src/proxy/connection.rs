//! One proxied connection: two readers that decide, two writers that carry it out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Shared;
use super::log::RequestRecord;
use super::matching::{Frame, Matcher, Pending, subscribes};
use super::modes::{Direction, End, Fate, Modes};
use super::rule::{Action, ConnectionKind, Gate, RuleId};
use crate::net::Stream;
use crate::resp;

/// How many messages wait for a writer, per direction; more stay in the sockets.
const QUEUED_MAX: usize = 4096;
const READ_BYTES: usize = 64 * 1024;
/// How many bytes of a sliced reply are spaced in time, and by how much.
const SPACED_BYTES: usize = 32;
const SPACE: Duration = Duration::from_millis(1);

/// What a writer does with a message.
#[derive(Debug)]
enum Then {
    Write,
    /// Loses this message and all behind it.
    Lose,
    Close,
    WaitFor(Gate),
}

#[derive(Debug)]
struct Item {
    bytes: Vec<u8>,
    due: Instant,
    then: Then,
    /// For a request: what to expect as its answer.
    pending: Option<Pending>,
}

pub(super) struct Connection {
    number: u64,
    shared: Arc<Shared>,
    modes: watch::Receiver<Modes>,
    /// The modes when it was accepted; later orders to close concern it.
    started: Modes,
    is_pubsub: AtomicBool,
    // A direction that has lost bytes can never be in step again.
    lost: [AtomicBool; 2],
    matcher: Mutex<Matcher>,
}

impl Connection {
    pub(super) fn new(number: u64, shared: Arc<Shared>, modes: watch::Receiver<Modes>) -> Self {
        let started = modes.borrow().clone();
        Self {
            number,
            shared,
            modes,
            started,
            is_pubsub: false.into(),
            lost: Default::default(),
            matcher: Mutex::default(),
        }
    }

    fn kind(&self) -> ConnectionKind {
        if self.is_pubsub.load(Ordering::Relaxed) { ConnectionKind::PubSub } else { ConnectionKind::Commands }
    }

    fn matcher(&self) -> std::sync::MutexGuard<'_, Matcher> {
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn run(self, client: Stream) {
        let Ok(server) = self.shared.upstream.connect().await else { return client.reset() };
        let (mut client_read, mut client_write) = tokio::io::split(client);
        let (mut server_read, mut server_write) = tokio::io::split(server);
        let end = {
            let (request_tx, request_rx) = mpsc::channel(QUEUED_MAX);
            let (reply_tx, reply_rx) = mpsc::channel(QUEUED_MAX);
            // Requests that were sent are delivered even if the client is gone: only the server's end ends
            // the connection, or a rule.
            let requests = async {
                let read = self.read_requests(&mut client_read, request_tx);
                let write = self.write_requests(&mut server_write, request_rx);
                let delivered = tokio::select! {
                    // A rule that closes the connection does not wait for the client to send more.
                    biased;
                    end = write => end,
                    () = async { read.await; std::future::pending().await } => None,
                };
                match delivered {
                    Some(end) => end,
                    None => std::future::pending().await,
                }
            };
            let replies = async {
                let read = self.read_replies(&mut server_read, reply_tx);
                let write = self.write_replies(&mut client_write, reply_rx);
                tokio::select! {
                    // Likewise, with the server.
                    biased;
                    end = write => end,
                    () = async { read.await; std::future::pending().await } => End::Orderly,
                }
            };
            tokio::select! {
                end = self.watch_modes() => end,
                end = requests => end,
                end = replies => end,
            }
        };
        if end == End::Reset {
            client_read.unsplit(client_write).reset();
            server_read.unsplit(server_write).reset();
        }
    }

    /// Ends when the test closes connections, or heals the network after this one has lost bytes.
    async fn watch_modes(&self) -> End {
        let mut modes = self.modes.clone();
        let mut heals = self.started.heals;
        loop {
            let now = modes.borrow_and_update().clone();
            if let Some(end) = now.closes(&self.started, self.kind()) {
                return end;
            }
            let lost = self.lost.iter().any(|lost| lost.load(Ordering::Relaxed));
            if lost && now.heals != heals {
                return End::Reset;
            }
            heals = now.heals;
            if modes.changed().await.is_err() {
                return End::Reset;
            }
        }
    }

    /// Whether the next message of a direction passes; waits while it is stalled.
    async fn fate(&self, direction: Direction) -> Fate {
        let lost = &self.lost[direction as usize];
        let mut modes = self.modes.clone();
        loop {
            if lost.load(Ordering::Relaxed) {
                return Fate::Lost;
            }
            let fate = modes.borrow_and_update().fate(direction, self.kind());
            match fate {
                Fate::Passes => return fate,
                Fate::Lost => lost.store(true, Ordering::Relaxed),
                Fate::Waits => {
                    if modes.changed().await.is_err() {
                        return Fate::Lost;
                    }
                }
            }
        }
    }

    fn due(&self, previous: Instant) -> Instant {
        previous.max(Instant::now() + self.shared.draw_latency(&self.modes))
    }

    async fn read_requests(&self, client: &mut ReadHalf<Stream>, queue: mpsc::Sender<Item>) {
        let mut buf = Vec::with_capacity(READ_BYTES);
        let mut due = Instant::now();
        let mut silent = Silence::default();
        let mut opaque = false;
        while matches!(client.read_buf(&mut buf).await, Ok(1..)) {
            let mut at = 0;
            while at < buf.len() {
                let (len, args) = match resp::request(&buf[at..]) {
                    _ if opaque => (buf.len() - at, Vec::new()),
                    Ok(Some(request)) => request,
                    Ok(None) => break,
                    // TLS, for example: passed on, without rules.
                    Err(resp::NotResp) => {
                        opaque = true;
                        continue;
                    }
                };
                let bytes = buf[at..at + len].to_vec();
                at += len;
                due = self.due(due);
                let mut item = Item { bytes, due, then: Then::Write, pending: None };
                if !args.is_empty() {
                    let (delay, fired) = self.decide(args, &mut item, &mut silent);
                    item.due += delay;
                    due = item.due;
                    if let Some(rule) = fired {
                        self.shared.log.fire(rule);
                    }
                }
                if queue.send(item).await.is_err() {
                    return;
                }
            }
            buf.drain(..at);
        }
    }

    /// Logs a request and applies the rules to it.
    fn decide(
        &self,
        args: Vec<Vec<u8>>,
        item: &mut Item,
        silent: &mut Silence,
    ) -> (Duration, Option<RuleId>) {
        let command = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        if subscribes(&command) {
            self.is_pubsub.store(true, Ordering::Relaxed);
        }
        let kind = self.kind();
        let decided = self.shared.rules().decide(&command, &args, kind, self.number);
        let arg_count = args.len() - 1;
        let answered = silent.is_answered(&command, &args);
        let args = if matches!(command.as_str(), "AUTH" | "HELLO") { args[..1].to_vec() } else { args };
        let record =
            RequestRecord { connection: self.number, kind, command, args, at: std::time::Instant::now() };
        let command = record.command.clone();
        self.shared.log.push(record);
        let (on_request, on_reply) = match decided {
            Some((id, action)) if action.is_for_request() => (Some((id, action)), None),
            other => (None, other),
        };
        item.pending = answered.then(|| Pending::new(command, arg_count, on_reply));
        let Some((id, action)) = on_request else { return (Duration::ZERO, None) };
        let mut delay = Duration::ZERO;
        match action {
            Action::DelayRequest(by) => delay = by,
            Action::DropRequest => item.then = Then::Lose,
            _ => item.then = Then::Close,
        }
        (delay, Some(id))
    }

    /// `None` when all requests are delivered and the client sends no more.
    async fn write_requests(
        &self,
        server: &mut WriteHalf<Stream>,
        mut queue: mpsc::Receiver<Item>,
    ) -> Option<End> {
        while let Some(item) = queue.recv().await {
            tokio::time::sleep_until(item.due).await;
            match item.then {
                Then::Lose => self.lost[Direction::Requests as usize].store(true, Ordering::Relaxed),
                Then::Close => return Some(End::Orderly),
                Then::Write | Then::WaitFor(_) => {}
            }
            if self.fate(Direction::Requests).await == Fate::Lost {
                continue;
            }
            if let Some(pending) = item.pending {
                self.matcher().sent(pending);
            }
            if server.write_all(&item.bytes).await.is_err() {
                // The reader of replies sees the end of the server and closes.
                break;
            }
        }
        // Fails only if the server is gone, which the reader of replies sees.
        let _ = server.shutdown().await;
        None
    }

    async fn read_replies(&self, server: &mut ReadHalf<Stream>, queue: mpsc::Sender<Item>) {
        let mut buf = Vec::with_capacity(READ_BYTES);
        let mut due = Instant::now();
        let mut opaque = false;
        while matches!(server.read_buf(&mut buf).await, Ok(1..)) {
            let mut at = 0;
            while at < buf.len() {
                let len = match resp::frame_len(&buf[at..]) {
                    _ if opaque => buf.len() - at,
                    Ok(Some(len)) => len,
                    Ok(None) => break,
                    Err(resp::NotResp) => {
                        opaque = true;
                        continue;
                    }
                };
                let bytes = buf[at..at + len].to_vec();
                at += len;
                let item = Item { bytes, due: self.due(due), then: Then::Write, pending: None };
                let item = if opaque { Some(item) } else { self.answer(item) };
                if let Some(item) = item {
                    due = item.due;
                    if queue.send(item).await.is_err() {
                        return;
                    }
                }
            }
            buf.drain(..at);
        }
    }

    /// Applies the action of a reply; `None` when it vanishes.
    fn answer(&self, mut item: Item) -> Option<Item> {
        let received = self.matcher().received(&item.bytes);
        let (id, action) = match received {
            Frame::First(Some(decided)) => decided,
            Frame::Further(true) => return None,
            Frame::First(None) | Frame::Further(false) | Frame::Unasked => return Some(item),
        };
        self.shared.log.fire(id);
        match action {
            Action::DropReply => item.then = Then::Lose,
            Action::SkipReply => return None,
            Action::DelayReply(by) => item.due += by,
            Action::CloseAfterRequest => item.then = Then::Close,
            Action::ReplaceReply(bytes) => item.bytes = bytes,
            Action::HoldReplyUntilReleased(gate) => item.then = Then::WaitFor(gate),
            // These act on requests and never reach the reply.
            Action::DelayRequest(_) | Action::DropRequest | Action::CloseBeforeRequest => {}
        }
        Some(item)
    }

    async fn write_replies(&self, client: &mut WriteHalf<Stream>, mut queue: mpsc::Receiver<Item>) -> End {
        let mut client_gone = false;
        while let Some(item) = queue.recv().await {
            tokio::time::sleep_until(item.due).await;
            match item.then {
                Then::Lose => self.lost[Direction::Replies as usize].store(true, Ordering::Relaxed),
                Then::Close => return End::Orderly,
                Then::WaitFor(gate) => gate.passed().await,
                Then::Write => {}
            }
            if client_gone || self.fate(Direction::Replies).await == Fate::Lost {
                continue;
            }
            let slices = self.modes.borrow().slices;
            // Replies go on being read when the client is gone, so that the server is not blocked by them.
            client_gone = if slices {
                write_slices(client, &item.bytes).await.is_err()
            } else {
                client.write_all(&item.bytes).await.is_err()
            };
        }
        End::Orderly
    }
}

/// The kernel joins bytes that the client has not read yet, so the first ones of a reply, where its lengths
/// are, are spaced in time as well.
async fn write_slices(client: &mut WriteHalf<Stream>, bytes: &[u8]) -> std::io::Result<()> {
    for (at, byte) in bytes.chunks(1).enumerate() {
        client.write_all(byte).await?;
        if at < SPACED_BYTES {
            tokio::time::sleep(SPACE).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Follows `CLIENT REPLY`, which turns answers off.
#[derive(Debug, Default)]
struct Silence {
    off: bool,
    skip_next: bool,
}

impl Silence {
    fn is_answered(&mut self, command: &str, args: &[Vec<u8>]) -> bool {
        let word = |n: usize| args.get(n).map(|arg| arg.to_ascii_uppercase()).unwrap_or_default();
        let skipped = std::mem::take(&mut self.skip_next);
        if command == "CLIENT" && word(1) == b"REPLY" {
            match word(2).as_slice() {
                b"OFF" => self.off = true,
                b"SKIP" => self.skip_next = !self.off,
                b"ON" => {
                    self.off = false;
                    return true;
                }
                _ => return !self.off && !skipped,
            }
            return false;
        }
        !self.off && !skipped
    }
}
