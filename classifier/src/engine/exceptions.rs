//! Addresses that entered or left a set since the list was compiled.
//!
//! A set of 100,000 pods changes with every pod, and compiling it takes milliseconds. But a packet neither of whose
//! addresses has changed sets matches the rules that it matched before: the compiled form is still right for it. For the
//! others the list is scanned, until it is compiled again. So a change costs as much as finding what changed.
//!
//! The alternative, a compiled form per set that generations share, leaves the axis: which *combination* of sets holds
//! an address has to be found out again for all pieces, or at each lookup for all sets.

use super::address::Address;
use super::axis::{Axis, Classed};
use crate::simd::Simd;
use crate::{AddressSet, Key};

/// The most changed addresses or small blocks of one family: two nodes are searched.
const MOST: usize = 128;

/// The most addresses of one changed block. Larger ones are edits of policies, not pods that come and go; scanning for
/// so much traffic would cost more than compiling.
const LARGEST: u128 = 256;

/// A set of addresses, and its search trees.
#[derive(Clone, Debug)]
pub(crate) struct Exceptions {
    set: AddressSet,
    v4: Axis<u32>,
    v6: Axis<u128>,
}

impl Exceptions {
    pub(crate) fn new() -> Self {
        Self::of(AddressSet::default())
    }

    fn of(set: AddressSet) -> Self {
        Self { v4: tree(set.v4_intervals()), v6: tree(set.v6_intervals()), set }
    }

    /// These and more; none when that is more than should be scanned for.
    pub(crate) fn with(&self, more: &AddressSet) -> Option<Self> {
        if more.subtract(&self.set).is_empty() {
            return Some(self.clone());
        }
        let set = self.set.union(more);
        let small = |count: u128| count < LARGEST;
        let fits = set.v4_intervals().len() <= MOST
            && set.v6_intervals().len() <= MOST
            && more.v4_intervals().iter().all(|&(first, last)| small(u128::from(last - first)))
            && more.v6_intervals().iter().all(|&(first, last)| small(last - first));
        fits.then(|| Self::of(set))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Whether one of the key's addresses is among them.
    #[inline(always)]
    pub(crate) fn concern<S: Simd>(&self, simd: S, key: &Key) -> bool {
        let (src, dst) = key.bits();
        match key.family() {
            Key::V4 => either(simd, &self.v4, src, dst),
            Key::V6 => either(simd, &self.v6, src, dst),
            // The engine does not answer for such a key anyway.
            _ => true,
        }
    }
}

#[inline(always)]
fn either<A: Address, S: Simd>(simd: S, tree: &Axis<A>, src: [u64; 2], dst: [u64; 2]) -> bool {
    tree.class(simd, A::from_halves(src)) | tree.class(simd, A::from_halves(dst)) != 0
}

/// Class 1 inside the intervals, 0 outside.
fn tree<A: Address>(intervals: &[(A, A)]) -> Axis<A> {
    let mut pieces = Classed { lasts: Vec::new(), class_of: Vec::new() };
    for &(first, last) in intervals {
        if let Some(before) = first.previous() {
            pieces.lasts.push(before);
            pieces.class_of.push(0);
        }
        pieces.lasts.push(last);
        pieces.class_of.push(1);
    }
    if pieces.lasts.last() == Some(&A::LAST) {
        pieces.lasts.pop();
    } else {
        pieces.class_of.push(0);
    }
    Axis::new(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;
    use std::net::IpAddr;

    fn set(addresses: &[&str]) -> AddressSet {
        addresses.iter().map(|address| address.parse::<IpAddr>().unwrap()).collect()
    }

    #[test]
    fn a_key_is_concerned_by_either_address() {
        let changed = set(&[
            "0.0.0.0",
            "10.0.0.1",
            "255.255.255.255",
            "fd00::1",
            "::",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ]);
        let exceptions = Exceptions::new().with(&changed).unwrap();
        let all = ["0.0.0.0", "0.0.0.1", "10.0.0.0", "10.0.0.1", "10.0.0.2", "255.255.255.254", "255.255.255.255"];
        let more = ["::", "::1", "fd00::", "fd00::1", "fd00::2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"];
        for family in [&all[..], &more[..]] {
            for src in family {
                for dst in family {
                    let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
                    let key = Key::new(src, dst, 6, 1, 1);
                    assert_eq!(
                        exceptions.concern(Scalar, &key),
                        changed.contains(src) || changed.contains(dst),
                        "{key:?}"
                    );
                }
            }
        }
        assert!(!Exceptions::new().concern(Scalar, &Key::new("::".parse().unwrap(), "::".parse().unwrap(), 6, 1, 1)));
    }

    #[test]
    fn many_or_large_blocks_are_no_exceptions() {
        let block: ipnet::IpNet = "10.0.0.0/23".parse().unwrap();
        assert!(Exceptions::new().with(&AddressSet::from_iter([block])).is_none());
        let pods = |count: u32| (0..count).map(|at| IpAddr::from((2 * at).to_be_bytes())).collect::<AddressSet>();
        let full = Exceptions::new().with(&pods(128)).unwrap();
        assert!(full.with(&set(&["10.0.0.1"])).is_none());
        assert!(full.with(&set(&["fd00::1"])).is_some());
    }
}
