//! Random messages from a fixed seed, so that a failure repeats.

use super::encoder::{A, AAAA, ANY, CNAME, Encoder, IN};
use crate::names::numbers::Numbers;

pub(super) struct Random(Numbers);

impl Random {
    pub(super) const fn new() -> Self {
        Self(Numbers(0))
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// Returns a name that other random names often repeat.
    fn name(&mut self) -> &'static str {
        self.of(&["a", "A", "b", "c.a", "C.a", "b.a", "a.b.c", "c.a.b", "www.example", "WWW.example", ""])
    }

    fn word(&mut self, usual: u16) -> u16 {
        if self.one_in(12) { self.of(&[0, 3, 16, 39, 41, 254]) } else { usual }
    }

    /// Returns a message that an encoder could have written.
    pub(super) fn message(&mut self) -> Encoder {
        let (name, kind, class) = (self.name(), self.of(&[A, A, AAAA, ANY]), self.word(IN));
        let kind = self.word(kind);
        let compress = !self.one_in(4);
        let mut encoder = Encoder::new(name, kind, class, compress);
        for _ in 0..self.below(8) {
            let (owner, kind, class) = (self.name(), self.of(&[A, A, AAAA, CNAME, CNAME]), self.word(IN));
            if kind == CNAME {
                encoder.name(owner);
                encoder = encoder.alias(class, self.name());
                continue;
            }
            let len = if self.one_in(8) { self.below(20) } else { usize::from(if kind == A { 4u8 } else { 16 }) };
            let data: Vec<u8> = (0..len).map(|_| self.byte()).collect();
            let ttl = if self.one_in(4) { u32::MAX } else { 300 };
            encoder = encoder.record(owner, self.word(kind), class, ttl, &data);
        }
        encoder.bytes[7] += u8::from(self.one_in(12));
        if self.one_in(3) { encoder.truncated() } else { encoder }
    }

    /// Changes up to three bytes of a message, and sometimes cuts its end off.
    pub(super) fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            bytes[at] = if self.one_in(2) { self.byte() } else { self.of(&[0, 1, 2, 12, 63, 64, 0xc0, 0xff]) };
        }
        if self.one_in(4) {
            bytes.truncate(self.below(bytes.len()) + 1);
        }
    }
}
