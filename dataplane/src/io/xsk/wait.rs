//! How a worker that has nothing to do sleeps, and how others wake it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// Wakes a worker that sleeps in [`poll`]: an eventfd. Shared by reference between threads.
#[derive(Debug)]
pub struct Waker {
    event: File,
}

impl Waker {
    /// Makes one that nobody has woken yet.
    ///
    /// # Errors
    /// When the process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor and touches no memory.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else knows of it.
        Ok(Self { event: unsafe { File::from_raw_fd(descriptor) } })
    }

    /// Lets the next [`poll`], or the one that goes on, return. Several wakes before it count as one.
    pub fn wake(&self) {
        // Fails only when the count is at its maximum, and then it is awake.
        drop((&self.event).write(&1u64.to_ne_bytes()));
    }

    /// Forgets all wakes so far; to be called after [`poll`] and before looking for what they were about.
    pub fn drain(&self) {
        // Fails only when nobody has woken it.
        drop((&self.event).read(&mut [0; 8]));
    }

    /// What to [`poll`].
    pub fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// Descriptors to wait on, so that [`poll`] does not allocate.
#[derive(Clone, Debug, Default)]
pub struct PollSet {
    entries: Vec<libc::pollfd>,
}

impl PollSet {
    /// None yet.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a descriptor, which must stay open for as long as it is in here; one that was closed wakes at once.
    pub fn add(&mut self, descriptor: RawFd) {
        self.entries.push(libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 });
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Sleeps until one of the descriptors has something to read or has failed, or `timeout_ms` milliseconds have passed.
/// Whether one has. A signal ends it early, as if the time had passed.
///
/// # Errors
/// When the kernel refuses.
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
