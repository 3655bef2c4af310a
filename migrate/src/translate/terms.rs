//! The terms of a translation: steps, which are rules on their way to the target, their places, and the layers of the target.

use std::sync::Arc;

use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterRule, Direction, NamespaceScope, Order, Peer, PodPeer, Policy, PolicyPort,
    RuleAction,
};
use bulkhead_control::selector::Selector;

use super::meet::{are_disjoint_peers, are_disjoint_pods, are_disjoint_ports, meet_peers, meet_pods, meet_ports};

/// The place of an object in its tier of the target. Slots are in order of evaluation. Objects with equal slots get the same priority, so their
/// order must not matter: they have rules of one policy, rules of one action, or rules that decide about pods and nodes by one action and about
/// all other peers by another ([`Phase::Outside`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    /// Before, among or behind the policies of the target's tier that are in the state.
    pub(super) zone: Zone,
    /// The number of the tier.
    pub(super) tier: usize,
    pub(super) phase: Phase,
    /// The number of the policy in order of evaluation. 0 in phases in which all objects share a place.
    pub(super) policy: usize,
    /// The number of the part of a policy with too many rules for one object.
    pub(super) part: usize,
}

/// The place of a tier relative to a tier of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Zone {
    Before,
    Among,
    Behind,
}

/// The kind of a step inside its tier, in order of evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Rules of a union that deny.
    Denied,
    /// Rules in the order of policies.
    Ordered,
    /// Rules of a union that accept.
    Accepted,
    /// Nodes that a policy accepts.
    NodesAccepted,
    /// Nodes that a policy's isolation denies.
    NodesDenied,
    /// A Pass of all pods and nodes, then an Accept of domain names and of addresses outside the cluster.
    Outside,
    /// The end of a tier.
    End,
}

impl Phase {
    /// Whether all objects of the phase share one place.
    pub(super) const fn is_shared(self) -> bool {
        !matches!(self, Self::Ordered)
    }
}

/// A rule on its way to the target.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The policy that the rule comes from.
    pub(super) policy: Arc<ClusterPolicy>,
    pub(super) direction: Direction,
    /// The rule's index in the policy's list. `None` for the end of a tier and for isolation.
    pub(super) rule: Option<usize>,
    pub(super) subject: PodPeer,
    pub(super) action: RuleAction,
    pub(super) peers: Option<Vec<Peer>>,
    pub(super) ports: Option<Vec<PolicyPort>>,
    pub(super) slot: Slot,
    /// Whether NetworkPolicies decide as the step does about ingress from other sources than pods. False for other steps.
    pub(super) is_said_by_networks: bool,
}

impl Step {
    /// Returns the step of a policy's rule.
    pub(super) fn of(policy: &Arc<ClusterPolicy>, direction: Direction, at: usize, slot: Slot) -> Self {
        let rule = &rules(policy, direction)[at];
        Self {
            policy: policy.clone(),
            direction,
            rule: Some(at),
            subject: policy.subject.clone(),
            action: rule.action,
            peers: rule.traffic.peers.clone(),
            ports: rule.traffic.ports.clone(),
            slot,
            is_said_by_networks: false,
        }
    }

    /// Returns the step that does something with all traffic of the policy's pods.
    pub(super) fn everything(
        policy: &Arc<ClusterPolicy>,
        direction: Direction,
        action: RuleAction,
        slot: Slot,
    ) -> Self {
        let (subject, policy) = (policy.subject.clone(), policy.clone());
        let is_said_by_networks = false;
        Self { policy, direction, rule: None, subject, action, peers: None, ports: None, slot, is_said_by_networks }
    }

    /// Whether the step's peers have other addresses than pods'.
    pub(super) fn has_others(&self) -> bool {
        let is_other = |peer: &Peer| !matches!(peer, Peer::Pods(_) | Peer::OwnNode);
        self.peers.as_ref().is_none_or(|peers| peers.iter().any(is_other))
    }

    /// Whether no packet can match both steps.
    pub(super) fn is_apart(&self, other: &Self) -> bool {
        are_disjoint_pods(&self.subject, &other.subject)
            || are_disjoint_ports(&self.ports, &other.ports)
            || are_disjoint_peers(&self.peers, &other.peers)
    }

    /// Returns what another step does with the traffic of this one. `None` if none can match both.
    pub(super) fn meet(&self, other: &Self) -> Result<Option<Self>, String> {
        if self.is_apart(other) {
            return Ok(None);
        }
        let Some(subject) = meet_pods(&self.subject, &other.subject) else { return Ok(None) };
        let (peers, ports) = (meet_peers(&self.peers, &other.peers), meet_ports(&self.ports, &other.ports)?);
        let (policy, rule) = (other.policy.clone(), other.rule);
        Ok(Some(Self { policy, rule, subject, action: other.action, peers, ports, ..self.clone() }))
    }
}

/// Returns a policy's rules for a direction.
pub(super) fn rules(policy: &ClusterPolicy, direction: Direction) -> &[ClusterRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

/// Pods that a NetworkPolicy of the target selects, and what it allows.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// The policy that isolates.
    pub(super) policy: Arc<ClusterPolicy>,
    pub(super) direction: Direction,
    pub(super) subject: PodPeer,
    pub(super) allows: Vec<Step>,
}

/// The layers of the target for one direction.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) admin: Vec<Step>,
    pub(super) networks: Vec<Network>,
    pub(super) baseline: Vec<Step>,
}

/// Returns whether a policy is translated.
pub(super) fn is_translated(policy: &ClusterPolicy) -> bool {
    policy.rank.name.kind != ClusterPolicyKind::ClusterNetworkPolicy && !policy.rank.name.kind.is_staged()
}

/// The place of a policy in the tier of NetworkPolicies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// NetworkPolicies cannot allow what the policy denies.
    Before,
    /// NetworkPolicies come first.
    Behind,
}

impl Among {
    pub(super) fn of(policy: &ClusterPolicy) -> Self {
        // Among equal orders, the texts decide. In doubt the policy comes first, so that it denies more.
        if policy.is_union || policy.rank.order <= Order::NETWORK_POLICY { Self::Before } else { Self::Behind }
    }
}

/// Returns the peer that is every node.
pub(super) fn every_node() -> Peer {
    Peer::Nodes(Selector::everything())
}

/// Returns the peer that selects every pod of the cluster.
pub(super) fn every_pod() -> Peer {
    let everything = Selector::everything();
    Peer::Pods(PodPeer { namespaces: NamespaceScope::Selected(everything.clone()), pods: everything, filter: None })
}

/// Returns the pods that a NetworkPolicy selects.
pub(super) fn pods_of(policy: &Policy) -> PodPeer {
    PodPeer {
        namespaces: NamespaceScope::Own(policy.name.namespace.clone()),
        pods: policy.subject.clone(),
        filter: None,
    }
}

/// Returns the namespace of the pods. `None` if they may be in several.
pub(super) fn namespace_of(pods: &PodPeer) -> Option<&Arc<str>> {
    match &pods.namespaces {
        NamespaceScope::Own(name) => Some(name),
        NamespaceScope::Selected(_) => None,
    }
}
