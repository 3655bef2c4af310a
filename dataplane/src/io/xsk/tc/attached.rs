//! A program at a tc hook of one interface, by a filter or by a link.
//!
//! ```text
//!   nothing --(below 1 ms)--> Filter --(Linux 6.6, some 10 ms, when there is time)--> Link
//! ```
//!
//! Both see each packet. See [`filter`] for what is better about which. While both are there, the link's program runs first; both have
//! the same maps, so that the second one agrees.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::filter::{self, Filter};
use super::pins::Pins;
use super::{Programs, TcDatapath, name_of};
use crate::io::xsk::bpf::{self, Hook};

/// See the module. To drop it detaches a link that is not pinned, and leaves a filter.
#[derive(Debug)]
pub(super) enum Attached {
    Filter(Filter),
    Link(OwnedFd),
}

impl Attached {
    /// Attaches the program for this hook, by what an earlier process has left, as a filter, or by a link where filters are refused.
    ///
    /// # Errors
    /// Why the filter was refused, when there are no links either.
    pub(super) fn new(datapath: &TcDatapath, hook: Hook, interface: u32) -> io::Result<Self> {
        if let Some(left) = Self::take_over(datapath, hook, interface) {
            return Ok(left);
        }
        let (program, name) = datapath.programs.of(hook);
        match Filter::attach(hook, program, name, interface) {
            Ok(filter) => Ok(Self::Filter(filter)),
            Err(error) => link(datapath, hook, interface)?.ok_or(error),
        }
    }

    /// What an earlier process has left at the hook, with our program in it from now on.
    pub(super) fn take_over(datapath: &TcDatapath, hook: Hook, interface: u32) -> Option<Self> {
        let (program, name) = datapath.programs.of(hook);
        if let Some(link) = datapath.pins.as_ref().and_then(|pins| pins.take(hook, interface, program)) {
            // It died between the two.
            filter::remove_left(hook, interface, name, &[]);
            return Some(Self::Link(link));
        }
        let is_left = filter::is_left(hook, interface, name);
        let filter = is_left.then(|| Filter::attach(hook, program, name, interface));
        filter?.ok().map(Self::Filter)
    }

    /// Attaches the program at the trunk's first end: in the link that an earlier process has left, by a new one if links are wanted and
    /// the kernel has them, or as a filter, in the place of an earlier process's.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn to_trunk(
        pins: Option<&Pins>,
        wants_link: bool,
        program: BorrowedFd<'_>,
        interface: u32,
    ) -> io::Result<Self> {
        let left = Pins::take_trunk(pins, interface, program).map(Ok);
        let link = left.or_else(|| wants_link.then(|| Pins::attach_trunk(pins, program, interface)));
        match link {
            Some(Ok(link)) => {
                filter::remove_left(Hook::TcIngress, interface, super::DELIVER, &[]);
                Ok(Self::Link(link))
            }
            // The kernel is older than 6.6.
            Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Filter::attach(Hook::TcIngress, program, super::DELIVER, interface).map(Self::Filter),
        }
    }

    /// Attaches the program again if somebody has removed the filter from an interface of the calling thread's network namespace that is
    /// still there. Returns whether it was so.
    ///
    /// # Errors
    /// When the kernel refuses, for one because the interface is gone.
    pub(super) fn restore(&mut self, datapath: &TcDatapath, hook: Hook) -> io::Result<bool> {
        let Self::Filter(filter) = self else { return Ok(false) };
        if filter.interface().is_some() {
            return Ok(false);
        }
        let (program, name) = datapath.programs.of(hook);
        *filter = Filter::attach(hook, program, name, filter.was_at())?;
        Ok(true)
    }

    /// Puts a link in the place of a filter, where the kernel has links. The interface must be in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses; then all stays as it is.
    pub(super) fn use_link(&mut self, datapath: &TcDatapath, hook: Hook) -> io::Result<()> {
        let Self::Filter(filter) = self else { return Ok(()) };
        let interface = filter.interface().ok_or(io::ErrorKind::NotFound)?;
        if let Some(link) = link(datapath, hook, interface)? {
            filter.detach();
            *self = link;
        }
        Ok(())
    }

    /// Whichever of a port's two filters is detached last takes the queueing discipline with it, if it was made for them.
    pub(super) const fn share_qdisc(&mut self, other: &Self) {
        if let (Self::Filter(own), Self::Filter(other)) = (self, other) {
            own.share_qdisc(other);
        }
    }

    pub(super) const fn is_link(&self) -> bool {
        matches!(self, Self::Link(_))
    }

    /// The interface's number, in the namespace where it is now; none when it was removed. A filter does not go with an interface that is
    /// moved to another namespace.
    pub(super) fn interface(&self) -> Option<u32> {
        match self {
            Self::Filter(filter) => filter.interface(),
            Self::Link(link) => bpf::attached_to(link.as_fd()).ok().map(|(index, _)| index).filter(|&index| index != 0),
        }
    }

    /// Whether it is at the interface of this number in the calling thread's network namespace.
    pub(super) fn is_here_as(&self, hook: Hook, interface: u32) -> bool {
        self.interface() == Some(interface)
            && match self {
                Self::Filter(_) => true,
                Self::Link(link) => bpf::link_id(link.as_fd())
                    .is_ok_and(|own| bpf::links_of(hook, interface).is_ok_and(|links| links.contains(&own))),
            }
    }

    /// Detaches it. Nothing happens when the interface is gone.
    pub(super) fn detach(&self) {
        match self {
            Self::Filter(filter) => filter.detach(),
            Self::Link(link) => drop(bpf::detach(link.as_fd())),
        }
    }
}

/// A link with the program for this hook; none where links are not to be had or not wanted.
fn link(datapath: &TcDatapath, hook: Hook, interface: u32) -> io::Result<Option<Attached>> {
    if !datapath.has_links() {
        return Ok(None);
    }
    let link = Pins::attach(datapath.pins.as_ref(), hook, datapath.programs.of(hook).0, interface)?;
    Ok(Some(Attached::Link(link)))
}

impl Programs {
    /// The program for this hook of a port's interface, and its name.
    pub(super) fn of(&self, hook: Hook) -> (BorrowedFd<'_>, &'static str) {
        let program = if hook == Hook::TcEgress { &self.guard } else { &self.ingress };
        (program.as_fd(), name_of(hook))
    }
}
