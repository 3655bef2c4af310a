//! Maps the addresses of one family to numbers: pieces of the address space, in parts that versions share.
//!
//! ```text
//!  address --search tree--> part --search tree--> piece -> number
//!                            |
//!  one address later: one part is written, the others are shared
//! ```

use std::sync::Arc;

use crate::engine::address::Address;
use crate::engine::{Axis, Classed};
use crate::simd::Simd;

/// Maximum of pieces in a part. A change rewrites one part, 2 us at this size, and counts a reference to every other part. The 200,000
/// pieces of 100,000 pods without neighbours are 200 to 400 parts, 1 us.
const MOST: usize = 1_024;

/// The address space of one family, cut into pieces that have a number each.
#[derive(Clone, Debug)]
pub(super) struct Ranges<A> {
    /// Maps an address to the index in `parts` of the part that contains it.
    top: Arc<Axis<A>>,
    parts: Vec<Arc<Axis<A>>>,
}

/// A changed range of addresses: first address, last address, and the index of the group of changes that apply to it.
pub(super) type Cut<A> = (A, A, usize);

/// Pieces under construction, ascending. Equal neighbours are joined.
struct Pieces<A>(Vec<(A, u32)>);

impl<A: Address> Pieces<A> {
    fn push(&mut self, last: A, number: u32) {
        match self.0.last_mut() {
            Some(before) if before.1 == number => before.0 = last,
            _ => self.0.push((last, number)),
        }
    }
}

/// The parts of a new version of ranges, during its construction.
struct Parts<A> {
    lasts: Vec<A>,
    parts: Vec<Arc<Axis<A>>>,
}

impl<A: Address> Parts<A> {
    /// Adds an unchanged part of the previous version, which both versions then share. `last` is the part's last address.
    fn keep(&mut self, last: A, part: &Arc<Axis<A>>) {
        self.lasts.push(last);
        self.parts.push(part.clone());
    }

    /// Writes pieces as one or more parts. Joins them with the previous part if both are small, so that changes do not fragment the parts.
    fn write(&mut self, mut pieces: Vec<(A, u32)>) {
        if let Some(before) = self.parts.last().filter(|before| before.pieces() + pieces.len() <= MOST / 2) {
            let end = self.lasts.pop().expect("a part ends somewhere");
            let mut joined = Pieces(Vec::with_capacity(before.pieces() + pieces.len()));
            before.ends().for_each(|(last, number)| joined.push(last.min(end), number));
            pieces.iter().for_each(|&(last, number)| joined.push(last, number));
            self.parts.pop();
            pieces = joined.0;
        }
        let each = if pieces.len() > MOST { MOST / 2 } else { MOST };
        for part in pieces.chunks(each) {
            let (last, _) = part[part.len() - 1];
            let lasts = part[..part.len() - 1].iter().map(|&(last, _)| last).collect();
            self.keep(
                last,
                &Arc::new(Axis::new(Classed { lasts, class_of: part.iter().map(|&(_, of)| of).collect() })),
            );
        }
    }

    fn finish(self) -> Ranges<A> {
        let Self { mut lasts, parts } = self;
        lasts.pop();
        let numbers = (0..).take(parts.len()).collect();
        Ranges { top: Arc::new(Axis::new(Classed { lasts, class_of: numbers })), parts }
    }
}

impl<A: Address> Ranges<A> {
    /// Returns ranges that map every address to one number.
    pub(super) fn all(number: u32) -> Self {
        let axis = |number| Arc::new(Axis::new(Classed { lasts: Vec::new(), class_of: vec![number] }));
        Self { top: axis(0), parts: vec![axis(number)] }
    }

    #[inline(always)]
    pub(super) fn get<S: Simd>(&self, simd: S, address: A) -> u32 {
        self.parts[self.top.class(simd, address) as usize].class(simd, address)
    }

    /// Returns the pieces of a part, ascending. The last ends where the part ends.
    fn pieces(&self, part: usize) -> impl Iterator<Item = (A, u32)> + '_ {
        let end = self.top.last(part);
        self.parts[part].ends().map(move |(last, number)| (last.min(end), number))
    }

    /// Returns all pieces, ascending: each piece's last address and number. Neighbours differ.
    pub(super) fn all_pieces(&self) -> Vec<(A, u32)> {
        let mut all = Pieces(Vec::new());
        (0..self.parts.len()).flat_map(|part| self.pieces(part)).for_each(|(last, number)| all.push(last, number));
        all.0
    }

    /// Returns the number of pieces.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.pieces()).sum()
    }

    #[cfg(test)]
    pub(super) fn parts_of_tests(&self) -> &[Arc<Axis<A>>] {
        &self.parts
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes() + size_of::<Axis<A>>()).sum::<usize>() + self.top.bytes()
    }

    /// Returns the ranges with changes. `cuts` ascend and do not overlap. `next` returns a piece's new number from its old one and the
    /// cut's group.
    pub(super) fn changed(&self, cuts: &[Cut<A>], next: &mut dyn FnMut(u32, usize) -> u32) -> Self {
        let mut parts = Parts { lasts: Vec::new(), parts: Vec::with_capacity(self.parts.len() + 1) };
        let mut cuts = cuts.iter().copied().peekable();
        let mut begin = Some(A::ZERO);
        for (at, part) in self.parts.iter().enumerate() {
            let end = self.top.last(at);
            let mut first = begin;
            begin = end.next();
            if cuts.peek().is_none_or(|cut| cut.0 > end) {
                parts.keep(end, part);
                continue;
            }
            let mut pieces = Pieces(Vec::with_capacity(part.pieces() + 2));
            for (last, number) in self.pieces(at) {
                while let Some(begin) = first.filter(|&begin| begin <= last) {
                    let Some(&(from, to, what)) = cuts.peek().filter(|cut| cut.0 <= last) else {
                        pieces.push(last, number);
                        first = last.next();
                        break;
                    };
                    if let Some(before) = from.previous().filter(|&before| begin <= before) {
                        pieces.push(before, number);
                    }
                    let to_here = to.min(last);
                    pieces.push(to_here, next(number, what));
                    first = to_here.next();
                    if to <= last {
                        cuts.next();
                    } else {
                        break;
                    }
                }
            }
            parts.write(pieces.0);
        }
        parts.finish()
    }

    /// Returns the ranges with each number replaced. Parts without a change stay shared.
    pub(super) fn renumbered(&self, number: &dyn Fn(u32) -> u32) -> Self {
        let mut parts = Parts { lasts: Vec::new(), parts: Vec::with_capacity(self.parts.len()) };
        for (at, part) in self.parts.iter().enumerate() {
            if part.ends().all(|(_, of)| number(of) == of) {
                parts.keep(self.top.last(at), part);
            } else {
                let mut pieces = Pieces(Vec::with_capacity(part.pieces()));
                self.pieces(at).for_each(|(last, of)| pieces.push(last, number(of)));
                parts.write(pieces.0);
            }
        }
        parts.finish()
    }

    /// Calls `tell` for addresses with different numbers in the two versions: the number here, then in `other`. Skips shared parts.
    pub(super) fn differences(&self, other: &Self, tell: &mut dyn FnMut(u32, u32)) {
        let (mut own, mut others) = (0, 0);
        while own < self.parts.len() && others < other.parts.len() {
            let aligned = self.top.last(own) == other.top.last(others);
            if aligned && Arc::ptr_eq(&self.parts[own], &other.parts[others]) {
                own += 1;
                others += 1;
                continue;
            }
            // Advances to the next point where parts of both versions end.
            let (mut mine, mut theirs) = (own + 1, others + 1);
            while self.top.last(mine - 1) != other.top.last(theirs - 1) {
                if self.top.last(mine - 1) < other.top.last(theirs - 1) { mine += 1 } else { theirs += 1 }
            }
            let mut a = (own..mine).flat_map(|part| self.pieces(part)).peekable();
            let mut b = (others..theirs).flat_map(|part| other.pieces(part)).peekable();
            while let (Some(&(a_last, a_number)), Some(&(b_last, b_number))) = (a.peek(), b.peek()) {
                if a_number != b_number {
                    tell(a_number, b_number);
                }
                if a_last <= b_last {
                    a.next();
                }
                if b_last <= a_last {
                    b.next();
                }
            }
            (own, others) = (mine, theirs);
        }
    }
}
