//! A record that up to 64 holders have learned an address under a name, each until an end of its own. It has 52 bytes.

use super::NameId;
use super::validity::Window;

/// Number of bit planes of a record. Five represent 31 different ends. Answers of one minute, with TTLs of 30 to 300 seconds and a grace of
/// 30 seconds, end within 400 seconds. The shortest validity allows steps of 16 seconds, so 25 ends suffice.
const PLANES: usize = 5;

/// Number of different ends in one record. Code 0 means that the holder does not hold the address.
const CODES: u32 = (1 << PLANES) - 1;

/// Identifies the records of a name and a chunk of holders within an address. Orders the records of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) id: NameId,
    /// The number of the chunk: a seat divided by 64.
    pub(super) chunk: u16,
}

/// One bit for each of the 64 holders of a chunk. In halves, because an aligned `u64` would pad each record by 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lanes([u32; 2]);

impl Lanes {
    #[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
    pub(super) const fn new(bits: u64) -> Self {
        Self([bits as u32, (bits >> 32) as u32])
    }

    pub(super) const fn bits(self) -> u64 {
        (self.0[1] as u64) << 32 | self.0[0] as u64
    }
}

/// A record in which each holder has an end of its own: a code of five bits, of which each plane stores one (bit slicing). Operations on
/// all 64 holders take a few instructions per plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sliced {
    planes: [Lanes; PLANES],
    id: NameId,
    /// The end of code `c` is `base + c`, in units of `1 << shift` seconds since 1970.
    base: u32,
    chunk: u16,
    shift: u8,
}

// The memory goal depends on it.
const _: () = assert!(size_of::<Sliced>() == 52);

impl Sliced {
    /// Creates a record from ends in seconds since 1970, each with the bitmap of its holders. `None` if no 31 evenly spaced ends include
    /// all of them, or if the list is empty.
    pub(super) fn new(key: Key, ends: &[(u32, u64)]) -> Option<Self> {
        let shift = ends.iter().map(|&(end, _)| end.trailing_zeros()).min()?.min(31);
        let steps = || ends.iter().map(|&(end, _)| end >> shift);
        let base = steps().min()?.checked_sub(1)?;
        if steps().max()? - base > CODES {
            return None;
        }
        let shift = u8::try_from(shift).ok()?;
        let mut record = Self { planes: [Lanes::default(); PLANES], id: key.id, base, chunk: key.chunk, shift };
        for &(end, lanes) in ends {
            record.write(lanes, (end >> shift) - base);
        }
        Some(record)
    }

    pub(super) const fn key(&self) -> Key {
        Key { id: self.id, chunk: self.chunk }
    }

    /// Returns the bitmap of the record's holders.
    pub(super) fn holders(&self) -> u64 {
        self.planes.iter().fold(0, |all, plane| all | plane.bits())
    }

    /// Returns a holder's end in seconds since 1970. `None` if the holder is not in the record.
    pub(super) fn end(&self, lane: u32) -> Option<u32> {
        let bit = |plane: usize| u32::from(self.planes[plane].bits() >> lane & 1 == 1) << plane;
        match (0..PLANES).fold(0, |code, plane| code | bit(plane)) {
            0 => None,
            code => Some(self.end_of(code)),
        }
    }

    /// Returns the bitmap of the holders whose end is at or before `now`, in seconds since 1970.
    pub(super) fn ended(&self, now: u32) -> u64 {
        let code = (now >> self.shift).saturating_sub(self.base).min(CODES);
        // Compares all codes with `code` at once, from the highest bit.
        let (mut less, mut equal) = (0, u64::MAX);
        for (at, plane) in self.planes.iter().enumerate().rev() {
            let bits = plane.bits();
            if code >> at & 1 == 1 {
                less |= equal & !bits;
                equal &= bits;
            } else {
                equal &= !bits;
            }
        }
        (less | equal) & self.holders()
    }

    /// Removes the holders whose bits are set in `lanes`.
    pub(super) fn remove(&mut self, lanes: u64) {
        self.write(lanes, 0);
    }

    /// Adds a holder with the first end in the window that the record can represent, or changes the holder's end to this. Returns false and
    /// changes nothing if there is none.
    pub(super) fn put(&mut self, lane: u32, window: Window) -> bool {
        let step = (window.first.saturating_sub(1) >> self.shift) + 1;
        let code = step.saturating_sub(self.base).max(1);
        let is_representable = code <= CODES && window.contains(self.end_of(code));
        if is_representable {
            self.write(1 << lane, code);
        }
        is_representable
    }

    /// Adds a holder with this end in seconds since 1970, and changes the steps between the record's ends so that they include it. Returns
    /// false and changes nothing if no steps suit all holders.
    pub(super) fn respace(&mut self, lane: u32, end: u32) -> bool {
        let mut ends = [(0, 0); CODES as usize + 1];
        let mut len = 0;
        let present = (1..=CODES).map(|code| (self.end_of(code), self.with(code))).filter(|&(_, lanes)| lanes != 0);
        for (place, pair) in ends.iter_mut().zip(present.chain([(end, 1 << lane)])) {
            *place = pair;
            len += 1;
        }
        let record = Self::new(self.key(), &ends[..len]);
        if let Some(record) = record {
            *self = record;
        }
        record.is_some()
    }

    /// Calls `each` with every end that the record can represent, in seconds since 1970, and the bitmap of its holders, which may be 0.
    pub(super) fn for_each(&self, mut each: impl FnMut(u32, u64)) {
        (1..=CODES).map(|code| (self.end_of(code), self.with(code))).for_each(|(end, lanes)| each(end, lanes));
    }

    /// Returns the end of a code in seconds since 1970. `u32::MAX` if it is later than 2106.
    fn end_of(&self, code: u32) -> u32 {
        let end = (u64::from(self.base) + u64::from(code)) << self.shift;
        u32::try_from(end).unwrap_or(u32::MAX)
    }

    /// Returns the bitmap of the holders with this code.
    fn with(&self, code: u32) -> u64 {
        let planes = self.planes.iter().enumerate();
        planes.fold(u64::MAX, |all, (at, plane)| all & if code >> at & 1 == 1 { plane.bits() } else { !plane.bits() })
    }

    /// Sets the code of the holders whose bits are set in `lanes`. Code 0 removes them.
    fn write(&mut self, lanes: u64, code: u32) {
        for (at, plane) in self.planes.iter_mut().enumerate() {
            let bits = if code >> at & 1 == 1 { lanes } else { 0 };
            *plane = Lanes::new(plane.bits() & !lanes | bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const KEY: Key = Key { id: NameId(7), chunk: 3 };

    #[test]
    fn each_holder_has_the_end_that_it_was_given() {
        let steps = proptest::collection::vec((0u32..64, 0u32..500, 0u32..6), 1..200);
        let [put, respaced, refused] = [const { Cell::new(0) }; 3];
        proptest!(|(steps in steps)| {
            let mut ends = [None; 64];
            let mut record = Sliced::new(KEY, &[(1024, 1 << 9)]).unwrap();
            ends[9] = Some(1024);
            for (lane, number, kind) in steps {
                let window = Window { first: 1000 + number, last: 1000 + number + (1 << kind) - 1 };
                record.remove(1 << lane);
                ends[lane as usize] = None;
                if record.put(lane, window) {
                    let end = record.end(lane);
                    prop_assert!(end.is_some_and(|end| window.contains(end)));
                    ends[lane as usize] = end;
                    put.set(put.get() + 1);
                } else if record.respace(lane, window.roundest()) {
                    ends[lane as usize] = Some(window.roundest());
                    respaced.set(respaced.get() + 1);
                } else {
                    refused.set(refused.get() + 1);
                }
                let now = 990 + number;
                for (lane, end) in (0..).zip(ends) {
                    prop_assert_eq!(record.end(lane), end);
                    prop_assert_eq!(record.ended(now) >> lane & 1 == 1, end.is_some_and(|end| end <= now));
                    prop_assert_eq!(record.holders() >> lane & 1 == 1, end.is_some());
                }
                prop_assert_eq!(record.key(), KEY);
            }
        });
        assert!([put, respaced, refused].iter().all(|count| count.get() > 100));
    }

    #[test]
    fn a_record_has_31_ends_with_steps_of_a_power_of_two() {
        let ends: Vec<(u32, u64)> = (0..31).map(|at| (6400 + at * 64, 1 << at)).collect();
        let mut record = Sliced::new(KEY, &ends).unwrap();
        assert!(!record.respace(40, 6400 + 31 * 64), "a 32nd end");
        assert!(!record.respace(40, 6400 + 32), "an end between two");
        assert!(record.respace(40, 6400 + 64));
        record.remove(1);
        assert!(record.respace(41, 6400 + 31 * 64), "the first end is free");
        assert!(Sliced::new(KEY, &[]).is_none());
        assert!(Sliced::new(KEY, &[(u32::MAX, 1), (1 << 31, 2)]).is_none());
    }
}
