//! A worker's ring of records, which wakes the reader.

use std::sync::Arc;

use rtrb::Producer;

use super::{Record, Ringer};
use crate::vswitch::bell::Bell;

/// The writing end of a worker's ring of records, with the reader's bell.
#[derive(Debug)]
pub(super) struct Records {
    ring: Producer<Record>,
    bell: Arc<Bell<Ringer>>,
    /// Whether [`push`](Self::push) was called after the last [`ring`](Self::ring).
    is_news: bool,
}

impl Records {
    pub(super) const fn new(ring: Producer<Record>, bell: Arc<Bell<Ringer>>) -> Self {
        Self { ring, bell, is_news: false }
    }

    /// Whether the ring is full.
    pub(super) fn is_full(&self) -> bool {
        self.ring.is_full()
    }

    /// Writes a record. Returns false if the ring is full.
    pub(super) fn push(&mut self, record: Record) -> bool {
        self.is_news = true;
        self.ring.push(record).is_ok()
    }

    /// Wakes the reader if it sleeps and a record was offered since the last call. Call it once per round, because waking takes a system call.
    #[inline]
    pub(super) fn ring(&mut self) {
        if std::mem::take(&mut self.is_news) {
            self.bell.ring();
        }
    }
}
