//! Numbers of known Services, VIPs and backends.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Numbers of known Services, VIPs and backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Whether the initial list is complete. No connection is translated before.
    pub listed: bool,
    /// All Services, including those that are not translated.
    pub services: usize,
    /// Virtual addresses with protocol and port.
    pub vips: usize,
    /// Backends by service port: an endpoint of two service ports counts twice.
    pub backends: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listed, services, vips, backends } = self;
        write!(f, "{services} Services, {vips} VIPs and {backends} backends")?;
        if *listed { Ok(()) } else { f.write_str("; not all are listed, so none are translated yet") }
    }
}

/// Returns the counts as text. `None` means that Services are disabled.
pub fn told(counts: Option<&Counts>) -> String {
    counts.map_or_else(|| format!("off: {OFF}"), Counts::to_string)
}

/// Text of a warning: the consequence of disabled Services.
pub const OFF: &str = "pods cannot reach cluster addresses, the cluster's DNS among them, unless something else translates in \
                              front of the vswitch";
