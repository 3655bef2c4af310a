//! What of an entry no packet of an established session reads: its places in the lists, and who decided.

use bulkhead_classifier::OriginId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::entry::{Entry, NONE, Slot};
use crate::{Decision, TableId};

/// The part of an entry that is read and written when it is made, moved or ended, and when somebody asks who decided.
///
/// A rewrite (a service's address for a backend's, when there are services) would be a third column, touched only for the
/// sessions that have one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Links {
    /// Neighbours in the list of all entries of the class, in that of the in-port's, and in that of the out-port's.
    pub(super) of_class: Link,
    pub(super) of_starter: Link,
    pub(super) of_destination: Link,
    /// The number of the packet for which the entry was last put into its lists.
    pub(super) queued: u64,
    table: u32,
    rule: u32,
    /// The sequence number that comes next from each side, initiator first, as far as it was looked at; 0 for unknown.
    pub(super) next: [u32; 2],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Link {
    pub(super) previous: Slot,
    pub(super) next: Slot,
}

/// The bit of [`Links::rule`] that marks an audited session. Positions of rules have 24 bits.
const AUDITED: u32 = 1 << 31;
/// No rule, of a session that is not audited.
const NO_RULE: u32 = u32::MAX;
/// No rule is known of an audited session: another process has judged it.
const UNKNOWN_RULE: u32 = u32::MAX - 1;

impl Links {
    pub(super) const fn new(decision: &Decision) -> Self {
        let nowhere = Link { previous: NONE, next: NONE };
        let mut links = Self {
            of_class: nowhere,
            of_starter: nowhere,
            of_destination: nowhere,
            queued: 0,
            table: 0,
            rule: 0,
            next: [0; 2],
        };
        links.set_decision(decision);
        links
    }

    pub(super) const fn set_decision(&mut self, decision: &Decision) {
        self.table = match decision.table {
            Some(table) => table.0,
            None => u32::MAX,
        };
        self.rule = match decision.rule {
            Some(rule) => rule,
            None => NO_RULE,
        };
    }

    /// Whether the tables of all policies deny the session.
    pub(super) const fn is_audited(&self) -> bool {
        self.rule != NO_RULE && self.rule & AUDITED != 0
    }

    /// Marks it so, or not. Another decision takes the mark away.
    pub(super) const fn set_audited(&mut self, is_audited: bool) {
        self.rule = match (self.rule, is_audited) {
            (NO_RULE | UNKNOWN_RULE, true) => UNKNOWN_RULE,
            (NO_RULE | UNKNOWN_RULE, false) => NO_RULE,
            (rule, true) => rule | AUDITED,
            (rule, false) => rule & !AUDITED,
        };
    }

    /// The decision, whose origin is in the entry.
    pub(super) fn decision(&self, entry: &Entry) -> Decision {
        let some = |number: u32| (number != u32::MAX).then_some(number);
        Decision {
            table: some(self.table).map(TableId),
            rule: match self.rule {
                NO_RULE | UNKNOWN_RULE => None,
                rule => Some(rule & !AUDITED),
            },
            origin: some(entry.origin).map(OriginId),
        }
    }
}
