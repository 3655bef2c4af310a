//! The interfaces of the node as the kernel tells them: a table that its messages keep up to date.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bulkhead_dataplane::io::{self, LinkEvent, LinkStatus, LinkWatch};
use crossbeam_channel::{Receiver, never};

use super::log;

/// Batches of messages that wait for the interfaces thread. When it is behind by more, the socket's buffer fills and the kernel
/// says that it has left messages out: then the table is read anew. So memory is bounded whatever the node's interfaces do.
const WAITING: usize = 64;

/// How often the interfaces are looked at although the kernel tells of changes. Nothing is known to be missing then; it is in
/// case a message was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How often the table is read anew, which costs one dump.
    pub(super) table: Duration,
    /// With each of so many of these readings all interfaces are asked for what is not in the table: some system calls each.
    pub(super) ask: u32,
}

/// How often it is read when the kernel tells nothing, because the process may not have another socket, or when reading it has
/// failed.
const UNTOLD: Duration = Duration::from_millis(100);

/// What has changed since the last look at the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Interfaces of which something has changed, by number.
    touched: BTreeSet<u32>,
    /// Numbers that were free for a moment: another interface may have one of them now.
    renewed: BTreeSet<u32>,
    /// Whether any interface may have changed in any way.
    all: bool,
}

impl Changes {
    /// Whether something of this interface may have changed.
    pub(super) fn touch(&self, index: u32) -> bool {
        self.all || self.touched.contains(&index)
    }

    /// Whether this number may be another interface's now.
    pub(super) fn renew(&self, index: u32) -> bool {
        self.renewed.contains(&index)
    }

    /// Whether any interface may have changed in any way.
    pub(super) const fn is_all(&self) -> bool {
        self.all
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Links {
    known: HashMap<u32, LinkStatus>,
    /// Numbers by name, alternative names included.
    names: HashMap<String, u32>,
    changes: Changes,
    /// Whether the table has all interfaces: false from lost messages until it was read anew.
    is_whole: bool,
}

impl Links {
    /// Takes a message in.
    pub(super) fn apply(&mut self, event: LinkEvent) {
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

    /// Makes these all interfaces that there are.
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
        self.is_whole = true;
    }

    /// Says that any interface may have changed in a way that is not in the table, or be another one.
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

    /// The interface of this name.
    pub(super) fn named(&self, name: &str) -> Option<&LinkStatus> {
        self.names.get(name).and_then(|index| self.known.get(index))
    }

    /// Whether an interface that is not in the table is not there either.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// What has changed since the last call.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

/// Where messages come from.
pub(super) struct LinkMessages {
    /// The kernel's messages, some at once. Never ready when it tells nothing.
    pub(super) events: Receiver<Vec<LinkEvent>>,
    is_told: bool,
    pace: Pace,
    /// How often the table was read.
    readings: u32,
    /// What was said last about a dump that failed, so that it is said once.
    said: Option<String>,
}

impl LinkMessages {
    /// Starts to listen, in this thread's network namespace. Without it interfaces are read from time to time.
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

    /// The kernel tells nothing any more.
    pub(super) fn end(&mut self) {
        log::warn("the kernel no longer reports new interfaces; the vswitch sees them up to 100 ms later");
        (self.events, self.is_told) = (never(), false);
    }

    /// When the table is to be read anew, which is whole or not.
    pub(super) const fn interval(&self, is_whole: bool) -> Duration {
        if self.is_told && is_whole { self.pace.table } else { UNTOLD }
    }

    /// Reads the table anew. What the kernel does not answer leaves it as it is: a reader must not take interfaces for gone.
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
        // They change their names with each other.
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
