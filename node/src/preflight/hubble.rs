//! Checks the TLS files of the Hubble server.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use super::{Finding, Severity};
use crate::config::{HubbleConfig, TlsFiles};
use crate::hubble::tls;

/// Mode bit that lets users outside the file's owner and group read.
const OTHERS_READ: u32 = 0o004;

/// Checks the TLS files. Reads them, and changes nothing.
pub(crate) fn check(config: &HubbleConfig) -> Vec<Finding> {
    let HubbleConfig::Tcp(listen, Some(files)) = config else { return Vec::new() };
    let validity = match tls::read(files) {
        Ok(secured) => secured.validity,
        Err(error) => {
            let finding = Finding {
                severity: Severity::Error,
                what: format!("{}: {}: {}", error.field, error.path.display(), error.problem),
                why: "the vswitch cannot serve Hubble clients without it".to_owned(),
                remedy: error.help.to_owned(),
                comes_again: false,
            };
            return vec![finding];
        }
    };
    let is_ending = validity.and_then(|validity| tls::renewal_warning(files, validity)).map(|what| Finding {
        severity: Severity::Warning,
        what,
        why: "Hubble's clients check the validity at each new connection".to_owned(),
        remedy: tls::RENEW.to_owned(),
        comes_again: true,
    });
    let warnings = [is_ending, open_key(files), nobody_is_asked(*listen, files)];
    warnings.into_iter().flatten().collect()
}

fn open_key(files: &TlsFiles) -> Option<Finding> {
    let path = files.key.display();
    let mode = fs::metadata(&files.key).ok()?.permissions().mode();
    (mode & OTHERS_READ != 0).then(|| Finding {
        severity: Severity::Warning,
        what: format!("hubble.tls.key: {path}: every user of this machine may read it (mode {:o})", mode & 0o777),
        why: "a user with the key can impersonate this node to Hubble clients".to_owned(),
        remedy: format!("chmod o= {path}\nor, where it is a Secret's volume, set its defaultMode: 0400"),
        comes_again: false,
    })
}

/// Returns a warning if clients need no certificate and others than this machine can connect. `None` otherwise.
fn nobody_is_asked(listen: SocketAddr, files: &TlsFiles) -> Option<Finding> {
    (files.client_ca.is_none() && !listen.ip().is_loopback()).then(|| Finding {
        severity: Severity::Warning,
        what: format!("hubble.tls: clients at {listen} are not authenticated"),
        why: "every client that reaches this address can read all flows".to_owned(),
        remedy: "set client_ca to the CA of the relay's certificate".to_owned(),
        comes_again: false,
    })
}
