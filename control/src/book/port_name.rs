//! Port names, and the pods among which rules look up their numbers.

use std::sync::Arc;

use bulkhead_classifier::AddressSet;

use super::addresses_of;
use crate::object::{IpBlock, Transport};

/// A port's protocol and name. The same name with another protocol is a different port name.
pub(crate) type PortName = (Transport, Arc<str>);

/// The pods among which an egress rule looks up a port name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Anywhere {
    /// All endpoints of the cluster.
    Everybody,
    /// Endpoints with an address in the block.
    Block(IpBlock),
}

impl Anywhere {
    /// Returns the addresses to which the lookup is limited. `None` if it covers all endpoints.
    pub(super) fn bounds(&self) -> Option<AddressSet> {
        match self {
            Self::Everybody => None,
            Self::Block(block) => Some(addresses_of(block)),
        }
    }
}
