//! Resolves a policy of Cilium to ranked policies.

use std::sync::Arc;

use ipnet::IpNet;

use super::{Policy, Rule, Spec, Who};
use crate::foreign::{ForeignKind, Surroundings};
use crate::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, ClusterService, IpBlock, NamespaceScope, Order,
    Peer, PodPeer, PolicyRule, Rank, Region, ServiceName, Tier,
};
use crate::selector::{Condition, Requirement, Selector};

/// Returns one ranked policy for each of the policy's specs. The first has the policy's name; the path of its field follows the name of each
/// further one.
pub(in crate::foreign) fn resolve(policy: &Policy, surroundings: &Surroundings) -> Vec<ClusterPolicy> {
    let kind = match policy.name.kind {
        ForeignKind::CiliumNetworkPolicy => ClusterPolicyKind::CiliumNetworkPolicy,
        _ => ClusterPolicyKind::CiliumClusterwideNetworkPolicy,
    };
    let ranked = |(at, spec): (usize, &Spec)| {
        let name = match at {
            0 => policy.name.name.clone(),
            _ => format!("{}.{}", policy.name.name, spec.path).into(),
        };
        let name = ClusterPolicyName { kind, name };
        // Nothing depends on the order: of all policies of a union, the rules that deny come first.
        let rank = Rank { tier: Tier::NetworkPolicy, order: Order::NETWORK_POLICY, tie: "".into(), name };
        let rules = |rules: &[Rule]| rules.iter().map(|rule| ranked_rule(rule, surroundings)).collect();
        ClusterPolicy {
            rank,
            subject: spec.subject.clone(),
            ingress: rules(&spec.ingress),
            egress: rules(&spec.egress),
            isolates: spec.isolates,
            is_union: true,
            fault: policy.fault.clone(),
            position: policy.position.clone(),
            enforcement: policy.enforcement,
        }
    };
    policy.specs.iter().enumerate().map(ranked).collect()
}

fn ranked_rule(rule: &Rule, surroundings: &Surroundings) -> ClusterRule {
    let peers = rule.peers.as_ref().map(|peers| peers_of(peers, surroundings));
    ClusterRule {
        name: Some(rule.path.clone()),
        action: rule.action,
        traffic: PolicyRule { peers, ports: rule.ports.clone() },
        then: rule.then.clone(),
        at: Some(rule.at),
    }
}

fn peers_of(all: &[Who], surroundings: &Surroundings) -> Vec<Peer> {
    let (mut peers, mut blocks) = (Vec::new(), Vec::new());
    for who in all {
        match who {
            Who::Peer(peer) => peers.push(peer.clone()),
            Who::Block(block) => blocks.push(Peer::Block(block.clone())),
            Who::Group { name, except } => {
                let group = surroundings.cidr_groups.get(name);
                blocks.extend(
                    group.into_iter().flat_map(|group| group.blocks.iter()).filter_map(|block| without(block, except)),
                );
            }
            Who::Groups { selector, except } => {
                let groups = surroundings.cidr_groups.values().filter(|group| selector.matches(&group.labels));
                blocks.extend(groups.flat_map(|group| group.blocks.iter()).filter_map(|block| without(block, except)));
            }
            Who::Service { namespace, name } => {
                let is_meant = |service: &ClusterService| service.name.name == *name;
                services(namespace.as_ref(), is_meant, surroundings, &mut peers, &mut blocks);
            }
            Who::Services { namespace, selector } => {
                let is_meant = |service: &ClusterService| selector.matches(&service.labels);
                services(namespace.as_ref(), is_meant, surroundings, &mut peers, &mut blocks);
            }
            Who::ApiServer => peers.extend(endpoints(&ServiceName::new("default", "kubernetes"), surroundings)),
        }
    }
    if !blocks.is_empty() {
        peers.push(outside(vec![blocks]));
    }
    peers
}

/// Returns the addresses in all of these unions that belong neither to pods nor to nodes.
pub(crate) fn outside(all: Vec<Vec<Peer>>) -> Peer {
    let none = vec![Peer::Pods(every_pod()), Peer::Nodes(Selector::everything())];
    Peer::Region(Arc::new(Region { all, none }))
}

/// Returns the peer with all pods of the cluster.
pub(crate) fn every_pod() -> PodPeer {
    let namespaces = NamespaceScope::Selected(Selector::everything());
    PodPeer { namespaces, pods: Selector::everything(), filter: None }
}

/// Returns the block without the parts that `except` contains. `None` if nothing is left.
fn without(block: &IpNet, except: &[IpNet]) -> Option<Peer> {
    if except.iter().any(|except| except.contains(block)) {
        return None;
    }
    let except = except.iter().filter(|except| block.contains(*except)).copied().collect();
    Some(Peer::Block(IpBlock { cidr: *block, except }))
}

/// Adds the pods that the Services select to `peers`, and the endpoints' addresses of Services without a selector to `blocks`.
fn services(
    namespace: Option<&Arc<str>>,
    is_meant: impl Fn(&ClusterService) -> bool,
    surroundings: &Surroundings,
    peers: &mut Vec<Peer>,
    blocks: &mut Vec<Peer>,
) {
    let in_namespace =
        |service: &ClusterService| namespace.is_none_or(|namespace| service.name.namespace == *namespace);
    for service in surroundings.services.values().filter(|service| in_namespace(service) && is_meant(service)) {
        if service.selector.is_empty() {
            blocks.extend(endpoints(&service.name, surroundings));
        } else {
            let namespaces = NamespaceScope::Own(service.name.namespace.clone());
            let pods =
                Selector::new(service.selector.iter().map(|(key, value)| Requirement {
                    key: key.clone(),
                    condition: Condition::In(vec![value.clone()]),
                }));
            peers.push(Peer::Pods(PodPeer { namespaces, pods, filter: None }));
        }
    }
}

/// Returns the addresses of a Service's endpoints that serve, sorted, without duplicates.
fn endpoints(service: &ServiceName, surroundings: &Surroundings) -> impl Iterator<Item = Peer> {
    let slices = surroundings.slices_of(service);
    let endpoints =
        slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready || endpoint.is_draining());
    let mut addresses: Vec<_> = endpoints.map(|endpoint| endpoint.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into_iter().map(|address| Peer::Block(IpBlock { cidr: address.into(), except: Vec::new() }))
}
