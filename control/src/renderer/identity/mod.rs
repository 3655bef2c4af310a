//! The identity renderer maps addresses to identities and identities to verdicts, as Cilium does.
//!
//! ```text
//!  Transaction --sets: added, removed--> ipcache: address -> party (identity, endpoint)
//!              `-endpoints, lists -----> policy maps: (identity, protocol, port) -> verdict, one for each list and direction
//! ```
//! **Purpose.** The tables of `engine: identity`: one [`IdentityTables`] for all interfaces of the node. A remote pod with a known identity
//! adds one ipcache entry and no map. A pod without policies has a map that allows everything, so the default is part of the tables.
//!
//! **Not its purpose.** Identity numbers for users or for other nodes: [`crate::identity`] derives those from labels. Here an identity is
//! an index local to the process.
//!
//! **Alternatives.** *An identity per set of labels*, as in Cilium, is known as soon as the pod is, and equal on all nodes under all
//! policies. But renderers have no labels. Labels that no policy uses create identities (`release`, `pod-template-hash`: 30,000 for 100,000
//! pods), which Cilium's users filter by hand. And pods with equal labels may need different identities, because of an `ipBlock` or a named
//! port. *An identity per combination of sets*, as here, groups the addresses that are in the same sets, which is all that rules can
//! distinguish. It uses only the contract. Blocks, named ports, nodes and tiers need no special case, and no identity is superfluous. Its
//! disadvantage is that a number means nothing on other nodes. Shared numbers are derived separately, and nothing here requires them to be
//! unique.
//!
//! **Invariant.** The verdicts are a function of the sets, lists, endpoints and nodes. Within a lineage, a number keeps its meaning. A new
//! lineage begins when most numbers are out of use.

mod lookups;
mod maps;
mod moves;
mod parties;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::identity::{EndpointMaps, IdentityTables, IpCache, Party, PolicyMap};
use bulkhead_classifier::{Action, OriginId, ServiceSet, Tables};

pub use self::lookups::Entry;
use self::maps::{Decisions, Listed};
use self::moves::Moves;
use self::parties::{Change, Parties, Tag, tag};
use super::acl::{AclTable, Attachment, EnforcedAt, Interface, NodeTables};
use super::hairpin::{self, Hairpins};
use super::{BoxError, Renderer};
use crate::contract::{Endpoint, ListId, Peers, TieredList, Transaction};
use crate::object::PodName;
use crate::origin::{Direction, Origins};

/// Renumbering requires that more than half of the numbers, and at least this many (64 KiB), are out of use.
const WORTH_COMPACTING: usize = 1 << 10;

/// The position of the identity tables in [`NodeTables::tables`].
const IDENTITIES: usize = 0;

/// A pod of the node.
#[derive(Debug)]
struct Local {
    number: u32,
    endpoint: Arc<Endpoint>,
}

/// The identity renderer of one node.
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
    /// Released endpoint numbers. `given` is the first number that was never used.
    free: Vec<u32>,
    given: u32,
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    lineage: u64,
    /// Number of parties and number of decisions after the last renumbering, when all were in use.
    compact: (usize, usize),
    endpoints: Arc<[EndpointMaps]>,
    known: Arc<[Party]>,
    interfaces: Arc<[Interface]>,
    hairpins: Hairpins,
    published: Option<Arc<NodeTables>>,
    generation: u64,
    work: IdentityWork,
}

/// Work since the start, in steps that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityWork {
    /// Number of policy maps compiled.
    pub maps: u64,
    /// Number of renumberings, each of which compiles all maps again.
    pub compactions: u64,
}

impl IdentityRenderer {
    /// Creates a renderer of one node. The first transaction publishes tables, with the number after `generation`.
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
            hairpins: Hairpins::default(),
            published: None,
            generation,
            work: IdentityWork::default(),
        }
    }

    /// Returns the latest tables. `None` before the first transaction.
    pub fn node_tables(&self) -> Option<&Arc<NodeTables>> {
        self.published.as_ref()
    }

    /// Returns counts of the work since the renderer was created.
    pub fn work(&self) -> IdentityWork {
        self.work
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

    /// Renumbers if most numbers are out of use. If so, compiles all maps again (some ms) and returns true; sessions are judged again.
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
        let (_, hairpins) = self.hairpins.tables();
        let pods = self.locals.iter().map(|(name, local)| Interface {
            attachment: Attachment::Pod(name.clone()),
            addresses: local.endpoint.addresses.clone(),
            mac: local.endpoint.mac,
            table: IDENTITIES,
            hairpin: Some(Origins::OWN_POD),
            hairpin_table: hairpins.get(name).map(|at| IDENTITIES + 1 + at),
            egress_table: None,
        });
        let own = self.nodes.get(&self.node).cloned().unwrap_or_default();
        let others =
            [(Attachment::Uplink, Vec::new()), (Attachment::Host, own)].map(|(attachment, addresses)| Interface {
                attachment,
                addresses,
                mac: None,
                table: IDENTITIES,
                hairpin: None,
                hairpin_table: None,
                egress_table: None,
            });
        self.interfaces = pods.chain(others).collect();
    }

    /// Compiles the hairpin tables. Returns whether any changed.
    fn set_hairpins(&mut self) -> bool {
        let mut changed = self.hairpins.retain(|pod| self.locals.contains_key(pod));
        for (pod, Local { endpoint, .. }) in &self.locals {
            let rules = hairpin::rules(&endpoint.rules, &endpoint.addresses, |peers, address| match peers {
                Peers::Any => true,
                Peers::OwnNode | Peers::Names { .. } => false,
                Peers::Sets(sets) => {
                    let of = self.parties.sets_of(self.identity_of(address));
                    sets.iter().any(|&set| of.contains(&tag(set)))
                }
            });
            changed |= self.hairpins.set(pod, rules.as_deref());
        }
        changed
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
        let (hairpins, _) = self.hairpins.tables();
        self.generation += 1;
        self.published = Some(Arc::new(NodeTables {
            node: self.node.clone(),
            enforced_at: EnforcedAt::Destination,
            generation: self.generation,
            interfaces: self.interfaces.clone(),
            tables: std::iter::once(AclTable {
                name: "identities".into(),
                tables: Arc::new(Tables::of_identities(Arc::new(tables))),
            })
            .chain(hairpins.into_iter().map(|(name, tables)| AclTable { name, tables }))
            .collect(),
        }));
    }
}

/// Returns the maps of pods without rules: a single entry allows everything.
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

    /// Applies the transaction. Never fails: a map can be compiled from any list.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        let before = self.cache.clone();
        let mut moves = Moves::default();
        let (endpoints, mut dirty) = self.take_endpoints(transaction, &mut moves);
        let own_node = self.take_nodes(transaction, &mut moves);
        Self::take_sets(transaction, &mut moves);
        // Removals precede additions, whatever their source.
        moves.0.sort_by_key(|(_, change)| matches!(change, Change::Enter(_) | Change::Bind(_)));
        dirty.extend(self.move_addresses(transaction, &moves));
        let maps = self.compile(dirty);
        let compacted = self.compact();
        if endpoints || maps || compacted {
            self.bind();
        }
        let first = self.published.is_none();
        let moved = !Arc::ptr_eq(&before, &self.cache);
        let hairpins = (endpoints || maps || moved) && self.set_hairpins();
        if first || endpoints || own_node || hairpins {
            self.connect();
        }
        if first || endpoints || maps || compacted || own_node || moved {
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
