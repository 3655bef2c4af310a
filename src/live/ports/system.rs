//! What the ports need from the system, and what it answers.

use std::collections::BTreeSet;

use bulkhead_dataplane::Link;

use crate::live::config::PortEntry;

/// An interface as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) struct Found {
    /// The kernel's number; another one means another interface.
    pub index: u32,
    /// Its MAC address and its longest packet.
    pub link: Link,
    /// Whether it is set up.
    pub up: bool,
    /// How many receive queues it has.
    pub queues: u32,
    /// How many transmit queues it has.
    pub transmit_queues: u32,
}

/// What opening a port has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) struct Opening {
    /// How many queues are open.
    pub queues: u32,
    /// The largest MTU that it can carry, in bytes.
    pub largest_mtu: u16,
}

/// Why a port cannot be opened, for people, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::live) enum Refusal {
    /// One of its queues is in use, which may be over at once.
    Busy(String),
    /// Anything else.
    Other(String),
}

/// What the ports need from the system. A trait, so that the rules below are tested without interfaces.
pub(in crate::live) trait System {
    /// The interface of this name, none when there is none.
    ///
    /// # Errors
    /// The system does not answer, which says nothing about the interface.
    fn find(&mut self, interface: &str) -> Result<Option<Found>, String>;

    /// Takes the interface, up or down, so that all its packets are dropped. Nothing, when that is so already, under
    /// whatever name it was taken.
    ///
    /// # Errors
    /// Why it cannot be had, for people, with a remedy.
    fn hold(&mut self, entry: &PortEntry, found: &Found) -> Result<(), String>;

    /// Starts forwarding through an interface that is held and up. Does not wait.
    ///
    /// # Errors
    /// Why not. The interface stays held.
    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<Opening, Refusal>;

    /// Stops forwarding through the port. The interface stays held.
    fn close(&mut self, entry: &PortEntry);

    /// Gives all interfaces back to the host's stack but those that were `found` by a configured name, and those that the
    /// configured name which led to them last still means: an interface that has another name for a moment, or for good,
    /// is not to be unprotected for that.
    fn release_others(&mut self, names: &BTreeSet<&str>, found: &BTreeSet<u32>);
}
