//! TLS: trusted authorities and the client's certificate.

use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::unusable::Unusable;

/// Which servers' certificates the client accepts.
pub(super) enum Roots {
    /// Certificates of authorities that the operating system trusts.
    System,
    /// Certificates of these authorities only.
    Given(RootCertStore),
    /// Any certificate: a machine on the path can impersonate the server.
    Unchecked,
}

impl Roots {
    /// Parses the certificates of authorities from PEM.
    pub(super) fn from_pem(text: &[u8]) -> Result<Self, Unusable> {
        let mut roots = RootCertStore::empty();
        for (at, certificate) in certificates(text)?.into_iter().enumerate() {
            let wrong = |error| Unusable::new(format!("certificate {} cannot be read: {error}", at + 1));
            roots.add(certificate).map_err(wrong)?;
        }
        Ok(Self::Given(roots))
    }
}

/// A client certificate with its chain, and its private key.
pub(super) struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Parses a certificate chain from PEM.
    pub(super) fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
        certificates(text)
    }

    /// Parses a private key from PEM.
    pub(super) fn key(text: &[u8]) -> Result<PrivateKeyDer<'static>, Unusable> {
        PrivateKeyDer::from_pem_slice(text).map_err(|error| {
            let help = "write the private key as PEM without a passphrase: it begins with -----BEGIN PRIVATE KEY-----";
            let problem = match error {
                pem::Error::NoItemsFound => "it has no private key, or its key has a passphrase".to_owned(),
                _ => "it is not PEM".to_owned(),
            };
            Unusable::with_help(problem, help)
        })
    }

    pub(super) const fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        Self { chain, key }
    }
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let help = "write PEM certificates, which begin with -----BEGIN CERTIFICATE-----";
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    let read = read.map_err(|error| Unusable::with_help(format!("it is not PEM: {error}"), help))?;
    if read.is_empty() {
        return Err(Unusable::with_help("it has no certificate", help));
    }
    Ok(read)
}

/// Returns the TLS configuration of a client.
///
/// # Errors
/// If the system's authorities cannot be read, or the key does not belong to the certificate.
pub(super) fn config(roots: Roots, identity: Option<Identity>) -> Result<ClientConfig, Unusable> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.expect("ring has suites of these versions");
    let builder = match roots {
        Roots::System => builder
            .with_native_roots()
            .map_err(|error| Unusable::new(format!("the system's trusted certificates cannot be read: {error}")))?,
        Roots::Given(roots) => builder.with_root_certificates(roots),
        Roots::Unchecked => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked { provider })),
    };
    match identity {
        Some(Identity { chain, key }) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| Unusable::new(format!("the client's certificate and key cannot be used: {error}"))),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Accepts any certificate, for `insecure-skip-tls-verify`. Still verifies that the server owns the certificate's key.
#[derive(Debug)]
struct Unchecked {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
