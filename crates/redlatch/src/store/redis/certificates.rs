//! What connections are encrypted with: authorities, certificate and key, read again when their files change.
//!
//! Certificates are short-lived, and whatever renews them puts new files in the place of the old ones. Connections that are open
//! stay as they are; a new one uses the files of its time. Files that cannot be used are told once, and the last good ones stay
//! in use.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tokio_rustls::TlsConnector;

use crate::{
    config::TlsOptions,
    error::{Error, ErrorKind},
};

/// The largest file of certificates or keys that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Files and what was last made of them, shared by all connections of a store.
#[derive(Clone)]
pub(super) struct Certificates(Arc<Inner>);

struct Inner {
    options: TlsOptions,
    state: Mutex<State>,
}

struct State {
    /// The files as they were before they were last read, whether they could be used or not.
    seen: Stamps,
    good: TlsConnector,
}

/// What tells a file from its successor: device, number, size, and times of change in ns. `None` for one that is not there.
type Stamp = Option<(u64, u64, u64, i128, i128)>;
type Stamps = [Stamp; 3];

fn stamps(options: &TlsOptions) -> Stamps {
    [&options.ca_file, &options.cert_file, &options.key_file].map(|file| {
        let data = fs::metadata(file.as_ref()?).ok()?;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let (changed, replaced) = (ns(data.mtime(), data.mtime_nsec()), ns(data.ctime(), data.ctime_nsec()));
        Some((data.dev(), data.ino(), data.size(), changed, replaced))
    })
}

impl Certificates {
    pub(super) fn read(options: &TlsOptions) -> Result<Self, Error> {
        // Looked at before they are read: a change in between shows at the next look.
        let seen = stamps(options);
        let good = connector(options)?;
        let state = Mutex::new(State { seen, good });
        Ok(Certificates(Arc::new(Inner { options: options.clone(), state })))
    }

    /// What a new connection uses. Files are read off the runtime, and one connection reads for all.
    pub(super) async fn connector(&self) -> TlsConnector {
        let inner = self.0.clone();
        match tokio::task::spawn_blocking(move || inner.latest()).await {
            Ok(connector) => connector,
            // The runtime is going away.
            Err(_) => self.0.state.lock().unwrap_or_else(PoisonError::into_inner).good.clone(),
        }
    }

    /// Whether a certificate of our own is shown.
    pub(super) fn identify(&self) -> bool {
        self.0.options.cert_file.is_some()
    }
}

impl Inner {
    fn latest(&self) -> TlsConnector {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.options);
        if now != state.seen {
            state.seen = now;
            match connector(&self.options) {
                Ok(good) => {
                    tracing::info!("the TLS files have changed and are used from now on");
                    state.good = good;
                }
                // Maybe only one of them has been replaced so far; then the next change is looked at, too.
                Err(error) => tracing::warn!(
                    %error,
                    "the TLS files have changed and cannot be used; the last good ones stay in use"
                ),
            }
        }
        state.good.clone()
    }
}

fn bad(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("TLS {what}: {error}"))
}

/// What it is for, and which file it is: there may be three of them.
fn named(what: &str, file: &Path) -> String {
    format!("{what} {}", file.display())
}

fn pem(what: &str, file: &Path) -> Result<Vec<u8>, Error> {
    let what = &named(what, file);
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| bad(what, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(bad(what, &"the file is over 4 MiB"));
    }
    Ok(bytes)
}

fn certificates(what: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = pem(what, file)?;
    let what = &named(what, file);
    let all = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| bad(what, &error))?;
    if all.is_empty() { Err(bad(what, &"no certificate in it")) } else { Ok(all) }
}

fn connector(options: &TlsOptions) -> Result<TlsConnector, Error> {
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
                for cert in certificates("CA file", file)? {
                    roots.add(cert).map_err(|error| bad(&named("CA file", file), &error))?;
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
    let mut config = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates("client certificate", cert)?;
            let key = PrivateKeyDer::from_pem_slice(&pem("client key", key)?)
                .map_err(|error| bad(&named("client key", key), &error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| bad("client certificate", &error))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(bad("client certificate", &"certificate and key must be given together")),
    };
    // A session that goes on shows no certificate, so one that has expired would be trusted for as long as the client lives.
    config.resumption = Resumption::disabled();
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
