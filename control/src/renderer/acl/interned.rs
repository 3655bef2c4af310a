//! Numbers in place of values, so that what is compared and kept in rows is eight bytes.

use std::sync::Arc;

use ahash::AHashMap;

/// Numbers for values, from 1; never the same number for two values, also after one was forgotten.
#[derive(Debug)]
pub(super) struct Interned<T> {
    ids: AHashMap<Arc<T>, u64>,
    values: AHashMap<u64, Arc<T>>,
    given: u64,
    /// How many were live when the rest was last forgotten.
    live: usize,
}

/// Below this many values it is not worth looking for those that are not used any more.
const WORTH_SWEEPING: usize = 1_024;

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { ids: AHashMap::new(), values: AHashMap::new(), given: 0, live: 0 }
    }
}

impl<T: Eq + std::hash::Hash> Interned<T> {
    /// The value's number.
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

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The value of a number that was not forgotten.
    pub(super) fn get(&self, id: &u64) -> Option<&Arc<T>> {
        self.values.get(id)
    }

    /// Forgets values that are not in use, once they are more than those that are.
    pub(super) fn sweep(&mut self, used: impl FnOnce() -> ahash::AHashSet<u64>) {
        if self.values.len() > 2 * self.live + WORTH_SWEEPING {
            let used = used();
            self.values.retain(|id, _| used.contains(id));
            self.ids.retain(|_, id| used.contains(id));
            self.live = self.values.len();
        }
    }
}
