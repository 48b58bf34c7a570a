//! Throw-away certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// A certificate authority with one server and one client certificate, as PEM files.
///
/// The server certificate is valid for `localhost` and 127.0.0.1; all are valid for two days.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate of the authority.
    pub ca_cert: PathBuf,
    /// The certificate of the server.
    pub server_cert: PathBuf,
    /// The private key of the server.
    pub server_key: PathBuf,
    /// The certificate of a client.
    pub client_cert: PathBuf,
    /// The private key of the client.
    pub client_key: PathBuf,
}

impl TlsFiles {
    /// Makes new keys and certificates in `dir` with the `openssl` command.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingTool`] when `openssl` is not installed, [`ErrorKind::Start`] when it fails.
    pub fn create(dir: &Path) -> Result<Self> {
        let files = Self {
            ca_cert: dir.join("ca.pem"),
            server_cert: dir.join("server.pem"),
            server_key: dir.join("server.key"),
            client_cert: dir.join("client.pem"),
            client_key: dir.join("client.key"),
        };
        let ca_extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n";
        issue(dir, "ca", "redlatch test authority", ca_extensions, None)?;
        let server_extensions =
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        issue(dir, "server", "localhost", server_extensions, Some("ca"))?;
        issue(dir, "client", "client", "extendedKeyUsage=clientAuth\n", Some("ca"))?;
        Ok(files)
    }

    /// The same authority and client with another certificate of the server, made in `dir`: for this alternative name, such as
    /// `DNS:elsewhere.example`.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn with_server_name(&self, dir: &Path, name: &str) -> Result<Self> {
        let extensions = format!("subjectAltName={name}\nextendedKeyUsage=serverAuth\n");
        issue(dir, "renamed", "renamed", &extensions, Some("ca"))?;
        Ok(Self { server_cert: dir.join("renamed.pem"), server_key: dir.join("renamed.key"), ..self.clone() })
    }

    /// The same authority and client with a certificate of the server that expired years ago, made in `dir`, where the
    /// authority's files are.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn with_expired_server(&self, dir: &Path) -> Result<Self> {
        self.with_server_between(dir, "expired", "20200101000000Z", "20200102000000Z")
    }

    /// The same with a certificate of the server that expires so long from now, to the second.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn with_server_that_expires_in(&self, dir: &Path, time: Duration) -> Result<Self> {
        let when = format!("+{} seconds", time.as_secs());
        let output = Command::new("date").args(["--utc", "--date", &when, "+%Y%m%d%H%M%SZ"]).output();
        let output = output.map_err(|e| Error::io("no `date` command", e))?;
        let end = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        self.with_server_between(dir, &format!("until-{end}"), "20200101000000Z", &end)
    }

    fn with_server_between(&self, dir: &Path, name: &str, start: &str, end: &str) -> Result<Self> {
        let io = |e| Error::io("cannot write the authority's configuration", e);
        let text = "[ca]\ndefault_ca=here\n[here]\ndatabase=index.txt\nserial=serial.txt\nnew_certs_dir=.\n\
                    default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n";
        fs::write(dir.join("ca.cnf"), text).map_err(io)?;
        fs::write(dir.join("index.txt"), "").map_err(io)?;
        fs::write(dir.join("serial.txt"), "1000\n").map_err(io)?;
        let cert = format!("{name}.pem");
        let sign = [
            ["ca", "-batch", "-notext", "-config", "ca.cnf"].as_slice(),
            &["-cert", "ca.pem", "-keyfile", "ca.key", "-in", "server.csr", "-out", &cert],
            &["-extfile", "server.ext", "-startdate", start, "-enddate", end],
        ];
        openssl(dir, &sign.concat())?;
        Ok(Self { server_cert: dir.join(cert), ..self.clone() })
    }
}

fn issue(dir: &Path, name: &str, subject: &str, extensions: &str, issuer: Option<&str>) -> Result<()> {
    let io = |e| Error::io("cannot write certificate extensions", e);
    fs::write(dir.join(format!("{name}.ext")), extensions).map_err(io)?;
    let file = |suffix: &str| format!("{name}.{suffix}");
    let subject = format!("/CN={subject}");
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let mut request = vec!["req", "-new"];
    request.extend(curve);
    let (key, csr, cert, ext) = (file("key"), file("csr"), file("pem"), file("ext"));
    request.extend(["-subj", &subject, "-keyout", &key, "-out", &csr]);
    openssl(dir, &request)?;
    let issuer_files = issuer.map(|issuer| (format!("{issuer}.pem"), format!("{issuer}.key")));
    let mut sign = vec!["x509", "-req", "-in", &csr, "-out", &cert, "-days", "2", "-extfile", &ext];
    match &issuer_files {
        Some((ca_cert, ca_key)) => sign.extend(["-CA", ca_cert, "-CAkey", ca_key, "-CAcreateserial"]),
        None => sign.extend(["-signkey", &key]),
    }
    openssl(dir, &sign)
}

fn openssl(dir: &Path, args: &[&str]) -> Result<()> {
    let output =
        Command::new("openssl").args(args).current_dir(dir).stdin(Stdio::null()).output().map_err(|e| {
            let text = "no `openssl` command. Install it with:\n\n    apt-get install openssl\n";
            Error::because(ErrorKind::MissingTool, text, e)
        })?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::because(ErrorKind::Start, format!("`openssl {}` failed", args[0]), reason))
}
