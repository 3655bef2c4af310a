//! A common view of NetworkPolicies and cluster policies for the checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::OriginId;
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{
    ClusterPolicyName, IpBlock, NamespaceScope, Peer, Pod, PodPeer, PolicyName, PolicyPort, PolicyRule, PolicyVersion,
    Position, RuleAction, Tier,
};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::selector::Selector;

use super::finding::{At, Check, Found, label};

/// A policy to check: a NetworkPolicy or a cluster policy.
pub(super) struct Subject<'a> {
    /// Name; for cluster policies it includes the kind.
    pub(super) name: PolicyName,
    pub(super) position: Option<&'a Position>,
    pub(super) tier: Tier,
    /// Whether the policy covers ingress, and whether it covers egress. A NetworkPolicy isolates in these directions.
    pub(super) concerns: [bool; 2],
    pub(super) rules: Vec<Rule<'a>>,
    /// The running pods to which the policy applies.
    pub(super) pods: Vec<&'a Arc<Pod>>,
    /// Number of selected pods on the host network, to which no policy applies.
    pub(super) on_host_network: usize,
    /// The policy's pod selector.
    pub(super) selects: PodPeer,
    /// The policy's pod selector as text.
    pub(super) asks_for: String,
}

#[derive(Clone, Copy)]
pub(super) struct Rule<'a> {
    pub(super) direction: Direction,
    /// Index of the rule in the policy's list for its direction, from 0.
    pub(super) at: usize,
    /// The policy's name and the rule's name. `None` for a NetworkPolicy.
    ranked: Option<(&'a ClusterPolicyName, Option<&'a str>)>,
    pub(super) action: RuleAction,
    pub(super) traffic: &'a PolicyRule,
}

impl<'a> Subject<'a> {
    /// Returns all parsed policies, NetworkPolicies first. Excludes isolation by namespace annotations.
    pub(super) fn all(cache: &'a Cache) -> Vec<Self> {
        let own = cache.policies().values();
        let own = own.filter(|policy| policy.fault.is_none() && policy.version != PolicyVersion::NamespaceIsolation);
        let own = own.map(|policy| {
            let own = NamespaceScope::Own(policy.name.namespace.clone());
            let selected = cache.pods_matching(&own, &policy.subject).map(|(_, pod)| pod);
            let (pods, others): (Vec<_>, Vec<_>) =
                selected.filter(|pod| !pod.finished).partition(|pod| pod.is_endpoint());
            let lists = [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)];
            let rules = lists.into_iter().flat_map(|(direction, rules)| {
                let rule =
                    move |(at, traffic)| Rule { direction, at, ranked: None, action: RuleAction::Accept, traffic };
                rules.iter().flatten().enumerate().map(rule)
            });
            Self {
                name: policy.name.clone(),
                position: policy.position.as_ref(),
                tier: Tier::NetworkPolicy,
                concerns: [policy.ingress.is_some(), policy.egress.is_some()],
                rules: rules.collect(),
                pods,
                on_host_network: others.iter().filter(|pod| pod.host_network).count(),
                selects: PodPeer {
                    namespaces: NamespaceScope::Own(policy.name.namespace.clone()),
                    pods: policy.subject.clone(),
                    filter: None,
                },
                asks_for: format!("{} in namespace {}", policy.subject, policy.name.namespace),
            }
        });
        let cluster = cache.cluster_policies().values().filter(|policy| policy.fault.is_none()).map(|policy| {
            let lists = [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)];
            let rules = lists.into_iter().flat_map(|(direction, rules)| {
                rules.iter().enumerate().map(move |(at, rule)| {
                    let at = rule.at.unwrap_or(at);
                    let ranked = Some((&policy.rank.name, rule.name.as_deref()));
                    Rule { direction, at, ranked, action: rule.action, traffic: &rule.traffic }
                })
            });
            let pods = cache.pods_of_peer(&policy.subject).into_iter().filter_map(|key| cache.pod(key));
            Self {
                name: policy.rank.name.key(),
                position: policy.position.as_ref(),
                tier: policy.rank.tier.clone(),
                concerns: [!policy.ingress.is_empty(), !policy.egress.is_empty()],
                rules: rules.collect(),
                pods: pods.collect(),
                on_host_network: 0,
                selects: policy.subject.clone(),
                asks_for: told(&policy.subject),
            }
        });
        own.chain(cluster).collect()
    }

    pub(super) fn label(&self) -> String {
        label(&self.name)
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.name.namespace.is_empty()
    }

    /// Returns the whole policy as the place of a finding.
    pub(super) fn at(&self) -> At<'a> {
        At { text: self.label(), position: self.position, path: String::new() }
    }

    /// Returns a rule as the place of a finding.
    pub(super) fn rule_at(&self, rule: &Rule<'_>) -> At<'a> {
        let text = format!("{} {}[{}]", self.label(), rule.direction, rule.at);
        At { text, position: self.position, path: rule.path() }
    }

    /// Returns a peer as the place of a finding. For a cluster policy, returns the rule: one field of it may have several peers.
    pub(super) fn peer_at(&self, rule: &Rule<'_>, peer: usize) -> At<'a> {
        let at = self.rule_at(rule);
        let list = if rule.direction == Direction::Ingress { "from" } else { "to" };
        let path = if self.is_cluster() { at.path } else { format!("{}.{list}[{peer}]", at.path) };
        At { path, ..at }
    }

    /// Returns a port of a rule as the place of a finding.
    pub(super) fn port_at(&self, rule: &Rule<'_>, port: usize) -> At<'a> {
        let at = self.rule_at(rule);
        let path = if self.is_cluster() { at.path } else { format!("{}.ports[{port}].port", at.path) };
        At { path, ..at }
    }

    /// Returns a finding about the whole policy.
    pub(super) fn found(&self, check: &'static Check, reason: impl Into<String>, mend: impl Into<String>) -> Found<'a> {
        Found {
            check,
            policy: self.name.clone(),
            rule: None,
            at: self.at(),
            reason: reason.into(),
            mend: mend.into(),
            cause: None,
            by: Vec::new(),
            together: None,
            line: None,
        }
    }

    /// Returns a finding about a rule or one of its fields.
    pub(super) fn found_in(
        &self,
        check: &'static Check,
        rule: &Rule<'_>,
        at: At<'a>,
        reason: impl Into<String>,
        mend: impl Into<String>,
    ) -> Found<'a> {
        Found { rule: Some((rule.direction, rule.at)), at, ..self.found(check, reason, mend) }
    }
}

impl Rule<'_> {
    /// Returns the path of the rule in the policy's object.
    fn path(&self) -> String {
        match self.ranked {
            Some((policy, name)) => policy.rule_path(self.direction, self.at, name),
            None => format!("spec.{}[{}]", self.direction, self.at),
        }
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = (usize, &PolicyPort)> {
        self.traffic.ports.iter().flatten().enumerate()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.traffic.peers.iter().flatten().enumerate()
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, &IpBlock)> {
        self.peers().filter_map(|(at, peer)| match peer {
            Peer::Block(block) => Some((at, block)),
            Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
        })
    }

    pub(super) fn pod_peers(&self) -> impl Iterator<Item = (usize, &PodPeer)> {
        self.peers().filter_map(|(at, peer)| match peer {
            Peer::Pods(peer) => Some((at, peer)),
            Peer::Block(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
        })
    }
}

/// Describes the pods that a peer selects, as text.
pub(super) fn told(peer: &PodPeer) -> String {
    let pods = if peer.pods == Selector::everything() { "any pod".to_owned() } else { format!("pods {}", peer.pods) };
    match &peer.namespaces {
        NamespaceScope::Own(namespace) => format!("{pods} in namespace {namespace}"),
        NamespaceScope::Selected(selector) if *selector == Selector::everything() => format!("{pods} in any namespace"),
        NamespaceScope::Selected(selector) => format!("{pods} in namespaces {selector}"),
    }
}

/// A rule: policy, direction, index.
pub(super) type RuleKey = (PolicyName, Direction, usize);

/// Returns the origins of all rules that are in some table.
pub(super) fn origins(pipeline: &Pipeline) -> BTreeMap<RuleKey, OriginId> {
    let rule = |(id, origin): (OriginId, &Origin)| match origin {
        Origin::Policy { policy, direction, rule } => Some(((policy.clone(), *direction, *rule), id)),
        Origin::ClusterPolicy { policy, direction, rule, .. } => Some(((policy.key(), *direction, *rule), id)),
        _ => None,
    };
    pipeline.origins().since(OriginId(0)).filter_map(rule).collect()
}
