//! Contiv's renderer cache: turns pods' lists into local tables and a global table, and reports what a transaction changed.
//!
//! The semantics are Contiv's: `CombineRules` with the protocol ANY, the final allow, and the pod itself among the others;
//! `BuildGlobalTable`; equal pods share a table. The algorithm differs:
//!
//! * **Contiv** visits all pairs of pods in every transaction: O(pods^2 x rules).
//! * **This cache** keeps an *overlay* for each pod: the pairs that changed the pod's own rules. Let R of P pods have closed lists on the
//!   other side, and let L be the number of different lists. A transaction that changes d pods, r of them among the R, does d x (others
//!   allowed by the pod's list; at most R) + r x (L lists, and the pods that allow the changed one; at most P) lookups. A lookup takes time
//!   logarithmic in the rules for each prefix length of a list. A table is rebuilt only if an overlay or list changed, once for all pods
//!   with the same inputs, in linear time. In the global table, the rules of changed pods are replaced. Otherwise O(P) pointers are copied,
//!   so that a refused transaction has no effect. A pod that allows everybody meets everybody: its table has a rule for each of the R.
//!
//! **Shared addresses.** If two pods claim an address (the old pod is not removed yet), traffic must be allowed by both lists. So no pod
//! gains access through an address that changes its owner.

use std::collections::BTreeSet;

use super::list::PodLists;
pub use super::renderer_state::RendererState;
use super::table::TableChange;
use super::{Orientation, TooManyTuples};
use crate::object::PodName;
use crate::renderer::contiv::tuple::SixTuple;

/// The committed state of the tables. [`RendererCache::stage`] computes the next one.
#[derive(Debug)]
pub struct RendererCache {
    orientation: Orientation,
    limit: usize,
    state: RendererState,
}

/// A dump of a stack's tables has one pod in two local tables, so the dump is inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {0} is in two local tables of the dump; install all tables again instead of resuming from the dump")]
pub struct InTwoTables(pub PodName);

impl RendererCache {
    /// Creates a cache without pods. Its tables have at most `limit` tuples in total.
    pub fn new(orientation: Orientation, limit: usize) -> Self {
        Self { orientation, limit, state: RendererState::new(orientation, limit) }
    }

    /// Returns the pods, lists and tables after the last commit.
    pub fn state(&self) -> &RendererState {
        &self.state
    }

    /// Computes a transaction: pods with their new lists, `None` for a removed pod. With `resync`, all other pods are removed. The cache
    /// changes only in [`Staged::commit`].
    ///
    /// # Errors
    /// [`TooManyTuples`] if the tables would exceed the limit.
    pub fn stage(
        &mut self,
        resync: bool,
        mut updates: Vec<(PodName, Option<PodLists>)>,
    ) -> Result<Staged<'_>, TooManyTuples> {
        let before = &self.state;
        if resync || before.is_recovered() {
            let named: BTreeSet<_> = updates.iter().map(|(name, _)| name.clone()).collect();
            let known = before.pods().keys().chain(before.locals().keys());
            let gone: BTreeSet<_> = known.filter(|name| !named.contains(*name)).cloned().collect();
            updates.extend(gone.into_iter().map(|name| (name, None)));
        }
        let same = |(name, config): &(PodName, Option<PodLists>)| before.pods().get(name) == config.as_ref();
        if !before.is_recovered() && updates.iter().all(same) {
            return Ok(Staged { cache: self, next: None, changes: Vec::new() });
        }
        let mut next = before.clone();
        next.apply(&updates)?;
        let changes = next.changes_since(before);
        Ok(Staged { cache: self, next: Some(next), changes })
    }

    /// Starts again from the tables found in a stack. Their lists cannot be recovered, so the next transaction must be a complete state:
    /// pods that it does not name are removed.
    ///
    /// # Errors
    /// [`InTwoTables`]. The cache is then unchanged.
    pub fn recover(
        &mut self,
        locals: impl IntoIterator<Item = (Vec<SixTuple>, BTreeSet<PodName>)>,
        global: Vec<SixTuple>,
    ) -> Result<(), InTwoTables> {
        self.state = RendererState::recovered(self.orientation, self.limit, locals, global).map_err(InTwoTables)?;
        Ok(())
    }

    /// Removes all pods, lists and tables.
    pub fn flush(&mut self) {
        self.state = RendererState::new(self.orientation, self.limit);
    }
}

/// A computed transaction, not yet in force. Dropping it discards it.
#[derive(Debug)]
pub struct Staged<'a> {
    cache: &'a mut RendererCache,
    next: Option<RendererState>,
    changes: Vec<TableChange>,
}

impl Staged<'_> {
    /// Returns the transaction's changes. Empty if it changes nothing.
    pub fn changes(&self) -> &[TableChange] {
        &self.changes
    }

    /// Returns the pods, lists and tables after the commit.
    pub fn state(&self) -> &RendererState {
        self.next.as_ref().unwrap_or(&self.cache.state)
    }

    /// Commits the transaction. Returns its changes.
    pub fn commit(self) -> Vec<TableChange> {
        if let Some(next) = self.next {
            self.cache.state = next;
        }
        self.changes
    }
}
