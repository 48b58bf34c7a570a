//! Encryption: shaking hands, and what a failed handshake means.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{AlertDescription, CertificateError, pki_types::ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    config::url::Server,
    dialer::Plain,
    error::{Error, ErrorKind},
};

/// After how much silence in a handshake it is asked whether the port is encrypted at all. A server that is not waits for the
/// end of what it takes for a line, for ever.
const SILENCE: Duration = Duration::from_millis(500);
/// How long the answer to that may take.
const ANSWER_TIME: Duration = Duration::from_millis(700);

/// Shakes hands. After some silence a second connection, from `again`, says `PING` in plain words, which no encrypted server answers in kind.
pub(super) async fn handshake(
    tls: &TlsConnector,
    name: ServerName<'static>,
    plain: Plain,
    again: impl Future<Output = io::Result<Plain>>,
    trouble: &Trouble,
) -> io::Result<TlsStream<Plain>> {
    let mut shaking = std::pin::pin!(tls.connect(name, plain));
    if let Ok(outcome) = tokio::time::timeout(SILENCE, &mut shaking).await {
        return outcome;
    }
    let asking = async {
        let mut plain = again.await?;
        plain.write_all(b"PING\r\n").await?;
        plain.read_u8().await
    };
    tokio::select! {
        biased;
        outcome = &mut shaking => return outcome,
        answer = tokio::time::timeout(ANSWER_TIME, asking) => {
            if let Ok(Ok(b'+' | b'-')) = answer {
                trouble.set(ErrorKind::Tls, PLAIN);
                return Err(io::Error::other("the port is not encrypted"));
            }
        }
    }
    shaking.await
}

/// What is known of why a connection does not come about, better than "it ended". It is noted where bytes are read, and
/// looked at where the attempt fails.
#[derive(Debug, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<(ErrorKind, Cause)>>>);

/// What it is, and what to do.
type Cause = (&'static str, &'static str);

impl Clone for Trouble {
    /// That of another connection, to maybe another server: it has none yet.
    fn clone(&self) -> Self {
        Trouble::default()
    }
}

const PLAIN: Cause = ("its port is not encrypted", "use redis://, or the server's TLS port");
const ENCRYPTED: Cause = ("its port is encrypted", "use rediss://, or the server's plain port");
const PROTECTED: Cause = (
    "it is in protected mode, in which it serves its own machine only",
    "give the server a password, or reach it from its own machine",
);
const FULL: Cause = ("it has as many clients as it allows", "raise its maxclients, or close connections");
const FOREIGN: Cause = ("what answers there is no Redis or Valkey server", "check host and port");
const CLIENT_CERTIFICATE: Cause = (
    "it refused our certificate, or wants one",
    "give a certificate that it trusts as tls cert_file and key_file",
);

impl Trouble {
    pub(super) fn shared(&self) -> Trouble {
        Trouble(self.0.clone())
    }

    fn set(&self, kind: ErrorKind, cause: Cause) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((kind, cause));
    }

    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The error that the trouble means, once.
    pub(super) fn take(&self, server: &Server) -> Option<Error> {
        let (kind, (what, remedy)) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Error::new(kind, format!("cannot connect to {server}: {what}")).remedy(remedy))
    }

    /// Looks at the first bytes of a plain connection. A server that expects encryption answers with an alert; others say why
    /// they end the connection, and end it before that has been read.
    pub(super) fn look(&self, bytes: &[u8]) {
        match bytes {
            [0x15, 0x03, ..] => self.set(ErrorKind::Tls, ENCRYPTED),
            [b'-', b'D', b'E', b'N', b'I', b'E', b'D', ..] => self.set(ErrorKind::Unreachable, PROTECTED),
            _ if bytes.starts_with(b"-ERR max number of clients") => self.set(ErrorKind::ServerBusy, FULL),
            // What answers begin with, errors and pushed messages included.
            [first, ..] if !b"+-:$*_#,(!=%~>|".contains(first) => self.set(ErrorKind::Unreachable, FOREIGN),
            _ => {}
        }
    }

    /// Notes what the TLS library says; nothing when it only lost the connection.
    pub(super) fn note(&self, error: &io::Error) {
        let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        if let Some(cause) = error.and_then(cause) {
            self.set(ErrorKind::Tls, cause);
        }
    }
}

fn cause(error: &rustls::Error) -> Option<Cause> {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage, PeerIncompatible};
    Some(match error {
        InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                ("its certificate has expired", "renew the server's certificate, or set this machine's clock")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                ("its certificate is not valid yet", "set the clock of this machine or of its issuer")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                "its certificate is for another name",
                "use a host that is in the certificate, or give the name that is as tls server_name",
            ),
            // A signature that does not fit is that of another authority with the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => (
                "its certificate is of an authority that is not trusted",
                "give the authority's certificate as tls ca_file",
            ),
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                ("its certificate is not one for servers", "give the server a certificate for servers")
            }
            // What rustls hands on from webpki has no value of its own to be matched.
            CertificateError::Other(error) if error.to_string().contains("CaUsedAsEndEntity") => (
                "its certificate is one of an authority, as `openssl req -x509` makes them",
                "have a certificate for servers (CA:FALSE) issued, and give its authority's certificate as tls ca_file",
            ),
            _ => (
                "its certificate is not valid",
                "`openssl x509 -text` shows what the certificate says; issue one for servers",
            ),
        },
        InvalidMessage(_) => PLAIN,
        AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => CLIENT_CERTIFICATE,
            // With TLS 1.2 a missing certificate is no more than a failed handshake.
            AlertDescription::HandshakeFailure => (
                "it refused the handshake",
                "if it wants client certificates give one as tls cert_file and key_file; it needs TLS 1.2 or 1.3",
            ),
            AlertDescription::ProtocolVersion => {
                ("it refused our versions of TLS", "let it speak TLS 1.2 or 1.3")
            }
            AlertDescription::UnrecognisedName => {
                ("it does not know the name that it was called by", "give its name as tls server_name")
            }
            _ => return None,
        },
        PeerIncompatible(_) => {
            ("it has no version or cipher suite of TLS in common with us", "let it speak TLS 1.2 or 1.3")
        }
        _ => return None,
    })
}
