//! A short list on the stack without initialisation: clearing 4 KiB per burst of 32 packets took 4 % of a lookup.

use std::mem::MaybeUninit;

/// Up to `CAP` pairs: a key's index in its block, and a number.
pub(crate) struct List<const CAP: usize> {
    /// The pairs. Only the first `len` are initialised.
    items: [MaybeUninit<(u32, u32)>; CAP],
    len: usize,
}

impl<const CAP: usize> List<CAP> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { items: [const { MaybeUninit::uninit() }; CAP], len: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    pub(crate) fn items(&mut self) -> &mut [(u32, u32)] {
        // SAFETY: the first `len` items are initialised: `len` grows only past items that were just written.
        unsafe { self.items[..self.len].assume_init_mut() }
    }

    /// Appends a pair. Panics if the list is full.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: (u32, u32)) {
        self.items[self.len].write(item);
        self.len += 1;
    }

    /// Appends the first `count` items, at most all. Writes all items in any case.
    ///
    /// # Panics
    /// If the list has no room for all items.
    #[inline(always)]
    pub(crate) fn push_some<const SOME: usize>(&mut self, some: [(u32, u32); SOME], count: u32) {
        for (slot, item) in self.items[self.len..][..SOME].iter_mut().zip(some) {
            slot.write(item);
        }
        self.len += SOME.min(count as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_counts_is_in_the_list() {
        let mut list = List::<8>::new();
        list.push_some([(1, 1), (2, 2)], 1);
        list.push_some([(3, 3), (4, 4)], 9);
        list.push_some([(5, 5), (6, 6)], 0);
        list.push((7, 7));
        assert_eq!(list.items(), [(1, 1), (3, 3), (4, 4), (7, 7)]);
        list.clear();
        assert!(list.items().is_empty());
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_list_without_room_panics_before_it_writes() {
        let mut list = List::<3>::new();
        list.push_some([(1, 1), (2, 2)], 2);
        list.push_some([(1, 1), (2, 2)], 0);
    }
}
