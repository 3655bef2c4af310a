//! The cluster's objects, reduced to what policy and Services need.
//!
//! The policy sources validate objects when they create them. No later stage checks them again.

mod cluster_policy;
mod direction;
pub mod filter;
pub mod foreign;
mod network_policy;
mod pod;
mod service;
mod workload;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{PortRange, Service};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use self::cluster_policy::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, Isolation, Order, OtherTier, Rank, RuleAction,
    Tier,
};
pub use self::direction::Direction;
use self::foreign::ForeignObject;
pub use self::network_policy::{
    IpBlock, NamespaceScope, Peer, PodPeer, Policy, PolicyIdentity, PolicyPort, PolicyRule, PolicyVersion, Region,
};
pub use self::pod::{ContainerPort, HostPort, Lifetime, Pod, STATIC_POD_ANNOTATION, Timestamp, Uid};
pub use self::service::{
    ClusterService, Endpoint, EndpointPort, EndpointSlice, Hints, ServiceName, ServicePort, TrafficPolicy, ZONE_LABEL,
};
pub use self::workload::Workload;
pub use crate::labels::{Labels, NAMESPACE_NAME_LABEL, TEMPLATE_HASH_LABEL};

/// The annotation by which a namespace isolates its pods in `extensions/v1beta1`. Reports use the same text as the name of that isolation;
/// no policy can have this name, because policy names contain no `/`. Source: Kubernetes proposal "NetworkPolicy" (2016), "Namespace
/// changes".
pub const ISOLATION_ANNOTATION: &str = "net.beta.kubernetes.io/network-policy";

/// A namespaced object's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// The name of the object's namespace.
    pub namespace: Arc<str>,
    /// The name in the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// Creates the name of the object `name` in `namespace`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod's namespace and name.
pub type PodName = ObjectName;

/// A policy's namespace and name.
pub type PolicyName = ObjectName;

/// The position of an object in its source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The file's name as the user wrote it, or `-` for standard input.
    pub file: Arc<str>,
    /// The document's number in the file, starting at 1.
    pub document: usize,
    /// The line on which the object starts, starting at 1.
    pub line: usize,
    /// The object's path in its document: empty, or `items[7]` in a list.
    pub path: Arc<str>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A transport protocol that policies and Services may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Transport {
    /// TCP, the default if a policy, Service or container names no protocol.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Transport {
    /// All transport protocols.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Returns the IANA protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => bulkhead_classifier::protocol::TCP,
            Self::Udp => bulkhead_classifier::protocol::UDP,
            Self::Sctp => bulkhead_classifier::protocol::SCTP,
        }
    }

    /// Returns the classifier's service with this protocol and the ports `first ..= last`.
    pub(crate) const fn service(self, first: u16, last: u16) -> Service {
        Service { protocols: (self.number(), self.number()), ports: PortRange { first, last } }
    }

    /// Returns the name that Kubernetes uses: `TCP`, `UDP`, `SCTP`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Returns the protocol with this name, in Kubernetes' spelling. `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.name() == name)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// The namespace's name.
    pub name: Arc<str>,
    /// The namespace's labels, always including [`NAMESPACE_NAME_LABEL`].
    pub labels: Labels,
    /// Whether the namespace and its objects are being deleted.
    pub terminating: bool,
    /// The value of [`ISOLATION_ANNOTATION`].
    pub isolation: IngressIsolation,
    /// The value of [`DENIED_ANNOTATION`]. `None` if absent: the node's configuration decides.
    pub denied: Option<Denied>,
    /// The value of [`ENFORCEMENT_ANNOTATION`], for policies without the annotation. `None` if absent.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// A namespace's annotation for the treatment of packets that its pods' policies deny: `refuse` or `drop`.
pub const DENIED_ANNOTATION: &str = "bulkhead.dev/denied";

/// The treatment of a packet that policy denies. Neither value forwards the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Denied {
    /// Drops the packet without a reply. The sender waits for its timeout, and a scanner learns nothing.
    #[default]
    Drop,
    /// Drops the packet and sends a TCP reset or an ICMP error to its sender.
    Refuse,
}

impl Denied {
    /// Returns the value's name in the annotation and in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Refuse => "refuse",
        }
    }

    /// Returns the value with this name. `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Drop, Self::Refuse].into_iter().find(|denied| denied.name() == name)
    }
}

/// The annotation that says whether a policy is enforced: `enforce` or `audit`. On a namespace, applies to policies without the annotation.
pub const ENFORCEMENT_ANNOTATION: &str = "bulkhead.dev/enforcement";

/// Whether a policy is enforced. Docs: `docs/audit.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Enforcement {
    /// The policy is enforced.
    #[default]
    Enforce,
    /// The policy has no effect, but packets that it would deny are counted.
    Audit,
}

impl Enforcement {
    /// Returns the value's name in the annotation and in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Audit => "audit",
        }
    }

    /// Returns the value with this name. `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Enforce, Self::Audit].into_iter().find(|enforcement| enforcement.name() == name)
    }
}

/// Whether a namespace denies ingress to its pods without a policy. In `extensions/v1beta1` the namespace isolates; policies only allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IngressIsolation {
    /// The cluster's default applies.
    #[default]
    ClusterDefault,
    /// Ingress is denied unless a policy allows it.
    DefaultDeny,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node's name.
    pub name: Arc<str>,
    /// The node's labels.
    pub labels: Labels,
    /// The IP addresses in `status.addresses`: internal ones first, then external ones, then the rest.
    pub addresses: Vec<IpAddr>,
    /// The blocks of its pods' addresses (`spec.podCIDRs`).
    pub pod_cidrs: Vec<IpNet>,
    /// Whether the node is being deleted, or the cluster's autoscaler will delete it soon. Load balancers should stop using it.
    #[serde(default)]
    pub terminating: bool,
}

/// An object of any kind that sources read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Object {
    /// A namespace.
    Namespace(Namespace),
    /// A pod. Frequent kinds are reference-counted: a source, the cache and the workers' tables share one allocation.
    Pod(Arc<Pod>),
    /// A node.
    Node(Node),
    /// A NetworkPolicy.
    Policy(Arc<Policy>),
    /// A ClusterNetworkPolicy, AdminNetworkPolicy or BaselineAdminNetworkPolicy.
    ClusterPolicy(Arc<ClusterPolicy>),
    /// A Service.
    Service(Arc<ClusterService>),
    /// Some endpoints of a Service.
    EndpointSlice(Arc<EndpointSlice>),
    /// A policy of another product, or an object that only such policies refer to.
    Foreign(Arc<ForeignObject>),
}

impl From<Pod> for Object {
    fn from(pod: Pod) -> Self {
        Self::Pod(Arc::new(pod))
    }
}

impl From<Policy> for Object {
    fn from(policy: Policy) -> Self {
        Self::Policy(Arc::new(policy))
    }
}

impl From<ForeignObject> for Object {
    fn from(object: ForeignObject) -> Self {
        Self::Foreign(Arc::new(object))
    }
}

impl From<ClusterPolicy> for Object {
    fn from(policy: ClusterPolicy) -> Self {
        Self::ClusterPolicy(Arc::new(policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_ordered_and_what_is_none_is_none() {
        let [earlier, later] =
            ["2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z"].map(|text| Timestamp::parse(text).unwrap());
        assert!(earlier < later);
        for wrong in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00+01:00",
            "2026-01-01T00:00:00.0Z",
            "2026-01-01 00:00:00Z",
            "x026-01-01T00:00:00Z",
        ] {
            assert_eq!(Timestamp::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_pod_beats_one_that_ends_or_does_not_run_or_is_older_and_else_neither_does() {
        let at = |second: u32| Timestamp::parse(&format!("2026-01-01T00:00:{second:02}Z"));
        let runs = Lifetime { running: true, ..Lifetime::default() };
        let old = Lifetime { started: at(1), created: at(5), ..runs };
        let new = Lifetime { started: at(2), created: at(1), ..runs };
        for (better, worse) in [
            (new, old),
            (Lifetime { started: None, created: at(6), ..runs }, old),
            (Lifetime { started: at(1), created: at(6), ..runs }, old),
            (old, Lifetime { running: false, ..new }),
            (Lifetime { running: false, ..old }, Lifetime { terminating: true, ..new }),
        ] {
            assert!(better.beats(&worse) && !worse.beats(&better), "{better:?} {worse:?}");
        }
        for (one, other) in [
            (runs, runs),
            (runs, new),
            (old, old),
            (Lifetime { created: None, ..new }, Lifetime { started: None, ..old }),
        ] {
            assert!(!one.beats(&other) && !other.beats(&one), "{one:?} {other:?}");
        }
    }
}
