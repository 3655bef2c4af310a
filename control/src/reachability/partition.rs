//! Partitions the address space at each border of a set or holder.
//!
//! ```text
//!  sets       |-----10.0.0.0/8-----|
//!                  |--group--|
//!  holders          p   n
//!             +----+-+-+-+---+-----+----------------  one region each; regions of one class share its number
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use super::ClassId;

/// A range of addresses of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first address.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
    /// The class of the addresses.
    pub class: ClassId,
}

/// Address families by number, so that one algorithm handles both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(super) const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    const fn last(self) -> u128 {
        match self {
            Self::V4 => u32::MAX as u128,
            Self::V6 => u128::MAX,
        }
    }

    fn address(self, at: u128) -> IpAddr {
        match self {
            // Positions of this family are at most `last`.
            Self::V4 => Ipv4Addr::from(u32::try_from(at).unwrap_or(u32::MAX)).into(),
            Self::V6 => Ipv6Addr::from(at).into(),
        }
    }
}

pub(super) fn position(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn intervals(set: &AddressSet, family: Family) -> Vec<(u128, u128)> {
    match family {
        Family::V4 => set.v4_intervals().iter().map(|&(first, last)| (first.into(), last.into())).collect(),
        Family::V6 => set.v6_intervals().to_vec(),
    }
}

/// Partitions a family into regions, ascending. `class` returns the class of addresses in these sets (ascending) with this holder.
///
/// `holders` maps addresses to holders; other addresses have none.
pub(super) fn cut<'a, H: Copy>(
    family: Family,
    sets: impl Iterator<Item = &'a AddressSet>,
    holders: &AHashMap<IpAddr, H>,
    mut class: impl FnMut(&[u32], Option<H>) -> ClassId,
) -> Vec<Region> {
    // A position, a set, and whether the set begins (true) or ended before that position.
    let mut edges: Vec<(u128, u32, bool)> = Vec::new();
    for (set, number) in sets.zip(0..) {
        for (first, last) in intervals(set, family) {
            edges.push((first, number, true));
            edges.extend((last < family.last()).then(|| (last + 1, number, false)));
        }
    }
    edges.sort_unstable();
    let held = |address: &&IpAddr| Family::of(**address) == family;
    let held: Vec<u128> = holders.keys().filter(held).map(|&address| position(address)).collect();
    let after = held.iter().filter(|&&at| at < family.last()).map(|at| at + 1);
    let mut cuts: Vec<u128> = edges.iter().map(|edge| edge.0).chain(held.iter().copied()).chain(after).collect();
    cuts.push(0);
    cuts.sort_unstable();
    cuts.dedup();
    let mut edges = edges.into_iter().peekable();
    let mut inside: Vec<u32> = Vec::new();
    let mut regions: Vec<Region> = Vec::new();
    for (at, &first) in cuts.iter().enumerate() {
        while let Some((_, set, begins)) = edges.next_if(|edge| edge.0 == first) {
            match (inside.binary_search(&set), begins) {
                (Err(place), true) => inside.insert(place, set),
                (Ok(place), false) => drop(inside.remove(place)),
                _ => {}
            }
        }
        let last = cuts.get(at + 1).map_or(family.last(), |next| next - 1);
        let address = family.address(first);
        let class = class(&inside, holders.get(&address).copied());
        match regions.last_mut() {
            Some(region) if region.class == class => region.last = family.address(last),
            _ => regions.push(Region { first: address, last: family.address(last), class }),
        }
    }
    regions
}

/// Returns the index of the region that contains the address. `regions` must be of the address's family.
pub(super) fn region_at(regions: &[Region], address: IpAddr) -> usize {
    regions.partition_point(|region| region.last < address)
}

/// Returns the class of the address. `regions` must be of the address's family.
pub(super) fn class_at(regions: &[Region], address: IpAddr) -> ClassId {
    regions[region_at(regions, address)].class
}

/// Splits one family at the borders of both partitions. Yields each piece's first and last address and its class in each partition.
pub(super) fn refine<'a>(
    left: &'a [Region],
    right: &'a [Region],
) -> impl Iterator<Item = (IpAddr, IpAddr, ClassId, ClassId)> + 'a {
    let (mut a, mut b) = (0, 0);
    std::iter::from_fn(move || {
        let (one, other) = (left.get(a)?, right.get(b)?);
        let last = one.last.min(other.last);
        a += usize::from(one.last == last);
        b += usize::from(other.last == last);
        Some((one.first.max(other.first), last, one.class, other.class))
    })
}
