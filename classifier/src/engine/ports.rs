//! Maps a port, or a service (a protocol's class and a port), to its class: a table of two levels.
//!
//! ```text
//!   point --upper bits--> block --lowest bits--> class
//! ```
//!
//! Ports are few enough to need no search: most blocks of neighbouring ports have one class and share memory. The table takes two
//! independent loads, where the search tree takes two or three nodes and a class.

use super::axis::Classed;
use crate::simd::{Kernel, Simd};

/// Bits of a point's index in its block: 64 ports per block. With blocks of 16 and 32, the upper table of a protocol takes 16 and 8 KiB
/// instead of 4. Random ports touch that table: 3 to 5 % slower on lists of 1k rules.
const BLOCK_BITS: u32 = 6;
const BLOCK: usize = 1 << BLOCK_BITS;

/// Maps points (ports or services) below a bound to their class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    /// Number of a point's low bits that are its index in a block: [`BLOCK_BITS`], or 31 if all points have one class.
    shift: u32,
    /// Mask of the low bits that are a point's index in its block.
    low: u32,
    /// Index of each block's first element in `classes`.
    blocks: Vec<u32>,
    classes: Vec<u32>,
}

impl Ports {
    /// Builds the table for points up to `last`, which must end a block, from the pieces of an axis.
    pub(crate) fn new(pieces: &Classed<u32>, last: u32) -> Self {
        if let [class] = pieces.class_of[..] {
            return Self { shift: u32::BITS - 1, low: 0, blocks: vec![0; 2], classes: vec![class] };
        }
        let count = (last >> BLOCK_BITS) as usize + 1;
        let (mut blocks, mut classes) = (Vec::with_capacity(count), Vec::new());
        // The shared block of each class that fills whole blocks.
        let mut whole = vec![u32::MAX; pieces.class_of.iter().map(|&class| class as usize + 1).max().unwrap_or(0)];
        let offset = |classes: &Vec<u32>| u32::try_from(classes.len()).expect("at most 2^24 points");
        let mut ends = pieces.lasts.iter().copied().chain([u32::MAX]).zip(&pieces.class_of).peekable();
        while blocks.len() < count {
            let first = u32::try_from(blocks.len()).expect("at most 2^20 blocks") << BLOCK_BITS;
            while ends.next_if(|&(end, _)| end < first).is_some() {}
            let &(end, &class) = ends.peek().expect("the last piece ends at the end of the axis");
            // The blocks before this one end inside the piece.
            let inside = if end >= last { count } else { (end as usize + 1) >> BLOCK_BITS };
            if inside > blocks.len() {
                let whole = &mut whole[class as usize];
                if *whole == u32::MAX {
                    *whole = offset(&classes);
                    classes.extend([class; BLOCK]);
                }
                blocks.resize(inside, *whole);
                continue;
            }
            blocks.push(offset(&classes));
            for point in (first..).take(BLOCK) {
                while ends.next_if(|&(end, _)| end < point).is_some() {}
                classes.extend(ends.peek().map(|&(_, &class)| class));
            }
        }
        Self { shift: BLOCK_BITS, low: (1 << BLOCK_BITS) - 1, blocks, classes }
    }

    /// Returns the class of a port or service: rules do not distinguish points of one class.
    #[inline(always)]
    pub(crate) fn class(&self, point: u32) -> u32 {
        self.classes[(self.blocks[(point >> self.shift) as usize] + (point & self.low)) as usize]
    }

    /// Replaces each class number `n` by `number(n)`.
    pub(crate) fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        self.classes.iter_mut().for_each(|class| *class = number(*class));
    }

    /// Returns how many tables a lookup reads before it reads the class: 1, or 0 if all points have one class.
    pub(crate) fn depth(&self) -> usize {
        usize::from(self.low != 0)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.blocks[..]) + size_of_val(&self.classes[..])
    }
}

/// Maps points to classes. A separate function, so that the table's parts stay in registers.
pub(crate) struct Search<'a> {
    pub(crate) ports: &'a Ports,
    pub(crate) points: &'a [u32],
    pub(crate) classes: &'a mut [u32],
}

impl Kernel for Search<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { ports: Ports { shift, low, blocks, classes: class_of }, points, classes } = self;
        let (shift, low, blocks, class_of) = (*shift, *low, &blocks[..], &class_of[..]);
        if let [class] = class_of {
            classes.fill(*class);
            return;
        }
        for (class, &point) in classes.iter_mut().zip(points) {
            *class = class_of[(blocks[(point >> shift) as usize] + (point & low)) as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_port_has_the_class_of_its_piece(
            mut ends in prop::collection::btree_set(prop_oneof![0u32..70, 65_500u32..65_600, 0u32..0x2_ffff], 0..40),
            classes in prop::collection::vec(0u32..5, 41),
            last in prop_oneof![Just(0xffffu32), Just(0x2_ffff)],
        ) {
            ends.insert(100);
            let lasts: Vec<u32> = ends.into_iter().collect();
            let pieces = Classed { class_of: classes[..=lasts.len()].to_vec(), lasts };
            let ports = Ports::new(&pieces, last);
            for point in 0..=last {
                let piece = pieces.lasts.partition_point(|&end| end < point);
                prop_assert_eq!(ports.class(point), pieces.class_of[piece]);
            }
        }
    }

    #[test]
    fn one_class_takes_no_table() {
        let ports = Ports::new(&Classed { lasts: vec![], class_of: vec![7] }, 0xff_ffff);
        assert_eq!([0, 1, 0xff_ffff].map(|point| ports.class(point)), [7; 3]);
        assert_eq!(ports.depth(), 0);
    }
}
