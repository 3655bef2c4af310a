//! The renderer of 6-tuple tables: turns one node's pods into tables for a stack that takes plain lists.
//!
//! If rendering fails (too many tuples), the last good tables stay in force, and the next transaction tries the pending changes again. A
//! refusal is kept with its inputs and not recomputed while these are unchanged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ahash::{AHashMap, AHashSet};
use bulkhead_classifier::OriginId;

use super::cache::{InTwoTables, RendererCache, RendererState};
use super::expand::{Expansion, expand};
use super::list::{PeerList, PodLists};
use super::table::{Table, TableChange};
use super::tuple::SixTuple;
use super::{MAX_TUPLES, Orientation, TooManyTuples};
use crate::contract::Transaction;
use crate::object::PodName;
use crate::origin::Direction;
use crate::renderer::plain::PlainList;
use crate::renderer::plain::{PlainLists, PlainPod, PlainTransaction};
use crate::renderer::{BoxError, Refusal, Renderer};

/// An immutable snapshot of one node's tables.
#[derive(Clone, Debug)]
pub struct TupleTables {
    /// The node's name.
    pub node: Arc<str>,
    /// Where the stack applies the tables.
    pub orientation: Orientation,
    /// Number of the publication, from 1.
    pub generation: u64,
    /// Each pod's table. A pod without an entry is not restricted.
    pub locals: BTreeMap<PodName, Arc<Table>>,
    /// The table of the node's exit (egress orientation) or entrance (ingress orientation). Not applied if it has no rules.
    pub global: Arc<Table>,
    /// The changes from the previous generation. A reader that missed a generation compares the tables instead.
    pub changes: Vec<TableChange>,
}

/// The latest tables, shared between the renderer and the code that loads them into a stack.
#[derive(Clone, Debug, Default)]
pub struct PublishedTuples(Arc<Mutex<Option<Arc<TupleTables>>>>);

impl PublishedTuples {
    /// Returns the latest tables. `None` before the first transaction.
    pub fn latest(&self) -> Option<Arc<TupleTables>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, tables: TupleTables) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tables));
    }
}

/// The renderer of one node's 6-tuple tables.
#[derive(Debug)]
pub struct ContivRenderer {
    node: Arc<str>,
    orientation: Orientation,
    limit: usize,
    published: PublishedTuples,
    generation: u64,
    lists: PlainLists,
    node_addresses: Vec<IpAddr>,
    /// The node's pods in their last known state.
    pods: BTreeMap<PodName, Arc<PlainPod>>,
    /// Pods added, changed or removed since the last successful transaction.
    pending: BTreeSet<PodName>,
    /// Expansions by the list's revision. They depend on the node's addresses.
    expanded: AHashMap<u64, Expansion>,
    /// Expansions that the present transaction removes, from which others are derived.
    before: AHashMap<u64, Expansion>,
    /// Lists that were too long, by revision: the room at that time and a lower bound of their size, in tuples. They also depend on the
    /// node's addresses.
    refused: AHashMap<u64, (usize, usize)>,
    /// The reason why the pending changes were refused. `None` if they have changed since the last attempt.
    refusal: Option<TooManyTuples>,
    attempts: Attempts,
    open: Arc<PeerList>,
    cache: RendererCache,
}

/// Counts of the renderer's expensive steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Number of attempts to expand a list to 6-tuples.
    pub expansions: u64,
    /// Number of times that the tables were computed from the lists.
    pub combinations: u64,
}

impl ContivRenderer {
    /// Creates a renderer of the pods of `node`.
    pub fn new(node: Arc<str>, orientation: Orientation, published: PublishedTuples) -> Self {
        Self::with_limit(node, orientation, published, MAX_TUPLES)
    }

    /// Creates a renderer that refuses more than `limit` tuples ([`MAX_TUPLES`]).
    pub fn with_limit(node: Arc<str>, orientation: Orientation, published: PublishedTuples, limit: usize) -> Self {
        Self {
            node,
            orientation,
            limit,
            published,
            generation: 0,
            lists: PlainLists::default(),
            node_addresses: Vec::new(),
            pods: BTreeMap::new(),
            pending: BTreeSet::new(),
            expanded: AHashMap::new(),
            before: AHashMap::new(),
            refused: AHashMap::new(),
            refusal: None,
            attempts: Attempts::default(),
            open: Arc::default(),
            cache: RendererCache::new(orientation, limit),
        }
    }

    /// Returns the node's pods in their last known state.
    pub(in crate::renderer) fn pods(&self) -> &BTreeMap<PodName, Arc<PlainPod>> {
        &self.pods
    }

    pub(in crate::renderer) fn node_addresses(&self) -> &[IpAddr] {
        &self.node_addresses
    }

    pub(super) const fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// Returns the pods, lists and tables in force.
    pub(super) fn state(&self) -> &RendererState {
        self.cache.state()
    }

    /// Returns the number of address intervals written to lists since the start.
    pub(in crate::renderer) fn written(&self) -> u64 {
        self.lists.written()
    }

    /// Returns the numbers of expansions and combinations since the renderer was created.
    pub fn attempts(&self) -> Attempts {
        self.attempts
    }

    /// Resumes from the tables found in a stack. The next transaction must be a resync, and publishes only the differences.
    ///
    /// # Errors
    /// [`InTwoTables`]. The renderer is then unchanged.
    pub fn recover(
        &mut self,
        locals: impl IntoIterator<Item = (Vec<SixTuple>, BTreeSet<PodName>)>,
        global: Vec<SixTuple>,
    ) -> Result<(), InTwoTables> {
        self.pending.extend(self.pods.keys().cloned());
        self.refusal = None;
        self.cache.recover(locals, global)
    }

    /// Applies a transaction. Refused changes are tried again only if something of this node changed.
    fn take_in(&mut self, transaction: &PlainTransaction) {
        let before = if transaction.resync { std::mem::take(&mut self.pods) } else { BTreeMap::new() };
        let mut changed = false;
        for (name, config) in &transaction.pods {
            let (old, new) = match config.as_ref().filter(|config| config.node == self.node) {
                Some(config) => (self.pods.insert(name.clone(), config.clone()), Some(config)),
                // A pod that moved to another node is removed here.
                None => (self.pods.remove(name), None),
            };
            if old.is_some() || new.is_some() {
                changed |= old.as_ref() != new;
                self.pending.insert(name.clone());
            }
        }
        if transaction.resync {
            changed = before != self.pods;
            self.pending.extend(before.into_keys());
        }
        if let Some(node) = transaction.node(&self.node) {
            let addresses = node.map(|node| node.addresses.clone()).unwrap_or_default();
            if addresses != self.node_addresses {
                self.node_addresses = addresses;
                self.expanded.clear();
                self.refused.clear();
                self.pending.extend(self.pods.keys().cloned());
                changed = true;
            }
        }
        if changed {
            self.refusal = None;
        }
    }

    fn updates(&mut self) -> Result<Vec<(PodName, Option<PodLists>)>, TooManyTuples> {
        let lists = |config: &Arc<PlainPod>| [config.ingress.clone(), config.egress.clone()];
        let live: AHashSet<u64> = self.pods.values().flat_map(lists).flatten().map(|list| list.revision).collect();
        let dead: Vec<u64> = self.expanded.keys().filter(|revision| !live.contains(revision)).copied().collect();
        self.before = dead.into_iter().filter_map(|dead| Some((dead, self.expanded.remove(&dead)?))).collect();
        self.refused.retain(|revision, _| live.contains(revision));
        let mut updates = Vec::with_capacity(self.pending.len());
        for name in self.pending.clone() {
            let lists = match self.pods.get(&name).cloned() {
                Some(config) => Some(PodLists {
                    addresses: config.addresses.clone(),
                    ingress: self.list(&name, Direction::Ingress, config.ingress.as_deref())?,
                    egress: self.list(&name, Direction::Egress, config.egress.as_deref())?,
                }),
                None => None,
            };
            updates.push((name, lists));
        }
        Ok(updates)
    }

    fn list(
        &mut self,
        pod: &PodName,
        direction: Direction,
        list: Option<&PlainList>,
    ) -> Result<Arc<PeerList>, TooManyTuples> {
        let Some(list) = list else { return Ok(self.open.clone()) };
        if let Some(expanded) = self.expanded.get(&list.revision) {
            return Ok(expanded.list().clone());
        }
        let others: usize = self.expanded.values().map(|expanded| expanded.list().rules().len()).sum();
        let room = self.limit - others;
        let refusal = |tuples: usize| TooManyTuples {
            what: format!("the {direction} list of pod {pod} (with all other lists)"),
            tuples: tuples.saturating_add(others),
            limit: self.limit,
        };
        // A list that did not fit into this room or more does not fit now.
        if let Some(&(_, tuples)) = self.refused.get(&list.revision).filter(|(tried, _)| room <= *tried) {
            return Err(refusal(tuples));
        }
        self.attempts.expansions += 1;
        let before = list.previous.and_then(|previous| self.before.get(&previous));
        let expanded = match before {
            Some(before) => before.follow(list, &self.node_addresses, room),
            None => expand(list, &self.node_addresses, room),
        };
        let expanded = expanded.map_err(|tuples| {
            self.refused.insert(list.revision, (room, tuples));
            refusal(tuples)
        })?;
        let tuples = expanded.list().clone();
        self.expanded.insert(list.revision, expanded);
        Ok(tuples)
    }

    fn commit(&mut self) -> Result<Vec<TableChange>, TooManyTuples> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let updates = self.updates();
        self.before.clear();
        let updates = updates?;
        self.attempts.combinations += 1;
        Ok(self.cache.stage(false, updates)?.commit())
    }
}

impl Renderer for ContivRenderer {
    fn name(&self) -> String {
        let orientation = match self.orientation {
            Orientation::Egress => "egress",
            Orientation::Ingress => "ingress",
        };
        format!("6-tuples of node {}, {orientation}", self.node)
    }

    /// Applies the transaction. Fails only with [`TooManyTuples`].
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        let plain = self.lists.follow(transaction);
        Ok(self.render_plain(&plain)?)
    }

    fn origins(&self) -> HashSet<OriginId> {
        let lists = self.pods.values().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten();
        lists.flat_map(|list| list.rules.iter().map(|rule| rule.origin)).collect()
    }

    fn refusals(&self) -> Vec<Refusal> {
        self.lists.refusals()
    }
}

impl ContivRenderer {
    /// Applies a transaction in plain lists.
    pub(in crate::renderer) fn render_plain(&mut self, transaction: &PlainTransaction) -> Result<(), TooManyTuples> {
        self.take_in(transaction);
        let rendered = self.commit();
        self.refusal = rendered.as_ref().err().cloned();
        let changes = rendered?;
        self.pending.clear();
        if changes.is_empty() && self.generation > 0 {
            return Ok(());
        }
        self.generation += 1;
        let state = self.cache.state();
        self.published.publish(TupleTables {
            node: self.node.clone(),
            orientation: self.orientation,
            generation: self.generation,
            locals: state.locals().clone(),
            global: state.global().clone(),
            changes,
        });
        Ok(())
    }
}
