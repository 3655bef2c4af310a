//! The fast path: packets of open sessions that need no further checks.

use std::num::NonZeroU32;

use super::Worker;
use super::column::{Burst, Meta};
use crate::session::{Hit, NONE};
use crate::{BodyKind, Judged, SessionState, Verdict};

impl Worker {
    /// Prefetches: guesses the session of every plain packet and reads its entry, so that the cache misses of a burst overlap. One short
    /// loop reads all buckets and another all entries. While judging packet by packet, the CPU would overlap two misses at a time.
    pub(super) fn read_ahead(&self, metas: &mut [Meta]) {
        let prefetch = self.sessions.prefetch();
        let touched = metas.iter().fold(0, |all, meta| all ^ prefetch.touch(meta.hash));
        std::hint::black_box(touched);
        for meta in metas.iter_mut() {
            // Packets that are not plain have no hash, and their guess is not used.
            meta.guess = prefetch.guess(meta.hash);
        }
        let entries = self.sessions.entries();
        let touched =
            metas.iter().fold(0, |all, meta| all ^ entries.get(meta.guess as usize).map_or(0, |entry| entry.epoch));
        std::hint::black_box(touched);
        if self.sessions.has_records() {
            let touched = metas.iter().fold(0, |all, meta| all ^ self.sessions.touch_record(meta.guess));
            std::hint::black_box(touched);
        }
    }

    /// Judges a plain packet of an open session that needs no further checks. Without `TRANSLATES`, translated sessions take the full path.
    #[inline]
    pub(super) fn is_hit<const EXPLAIN: bool, const TRANSLATES: bool>(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
    ) -> bool {
        let meta = &burst.metas[at];
        let waits = !self.pending.is_empty() && self.pending.may_hold(meta.hash);
        if meta.guess == NONE || meta.general().is_some() || meta.hop_limit <= 1 || waits {
            return false;
        }
        if TRANSLATES && self.sessions.is_translated(meta.guess) {
            return self.is_translated_hit::<EXPLAIN>(burst, at);
        }
        let hit = self.sessions.hit(meta.guess, &meta.plain(burst.epoch), self.now);
        if let Some(hit) = hit {
            self.pass_hit::<EXPLAIN>(burst, at, hit, None);
        }
        hit.is_some()
    }

    /// Like [`Worker::is_hit`], for a packet of a translated session.
    #[inline(always)]
    fn is_translated_hit<const EXPLAIN: bool>(&mut self, burst: &mut Burst<'_>, at: usize) -> bool {
        let meta = &burst.metas[at];
        let (packet, services, now) = (meta.plain(burst.epoch), burst.services, self.now);
        let hit = self.sessions.hit_translated(meta.guess, &packet, services, burst.translations, now);
        if let Some((hit, translation)) = hit {
            self.pass_hit::<EXPLAIN>(burst, at, hit, translation);
        }
        hit.is_some()
    }

    #[inline(always)]
    fn pass_hit<const EXPLAIN: bool>(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        hit: Hit,
        translation: Option<NonZeroU32>,
    ) {
        if hit.is_due {
            self.sample(burst, at);
        }
        if EXPLAIN {
            burst.decisions.set(at, Some(self.sessions.decision(burst.metas[at].guess)));
        } else {
            self.counters.allow(hit.origin);
        }
        let (verdict, session) = (Verdict::Forward(hit.leaves), Some(SessionState::Hit));
        burst.judged[at] = Judged { verdict, body: BodyKind::Ip, session, translation, elsewhere: None };
    }
}
