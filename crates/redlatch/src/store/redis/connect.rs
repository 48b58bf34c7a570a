//! Opening one connection: TCP, TLS or unix socket, log-in, and time limits.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use redis::{Cmd, RedisConnectionInfo, RedisError, Value, aio::MultiplexedConnection};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    link::{self, Failure},
    role::{self, Role},
};
use crate::{
    config::{Config, TlsOptions},
    error::{Error, ErrorKind},
    store::{
        Fault,
        url::{Addr, Server},
    },
};

/// A hook that looks at each new connection to the local engine: starts the daemon before, checks its version after.
pub(crate) trait Greeter: Send + Sync {
    /// Called before connecting; may start what is to be connected to. Blocking work is done off the runtime by the caller.
    fn prepare(&self) -> Result<(), Error>;
    /// The request that introduces us, and the check of its answer.
    fn hello(&self) -> Vec<Vec<u8>>;
    /// Whether the answer is acceptable.
    fn check(&self, answer: &Value) -> Result<(), Error>;
}

/// How to reach one server.
#[derive(Clone)]
pub(crate) struct Dial {
    server: Server,
    tls: Option<TlsConnector>,
    tls_name: Option<String>,
    insecure: bool,
    client_name: Option<String>,
    connect_timeout: Duration,
    greeter: Option<Arc<dyn Greeter>>,
    master_only: bool,
}

impl Dial {
    pub(crate) fn new(mut server: Server, config: &Config) -> Result<Self, Error> {
        if config.username.is_some() {
            server.access.username = config.username.clone();
        }
        if config.password.0.is_some() {
            server.access.password = config.password.clone();
        }
        let tls = if server.access.tls { Some(connector(&config.tls)?) } else { None };
        Ok(Dial {
            server,
            tls,
            tls_name: config.tls.server_name.clone(),
            insecure: config.tls.danger_accept_any_certificate,
            client_name: config.client_name.clone(),
            connect_timeout: config.connect_timeout,
            greeter: None,
            master_only: false,
        })
    }

    /// The same way to log in, at another address.
    pub(super) fn at(&self, addr: Addr) -> Self {
        let mut dial = self.clone();
        dial.server.addr = addr;
        dial
    }

    /// Refuses each connection to a server that says it is no master: one that was demoted must not be asked, because
    /// scripts that only read would be answered from its old data.
    pub(super) fn master_only(mut self) -> Self {
        self.master_only = true;
        self
    }

    pub(super) fn addr(&self) -> &Addr {
        &self.server.addr
    }

    pub(crate) fn with_greeter(mut self, greeter: Arc<dyn Greeter>) -> Self {
        self.greeter = Some(greeter);
        self
    }

    pub(super) fn is_local(&self) -> bool {
        self.greeter.is_some()
    }

    /// Whether a password leaves this machine unencrypted.
    pub(super) fn shows_password(&self) -> bool {
        let Addr::Tcp { host, .. } = &self.server.addr else { return false };
        let ip: Result<std::net::IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
        let stays = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
        self.server.access.password.0.is_some() && self.tls.is_none() && !stays
    }

    pub(crate) fn describe(&self) -> String {
        self.server.to_string()
    }

    pub(super) fn login(&self) -> RedisConnectionInfo {
        let mut login = RedisConnectionInfo::default()
            .set_db(self.server.access.database)
            .set_lib_name("redlatch", env!("CARGO_PKG_VERSION"));
        if let Some(username) = &self.server.access.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.server.access.password.0 {
            login = login.set_password(password);
        }
        login
    }

    /// Bounds everything from the first packet to the last word of the log-in.
    pub(super) async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match tokio::time::timeout(self.connect_timeout, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.unreachable(format!("no answer within {:?}", self.connect_timeout))),
        }
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unreachable, format!("cannot connect to {}: {why}", self.server))
    }

    pub(super) async fn stream(&self) -> Result<Stream, Error> {
        if let Some(greeter) = self.greeter.clone() {
            // Starting a daemon waits for another process, which must not hold up this runtime's other tasks.
            tokio::task::spawn_blocking(move || greeter.prepare())
                .await
                .map_err(|error| self.unreachable(error))??;
        }
        match &self.server.addr {
            Addr::Unix(path) => {
                Ok(Stream::Unix(UnixStream::connect(path).await.map_err(|error| self.unreachable(error))?))
            }
            Addr::Tcp { host, port } => {
                let tcp = TcpStream::connect((host.as_str(), *port))
                    .await
                    .map_err(|error| self.unreachable(error))?;
                tcp.set_nodelay(true).map_err(|error| self.unreachable(error))?;
                let Some(tls) = &self.tls else { return Ok(Stream::Tcp(tcp)) };
                if self.insecure {
                    tracing::warn!(server = %self.server, "the server's certificate is not checked (danger_accept_any_certificate)");
                }
                let name = self.tls_name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(|_| {
                    Error::new(ErrorKind::InvalidOption, "the TLS server name is not a host name or address")
                })?;
                let stream = tls
                    .connect(name, tcp)
                    .await
                    .map_err(|error| self.unreachable(format!("TLS: {error}")))?;
                Ok(Stream::Tls(Box::new(stream)))
            }
        }
    }

    /// Turns a failed log-in into the error that it means.
    pub(super) fn refused(&self, error: &RedisError) -> Error {
        let detail = error.detail().unwrap_or("");
        if error.kind() == redis::ErrorKind::AuthenticationFailed {
            return Error::new(ErrorKind::Auth, format!("{} refused the user name or password", self.server));
        }
        let database = self.server.access.database;
        if database != 0 && error.to_string().contains("switch database") {
            let out_of_range = detail.contains("out of range");
            let kind = if out_of_range { ErrorKind::InvalidUrl } else { ErrorKind::Permission };
            let text = format!("{} refused database {database}: {detail}", self.server);
            return Error::new(kind, text).remedy("use database 0, or have SELECT allowed");
        }
        match error.code() {
            Some(code) => {
                let error = Fault::server(code, detail).into_error();
                if error.kind() == ErrorKind::Server { self.unreachable(error) } else { error }
            }
            None => self.unreachable(error.category()),
        }
    }

    pub(super) async fn greet(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        if self.master_only {
            self.greet_master(connection).await?;
        } else {
            self.greet_server(connection).await?;
        }
        self.introduce(connection).await
    }

    async fn greet_server(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        // Logging in with no password succeeds on servers that want one; the first command would then fail, so ask now.
        let mut cmd = Cmd::new();
        match &self.greeter {
            Some(greeter) => {
                for part in greeter.hello() {
                    cmd.arg(part);
                }
            }
            None => {
                cmd.arg("PING");
            }
        }
        let answer = connection.send_packed_command(&cmd).await;
        match (answer, &self.greeter) {
            (Ok(Value::ServerError(error)), _) => {
                Err(self.greeting_error(error.code(), error.details().unwrap_or("")))
            }
            (Ok(answer), Some(greeter)) => greeter.check(&answer),
            (Ok(_), None) => Ok(()),
            (Err(error), _) => match error.code() {
                Some(code) => Err(self.greeting_error(code, error.detail().unwrap_or(""))),
                None => Err(self.unreachable(error.category())),
            },
        }
        .or_else(|error| {
            // An account without the right to PING may still run scripts.
            if self.greeter.is_none() && error.kind() == ErrorKind::Permission { Ok(()) } else { Err(error) }
        })
    }

    async fn introduce(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        if let Some(name) = &self.client_name {
            let mut cmd = Cmd::new();
            cmd.arg("CLIENT").arg("SETNAME").arg(name);
            // A name is for people who look; an account that may not have one works without.
            match connection.send_packed_command(&cmd).await {
                Ok(Value::ServerError(_)) => {
                    tracing::debug!(server = %self.server, "CLIENT SETNAME was refused")
                }
                Ok(_) => {}
                Err(error) if error.code().is_some() => {
                    tracing::debug!(server = %self.server, "CLIENT SETNAME was refused")
                }
                Err(error) => return Err(self.unreachable(error.category())),
            }
        }
        Ok(())
    }

    /// Asks for the role in place of a sign of life. Where an account may not ask, refused writes are the only proof.
    async fn greet_master(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        for question in role::QUESTIONS {
            let answer = match connection.send_packed_command(&role::question(question)).await {
                Ok(value) => link::reply(value),
                Err(error) => match error.code() {
                    Some(code) => Err(Failure::refused(code, error.detail().unwrap_or(""))),
                    None => return Err(self.unreachable(error.category())),
                },
            };
            let error = match answer {
                Ok(answer) if role::of(&answer) == Some(Role::Replica) => {
                    let text = format!("{} is a replica at present", self.server);
                    return Err(Error::new(ErrorKind::ReadOnly, text));
                }
                Ok(_) => return Ok(()),
                Err(failure) => Fault::from(failure).into_error(),
            };
            if !matches!(error.kind(), ErrorKind::Permission | ErrorKind::Server) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn greeting_error(&self, code: &str, detail: &str) -> Error {
        if self.greeter.is_none() && detail.to_ascii_lowercase().starts_with("unknown command") {
            // A server that does not know PING has let us in all the same; told from others like a missing right.
            return Error::new(ErrorKind::Permission, "the server has no PING");
        }
        Fault::server(code, detail).into_error()
    }
}

fn connector(options: &TlsOptions) -> Result<TlsConnector, Error> {
    let bad = |what: &str, error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::InvalidOption, format!("TLS {what}: {error}"))
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("versions", &error))?;
    let builder = if options.danger_accept_any_certificate {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else {
        let mut roots = rustls::RootCertStore::empty();
        match &options.ca_file {
            Some(file) => {
                for cert in CertificateDer::pem_file_iter(file).map_err(|error| bad("CA file", &error))? {
                    roots
                        .add(cert.map_err(|error| bad("CA file", &error))?)
                        .map_err(|error| bad("CA file", &error))?;
                }
                if roots.is_empty() {
                    return Err(bad("CA file", &"no certificate in it"));
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        builder.with_root_certificates(roots)
    };
    let config = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_file_iter(cert)
                .and_then(|certs| certs.collect::<Result<Vec<_>, _>>())
                .map_err(|error| bad("client certificate", &error))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| bad("client key", &error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| bad("client certificate", &error))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(bad("client certificate", &"certificate and key must be given together")),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Accepts every certificate; behind an option whose name says so.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The three kinds of byte stream.
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

macro_rules! each {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream {
            Stream::Tcp($inner) => $do,
            Stream::Tls($inner) => $do,
            Stream::Unix($inner) => $do,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client::Client, store::StoreUrl};

    #[test]
    fn a_password_in_the_open_is_noticed() {
        for (url, shown) in [
            ("redis://:pw@db.example:6379", true),
            ("redis://:pw@10.0.0.1", true),
            ("redis://:pw@[2001:db8::1]", true),
            ("redis://:pw@127.0.0.2", false),
            ("redis://:pw@localhost", false),
            ("redis://:pw@[::1]", false),
            ("redis://db.example", false),
            ("rediss://:pw@db.example", false),
        ] {
            let StoreUrl::Redis(server) = StoreUrl::parse(url).unwrap() else { panic!("{url}") };
            let config = Client::builder().url(url).config().clone();
            assert_eq!(Dial::new(server, &config).unwrap().shows_password(), shown, "{url}");
        }
    }
}
