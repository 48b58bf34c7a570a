//! A simulated TCP: machines with addresses, ports that listen, streams whose bytes take time, and cuts between machines.
//!
//! As with TCP nothing is lost on a stream that lives: what is sent into a cut arrives when it is mended, or never. An attempt to connect
//! into a cut is repeated, one to a port on which nobody listens is refused.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::Future as _,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use redlatch::{DialFuture, Dialer, Socket};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::rng::Rng;

/// A machine, by the last number of its address.
pub(super) type Machine = u16;

/// The address of a machine, as servers announce it.
pub(super) fn host(machine: Machine) -> String {
    format!("10.0.{}.{}", machine / 256, machine % 256)
}

fn machine(host: &str) -> Option<Machine> {
    let mut parts = host.strip_prefix("10.0.")?.split('.');
    let (high, low): (u16, u16) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(high * 256 + low)
}

/// Takes a new connection from a machine.
pub(super) type Accept = Arc<dyn Fn(ServerEnd, Machine) + Send + Sync>;

/// Out of 1,000 messages so many take longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) slow: u64,
    pub(super) late: u64,
    pub(super) late_ms_max: u64,
}

pub(super) struct Net {
    state: Mutex<State>,
    pace: Pace,
    rng: Mutex<Rng>,
    begin: Instant,
    trace: AtomicU64,
    messages: AtomicU64,
}

#[derive(Default)]
struct State {
    listening: BTreeMap<(Machine, u16), Accept>,
    /// Nothing gets from the first to the second.
    cuts: BTreeSet<(Machine, Machine)>,
    /// Every process of these has gone for good, or for now.
    dead: BTreeSet<Machine>,
    pipes: Vec<Weak<Pipe>>,
}

/// The bytes that go one way.
struct Pipe {
    from: Machine,
    to: Machine,
    inner: Mutex<Bytes>,
}

#[derive(Default)]
struct Bytes {
    /// What is under way, and when it arrives. An empty message is the end.
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// What has been read of the first one.
    read: usize,
    last: Option<Instant>,
    /// One side has gone, or the network has reset it.
    reset: bool,
    /// One side has gone, and the other one could not hear of it.
    doomed: bool,
    ended: bool,
    reader: Option<Waker>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Net {
    pub(super) fn new(pace: Pace, rng: Rng) -> Arc<Self> {
        Arc::new(Net {
            state: Mutex::default(),
            pace,
            rng: Mutex::new(rng),
            begin: Instant::now(),
            trace: AtomicU64::new(0),
            messages: AtomicU64::new(0),
        })
    }

    /// The hash of what arrived when, and how many messages were sent.
    pub(super) fn figures(&self) -> (u64, u64) {
        (self.trace.load(Ordering::Relaxed), self.messages.load(Ordering::Relaxed))
    }

    fn note(&self, what: u64) {
        let now_us = self.begin.elapsed().as_micros() as u64;
        let mixed = (self.trace.load(Ordering::Relaxed) ^ now_us ^ what.rotate_left(40))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace.store(mixed.rotate_left(29), Ordering::Relaxed);
    }

    pub(super) fn delay(&self) -> Duration {
        let mut rng = locked(&self.rng);
        match rng.below(1_000) {
            part if part < self.pace.late => rng.ms(0, self.pace.late_ms_max),
            part if part < self.pace.late + self.pace.slow => rng.ms(1, 40),
            _ => rng.ms(0, 1),
        }
    }

    pub(super) fn listen(&self, at: (Machine, u16), accept: Accept) {
        locked(&self.state).listening.insert(at, accept);
    }

    pub(super) fn close(&self, at: (Machine, u16)) {
        locked(&self.state).listening.remove(&at);
    }

    /// Whether what one machine sends reaches the other one.
    pub(super) fn reaches(&self, from: Machine, to: Machine) -> bool {
        let state = locked(&self.state);
        from == to
            || !(state.cuts.contains(&(from, to)) || state.dead.contains(&from) || state.dead.contains(&to))
    }

    /// Whether a question of the one is answered by the other.
    pub(super) fn meet(&self, one: Machine, other: Machine) -> bool {
        self.reaches(one, other) && self.reaches(other, one)
    }

    pub(super) fn cut(&self, from: Machine, to: Machine) {
        locked(&self.state).cuts.insert((from, to));
    }

    pub(super) fn mend(&self, from: Machine, to: Machine) {
        locked(&self.state).cuts.remove(&(from, to));
        self.wake_all();
    }

    pub(super) fn mend_all(&self) {
        locked(&self.state).cuts.clear();
        self.wake_all();
    }

    /// A machine falls silent for good: nobody hears of it.
    pub(super) fn silence(&self, machine: Machine) {
        locked(&self.state).dead.insert(machine);
    }

    /// Ends all streams of a machine at both ends, as a process does that is killed, or a network that was set up anew.
    pub(super) fn reset(&self, machine: Machine) {
        self.reset_where(|pipe| pipe.from == machine || pipe.to == machine);
    }

    /// Ends the streams between two machines.
    pub(super) fn reset_between(&self, one: Machine, other: Machine) {
        self.reset_where(|pipe| {
            (pipe.from == one && pipe.to == other) || (pipe.from == other && pipe.to == one)
        });
    }

    /// Who is cut off hears of it when the cut is mended.
    fn reset_where(&self, is_one: impl Fn(&Pipe) -> bool) {
        for pipe in self.pipes().iter().filter(|pipe| is_one(pipe)) {
            if self.meet(pipe.from, pipe.to) {
                pipe.reset();
            } else {
                locked(&pipe.inner).doomed = true;
            }
        }
    }

    fn pipes(&self) -> Vec<Arc<Pipe>> {
        let mut state = locked(&self.state);
        state.pipes.retain(|pipe| pipe.strong_count() > 0);
        state.pipes.iter().filter_map(Weak::upgrade).collect()
    }

    fn wake_all(&self) {
        for pipe in self.pipes() {
            if locked(&pipe.inner).doomed && self.meet(pipe.from, pipe.to) {
                pipe.reset();
            }
            let reader = locked(&pipe.inner).reader.take();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
    }

    fn stream(self: &Arc<Self>, from: Machine, to: Machine) -> (Reader, Writer) {
        let pipe = Arc::new(Pipe { from, to, inner: Mutex::default() });
        locked(&self.state).pipes.push(Arc::downgrade(&pipe));
        let (net, at) = (self.clone(), pipe.clone());
        (Reader { net: net.clone(), pipe, timer: None }, Writer { net, pipe: at })
    }

    async fn connect(self: Arc<Self>, from: Machine, to: Machine, port: u16) -> io::Result<Box<dyn Socket>> {
        sleep(self.delay()).await;
        // An attempt is repeated after 1, 2, 4 s and so on, until its maker gives up.
        let mut pause = Duration::from_secs(1);
        while !self.meet(from, to) {
            sleep(pause).await;
            pause *= 2;
        }
        let accept = locked(&self.state).listening.get(&(to, port)).cloned();
        self.note(u64::from(port));
        let Some(accept) = accept else { return Err(io::ErrorKind::ConnectionRefused.into()) };
        let (heard, says) = self.stream(to, from);
        let (read, write) = self.stream(from, to);
        accept(ServerEnd { read, write: says }, from);
        Ok(Box::new(Stream { read: heard, write }))
    }

    /// The way of one machine to all others.
    pub(super) fn dialer(self: &Arc<Self>, from: Machine) -> Arc<dyn Dialer> {
        Arc::new(Way { net: self.clone(), from })
    }
}

struct Way {
    net: Arc<Net>,
    from: Machine,
}

impl Dialer for Way {
    fn dial(&self, host: &str, port: u16) -> DialFuture {
        let (net, from, to) = (self.net.clone(), self.from, machine(host));
        Box::pin(async move {
            match to {
                Some(to) => net.connect(from, to, port).await,
                None => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }
}

impl Pipe {
    fn reset(&self) {
        let reader = {
            let mut bytes = locked(&self.inner);
            bytes.reset = true;
            bytes.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

pub(super) struct Reader {
    net: Arc<Net>,
    pipe: Arc<Pipe>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut bytes = locked(&this.pipe.inner);
        if bytes.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        bytes.reader = Some(cx.waker().clone());
        let Some((due, message)) = bytes.queue.front() else { return Poll::Pending };
        if !this.net.reaches(this.pipe.from, this.pipe.to) {
            return Poll::Pending;
        }
        if *due > Instant::now() {
            let timer = this.timer.insert(Box::pin(tokio::time::sleep_until(*due)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        if message.is_empty() {
            // The end stays the end.
            return Poll::Ready(Ok(()));
        }
        let part = &message[bytes.read..];
        let count = part.len().min(buf.remaining());
        buf.put_slice(&part[..count]);
        this.net.note(count as u64);
        if count == part.len() {
            bytes.queue.pop_front();
            bytes.read = 0;
        } else {
            bytes.read += count;
        }
        Poll::Ready(Ok(()))
    }
}

/// What writes into a stream. It never waits: there is room for everything.
pub(super) struct Writer {
    net: Arc<Net>,
    pipe: Arc<Pipe>,
}

impl Writer {
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let delay = self.net.delay();
        let reader = {
            let mut bytes = locked(&self.pipe.inner);
            if bytes.reset || bytes.ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // Streams keep their order.
            let due = (Instant::now() + delay).max(bytes.last.unwrap_or_else(Instant::now));
            bytes.last = Some(due);
            bytes.ended = message.is_empty();
            bytes.queue.push_back((due, message.to_vec()));
            bytes.reader.take()
        };
        self.net.messages.fetch_add(1, Ordering::Relaxed);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }

    /// Ends both the stream and what comes back on it at the next word.
    pub(super) fn end(&self) {
        let _ended_before = self.send(&[]);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The server's side of a connection.
pub(super) struct ServerEnd {
    pub(super) read: Reader,
    pub(super) write: Writer,
}

/// The client's side.
struct Stream {
    read: Reader,
    write: Writer,
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().read).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !buf.is_empty() {
            self.write.send(buf)?;
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.end();
        Poll::Ready(Ok(()))
    }
}
