//! The order of 6-tuples, and the verdict of a sorted list's first match.
//!
//! The order is Contiv's total order, extended by SCTP, other protocols and port ranges. For the tuples that Contiv supports, both are
//! equal. A rule whose traffic is contained in another's sorts before it (for networks without host bits). So a sorted list suits both a
//! linear scan and a longest-prefix match.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use bulkhead_classifier::{Action, Addresses, Key, Rule, Service, Services, protocol};
use ipnet::IpNet;

/// A rule of Contiv's tables: source, destination, protocol, destination ports and action. The source port is any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SixTuple {
    /// Source network. `None` for any address of both families.
    pub src: Option<IpNet>,
    /// Destination network. `None` for any address of both families.
    pub dst: Option<IpNet>,
    /// Protocol and destination ports. `None` for any.
    pub service: Option<Service>,
    /// Allow or deny.
    pub action: Action,
}

impl fmt::Display for SixTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = |net: &Option<IpNet>| net.map_or_else(|| "any".into(), |net| net.to_string());
        let service = self.service.map_or_else(|| "any".into(), |service| service.to_string());
        write!(f, "{:<5} {} -> {} {service}", self.action.to_string(), network(&self.src), network(&self.dst))
    }
}

/// Expands a rule into 6-tuples: each source prefix with each destination prefix and each protocol with its ports.
pub fn six_tuples(rule: &Rule) -> impl Iterator<Item = SixTuple> + '_ {
    let action = rule.action;
    prefixes(&rule.src).flat_map(move |src| {
        prefixes(&rule.dst)
            .flat_map(move |dst| services(&rule.services).map(move |service| SixTuple { src, dst, service, action }))
    })
}

fn prefixes(addresses: &Addresses) -> Box<dyn Iterator<Item = Option<IpNet>> + '_> {
    match addresses.members() {
        None => Box::new(std::iter::once(None)),
        Some(set) => Box::new(set.prefixes().map(Some)),
    }
}

fn services(services: &Services) -> Box<dyn Iterator<Item = Option<Service>> + '_> {
    match services {
        Services::Any => Box::new(std::iter::once(None)),
        Services::Set(set) => Box::new(set.services().map(Some)),
    }
}

/// Returns the sort key of a network: family (IPv4, IPv6, any), longer prefixes first, address. 0.0.0.0/0 is not "any" and sorts before it.
pub(in crate::renderer) fn network_key(network: Option<IpNet>) -> (u8, Reverse<u8>, u128) {
    match network {
        Some(IpNet::V4(net)) => (0, Reverse(net.prefix_len()), u32::from(net.addr()).into()),
        Some(IpNet::V6(net)) => (1, Reverse(net.prefix_len()), net.addr().into()),
        None => (2, Reverse(0), 0),
    }
}

/// Returns the sort key of a service. Fewer protocols first: TCP, UDP, SCTP, others by number, ranges, any. Then fewer ports first: single
/// ports ascending, ranges, all ports.
pub(in crate::renderer) fn service_key(service: Option<Service>) -> (u16, u8, u8, u16, u16) {
    let Some(Service { protocols: (first, last), ports }) = service else {
        return (u16::MAX, 0, 0, 0, 0);
    };
    let rank = match first {
        _ if first != last => 0,
        protocol::TCP => 0,
        protocol::UDP => 1,
        protocol::SCTP => 2,
        _ => 3,
    };
    (u16::from(last - first), rank, first, ports.last - ports.first, ports.first)
}

/// Returns the sort key of an action: deny before allow.
pub(in crate::renderer) const fn action_key(action: Action) -> bool {
    matches!(action, Action::Allow)
}

impl Ord for SixTuple {
    /// Compares in Contiv's order: source, destination, protocol, port, action.
    fn cmp(&self, other: &Self) -> Ordering {
        network_key(self.src)
            .cmp(&network_key(other.src))
            .then_with(|| network_key(self.dst).cmp(&network_key(other.dst)))
            .then_with(|| service_key(self.service).cmp(&service_key(other.service)))
            .then_with(|| action_key(self.action).cmp(&action_key(other.action)))
    }
}

impl PartialOrd for SixTuple {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl SixTuple {
    /// Returns the rule that matches all traffic.
    pub const fn any(action: Action) -> Self {
        Self { src: None, dst: None, service: None, action }
    }

    /// Compares source and destination network with those of the tuple, in Contiv's order.
    pub(super) fn cmp_networks(&self, src: Option<IpNet>, dst: Option<IpNet>) -> Ordering {
        network_key(self.src).cmp(&network_key(src)).then_with(|| network_key(self.dst).cmp(&network_key(dst)))
    }

    /// Whether the rule matches the packet.
    pub fn matches(&self, key: &Key) -> bool {
        self.src.is_none_or(|net| net.contains(&key.src()))
            && self.dst.is_none_or(|net| net.contains(&key.dst()))
            && self.service.is_none_or(|service| {
                let (first, last) = service.protocols;
                (first..=last).contains(&key.protocol()) && service.ports.contains(key.dst_port())
            })
    }
}

/// Returns the verdict of a table. A table without rules is not applied and allows everything. In other tables, traffic that no rule
/// matches is denied, as in an ACL. (The cache ends its tables with a rule that matches everything.)
pub fn first_match<'a>(rules: impl IntoIterator<Item = &'a SixTuple>, key: &Key) -> Action {
    let mut rules = rules.into_iter().peekable();
    if rules.peek().is_none() {
        return Action::Allow;
    }
    rules.find(|rule| rule.matches(key)).map_or(Action::Deny, |rule| rule.action)
}

#[cfg(test)]
mod tests {
    use bulkhead_classifier::PortRange;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::*;

    fn service(number: u8, first: u16, last: u16) -> Option<Service> {
        Some(Service { protocols: (number, number), ports: PortRange { first, last } })
    }

    fn tuple(src: &str, dst: &str, service: Option<Service>, action: Action) -> SixTuple {
        SixTuple { src: src.parse().ok(), dst: dst.parse().ok(), service, action }
    }

    #[test]
    fn the_order_is_contivs_where_contiv_has_one() {
        let (tcp, udp) = (protocol::TCP, protocol::UDP);
        let sorted = [
            tuple("10.0.0.1/32", "", service(tcp, 80, 80), Action::Allow),
            tuple("10.0.0.1/32", "", service(tcp, 443, 443), Action::Allow),
            tuple("10.0.0.1/32", "", service(tcp, 0, 65535), Action::Allow),
            tuple("10.0.0.1/32", "", service(udp, 53, 53), Action::Allow),
            tuple("10.0.0.1/32", "", None, Action::Deny),
            tuple("10.0.0.1/32", "", None, Action::Allow),
            tuple("10.0.0.2/32", "", service(tcp, 80, 80), Action::Allow),
            tuple("192.168.0.0/16", "", None, Action::Allow),
            tuple("10.0.0.0/8", "", None, Action::Allow),
            tuple("0.0.0.0/0", "", None, Action::Allow),
            tuple("fd00::/64", "", None, Action::Allow),
            tuple("fd00::/16", "", None, Action::Allow),
            tuple("", "10.0.0.0/8", None, Action::Allow),
            tuple("", "", service(udp, 0, 65535), Action::Allow),
            tuple("", "", None, Action::Deny),
            tuple("", "", None, Action::Allow),
        ];
        assert!(sorted.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn sctp_other_protocols_and_ranges_sort_between_contivs_rules() {
        let of = |service| tuple("", "", service, Action::Allow);
        let block = Some(Service { protocols: (133, 255), ports: PortRange::ALL });
        let sorted = [
            of(service(protocol::TCP, 443, 443)),
            of(service(protocol::TCP, 80, 81)),
            of(service(protocol::TCP, 0, 65535)),
            of(service(protocol::UDP, 1, 1)),
            of(service(protocol::SCTP, 1, 1)),
            of(service(protocol::ICMP, 0, 65535)),
            of(block),
            of(None),
        ];
        assert!(sorted.is_sorted_by(|a, b| a < b));
    }

    fn any_tuple() -> impl Strategy<Value = SixTuple> {
        let net = || {
            prop_oneof![
                Just(None),
                (0u32..8, 28u8..=32)
                    .prop_map(|(host, len)| Some(IpNet::new(std::net::Ipv4Addr::from(host).into(), len).unwrap())),
                (0u128..8, 124u8..=128)
                    .prop_map(|(host, len)| Some(IpNet::new(std::net::Ipv6Addr::from(host).into(), len).unwrap())),
            ]
            .prop_map(|net| net.map(|net| net.trunc()))
        };
        let service = prop_oneof![
            Just(None),
            (prop_oneof![Just((6, 6)), Just((17, 17)), Just((132, 132)), Just((1, 1)), Just((0, 255)), Just((1, 6))])
                .prop_flat_map(|protocols| (Just(protocols), 0u16..4, 0u16..4))
                .prop_map(|(protocols, first, more)| {
                    let ports = if more == 3 { PortRange::ALL } else { PortRange { first, last: first + more } };
                    Some(Service { protocols, ports })
                }),
        ];
        (net(), net(), service, any::<bool>()).prop_map(|(src, dst, service, allow)| SixTuple {
            src,
            dst,
            service,
            action: if allow { Action::Allow } else { Action::Deny },
        })
    }

    fn inside(a: &SixTuple, b: &SixTuple) -> bool {
        let net = |a: Option<IpNet>, b: Option<IpNet>| b.is_none_or(|b| a.is_some_and(|a| b.contains(&a)));
        let service = b.service.is_none_or(|b| {
            a.service.is_some_and(|a| {
                b.protocols.0 <= a.protocols.0
                    && a.protocols.1 <= b.protocols.1
                    && b.ports.first <= a.ports.first
                    && a.ports.last <= b.ports.last
            })
        });
        net(a.src, b.src) && net(a.dst, b.dst) && service
    }

    #[test]
    fn what_lies_inside_another_rule_sorts_before_it_and_the_order_is_total() {
        let mut inner = 0;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let cases = proptest::collection::vec(any_tuple(), 3);
        for _ in 0..3_000 {
            let rules = cases.new_tree(&mut runner).unwrap().current();
            for (a, b) in rules.iter().flat_map(|a| rules.iter().map(move |b| (a, b))) {
                assert_eq!(a.cmp(b), b.cmp(a).reverse());
                assert_eq!(a.cmp(b) == Ordering::Equal, a == b);
                if a.action == b.action && a != b && inside(a, b) {
                    inner += 1;
                    assert!(a < b, "{a} lies in {b}");
                }
            }
            let [a, b, c] = &rules[..] else { unreachable!() };
            assert!(!(a <= b && b <= c) || a <= c);
        }
        assert!(inner > 100, "nested pairs were reached: {inner}");
    }
}
