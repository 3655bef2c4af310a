//! The policy that the policy thread hands to the composer, and its state after publication.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_classifier::OriginId;
use bulkhead_control::pipeline::{AuditTables, AuditedPolicy};
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_dataplane::Masquerade;
use ipnet::IpNet;

use crate::remote_nodes::RemoteNode;
use crate::state::NameServers;

/// The compiled policy of one state.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// The tables of the node's pods, uplink and host.
    pub tables: Arc<NodeTables>,
    /// The tables as if audited policies were enforced. `None` if no policy is audited.
    pub audit: Option<Arc<AuditTables>>,
    /// The audited policies.
    pub audited: Arc<BTreeSet<AuditedPolicy>>,
    /// The other nodes.
    pub remote_nodes: Arc<[RemoteNode]>,
    /// The node's own pod networks (`spec.podCIDRs`).
    pub pod_networks: Arc<[IpNet]>,
    /// The node's primary address of each address family. Addresses that no interface has are absent.
    pub node_addresses: Arc<[IpAddr]>,
    /// The source addresses and ports for pods' connections to outside the cluster. `None` if pods keep their own addresses.
    pub masquerade: Option<Arc<Masquerade>>,
    /// The DNS servers from whose answers pods learn addresses by name. `None` if no rule of the node's pods names domains.
    pub names: Option<Arc<NameServers>>,
    /// Origins of rules that refuse packets (RST, ICMP) instead of dropping: if the node's default is to drop, and if it is to refuse.
    pub refusing: [Arc<[OriginId]>; 2],
    /// Whether to deny all pod traffic: no state is loaded yet, or the newest one was refused and the configuration says to deny then.
    pub denied: bool,
    /// Whether to log when this policy takes effect. False for the API server, which sends many changes a second.
    pub is_told: bool,
}

/// The policy in force, as status and metrics report it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enforced {
    /// When the policy was published.
    pub since: Instant,
    /// Time from detecting its change until the workers used it.
    pub took: Duration,
    /// Whether all pod traffic is denied because no valid state is loaded.
    pub is_denying: bool,
    /// Whether a newer change of policy or ports could not be published and is retried.
    pub is_refused: bool,
    /// Whether the kernel still forwards flows that the previous process allowed, until all ports are open.
    pub keeps_flows: bool,
}

/// What this process takes over from the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeover {
    /// The generation of the first snapshot. No existing flow has this generation.
    pub generation: u64,
    /// Whether existing flows continue until [`Composer::enter_flows`](super::Composer::enter_flows).
    pub keeps_flows: bool,
}

impl Takeover {
    /// The takeover without a previous process.
    pub(crate) const NONE: Self = Self { generation: 1, keeps_flows: false };
}
