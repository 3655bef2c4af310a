//! A pod's connections to itself through a Service.
//!
//! ClusterNetworkPolicy judges such a connection at both ends, with the pod's own address as the peer. NetworkPolicy never does: where it
//! isolates the pod, the connection is allowed at its tier. A connection to the pod's own address, without a Service, is never judged.
//! Source: network-policy-api #343 and #390.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, OriginId, Rule, ServiceSet, Services, Tables};
use ipnet::IpNet;

use super::plain::{PlainList, PlainPod};
use crate::contract::{EndpointRules, Peers, RuleAction, Tier, TieredList};
use crate::origin::{Direction, Origins};

/// A rule that names the pod itself.
type Step<'a> = (Tier, &'a Services, RuleAction, OriginId);

/// Services with the rule that decides about them.
pub(super) type Decided = Vec<(ServiceSet, Action, OriginId)>;

/// The step that allows what the NetworkPolicy tier would judge.
const EXEMPT: Step<'_> = (Tier::NetworkPolicy, &Services::Any, RuleAction::Accept, Origins::OWN_POD);

/// Evaluates rules in order. Services that a tier passes or does not name are decided by the next tier, and allowed after the last.
fn decide<'a>(steps: impl IntoIterator<Item = Step<'a>>, direction: Direction) -> Decided {
    let mut decided = Decided::new();
    let mut undecided = ServiceSet::all();
    // Services that the current tier has neither decided nor passed.
    let (mut current, mut open) = (Tier::Admin, undecided.clone());
    for (tier, services, action, origin) in steps {
        if tier != current {
            (current, open) = (tier, undecided.clone());
        }
        let hit = match services {
            Services::Any => open.clone(),
            Services::Set(services) => open.intersect(services),
        };
        open = open.subtract(&hit);
        let action = match action {
            RuleAction::Accept => Action::Allow,
            RuleAction::Deny => Action::Deny,
            RuleAction::Pass => continue,
        };
        undecided = undecided.subtract(&hit);
        add(&mut decided, hit, action, origin);
    }
    add(&mut decided, undecided, Action::Allow, Origins::not_isolated(direction));
    decided
}

fn add(decided: &mut Decided, services: ServiceSet, action: Action, origin: OriginId) {
    match decided.iter_mut().find(|(_, of, by)| (*of, *by) == (action, origin)) {
        _ if services.is_empty() => {}
        Some((known, ..)) => *known = known.union(&services),
        None => decided.push((services, action, origin)),
    }
}

/// The rules for a pod with these addresses. `None` if they allow everything.
fn rules(addresses: &[IpAddr], judge: impl Fn(IpAddr, Direction) -> Decided) -> Option<Vec<Rule>> {
    let mut rules = Vec::new();
    for &address in addresses {
        let [egress, ingress] = [Direction::Egress, Direction::Ingress].map(|direction| judge(address, direction));
        let denies = |(_, action, _): &(ServiceSet, Action, OriginId)| *action == Action::Deny;
        if !egress.iter().chain(&ingress).any(denies) {
            continue;
        }
        let dst: Addresses = AddressSet::from_iter([IpNet::from(address)]).into();
        let judged = egress.into_iter().filter(denies).chain(ingress);
        rules.extend(judged.map(|(services, action, origin)| Rule {
            dst: dst.clone(),
            services: services.into(),
            ..Rule::any(action, origin)
        }));
    }
    (!rules.is_empty()).then(|| {
        rules.push(Rule::any(Action::Allow, Origins::OWN_POD));
        rules
    })
}

/// The rules for a pod with plain lists. `None` if they allow everything, as they do without ClusterNetworkPolicy.
pub(super) fn of_pod(pod: &PlainPod) -> Option<Vec<Rule>> {
    let of = |direction| match direction {
        Direction::Ingress => pod.ingress.as_deref(),
        Direction::Egress => pod.egress.as_deref(),
    };
    let is_exempt = |list: &PlainList| list.own_node == Some(0);
    if [Direction::Ingress, Direction::Egress].into_iter().filter_map(of).all(is_exempt) {
        return None;
    }
    rules(&pod.addresses, |address, direction| {
        let list = of(direction);
        // Lowered rules need no tiers. The exemption comes where the NetworkPolicy tier begins, and decides everything that is left.
        let before = list.map_or(&[][..], |list| &list.rules[..list.own_node.unwrap_or(list.rules.len())]);
        let steps = before.iter().filter(|rule| rule.peers.contains(address)).map(|rule| {
            let action = if rule.action == Action::Allow { RuleAction::Accept } else { RuleAction::Deny };
            (Tier::NetworkPolicy, &rule.services, action, rule.origin)
        });
        decide(steps.chain(list.and_then(|list| list.own_node).map(|_| EXEMPT)), direction)
    })
}

/// The rules for a pod with lists in tiers, like [`of_pod`]. `names` returns whether the peers contain an address of the pod.
pub(super) fn of_tiers(
    lists: &EndpointRules,
    addresses: &[IpAddr],
    names: impl Fn(&Peers, IpAddr) -> bool,
) -> Option<Vec<Rule>> {
    let is_exempt = |list: &TieredList| list.rules.iter().all(|rule| rule.tier == Tier::NetworkPolicy);
    if lists.lists().all(|list| is_exempt(list)) {
        return None;
    }
    rules(addresses, |address, direction| {
        let list = match direction {
            Direction::Ingress => lists.ingress.as_ref(),
            Direction::Egress => lists.egress.as_ref(),
        };
        let (all, names) = (list.map_or(&[][..], |list| &list.rules), &names);
        let of = |tier| {
            let naming = all.iter().filter(move |rule| rule.tier == tier && names(&rule.peers, address));
            naming.map(|rule| (rule.tier, &rule.services, rule.action, rule.origin))
        };
        let is_isolated = all.iter().any(|rule| rule.tier == Tier::NetworkPolicy);
        decide(of(Tier::Admin).chain(is_isolated.then_some(EXEMPT)).chain(of(Tier::Baseline)), direction)
    })
}

/// Compiles the rules. Denies everything if they do not fit.
pub(super) fn tables(rules: Vec<Rule>) -> Arc<Tables> {
    let closed = || Tables::build(vec![Rule::any(Action::Deny, Origins::OWN_POD)]).expect("one rule fits");
    Arc::new(Tables::build(rules).unwrap_or_else(|_| closed()))
}
