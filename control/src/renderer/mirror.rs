//! The mirror: what the compiler told, kept as it is, to ask which rules a packet meets in each tier.
//!
//! Tables say what happens; they no longer say which rules a Pass has skipped, because lowering takes these rules out. The mirror keeps
//! the rules in tiers. It is for explaining and is slow: a question reads a pod's whole list.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use super::{BoxError, Renderer};
use crate::contract::{Endpoint, SetMirror, TierRule, Transaction};
use crate::object::{Node, PodName};
use crate::origin::Direction;

/// See the module.
#[derive(Debug, Default)]
pub struct Mirror {
    sets: SetMirror,
    endpoints: BTreeMap<PodName, Arc<Endpoint>>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
}

impl Mirror {
    /// The members of all sets.
    pub fn sets(&self) -> &SetMirror {
        &self.sets
    }

    /// The pods that policies may select, by name.
    pub fn endpoints(&self) -> &BTreeMap<PodName, Arc<Endpoint>> {
        &self.endpoints
    }

    /// The nodes by name, with the addresses of the pods that share their network.
    pub fn nodes(&self) -> &BTreeMap<Arc<str>, Arc<Node>> {
        &self.nodes
    }

    /// The rules of the pod that match this packet, in the order in which they are asked: by tier, then as the tier has them. The
    /// first of a tier decides for the tier. None for a pod that is not known or has no rules in this direction.
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

    /// Never fails.
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
