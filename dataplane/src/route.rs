//! Longest-prefix match from a destination address to the port that leads there.
//!
//! A node's routes are a few hundred hosts (its pods, its own addresses) and a handful of prefixes (default routes).
//! So hosts lie in a hash table and the other prefixes in one sorted list per prefix length that occurs, longest
//! first; each length is one binary search. A trie was not taken: with two or three lengths it is no faster and
//! four times the code.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::PortId;
use crate::address_map::AddressMap;

/// Two routes for the same prefix lead to different ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two routes for {prefix} lead to different ports ({first:?} and {second:?}); keep one of them")]
pub struct RouteError {
    /// The prefix.
    pub prefix: IpNet,
    /// Where its first route leads.
    pub first: PortId,
    /// Where its second route leads.
    pub second: PortId,
}

/// An immutable routing table for both families.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// /32 and /128.
    hosts: AddressMap,
    v4: Vec<Level<u32>>,
    v6: Vec<Level<u128>>,
}

/// All routes of one prefix length: (network, port), ascending.
#[derive(Clone, Debug)]
struct Level<T> {
    mask: T,
    routes: Vec<(T, PortId)>,
}

impl Routes {
    /// Builds the table. The bits of a prefix after its length are ignored.
    ///
    /// # Errors
    /// [`RouteError`] when one prefix leads to two ports; the same route twice is fine.
    pub fn new(routes: impl IntoIterator<Item = (IpNet, PortId)>) -> Result<Self, RouteError> {
        let mut prefixes: Vec<(IpNet, PortId)> = routes.into_iter().map(|(net, port)| (net.trunc(), port)).collect();
        prefixes.sort_by_key(|&(net, port)| (std::cmp::Reverse(net.prefix_len()), net, port));
        prefixes.dedup();
        if let Some(pair) = prefixes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(RouteError { prefix: pair[0].0, first: pair[0].1, second: pair[1].1 });
        }
        let mut table = Self::default();
        for (net, port) in prefixes {
            match net {
                _ if net.prefix_len() == net.max_prefix_len() => {
                    table.hosts.insert(net.addr(), port);
                }
                IpNet::V4(net) => push(&mut table.v4, net.netmask().into(), net.network().into(), port),
                IpNet::V6(net) => push(&mut table.v6, net.netmask().into(), net.network().into(), port),
            }
        }
        Ok(table)
    }

    /// The port of the longest prefix that contains the address, none when there is no such prefix.
    pub fn lookup(&self, address: IpAddr) -> Option<PortId> {
        if let Some(port) = self.hosts.get(address) {
            return Some(port);
        }
        match address {
            IpAddr::V4(a) => longest(&self.v4, u32::from(a)),
            IpAddr::V6(a) => longest(&self.v6, u128::from(a)),
        }
    }

    /// Every port that a route leads to, with repetitions.
    pub(crate) fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let v4 = self.v4.iter().flat_map(|level| level.routes.iter().map(|&(_, port)| port));
        let v6 = self.v6.iter().flat_map(|level| level.routes.iter().map(|&(_, port)| port));
        self.hosts.ports().chain(v4).chain(v6)
    }
}

/// Appends a route whose prefix is not longer than those before it.
fn push<T: PartialEq>(levels: &mut Vec<Level<T>>, mask: T, network: T, port: PortId) {
    match levels.last_mut() {
        Some(level) if level.mask == mask => level.routes.push((network, port)),
        _ => levels.push(Level { mask, routes: vec![(network, port)] }),
    }
}

fn longest<T: Copy + Ord + std::ops::BitAnd<Output = T>>(levels: &[Level<T>], address: T) -> Option<PortId> {
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
        assert_eq!(error.prefix, net);
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
