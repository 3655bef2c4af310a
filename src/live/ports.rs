//! The configured ports and their interfaces: which are there, which are open.
//!
//! Interfaces come and go while the vswitch runs: a pod is deleted and its veth with it, a new pod has one of the same
//! name. So the control thread looks again and again, and what it sees decides:
//!
//! ```text
//!            interface is there and up                    gone, down, replaced (other index), or the port failed
//!   waiting ---------------------------> opening -> open ------------------------------------------------------> waiting
//!      ^                                    | refused: said once, tried again after a while
//!      `------------------------------------'
//! ```
//!
//! What is not open forwards nothing, and everything else goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dataplane::Link;

use super::config::PortEntry;
use super::log;

/// How long to wait before an interface that could not be opened is tried again. The usual reason is one that a person
/// must remove (another XDP program), so trying often would only fill the log's rate.
const RETRY: Duration = Duration::from_secs(1);

/// An interface as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The kernel's number; another one means another interface.
    pub index: u32,
    /// Its MAC address and its longest packet.
    pub link: Link,
    /// Whether it is set up.
    pub up: bool,
}

/// What the ports need from the system. A trait, so that the rules below are tested without interfaces.
pub(super) trait System {
    /// The interface of this name, none when there is none.
    fn find(&mut self, interface: &str) -> Option<Found>;

    /// Takes the interface and starts forwarding. Answers the number of queues.
    ///
    /// # Errors
    /// Why it cannot be had, for people, with a remedy.
    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<u32, String>;

    /// Stops forwarding through the port and gives the interface back.
    fn close(&mut self, entry: &PortEntry);
}

#[derive(Debug)]
enum Phase {
    Waiting,
    Refused { at: Instant },
    Open { found: Found },
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
    /// Open ports whose interface went away or was replaced, or that failed.
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

    /// Makes these the configured ports. Only what the interface was opened by closes a port: while it is closed, its
    /// packets are the host's stack's, which knows no policy.
    pub(super) fn configure(&mut self, entries: &[PortEntry], system: &mut impl System) -> bool {
        let same = |one: &PortEntry, other: &PortEntry| {
            let PortEntry { label, mac, line, .. } = one.clone();
            *one == PortEntry { label, mac, line, ..other.clone() }
        };
        let mut changed = false;
        self.managed.retain_mut(|port| {
            let Some(entry) = entries.iter().find(|entry| same(entry, &port.entry)) else {
                if port.is_open() {
                    system.close(&port.entry);
                    log::info(&format!("port {} is not configured any more and was closed", port.entry));
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

    /// Looks at every interface and opens and closes what must be. Answers whether anything changed.
    pub(super) fn look(&mut self, system: &mut impl System, now: Instant) -> bool {
        let mut changed = false;
        for port in &mut self.managed {
            changed |= port.look(system, now, &mut self.counters);
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
        match &port.phase {
            Phase::Open { found } => Some(found.link),
            Phase::Waiting | Phase::Refused { .. } => None,
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

    fn look(&mut self, system: &mut impl System, now: Instant, counters: &mut PortsCounters) -> bool {
        let found = system.find(&self.entry.interface);
        match (&mut self.phase, found) {
            (Phase::Open { found: old }, Some(new)) if old.index == new.index && new.up => {
                let changed = *old != new;
                *old = new;
                changed
            }
            (Phase::Open { found: old }, new) => {
                let why = match new {
                    None => "its interface is gone",
                    Some(new) if new.index == old.index => "its interface was shut down",
                    Some(_) => "its interface was replaced by another one of the same name",
                };
                self.close(why, system, counters);
                true
            }
            (Phase::Waiting | Phase::Refused { .. }, None) => {
                self.phase = Phase::Waiting;
                self.say(format!("waits for its interface: there is no {}", self.entry.interface));
                false
            }
            (Phase::Waiting | Phase::Refused { .. }, Some(new)) if !new.up => {
                self.phase = Phase::Waiting;
                let interface = self.entry.interface.clone();
                self.say(format!("waits for its interface: {interface} is down\nhelp: ip link set {interface} up"));
                false
            }
            (Phase::Refused { at }, Some(_)) if now.duration_since(*at) < RETRY => false,
            (Phase::Waiting | Phase::Refused { .. }, Some(new)) => self.open(new, system, now, counters),
        }
    }

    fn open(&mut self, found: Found, system: &mut impl System, now: Instant, counters: &mut PortsCounters) -> bool {
        match system.open(&self.entry, &found) {
            Ok(queues) => {
                counters.opened += 1;
                let Found { index, link, .. } = found;
                let queues = if queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") };
                log::info(&format!("port {} is open: interface {index}, {queues}, MTU {}", self.entry, link.mtu));
                self.phase = Phase::Open { found };
                self.said = None;
                true
            }
            Err(error) => {
                counters.refused += 1;
                self.phase = Phase::Refused { at: now };
                self.say(format!("cannot be opened: {error}"));
                false
            }
        }
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

/// Numbers for ports that stay with a name for the life of the process: sessions and counters are kept by number.
///
/// A name that is gone leaves its number unused, until there are [`Ids::IDLE`] such numbers: then the one that is unused
/// for longest is given to a new name. Sessions find their ports again by address after each change (see
/// [`bulkhead_dataplane::PortId`]), so this mixes up nothing but counters.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// The name of each number.
    names: Vec<Arc<str>>,
    /// When each number was last in use, in calls of [`Ids::assign`].
    used: Vec<u64>,
    round: u64,
}

impl Ids {
    /// A node runs some hundred pods; this is a few days of deployments.
    const IDLE: usize = 4_096;

    /// Gives each name its number. Answers all names in use by number; none for a number without one.
    pub(super) fn assign(&mut self, names: &[Arc<str>]) -> Vec<Option<Arc<str>>> {
        self.round += 1;
        let mut new = Vec::new();
        for name in names {
            match self.names.iter().position(|known| known == name) {
                Some(at) => self.used[at] = self.round,
                None => new.push(name),
            }
        }
        for name in new {
            let idle = self.used.iter().filter(|&&used| used != self.round).count();
            let oldest =
                self.used.iter().enumerate().filter(|&(_, &used)| used != self.round).min_by_key(|&(_, used)| used);
            match oldest.map(|(at, _)| at).filter(|_| idle >= Self::IDLE) {
                Some(at) => (self.names[at], self.used[at]) = (name.clone(), self.round),
                None => {
                    self.names.push(name.clone());
                    self.used.push(self.round);
                }
            }
        }
        let in_use = |(name, used): (&Arc<str>, &u64)| (*used == self.round).then(|| name.clone());
        self.names.iter().zip(&self.used).map(in_use).collect()
    }

    /// The number of a name, used or not.
    pub(super) fn of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| &**known == name)
    }

    /// The name of a number.
    pub(super) fn name(&self, at: usize) -> Option<&Arc<str>> {
        self.names.get(at)
    }
}

#[cfg(test)]
mod tests;
