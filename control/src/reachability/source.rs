//! The sides of connections from one class, for many destinations.

use super::{ClassId, Reachability};
use crate::origin::Direction;

/// One class as the source of connections to all others.
///
/// The decision of a destination's rules lies in the row of its list, at the source's place: another row for almost each destination.
/// Reading it there would miss the processor's cache each time. So this collects the decisions of all lists about the source once.
#[derive(Debug)]
pub struct Source<'a> {
    state: &'a Reachability,
    /// The sides of the source's own rules, by class. `None` if it has none.
    egress: Option<&'a [u32]>,
    /// The side of each list about the source, behind that of an end without rules.
    about: Vec<u32>,
}

impl<'a> Source<'a> {
    pub(super) fn new(state: &'a Reachability, class: ClassId) -> Self {
        let egress = state.class(class).list(Direction::Egress).map(|list| &state.lists[list.0 as usize].row[..]);
        let about = state.lists.iter().map(|list| list.row[class.index()]);
        Self { state, egress, about: [0].into_iter().chain(about).collect() }
    }

    /// Returns the indices in [`Reachability::sides`] of the source's decisions about `to`, and of those of `to` about the source. Not valid
    /// between a pod and its own node.
    pub fn sides(&self, to: ClassId) -> (u32, u32) {
        let egress = self.egress.map_or(0, |row| row[to.index()]);
        (egress, self.about[self.state.ingress[to.index()] as usize])
    }
}
