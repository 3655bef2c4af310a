//! From 6-tuples to session rules.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bulkhead_classifier::{Action, PortRange, Service};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{SessionMatch, SessionScope, SessionSide, SessionTransport};
use crate::renderer::contiv::tuple::SixTuple;

/// Rules by what they match.
pub(super) type Rules = BTreeMap<SessionMatch, Action>;

const EVERY: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

/// The session rules of a sorted table; `own` are the addresses of the pod whose table it is, none for the global one.
/// None when they are more than `limit`.
pub(super) fn encode(scope: SessionScope, table: &[SixTuple], own: &[IpAddr], limit: usize) -> Option<Rules> {
    let is_own = |rule: &&SixTuple| rule.dst.is_some_and(|net| own.iter().any(|&own| net == IpNet::from(own)));
    let mut rules = Rules::new();
    if scope != SessionScope::Global && table.last() == Some(&SixTuple::any(Action::Deny)) {
        for &address in own {
            let allow = SixTuple { dst: Some(address.into()), ..SixTuple::any(Action::Allow) };
            add(scope, &allow, limit, &mut rules)?;
        }
    }
    let encoded = table.iter().filter(|rule| **rule != SixTuple::any(Action::Allow));
    for rule in encoded.filter(|rule| scope == SessionScope::Global || !is_own(rule)) {
        add(scope, rule, limit, &mut rules)?;
    }
    Some(rules)
}

fn add(scope: SessionScope, rule: &SixTuple, limit: usize, rules: &mut Rules) -> Option<()> {
    let (local, remote) = match scope {
        SessionScope::Global => (rule.dst, rule.src),
        SessionScope::Local { .. } => (rule.src, rule.dst),
    };
    for every in EVERY {
        let of_family = |net: Option<IpNet>| net.is_none_or(|net| net.addr().is_ipv4() == every.addr().is_ipv4());
        if !of_family(local) || !of_family(remote) {
            continue;
        }
        for transport in SessionTransport::ALL {
            for port in ports(rule.service, transport) {
                for network in halves(remote.unwrap_or(every)) {
                    let local = local.unwrap_or(every);
                    let (local_port, remote_port) = if scope == SessionScope::Global { (port, 0) } else { (0, port) };
                    let local = SessionSide { network: local, port: local_port };
                    let remote = SessionSide { network, port: remote_port };
                    // The table is sorted: of two rules with one match the first decides.
                    rules.entry(SessionMatch { scope, transport, local, remote }).or_insert(rule.action);
                }
                if rules.len() > limit {
                    return None;
                }
            }
        }
    }
    Some(())
}

/// The ports of a rule for a transport, 0 for all of them. Port 0 itself cannot be said, and nobody connects to it.
fn ports(service: Option<Service>, transport: SessionTransport) -> impl Iterator<Item = u16> {
    let range = match service {
        None => Some((0, 0)),
        Some(Service { protocols: (first, last), .. }) if !(first..=last).contains(&transport.number()) => None,
        Some(Service { ports: PortRange::ALL, .. }) => Some((0, 0)),
        Some(Service { ports, .. }) => Some((ports.first.max(1), ports.last)),
    };
    range.into_iter().flat_map(|(first, last)| first..=last)
}

/// All addresses of a family in two halves, any other network as it is.
fn halves(network: IpNet) -> impl Iterator<Item = IpNet> {
    let length = network.prefix_len().max(1);
    network.subnets(length).into_iter().flatten()
}
