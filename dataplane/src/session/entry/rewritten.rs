//! The [`Rewrite`] of an entry, in the entry or beside it.

use super::super::compact::CompactRewrite;
use super::{Direction, Entry, Key, Rewrite, Rewritten};

impl Entry {
    /// Returns the entry's rewrite. `None` if it is not translated. `record` is the entry's element of the third column, which is used over
    /// IPv6.
    #[inline]
    pub(in crate::session) fn rewrite(&self, record: &Rewrite) -> Option<Rewrite> {
        if !self.is_translated() {
            return None;
        }
        let key = self.key();
        let compact = if key.is_v6() { None } else { self.key.compact().rewrite(&key) };
        Some(compact.unwrap_or(*record))
    }

    /// Like [`Entry::rewrite`], for an entry written by another process.
    ///
    /// # Errors
    /// If the rewrite is invalid.
    pub(in crate::session) fn sound_rewrite(&self, record: &Rewrite) -> Result<Option<Rewrite>, String> {
        let rewrite = self.rewrite(record);
        if rewrite.is_some_and(|rewrite| !rewrite.is_sound(&self.key())) {
            return Err("it has an invalid rewrite".to_owned());
        }
        Ok(rewrite)
    }

    /// Returns the addresses and ports before and after translation for packets of this direction. `rewrite` must be the entry's.
    pub(in crate::session) fn rewritten(&self, rewrite: &Rewrite, direction: Direction) -> Rewritten {
        match direction {
            Direction::Forward => rewrite.rewritten_forward((self.key(), self.is_from_low())),
            Direction::Reply => {
                let at_backend = (self.key(), !self.is_from_low());
                Rewritten::new(at_backend, (rewrite.alias, !rewrite.client_is_low()))
            }
        }
    }

    /// Returns the translated addresses and ports of an IPv4 entry. Meaningless for an IPv6 entry, all zeros without translation.
    #[inline(always)]
    pub(in crate::session) const fn compact(&self) -> &CompactRewrite {
        self.key.compact()
    }

    /// Whether an IPv4 key is the alias, and whether it is the key, of this translated entry.
    #[inline(always)]
    pub(in crate::session) const fn matches_v4(&self, key: &Key) -> (bool, bool) {
        (self.key.compact().is_alias(self.key.rest(), key), self.key.is_v4(key))
    }

    /// Returns addresses and ports of a packet with the entry's own IPv4 key, each with the source in the upper half.
    #[inline(always)]
    pub(in crate::session) const fn ends_v4(&self, from_low: bool) -> (u64, u32) {
        self.key.ends_v4(from_low)
    }

    /// Records that Services of this epoch confirmed the backend of an IPv4 session.
    pub(in crate::session) const fn set_compact_checked(&mut self, epoch: u32) {
        self.key.compact_mut().set_checked(epoch);
    }

    /// Stores an IPv4 rewrite in the entry. Returns false for IPv6.
    pub(in crate::session) fn set_compact(&mut self, rewrite: &Rewrite) -> bool {
        let compact = CompactRewrite::new(rewrite, &self.key(), self.is_from_low());
        if let Some(compact) = compact {
            self.key.set_compact(compact);
        }
        compact.is_some()
    }
}
