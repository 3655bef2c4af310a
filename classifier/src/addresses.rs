//! The address fields of a rule: every address, a set, or a set in parts.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::{AddressSet, PartedSet};

/// Where a set is in memory: no other set is there as long as somebody holds it.
pub(crate) type Place = usize;

/// One field of a rule: every address of both families, or the members of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Every IPv4 and every IPv6 address.
    Any,
    /// The members of the set and no others; an empty set matches nothing.
    Set(Arc<AddressSet>),
    /// The members of a set that is too large to be compiled for each table that names it. Such sets with the same members
    /// should be one object.
    Parted(Arc<PartedSet>),
}

impl Addresses {
    /// Whether the address is one of these.
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Set(set) => set.contains(address),
            Self::Parted(set) => set.contains(address),
        }
    }

    /// The members as one set; none when every address is one.
    pub fn members(&self) -> Option<&AddressSet> {
        match self {
            Self::Any => None,
            Self::Set(set) => Some(set),
            Self::Parted(set) => Some(set.flat()),
        }
    }

    /// How many intervals there are.
    pub fn intervals(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Set(set) => set.v4_intervals().len() + set.v6_intervals().len(),
            Self::Parted(set) => set.intervals(),
        }
    }

    /// Where the set is; none for every address. Rules that share a set are compared by this.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::Any => None,
            Self::Set(set) => Some(Arc::as_ptr(set).addr()),
            Self::Parted(set) => Some(Arc::as_ptr(set).addr()),
        }
    }

    /// The addresses of a single prefix.
    pub fn prefix(prefix: IpNet) -> Self {
        Self::Set(Arc::new(AddressSet::from_iter([prefix])))
    }
}

impl From<AddressSet> for Addresses {
    fn from(set: AddressSet) -> Self {
        Self::Set(Arc::new(set))
    }
}
