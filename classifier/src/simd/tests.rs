//! Every level against plain loops, on whatever levels this CPU has.

use proptest::prelude::*;

use super::*;

/// One step of each kind, so that a test can run it at any level.
struct Steps<'a> {
    node: &'a Node<u32>,
    point: u32,
    rows: [&'a Chunk; 4],
    rank: &'a mut usize,
    met: &'a mut (Chunk, u8),
}

impl Kernel for Steps<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        *self.rank = simd.rank(self.node, self.point);
        self.met.1 = simd.intersect(self.rows, &mut self.met.0);
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
        rows in prop::array::uniform4(chunk()),
    ) {
        separators.sort_unstable();
        let node = Node(separators);
        let rank = separators.iter().filter(|&&separator| separator < point).count();
        let words: Vec<u64> = (0..8).map(|at| rows.iter().fold(u64::MAX, |met, row| met & row.0[at])).collect();
        let occupied = words.iter().enumerate().fold(0u8, |bits, (at, &word)| bits | u8::from(word != 0) << at);
        for level in Level::available() {
            let (mut got, mut met) = (usize::MAX, (Chunk([0; 8]), 0));
            let [a, b, c, d] = &rows;
            level.call(Steps { node: &node, point, rows: [a, b, c, d], rank: &mut got, met: &mut met });
            prop_assert_eq!(got, rank, "{}", level.name());
            prop_assert_eq!(&met.0.0[..], &words[..], "{}", level.name());
            prop_assert_eq!(met.1, occupied, "{}", level.name());
        }
    }
}
