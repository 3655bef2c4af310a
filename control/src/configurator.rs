//! The configurator: generates a pod's two rule lists from its policies.
//!
//! Pods with the same policies and the same numbers for the policies' port names share one list. The list depends on nothing else:
//!
//! ```text
//!  Admin          rules by the policies' rank, then in the policy's order
//!  NetworkPolicy  of an isolated pod: accept the own node; rules by the policies' names; deny all, which names the isolating policies
//!  Baseline       of a pod that is not isolated: rules by rank, then in the policy's order
//! ```
//! A direction without policies has no list and is open. Policies of other products add to this:
//!
//! ```text
//!  all tiers      ingress: first of all, accept the own node. Egress: no rule for the own node
//!  each tier      the denies of policies that form a union; the rules of all policies by rank; if a policy isolates: the tier's end
//! ```
//! NetworkPolicies have a rank among them. Ineffective rules are omitted unless [`Configurator::keeping_every_rule`] made the configurator:
//! rules after one that decides everything, and tiers after one that decides everything, as NetworkPolicy does for an isolated pod.

use std::borrow::Cow;
use std::sync::{Arc, Weak};

use ahash::AHashMap;
use bulkhead_classifier::{ServiceSet, Services};

use crate::contract::{EndpointRules, ListId, Peers, RuleAction, Tier, TierRule, TieredList};
use crate::object::{ClusterPolicyName, Order, Pod, PolicyName, PolicyVersion, Transport};
use crate::origin::{Direction, Origin, Origins};
use crate::processor::{CompiledPolicy, Match, Revision};

/// The input of a list: direction, whether a policy of another product selects the pod, revisions of the policies, and the pod's numbers
/// for their port names.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ListKey {
    direction: Direction,
    is_foreign: bool,
    policies: Vec<u64>,
    numbers: Vec<Vec<(Transport, u16)>>,
}

/// Generates the rule lists of pods from the compiled policies that select them. Pods with equal rules share a list.
#[derive(Debug, Default)]
pub struct Configurator {
    /// The generated lists. Those that no endpoint has any more are removed by [`Self::sweep`].
    lists: AHashMap<ListKey, Weak<TieredList>>,
    given: u64,
    keeps_all: bool,
}

impl Configurator {
    /// Creates a configurator that keeps ineffective rules. The verdicts are the same, but the lists also show what a rule would do if
    /// others were removed.
    pub fn keeping_every_rule() -> Self {
        Self { keeps_all: true, ..Self::default() }
    }

    /// Returns the rules of a pod that these policies select.
    pub fn configure<'a>(
        &mut self,
        pod: &Pod,
        policies: impl Iterator<Item = &'a Revision>,
        origins: &mut Origins,
    ) -> EndpointRules {
        let mut policies: Vec<_> = policies.collect();
        let is_ranked_there =
            |one: &&Revision| matches!(&one.policy.rank, Some(rank) if rank.tier == Tier::NetworkPolicy);
        let has_ties = policies.iter().any(is_ranked_there);
        policies.sort_by(|a, b| place(&a.policy, has_ties).cmp(&place(&b.policy, has_ties)));
        EndpointRules {
            ingress: self.list(Direction::Ingress, pod, &policies, origins),
            egress: self.list(Direction::Egress, pod, &policies, origins),
            apart: None,
        }
    }

    /// Removes the lists that no endpoint has any more.
    pub fn sweep(&mut self) {
        self.lists.retain(|_, list| list.strong_count() > 0);
    }

    /// Returns all lists that at least one endpoint has.
    pub(crate) fn lists(&self) -> impl Iterator<Item = Arc<TieredList>> {
        self.lists.values().filter_map(Weak::upgrade)
    }

    fn list(
        &mut self,
        direction: Direction,
        pod: &Pod,
        policies: &[&Revision],
        origins: &mut Origins,
    ) -> Option<Arc<TieredList>> {
        let mut concerned: Vec<_> =
            policies.iter().filter(|revision| concerns(&revision.policy, direction, policies)).collect();
        let is_foreign = concerned.iter().any(|revision| is_foreign(&revision.policy));
        if !self.keeps_all {
            let tiers = concerned.chunk_by(|one, other| tier(&one.policy) == tier(&other.policy));
            let mut tiers = tiers.scan(0, |end, of_tier| {
                *end += of_tier.len();
                Some((*end, of_tier))
            });
            let last = tiers.find(|(_, of_tier)| decides_everything(of_tier.iter().map(|of| &*of.policy), direction));
            if let Some((end, _)) = last {
                concerned.truncate(end);
            }
        }
        if concerned.is_empty() {
            return None;
        }
        let matches = concerned.iter().flat_map(|revision| revision.policy.matches(direction).into_iter().flatten());
        let key = ListKey {
            direction,
            is_foreign,
            policies: concerned.iter().map(|revision| revision.number).collect(),
            numbers: matches.filter(|entry| !entry.named.is_empty()).map(|entry| numbers(entry, pod)).collect(),
        };
        if let Some(list) = self.lists.get(&key).and_then(Weak::upgrade) {
            return Some(list);
        }
        self.given += 1;
        let policies: Vec<_> = concerned.iter().map(|revision| &*revision.policy).collect();
        let rules = Generator { direction, pod, is_foreign, keeps_all: self.keeps_all, origins }.generate(&policies);
        let list = Arc::new(TieredList { id: ListId(self.given), rules });
        self.lists.insert(key, Arc::downgrade(&list));
        Some(list)
    }
}

fn tier(policy: &CompiledPolicy) -> Tier {
    policy.rank.as_ref().map_or(Tier::NetworkPolicy, |rank| rank.tier.clone())
}

/// Returns the policy's sort key among the policies of a pod. `has_ties` is whether policies of other products stand among the
/// NetworkPolicies, which then count as Calico names them. Source: Calico, `felix/calc/policy_sorter.go` and
/// `libcalico-go/lib/backend/k8s/conversion`.
fn place(
    policy: &CompiledPolicy,
    has_ties: bool,
) -> (Tier, Order, Cow<'_, str>, Option<&ClusterPolicyName>, &PolicyName) {
    let name = &policy.name;
    match &policy.rank {
        Some(rank) => (rank.tier.clone(), rank.order, Cow::Borrowed(&*rank.tie), Some(&rank.name), name),
        None => {
            let tie = || format!("{}/{}/KubernetesNetworkPolicy", name.name, name.namespace).into();
            let tie = if has_ties { tie() } else { Cow::Borrowed("") };
            (Tier::NetworkPolicy, Order::NETWORK_POLICY, tie, None, name)
        }
    }
}

/// Whether the policy is another product's.
fn is_foreign(policy: &CompiledPolicy) -> bool {
    policy.rank.as_ref().is_some_and(|rank| rank.name.kind.is_foreign())
}

/// Whether the policy isolates its pods in a direction that it concerns.
fn isolates(policy: &CompiledPolicy, direction: Direction) -> bool {
    match policy.rank {
        Some(_) => policy.isolates.of(direction),
        None => policy.version != PolicyVersion::V1beta1,
    }
}

/// Whether these policies of one tier leave nothing to later tiers.
fn decides_everything<'a>(
    mut policies: impl Iterator<Item = &'a CompiledPolicy> + Clone,
    direction: Direction,
) -> bool {
    let mut matches = policies.clone().flat_map(|policy| policy.matches(direction).into_iter().flatten());
    let is_passed = matches.any(|entry| entry.action == RuleAction::Pass);
    !is_passed && policies.any(|policy| isolates(policy, direction) && tier(policy).end() == RuleAction::Deny)
}

/// Whether the policy has rules for a direction. An `extensions/v1beta1` policy has none unless the namespace isolates.
fn concerns(policy: &CompiledPolicy, direction: Direction, all: &[&Revision]) -> bool {
    let namespace_isolates = || all.iter().any(|one| one.policy.version == PolicyVersion::NamespaceIsolation);
    policy.matches(direction).is_some() && (policy.version != PolicyVersion::V1beta1 || namespace_isolates())
}

/// Returns the port numbers that the pod's containers declare for a match's port names, sorted.
fn numbers(entry: &Match, pod: &Pod) -> Vec<(Transport, u16)> {
    let names = |transport, name: &Arc<str>| entry.named.iter().any(|(t, n)| *t == transport && n == name);
    let ports = pod.ports.iter().filter(|port| names(port.transport, &port.name));
    let mut numbers: Vec<_> = ports.map(|port| (port.transport, port.port)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Generates the rules of a list.
struct Generator<'a> {
    direction: Direction,
    pod: &'a Pod,
    /// Whether a policy of another product is among the policies of all tiers.
    is_foreign: bool,
    keeps_all: bool,
    origins: &'a mut Origins,
}

impl Generator<'_> {
    /// Generates the rules of policies that are sorted by [`place`].
    fn generate(mut self, policies: &[&CompiledPolicy]) -> Vec<TierRule> {
        let mut rules = Vec::new();
        for of_tier in policies.chunk_by(|one, other| tier(one) == tier(other)) {
            let tier = tier(of_tier[0]);
            if tier == Tier::NetworkPolicy && !self.is_foreign {
                rules.push(own_node(tier.clone()));
            }
            self.add_tier(&tier, of_tier, &mut rules);
        }
        // Other products police nothing from a node to its own pods, and everything from a pod to its own node.
        if self.is_foreign
            && self.direction == Direction::Ingress
            && let Some(first) = rules.first().map(|rule| rule.tier.clone())
        {
            rules.insert(0, own_node(first));
        }
        rules
    }

    /// Adds the rules of a tier's policies.
    fn add_tier(&mut self, tier: &Tier, policies: &[&CompiledPolicy], rules: &mut Vec<TierRule>) {
        let direction = self.direction;
        let is_first = |policy: &CompiledPolicy, entry: &Match| policy.is_union && entry.action == RuleAction::Deny;
        let matches = policies.iter().flat_map(|policy| {
            let matches = policy.matches(direction).into_iter().flatten();
            matches.map(|entry| (*policy, entry))
        });
        let first = matches.clone().filter(|(policy, entry)| is_first(policy, entry));
        let rest = matches.filter(|(policy, entry)| !is_first(policy, entry));
        for (policy, entry) in first.chain(rest) {
            let Some(services) = services(entry, self.pod) else { continue };
            let origin = self.origins.id(origin(policy, entry, direction));
            let is_everything = entry.peers == Peers::Any && services == Services::Any;
            let (peers, action) = (entry.peers.clone(), entry.action);
            rules.push(TierRule { tier: tier.clone(), peers, services, action, origin });
            if is_everything && !self.keeps_all && !matches!(tier, Tier::Admin | Tier::Baseline) {
                return;
            }
        }
        if policies.iter().any(|policy| isolates(policy, direction)) {
            let origin = self.origins.id(isolation(tier, policies, direction));
            let (peers, services, action) = (Peers::Any, Services::Any, tier.end());
            rules.push(TierRule { tier: tier.clone(), peers, services, action, origin });
        }
    }
}

/// Returns the rule that accepts traffic with the pod's own node.
fn own_node(tier: Tier) -> TierRule {
    let (peers, services, action) = (Peers::OwnNode, Services::Any, RuleAction::Accept);
    TierRule { tier, peers, services, action, origin: Origins::OWN_NODE }
}

fn origin(policy: &CompiledPolicy, entry: &Match, direction: Direction) -> Origin {
    match &policy.rank {
        None => Origin::Policy { policy: policy.name.clone(), direction, rule: entry.rule },
        Some(rank) => Origin::ClusterPolicy {
            tier: rank.tier.clone(),
            policy: rank.name.clone(),
            direction,
            rule: entry.rule,
            rule_name: entry.name.clone(),
            then: entry.then.clone(),
        },
    }
}

/// Returns the origin of the rule at the end of a tier with these policies.
fn isolation(tier: &Tier, policies: &[&CompiledPolicy], direction: Direction) -> Origin {
    let isolating = || policies.iter().filter(|policy| isolates(policy, direction));
    let mut names: Vec<PolicyName> =
        isolating().filter(|policy| policy.rank.is_none()).map(|policy| policy.name.clone()).collect();
    names.sort_unstable();
    let others = isolating().filter_map(|policy| Some(policy.rank.as_ref()?.name.clone()));
    Origin::Isolation { tier: tier.clone(), policies: names.into(), others: others.collect(), direction }
}

/// Returns the protocols and ports of a match on this pod. `None` if the match has only port names, and the pod declares none of them.
fn services(entry: &Match, pod: &Pod) -> Option<Services> {
    let Services::Set(numbered) = &entry.services else { return Some(Services::Any) };
    if entry.named.is_empty() {
        return Some(entry.services.clone());
    }
    let named = numbers(entry, pod).into_iter().map(|(transport, number)| transport.service(number, number));
    let all = numbered.union(&named.collect::<ServiceSet>());
    (!all.is_empty()).then(|| all.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::object::{ContainerPort, Isolation, Object};

    fn pod_with_port(number: u16, transport: Transport) -> Pod {
        let Object::Pod(pod) = fixtures::pod("x/a", "10.0.0.1", "n", "") else { unreachable!() };
        let mut pod = Arc::unwrap_or_clone(pod);
        pod.ports.push(ContainerPort { name: "web".into(), transport, port: number });
        pod
    }

    fn named_policy() -> Revision {
        let policy = CompiledPolicy {
            name: fixtures::name("x/p"),
            version: PolicyVersion::V1,
            rank: None,
            ingress: Some(vec![Match {
                rule: 0,
                name: None,
                action: RuleAction::Accept,
                then: None,
                peers: Peers::Any,
                services: ServiceSet::default().into(),
                named: vec![(Transport::Tcp, "web".into())],
            }]),
            egress: None,
            isolates: Isolation::default(),
            is_union: false,
            is_audited: false,
        };
        Revision { number: 1, policy: Arc::new(policy) }
    }

    #[test]
    fn pods_with_the_same_policies_and_numbers_share_one_list() {
        let (mut configurator, mut origins, policy) = (Configurator::default(), Origins::default(), named_policy());
        let mut ingress = |port| {
            let pod = pod_with_port(port, Transport::Tcp);
            configurator.configure(&pod, std::iter::once(&policy), &mut origins).ingress.unwrap()
        };
        let (a, again, other) = (ingress(80), ingress(80), ingress(81));
        assert!(Arc::ptr_eq(&a, &again));
        assert!(!Arc::ptr_eq(&a, &other), "the second pod must not get the first one's number (Contiv fault B7)");
    }

    #[test]
    fn a_port_name_that_resolves_to_nothing_or_to_another_protocol_allows_nothing() {
        let (mut configurator, mut origins, policy) = (Configurator::default(), Origins::default(), named_policy());
        let pod = pod_with_port(80, Transport::Udp);
        let rules = configurator.configure(&pod, std::iter::once(&policy), &mut origins);
        let list = rules.ingress.unwrap();
        let told: Vec<_> = list.rules.iter().map(|rule| (&rule.peers, rule.action)).collect();
        assert_eq!(told, [(&Peers::OwnNode, RuleAction::Accept), (&Peers::Any, RuleAction::Deny)]);
        assert_eq!(rules.egress, None);
    }

    #[test]
    fn a_list_that_nobody_holds_is_swept() {
        let (mut configurator, mut origins, policy) = (Configurator::default(), Origins::default(), named_policy());
        drop(configurator.configure(&pod_with_port(80, Transport::Tcp), std::iter::once(&policy), &mut origins));
        configurator.sweep();
        assert!(configurator.lists.is_empty());
    }
}
