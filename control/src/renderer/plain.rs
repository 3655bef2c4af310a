//! Plain lists: the contract's sets and tiers translated into an ordered list of addresses to allow or deny.
//!
//! ```text
//!  Transaction --sets--> Parts of each set --names--> rules with addresses --lower--> PlainList --> PlainTransaction
//!              `-endpoints, lists ---------------------^     (tiers, Pass)
//! ```
//! For renderers whose stack has no sets, or has sets of addresses as the classifier does. A delta recomputes the lists that name its set.
//! Lists whose content changed get a new revision, and the resulting transaction contains their pods.
//!
//! **Invariant.** The output is a function of the sets, lists and endpoints, independent of history. The exception is a list that cannot be
//! lowered ([`TooComplex`]): its pods keep the list in force before (`kept`). If no list was in force, all traffic in that direction is
//! denied. The list is tried again when one of its sets changes. It delays nothing else.

mod kept;
mod lower;
mod own_node;
mod parts;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use bulkhead_classifier::{Action, AddressSet, Addresses, NameSet, OriginId, PartedSet, Rule, Services};

use self::kept::Kept;
pub use self::lower::TooComplex;
pub(super) use self::lower::{Lowered, Product, Tiered, lower, subtract};
pub(crate) use self::own_node::{OwnNodeRule, on_node};
#[cfg(test)]
pub(crate) use self::parts::PART;
use self::parts::{Parts, join};
use self::shared::Shared;
use super::hairpin;
use crate::contract::{Endpoint, ListId, Peers, SetDelta, SetId, TieredList, Transaction};
use crate::object::{Node, PodName};
use crate::origin::Direction;

/// A rule of a pod: the action for traffic with these peers over these protocols and ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlainRule {
    /// The addresses of the other end.
    pub(crate) peers: Addresses,
    /// Protocols and destination ports.
    pub(crate) services: Services,
    /// Patterns of domain names: the rule matches only if the pod has learned a matching name for the other end's address. `None` if the
    /// rule matches whatever the names.
    pub(crate) names: Option<NameSet>,
    pub(crate) action: Action,
    /// The policy rule behind this rule.
    pub(crate) origin: OriginId,
}

/// A pod's rules for one direction, in order. The first match decides. One rule matches everything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlainList {
    /// The list's number, never reused in the renderer.
    pub(crate) revision: u64,
    /// The revision of the list that this one replaces, usually with the same rules and other addresses. `None` if unknown.
    pub(crate) previous: Option<u64>,
    pub(crate) rules: Vec<PlainRule>,
    /// The rules about the pod's own node, in order.
    pub(crate) own_node: Vec<OwnNodeRule>,
}

impl PlainRule {
    /// Returns the rule for packets from any address to the peers.
    pub(crate) fn to_peers(&self) -> Rule {
        let Self { peers, services, names, action, origin } = self;
        Rule { dst: peers.clone(), services: services.clone(), names: names.clone(), ..Rule::any(*action, *origin) }
    }
}

impl PlainList {
    /// Whether the only rule about the own node accepts everything, before all other rules, as NetworkPolicy does.
    pub(crate) fn accepts_own_node_first(&self) -> bool {
        matches!(&*self.own_node, [rule] if rule.is_first_accept())
    }

    /// Returns the list for pods of the node with these addresses, with the rules about the own node at their places.
    pub(crate) fn on_node(&self, node: &Arc<AddressSet>) -> Vec<PlainRule> {
        on_node(&self.rules, &self.own_node, node)
    }

    /// Returns a list that denies everything. `origin` is the rule that does not fit.
    fn closed(revision: u64, origin: OriginId) -> Self {
        let deny =
            PlainRule { peers: Addresses::Any, services: Services::Any, names: None, action: Action::Deny, origin };
        Self { revision, previous: None, rules: vec![deny], own_node: Vec::new() }
    }
}

/// A pod with its addresses and plain lists: the inputs of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainPod {
    pub(crate) node: Arc<str>,
    pub(crate) addresses: Vec<IpAddr>,
    /// Its MAC address. `None` if unknown.
    pub(crate) mac: Option<[u8; 6]>,
    /// The ingress rules. `None` allows everything.
    pub(crate) ingress: Option<Arc<PlainList>>,
    /// The egress rules. `None` allows everything.
    pub(crate) egress: Option<Arc<PlainList>>,
    /// The [rules](hairpin::rules) for connections to itself through a Service. `None` allows everything.
    pub(crate) hairpin: Option<Vec<Rule>>,
}

/// A transaction whose rules name addresses instead of sets, without tiers.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlainTransaction {
    /// Whether this is the complete state, so that other pods and nodes are removed.
    pub(crate) resync: bool,
    /// Pods with their new lists. `None` for a removed pod.
    pub(crate) pods: Vec<(PodName, Option<Arc<PlainPod>>)>,
    /// Nodes with their new state. `None` for a removed node.
    pub(crate) nodes: Vec<(Arc<str>, Option<Arc<Node>>)>,
}

impl PlainTransaction {
    /// Returns the node's new state. `None` if the transaction does not change the node, and `Some(None)` if it removes the node.
    pub(crate) fn node(&self, name: &str) -> Option<Option<&Node>> {
        let said = self.nodes.iter().rev().find(|(named, _)| **named == *name);
        match said {
            Some((_, node)) => Some(node.as_deref()),
            None => self.resync.then_some(None),
        }
    }
}

/// The joined addresses of sets that a rule names together.
#[derive(Debug, Default)]
struct Joined {
    members: Vec<Addresses>,
    lists: BTreeSet<ListId>,
}

/// A rule list that at least one pod has.
#[derive(Debug)]
struct Listed {
    list: Arc<TieredList>,
    direction: Direction,
    /// The list translated to addresses without tiers, as of the last success. `None` before the first.
    plain: Option<Arc<PlainList>>,
    /// The reason why the last translation failed. `None` if it succeeded.
    refused: Option<Refused>,
    pods: BTreeSet<PodName>,
}

/// The reason why a list cannot be translated, and its replacement.
#[derive(Debug)]
struct Refused {
    why: TooComplex,
    /// A list that denies everything, for pods that have no earlier list to keep in force.
    closed: Arc<PlainList>,
}

/// Changes to be reported by the next transaction.
#[derive(Debug, Default)]
struct Pending {
    resync: bool,
    lists: BTreeSet<ListId>,
    pods: BTreeSet<PodName>,
    nodes: Vec<(Arc<str>, Option<Arc<Node>>)>,
}

/// Translates transactions to plain lists, and holds the lists of all pods.
#[derive(Debug, Default)]
pub(crate) struct PlainLists {
    sets: AHashMap<SetId, Parts>,
    shared: Shared,
    joined: AHashMap<Arc<[SetId]>, Joined>,
    by_set: AHashMap<SetId, BTreeSet<Arc<[SetId]>>>,
    lists: AHashMap<ListId, Listed>,
    endpoints: BTreeMap<PodName, Arc<Endpoint>>,
    kept: Kept,
    pending: Pending,
    revisions: u64,
    /// Whether the translated lists include rules that name domains. False for renderers whose target reads no DNS answers: there, such a
    /// rule would match nothing.
    keeps_names: bool,
}

impl PlainLists {
    /// Creates an empty value whose translated lists will include rules that name domains.
    pub(crate) fn with_names() -> Self {
        Self { keeps_names: true, ..Self::default() }
    }

    /// Returns the number of address intervals written since the start.
    pub(crate) fn written(&self) -> u64 {
        self.shared.written()
    }

    /// Whether no set, list or pod is stored.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let Self { sets, joined, by_set, lists, endpoints, kept, .. } = self;
        let indexes = joined.is_empty() && by_set.is_empty() && kept.is_empty();
        sets.is_empty() && indexes && lists.is_empty() && endpoints.is_empty()
    }

    /// Returns the number of stored sets, lists and shared parts.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, usize, usize) {
        (self.sets.len(), self.lists.len(), self.shared.held())
    }

    /// Applies a transaction. Returns the same changes as plain lists.
    pub(crate) fn follow(&mut self, transaction: &Transaction) -> PlainTransaction {
        self.take_sets(transaction);
        self.take_endpoints(transaction);
        for set in &transaction.dropped {
            self.sets.remove(set);
        }
        self.shared.end();
        self.pending.resync |= transaction.resync;
        if transaction.resync {
            self.pending.nodes.clear();
        }
        self.pending.nodes.extend(transaction.nodes.iter().cloned());
        self.tell()
    }

    fn take_sets(&mut self, transaction: &Transaction) {
        if transaction.resync {
            let there: AHashSet<SetId> = transaction.sets.iter().map(|delta| delta.set).collect();
            self.sets.retain(|set, _| there.contains(set));
        }
        let mut touched: BTreeSet<Arc<[SetId]>> = BTreeSet::new();
        for SetDelta { set, added, removed } in &transaction.sets {
            let parts = self.sets.entry(*set).or_default();
            if transaction.resync {
                let before = parts.sets().fold(AddressSet::default(), |all, part| all.union(part));
                parts.apply(&added.subtract(&before), &before.subtract(added), &mut self.shared);
            } else {
                parts.apply(added, removed, &mut self.shared);
            }
            touched.extend(self.by_set.get(set).into_iter().flatten().cloned());
        }
        for sets in touched {
            let members = members(&self.sets, &sets);
            let joined = self.joined.get_mut(&sets).expect("indexed by its sets");
            if joined.members != members {
                joined.members = members;
                self.pending.lists.extend(&joined.lists);
            }
        }
    }

    fn take_endpoints(&mut self, transaction: &Transaction) {
        let before = if transaction.resync { self.endpoints.keys().cloned().collect() } else { BTreeSet::new() };
        let mut gone: Vec<_> = before.into_iter().map(|name| (name, None)).collect();
        if transaction.resync {
            let there: AHashSet<&PodName> = transaction.endpoints.iter().map(|(name, _)| name).collect();
            gone.retain(|(name, _)| !there.contains(name));
        }
        for (name, new) in gone.iter().chain(&transaction.endpoints) {
            let old = match new {
                Some(new) => self.endpoints.insert(name.clone(), new.clone()),
                None => self.endpoints.remove(name),
            };
            if old == *new && !transaction.resync {
                continue;
            }
            self.pending.pods.insert(name.clone());
            self.keep(name, old.as_deref(), new.as_deref());
            // Acquires the new lists first, so that a list of both stays in use.
            if let Some(new) = new {
                self.acquire(new.rules.ingress.as_ref(), Direction::Ingress, name);
                // Egress rules in `apart` need their sets here too: they decide about the pod's connections to itself.
                self.acquire(new.rules.whole_egress(), Direction::Egress, name);
            }
            for list in old.iter().flat_map(|old| old.rules.lists()) {
                if !new.iter().flat_map(|new| new.rules.lists()).any(|kept| kept.id == list.id) {
                    self.release(list.id, name);
                }
            }
        }
    }

    fn acquire(&mut self, list: Option<&Arc<TieredList>>, direction: Direction, pod: &PodName) {
        let Some(list) = list else { return };
        let listed = self.lists.entry(list.id).or_insert_with(|| {
            self.pending.lists.insert(list.id);
            for sets in sets_of(list) {
                let joined = self.joined.entry(sets.clone()).or_insert_with(|| {
                    for set in sets.iter() {
                        self.by_set.entry(*set).or_default().insert(sets.clone());
                    }
                    Joined { members: members(&self.sets, sets), lists: BTreeSet::new() }
                });
                joined.lists.insert(list.id);
            }
            Listed { list: list.clone(), direction, plain: None, refused: None, pods: BTreeSet::new() }
        });
        listed.pods.insert(pod.clone());
    }

    fn release(&mut self, id: ListId, pod: &PodName) {
        let Some(listed) = self.lists.get_mut(&id) else { return };
        listed.pods.remove(pod);
        if !listed.pods.is_empty() {
            return;
        }
        let Some(Listed { list, .. }) = self.lists.remove(&id) else { return };
        for sets in sets_of(&list) {
            let Some(joined) = self.joined.get_mut(sets) else { continue };
            joined.lists.remove(&id);
            if !joined.lists.is_empty() {
                continue;
            }
            self.joined.remove(sets);
            for set in sets.iter() {
                if let Some(users) = self.by_set.get_mut(set) {
                    users.remove(sets);
                    if users.is_empty() {
                        self.by_set.remove(set);
                    }
                }
            }
        }
    }

    /// Translates the changed lists to addresses without tiers. Returns the transaction with all pending changes.
    fn tell(&mut self) -> PlainTransaction {
        for id in std::mem::take(&mut self.pending.lists) {
            let Some(listed) = self.lists.get_mut(&id) else { continue };
            let mut revision = || {
                self.revisions += 1;
                self.revisions
            };
            let keeps = |rule: &Tiered| self.keeps_names || rule.names.is_none();
            match lower(tiered(&listed.list, &self.joined).filter(keeps), listed.direction) {
                Ok(lowered) => {
                    listed.refused = None;
                    let same =
                        |plain: &Arc<PlainList>| plain.rules == lowered.rules && plain.own_node == lowered.own_node;
                    if listed.plain.as_ref().is_some_and(same) {
                        continue;
                    }
                    let (rules, own_node) = (lowered.rules, lowered.own_node);
                    let previous = listed.plain.as_ref().map(|plain| plain.revision);
                    listed.plain = Some(Arc::new(PlainList { revision: revision(), previous, rules, own_node }));
                }
                Err(why) => {
                    if let Some(refused) = &mut listed.refused {
                        refused.why = why;
                        continue;
                    }
                    let closed = Arc::new(PlainList::closed(revision(), why.origin()));
                    listed.refused = Some(Refused { why, closed });
                    if listed.plain.is_some() {
                        continue;
                    }
                }
            }
            self.pending.pods.extend(listed.pods.iter().cloned());
        }
        let (lists, endpoints) = (&self.lists, &self.endpoints);
        self.kept.retain(|pod, direction| {
            let list = endpoints.get(pod).and_then(|endpoint| list_of(endpoint, direction));
            list.and_then(|list| lists.get(&list.id)).is_some_and(|listed| listed.plain.is_none())
        });
        let Pending { resync, pods, nodes, .. } = std::mem::take(&mut self.pending);
        let pods = pods.into_iter().map(|name| {
            let pod = self.endpoints.get(&name).map(|endpoint| Arc::new(self.plain(&name, endpoint)));
            (name, pod)
        });
        PlainTransaction { resync, pods: pods.collect(), nodes }
    }

    fn plain(&self, name: &PodName, endpoint: &Endpoint) -> PlainPod {
        let plain = |direction| match self.in_force(name, endpoint, direction) {
            Some(plain) => plain,
            None => self
                .lists
                .get(&list_of(endpoint, direction)?.id)?
                .refused
                .as_ref()
                .map(|refused| refused.closed.clone()),
        };
        PlainPod {
            node: endpoint.node.clone(),
            addresses: endpoint.addresses.clone(),
            mac: endpoint.mac,
            ingress: plain(Direction::Ingress),
            egress: plain(Direction::Egress),
            hairpin: hairpin::rules(&endpoint.rules, &endpoint.addresses, |peers, address| self.names(peers, address)),
        }
    }

    /// Whether the peers contain the address of a pod.
    fn names(&self, peers: &Peers, address: IpAddr) -> bool {
        match peers {
            Peers::Any => true,
            Peers::OwnNode | Peers::Names { .. } => false,
            Peers::Sets(sets) => {
                let mut parts = sets.iter().filter_map(|set| self.sets.get(set)).flat_map(Parts::sets);
                parts.any(|part| part.contains(address))
            }
        }
    }
}

fn list_of(endpoint: &Endpoint, direction: Direction) -> Option<&Arc<TieredList>> {
    match direction {
        Direction::Ingress => endpoint.rules.ingress.as_ref(),
        Direction::Egress => endpoint.rules.egress.as_ref(),
    }
}

/// Returns the sets that the rules of a list name together.
fn sets_of(list: &TieredList) -> impl Iterator<Item = &Arc<[SetId]>> {
    list.rules.iter().filter_map(|rule| rule.peers.sets())
}

/// Returns the members of these sets together, in as few address sets as practical, since each becomes a rule. Equal sets are merged.
fn members(all: &AHashMap<SetId, Parts>, sets: &[SetId]) -> Vec<Addresses> {
    let (mut large, mut small) = (Vec::<Arc<PartedSet>>::new(), Vec::new());
    for parts in sets.iter().filter_map(|set| all.get(set)) {
        match parts.large() {
            Some(set) if large.iter().any(|known| Arc::ptr_eq(known, set)) => {}
            Some(set) => large.push(set.clone()),
            None => small.extend(parts.sets().cloned()),
        }
    }
    join(small).into_iter().map(Addresses::Set).chain(large.into_iter().map(Addresses::Parted)).collect()
}

/// Returns the rules of a list, with addresses instead of sets.
fn tiered(list: &TieredList, joined: &AHashMap<Arc<[SetId]>, Joined>) -> impl Iterator<Item = Tiered> {
    list.rules.iter().flat_map(|rule| {
        let mut names = None;
        let peers: Vec<Option<Addresses>> = match &rule.peers {
            Peers::Any => vec![Some(Addresses::Any)],
            Peers::OwnNode => vec![None],
            Peers::Names { names: of, within } => {
                names = Some(of.clone());
                match within {
                    Some(sets) => joined[sets].members.iter().cloned().map(Some).collect(),
                    None => vec![Some(Addresses::Any)],
                }
            }
            Peers::Sets(sets) => joined[sets].members.iter().cloned().map(Some).collect(),
        };
        peers.into_iter().map(move |peers| Tiered {
            tier: rule.tier.clone(),
            peers,
            services: rule.services.clone(),
            names: names.clone(),
            action: rule.action,
            origin: rule.origin,
        })
    })
}

#[cfg(test)]
mod tests;
