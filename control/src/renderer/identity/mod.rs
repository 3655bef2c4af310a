//! The identity renderer: who has an address, and what that one may do, as Cilium and the toy enforcer have it.
//!
//! ```text
//!  Transaction --sets: added, removed--> ipcache: address -> party (identity, endpoint)
//!              `-endpoints, lists -----> policy maps: (identity, protocol, port) -> verdict, one for each list and direction
//! ```
//! **Purpose.** What `engine: identity` enforces: one [`IdentityTables`] for all interfaces of the node. A remote pod of a known
//! identity is one piece of the ipcache and no map. A pod without policies has the map that allows everything, a map like any other:
//! the default is in the tables.
//!
//! **Not its purpose.** Numbers that people see and other nodes share: [`crate::identity`] derives those from labels. Here an identity is
//! a position in this process.
//!
//! **Two designs.** *An identity for each set of labels*, as Cilium has it: known as soon as the pod is, the same on all nodes,
//! whatever the policies. But renderers do not know labels; labels that no policy names make identities (`release`, `pod-template-hash`:
//! 30,000 for 100,000 pods, which Cilium's users then filter by hand); and addresses with the same labels that a rule tells apart, by an
//! `ipBlock` or by the number behind a port's name, need others in any case. *An identity for each combination of sets* is what is
//! here: addresses that are in the same sets, which is all that rules can see of them. It needs nothing but the contract, is right for
//! blocks, port names, nodes and tiers without a case for any of them, and there are no more identities than rules tell apart. It lost
//! that a number means the same elsewhere; the numbers for that are derived beside it, and nothing here depends on their being different.
//!
//! **Invariant.** The verdicts are a function of the sets, lists, endpoints and nodes alone. A number never gets another meaning within
//! a lineage; a new one begins when most numbers are not in use any more.

mod maps;
mod parties;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::identity::{EndpointMaps, IdentityTables, IpCache, Party, PolicyMap};
use bulkhead_classifier::{Action, AddressSet, OriginId, ServiceSet, Tables, Verdict};

use self::maps::{Decisions, Listed};
use self::parties::{Change, OWN_NODE, Parties, REMOTE_NODE, Tag, UNKNOWN, tag};
use super::acl::{AclTable, Attachment, EnforcedAt, Interface, NodeTables};
use super::{BoxError, Renderer};
use crate::contract::{Endpoint, ListId, SetDelta, SetId, TieredList, Transaction};
use crate::object::PodName;
use crate::origin::{Direction, Origins};

/// Numbers that may be out of use before they are given anew: half of them, and no fewer than these, which take 64 KiB.
const WORTH_COMPACTING: usize = 1 << 10;

/// A pod of the node.
#[derive(Debug)]
struct Local {
    number: u32,
    endpoint: Arc<Endpoint>,
}

/// What one kind of traffic with an address meets: services, and the action and origin that they share.
pub type Entry = (ServiceSet, Action, OriginId);

/// The renderer of one node.
#[derive(Debug)]
pub struct IdentityRenderer {
    node: Arc<str>,
    cache: Arc<IpCache>,
    parties: Parties,
    decisions: Decisions,
    lists: AHashMap<ListId, Listed>,
    by_tag: AHashMap<Tag, BTreeSet<ListId>>,
    /// The map of pods without rules, by direction.
    open: [Arc<PolicyMap>; 2],
    locals: BTreeMap<PodName, Local>,
    /// Numbers of endpoints that are free, and the first that was never given.
    free: Vec<u32>,
    given: u32,
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    lineage: u64,
    /// How many parties and decisions there were when all were in use.
    compact: (usize, usize),
    endpoints: Arc<[EndpointMaps]>,
    known: Arc<[Party]>,
    interfaces: Arc<[Interface]>,
    published: Option<Arc<NodeTables>>,
    generation: u64,
    work: IdentityWork,
}

/// The work done so far, in steps that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityWork {
    /// Maps made anew.
    pub maps: u64,
    /// Times that numbers were given anew.
    pub compactions: u64,
}

/// What a transaction does to addresses.
#[derive(Default)]
struct Moves(Vec<(Arc<AddressSet>, Change)>);

impl Moves {
    fn push(&mut self, addresses: impl IntoIterator<Item = IpAddr>, change: Change) {
        let addresses: AddressSet = addresses.into_iter().collect();
        if !addresses.is_empty() {
            self.0.push((Arc::new(addresses), change));
        }
    }
}

impl IdentityRenderer {
    /// A renderer of one node, whose first publication has the number after `generation`. Its first transaction gives it tables.
    pub fn of_node(node: Arc<str>, generation: u64) -> Self {
        let mut decisions = Decisions::default();
        let open = open_maps(&mut decisions);
        Self {
            node,
            cache: Arc::default(),
            parties: Parties::default(),
            decisions,
            lists: AHashMap::new(),
            by_tag: AHashMap::new(),
            open,
            locals: BTreeMap::new(),
            free: Vec::new(),
            given: 0,
            nodes: BTreeMap::new(),
            lineage: 1,
            compact: (0, 0),
            endpoints: Arc::from([]),
            known: Arc::from([]),
            interfaces: Arc::default(),
            published: None,
            generation,
            work: IdentityWork::default(),
        }
    }

    /// The latest tables, none before the first transaction.
    pub fn node_tables(&self) -> Option<&Arc<NodeTables>> {
        self.published.as_ref()
    }

    /// The work done so far.
    pub fn work(&self) -> IdentityWork {
        self.work
    }

    /// The ipcache. Its numbers are those of [`IdentityRenderer::sets_of`].
    pub fn cache(&self) -> &IpCache {
        &self.cache
    }

    /// The sets that the addresses of a number of the ipcache are in, ascending.
    pub fn sets_of(&self, number: u32) -> Vec<SetId> {
        let sets = self.parties.sets_of(self.parties.all()[number as usize].identity);
        sets.iter().filter(|&&tag| tag < REMOTE_NODE).map(|&tag| SetId(tag)).collect()
    }

    /// The identity of an address: two addresses have the same where no rule tells them apart.
    pub fn identity_of(&self, address: IpAddr) -> u32 {
        self.parties.all()[self.cache.get(address) as usize].identity
    }

    /// Whether the address is the node's own, and whether it is another node's.
    pub fn node_of(&self, address: IpAddr) -> (bool, bool) {
        let sets = self.parties.sets_of(self.identity_of(address));
        (sets.contains(&OWN_NODE), sets.contains(&REMOTE_NODE))
    }

    /// What traffic between a pod of the node and an address meets in the pod's map: every service once. None where the pod is not known.
    pub fn entries(&self, pod: &PodName, direction: Direction, address: IpAddr) -> Option<Vec<Entry>> {
        self.entries_of(pod, direction, self.identity_of(address))
    }

    /// The same of addresses of which nothing is known, whether or not there are any.
    pub fn entries_of_unknown(&self, pod: &PodName, direction: Direction) -> Option<Vec<Entry>> {
        self.entries_of(pod, direction, UNKNOWN)
    }

    fn entries_of(&self, pod: &PodName, direction: Direction, identity: u32) -> Option<Vec<Entry>> {
        let rules = &self.locals.get(pod)?.endpoint.rules;
        let list = match direction {
            Direction::Ingress => &rules.ingress,
            Direction::Egress => &rules.egress,
        };
        let Some(list) = list else {
            return Some(vec![(ServiceSet::all(), Action::Allow, Origins::not_isolated(direction))]);
        };
        let row = self.lists.get(&list.id)?.known_row(self.parties.sets_of(identity))?;
        let entry = |(services, verdict): &(ServiceSet, Verdict)| {
            let (action, origin) = self.decisions.get(*verdict)?;
            Some((services.clone(), action, origin))
        };
        row.iter().map(entry).collect()
    }

    /// Whether policies of this direction apply to the pod; without any it has the map that allows everything.
    pub fn is_open(&self, pod: &PodName, direction: Direction) -> bool {
        self.locals.get(pod).is_some_and(|local| match direction {
            Direction::Ingress => local.endpoint.rules.ingress.is_none(),
            Direction::Egress => local.endpoint.rules.egress.is_none(),
        })
    }

    fn take_endpoints(&mut self, transaction: &Transaction, moves: &mut Moves) -> (bool, BTreeSet<ListId>) {
        let (mut has_changed, mut dirty, mut bound) = (transaction.resync, BTreeSet::new(), Vec::new());
        let mut changes: Vec<(&PodName, Option<&Arc<Endpoint>>)> =
            transaction.endpoints.iter().map(|(name, endpoint)| (name, endpoint.as_ref())).collect();
        let gone: Vec<PodName>;
        if transaction.resync {
            let there: HashSet<&PodName> = transaction.endpoints.iter().map(|(name, _)| name).collect();
            gone = self.locals.keys().filter(|name| !there.contains(name)).cloned().collect();
            changes.extend(gone.iter().map(|name| (name, None)));
        }
        for (name, new) in changes {
            // A pod that is another node's is remote, however much is known of it.
            let new = new.filter(|endpoint| endpoint.node == self.node);
            let old = self.locals.remove(name);
            if old.is_none() && new.is_none() {
                continue;
            }
            has_changed = true;
            let number = old.as_ref().map(|old| old.number).unwrap_or_else(|| {
                self.free.pop().unwrap_or_else(|| {
                    self.given += 1;
                    self.given - 1
                })
            });
            if let Some(new) = new {
                for (list, direction) in
                    [(&new.rules.ingress, Direction::Ingress), (&new.rules.egress, Direction::Egress)]
                {
                    let Some(list) = list else { continue };
                    self.acquire(list, direction, &mut dirty);
                }
                bound.push((number, new.addresses.clone()));
            }
            if let Some(old) = &old {
                old.endpoint.rules.lists().for_each(|list| self.release(list));
                moves.push(old.endpoint.addresses.iter().copied(), Change::Unbind(number));
            }
            match new {
                Some(endpoint) => drop(self.locals.insert(name.clone(), Local { number, endpoint: endpoint.clone() })),
                None => self.free.push(number),
            }
        }
        // Behind all that leave: an address may pass from one pod to the next.
        for (number, addresses) in bound {
            moves.push(addresses, Change::Bind(number));
        }
        (has_changed, dirty)
    }

    fn acquire(&mut self, list: &Arc<TieredList>, direction: Direction, dirty: &mut BTreeSet<ListId>) {
        let by_tag = &mut self.by_tag;
        let listed = self.lists.entry(list.id).or_insert_with(|| {
            let listed = Listed::new(list.clone(), direction);
            for tag in listed.tags() {
                by_tag.entry(tag).or_default().insert(list.id);
            }
            dirty.insert(list.id);
            listed
        });
        listed.users += 1;
    }

    fn release(&mut self, list: &Arc<TieredList>) {
        let Some(listed) = self.lists.get_mut(&list.id) else { return };
        listed.users -= 1;
        if listed.users > 0 {
            return;
        }
        for tag in self.lists.remove(&list.id).iter().flat_map(Listed::tags) {
            if let Some(lists) = self.by_tag.get_mut(&tag) {
                lists.remove(&list.id);
                if lists.is_empty() {
                    self.by_tag.remove(&tag);
                }
            }
        }
    }

    /// Returns whether the own node's addresses have changed.
    fn take_nodes(&mut self, transaction: &Transaction, moves: &mut Moves) -> bool {
        if transaction.nodes.is_empty() && !transaction.resync {
            return false;
        }
        let own_before = self.nodes.get(&self.node).cloned();
        let before = if transaction.resync { std::mem::take(&mut self.nodes) } else { self.nodes.clone() };
        for (name, node) in &transaction.nodes {
            match node {
                Some(node) => self.nodes.insert(name.clone(), node.addresses.clone()),
                None => self.nodes.remove(name),
            };
        }
        // Addresses may be several nodes', so that all are compared.
        let of = |nodes: &BTreeMap<Arc<str>, Vec<IpAddr>>, own: bool| -> AddressSet {
            let nodes = nodes.iter().filter(|(name, _)| (**name == self.node) == own);
            nodes.flat_map(|(_, addresses)| addresses.iter().copied()).collect()
        };
        for (own, tag) in [(true, OWN_NODE), (false, REMOTE_NODE)] {
            let (old, new) = (of(&before, own), of(&self.nodes, own));
            // With a resync the ipcache is empty.
            let old = if transaction.resync { AddressSet::default() } else { old };
            moves.0.push((Arc::new(old.subtract(&new)), Change::Leave(tag)));
            moves.0.push((Arc::new(new.subtract(&old)), Change::Enter(tag)));
        }
        own_before.as_ref() != self.nodes.get(&self.node)
    }

    fn take_sets(transaction: &Transaction, moves: &mut Moves) {
        let change =
            |set: &SetDelta, entered| if entered { Change::Enter(tag(set.set)) } else { Change::Leave(tag(set.set)) };
        for entered in [false, true] {
            for delta in &transaction.sets {
                let addresses = if entered { &delta.added } else { &delta.removed };
                if !addresses.is_empty() {
                    moves.0.push((addresses.clone(), change(delta, entered)));
                }
            }
        }
    }

    /// Follows what happens to addresses. Returns the lists that name an identity which is new.
    fn move_addresses(&mut self, transaction: &Transaction, moves: &Moves) -> BTreeSet<ListId> {
        let sets: Vec<&AddressSet> = moves.0.iter().map(|(addresses, _)| &**addresses).collect();
        if transaction.resync {
            self.cache = Arc::default();
        }
        if sets.iter().any(|set| !set.is_empty()) {
            let parties = &mut self.parties;
            // The same happens to many addresses.
            let mut known = AHashMap::<(u32, Vec<usize>), u32>::new();
            let next = |number: u32, changes: &[usize]| {
                let after = |parties: &mut Parties| parties.after(number, changes.iter().map(|&at| &moves.0[at].1));
                *known.entry((number, changes.to_vec())).or_insert_with(|| after(parties))
            };
            self.cache = Arc::new(self.cache.changed(&sets, next));
        }
        if !transaction.dropped.is_empty() {
            let tags: Vec<Tag> = transaction.dropped.iter().map(|&set| tag(set)).collect();
            let instead = self.parties.retire(&tags);
            if !instead.is_empty() {
                self.cache = Arc::new(self.cache.renumbered(|number| *instead.get(&number).unwrap_or(&number)));
            }
        }
        let fresh = self.parties.take_fresh();
        let tags = fresh.iter().flat_map(|&identity| self.parties.sets_of(identity).iter());
        tags.filter_map(|tag| self.by_tag.get(tag)).flatten().copied().collect()
    }

    fn compile(&mut self, lists: impl IntoIterator<Item = ListId>) -> bool {
        let mut has_changed = false;
        for id in lists {
            if let Some(listed) = self.lists.get_mut(&id) {
                listed.compile(&self.parties, &mut self.decisions);
                self.work.maps += 1;
                has_changed = true;
            }
        }
        has_changed
    }

    /// Gives numbers anew once most of them are out of use. Then all maps are made anew, in some ms, and sessions are judged again.
    fn compact(&mut self) -> bool {
        let (parties, decisions) = self.compact;
        let many = |now: usize, then: usize| now > 2 * then + WORTH_COMPACTING;
        if !many(self.parties.all().len().max(self.parties.identities()), parties)
            && !many(self.decisions.len(), decisions)
        {
            return false;
        }
        let (compacted, instead) = self.parties.compacted(&self.cache.numbers());
        self.cache = Arc::new(self.cache.renumbered(|number| instead[&number]));
        self.parties = compacted;
        self.parties.take_fresh();
        self.decisions = Decisions::default();
        self.open = open_maps(&mut self.decisions);
        self.lists.values_mut().for_each(Listed::forget_rows);
        let all: Vec<ListId> = self.lists.keys().copied().collect();
        self.compile(all);
        self.lineage += 1;
        self.compact = (self.parties.all().len().max(self.parties.identities()), self.decisions.len());
        self.work.compactions += 1;
        true
    }

    fn bind(&mut self) {
        let map = |list: &Option<Arc<TieredList>>, direction: Direction| {
            let listed = list.as_ref().and_then(|list| self.lists.get(&list.id));
            listed.map_or_else(
                || self.open[usize::from(direction == Direction::Egress)].clone(),
                |listed| listed.map.clone(),
            )
        };
        let closed = Arc::new(PolicyMap::new(&[], &[Vec::new()]));
        let nobody = EndpointMaps { ingress: closed.clone(), egress: closed };
        let mut endpoints = vec![nobody; self.given as usize];
        for Local { number, endpoint } in self.locals.values() {
            let rules = &endpoint.rules;
            endpoints[*number as usize] = EndpointMaps {
                ingress: map(&rules.ingress, Direction::Ingress),
                egress: map(&rules.egress, Direction::Egress),
            };
        }
        self.endpoints = endpoints.into();
    }

    fn connect(&mut self) {
        let pods = self.locals.iter().map(|(name, local)| Interface {
            attachment: Attachment::Pod(name.clone()),
            addresses: local.endpoint.addresses.clone(),
            mac: local.endpoint.mac,
            table: 0,
            hairpin: Some(Origins::OWN_POD),
        });
        let own = self.nodes.get(&self.node).cloned().unwrap_or_default();
        let others = [(Attachment::Uplink, Vec::new()), (Attachment::Host, own)]
            .map(|(attachment, addresses)| Interface { attachment, addresses, mac: None, table: 0, hairpin: None });
        self.interfaces = pods.chain(others).collect();
    }

    fn publish(&mut self) {
        let others = self.decisions.verdict(Action::Allow, Origins::not_isolated(Direction::Egress));
        if self.known.len() != self.parties.all().len()
            || self.work.compactions > 0 && *self.known != *self.parties.all()
        {
            self.known = self.parties.all().into();
        }
        let tables = IdentityTables::new(
            self.lineage,
            self.cache.clone(),
            self.known.clone(),
            self.endpoints.clone(),
            others,
            self.decisions.rules(),
        );
        self.generation += 1;
        self.published = Some(Arc::new(NodeTables {
            node: self.node.clone(),
            enforced_at: EnforcedAt::Destination,
            generation: self.generation,
            interfaces: self.interfaces.clone(),
            tables: vec![AclTable {
                name: "identities".into(),
                tables: Arc::new(Tables::of_identities(Arc::new(tables))),
            }],
        }));
    }
}

/// The maps of pods without rules: one entry that allows everything, for everybody.
fn open_maps(decisions: &mut Decisions) -> [Arc<PolicyMap>; 2] {
    [Direction::Ingress, Direction::Egress].map(|direction| {
        let verdict = decisions.verdict(Action::Allow, Origins::not_isolated(direction));
        Arc::new(PolicyMap::new(&[], &[vec![(ServiceSet::all(), verdict)]]))
    })
}

impl Renderer for IdentityRenderer {
    fn name(&self) -> String {
        "identity".into()
    }

    /// Never fails: every list has a map.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        let before = self.cache.clone();
        let mut moves = Moves::default();
        let (endpoints, mut dirty) = self.take_endpoints(transaction, &mut moves);
        let own_node = self.take_nodes(transaction, &mut moves);
        Self::take_sets(transaction, &mut moves);
        // What leaves goes first, whatever says so.
        moves.0.sort_by_key(|(_, change)| matches!(change, Change::Enter(_) | Change::Bind(_)));
        dirty.extend(self.move_addresses(transaction, &moves));
        let maps = self.compile(dirty);
        let compacted = self.compact();
        if endpoints || maps || compacted {
            self.bind();
        }
        if endpoints || own_node {
            self.connect();
        }
        let first = self.published.is_none();
        if first {
            self.connect();
        }
        if first || endpoints || maps || compacted || own_node || !Arc::ptr_eq(&before, &self.cache) {
            self.publish();
        }
        Ok(())
    }

    fn origins(&self) -> HashSet<OriginId> {
        self.lists.values().flat_map(Listed::origins).collect()
    }
}

#[cfg(test)]
mod tests;
