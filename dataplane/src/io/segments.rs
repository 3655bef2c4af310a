//! Converts packets between bytes and runs of frames, for ports without kernel rings. All but the last frame of a packet have
//! [`Frame::has_more`] set.

use super::{Frame, FramePool, Umem};

/// Returns the number of frames at the front of a queue that form whole packets, at most `room`.
#[inline]
pub(super) fn whole(frames: &[Frame], room: usize) -> usize {
    // Searches from the end, as the last frame nearly always ends a packet.
    let frames = &frames[..room.min(frames.len())];
    frames.iter().rposition(|frame| !frame.has_more()).map_or(0, |last| last + 1)
}

/// Returns the number of frames of the first packet. `None` if its last frame is missing.
pub(super) fn first<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> Option<usize> {
    frames.into_iter().position(|frame| !frame.has_more()).map(|last| last + 1)
}

/// Returns the number of frames that a packet of `len` bytes needs, at least 1.
pub(super) fn needed(len: usize) -> usize {
    len.div_ceil(Umem::ROOM).max(1)
}

/// Appends a packet of these bytes to `frames`, using frames of `empty`.
///
/// # Panics
/// If `empty` has fewer frames than [`needed`].
pub(super) fn fill(umem: &Umem, bytes: &[u8], empty: impl IntoIterator<Item = Frame>, frames: &mut Vec<Frame>) {
    let mut empty = empty.into_iter();
    for at in 0..needed(bytes.len()) {
        let part = &bytes[at * Umem::ROOM..bytes.len().min((at + 1) * Umem::ROOM)];
        let mut frame = empty.next().expect("the caller has counted them");
        frame.reset(part.len());
        frame.set_more(at + 1 < needed(bytes.len()));
        umem.bytes_mut(&mut frame).copy_from_slice(part);
        frames.push(frame);
    }
}

/// Appends a packet of these bytes to `frames`. Returns false, without taking a frame, if the pool has too few.
#[must_use]
pub(super) fn scatter(pool: &mut FramePool, bytes: &[u8], frames: &mut Vec<Frame>) -> bool {
    let needed = needed(bytes.len());
    let empty: Vec<Frame> = std::iter::from_fn(|| pool.take()).take(needed).collect();
    if empty.len() < needed {
        pool.give_all(empty);
        return false;
    }
    fill(pool.umem(), bytes, empty, frames);
    true
}

/// Appends the bytes of one packet to `bytes`.
pub(super) fn gather(umem: &Umem, frames: &[Frame], bytes: &mut Vec<u8>) {
    for frame in frames {
        bytes.extend_from_slice(umem.bytes(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_any_length_is_the_same_after_scatter_and_gather() {
        let (umem, frames) = Umem::new(4).unwrap();
        let mut pool = FramePool::new(umem.clone(), frames);
        for len in [0, 1, Umem::ROOM - 1, Umem::ROOM, Umem::ROOM + 1, 4 * Umem::ROOM] {
            let packet: Vec<u8> = (0..=250).cycle().take(len).collect();
            let (mut frames, mut bytes) = (Vec::new(), Vec::new());
            assert!(scatter(&mut pool, &packet, &mut frames));
            assert_eq!(first(&frames), Some(frames.len()));
            assert_eq!(frames.len(), len.div_ceil(Umem::ROOM).max(1));
            gather(&umem, &frames, &mut bytes);
            assert!(bytes == packet, "{len} bytes");
            pool.give_all(frames);
        }
    }

    #[test]
    fn a_packet_that_the_pool_cannot_hold_takes_nothing() {
        let (umem, frames) = Umem::new(2).unwrap();
        let mut pool = FramePool::new(umem, frames);
        let mut frames = Vec::new();
        assert!(!scatter(&mut pool, &[0; 2 * Umem::ROOM + 1], &mut frames));
        assert!(frames.is_empty());
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn only_whole_packets_are_counted() {
        let (umem, frames) = Umem::new(8).unwrap();
        let mut pool = FramePool::new(umem, frames);
        let mut frames = Vec::new();
        for len in [10, 2 * Umem::ROOM, 10] {
            assert!(scatter(&mut pool, &vec![0; len], &mut frames));
        }
        let counted: Vec<usize> = (0..6).map(|room| whole(&frames, room)).collect();
        assert_eq!(counted, [0, 1, 1, 3, 4, 4]);
        let torn = &frames[1..2];
        assert_eq!((first(torn), whole(torn, 9)), (None, 0));
        pool.give_all(frames);
    }
}
