//! Sessions to Services' addresses: entries with a rewrite, which are found by two keys.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use bulkhead_classifier::protocol;

use super::super::entry::{Direction, Entry, Moment, Slot};
use super::super::rewrite::{Rewrite, Rewritten};
use super::{Hit, Key, PlainHit, SessionTable};
use crate::Flow;
use crate::service::Steering;
use crate::session::class::Class;
use crate::translations::{PlainV4, TranslatedError, Translations};

/// How a packet belongs to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// By the entry's own key.
    Key(Direction),
    /// By the alias: the packet is between the client and the virtual address.
    Alias(Direction),
}

impl SessionTable {
    /// Whether any entry has a rewrite.
    #[inline]
    pub(crate) const fn has_rewrites(&self) -> bool {
        self.aliases != 0
    }

    /// Reads a rewrite ahead, if the entry has one.
    #[inline]
    pub(crate) fn touch_rewrite(&self, guess: Slot) -> u32 {
        let is_translated = self.entries().get(guess as usize).is_some_and(Entry::is_translated);
        if is_translated { self.rewrites.records()[guess as usize].checked } else { 0 }
    }

    /// The rewrite of an entry; none for one that has none.
    pub(crate) fn rewrite(&self, slot: Slot) -> Option<&Rewrite> {
        self.entry(slot).is_translated().then(|| &self.rewrites.records()[slot as usize])
    }

    /// How a packet with this key belongs to the entry, which [`SessionTable::find`] gave for it.
    pub(crate) fn matched(&self, slot: Slot, key: &Key, from_low: bool) -> Match {
        let entry = self.entry(slot);
        match self.rewrite(slot) {
            Some(rewrite) if entry.key != *key => {
                let is_forward = from_low == rewrite.client_is_low();
                Match::Alias(if is_forward { Direction::Forward } else { Direction::Reply })
            }
            _ => Match::Key(entry.direction(from_low)),
        }
    }

    /// What becomes of the addresses of a packet of an entry with a rewrite.
    pub(crate) fn rewritten(&self, slot: Slot, direction: Direction) -> Option<Rewritten> {
        let rewrite = self.rewrite(slot)?;
        Some(rewrite.rewritten(self.entry(slot), direction))
    }

    /// Who talks to whom in truth, client and backend; none for an entry without a rewrite. Echoes have no ports: their identifier is
    /// none that a rule knows.
    pub(crate) fn true_ends(&self, slot: Slot) -> Option<[(IpAddr, u16); 2]> {
        let rewrite = self.rewrite(slot)?;
        let entry = self.entry(slot);
        let ends = [rewrite.client(), entry.endpoints(Direction::Forward)[1]];
        Some(if entry.key.is_echo() { ends.map(|(address, _)| (address, 0)) } else { ends })
    }

    /// What is written into an ICMP error about a packet of the entry; `matched` is how the quoted packet belongs to it, and `error` who
    /// sends the error to whom. None for an entry without a rewrite, and where the quoted packet has just the addresses that its
    /// sender knows.
    pub(crate) fn translated_error(&self, slot: Slot, matched: Match, error: &Flow) -> Option<TranslatedError> {
        let direction = match matched {
            // To the client, about a packet that had gone on to the backend. The backend itself speaks in the VIP's name.
            Match::Key(Direction::Forward) => Direction::Forward,
            // To the backend, about an answer that had gone on to the client, who speaks in the name of his source.
            Match::Alias(Direction::Reply) => Direction::Reply,
            Match::Key(Direction::Reply) | Match::Alias(Direction::Forward) => return None,
        };
        let rewritten = self.rewritten(slot, direction)?;
        // The quoted packet is one that was rewritten, and becomes what it was.
        let quoted = rewritten.reversed();
        let (before, after) = (rewritten.received().translation(), rewritten.sent().translation());
        let sender = if error.src == after.dst { before.dst } else { error.src };
        Some(TranslatedError { received: (error.src, error.dst), sent: (sender, before.src), quoted })
    }

    /// An entry that is over, or was refused, gives way to a new connection of the same client.
    pub(crate) fn replace(&mut self, slot: Slot) {
        self.counts.replaced += u64::from(self.entry(slot).refused().is_none());
        self.remove(slot);
    }

    /// The backend of the session was found to answer by Services of this epoch.
    pub(crate) fn set_serving(&mut self, slot: Slot, epoch: u32) {
        self.rewrites.records_mut()[slot as usize].checked = epoch;
    }

    /// Whether Services of this epoch have still to say whether the backend answers. TCP and SCTP end by themselves.
    pub(crate) fn may_be_stale(&self, slot: Slot, epoch: u32) -> bool {
        let protocol = self.entry(slot).key.protocol();
        protocol == protocol::UDP && self.rewrite(slot).is_some_and(|rewrite| rewrite.checked != epoch)
    }

    /// [`SessionTable::hit`] for an entry with a rewrite. Adds what is to be written into the packet to `translations`, and returns its place. Both directions
    /// take the same steps: which one a packet has is as good as random, and a branch for it would be foretold wrongly.
    #[inline(always)]
    pub(crate) fn hit_translated(
        &mut self,
        guess: Slot,
        packet: &PlainHit<'_>,
        services: u32,
        translations: &mut Translations,
        now: Moment,
    ) -> Option<(Hit, Option<NonZeroU32>)> {
        let (entry, rewrite) =
            (self.entries.records_mut().get_mut(guess as usize)?, self.rewrites.records().get(guess as usize)?);
        // What the client sends has the alias, and what the backend sends the key.
        let (is_alias, is_key) = (rewrite.alias == *packet.key, entry.key == *packet.key);
        let (client_is_low, from_low) = (rewrite.client_is_low(), packet.from_low);
        let is_right = (is_alias & (client_is_low == from_low)) | (is_key & (entry.is_from_low() != from_low));
        let is_current = !is_alias | (rewrite.checked == services) | (packet.key.protocol() != protocol::UDP);
        let class = entry.class_index();
        let leaves = entry.translated_exit(packet.epoch, packet.in_port, !is_alias)?;
        let is_good = is_right
            & is_current
            & (now.time < entry.seen_at.saturating_add(self.timeouts[class]))
            & !packet.flags.is_control();
        if !is_good {
            return None;
        }
        let sent = if is_alias { (&entry.key, entry.is_from_low()) } else { (&rewrite.alias, !client_is_low) };
        let received = (packet.key, from_low);
        let place = if received.0.is_v6() {
            translations.add_packet(|all| Rewritten::add_of_a_plain_packet(all, received, sent))
        } else {
            let [received, sent] = [received, sent].map(|(key, from_low)| key.ends_v4(from_low));
            translations.add_plain_v4(PlainV4::new(received, sent, rewrite.changes(is_alias)))
        };
        let (hit, past) = Hit::of(entry, leaves, self.looks[class], now);
        if hit.is_due {
            self.requeue_if(past, guess, now);
        }
        Some((hit, place))
    }

    /// Whether the entry in a guessed slot has a rewrite.
    #[inline]
    pub(crate) fn is_translated(&self, guess: Slot) -> bool {
        self.has_rewrites() && self.entries().get(guess as usize).is_some_and(Entry::is_translated)
    }

    /// Whether the key is the entry's alias.
    #[inline]
    pub(super) fn has_alias(&self, slot: Slot, key: &Key) -> bool {
        self.rewrite(slot).is_some_and(|rewrite| rewrite.alias == *key)
    }

    /// Writes an entry's rewrite and puts its alias into the index. False when that has no place for it.
    pub(super) fn add_alias(&mut self, slot: Slot, rewrite: &Rewrite) -> bool {
        let alias = &rewrite.alias;
        let is_ready = self.growth.as_mut().is_none_or(|growth| growth.reach_rewrite(slot));
        let is_told = |(steering, own): &(Arc<Steering>, usize)| steering.insert(alias, *own);
        let is_known = is_ready && self.steering.as_ref().is_none_or(is_told);
        let is_in = is_known && self.index.insert(self.hasher.hash(alias), slot);
        if is_known && !is_in {
            self.forget_alias(alias);
        }
        if is_in {
            self.rewrites.records_mut()[slot as usize] = *rewrite;
            self.aliases += 1;
        }
        is_in
    }

    pub(super) fn remove_alias(&mut self, slot: Slot) {
        let alias = self.rewrites.records()[slot as usize].alias;
        self.index.remove(self.hasher.hash(&alias), slot);
        self.forget_alias(&alias);
        self.aliases -= 1;
    }

    /// Other workers do not look for it here any more.
    fn forget_alias(&self, alias: &Key) {
        if let Some((steering, own)) = &self.steering {
            steering.remove(alias, *own);
        }
    }

    /// Whether a new connection may have this key: there is no session with it, or one that is over. What was refused is
    /// no session.
    pub(crate) fn is_available(&self, hash: u64, key: &Key, now: u64) -> bool {
        self.lookup(hash, key).is_none_or(|slot| {
            let entry = self.entry(slot);
            entry.class() == Class::Refused || entry.is_closed() || self.is_expired(slot, now)
        })
    }

    /// Ends, of so many places from this one on, the sessions that `is_over` says are, and says where to go on. Sessions that a policy
    /// has cut are looked at too.
    pub(crate) fn review(
        &mut self,
        from: Slot,
        count: Slot,
        is_over: impl Fn(&Entry, Option<&Rewrite>) -> bool,
    ) -> Option<Slot> {
        let end = from.saturating_add(count).min(self.fresh);
        for slot in from..end {
            let entry = self.entry(slot);
            if !entry.is_free() && is_over(entry, self.rewrite(slot)) {
                self.counts.removed += u64::from(entry.refused().is_none());
                self.remove(slot);
            }
        }
        (end < self.fresh).then_some(end)
    }
}
