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
//! alone or in the place of another one, which the next look sees: when the kernel has told of it, and
//! 100 ms later at most. Whoever makes interfaces and cannot bear that sets them up when the port is open, or has the node's kernel
//! forward nothing.
//!
//! That is why holding an interface and opening its queues are two things, and closing undoes only the second. The
//! alternative, to open a port anew and then close the old one, cannot work: an interface takes one XDP program, and the
//! second one is refused while the first is attached (`EBUSY`, or `EEXIST` in the other mode). Replacing the program in its
//! link (`BPF_LINK_UPDATE`) would do, but has nothing to replace it with when the new port is refused, or when the port only
//! waits; and it is not needed, since the program does not depend on anything that changes.

mod managed;
mod system;

use std::collections::HashMap;
use std::time::Instant;

use bulkhead_dataplane::Link;

use super::config::PortEntry;
use super::log;
use managed::{Managed, Phase};
pub(super) use managed::{PortsCounters, queues};
pub(super) use system::{Found, Opening, Refusal, System};

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

#[cfg(test)]
mod tests;
