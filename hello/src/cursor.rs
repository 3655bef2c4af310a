//! Reads fields in network byte order from the start of a slice. A field that the slice does not hold completely is `None`.

/// The bytes that are not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    /// Reads `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// Reads an unsigned number of `size` bytes, at most 4.
    pub(crate) fn uint(&mut self, size: usize) -> Option<usize> {
        debug_assert!(size <= 4);
        Some(self.bytes(size)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Reads a vector of TLS: a length of `size` bytes, and that number of bytes.
    pub(crate) fn vector(&mut self, size: usize) -> Option<&'a [u8]> {
        let len = self.uint(size)?;
        self.bytes(len)
    }

    /// Reads a number of QUIC, with 1, 2, 4 or 8 bytes (RFC 9000 section 16).
    #[cfg(feature = "quic")]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let size = 1 << (self.0.first()? >> 6);
        let number = self.bytes(size)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Some(number & (u64::MAX >> (66 - 8 * size)))
    }

    /// Reads a number of QUIC and that number of bytes.
    #[cfg(feature = "quic")]
    pub(crate) fn varint_vector(&mut self) -> Option<&'a [u8]> {
        let len = self.varint()?;
        self.bytes(usize::try_from(len).ok()?)
    }
}
