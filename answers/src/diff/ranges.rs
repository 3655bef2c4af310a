//! Converts ranges of external addresses to prefixes.

use std::net::IpAddr;

use bulkhead_classifier::AddressSet;
use ipnet::IpNet;

/// Returns the fewest prefixes that cover `set` and contain otherwise only members of `free`, each as small as possible.
///
/// Pod addresses are free: external ranges exclude them implicitly, and would otherwise be split at each pod.
pub(super) fn prefixes(set: &AddressSet, free: &AddressSet) -> Vec<IpNet> {
    let all = set.union(free);
    all.prefixes().filter_map(|prefix| Some(hull(ends_within(set, prefix)?))).collect()
}

/// Returns the smallest prefix that contains all of these, which have one family. `None` for an empty list.
pub(super) fn hull_of(prefixes: &[IpNet]) -> Option<IpNet> {
    let first = prefixes.iter().map(IpNet::network).min()?;
    let last = prefixes.iter().map(IpNet::broadcast).max()?;
    Some(hull((first, last)))
}

/// Returns the first and the last member in the prefix. `None` if the prefix contains no member.
fn ends_within(set: &AddressSet, prefix: IpNet) -> Option<(IpAddr, IpAddr)> {
    fn ends<T: Copy + Ord>(intervals: &[(T, T)], first: T, last: T) -> Option<(T, T)> {
        let from = intervals.partition_point(|interval| interval.1 < first);
        let until = intervals.partition_point(|interval| interval.0 <= last);
        (from < until).then(|| (intervals[from].0.max(first), intervals[until - 1].1.min(last)))
    }
    match prefix {
        IpNet::V4(net) => {
            let ends = ends(set.v4_intervals(), net.network().into(), net.broadcast().into());
            ends.map(|(first, last)| (IpAddr::V4(first.into()), IpAddr::V4(last.into())))
        }
        IpNet::V6(net) => {
            let ends = ends(set.v6_intervals(), net.network().into(), net.broadcast().into());
            ends.map(|(first, last)| (IpAddr::V6(first.into()), IpAddr::V6(last.into())))
        }
    }
}

/// Returns the smallest prefix that contains both addresses, which have one family.
fn hull((first, last): (IpAddr, IpAddr)) -> IpNet {
    let (width, same) = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => (32, (first.to_bits() ^ last.to_bits()).leading_zeros()),
        (IpAddr::V6(first), IpAddr::V6(last)) => (128, (first.to_bits() ^ last.to_bits()).leading_zeros()),
        _ => (0, 0),
    };
    let length = u8::try_from(same.min(width)).unwrap_or_default();
    IpNet::new(first, length).map_or_else(|_| IpNet::from(first), |net| net.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(prefixes: &[&str]) -> AddressSet {
        prefixes.iter().map(|prefix| prefix.parse::<IpNet>().unwrap()).collect()
    }

    fn shown(of: &[&str], free: &[&str]) -> Vec<String> {
        let free = set(free);
        let of = set(of).subtract(&free);
        prefixes(&of, &free).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pods_cut_no_range_and_no_range_grows_over_what_is_not_free() {
        assert_eq!(shown(&["0.0.0.0/0"], &["10.0.0.1/32", "10.0.0.2/32"]), ["0.0.0.0/0"]);
        assert_eq!(shown(&["10.0.0.0/24"], &["10.0.0.0/32", "10.0.0.255/32", "10.0.1.0/24"]), ["10.0.0.0/24"]);
        assert_eq!(shown(&["10.0.0.7/32"], &["10.0.0.6/32"]), ["10.0.0.7/32"]);
        assert_eq!(shown(&["10.0.0.0/32", "10.0.0.2/31"], &["10.0.0.1/32"]), ["10.0.0.0/30"]);
        assert_eq!(shown(&["10.0.0.0/32", "10.0.0.2/31"], &[]), ["10.0.0.0/32", "10.0.0.2/31"]);
        assert_eq!(shown(&["::/0"], &["fd00::1/128"]), ["::/0"]);
        assert_eq!(shown(&[], &["10.0.0.1/32"]), Vec::<String>::new());
    }
}
