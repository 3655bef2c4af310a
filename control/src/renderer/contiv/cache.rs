//! Contiv's renderer cache: pods' lists in; local tables, the global table, and what a transaction changed, out.
//!
//! Semantics as in Contiv (`CombineRules` with its protocol-ANY dimension, the allow of the rest and the pod itself among
//! the others; `BuildGlobalTable`; equal pods share a table), in another way of working:
//!
//! * **What Contiv does:** every transaction visits all pairs of pods, O(pods^2 x rules).
//! * **What this does:** it keeps, for each pod, an *overlay*: the pairs that changed the pod's own rules. With P pods,
//!   of which R have closed lists on the other side, and L different lists, a transaction that changes d pods, r of them
//!   among the R, looks at d x (others that the pod's list lets in; at most R) + r x (L lists, and the pods whose list
//!   lets the changed one in; at most P), each look O(log rules) for every prefix length of a list. Tables are made again
//!   only where an overlay or a list changed, once for all pods with the same, in time linear in the table; so is the
//!   global table, where a changed pod's rules are exchanged. The rest is copying O(P) pointers, so that a refused
//!   transaction leaves no trace. Pods that let in everybody meet everybody: their tables have a rule for each of the R.
//!
//! **Shared addresses.** Where two pods claim one address (the old one is not gone yet), what both lists allow is
//! allowed for it: nobody gets more because an address changes hands.

use std::collections::BTreeSet;

use super::list::PodLists;
pub use super::renderer_state::RendererState;
use super::table::TableChange;
use super::{Orientation, TooManyTuples};
use crate::object::PodName;
use crate::renderer::contiv::tuple::SixTuple;

/// See the module.
#[derive(Debug)]
pub struct RendererCache {
    orientation: Orientation,
    limit: usize,
    state: RendererState,
}

/// A pod stands in two of the local tables of a dump, so that one of them is not what anybody made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {0} is in two local tables of the dump; install the tables anew instead of resuming from it")]
pub struct InTwoTables(pub PodName);

impl RendererCache {
    /// A cache without pods, whose tables have at most `limit` tuples together.
    pub fn new(orientation: Orientation, limit: usize) -> Self {
        Self { orientation, limit, state: RendererState::new(orientation, limit) }
    }

    /// What is committed.
    pub fn state(&self) -> &RendererState {
        &self.state
    }

    /// Works out a transaction: pods with their new lists, none for a pod that is gone. With `resync` all others are
    /// gone. Nothing of the cache changes before [`Staged::commit`].
    ///
    /// # Errors
    /// [`TooManyTuples`]: then there is nothing to commit.
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

    /// Starts over from tables that a stack was found with. What lists they were made of cannot be recovered, so the
    /// next transaction has to be the whole state: pods that it does not name are gone.
    ///
    /// # Errors
    /// [`InTwoTables`]; then the cache is as it was.
    pub fn recover(
        &mut self,
        locals: impl IntoIterator<Item = (Vec<SixTuple>, BTreeSet<PodName>)>,
        global: Vec<SixTuple>,
    ) -> Result<(), InTwoTables> {
        self.state = RendererState::recovered(self.orientation, self.limit, locals, global).map_err(InTwoTables)?;
        Ok(())
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.state = RendererState::new(self.orientation, self.limit);
    }
}

/// A transaction worked out and not yet in force. Dropping it forgets it.
#[derive(Debug)]
pub struct Staged<'a> {
    cache: &'a mut RendererCache,
    next: Option<RendererState>,
    changes: Vec<TableChange>,
}

impl Staged<'_> {
    /// What the transaction changes; nothing when it says what is known already.
    pub fn changes(&self) -> &[TableChange] {
        &self.changes
    }

    /// The state as it will be.
    pub fn state(&self) -> &RendererState {
        self.next.as_ref().unwrap_or(&self.cache.state)
    }

    /// Puts the transaction in force.
    pub fn commit(self) -> Vec<TableChange> {
        if let Some(next) = self.next {
            self.cache.state = next;
        }
        self.changes
    }
}
