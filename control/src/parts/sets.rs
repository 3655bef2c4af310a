//! Large sets with the same members are one object, whichever groups they belong to.
//!
//! Groups that name everybody are written in many ways (`namespaceSelector: {}`, a port name of everybody, of a block, of
//! a group), and their members are the same. Kept once, they cost memory once, a change writes them once, and the
//! classifier, which compares sets by where they are, cuts its axes for all of them at once.

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use ahash::{AHashMap, RandomState};
use bulkhead_classifier::AddressSet;

use super::size;
use crate::processor::Work;

/// Intervals of a set from which on its like is looked for: 4 KiB of them, which take longer to write than to find.
const WORTH_SHARING: usize = 512;

/// Intervals that are looked at to tell sets apart. Where one set has an address and another one has another, all
/// intervals between these are one place further, so that few places tell nearly all sets apart. Those that they do not
/// are compared, and are kept twice at worst.
const PROBES: usize = 32;

/// Edits that are remembered: a pod with an address of each family that gets two others makes four.
const EDITS: usize = 8;

/// The fewest sets worth a look for those that are gone.
const WORTH_SWEEPING: usize = 256;

/// The large sets in use.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    known: AHashMap<u64, Weak<AddressSet>>,
    keys: RandomState,
    /// How many were in use when those that are gone were last forgotten.
    live: usize,
    /// What the present event did, oldest first.
    edits: Vec<Edit>,
}

/// Holds the sets, so that no other takes their places in memory.
#[derive(Debug)]
struct Edit {
    before: Arc<AddressSet>,
    change: Change,
    after: Arc<AddressSet>,
}

/// One address more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Insert(IpAddr),
    Remove(IpAddr),
}

impl Sets {
    /// The set, or the one in use with the same members.
    pub(super) fn shared(&mut self, set: AddressSet, work: &mut Work) -> Arc<AddressSet> {
        work.intervals += size(&set) as u64;
        if size(&set) < WORTH_SHARING {
            return Arc::new(set);
        }
        self.sweep();
        match self.known.entry(print(&self.keys, &set)) {
            Entry::Occupied(mut known) => match known.get().upgrade().filter(|like| **like == set) {
                Some(like) => like,
                None => {
                    let set = Arc::new(set);
                    known.insert(Arc::downgrade(&set));
                    set
                }
            },
            Entry::Vacant(unknown) => {
                let set = Arc::new(set);
                unknown.insert(Arc::downgrade(&set));
                set
            }
        }
    }

    /// The set after a change, which is made once for all groups that have it.
    pub(super) fn changed(&mut self, before: &Arc<AddressSet>, change: Change, work: &mut Work) -> Arc<AddressSet> {
        let same = |edit: &&Edit| edit.change == change && Arc::ptr_eq(&edit.before, before);
        if let Some(edit) = self.edits.iter().find(same) {
            return edit.after.clone();
        }
        let after = match change {
            Change::Insert(address) => before.union(&AddressSet::from_iter([address])),
            Change::Remove(address) => before.subtract(&AddressSet::from_iter([address])),
        };
        let after = self.shared(after, work);
        if size(before) >= WORTH_SHARING {
            if self.edits.len() == EDITS {
                self.edits.remove(0);
            }
            self.edits.push(Edit { before: before.clone(), change, after: after.clone() });
        }
        after
    }

    /// The event is over: the sets that it left behind may go.
    pub(crate) fn end_event(&mut self) {
        self.edits.clear();
    }

    /// Forgets sets that are gone, once they may be more than the others.
    fn sweep(&mut self) {
        if self.known.len() > 2 * self.live + WORTH_SWEEPING {
            self.known.retain(|_, set| set.strong_count() > 0);
            self.live = self.known.len();
        }
    }
}

/// Equal sets have equal ones, and others hardly ever.
fn print(keys: &RandomState, set: &AddressSet) -> u64 {
    fn probes<T: Copy>(intervals: &[T]) -> impl Iterator<Item = T> {
        let every = intervals.len().div_ceil(PROBES).max(1);
        intervals.iter().step_by(every).chain(intervals.last()).copied()
    }
    let (v4, v6) = (set.v4_intervals(), set.v6_intervals());
    let probes: (Vec<_>, Vec<_>) = (probes(v4).collect(), probes(v6).collect());
    keys.hash_one((v4.len(), v6.len(), probes))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(at: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + 2 * at).into()
    }

    fn set(members: impl Iterator<Item = u32>) -> AddressSet {
        members.map(address).collect()
    }

    #[test]
    fn equal_sets_are_one_object_and_others_are_not() {
        let (mut sets, mut work) = (Sets::default(), Work::default());
        let first = sets.shared(set(0..1_000), &mut work);
        assert!(Arc::ptr_eq(&first, &sets.shared(set(0..1_000), &mut work)));
        for without in 0..1_000 {
            let other = sets.shared(set((0..=1_000).filter(|&at| at != without)), &mut work);
            assert!(!Arc::ptr_eq(&first, &other), "without {without}");
            assert_eq!(*other, set((0..=1_000).filter(|&at| at != without)));
        }
        assert!(Arc::ptr_eq(&first, &sets.shared(set(0..1_000), &mut work)), "another one took its place");
    }

    #[test]
    fn a_change_is_made_once_for_all_that_have_the_set() {
        let (mut sets, mut work) = (Sets::default(), Work::default());
        let first = sets.shared(set(0..1_000), &mut work);
        let before = work.intervals;
        let change = Change::Remove(address(7));
        let after = sets.changed(&first, change, &mut work);
        assert_eq!((after.contains(address(7)), work.intervals - before), (false, 999));
        assert!(Arc::ptr_eq(&after, &sets.changed(&first, change, &mut work)));
        assert_eq!(work.intervals - before, 999, "written again");
        let back = sets.changed(&after, Change::Insert(address(7)), &mut work);
        assert!(Arc::ptr_eq(&back, &first), "the first one is still in use");
        let other = sets.changed(&first, Change::Remove(address(8)), &mut work);
        assert_eq!(*other, set((0..1_000).filter(|&at| at != 8)));
    }

    #[test]
    fn sets_that_nobody_has_are_forgotten() {
        let (mut sets, mut work) = (Sets::default(), Work::default());
        let mut last = sets.shared(set(0..1_000), &mut work);
        for at in 0..2_000 {
            let change =
                if at % 2 == 0 { Change::Remove(address(at / 2)) } else { Change::Insert(address(1_000 + at)) };
            last = sets.changed(&last, change, &mut work);
        }
        assert!(sets.known.len() <= 2 * EDITS + 2 * WORTH_SWEEPING, "{} remembered", sets.known.len());
        let edits: Vec<_> = sets.edits.iter().map(|edit| Arc::downgrade(&edit.before)).collect();
        assert_eq!(edits.len(), EDITS);
        sets.end_event();
        assert!(edits.iter().all(|set| set.strong_count() == 0));
    }
}
