//! Attaches a program to a tc hook of one interface, by a filter or a link.
//!
//! ```text
//!   nothing --(below 1 ms)--> Filter --(Linux 6.6, about 10 ms, in the background)--> Link
//! ```
//!
//! Filter and link both see every packet; [`filter`] compares them. While both are attached, the link's program runs first; both use the
//! same maps, so they agree.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::filter::{self, Filter};
use super::pins::{AttachPoint, Pins};
use super::{Programs, TcDatapath, name_of};
use crate::io::xsk::bpf::{self, Hook};

/// An attached program. Dropping this detaches an unpinned link and keeps a filter.
#[derive(Debug)]
pub(super) enum Attached {
    Filter(Filter),
    Link(OwnedFd),
}

impl Attached {
    /// Attaches the program for this hook: by adopting a previous process's attachment, else as a filter, else by a link.
    ///
    /// # Errors
    /// The filter's error if links are unavailable too.
    pub(super) fn new(datapath: &TcDatapath, hook: Hook, interface: u32) -> io::Result<Self> {
        if let Some(left) = Self::take_over(datapath, hook, interface) {
            return Ok(left);
        }
        match attach(datapath, hook, interface) {
            Ok(filter) => Ok(Self::Filter(filter)),
            Err(error) => link(datapath, hook, interface)?.ok_or(error),
        }
    }

    /// Adopts a previous process's attachment at the hook and installs this process's program. `None` if there is none.
    pub(super) fn take_over(datapath: &TcDatapath, hook: Hook, interface: u32) -> Option<Self> {
        let (program, name) = datapath.programs.of(hook);
        if let Some(link) =
            datapath.pins.as_ref().and_then(|pins| pins.take(AttachPoint::Port(hook, interface), program))
        {
            // The previous process may have died while replacing the filter by the link.
            filter::remove_left(hook, interface, name, &[], Filter::detach_alone);
            return Some(Self::Link(link));
        }
        let is_left = filter::is_left(hook, interface, name);
        let filter = is_left.then(|| attach(datapath, hook, interface));
        filter?.ok().map(Self::Filter)
    }

    /// Attaches the program at the trunk's first end: by adopting a previous process's link, else by a new link if wanted and supported,
    /// else as a filter that replaces a previous process's.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn to_trunk(
        pins: Option<&Pins>,
        wants_link: bool,
        program: BorrowedFd<'_>,
        interface: u32,
    ) -> io::Result<Self> {
        let point = AttachPoint::Trunk(interface);
        let left = pins.and_then(|pins| pins.take(point, program)).map(Ok);
        let link = left.or_else(|| wants_link.then(|| Pins::attach(pins, point, program)));
        match link {
            Some(Ok(link)) => {
                filter::remove_left(Hook::TcIngress, interface, super::DELIVER, &[], Filter::detach);
                Ok(Self::Link(link))
            }
            // EINVAL: the kernel is older than 6.6.
            Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Filter::attach(Hook::TcIngress, program, super::DELIVER, interface).map(Self::Filter),
        }
    }

    /// Attaches a program by a link: adopts the link that a previous process has pinned for this point, else creates one if links are
    /// wanted and supported. `None` if links are not wanted or the kernel refuses; a filter may still be possible.
    pub(super) fn by_link(datapath: &TcDatapath, point: AttachPoint, program: BorrowedFd<'_>) -> Option<Self> {
        let pins = datapath.pins.as_ref();
        let left = pins.and_then(|pins| pins.take(point, program));
        let attach = || Pins::attach(pins, point, program).ok();
        left.or_else(|| datapath.has_links().then(attach).flatten()).map(Self::Link)
    }

    /// Attaches the filter again if another program has removed it from the interface in the calling thread's network namespace. Returns
    /// whether it was missing.
    ///
    /// # Errors
    /// If the kernel refuses, for example because the interface is gone.
    pub(super) fn restore(&mut self, datapath: &TcDatapath, hook: Hook) -> io::Result<bool> {
        let Self::Filter(filter) = self else { return Ok(false) };
        if filter.interface().is_some() {
            return Ok(false);
        }
        *filter = attach(datapath, hook, filter.was_at())?;
        Ok(true)
    }

    /// Attaches a link instead of a filter if links are available. The interface must be in the calling thread's network namespace. Returns
    /// the filter, which the caller must detach. `None` if nothing changed.
    ///
    /// # Errors
    /// If the kernel refuses. The filter stays.
    pub(super) fn use_link(&mut self, datapath: &TcDatapath, hook: Hook) -> io::Result<Option<Filter>> {
        let Self::Filter(filter) = self else { return Ok(None) };
        let interface = filter.interface().ok_or(io::ErrorKind::NotFound)?;
        let Some(link) = link(datapath, hook, interface)? else { return Ok(None) };
        match std::mem::replace(self, link) {
            Self::Filter(filter) => Ok(Some(filter)),
            Self::Link(_) => Ok(None),
        }
    }

    /// Records that both filters of a port share a queueing discipline, so that detaching the last one removes it.
    pub(super) const fn share_qdisc(&mut self, other: &Self) {
        if let (Self::Filter(own), Self::Filter(other)) = (self, other) {
            own.share_qdisc(other);
        }
    }

    pub(super) const fn is_link(&self) -> bool {
        matches!(self, Self::Link(_))
    }

    /// Returns the interface's current index in its current namespace. `None` if the interface was removed, or moved away from a filter.
    pub(super) fn interface(&self) -> Option<u32> {
        match self {
            Self::Filter(filter) => filter.interface(),
            Self::Link(link) => bpf::attached_to(link.as_fd()).ok().map(|(index, _)| index).filter(|&index| index != 0),
        }
    }

    /// Whether the program is attached at this point in the calling thread's network namespace. Of a filter, only the interface's index is
    /// compared.
    pub(super) fn is_at(&self, point: AttachPoint) -> bool {
        match self {
            Self::Filter(filter) => filter.interface() == Some(point.interface()),
            Self::Link(link) => point.has(link.as_fd()),
        }
    }

    /// Detaches the program. Does nothing if the interface is gone.
    pub(super) fn detach(&self) {
        match self {
            Self::Filter(filter) => filter.detach(),
            Self::Link(link) => drop(bpf::detach(link.as_fd())),
        }
    }

    /// Detaches the program from an interface that stays in use: a filter's queueing discipline remains there ([`Filter::detach_alone`]).
    pub(super) fn detach_alone(&self) {
        match self {
            Self::Filter(filter) => filter.detach_alone(),
            Self::Link(_) => self.detach(),
        }
    }
}

/// Attaches the program for this hook as a filter.
fn attach(datapath: &TcDatapath, hook: Hook, interface: u32) -> io::Result<Filter> {
    let (program, name) = datapath.programs.of(hook);
    let mut filter = Filter::attach(hook, program, name, interface)?;
    datapath.qdiscs.claim(&mut filter);
    Ok(filter)
}

/// Attaches the program for this hook by a link. `None` if links are unsupported or not wanted.
fn link(datapath: &TcDatapath, hook: Hook, interface: u32) -> io::Result<Option<Attached>> {
    if !datapath.has_links() {
        return Ok(None);
    }
    let point = AttachPoint::Port(hook, interface);
    let link = Pins::attach(datapath.pins.as_ref(), point, datapath.programs.of(hook).0)?;
    Ok(Some(Attached::Link(link)))
}

impl Programs {
    /// Returns the program for this hook of a port's interface, and its name.
    pub(super) fn of(&self, hook: Hook) -> (BorrowedFd<'_>, &'static str) {
        let program = if hook == Hook::TcEgress { &self.guard } else { &self.ingress };
        (program.as_fd(), name_of(hook))
    }
}
