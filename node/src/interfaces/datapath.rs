//! The trait by which the interface states attach to interfaces, and open and close ports.

use bulkhead_dataplane::io::LinkStatus;

use crate::config::PortEntry;

/// Why attaching to an interface failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttachError {
    /// The interface was just removed, renamed or replaced; the kernel's message will follow.
    Gone,
    /// Any other reason, with a remedy, for the log.
    Refused(String),
}

/// Why a port cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The interface was just removed, renamed or replaced.
    Gone,
    /// Another socket still uses one of the interface's queues, and may close soon. The text is for the log, with a remedy.
    Busy(String),
    /// Any other reason, with a remedy, for the log.
    Refused(String),
}

/// The result of opening a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The largest MTU that the port supports, in bytes.
    pub largest_mtu: u16,
}

/// A way to attach to interfaces. A trait, so that tests of [`super::Interfaces`] need no real interfaces.
pub(crate) trait Datapath {
    /// The programs attached to one interface, which drop all its packets until the port is opened. Dropping the value detaches them.
    ///
    /// The kernel's attachment identifies the interface, not a name: interfaces may be renamed, swap names or be moved to another namespace
    /// and back, and a new one may reuse a name.
    type Attachment;

    /// Attaches to an interface, which may be up or down.
    ///
    /// # Errors
    /// If the interface is gone or the kernel refuses. Nothing is attached then.
    fn attach(&mut self, entry: &PortEntry, link: &LinkStatus) -> Result<Self::Attachment, AttachError>;

    /// Sets an attached interface up.
    ///
    /// # Errors
    /// If the kernel refuses; the text is for the log.
    fn set_up(&mut self, link: &LinkStatus) -> Result<(), String>;

    /// Returns the interface's present index, in any namespace. `None` if the interface was deleted.
    fn index(&self, attachment: &Self::Attachment) -> Option<u32>;

    /// Whether the attachment is to the interface of this index in this namespace.
    fn is_here_as(&self, attachment: &Self::Attachment, index: u32) -> bool;

    /// Reads facts that rtnetlink does not report, such as the number of queues. Must be called after any change of an attached interface.
    /// Returns the reason if an open port must be closed and reopened, else `None`.
    ///
    /// # Errors
    /// If the kernel does not answer; the interface's state is then unknown.
    fn refresh(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Self::Attachment,
    ) -> Result<Option<String>, String>;

    /// Whether the attachment has work that waits until the node's interfaces are quiet, such as replacing tc filters by a link.
    fn is_unsettled(&self, attachment: &Self::Attachment) -> bool;

    /// Does a part of the deferred work, which may take tens of milliseconds. Does not affect packets meanwhile.
    ///
    /// # Errors
    /// If the work fails; the text is for the log. The attachment then counts as settled.
    fn settle(&mut self, attachment: &mut Self::Attachment) -> Result<(), String>;

    /// Opens the port of an interface that is up, without waiting.
    ///
    /// # Errors
    /// If the port cannot be opened now. It stays closed.
    fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Self::Attachment,
    ) -> Result<Opening, OpenError>;

    /// Closes the port. Afterwards, no worker uses it and all packets of the interface are dropped. Its sessions stay.
    fn close(&mut self, entry: &PortEntry, attachment: &mut Self::Attachment);

    /// Ends the sessions of a closed port, because its interface no longer exists or belongs to the port no more, and tells their other ends.
    fn end(&mut self, entry: &PortEntry);
}
