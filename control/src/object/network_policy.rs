//! A NetworkPolicy, and the terms of rules that it shares with [cluster policies](super::ClusterPolicy): peers and ports.

use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::{Enforcement, PolicyName, Position, Transport};
use crate::selector::Selector;

/// The effect of a policy on the pods that it selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyVersion {
    /// `networking.k8s.io/v1`: isolates the pods in the policy's directions.
    #[default]
    V1,
    /// `extensions/v1beta1`: allows ingress if the namespace isolates; otherwise has no effect.
    V1beta1,
    /// A namespace's `extensions/v1beta1` isolation, which denies all ingress. Does not come from a policy object.
    NamespaceIsolation,
}

/// A NetworkPolicy with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The policy's namespace and name.
    pub name: PolicyName,
    /// Selects the pods in its namespace that the policy applies to.
    pub subject: Selector,
    /// Allowed ingress. `None` if the policy does not apply to ingress; an empty list allows nothing.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Allowed egress. `None` if the policy does not apply to egress; an empty list allows nothing.
    pub egress: Option<Vec<PolicyRule>>,
    /// The effect on the selected pods.
    pub version: PolicyVersion,
    /// The reason why the policy is invalid. `None` if the policy is valid. An invalid policy isolates its pods and allows nothing.
    pub fault: Option<Arc<str>>,
    /// Its position in the source file. `None` if it comes from an API server.
    pub position: Option<Position>,
    /// Its UID and generation. `None` if the object has no UID.
    #[serde(default)]
    pub identity: Option<Arc<PolicyIdentity>>,
    /// The value of [`super::ENFORCEMENT_ANNOTATION`]. `None` if absent: the namespace decides.
    #[serde(default)]
    pub enforcement: Option<Enforcement>,
}

/// Distinguishes a policy from another one of the same name and from its own earlier versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyIdentity {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.generation`, which the API server increments at each change of the spec. 0 if absent.
    pub generation: u64,
}

/// One element of a policy's `ingress` or `egress` list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRule {
    /// The peers. `None` for every peer (`from`/`to` absent or empty).
    pub peers: Option<Vec<Peer>>,
    /// The ports. `None` for every protocol and port (`ports` absent or empty).
    pub ports: Option<Vec<PolicyPort>>,
}

impl PolicyRule {
    /// Whether any peer is a list of domain names.
    pub fn has_names(&self) -> bool {
        self.names().next().is_some()
    }

    /// Returns the patterns of domain names among the peers, also those of regions.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let whole = self.peers.iter().flatten();
        let parts = whole.flat_map(|peer| match peer {
            Peer::Region(region) => region.all.iter().flatten().collect(),
            peer => vec![peer],
        });
        let names = parts.filter_map(|peer| match peer {
            Peer::Names(names) => Some(names),
            _ => None,
        });
        names.flat_map(|names| names.iter())
    }
}

/// One element of a `from` or `to` list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Peer {
    /// Pods, selected by label.
    Pods(PodPeer),
    /// The addresses of a block.
    Block(IpBlock),
    /// Nodes, selected by label. Only cluster policies have such peers.
    Nodes(Selector),
    /// Any address of the node that the pod runs on. Only policies of other products have such peers.
    OwnNode,
    /// The addresses that several conditions on addresses have in common. Only policies of other products have such peers.
    Region(Arc<Region>),
    /// The addresses that a pod has learned from DNS answers for names that these patterns match. Each pattern is as the policy writes it.
    /// Only rules of cluster policies that accept egress have such peers.
    Names(Arc<[Arc<str>]>),
}

/// The addresses that are in each of the unions `all` and in no peer of `none`. These peers are pods, blocks and nodes. One union of an egress
/// rule that accepts may consist of domain names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// The unions of which each must contain the address. Without any, every address is in the region that is not in `none`.
    pub all: Vec<Vec<Peer>>,
    /// The peers that must not contain the address.
    pub none: Vec<Peer>,
}

impl Region {
    /// Whether a condition of the region is about pods.
    pub fn has_pods(&self) -> bool {
        self.all.iter().flatten().any(is_pods) || self.excludes_pods()
    }

    /// Whether the region lacks the addresses of some pods.
    pub fn excludes_pods(&self) -> bool {
        self.none.iter().any(is_pods)
    }

    /// Returns the patterns of domain names, and the region without this condition. `None` if the region has no such condition.
    pub fn names(&self) -> Option<(Vec<Arc<str>>, Self)> {
        let (of_names, all): (Vec<_>, Vec<_>) =
            self.all.iter().partition(|union| union.iter().any(|peer| matches!(peer, Peer::Names(_))));
        let patterns = of_names.into_iter().flatten().filter_map(|peer| match peer {
            Peer::Names(names) => Some(names),
            _ => None,
        });
        let patterns: Vec<Arc<str>> = patterns.flat_map(|names| names.iter().cloned()).collect();
        let rest = || Self { all: all.into_iter().cloned().collect(), none: self.none.clone() };
        (!patterns.is_empty()).then(|| (patterns, rest()))
    }

    /// Returns the peers of all conditions.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.all.iter().flatten().chain(&self.none)
    }
}

const fn is_pods(peer: &Peer) -> bool {
    matches!(peer, Peer::Pods(_))
}

/// The pods that `pods` selects in the namespaces that `namespaces` selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodPeer {
    /// The namespaces to search.
    pub namespaces: NamespaceScope,
    /// Selects pods in these namespaces by label.
    pub pods: Selector,
    /// A further condition on the pods. `None` in policies of Kubernetes' own kinds.
    #[serde(default)]
    pub filter: Option<Arc<Filter>>,
}

/// The namespaces in which a peer selects pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NamespaceScope {
    /// The policy's namespace, because the peer has no `namespaceSelector`.
    Own(Arc<str>),
    /// The namespaces that `namespaceSelector` matches.
    Selected(Selector),
}

/// The addresses of `cidr` that are in none of the `except` blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IpBlock {
    /// The block of addresses.
    pub cidr: IpNet,
    /// Blocks inside `cidr` that this rule does not allow. Another rule may allow them.
    pub except: Vec<IpNet>,
}

/// One element of a `ports` list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyPort {
    /// Every port of a protocol.
    All(Transport),
    /// The ports `first ..= last` of a protocol. Both are equal without `endPort`.
    Range {
        /// The protocol of the ports.
        transport: Transport,
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// Protocols and ports by number. Only policies of other products have such entries. For ICMP, the port is the type times 256 plus the
    /// code.
    Numbers {
        /// The lowest and the highest IANA protocol number.
        protocols: (u8, u8),
        /// The lowest port.
        first: u16,
        /// The highest port.
        last: u16,
    },
    /// The port that the destination pod declares under this name and protocol.
    Named {
        /// The protocol of the port.
        transport: Transport,
        /// The port's name in the container.
        name: Arc<str>,
    },
}
