//! Bounded counts of audited connections, summed by client and server.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Maximum number of connection rows, about 300 bytes each: 3 MB. Further connections still count for their policies.
const MAX_CONNECTIONS: usize = 10_000;

/// The key of a ledger row: connections that differ only in the client's port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Connection {
    /// The policy, direction and rule that would have denied the connections, as text.
    pub(super) origin: String,
    pub(super) from: String,
    pub(super) to: String,
    /// IANA protocol number.
    pub(super) protocol: u8,
    /// The destination port. 0 if the protocol has none.
    pub(super) port: u16,
}

/// First and last time of an event, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Seen {
    /// Extends the range to `time` (seconds since 1970), which may be before its start, as the clock may have been set back.
    fn again(&mut self, time: u64) {
        (self.first, self.last) = (self.first.min(time), self.last.max(time));
    }
}

/// The number of connections that differ only in the client's port, and when they occurred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    /// The audited policies that cause the denial.
    pub(super) policies: Vec<String>,
    pub(super) connections: u64,
    pub(super) seen: Seen,
}

/// The number of connections that one policy would have denied, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Totals {
    /// When the audit of the policy began, in seconds since 1970.
    pub(super) since: u64,
    pub(super) connections: u64,
    /// First and last time of such a connection. `None` before the first.
    pub(super) seen: Option<Seen>,
}

/// Counts of the connections that audited policies would have denied: per policy, and per client and server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    policies: BTreeMap<String, Totals>,
    #[serde(with = "rows")]
    connections: BTreeMap<Connection, Row>,
    /// Number of connections without a row, because the table was full.
    left_out: u64,
    #[serde(skip)]
    has_changed: bool,
}

/// Serializes a map as a list, as JSON keys are strings.
mod rows {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(rows: &BTreeMap<Connection, Row>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(rows)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Connection, Row>, D::Error> {
        Ok(Vec::<(Connection, Row)>::deserialize(from)?.into_iter().collect())
    }
}

impl Ledger {
    /// Sets the audited policies. Counts of a new one start at `now`. Deletes the counts of policies that are no longer audited.
    pub(super) fn follow(&mut self, audited: impl Iterator<Item = String>, now: u64) {
        let audited: BTreeSet<String> = audited.collect();
        if self.policies.keys().eq(&audited) {
            return;
        }
        self.has_changed = true;
        self.policies.retain(|name, _| audited.contains(name));
        self.connections.retain(|_, row| row.policies.iter().any(|policy| audited.contains(policy)));
        if self.policies.is_empty() {
            self.left_out = 0;
        }
        for name in audited {
            self.policies.entry(name).or_insert(Totals { since: now, connections: 0, seen: None });
        }
    }

    /// Counts a connection that these policies would have denied.
    pub(super) fn count(&mut self, connection: Connection, policies: Vec<String>, time: u64) {
        self.has_changed = true;
        let seen = Seen { first: time, last: time };
        for policy in &policies {
            // A policy that is enforced meanwhile is not counted.
            let Some(totals) = self.policies.get_mut(policy) else { continue };
            totals.connections += 1;
            totals.seen.get_or_insert(seen).again(time);
        }
        if let Some(row) = self.connections.get_mut(&connection) {
            row.connections += 1;
            row.seen.again(time);
            row.policies = policies;
        } else if self.connections.len() < MAX_CONNECTIONS {
            self.connections.insert(connection, Row { policies, connections: 1, seen });
        } else {
            self.left_out += 1;
        }
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = (&String, &Totals)> {
        self.policies.iter()
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = (&Connection, &Row)> {
        self.connections.iter()
    }

    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether the ledger has changed since [`take_changed`](Self::take_changed).
    pub(super) const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Whether the ledger has changed since the last call.
    pub(super) const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.has_changed, false)
    }

    /// Marks the ledger as changed, so that it is written again.
    pub(super) const fn keep_changed(&mut self) {
        self.has_changed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(from: usize) -> Connection {
        let (origin, to) = ("ingress isolated by x/p".to_owned(), "x/db".to_owned());
        Connection { origin, from: format!("x/a{from}"), to, protocol: 6, port: 6379 }
    }

    fn names(names: &[&str]) -> impl Iterator<Item = String> {
        names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn connections_are_summed_up_and_begin_anew_when_a_policy_is_audited_again() {
        let mut ledger = Ledger::default();
        ledger.follow(names(&["x/p", "x/q"]), 100);
        assert!(ledger.take_changed() && !ledger.take_changed());
        for (from, time) in [(1, 110), (1, 130), (1, 120), (2, 115)] {
            ledger.count(connection(from), vec!["x/p".into()], time);
        }
        let totals: Vec<_> = ledger.policies().map(|(name, totals)| (name.as_str(), *totals)).collect();
        let seen = Some(Seen { first: 110, last: 130 });
        assert_eq!(
            totals,
            [
                ("x/p", Totals { since: 100, connections: 4, seen }),
                ("x/q", Totals { since: 100, connections: 0, seen: None })
            ]
        );
        assert_eq!(ledger.connections().map(|(_, row)| row.connections).collect::<Vec<_>>(), [3, 1]);
        ledger.follow(names(&["x/q"]), 200);
        assert_eq!((ledger.policies().count(), ledger.connections().count()), (1, 0));
        ledger.count(connection(1), vec!["x/p".into()], 210);
        ledger.follow(names(&["x/p", "x/q"]), 300);
        let (_, again) = ledger.policies().next().unwrap();
        assert_eq!(*again, Totals { since: 300, connections: 0, seen: None });
    }

    #[test]
    fn rows_are_bounded_and_what_finds_no_room_is_counted() {
        let mut ledger = Ledger::default();
        ledger.follow(names(&["x/p"]), 1);
        let more = 7;
        for from in 0..MAX_CONNECTIONS + more {
            ledger.count(connection(from), vec!["x/p".into()], 2);
        }
        let (_, totals) = ledger.policies().next().unwrap();
        assert_eq!(totals.connections, (MAX_CONNECTIONS + more) as u64);
        assert_eq!((ledger.connections().count(), ledger.left_out()), (MAX_CONNECTIONS, more as u64));
    }
}
