//! Rules about a pod's own node, whose addresses a list does not have.

use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, Services};

use super::PlainRule;
use crate::origin::Origins;

/// A rule about the pod's own node. Pods of different nodes share lists, so the list does not have the node's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnNodeRule {
    /// The index in [`PlainList::rules`](super::PlainList::rules) of the rule before which this rule is evaluated.
    pub(crate) before: usize,
    /// The rule. Applies to those of its peers that are addresses of the node.
    pub(crate) rule: PlainRule,
}

impl OwnNodeRule {
    /// Returns the rule for pods of the node with these addresses. `None` if it applies to none of them.
    pub(crate) fn on(&self, node: &Arc<AddressSet>) -> Option<PlainRule> {
        let addresses = match self.rule.peers.members() {
            None => node.clone(),
            Some(peers) => Arc::new(peers.intersect(node)),
        };
        (!addresses.is_empty()).then(|| PlainRule { peers: Addresses::Set(addresses), ..self.rule.clone() })
    }

    /// Returns the rule of NetworkPolicy: it accepts everything before all other rules.
    #[cfg(test)]
    pub(crate) fn accept_first() -> Self {
        let (peers, services, names) = (Addresses::Any, Services::Any, None);
        let rule = PlainRule { peers, services, names, action: Action::Allow, origin: Origins::OWN_NODE };
        Self { before: 0, rule }
    }

    /// Whether this is the rule of NetworkPolicy: it accepts everything before all other rules.
    pub(super) fn is_first_accept(&self) -> bool {
        let PlainRule { peers, services, action, origin, names: _ } = &self.rule;
        let accepts_everything = (peers, services, *action) == (&Addresses::Any, &Services::Any, Action::Allow);
        self.before == 0 && accepts_everything && *origin == Origins::OWN_NODE
    }
}

/// Returns an ordered list with the rules about the own node at their places, as rules for pods of the node with these addresses.
pub(crate) fn on_node(rules: &[PlainRule], own_node: &[OwnNodeRule], node: &Arc<AddressSet>) -> Vec<PlainRule> {
    let mut own = own_node.iter().peekable();
    let mut all = Vec::with_capacity(rules.len() + own_node.len());
    for (at, rule) in rules.iter().enumerate() {
        while let Some(own) = own.next_if(|own| own.before <= at) {
            all.extend(own.on(node));
        }
        all.push(rule.clone());
    }
    all.extend(own.filter_map(|own| own.on(node)));
    all
}
