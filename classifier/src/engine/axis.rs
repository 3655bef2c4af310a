//! One field of the key: from a point to the class of points that no rule tells apart.
//!
//! An axis (source address, destination address, service, source port) is cut at every point where the set of
//! candidates that cover it changes. A candidate is one bit: a rule, or a tuple of rules. Neighbouring pieces with the
//! same set are one piece, and pieces with the same set anywhere share one class, whose set is the class's **row**.
//!
//! ```text
//!   point --search tree--> piece --class_of--> class --row--> bits of the candidates that cover the point
//! ```
//!
//! The search tree is a static 17-ary tree in an array: a node is 16 separators on one cache line, one comparison of
//! 16 lanes ranks a point in it, and no pointer is followed. 4,624 pieces are three levels, 78,608 are four; the
//! depth is the logarithm of the number of pieces whatever the rules, which a multi-bit trie with path compression
//! (measured alternative in the engine's doc) cannot promise for ranges.

use ahash::RandomState;
use std::collections::HashMap;

use super::address::Address;
use crate::simd::{Kernel, NODE, Node, Simd};
use crate::{BuildError, BuildOptions};

/// Children of an inner node.
const FANOUT: usize = NODE + 1;

/// The same and [`NODE`] as the numbers that places are computed with.
const INNER: u32 = 17;
const LEAF: u32 = 16;
const _: () = assert!(INNER as usize == FANOUT && LEAF as usize == NODE);

/// Deep enough for 2^32 pieces: 16 * 17^7 is more.
const MAX_DEPTH: usize = 8;

/// From a point to its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis<A> {
    nodes: Vec<Node<A>>,
    /// Where each level begins in `nodes`, root first; `depth` of them are used.
    levels: [usize; MAX_DEPTH],
    depth: usize,
    /// The class of each piece.
    class_of: Vec<u32>,
}

/// "The candidate's bit covers the points from here on", or no longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<A> {
    point: A,
    bit: u32,
    begins: bool,
}

/// The rows of an axis: `words` words per class.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) words: usize,
    pub(crate) bits: Vec<u64>,
}

impl Rows {
    /// How many classes there are.
    pub(crate) fn classes(&self) -> usize {
        self.bits.len() / self.words
    }

    /// The row of a class.
    pub(crate) fn row(&self, class: usize) -> &[u64] {
        &self.bits[class * self.words..][..self.words]
    }
}

/// The cover of an axis by candidates, collected before it is cut.
#[derive(Clone, Debug)]
pub(crate) struct Cover<A> {
    events: Vec<Event<A>>,
    /// Bits that cover the whole axis.
    always: Vec<u64>,
}

impl<A: Address> Cover<A> {
    /// No candidate covers anything yet. `bits` is one more than the highest bit.
    pub(crate) fn new(bits: usize) -> Self {
        Self { events: Vec::new(), always: vec![0; bits.div_ceil(64).max(1)] }
    }

    /// The candidate covers the points from `first` to `last`.
    pub(crate) fn add(&mut self, bit: u32, first: A, last: A) {
        if first == A::ZERO && last == A::LAST {
            self.always[bit as usize / 64] |= 1 << (bit % 64);
            return;
        }
        self.events.push(Event { point: first, bit, begins: true });
        if let Some(point) = last.next() {
            self.events.push(Event { point, bit, begins: false });
        }
    }

    /// Cuts the axis; none when it has more classes than it may have.
    pub(crate) fn cut(mut self, cut: &Cut<'_>) -> Result<Option<(Axis<A>, Rows)>, BuildError> {
        cut.options.proceed()?;
        // The stable sort, because it merges what is in order already: the intervals of each set are.
        self.events.sort_by_key(|event| event.point);
        self.always.resize(cut.words, 0);
        let mut sweep = Sweep::new(self.always, cut.max_classes);
        let mut lasts = Vec::new();
        let mut class_of = Vec::new();
        let mut at = 0;
        loop {
            // The piece that ends before the next event.
            let end = self.events.get(at).map(|event| event.point);
            if end != Some(A::ZERO) {
                let Some(class) = sweep.class() else { return Ok(None) };
                if class_of.last() == Some(&class) {
                    lasts.pop();
                } else {
                    class_of.push(class);
                }
                let Some(last) = end.and_then(A::previous) else { break };
                lasts.push(last);
            }
            while let Some(event) = self.events.get(at).filter(|event| Some(event.point) == end) {
                sweep.apply(event.bit, event.begins);
                at += 1;
                if at % PROCEED_EVERY == 0 {
                    cut.options.proceed()?;
                }
            }
        }
        Ok(Some((Axis::new(&lasts, class_of), Rows { words: cut.words, bits: sweep.rows })))
    }
}

/// How an axis is cut.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// Words per row.
    pub(crate) words: usize,
    /// The most classes.
    pub(crate) max_classes: usize,
    pub(crate) options: &'a BuildOptions<'a>,
}

/// Events between two looks at whether the build was cancelled: less than a millisecond.
const PROCEED_EVERY: usize = 4096;

/// Rows that are remembered beside the map of all: enough for the combinations of a few sets.
const RECENT: usize = 64;

/// The set of candidates at the sweep's point, and the classes met so far.
struct Sweep {
    row: Vec<u64>,
    /// How many intervals of a candidate cover the point; those of one candidate may overlap.
    depth: Vec<u32>,
    /// XOR of the keyed hashes of the bits of `row`: changing one bit costs one step however long rows are.
    hash: u64,
    hash_of: Vec<u64>,
    class_of_hash: HashMap<u64, u32, RandomState>,
    /// Classes of rows seen last, by their hash: a set of many addresses turns the same few bits on and off.
    recent: [(u64, u32); RECENT],
    current: Option<u32>,
    rows: Vec<u64>,
    max_classes: usize,
}

impl Sweep {
    fn new(row: Vec<u64>, max_classes: usize) -> Self {
        let keyed = RandomState::new();
        // What covers the whole axis has begun before it and never ends.
        let depth = (0..row.len() * 64).map(|bit| u32::from(row[bit / 64] >> (bit % 64) & 1 == 1)).collect();
        let hash_of = (0..row.len() * 64).map(|bit| keyed.hash_one(bit)).collect();
        let class_of_hash = HashMap::with_hasher(keyed);
        Self {
            row,
            depth,
            hash: 0,
            hash_of,
            class_of_hash,
            recent: [(0, u32::MAX); RECENT],
            current: None,
            rows: Vec::new(),
            max_classes,
        }
    }

    fn apply(&mut self, bit: u32, begins: bool) {
        let (depth, mask) = (&mut self.depth[bit as usize], 1 << (bit % 64));
        // Events of one point come in any order, but an interval never ends where it begins: no count passes zero.
        *depth = if begins { *depth + 1 } else { *depth - 1 };
        let word = &mut self.row[bit as usize / 64];
        let covered = *depth != 0;
        if covered != (*word & mask != 0) {
            *word ^= mask;
            self.hash ^= self.hash_of[bit as usize];
            self.current = None;
        }
    }

    /// The class of the current row, none when it would be one too many.
    fn class(&mut self) -> Option<u32> {
        if let Some(class) = self.current {
            return Some(class);
        }
        let words = self.row.len();
        let classes = self.rows.len() / words;
        let recent = usize::try_from(self.hash % RECENT as u64).expect("below RECENT");
        let (hash, class) = self.recent[recent];
        let known = if hash == self.hash && class != u32::MAX {
            Some(class)
        } else {
            self.class_of_hash.get(&self.hash).copied()
        };
        // Two rows of the same hash cost a class that is not shared, never a wrong one.
        let class = match known.filter(|&class| self.rows[class as usize * words..][..words] == *self.row) {
            Some(class) => class,
            None if classes == self.max_classes => return None,
            None => {
                self.rows.extend_from_slice(&self.row);
                let class = u32::try_from(classes).expect("there are fewer classes than events, which are below 2^32");
                self.class_of_hash.insert(self.hash, class);
                class
            }
        };
        self.recent[recent] = (self.hash, class);
        self.current = Some(class);
        Some(class)
    }
}

impl<A: Address> Axis<A> {
    /// The tree over pieces that end at `lasts` (ascending; the last piece ends at the axis's end and is not named).
    fn new(lasts: &[A], class_of: Vec<u32>) -> Self {
        debug_assert_eq!(lasts.len() + 1, class_of.len());
        let mut axis = Self { nodes: Vec::new(), levels: [0; MAX_DEPTH], depth: 0, class_of };
        if lasts.is_empty() {
            return axis;
        }
        let mut widths = vec![lasts.len().div_ceil(NODE)];
        while widths[widths.len() - 1] > 1 {
            widths.push(widths[widths.len() - 1].div_ceil(FANOUT));
        }
        axis.depth = widths.len();
        for level in 0..axis.depth {
            axis.levels[level] = axis.nodes.len();
            let height = axis.depth - 1 - level;
            // How many pieces one child of a node at this height spans; a separator of a leaf is one piece's end.
            let span = if height == 0 { 1 } else { NODE * FANOUT.pow(u32::try_from(height - 1).expect("below 8")) };
            let children = if height == 0 { NODE } else { FANOUT };
            for node in 0..widths[height] {
                // The end of each child but the last; where there is no further child, a separator that no point passes.
                let separator = |at: usize| {
                    let end = (node * children + at + 1) * span;
                    let below = if height == 0 { end <= lasts.len() } else { end < lasts.len() };
                    if below { lasts[end - 1] } else { A::LAST }
                };
                axis.nodes.push(Node(std::array::from_fn(separator)));
            }
        }
        axis
    }

    /// Replaces every class by a number derived from it (its place in a table).
    pub(crate) fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        self.class_of.iter_mut().for_each(|class| *class = number(*class));
    }

    /// The class of one point.
    #[inline(always)]
    pub(crate) fn class<S: Simd>(&self, simd: S, point: A) -> u32 {
        let mut at = 0;
        for level in 0..self.depth {
            let children = if level + 1 < self.depth { INNER } else { LEAF };
            at = at * children + A::rank(simd, &self.nodes[self.levels[level] + at as usize], point);
        }
        self.class_of[at as usize]
    }

    /// How many nodes a search visits.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<A>>() + self.class_of.capacity() * size_of::<u32>()
    }
}

/// Finds the class of each point. Level by level, so that the cache misses of one level overlap.
pub(crate) struct Search<'a, A> {
    pub(crate) axis: &'a Axis<A>,
    pub(crate) points: &'a [A],
    pub(crate) classes: &'a mut [u32],
}

impl<A: Address> Kernel for Search<'_, A> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { axis, points, classes } = self;
        let Some(root) = axis.nodes.first() else {
            classes.fill(axis.class_of[0]);
            return;
        };
        A::rank_all(simd, root, points, classes);
        for level in 1..axis.depth {
            let nodes = &axis.nodes[axis.levels[level]..];
            // Two loops, because the factors are then constants: a shift and an addition.
            if level + 1 < axis.depth {
                descend::<A, S, INNER>(simd, nodes, points, classes);
            } else {
                descend::<A, S, LEAF>(simd, nodes, points, classes);
            }
        }
        let class_of = &axis.class_of[..];
        for class in classes {
            *class = class_of[*class as usize];
        }
    }
}

/// From the nodes of one level to their children (the leaves': pieces) that hold the points.
#[inline(always)]
fn descend<A: Address, S: Simd, const CHILDREN: u32>(simd: S, nodes: &[Node<A>], points: &[A], at: &mut [u32]) {
    let step = |at: &mut u32, point| *at = *at * CHILDREN + A::rank(simd, &nodes[*at as usize], point);
    // Eight at a time: the loop's own instructions were a fifth of it.
    let ((points, points_left), (eights, left)) = (points.as_chunks::<8>(), at.as_chunks_mut::<8>());
    for (eight, points) in eights.iter_mut().zip(points) {
        for lane in 0..8 {
            step(&mut eight[lane], points[lane]);
        }
    }
    for (at, &point) in left.iter_mut().zip(points_left) {
        step(at, point);
    }
}
