//! The [`Rewrite`] of an entry, in the entry or beside it.

use super::super::compact::CompactRewrite;
use super::{Direction, Entry, Key, Rewrite, Rewritten};

impl Entry {
    /// Its rewrite, if it has one; `record` is what the table has beside the entry, where those over IPv6 are.
    #[inline]
    pub(in crate::session) fn rewrite(&self, record: &Rewrite) -> Option<Rewrite> {
        if !self.is_translated() {
            return None;
        }
        let key = self.key();
        let compact = if key.is_v6() { None } else { self.key.compact().rewrite(&key) };
        Some(compact.unwrap_or(*record))
    }

    /// The same of an entry that another process has written.
    ///
    /// # Errors
    /// Where it cannot be one.
    pub(in crate::session) fn sound_rewrite(&self, record: &Rewrite) -> Result<Option<Rewrite>, String> {
        let rewrite = self.rewrite(record);
        if rewrite.is_some_and(|rewrite| !rewrite.is_sound(&self.key())) {
            return Err("it has an invalid rewrite".to_owned());
        }
        Ok(rewrite)
    }

    /// What packets of this direction have on the wire, and what they leave with. The rewrite is the entry's.
    pub(in crate::session) fn rewritten(&self, rewrite: &Rewrite, direction: Direction) -> Rewritten {
        match direction {
            Direction::Forward => rewrite.rewritten_forward((self.key(), self.is_from_low())),
            Direction::Reply => {
                let at_backend = (self.key(), !self.is_from_low());
                Rewritten::new(at_backend, (rewrite.alias, !rewrite.client_is_low()))
            }
        }
    }

    /// That of an entry that has one, over IPv4.
    #[inline(always)]
    pub(in crate::session) const fn compact(&self) -> &CompactRewrite {
        self.key.compact()
    }

    /// Which packets over IPv4 with this key are of the entry, which has a rewrite: whether that is the alias, and whether it is the
    /// entry's own.
    #[inline(always)]
    pub(in crate::session) const fn matches_v4(&self, key: &Key) -> (bool, bool) {
        (self.key.compact().is_alias(self.key.rest(), key), self.key.is_v4(key))
    }

    /// The addresses and ports of a packet over IPv4, each with the source in the upper half.
    #[inline(always)]
    pub(in crate::session) const fn ends_v4(&self, from_low: bool) -> (u64, u32) {
        self.key.ends_v4(from_low)
    }

    /// The backend of a session over IPv4 was found to answer by Services of this epoch.
    pub(in crate::session) const fn set_compact_checked(&mut self, epoch: u32) {
        self.key.compact_mut().set_checked(epoch);
    }

    /// Writes a rewrite where the entry has room for it, which is over IPv4.
    pub(in crate::session) fn set_compact(&mut self, rewrite: &Rewrite) -> bool {
        let compact = CompactRewrite::new(rewrite, &self.key(), self.is_from_low());
        if let Some(compact) = compact {
            self.key.set_compact(compact);
        }
        compact.is_some()
    }
}
