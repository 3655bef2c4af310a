//! The configured ports and their interfaces: which are there, what is attached, which are open.
//!
//! Interfaces come and go while the vswitch runs: a pod is deleted and its veth with it, a new pod has one of the same
//! name. One thread ([`thread`]) owns them all. The kernel tells it of each change ([`super::links`]), and each interface is one
//! value that says its whole state:
//!
//! ```text
//!              interface is there, attached           it is up, and opening succeeds
//!   Absent ------------------------------> Closed ---------------------------------> Open
//!     |  ^ \                                |  ^  refused: said once, tried again      |
//!     |  |  \ attaching is refused          `--'                                       |
//!     |  |   `--> Unprotected --retry-->    ^   shut down, other number of queues,     |
//!     |  |                                  |   failed, configured differently         |
//!     |  |                                  `------------------------------------------|
//!     |  `--- interface is gone, renamed or replaced (other index) --------------------'
//! ```
//!
//! **Closed** means that every packet of the interface is dropped: programs are attached, and they hand nothing over.
//! What is not open forwards nothing, and everything else goes on.
//!
//! **Invariant.** From the kernel's message that an interface of the configuration is there, until the configuration does not
//! name it any more, it is gone, or the process ends, none of its packets reaches the host's stack, which knows no policy.
//! A pod whose port is closed, for whatever reason, is cut off and not unprotected. Renaming an interface, or moving it to
//! another namespace and back, changes nothing in that. There are two exceptions: an interface that nothing can be attached to
//! (another program is, or it has the node's default route, without `--force`), and the log says so; and the time from the
//! kernel's message until this thread has read it, well below a millisecond unless a port is just being opened. Nothing
//! here waits for policy to be loaded or compiled. Whoever makes interfaces and cannot bear that leaves them down: those of ports
//! that are added at run time are set up here, when they are held.
//!
//! That is why attaching to an interface and opening its port are two things, and closing undoes only the second. The
//! alternative, to open a port anew and then close the old one, cannot work with XDP: an interface takes one program, and the
//! second one is refused while the first is attached (`EBUSY`, or `EEXIST` in the other mode). Replacing the program in its
//! link (`BPF_LINK_UPDATE`) would do, but has nothing to replace it with when the new port is refused, or when the port only
//! waits; and it is not needed, since the program does not depend on anything that changes.
//!
//! What lost: looking at all interfaces every 100 ms. It needs no parser of messages, but a new interface is unprotected for up
//! to that long, and 250 idle ports cost 10 % of a core. States that follow single messages (edges) lost as well: a message
//! that is lost or told twice would then be a state that is wrong for ever. [`Interfaces::reconcile`] compares states with
//! the whole table, and messages only say where it is worth asking the kernel for more.

mod cause;
mod datapath;
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

/// How often ports came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct InterfaceCounters {
    /// Ports that were opened, again included.
    pub opened: u64,
    /// Open ports whose interface went away, was replaced or changed its queues, or that failed.
    pub removed: u64,
    /// Attempts to open one that failed.
    pub refused: u64,
    /// How often the kernel told that interfaces have changed. Several changes may be told at once.
    pub told: u64,
}

/// How a configured port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortStatus {
    pub name: Arc<str>,
    pub kind: PortKind,
    pub interface: Arc<str>,
    /// Who has added it, where the configuration does not have it.
    pub added: Option<Added>,
    pub state: PortState,
    /// Why it is not open, with the remedy where one is known.
    pub why: Option<String>,
}

/// The state of a configured port, as others are told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortState {
    /// There is no interface of its name.
    Absent,
    /// Nothing can be attached to its interface, whose packets go past the vswitch.
    Unprotected,
    /// Each of its packets is dropped.
    Closed,
    /// Its packets are judged and forwarded.
    Open,
}

impl PortState {
    /// As it is written in answers.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Unprotected => "unprotected",
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// What is attached to an interface that is no port's at the moment: it was renamed, it was moved to another namespace, or its
/// port is just being configured differently.
#[derive(Debug)]
struct Kept<A> {
    /// The interface's number when it was a port's.
    index: u32,
    attachment: A,
    /// The configured name that led to it last.
    name: Arc<str>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Interfaces<D: Datapath> {
    interfaces: Vec<Interface<D::Attachment>>,
    kept: Vec<Kept<D::Attachment>>,
    pub(super) counters: InterfaceCounters,
}

impl<D: Datapath> Interfaces<D> {
    /// Interfaces of which nothing is known yet.
    pub(super) fn new(entries: &[PortEntry]) -> Self {
        Self {
            interfaces: entries.iter().map(Interface::new).collect(),
            kept: Vec::new(),
            counters: InterfaceCounters::default(),
        }
    }

    /// Makes these the configured ports. Only what the port was opened by closes it. An interface that no port names any
    /// more is detached from by [`reconcile`](Self::reconcile), when it is known whether it only has another name.
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
        // In the order of the file.
        let new = entries.iter().filter(|entry| known.contains_key(&entry.name));
        let before = self.interfaces.len();
        self.interfaces.extend(new.map(Interface::new));
        changed | (self.interfaces.len() != before)
    }

    /// Brings all interfaces to what the table says: closes what must be closed, attaches to what is there and detaches from
    /// what nothing names any more. Opens nothing. Returns whether an open port has changed.
    pub(super) fn reconcile(&mut self, links: &Links, changes: &Changes, datapath: &mut D, now: Instant) -> bool {
        let (mut changed, counters) = (false, &mut self.counters);
        for interface in &mut self.interfaces {
            let link = links.named(&interface.entry.interface);
            if link.is_none() && !links.is_whole() {
                continue;
            }
            let (kept, has_changed) = interface.follow(link, changes, datapath, now, counters);
            self.kept.extend(kept);
            changed |= has_changed;
        }
        // What is attached to nothing any more goes first: to drop it later might detach what is attached in its place.
        self.kept.retain(|kept| datapath.index(&kept.attachment).is_some());
        // Only now, when what has lost its name or its port is among the kept.
        let mut owners: HashMap<u32, usize> = HashMap::new();
        let attached = |(at, interface): (usize, &Interface<_>)| Some((interface.state.attached()?, at));
        owners.extend(self.interfaces.iter().enumerate().filter_map(attached));
        for at in 0..self.interfaces.len() {
            self.attach(at, &mut owners, links, changes, datapath, now);
        }
        if links.is_whole() {
            self.release(datapath);
        }
        changed
    }

    /// Attaches to an interface that is there.
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
                self.interfaces[at].wait_for_interface();
            }
            return;
        };
        // Who has it keeps it; else the first one gets it.
        if let Some(&owner) = owners.get(&link.index) {
            let other = self.interfaces[owner].entry.to_string();
            self.interfaces[at].wait_for_other(&other);
            return;
        }
        owners.insert(link.index, at);
        // The numbers as they were known first: asking for all of a hundred takes a while.
        let is = |kept: &Kept<D::Attachment>| datapath.is_here_as(&kept.attachment, link.index);
        let known = self.kept.iter().position(|kept| kept.index == link.index && is(kept));
        let known = known.or_else(|| self.kept.iter().position(is));
        let interface = &mut self.interfaces[at];
        let attached = match known {
            Some(at) => Ok(self.kept.swap_remove(at).attachment),
            // Whether it can be opened does not matter, nor how often that was refused: this may be another interface.
            None if interface.is_postponed(link.index, changes, now) => return,
            None => datapath.attach(&interface.entry, link),
        };
        interface.take_attached(attached, link, datapath, now, &mut self.counters);
    }

    /// Detaches from all interfaces that no port has, but for those that the configured name which led to them last still
    /// means: an interface that has another name for a moment, or for good, is not to be unprotected for that.
    fn release(&mut self, datapath: &D) {
        if !self.kept.is_empty() {
            let names: BTreeSet<&str> = self.interfaces.iter().map(|interface| &*interface.entry.interface).collect();
            self.kept.retain(|kept| names.contains(&*kept.name) && datapath.index(&kept.attachment).is_some());
        }
    }

    /// Opens the next port whose turn it is: that can take some milliseconds, and messages of the kernel shall not wait for a
    /// hundred of them. Returns whether it is open now; none when it is no port's turn.
    pub(super) fn open_next(&mut self, links: &Links, datapath: &mut D, now: Instant) -> Option<bool> {
        let interface = self.interfaces.iter_mut().find(|interface| interface.is_due(now))?;
        let link = links.named(&interface.entry.interface);
        Some(interface.open(link, datapath, now, &mut self.counters))
    }

    /// Whether something is left to do that can wait.
    pub(super) fn is_any_unsettled(&self, datapath: &D) -> bool {
        let attachments = self.interfaces.iter().filter_map(|interface| interface.state.attachment());
        attachments.into_iter().any(|attachment| datapath.is_unsettled(attachment))
    }

    /// Does a part of what can wait, for one interface. Returns whether there was any.
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

    /// Whether it is any port's turn to be opened.
    pub(super) fn is_any_due(&self, now: Instant) -> bool {
        self.interfaces.iter().any(|interface| interface.is_due(now))
    }

    /// When something is to be tried next.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.interfaces.iter().filter_map(Interface::next_attempt).min()
    }

    /// Tries what waits for a time now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.interfaces.iter_mut().for_each(|interface| interface.hurry(now));
    }

    /// A port failed by itself, and why. Returns whether it was open.
    pub(super) fn fail(&mut self, name: &str, why: &str, datapath: &mut D, now: Instant) -> bool {
        let is_open = |interface: &&mut Interface<_>| &*interface.entry.name == name && interface.link().is_some();
        let Some(interface) = self.interfaces.iter_mut().find(is_open) else { return false };
        interface.fail(why, datapath, now, &mut self.counters);
        true
    }

    /// What the snapshot needs to know of the ports: of those that are to be opened.
    pub(super) fn view(&self) -> Vec<PortView> {
        let view = |interface: &Interface<_>| PortView {
            name: interface.entry.name.clone(),
            kind: interface.entry.kind,
            mac: interface.entry.mac,
            link: interface.link(),
        };
        let is_served = |interface: &&Interface<_>| interface.entry.kept_closed().is_none();
        self.interfaces.iter().filter(is_served).map(view).collect()
    }

    /// How each configured port is.
    pub(super) fn statuses(&self) -> Vec<PortStatus> {
        self.interfaces.iter().map(Interface::status).collect()
    }

    /// The open ports and what they are attached by.
    pub(super) fn open_attachments(&self) -> impl Iterator<Item = (&Arc<str>, &D::Attachment)> {
        self.interfaces.iter().filter_map(|interface| match &interface.state {
            State::Open { attachment, .. } => Some((&interface.entry.name, attachment)),
            State::Absent | State::Unprotected { .. } | State::Closed { .. } => None,
        })
    }

    /// How many ports are open, and how many are configured.
    pub(super) fn open_of(&self) -> (usize, usize) {
        (self.open_attachments().count(), self.interfaces.len())
    }
}

#[cfg(test)]
mod tests;
