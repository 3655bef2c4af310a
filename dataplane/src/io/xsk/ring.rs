//! The two ends of an AF_XDP ring. The producer writes entries and advances the producer index; the consumer reads them and advances
//! the consumer index. The [parent module](super) lists the ends of each ring.
//!
//! ```text
//!              consumer            producer
//!                 v                   v
//!   | free | free | entry | entry | entry | free | ...      indices only grow, modulo 2^32;
//!                 '---- the reader's ----'                  an entry's slot is index & (size - 1)
//! ```
//!
//! Each end publishes its index once per batch and caches the other end's index, so the shared cache lines are accessed once per burst. An
//! entry is written before the producer index is stored (release) and read after it is loaded (acquire). The same holds for the consumer
//! index and the reuse of an entry.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;

/// An entry of a ring.
///
/// # Safety
/// Every bit pattern must be a value, as the other end may write any bytes.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: three integers without padding.
unsafe impl Entry for libc::xdp_desc {}

/// A ring in shared memory.
#[derive(Debug)]
struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// Number of entries, a power of two.
    size: u32,
    /// Keeps the memory mapped to which the pointers refer.
    _memory: Arc<Mapping>,
}

// SAFETY: the pointers point into the mapping that it owns. The indices are atomics, and `Producer::new` and
// `Consumer::new` require that only the end whose turn it is accesses an entry.
unsafe impl<T: Entry> Send for Shared<T> {}

impl<T: Entry> Shared<T> {
    /// Creates a ring in mapped memory. Panics if the ring exceeds the memory or its size is no power of two: bugs of kernel or vswitch.
    fn new(memory: Arc<Mapping>, offsets: libc::xdp_ring_offset, size: u32) -> Self {
        assert!(size.is_power_of_two(), "the kernel rounds ring sizes up to powers of two");
        let index = |offset| Self::place::<AtomicU32>(&memory, offset, 1);
        let (producer, consumer, flags) = (index(offsets.producer), index(offsets.consumer), index(offsets.flags));
        let entries = Self::place::<T>(&memory, offsets.desc, size as usize);
        Self { producer, consumer, flags, entries, size, _memory: memory }
    }

    fn place<U>(memory: &Mapping, offset: u64, count: usize) -> NonNull<U> {
        let offset = usize::try_from(offset).expect("offsets within a mapping");
        let fits = memory.len().checked_sub(offset).is_some_and(|room| room / size_of::<U>() >= count);
        assert!(fits, "the ring lies outside of its memory");
        // SAFETY: within the mapping, as was just asked.
        let place = unsafe { memory.start().add(offset) }.cast::<U>();
        assert!(place.is_aligned(), "the ring is not aligned");
        place
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned and within the mapping that `self` keeps (`place`); only accessed as an atomic.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the size, and that many entries lie within the mapping (`place`).
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

/// The writing end of a ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Shared<T>,
    /// Index of the next entry to write. Ahead of the shared index until `publish`.
    next: u32,
    /// The consumer index when last loaded, plus the ring's size: `next` must stay below it.
    end: u32,
}

impl<T: Entry> Producer<T> {
    /// Creates the writing end of the ring at these offsets, which has `size` entries.
    ///
    /// # Safety
    /// Only this end may write entries or the producer index. The reader may only read entries that are published and not consumed.
    pub(super) unsafe fn new(memory: Arc<Mapping>, offsets: libc::xdp_ring_offset, size: u32) -> Self {
        let ring = Shared::new(memory, offsets, size);
        let next = ring.producer().load(Ordering::Relaxed);
        // As if the ring were full, so that the first `room` loads the consumer index.
        Self { ring, next, end: next }
    }

    /// Returns the number of free entries. Loads the shared index only if fewer than `wanted` are known to be free, so the result may be
    /// too low above `wanted`.
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.end.wrapping_sub(self.next) < wanted {
            let consumer = self.ring.consumer().load(Ordering::Acquire);
            self.end = consumer.wrapping_add(self.ring.size);
        }
        // A broken reader may report a consumer index ahead of the producer's; the room never exceeds the ring.
        self.end.wrapping_sub(self.next).min(self.ring.size)
    }

    /// Writes an entry, which the reader sees after `publish`.
    ///
    /// # Panics
    /// If the last [`room`](Self::room) is used up.
    pub(super) fn push(&mut self, entry: T) {
        assert!(self.end != self.next, "the ring is full");
        // SAFETY: the reader has consumed this entry (`end`) and does not read it before it is published again.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes the written entries to the reader.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns the number of entries that the reader has not consumed.
    pub(super) fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// Whether the kernel needs a system call to read this ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Shared<T>,
    /// Index of the next entry to read, equal to the shared index.
    next: u32,
    /// The producer index when last loaded: entries before it can be read.
    end: u32,
}

impl<T: Entry> Consumer<T> {
    /// Creates the reading end of the ring at these offsets, which has `size` entries.
    ///
    /// # Safety
    /// Only this end may write the consumer index. The writer may only write entries that are consumed or were never published.
    pub(super) unsafe fn new(memory: Arc<Mapping>, offsets: libc::xdp_ring_offset, size: u32) -> Self {
        let ring = Shared::new(memory, offsets, size);
        let next = ring.consumer().load(Ordering::Relaxed);
        Self { ring, next, end: next }
    }

    /// Returns the number of readable entries. Loads the shared index only if fewer than `wanted` are known.
    pub(super) fn available(&mut self, wanted: u32) -> u32 {
        if self.end.wrapping_sub(self.next) < wanted {
            self.end = self.ring.producer().load(Ordering::Acquire);
        }
        // A broken writer may be ahead by more than the size; the result never exceeds the ring.
        self.end.wrapping_sub(self.next).min(self.ring.size)
    }

    /// Reads the entry `ahead` entries after the next one.
    ///
    /// # Panics
    /// If the last [`available`](Self::available) does not include it.
    pub(super) fn peek(&self, ahead: u32) -> T {
        assert!(ahead < self.end.wrapping_sub(self.next), "the ring has no such entry");
        // SAFETY: published (`end` was loaded with acquire) and not consumed, so the writer does not write it.
        unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() }
    }

    /// Returns the first `count` entries to the writer.
    ///
    /// # Panics
    /// If fewer are available.
    pub(super) fn release(&mut self, count: u32) {
        assert!(count <= self.end.wrapping_sub(self.next), "more entries released than there are");
        self.next = self.next.wrapping_add(count);
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: libc::xdp_ring_offset = libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 };
    const SIZE: u32 = 4;

    /// Returns both ends of a ring over plain memory, with both indices at `start`.
    fn ring(start: u32) -> (Producer<u64>, Consumer<u64>, Arc<Mapping>) {
        let memory = Arc::new(Mapping::anonymous(4096).unwrap());
        let shared = Shared::<u64>::new(Arc::clone(&memory), OFFSETS, SIZE);
        shared.producer().store(start, Ordering::Relaxed);
        shared.consumer().store(start, Ordering::Relaxed);
        // SAFETY: one end each.
        let producer = unsafe { Producer::new(Arc::clone(&memory), OFFSETS, SIZE) };
        // SAFETY: as above.
        let consumer = unsafe { Consumer::new(Arc::clone(&memory), OFFSETS, SIZE) };
        (producer, consumer, memory)
    }

    #[test]
    fn what_is_written_is_seen_after_it_is_published_and_not_before() {
        let (mut producer, mut consumer, _memory) = ring(0);
        assert_eq!((producer.room(1), consumer.available(1)), (SIZE, 0));
        producer.push(7);
        producer.push(8);
        assert_eq!((producer.pending(), consumer.available(1)), (2, 0));
        producer.publish();
        assert_eq!((consumer.available(2), consumer.peek(0), consumer.peek(1)), (2, 7, 8));
    }

    #[test]
    fn a_full_ring_has_no_room_until_entries_are_released() {
        let (mut producer, mut consumer, _memory) = ring(0);
        assert_eq!(producer.room(9), SIZE);
        (0..4).for_each(|n| producer.push(n));
        producer.publish();
        assert_eq!((producer.room(1), producer.pending()), (0, 4));
        assert_eq!(consumer.available(9), 4);
        consumer.release(3);
        assert_eq!((producer.room(1), producer.pending()), (3, 1));
        assert_eq!((consumer.available(1), consumer.peek(0)), (1, 3));
    }

    #[test]
    fn the_indices_wrap_around_at_the_end_of_their_range() {
        let (mut producer, mut consumer, _memory) = ring(u32::MAX - 2);
        let mut expected = 0;
        for burst in [1, 3, 4, 2, 4, 4] {
            assert!(producer.room(burst) >= burst);
            (0..burst).for_each(|n| producer.push(u64::from(expected + n)));
            producer.publish();
            assert_eq!((consumer.available(burst), producer.pending()), (burst, burst));
            for ahead in 0..burst {
                assert_eq!(consumer.peek(ahead), u64::from(expected + ahead));
            }
            consumer.release(burst);
            expected += burst;
        }
        assert!(producer.next < 100, "it did wrap");
    }

    #[test]
    fn an_end_looks_at_the_others_index_only_when_it_has_to() {
        let (mut producer, mut consumer, _memory) = ring(0);
        assert_eq!(producer.room(1), 4);
        (0..2).for_each(|n| producer.push(n));
        producer.publish();
        assert_eq!(consumer.available(1), 2);
        consumer.release(2);
        // The producer knows of two free entries and has not seen that four are free.
        assert_eq!((producer.room(2), producer.room(3)), (2, 4));
        producer.push(2);
        producer.push(3);
        producer.publish();
        assert_eq!(consumer.available(1), 2);
        producer.push(4);
        producer.publish();
        assert_eq!((consumer.available(2), consumer.available(3)), (2, 3));
    }

    #[test]
    fn a_ring_is_taken_up_where_its_indices_are() {
        let (mut producer, mut consumer, memory) = ring(10);
        producer.room(2);
        producer.push(1);
        producer.push(2);
        producer.publish();
        consumer.available(1);
        consumer.release(1);
        drop((producer, consumer));
        // SAFETY: the first ends were dropped.
        let mut producer = unsafe { Producer::<u64>::new(Arc::clone(&memory), OFFSETS, SIZE) };
        // SAFETY: as above.
        let mut consumer = unsafe { Consumer::<u64>::new(memory, OFFSETS, SIZE) };
        assert_eq!((producer.room(1), producer.pending(), consumer.available(1), consumer.peek(0)), (3, 1, 1, 2));
    }

    #[test]
    fn the_wakeup_flag_is_what_the_reader_wrote() {
        let (producer, _consumer, _memory) = ring(0);
        assert!(!producer.needs_wakeup());
        // SAFETY: within the mapping, and no other end writes the flags.
        unsafe { producer.ring.flags.as_ref() }.store(libc::XDP_RING_NEED_WAKEUP | 0x10, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    #[test]
    fn a_reader_on_another_thread_gets_every_entry_in_order() {
        let (mut producer, mut consumer, _memory) = ring(u32::MAX - 100);
        let total = if cfg!(miri) { 300 } else { 100_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < total {
                    for _ in 0..producer.room(2).min(2) {
                        producer.push(next);
                        next += 1;
                    }
                    producer.publish();
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < total {
                let count = consumer.available(3);
                for ahead in 0..count {
                    assert_eq!(consumer.peek(ahead), expected);
                    expected += 1;
                }
                consumer.release(count);
                std::thread::yield_now();
            }
        });
    }

    #[test]
    #[should_panic(expected = "full")]
    fn writing_into_a_full_ring_is_refused() {
        let (mut producer, _consumer, _memory) = ring(0);
        producer.room(1);
        (0..5).for_each(|n| producer.push(n));
    }

    #[test]
    #[should_panic(expected = "no such entry")]
    fn reading_what_is_not_there_is_refused() {
        let (_producer, mut consumer, _memory) = ring(0);
        consumer.available(1);
        consumer.peek(0);
    }

    #[test]
    #[should_panic(expected = "outside of its memory")]
    fn a_ring_outside_of_its_memory_is_refused() {
        let memory = Arc::new(Mapping::anonymous(4096).unwrap());
        Shared::<libc::xdp_desc>::new(memory, OFFSETS, 256);
    }
}
