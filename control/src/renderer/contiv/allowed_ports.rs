//! The services that a list allows with one address: ports by protocol, or everything.
//!
//! Ranges are kept as written, as in Contiv's tables: 80 and 81 are two rules, not 80-81. A range inside another is dropped. (The
//! classifier's `ServiceSet` merges adjacent ranges and cannot be used here.)

use std::collections::BTreeMap;

use bulkhead_classifier::{PortRange, Service};

/// Port ranges, sorted. No range is inside another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortSet(Vec<PortRange>);

impl PortSet {
    fn new(mut ranges: Vec<PortRange>) -> Self {
        ranges.sort_unstable_by_key(|range| (range.first, std::cmp::Reverse(range.last)));
        let mut kept: Vec<PortRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            if kept.last().is_none_or(|last| last.last < range.last) {
                kept.push(range);
            }
        }
        Self(kept)
    }

    /// Whether the other set contains every port of this set.
    fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().all(|range| other.covers(*range))
    }

    fn covers(&self, range: PortRange) -> bool {
        let mut first = range.first;
        // Skips ranges that end before the port. The ends ascend.
        for part in &self.0[self.0.partition_point(|part| part.last < first)..] {
            if part.first > first {
                return false;
            }
            if part.last >= range.last {
                return true;
            }
            first = part.last + 1;
        }
        false
    }

    fn intersect(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        for a in &self.0 {
            let start = other.0.partition_point(|b| b.last < a.first);
            both.extend(
                other.0[start..]
                    .iter()
                    .take_while(|b| b.first <= a.last)
                    .map(|b| PortRange { first: a.first.max(b.first), last: a.last.min(b.last) }),
            );
        }
        Self::new(both)
    }
}

/// The protocols and ports that a list allows between its pod and one peer address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AllowedPorts {
    everything: bool,
    ports: BTreeMap<u8, PortSet>,
}

impl AllowedPorts {
    /// Returns all protocols and ports, and protocols without ports.
    pub(super) fn everything() -> Self {
        Self { everything: true, ports: BTreeMap::new() }
    }

    /// Returns the union of these protocols and ports. A `None` among them allows everything.
    pub(super) fn of(services: impl IntoIterator<Item = Option<Service>>) -> Self {
        let mut ranges: BTreeMap<u8, Vec<PortRange>> = BTreeMap::new();
        for service in services {
            let Some(service) = service else { return Self::everything() };
            for number in service.protocols.0..=service.protocols.1 {
                ranges.entry(number).or_default().push(service.ports);
            }
        }
        let ports = ranges.into_iter().map(|(number, ranges)| (number, PortSet::new(ranges))).collect();
        Self { everything: false, ports }
    }

    pub(super) fn is_nothing(&self) -> bool {
        !self.everything && self.ports.is_empty()
    }

    pub(super) fn is_subset(&self, other: &Self) -> bool {
        other.everything
            || !self.everything
                && self
                    .ports
                    .iter()
                    .all(|(number, ports)| other.ports.get(number).is_some_and(|other| ports.is_subset(other)))
    }

    pub(super) fn intersect(&self, other: &Self) -> Self {
        if self.everything {
            return other.clone();
        }
        if other.everything {
            return self.clone();
        }
        let both = |(number, ports): (&u8, &PortSet)| Some((*number, ports.intersect(other.ports.get(number)?)));
        let ports = self.ports.iter().filter_map(both).filter(|(_, ports)| !ports.0.is_empty()).collect();
        Self { everything: false, ports }
    }

    /// Returns the allowed ports, one element for each protocol and port range. Empty if everything is allowed.
    pub(super) fn services(&self) -> impl Iterator<Item = Service> + '_ {
        self.ports.iter().flat_map(|(&number, ports)| {
            ports.0.iter().map(move |&ports| Service { protocols: (number, number), ports })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range() -> impl Strategy<Value = PortRange> {
        (0u16..20, 0u16..4).prop_map(|(first, more)| PortRange { first, last: first + more })
    }

    #[test]
    fn neighbouring_ports_stay_two_and_what_lies_inside_another_range_goes() {
        let set = PortSet::new([81, 80, 81].map(PortRange::one).to_vec());
        assert_eq!(set.0, [PortRange::one(80), PortRange::one(81)]);
        assert!(PortSet::new(vec![PortRange { first: 80, last: 81 }]).is_subset(&set));
        assert_eq!(PortSet::new(vec![PortRange::one(80), PortRange::ALL]).0, [PortRange::ALL]);
    }

    #[test]
    fn a_range_up_to_the_last_port_is_covered_without_overflow() {
        let top = PortSet::new(vec![PortRange { first: 1, last: u16::MAX }]);
        assert!(top.is_subset(&PortSet::new(vec![PortRange::ALL])));
        assert!(!PortSet::new(vec![PortRange::ALL]).is_subset(&top));
    }

    proptest! {
        #[test]
        fn port_set_algebra_equals_membership_one_port_at_a_time(
            a in proptest::collection::vec(range(), 0..8), b in proptest::collection::vec(range(), 0..8),
        ) {
            let inside = |ranges: &[PortRange], port| ranges.iter().any(|range| range.contains(port));
            let (sa, sb) = (PortSet::new(a.clone()), PortSet::new(b.clone()));
            let both = sa.intersect(&sb);
            let mut subset = true;
            for port in 0..30 {
                let (ia, ib) = (inside(&a, port), inside(&b, port));
                prop_assert_eq!(inside(&sa.0, port), ia);
                prop_assert_eq!(inside(&both.0, port), ia && ib);
                subset &= !ia || ib;
            }
            prop_assert_eq!(sa.is_subset(&sb), subset);
        }
    }
}
