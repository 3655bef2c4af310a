//! One field of the key: from a point to the class of points that no rule tells apart.
//!
//! An axis (source address, destination address, service, source port) is cut ([`super::sweep`]) at every point where the set of
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

use super::address::Address;
use crate::simd::{Kernel, NODE, Node, Scalar, Simd};

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

/// The pieces of an axis and their classes.
#[derive(Clone, Debug)]
pub(crate) struct Classed<A> {
    /// Where each piece ends, ascending; the last piece ends at the axis's end and is not named.
    pub(crate) lasts: Vec<A>,
    pub(crate) class_of: Vec<u32>,
}

impl<A: Address> Axis<A> {
    /// The tree over the pieces.
    pub(crate) fn new(Classed { lasts, class_of }: Classed<A>) -> Self {
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
                axis.nodes.push(A::node(std::array::from_fn(separator)));
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
        self.class_of[self.piece(simd, point)]
    }

    /// The piece that holds a point, by its place.
    #[inline(always)]
    pub(crate) fn piece<S: Simd>(&self, simd: S, point: A) -> usize {
        let mut at = 0;
        for level in 0..self.depth {
            let children = if level + 1 < self.depth { INNER } else { LEAF };
            at = at * children + A::rank(simd, &self.nodes[self.levels[level] + at as usize], point);
        }
        at as usize
    }

    /// The pieces, ascending: where each ends, and its class.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (A, u32)> + '_ {
        self.class_of.iter().enumerate().map(|(piece, &class)| (self.last(piece), class))
    }

    /// How many pieces there are.
    pub(crate) fn pieces(&self) -> usize {
        self.class_of.len()
    }

    /// The last point of a piece.
    pub(crate) fn last(&self, piece: usize) -> A {
        if piece + 1 == self.class_of.len() {
            return A::LAST;
        }
        let leaves = &self.nodes[self.levels[self.depth - 1]..];
        A::separator(&leaves[piece / NODE], piece % NODE)
    }

    /// Whether pieces end at all of these points.
    pub(super) fn ends_at(&self, points: &[A]) -> bool {
        points.iter().all(|&point| self.last(self.piece(Scalar, point)) == point)
    }

    /// The axis with pieces that end at these points, which ascend, and at others only where the class changes.
    pub(super) fn cut_at(&self, points: &[A]) -> Self {
        let mut cut = Classed { lasts: Vec::with_capacity(self.pieces() + points.len()), class_of: Vec::new() };
        cut.class_of.reserve_exact(self.pieces() + points.len());
        let mut points = points.iter().copied().peekable();
        // Whether the piece before ends where one has to.
        let mut stays = true;
        let mut push = |last: A, class: u32, wanted: bool| {
            if !std::mem::replace(&mut stays, wanted) && cut.class_of.last() == Some(&class) {
                cut.lasts.pop();
                cut.class_of.pop();
            }
            cut.lasts.push(last);
            cut.class_of.push(class);
        };
        for (piece, &class) in self.class_of.iter().enumerate() {
            let last = self.last(piece);
            while let Some(point) = points.next_if(|&point| point < last) {
                push(point, class, true);
            }
            push(last, class, points.next_if_eq(&last).is_some());
        }
        cut.lasts.pop();
        Self::new(cut)
    }

    /// Replaces the classes of the pieces between two points, the first of a piece and the last of one, as long as there is a
    /// class. Whether there was one for all.
    pub(super) fn replace(&mut self, (first, last): (A, A), mut class: impl FnMut(u32) -> Option<u32>) -> bool {
        let from = self.piece(Scalar, first);
        for piece in from..self.class_of.len() {
            let Some(new) = class(self.class_of[piece]) else { return false };
            self.class_of[piece] = new;
            if self.last(piece) >= last {
                break;
            }
        }
        true
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
        // Per point, not 16 points at a time with the root in a register: that is a chain of five steps that nothing
        // overlaps, and was 4 to 8 % slower.
        for (class, &point) in classes.iter_mut().zip(points) {
            *class = A::rank(simd, root, point);
        }
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
