//! The renderer of 6-tuple tables: one node's pods in, tables for a stack that takes plain lists out.
//!
//! It keeps what it was told and could not render (too many tuples): the next transaction tries it again, so that the
//! tables follow as soon as they fit. Until then the last good ones stay, whole. A refusal is remembered with what led to
//! it, so that transactions that change none of that do not work it out again.

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

/// One node's tables, whole and immutable.
#[derive(Clone, Debug)]
pub struct TupleTables {
    /// The node.
    pub node: Arc<str>,
    /// Where they are to be applied.
    pub orientation: Orientation,
    /// Counts the publications, from 1.
    pub generation: u64,
    /// Each pod's table; pods that are not in here are open.
    pub locals: BTreeMap<PodName, Arc<Table>>,
    /// The table of the node's exit (egress) or entrance (ingress orientation); without rules it is not applied.
    pub global: Arc<Table>,
    /// What leads here from the generation before. Whoever missed a generation compares the tables.
    pub changes: Vec<TableChange>,
}

/// Where the renderer puts what it published and whoever loads it into a stack finds it.
#[derive(Clone, Debug, Default)]
pub struct PublishedTuples(Arc<Mutex<Option<Arc<TupleTables>>>>);

impl PublishedTuples {
    /// The latest tables, none before the first transaction.
    pub fn latest(&self) -> Option<Arc<TupleTables>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, tables: TupleTables) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tables));
    }
}

/// See the module.
#[derive(Debug)]
pub struct ContivRenderer {
    node: Arc<str>,
    orientation: Orientation,
    limit: usize,
    published: PublishedTuples,
    generation: u64,
    lists: PlainLists,
    node_addresses: Vec<IpAddr>,
    /// The node's pods as last heard of.
    pods: BTreeMap<PodName, Arc<PlainPod>>,
    /// Pods that came, changed or went since the last transaction that was rendered.
    pending: BTreeSet<PodName>,
    /// By the list's revision. They depend on the node's addresses.
    expanded: AHashMap<u64, Expansion>,
    /// Those that the present transaction takes out: others follow from them.
    before: AHashMap<u64, Expansion>,
    /// Lists that were too long: by revision, for how many tuples there was room, and how many they have at least. They
    /// depend on the node's addresses too.
    refused: AHashMap<u64, (usize, usize)>,
    /// Why what is pending could not be rendered; none when it was not tried since it last changed.
    refusal: Option<TooManyTuples>,
    attempts: Attempts,
    open: Arc<PeerList>,
    cache: RendererCache,
}

/// How often the costly steps were taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Lists that were expanded, or refused while that was tried.
    pub expansions: u64,
    /// Times that the tables were worked out.
    pub combinations: u64,
}

impl ContivRenderer {
    /// A renderer of the pods of `node`.
    pub fn new(node: Arc<str>, orientation: Orientation, published: PublishedTuples) -> Self {
        Self::with_limit(node, orientation, published, MAX_TUPLES)
    }

    /// A renderer that refuses what makes more than `limit` tuples, see [`MAX_TUPLES`].
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

    /// The node's pods as last heard of.
    pub(in crate::renderer) fn pods(&self) -> &BTreeMap<PodName, Arc<PlainPod>> {
        &self.pods
    }

    pub(in crate::renderer) fn node_addresses(&self) -> &[IpAddr] {
        &self.node_addresses
    }

    pub(super) const fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// What is in force.
    pub(super) fn state(&self) -> &RendererState {
        self.cache.state()
    }

    /// Intervals of address sets written for lists so far.
    pub(in crate::renderer) fn written(&self) -> u64 {
        self.lists.written()
    }

    /// How often the costly steps were taken so far.
    pub fn attempts(&self) -> Attempts {
        self.attempts
    }

    /// Resumes from tables that the stack was found with: the next transaction, which has to be a resync, publishes
    /// only what differs from them.
    ///
    /// # Errors
    /// [`InTwoTables`]; then nothing is resumed from.
    pub fn recover(
        &mut self,
        locals: impl IntoIterator<Item = (Vec<SixTuple>, BTreeSet<PodName>)>,
        global: Vec<SixTuple>,
    ) -> Result<(), InTwoTables> {
        self.pending.extend(self.pods.keys().cloned());
        self.refusal = None;
        self.cache.recover(locals, global)
    }

    /// Takes in what is new. What could not be rendered before is tried again only if something of this node is.
    fn take_in(&mut self, transaction: &PlainTransaction) {
        let before = if transaction.resync { std::mem::take(&mut self.pods) } else { BTreeMap::new() };
        let mut changed = false;
        for (name, config) in &transaction.pods {
            let (old, new) = match config.as_ref().filter(|config| config.node == self.node) {
                Some(config) => (self.pods.insert(name.clone(), config.clone()), Some(config)),
                // A pod that moved to another node is gone from here.
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
            what: format!("the {direction} list of pod {pod} (with all others)"),
            tuples: tuples.saturating_add(others),
            limit: self.limit,
        };
        // What did not fit into as much room or more does not fit now.
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

    /// The error is a [`TooManyTuples`].
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
    /// Takes in what plain lists say.
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
