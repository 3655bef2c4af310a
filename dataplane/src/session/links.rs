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
    /// The number of the deciding table or, with the bit [`NAMED`], of the name by which the session was allowed. [`NO_TABLE`] if no table
    /// decided or the decision is not known.
    table: u32,
    rule: u32,
    /// Next expected sequence number of each side, initiator first, as last sampled. 0 if unknown. For ICMP, the first is the message by
    /// which the tables judge the session, with the bit [`MESSAGE`].
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
/// The bit of [`Links::table`] beside [`NAMED`] that marks a session whose server name is not compared yet. Numbers of names are lower.
const UNCHECKED: u32 = 1 << 30;
/// The bit of [`Links::next`] that distinguishes an ICMP message, which is its type times 256 plus its code, from an unknown one.
const MESSAGE: u32 = 1 << 16;
/// The number of no table. The highest without the bit [`NAMED`], because every number with it is that of a name.
const NO_TABLE: u32 = NAMED - 1;
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
            // The name of a renewed session has still to be compared.
            Some(Decider::Name(name)) if self.is_unchecked() => NAMED | UNCHECKED | name.bits(),
            Some(Decider::Name(name)) => NAMED | name.bits(),
            Some(Decider::Table(table)) => table.0,
            None => NO_TABLE,
        };
        self.rule = match decision.rule {
            Some(rule) => rule,
            None => NO_RULE,
        };
    }

    /// Returns type and code of the message by which the tables judge an ICMP session. `None` if they are unknown: the session began in a
    /// process that did not store them.
    pub(super) const fn message(&self) -> Option<(u8, u8)> {
        let [_, _, kind, code] = self.next[0].to_be_bytes();
        if self.next[0] & MESSAGE != 0 { Some((kind, code)) } else { None }
    }

    /// Stores the message by which the tables judge an ICMP session.
    pub(super) const fn set_message(&mut self, (kind, code): (u8, u8)) {
        self.next[0] = u32::from_be_bytes([0, 0, kind, code]) | MESSAGE;
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

    /// Sets the decision to deny a session. The name by which the session was allowed stays: the session goes on if a rule names it again.
    pub(super) const fn set_denial(&mut self, denial: &Decision) {
        let allowed_by = self.table;
        self.set_decision(denial);
        if allowed_by & NAMED != 0 {
            self.table = allowed_by;
        }
    }

    /// Whether the session was allowed by name and the server name that its client sends is not compared yet.
    pub(super) const fn is_unchecked(&self) -> bool {
        self.table & (NAMED | UNCHECKED) == NAMED | UNCHECKED
    }

    /// Sets or clears the mark of a session whose server name is not compared yet. Sessions that were not allowed by name have no mark.
    pub(super) const fn set_unchecked(&mut self, is_unchecked: bool) {
        if self.table & NAMED != 0 {
            self.table = if is_unchecked { self.table | UNCHECKED } else { self.table & !UNCHECKED };
        }
    }

    /// Returns the name by which the session was allowed. `None` if it was not allowed by name.
    pub(super) const fn name(&self) -> Option<NameId> {
        let is_named = self.table & NAMED != 0;
        if is_named { Some(NameId::from_bits(self.table & !(NAMED | UNCHECKED))) } else { None }
    }

    /// Returns the decision. Its origin is in the entry. A decision by name does not have the table, which is the `named_table` of the
    /// initiator's port. Nor does the denial of a session that was allowed by name.
    pub(super) fn decision(&self, entry: &Entry) -> Decision {
        let some = |number: u32| (number != u32::MAX).then_some(number);
        let by = match self.name() {
            Some(name) => Some(Decider::Name(name)).filter(|_| entry.refused().is_none()),
            None => Some(self.table).filter(|&table| table != NO_TABLE).map(|table| Decider::Table(TableId(table))),
        };
        Decision {
            by,
            rule: match self.rule {
                NO_RULE | UNKNOWN_RULE => None,
                rule => Some(rule & !AUDITED),
            },
            origin: some(entry.origin).map(OriginId),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_name_and_of_a_table_is_another_decision_than_none() {
        let name = |bits| Some(Decider::Name(NameId::from_bits(bits)));
        let table = |number| Some(Decider::Table(TableId(number)));
        let all = [None, name(0), name((1 << 30) - 1), table(0), table((1 << 24) - 1)];
        for by in all {
            let mut links = Links::new(&Decision { by, rule: Some(3), origin: None });
            assert_eq!(links.decision(&Entry::FREE).by, by);
            assert_eq!(links.name().map(Decider::Name), by.filter(|by| matches!(by, Decider::Name(_))));
            links.set_audited(true);
            assert_eq!((links.decision(&Entry::FREE).by, links.is_audited()), (by, true));
        }
    }
}
