//! Named ports and the pods among which their numbers are looked up.

use std::sync::Arc;

use bulkhead_classifier::AddressSet;

use super::addresses_of;
use crate::object::{IpBlock, Transport};

/// A port by name. The same name of two protocols is two.
pub(crate) type PortName = (Transport, Arc<str>);

/// Among which pods an egress rule's port name is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Anywhere {
    /// Among all endpoints of the cluster.
    Everybody,
    /// Among those with an address in the block.
    Block(IpBlock),
}

impl Anywhere {
    /// Addresses outside do not count; none for no bound.
    pub(super) fn bounds(&self) -> Option<AddressSet> {
        match self {
            Self::Everybody => None,
            Self::Block(block) => Some(addresses_of(block)),
        }
    }
}
