//! The start of a stream whose bytes arrive in any order, repeatedly and in pieces that overlap.

use std::iter::once;
use std::ops::Range;

/// Maximum number of pieces of a hello with gaps between them. Chrome cuts its hello into about ten pieces and shuffles them.
pub const MAX_PIECES: usize = 32;

/// The reason why bytes are not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A byte is there already with another value.
    Differs,
    /// More than [`MAX_PIECES`] pieces.
    TooMany,
}

/// The known bytes of a stream's first [`MAX_HELLO`](crate::MAX_HELLO).
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    /// The bytes from the stream's start. Those outside `known` are 0.
    bytes: Vec<u8>,
    /// The positions of known bytes: sorted, not empty, with gaps between them.
    known: Vec<Range<usize>>,
}

impl Pieces {
    /// Adds bytes that start at `offset`. Ignores those from position `limit` on, at most [`MAX_HELLO`](crate::MAX_HELLO).
    pub(crate) fn add(&mut self, offset: u64, data: &[u8], limit: usize) -> Result<(), Refusal> {
        let Some(start) = usize::try_from(offset).ok().filter(|start| *start < limit) else { return Ok(()) };
        let data = data.get(..limit - start).unwrap_or(data);
        if data.is_empty() {
            return Ok(());
        }
        let end = start + data.len();
        // Those that overlap or touch the new bytes.
        let first = self.known.partition_point(|known| known.end < start);
        let last = self.known.partition_point(|known| known.start <= end);
        let near = &self.known[first..last];
        for known in near {
            let both = known.start.max(start)..known.end.min(end);
            if both.start < both.end && self.bytes[both.clone()] != data[both.start - start..both.end - start] {
                return Err(Refusal::Differs);
            }
        }
        if near.is_empty() && self.known.len() == MAX_PIECES {
            return Err(Refusal::TooMany);
        }
        let from = near.first().map_or(start, |known| known.start.min(start));
        let to = near.last().map_or(end, |known| known.end.max(end));
        self.known.splice(first..last, once(from..to));
        if self.bytes.len() < end {
            // A power of two, and so at most `MAX_HELLO`: many small pieces cause few allocations.
            self.bytes.reserve_exact(end.next_power_of_two() - self.bytes.len());
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(data);
        Ok(())
    }

    /// Returns the bytes before the first gap.
    pub(crate) fn prefix(&self) -> &[u8] {
        match self.known.first() {
            Some(first) if first.start == 0 => &self.bytes[..first.end],
            _ => &[],
        }
    }

    /// Returns the number of bytes on the heap.
    pub(crate) const fn memory(&self) -> usize {
        self.bytes.capacity() + self.known.capacity() * size_of::<Range<usize>>()
    }

    /// Forgets the bytes from position `end` on. Those before it must be known.
    pub(crate) fn truncate(&mut self, end: usize) {
        debug_assert!(end <= self.prefix().len());
        self.bytes.truncate(end);
        self.bytes.shrink_to_fit();
        self.known = once(0..end).collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MAX_HELLO;

    proptest! {
        #[test]
        fn pieces_agree_with_a_map_of_bytes(
            adds in prop::collection::vec((0_u64..80, prop::collection::vec(0_u8..2, 0..12), 60_usize..=70), 0..60),
        ) {
            let (mut pieces, mut model) = (Pieces::default(), std::collections::BTreeMap::new());
            for (offset, data, limit) in adds {
                let new: Vec<(usize, u8)> = (usize::try_from(offset).unwrap()..limit).zip(data.iter().copied()).collect();
                let differs = new.iter().any(|(at, byte)| model.get(at).is_some_and(|known| known != byte));
                let result = pieces.add(offset, &data, limit);
                prop_assert_eq!(result, if differs { Err(Refusal::Differs) } else { Ok(()) });
                if !differs {
                    model.extend(new);
                }
                let prefix: Vec<u8> = (0..).map_while(|at| model.get(&at).copied()).collect();
                prop_assert_eq!(pieces.prefix(), prefix);
            }
        }
    }

    #[test]
    fn memory_is_bounded_whatever_arrives() {
        let mut pieces = Pieces::default();
        for at in 0..MAX_PIECES as u64 {
            assert_eq!(pieces.add(3 * at, &[7], MAX_HELLO), Ok(()));
        }
        assert_eq!(pieces.add(3 * MAX_PIECES as u64, &[7], MAX_HELLO), Err(Refusal::TooMany));
        // A piece that touches another one needs no room.
        assert_eq!(pieces.add(1, &[7], MAX_HELLO), Ok(()));
        for (offset, len) in [(0, 9000), (MAX_HELLO as u64 - 1, 2), (9000, 50_000), (u64::MAX, 3), (40_000, 9)] {
            assert_eq!(pieces.add(offset, &vec![7; len], MAX_HELLO), Ok(()));
            assert!(pieces.memory() <= MAX_HELLO + 1024, "{} bytes", pieces.memory());
        }
        assert_eq!(pieces.prefix().len(), MAX_HELLO);
        pieces.truncate(500);
        assert!(pieces.prefix() == [7; 500] && pieces.memory() < 600);
    }
}
