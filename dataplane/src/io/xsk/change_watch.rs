//! Reports that a network namespace has changed, but not what changed: rtnetlink's messages can be lost, so the reader reads everything
//! again. Source: rtnetlink(7).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::link_watch;
use super::wait::{PollSet, poll};

/// What a [`ChangeWatch`] watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The addresses of all interfaces, and whether these are up.
    Addresses,
    /// Routes and routing rules, and what changes them without a message about the route: interfaces and their addresses.
    Routes,
}

impl Watched {
    /// Returns the multicast groups.
    const fn groups(self) -> u32 {
        /// `RTMGRP_LINK`; `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`; `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE`.
        const LINKS: u32 = 1;
        const ADDRESSES: u32 = 0x10 | 0x100;
        const ROUTES: u32 = 0x40 | 0x400;
        /// The bits of `RTNLGRP_IPV4_RULE` and `RTNLGRP_IPV6_RULE`.
        const RULES: u32 = 1 << 7 | 1 << 18;
        match self {
            Self::Addresses => LINKS | ADDRESSES,
            Self::Routes => LINKS | ADDRESSES | ROUTES | RULES,
        }
    }
}

/// Reports changes in one network namespace.
#[derive(Debug)]
pub struct ChangeWatch {
    socket: OwnedFd,
}

impl ChangeWatch {
    /// Starts watching the calling thread's network namespace. Any thread can use the watch.
    ///
    /// # Errors
    /// If the process has too many open descriptors, or the kernel refuses.
    pub fn new(watched: Watched) -> io::Result<Self> {
        Ok(Self { socket: link_watch::listen(watched.groups())? })
    }

    /// Waits until something may have changed.
    ///
    /// # Errors
    /// If the socket fails permanently.
    pub fn wait(&self) -> io::Result<()> {
        let mut told = 0;
        while told == 0 {
            let mut set = PollSet::new();
            set.add(self.socket.as_raw_fd());
            poll(&mut set, u32::MAX)?;
            told = link_watch::drain(&self.socket)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_change_can_be_watched() {
        for watched in [Watched::Addresses, Watched::Routes] {
            ChangeWatch::new(watched).unwrap();
        }
    }
}
