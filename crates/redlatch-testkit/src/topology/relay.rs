//! A relay of bytes between a replica and its master, which can be made to hold everything back.
//!
//! The [`proxy`](crate::proxy) does not do here: it looks for replies to requests, and a stream of
//! replication has none.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::replication::{follow, link_of, online_replicas};
use super::wait::wait_until;
use crate::error::{Error, Result};
use crate::net::{OwnRuntime, ReservedPort};
use crate::server::RedisServer;

/// How much a relay reads ahead; the rest waits in the kernel.
const CHUNK_BYTES: usize = 64 * 1024;

/// A running relay. Dropping it closes its connections; what it held back is lost.
#[derive(Debug)]
pub(super) struct Relay {
    port: ReservedPort,
    stalled: watch::Sender<bool>,
    _runtime: OwnRuntime,
}

impl Relay {
    /// Relays from a new loopback port to this one.
    pub(super) fn start(upstream: u16) -> Result<Self> {
        let port = ReservedPort::new(0)?;
        let runtime = OwnRuntime::new("redlatch-relay")?;
        let stalled = watch::Sender::new(false);
        let listen = || {
            let _inside = runtime.handle().enter();
            TcpListener::from_std(port.listen()?)
        };
        let listener = listen().map_err(|e| Error::io("the relay cannot listen", e))?;
        runtime.handle().spawn(accept(listener, upstream, stalled.subscribe()));
        Ok(Self { port, stalled, _runtime: runtime })
    }

    pub(super) fn port(&self) -> u16 {
        self.port.port()
    }

    /// Passes nothing on that is sent from now on; connections stay open.
    pub(super) fn stall(&self) {
        self.stalled.send_replace(true);
    }
}

/// Puts a relay between a replica and its master, which passes nothing on that is sent from now on. The
/// master goes on counting the replica as online.
pub(super) fn stall(replica: &RedisServer, master: &RedisServer) -> Result<Relay> {
    let wanted = online_replicas(master)?;
    let relay = Relay::start(master.port())?;
    follow(replica, relay.port())?;
    // The replica goes on where it was, by another way; only then it is stopped.
    wait_until("a replica behind a relay", || {
        let (link, online) = (link_of(replica)?, online_replicas(master)?);
        let done = link == Ok(relay.port()) && online >= wanted;
        let told = || {
            format!("{online} are online, the relay is at {}, and the replica tells {link:?}", relay.port())
        };
        Ok(if done { Ok(()) } else { Err(told()) })
    })?;
    relay.stall();
    Ok(relay)
}

async fn accept(listener: TcpListener, upstream: u16, stalled: watch::Receiver<bool>) {
    // Ends with the runtime. A client that is gone before it was accepted is no reason to end earlier.
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let stalled = stalled.clone();
        tokio::spawn(async move {
            // Refused like a port without a server: the client gets an end of file.
            let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else { return };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::join!(
                pass(from_client, to_server, stalled.clone()),
                pass(from_server, to_client, stalled.clone()),
            );
        });
    }
}

/// Passes bytes on in one direction until either end closes.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut stalled: watch::Receiver<bool>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        // Asked after reading, so that nothing gets through that was sent after the order to stall.
        if stalled.wait_for(|stalled| !stalled).await.is_err() || to.write_all(&chunk[..read]).await.is_err()
        {
            return;
        }
    }
    // The end is news, too.
    let _the_relay_has_gone = stalled.wait_for(|stalled| !stalled).await;
}
