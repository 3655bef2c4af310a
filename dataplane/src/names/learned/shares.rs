//! Each holder's share of the names. A name that has addresses belongs to the share of the holder that has learned the first of them.

use std::sync::Mutex;

use ahash::AHashMap;

use super::{Holder, lock, memory};

/// The number of names in each share. Without empty shares.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<AHashMap<Holder, usize>>);

impl Shares {
    /// Whether a share has fewer names than `most`.
    pub(super) fn has_room(&self, holder: Holder, most: usize) -> bool {
        lock(&self.0).get(&holder).is_none_or(|&names| names < most)
    }

    /// Adds a name to a share. Returns false and adds none if the share has `most` names.
    pub(super) fn add(&self, holder: Holder, most: usize) -> bool {
        let mut shares = lock(&self.0);
        let names = shares.get(&holder).copied().unwrap_or(0);
        if names < most {
            shares.insert(holder, names + 1);
        }
        names < most
    }

    /// Removes a name from the share of its owner. Does nothing if the owner has left.
    pub(super) fn remove(&self, owner: Holder) {
        let mut shares = lock(&self.0);
        let Some(names) = shares.get_mut(&owner) else { return };
        *names -= 1;
        if *names == 0 {
            shares.remove(&owner);
            memory::trim_map(&mut shares);
        }
    }

    /// Drops the share of a holder that leaves.
    pub(super) fn leave(&self, holder: Holder) {
        lock(&self.0).remove(&holder);
    }

    /// Returns the number of names in all shares.
    #[cfg(test)]
    pub(super) fn names(&self) -> usize {
        lock(&self.0).values().sum()
    }

    /// Returns the estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        memory::map(&lock(&self.0))
    }
}
