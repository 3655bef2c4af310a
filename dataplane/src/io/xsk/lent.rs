//! Records the chunks that a socket has lent to the kernel.

use std::sync::Arc;

use super::umem::{CHUNK, Frame, Umem};

/// The chunks lent to one socket's kernel side: one bit per chunk of the region.
///
/// The kernel returns chunks by number. Without the bit, a number returned twice would create two frames of one chunk. A check costs about
/// a nanosecond, and the bits show which chunks to take back at the end; a mere count would not.
#[derive(Debug)]
pub(super) struct Lent {
    umem: Arc<Umem>,
    bits: Box<[u64]>,
}

impl Lent {
    pub(super) fn new(umem: Arc<Umem>) -> Self {
        let bits = vec![0; umem.chunks().div_ceil(u64::BITS) as usize].into();
        Self { umem, bits }
    }

    /// Lends a frame's chunk and returns its descriptor for a ring.
    ///
    /// # Panics
    /// If the frame belongs to another region.
    pub(super) fn lend(&mut self, frame: Frame) -> libc::xdp_desc {
        let (chunk, offset, len, more) = frame.into_parts(&self.umem);
        self.bits[(chunk / u64::BITS) as usize] |= 1 << (chunk % u64::BITS);
        let options = if more { libc::XDP_PKT_CONTD } else { 0 };
        libc::xdp_desc { addr: u64::from(chunk) * u64::from(CHUNK) + u64::from(offset), len: u32::from(len), options }
    }

    /// Takes back a descriptor's chunk as a frame with the described packet. `None`, without taking it back, if the chunk is not lent or
    /// the packet exceeds it.
    pub(super) fn take(&mut self, descriptor: libc::xdp_desc) -> Option<Frame> {
        // The address points to the packet, anywhere in the chunk.
        let chunk = u32::try_from(descriptor.addr / u64::from(CHUNK)).ok()?;
        let offset = u16::try_from(descriptor.addr % u64::from(CHUNK)).ok()?;
        let len = u16::try_from(descriptor.len).ok()?;
        if u32::from(offset) + u32::from(len) > u32::from(CHUNK) {
            return None;
        }
        let (word, bit) = (self.bits.get_mut((chunk / u64::BITS) as usize)?, 1 << (chunk % u64::BITS));
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        let more = descriptor.options & libc::XDP_PKT_CONTD != 0;
        // SAFETY: bits are only set by `lend`, which has consumed the one frame of this chunk, and this one was set
        // until now. The kernel has just returned the chunk in a ring and no longer uses it. Offset and length were checked.
        Some(unsafe { Frame::from_parts(&self.umem, chunk, offset, len, more) })
    }

    /// Takes all lent chunks back as empty frames.
    ///
    /// # Safety
    /// The socket must be closed, so that the kernel no longer writes to the chunks.
    pub(super) unsafe fn take_all(&mut self) -> impl Iterator<Item = Frame> {
        let umem = &*self.umem;
        self.bits.iter_mut().zip(0u32..).flat_map(move |(word, at)| {
            let bits = std::mem::take(word);
            (0..u64::BITS).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| {
                // SAFETY: as in `take`, and the caller says that the kernel has stopped.
                unsafe { Frame::from_parts(umem, at * u64::BITS + bit, 0, 0, false) }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_back_once_with_the_packet_that_the_descriptor_says() {
        let (umem, mut frames) = Umem::new(70).unwrap();
        let mut lent = Lent::new(Arc::clone(&umem));
        let mut frame = frames.pop().unwrap();
        frame.reset(5);
        umem.bytes_mut(&mut frame).copy_from_slice(b"hello");
        frame.set_more(true);
        let descriptor = lent.lend(frame);
        assert_eq!((descriptor.addr / 4096, descriptor.len, descriptor.options), (69, 5, 1));
        let told = libc::xdp_desc { addr: descriptor.addr + 1, len: 3, options: 0 };
        let back = lent.take(told).unwrap();
        assert_eq!((umem.bytes(&back), back.has_more()), (&b"ell"[..], false));
        assert!(lent.take(told).is_none(), "twice");
    }

    #[test]
    fn what_was_never_lent_or_cannot_be_does_not_become_a_frame() {
        let (umem, mut frames) = Umem::new(2).unwrap();
        let mut lent = Lent::new(umem);
        let descriptor = lent.lend(frames.pop().unwrap());
        for (addr, len) in [(0, 1), (128 * 4096, 1), (u64::MAX, 1), (descriptor.addr, 3841), (descriptor.addr, 70_000)]
        {
            assert!(lent.take(libc::xdp_desc { addr, len, options: 0 }).is_none(), "{addr} {len}");
        }
        assert!(lent.take(libc::xdp_desc { len: 3840, ..descriptor }).is_some());
    }

    #[test]
    fn everything_that_is_lent_can_be_taken_back_at_the_end() {
        let (umem, mut frames) = Umem::new(200).unwrap();
        let mut lent = Lent::new(umem);
        let kept = frames.split_off(150);
        frames.drain(..).for_each(|frame| {
            lent.lend(frame);
        });
        // SAFETY: no kernel uses the frames in this test.
        assert_eq!(unsafe { lent.take_all() }.count(), 150);
        // SAFETY: as above.
        assert_eq!(unsafe { lent.take_all() }.count(), 0);
        assert_eq!(kept.len(), 50);
    }
}
