//! Packet memory: one region of equal chunks that all ports share.
//!
//! A [`Frame`] owns one chunk. The region creates exactly one frame per chunk; frames move from port to worker to port and cannot be
//! copied. Forwarding a packet moves 16 bytes, and safe code cannot create two owners of a chunk. The alternative, plain addresses as in
//! the kernel's rings, would make every access to packet bytes `unsafe`.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;

/// Bytes of one chunk. The kernel requires a power of two up to a page. With 2048, jumbo frames would need twice as many descriptors.
pub(super) const CHUNK: u16 = 4096;

/// Bytes that the kernel keeps free before a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: u16 = 256;

/// Maximum bytes of a packet in one chunk.
pub(super) const ROOM: u16 = CHUNK - HEADROOM;

/// Number of start offsets for packets that the vswitch writes, one cache line apart. With one offset, a burst's headers would be 4096
/// bytes apart and share one set of the L1 cache (8 or 12 lines), so every header access would miss. That cost 2 to 3 ns per packet in
/// `bulkhead-bench pipeline`. The kernel chooses the offset of packets that it receives.
const PLACES: u32 = 32;
const PLACE: u16 = 64;

/// The longest packet that fits at every start offset. Longer ones use the first offset.
const LONGEST_PLACED: usize = ROOM as usize - (PLACES as usize - 1) * PLACE as usize;

/// Maximum chunks of a region: 16 GiB, far above a node's need, so that `chunk * CHUNK` cannot overflow.
const MAX_CHUNKS: u32 = 1 << 22;

/// An error of allocating packet memory.
#[derive(Debug, thiserror::Error)]
pub enum UmemError {
    /// The number of chunks is out of range.
    #[error("{chunks} packet buffers are out of range; configure 1 to {MAX_CHUNKS}")]
    Chunks {
        /// The requested number of chunks.
        chunks: u32,
    },
    /// The kernel cannot map the memory.
    #[error("cannot map {bytes} bytes of packet memory: {source}\n  help: lower the number of packet buffers")]
    Map {
        /// The requested size in bytes.
        bytes: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// A region of packet memory.
pub struct Umem {
    memory: Mapping,
    chunks: u32,
    /// A number that no other region has. It detects frames of other regions.
    id: NonZeroU32,
}

/// The owner of one chunk, with the packet's position in it. Return it to a pool or port; dropping it loses the chunk.
///
/// It and its `Option` have two words, so they move in two registers. As five fields of 13 bytes it moved field by field over the stack,
/// half a dozen times per packet.
#[must_use = "a frame that is dropped is a chunk lost"]
pub struct Frame {
    /// The region's number in the upper half, never 0, and the chunk's number in the lower half.
    place: NonZeroU64,
    /// From the lowest bit: offset (16 bits), length (16 bits), [`has_more`](Frame::has_more), [`is_copy`](Frame::is_copy),
    /// [`mark`](Frame::mark) (30 bits).
    extent: u64,
}

impl Umem {
    /// Maximum bytes of a packet in one frame, 3840. Longer packets use several frames.
    pub const ROOM: usize = ROOM as usize;

    /// Maps a region and creates its empty frames.
    ///
    /// # Errors
    /// [`UmemError`] if the number of chunks is out of range or memory is short.
    pub fn new(chunks: u32) -> Result<(Arc<Self>, Vec<Frame>), UmemError> {
        /// The number of the next region. Numbers are never reused.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if chunks == 0 || chunks > MAX_CHUNKS {
            return Err(UmemError::Chunks { chunks });
        }
        let bytes = chunks as usize * usize::from(CHUNK);
        let id = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
        let id = id.ok().and_then(NonZeroU32::new).expect("fewer than 2^32 regions per process");
        let memory = Mapping::anonymous(bytes).map_err(|source| UmemError::Map { bytes, source })?;
        // Keeps the address translations of thousands of chunks in the TLB.
        memory.prefer_huge_pages();
        memory.keep_from_children();
        let umem = Self { memory, chunks, id };
        let frames = (0..chunks).map(|chunk| Frame::new(id, chunk, HEADROOM, 0, false));
        Ok((Arc::new(umem), frames.collect()))
    }

    /// Returns the bytes of the packet in this frame.
    ///
    /// # Panics
    /// If the frame belongs to another region.
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let at = self.check(frame);
        // SAFETY: `check` says that offset and length are within the region. The frame is the only one of its chunk
        // and is borrowed for as long as the slice lives, so nobody writes there.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().add(at), frame.len()) }
    }

    /// Returns the mutable bytes of the packet in this frame.
    ///
    /// # Panics
    /// If the frame belongs to another region.
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let at = self.check(frame);
        // SAFETY: as in `bytes`, and the frame is borrowed mutably, so nobody reads there either.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr().add(at), frame.len()) }
    }

    /// Returns the number of chunks.
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the mapped memory of the region.
    pub(super) const fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Returns the offset of a frame's bytes in the region. Panics if the frame belongs to another region.
    fn check(&self, frame: &Frame) -> usize {
        // `assert_eq!` would store both numbers in memory for its message, for every packet.
        assert!(frame.region() == self.id.get(), "a frame of another region");
        // Only `new` and `from_parts` create frames, with a chunk below `chunks` and offset + len within a chunk.
        frame.chunk() as usize * usize::from(CHUNK) + usize::from(frame.offset())
    }
}

impl Frame {
    const LEN: u32 = 16;
    const MORE: u64 = 1 << 32;
    const COPY: u64 = 1 << 33;
    const MARK: u32 = 34;
    /// The largest value of a [`mark`](Self::mark).
    pub(crate) const LAST_MARK: u32 = u32::MAX >> 2;

    #[inline]
    const fn new(region: NonZeroU32, chunk: u32, offset: u16, len: u16, more: bool) -> Self {
        let place = (region.get() as u64) << 32 | chunk as u64;
        let place = NonZeroU64::new(place).expect("the upper half is not 0");
        Self { place, extent: Self::extent(offset, len, more) }
    }

    const fn extent(offset: u16, len: u16, more: bool) -> u64 {
        offset as u64 | (len as u64) << Self::LEN | if more { Self::MORE } else { 0 }
    }

    /// Gives up the chunk. Returns its number, the packet's offset and length, and [`has_more`](Self::has_more).
    ///
    /// # Panics
    /// If the frame belongs to another region.
    #[expect(clippy::cast_possible_truncation, reason = "the length has 16 bits")]
    pub(super) fn into_parts(self, umem: &Umem) -> (u32, u16, u16, bool) {
        assert_eq!(self.region(), umem.id.get(), "a frame of another region");
        (self.chunk(), self.offset(), self.len() as u16, self.has_more())
    }

    /// Creates the frame of a chunk.
    ///
    /// # Safety
    /// The chunk must belong to the region, have no other frame and not be lent to the kernel. The packet must lie within it.
    pub(super) unsafe fn from_parts(umem: &Umem, chunk: u32, offset: u16, len: u16, more: bool) -> Self {
        debug_assert!(chunk < umem.chunks && u32::from(offset) + u32::from(len) <= u32::from(CHUNK));
        Self::new(umem.id, chunk, offset, len, more)
    }

    const fn region(&self) -> u32 {
        (self.place.get() >> 32) as u32
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    const fn chunk(&self) -> u32 {
        self.place.get() as u32
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lowest 16 bits")]
    const fn offset(&self) -> u16 {
        self.extent as u16
    }

    /// Returns the number of bytes of the packet in this frame.
    #[inline]
    pub const fn len(&self) -> usize {
        (self.extent >> Self::LEN) as usize & 0xffff
    }

    /// Whether the frame holds no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the packet continues in the next frame.
    #[inline]
    pub const fn has_more(&self) -> bool {
        self.extent & Self::MORE != 0
    }

    /// Sets whether the packet continues in the next frame.
    #[inline]
    pub const fn set_more(&mut self, more: bool) {
        self.extent = self.extent & !Self::MORE | if more { Self::MORE } else { 0 };
    }

    /// Whether the packet copies one that the flow cache has forwarded. The worker judges a copy and does not send it.
    #[inline]
    pub(crate) const fn is_copy(&self) -> bool {
        self.extent & Self::COPY != 0
    }

    /// Whether the frame holds a whole packet that is no copy.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.extent & (Self::MORE | Self::COPY) == 0
    }

    /// Marks the packet as a copy of one that the flow cache has forwarded.
    pub(crate) const fn set_copy(&mut self) {
        self.extent |= Self::COPY;
    }

    /// Prepares the frame for a new packet of `len` bytes with unspecified contents. The start offset varies between frames, so that the
    /// headers of a burst use different cache sets.
    ///
    /// # Panics
    /// If `len` is more than [`Umem::ROOM`].
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "asked just before")]
    pub const fn reset(&mut self, len: usize) {
        assert!(len <= Umem::ROOM, "the packet does not fit one frame");
        let beginning = HEADROOM + (self.chunk() % PLACES) as u16 * PLACE;
        let beginning = if len <= LONGEST_PLACED { beginning } else { HEADROOM };
        self.extent = Self::extent(beginning, len as u16, false);
    }

    /// Adds `count` bytes in front of the packet without moving it. Returns false, and changes nothing, if the chunk has no room.
    #[inline]
    pub(crate) const fn extend_front(&mut self, count: u16) -> bool {
        if self.offset() < count {
            return false;
        }
        self.extent = self.extent - count as u64 + ((count as u64) << Self::LEN);
        true
    }

    /// Removes the packet's first `count` bytes without moving the rest.
    ///
    /// # Panics
    /// If the packet has fewer bytes.
    #[inline]
    pub(crate) const fn shorten_front(&mut self, count: u16) {
        assert!(count as usize <= self.len(), "the packet is shorter");
        self.extent = self.extent + count as u64 - ((count as u64) << Self::LEN);
    }

    /// Cuts the packet to its first `len` bytes.
    ///
    /// # Panics
    /// If the packet has fewer bytes.
    pub const fn shorten(&mut self, len: usize) {
        assert!(len <= self.len(), "the packet is shorter");
        self.extent = self.extent & !(0xffff << Self::LEN) | (len as u64) << Self::LEN;
    }

    /// Returns the mark of a packet that a tracepoint selected, else `None`. Sending, returning or [resetting](Self::reset) the frame
    /// clears it.
    #[inline]
    pub(crate) const fn mark(&self) -> Option<NonZeroU32> {
        NonZeroU32::new((self.extent >> Self::MARK) as u32)
    }

    /// Returns the frame with the [`mark`](Self::mark) of its packet cleared.
    pub(crate) const fn unmarked(mut self) -> Self {
        self.extent &= (1 << Self::MARK) - 1;
        self
    }

    /// Sets the packet's mark.
    ///
    /// # Panics
    /// If the mark is larger than [`Frame::LAST_MARK`].
    pub(crate) const fn set_mark(&mut self, mark: NonZeroU32) {
        assert!(mark.get() <= Self::LAST_MARK, "a mark has 30 bits");
        self.extent = self.extent & ((1 << Self::MARK) - 1) | (mark.get() as u64) << Self::MARK;
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chunk, offset, len) = (self.chunk(), self.offset(), self.len());
        write!(f, "Frame({chunk}+{offset}, {len} bytes{})", if self.has_more() { ", more" } else { "" })
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem").field("chunks", &self.chunks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_has_bytes_of_its_own() {
        let (umem, mut frames) = Umem::new(3).unwrap();
        for (frame, fill) in frames.iter_mut().zip(1..) {
            frame.reset(Umem::ROOM);
            umem.bytes_mut(frame).fill(fill);
        }
        for (frame, fill) in frames.iter().zip(1..) {
            assert!(umem.bytes(frame).iter().all(|&byte| byte == fill));
        }
    }

    #[test]
    fn packets_begin_at_different_places_and_as_much_fits_as_ever() {
        let (umem, mut frames) = Umem::new(PLACES + 1).unwrap();
        let mut begins = |len: usize| -> Vec<u16> {
            let begin = |frame: &mut Frame| {
                frame.reset(len);
                assert_eq!(umem.bytes_mut(frame).len(), len);
                assert!(usize::from(frame.offset()) + len <= usize::from(CHUNK));
                frame.offset()
            };
            frames.iter_mut().map(begin).collect()
        };
        for len in [0, 64, 1514, LONGEST_PLACED] {
            let places = begins(len);
            assert!(places[..32].is_sorted_by(|a, b| a < b), "{places:?}");
            assert_eq!(places[0], places[32]);
        }
        assert_eq!(begins(LONGEST_PLACED + 1), [HEADROOM; 33]);
        assert_eq!(begins(Umem::ROOM), [HEADROOM; 33]);
    }

    #[test]
    fn a_packet_that_is_shortened_stays_where_it_is() {
        let (umem, mut frames) = Umem::new(7).unwrap();
        for (mut frame, long) in frames.drain(..).zip([100, 1514, Umem::ROOM].into_iter().cycle()) {
            frame.reset(long);
            frame.set_more(true);
            umem.bytes_mut(&mut frame)[..5].copy_from_slice(b"hello");
            frame.shorten(5);
            assert_eq!((umem.bytes(&frame), frame.has_more()), (&b"hello"[..], true));
        }
    }

    #[test]
    fn a_mark_stays_until_the_frame_is_for_another_packet() {
        let (_umem, mut frames) = Umem::new(1).unwrap();
        let mut frame = frames.pop().unwrap();
        frame.reset(100);
        assert_eq!(frame.mark(), None);
        for mark in [1, 0x1_0000, Frame::LAST_MARK] {
            let mark = NonZeroU32::new(mark).unwrap();
            frame.reset(100);
            let offset = frame.offset();
            frame.set_mark(NonZeroU32::MIN);
            frame.set_mark(mark);
            frame.set_more(true);
            assert!(frame.extend_front(4));
            assert_eq!((frame.offset(), frame.len(), frame.has_more()), (offset - 4, 104, true));
            frame.shorten_front(10);
            assert_eq!((frame.offset(), frame.len()), (offset + 6, 94));
            frame.shorten(50);
            frame.set_more(false);
            assert_eq!((frame.offset(), frame.len(), frame.has_more()), (offset + 6, 50, false));
            assert_eq!(frame.mark(), Some(mark));
            frame = frame.unmarked();
            assert_eq!((frame.mark(), frame.offset(), frame.len()), (None, offset + 6, 50));
            frame.set_mark(mark);
        }
        frame.reset(60);
        assert_eq!(frame.mark(), None);
    }

    #[test]
    #[should_panic(expected = "another region")]
    fn a_frame_of_another_region_is_refused() {
        let (umem, _frames) = Umem::new(1).unwrap();
        let (_other, frames) = Umem::new(1).unwrap();
        umem.bytes(&frames[0]);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_packet_longer_than_a_chunk_is_refused() {
        let (_umem, mut frames) = Umem::new(1).unwrap();
        frames[0].reset(Umem::ROOM + 1);
    }

    #[test]
    fn a_region_without_chunks_or_with_too_many_is_an_error() {
        assert!(matches!(Umem::new(0), Err(UmemError::Chunks { .. })));
        assert!(matches!(Umem::new(MAX_CHUNKS + 1), Err(UmemError::Chunks { .. })));
    }
}
