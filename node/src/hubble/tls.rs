//! TLS for Hubble's clients, with certificates that are reloaded after a renewal.
//!
//! ```text
//!   certificate, key, client_ca --read--> ServerConfig --watch--> new handshakes
//!                                   '- invalid: logged, and the previous configuration stays
//! ```
//!
//! The server accepts only TLS 1.3, like Hubble's own servers. It does not resume sessions: each connection presents its certificate, so a
//! client whose CA was removed cannot reconnect. A thread follows the files ([`Watch`]).

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig, version};
use tokio_rustls::server::TlsStream;

use super::validity::{Renewal, Validity};
use crate::config::TlsFiles;
use crate::log;
use crate::watch::Watch;

/// Maximum size of a file, in bytes: four times the bundle of all CAs that browsers trust.
const LONGEST: u64 = 1 << 20;

/// Timeout of a handshake, which takes a few round trips. Then the connection ends and frees its place.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Minimum interval between two log messages about refused clients, so that a client that retries does not fill the log.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// An invalid TLS file: its configuration field, path, problem and remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {}: {problem}\nhelp: {help}", path.display())]
pub(crate) struct TlsError {
    pub field: &'static str,
    pub path: PathBuf,
    pub problem: String,
    pub help: &'static str,
}

/// The configuration field and path of a file.
#[derive(Clone, Copy)]
struct File<'a>(&'static str, &'a Path);

impl File<'_> {
    fn error(self, problem: impl Into<String>, help: &'static str) -> TlsError {
        TlsError { field: self.0, path: self.1.to_owned(), problem: problem.into(), help }
    }

    fn read(self) -> Result<Vec<u8>, TlsError> {
        let unreadable = |error: io::Error| {
            let help = "name an existing file that the user of the vswitch may read";
            self.error(format!("cannot be read: {error}"), help)
        };
        let file = fs::metadata(self.1).map_err(unreadable)?;
        // Reading a pipe might block forever.
        if !file.is_file() {
            return Err(self.error("is not a file", "name a PEM file"));
        }
        if file.len() > LONGEST {
            return Err(self.error(format!("has more than {LONGEST} bytes"), "name a PEM file"));
        }
        fs::read(self.1).map_err(unreadable)
    }

    fn certificates(self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let help = "write PEM certificates, which begin with -----BEGIN CERTIFICATE-----";
        let text = self.read()?;
        let certificates: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
        let certificates = certificates.map_err(|error| self.error(format!("is not PEM: {error}"), help))?;
        if certificates.is_empty() {
            return Err(self.error("has no certificate", help));
        }
        Ok(certificates)
    }

    fn key(self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| {
            let help = "write the private key as PEM without a passphrase: it begins with -----BEGIN PRIVATE KEY-----";
            match error {
                pem::Error::NoItemsFound => self.error("has no private key, or one with a passphrase", help),
                error => self.error(format!("is not PEM: {error}"), help),
            }
        })
    }
}

/// What the TLS files contain.
pub(crate) struct Secured {
    config: ServerConfig,
    /// The validity of the certificate that ends first: the server's own, or one of its chain. `None` if no certificate's can be read.
    pub(crate) validity: Option<Validity>,
}

/// Reads the files and builds the server's TLS configuration.
///
/// # Errors
/// If a file cannot be read or is invalid.
pub(crate) fn read(files: &TlsFiles) -> Result<Secured, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let identity = identity(files, &provider)?;
    let validity = identity.cert.iter().filter_map(|certificate| Validity::of(certificate)).min_by_key(|of| of.end);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&version::TLS13])
        .expect("ring has suites of TLS 1.3");
    let builder = match &files.client_ca {
        Some(path) => builder.with_client_cert_verifier(clients(File("hubble.tls.client_ca", path), provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Secured { config, validity })
}

/// Returns the message about a certificate with this validity that should have been renewed by now. `None` if its renewal is not due.
pub(crate) fn renewal_warning(files: &TlsFiles, validity: Validity) -> Option<String> {
    let end = humantime::format_rfc3339_seconds(validity.end);
    let what = match validity.renewal(SystemTime::now()) {
        Renewal::NotDue => return None,
        Renewal::Due => format!("is valid only until {end}; then clients refuse new connections"),
        Renewal::Overdue => format!("has not been valid since {end}; clients refuse new connections"),
    };
    Some(format!("hubble.tls.certificate: {}: a certificate {what}", files.certificate.display()))
}

/// The remedy that belongs to [`renewal_warning`].
pub(crate) const RENEW: &str =
    "renew it, and find out why that did not happen; the vswitch reads the new files without a restart";

/// Reads the server's certificate chain and private key, and checks that they belong together.
fn identity(files: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let (certificate, key) = (File("hubble.tls.certificate", &files.certificate), File("hubble.tls.key", &files.key));
    let chain = certificate.certificates()?;
    let private = provider.key_provider.load_private_key(key.key()?).map_err(|error| {
        let help = "make an ECDSA key (P-256, P-384), an Ed25519 key, or an RSA key of 2048 bits or more";
        key.error(format!("is not a key that can be used: {error}"), help)
    })?;
    let identity = CertifiedKey::new(chain, private);
    match identity.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(identity),
        Err(Error::InconsistentKeys(_)) => {
            let problem = format!("is not the key of {}", certificate.1.display());
            Err(key.error(problem, "name the key with which the first certificate of that file was requested"))
        }
        Err(error) => {
            let help = "put the server's own certificate first in the file";
            Err(certificate.error(format!("its first certificate cannot be read: {error}"), help))
        }
    }
}

/// Returns the verifier that requires a client certificate of one of these CAs.
fn clients(authorities: File<'_>, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let help = "put the self-signed certificates of the CAs into the file";
    let mut roots = RootCertStore::empty();
    for (at, certificate) in authorities.certificates()?.into_iter().enumerate() {
        let wrong = |error| authorities.error(format!("certificate {} cannot be read: {error}", at + 1), help);
        roots.add(certificate).map_err(wrong)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier.map_err(|error| authorities.error(error.to_string(), help))
}

/// The server's TLS configuration, which [`Tls::follow`] keeps up to date with its files.
pub(super) struct Tls {
    files: TlsFiles,
    watch: Watch,
    config: watch::Sender<Arc<ServerConfig>>,
    /// See [`Secured::validity`].
    validity: Option<Validity>,
    /// See [`Self::end`].
    end: Arc<AtomicU64>,
    /// The state of the certificate when it was last looked at, to warn of each state once.
    renewal: Renewal,
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub(super) fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        // Created before reading, so that it detects changes during the read.
        let paths: Vec<PathBuf> = files.named().map(|(_, path)| path.to_owned()).collect();
        let watch = Watch::new(&paths);
        let Secured { config, validity } = read(files)?;
        let (config, end) = (watch::Sender::new(Arc::new(config)), Arc::default());
        let mut tls = Self { files: files.clone(), watch, config, validity: None, end, renewal: Renewal::NotDue };
        tls.set_validity(validity);
        Ok(tls)
    }

    /// Returns the end of the certificate's validity in seconds since 1970, or 0 if it cannot be read. [`Tls::follow`] keeps it up to date.
    pub(super) fn end(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.end)
    }

    /// Returns the cluster's name in certificates.
    pub(super) fn cluster(&self) -> &str {
        &self.files.cluster
    }

    /// Returns an acceptor that always uses the latest configuration.
    pub(super) fn acceptor(&self) -> Acceptor {
        Acceptor { config: self.config.subscribe(), refused: Arc::default() }
    }

    /// Starts a thread that reloads the files after each change. A thread, so that a hanging disk does not block clients.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn follow(mut self) -> io::Result<()> {
        let follow = move || {
            while !self.config.is_closed() {
                self.watch.wait();
                self.look();
                self.warn_of_end();
            }
        };
        std::thread::Builder::new().name("hubble-tls".into()).spawn(follow).map(drop)
    }

    fn look(&mut self) {
        if !self.watch.has_changed() {
            return;
        }
        let read = read(&self.files);
        if !self.watch.was_read() {
            // The files changed during the read: a certificate may have been written before its key.
            return;
        }
        match read {
            Ok(Secured { config, validity }) => {
                self.config.send_replace(Arc::new(config));
                log::info("hubble.tls: the files have changed; new connections use the new ones");
                self.set_validity(validity);
            }
            Err(error) => log::error(&format!(
                "hubble.tls: the changed files cannot be used; new connections use the previous ones\n{error}"
            )),
        }
    }

    fn set_validity(&mut self, validity: Option<Validity>) {
        let seconds = |validity: Validity| validity.end.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.end.store(validity.map_or(0, seconds), Ordering::Relaxed);
        (self.validity, self.renewal) = (validity, Renewal::NotDue);
        self.warn_of_end();
    }

    /// Logs a warning when the certificate's renewal becomes due, and another one when the certificate has ended.
    fn warn_of_end(&mut self) {
        let Some(validity) = self.validity else { return };
        let renewal = validity.renewal(SystemTime::now());
        if std::mem::replace(&mut self.renewal, renewal) != renewal
            && let Some(warning) = renewal_warning(&self.files, validity)
        {
            log::warn(&format!("{warning}\nhelp: {RENEW}"));
        }
    }
}

/// Performs TLS handshakes. Clones share the rate limit of the log.
#[derive(Clone)]
pub(super) struct Acceptor {
    config: watch::Receiver<Arc<ServerConfig>>,
    refused: Arc<Mutex<Refused>>,
}

impl Acceptor {
    /// Performs the handshake with `client`. `None` if it exceeds [`HANDSHAKE`] or fails; logs the error if the client sent invalid data.
    pub(super) async fn accept<S>(&self, stream: S, client: SocketAddr) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.config.borrow());
        let handshake = TlsAcceptor::from(config).accept(stream);
        match tokio::time::timeout(HANDSHAKE, handshake).await {
            Ok(Ok(secured)) => Some(secured),
            // The client closed the connection, as a port scan or a TCP health check does.
            Ok(Err(error)) if error.kind() != ErrorKind::InvalidData => None,
            Ok(Err(error)) => {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                refused.tell(client, &error);
                None
            }
            Err(_) => None,
        }
    }
}

/// The rate limit of the log messages about refused clients.
#[derive(Debug, Default)]
struct Refused {
    told: Option<Instant>,
    /// Number of refused clients since the last message, which were not logged.
    more: u64,
}

impl Refused {
    fn tell(&mut self, client: SocketAddr, error: &io::Error) {
        if self.told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            self.more += 1;
            return;
        }
        let more = match std::mem::take(&mut self.more) {
            0 => String::new(),
            more => format!(" ({more} more since the last such message)"),
        };
        self.told = Some(Instant::now());
        log::warn(&format!(
            "hubble.listen: refused the client at {client}: {error}{more}\n\
             help: the client needs TLS 1.3, the CA of hubble.tls.certificate and, if hubble.tls.client_ca is set, a certificate of that CA"
        ));
    }
}
