//! The part of an entry that packets of established sessions do not read: list links and the decision.

use bulkhead_classifier::OriginId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::entry::{Entry, NONE, Slot};
use crate::names::NameId;
use crate::{Decider, Decision, TableId};

/// The part of an entry that is read and written when the entry is created, moved or ended, and when its decision is queried.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Links {
    /// Neighbours in the lists of the class, of the in-port and of the out-port.
    pub(super) of_class: Link,
    pub(super) of_starter: Link,
    pub(super) of_destination: Link,
    /// Number of the packet for which the entry was last added to its lists.
    pub(super) queued: u64,
    /// The number of the deciding table or, with the bit [`NAMED`], of the name by which the rule matched. `u32::MAX` if no table decided
    /// or the decision is not known.
    table: u32,
    rule: u32,
    /// Next expected sequence number of each side, initiator first, as last sampled. 0 if unknown.
    pub(super) next: [u32; 2],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Link {
    pub(super) previous: Slot,
    pub(super) next: Slot,
}

/// The bit of [`Links::rule`] that marks an audited session. Rule positions have 24 bits.
const AUDITED: u32 = 1 << 31;
/// The bit of [`Links::table`] that marks the number of a name. Numbers of tables are lower.
const NAMED: u32 = 1 << 31;
/// The rule position of a session that no rule allowed, without an audit mark.
const NO_RULE: u32 = u32::MAX;
/// The rule position of an audited session of an earlier process, whose rule is not known.
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
        self.table = match decision.by {
            Some(Decider::Name(name)) => NAMED | name.bits(),
            Some(Decider::Table(table)) => table.0,
            None => u32::MAX,
        };
        self.rule = match decision.rule {
            Some(rule) => rule,
            None => NO_RULE,
        };
    }

    /// Whether the session has an audit mark.
    pub(super) const fn is_audited(&self) -> bool {
        self.rule != NO_RULE && self.rule & AUDITED != 0
    }

    /// Sets or clears the audit mark. A new decision clears it.
    pub(super) const fn set_audited(&mut self, is_audited: bool) {
        self.rule = match (self.rule, is_audited) {
            (NO_RULE | UNKNOWN_RULE, true) => UNKNOWN_RULE,
            (NO_RULE | UNKNOWN_RULE, false) => NO_RULE,
            (rule, true) => rule | AUDITED,
            (rule, false) => rule & !AUDITED,
        };
    }

    /// Returns the name by which the rule matched. `None` if the session was not allowed by name.
    pub(super) const fn name(&self) -> Option<NameId> {
        let is_named = self.table & NAMED != 0 && self.table != u32::MAX;
        if is_named { Some(NameId::from_bits(self.table & !NAMED)) } else { None }
    }

    /// Returns the decision. Its origin is in the entry. A decision by name does not have the table, which is the `named_table` of the
    /// initiator's port.
    pub(super) fn decision(&self, entry: &Entry) -> Decision {
        let some = |number: u32| (number != u32::MAX).then_some(number);
        let by_table = || some(self.table).map(|table| Decider::Table(TableId(table)));
        Decision {
            by: self.name().map(Decider::Name).or_else(by_table),
            rule: match self.rule {
                NO_RULE | UNKNOWN_RULE => None,
                rule => Some(rule & !AUDITED),
            },
            origin: some(entry.origin).map(OriginId),
        }
    }
}
