//! Encryption: how certificates are checked, and what a failed handshake means.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    config::TlsOptions,
    error::{Error, ErrorKind},
    store::url::Server,
};

/// After how much silence in a handshake it is asked whether the port is encrypted at all. A server that is not waits for the
/// end of what it takes for a line, for ever.
const SILENCE: Duration = Duration::from_millis(500);
/// How long the answer to that may take.
const ANSWER_TIME: Duration = Duration::from_millis(700);

pub(super) fn connector(options: &TlsOptions) -> Result<TlsConnector, Error> {
    let bad = |what: &str, error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::InvalidOption, format!("TLS {what}: {error}"))
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("versions", &error))?;
    let builder = if options.danger_accept_any_certificate {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { provider, roots: None }))
    } else {
        let mut roots = RootCertStore::empty();
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
        if options.danger_accept_any_host_name {
            let verifier = Lenient { provider, roots: Some(roots) };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        } else {
            builder.with_root_certificates(roots)
        }
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

/// Accepts certificates of these authorities under any name, or every certificate; behind options whose names say so.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let cert = ParsedCertificate::try_from(cert)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&cert, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Shakes hands. After some silence a second connection says `PING` in plain words, which no encrypted server answers in kind.
pub(super) async fn handshake(
    tls: &TlsConnector,
    name: ServerName<'static>,
    tcp: TcpStream,
    trouble: &Trouble,
) -> io::Result<TlsStream<TcpStream>> {
    let peer = tcp.peer_addr()?;
    let mut shaking = std::pin::pin!(tls.connect(name, tcp));
    if let Ok(outcome) = tokio::time::timeout(SILENCE, &mut shaking).await {
        return outcome;
    }
    let asking = async {
        let mut plain = TcpStream::connect(peer).await?;
        plain.write_all(b"PING\r\n").await?;
        plain.read_u8().await
    };
    tokio::select! {
        outcome = &mut shaking => return outcome,
        answer = tokio::time::timeout(ANSWER_TIME, asking) => {
            if let Ok(Ok(b'+' | b'-')) = answer {
                trouble.set(PLAIN);
                return Err(io::Error::other("the port is not encrypted"));
            }
        }
    }
    shaking.await
}

/// What is known of why a connection does not come about, better than "it ended". It is noted where bytes are read, and
/// looked at where the attempt fails.
#[derive(Debug, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<Cause>>>);

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
const CLIENT_CERTIFICATE: Cause = (
    "it refused our certificate, or wants one",
    "give a certificate that it trusts as tls cert_file and key_file",
);

impl Trouble {
    pub(super) fn shared(&self) -> Trouble {
        Trouble(self.0.clone())
    }

    fn set(&self, cause: Cause) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
    }

    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The error that the trouble means, once.
    pub(super) fn take(&self, server: &Server) -> Option<Error> {
        let (what, remedy) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Error::new(ErrorKind::Tls, format!("cannot connect to {server}: {what}")).remedy(remedy))
    }

    /// Looks at the first bytes of a plain connection: a server that expects encryption answers with an alert.
    pub(super) fn look(&self, bytes: &[u8]) {
        if bytes.starts_with(&[0x15, 0x03]) {
            self.set(ENCRYPTED);
        }
    }

    /// Notes what the TLS library says; nothing when it only lost the connection.
    pub(super) fn note(&self, error: &io::Error) {
        let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        if let Some(cause) = error.and_then(cause) {
            self.set(cause);
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
                ("its certificate is not valid yet", "set the clock of this machine or of whoever issued it")
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
            _ => ("its certificate is not valid", "give the server another certificate"),
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
