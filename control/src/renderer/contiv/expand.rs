//! Expands a pod's list of set products into one-sided 6-tuples: each prefix with each service.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, Services};
use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use super::list::{PeerList, PeerRule};
use super::tuple::network_key;
use crate::renderer::plain::{PlainList, PlainRule, Product, subtract};

/// A pod's list as one-sided 6-tuples, with the products they were expanded from. If the next list differs only in addresses, its tuples
/// are derived from the differences of the sets.
#[derive(Debug)]
pub(super) struct Expansion {
    allows: Vec<Allowed>,
    closed: bool,
    list: Arc<PeerList>,
}

/// Allowed traffic: each of the addresses with each of the protocols and ports (`services`).
#[derive(Debug)]
struct Allowed {
    peers: Addresses,
    services: Services,
    /// Number of prefixes of the addresses. `count` is the number of services.
    networks: usize,
    count: usize,
}

impl Allowed {
    fn new((peers, services): Product) -> Self {
        let (networks, count) = (networks(&peers).count(), all(&services).count());
        Self { peers, services, networks, count }
    }

    fn rules(&self, peer: Option<IpNet>) -> impl Iterator<Item = PeerRule> + '_ {
        all(&self.services).map(move |service| PeerRule { peer, service, action: Action::Allow })
    }
}

impl Expansion {
    pub(super) const fn list(&self) -> &Arc<PeerList> {
        &self.list
    }

    /// Expands `list`. If it differs only in addresses, only the tuples of added and removed prefixes are computed. The result equals that
    /// of [`expand`].
    ///
    /// # Errors
    /// As for [`expand`].
    pub(super) fn follow(&self, list: &PlainList, node: &[IpAddr], limit: usize) -> Result<Self, usize> {
        let (products, closed) = allows_of(list, node, limit)?;
        let Some((allows, networks)) = self.changes(&products).filter(|_| closed == self.closed) else {
            return made_of(products, closed, limit);
        };
        check(&allows, closed, limit)?;
        let about = |network| {
            let having = allows.iter().filter(|allowed| has_prefix(&allowed.peers, network));
            having.flat_map(|allowed| allowed.rules(Some(network))).collect()
        };
        let list = Arc::new(self.list.with(&networks, about));
        Ok(Self { allows, closed, list })
    }

    /// Returns the products with their numbers of prefixes, and the prefixes that any of them gained or lost, in the order of rules. `None`
    /// if more than addresses changed, or too many of them for this to be faster.
    fn changes(&self, products: &[Product]) -> Option<(Vec<Allowed>, Vec<IpNet>)> {
        if self.allows.len() != products.len() {
            return None;
        }
        let (mut allows, mut changed) = (Vec::with_capacity(products.len()), Vec::new());
        for (old, (peers, services)) in self.allows.iter().zip(products) {
            if old.services != *services {
                return None;
            }
            let mut networks = old.networks;
            match (old.peers.members(), peers.members()) {
                (None, None) => {}
                (Some(before), Some(after)) => {
                    let [gone, new] =
                        [(before, after), (after, before)].map(|(one, other)| prefixes_without(one, other));
                    networks = networks + new.len() - gone.len();
                    changed.extend(gone.into_iter().chain(new));
                }
                (None, Some(_)) | (Some(_), None) => return None,
            }
            allows.push(Allowed { peers: peers.clone(), services: services.clone(), networks, count: old.count });
        }
        changed.sort_unstable_by_key(|network| network_key(Some(*network)));
        changed.dedup();
        (changed.len() * 4 <= self.list.rules().len()).then_some((allows, changed))
    }
}

/// Expands a pod's list into 6-tuples. Traffic with the pod's own node (`node`) is always allowed.
///
/// Sorting would move an ordered deny. NetworkPolicy has a deny only at the end. Denies inside a list, from ordered tiers, are subtracted
/// from the allows behind them.
///
/// # Errors
/// A lower bound of the number of tuples if they exceed `limit`. No list of that size is built.
pub(super) fn expand(list: &PlainList, node: &[IpAddr], limit: usize) -> Result<Expansion, usize> {
    let (products, closed) = allows_of(list, node, limit)?;
    made_of(products, closed, limit)
}

fn allows_of(list: &PlainList, node: &[IpAddr], limit: usize) -> Result<(Vec<Product>, bool), usize> {
    let node = Arc::new(node.iter().copied().collect());
    let own_node: Vec<(usize, PlainRule)> =
        list.own_node.iter().filter_map(|own| Some((own.before, own.on(&node)?))).collect();
    allows(&list.rules, &own_node, limit)
}

fn made_of(products: Vec<Product>, closed: bool, limit: usize) -> Result<Expansion, usize> {
    let allows: Vec<_> = products.into_iter().map(Allowed::new).collect();
    let mut rules = Vec::with_capacity(check(&allows, closed, limit)?);
    for allowed in &allows {
        rules.extend(networks(&allowed.peers).flat_map(|peer| allowed.rules(peer)));
    }
    if closed {
        rules.push(PeerRule::DENY_THE_REST);
    }
    let list = PeerList::new(rules).expect("the only deny is that of the rest");
    Ok(Expansion { allows, closed, list: Arc::new(list) })
}

/// Returns the number of tuples of the products. An error if it exceeds `limit`.
fn check(allows: &[Allowed], closed: bool, limit: usize) -> Result<usize, usize> {
    let sizes = allows.iter().map(|allowed| allowed.networks.saturating_mul(allowed.count));
    let size = sizes.fold(usize::from(closed), usize::saturating_add);
    if size > limit { Err(size) } else { Ok(size) }
}

/// Returns the prefixes of those intervals of `one` that are not intervals of `other`.
fn prefixes_without(one: &AddressSet, other: &AddressSet) -> Vec<IpNet> {
    fn own<'a, T: Ord + Copy>(one: &'a [(T, T)], other: &'a [(T, T)]) -> impl Iterator<Item = (T, T)> + 'a {
        let mut others = other.iter().peekable();
        one.iter().copied().filter(move |interval| {
            while others.next_if(|other| *other < interval).is_some() {}
            others.next_if_eq(&interval).is_none()
        })
    }
    let v4 = own(one.v4_intervals(), other.v4_intervals());
    let v6 = own(one.v6_intervals(), other.v6_intervals());
    let v4 = v4.flat_map(|(a, b)| Ipv4Subnets::new(a.into(), b.into(), 0)).map(IpNet::V4);
    v4.chain(v6.flat_map(|(a, b)| Ipv6Subnets::new(a.into(), b.into(), 0)).map(IpNet::V6)).collect()
}

/// Whether [`AddressSet::prefixes`] yields this prefix, as one of the largest within the set's intervals.
fn has_prefix(addresses: &Addresses, prefix: IpNet) -> bool {
    fn within<T: Ord + Copy>(intervals: &[(T, T)], first: T, last: T) -> bool {
        let at = intervals.partition_point(|interval| interval.1 < first);
        intervals.get(at).is_some_and(|interval| interval.0 <= first && last <= interval.1)
    }
    let Some(set) = addresses.members() else { return false };
    let contains = |prefix: IpNet| match prefix {
        IpNet::V4(net) => within(set.v4_intervals(), u32::from(net.network()), u32::from(net.broadcast())),
        IpNet::V6(net) => within(set.v6_intervals(), u128::from(net.network()), u128::from(net.broadcast())),
    };
    contains(prefix) && !prefix.supernet().is_some_and(contains)
}

/// Turns ordered rules into allowed products, whose order is irrelevant, and tells whether the rest is denied. `own_node` has the
/// rules about the own node, each with the index of the rule that follows. They are left out if everything is allowed.
fn allows(rules: &[PlainRule], own_node: &[(usize, PlainRule)], limit: usize) -> Result<(Vec<Product>, bool), usize> {
    let (mut allowed, mut own, mut denied) = (Vec::new(), Vec::new(), Vec::<Product>::new());
    let without = |product: Product, denied: &[Product]| {
        let mut parts = vec![product];
        for hole in denied {
            parts = parts.iter().flat_map(|part| subtract(part, hole)).collect();
            if parts.len() > limit {
                return Err(parts.len());
            }
        }
        Ok(parts)
    };
    for (at, rule) in rules.iter().enumerate() {
        for (_, PlainRule { peers, services, action, .. }) in own_node.iter().filter(|(before, _)| *before == at) {
            let product = (peers.clone(), services.clone());
            match action {
                Action::Allow => own.append(&mut without(product, &denied)?),
                Action::Deny => denied.push(product),
            }
        }
        let product = (rule.peers.clone(), rule.services.clone());
        let everything = product == (Addresses::Any, Services::Any);
        match rule.action {
            Action::Deny if everything => break,
            Action::Deny => denied.push(product),
            Action::Allow => {
                allowed.append(&mut without(product, &denied)?);
                if everything && denied.is_empty() {
                    return Ok((allowed, false));
                }
                if everything {
                    break;
                }
            }
        }
    }
    allowed.append(&mut own);
    Ok((allowed, true))
}

fn networks(addresses: &Addresses) -> impl Iterator<Item = Option<IpNet>> + '_ {
    let set = addresses.members();
    let any = set.is_none().then_some(None);
    any.into_iter().chain(set.into_iter().flat_map(|set| set.prefixes().map(Some)))
}

fn all(services: &Services) -> impl Iterator<Item = Option<bulkhead_classifier::Service>> + '_ {
    let (any, set) = match services {
        Services::Any => (Some(None), None),
        Services::Set(set) => (None, Some(set)),
    };
    any.into_iter().chain(set.into_iter().flat_map(|set| set.services().map(Some)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use bulkhead_classifier::{OriginId, PortRange, Service, ServiceSet, protocol};
    use proptest::prelude::*;

    use super::*;
    use crate::renderer::contiv::MAX_TUPLES;
    use crate::renderer::plain::OwnNodeRule;

    fn rule(peers: &[&str], ports: &[u16], action: Action) -> PlainRule {
        let set = |ports: &[u16]| -> ServiceSet {
            let tcp = |&port: &u16| Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) };
            ports.iter().map(tcp).collect()
        };
        PlainRule {
            peers: match peers {
                [] => Addresses::Any,
                _ => peers.iter().map(|net| net.parse::<IpNet>().unwrap()).collect::<AddressSet>().into(),
            },
            services: if ports.is_empty() { Services::Any } else { set(ports).into() },
            names: None,
            action,
            origin: OriginId(0),
        }
    }

    fn plain(rules: Vec<PlainRule>) -> PlainList {
        PlainList { revision: 1, previous: None, rules, own_node: vec![OwnNodeRule::accept_first()] }
    }

    fn shown(rules: Vec<PlainRule>, node: &[IpAddr]) -> Vec<String> {
        let list = expand(&plain(rules), node, MAX_TUPLES).unwrap().list;
        let peer = |rule: &PeerRule| rule.peer.map_or("any".into(), |net| net.to_string());
        let service = |rule: &PeerRule| rule.service.map_or("any".into(), |service| service.to_string());
        list.rules().iter().map(|rule| format!("{} {} {}", rule.action, peer(rule), service(rule))).collect()
    }

    #[test]
    fn a_product_becomes_every_prefix_with_every_port_and_the_own_node_is_let_in() {
        let rules = vec![
            rule(&["10.0.0.0/8", "10.1.1.1/32", "fd00::/8"], &[80, 443], Action::Allow),
            rule(&[], &[], Action::Deny),
        ];
        assert_eq!(
            shown(rules, &["192.168.0.1".parse().unwrap()]),
            [
                "allow 192.168.0.1/32 any",
                "allow 10.0.0.0/8 TCP:80",
                "allow 10.0.0.0/8 TCP:443",
                "allow fd00::/8 TCP:80",
                "allow fd00::/8 TCP:443",
                "deny any any"
            ]
        );
    }

    #[test]
    fn an_allow_of_everything_ends_the_list_without_a_deny() {
        let rules = vec![rule(&["10.0.0.0/8"], &[80], Action::Allow), rule(&[], &[], Action::Allow)];
        assert_eq!(shown(rules, &["192.168.0.1".parse().unwrap()]), ["allow 10.0.0.0/8 TCP:80", "allow any any"]);
    }

    #[test]
    fn a_deny_among_the_rules_is_taken_out_of_the_allows_after_it_and_no_other() {
        let rules = vec![
            rule(&["10.0.0.1/32"], &[], Action::Allow),
            rule(&["10.0.0.0/30"], &[], Action::Deny),
            rule(&["10.0.0.0/29"], &[80], Action::Allow),
            rule(&[], &[], Action::Deny),
        ];
        assert_eq!(shown(rules, &[]), ["allow 10.0.0.1/32 any", "allow 10.0.0.4/30 TCP:80", "deny any any"]);
        let rules = vec![rule(&["10.0.0.0/30"], &[80], Action::Deny), rule(&["10.0.0.0/29"], &[80, 81], Action::Allow)];
        assert_eq!(
            shown(rules, &[]),
            ["allow 10.0.0.0/30 TCP:81", "allow 10.0.0.4/30 TCP:80-81", "deny any any"],
            "what the list leaves open is denied"
        );
    }

    #[test]
    fn contivs_stress_policy_expands_and_what_exceeds_the_bound_is_refused_before_it_is_made() {
        let blocks = |count: u32| -> AddressSet {
            (0..count).map(|at| IpNet::from(IpAddr::from(Ipv4Addr::from(at << 4 | 1)))).collect()
        };
        let list = |count| {
            let services = rule(&[], &(0..20).map(|port| port * 2).collect::<Vec<_>>(), Action::Allow).services;
            let rules = vec![PlainRule { peers: blocks(count).into(), services, ..rule(&[], &[], Action::Allow) }];
            plain(rules)
        };
        assert_eq!(expand(&list(24_350), &[], MAX_TUPLES).unwrap().list().rules().len(), 487_001);
        assert_eq!(expand(&list(100_000), &[], MAX_TUPLES).unwrap_err(), 2_000_001);
    }

    proptest! {
        #[test]
        fn what_changes_in_the_sets_leads_to_the_tuples_that_the_whole_list_has(
            sets in proptest::collection::vec(proptest::collection::btree_set(0u32..600, 100..500), 3),
            kinds in proptest::collection::vec((0usize..3, 0usize..4, 0u8..6), 1..5),
            steps in proptest::collection::vec((0usize..3, proptest::collection::btree_set(0u32..600, 0..9)), 1..8),
        ) {
            let mut sets = sets;
            let list = |sets: &[BTreeSet<u32>]| {
                let of = |at: usize| -> Addresses {
                    let v4 = |&number: &u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number));
                    let v6 = |&number: &u32| IpAddr::from(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number)));
                    let members = sets[at].iter();
                    members.flat_map(|number| [v4(number), v6(number)]).collect::<AddressSet>().into()
                };
                let ports = [&[][..], &[80], &[80, 443], &[443]];
                let mut rules: Vec<_> = kinds
                    .iter()
                    .map(|&(set, service, kind)| {
                        let action = if kind == 0 { Action::Deny } else { Action::Allow };
                        let peers = if kind == 1 { Addresses::Any } else { of(set) };
                        PlainRule { peers, ..rule(&[], ports[service], action) }
                    })
                    .collect();
                rules.push(rule(&[], &[], Action::Deny));
                plain(rules)
            };
            let node = ["10.0.0.7".parse().unwrap()];
            let mut followed = expand(&list(&sets), &node, MAX_TUPLES).unwrap();
            for (set, moved) in steps {
                for number in moved {
                    if !sets[set].remove(&number) {
                        sets[set].insert(number);
                    }
                }
                let now = list(&sets);
                followed = followed.follow(&now, &node, MAX_TUPLES).unwrap();
                let fresh = expand(&now, &node, MAX_TUPLES).unwrap();
                prop_assert_eq!(followed.list.rules(), fresh.list.rules());
                prop_assert!(followed.list == fresh.list && followed.list.is_closed() == fresh.list.is_closed());
                let sizes = |expansion: &Expansion| expansion.allows.iter().map(|allowed| allowed.networks).collect::<Vec<_>>();
                prop_assert_eq!(sizes(&followed), sizes(&fresh));
                let limit = check(&fresh.allows, fresh.closed, usize::MAX).unwrap() - 1;
                prop_assert_eq!(followed.follow(&now, &node, limit).unwrap_err(), expand(&now, &node, limit).unwrap_err());
            }
        }
    }
}
