//! Pools of empty frames.
//!
//! Each worker has a pool, so taking and returning a frame is a `Vec`'s `pop` and `push`. Frames leave through ports of other
//! workers, so pools drift apart; a shared queue balances them in batches.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Frame, Umem};

/// Frames moved between a pool and the shared queue at once: one burst, so that a worker pays for the queue's atomics at most
/// once per burst.
const BATCH: usize = 256;

/// A worker's empty frames.
#[derive(Debug)]
pub struct FramePool {
    umem: Arc<Umem>,
    own: Vec<Frame>,
    shared: Arc<ArrayQueue<Frame>>,
}

impl FramePool {
    /// Frames reserved for the vswitch's own packets, such as ARP replies. Ports cannot take them for receiving.
    pub const RESERVE: usize = 64;

    /// Creates the first pool of a region, with all its frames in the shared queue.
    ///
    /// # Panics
    /// If there are more frames than the region has chunks.
    pub fn new(umem: Arc<Umem>, frames: Vec<Frame>) -> Self {
        let shared = ArrayQueue::new(umem.chunks() as usize);
        for frame in frames {
            shared.push(frame).expect("a region has one frame per chunk");
        }
        Self { umem, own: Vec::with_capacity(3 * BATCH), shared: Arc::new(shared) }
    }

    /// Creates another worker's pool with the same shared queue.
    pub fn sibling(&self) -> Self {
        let (umem, shared) = (Arc::clone(&self.umem), Arc::clone(&self.shared));
        Self { umem, own: Vec::with_capacity(3 * BATCH), shared }
    }

    /// Returns the packet memory to which the frames belong.
    pub const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Takes an empty frame. `None` if all frames are in use.
    pub fn take(&mut self) -> Option<Frame> {
        if self.own.is_empty() {
            let shared = &self.shared;
            self.own.extend(std::iter::from_fn(|| shared.pop()).take(BATCH));
        }
        self.own.pop()
    }

    /// Takes an empty frame for receiving. `None` if at most [`FramePool::RESERVE`] frames are left.
    pub fn take_spare(&mut self) -> Option<Frame> {
        if self.own.len() <= Self::RESERVE && self.available() <= Self::RESERVE {
            return None;
        }
        self.take()
    }

    /// Returns a frame to the pool and discards its packet.
    pub fn give(&mut self, mut frame: Frame) {
        frame.reset(0);
        self.own.push(frame);
        if self.own.len() >= 3 * BATCH {
            self.share(2 * BATCH);
        }
    }

    /// Returns several frames to the pool.
    pub fn give_all(&mut self, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            self.give(frame);
        }
    }

    /// Returns the number of frames in this pool and in the shared queue. Approximate while other workers take or return frames.
    pub fn available(&self) -> usize {
        self.own.len() + self.shared.len()
    }

    fn share(&mut self, keep: usize) {
        while self.own.len() > keep {
            let Some(frame) = self.own.pop() else { return };
            self.shared.push(frame).expect("a region has one frame per chunk");
        }
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        self.share(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_worker_gives_back_another_can_take() {
        let (umem, frames) = Umem::new(1000).unwrap();
        let mut one = FramePool::new(umem, frames);
        let mut other = one.sibling();
        let taken: Vec<Frame> = std::iter::from_fn(|| one.take()).collect();
        assert_eq!((taken.len(), one.available()), (1000, 0));
        assert!(other.take().is_none());
        other.give_all(taken);
        // `other` keeps fewer frames than three batches.
        assert!(one.take().is_some_and(|frame| {
            one.give(frame);
            true
        }));
        drop(other);
        assert_eq!(one.available(), 1000);
    }
}
