//! Being told when an interface comes, goes or changes: rtnetlink's group of links.
//! Source: `include/uapi/linux/{netlink,rtnetlink}.h`, netlink(7).
//!
//! What has changed is not read out of the messages: the kernel leaves messages out when many come at once, so whoever is
//! told has to look for himself in any case.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{netlink, small_size};

/// `RTMGRP_LINK`, which `libc` has as an `i32`.
const LINKS: u32 = 1;

/// See the module.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
}

impl LinkWatch {
    /// Watches the interfaces of the calling thread's network namespace, from now on and from whichever thread.
    ///
    /// # Errors
    /// When the process has too many descriptors, or the kernel refuses.
    pub fn new() -> io::Result<Self> {
        let socket = netlink::socket(libc::NETLINK_ROUTE)?;
        // SAFETY: a structure of numbers, for which zeros are values. One of its fields cannot be named.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).map_err(io::Error::other)?;
        address.nl_groups = LINKS;
        let length = small_size::<libc::sockaddr_nl>();
        // SAFETY: the kernel reads as many bytes as the address has.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { socket }) }
    }

    /// Waits until something has changed since the last time. All changes until it returns count as one.
    ///
    /// # Errors
    /// When the kernel refuses, and would do so again.
    pub fn wait(&self) -> io::Result<()> {
        self.take(0)?;
        while self.take(libc::MSG_DONTWAIT)? {}
        Ok(())
    }

    /// Takes one message, or what stands for those that were left out. Whether there was one.
    fn take(&self, flags: i32) -> io::Result<bool> {
        loop {
            // Of longer messages the rest is dropped, which nobody reads.
            let mut buffer = [0u8; 16];
            // SAFETY: the kernel writes within the buffer.
            let length =
                unsafe { libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
            if length >= 0 {
                return Ok(true);
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                error if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(true),
                error => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_needs_no_privileges_and_asking_does_not_wait() {
        let watch = LinkWatch::new().unwrap();
        // Whether there was something depends on the machine.
        watch.take(libc::MSG_DONTWAIT).unwrap();
    }
}
