//! Compares every level that this CPU supports with plain loops.

use proptest::prelude::*;

use super::*;

/// One step of each kind, to run at any level.
struct Steps<'a> {
    node: &'a Node<u32>,
    point: u32,
    rows: [&'a Chunk; 5],
    rank: &'a mut u32,
    aside: u64,
    met: &'a mut (u64, usize),
    intervals: ([u32; 4], [u32; 4], [u32; 4]),
    within: &'a mut bool,
}

impl Kernel for Steps<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        *self.rank = simd.rank(self.node, self.point);
        *self.met = simd.meet(self.rows, self.aside);
        let (first, width, points) = self.intervals;
        *self.within = simd.within(first, width, points);
    }
}

/// One step down a tree of 128-bit keys.
struct Wide<'a> {
    node: &'a Node<u128>,
    point: u128,
    rank: &'a mut u32,
    /// Set only for branches.
    child: Option<&'a mut u32>,
}

impl Kernel for Wide<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        *self.rank = simd.rank_wide(self.node, self.point);
        if let Some(child) = self.child {
            *child = simd.child_wide(self.node, self.point);
        }
    }
}

/// One step down a tree, and one line of a list.
struct Leaf<'a> {
    branch: &'a Node<u32>,
    line: &'a Services,
    point: u32,
    child: &'a mut u32,
    picked: &'a mut u32,
}

impl Kernel for Leaf<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        *self.child = simd.child(self.branch, self.point);
        *self.picked = simd.pick(self.line, self.point);
    }
}

fn edgy() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), Just(0x8000_0000), Just(0x7fff_ffff), any::<u32>(), 0u32..20]
}

/// Few different values, so that high halves are often equal.
fn edgy_half() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 63), Just((1 << 63) - 1), any::<u64>()]
}

fn chunk() -> impl Strategy<Value = Chunk> {
    prop::array::uniform8(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]).prop_map(Chunk)
}

/// Ensures that a run for certain levels does not pass with fewer (valgrind does not support AVX-512).
#[test]
fn the_levels_that_are_asked_for_are_tested() {
    let names: Vec<&str> = Level::available().into_iter().map(Level::name).collect();
    if let Ok(asked) = std::env::var("BULKHEAD_LEVELS") {
        assert_eq!(names.join(","), asked);
    }
    assert_eq!(Level::detect().name(), names[names.len() - 1]);
}

proptest! {
    #[test]
    fn every_level_ranks_and_intersects_like_plain_loops(
        mut separators in prop::array::uniform16(edgy()),
        point in edgy(),
        rows in prop::array::uniform5(chunk()),
        aside in prop_oneof![Just(0), Just(0xff), Just(u64::MAX)],
        first in prop::array::uniform4(edgy()),
        width in prop::array::uniform4(edgy()),
        four in prop::array::uniform4(edgy()),
    ) {
        separators.sort_unstable();
        let node = Node::narrow(separators);
        let below = separators.iter().map(|&separator| u32::from(separator < point)).sum::<u32>();
        let inside = (0..4).all(|at| four[at].wrapping_sub(first[at]) <= width[at]);
        let bit = |at: usize| rows.iter().all(|row| row.0[at / 64] >> (at % 64) & 1 == 1);
        let tuples = (0..64).fold(0, |all, at| all | u64::from(bit(at)) << at) & aside;
        let place = (0..512).find(|&at| bit(at) && (at >= 64 || aside >> at & 1 == 0)).unwrap_or(NO_BIT);
        for level in Level::available() {
            let (mut rank, mut met, mut within) = (u32::MAX, (0, 0), !inside);
            let [a, b, c, d, e] = &rows;
            level.call(Steps {
                node: &node,
                point,
                rows: [a, b, c, d, e],
                rank: &mut rank,
                aside,
                met: &mut met,
                intervals: (first, width, four),
                within: &mut within,
            });
            prop_assert_eq!(rank, below, "{}", level.name());
            prop_assert_eq!(within, inside, "{}", level.name());
            prop_assert_eq!(met, (tuples, place), "{}", level.name());
        }
    }
    #[test]
    fn every_level_ranks_addresses_of_128_bits_like_plain_loops(
        halves in prop::array::uniform32(edgy_half()),
        [high, low] in prop::array::uniform2(edgy_half()),
        first_child in 0u32..1 << 31,
    ) {
        let whole = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut separators: [u128; NODE] = std::array::from_fn(|at| whole(halves[at], halves[at + NODE]));
        separators.sort_unstable();
        let point = whole(high, low);
        let below = |separators: &[u128]| {
            u32::try_from(separators.iter().filter(|&&separator| separator < point).count()).unwrap()
        };
        let mut branch = separators;
        branch[NODE - 1] = first_child.into();
        for level in Level::available() {
            let (mut rank, mut child, mut unused) = (99, 99, 0);
            level.call(Wide { node: &Node::wide(separators), point, rank: &mut rank, child: None });
            level.call(Wide { node: &Node::wide(branch), point, rank: &mut unused, child: Some(&mut child) });
            prop_assert_eq!(rank, below(&separators), "{}", level.name());
            prop_assert_eq!(child, first_child + below(&separators[..NODE - 1]), "{}", level.name());
        }
    }

    #[test]
    fn every_level_descends_and_picks_like_plain_loops(
        mut separators in prop::array::uniform16(edgy()),
        first_child in 0u32..1 << 31,
        services in prop::collection::vec((edgy(), edgy()), 0..=Services::RULES),
        point in edgy(),
    ) {
        // `NO_SERVICE` represents no rule, and no packet's service is that number.
        let point = point.min(NO_SERVICE - 1);
        separators.sort_unstable();
        separators[NODE - 1] = first_child;
        let below = separators[..NODE - 1].iter().filter(|&&separator| separator < point).count();
        let expected = first_child + u32::try_from(below).unwrap();
        let services: Vec<((u32, u32), u32)> =
            (10..).zip(services).map(|(code, (a, b))| ((a.min(b), a.max(b)), code)).collect();
        let inside = services.iter().find(|((first, last), _)| (*first..=*last).contains(&point));
        for level in Level::available() {
            let (mut child, mut picked) = (0, 0);
            level.call(Leaf {
                branch: &Node::narrow(separators),
                line: &Services::new(&services, 99),
                point,
                child: &mut child,
                picked: &mut picked,
            });
            prop_assert_eq!(child, expected, "{}", level.name());
            prop_assert_eq!(picked, inside.map_or(99, |&(_, code)| code), "{}", level.name());
        }
    }
}

/// Memory that ends before an inaccessible page: reading one number too many ends the test.
#[cfg(target_os = "linux")]
mod guarded {
    use super::*;
    use std::ffi::{c_int, c_long, c_void};

    unsafe extern "C" {
        fn mmap(
            place: *mut c_void,
            length: usize,
            may: c_int,
            flags: c_int,
            file: c_int,
            offset: c_long,
        ) -> *mut c_void;
        fn mprotect(place: *mut c_void, length: usize, may: c_int) -> c_int;
        fn munmap(place: *mut c_void, length: usize) -> c_int;
    }

    // mmap(2) on Linux: PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS. No page is larger than 64 KiB.
    const READ_WRITE: c_int = 3;
    const PRIVATE_ANONYMOUS: c_int = 0x22;
    const PAGE: usize = 1 << 16;

    /// Numbers directly before an inaccessible page.
    struct Guarded<T> {
        map: *mut c_void,
        len: usize,
        of: std::marker::PhantomData<T>,
    }

    impl<T: Copy> Guarded<T> {
        fn new(numbers: &[T]) -> Self {
            assert!(size_of_val(numbers) <= PAGE && align_of::<T>() <= size_of::<T>());
            // SAFETY: a new mapping of two pages, whose second one is closed; the numbers fit into the first.
            unsafe {
                let map = mmap(std::ptr::null_mut(), 2 * PAGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
                assert!(!map.is_null() && map.addr() != usize::MAX, "no memory");
                assert_eq!(mprotect(map.byte_add(PAGE), PAGE, 0), 0);
                let slice = Self { map, len: numbers.len(), of: std::marker::PhantomData };
                std::ptr::copy_nonoverlapping(numbers.as_ptr(), slice.start(), numbers.len());
                slice
            }
        }

        fn start(&self) -> *mut T {
            self.map.wrapping_byte_add(PAGE - self.len * size_of::<T>()).cast()
        }

        fn numbers(&mut self) -> &mut [T] {
            // SAFETY: as many numbers were written there, aligned because the page's end is and sizes are multiples.
            unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
        }
    }

    impl<T> Drop for Guarded<T> {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`.
            unsafe { munmap(self.map, 2 * PAGE) };
        }
    }

    #[test]
    fn no_level_touches_what_lies_behind_its_slices() {
        let node = Node::narrow(std::array::from_fn(|at| u32::try_from(at * 10).unwrap()));
        let tens = std::array::from_fn(|at| u128::try_from(at * 10).unwrap() << 60);
        let mut branch = tens;
        branch[NODE - 1] = 150;
        let mut wides = Guarded::new(&[Node::wide(branch), Node::wide(tens)]);
        let (mut nodes, mut lines) = (Guarded::new(&[node]), Guarded::new(&[Services::new(&[((3, 9), 1)], 2)]));
        let mut chunks: [_; 5] = std::array::from_fn(|_| Guarded::new(&[Chunk([u64::MAX; 8])]));
        let [a, b, c, d, e] = &mut chunks;
        let rows = [a, b, c, d, e].map(|chunk| &chunk.numbers()[0]);
        for level in Level::available() {
            let (mut rank, mut met, mut within, mut child) = (0, (0, 0), false, 0);
            let mut picked = 0;
            let node = &nodes.numbers()[0];
            level.call(Steps {
                node,
                point: 35,
                rows,
                rank: &mut rank,
                aside: 0,
                met: &mut met,
                intervals: ([0; 4], [1; 4], [1; 4]),
                within: &mut within,
            });
            let line = &lines.numbers()[0];
            level.call(Leaf { branch: node, line, point: 5, child: &mut child, picked: &mut picked });
            assert_eq!((rank, met, within, child, picked), (4, (0, 0), true, 151, 1), "{}", level.name());
            level.call(Wide { node: &wides.numbers()[0], point: 35 << 60, rank: &mut 0, child: Some(&mut child) });
            level.call(Wide { node: &wides.numbers()[1], point: 35 << 60, rank: &mut rank, child: None });
            assert_eq!((rank, child), (4, 154), "{}", level.name());
        }
    }
}
