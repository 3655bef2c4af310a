//! Pairs of classes: what is left of a list of rules for a class of sources and one of destinations, in order.
//!
//! ```text
//!   source      -- search tree --> 17  --> row 0110 1000 ... -. intersect with the services' and source ports' rows
//!   destination -- search tree --> 204 --> row 0011 1001 ... -'   --> direct rule ----------------------------.
//!                                   |                                                                         |
//!   blocks[17, 204 / 64] --> cells[+ 204 % 64] --> lines: service, source port -> rule ---------------------- the first
//! ```
//!
//! The rules that most pairs share are direct: bits of the classes' rows. Without them few pairs have rules, so most
//! blocks of the table are equal, and each different one is stored once. A lookup is two loads and mostly one
//! line of four rules, which takes the place of the tuples' probes and of the entries that they verify.

use super::address::Address;
use super::vectors::{CHUNK_CODES, Meet, place};
use super::{Block, Classes, Cost, Retracted};
use crate::simd::{CONTINUED, Chunk, Kernel, List, Simd, Transport, prefetch};

/// Destinations' classes of a block: 256 bytes of lines' numbers.
pub(super) const BLOCK_CLASSES: u32 = 64;

/// The table of pairs, the lines of their lists, and the direct rules' rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pairs {
    /// The rows of the four axes behind each other; a class is numbered by where its row is.
    pub(super) rows: Vec<Chunk>,
    /// Chunks of a row: 1 or 2.
    pub(super) each: usize,
    /// The code of each bit of a row.
    pub(super) codes: Vec<u32>,
    /// The number of the first class of destinations.
    pub(super) first_dst: u32,
    /// Blocks per class of sources.
    pub(super) width: u32,
    /// Where each block begins in `cells`.
    pub(super) blocks: Vec<u32>,
    /// The first line of each pair's list.
    pub(super) cells: Vec<u32>,
    pub(super) lines: Vec<Transport>,
    /// The most rules of a list.
    pub(super) longest: usize,
    pub(super) direct: usize,
    pub(super) classes: [usize; 4],
}

impl Pairs {
    #[inline(always)]
    pub(crate) fn decide<A: Address, S: Simd, const N: usize>(
        &self,
        simd: S,
        classes: &Classes<N>,
        block: &Block<A, N>,
        retracted: &Retracted,
    ) -> [u32; N] {
        let n = block.len;
        let (mut best, mut picked, mut lines, mut tuples) = ([u32::MAX; N], [u32::MAX; N], [0; N], [0; N]);
        simd.call(Find { pairs: self, srcs: &classes[0][..n], dsts: &classes[1][..n], lines: &mut lines[..n] });
        let (rows, live, codes) = (&self.rows[..], &retracted.live[..], &self.codes[..]);
        let (direct, none) = (&mut best[..n], &mut tuples[..n]);
        if self.each == 2 {
            simd.call(Meet::<N, 2> { rows, live, codes, aside: 0, classes, best: direct, tuples: none });
        } else {
            simd.call(Meet::<N, 1> { rows, live, codes, aside: 0, classes, best: direct, tuples: none });
        }
        let (services, src_ports) = (&block.service[..n], &block.src_port[..n]);
        simd.call(Pick { lines: &self.lines, at: &lines[..n], services, src_ports, picked: &mut picked[..n] });
        if !retracted.codes.is_empty() {
            for at in 0..n {
                if retracted.codes.binary_search(&picked[at]).is_ok() {
                    picked[at] = self.left(lines[at], block.service[at], block.src_port[at], &retracted.codes);
                }
            }
        }
        best.iter_mut().zip(picked).for_each(|(best, picked)| *best = picked.min(*best));
        best
    }

    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(
        &self,
        simd: S,
        classes: [u32; 4],
        service: u32,
        src_port: u32,
        retracted: &Retracted,
    ) -> u32 {
        let first = self.line(classes);
        let mut best = u32::MAX;
        for chunk in 0..self.each {
            let [a, b, c, d] = classes.map(|class| &self.rows[class as usize + chunk]);
            let direct = simd.meet([a, b, c, d, &retracted.live[chunk]], 0).1;
            best = best.min(self.codes[chunk * CHUNK_CODES + direct]);
        }
        let mut at = first as usize;
        let mut picked = simd.pick_transport(&self.lines[at], service, port(src_port));
        while picked == CONTINUED {
            at += 1;
            picked = simd.pick_transport(&self.lines[at], service, port(src_port));
        }
        if !retracted.codes.is_empty() && retracted.codes.binary_search(&picked).is_ok() {
            picked = self.left(first, service, src_port, &retracted.codes);
        }
        best.min(picked)
    }

    /// The first line of a pair's list.
    #[inline(always)]
    fn line(&self, [src, dst, ..]: [u32; 4]) -> u32 {
        self.cells[self.cell(src, dst)]
    }

    #[inline(always)]
    fn cell(&self, src: u32, dst: u32) -> usize {
        // Divided by one or two.
        let (src, dst) = (src >> (self.each - 1), (dst - self.first_dst) >> (self.each - 1));
        (self.blocks[(src * self.width + dst / BLOCK_CLASSES) as usize] + dst % BLOCK_CLASSES) as usize
    }

    /// The lines of the list that begins with this one.
    fn list(&self, line: u32) -> impl Iterator<Item = &Transport> + '_ {
        let lines = &self.lines[line as usize..];
        let more = lines.iter().take_while(|line| line.is_continued()).count();
        lines[..=more].iter()
    }

    /// The code of the first matching rule of a list that is not gone.
    #[cold]
    fn left(&self, line: u32, service: u32, src_port: u32, gone: &[u32]) -> u32 {
        self.list(line)
            .flat_map(|line| line.matching(service, src_port))
            .find(|code| gone.binary_search(code).is_err())
            .unwrap_or(u32::MAX)
    }

    /// What one packet costs beside the search.
    pub(crate) fn cost(&self, classes: [u32; 4]) -> Cost {
        let entries = self.list(self.line(classes)).map(Transport::rules).sum();
        Cost { entries, ..self.worst_case() }
    }

    /// The most that a packet costs beside the search: the pair counts as one probe.
    pub(crate) fn worst_case(&self) -> Cost {
        Cost { steps: 0, chunks: self.each, probes: 1, entries: self.longest }
    }

    /// The place of the bit of a direct rule.
    pub(crate) fn place(&self, code: u32) -> Option<(usize, usize)> {
        place(&self.codes, code)
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.rows[..])
            + size_of_val(&self.codes[..])
            + size_of_val(&self.blocks[..])
            + size_of_val(&self.cells[..])
            + size_of_val(&self.lines[..])
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "class pairs: {} direct rules, {} different cells, {} lines (at most {} rules in a list), classes {:?}",
            self.direct,
            self.cells.len(),
            self.lines.len(),
            self.longest,
            self.classes,
        )
    }
}

/// From the classes to the first lines of the lists.
struct Find<'a> {
    pairs: &'a Pairs,
    srcs: &'a [u32],
    dsts: &'a [u32],
    lines: &'a mut [u32],
}

impl Kernel for Find<'_> {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer cells than 2^32")]
    fn run<S: Simd>(self, _simd: S) {
        let Self { pairs, srcs, dsts, lines } = self;
        for ((&src, &dst), line) in srcs.iter().zip(dsts).zip(&mut *lines) {
            *line = pairs.cell(src, dst) as u32;
        }
        for line in lines {
            *line = pairs.cells[*line as usize];
            prefetch(&pairs.lines, *line as usize);
        }
    }
}

/// From the lines to the codes.
struct Pick<'a> {
    lines: &'a [Transport],
    at: &'a [u32],
    services: &'a [u32],
    src_ports: &'a [u32],
    picked: &'a mut [u32],
}

/// Keys of a block whose lists go on, and room for one more.
const CONTINUING: usize = super::BLOCK + 1;

impl Kernel for Pick<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { lines, at, services, src_ports, picked } = self;
        // Which lists go on past the first line is what no predictor knows.
        let mut more = List::<CONTINUING>::new();
        let keys = at.iter().zip(services.iter().zip(src_ports));
        for (key, ((&at, (&service, &src_port)), picked)) in (0u32..).zip(keys.zip(&mut *picked)) {
            *picked = simd.pick_transport(&lines[at as usize], service, port(src_port));
            more.push_some([(key, at + 1)], u32::from(*picked == CONTINUED));
        }
        while more.len() > 0 {
            let mut again = List::<CONTINUING>::new();
            for &mut (key, at) in more.items() {
                let (service, src_port) = (services[key as usize], src_ports[key as usize]);
                let picked = &mut picked[key as usize];
                *picked = simd.pick_transport(&lines[at as usize], service, port(src_port));
                again.push_some([(key, at + 1)], u32::from(*picked == CONTINUED));
            }
            more = again;
        }
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a packet's port")]
fn port(port: u32) -> u16 {
    port as u16
}
