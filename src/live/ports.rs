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
//! **Invariant.** From the look at which an interface of the configuration is seen, until the configuration does not name
//! it any more, it is gone, or the process ends, none of its packets reaches the host's stack, which knows no policy.
//! A pod whose port is closed, for whatever reason, is cut off and not unprotected. Renaming an interface, or moving it to
//! another namespace and back, changes nothing in that. There are two exceptions: an interface that cannot be held at all
//! (another XDP program, or the node's default route without `--force`), and the log says so; and one that has just come,
//! alone or in the place of another one, which the next look sees, 100 ms later at most. Whoever makes interfaces and cannot
//! bear that sets them up when the port is open, or has the node's kernel forward nothing.
//!
//! That is why holding an interface and opening its queues are two things, and closing undoes only the second. The
//! alternative, to open a port anew and then close the old one, cannot work: an interface takes one XDP program, and the
//! second one is refused while the first is attached (`EBUSY`, or `EEXIST` in the other mode). Replacing the program in its
//! link (`BPF_LINK_UPDATE`) would do, but has nothing to replace it with when the new port is refused, or when the port only
//! waits; and it is not needed, since the program does not depend on anything that changes.

use std::collections::{BTreeSet, HashMap};
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
    ///
    /// # Errors
    /// The system does not answer, which says nothing about the interface.
    fn find(&mut self, interface: &str) -> Result<Option<Found>, String>;

    /// Takes the interface, up or down, so that all its packets are dropped. Nothing, when that is so already, under
    /// whatever name it was taken.
    ///
    /// # Errors
    /// Why it cannot be had, for people, with a remedy.
    fn hold(&mut self, entry: &PortEntry, found: &Found) -> Result<(), String>;

    /// Starts forwarding through an interface that is held and up. Does not wait.
    ///
    /// # Errors
    /// Why not. The interface stays held.
    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<Opening, Refusal>;

    /// Stops forwarding through the port. The interface stays held.
    fn close(&mut self, entry: &PortEntry);

    /// Gives all interfaces back to the host's stack but those that were `found` by a configured name, and those that the
    /// configured name which led to them last still means: an interface that has another name for a moment, or for good,
    /// is not to be unprotected for that.
    fn release_others(&mut self, names: &BTreeSet<&str>, found: &BTreeSet<u32>);
}

#[derive(Clone, Copy, Debug)]
enum Phase {
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
    const fn index(&self) -> Option<u32> {
        match self {
            Self::Open { found, .. } | Self::Held { found, .. } => Some(found.index),
            Self::Refused { index, .. } => Some(*index),
            Self::Waiting | Self::Unheld { .. } => None,
        }
    }
}

#[derive(Debug)]
struct Managed {
    entry: PortEntry,
    phase: Phase,
    /// What was said last about why it is not open, so that it is said once.
    said: Option<String>,
    /// Whether the system did not answer at the last look, which was said.
    unanswered: bool,
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
    /// The place of the next port to open.
    next: usize,
    pub(super) counters: PortsCounters,
}

impl Ports {
    /// Ports that are all still closed.
    pub(super) fn new(entries: &[PortEntry]) -> Self {
        Self { managed: entries.iter().map(Managed::new).collect(), ..Self::default() }
    }

    /// Makes these the configured ports. Only what the interface was opened by closes a port. An interface that no port
    /// names any more is given back at the next look, when it is known whether it only has another name.
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

    /// Looks at every interface and holds and closes what must be, and opens one port: that takes some milliseconds, and
    /// signals and a new policy shall not wait for a hundred of them. Answers whether anything changed.
    pub(super) fn look(&mut self, system: &mut impl System, now: Instant) -> bool {
        let seen: Vec<_> = self.managed.iter().map(|port| system.find(&port.entry.interface)).collect();
        let others = self.others(&seen);
        let mut changed = false;
        for ((port, found), other) in self.managed.iter_mut().zip(&seen).zip(others) {
            match found {
                Ok(found) => changed |= port.settle(*found, other, system, now, &mut self.counters),
                Err(error) => port.say_unanswered(error),
            }
        }
        if seen.iter().all(Result::is_ok) {
            let names = self.managed.iter().map(|port| &*port.entry.interface).collect();
            let found = seen.iter().flatten().flatten().map(|found| found.index).collect();
            system.release_others(&names, &found);
        }
        // Only now, when no packet of any of them goes past the vswitch.
        if self.next_held().is_none() {
            self.next = 0;
        }
        if let Some(at) = self.next_held() {
            changed |= self.managed[at].open(system, now, &mut self.counters);
            self.next = at + 1;
        }
        changed
    }

    /// Whether there are ports to open at once: looking again need not wait.
    pub(super) fn has_more(&self) -> bool {
        self.next > 0 && self.next_held().is_some()
    }

    /// The first held port from the next one on. After the last one it is the turn of the first again, but not at once:
    /// what is held then was tried.
    fn next_held(&self) -> Option<usize> {
        let held = self.managed.iter().skip(self.next).position(|port| matches!(port.phase, Phase::Held { .. }));
        held.map(|at| self.next + at)
    }

    /// For each port, the one that has its interface already, under another name.
    fn others(&self, seen: &[Result<Option<Found>, String>]) -> Vec<Option<String>> {
        let index = |at: usize| seen[at].as_ref().ok().copied().flatten().map(|found| found.index);
        let mut owners = HashMap::new();
        // Who has it keeps it; else the first one gets it.
        let has = |&at: &usize| index(at).is_some() && self.managed[at].phase.index() == index(at);
        for at in (0..seen.len()).filter(has).chain(0..seen.len()) {
            if let Some(index) = index(at) {
                owners.entry(index).or_insert(at);
            }
        }
        let other = |at| owners.get(&index(at)?).copied().filter(|&owner| owner != at);
        (0..seen.len()).map(|at| other(at).map(|owner| self.managed[owner].entry.to_string())).collect()
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
            Phase::Waiting | Phase::Unheld { .. } | Phase::Refused { .. } | Phase::Held { .. } => None,
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
        Self { entry: entry.clone(), phase: Phase::Waiting, said: None, unanswered: false }
    }

    const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// Closes what must be closed and holds what is there. `other` is the port that has the interface already.
    fn settle(
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
    fn open(&mut self, system: &mut impl System, now: Instant, counters: &mut PortsCounters) -> bool {
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

    fn close(&mut self, why: &str, system: &mut impl System, counters: &mut PortsCounters) {
        system.close(&self.entry);
        counters.removed += 1;
        self.phase = Phase::Waiting;
        log::warn(&format!("port {} was removed: {why}; the other ports go on", self.entry));
        // What comes next, that there is no interface, is what was just said.
        self.said = Some(format!("waits for its interface: there is no {}", self.entry.interface));
    }

    /// The port stays as it is.
    fn say_unanswered(&mut self, error: &str) {
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
pub(super) fn queues(count: u32) -> String {
    if count == 1 { "1 queue".to_owned() } else { format!("{count} queues") }
}

#[cfg(test)]
mod tests;
