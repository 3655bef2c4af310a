//! Large sets with the same members are one object, whatever their IDs.
//!
//! Groups that contain everybody are written in many ways (`namespaceSelector: {}`, a port name of everybody, of a block, of a group).
//! Sharing them saves memory, writes a change once, and lets the classifier, which compares sets by memory address, split its axes once for
//! all.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use ahash::{AHashMap, RandomState};
use bulkhead_classifier::{AddressSet, PartedSet};

/// Minimum number of intervals of a shared set (4 KiB). Smaller sets are written faster than found.
const WORTH_SHARING: usize = 512;

/// Number of intervals compared to distinguish sets. One different address shifts all following intervals, so a few probes distinguish
/// nearly all sets. Sets with equal probes are compared completely, and at worst are not shared.
const PROBES: usize = 32;

/// Number of recorded edits. A pod that changes an address of each family makes four.
const EDITS: usize = 8;

/// Minimum number of sets before a sweep for unused ones.
const WORTH_SWEEPING: usize = 256;

/// The large address sets in use, so that equal sets share memory.
#[derive(Debug, Default)]
pub(in crate::renderer) struct Shared {
    known: AHashMap<u64, Weak<AddressSet>>,
    /// The sets of more than one part in use, by hash.
    parted: AHashMap<u64, Weak<PartedSet>>,
    live_parted: usize,
    keys: RandomState,
    /// Number of sets in use after the last sweep.
    live: usize,
    /// The edits of the present transaction, oldest first.
    edits: Vec<Edit>,
    written: u64,
}

/// A set before and after a change of its addresses.
#[derive(Debug)]
struct Edit {
    before: Arc<AddressSet>,
    added: AddressSet,
    removed: AddressSet,
    after: Arc<AddressSet>,
}

impl Shared {
    /// Returns the number of intervals written since the start.
    pub(in crate::renderer) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of stored sets.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.known.len() + self.parted.len()
    }

    /// Returns the set in use with the same members, or `set` itself.
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

    /// Returns the set in use with exactly these parts, or creates one.
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

    /// Applies a change to a set. The result is computed once for all owners of the set.
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

    /// Ends the transaction, so that replaced sets can be freed.
    pub(super) fn end(&mut self) {
        self.edits.clear();
    }

    /// Removes freed sets if they may outnumber the others.
    fn sweep(&mut self) {
        if self.known.len() > 2 * self.live + WORTH_SWEEPING {
            self.known.retain(|_, set| set.strong_count() > 0);
            self.live = self.known.len();
        }
    }
}

/// Returns a hash of the set, from a sample of its intervals. Different sets rarely share it.
fn print(keys: &RandomState, set: &AddressSet) -> u64 {
    fn probes<T: Copy>(intervals: &[T]) -> impl Iterator<Item = T> {
        let every = intervals.len().div_ceil(PROBES).max(1);
        intervals.iter().step_by(every).chain(intervals.last()).copied()
    }
    let (v4, v6) = (set.v4_intervals(), set.v6_intervals());
    let probes: (Vec<_>, Vec<_>) = (probes(v4).collect(), probes(v6).collect());
    keys.hash_one((v4.len(), v6.len(), probes))
}

/// Returns the number of intervals of a set.
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
