//! Lists of entries by last use: one per class, and one per class, port and role.
//!
//! The lists of a class determine which entries to sweep, those of a port which entries to evict from a pod over its share. All are linked
//! through the same records, so moving an entry touches few cache lines. An entry's position is that of the packet for which it was last
//! moved, not of its last packet: see [`super::table`].

use super::budget::Side;
use super::class::Class;
use super::entry::{NONE, NOWHERE, Slot};
use super::links::{Link, Links};
use crate::{BURST, PortId};

/// A list of entries, least recently used first. Each entry's links name its neighbours.
#[derive(Clone, Copy, Debug)]
struct List {
    first: Slot,
    last: Slot,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// The lists of all classes, ports and roles, with their lengths.
#[derive(Debug)]
pub(super) struct Lists {
    classes: [List; Class::COUNT],
    /// The lists of each port's sessions by role, indexed by [`place`] and class.
    starters: Vec<[List; Class::COUNT]>,
    destinations: Vec<[List; Class::COUNT]>,
    lens: [usize; Class::COUNT],
    /// Entries started by each port, by [`place`], one column per class. Searched for the maximum from time to time.
    held: [Vec<u32>; Class::COUNT],
}

/// Selects the links of one of the three lists that contain an entry.
trait Chain {
    fn of(links: &mut Links) -> &mut Link;
}

struct OfClass;
struct OfStarter;
struct OfDestination;

impl Chain for OfClass {
    fn of(links: &mut Links) -> &mut Link {
        &mut links.of_class
    }
}

impl Chain for OfStarter {
    fn of(links: &mut Links) -> &mut Link {
        &mut links.of_starter
    }
}

impl Chain for OfDestination {
    fn of(links: &mut Links) -> &mut Link {
        &mut links.of_destination
    }
}

impl Lists {
    pub(super) fn new() -> Self {
        let mut lists = Self {
            classes: [List::EMPTY; Class::COUNT],
            starters: Vec::new(),
            destinations: Vec::new(),
            lens: [0; Class::COUNT],
            held: [const { Vec::new() }; Class::COUNT],
        };
        lists.know_ports(0);
        lists
    }

    /// Makes room for the ports of a snapshot.
    pub(super) fn know_ports(&mut self, ports: usize) {
        let places = ports + 1;
        if self.starters.len() < places {
            self.starters.resize(places, [List::EMPTY; Class::COUNT]);
            self.destinations.resize(places, [List::EMPTY; Class::COUNT]);
            self.held.iter_mut().for_each(|held| held.resize(places, 0));
        }
    }

    /// Empties all lists. The caller resets the records.
    pub(super) fn clear(&mut self) {
        self.classes = [List::EMPTY; Class::COUNT];
        self.starters.fill([List::EMPTY; Class::COUNT]);
        self.destinations.fill([List::EMPTY; Class::COUNT]);
        self.lens = [0; Class::COUNT];
        self.held.iter_mut().for_each(|held| held.fill(0));
    }

    /// Returns the number of entries in the class.
    pub(super) const fn len(&self, class: Class) -> usize {
        self.lens[class as usize]
    }

    /// Returns the number of ports with lists.
    pub(super) const fn ports(&self) -> usize {
        self.starters.len() - 1
    }

    /// Returns the class's entry that was moved least recently, or `NONE`.
    pub(super) const fn first(&self, class: Class) -> Slot {
        self.classes[class as usize].first
    }

    /// Returns the entry that was moved least recently among those of a port, role and class, or `NONE`.
    pub(super) fn first_of(&self, side: Side, port: PortId, class: Class) -> Slot {
        let lists = match side {
            Side::Starter => &self.starters,
            Side::Destination => &self.destinations,
        };
        lists[place(port)][class as usize].first
    }

    /// Returns the first entry of the port that has started the most entries of the class. Scanning the column takes about 20 ns for a few
    /// hundred ports. A structure that tracks the maximum would cost more per new session.
    pub(super) fn first_of_heaviest(&self, class: Class) -> Slot {
        let held = &self.held[class as usize];
        let most = held.iter().copied().max().unwrap_or(0);
        let port = held.iter().position(|&count| count == most);
        port.map_or(NONE, |port| self.starters[port][class as usize].first)
    }

    /// Adds an entry to its lists, ordered by packet number. That is nearly always the end.
    pub(super) fn link(&mut self, links: &mut [Links], slot: Slot, class: Class, ports: (PortId, PortId), number: u64) {
        let (starter, destination) = (place(ports.0), place(ports.1));
        links[slot as usize].queued = number;
        link::<OfClass>(&mut self.classes[class as usize], links, slot, number);
        link::<OfStarter>(&mut self.starters[starter][class as usize], links, slot, number);
        link::<OfDestination>(&mut self.destinations[destination][class as usize], links, slot, number);
        self.lens[class as usize] += 1;
        self.held[class as usize][starter] += 1;
    }

    /// Removes an entry from its lists.
    pub(super) fn unlink(&mut self, links: &mut [Links], slot: Slot, class: Class, ports: (PortId, PortId)) {
        let (starter, destination) = (place(ports.0), place(ports.1));
        unlink::<OfClass>(&mut self.classes[class as usize], links, slot);
        unlink::<OfStarter>(&mut self.starters[starter][class as usize], links, slot);
        unlink::<OfDestination>(&mut self.destinations[destination][class as usize], links, slot);
        self.lens[class as usize] -= 1;
        self.held[class as usize][starter] -= 1;
    }
}

/// Returns the index of a port's lists. Index 0 has the entries whose ports are not known.
fn place(port: PortId) -> usize {
    if port == NOWHERE { 0 } else { port.index() + 1 }
}

/// Adds an entry to a list, ordered by packet number. Searches at most a burst back: only packets that waited for the classifier are late.
fn link<C: Chain>(list: &mut List, links: &mut [Links], slot: Slot, number: u64) {
    let (mut previous, mut next) = (list.last, NONE);
    for _ in 0..BURST {
        if previous == NONE || links[previous as usize].queued <= number {
            break;
        }
        next = previous;
        previous = C::of(&mut links[previous as usize]).previous;
    }
    *C::of(&mut links[slot as usize]) = Link { previous, next };
    match previous {
        NONE => list.first = slot,
        previous => C::of(&mut links[previous as usize]).next = slot,
    }
    match next {
        NONE => list.last = slot,
        next => C::of(&mut links[next as usize]).previous = slot,
    }
}

fn unlink<C: Chain>(list: &mut List, links: &mut [Links], slot: Slot) {
    let Link { previous, next } = *C::of(&mut links[slot as usize]);
    match previous {
        NONE => list.first = next,
        previous => C::of(&mut links[previous as usize]).next = next,
    }
    match next {
        NONE => list.last = previous,
        next => C::of(&mut links[next as usize]).previous = previous,
    }
}

#[cfg(test)]
impl Lists {
    /// Returns the entries of a class in order. Checks the list in both directions, and against each port's list.
    pub(super) fn check(&self, links: &[Links], class: Class) -> Vec<Slot> {
        let walk = |list: List, of: fn(&Links) -> Link| {
            let (mut found, mut previous, mut slot) = (Vec::new(), NONE, list.first);
            while slot != NONE {
                let link = of(&links[slot as usize]);
                assert_eq!(link.previous, previous);
                found.push(slot);
                (previous, slot) = (slot, link.next);
            }
            assert_eq!(list.last, previous);
            found
        };
        let all = walk(self.classes[class as usize], |links| links.of_class);
        assert_eq!(all.len(), self.len(class));
        assert!(all.windows(2).all(|pair| links[pair[0] as usize].queued <= links[pair[1] as usize].queued));
        for (ports, of, counted) in [
            (&self.starters, (|links| links.of_starter) as fn(&Links) -> Link, true),
            (&self.destinations, |links| links.of_destination, false),
        ] {
            let mut of_ports = Vec::new();
            for (at, lists) in ports.iter().enumerate() {
                let list = walk(lists[class as usize], of);
                assert!(!counted || list.len() == self.held[class as usize][at] as usize);
                assert!(list.windows(2).all(|pair| links[pair[0] as usize].queued <= links[pair[1] as usize].queued));
                of_ports.extend(list);
            }
            let mut sorted = all.clone();
            sorted.sort_unstable();
            of_ports.sort_unstable();
            assert_eq!(sorted, of_ports);
        }
        all
    }
}
