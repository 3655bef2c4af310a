//! Cuts an axis at the points where the set of covering items changes, and numbers the distinct sets.
//!
//! ```text
//!   intervals of items --sort--> events --sweep--> pieces --hash of what covers them--> class --> row of bits, or list
//!                                             `--now and then--> shall the build go on?
//! ```
//!
//! An item is a rule, a tuple of rules, or a group of rules with the same intervals. An event takes constant time, however many items cover
//! its point: it changes one bit in a hierarchy of words, and one number of a hash. Each distinct set is written once, where the sweep
//! first meets it. So cutting n intervals takes n log n steps for sorting, plus the members or words of the distinct sets, which the
//! callers bound.
//!
//! **Equal hashes are equal sets.** The hash is the XOR of a random 128-bit number for each item (Zobrist, "A New Hashing Method with
//! Application for Game Playing", 1970). Two different sets have the same hash with a probability of 2^-128, for any sets: the numbers are
//! random in each build and secret. Comparing the sets lost: each piece would take as many steps as items cover it, quadratic in the number
//! of nested rules.

use std::collections::HashMap;

use ahash::RandomState;

use super::address::Address;
use super::axis::Classed;
use crate::{BuildError, BuildOptions};

/// Steps between two checks for cancellation: less than a millisecond.
const PROCEED_EVERY: usize = 4096;

/// A point at which an interval of an item begins, or the first point after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<A> {
    point: A,
    item: u32,
    begins: bool,
}

impl<A: Address> Event<A> {
    /// Returns the two events of an item's interval: its first point, and the point after its last one.
    pub(crate) fn of(item: u32, (first, last): (A, A)) -> impl Iterator<Item = Self> {
        let begin = Self { point: first, item, begins: true };
        std::iter::once(begin).chain(last.next().map(|point| Self { point, item, begins: false }))
    }
}

/// The pieces of an axis in ascending order. Adjacent pieces are covered by different sets of items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces<A> {
    /// The last point of each piece.
    pub(crate) lasts: Vec<A>,
    /// The class of each piece, the number of the set that covers it.
    pub(crate) classes: Vec<u32>,
}

impl<A> Pieces<A> {
    pub(crate) const fn new() -> Self {
        Self { lasts: Vec::new(), classes: Vec::new() }
    }

    /// Returns the pieces of a whole axis.
    pub(crate) fn classed(mut self) -> Classed<A> {
        self.lasts.pop();
        Classed { lasts: self.lasts, class_of: self.classes }
    }
}

/// The items that cover the sweep's present point.
#[derive(Clone, Debug)]
pub(crate) struct Covering {
    /// The lowest level has a bit for each item. Each higher one has a bit for each nonzero word below, up to a single word.
    levels: Vec<Vec<u64>>,
    /// The number of each item's intervals that cover the point. Those of a tuple may overlap.
    depth: Vec<u32>,
    count: usize,
}

impl Covering {
    fn new(items: usize) -> Self {
        let mut levels = vec![vec![0; items.div_ceil(64).max(1)]];
        while levels[levels.len() - 1].len() > 1 {
            levels.push(vec![0; levels[levels.len() - 1].len().div_ceil(64)]);
        }
        Self { levels, depth: vec![0; items], count: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Returns the covering items as a bit set: a bit for each item.
    pub(crate) fn words(&self) -> &[u64] {
        &self.levels[0]
    }

    /// Calls `take` with each covering item, in ascending order.
    pub(crate) fn each(&self, mut take: impl FnMut(u32)) {
        self.each_below(self.levels.len() - 1, 0, &mut take);
    }

    fn each_below(&self, level: usize, word: usize, take: &mut impl FnMut(u32)) {
        let mut left = self.levels[level][word];
        while left != 0 {
            let at = word * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            if level == 0 {
                take(u32::try_from(at).expect("items are numbered by 32 bits"));
            } else {
                self.each_below(level - 1, at, take);
            }
        }
    }

    /// Begins or ends an interval of an item. Returns true if that changes whether the item covers the point.
    fn apply(&mut self, item: u32, begins: bool) -> bool {
        let depth = &mut self.depth[item as usize];
        // Events of one point come in any order, but an interval never ends where it begins, so no count becomes negative.
        *depth = if begins { *depth + 1 } else { *depth - 1 };
        let turned = *depth == u32::from(begins);
        if turned {
            self.turn(item as usize, begins);
        }
        turned
    }

    fn turn(&mut self, mut at: usize, on: bool) {
        self.count = if on { self.count + 1 } else { self.count - 1 };
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let before = *word;
            *word = before & !(1 << (at % 64)) | u64::from(on) << (at % 64);
            // The level above records only whether the word is zero.
            if (before == 0) == (*word == 0) {
                break;
            }
            at /= 64;
        }
    }

    fn clear(&mut self) {
        let mut left = Vec::with_capacity(self.count);
        self.each(|item| left.push(item));
        for item in left {
            self.depth[item as usize] = 0;
            self.turn(item as usize, false);
        }
    }
}

/// Receiver of the distinct sets that a sweep finds.
pub(crate) trait Sets {
    /// Stores a set that was not found before. `None` if this would exceed a bound.
    fn keep(&mut self, covering: &Covering) -> Option<()>;
}

/// A sweep over one or more axes, which share the numbering of sets.
pub(crate) struct Sweep<S> {
    covering: Covering,
    /// The random number of each item, from which a set's hash is made.
    numbers: Vec<u128>,
    hash: u128,
    class_of_hash: HashMap<u128, u32, RandomState>,
    sets: S,
    /// Steps since the last check for cancellation: events, and words of sets.
    steps: usize,
}

impl<S: Sets> Sweep<S> {
    /// Starts a sweep over items numbered from 0.
    pub(crate) fn new(items: usize, sets: S) -> Self {
        let keyed = [RandomState::new(), RandomState::new()];
        let number = |item| u128::from(keyed[0].hash_one(item)) << 64 | u128::from(keyed[1].hash_one(item));
        Self {
            covering: Covering::new(items),
            numbers: (0..items).map(number).collect(),
            hash: 0,
            class_of_hash: HashMap::default(),
            sets,
            steps: 0,
        }
    }

    /// Returns the receiver with all sets that were found. A set's number is the class of its pieces.
    pub(crate) fn into_sets(self) -> S {
        self.sets
    }

    /// Appends the pieces that the events cut an axis into. The items of `always` cover the whole axis. Returns false if a bound is
    /// exceeded; the sweep is then unusable.
    ///
    /// # Errors
    /// [`BuildError::Cancelled`] if the build was cancelled.
    pub(crate) fn cut<A: Address>(
        &mut self,
        always: &[u32],
        events: &mut [Event<A>],
        pieces: &mut Pieces<A>,
        options: &BuildOptions<'_>,
    ) -> Result<bool, BuildError> {
        // The stable sort merges sorted runs, such as the intervals of each set.
        events.sort_by_key(|event| event.point);
        always.iter().for_each(|&item| self.apply(item, true));
        let first = pieces.classes.len();
        let mut left = &*events;
        loop {
            // Writes the piece that ends before the next event.
            let end = left.first().map(|event| event.point);
            if end != Some(A::ZERO) {
                let Some(class) = self.class() else { return Ok(false) };
                if pieces.classes.len() > first && pieces.classes.last() == Some(&class) {
                    pieces.lasts.pop();
                } else {
                    pieces.classes.push(class);
                }
                pieces.lasts.push(end.and_then(A::previous).unwrap_or(A::LAST));
            }
            let Some(end) = end else { break };
            while let Some((event, behind)) = left.split_first().filter(|(event, _)| event.point == end) {
                self.apply(event.item, event.begins);
                left = behind;
                if self.steps >= PROCEED_EVERY {
                    self.steps = 0;
                    options.proceed()?;
                }
            }
        }
        self.covering.clear();
        self.hash = 0;
        Ok(true)
    }

    fn apply(&mut self, item: u32, begins: bool) {
        self.steps += 1;
        if self.covering.apply(item, begins) {
            self.hash ^= self.numbers[item as usize];
        }
    }

    /// Returns the class of the set that covers the present point, and creates it if it is new. `None` if a bound is exceeded.
    fn class(&mut self) -> Option<u32> {
        if let Some(&class) = self.class_of_hash.get(&self.hash) {
            return Some(class);
        }
        self.steps += self.covering.len() / 64;
        self.sets.keep(&self.covering)?;
        let class = u32::try_from(self.class_of_hash.len()).ok()?;
        self.class_of_hash.insert(self.hash, class);
        Some(class)
    }
}

/// Lists of items, each identified by its index.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    /// Index of each list's first element in `items`, and the end of the last list.
    starts: Vec<usize>,
    items: Vec<u32>,
    bounds: Bounds,
}

/// Limits of the lists that cutting an axis makes. A cut that exceeds them fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum of items in one list.
    pub(crate) longest: usize,
    /// Maximum of items in all lists.
    pub(crate) items: usize,
}

impl Lists {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { starts: vec![0], items: Vec::new(), bounds }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the length of the longest list.
    pub(crate) fn longest(&self) -> usize {
        self.starts.windows(2).map(|list| list[1] - list[0]).max().unwrap_or(0)
    }

    /// Returns a list's items, ascending.
    #[inline]
    pub(crate) fn get(&self, list: usize) -> &[u32] {
        &self.items[self.starts[list]..self.starts[list + 1]]
    }

    /// Adds a list of `len` items, which `write` appends. `None` if a limit is exceeded.
    pub(crate) fn add(&mut self, len: usize, write: impl FnOnce(&mut Vec<u32>)) -> Option<()> {
        if len > self.bounds.longest || self.items.len() + len > self.bounds.items {
            return None;
        }
        write(&mut self.items);
        self.starts.push(self.items.len());
        Some(())
    }
}

impl Sets for Lists {
    fn keep(&mut self, covering: &Covering) -> Option<()> {
        self.add(covering.len(), |items| covering.each(|item| items.push(item)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { longest: 9, items: 99 };

    type Cut = Vec<(u32, Vec<u32>)>;

    fn cut(bounds: Bounds, items: &[Vec<(u32, u32)>]) -> Option<Cut> {
        let mut sweep = Sweep::new(items.len(), Lists::new(bounds));
        let mut pieces = Pieces::new();
        let event = |(item, intervals): (u32, &Vec<(u32, u32)>)| {
            intervals.iter().flat_map(move |&interval| Event::of(item, interval)).collect::<Vec<_>>()
        };
        let mut events: Vec<Event<u32>> = (0u32..).zip(items).flat_map(event).collect();
        if !sweep.cut(&[], &mut events, &mut pieces, &BuildOptions::default()).unwrap() {
            return None;
        }
        let lists = sweep.into_sets();
        let piece = |(&last, &class): (&u32, &u32)| (last, lists.get(class as usize).to_vec());
        Some(pieces.lasts.iter().zip(&pieces.classes).map(piece).collect())
    }

    fn singles(intervals: &[(u32, u32)]) -> Vec<Vec<(u32, u32)>> {
        intervals.iter().map(|&interval| vec![interval]).collect()
    }

    #[test]
    fn each_piece_names_the_items_that_cover_it() {
        let pieces = cut(BOUNDS, &singles(&[(10, 20), (0, u32::MAX), (20, 20), (21, 30)])).unwrap();
        let expected: [(u32, &[u32]); 5] =
            [(9, &[1]), (19, &[0, 1]), (20, &[0, 1, 2]), (30, &[1, 3]), (u32::MAX, &[1])];
        assert!(pieces.iter().map(|(last, items)| (*last, &items[..])).eq(expected), "{pieces:?}");
        assert_eq!(cut(BOUNDS, &[]).unwrap(), [(u32::MAX, vec![])]);
    }

    #[test]
    fn pieces_beyond_a_bound_are_given_up() {
        let items = singles(&[(10, 20), (0, u32::MAX), (20, 20)]);
        assert!(cut(BOUNDS, &items).is_some());
        assert_eq!(cut(Bounds { longest: 2, ..BOUNDS }, &items), None);
        assert_eq!(cut(Bounds { items: 5, ..BOUNDS }, &items), None);
    }

    /// Each axis starts empty, even after items that cover the previous axis up to its end.
    #[test]
    fn what_covers_the_end_of_an_axis_does_not_cover_the_next_one() {
        let mut sweep = Sweep::new(200, Lists::new(BOUNDS));
        let (mut pieces, options) = (Pieces::new(), BuildOptions::default());
        let mut events: Vec<Event<u32>> = Event::of(199, (7, u32::MAX)).chain(Event::of(3, (5, 6))).collect();
        assert!(sweep.cut(&[100], &mut events, &mut pieces, &options).unwrap());
        assert!(sweep.cut::<u32>(&[], &mut [], &mut pieces, &options).unwrap());
        assert!(sweep.cut(&[100], &mut events, &mut pieces, &options).unwrap());
        let lists = sweep.into_sets();
        assert_eq!(pieces.lasts, [4, 6, u32::MAX, u32::MAX, 4, 6, u32::MAX]);
        let list = |class: &u32| lists.get(*class as usize).to_vec();
        let expected = [vec![100], vec![3, 100], vec![100, 199], vec![], vec![100], vec![3, 100], vec![100, 199]];
        assert!(pieces.classes.iter().map(list).eq(expected));
        assert_eq!(lists.len(), 4, "equal sets are kept once");
    }

    #[test]
    fn a_cut_asks_whether_to_go_on_also_at_a_single_point() {
        let (items, asked) = (PROCEED_EVERY, AtomicUsize::new(0));
        let mut events: Vec<Event<u32>> = (0u32..).take(items).flat_map(|at| Event::of(at, (1000, 2000))).collect();
        let cancelled = || asked.fetch_add(1, Ordering::Relaxed) == 1;
        let options = BuildOptions { cancelled: &cancelled, ..BuildOptions::default() };
        let mut sweep = Sweep::new(items, Lists::new(Bounds { longest: usize::MAX, items: usize::MAX }));
        assert_eq!(sweep.cut(&[], &mut events, &mut Pieces::new(), &options), Err(BuildError::Cancelled));
    }

    fn intervals() -> impl Strategy<Value = Vec<(u32, u32)>> {
        let point = prop_oneof![4 => 0u32..40, 1 => u32::MAX - 5..=u32::MAX];
        prop::collection::vec((point.clone(), point).prop_map(|(a, b)| (a.min(b), a.max(b))), 0..4)
    }

    proptest! {
        /// Includes overlapping and adjacent intervals of one item, which a tuple may have.
        #[test]
        fn pieces_hold_what_covers_each_of_their_points(items in prop::collection::vec(intervals(), 0..150)) {
            let pieces = cut(Bounds { longest: usize::MAX, items: usize::MAX }, &items).unwrap();
            let mut points: BTreeSet<u32> = (0..45).chain(u32::MAX - 10..=u32::MAX).collect();
            points.insert(1000);
            for point in points {
                let piece = pieces.partition_point(|&(last, _)| last < point);
                let covers = |item: &Vec<(u32, u32)>| item.iter().any(|&(first, last)| (first..=last).contains(&point));
                let truth: Vec<u32> = (0u32..).zip(&items).filter(|(_, item)| covers(item)).map(|(at, _)| at).collect();
                prop_assert_eq!(&pieces[piece].1, &truth, "{}", point);
            }
            prop_assert!(pieces.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1));
            prop_assert_eq!(pieces.last().map(|&(last, _)| last), Some(u32::MAX));
        }
    }
}
