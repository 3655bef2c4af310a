//! The names that answer a question: the name asked and its aliases (RFC 1034 section 3.6.2).

use super::labels::Labels;
use super::record::{CLASS_IN, TYPE_CNAME};
use super::{Fault, HEADER_LEN, Message};

/// Most names in a chain of CNAME records, including the name asked.
const CHAIN_MAX: usize = 64;
/// Most steps that a [`Chain`] takes before it gives up (see [`Fault::CostlyNames`]). An attacker's message could otherwise cost millions.
/// Enough for the 900 address records that fill a message if their names are uncompressed and have 20 labels.
const STEPS_MAX: usize = 1 << 16;

/// Words in a set of records. A message has room for at most 5,956 answers: the shortest record has 11 bytes.
const MARKS_MAX: usize = 94;

/// The names that the CNAME records of an answer section reach from the name asked. Names are offsets of their first labels.
pub(super) struct Chain<'a> {
    bytes: &'a [u8],
    names: [usize; CHAIN_MAX],
    count: usize,
    /// The name in the chain that owned the last address record. The next record usually has the same owner.
    latest: usize,
    /// Steps that the chain may still take.
    steps: usize,
}

impl<'a> Chain<'a> {
    /// Reads all CNAME records of class IN and follows them from the name asked.
    pub(super) fn read(message: &Message<'a>) -> Result<Self, Fault> {
        let mut chain = Self {
            bytes: message.bytes,
            names: [HEADER_LEN; CHAIN_MAX],
            count: 1,
            latest: HEADER_LEN,
            steps: STEPS_MAX,
        };
        let mut aliases = [None; CHAIN_MAX - 1];
        let mut free = aliases.iter_mut();
        let mut records = message.answers();
        while let Some(record) = records.next_record()? {
            if record.class == CLASS_IN && record.kind == TYPE_CNAME {
                let slot = free.next().ok_or(Fault::LongChain)?;
                *slot = Some((chain.check(record.owner)?, chain.check(record.target(message.bytes)?)?));
            }
        }
        chain.follow(&mut aliases)?;
        Ok(chain)
    }

    /// Appends the target of each alias whose owner is in the chain. Follows each alias once, so that a loop of aliases ends.
    fn follow(&mut self, aliases: &mut [Option<(usize, usize)>]) -> Result<(), Fault> {
        let mut followed = 0;
        while followed < self.count {
            let name = self.names[followed];
            for alias in aliases.iter_mut() {
                if let Some((owner, target)) = *alias
                    && self.is_same(owner, name)?
                {
                    *self.names.get_mut(self.count).ok_or(Fault::LongChain)? = target;
                    self.count += 1;
                    *alias = None;
                }
            }
            followed += 1;
        }
        Ok(())
    }

    /// Returns the address records that answer the question, by their order among the address records.
    pub(super) fn answers(mut self, message: &Message<'_>) -> Result<Marks, Fault> {
        let mut marks = Marks([0; MARKS_MAX]);
        let mut records = message.answers();
        let mut order = 0;
        while let Some(record) = records.next_address()? {
            if self.has(record.owner)? && message.asks(record.kind) {
                marks.add(order);
            }
            order += 1;
        }
        Ok(marks)
    }

    /// Returns whether the name at `start` is in the chain.
    fn has(&mut self, start: usize) -> Result<bool, Fault> {
        let name = self.check(start)?;
        if name == self.latest {
            return Ok(true);
        }
        for index in 0..self.count {
            if self.is_same(self.names[index], name)? {
                self.latest = name;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks the name at `start` to its root. Returns the offset of its first label, or of the root's byte if the name is the root.
    fn check(&mut self, start: usize) -> Result<usize, Fault> {
        let mut labels = Labels::at(self.bytes, start);
        labels.follow_pointers()?;
        let first = labels.position;
        // The latest name has been checked.
        while first != self.latest && labels.next_label()?.is_some() {}
        self.spend(labels.steps)?;
        Ok(first)
    }

    /// Compares two names without regard to the case of ASCII letters.
    fn is_same(&mut self, left: usize, right: usize) -> Result<bool, Fault> {
        if left == right {
            return Ok(true);
        }
        let (mut left, mut right) = (Labels::at(self.bytes, left), Labels::at(self.bytes, right));
        let is_same = loop {
            match (left.next_label()?, right.next_label()?) {
                (None, None) => break true,
                (Some(a), Some(b)) if a.eq_ignore_ascii_case(b) => {}
                _ => break false,
            }
        };
        self.spend(left.steps + right.steps)?;
        Ok(is_same)
    }

    fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps = self.steps.checked_sub(steps).ok_or(Fault::CostlyNames)?;
        Ok(())
    }
}

/// A set of records, as one bit for each.
pub(super) struct Marks([u64; MARKS_MAX]);

impl Marks {
    fn add(&mut self, order: u16) {
        if let Some(word) = self.0.get_mut(usize::from(order / 64)) {
            *word |= 1 << (order % 64);
        }
    }

    pub(super) fn has(&self, order: u16) -> bool {
        self.0.get(usize::from(order / 64)).is_some_and(|word| word & 1 << (order % 64) != 0)
    }
}
