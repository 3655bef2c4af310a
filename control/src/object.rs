//! The cluster's objects as the pipeline understands them: validated, and no more of each than policy needs.
//!
//! Whoever makes one of these (the sources) has checked it; nothing below checks again.

mod cluster_policy;
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
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, Rank, RuleAction, Tier,
};
pub use self::pod::{ContainerPort, HostPort, Lifetime, Pod, STATIC_POD_ANNOTATION, Timestamp, Uid};
pub use self::service::{
    ClusterService, Endpoint, EndpointPort, EndpointSlice, Hints, ServiceName, ServicePort, TrafficPolicy, ZONE_LABEL,
};
pub use self::workload::Workload;
pub use crate::labels::{Labels, NAMESPACE_NAME_LABEL};
use crate::selector::Selector;

/// The annotation of `extensions/v1beta1` by which a namespace isolates its pods. Also the name under which that isolation is
/// reported; no policy can have it, because names have no `/`.
/// Source: Kubernetes proposal "NetworkPolicy" (2016), "Namespace changes".
pub const ISOLATION_ANNOTATION: &str = "net.beta.kubernetes.io/network-policy";

/// A namespaced object's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name in the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The object `name` in `namespace`.
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

/// Where an object was read from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The file as the user named it, `-` for standard input.
    pub file: Arc<str>,
    /// The document's number in the file, from 1.
    pub document: usize,
    /// The line on which the object starts, from 1.
    pub line: usize,
    /// The object's place in its document: empty, or `items[7]` in a list.
    pub path: Arc<str>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A transport protocol that a policy may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Transport {
    /// TCP, the default where a policy or a container names none.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IANA protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => bulkhead_classifier::protocol::TCP,
            Self::Udp => bulkhead_classifier::protocol::UDP,
            Self::Sctp => bulkhead_classifier::protocol::SCTP,
        }
    }

    /// The service of this protocol and its ports `first ..= last`.
    pub(crate) const fn service(self, first: u16, last: u16) -> Service {
        Service { protocols: (self.number(), self.number()), ports: PortRange { first, last } }
    }

    /// The name that Kubernetes uses: `TCP`, `UDP`, `SCTP`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// The protocol of this name, exactly as Kubernetes writes it.
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
    /// Its name.
    pub name: Arc<str>,
    /// Its labels, [`NAMESPACE_NAME_LABEL`] always among them.
    pub labels: Labels,
    /// Whether it is being deleted, with everything in it.
    pub terminating: bool,
    /// What its `extensions/v1beta1` annotation says.
    pub isolation: IngressIsolation,
    /// What its [`DENIED_ANNOTATION`] says; none leaves it to the node's configuration.
    pub denied: Option<Denied>,
    /// What its [`ENFORCEMENT_ANNOTATION`] says of its policies that say nothing themselves.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// The annotation of a namespace that says what becomes of packets which the policies of its pods deny: `refuse` or `drop`.
pub const DENIED_ANNOTATION: &str = "bulkhead.dev/denied";

/// What becomes of a packet that policy denies. It does not pass in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Denied {
    /// Nothing is said: the sender runs into its time-out, and a scanner learns nothing.
    #[default]
    Drop,
    /// The sender is told at once, by a TCP reset or an ICMP error.
    Refuse,
}

impl Denied {
    /// As it is written in the annotation and in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Refuse => "refuse",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Drop, Self::Refuse].into_iter().find(|denied| denied.name() == name)
    }
}

/// The annotation of a policy, and of a namespace for its policies, that says whether they are enforced: `enforce` or `audit`.
pub const ENFORCEMENT_ANNOTATION: &str = "bulkhead.dev/enforcement";

/// Whether a policy is enforced. Docs: `docs/audit.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Enforcement {
    /// It is.
    #[default]
    Enforce,
    /// It is not: everything passes as if the policy did not exist, and what it would deny is counted.
    Audit,
}

impl Enforcement {
    /// As it is written in the annotation and in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Audit => "audit",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Enforce, Self::Audit].into_iter().find(|enforcement| enforcement.name() == name)
    }
}

/// Whether the pods of a namespace are isolated without any policy that selects them: the `extensions/v1beta1` model, in
/// which the namespace isolates and policies only allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IngressIsolation {
    /// As the whole cluster.
    #[default]
    ClusterDefault,
    /// Nothing comes in but what a policy allows.
    DefaultDeny,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its own addresses (`status.addresses` that are IP addresses): internal ones first, then external ones, then the rest.
    pub addresses: Vec<IpAddr>,
    /// The blocks that its pods get addresses from (`spec.podCIDRs`).
    pub pod_cidrs: Vec<IpNet>,
    /// Whether it is being deleted, or is about to be by the cluster's autoscaler: load balancers are to leave it.
    #[serde(default)]
    pub terminating: bool,
}

/// What selecting a pod does to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyVersion {
    /// `networking.k8s.io/v1`: isolates it in the directions that the policy concerns.
    #[default]
    V1,
    /// `extensions/v1beta1`: allows ingress where the namespace isolates; without that it has no effect.
    V1beta1,
    /// No object of its own: a namespace's `extensions/v1beta1` isolation, which lets nothing in.
    NamespaceIsolation,
}

/// A NetworkPolicy, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Namespace and name.
    pub name: PolicyName,
    /// The pods of its namespace that it isolates.
    pub subject: Selector,
    /// What may come in; none when the policy does not concern ingress. An empty list lets nothing in.
    pub ingress: Option<Vec<PolicyRule>>,
    /// What may go out; none when the policy does not concern egress. An empty list lets nothing out.
    pub egress: Option<Vec<PolicyRule>>,
    /// What selecting a pod means.
    pub version: PolicyVersion,
    /// Why the policy was not understood, when it was not: it then isolates its subjects and allows nothing.
    pub fault: Option<Arc<str>>,
    /// Where it was read.
    pub position: Option<Position>,
    /// What tells it from another policy of its name and from an earlier state of itself; none where its object does not say.
    #[serde(default)]
    pub identity: Option<Arc<PolicyIdentity>>,
    /// What its [`ENFORCEMENT_ANNOTATION`] says; none leaves it to the namespace.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// Which policy of its name this is, and which state of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyIdentity {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.generation`: the API server adds one with every change of the spec. 0 where the object does not say.
    pub generation: u64,
}

/// One element of a policy's `ingress` or `egress` list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRule {
    /// Who; none for everyone (`from`/`to` absent or empty).
    pub peers: Option<Vec<Peer>>,
    /// What; none for every protocol and port (`ports` absent or empty).
    pub ports: Option<Vec<PolicyPort>>,
}

/// One element of a `from` or `to` list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// Pods by label.
    Pods(PodPeer),
    /// Addresses by block.
    Block(IpBlock),
    /// Nodes by label, with the addresses that they say are theirs. Only cluster policies name them.
    Nodes(Selector),
}

/// Pods that a rule names: those that `pods` selects in the namespaces that `namespaces` selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodPeer {
    /// Which namespaces.
    pub namespaces: NamespaceScope,
    /// Which pods in them.
    pub pods: Selector,
}

/// The namespaces that a pod peer looks in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NamespaceScope {
    /// The policy's own (no `namespaceSelector`).
    Own(Arc<str>),
    /// Those that the `namespaceSelector` selects.
    Selected(Selector),
}

/// Addresses of `cidr` that lie in none of `except`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IpBlock {
    /// The block.
    pub cidr: IpNet,
    /// Blocks inside it that this rule does not cover. Not a deny: another rule may.
    pub except: Vec<IpNet>,
}

/// One element of a `ports` list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyPort {
    /// Every port of a protocol.
    All(Transport),
    /// Ports `first ..= last` of a protocol; equal without `endPort`.
    Range {
        /// The protocol.
        transport: Transport,
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// The port that the destination pod's container declares under this name and protocol.
    Named {
        /// The protocol.
        transport: Transport,
        /// The name.
        name: Arc<str>,
    },
}

/// One of the objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Object {
    /// A namespace.
    Namespace(Namespace),
    /// A pod. Shared, as all kinds of which there are many: a source, the cache and the workers' tables keep the same one.
    Pod(Arc<Pod>),
    /// A node.
    Node(Node),
    /// A NetworkPolicy.
    Policy(Arc<Policy>),
    /// A policy of the tiers around NetworkPolicy.
    ClusterPolicy(ClusterPolicy),
    /// A Service.
    Service(Arc<ClusterService>),
    /// Endpoints of a Service.
    EndpointSlice(Arc<EndpointSlice>),
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
