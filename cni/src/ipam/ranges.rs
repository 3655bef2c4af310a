//! Sets of address ranges, from which containers get their addresses.
//!
//! The fields and the order of assignment are those of `host-local`: the address after the last assigned one, so that a released address is
//! reused as late as possible. A search visits at most one address more than are taken, independent of the ranges' sizes.
//!
//! Never assigned, even if a range names them: a subnet's own address, the first address after that (the vswitch sends translated
//! connections from it, see `source_addresses` in docs/services.md), a gateway, and the broadcast address of an IPv4 subnet. `host-local`
//! assigns the first address if another one is the gateway, and the subnet's and the broadcast address if a range includes them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Deserialize;

/// A range as the configuration has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fields {
    pub(super) subnet: IpNet,
    /// The first address to assign. `None` for the subnet's first.
    #[serde(rename = "rangeStart")]
    pub(super) start: Option<IpAddr>,
    /// The last address to assign. `None` for the subnet's last.
    #[serde(rename = "rangeEnd")]
    pub(super) end: Option<IpAddr>,
    /// The address that `host-local` reports as the gateway, which is not assigned. `None` for the subnet's first.
    pub(super) gateway: Option<IpAddr>,
}

/// The addresses `first` to `last` of one family, as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    is_v4: bool,
    first: u128,
    last: u128,
    gateway: u128,
}

/// Ranges of one family. A container gets one address from each set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// Not empty. No two ranges overlap.
    ranges: Vec<Range>,
}

impl Set {
    /// Returns the next address after `last` that is neither excluded nor taken. After the last address of the set, the first one follows.
    /// `None` if all are taken. The search begins with the first address if `last` is `None` or outside the set.
    pub(super) fn next(&self, last: Option<IpAddr>, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let ranges = &self.ranges;
        let place = last.and_then(|last| Some((ranges.iter().position(|range| range.contains(last))?, number(last))));
        let (at, begin, skipped) = match place {
            Some((at, last)) => (at, last, 1),
            None => (0, ranges[0].first, 0),
        };
        let others = ranges[at + 1..].iter().chain(&ranges[..at]).flat_map(|range| range.first..=range.last);
        let all = (begin..=ranges[at].last).skip(skipped).chain(others).chain(ranges[at].first..=begin);
        let is_gateway = |number: u128| ranges.iter().any(|range| range.gateway == number);
        all.filter(|number| !is_gateway(*number))
            .map(|number| ranges[at].address(number))
            .find(|address| !is_taken(*address))
    }

    /// Whether the set may assign the address.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
            && self.ranges.iter().all(|range| range.gateway != number(address))
    }
}

/// The ranges' first and last addresses, as error messages have them.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.ranges.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{} to {}", range.address(range.first), range.address(range.last))?;
        }
        Ok(())
    }
}

impl Range {
    /// Checks the fields of a range. The error names the field.
    fn read(fields: &Fields) -> Result<Self, String> {
        let Fields { subnet, start, end, gateway } = fields;
        if subnet.addr() != subnet.network() {
            return Err(format!("subnet: {subnet} has bits after its prefix; write {}", subnet.trunc()));
        }
        if matches!(subnet.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
            return Err(format!("subnet: {subnet} contains mapped IPv4 addresses; write an IPv4 subnet"));
        }
        if subnet.max_prefix_len() - subnet.prefix_len() < 2 {
            let longest = subnet.max_prefix_len() - 2;
            return Err(format!("subnet: {subnet} is too small; use a prefix of at most {longest} bits"));
        }
        for (field, address) in [("rangeStart", start), ("rangeEnd", end)] {
            if let Some(address) = address.filter(|address| !subnet.contains(address)) {
                return Err(format!("{field}: {address} is not in the subnet {subnet}"));
            }
        }
        let is_v4 = subnet.addr().is_ipv4();
        if let Some(gateway) = gateway.filter(|gateway| gateway.is_ipv4() != is_v4) {
            return Err(format!("gateway: {gateway} is not of the family of the subnet {subnet}"));
        }
        let network = number(subnet.network());
        // Only IPv4 has broadcast addresses.
        let top = number(subnet.broadcast()) - u128::from(is_v4);
        let first = start.map_or(network, number).max(network + 2);
        let last = end.map_or(top, number).min(top);
        let gateway = gateway.map_or(network + 1, number);
        if first > last || (first == last && first == gateway) {
            return Err(format!(
                "subnet: {subnet} has no address to assign; rangeStart to rangeEnd must contain more than the subnet's first two \
                 addresses, its broadcast address and the gateway"
            ));
        }
        Ok(Self { is_v4, first, last, gateway })
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_v4 && (self.first..=self.last).contains(&number(address))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.is_v4 == other.is_v4 && self.first <= other.last && other.first <= self.last
    }

    fn address(&self, number: u128) -> IpAddr {
        match u32::try_from(number) {
            Ok(number) if self.is_v4 => Ipv4Addr::from(number).into(),
            _ => Ipv6Addr::from(number).into(),
        }
    }
}

/// Checks the sets of ranges.
///
/// # Errors
/// A text that names the field below `ipam` and the remedy.
pub(super) fn read(sets: &[Vec<Fields>]) -> Result<Vec<Set>, String> {
    let mut all: Vec<(String, Range)> = Vec::new();
    let mut read = Vec::new();
    for (at, set) in sets.iter().enumerate() {
        let mut ranges: Vec<Range> = Vec::new();
        for (index, fields) in set.iter().enumerate() {
            let path = format!("ranges[{at}][{index}]");
            let range = Range::read(fields).map_err(|why| format!("{path}.{why}"))?;
            if let Some((other, _)) = all.iter().find(|(_, other)| other.overlaps(&range)) {
                return Err(format!("{path}: overlaps with {other}; give each address in one range only"));
            }
            if ranges.first().is_some_and(|first| first.is_v4 != range.is_v4) {
                return Err(format!("{path}: is not of the family of ranges[{at}][0]; write a set for each family"));
            }
            ranges.push(range.clone());
            all.push((path, range));
        }
        if ranges.is_empty() {
            return Err(format!("ranges[{at}]: has no range; write [{{\"subnet\": \"10.244.1.0/24\"}}], or remove it"));
        }
        read.push(Set { ranges });
    }
    Ok(read)
}

/// Returns an address as a number. Addresses of different families may have the same.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn sets(ranges: Value) -> Result<Vec<Set>, String> {
        read(&serde_json::from_value::<Vec<Vec<Fields>>>(ranges).unwrap())
    }

    fn set(ranges: &Value) -> Set {
        sets(json!([ranges])).unwrap().remove(0)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Takes addresses until the set is full.
    fn all(set: &Set) -> Vec<String> {
        let (mut taken, mut order, mut last) = (BTreeSet::new(), Vec::new(), None);
        while let Some(address) = set.next(last, |address| taken.contains(&address)) {
            assert!(taken.insert(address) && set.contains(address), "{address}");
            order.push(address.to_string());
            last = Some(address);
        }
        order
    }

    #[test]
    fn the_ends_the_gateway_and_the_vswitchs_own_address_are_never_assigned() {
        assert_eq!(all(&set(&json!([{"subnet": "10.1.0.0/30"}]))), ["10.1.0.2"]);
        assert_eq!(all(&set(&json!([{"subnet": "10.1.0.8/29"}]))).len(), 5);
        assert_eq!(all(&set(&json!([{"subnet": "10.1.0.0/24"}]))).len(), 253);
        assert_eq!(all(&set(&json!([{"subnet": "fd00::/126"}]))), ["fd00::2", "fd00::3"]);
        let named =
            json!([{"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.7", "gateway": "10.1.0.4"}]);
        assert_eq!(all(&set(&named)), ["10.1.0.2", "10.1.0.3", "10.1.0.5", "10.1.0.6"]);
        let two = json!([
            {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20", "rangeEnd": "10.1.0.21", "gateway": "10.1.0.11"},
            {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12"},
        ]);
        let set = set(&two);
        assert_eq!(all(&set), ["10.1.0.20", "10.1.0.21", "10.1.0.10", "10.1.0.12"]);
        assert_eq!(set.to_string(), "10.1.0.20 to 10.1.0.21, 10.1.0.10 to 10.1.0.12");
    }

    #[test]
    fn the_highest_addresses_of_both_families_do_not_overflow() {
        assert_eq!(all(&set(&json!([{"subnet": "255.255.255.248/29"}]))).last().unwrap(), "255.255.255.254");
        let v6 = all(&set(&json!([{"subnet": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125"}])));
        assert_eq!((v6.len(), &**v6.last().unwrap()), (6, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
    }

    #[test]
    fn the_search_goes_on_after_the_last_assigned_address_and_begins_again_at_the_end() {
        let set = set(&json!([{"subnet": "10.1.0.0/29"}, {"subnet": "10.2.0.0/30"}]));
        let next = |last: &str, taken: &[&str]| {
            set.next(Some(ip(last)), |address| taken.contains(&&*address.to_string())).map(|next| next.to_string())
        };
        assert_eq!(next("10.1.0.3", &[]).unwrap(), "10.1.0.4");
        assert_eq!(next("10.1.0.6", &[]).unwrap(), "10.2.0.2");
        assert_eq!(next("10.2.0.2", &["10.1.0.2"]).unwrap(), "10.1.0.3");
        assert_eq!(next("10.9.0.1", &[]).unwrap(), "10.1.0.2", "it is outside the set");
        let others = ["10.1.0.2", "10.1.0.3", "10.1.0.5", "10.1.0.6", "10.2.0.2"];
        assert_eq!(next("10.1.0.4", &others).unwrap(), "10.1.0.4", "the last one is free again, and no other is");
    }

    #[test]
    fn a_search_visits_no_more_addresses_than_are_taken() {
        for subnet in ["10.0.0.0/8", "fd00::/64", "::/1"] {
            let (set, visited) = (set(&json!([{"subnet": subnet}])), Cell::new(0));
            let taken = |_| visited.replace(visited.get() + 1) < 100;
            assert!(set.next(None, taken).is_some());
            assert_eq!(visited.get(), 101);
        }
    }

    #[test]
    fn a_range_that_makes_no_sense_is_named_with_its_place_and_the_remedy() {
        for (ranges, says) in [
            (
                json!([[{"subnet": "10.1.0.5/24"}]]),
                "ranges[0][0].subnet: 10.1.0.5/24 has bits after its prefix; write 10.1.0.0/24",
            ),
            (
                json!([[{"subnet": "10.1.0.4/31"}]]),
                "ranges[0][0].subnet: 10.1.0.4/31 is too small; use a prefix of at most 30 bits",
            ),
            (
                json!([[{"subnet": "fd00::/128"}]]),
                "ranges[0][0].subnet: fd00::/128 is too small; use a prefix of at most 126",
            ),
            (json!([[{"subnet": "::ffff:10.1.0.0/120"}]]), "ranges[0][0].subnet: ::ffff:10.1.0.0/120 contains mapped"),
            (
                json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}]]),
                "ranges[0][0].rangeStart: 10.2.0.1 is not in the subnet 10.1.0.0/24",
            ),
            (json!([[{"subnet": "10.1.0.0/24", "rangeEnd": "fd00::1"}]]), "ranges[0][0].rangeEnd: fd00::1 is not in"),
            (
                json!([[{"subnet": "10.1.0.0/24", "gateway": "fd00::1"}]]),
                "ranges[0][0].gateway: fd00::1 is not of the family",
            ),
            (
                json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}]]),
                "ranges[0][0].subnet: 10.1.0.0/24 has no address to assign",
            ),
            (json!([[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.1"}]]), "ranges[0][0].subnet: 10.1.0.0/"),
            (json!([[{"subnet": "10.1.0.0/30", "gateway": "10.1.0.2"}]]), "ranges[0][0].subnet: 10.1.0.0/"),
            (
                json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.128/25"}]]),
                "ranges[1][0]: overlaps with ranges[0][0]; give each",
            ),
            (
                json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]),
                "ranges[0][1]: is not of the family of ranges[0][0]",
            ),
            (json!([[]]), "ranges[0]: has no range"),
        ] {
            let error = sets(ranges).unwrap_err();
            assert!(error.starts_with(says), "{error} does not start with {says}");
        }
        let halves = json!([[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.9"}, {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10"}]]);
        assert_eq!(all(&sets(halves).unwrap()[0]).len(), 253, "ranges may share a subnet");
    }
}
