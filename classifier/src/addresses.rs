//! The address fields of a rule.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::{AddressSet, PartedSet};

/// The memory address of a set, as its identifier: unique while the set is referenced.
pub(crate) type Place = usize;

/// An address field of a rule: every address of both families, or the members of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Every IPv4 and every IPv6 address.
    Any,
    /// The members of the set. An empty set matches nothing.
    Set(Arc<AddressSet>),
    /// The members of a set that is too large to compile into every table. Equal sets of this kind should be one object.
    Parted(Arc<PartedSet>),
}

impl Addresses {
    /// Whether the address matches.
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Set(set) => set.contains(address),
            Self::Parted(set) => set.contains(address),
        }
    }

    /// Returns the members as one set. `None` for [`Addresses::Any`].
    pub fn members(&self) -> Option<&AddressSet> {
        match self {
            Self::Any => None,
            Self::Set(set) => Some(set),
            Self::Parted(set) => Some(set.flat()),
        }
    }

    /// Returns the number of intervals. 0 for [`Addresses::Any`].
    pub fn intervals(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Set(set) => set.v4_intervals().len() + set.v6_intervals().len(),
            Self::Parted(set) => set.intervals(),
        }
    }

    /// Returns the set's memory address. `None` for [`Addresses::Any`]. Rules that share a set have the same one.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::Any => None,
            Self::Set(set) => Some(Arc::as_ptr(set).addr()),
            Self::Parted(set) => Some(Arc::as_ptr(set).addr()),
        }
    }

    /// Returns the field that matches the addresses of one prefix.
    pub fn prefix(prefix: IpNet) -> Self {
        Self::Set(Arc::new(AddressSet::from_iter([prefix])))
    }
}

impl From<AddressSet> for Addresses {
    fn from(set: AddressSet) -> Self {
        Self::Set(Arc::new(set))
    }
}
