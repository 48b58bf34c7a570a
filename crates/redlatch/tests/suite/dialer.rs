//! Connections over streams of the program's own.

use std::{
    io,
    sync::{Arc, Mutex},
};

use redlatch::{Client, DialFuture, Dialer, ErrorKind, Socket, TlsOptions};
use redlatch_testkit::server::{RedisServer, TlsFiles};
use tokio::net::TcpStream;

use crate::fixture::ms;

/// A tunnel: it leads every address to one port of this machine, and notes what it was asked for.
struct Tunnel {
    port: Option<u16>,
    asked: Mutex<Vec<(String, u16)>>,
}

impl Tunnel {
    fn to(port: Option<u16>) -> Arc<Self> {
        Arc::new(Tunnel { port, asked: Mutex::default() })
    }
}

impl Dialer for Tunnel {
    fn dial(&self, host: &str, port: u16) -> DialFuture {
        self.asked.lock().unwrap().push((host.to_owned(), port));
        let to = self.port;
        Box::pin(async move {
            let Some(port) = to else { return Err(io::ErrorKind::ConnectionRefused.into()) };
            let socket: Box<dyn Socket> = Box::new(TcpStream::connect(("127.0.0.1", port)).await?);
            Ok(socket)
        })
    }
}

/// No name is looked up, and each connection goes through the tunnel: those for requests, for renewals, and for messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_connection_goes_over_the_dialer() {
    let server = RedisServer::start().unwrap();
    let tunnel = Tunnel::to(Some(server.port()));
    let builder = Client::builder().url("redis://inside.example:7000").dialer(tunnel.clone());
    let client = builder.connect().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let held = other.lock("tunnel").lock().await.unwrap();
    let waits = tokio::spawn(async move { client.lock("tunnel").lock_for(ms(20_000)).await });
    crate::address_map::listened_to(&server).await;
    held.unlock().await.unwrap();
    assert!(waits.await.unwrap().unwrap().is_some());
    let asked = tunnel.asked.lock().unwrap().clone();
    assert!(asked.len() >= 2, "requests and messages: {asked:?}");
    assert!(asked.iter().all(|to| *to == ("inside.example".to_owned(), 7000)), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encryption_runs_over_the_dialer() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    let server = RedisServer::builder().tls(&files).start().unwrap();
    let tunnel = Tunnel::to(Some(server.port()));
    let connect = |name: Option<&str>| {
        let mut tls = TlsOptions::default();
        tls.ca_file = Some(files.ca_cert.clone());
        tls.server_name = name.map(str::to_owned);
        Client::builder().url("rediss://inside.example:7000").dialer(tunnel.clone()).tls(tls).connect()
    };
    let client = connect(Some("localhost")).await.unwrap();
    client.lock("encrypted").lock().await.unwrap().unlock().await.unwrap();
    let error = connect(None).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tls, "the certificate is checked against the URL's name: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_dialer_refuses_is_unreachable() {
    let error = Client::builder().url("redis://inside.example").dialer(Tunnel::to(None)).connect().await;
    let error = error.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}
