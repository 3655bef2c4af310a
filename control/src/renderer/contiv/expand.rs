//! From a pod's list of set products to one-sided 6-tuples: every prefix with every service.

use std::net::IpAddr;

use bulkhead_classifier::{Action, AddressSet, Addresses, Services};
use ipnet::IpNet;

use super::list::{PeerList, PeerRule};
use crate::renderer::plain::{PlainList, PlainRule, Product, subtract};

/// The 6-tuples of a pod's list, where traffic with the pod's own node is always allowed.
///
/// Sorted 6-tuples cannot keep an ordered deny in its place. NetworkPolicy has none but the last; those that ordered
/// tiers put among the rules are taken out of the allows that follow them.
///
/// # Errors
/// How many tuples it would be at least, when these are more than `limit`; nothing of that size is made.
pub(super) fn expand(list: &PlainList, node: &[IpAddr], limit: usize) -> Result<PeerList, usize> {
    let own_node = list.own_node.filter(|_| !node.is_empty());
    let own_node = own_node.map(|at| (at, node.iter().copied().collect::<AddressSet>().into()));
    let (allows, closed) = allows(&list.rules, own_node.as_ref(), limit)?;
    let sizes = allows.iter().map(|(peers, services)| networks(peers).count().saturating_mul(all(services).count()));
    let size = sizes.fold(usize::from(closed), usize::saturating_add);
    if size > limit {
        return Err(size);
    }
    let mut rules = Vec::with_capacity(size);
    for (peers, services) in &allows {
        for peer in networks(peers) {
            rules.extend(all(services).map(|service| PeerRule { peer, service, action: Action::Allow }));
        }
    }
    if closed {
        rules.push(PeerRule::DENY_THE_REST);
    }
    Ok(PeerList::new(rules).expect("the only deny is that of the rest"))
}

/// What the ordered rules allow, as products whose order does not matter, and whether anything is left to deny. With the own
/// node's addresses come those of the node before which rule they are allowed; that needs no saying where all is.
fn allows(
    rules: &[PlainRule],
    own_node: Option<&(usize, Addresses)>,
    limit: usize,
) -> Result<(Vec<Product>, bool), usize> {
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
        if let Some((_, node)) = own_node.filter(|(before, _)| *before == at) {
            own = without((node.clone(), Services::Any), &denied)?;
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
    use bulkhead_classifier::{OriginId, PortRange, Service, ServiceSet, protocol};

    use super::*;
    use crate::renderer::contiv::MAX_TUPLES;

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
            action,
            origin: OriginId(0),
        }
    }

    fn shown(rules: Vec<PlainRule>, node: &[IpAddr]) -> Vec<String> {
        let list = expand(&PlainList { revision: 1, rules, own_node: Some(0) }, node, MAX_TUPLES).unwrap();
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
            (0..count).map(|at| IpNet::from(IpAddr::from(std::net::Ipv4Addr::from(at << 4 | 1)))).collect()
        };
        let list = |count| {
            let services = rule(&[], &(0..20).map(|port| port * 2).collect::<Vec<_>>(), Action::Allow).services;
            let rules = vec![PlainRule { peers: blocks(count).into(), services, ..rule(&[], &[], Action::Allow) }];
            PlainList { revision: 1, rules, own_node: Some(0) }
        };
        assert_eq!(expand(&list(24_350), &[], MAX_TUPLES).unwrap().rules().len(), 487_001);
        assert_eq!(expand(&list(100_000), &[], MAX_TUPLES), Err(2_000_001));
    }
}
