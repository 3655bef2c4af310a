//! One class as the source of connections: the decisions of both ends, for all destinations at once.

use super::{Class, ClassId, ListNumber, Reachability};
use crate::origin::Direction;

/// The lists of rules that decide about ingress, with places of their own.
#[derive(Debug)]
pub(super) struct OfIngress {
    /// The list of each place. No two places have the same list.
    lists: Vec<ListNumber>,
    /// For each class, the place of its ingress list plus 1. 0 for a class without ingress rules.
    places: Vec<u32>,
}

impl OfIngress {
    pub(super) fn of(classes: &[Class]) -> Self {
        let mut lists: Vec<ListNumber> = classes.iter().filter_map(|class| class.ingress).collect();
        lists.sort_unstable();
        lists.dedup();
        let place = |class: &Class| {
            let found = class.ingress.and_then(|list| lists.binary_search(&list).ok());
            found.map_or(0, |place| u32::try_from(place + 1).expect("fewer than 2^32 lists"))
        };
        Self { places: classes.iter().map(place).collect(), lists }
    }
}

/// The decisions about connections from one class to each other class, from [`Reachability::source`].
///
/// The ingress decision lies in the row of the destination's list, at the source's place: in another row for almost each destination. Reading
/// it there would miss the processor's cache each time, so a `Source` copies this place of all rows once.
#[derive(Debug)]
pub struct Source<'a> {
    state: &'a Reachability,
    /// The side number of the source's egress rules about each class. `None` if the source has no egress rules.
    egress: Option<&'a [u32]>,
    /// The side number of ingress rules about the source: that of an end without rules, then that of each place of [`OfIngress`].
    ingress: Vec<u32>,
}

impl<'a> Source<'a> {
    pub(super) fn new(state: &'a Reachability, class: ClassId) -> Self {
        let row = |list: ListNumber| &state.lists[list.0 as usize].row[..];
        let ingress = state.of_ingress.lists.iter().map(|&list| row(list)[class.index()]);
        let ingress = [0].into_iter().chain(ingress).collect();
        Self { egress: state.class(class).list(Direction::Egress).map(row), ingress, state }
    }

    /// Does the same as [`Reachability::side_numbers`] from this source.
    pub fn side_numbers(&self, to: ClassId) -> (u32, u32) {
        let egress = self.egress.map_or(0, |row| row[to.index()]);
        (egress, self.ingress[self.state.of_ingress.places[to.index()] as usize])
    }
}
