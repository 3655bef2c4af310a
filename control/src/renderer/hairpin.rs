//! A pod's connections to itself through a Service.
//!
//! ClusterNetworkPolicy judges such a connection at both ends, with the pod's own address as the peer. NetworkPolicy never does: where it
//! isolates the pod, the connection is allowed at its tier. A connection to the pod's own address, without a Service, is never judged.
//! Source: network-policy-api #343 and #390.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{Action, AddressSet, Addresses, OriginId, Rule, ServiceSet, Services, Tables};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::contract::{EndpointRules, Peers, RuleAction, Tier, TierRule, TieredList};
use crate::decision::decide;
use crate::object::PodName;
use crate::origin::{Direction, Origins};

/// Tables with their names, `hairpin:` and the first pod that uses the table.
pub(super) type Named = Vec<(Arc<str>, Arc<Tables>)>;

/// The tables of a node's pods for such connections. Pods with equal rules share one.
#[derive(Debug, Default)]
pub(super) struct Hairpins(BTreeMap<PodName, Arc<Tables>>);

impl Hairpins {
    /// Compiles the [`rules`] of a pod. Returns whether they changed.
    pub(super) fn set(&mut self, pod: &PodName, rules: Option<&[Rule]>) -> bool {
        let Some(rules) = rules else { return self.0.remove(pod).is_some() };
        if self.0.get(pod).is_some_and(|tables| *tables.rules() == *rules) {
            return false;
        }
        let shared = self.0.values().find(|tables| *tables.rules() == *rules).cloned();
        self.0.insert(pod.clone(), shared.unwrap_or_else(|| compile(rules)));
        true
    }

    /// Removes the other pods. Returns whether there were any.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&PodName) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|pod, _| is_kept(pod));
        self.0.len() < before
    }

    /// Returns the tables, and each pod's position among them. A pod without a table reaches itself.
    pub(super) fn tables(&self) -> (Named, AHashMap<&PodName, usize>) {
        let (mut tables, mut known, mut positions) = (Named::new(), AHashMap::new(), AHashMap::new());
        for (pod, of_pod) in &self.0 {
            let position = *known.entry(Arc::as_ptr(of_pod)).or_insert_with(|| {
                tables.push((format!("hairpin:{pod}").into(), of_pod.clone()));
                tables.len() - 1
            });
            positions.insert(pod, position);
        }
        (tables, positions)
    }
}

/// Denies everything if the rules do not fit.
fn compile(rules: &[Rule]) -> Arc<Tables> {
    let closed = || Tables::build(vec![Rule::any(Action::Deny, Origins::OWN_POD)]).expect("one rule fits");
    Arc::new(Tables::build(rules.to_vec()).unwrap_or_else(|_| closed()))
}

/// Returns the rules for a pod's connections to these addresses of its own. `None` if they allow everything, as they do without
/// ClusterNetworkPolicy. `names` returns whether the peers contain an address.
pub(super) fn rules(
    lists: &EndpointRules,
    addresses: &[IpAddr],
    names: impl Fn(&Peers, IpAddr) -> bool,
) -> Option<Vec<Rule>> {
    let is_exempt = |list: &Arc<TieredList>| list.rules.iter().all(|rule| rule.tier == Tier::NetworkPolicy);
    if lists.lists().all(is_exempt) {
        return None;
    }
    let mut rules = Vec::new();
    for &address in addresses {
        let of = |list: Option<&Arc<_>>, direction| {
            judge(list.map(|list| &**list), direction, |peers| names(peers, address))
        };
        let egress = of(lists.whole_egress(), Direction::Egress);
        let ingress = of(lists.ingress.as_ref(), Direction::Ingress);
        let denies = |(_, action, _): &(ServiceSet, Action, OriginId)| *action == Action::Deny;
        if !egress.iter().chain(&ingress).any(denies) {
            continue;
        }
        // Both ends are the pod, so its only address of a family needs no name, and pods can share a table.
        let is_only = addresses.iter().filter(|other| other.is_ipv4() == address.is_ipv4()).count() == 1;
        let dst: IpNet = match address {
            _ if !is_only => address.into(),
            IpAddr::V4(_) => Ipv4Net::default().into(),
            IpAddr::V6(_) => Ipv6Net::default().into(),
        };
        let dst: Addresses = AddressSet::from_iter([dst]).into();
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

/// Decides a list for the pod as its own peer. `names` returns whether the peers contain its address.
fn judge(
    list: Option<&TieredList>,
    direction: Direction,
    names: impl Fn(&Peers) -> bool,
) -> Vec<(ServiceSet, Action, OriginId)> {
    let exempt = TierRule {
        tier: Tier::NetworkPolicy,
        peers: Peers::Any,
        services: Services::Any,
        action: RuleAction::Accept,
        origin: Origins::OWN_POD,
    };
    let rules = list.map_or(&[][..], |list| &list.rules);
    let naming = rules.iter().map(|rule| if rule.tier == Tier::NetworkPolicy { &exempt } else { rule });
    let naming = naming.filter(|rule| names(&rule.peers));
    decide(naming, |_, _| {})
        .into_iter()
        .map(|(services, decision)| match decision {
            Some((RuleAction::Deny, origin)) => (services, Action::Deny, origin),
            Some((_, origin)) => (services, Action::Allow, origin),
            None => (services, Action::Allow, Origins::not_isolated(direction)),
        })
        .collect()
}
