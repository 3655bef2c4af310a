//! The most recently used values of a map, in bounded memory.

use std::hash::Hash;

use indexmap::IndexMap;

/// Maximum number of keys of a generation. The observations of a session are seconds apart, in which even a large cluster has fewer others. A
/// session of a log takes about 350 bytes, so that two generations take 11 MB.
const GENERATION: usize = 1 << 14;

/// A map that retires the values of keys that have not been used for long.
///
/// New keys enter the young generation. Once that is full, the values of the old generation retire, and the young one becomes the old one. A
/// key of the old generation that is used again moves to the young one. So a value retires only after a generation of other keys has been used
/// since. Values retire in the order in which their keys were first used, if none of them was used again.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    /// The keys that were used since the generations changed.
    young: IndexMap<K, V>,
    /// The keys that were used in the generation before, and not since.
    old: IndexMap<K, V>,
    /// Maximum number of keys of a generation.
    generation: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// Returns an empty map that keeps the values of at least `generation` and at most twice as many keys.
    pub(super) fn new(generation: usize) -> Self {
        Self { young: IndexMap::new(), old: IndexMap::new(), generation }
    }

    /// Returns the value of a key, which `new` makes if there is none. Passes keys and values that retire to `retire`.
    pub(super) fn value(&mut self, key: K, new: impl FnOnce() -> V, retire: impl FnMut((K, V))) -> &mut V {
        let mut known = None;
        if !self.young.contains_key(&key) {
            known = self.old.swap_remove(&key);
            if self.young.len() >= self.generation {
                self.old.drain(..).for_each(retire);
                std::mem::swap(&mut self.young, &mut self.old);
            }
        }
        self.young.entry(key).or_insert_with(|| known.unwrap_or_else(new))
    }

    /// Takes out all keys and values, those of the old generation first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (K, V)> {
        self.old.drain(..).chain(self.young.drain(..))
    }
}

impl<K: Eq + Hash, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self::new(GENERATION)
    }
}
