//! An address set as elements of the kernel's sets: single addresses, and blocks of addresses.
//!
//! ```text
//!   interval   ..a|aaaaaaaa|aaaaaaaa|aaa..      blocks of 256 addresses that are whole: one element of an interval set
//!                 `------block-----'            what is left at either end: an element of a hash set for each address
//! ```
//! Changing an element of a hash set does not touch the others. An interval set is rewritten with each change, because nft's handling of a
//! change depends on all elements. Pods' addresses change often and come in short intervals anywhere. Blocks come from policies and rarely
//! change. An interval leaves at most 510 single addresses. A set with too many of them, such as a block with thousands of exceptions,
//! consists of blocks only.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bulkhead_classifier::AddressSet;

/// Number of addresses of a block, about that of a small pod network.
const BLOCK: u128 = 256;

/// The sorted elements of the four kernel sets that represent an address set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elements {
    pub(super) hosts4: Vec<u128>,
    pub(super) blocks4: Vec<(u128, u128)>,
    pub(super) hosts6: Vec<u128>,
    pub(super) blocks6: Vec<(u128, u128)>,
}

impl Elements {
    pub(super) fn of(set: &AddressSet) -> Self {
        let v4 = set.v4_intervals().iter().map(|&(first, last)| (u128::from(first), u128::from(last)));
        let ((hosts4, blocks4), (hosts6, blocks6)) = (split(v4), split(set.v6_intervals().iter().copied()));
        Self { hosts4, blocks4, hosts6, blocks6 }
    }
}

/// Maximum number of single addresses of a set whose intervals have more than [`FEW`] each on average. A larger set consists of blocks
/// only. Pods' addresses are exempt, because they form short intervals: an interval set of them would be larger than what it saves.
const MAX_HOSTS: u128 = 65_536;
/// Single addresses per interval, on average, up to which a set is exempt from [`MAX_HOSTS`].
const FEW: u128 = 16;

/// Returns the number of single addresses that [`split`] produces from an interval.
const fn singles((first, last): (u128, u128)) -> u128 {
    let (whole, end) = whole_blocks((first, last));
    if whole >= end { last - first + 1 } else { whole * BLOCK - first + (last % BLOCK + 1) % BLOCK }
}

/// Returns the block numbers of an interval: the first complete block, and the end of the complete blocks (exclusive).
const fn whole_blocks((first, last): (u128, u128)) -> (u128, u128) {
    (first / BLOCK + (first % BLOCK != 0) as u128, last / BLOCK + (last % BLOCK == BLOCK - 1) as u128)
}

fn split(intervals: impl Iterator<Item = (u128, u128)> + Clone) -> (Vec<u128>, Vec<(u128, u128)>) {
    let (mut hosts, mut blocks) = (Vec::new(), Vec::new());
    let (count, all) = intervals.clone().fold((0, 0), |(count, all), interval| (count + 1, all + singles(interval)));
    if all > MAX_HOSTS && all > FEW * count {
        return (hosts, intervals.collect());
    }
    for (first, last) in intervals {
        let (whole, end) = whole_blocks((first, last));
        if whole >= end {
            hosts.extend(first..=last);
            continue;
        }
        hosts.extend(first..whole * BLOCK);
        blocks.push((whole * BLOCK, (end - 1) * BLOCK + (BLOCK - 1)));
        if last % BLOCK != BLOCK - 1 {
            hosts.extend(end * BLOCK..=last);
        }
    }
    (hosts, blocks)
}

/// Returns the elements of `one` that are not in `other`. Both are sorted.
pub(super) fn without(one: &[u128], other: &[u128]) -> Vec<u128> {
    let mut other = other.iter().peekable();
    let mut left = Vec::new();
    for &address in one {
        while other.next_if(|&&lower| lower < address).is_some() {}
        if other.peek() != Some(&&address) {
            left.push(address);
        }
    }
    left
}

pub(super) fn address(number: u128, v4: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if v4 => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

/// Formats single addresses in nft's syntax.
pub(super) fn hosts(numbers: &[u128], v4: bool) -> String {
    joined(numbers.iter().map(|&number| address(number, v4).to_string()))
}

/// Formats blocks of addresses in nft's syntax.
pub(super) fn blocks(blocks: &[(u128, u128)], v4: bool) -> String {
    joined(blocks.iter().map(|&(first, last)| format!("{}-{}", address(first, v4), address(last, v4))))
}

/// Joins elements that are already in nft's syntax.
pub(super) fn texts(texts: &BTreeSet<String>) -> String {
    joined(texts.iter().cloned())
}

fn joined(elements: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for element in elements {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&element);
    }
    text
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;

    fn members(elements: &Elements) -> AddressSet {
        let hosts = |hosts: &[u128], v4| hosts.iter().map(|&host| address(host, v4)).collect::<Vec<_>>();
        let mut all: AddressSet =
            hosts(&elements.hosts4, true).into_iter().chain(hosts(&elements.hosts6, false)).collect();
        for (blocks, v4) in [(&elements.blocks4, true), (&elements.blocks6, false)] {
            for &(first, last) in blocks {
                let nets: Vec<IpNet> = match (address(first, v4), address(last, v4)) {
                    (IpAddr::V4(a), IpAddr::V4(b)) => ipnet::Ipv4Subnets::new(a, b, 0).map(IpNet::V4).collect(),
                    (IpAddr::V6(a), IpAddr::V6(b)) => ipnet::Ipv6Subnets::new(a, b, 0).map(IpNet::V6).collect(),
                    _ => panic!("two families"),
                };
                all = all.union(&nets.into_iter().collect());
            }
        }
        all
    }

    #[test]
    fn a_block_with_thousands_of_exceptions_stays_blocks_and_the_addresses_of_a_cluster_stay_hosts() {
        let holes = (0..5_000u128).map(|at| (at * 1_024, at * 1_024 + 1_000));
        let (hosts, blocks) = split(holes.clone());
        assert_eq!((hosts.len(), blocks), (0, holes.collect::<Vec<_>>()));
        let pods = (0..100_000u128).map(|at| (at * 2, at * 2));
        let (hosts, blocks) = split(pods);
        assert_eq!((hosts.len(), blocks.len()), (100_000, 0));
    }

    #[test]
    fn single_addresses_are_hosts_and_whole_blocks_are_blocks() {
        let set = |texts: &[&str]| texts.iter().map(|text| text.parse::<IpNet>().unwrap()).collect::<AddressSet>();
        let elements = Elements::of(&set(&["10.0.0.1/32", "10.0.0.2/32", "fd00::1/128"]));
        assert_eq!((hosts(&elements.hosts4, true).as_str(), elements.blocks4.len()), ("10.0.0.1, 10.0.0.2", 0));
        assert_eq!(hosts(&elements.hosts6, false), "fd00::1");
        let all = Elements::of(&set(&["0.0.0.0/0", "::/0"]));
        assert_eq!(blocks(&all.blocks4, true), "0.0.0.0-255.255.255.255");
        assert_eq!(blocks(&all.blocks6, false), "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        assert!(all.hosts4.is_empty() && all.hosts6.is_empty());
        let except = Elements::of(&set(&["10.16.0.0/16"]).subtract(&set(&["10.16.2.122/32"])));
        assert_eq!(blocks(&except.blocks4, true), "10.16.0.0-10.16.1.255, 10.16.3.0-10.16.255.255");
        assert_eq!(except.hosts4.len(), 255);
    }

    proptest! {
        #[test]
        fn the_elements_are_the_members_each_once(
            nets in proptest::collection::vec((any::<u32>(), 18_u8..=32, any::<bool>()), 0..12),
            holes in proptest::collection::vec((0_usize..12, 0_u32..0x4000), 0..6),
        ) {
            let mut set = AddressSet::default();
            for &(address, length, v4) in &nets {
                let net: IpNet = if v4 {
                    format!("{}/{length}", Ipv4Addr::from(address)).parse().unwrap()
                } else {
                    format!("{}/{}", Ipv6Addr::from(u128::MAX - u128::from(address)), 96 + length).parse().unwrap()
                };
                set = set.union(&[net.trunc()].into_iter().collect());
            }
            for (at, offset) in holes {
                if let Some((address, _, true)) = nets.get(at) {
                    let hole: IpAddr = Ipv4Addr::from(address.wrapping_add(offset)).into();
                    set = set.subtract(&[hole].into_iter().collect());
                }
            }
            let elements = Elements::of(&set);
            prop_assert_eq!(&members(&elements), &set);
            prop_assert!(elements.hosts4.is_sorted_by(|a, b| a < b) && elements.hosts6.is_sorted_by(|a, b| a < b));
            prop_assert!(without(&elements.hosts4, &elements.hosts4).is_empty());
            prop_assert_eq!(without(&elements.hosts4, &[]), elements.hosts4);
        }
    }
}
