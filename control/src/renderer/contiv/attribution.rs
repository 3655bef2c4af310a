//! Finds the policy rules behind a 6-tuple.
//!
//! Tuples carry no origins: pods whose policies allow the same traffic share a table, and a tuple combined from two lists has two origins.
//! So origins are looked up in the ordered lists on request.
//!
//! * An allow has, at each end with a list, the first rule that allows all of the tuple's traffic.
//! * A deny covers what the preceding allows leave, so it has every rule that denies some of its traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, OriginId, Service, Services};
use ipnet::IpNet;

use super::Orientation;
use super::list::{PeerList, PeerRule};
use super::renderer::ContivRenderer;
use super::table::TableName;
use super::tuple::SixTuple;
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::plain::{PlainList, PlainPod, PlainRule};

/// A 6-tuple with the origins of the policy rules that produced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributedTuple {
    /// The 6-tuple.
    pub tuple: SixTuple,
    /// The origins, sorted and without duplicates. Empty for the final allow of traffic that no rule covers.
    pub origins: Vec<OriginId>,
}

/// A pod's sorted rules, as Contiv's configurator passes them to a renderer. A list without rules allows everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRules {
    /// The pod's namespace and name.
    pub pod: PodName,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// The tuples for traffic to the pod. Their destination is always the pod, and therefore `None`.
    pub ingress: Vec<AttributedTuple>,
    /// The tuples for traffic from the pod. Their source is always the pod, and therefore `None`.
    pub egress: Vec<AttributedTuple>,
}

/// A local table and the pods that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalTable {
    /// The table's name.
    pub id: TableName,
    /// The pods that share the table.
    pub pods: BTreeSet<PodName>,
    /// The rules. The first match decides.
    pub rules: Vec<AttributedTuple>,
}

impl ContivRenderer {
    /// Returns the pods of the node with their own rules, before combination into tables.
    pub fn pod_rules(&self) -> Vec<PodRules> {
        let own = self.own_node();
        let rules = |pod: &PodName, lists: &PeerList, direction: Direction| {
            let list = self.pods().get(pod).and_then(|pod| list_of(pod, direction));
            let tuple = |rule: &PeerRule| AttributedTuple {
                tuple: one_sided(direction, rule),
                origins: sorted(list.into_iter().flat_map(|list| behind(list, &own, rule))),
            };
            lists.rules().iter().map(tuple).collect()
        };
        let pod = |(name, lists): (&PodName, &super::list::PodLists)| PodRules {
            pod: name.clone(),
            addresses: lists.addresses.clone(),
            ingress: rules(name, &lists.ingress, Direction::Ingress),
            egress: rules(name, &lists.egress, Direction::Egress),
        };
        self.state().pods().iter().map(pod).collect()
    }

    /// Returns the local tables in Contiv's order: by number of rules, then by rules.
    pub fn local_tables(&self) -> Vec<LocalTable> {
        let behind = self.behind();
        let of_owner = self.orientation().judged();
        let tables = self.state().tables().into_iter().map(|(table, pods)| LocalTable {
            id: table.id,
            pods: pods.clone(),
            rules: table
                .rules
                .iter()
                .map(|tuple| {
                    let about = about(tuple, self.orientation());
                    let origins = pods.iter().flat_map(|pod| behind.both(pod, of_owner, &about));
                    AttributedTuple { tuple: tuple.clone(), origins: sorted(origins) }
                })
                .collect(),
        });
        tables.collect()
    }

    /// Returns the rules of the global table. The first match decides.
    pub fn global_table(&self) -> Vec<AttributedTuple> {
        let behind = self.behind();
        let of_pod = self.orientation().judged().opposite();
        let attributed = |tuple: &SixTuple| {
            let (pod, peer) = match self.orientation() {
                Orientation::Egress => (tuple.src, tuple.dst),
                Orientation::Ingress => (tuple.dst, tuple.src),
            };
            let about = PeerRule { peer, service: tuple.service, action: tuple.action };
            let origins = pod.map(|pod| behind.one(pod.addr(), of_pod, &about));
            AttributedTuple { tuple: tuple.clone(), origins: sorted(origins.into_iter().flatten()) }
        };
        self.state().global().rules.iter().map(attributed).collect()
    }

    /// Returns a view that finds the origins of rules.
    pub(in crate::renderer) fn behind(&self) -> Behind<'_> {
        let pods = self.pods();
        let owners = pods.iter().flat_map(|(name, pod)| pod.addresses.iter().map(move |&address| (address, name)));
        Behind { pods, owners: owners.collect(), own_node: self.own_node() }
    }

    fn own_node(&self) -> Arc<AddressSet> {
        Arc::new(self.node_addresses().iter().copied().collect())
    }
}

/// The ordered lists of a node's pods, to find the policy rules behind a rule of a table.
pub(in crate::renderer) struct Behind<'a> {
    pods: &'a BTreeMap<PodName, Arc<PlainPod>>,
    owners: BTreeMap<IpAddr, &'a PodName>,
    own_node: Arc<AddressSet>,
}

impl Behind<'_> {
    /// Returns the origins of a rule in the pod's table: from the pod's own list for this direction and, if the rule names one pod of the
    /// node, from that pod's list.
    pub(in crate::renderer) fn both(&self, pod: &PodName, direction: Direction, about: &PeerRule) -> Vec<OriginId> {
        let Some(owner) = self.pods.get(pod) else { return Vec::new() };
        let mut origins: Vec<OriginId> =
            list_of(owner, direction).into_iter().flat_map(|list| behind(list, &self.own_node, about)).collect();
        let host = about.peer.filter(|net| net.prefix_len() == net.max_prefix_len()).map(|net| net.addr());
        if let Some(peer) = host {
            for &own in owner.addresses.iter().filter(|own| own.is_ipv4() == peer.is_ipv4()) {
                origins.extend(self.one(peer, direction.opposite(), &PeerRule { peer: Some(own.into()), ..*about }));
            }
        }
        if origins.is_empty() && about.action == Action::Allow {
            origins.push(Origins::not_isolated(direction));
        }
        origins
    }

    /// Returns the origins of a rule in the list of the pod with this address.
    pub(in crate::renderer) fn one(&self, pod: IpAddr, direction: Direction, about: &PeerRule) -> Vec<OriginId> {
        let list = self.owners.get(&pod).and_then(|name| list_of(&self.pods[*name], direction));
        list.map_or_else(Vec::new, |list| behind(list, &self.own_node, about))
    }
}

fn list_of(pod: &PlainPod, direction: Direction) -> Option<&PlainList> {
    match direction {
        Direction::Ingress => pod.ingress.as_deref(),
        Direction::Egress => pod.egress.as_deref(),
    }
}

/// Returns the tuple of a rule, with the pod's side left out.
fn one_sided(direction: Direction, rule: &PeerRule) -> SixTuple {
    let PeerRule { peer, service, action } = *rule;
    match direction {
        Direction::Ingress => SixTuple { src: peer, dst: None, service, action },
        Direction::Egress => SixTuple { src: None, dst: peer, service, action },
    }
}

/// Returns a tuple of a local table, without the owner's side.
fn about(tuple: &SixTuple, orientation: Orientation) -> PeerRule {
    let peer = match orientation {
        Orientation::Egress => tuple.src,
        Orientation::Ingress => tuple.dst,
    };
    PeerRule { peer, service: tuple.service, action: tuple.action }
}

fn sorted(origins: impl IntoIterator<Item = OriginId>) -> Vec<OriginId> {
    origins.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the origins of the rules in an ordered list that produced a rule (see the module).
fn behind(list: &PlainList, own_node: &Arc<AddressSet>, about: &PeerRule) -> Vec<OriginId> {
    let mut denies = Vec::new();
    for (at, rule) in list.rules.iter().enumerate() {
        for PlainRule { peers, services, action, origin, .. } in
            list.own_node.iter().filter(|own| own.before == at).filter_map(|own| own.on(own_node))
        {
            let all = about.peer.is_some() && covers(&peers, about.peer) && is_served(&services, about.service);
            match (about.action, action) {
                (Action::Allow, Action::Allow) if all => return vec![origin],
                (Action::Deny, Action::Deny) if meets(&peers, about.peer) && serves(&services, about.service) => {
                    denies.push(origin);
                }
                _ => {}
            }
        }
        let all = covers(&rule.peers, about.peer) && is_served(&rule.services, about.service);
        match (about.action, rule.action) {
            (Action::Allow, Action::Allow) if all => return vec![rule.origin],
            (Action::Allow, _) => {}
            (Action::Deny, Action::Deny) if meets(&rule.peers, about.peer) && serves(&rule.services, about.service) => {
                denies.push(rule.origin);
            }
            (Action::Deny, _) => {}
        }
        if about.action == Action::Deny && all {
            break;
        }
    }
    denies
}

/// Whether the addresses contain the whole network.
fn covers(addresses: &Addresses, network: Option<IpNet>) -> bool {
    match (addresses.members(), network) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(set), Some(net)) => contains(set, net),
    }
}

fn contains(set: &AddressSet, network: IpNet) -> bool {
    match network {
        IpNet::V4(net) => lies_in(set.v4_intervals(), u32::from(net.network()), u32::from(net.broadcast())),
        IpNet::V6(net) => lies_in(set.v6_intervals(), u128::from(net.network()), u128::from(net.broadcast())),
    }
}

/// Whether the addresses contain part of the network.
fn meets(addresses: &Addresses, network: Option<IpNet>) -> bool {
    match (addresses.members(), network) {
        (None, _) => true,
        (Some(set), None) => !set.is_empty(),
        (Some(set), Some(IpNet::V4(net))) => {
            overlaps(set.v4_intervals(), u32::from(net.network()), u32::from(net.broadcast()))
        }
        (Some(set), Some(IpNet::V6(net))) => {
            overlaps(set.v6_intervals(), u128::from(net.network()), u128::from(net.broadcast()))
        }
    }
}

/// Whether `services` (protocols and ports) contains all traffic of `service`.
fn is_served(services: &Services, service: Option<Service>) -> bool {
    match (services, service) {
        (Services::Any, _) => true,
        (Services::Set(_), None) => false,
        (Services::Set(set), Some(Service { protocols: (first, last), ports })) => {
            (first..=last).all(|number| lies_in(set.ports_of(number), ports.first, ports.last))
        }
    }
}

/// Whether `services` (protocols and ports) contains some traffic of `service`.
fn serves(services: &Services, service: Option<Service>) -> bool {
    match (services, service) {
        (Services::Any, _) => true,
        (Services::Set(set), None) => !set.is_empty(),
        (Services::Set(set), Some(Service { protocols: (first, last), ports })) => {
            (first..=last).any(|number| overlaps(set.ports_of(number), ports.first, ports.last))
        }
    }
}

/// Whether one of the ascending intervals contains the whole range.
fn lies_in<T: Ord + Copy>(intervals: &[(T, T)], first: T, last: T) -> bool {
    let at = intervals.partition_point(|interval| interval.1 < first);
    intervals.get(at).is_some_and(|interval| interval.0 <= first && last <= interval.1)
}

/// Whether one of the ascending intervals overlaps the range.
fn overlaps<T: Ord + Copy>(intervals: &[(T, T)], first: T, last: T) -> bool {
    let at = intervals.partition_point(|interval| interval.1 < first);
    intervals.get(at).is_some_and(|interval| interval.0 <= last)
}
