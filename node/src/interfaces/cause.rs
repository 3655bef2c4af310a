//! The cause of closing an open port, and the level at which it is logged.

use crate::config::PortEntry;
use crate::log;

pub(super) enum Cause<'a> {
    /// The interface disappeared or was shut down, as happens when a pod with an added port ends. With the text for the log.
    Interface(&'a str),
    /// Any other cause, as text for the log.
    Fault(&'a str),
}

impl Cause<'_> {
    /// Logs the cause: as information if a pod with an added port ended, otherwise as a warning.
    pub(super) fn tell(&self, entry: &PortEntry) {
        match self {
            Self::Interface(why) if entry.added.is_some() => log::info(&format!("port {entry} was removed: {why}")),
            Self::Interface(why) | Self::Fault(why) => {
                log::warn(&format!("port {entry} was removed: {why}; the other ports stay open"));
            }
        }
    }
}
