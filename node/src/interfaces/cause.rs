//! Why an open port is closed, and how loudly that is said.

use crate::config::PortEntry;
use crate::log;

/// See the module.
pub(super) enum Cause<'a> {
    /// Its interface has gone or was shut down. That is how a pod ends whose port was added.
    Interface(&'a str),
    /// Anything else.
    Fault(&'a str),
}

impl Cause<'_> {
    /// Says it: the end of a pod is no warning.
    pub(super) fn tell(&self, entry: &PortEntry) {
        match self {
            Self::Interface(why) if entry.added.is_some() => log::info(&format!("port {entry} was removed: {why}")),
            Self::Interface(why) | Self::Fault(why) => {
                log::warn(&format!("port {entry} was removed: {why}; the other ports stay open"));
            }
        }
    }
}
