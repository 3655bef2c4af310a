//! The facts that the state has about an address.

use std::sync::Arc;

use bulkhead_control::object::Pod;

/// The owner of an address: a pod or a node. Neither for an address outside the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndFacts {
    /// The pod with the address. `None` if no pod has it.
    pub pod: Option<Arc<Pod>>,
    /// The name of the node with the address. `None` if no node has it, or a pod has it.
    pub node: Option<Arc<str>>,
}
