//! Interning: 64-bit numbers represent values, so that rows are cheap to keep and compare.

use std::sync::Arc;

use ahash::AHashMap;

/// Maps values to numbers, from 1. A number is never reused, even after its value was removed.
#[derive(Debug)]
pub(super) struct Interned<T> {
    ids: AHashMap<Arc<T>, u64>,
    values: AHashMap<u64, Arc<T>>,
    given: u64,
    /// Number of live values after the last sweep.
    live: usize,
}

/// Below this many values, a sweep is not worth its cost.
const WORTH_SWEEPING: usize = 1_024;

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { ids: AHashMap::new(), values: AHashMap::new(), given: 0, live: 0 }
    }
}

impl<T: Eq + std::hash::Hash> Interned<T> {
    /// Returns the value's number, and assigns one if the value is new.
    pub(super) fn id(&mut self, value: T) -> u64 {
        if let Some(&id) = self.ids.get(&value) {
            return id;
        }
        self.given += 1;
        let value = Arc::new(value);
        self.values.insert(self.given, value.clone());
        self.ids.insert(value, self.given);
        self.given
    }

    /// Returns the number of interned values.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the value with this number. `None` if it was removed.
    pub(super) fn get(&self, id: &u64) -> Option<&Arc<T>> {
        self.values.get(id)
    }

    /// Removes unused values if they may outnumber the used ones.
    pub(super) fn sweep(&mut self, used: impl FnOnce() -> ahash::AHashSet<u64>) {
        if self.values.len() > 2 * self.live + WORTH_SWEEPING {
            let used = used();
            self.values.retain(|id, _| used.contains(id));
            self.ids.retain(|_, id| used.contains(id));
            self.live = self.values.len();
        }
    }
}
