//! The contract between the compiler and the renderers: what there is to enforce, and what changed in it.
//!
//! ```text
//!  batch of events --> compiler --> Transaction { sets: added, removed | endpoints: ordered rules in tiers | nodes } --> renderers
//!                                                   ^                            |
//!                                                   `------- SetId --------------'
//! ```
//! Selectors exist above this line only, tables below it only. A rule names its peers by the identity of address sets, so a pod
//! that comes or goes changes a set and no rule. A renderer is told what changed in a set and never the set again; one
//! that needs whole sets keeps them in its own form ([`SetMirror`] is the plainest).
//!
//! **Invariant.** Whoever applies every transaction in order knows every set, endpoint and node; a transaction may be applied
//! twice. What a batch leaves as it was is not in its transaction.
//!
//! **What lost.** Lending renderers a view of the compiler's sets beside the deltas: memory is then held once, but the compiler would
//! have to keep the sets in the form of one of the renderers, and of two accounts of the same change, one would be untested. Giving
//! each rule its addresses (the form before): a pod event then compiles every policy that names a group of the pod, and only a
//! renderer that compares everything with everything finds out what changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, OriginId, Services};

use crate::object::{Node, PodName};
pub use crate::object::{RuleAction, Tier};

/// The identity of an address set. Never another set's, also when the set is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub(crate) u64);

/// The identity of a rule list. Never another list's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListId(pub(crate) u64);

/// What changed in one set. [`AddressSet::prefixes`] gives the prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDelta {
    /// The set; one that was not named before is new, and was empty.
    pub set: SetId,
    /// The addresses that entered it.
    pub added: Arc<AddressSet>,
    /// The addresses that left it; none of them is in `added`.
    pub removed: Arc<AddressSet>,
}

/// The other end of a rule's traffic: sources of ingress, destinations of egress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peers {
    /// Everybody, of both families.
    Any,
    /// The node that the pod runs on, by any of its addresses.
    OwnNode,
    /// The members of any of these sets, each named once.
    Sets(Arc<[SetId]>),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TierRule {
    /// Its tier.
    pub tier: Tier,
    /// The other end.
    pub peers: Peers,
    /// Protocols and destination ports.
    pub services: Services,
    /// What happens.
    pub action: RuleAction,
    /// Which policy's rule this is.
    pub origin: OriginId,
}

/// A pod's rules for one direction: by tier, and in a tier in the order in which they are asked. Traffic that no rule accepts or
/// denies passes.
#[derive(Debug, PartialEq, Eq)]
pub struct TieredList {
    /// Its identity: the rules of a list never change.
    pub id: ListId,
    /// The rules.
    pub rules: Vec<TierRule>,
}

/// A pod's rules, in lists that pods with the same rules share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointRules {
    /// What may come in; none for everything.
    pub ingress: Option<Arc<TieredList>>,
    /// What may go out; none for everything.
    pub egress: Option<Arc<TieredList>>,
}

impl EndpointRules {
    /// The lists that there are.
    pub fn lists(&self) -> impl Iterator<Item = &Arc<TieredList>> {
        self.ingress.iter().chain(&self.egress)
    }
}

/// All that a renderer learns about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod.
    pub pod: PodName,
    /// The node it runs on.
    pub node: Arc<str>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its MAC address where it is known.
    pub mac: Option<[u8; 6]>,
    /// Its rules.
    pub rules: EndpointRules,
}

/// What one batch of events changed. To be applied in the order of the fields.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Whether this is the whole state: sets, pods and nodes that are not in it are gone, and each set has all its members in
    /// `added`.
    pub resync: bool,
    /// Sets that are new or changed, by identity.
    pub sets: Vec<SetDelta>,
    /// Pods with what is to be enforced for them, none for a pod that is gone.
    pub endpoints: Vec<(PodName, Option<Arc<Endpoint>>)>,
    /// Nodes with their new state, none for a node that is gone.
    pub nodes: Vec<(Arc<str>, Option<Arc<Node>>)>,
    /// Sets that no rule names any more, by identity.
    pub dropped: Vec<SetId>,
}

impl Transaction {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        let Self { resync, sets, endpoints, nodes, dropped } = self;
        !resync && sets.is_empty() && endpoints.is_empty() && nodes.is_empty() && dropped.is_empty()
    }

    /// What the transaction says of a node: none when it says nothing, and none within when the node is gone.
    pub fn node(&self, name: &str) -> Option<Option<&Node>> {
        let said = self.nodes.iter().rev().find(|(named, _)| **named == *name);
        match said {
            Some((_, node)) => Some(node.as_deref()),
            None => self.resync.then_some(None),
        }
    }
}

/// All sets as the deltas tell them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetMirror(BTreeMap<SetId, AddressSet>);

impl SetMirror {
    /// Follows a transaction.
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

    /// The members of a set, none when there is no such set.
    pub fn get(&self, set: SetId) -> Option<&AddressSet> {
        self.0.get(&set)
    }

    /// All sets, by identity.
    pub fn sets(&self) -> impl Iterator<Item = (SetId, &AddressSet)> {
        self.0.iter().map(|(&set, members)| (set, members))
    }

    /// Whether the address is one of the peers. The own node's are `node`.
    pub fn names(&self, peers: &Peers, node: &[IpAddr], address: IpAddr) -> bool {
        match peers {
            Peers::Any => true,
            Peers::OwnNode => node.contains(&address),
            Peers::Sets(sets) => sets.iter().any(|set| self.0.get(set).is_some_and(|set| set.contains(address))),
        }
    }
}
