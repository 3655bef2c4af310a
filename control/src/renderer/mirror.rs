//! The mirror keeps the compiler's output unchanged, to explain which rules of each tier match a packet.
//!
//! Compiled tables give the verdict, but lowering removes the rules that a Pass skipped. The mirror keeps the rules by tier. Lookups are
//! slow: each reads a pod's whole list.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use super::{BoxError, Renderer};
use crate::contract::{Endpoint, Peers, SetDelta, SetId, SetMirror, TierRule, Transaction};
use crate::object::{Node, PodName};
use crate::origin::Direction;

/// A renderer that only keeps the compiled sets, pods and nodes, for questions about them.
#[derive(Debug, Default)]
pub struct Mirror {
    sets: SetMirror,
    endpoints: BTreeMap<PodName, Arc<Endpoint>>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
}

impl Mirror {
    /// Returns the members of all sets.
    pub fn sets(&self) -> &SetMirror {
        &self.sets
    }

    /// Returns the pods that policies can select, by name.
    pub fn endpoints(&self) -> &BTreeMap<PodName, Arc<Endpoint>> {
        &self.endpoints
    }

    /// Returns the nodes by name, with their addresses and those of pods in the host network.
    pub fn nodes(&self) -> &BTreeMap<Arc<str>, Arc<Node>> {
        &self.nodes
    }

    /// Returns a mirror of the same sets and nodes, with other pods.
    pub(crate) fn with_endpoints(&self, endpoints: BTreeMap<PodName, Arc<Endpoint>>) -> Self {
        Self { sets: self.sets.clone(), endpoints, nodes: self.nodes.clone() }
    }

    /// Returns a transaction with the whole state of one node, whose pods are among `endpoints`. `None` if the node is unknown.
    pub(crate) fn of_node(&self, node: &str, endpoints: &BTreeMap<PodName, Arc<Endpoint>>) -> Option<Transaction> {
        let pods: Vec<_> = endpoints.iter().filter(|(_, endpoint)| *endpoint.node == *node).collect();
        let known = self.nodes.get_key_value(node).map(|(name, node)| (name.clone(), Some(node.clone())));
        if pods.is_empty() && known.is_none() {
            return None;
        }
        let lists = pods.iter().flat_map(|(_, endpoint)| endpoint.rules.lists());
        let peers = lists.flat_map(|list| &list.rules).map(|rule| &rule.peers);
        let used: BTreeSet<SetId> = peers.filter_map(Peers::sets).flat_map(|sets| sets.iter().copied()).collect();
        let delta = |set| SetDelta {
            set,
            added: Arc::new(self.sets.get(set).cloned().unwrap_or_default()),
            removed: Arc::default(),
        };
        Some(Transaction {
            resync: true,
            sets: used.into_iter().map(delta).collect(),
            endpoints: pods.into_iter().map(|(name, pod)| (name.clone(), Some(pod.clone()))).collect(),
            nodes: known.into_iter().collect(),
            dropped: Vec::new(),
        })
    }

    /// Returns the pod's rules that match this packet, by tier, then in the tier's order. The first match of a tier decides for the tier.
    /// Empty if the pod is unknown or has no rules in this direction.
    pub fn matching(
        &self,
        pod: &PodName,
        direction: Direction,
        peer: IpAddr,
        protocol: u8,
        port: u16,
    ) -> impl Iterator<Item = &TierRule> {
        let endpoint = self.endpoints.get(pod);
        let node = endpoint.and_then(|endpoint| self.nodes.get(&endpoint.node));
        let own_node = node.map_or(&[][..], |node| &node.addresses);
        let list = endpoint.and_then(|endpoint| match direction {
            Direction::Ingress => endpoint.rules.ingress.as_ref(),
            Direction::Egress => endpoint.rules.egress.as_ref(),
        });
        let rules = list.into_iter().flat_map(|list| &list.rules);
        rules.filter(move |rule| rule.services.contains(protocol, port) && self.sets.names(&rule.peers, own_node, peer))
    }
}

impl Renderer for Mirror {
    fn name(&self) -> String {
        "mirror".into()
    }

    /// Applies the transaction. Never fails.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        self.sets.apply(transaction);
        if transaction.resync {
            self.endpoints.clear();
            self.nodes.clear();
        }
        for (name, endpoint) in &transaction.endpoints {
            match endpoint {
                Some(endpoint) => self.endpoints.insert(name.clone(), endpoint.clone()),
                None => self.endpoints.remove(name),
            };
        }
        for (name, node) in &transaction.nodes {
            match node {
                Some(node) => self.nodes.insert(name.clone(), node.clone()),
                None => self.nodes.remove(name),
            };
        }
        Ok(())
    }

    fn origins(&self) -> HashSet<OriginId> {
        let lists = self.endpoints.values().flat_map(|endpoint| endpoint.rules.lists());
        lists.flat_map(|list| list.rules.iter().map(|rule| rule.origin)).collect()
    }
}
