//! The contract between the compiler and the renderers: transactions of address sets, endpoints with their rules, and nodes.
//!
//! ```text
//!  batch of events --> compiler --> Transaction { sets: added, removed | endpoints: ordered rules in tiers | nodes } --> renderers
//!                                                   ^                            |
//!                                                   `------- SetId --------------'
//! ```
//! Selectors exist only in the compiler, tables only in the renderers. A rule names its peers by the identity of address sets, so adding or
//! removing a pod changes a set and no rule. A renderer receives only the changes of a set. If it needs whole sets, it keeps them in its
//! own form ([`SetMirror`] is the simplest).
//!
//! **Invariant.** A renderer that applies all transactions in order knows every set, endpoint and node. Applying a transaction twice is
//! harmless. A transaction contains only what its batch changed.
//!
//! **Rejected.** Lending renderers a view of the compiler's sets besides the deltas saves memory. But the compiler's form of sets would
//! have to suit a renderer, and one of two accounts of the same change would be untested. Putting addresses into each rule makes a pod
//! event compile every policy that names one of the pod's groups, and only a renderer that compares everything finds the change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, NameSet, OriginId, Services};

use crate::object::{Node, PodName};
pub use crate::object::{RuleAction, Tier};

/// The identity of an address set. Never reused after the set is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub(crate) u64);

/// The identity of a rule list. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListId(pub(crate) u64);

/// The addresses that one set gained and lost. [`AddressSet::prefixes`] converts either to prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDelta {
    /// The set. A set that no earlier transaction named is new, and was empty.
    pub set: SetId,
    /// The addresses that the set gained.
    pub added: Arc<AddressSet>,
    /// The addresses that the set lost, disjoint from `added`.
    pub removed: Arc<AddressSet>,
}

/// The other end of a rule's traffic: sources of ingress, destinations of egress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peers {
    /// All addresses, IPv4 and IPv6.
    Any,
    /// Any address of the node that the pod runs on.
    OwnNode,
    /// The members of any of these sets. Each set occurs once.
    Sets(Arc<[SetId]>),
    /// The addresses that the pod has learned, when a packet is judged, from DNS answers for names that these patterns match. Only egress
    /// rules that accept have such peers.
    Names {
        /// The patterns.
        names: NameSet,
        /// Sets of which one must contain the address. `None` for all addresses. Each set occurs once.
        within: Option<Arc<[SetId]>>,
    },
}

impl Peers {
    /// Returns the sets to which the peers' addresses belong. `None` if the peers are not limited to sets.
    pub const fn sets(&self) -> Option<&Arc<[SetId]>> {
        match self {
            Self::Sets(sets) => Some(sets),
            Self::Names { within, .. } => within.as_ref(),
            Self::Any | Self::OwnNode => None,
        }
    }
}

/// A rule of a pod, for one direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TierRule {
    /// The tier in which the rule is evaluated.
    pub tier: Tier,
    /// The addresses at the other end of the traffic.
    pub peers: Peers,
    /// Protocols and destination ports.
    pub services: Services,
    /// What the rule does with matching traffic.
    pub action: RuleAction,
    /// The policy and rule that this rule was compiled from.
    pub origin: OriginId,
}

/// A pod's rules for one direction, sorted by tier and, in a tier, by order of evaluation. Traffic that no rule accepts or denies passes.
#[derive(Debug, PartialEq, Eq)]
pub struct TieredList {
    /// Identifies the list. The rules of a list never change.
    pub id: ListId,
    /// The rules, in order of evaluation.
    pub rules: Vec<TierRule>,
}

/// A pod's rules for both directions. Pods with the same rules share the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointRules {
    /// The rules for ingress. `None` if no policy concerns it: all ingress is allowed.
    pub ingress: Option<Arc<TieredList>>,
    /// The rules for egress. `None` if no policy concerns it, so that all egress is allowed, or if the rules are in `apart`.
    pub egress: Option<Arc<TieredList>>,
    /// The rules for egress, if some of them name domains and the endpoint is for a renderer of tables: the pipeline compiles these rules
    /// to a table of their own. `None` in all other cases.
    pub apart: Option<Arc<TieredList>>,
}

impl TieredList {
    /// Whether any rule names domains.
    pub fn has_names(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.peers, Peers::Names { .. }))
    }
}

impl EndpointRules {
    /// Returns the rules for egress, from `egress` or `apart`. `None` if no policy concerns egress.
    pub fn whole_egress(&self) -> Option<&Arc<TieredList>> {
        self.egress.as_ref().or(self.apart.as_ref())
    }

    /// Returns the rules for ingress, then those for egress, from `egress` or `apart`. Omits a direction that no policy concerns.
    pub fn lists(&self) -> impl Iterator<Item = &Arc<TieredList>> {
        self.ingress.iter().chain(self.whole_egress())
    }
}

/// All that a renderer knows about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod's name.
    pub pod: PodName,
    /// The node that the pod runs on. An empty name if the pod has none ([`UNBOUND`](crate::pipeline::UNBOUND)).
    pub node: Arc<str>,
    /// The pod's IP addresses, without those that another pod or a node has ([`crate::claims`]).
    pub addresses: Vec<IpAddr>,
    /// The pod's MAC address. `None` if unknown.
    pub mac: Option<[u8; 6]>,
    /// The pod's rules.
    pub rules: EndpointRules,
}

/// The changes of one batch of events. Renderers apply the fields in the order of their declaration.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Whether this is the whole state. Sets, pods and nodes that the transaction does not name are then removed, and `added` holds all
    /// members of each set.
    pub resync: bool,
    /// New and changed sets, sorted by identity.
    pub sets: Vec<SetDelta>,
    /// Changed pods, each with its new state. `None` if the pod was removed.
    pub endpoints: Vec<(PodName, Option<Arc<Endpoint>>)>,
    /// Changed nodes, each with its new state. `None` if the node was removed.
    pub nodes: Vec<(Arc<str>, Option<Arc<Node>>)>,
    /// Sets that no rule names any more, sorted by identity.
    pub dropped: Vec<SetId>,
}

impl Transaction {
    /// Whether the transaction changes nothing.
    pub fn is_empty(&self) -> bool {
        let Self { resync, sets, endpoints, nodes, dropped } = self;
        !resync && sets.is_empty() && endpoints.is_empty() && nodes.is_empty() && dropped.is_empty()
    }

    /// Returns the new state of a node: `None` if the transaction does not change it, `Some(None)` if it removes the node.
    pub fn node(&self, name: &str) -> Option<Option<&Node>> {
        let said = self.nodes.iter().rev().find(|(named, _)| **named == *name);
        match said {
            Some((_, node)) => Some(node.as_deref()),
            None => self.resync.then_some(None),
        }
    }
}

/// A copy of all sets, updated from the transactions' deltas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetMirror(BTreeMap<SetId, AddressSet>);

impl SetMirror {
    /// Applies the set changes of a transaction.
    pub fn apply(&mut self, transaction: &Transaction) {
        if transaction.resync {
            self.0.clear();
        }
        for SetDelta { set, added, removed } in &transaction.sets {
            let members = self.0.entry(*set).or_default();
            *members = members.subtract(removed).union(added);
        }
        for set in &transaction.dropped {
            self.0.remove(set);
        }
    }

    /// Returns the members of a set. `None` if the set does not exist.
    pub fn get(&self, set: SetId) -> Option<&AddressSet> {
        self.0.get(&set)
    }

    /// Returns all sets with their members, sorted by identity.
    pub fn sets(&self) -> impl Iterator<Item = (SetId, &AddressSet)> {
        self.0.iter().map(|(&set, members)| (set, members))
    }

    /// Whether the address is one of the peers. `node` lists the addresses of the pod's own node. False for peers by domain name.
    pub fn names(&self, peers: &Peers, node: &[IpAddr], address: IpAddr) -> bool {
        match peers {
            Peers::Any => true,
            Peers::OwnNode => node.contains(&address),
            Peers::Names { .. } => false,
            Peers::Sets(sets) => sets.iter().any(|set| self.0.get(set).is_some_and(|set| set.contains(address))),
        }
    }
}
