//! The state of the configured ports and their interfaces: absent, attached or open.
//!
//! Interfaces come and go while the vswitch runs: a pod's veth is deleted with the pod, and a new pod's may have the same name. One thread
//! ([`thread`]) owns all interfaces. The kernel reports each change ([`super::links`]), and one value per port holds its complete state:
//!
//! ```text
//!              interface exists, is attached          it is up, and opening succeeds
//!   Absent ------------------------------> Closed ---------------------------------> Open
//!     |  ^ \                                |  ^  refused: logged once, retried        |
//!     |  |  \ attaching is refused          `--'                                       |
//!     |  |   `--> Unprotected --retry-->    ^   shut down, other number of queues,     |
//!     |  |                                  |   failed, configured differently         |
//!     |  |                                  `------------------------------------------|
//!     |  `--- interface is gone, renamed or replaced (other index) --------------------'
//! ```
//!
//! **Closed** means that the attached programs drop every packet of the interface. Ports do not affect each other. Sessions of a closed port
//! stay. They end when the interface does ([`ending`]), or when the configuration no longer has the port. The workers then notify their
//! peers.
//!
//! **Invariant.** No packet of a configured interface reaches the host's stack, which enforces no policy. This holds from the kernel's
//! message about the interface until the configuration no longer names it, it is deleted, or the process ends. A pod whose port is closed
//! is therefore cut off, not unprotected. Renaming the interface, or moving it to another namespace and back, changes nothing.
//!
//! The exceptions are:
//! * An interface to which nothing can be attached, because another program is attached or, without `--force`, because it has the node's
//!   default route. The log says so.
//! * The time until this thread reads the kernel's message: well below a millisecond, or longer while a port is being opened. To avoid the
//!   gap, create the interface down: for ports added at run time, the vswitch sets it up after attaching.
//!
//! For this invariant, attaching and opening are separate steps, and closing undoes only the second. Opening a new port before closing the
//! old one cannot work with XDP: the kernel refuses a second program (`EBUSY`, or `EEXIST` in the other mode). `BPF_LINK_UPDATE` would need
//! a program to switch to even if the new port is refused or must wait.
//!
//! Polling all interfaces every 100 ms was rejected: a new interface would be unprotected for up to that long, and 250 idle ports cost 10 %
//! of a core. State changes driven by single messages were rejected too, as a lost or repeated message would leave a wrong state forever.
//! [`Interfaces::reconcile`] compares the states with the whole table if that has changed; messages only select the interfaces to query in
//! more detail.

mod cause;
mod datapath;
mod ending;
mod interface;
mod state;
pub(super) mod thread;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use bulkhead_dataplane::PortKind;

use super::config::{Added, PortEntry};
use super::links::{Changes, Links};
use super::log;
use super::view::PortView;
pub(super) use datapath::{AttachError, Datapath, OpenError, Opening};
use interface::Interface;
use state::State;

/// Counters of port changes, since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct InterfaceCounters {
    /// Number of times that a port was opened, including reopenings.
    pub opened: u64,
    /// Open ports that were closed because they failed, or their interface disappeared, went down, was replaced or changed its queues.
    pub removed: u64,
    /// Failed attempts to attach to an interface (at most one per second and port) or to open a port.
    pub refused: u64,
    /// Batches of rtnetlink messages about interfaces received from the kernel.
    pub told: u64,
}

/// The status of a configured or added port, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortStatus {
    pub name: Arc<str>,
    pub kind: PortKind,
    pub interface: Arc<str>,
    /// The origin of a port added at run time. `None` for a port of the configuration.
    pub added: Option<Added>,
    pub state: PortState,
    /// Why the port is not open, with a remedy if one is known. `None` if it is open, or if no reason is known yet.
    pub why: Option<String>,
}

/// The state of a port, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortState {
    /// No interface has the configured name, or the interface belongs to another port.
    Absent,
    /// Attaching to the interface failed: its packets bypass the vswitch.
    Unprotected,
    /// The programs are attached, and drop all packets of the interface.
    Closed,
    /// The workers classify and forward the interface's packets.
    Open,
}

impl PortState {
    /// Returns the state's name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Unprotected => "unprotected",
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// An attachment to an interface that no port owns now: it was renamed or moved to another namespace, or its port is being reconfigured.
#[derive(Debug)]
struct Kept<A> {
    /// The interface's index while a port owned it.
    index: u32,
    attachment: A,
    /// The configured name of the last owner's interface.
    name: Arc<str>,
    /// The name of the port that owned the attachment last.
    port: Arc<str>,
}

/// All ports with their interfaces, and attachments without a port.
#[derive(Debug)]
pub(super) struct Interfaces<D: Datapath> {
    interfaces: Vec<Interface<D::Attachment>>,
    kept: Vec<Kept<D::Attachment>>,
    pub(super) counters: InterfaceCounters,
}

impl<D: Datapath> Interfaces<D> {
    /// Creates the ports, all [`State::Absent`] until the first [`reconcile`](Self::reconcile).
    pub(super) fn new(entries: &[PortEntry]) -> Self {
        Self {
            interfaces: entries.iter().map(Interface::new).collect(),
            kept: Vec::new(),
            counters: InterfaceCounters::default(),
        }
    }

    /// Replaces the list of ports. Closes a port that is removed, or changes in more than its label, MAC address or line. Detaching is left
    /// to [`reconcile`](Self::reconcile), which knows whether an interface was only renamed. Returns whether the snapshot must change.
    pub(super) fn configure(&mut self, entries: &[PortEntry], datapath: &mut D) -> bool {
        let same = |one: &PortEntry, other: &PortEntry| {
            let PortEntry { label, mac, line, .. } = one.clone();
            *one == PortEntry { label, mac, line, ..other.clone() }
        };
        let mut known: HashMap<Arc<str>, &PortEntry> =
            entries.iter().map(|entry| (entry.name.clone(), entry)).collect();
        let names: BTreeSet<&str> = entries.iter().map(|entry| &*entry.interface).collect();
        let (mut changed, kept) = (false, &mut self.kept);
        self.interfaces.retain_mut(|interface| {
            let old = &interface.entry;
            match known.get(&old.name).filter(|entry| same(entry, old)) {
                Some(entry) => {
                    changed |= (&entry.label, entry.mac) != (&old.label, old.mac);
                    interface.entry = (*entry).clone();
                    known.remove(&interface.entry.name);
                    true
                }
                None => {
                    let entry = interface.entry.clone();
                    if let State::Open { attachment, .. } = &mut interface.state {
                        datapath.close(&entry, attachment);
                    }
                    kept.extend(interface.take());
                    if known.get(&entry.name).is_none_or(|new| is_other_container(&entry, new)) {
                        datapath.end(&entry);
                    }
                    log::info(&if names.contains(&*entry.interface) {
                        format!("port {entry} has a new configuration; it is closed until it is open again")
                    } else if entry.added.is_some() {
                        format!("port {entry} was removed")
                    } else {
                        format!("port {entry} was closed: the configuration no longer has it")
                    });
                    changed = true;
                    false
                }
            }
        });
        // New ports keep the order of the configuration.
        let new = entries.iter().filter(|entry| known.contains_key(&entry.name));
        let before = self.interfaces.len();
        self.interfaces.extend(new.map(Interface::new));
        changed | (self.interfaces.len() != before)
    }

    /// Reconciles all ports with the table: closes ports, attaches to existing interfaces and detaches from those that no port names any
    /// more. Opens nothing. Returns whether the snapshot must change: for an open port, or for an interface that comes or goes.
    pub(super) fn reconcile(&mut self, links: &Links, changes: &Changes, datapath: &mut D, now: Instant) -> bool {
        let (mut changed, counters) = (false, &mut self.counters);
        let is_concerned = |interface: &Interface<_>| {
            !changes.is_table_same() || interface.state.attached().is_some_and(|index| changes.touch(index))
        };
        for interface in self.interfaces.iter_mut().filter(|interface| is_concerned(interface)) {
            let link = links.named(&interface.entry.interface);
            if link.is_none() && !links.is_whole() {
                continue;
            }
            let (kept, has_changed) = interface.follow(link, changes, datapath, now, counters);
            self.kept.extend(kept);
            changed |= has_changed;
        }
        // Attachments to deleted interfaces go first: dropping them after `attach` might detach their successor.
        let gone = self.kept.extract_if(.., |kept| datapath.index(&kept.attachment).is_none());
        let gone: Vec<Arc<str>> = gone.map(|kept| kept.port).collect();
        for interface in self.interfaces.iter_mut().filter(|interface| gone.contains(&interface.entry.name)) {
            // A port with another interface has lost this one before.
            if interface.state.attached().is_none() && !interface.is_gone() {
                interface.end(datapath);
                changed = true;
            }
        }
        if self.interfaces.iter().any(|interface| interface.state.attached().is_none()) {
            // After the loop above has moved attachments without a name or port to `kept`.
            changed |= self.attach_all(links, changes, datapath, now);
        }
        if links.is_whole() {
            self.release(datapath);
        }
        changed
    }

    /// Attaches all ports that can be attached. Returns whether an interface comes or goes.
    fn attach_all(&mut self, links: &Links, changes: &Changes, datapath: &mut D, now: Instant) -> bool {
        let attached = |(at, interface): (usize, &Interface<_>)| Some((interface.state.attached()?, at));
        let mut owners: HashMap<u32, usize> = self.interfaces.iter().enumerate().filter_map(attached).collect();
        let mut changed = false;
        for at in 0..self.interfaces.len() {
            let was_gone = self.interfaces[at].is_gone();
            self.attach(at, &mut owners, links, changes, datapath, now);
            changed |= self.interfaces[at].is_gone() != was_gone;
        }
        changed
    }

    /// Attaches a port to its interface if that exists, and no other port owns it. Reuses a kept attachment.
    fn attach(
        &mut self,
        at: usize,
        owners: &mut HashMap<u32, usize>,
        links: &Links,
        changes: &Changes,
        datapath: &mut D,
        now: Instant,
    ) {
        let interface = &self.interfaces[at];
        if interface.state.attached().is_some() {
            return;
        }
        let Some(link) = links.named(&interface.entry.interface) else {
            if links.is_whole() {
                let is_renamed = self.kept.iter().any(|kept| kept.port == interface.entry.name);
                self.interfaces[at].wait_for_interface(!is_renamed);
            }
            return;
        };
        // The present owner keeps the interface; without one, the first port gets it.
        if let Some(&owner) = owners.get(&link.index) {
            let other = self.interfaces[owner].entry.to_string();
            self.interfaces[at].wait_for_other(&other);
            return;
        }
        owners.insert(link.index, at);
        // Tries attachments of the same index first, because querying the kernel for a hundred takes a while.
        let is = |kept: &Kept<D::Attachment>| datapath.is_here_as(&kept.attachment, link.index);
        let known = self.kept.iter().position(|kept| kept.index == link.index && is(kept));
        let known = known.or_else(|| self.kept.iter().position(is));
        let interface = &mut self.interfaces[at];
        let attached = match known {
            Some(at) => Ok(self.kept.swap_remove(at).attachment),
            // A retry is due early if the interface changed, because it may be another interface of the same index.
            None if interface.is_postponed(link.index, changes, now) => return,
            None => datapath.attach(&interface.entry, link),
        };
        interface.take_attached(attached, link, datapath, now, &mut self.counters);
    }

    /// Detaches from the interfaces that no port owns, except if the configured name of their last owner is still configured: renaming an
    /// interface must not unprotect it.
    fn release(&mut self, datapath: &D) {
        if !self.kept.is_empty() {
            let names: BTreeSet<&str> = self.interfaces.iter().map(|interface| &*interface.entry.interface).collect();
            self.kept.retain(|kept| names.contains(&*kept.name) && datapath.index(&kept.attachment).is_some());
        }
    }

    /// Opens one due port, so that the caller can read the kernel's messages between ports; opening takes milliseconds. Returns whether the
    /// port is open now, or `None` if no port is due.
    pub(super) fn open_next(&mut self, links: &Links, datapath: &mut D, now: Instant) -> Option<bool> {
        let interface = self.interfaces.iter_mut().find(|interface| interface.is_due(now))?;
        let link = links.named(&interface.entry.interface);
        Some(interface.open(link, datapath, now, &mut self.counters))
    }

    /// Whether any attachment has deferred work, such as replacing tc filters by a link ([`Datapath::is_unsettled`]).
    pub(super) fn is_any_unsettled(&self, datapath: &D) -> bool {
        let attachments = self.interfaces.iter().filter_map(|interface| interface.state.attachment());
        attachments.into_iter().any(|attachment| datapath.is_unsettled(attachment))
    }

    /// Does a part of one attachment's deferred work. Returns false if no work was left.
    pub(super) fn settle_next(&mut self, datapath: &mut D) -> bool {
        for interface in &mut self.interfaces {
            let attachment = interface.state.attachment_mut();
            if let Some(attachment) = attachment.filter(|attachment| datapath.is_unsettled(attachment)) {
                if let Err(why) = datapath.settle(attachment) {
                    log::warn(&format!("port {}: {why}", interface.entry));
                }
                return true;
            }
        }
        false
    }

    /// Whether any port is due to be opened.
    pub(super) fn is_any_due(&self, now: Instant) -> bool {
        self.interfaces.iter().any(|interface| interface.is_due(now))
    }

    /// Returns the time of the next attempt to attach or open. `None` if no port waits for a time.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.interfaces.iter().filter_map(Interface::next_attempt).min()
    }

    /// Makes all postponed attempts to attach or open due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.interfaces.iter_mut().for_each(|interface| interface.hurry(now));
    }

    /// Closes a port that failed in its worker. Returns false if the port was not open.
    pub(super) fn fail(&mut self, name: &str, why: &str, datapath: &mut D, now: Instant) -> bool {
        let is_open = |interface: &&mut Interface<_>| &*interface.entry.name == name && interface.link().is_some();
        let Some(interface) = self.interfaces.iter_mut().find(is_open) else { return false };
        interface.fail(why, datapath, now, &mut self.counters);
        true
    }

    /// Returns the ports for the snapshot, without those that must stay closed.
    pub(super) fn view(&self) -> Vec<PortView> {
        let view = |interface: &Interface<_>| PortView {
            name: interface.entry.name.clone(),
            kind: interface.entry.kind,
            mac: interface.entry.mac,
            link: interface.link(),
            is_gone: interface.is_gone(),
            shares_host: false,
        };
        let is_served = |interface: &&Interface<_>| interface.entry.kept_closed().is_none();
        self.interfaces.iter().filter(is_served).map(view).collect()
    }

    pub(super) fn statuses(&self) -> Vec<PortStatus> {
        self.interfaces.iter().map(Interface::status).collect()
    }

    /// Returns the names and attachments of the open ports.
    pub(super) fn open_attachments(&self) -> impl Iterator<Item = (&Arc<str>, &D::Attachment)> {
        self.interfaces.iter().filter_map(|interface| match &interface.state {
            State::Open { attachment, .. } => Some((&interface.entry.name, attachment)),
            State::Absent | State::Unprotected { .. } | State::Closed { .. } => None,
        })
    }

    /// Returns the numbers of open ports and of all ports.
    pub(super) fn open_of(&self) -> (usize, usize) {
        (self.open_attachments().count(), self.interfaces.len())
    }
}

/// Whether two ports of one name are added ports of different containers: a pod's container was replaced.
fn is_other_container(old: &PortEntry, new: &PortEntry) -> bool {
    let key = |entry: &PortEntry| entry.added.as_ref().map(|added| Arc::clone(&added.key));
    key(old).is_some_and(|old| key(new).is_some_and(|new| old != new))
}

#[cfg(test)]
mod tests;
