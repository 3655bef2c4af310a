//! Cilium's objects, of `cilium.io/v2` and `v2alpha1`.
//!
//! Source: cilium/cilium, `pkg/policy/api`.

use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::ForeignName;
use crate::object::{Enforcement, IpBlock, Isolation, Labels, Peer, PodPeer, PolicyPort, Position, RuleAction};
use crate::selector::Selector;

/// A CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The policy's kind and name.
    pub name: ForeignName,
    /// The policy's `spec`, then its `specs`, without those that select no pod.
    pub specs: Vec<Spec>,
    /// The reason why the policy is invalid. `None` if the policy is valid. Its invalid rules accept nothing and deny everything.
    pub fault: Option<Arc<str>>,
    /// Its position in the source file. `None` if it comes from an API server.
    pub position: Option<Position>,
    /// The value of [`ENFORCEMENT_ANNOTATION`](crate::object::ENFORCEMENT_ANNOTATION). `None` if absent.
    pub enforcement: Option<Enforcement>,
}

/// The rules of a policy for the pods that one selector selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The field's path in the object: `spec`, `specs[1]`.
    pub path: Arc<str>,
    /// The pods.
    pub subject: PodPeer,
    /// The directions in which traffic that no rule allows is denied.
    pub isolates: Isolation,
    /// The rules for traffic towards the pods.
    pub ingress: Vec<Rule>,
    /// The rules for traffic from the pods.
    pub egress: Vec<Rule>,
}

/// An element of `ingress`, `ingressDeny`, `egress` or `egressDeny`, or one of its `toPorts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The element's path in the object: `spec.egressDeny[0]`.
    pub path: Arc<str>,
    /// The element's index among those of the direction: elements that deny come first.
    pub at: usize,
    /// Accept or Deny.
    pub action: RuleAction,
    /// The other end. `None` for everybody.
    pub peers: Option<Vec<Who>>,
    /// Protocols and ports. `None` for all.
    pub ports: Option<Vec<PolicyPort>>,
    /// What else decides about traffic that the rule accepts. `None` if nothing does.
    pub then: Option<Arc<str>>,
}

/// A part of the other end of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// A peer that does not depend on other objects.
    Peer(Peer),
    /// The addresses of a block that belong neither to pods nor to nodes.
    Block(IpBlock),
    /// The blocks of the CiliumCIDRGroup of this name, without `except`. As for [`Who::Block`], no addresses of pods and nodes.
    Group {
        /// The group's name.
        name: Arc<str>,
        /// Blocks whose addresses are not meant.
        except: Vec<IpNet>,
    },
    /// The blocks of all CiliumCIDRGroups that a selector selects by label, without `except`. As for [`Who::Block`].
    Groups {
        /// Selects groups.
        selector: Selector,
        /// Blocks whose addresses are not meant.
        except: Vec<IpNet>,
    },
    /// The Services of this name: the pods that a Service selects, or, if it selects none, its endpoints' addresses as for [`Who::Block`].
    Service {
        /// The Service's namespace. `None` for all namespaces.
        namespace: Option<Arc<str>>,
        /// The Service's name.
        name: Arc<str>,
    },
    /// The Services that a selector selects by label, with the meaning of [`Who::Service`].
    Services {
        /// The Services' namespace. `None` for all namespaces.
        namespace: Option<Arc<str>>,
        /// Selects Services.
        selector: Selector,
    },
    /// The API server: the endpoints of the Service `kubernetes` in the namespace `default`, whether they are nodes or not.
    ApiServer,
}

/// A CiliumCIDRGroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CidrGroup {
    /// The group's name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its blocks of addresses.
    pub blocks: Vec<IpNet>,
}
