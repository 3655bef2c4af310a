//! Sleeping and waking of idle workers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// An eventfd that wakes a worker from [`poll`]. Threads share it by reference.
#[derive(Debug)]
pub struct Waker {
    event: File,
}

impl Waker {
    /// Creates a waker without pending wakes.
    ///
    /// # Errors
    /// If the process has too many open descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor and touches no memory.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, and nothing else owns it.
        Ok(Self { event: unsafe { File::from_raw_fd(descriptor) } })
    }

    /// Makes the current or next [`poll`] return. Several wakes before a [`drain`](Self::drain) count as one.
    pub fn wake(&self) {
        // Fails only if the count is at its maximum, and then a wake is pending.
        drop((&self.event).write(&1u64.to_ne_bytes()));
    }

    /// Clears pending wakes. Call it after [`poll`] and before checking for work.
    pub fn drain(&self) {
        // Fails only without a pending wake.
        drop((&self.event).read(&mut [0; 8]));
    }

    /// Returns the descriptor for [`poll`].
    pub fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// Descriptors for [`poll`], kept to avoid an allocation per call.
#[derive(Clone, Debug, Default)]
pub struct PollSet {
    entries: Vec<libc::pollfd>,
}

impl PollSet {
    /// Creates a set without descriptors.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a descriptor. It must stay open while it is in the set; [`poll`] returns immediately for a closed one.
    pub fn add(&mut self, descriptor: RawFd) {
        self.entries.push(libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 });
    }

    /// Removes all descriptors.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Sleeps until a descriptor is readable or has failed, for at most `timeout_ms` milliseconds. Returns whether a descriptor is ready;
/// false after the timeout or a signal.
///
/// # Errors
/// If the kernel refuses.
pub fn poll(set: &mut PollSet, timeout_ms: u32) -> io::Result<bool> {
    let count = set.entries.len() as libc::nfds_t;
    let timeout = i32::try_from(timeout_ms).unwrap_or(i32::MAX);
    // SAFETY: as many entries as are passed, which the kernel reads and whose `revents` it writes.
    let ready = unsafe { libc::poll(set.entries.as_mut_ptr(), count, timeout) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_sleeps_until_it_is_woken_and_again_after_draining() {
        let waker = Waker::new().unwrap();
        let mut set = PollSet::new();
        set.add(waker.descriptor());
        assert!(!poll(&mut set, 0).unwrap());
        waker.wake();
        waker.wake();
        assert!(poll(&mut set, 0).unwrap());
        waker.drain();
        assert!(!poll(&mut set, 0).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert!(poll(&mut set, u32::MAX).unwrap());
        });
    }

    #[test]
    fn draining_a_waker_that_nobody_woke_does_not_block() {
        Waker::new().unwrap().drain();
    }
}
