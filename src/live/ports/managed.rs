//! One configured port: what phase it is in, why it changes, and what is said of that.

use std::time::{Duration, Instant};

use super::system::{Found, Opening, Refusal, System};
use crate::live::config::PortEntry;
use crate::live::log;

/// How long to wait before an interface that could not be opened is tried again. The usual reason is one that a person
/// must remove (another XDP program), so trying often would only fill the log's rate.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How long a queue may be busy before it is said. One that was just closed, by us or by a process that was killed, is
/// busy until the kernel has let go of the last packet that it was sending: 40 ms at most, as far as was seen.
pub(super) const BUSY: Duration = Duration::from_secs(2);

/// How often ports came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(in crate::live) struct PortsCounters {
    /// Ports that were opened, again included.
    pub opened: u64,
    /// Open ports whose interface went away, was replaced or changed its queues, or that failed.
    pub removed: u64,
    /// Attempts to open one that failed.
    pub refused: u64,
    /// How often the kernel told that interfaces have changed. Several changes may be told at once.
    pub told: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Waiting,
    /// It cannot be held, which is tried at each look.
    Unheld {
        at: Instant,
        index: u32,
    },
    /// It is held and cannot be opened.
    Refused {
        at: Instant,
        index: u32,
    },
    Held {
        found: Found,
        since: Instant,
    },
    Open {
        found: Found,
        largest_mtu: u16,
    },
}

impl Phase {
    /// The interface that the port has.
    pub(super) const fn index(&self) -> Option<u32> {
        match self {
            Self::Open { found, .. } | Self::Held { found, .. } => Some(found.index),
            Self::Refused { index, .. } => Some(*index),
            Self::Waiting | Self::Unheld { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Managed {
    pub(super) entry: PortEntry,
    pub(super) phase: Phase,
    /// What was said last about why it is not open, so that it is said once.
    pub(super) said: Option<String>,
    /// Whether the system did not answer at the last look, which was said.
    unanswered: bool,
}

impl Managed {
    pub(super) fn new(entry: &PortEntry) -> Self {
        Self { entry: entry.clone(), phase: Phase::Waiting, said: None, unanswered: false }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Closes what must be closed and holds what is there. `other` is the port that has the interface already.
    pub(super) fn settle(
        &mut self,
        found: Option<Found>,
        other: Option<String>,
        system: &mut impl System,
        now: Instant,
        counters: &mut PortsCounters,
    ) -> bool {
        self.unanswered = false;
        let mut changed = false;
        if let Phase::Open { found: old, largest_mtu } = &mut self.phase {
            match why_close(old, found.as_ref(), other.as_deref()) {
                Ok(new) => {
                    let (before, largest) = (*old, *largest_mtu);
                    *old = new;
                    if before.link.mtu != new.link.mtu {
                        say_mtu(&self.entry, new.link.mtu, largest);
                    }
                    return before != new;
                }
                Err(why) => self.close(&why, system, counters),
            }
            changed = true;
        }
        match (found, other) {
            (None, _) => {
                self.phase = Phase::Waiting;
                self.say(format!("waits for its interface: there is no {}", self.entry.interface));
            }
            (Some(_), Some(other)) => {
                self.phase = Phase::Waiting;
                let name = &self.entry.interface;
                self.say(format!(
                    "cannot be opened: {name} is the interface of port {other} under another name\n\
                     help: an interface is one port; remove one of the two"
                ));
            }
            // Before anything else, and however often it was refused: this may be another interface.
            (Some(found), None) => self.hold(found, system, now, counters),
        }
        changed
    }

    fn hold(&mut self, found: Found, system: &mut impl System, now: Instant, counters: &mut PortsCounters) {
        let is_recent = |at: Instant, index: u32| index == found.index && now.duration_since(at) < RETRY;
        if let Err(error) = system.hold(&self.entry, &found) {
            if !matches!(self.phase, Phase::Unheld { at, index } if is_recent(at, index)) {
                counters.refused += 1;
                self.phase = Phase::Unheld { at: now, index: found.index };
            }
            self.say(format!(
                "cannot be opened: {error}\nits packets go to the host's stack, which knows no policy, until it can"
            ));
            return;
        }
        if !found.up {
            self.phase = Phase::Waiting;
            let interface = self.entry.interface.clone();
            self.say(format!("waits for its interface: {interface} is down\nhelp: ip link set {interface} up"));
            return;
        }
        self.phase = match self.phase {
            Phase::Refused { at, index } if is_recent(at, index) => return,
            Phase::Held { found: old, since } if old.index == found.index => Phase::Held { found, since },
            _ => Phase::Held { found, since: now },
        };
    }

    /// Opens the port when its interface is held and up.
    pub(super) fn open(&mut self, system: &mut impl System, now: Instant, counters: &mut PortsCounters) -> bool {
        let Phase::Held { found, since } = self.phase else { return false };
        let error = match system.open(&self.entry, &found) {
            Ok(Opening { queues: count, largest_mtu }) => {
                counters.opened += 1;
                self.phase = Phase::Open { found: Found { queues: count, ..found }, largest_mtu };
                self.said = None;
                return true;
            }
            Err(Refusal::Busy(_)) if now.duration_since(since) < BUSY => return false,
            Err(Refusal::Busy(error) | Refusal::Other(error)) => error,
        };
        counters.refused += 1;
        self.phase = Phase::Refused { at: now, index: found.index };
        self.say(format!(
            "cannot be opened: {error}\nits packets are dropped until it can: it is cut off, not unprotected"
        ));
        false
    }

    pub(super) fn close(&mut self, why: &str, system: &mut impl System, counters: &mut PortsCounters) {
        system.close(&self.entry);
        counters.removed += 1;
        self.phase = Phase::Waiting;
        log::warn(&format!("port {} was removed: {why}; the other ports go on", self.entry));
        // What comes next, that there is no interface, is what was just said.
        self.said = Some(format!("waits for its interface: there is no {}", self.entry.interface));
    }

    /// The port stays as it is.
    pub(super) fn say_unanswered(&mut self, error: &str) {
        if !std::mem::replace(&mut self.unanswered, true) {
            log::error(&format!("port {}: its interface cannot be looked at; it stays as it is\n{error}", self.entry));
        }
    }

    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            log::warn(&format!("port {} {what}", self.entry));
            self.said = Some(what);
        }
    }
}

/// The interface of an open port as it is now, or why the port is to be closed.
fn why_close(old: &Found, new: Option<&Found>, other: Option<&str>) -> Result<Found, String> {
    match new {
        None => Err("there is no interface of its name any more".to_owned()),
        Some(new) if new.index != old.index => {
            Err("its interface was replaced by another one of the same name".to_owned())
        }
        Some(new) if !new.up => Err("its interface was shut down".to_owned()),
        Some(_) if other.is_some() => Err("its interface is another port's".to_owned()),
        Some(new) if (old.queues, old.transmit_queues) != (new.queues, new.transmit_queues) => Err(format!(
            "its interface has {} to receive and {} to transmit now, instead of {} and {}",
            queues(new.queues),
            new.transmit_queues,
            old.queues,
            old.transmit_queues
        )),
        Some(new) => Ok(*new),
    }
}

/// An MTU that was changed while the port is open. One that is too large does not close it: the packets that fit go on.
fn say_mtu(entry: &PortEntry, mtu: u16, largest: u16) {
    if mtu <= largest {
        log::info(&format!("port {entry}: its interface has an MTU of {mtu} now"));
        return;
    }
    log::warn(&format!(
        "port {entry}: its interface has an MTU of {mtu} now, and longer packets than {largest} bytes need several \
         buffers, which this kernel or driver cannot; they are lost\n\
         help: ip link set {} mtu {largest} (and the same on the other side), or Linux 6.6 or newer",
        entry.interface
    ));
}

/// `1 queue`, `2 queues`.
pub(in crate::live) fn queues(count: u32) -> String {
    if count == 1 { "1 queue".to_owned() } else { format!("{count} queues") }
}
