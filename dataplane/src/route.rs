//! Longest-prefix match from a destination address to the next hop: a port and optionally a gateway behind it.
//!
//! A node has a few hundred host routes (its pods, its own addresses) and a handful of prefixes (default routes). Host routes are in a hash
//! table. The other prefixes are in one sorted list per prefix length, longest first, each searched by bisection. A trie is not faster with
//! two or three lengths and needs four times the code. Host routes with a gateway are rare and are stored as prefixes.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::PortId;
use crate::address_map::AddressMap;

/// The destination of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop {
    /// The output port.
    pub port: PortId,
    /// The router behind that port. `None` if the destination itself is on the port's link.
    pub gateway: Option<IpAddr>,
    /// Whether no host has the addresses of the route. The port's table then decides whether the sender may learn that.
    pub is_unreachable: bool,
}

impl NextHop {
    /// Returns the next hop behind a port. `None` as the gateway if the destination is on the port's link.
    pub const fn via(port: PortId, gateway: Option<IpAddr>) -> Self {
        Self { port, gateway, is_unreachable: false }
    }

    /// Returns the destination of addresses that no host has. `port` is the one whose table judges packets to them.
    pub const fn unreachable(port: PortId) -> Self {
        Self { port, gateway: None, is_unreachable: true }
    }
}

impl From<PortId> for NextHop {
    fn from(port: PortId) -> Self {
        Self::via(port, None)
    }
}

/// The reason why a routing table was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Two routes for the same prefix have different next hops.
    #[error("two routes for {prefix} lead to different next hops ({first:?} and {second:?}); keep one of them")]
    Conflict {
        /// The prefix that both routes have.
        prefix: IpNet,
        /// Next hop of the first route.
        first: NextHop,
        /// Next hop of the second route.
        second: NextHop,
    },
    /// The gateway's address family differs from the prefix's. RFC 8950 next hops are not supported: no node needs them.
    #[error(
        "the route for {prefix} has the gateway {gateway} of the other address family; set a gateway of the prefix's family"
    )]
    GatewayFamily {
        /// The prefix of the route.
        prefix: IpNet,
        /// The route's gateway.
        gateway: IpAddr,
    },
}

/// An immutable routing table for both address families.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Routes with prefix length 32 or 128 and without a gateway.
    hosts: AddressMap,
    v4: Vec<Level<u32>>,
    v6: Vec<Level<u128>>,
    /// The next hops that have a gateway, without repetitions.
    gateways: Vec<NextHop>,
}

/// All other routes of one prefix length, in ascending order of their networks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level<T> {
    mask: T,
    routes: Vec<(T, Hop)>,
}

/// A next hop in 4 bytes, so that many fit into a cache line and per-gateway state can be kept in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) port: PortId,
    /// A position in [`Routes::gateways`], [`Hop::DIRECT`] without a gateway, or [`Hop::UNREACHABLE`].
    pub(crate) gateway: u16,
}

impl Hop {
    /// Returns the hop to a host on the port's link.
    pub(crate) const fn direct(port: PortId) -> Self {
        Self { port, gateway: Self::DIRECT }
    }

    /// Whether no host has the addresses of the route.
    pub(crate) const fn is_unreachable(self) -> bool {
        self.gateway == Self::UNREACHABLE
    }

    const DIRECT: u16 = u16::MAX;
    /// The position for a route whose addresses no host has.
    const UNREACHABLE: u16 = u16::MAX - 1;
}

impl Routes {
    /// Builds the table from prefixes and next hops. A [`PortId`] converts to a next hop without a gateway. Bits after the prefix length
    /// are ignored. The caller ensures that each gateway is on its port's link.
    ///
    /// # Errors
    /// [`RouteError`] if one prefix has two different next hops (an identical route twice is fine), or a gateway of the other address
    /// family.
    ///
    /// # Panics
    /// If the routes name 65,534 gateways or more.
    pub fn new<N: Into<NextHop>>(routes: impl IntoIterator<Item = (IpNet, N)>) -> Result<Self, RouteError> {
        let mut prefixes: Vec<(IpNet, NextHop)> =
            routes.into_iter().map(|(net, to)| (net.trunc(), to.into())).collect();
        prefixes.sort_by_key(|&(net, to)| (std::cmp::Reverse(net.prefix_len()), net, to));
        prefixes.dedup();
        if let Some(pair) = prefixes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(RouteError::Conflict { prefix: pair[0].0, first: pair[0].1, second: pair[1].1 });
        }
        let mut table = Self::default();
        for (prefix, to) in prefixes {
            let hop = Hop { port: to.port, gateway: table.gateway_index(prefix, to)? };
            match prefix {
                _ if hop.gateway == Hop::DIRECT && prefix.prefix_len() == prefix.max_prefix_len() => {
                    table.hosts.insert(prefix.addr(), hop.port);
                }
                IpNet::V4(net) => push(&mut table.v4, net.netmask().into(), net.network().into(), hop),
                IpNet::V6(net) => push(&mut table.v6, net.netmask().into(), net.network().into(), hop),
            }
        }
        Ok(table)
    }

    /// Returns the port of the longest matching prefix, or `None` if no prefix matches.
    pub fn lookup(&self, address: IpAddr) -> Option<PortId> {
        self.find(address).map(|hop| hop.port)
    }

    /// Returns the next hop of the longest matching prefix, or `None` if no prefix matches.
    pub fn next_hop(&self, address: IpAddr) -> Option<NextHop> {
        let hop = self.find(address)?;
        let without_gateway = NextHop { is_unreachable: hop.is_unreachable(), ..hop.port.into() };
        Some(self.gateways.get(usize::from(hop.gateway)).copied().unwrap_or(without_gateway))
    }

    /// Returns the next hops that have a gateway, in the order of [`Hop::gateway`].
    pub(crate) fn gateways(&self) -> &[NextHop] {
        &self.gateways
    }

    /// Like [`Routes::next_hop`], but returns the gateway's index instead of its address.
    pub(crate) fn find(&self, address: IpAddr) -> Option<Hop> {
        if let Some(port) = self.hosts.get(address) {
            return Some(Hop::direct(port));
        }
        match address {
            IpAddr::V4(a) => longest(&self.v4, u32::from(a)),
            IpAddr::V6(a) => longest(&self.v6, u128::from(a)),
        }
    }

    /// Returns the output port of every route, with repetitions.
    pub(crate) fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let v4 = self.v4.iter().flat_map(|level| level.routes.iter().map(|(_, hop)| hop.port));
        let v6 = self.v6.iter().flat_map(|level| level.routes.iter().map(|(_, hop)| hop.port));
        self.hosts.ports().chain(v4).chain(v6)
    }

    /// Returns whether both tables have the same routes, apart from host routes.
    pub(crate) fn has_prefixes_of(&self, other: &Self) -> bool {
        self.v4 == other.v4 && self.v6 == other.v6 && self.gateways == other.gateways
    }

    /// Returns the ports of host routes that lead elsewhere, or nowhere, in the other table. Ports may repeat.
    pub(crate) fn hosts_lost(&self, other: &Self) -> impl Iterator<Item = PortId> {
        let is_lost = |&(address, port): &(IpAddr, PortId)| other.lookup(address) != Some(port);
        self.hosts.iter().filter(is_lost).map(|(_, port)| port)
    }

    fn gateway_index(&mut self, prefix: IpNet, to: NextHop) -> Result<u16, RouteError> {
        let Some(gateway) = to.gateway else {
            return Ok(if to.is_unreachable { Hop::UNREACHABLE } else { Hop::DIRECT });
        };
        if gateway.is_ipv4() != prefix.addr().is_ipv4() {
            return Err(RouteError::GatewayFamily { prefix, gateway });
        }
        let at = self.gateways.iter().position(|&known| known == to).unwrap_or_else(|| {
            self.gateways.push(to);
            self.gateways.len() - 1
        });
        assert!(at < usize::from(Hop::UNREACHABLE), "no node has that many routers around it");
        Ok(u16::try_from(at).expect("checked in the line before"))
    }
}

/// Appends a route. Its prefix must not be longer than those before it.
fn push<T: PartialEq>(levels: &mut Vec<Level<T>>, mask: T, network: T, hop: Hop) {
    match levels.last_mut() {
        Some(level) if level.mask == mask => level.routes.push((network, hop)),
        _ => levels.push(Level { mask, routes: vec![(network, hop)] }),
    }
}

fn longest<T: Copy + Ord + std::ops::BitAnd<Output = T>>(levels: &[Level<T>], address: T) -> Option<Hop> {
    levels.iter().find_map(|level| {
        let network = address & level.mask;
        let at = level.routes.binary_search_by_key(&network, |&(net, _)| net).ok()?;
        Some(level.routes[at].1)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    fn routes(list: &[(&str, u16)]) -> Routes {
        Routes::new(list.iter().map(|&(net, port)| (net.parse().unwrap(), PortId(port)))).unwrap()
    }

    #[test]
    fn the_longest_prefix_wins() {
        let table = routes(&[("0.0.0.0/0", 0), ("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("10.1.2.3/32", 3)]);
        let to = |a: &str| table.lookup(a.parse().unwrap()).map(|p| p.0);
        assert_eq!(
            [to("10.1.2.3"), to("10.1.2.4"), to("10.2.0.1"), to("8.8.8.8")],
            [Some(3), Some(2), Some(1), Some(0)]
        );
    }

    #[test]
    fn a_route_of_one_family_is_no_route_for_the_other() {
        let table = routes(&[("0.0.0.0/0", 0)]);
        assert_eq!(table.lookup("2001:db8::1".parse().unwrap()), None);
        assert_eq!(table.lookup("::ffff:10.0.0.1".parse().unwrap()), None);
    }

    #[test]
    fn an_empty_table_has_no_route() {
        assert_eq!(Routes::default().lookup("10.0.0.1".parse().unwrap()), None);
    }

    #[test]
    fn one_prefix_to_two_ports_is_refused_and_the_same_route_twice_is_not() {
        let net: IpNet = "10.0.0.0/24".parse().unwrap();
        let same: IpNet = "10.0.0.7/24".parse().unwrap();
        assert!(Routes::new([(net, PortId(1)), (same, PortId(1))]).is_ok());
        let error = Routes::new([(net, PortId(1)), (same, PortId(2))]).unwrap_err();
        assert_eq!(error, RouteError::Conflict { prefix: net, first: PortId(1).into(), second: PortId(2).into() });
    }

    fn via(port: u16, gateway: &str) -> NextHop {
        NextHop::via(PortId(port), Some(gateway.parse().unwrap()))
    }

    #[test]
    fn addresses_that_no_host_has_are_told_from_those_of_longer_and_shorter_prefixes() {
        let nets = [
            ("0.0.0.0/0", PortId(0).into()),
            ("10.1.0.0/16", NextHop::unreachable(PortId(0))),
            ("10.1.7.0/24", via(1, "10.1.7.1")),
            ("10.1.0.2/32", PortId(2).into()),
            ("fd00::9/128", NextHop::unreachable(PortId(0))),
        ];
        let table = Routes::new(nets.map(|(net, to)| (net.parse().unwrap(), to))).unwrap();
        let is_unreachable = |address: &str| table.find(address.parse().unwrap()).unwrap().is_unreachable();
        assert_eq!(["10.1.0.3", "fd00::9"].map(is_unreachable), [true; 2]);
        assert_eq!(["10.1.0.2", "10.1.7.7", "10.2.0.1"].map(is_unreachable), [false; 3]);
        assert_eq!(table.next_hop("10.1.0.3".parse().unwrap()), Some(NextHop::unreachable(PortId(0))));
    }

    #[test]
    fn a_route_may_name_a_gateway_and_the_port_alone_is_still_found() {
        let nets = [("0.0.0.0/0", via(0, "192.168.0.254")), ("192.168.0.0/24", PortId(0).into())];
        let six = [("::/0", via(0, "fe80::1")), ("fd00::9/128", via(1, "fd00::1"))];
        let table = Routes::new(nets.into_iter().chain(six).map(|(net, to)| (net.parse().unwrap(), to))).unwrap();
        let to = |address: &str| table.next_hop(address.parse().unwrap()).unwrap();
        assert_eq!(to("8.8.8.8"), via(0, "192.168.0.254"));
        assert_eq!(to("192.168.0.7"), PortId(0).into());
        assert_eq!(to("2001:db8::1"), via(0, "fe80::1"));
        assert_eq!(to("fd00::9"), via(1, "fd00::1"));
        assert_eq!(table.lookup("8.8.8.8".parse().unwrap()), Some(PortId(0)));
        assert_eq!(table.ports().count(), 4);
    }

    #[test]
    fn a_gateway_of_the_other_family_and_two_gateways_for_one_prefix_are_refused() {
        let net: IpNet = "10.0.0.0/24".parse().unwrap();
        let error = Routes::new([(net, via(0, "fe80::1"))]).unwrap_err();
        assert_eq!(error, RouteError::GatewayFamily { prefix: net, gateway: "fe80::1".parse().unwrap() });
        let error = Routes::new([(net, via(0, "10.9.9.9")), (net, via(0, "10.9.9.8"))]).unwrap_err();
        assert!(matches!(error, RouteError::Conflict { .. }));
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        prop_oneof![
            (0u32..256, 20u8..=32)
                .prop_map(|(host, len)| IpNet::new(IpAddr::V4((0x0a00_0000 | host).into()), len).unwrap()),
            Just("0.0.0.0/0".parse().unwrap()),
            (0u128..256, 118u8..=128)
                .prop_map(|(host, len)| IpNet::new(IpAddr::V6((0xfd << 120 | host).into()), len).unwrap()),
        ]
    }

    proptest! {
        #[test]
        fn the_table_answers_like_a_scan_of_all_prefixes(list in proptest::collection::vec((prefix(), 0u16..4), 0..12)) {
            let mut unique: HashMap<IpNet, PortId> = HashMap::new();
            for (net, port) in list {
                unique.entry(net.trunc()).or_insert(PortId(port));
            }
            let table = Routes::new(unique.clone()).unwrap();
            for host in 0u32..256 {
                for address in [IpAddr::V4((0x0a00_0000 | host).into()), IpAddr::V6((0xfd << 120 | u128::from(host)).into())] {
                    let best = unique.iter().filter(|(net, _)| net.contains(&address)).max_by_key(|(net, _)| net.prefix_len());
                    prop_assert_eq!(table.lookup(address), best.map(|(_, &port)| port));
                }
            }
        }
    }
}
