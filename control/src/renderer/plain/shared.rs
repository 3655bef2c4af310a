//! Large sets with the same members are one object, whichever identities they have.
//!
//! Groups that name everybody are written in many ways (`namespaceSelector: {}`, a port name of everybody, of a block, of
//! a group), and their members are the same. Kept once, they cost memory once, a change writes them once, and the
//! classifier, which compares sets by where they are, cuts its axes for all of them at once.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use ahash::{AHashMap, RandomState};
use bulkhead_classifier::{AddressSet, PartedSet};

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
pub(in crate::renderer) struct Shared {
    known: AHashMap<u64, Weak<AddressSet>>,
    /// Sets of more than one part.
    parted: AHashMap<u64, Weak<PartedSet>>,
    live_parted: usize,
    keys: RandomState,
    /// How many were in use when those that are gone were last forgotten.
    live: usize,
    /// What the present transaction did, oldest first.
    edits: Vec<Edit>,
    written: u64,
}

/// A set before and after addresses entered and left.
#[derive(Debug)]
struct Edit {
    before: Arc<AddressSet>,
    added: AddressSet,
    removed: AddressSet,
    after: Arc<AddressSet>,
}

impl Shared {
    /// Intervals written so far.
    pub(in crate::renderer) fn written(&self) -> u64 {
        self.written
    }

    /// How many it remembers.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.known.len() + self.parted.len()
    }

    /// The set, or the one in use with the same members.
    pub(super) fn of(&mut self, set: AddressSet) -> Arc<AddressSet> {
        self.written += size(&set) as u64;
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

    /// The set of these parts, or the one in use that has just these.
    pub(super) fn parted(&mut self, parts: Vec<Arc<AddressSet>>) -> Arc<PartedSet> {
        let key = self.keys.hash_one(parts.iter().map(|part| Arc::as_ptr(part).addr()).collect::<Vec<_>>());
        let same = |like: &Arc<PartedSet>| {
            like.parts().len() == parts.len() && like.parts().iter().zip(&parts).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some(like) = self.parted.get(&key).and_then(Weak::upgrade).filter(same) {
            return like;
        }
        if self.parted.len() >= 2 * self.live_parted + WORTH_SWEEPING {
            self.parted.retain(|_, set| set.strong_count() > 0);
            self.live_parted = self.parted.len();
        }
        let set = Arc::new(PartedSet::new(parts));
        self.parted.insert(key, Arc::downgrade(&set));
        set
    }

    /// The set after a change, which is made once for all that have the set.
    pub(super) fn changed(
        &mut self,
        before: &Arc<AddressSet>,
        added: AddressSet,
        removed: AddressSet,
    ) -> Arc<AddressSet> {
        let same = |edit: &&Edit| edit.added == added && edit.removed == removed && edit.before == *before;
        if let Some(edit) = self.edits.iter().find(same) {
            return edit.after.clone();
        }
        let mut after = AddressSet::clone(before);
        if !removed.is_empty() {
            after = after.subtract(&removed);
        }
        if !added.is_empty() {
            after = after.union(&added);
        }
        let after = self.of(after);
        if size(before) >= WORTH_SHARING {
            if self.edits.len() == EDITS {
                self.edits.remove(0);
            }
            self.edits.push(Edit { before: before.clone(), added, removed, after: after.clone() });
        }
        after
    }

    /// The transaction is over: the sets that it left behind may go.
    pub(super) fn end(&mut self) {
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

/// The number of intervals of a set.
pub(in crate::renderer) fn size(set: &AddressSet) -> usize {
    set.v4_intervals().len() + set.v6_intervals().len()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn address(at: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + 2 * at).into()
    }

    fn set(members: impl Iterator<Item = u32>) -> AddressSet {
        members.map(address).collect()
    }

    #[test]
    fn equal_sets_are_one_object_and_others_are_not() {
        let mut shared = Shared::default();
        let first = shared.of(set(0..1_000));
        assert!(Arc::ptr_eq(&first, &shared.of(set(0..1_000))));
        for without in 0..1_000 {
            let other = shared.of(set((0..=1_000).filter(|&at| at != without)));
            assert!(!Arc::ptr_eq(&first, &other), "without {without}");
            assert_eq!(*other, set((0..=1_000).filter(|&at| at != without)));
        }
        assert!(Arc::ptr_eq(&first, &shared.of(set(0..1_000))), "another one took its place");
    }

    #[test]
    fn a_change_is_made_once_for_all_that_have_the_set() {
        let mut shared = Shared::default();
        let first = shared.of(set(0..1_000));
        let before = shared.written;
        let without = |at: u32| (AddressSet::default(), set(at..at + 1));
        let (added, removed) = without(7);
        let after = shared.changed(&first, added.clone(), removed.clone());
        assert_eq!((after.contains(address(7)), shared.written - before), (false, 999));
        assert!(Arc::ptr_eq(&after, &shared.changed(&first, added.clone(), removed.clone())));
        assert_eq!(shared.written - before, 999, "written again");
        let back = shared.changed(&after, removed, added);
        assert!(Arc::ptr_eq(&back, &first), "the first one is still in use");
        let (added, removed) = without(8);
        assert_eq!(*shared.changed(&first, added, removed), set((0..1_000).filter(|&at| at != 8)));
    }

    #[test]
    fn sets_that_nobody_has_are_forgotten() {
        let mut shared = Shared::default();
        let mut last = shared.of(set(0..1_000));
        for at in 0..2_000 {
            let (none, one) = (AddressSet::default(), |at| set(at..at + 1));
            let (added, removed) = if at % 2 == 0 { (none, one(at / 2)) } else { (one(1_000 + at), none) };
            last = shared.changed(&last, added, removed);
        }
        assert!(shared.known.len() <= 2 * EDITS + 2 * WORTH_SWEEPING, "{} remembered", shared.known.len());
        let edits: Vec<_> = shared.edits.iter().map(|edit| Arc::downgrade(&edit.before)).collect();
        assert_eq!(edits.len(), EDITS);
        shared.end();
        assert!(edits.iter().all(|set| set.strong_count() == 0));
    }
}
