//! The facts that the state has about an address.

use std::sync::Arc;

use bulkhead_control::object::Pod;

/// The owner of an address: a pod or a node. `None` and false for an address outside the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndFacts {
    /// The pod with the address. `None` if no pod has it.
    pub pod: Option<Arc<Pod>>,
    /// Whether the address is a node's.
    pub is_node: bool,
}
