//! What the interfaces' states need from the system, and what it answers.

use bulkhead_dataplane::io::LinkStatus;

use crate::config::PortEntry;

/// Why nothing can be attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttachError {
    /// It was removed, renamed or replaced a moment ago: the kernel's message about that is on its way.
    Gone,
    /// Anything else, for people, with a remedy.
    Refused(String),
}

/// Why a port cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// As for [`AttachError::Gone`].
    Gone,
    /// One of its queues is in use, which may be over at once. For people, with a remedy.
    Busy(String),
    /// Anything else, for people, with a remedy.
    Refused(String),
}

/// What opening a port has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The largest MTU that it can carry, in bytes.
    pub largest_mtu: u16,
}

/// What attaches to interfaces. A trait, so that the rules of [`super::Interfaces`] are tested without interfaces.
pub(crate) trait Datapath {
    /// What is attached to one interface, and drops each of its packets until the port is opened. To drop it detaches.
    ///
    /// It is known by what the kernel says of it and not by the interface's name: an interface may be renamed, change its name
    /// with another one, or be moved to another namespace and back, and a new one may have its name.
    type Attachment;

    /// Attaches to an interface, up or down.
    ///
    /// # Errors
    /// Why not. Nothing is attached then.
    fn attach(&mut self, entry: &PortEntry, link: &LinkStatus) -> Result<Self::Attachment, AttachError>;

    /// Sets an interface up that is attached to.
    ///
    /// # Errors
    /// Why not, for people.
    fn set_up(&mut self, link: &LinkStatus) -> Result<(), String>;

    /// The number of the interface now, in whatever namespace it is; none when it was removed.
    fn index(&self, attachment: &Self::Attachment) -> Option<u32>;

    /// Whether it is attached to the interface of this number in this namespace.
    fn is_here_as(&self, attachment: &Self::Attachment, index: u32) -> bool;

    /// Follows what rtnetlink does not tell of an interface, such as its number of queues. To be called when something of it may
    /// have changed, whether its port is open or not. Returns why an open port must be closed and opened anew, if it must.
    ///
    /// # Errors
    /// The system does not answer, which says nothing about the interface.
    fn refresh(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Self::Attachment,
    ) -> Result<Option<String>, String>;

    /// Whether something of an attachment is left to do that can wait until the node's interfaces are quiet.
    fn is_unsettled(&self, attachment: &Self::Attachment) -> bool;

    /// Does a part of that, which may take some ten milliseconds. Its packets are treated as before meanwhile.
    ///
    /// # Errors
    /// Why not, for people. It is settled then, as well as it can be.
    fn settle(&mut self, attachment: &mut Self::Attachment) -> Result<(), String>;

    /// Opens the port of an interface that is up. Does not wait.
    ///
    /// # Errors
    /// Why not. The interface stays closed.
    fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Self::Attachment,
    ) -> Result<Opening, OpenError>;

    /// Closes the port. When this returns no worker has it any more, and each packet of the interface is dropped.
    fn close(&mut self, entry: &PortEntry, attachment: &mut Self::Attachment);
}
