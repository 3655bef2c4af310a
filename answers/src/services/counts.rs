//! How much is known of Services, in numbers and in words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How much is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Whether all is listed; before that nothing is translated.
    pub listed: bool,
    /// Services, those that are not translated included.
    pub services: usize,
    /// Virtual addresses with protocol and port.
    pub vips: usize,
    /// Backends of service ports: an endpoint counts once for each.
    pub backends: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listed, services, vips, backends } = self;
        write!(f, "{services} Services, {vips} VIPs and {backends} backends")?;
        if *listed { Ok(()) } else { f.write_str("; not all are listed, so none are translated yet") }
    }
}

/// How much is known, none where Services are off, in words.
pub fn told(counts: Option<&Counts>) -> String {
    counts.map_or_else(|| format!("off: {OFF}"), Counts::to_string)
}

/// What does not work where Services are off.
pub const OFF: &str = "pods cannot reach cluster addresses, the cluster's DNS among them, unless something else translates in \
                              front of the vswitch";
