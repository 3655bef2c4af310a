//! A search tree over one field of the key: maps a point to its class. No rule distinguishes points of one class.
//!
//! An axis is a source address, destination address, service or source port. It is cut ([`super::sweep`]) at every point where the set of
//! candidates changes that cover it. A candidate is a rule or a tuple of rules, and has one bit. Neighbouring pieces with the same set are
//! joined. All pieces with the same set share one class, and the set is the class's **row**.
//!
//! ```text
//!   point --search tree--> piece --class_of--> class --row--> bits of the candidates that cover the point
//! ```
//!
//! The search tree is a static 17-ary tree in an array. A node has 16 separators on one cache line; one comparison of 16 lanes ranks a
//! point, and no pointer is followed. 4,624 pieces take three levels, 78,608 take four. The depth is logarithmic in the number of pieces
//! for any rules. A multi-bit trie with path compression cannot guarantee that for ranges (measurements in the engine's documentation).

use super::address::Address;
use crate::simd::{Kernel, NODE, Node, Scalar, Simd};

const FANOUT: usize = NODE + 1;

/// [`FANOUT`] and [`NODE`] as `u32`, for computing indices.
const INNER: u32 = 17;
const LEAF: u32 = 16;
const _: () = assert!(INNER as usize == FANOUT && LEAF as usize == NODE);

/// Maximum number of levels of a search tree, enough for 2^32 pieces: 16 * 17^7 is more.
const MAX_DEPTH: usize = 8;

/// A search tree over the values (points) of one packet field. Maps each to its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis<A> {
    nodes: Vec<Node<A>>,
    /// Index of each level's first node, the root's first. Only the first `depth` elements are used.
    levels: [usize; MAX_DEPTH],
    depth: usize,
    /// The class of each piece.
    class_of: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Classed<A> {
    /// The last point of each piece in ascending order. Omits the last piece, which ends at the highest point.
    pub(crate) lasts: Vec<A>,
    pub(crate) class_of: Vec<u32>,
}

impl<A: Address> Axis<A> {
    /// Builds the search tree over the pieces of an axis.
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
            // The number of pieces below one child of a node at this height. A leaf's separator is the end of one piece.
            let span = if height == 0 { 1 } else { NODE * FANOUT.pow(u32::try_from(height - 1).expect("below 8")) };
            let children = if height == 0 { NODE } else { FANOUT };
            for node in 0..widths[height] {
                // The last point of each child but the last. Without a further child, a separator that no point exceeds.
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

    /// Replaces the class numbers, for example by indices into a table.
    pub(crate) fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        self.class_of.iter_mut().for_each(|class| *class = number(*class));
    }

    /// Replaces the class of each piece, in ascending order, by the result for the piece's last point and its class.
    pub(super) fn renumber_pieces(&mut self, mut number: impl FnMut(A, u32) -> u32) {
        for piece in 0..self.class_of.len() {
            self.class_of[piece] = number(self.last(piece), self.class_of[piece]);
        }
    }

    /// Returns the class of a point: rules do not distinguish points of one class.
    #[inline(always)]
    pub(crate) fn class<S: Simd>(&self, simd: S, point: A) -> u32 {
        self.class_of[self.piece(simd, point)]
    }

    /// Returns the index of the piece that contains a point.
    #[inline(always)]
    pub(crate) fn piece<S: Simd>(&self, simd: S, point: A) -> usize {
        let mut at = 0;
        for level in 0..self.depth {
            let children = if level + 1 < self.depth { INNER } else { LEAF };
            at = at * children + A::rank(simd, &self.nodes[self.levels[level] + at as usize], point);
        }
        at as usize
    }

    /// Returns the last point and the class of each piece, in ascending order.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (A, u32)> + '_ {
        self.class_of.iter().enumerate().map(|(piece, &class)| (self.last(piece), class))
    }

    pub(crate) fn pieces(&self) -> usize {
        self.class_of.len()
    }

    /// Returns the last point of a piece.
    pub(crate) fn last(&self, piece: usize) -> A {
        if piece + 1 == self.class_of.len() {
            return A::LAST;
        }
        let leaves = &self.nodes[self.levels[self.depth - 1]..];
        A::separator(&leaves[piece / NODE], piece % NODE)
    }

    /// Whether every one of `points` is the last value of its piece. A piece is a range of field values with one class.
    pub(super) fn ends_at(&self, points: &[A]) -> bool {
        points.iter().all(|&point| self.last(self.piece(Scalar, point)) == point)
    }

    /// Returns the axis with pieces that end at these ascending points, and elsewhere only where the class changes.
    pub(super) fn cut_at(&self, points: &[A]) -> Self {
        let mut cut = Classed { lasts: Vec::with_capacity(self.pieces() + points.len()), class_of: Vec::new() };
        cut.class_of.reserve_exact(self.pieces() + points.len());
        let mut points = points.iter().copied().peekable();
        // Whether the previous piece must end where it does.
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

    /// Replaces the classes of the pieces from `first` to `last`, which must be a piece's first and last point. Stops and returns false if
    /// `class` returns `None`.
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

    /// Returns the number of nodes that a search visits.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<A>>() + self.class_of.capacity() * size_of::<u32>()
    }
}

/// Maps points to classes level by level, so that the cache misses of one level overlap.
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
        // One point at a time. Comparing 16 points with the root in a register is a chain of five dependent steps, and was 4 to 8 % slower.
        for (class, &point) in classes.iter_mut().zip(points) {
            *class = A::rank(simd, root, point);
        }
        for level in 1..axis.depth {
            let nodes = &axis.nodes[axis.levels[level]..];
            // Two loops, so that the factors are constants: a shift and an addition.
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

/// Moves from nodes of one level to the children that contain the points, or from leaves to pieces.
#[inline(always)]
fn descend<A: Address, S: Simd, const CHILDREN: u32>(simd: S, nodes: &[Node<A>], points: &[A], at: &mut [u32]) {
    let step = |at: &mut u32, point| *at = *at * CHILDREN + A::rank(simd, &nodes[*at as usize], point);
    // Unrolled by eight: the loop overhead was a fifth of the time.
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
