//! A table of the node's interfaces, kept up to date by the kernel's rtnetlink messages.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bulkhead_dataplane::io::{self, LinkEvent, LinkStatus, LinkWatch};
use crossbeam_channel::{Receiver, never};

use super::log;

/// Maximum number of message batches queued for the interfaces thread, to bound memory. If the thread falls further behind, the socket's
/// buffer overflows, the kernel reports lost messages, and the thread reads the whole table again.
const WAITING: usize = 64;

/// How often the interfaces are read although the kernel reports changes, in case a message was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Interval at which the table is read again, which costs one netlink dump.
    pub(super) table: Duration,
    /// Every `ask`-th reading also queries what the table lacks, such as numbers of queues: a few system calls per interface.
    pub(super) ask: u32,
}

/// Interval at which the table is read if the netlink socket cannot be opened or has failed, or after a failed reading.
const UNTOLD: Duration = Duration::from_millis(100);

/// Changes of interfaces since the last [`Links::take_changes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Indexes of interfaces that the kernel has reported as changed or removed.
    touched: BTreeSet<u32>,
    /// Indexes that were free meanwhile, so that another interface may have them now.
    renewed: BTreeSet<u32>,
    /// Whether the table differs.
    table: bool,
    /// Whether any interface may have changed in any way.
    all: bool,
}

impl Changes {
    /// Whether the interface of this index may have changed.
    pub(super) fn touch(&self, index: u32) -> bool {
        self.all || self.touched.contains(&index)
    }

    /// Whether another interface may have this index now.
    pub(super) fn renew(&self, index: u32) -> bool {
        self.renewed.contains(&index)
    }

    /// Whether any interface may have changed in any way.
    pub(super) const fn is_all(&self) -> bool {
        self.all
    }

    /// Whether names, indexes and states are as before: interfaces have changed at most in ways that the table does not show.
    pub(super) const fn is_table_same(&self) -> bool {
        !self.table && !self.all
    }

    /// Whether no interface has changed.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The known interfaces of the node, and their changes since these were last taken.
#[derive(Debug, Default)]
pub(super) struct Links {
    known: HashMap<u32, LinkStatus>,
    /// Interface indexes by name, including alternative names.
    names: HashMap<String, u32>,
    changes: Changes,
    /// Whether the table has all interfaces. False before the first reading, and from lost messages until the next.
    is_whole: bool,
}

impl Links {
    /// Updates the table by an rtnetlink message, and records the interface as changed. A lost message marks the table as incomplete.
    pub(super) fn apply(&mut self, event: LinkEvent) {
        self.changes.table |= matches!(event, LinkEvent::Changed(_) | LinkEvent::Removed(_));
        match event {
            LinkEvent::Changed(link) => {
                self.changes.touched.insert(link.index);
                self.forget(link.index);
                self.add(link);
            }
            LinkEvent::Removed(index) => {
                self.changes.touched.insert(index);
                self.changes.renewed.insert(index);
                self.forget(index);
            }
            LinkEvent::Features(index) => {
                self.changes.touched.insert(index);
            }
            LinkEvent::Lost => self.is_whole = false,
        }
    }

    /// Replaces the table by these interfaces and records the differences as changes.
    pub(super) fn replace(&mut self, links: Vec<LinkStatus>) {
        let before = std::mem::take(&mut self.known);
        self.names.clear();
        links.into_iter().for_each(|link| self.add(link));
        let changed = self.known.values().filter(|&link| before.get(&link.index) != Some(link));
        self.changes.touched.extend(changed.map(|link| link.index));
        let removed = before.into_keys().filter(|index| !self.known.contains_key(index));
        for index in removed {
            self.changes.touched.insert(index);
            self.changes.renewed.insert(index);
        }
        self.changes.table |= !self.changes.touched.is_empty();
        self.is_whole = true;
    }

    /// Marks every interface as possibly changed in a way that the table does not show, or replaced.
    pub(super) const fn doubt(&mut self) {
        self.changes.all = true;
    }

    fn add(&mut self, link: LinkStatus) {
        self.names.extend(link.names.iter().map(|name| (name.clone(), link.index)));
        self.known.insert(link.index, link);
    }

    fn forget(&mut self, index: u32) {
        for name in self.known.remove(&index).into_iter().flat_map(|link| link.names) {
            // Another interface may have taken the name over.
            if self.names.get(&name) == Some(&index) {
                self.names.remove(&name);
            }
        }
    }

    /// Returns the interface of this name or alternative name. `None` if the table has none.
    pub(super) fn named(&self, name: &str) -> Option<&LinkStatus> {
        self.names.get(name).and_then(|index| self.known.get(index))
    }

    /// Whether the table is complete: an interface that it lacks does not exist.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

/// The source of the interface table: the kernel's messages and dumps.
pub(super) struct LinkMessages {
    /// The kernel's messages in batches. Never ready without a netlink socket.
    pub(super) events: Receiver<Vec<LinkEvent>>,
    is_told: bool,
    pace: Pace,
    /// Number of successful readings of the table, modulo 2^32.
    readings: u32,
    /// The last logged error of a dump, to log each error once.
    said: Option<String>,
}

impl LinkMessages {
    /// Starts to listen in the calling thread's network namespace. If that fails, logs it; the table is then read every [`UNTOLD`].
    pub(super) fn listen(pace: Pace) -> Self {
        let (tell, events) = crossbeam_channel::bounded(WAITING);
        let listen = LinkWatch::new().and_then(|watch| {
            std::thread::Builder::new()
                .name("links".into())
                .spawn(move || while watch.wait().is_ok_and(|events| tell.send(events).is_ok()) {})
        });
        let Err(error) = listen else { return Self { events, is_told: true, pace, readings: 0, said: None } };
        log::warn(&format!(
            "the kernel does not report new interfaces; the vswitch sees them up to 100 ms later: {error}"
        ));
        Self { events: never(), is_told: false, pace, readings: 0, said: None }
    }

    /// Handles the end of the kernel's messages: the table is read every [`UNTOLD`] from now on.
    pub(super) fn end(&mut self) {
        log::warn("the kernel no longer reports new interfaces; the vswitch sees them up to 100 ms later");
        (self.events, self.is_told) = (never(), false);
    }

    /// Returns the time until the next reading of the table, depending on whether the table is complete.
    pub(super) const fn interval(&self, is_whole: bool) -> Duration {
        if self.is_told && is_whole { self.pace.table } else { UNTOLD }
    }

    /// Reads the table again. On an error the table stays, marked as incomplete, so that no interface counts as removed.
    pub(super) fn read(&mut self, links: &mut Links) {
        match io::links() {
            Ok(all) => {
                if !links.is_whole || !self.is_told || self.readings.is_multiple_of(self.pace.ask) {
                    links.doubt();
                }
                self.readings = self.readings.wrapping_add(1);
                links.replace(all);
                self.said = None;
            }
            Err(error) => {
                links.is_whole = false;
                let error = error.to_string();
                if self.said.as_ref() != Some(&error) {
                    log::error(&format!("cannot list the interfaces of the node; all ports stay as they are: {error}"));
                    self.said = Some(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, names: &[&str]) -> LinkStatus {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        LinkStatus { index, names, mac: [2, 0, 0, 0, 0, 1], mtu: 1500, up: true, ..LinkStatus::default() }
    }

    fn index(links: &Links, name: &str) -> Option<u32> {
        links.named(name).map(|link| link.index)
    }

    #[test]
    fn names_follow_their_interfaces_in_the_order_of_the_messages() {
        let mut links = Links::default();
        links.replace(vec![link(1, &["va", "alt"]), link(2, &["vb"])]);
        assert_eq!((index(&links, "alt"), index(&links, "vb")), (Some(1), Some(2)));
        // The two interfaces swap their names.
        for (number, name) in [(1, "tmp"), (2, "va"), (1, "vb")] {
            links.apply(LinkEvent::Changed(link(number, &[name])));
        }
        assert_eq!((index(&links, "va"), index(&links, "vb"), index(&links, "alt")), (Some(2), Some(1), None));
        links.apply(LinkEvent::Removed(2));
        assert_eq!((index(&links, "va"), index(&links, "vb")), (None, Some(1)));
    }

    #[test]
    fn what_has_changed_is_told_once_and_a_number_that_was_free_may_be_anothers() {
        let mut links = Links::default();
        links.replace(vec![link(1, &["va"]), link(5, &["ve"])]);
        links.take_changes();
        links.replace(vec![link(1, &["va"])]);
        let changes = links.take_changes();
        assert!(changes.renew(5) && changes.touch(5) && !changes.touch(1), "what is as before has not changed");
        links.doubt();
        assert!(links.take_changes().touch(1));
        links.apply(LinkEvent::Removed(1));
        links.apply(LinkEvent::Changed(link(1, &["va"])));
        links.apply(LinkEvent::Features(2));
        let changes = links.take_changes();
        assert!(changes.touch(1) && changes.renew(1) && changes.touch(2) && !changes.renew(2) && !changes.touch(3));
        assert_eq!(links.take_changes(), Changes::default());
    }

    #[test]
    fn after_lost_messages_nobody_knows_what_is_not_there() {
        let mut links = Links::default();
        assert!(!links.is_whole(), "nothing was read yet");
        links.replace(vec![link(1, &["va"])]);
        assert!(links.is_whole());
        links.apply(LinkEvent::Lost);
        assert!(!links.is_whole() && links.named("va").is_some(), "what is known stays");
        links.replace(Vec::new());
        assert!(links.is_whole() && links.named("va").is_none());
    }
}
