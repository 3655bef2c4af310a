//! Rules of Calico's policies.

use std::sync::Arc;

use super::entity::With;
use super::{Action, Entity, Families, Rule, services};
use crate::foreign::{Needs, Surroundings};
use crate::object::{ClusterRule, Peer, PolicyPort, PolicyRule, RuleAction};
use crate::origin::Direction;

impl Rule {
    /// Returns a rule that matches everything.
    pub fn everything(action: Action) -> Self {
        let (source, destination) = (Entity::default(), Entity::default());
        Self { action, families: Families::BOTH, ports: None, source, destination, has_http: false }
    }

    /// Returns the end that is the policy's pod.
    pub(super) const fn own_end(&self, direction: Direction) -> &Entity {
        match direction {
            Direction::Ingress => &self.destination,
            Direction::Egress => &self.source,
        }
    }

    const fn other_end(&self, direction: Direction) -> &Entity {
        match direction {
            Direction::Ingress => &self.source,
            Direction::Egress => &self.destination,
        }
    }

    /// Returns the kinds of objects that the rule depends on. `namespace` is the policy's.
    pub(super) fn needs(&self, namespace: Option<&str>) -> Needs {
        let mut needs = self.source.needs(namespace);
        needs |= self.destination.needs(namespace);
        needs
    }

    /// Resolves the rule, which is the policy's rule of index `at`. Its condition on the policy's own end is not part of the result.
    pub(super) fn resolve(
        &self,
        direction: Direction,
        at: usize,
        namespace: Option<&str>,
        surroundings: &Surroundings,
    ) -> Vec<ClusterRule> {
        let action = match self.action {
            Action::Allow => RuleAction::Accept,
            Action::Deny => RuleAction::Deny,
            Action::Pass => RuleAction::Pass,
            Action::Log => return Vec::new(),
        };
        let families = self.families.and(self.source.families()).and(self.destination.families());
        let then = self.has_http.then(|| Arc::from("HTTP rules"));
        let rule = |(peers, ports): (Option<Vec<Peer>>, Option<Vec<PolicyPort>>)| {
            let traffic = PolicyRule { peers, ports };
            ClusterRule { name: None, action, traffic, then: then.clone(), at: Some(at) }
        };
        if !families.v4 && !families.v6 {
            return Vec::new();
        }
        let other = self.other_end(direction);
        if let Some(service) = &other.service {
            let with_ports = direction == Direction::Egress;
            let endpoints = services::endpoints(service, with_ports, &self.ports, families, surroundings);
            return endpoints.into_iter().map(|(peers, ports)| rule((Some(peers), ports))).collect();
        }
        let is_open = direction == Direction::Egress && self.action == Action::Allow;
        let peers = |sets| other.peers(namespace, families, With { sets, names: sets && is_open }, surroundings);
        let is_named = |port: &PolicyPort| matches!(port, PolicyPort::Named { .. });
        let has_named = self.ports.iter().flatten().any(is_named);
        if direction == Direction::Egress && has_named && other.has_unnamed_ports(namespace, surroundings) {
            // Sets of networks have no named ports, even if an address in them is a pod's.
            let (named, numbered): (Vec<_>, Vec<_>) = self.ports.iter().flatten().cloned().partition(is_named);
            let lists = [(true, numbered), (false, named)];
            let lists = lists.into_iter().filter(|(_, ports)| !ports.is_empty());
            return lists.map(|(sets, ports)| rule((peers(sets), Some(ports)))).collect();
        }
        vec![rule((peers(true), self.ports.clone()))]
    }
}
