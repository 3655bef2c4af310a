//! Where Hubble's clients are served.
//!
//! Nowhere by default: with a server the vswitch watches itself from the start, which costs something, and tells who talks with whom.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::check::{Faults, MAX_SOCKET_PATH, line};

/// What its address begins with when it is a path, as with the options of Hubble's clients.
const UNIX: &str = "unix://";

/// What the file says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Written {
    listen: Option<Spanned<String>>,
    plaintext: Option<Spanned<bool>>,
}

/// Where Hubble's clients connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum HubbleConfig {
    /// Nowhere.
    #[default]
    Off,
    /// At a socket that only the owner of the process may open.
    Unix(PathBuf),
    /// At an address, without TLS.
    Tcp(SocketAddr),
}

/// The meaning of what the file says. Relative paths start at `folder`.
pub(super) fn check(written: Option<&Written>, folder: &Path, faults: &mut Faults<'_>) -> HubbleConfig {
    let Some(Written { listen: Some(named), plaintext }) = written else { return HubbleConfig::Off };
    let mut wrong = |problem: String, help: &str| faults.add(line(named), "hubble.listen", problem, help);
    if named.value == "none" {
        return HubbleConfig::Off;
    }
    if let Some(path) = named.value.strip_prefix(UNIX) {
        let whole = folder.join(path);
        if path.is_empty() || whole.as_os_str().len() > MAX_SOCKET_PATH {
            let help = format!("write a path of at most {MAX_SOCKET_PATH} bytes: unix:///run/bulkhead/hubble.sock");
            wrong("is not a path that a socket can have".to_owned(), &help);
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
    if !address.ip().is_loopback() && !plaintext.as_ref().is_some_and(|plaintext| plaintext.value) {
        let problem = "whoever reaches it reads who talks with whom: it has no TLS and asks nobody who they are";
        let help = "listen at 127.0.0.1 or a unix socket; or, where only a relay reaches it, add plaintext: true";
        wrong(problem.to_owned(), help);
    }
    HubbleConfig::Tcp(address)
}
