//! Every level against plain loops, on whatever levels this CPU has.

use proptest::prelude::*;

use super::*;

/// One step of each kind, so that a test can run it at any level.
struct Steps<'a> {
    node: &'a Node<u32>,
    point: u32,
    rows: [&'a Chunk; 5],
    rank: &'a mut u32,
    aside: u64,
    met: &'a mut (u64, usize),
    points: &'a [u32],
    ranks: &'a mut [u32],
    intervals: ([u32; 4], [u32; 4], [u32; 4]),
    within: &'a mut bool,
}

impl Kernel for Steps<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        *self.rank = simd.rank(self.node, self.point);
        *self.met = simd.meet(self.rows, self.aside);
        simd.rank_all(self.node, self.points, self.ranks);
        let (first, width, points) = self.intervals;
        *self.within = simd.within(first, width, points);
    }
}

fn edgy() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), Just(0x8000_0000), Just(0x7fff_ffff), any::<u32>(), 0u32..20]
}

fn chunk() -> impl Strategy<Value = Chunk> {
    prop::array::uniform8(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]).prop_map(Chunk)
}

proptest! {
    #[test]
    fn every_level_ranks_and_intersects_like_plain_loops(
        mut separators in prop::array::uniform16(edgy()),
        point in edgy(),
        rows in prop::array::uniform5(chunk()),
        aside in prop_oneof![Just(0), Just(0xff), Just(u64::MAX)],
        points in prop::collection::vec(edgy(), 0..40),
        first in prop::array::uniform4(edgy()),
        width in prop::array::uniform4(edgy()),
        four in prop::array::uniform4(edgy()),
    ) {
        separators.sort_unstable();
        let node = Node(separators);
        let below = |point| separators.iter().map(|&separator| u32::from(separator < point)).sum::<u32>();
        let inside = (0..4).all(|at| four[at].wrapping_sub(first[at]) <= width[at]);
        let bit = |at: usize| rows.iter().all(|row| row.0[at / 64] >> (at % 64) & 1 == 1);
        let tuples = (0..64).fold(0, |all, at| all | u64::from(bit(at)) << at) & aside;
        let place = (0..512).find(|&at| bit(at) && (at >= 64 || aside >> at & 1 == 0)).unwrap_or(NO_BIT);
        for level in Level::available() {
            let (mut rank, mut met, mut within, mut ranks) = (u32::MAX, (0, 0), !inside, vec![99; points.len()]);
            let [a, b, c, d, e] = &rows;
            level.call(Steps {
                node: &node,
                point,
                rows: [a, b, c, d, e],
                rank: &mut rank,
                aside,
                met: &mut met,
                points: &points,
                ranks: &mut ranks,
                intervals: (first, width, four),
                within: &mut within,
            });
            prop_assert_eq!(rank, below(point), "{}", level.name());
            prop_assert!(ranks.iter().zip(&points).all(|(&rank, &point)| rank == below(point)), "{}", level.name());
            prop_assert_eq!(within, inside, "{}", level.name());
            prop_assert_eq!(met, (tuples, place), "{}", level.name());
        }
    }
}
