//! One client: reads what has arrived, runs as much of it as one turn has, writes the replies at once.

use std::future::poll_fn;
use std::io::{self, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::commands;
use super::process::watch;
use super::pubsub::Outbox;
use super::resp::{self, Words};
use super::session::Session;
use super::{Arrival, Shared};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// A read of less than this that completes no request is a drip.
const DRIP_BYTES: usize = 512;
/// So many drips in a row may come as fast as they like. A request in so many pieces comes from nobody who is in a hurry.
const DRIPS_MAX: u32 = 16;
/// How long the next ones are gathered.
const DRIP_PAUSE: Duration = Duration::from_millis(1);
/// So many requests of a client are run before others have their turn. A renewal that comes meanwhile waits for these only.
const TURN_REQUESTS_MAX: usize = 64;
/// Replies are written out at this size even when more requests wait.
const WRITE_BYTES: usize = 1 << 20;
/// Changes are written out at this size even when more requests wait.
const BATCH_BYTES: usize = 1 << 20;

/// Either kind of stream; it does not block.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Stream {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).write(bytes),
            Stream::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    /// Says that there are too many clients, as Redis does.
    pub(super) fn refuse(&self, why: &str) {
        let _too_late = self.write(format!("-ERR {why}\r\n").as_bytes());
    }

    fn try_clone(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
}

/// Ends what a connection holds, however its future ends.
struct Leave {
    shared: Rc<Shared>,
    session: Session,
}

impl Drop for Leave {
    fn drop(&mut self) {
        for (kind, name) in &self.session.subscriptions {
            self.shared.hub.unsubscribe(*kind, name, &self.session.outbox);
        }
        if self.session.watches {
            self.shared.hub.unwatch(&self.session.outbox);
        }
        let Leave { shared, session } = self;
        match &session.line {
            Some(line) => {
                shared.lines.set(shared.lines.get() - 1);
                shared.lifelines.end(line, session.at_end_of_file, shared.next_client.get());
            }
            None => {
                shared.clients.set(shared.clients.get() - 1);
                shared.lifelines.went(&session.user());
            }
        }
        shared.has_gone(session.uid);
    }
}

/// Serves a client until it goes, breaks the protocol or reads too slowly.
pub(crate) async fn serve(shared: Rc<Shared>, arrival: Arrival) {
    let Arrival { stream, client: id, pid, uid, is_owner } = arrival;
    if let Stream::Tcp(stream) = &stream {
        // Replies are small and awaited; nothing may hold them back.
        let _best_effort = stream.set_nodelay(true);
    }
    let mut leave = Leave { shared, session: Session::new(id, (pid, uid), is_owner) };
    if let Err(error) = talk(&mut leave, stream).await {
        tracing::debug!(client = id, %error, "a client is gone");
    }
}

async fn talk(leave: &mut Leave, stream: Stream) -> io::Result<()> {
    let Leave { shared, session } = leave;
    let outbox = Arc::clone(&session.outbox);
    let stream = watch(stream, Interest::READABLE)?;
    let mut input: Vec<u8> = Vec::new();
    let mut words = Words::new();
    let mut drips = 0;
    // How much of the input has been run, and how many requests of this turn are left.
    let (mut done, mut left) = (0, TURN_REQUESTS_MAX);
    loop {
        let more_waits = run_some(shared, session, &input, (&mut done, &mut left), &mut words);
        if !more_waits {
            input.drain(..std::mem::take(&mut done));
        }
        if input.is_empty() && input.capacity() > 4 * READ_BYTES {
            input = Vec::new();
        }
        if !outbox.drain_into(&mut session.out.bytes) {
            return Ok(());
        }
        if !session.out.bytes.is_empty() {
            write_unless_dropped(shared, &stream, &session.out.bytes, &outbox).await?;
            session.out.bytes.clear();
            if session.out.bytes.capacity() > WRITE_BYTES {
                session.out.bytes = Vec::new();
            }
        }
        if session.closing {
            return Ok(());
        }
        if left == 0 {
            tokio::task::yield_now().await;
            left = TURN_REQUESTS_MAX;
        }
        if more_waits {
            continue;
        }
        if drips > DRIPS_MAX {
            tokio::time::sleep(DRIP_PAUSE).await;
        }
        input.reserve(READ_BYTES);
        let before = input.len();
        let listening = session.watches || !session.subscriptions.is_empty();
        let open = poll_fn(|cx| {
            if listening && outbox.poll_changed(cx) {
                return Poll::Ready(Ok(true));
            }
            let read = poll_read(&stream, &mut input, cx);
            if read.is_pending() {
                left = TURN_REQUESTS_MAX;
            }
            read
        });
        if !open.await? {
            session.at_end_of_file = true;
            return Ok(());
        }
        let read = input.len() - before;
        shared.reads.set(shared.reads.get() + u64::from(read > 0));
        // Nothing of what was there has been run, or it would not be there.
        drips = if before > 0 && (1..DRIP_BYTES).contains(&read) { drips + 1 } else { 0 };
    }
}

/// Runs requests that have arrived whole, as many as are left, and counts their bytes. True when there may be more of them. The replies
/// that are left behind may be sent: what they speak of is in the journal.
fn run_some(
    shared: &Rc<Shared>,
    session: &mut Session,
    input: &[u8],
    (done, left): (&mut usize, &mut usize),
    words: &mut Words,
) -> bool {
    if *done == input.len() {
        return false;
    }
    let mut more_waits = false;
    // Where the replies are that must not be sent unless the journal was written.
    let mut pending: Vec<Range<usize>> = Vec::new();
    shared.engine().begin_batch();
    while !session.closing {
        if *left == 0 || session.out.bytes.len() >= WRITE_BYTES {
            more_waits = true;
            break;
        }
        match resp::parse(&input[*done..], words) {
            Ok(None) => break,
            Ok(Some(taken)) => {
                let request = &input[*done..*done + taken];
                if !words.is_empty() {
                    if !shared.may_serve() {
                        session.closing = true;
                        break;
                    }
                    let start = session.out.bytes.len();
                    commands::run(shared, session, request, words);
                    let (changed, bytes) = shared.engine().take_changed();
                    if changed {
                        pending.push(start..session.out.bytes.len());
                    }
                    if bytes >= BATCH_BYTES {
                        keep(shared, session, &mut pending);
                        shared.engine().begin_batch();
                    }
                }
                *done += taken;
                *left -= 1;
            }
            Err(garbage) => {
                session.out.error(garbage.0);
                session.closing = true;
            }
        }
    }
    keep(shared, session, &mut pending);
    more_waits
}

/// Writes the journal. When that fails, the replies that depend on it become errors. Where another daemon has taken the place of this one while
/// it stood still, nothing is written and nothing said: what was granted here is the other one's to grant by now.
fn keep(shared: &Shared, session: &mut Session, pending: &mut Vec<Range<usize>>) {
    if !shared.may_serve() {
        return silenced(session, pending);
    }
    if let Err(error) = shared.engine().end_batch() {
        let replies = std::mem::take(&mut session.out.bytes);
        let mut copied = 0;
        for refused in pending.iter() {
            session.out.bytes.extend_from_slice(&replies[copied..refused.start]);
            session.out.error(error.message());
            copied = refused.end;
        }
        session.out.bytes.extend_from_slice(&replies[copied..]);
    }
    pending.clear();
    // Writing may have taken long.
    if !shared.may_serve() {
        silenced(session, pending);
    }
}

/// Says nothing more to a client.
fn silenced(session: &mut Session, pending: &mut Vec<Range<usize>>) {
    session.out.bytes.clear();
    session.closing = true;
    pending.clear();
}

/// Reads what has arrived, once; false at the end of the stream.
fn poll_read(stream: &AsyncFd<Stream>, input: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
    loop {
        let mut ready = ready!(stream.poll_read_ready(cx))?;
        let room = input.capacity() - input.len();
        match rustix::io::read(stream, spare_capacity(input)) {
            Ok(0) => return Poll::Ready(Ok(false)),
            Ok(count) => {
                // A short read has emptied the socket; asking again would only be told so.
                if count < room {
                    ready.clear_ready();
                }
                return Poll::Ready(Ok(true));
            }
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
        }
    }
}

/// Writes as much as the socket takes now, and says how much that was.
fn write_now(stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match stream.write(&bytes[done..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A client that does not read takes one more descriptor meanwhile.
struct Writing<'a>(&'a Shared);

impl Writing<'_> {
    fn new(shared: &Shared) -> Writing<'_> {
        shared.writing.set(shared.writing.get() + 1);
        Writing(shared)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writing.set(self.0.writing.get() - 1);
    }
}

/// Writes, but gives up as soon as so many messages wait behind this that the client is dropped.
async fn write_unless_dropped(
    shared: &Shared,
    stream: &AsyncFd<Stream>,
    bytes: &[u8],
    outbox: &Outbox,
) -> io::Result<()> {
    let stream = stream.get_ref();
    let mut done = write_now(stream, bytes)?;
    if done == bytes.len() {
        return Ok(());
    }
    // A second descriptor of the same socket, because a registration watches for the same things all its life.
    let _counted = Writing::new(shared);
    let writable = watch(stream.try_clone()?, Interest::WRITABLE)?;
    poll_fn(|cx| {
        loop {
            if outbox.poll_changed(cx) && outbox.is_dropped() {
                let error = io::Error::other("the client reads its messages too slowly");
                return Poll::Ready(Err(error));
            }
            let mut ready = ready!(writable.poll_write_ready(cx))?;
            done += write_now(stream, &bytes[done..])?;
            if done == bytes.len() {
                return Poll::Ready(Ok(()));
            }
            ready.clear_ready();
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::super::pubsub::Hub;
    use super::*;
    use crate::{Effect, Engine, Journal, SystemClock};

    /// A disk that can be full, and counts how often it is written to.
    #[derive(Clone, Default)]
    struct Disk(Arc<(AtomicBool, AtomicUsize)>);

    impl Journal for Disk {
        fn append(&mut self, _effects: &[Effect]) -> io::Result<()> {
            if self.0.0.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.1.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    fn request(words: &str) -> String {
        let words: Vec<String> =
            words.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    }

    #[test]
    fn one_write_for_all_that_was_read_and_no_reply_that_it_does_not_cover() {
        let disk = Disk::default();
        let hub: Arc<Hub> = Arc::default();
        let journal = Box::new(disk.clone());
        let engine = Engine::with_journal(Arc::new(SystemClock), Arc::clone(&hub) as _, journal);
        let shared = Rc::new(Shared::new(engine.expect("an engine"), hub, HashSet::new(), 1, true));
        let mut session = Session::new(1, (None, None), true);
        let mut serve = |requests: &[&str]| {
            let input: String = requests.iter().map(|words| request(words)).collect();
            session.out.bytes.clear();
            let (mut done, mut left) = (0, TURN_REQUESTS_MAX);
            run_some(&shared, &mut session, input.as_bytes(), (&mut done, &mut left), &mut Words::new());
            assert_eq!(done, input.len());
            String::from_utf8_lossy(&session.out.bytes).into_owned()
        };
        assert_eq!(serve(&["set a 1", "get a", "incr a", "get b"]), "+OK\r\n$1\r\n1\r\n:2\r\n$-1\r\n");
        assert_eq!(disk.0.1.load(Ordering::SeqCst), 1);
        disk.0.0.store(true, Ordering::SeqCst);
        let replies = serve(&["get a", "incr a", "get b", "incr a", "ping"]);
        let lines: Vec<&str> = replies.split("\r\n").map(|line| &line[..line.len().min(8)]).collect();
        assert_eq!(lines, ["$1", "2", "-UNSAVED", "$-1", "-UNSAVED", "+PONG", ""]);
        assert!(serve(&["incr a"]).starts_with("-MISCONF"));
        disk.0.0.store(false, Ordering::SeqCst);
        assert_eq!(serve(&["incr a", "get a"]), ":5\r\n$1\r\n5\r\n");
        assert_eq!(disk.0.1.load(Ordering::SeqCst), 3, "what was kept back, then the new change");
    }

    /// Both ends of a connection that is served from `shared`.
    fn connected(shared: &Rc<Shared>, client: u64) -> (UnixStream, Arrival) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        shared.clients.set(shared.clients.get() + 1);
        (ours, Arrival { stream: Stream::Unix(theirs), client, pid: None, uid: None, is_owner: true })
    }

    #[test]
    fn a_client_that_sends_much_at_once_keeps_no_other_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let hub: Arc<Hub> = Arc::default();
        let engine = Engine::new(Arc::new(SystemClock), Arc::clone(&hub) as _).unwrap();
        let shared = Rc::new(Shared::new(engine, hub, HashSet::new(), 1, true));
        let (busy, busy_arrival) = connected(&shared, 1);
        let (other, other_arrival) = connected(&shared, 2);
        let requests = request("incr n").repeat(2_000);
        (&busy).write_all(requests.as_bytes()).unwrap();
        (&other).write_all(request("get n").as_bytes()).unwrap();
        local.block_on(&runtime, async {
            let serving = [busy_arrival, other_arrival]
                .map(|one| tokio::task::spawn_local(serve(Rc::clone(&shared), one)));
            let other = tokio::net::UnixStream::from_std(other).unwrap();
            let busy = tokio::net::UnixStream::from_std(busy).unwrap();
            let mut reply = [0; 64];
            other.readable().await.unwrap();
            let count = other.try_read(&mut reply).unwrap();
            let text = String::from_utf8_lossy(&reply[..count]).into_owned();
            let run: usize = text.split("\r\n").nth(1).unwrap_or_default().parse().unwrap_or(0);
            assert!(
                run <= 2 * TURN_REQUESTS_MAX,
                "{run} requests of one client were run before that of another"
            );
            // Nothing of what was sent at once is left out.
            let mut replies = Vec::new();
            while !replies.ends_with(b":2000\r\n") {
                busy.readable().await.unwrap();
                while let Ok(count @ 1..) = busy.try_read(&mut reply) {
                    replies.extend_from_slice(&reply[..count]);
                }
            }
            let expected: String = (1..=2_000).map(|n| format!(":{n}\r\n")).collect();
            assert!(replies == expected.as_bytes());
            drop((other, busy));
            for one in serving {
                one.await.unwrap();
            }
        });
    }

    #[test]
    fn a_client_that_never_reads_is_not_read_from() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let hub: Arc<Hub> = Arc::default();
        let engine = Engine::new(Arc::new(SystemClock), Arc::clone(&hub) as _).unwrap();
        let shared = Rc::new(Shared::new(engine, hub, HashSet::new(), 1, true));
        let (ours, arrival) = connected(&shared, 1);
        let one = request(&format!("echo {}", "x".repeat(10_000)));
        let mut taken = 0;
        local.block_on(&runtime, async {
            let serving = tokio::task::spawn_local(serve(Rc::clone(&shared), arrival));
            let mut idle = 0;
            // The server has had its turn many times and takes nothing more.
            while idle < 1_000 {
                match (&ours).write(one.as_bytes()) {
                    Ok(count) => (taken, idle) = (taken + count, 0),
                    Err(_) => idle += 1,
                }
                assert!(taken < 4 * WRITE_BYTES, "{taken} bytes were taken of a client that reads nothing");
                tokio::task::yield_now().await;
            }
            drop(ours);
            serving.await.unwrap();
        });
        assert!(taken > READ_BYTES, "it was served");
    }

    #[test]
    fn no_user_of_a_shared_engine_keeps_the_others_out() {
        let hub: Arc<Hub> = Arc::default();
        let engine = Engine::new(Arc::new(SystemClock), Arc::clone(&hub) as _).unwrap();
        let mut shared = Shared::new(engine, hub, HashSet::new(), 1, true);
        shared.descriptors_max = 8;
        assert_eq!([1, 1, 1, 2].map(|uid| shared.has_come(Some(uid)).is_ok()), [true, true, false, true]);
        assert_eq!(shared.has_come(None), Ok(()), "its owner");
        shared.has_gone(Some(1));
        assert_eq!(shared.has_come(Some(1)), Ok(()));
        // A client that does not read and a process whose end is told take descriptors, too.
        shared.writing.set(8);
        assert!(shared.has_come(None).is_err());
    }

    #[test]
    fn a_client_that_drips_is_not_woken_up_for_by_each_drop() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let hub: Arc<Hub> = Arc::default();
        let engine = Engine::new(Arc::new(SystemClock), Arc::clone(&hub) as _).unwrap();
        let shared = Rc::new(Shared::new(engine, hub, HashSet::new(), 1, true));
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        shared.clients.set(1);
        let arrival =
            Arrival { stream: Stream::Unix(theirs), client: 1, pid: None, uid: None, is_owner: true };
        let bytes = request(&format!("echo {}", "x".repeat(20_000)));
        let began = std::time::Instant::now();
        local.block_on(&runtime, async {
            let serving = tokio::task::spawn_local(serve(Rc::clone(&shared), arrival));
            ours.set_nonblocking(true).unwrap();
            for byte in bytes.as_bytes() {
                while (&mut &ours).write(&[*byte]).is_err() {
                    // The socket is full, and the daemon pauses.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // The daemon may read each of them before the next one comes.
                tokio::task::yield_now().await;
            }
            let mut reply = [0; 64];
            while std::io::Read::read(&mut &ours, &mut reply).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(reply.starts_with(b"$20000\r\nxxx"));
            drop(ours);
            serving.await.unwrap();
        });
        let (reads, passed) = (shared.reads.get(), began.elapsed());
        let most = u64::from(DRIPS_MAX) + 3 + passed.as_millis() as u64;
        assert!(reads <= most, "{reads} reads of {} bytes in {passed:?}", bytes.len());
    }
}
