//! Address and TLS settings of the Hubble server.
//!
//! The server is off by default: it costs CPU time from the start, and every client that reaches it can read all flows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;

use bulkhead_answers::output::printable;

use super::faults::{Faults, MAX_SOCKET_PATH, line};

/// Cilium's name of an unnamed cluster.
const UNNAMED: &str = "default";

/// Cilium's maximum length of a cluster name.
const MAX_CLUSTER: usize = 32;

/// Prefix of an address that is a socket path, as in Hubble clients' options.
const UNIX: &str = "unix://";

/// The `hubble` field as parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Written {
    listen: Option<Spanned<String>>,
    plaintext: Option<Spanned<bool>>,
    cluster: Option<Spanned<String>>,
    tls: Option<Spanned<WrittenTls>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenTls {
    certificate: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    client_ca: Option<Spanned<String>>,
}

/// The address of the Hubble server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum HubbleConfig {
    #[default]
    Off,
    /// A Unix socket, which only the process's user may open.
    Unix(PathBuf),
    /// A TCP address, and the server's TLS files. `None` for plaintext.
    Tcp(SocketAddr, Option<TlsFiles>),
}

/// PEM files of the server, which it re-reads when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The server's certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The CA certificates of clients. `None` if clients are not authenticated.
    pub client_ca: Option<PathBuf>,
    /// The cluster's name, which is part of the names in nodes' certificates.
    pub cluster: String,
}

impl TlsFiles {
    /// Returns the path of each configured file, with the name of its field.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let client_ca = self.client_ca.iter().map(|path| ("hubble.tls.client_ca", &**path));
        [("hubble.tls.certificate", &*self.certificate), ("hubble.tls.key", &*self.key)].into_iter().chain(client_ca)
    }
}

/// Checks the `hubble` field. Relative paths start at `folder`.
pub(super) fn check(written: Option<&Written>, folder: &Path, faults: &mut Faults<'_>) -> HubbleConfig {
    let Some(Written { listen, plaintext, cluster, tls }) = written else { return HubbleConfig::Off };
    let plaintext = plaintext.as_ref().filter(|plaintext| plaintext.value);
    if let (Some(plaintext), Some(_)) = (plaintext, tls) {
        let help = "keep one of the two: tls, or plaintext: true for clients without it";
        faults.add(line(plaintext), "hubble.plaintext", "is set together with hubble.tls", help);
    }
    if let (Some(cluster), None) = (cluster, tls) {
        let help = "remove it, because only names in TLS certificates contain it; or add hubble.tls";
        faults.add(line(cluster), "hubble.cluster", "has no effect without hubble.tls", help);
    }
    let cluster = cluster_name(cluster.as_ref(), faults);
    let files = tls.as_ref().map(|tls| tls_files(tls, cluster, folder, faults));
    let Some(named) = listen else { return HubbleConfig::Off };
    let mut wrong = |problem: String, help: &str| faults.add(line(named), "hubble.listen", problem, help);
    if named.value == "none" {
        return HubbleConfig::Off;
    }
    if let Some(path) = named.value.strip_prefix(UNIX) {
        let whole = folder.join(path);
        if path.is_empty() || whole.as_os_str().len() > MAX_SOCKET_PATH {
            let help = format!("write a path of at most {MAX_SOCKET_PATH} bytes: unix:///run/bulkhead/hubble.sock");
            wrong("is not a valid path of a socket".to_owned(), &help);
        }
        if let Some(tls) = tls {
            let help = "remove it, because only the process's user may open the socket; or listen at an address";
            faults.add(line(tls), "hubble.tls", "has no effect at a unix socket", help);
        }
        return HubbleConfig::Unix(whole);
    }
    let Ok(address) = named.value.parse::<SocketAddr>() else {
        let help = "write unix:///run/bulkhead/hubble.sock, an address and a port (127.0.0.1:4244), or none";
        wrong(format!("`{}` is neither a socket nor an address", named.value), help);
        return HubbleConfig::Off;
    };
    if address.port() == 0 {
        wrong("has no port".to_owned(), "write the port that clients connect to; Hubble's own is 4244");
    }
    if !address.ip().is_loopback() && plaintext.is_none() && tls.is_none() {
        let problem = "has neither TLS nor authentication: every client that reaches it can read all flows";
        let help = "add tls: {certificate: PATH, key: PATH, client_ca: PATH}; or listen at 127.0.0.1 or a unix socket; \
                    or, where only a relay reaches it, add plaintext: true";
        wrong(problem.to_owned(), help);
    }
    HubbleConfig::Tcp(address, files)
}

/// Checks the cluster's name. Like Cilium's `cluster.name`, it must be a DNS label, as it is one part of the name in a certificate.
fn cluster_name(written: Option<&Spanned<String>>, faults: &mut Faults<'_>) -> String {
    let Some(written) = written else { return UNNAMED.to_owned() };
    let name = &written.value;
    let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_label = name.len() <= MAX_CLUSTER
        && name.bytes().all(|letter| is_letter(letter) || letter == b'-')
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().next_back().is_some_and(is_letter);
    if !is_label {
        let problem = format!("`{}` is not a valid cluster name", printable(name));
        let help = format!(
            "write at most {MAX_CLUSTER} lower case letters, digits and inner hyphens, as in cluster.name of Cilium's chart"
        );
        faults.add(line(written), "hubble.cluster", problem, &help);
    }
    name.clone()
}

fn tls_files(written: &Spanned<WrittenTls>, cluster: String, folder: &Path, faults: &mut Faults<'_>) -> TlsFiles {
    let mut path = |name: &str, named: Option<&Spanned<String>>, help: &str| match named {
        Some(path) if !path.value.is_empty() => folder.join(&path.value),
        Some(path) => {
            faults.add(line(path), format!("hubble.tls.{name}"), "is empty", help);
            PathBuf::new()
        }
        None => {
            faults.add(line(written), "hubble.tls", format!("has no {name}"), help);
            PathBuf::new()
        }
    };
    let WrittenTls { certificate, key, client_ca } = &written.value;
    TlsFiles {
        certificate: path("certificate", certificate.as_ref(), "name the PEM file of the server's certificate"),
        key: path("key", key.as_ref(), "name the PEM file of the certificate's private key"),
        client_ca: client_ca.as_ref().map(|named| {
            let help = "name the PEM file of the CAs that issue client certificates, or remove it";
            path("client_ca", Some(named), help)
        }),
        cluster,
    }
}
