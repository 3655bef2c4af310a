//! From 6-tuples to session rules.
//!
//! A stack's rule has one port or all of them. A range is therefore a rule for each port, or, where that takes fewer, a rule for
//! all ports and one for each port that it is not about:
//!
//! ```text
//!  6-tuples for one network                session rules
//!  allow TCP:1-24, allow TCP:26-65535      allow all ports, deny port 25
//!  (wider networks: deny TCP)
//! ```
//! The second form says for every port what the lookup would otherwise have found in wider networks. Longer prefixes decide
//! first, so it changes nothing for them.

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

/// The ports that connections go to. Port 0 cannot be said in a session rule, and nobody connects to it.
const PORTS: PortRange = PortRange { first: 1, last: u16::MAX };

/// A rule for so many ports is worth the search for a shorter form. Below it the form that reads like the policy stays.
const WIDE: usize = 1_024;

/// The connections of a scope whose rules differ in nothing but ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    transport: SessionTransport,
    local: IpNet,
    remote: IpNet,
}

/// What the rules of a pair say of ports; the first that names a port decides. None names all ports.
type PortRules = Vec<(Option<PortRange>, Action)>;

/// The session rules of a sorted table; `own` are the addresses of the pod whose table it is, none for the global one.
/// None when they are more than `limit`.
pub(super) fn encode(scope: SessionScope, table: &[SixTuple], own: &[IpAddr], limit: usize) -> Option<Rules> {
    let is_own = |rule: &&SixTuple| rule.dst.is_some_and(|net| own.iter().any(|&own| net == IpNet::from(own)));
    let mut pairs: BTreeMap<Pair, PortRules> = BTreeMap::new();
    if scope != SessionScope::Global && table.last() == Some(&SixTuple::any(Action::Deny)) {
        for &address in own {
            let allow = SixTuple { dst: Some(address.into()), ..SixTuple::any(Action::Allow) };
            add(scope, &allow, &mut pairs);
        }
    }
    let encoded = table.iter().filter(|rule| **rule != SixTuple::any(Action::Allow));
    for rule in encoded.filter(|rule| scope == SessionScope::Global || !is_own(rule)) {
        add(scope, rule, &mut pairs);
    }
    let mut rules = Rules::new();
    for (pair, ports) in &pairs {
        let mut parts = ports.clone();
        if size(&parts) > WIDE {
            let short = all_ports_and_exceptions(&verdicts(&pairs, pair));
            if size(&short) < size(&parts) {
                parts = short;
            }
        }
        if rules.len() + parts.len() > limit {
            return None;
        }
        for (range, action) in parts {
            let ports = range.map_or(0..=0, |range| range.first..=range.last);
            for port in ports {
                let (local, remote) = if scope == SessionScope::Global { (port, 0) } else { (0, port) };
                let local = SessionSide { network: pair.local, port: local };
                let remote = SessionSide { network: pair.remote, port: remote };
                rules.entry(SessionMatch { scope, transport: pair.transport, local, remote }).or_insert(action);
                if rules.len() > limit {
                    return None;
                }
            }
        }
    }
    Some(rules)
}

fn add(scope: SessionScope, rule: &SixTuple, pairs: &mut BTreeMap<Pair, PortRules>) {
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
            let Some(ports) = ports(rule.service, transport) else { continue };
            for remote in halves(remote.unwrap_or(every)) {
                let pair = Pair { transport, local: local.unwrap_or(every), remote };
                // The table is sorted: of two rules about one port the first decides.
                pairs.entry(pair).or_default().push((ports, rule.action));
            }
        }
    }
}

/// The ports of a rule for a transport, none when it is not about the transport. None within is all ports.
fn ports(service: Option<Service>, transport: SessionTransport) -> Option<Option<PortRange>> {
    let Some(Service { protocols: (first, last), ports }) = service else { return Some(None) };
    if !(first..=last).contains(&transport.number()) {
        return None;
    }
    if ports == PortRange::ALL {
        return Some(None);
    }
    let ports = PortRange { first: ports.first.max(PORTS.first), last: ports.last };
    (ports.first <= ports.last).then_some(Some(ports))
}

/// All addresses of a family in two halves, any other network as it is.
fn halves(network: IpNet) -> impl Iterator<Item = IpNet> {
    let length = network.prefix_len().max(1);
    network.subnets(length).into_iter().flatten()
}

/// How many session rules they are.
fn size(rules: &PortRules) -> usize {
    rules.iter().map(|(range, _)| range.map_or(1, |range| usize::from(range.last - range.first) + 1)).sum()
}

/// What happens to connections of the pair to each port, in ascending ranges that leave out no port: its own rules first, then
/// those of ever wider remote networks, at last the allow of a stack without a rule.
fn verdicts(pairs: &BTreeMap<Pair, PortRules>, pair: &Pair) -> Vec<(PortRange, Action)> {
    let mut decided: Vec<(PortRange, Action)> = Vec::new();
    let mut open = vec![PORTS];
    let mut remote = Some(pair.remote);
    while let Some(network) = remote.filter(|_| !open.is_empty()) {
        for (range, action) in pairs.get(&Pair { remote: network, ..*pair }).into_iter().flatten() {
            let range = range.unwrap_or(PORTS);
            let mut left = Vec::with_capacity(open.len() + 1);
            for part in open {
                let (first, last) = (part.first.max(range.first), part.last.min(range.last));
                if first > last {
                    left.push(part);
                    continue;
                }
                decided.push((PortRange { first, last }, *action));
                if part.first < first {
                    left.push(PortRange { first: part.first, last: first - 1 });
                }
                if last < part.last {
                    left.push(PortRange { first: last + 1, last: part.last });
                }
            }
            open = left;
        }
        remote = network.supernet();
    }
    decided.extend(open.into_iter().map(|part| (part, Action::Allow)));
    decided.sort_unstable_by_key(|(range, _)| range.first);
    decided
}

/// The verdicts as a rule for all ports and the ports where the other thing happens.
fn all_ports_and_exceptions(verdicts: &[(PortRange, Action)]) -> PortRules {
    let ports_with = |action: Action| {
        let ranges = verdicts.iter().filter(move |(_, of)| *of == action).map(|(range, of)| (Some(*range), *of));
        ranges.collect::<PortRules>()
    };
    let (allowed, denied) = (ports_with(Action::Allow), ports_with(Action::Deny));
    let (exceptions, rest) =
        if size(&allowed) < size(&denied) { (allowed, Action::Deny) } else { (denied, Action::Allow) };
    exceptions.into_iter().chain([(None, rest)]).collect()
}
