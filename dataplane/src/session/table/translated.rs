//! Translated sessions: entries with a rewrite, found by two keys.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use bulkhead_classifier::protocol;

use super::super::direction::Direction;
use super::super::entry::{Entry, Moment, Slot};
use super::super::rewrite::{Rewrite, Rewritten};
use super::{Hit, Key, PlainHit, SessionTable};
use crate::Flow;
use crate::service::Steering;
use crate::session::class::Class;
use crate::translations::{PlainV4, TranslatedError, Translations};

/// Which of an entry's two keys a packet has, and the packet's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The packet has the entry's own key, which the backend sees.
    Key(Direction),
    /// The packet has the alias: it is between the client and the VIP.
    Alias(Direction),
}

/// Which of a translated entry's keys a packet has, and the parts of the rewrite that the check of a hit needs.
#[derive(Clone, Copy)]
struct Sides {
    is_alias: bool,
    is_key: bool,
    client_is_low: bool,
    checked: u32,
}

impl Sides {
    /// Counts the packet for the entry if no further checks are needed; see [`Hit::of`].
    #[inline(always)]
    fn hit(
        &self,
        entry: &mut Entry,
        packet: &PlainHit<'_>,
        services: u32,
        (timeouts, looks): (&[u64; 16], &[u32; 16]),
        now: Moment,
    ) -> Option<(Hit, u64)> {
        let &Self { is_alias, is_key, client_is_low, checked } = self;
        let is_right =
            (is_alias & (client_is_low == packet.from_low)) | (is_key & (entry.is_from_low() != packet.from_low));
        let is_current = !is_alias | (checked == services) | (packet.key.protocol() != protocol::UDP);
        let class = entry.class_index();
        let leaves = entry.translated_exit(packet.epoch, packet.in_port, !is_alias)?;
        let is_good = is_right
            & is_current
            & (now.time < entry.seen_at.saturating_add(timeouts[class]))
            & !packet.flags.is_control();
        is_good.then(|| Hit::of(entry, leaves, looks[class], now))
    }
}

impl SessionTable {
    /// Whether any session is translated.
    #[inline]
    pub(crate) const fn has_rewrites(&self) -> bool {
        self.aliases != 0
    }

    /// Whether any IPv6 session is translated. Its rewrite is in a separate record, which must be prefetched too.
    #[inline]
    pub(crate) const fn has_records(&self) -> bool {
        self.records != 0
    }

    /// Prefetches the separate record of the guessed entry's rewrite, if it has one. The result only keeps the read from being removed.
    #[inline]
    pub(crate) fn touch_record(&self, guess: Slot) -> u32 {
        let is_translated = self.entries().get(guess as usize).is_some_and(Entry::is_translated);
        if is_translated { self.rewrites.records()[guess as usize].checked } else { 0 }
    }

    /// Returns an entry's rewrite. `None` if it is not translated.
    #[inline]
    pub(crate) fn rewrite(&self, slot: Slot) -> Option<Rewrite> {
        self.entry(slot).rewrite(&self.rewrites.records()[slot as usize])
    }

    /// Returns how a packet with this key matches the entry that [`SessionTable::find`] returned for it.
    pub(crate) fn matched(&self, slot: Slot, key: &Key, from_low: bool) -> Match {
        let entry = self.entry(slot);
        match self.rewrite(slot) {
            Some(rewrite) if !entry.has_key(key) => {
                let is_forward = from_low == rewrite.client_is_low();
                Match::Alias(if is_forward { Direction::Forward } else { Direction::Reply })
            }
            _ => Match::Key(entry.direction(from_low)),
        }
    }

    /// Returns the addresses and ports before and after translation for packets of this direction. `None` if the entry is not translated.
    pub(crate) fn rewritten(&self, slot: Slot, direction: Direction) -> Option<Rewritten> {
        let rewrite = self.rewrite(slot)?;
        Some(self.entry(slot).rewritten(&rewrite, direction))
    }

    /// Returns the client and the backend. `None` if the entry is not translated. Echoes have port 0: rules never match their identifier.
    pub(crate) fn true_ends(&self, slot: Slot) -> Option<[(IpAddr, u16); 2]> {
        let rewrite = self.rewrite(slot)?;
        let entry = self.entry(slot);
        let ends = [rewrite.client(), entry.endpoints(Direction::Forward)[1]];
        Some(if entry.key().is_echo() { ends.map(|(address, _)| (address, 0)) } else { ends })
    }

    /// Returns the translation of an ICMP error about a packet of the entry. `matched` is the quoted packet's match, and `error` the
    /// error's flow. `None` if the entry is not translated or the quoted packet already has its sender's addresses.
    pub(crate) fn translated_error(&self, slot: Slot, matched: Match, error: &Flow) -> Option<TranslatedError> {
        let direction = match matched {
            // An error to the client about a packet forwarded to the backend. The backend's own errors come from the VIP.
            Match::Key(Direction::Forward) => Direction::Forward,
            // An error to the backend about an answer forwarded to the client. The client's own errors come from the rewritten source.
            Match::Alias(Direction::Reply) => Direction::Reply,
            Match::Key(Direction::Reply) | Match::Alias(Direction::Forward) => return None,
        };
        let rewritten = self.rewritten(slot, direction)?;
        // The quoted packet was translated, and gets its original addresses.
        let quoted = rewritten.reversed();
        let (before, after) = (rewritten.received().translation(), rewritten.sent().translation());
        let sender = if error.src == after.dst { before.dst } else { error.src };
        Some(TranslatedError { received: (error.src, error.dst), sent: (sender, before.src), quoted })
    }

    /// Removes an ended or refused entry for a new connection of the same client.
    pub(crate) fn replace(&mut self, slot: Slot) {
        self.counts.replaced += u64::from(self.entry(slot).refused().is_none());
        self.remove(slot);
    }

    /// Records that Services of this epoch confirmed the session's backend.
    pub(crate) fn set_serving(&mut self, slot: Slot, epoch: u32) {
        let entry = &mut self.entries.records_mut()[slot as usize];
        if entry.key().is_v6() {
            self.rewrites.records_mut()[slot as usize].checked = epoch;
        } else {
            entry.set_compact_checked(epoch);
        }
    }

    /// Whether the backend must be checked against Services of this epoch. Only for UDP: TCP and SCTP sessions end by themselves.
    pub(crate) fn may_be_stale(&self, slot: Slot, epoch: u32) -> bool {
        let protocol = self.entry(slot).key().protocol();
        protocol == protocol::UDP && self.rewrite(slot).is_some_and(|rewrite| rewrite.checked != epoch)
    }

    /// [`SessionTable::hit`] for a translated entry. Adds the packet's translation and returns its position. Both directions take the same
    /// steps, because a branch on the direction would be mispredicted.
    #[inline(always)]
    pub(crate) fn hit_translated(
        &mut self,
        guess: Slot,
        packet: &PlainHit<'_>,
        services: u32,
        translations: &mut Translations,
        now: Moment,
    ) -> Option<(Hit, Option<NonZeroU32>)> {
        if packet.key.is_v6() {
            return self.hit_translated_v6(guess, packet, services, translations, now);
        }
        let entry = self.entries.records_mut().get_mut(guess as usize)?;
        let compact = *entry.compact();
        // The client's packets have the alias, the backend's packets have the key.
        let (is_alias, is_key) = entry.matches_v4(packet.key);
        let sides = Sides { is_alias, is_key, client_is_low: compact.client_is_low(), checked: compact.checked() };
        let (hit, past) = sides.hit(entry, packet, services, (&self.timeouts, &self.looks), now)?;
        let sent = if is_alias { entry.ends_v4(entry.is_from_low()) } else { compact.ends(!sides.client_is_low) };
        let (addresses, ports) = packet.key.ends_v4(true);
        let received = (addresses, ports, packet.from_low);
        let place = translations.add_plain_v4(PlainV4::new(received, sent, compact.changes(is_alias)));
        self.requeue_hit((hit, past), guess, now);
        Some((hit, place))
    }

    /// Like [`SessionTable::hit_translated`], over IPv6, whose rewrite is in a separate record.
    #[inline(never)]
    fn hit_translated_v6(
        &mut self,
        guess: Slot,
        packet: &PlainHit<'_>,
        services: u32,
        translations: &mut Translations,
        now: Moment,
    ) -> Option<(Hit, Option<NonZeroU32>)> {
        let (entry, rewrite) =
            (self.entries.records_mut().get_mut(guess as usize)?, self.rewrites.records().get(guess as usize)?);
        let (is_alias, is_key) = (rewrite.alias == *packet.key, entry.has_key_alone(packet.key));
        let sides = Sides { is_alias, is_key, client_is_low: rewrite.client_is_low(), checked: rewrite.checked };
        let (hit, past) = sides.hit(entry, packet, services, (&self.timeouts, &self.looks), now)?;
        let own = entry.key();
        let sent = if is_alias { (&own, entry.is_from_low()) } else { (&rewrite.alias, !sides.client_is_low) };
        let received = (packet.key, packet.from_low);
        let place = translations.add_packet(|all| Rewritten::add_of_a_plain_packet(all, received, sent));
        self.requeue_hit((hit, past), guess, now);
        Some((hit, place))
    }

    /// Whether the entry in a guessed slot is translated.
    #[inline]
    pub(crate) fn is_translated(&self, guess: Slot) -> bool {
        self.has_rewrites() && self.entries().get(guess as usize).is_some_and(Entry::is_translated)
    }

    /// Whether the key is the entry's alias.
    #[inline]
    pub(super) fn has_alias(&self, slot: Slot, key: &Key) -> bool {
        self.rewrite(slot).is_some_and(|rewrite| rewrite.alias == *key)
    }

    /// Stores an entry's rewrite and adds its alias to the index. Returns false if there is no room. The entry is not in its slot yet.
    pub(super) fn add_alias(&mut self, slot: Slot, entry: &mut Entry, rewrite: &Rewrite) -> bool {
        let alias = &rewrite.alias;
        let is_beside = !entry.set_compact(rewrite);
        let is_ready = !is_beside || self.growth.as_mut().is_none_or(|growth| growth.reach_rewrite(slot));
        let is_told = |(steering, own): &(Arc<Steering>, usize)| steering.insert(alias, *own);
        let is_known = is_ready && self.steering.as_ref().is_none_or(is_told);
        let is_in = is_known && self.index.insert(self.hasher.hash(alias), slot);
        if is_known && !is_in {
            self.forget_alias(alias);
        }
        if is_in {
            if is_beside {
                self.rewrites.records_mut()[slot as usize] = *rewrite;
            }
            self.aliases += 1;
            self.records += usize::from(is_beside);
        }
        is_in
    }

    pub(super) fn remove_alias(&mut self, slot: Slot) {
        let Some(Rewrite { alias, .. }) = self.rewrite(slot) else { return };
        self.index.remove(self.hasher.hash(&alias), slot);
        self.forget_alias(&alias);
        self.aliases -= 1;
        self.records -= usize::from(alias.is_v6());
    }

    /// Removes this worker's alias from the table in which other workers find its owner.
    fn forget_alias(&self, alias: &Key) {
        if let Some((steering, own)) = &self.steering {
            steering.remove(alias, *own);
        }
    }

    /// Returns the address of the client whose session has this key. `None` if a new connection may use the key: it has no session, or one that has
    /// ended. Refusals do not count.
    pub(crate) fn holder(&self, hash: u64, key: &Key, now: u64) -> Option<IpAddr> {
        let slot = self.lookup(hash, key)?;
        let entry = self.entry(slot);
        let is_free = entry.class() == Class::Refused || entry.is_closed() || self.is_expired(slot, now);
        let client =
            || self.rewrite(slot).map_or(entry.endpoints(Direction::Forward)[0].0, |rewrite| rewrite.client().0);
        (!is_free).then(client)
    }

    /// Ends the entries for which `is_over` returns true among `count` slots from `from` on, including sessions cut by a policy. Returns
    /// the slot to continue with. `None` at the end of the table.
    pub(crate) fn review(
        &mut self,
        from: Slot,
        count: Slot,
        is_over: impl Fn(&Entry, Option<&Rewrite>) -> bool,
    ) -> Option<Slot> {
        let end = from.saturating_add(count).min(self.fresh);
        for slot in from..end {
            let entry = self.entry(slot);
            if !entry.is_free() && is_over(entry, self.rewrite(slot).as_ref()) {
                self.counts.removed += u64::from(entry.refused().is_none());
                self.remove(slot);
            }
        }
        (end < self.fresh).then_some(end)
    }
}
