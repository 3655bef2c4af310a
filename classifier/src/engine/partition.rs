//! Which rules cover each point of an axis, as lists.
//!
//! The same question as [`super::axis`] answers by rows of bits. Where few of many rules cover a point, lists of their
//! positions are smaller by orders of magnitude: 250 pods with 800 rules each are 200,000 numbers, or 251 rows of
//! 200,000 bits.

use std::collections::HashMap;

use ahash::RandomState;

use super::address::Address;
use super::axis::{Axis, Classed};
use super::rules::{Live, LiveRules};

/// Different lists of rules, each numbered.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    keyed: RandomState,
    number_of_hash: HashMap<u64, u32, RandomState>,
    /// Where each list begins in `rules`, and where the last ends.
    starts: Vec<usize>,
    rules: Vec<u32>,
    bounds: Bounds,
    /// Positions looked at so far.
    work: usize,
}

/// What lists may take. A partition that takes more is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Rules of one list.
    pub(crate) longest: usize,
    /// Positions in all lists.
    pub(crate) positions: usize,
    /// Positions looked at while the lists are made.
    pub(crate) work: usize,
}

/// Neighbouring pieces of an axis that are covered by different lists of rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces<A> {
    /// The end of each piece.
    pub(crate) lasts: Vec<A>,
    /// The list of each piece.
    pub(crate) lists: Vec<u32>,
}

impl<A: Address> Pieces<A> {
    /// The search for the piece of a point, whose class is its list.
    pub(crate) fn axis(mut self) -> Axis<A> {
        self.lasts.pop();
        Axis::new(Classed { lasts: self.lasts, class_of: self.lists })
    }
}

/// One address of a list of rules: its axis's pieces, and the rules of each class of them.
#[derive(Clone, Debug)]
pub(crate) struct Side<A> {
    pub(crate) pieces: Pieces<A>,
    pub(crate) classes: Lists,
}

impl<A: Address> Side<A> {
    /// None when the rules have more intervals there, or the classes more positions, than may be.
    pub(crate) fn new<'a>(
        live: &LiveRules<'a, A>,
        intervals: impl Fn(&Live<'a, A>) -> &'a [(A, A)],
        most: usize,
    ) -> Option<Self> {
        if live.rules.iter().map(|rule| intervals(rule).len()).sum::<usize>() > most {
            return None;
        }
        let event = |(rule, at)| intervals(rule).iter().flat_map(move |&interval| Event::of(at, interval));
        let mut events: Vec<Event<A>> = live.rules.iter().zip(0u32..).flat_map(event).collect();
        let mut pieces = Pieces { lasts: Vec::new(), lists: Vec::new() };
        let mut classes = Lists::new(Bounds { longest: most, positions: most, work: 4 * most });
        classes.cut(&mut events, &mut pieces).map(|()| Self { pieces, classes })
    }
}

/// "The rule covers the points from here on", or no longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<A> {
    point: A,
    rule: u32,
    begins: bool,
}

impl Lists {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let keyed = RandomState::new();
        let number_of_hash = HashMap::with_hasher(keyed.clone());
        Self { keyed, number_of_hash, starts: vec![0], rules: Vec::new(), bounds, work: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The positions of a list's rules, ascending.
    pub(crate) fn get(&self, list: usize) -> &[u32] {
        &self.rules[self.starts[list]..self.starts[list + 1]]
    }

    /// Positions looked at so far.
    #[cfg(test)]
    pub(crate) fn work(&self) -> usize {
        self.work
    }

    /// The number of the list with these rules, ascending; none when it would take more than the bounds.
    pub(crate) fn of(&mut self, rules: &[u32]) -> Option<u32> {
        let hash = rules.iter().fold(0, |hash, rule| hash ^ self.keyed.hash_one(rule));
        self.number(rules, hash)
    }

    /// The number of the list with these rules; none when it would take more than the bounds.
    fn number(&mut self, rules: &[u32], hash: u64) -> Option<u32> {
        self.work += rules.len();
        let known = self.number_of_hash.get(&hash).copied();
        // Two lists of the same hash cost a number that is not shared, never a wrong one.
        if let Some(known) = known.filter(|&list| self.get(list as usize) == rules) {
            return (self.work <= self.bounds.work).then_some(known);
        }
        let Bounds { longest, positions, work } = self.bounds;
        if rules.len() > longest || self.rules.len() + rules.len() > positions || self.work > work {
            return None;
        }
        let number = u32::try_from(self.len()).ok()?;
        self.rules.extend_from_slice(rules);
        self.starts.push(self.rules.len());
        self.number_of_hash.insert(hash, number);
        Some(number)
    }

    /// Appends the pieces of an axis that the rules' intervals cut. Those of one rule neither overlap nor touch. None
    /// when it would take more than the bounds.
    pub(crate) fn cut<A: Address>(&mut self, events: &mut [Event<A>], pieces: &mut Pieces<A>) -> Option<()> {
        events.sort_unstable_by_key(|event| (event.point, event.rule));
        let first = pieces.lists.len();
        // Ascending, and the XOR of their keyed hashes.
        let (mut covering, mut before, mut hash) = (Vec::<u32>::new(), Vec::new(), 0);
        let mut left = &*events;
        loop {
            // The piece that ends before the next event.
            let end = left.first().map(|event| event.point);
            if end != Some(A::ZERO) {
                let list = self.number(&covering, hash)?;
                let last = end.and_then(A::previous).unwrap_or(A::LAST);
                if pieces.lists.len() > first && pieces.lists.last() == Some(&list) {
                    pieces.lasts.pop();
                } else {
                    pieces.lists.push(list);
                }
                pieces.lasts.push(last);
            }
            let Some(end) = end else { return Some(()) };
            let (here, behind) = left.split_at(left.iter().take_while(|event| event.point == end).count());
            hash = here.iter().fold(hash, |hash, event| hash ^ self.keyed.hash_one(event.rule));
            std::mem::swap(&mut covering, &mut before);
            change(&before, here, &mut covering);
            left = behind;
        }
    }
}

/// The rules that cover the points from these events' on, ascending, of those that covered the point before. One pass,
/// as long as the look at that list, for all events of a point: 200,000 rules that end at one address would otherwise
/// move each other up one by one.
fn change<A>(before: &[u32], events: &[Event<A>], covering: &mut Vec<u32>) {
    covering.clear();
    let mut left = before;
    for event in events {
        let (lower, rest) = left.split_at(left.partition_point(|&rule| rule < event.rule));
        covering.extend_from_slice(lower);
        left = rest;
        if event.begins {
            covering.push(event.rule);
        } else {
            // It covered the point before: intervals of one rule neither overlap nor touch.
            left = &left[1..];
        }
    }
    covering.extend_from_slice(left);
}

impl<A: Address> Event<A> {
    /// The events of a rule's interval.
    pub(crate) fn of(rule: u32, (first, last): (A, A)) -> impl Iterator<Item = Self> {
        let begin = Self { point: first, rule, begins: true };
        std::iter::once(begin).chain(last.next().map(|point| Self { point, rule, begins: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { longest: 9, positions: 99, work: 999 };

    fn cut(bounds: Bounds, rules: &[(u32, u32)]) -> Option<Vec<(u32, Vec<u32>)>> {
        let mut lists = Lists::new(bounds);
        let mut pieces = Pieces::default();
        let mut events: Vec<Event<u32>> =
            (0u32..).zip(rules).flat_map(|(rule, &interval)| Event::of(rule, interval)).collect();
        lists.cut(&mut events, &mut pieces)?;
        Some(
            pieces
                .lasts
                .iter()
                .zip(&pieces.lists)
                .map(|(&last, &list)| (last, lists.get(list as usize).to_vec()))
                .collect(),
        )
    }

    #[test]
    fn each_piece_names_the_rules_that_cover_it() {
        let pieces = cut(BOUNDS, &[(10, 20), (0, u32::MAX), (20, 20), (21, 30)]).unwrap();
        let expected: [(u32, &[u32]); 5] =
            [(9, &[1]), (19, &[0, 1]), (20, &[0, 1, 2]), (30, &[1, 3]), (u32::MAX, &[1])];
        assert!(pieces.iter().map(|(last, rules)| (*last, &rules[..])).eq(expected), "{pieces:?}");
        assert_eq!(cut(BOUNDS, &[]).unwrap(), [(u32::MAX, vec![])]);
    }

    /// Rules that begin and end at one point take and leave their places together, whatever their order.
    #[test]
    fn rules_that_change_at_one_point_change_in_one_pass() {
        let rules = [(10, 19), (20, 20), (10, 20), (20, 30), (0, 19), (20, 20), (21, 21), (10, 20)];
        let pieces = cut(BOUNDS, &rules).unwrap();
        let expected: [(u32, &[u32]); 6] =
            [(9, &[4]), (19, &[0, 2, 4, 7]), (20, &[1, 2, 3, 5, 7]), (21, &[3, 6]), (30, &[3]), (u32::MAX, &[])];
        assert!(pieces.iter().map(|(last, rules)| (*last, &rules[..])).eq(expected), "{pieces:?}");
    }

    #[test]
    fn pieces_beyond_a_bound_are_given_up() {
        let rules = [(10, 20), (0, u32::MAX), (20, 20)];
        assert_eq!(cut(Bounds { longest: 2, ..BOUNDS }, &rules), None);
        assert_eq!(cut(Bounds { positions: 5, ..BOUNDS }, &rules), None);
        assert_eq!(cut(Bounds { work: 6, ..BOUNDS }, &rules), None);
    }
}
