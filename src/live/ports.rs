//! The configured ports and their interfaces: which are there, which are held, which are open.
//!
//! Interfaces come and go while the vswitch runs: a pod is deleted and its veth with it, a new pod has one of the same
//! name. So the control thread looks again and again, and what it sees decides:
//!
//! ```text
//!            interface is there              it is up, its queues can be had
//!   waiting --------------------> held -----------------------------------------> open
//!      ^                           |  ^ refused: said once, tried again after a while |
//!      |                           `--'                                               |
//!      |                           ^   shut down, other number of queues, failed,     |
//!      |                           |   configured differently                         |
//!      |                           `--------------------------------------------------|
//!      `--- interface is gone or replaced (other index) ------------------------------'
//! ```
//!
//! **Held** means that every packet of the interface is dropped: the XDP program is attached, and no socket is in its map.
//! What is not open forwards nothing, and everything else goes on.
//!
//! **Invariant.** From the moment in which an interface of the configuration is seen, until the configuration does not name
//! it any more, it is gone, or the process ends, none of its packets reaches the host's stack, which knows no policy.
//! A pod whose port is closed, for whatever reason, is cut off and not unprotected. The exception is an interface that
//! cannot be held at all (another XDP program, or the node's default route without `--force`), and the log says so.
//!
//! That is why holding an interface and opening its queues are two things, and closing undoes only the second. The
//! alternative, to open a port anew and then close the old one, cannot work: an interface takes one XDP program, and the
//! second one is refused while the first is attached (`EBUSY`, or `EEXIST` in the other mode). Replacing the program in its
//! link (`BPF_LINK_UPDATE`) would do, but has nothing to replace it with when the new port is refused, or when the port only
//! waits; and it is not needed, since the program does not depend on anything that changes.

use std::time::{Duration, Instant};

use bulkhead_dataplane::Link;

use super::config::PortEntry;
use super::log;

/// How long to wait before an interface that could not be opened is tried again. The usual reason is one that a person
/// must remove (another XDP program), so trying often would only fill the log's rate.
const RETRY: Duration = Duration::from_secs(1);

/// How long a queue may be busy before it is said. One that was just closed, by us or by a process that was killed, is
/// busy until the kernel has let go of the last packet that it was sending: 40 ms at most, as far as was seen.
const BUSY: Duration = Duration::from_secs(2);

/// An interface as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The kernel's number; another one means another interface.
    pub index: u32,
    /// Its MAC address and its longest packet.
    pub link: Link,
    /// Whether it is set up.
    pub up: bool,
    /// How many receive queues it has.
    pub queues: u32,
    /// How many transmit queues it has.
    pub transmit_queues: u32,
}

/// What opening a port has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    /// How many queues are open.
    pub queues: u32,
    /// The largest MTU that it can carry, in bytes.
    pub largest_mtu: u16,
}

/// Why a port cannot be opened, for people, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// One of its queues is in use, which may be over at once.
    Busy(String),
    /// Anything else.
    Other(String),
}

/// What the ports need from the system. A trait, so that the rules below are tested without interfaces.
pub(super) trait System {
    /// The interface of this name, none when there is none.
    fn find(&mut self, interface: &str) -> Option<Found>;

    /// Takes the interface, up or down, so that all its packets are dropped. Nothing, when that is so already.
    ///
    /// # Errors
    /// Why it cannot be had, for people, with a remedy.
    fn hold(&mut self, entry: &PortEntry, found: &Found) -> Result<(), String>;

    /// Starts forwarding through an interface that is held and up. Does not wait.
    ///
    /// # Errors
    /// Why not. The interface stays held.
    fn open(&mut self, entry: &PortEntry) -> Result<Opening, Refusal>;

    /// Stops forwarding through the port. The interface stays held.
    fn close(&mut self, entry: &PortEntry);

    /// Gives an interface back to the host's stack.
    fn release(&mut self, interface: &str);
}

#[derive(Debug)]
enum Phase {
    Waiting,
    Refused { at: Instant },
    Held { found: Found, since: Instant },
    Open { found: Found, largest_mtu: u16 },
}

#[derive(Debug)]
struct Managed {
    entry: PortEntry,
    phase: Phase,
    /// What was said last about why it is not open, so that it is said once.
    said: Option<String>,
}

/// How often ports came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct PortsCounters {
    /// Ports that were opened, again included.
    pub opened: u64,
    /// Open ports whose interface went away, was replaced or changed its queues, or that failed.
    pub removed: u64,
    /// Attempts to open one that failed.
    pub refused: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ports {
    managed: Vec<Managed>,
    pub(super) counters: PortsCounters,
}

impl Ports {
    /// Ports that are all still closed.
    pub(super) fn new(entries: &[PortEntry]) -> Self {
        Self { managed: entries.iter().map(Managed::new).collect(), counters: PortsCounters::default() }
    }

    /// Makes these the configured ports. Only what the interface was opened by closes a port, and only an interface that
    /// no port names any more is given back.
    pub(super) fn configure(&mut self, entries: &[PortEntry], system: &mut impl System) -> bool {
        let same = |one: &PortEntry, other: &PortEntry| {
            let PortEntry { label, mac, line, .. } = one.clone();
            *one == PortEntry { label, mac, line, ..other.clone() }
        };
        let is_named = |interface: &str| entries.iter().any(|entry| *entry.interface == *interface);
        let mut changed = false;
        self.managed.retain_mut(|port| {
            let Some(entry) = entries.iter().find(|entry| same(entry, &port.entry)) else {
                let Managed { entry, phase, .. } = port;
                if matches!(phase, Phase::Open { .. }) {
                    system.close(entry);
                }
                if is_named(&entry.interface) {
                    log::info(&format!(
                        "port {entry} is configured differently and is opened anew; until then it is held"
                    ));
                } else {
                    system.release(&entry.interface);
                    log::info(&format!("port {entry} is not configured any more and was closed"));
                }
                changed = true;
                return false;
            };
            changed |= (&entry.label, entry.mac) != (&port.entry.label, port.entry.mac);
            port.entry = entry.clone();
            true
        });
        for entry in entries {
            if !self.managed.iter().any(|port| same(entry, &port.entry)) {
                self.managed.push(Managed::new(entry));
                changed = true;
            }
        }
        changed
    }

    /// Looks at every interface and holds, opens and closes what must be. Answers whether anything changed.
    pub(super) fn look(&mut self, system: &mut impl System, now: Instant) -> bool {
        let mut changed = false;
        for port in &mut self.managed {
            changed |= port.settle(system, now, &mut self.counters);
        }
        // Only now, when no packet of any of them goes past the vswitch.
        for port in &mut self.managed {
            changed |= port.open(system, now, &mut self.counters);
        }
        changed
    }

    /// A port failed by itself, and why. Answers whether it was open.
    pub(super) fn failed(&mut self, name: &str, why: &str, system: &mut impl System) -> bool {
        let Some(port) = self.managed.iter_mut().find(|port| &*port.entry.name == name && port.is_open()) else {
            return false;
        };
        port.close(why, system, &mut self.counters);
        true
    }

    /// The link of a port that is open.
    pub(super) fn link(&self, name: &str) -> Option<Link> {
        let port = self.managed.iter().find(|port| &*port.entry.name == name)?;
        match port.phase {
            Phase::Open { found: Found { link, .. }, largest_mtu } => {
                Some(Link { mtu: link.mtu.min(largest_mtu), ..link })
            }
            Phase::Waiting | Phase::Refused { .. } | Phase::Held { .. } => None,
        }
    }

    /// The configured ports.
    pub(super) fn entries(&self) -> impl Iterator<Item = &PortEntry> {
        self.managed.iter().map(|port| &port.entry)
    }

    /// How many ports are open, and how many are configured.
    pub(super) fn open_of(&self) -> (usize, usize) {
        (self.managed.iter().filter(|port| port.is_open()).count(), self.managed.len())
    }
}

impl Managed {
    fn new(entry: &PortEntry) -> Self {
        Self { entry: entry.clone(), phase: Phase::Waiting, said: None }
    }

    const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Closes what must be closed and holds what is there.
    fn settle(&mut self, system: &mut impl System, now: Instant, counters: &mut PortsCounters) -> bool {
        let found = system.find(&self.entry.interface);
        match (&mut self.phase, found) {
            (Phase::Open { found: old, largest_mtu }, Some(new))
                if (old.index, old.queues) == (new.index, new.queues)
                    && old.transmit_queues == new.transmit_queues
                    && new.up =>
            {
                let (before, largest) = (*old, *largest_mtu);
                *old = new;
                if before.link.mtu != new.link.mtu {
                    say_mtu(&self.entry, new.link.mtu, largest);
                }
                before != new
            }
            (Phase::Open { found: old, .. }, new) => {
                let why = match new {
                    None => "its interface is gone".to_owned(),
                    Some(new) if new.index != old.index => {
                        "its interface was replaced by another one of the same name".to_owned()
                    }
                    Some(new) if !new.up => "its interface was shut down".to_owned(),
                    Some(new) => format!(
                        "its interface has {} to receive and {} to transmit now, instead of {} and {}",
                        queues(new.queues),
                        new.transmit_queues,
                        old.queues,
                        old.transmit_queues
                    ),
                };
                self.close(&why, system, counters);
                true
            }
            (_, None) => {
                self.phase = Phase::Waiting;
                self.say(format!("waits for its interface: there is no {}", self.entry.interface));
                false
            }
            (Phase::Refused { at }, Some(_)) if now.duration_since(*at) < RETRY => false,
            (Phase::Held { found: old, .. }, Some(new)) if old.index == new.index && new.up => {
                *old = new;
                false
            }
            (_, Some(new)) => {
                self.hold(new, system, now, counters);
                false
            }
        }
    }

    fn hold(&mut self, found: Found, system: &mut impl System, now: Instant, counters: &mut PortsCounters) {
        if let Err(error) = system.hold(&self.entry, &found) {
            counters.refused += 1;
            self.phase = Phase::Refused { at: now };
            self.say(format!(
                "cannot be opened: {error}\nits packets go to the host's stack, which knows no policy, until it can"
            ));
        } else if found.up {
            self.phase = Phase::Held { found, since: now };
        } else {
            self.phase = Phase::Waiting;
            let interface = self.entry.interface.clone();
            self.say(format!("waits for its interface: {interface} is down\nhelp: ip link set {interface} up"));
        }
    }

    /// Opens the port when its interface is held and up.
    fn open(&mut self, system: &mut impl System, now: Instant, counters: &mut PortsCounters) -> bool {
        let Phase::Held { found, since } = self.phase else { return false };
        let error = match system.open(&self.entry) {
            Ok(Opening { queues: count, largest_mtu }) => {
                counters.opened += 1;
                let Found { index, link, .. } = found;
                log::info(&format!(
                    "port {} is open: interface {index}, {}, MTU {}",
                    self.entry,
                    queues(count),
                    link.mtu
                ));
                self.phase = Phase::Open { found: Found { queues: count, ..found }, largest_mtu };
                self.said = None;
                return true;
            }
            Err(Refusal::Busy(_)) if now.duration_since(since) < BUSY => return false,
            Err(Refusal::Busy(error) | Refusal::Other(error)) => error,
        };
        counters.refused += 1;
        self.phase = Phase::Refused { at: now };
        self.say(format!(
            "cannot be opened: {error}\nits packets are dropped until it can: it is cut off, not unprotected"
        ));
        false
    }

    fn close(&mut self, why: &str, system: &mut impl System, counters: &mut PortsCounters) {
        system.close(&self.entry);
        counters.removed += 1;
        self.phase = Phase::Waiting;
        log::warn(&format!("port {} was removed: {why}; the other ports go on", self.entry));
        // What comes next, that there is no interface, is what was just said.
        self.said = Some(format!("waits for its interface: there is no {}", self.entry.interface));
    }

    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            log::warn(&format!("port {} {what}", self.entry));
            self.said = Some(what);
        }
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

fn queues(count: u32) -> String {
    if count == 1 { "1 queue".to_owned() } else { format!("{count} queues") }
}

#[cfg(test)]
mod tests;
