//! Encodes 6-tuples as session rules.
//!
//! A session rule has one port, or all ports. A range is therefore one rule per port. If that takes more rules, it is a rule for all ports
//! and one for each excepted port:
//!
//! ```text
//!  6-tuples for one network                session rules
//!  allow TCP:1-24, allow TCP:26-65535      allow all ports, deny port 25
//!  (wider networks: deny TCP)
//! ```
//! The second form states for each port the verdict that the lookup would otherwise find in wider networks. Longer prefixes decide first,
//! so rules for narrower networks are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bulkhead_classifier::{Action, PortRange, Service};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{SessionMatch, SessionRequest, SessionRule, SessionScope, SessionSide, SessionTransport};
use crate::renderer::contiv::rules::Rules;
use crate::renderer::contiv::tuple::{SixTuple, network_key};

/// The change from one table's session rules to another's.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// Requests. Those that delete a match precede the one that adds it.
    pub(super) requests: Vec<SessionRequest>,
    /// Pairs that became wide (true) or are no longer wide (false). See [`Encoded::wide`].
    pub(super) widths: Vec<(Pair, bool)>,
}

/// Session rules: the action for each match.
pub(super) type SessionRules = BTreeMap<SessionMatch, Action>;

#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) rules: SessionRules,
    /// Pairs whose rules also depend on the rules for wider networks.
    pub(super) wide: BTreeSet<Pair>,
}

const EVERY: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

/// The destination ports of connections. Session rules cannot express port 0, and no connection uses it.
const PORTS: PortRange = PortRange { first: 1, last: u16::MAX };

/// Minimum number of port rules for which a shorter form is tried. Smaller ranges keep the form of the policy.
const WIDE: usize = 1_024;

/// The connections of a scope between two networks, whose rules differ only in ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    transport: SessionTransport,
    local: IpNet,
    remote: IpNet,
}

/// The ports in the rules of a pair. The first rule with a port decides. `None` means all ports.
type PortRules = Vec<(Option<PortRange>, Action)>;

/// Encodes a sorted table. `own` are the addresses of the table's pod, empty for the global table. `None` if the result exceeds `limit`
/// rules.
pub(super) fn encode(scope: SessionScope, table: &Rules, own: &[IpAddr], limit: usize) -> Option<Encoded> {
    let mut pairs: BTreeMap<Pair, PortRules> = BTreeMap::new();
    if scope != SessionScope::Global && table.last() == Some(&SixTuple::any(Action::Deny)) {
        for &address in own {
            let allow = SixTuple { dst: Some(address.into()), ..SixTuple::any(Action::Allow) };
            add(scope, &allow, &mut pairs);
        }
    }
    for rule in table.iter().filter(|rule| is_encoded(scope, rule, own)) {
        add(scope, rule, &mut pairs);
    }
    let mut encoded = Encoded::default();
    for (pair, ports) in &pairs {
        let (parts, is_wide) = parts(ports, || verdicts(|pair| pairs.get(pair).cloned().unwrap_or_default(), pair));
        if is_wide {
            encoded.wide.insert(*pair);
        }
        if encoded.rules.len() + parts.len() > limit {
            return None;
        }
        for (matches, action) in session_rules(scope, pair, &parts) {
            encoded.rules.entry(matches).or_insert(action);
            if encoded.rules.len() > limit {
                return None;
            }
        }
    }
    Some(encoded)
}

/// Returns the change from the session rules of one table to those of another: a request for each different rule. Compares only pairs whose
/// tuples differ, and the wide pairs within their networks. `wide` are the first table's wide pairs.
///
/// `None` if the final rule differs, or a rule for a pod's own addresses. The whole table must then be encoded.
pub(super) fn difference(
    scope: SessionScope,
    (old, new): (&Rules, &Rules),
    own: &[IpAddr],
    wide: &BTreeSet<Pair>,
) -> Option<Difference> {
    if old.last() != new.last() {
        return None;
    }
    let (gone, come) = old.difference(new);
    let mut touched: BTreeMap<Pair, PortRules> = BTreeMap::new();
    for tuple in gone.into_iter().chain(come).filter(|tuple| is_encoded(scope, tuple, own)) {
        add(scope, tuple, &mut touched);
    }
    let mut pairs: BTreeSet<Pair> = touched.keys().copied().collect();
    let is_below = |pair: &Pair| {
        let above = touched.range(Pair { remote: EVERY[0], ..*pair }..);
        let above = above.take_while(|(other, _)| (other.transport, other.local) == (pair.transport, pair.local));
        above.into_iter().any(|(other, _)| other.remote.contains(&pair.remote))
    };
    pairs.extend(wide.iter().filter(|pair| is_below(pair)));
    let (mut requests, mut widths) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let [(before, was_wide), (after, is_wide)] = [old, new].map(|table| {
            let of = |pair: &Pair| ports_of(scope, table, own, pair);
            let (parts, is_wide) = parts(&of(pair), || verdicts(of, pair));
            let mut rules = SessionRules::new();
            for (matches, action) in session_rules(scope, pair, &parts) {
                rules.entry(matches).or_insert(action);
            }
            (rules, is_wide)
        });
        requests.extend(requests_between(&before, &after));
        if was_wide != is_wide {
            widths.push((*pair, is_wide));
        }
    }
    Some(Difference { requests, widths })
}

/// Returns the requests that change the old rules into the new ones.
pub(super) fn requests_between(old: &SessionRules, new: &SessionRules) -> Vec<SessionRequest> {
    let rule = |(&matches, &action): (&SessionMatch, &Action)| SessionRule { matches, action };
    let gone = old.iter().filter(|(matches, action)| new.get(matches) != Some(action));
    let come = new.iter().filter(|(matches, action)| old.get(matches) != Some(action));
    gone.map(rule).map(SessionRequest::Delete).chain(come.map(rule).map(SessionRequest::Add)).collect()
}

/// Whether session rules express the tuple. They express neither the final allow nor, in a pod's table, rules for the pod itself.
fn is_encoded(scope: SessionScope, tuple: &SixTuple, own: &[IpAddr]) -> bool {
    let is_own = tuple.dst.is_some_and(|net| own.iter().any(|&own| net == IpNet::from(own)));
    *tuple != SixTuple::any(Action::Allow) && (scope == SessionScope::Global || !is_own)
}

/// Returns the port rules of a pair, looked up in the table. Equal to what [`add`] collects.
fn ports_of(scope: SessionScope, table: &Rules, own: &[IpAddr], pair: &Pair) -> PortRules {
    if scope != SessionScope::Global && own.iter().any(|&own| pair.remote == IpNet::from(own)) {
        let denies_rest = table.last() == Some(&SixTuple::any(Action::Deny));
        return if denies_rest && pair.local.prefix_len() == 0 { vec![(None, Action::Allow)] } else { Vec::new() };
    }
    // The networks that the pair's networks come from: a half comes from all addresses of a family, and those from any address.
    let mut locals = vec![Some(pair.local)];
    locals.extend((pair.local.prefix_len() == 0).then_some(None));
    let mut remotes = vec![Some(pair.remote)];
    if pair.remote.prefix_len() == 1 {
        remotes.extend([pair.remote.supernet(), None]);
    }
    let sided = |local, remote| if scope == SessionScope::Global { (remote, local) } else { (local, remote) };
    let both = |local: Option<IpNet>| remotes.iter().map(move |&remote| sided(local, remote));
    let mut networks: Vec<_> = locals.into_iter().flat_map(both).collect();
    // Sorted as in the table, where the first match decides.
    networks.sort_by_key(|&(src, dst)| (network_key(src), network_key(dst)));
    let tuples = networks.into_iter().flat_map(|(src, dst)| table.about(src, dst));
    let tuples = tuples.filter(|tuple| is_encoded(scope, tuple, own));
    tuples.filter_map(|tuple| Some((ports(tuple.service, pair.transport)?, tuple.action))).collect()
}

/// Returns the final port rules of a pair, and whether they depend on wider networks.
fn parts(ports: &PortRules, verdicts: impl FnOnce() -> Vec<(PortRange, Action)>) -> (PortRules, bool) {
    let is_wide = size(ports) > WIDE;
    if is_wide {
        let short = all_ports_and_exceptions(&verdicts());
        if size(&short) < size(ports) {
            return (short, true);
        }
    }
    (ports.clone(), is_wide)
}

/// Returns the session rules of a pair. If two rules have one match, the first decides.
fn session_rules<'a>(
    scope: SessionScope,
    pair: &'a Pair,
    parts: &'a PortRules,
) -> impl Iterator<Item = (SessionMatch, Action)> + 'a {
    parts.iter().flat_map(move |&(range, action)| {
        let ports = range.map_or(0..=0, |range| range.first..=range.last);
        ports.map(move |port| {
            let (local, remote) = if scope == SessionScope::Global { (port, 0) } else { (0, port) };
            let local = SessionSide { network: pair.local, port: local };
            let remote = SessionSide { network: pair.remote, port: remote };
            (SessionMatch { scope, transport: pair.transport, local, remote }, action)
        })
    })
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
                // The table is sorted: of two rules for one port, the first decides.
                pairs.entry(pair).or_default().push((ports, rule.action));
            }
        }
    }
}

/// Returns the ports of a rule for a transport. `None` if the rule does not cover the transport, and `Some(None)` for all ports.
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

/// Splits a network of all addresses into two halves. Other networks stay.
fn halves(network: IpNet) -> impl Iterator<Item = IpNet> {
    let length = network.prefix_len().max(1);
    network.subnets(length).into_iter().flatten()
}

/// Returns the number of session rules.
fn size(rules: &PortRules) -> usize {
    rules.iter().map(|(range, _)| range.map_or(1, |range| usize::from(range.last - range.first) + 1)).sum()
}

/// Returns the verdict for each port of the pair's connections, in ascending, complete ranges. The pair's own rules decide first, then
/// those of successively wider remote networks, and finally the stack's default allow.
fn verdicts(rules_of: impl Fn(&Pair) -> PortRules, pair: &Pair) -> Vec<(PortRange, Action)> {
    let mut decided: Vec<(PortRange, Action)> = Vec::new();
    let mut open = vec![PORTS];
    let mut remote = Some(pair.remote);
    while let Some(network) = remote.filter(|_| !open.is_empty()) {
        for (range, action) in rules_of(&Pair { remote: network, ..*pair }) {
            let range = range.unwrap_or(PORTS);
            let mut left = Vec::with_capacity(open.len() + 1);
            for part in open {
                let (first, last) = (part.first.max(range.first), part.last.min(range.last));
                if first > last {
                    left.push(part);
                    continue;
                }
                decided.push((PortRange { first, last }, action));
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

/// Returns the verdicts as a rule for all ports and rules for the excepted ports.
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
