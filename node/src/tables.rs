//! The tables of a snapshot by name, as `tables`, `explain --live`, flows and the journal show them.

use std::sync::Arc;

use bulkhead_dataplane::{Outcome, PortConfig, Snapshot, TableId};

/// A port's table of one use.
pub(crate) struct PortTable {
    /// The table in force.
    pub id: TableId,
    /// The table that the port would have if all policies were enforced. `None` if no audited policy would change a verdict.
    pub audit: Option<TableId>,
    /// What precedes the port's name in the table's: nothing for the table that judges all packets to the port, or from it.
    prefix: &'static str,
}

impl PortTable {
    /// Returns the name of this table of a port: `hairpin:x/a` judges connections of pod x/a to itself, `egress:x/a` those of the pod to
    /// others, by rules that name domains.
    pub(crate) fn name(&self, port: &PortConfig) -> Arc<str> {
        match self.prefix {
            "" => Arc::clone(&port.name),
            prefix => format!("{prefix}{}", port.name).into(),
        }
    }
}

/// Returns the tables of a port.
pub(crate) fn of_port(port: &PortConfig) -> impl Iterator<Item = PortTable> + use<> {
    let uses = [
        ("", port.table(), port.audit),
        ("hairpin:", port.hairpin_table, None),
        ("egress:", port.named_table, port.named_audit),
    ];
    uses.into_iter().filter_map(|(prefix, id, audit)| Some(PortTable { id: id?, audit, prefix }))
}

/// Returns the name of the first port's table with this id. `None` if no port uses the table.
pub(crate) fn name(snapshot: &Snapshot, id: TableId) -> Option<Arc<str>> {
    snapshot.ports().iter().find_map(|port| of_port(port).find(|table| table.id == id).map(|table| table.name(port)))
}

/// Returns the table whose rule decided about a packet. `None` if no table decided.
pub(crate) fn deciding(snapshot: &Snapshot, outcome: &Outcome) -> Option<TableId> {
    let decision = outcome.decision?;
    if decision.table().is_some() {
        return decision.table();
    }
    // A rule that names domains is in the initiator's table. The packet of a session may come from either end.
    decision.name()?;
    let at = decision.rule? as usize;
    let rule = |id: TableId| snapshot.table(id)?.rules().get(at);
    let has_rule = |id: &TableId| rule(*id).is_some_and(|rule| Some(rule.origin) == decision.origin);
    let ends = [Some(outcome.in_port), outcome.verdict.out_port()].into_iter().flatten();
    ends.filter_map(|end| snapshot.port(end)?.named_table).find(has_rule)
}

#[cfg(test)]
mod tests {
    use bulkhead_classifier::{Action, OriginId, Rule, Tables};
    use bulkhead_dataplane::{Decider, Decision, NameId, PortId, PortKind, Routes, Verdict};

    use super::*;

    #[test]
    fn a_rule_by_name_is_in_the_initiators_table_for_packets_of_both_directions() {
        let port = |name: &str, table: u32| PortConfig {
            egress: Some(TableId(table)),
            ..PortConfig::new(name, PortKind::Pod)
        };
        let named = PortConfig { named_table: Some(TableId(2)), hairpin_table: Some(TableId(4)), ..port("x/a", 0) };
        let other = PortConfig { named_table: Some(TableId(3)), ..port("x/b", 1) };
        let table = |origin| Arc::new(Tables::build(vec![Rule::any(Action::Allow, OriginId(origin))]).unwrap());
        let snapshot = Snapshot::new(1, vec![other, named], (0..5).map(table).collect(), Routes::default()).unwrap();
        let names: Vec<_> = (0..6).map(|id| name(&snapshot, TableId(id))).collect();
        let expected = [Some("x/a"), Some("x/b"), Some("egress:x/a"), Some("egress:x/b"), Some("hairpin:x/a"), None];
        assert_eq!(names.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
        let (b, a) = (PortId(0), PortId(1));
        let decision = |by, origin| Some(Decision { by: Some(by), rule: Some(0), origin: Some(OriginId(origin)) });
        let by_name = Decider::Name(NameId::from_bits(7));
        for (in_port, out) in [(a, b), (b, a)] {
            let mut outcome = Outcome::UNJUDGED;
            (outcome.in_port, outcome.verdict) = (in_port, Verdict::Forward(out));
            let mut of = |decision| {
                outcome.decision = decision;
                deciding(&snapshot, &outcome)
            };
            assert_eq!(of(decision(by_name, 2)), Some(TableId(2)), "x/a has opened the connection");
            assert_eq!(of(decision(by_name, 3)), Some(TableId(3)), "x/b has opened the connection");
            assert_eq!((of(decision(by_name, 9)), of(None)), (None, None), "the rule is gone");
            assert_eq!(of(decision(Decider::Table(TableId(1)), 2)), Some(TableId(1)));
        }
    }
}
