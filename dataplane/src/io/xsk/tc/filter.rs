//! Attaches a program to a tc hook as a filter of the `clsact` queueing discipline.
//! Source: `include/uapi/linux/{rtnetlink,pkt_sched,pkt_cls}.h`, `net/sched/cls_bpf.c`.
//!
//! Attaching a filter takes well below a millisecond. Attaching a link (tcx, Linux 6.6) takes about ten, as the kernel waits for an RCU
//! grace period while holding the lock of all interfaces. But only its owner can remove a link, and its program runs before all filters.
//! So a port starts with filters, and [`Attached`](super::attached::Attached) replaces them by links later.
//!
//! A filter belongs to its interface. It stays when the process dies, so that packets are dropped instead of bypassing policy. The kernel
//! removes it with the interface, and when the interface moves to another network namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::io::xsk::bpf::{self, Hook};
use crate::io::xsk::netlink::{ask, attributes, number, request};
use crate::io::xsk::netlink_write::{attribute, change, traffic_control};

/// `struct tcmsg`.
const HEADER: usize = 20;
/// `TCA_KIND`, `TCA_OPTIONS`.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
/// `TCA_BPF_FD`, `TCA_BPF_NAME`, `TCA_BPF_FLAGS`, `TCA_BPF_ID`.
const PROGRAM: u16 = 6;
const NAME: u16 = 7;
const FLAGS: u16 = 8;
const PROGRAM_ID: u16 = 11;

/// The handle of the vswitch's filters, a fixed random number that no other program uses.
const HANDLE: u32 = 0xb01c_4ead;
/// The preference 1, which runs first, and `ETH_P_ALL` in network order.
const INFO: u32 = info(1);
/// The preference 2, for a filter behind one of the vswitch's.
const BEHIND: u32 = info(2);

const fn info(preference: u32) -> u32 {
    preference << 16 | (libc::ETH_P_ALL as u32).to_be() >> 16
}

/// An attached filter. Dropping this keeps the filter.
#[derive(Debug)]
pub(in crate::io::xsk) struct Filter {
    hook: Hook,
    interface: u32,
    /// [`INFO`] or [`BEHIND`].
    info: u32,
    program: u32,
    /// Whether the vswitch created the queueing discipline, for this filter or the port's other one.
    owns_qdisc: bool,
}

impl Filter {
    /// Attaches a program to an interface of the calling thread's network namespace. Atomically replaces a previous process's filter.
    /// `tc filter show` displays the name.
    ///
    /// # Errors
    /// If the kernel refuses. `AlreadyExists` if the interface has an `ingress` queueing discipline, which has no egress.
    pub(in crate::io::xsk) fn attach(
        hook: Hook,
        program: BorrowedFd<'_>,
        name: &str,
        interface: u32,
    ) -> io::Result<Self> {
        Self::attach_as(INFO, hook, program, name, interface)
    }

    /// Like [`attach`](Self::attach), for a program that runs after that of `attach` if that one returns `TC_ACT_UNSPEC`.
    ///
    /// # Errors
    /// As of `attach`.
    pub(super) fn attach_behind(hook: Hook, program: BorrowedFd<'_>, name: &str, interface: u32) -> io::Result<Self> {
        Self::attach_as(BEHIND, hook, program, name, interface)
    }

    fn attach_as(info: u32, hook: Hook, program: BorrowedFd<'_>, name: &str, interface: u32) -> io::Result<Self> {
        let owns_qdisc = make_qdisc(interface)?;
        let filter = Self { hook, interface, info, program: bpf::program_id(program)?, owns_qdisc };
        let mut options = Vec::new();
        attribute(&mut options, PROGRAM, &program.as_raw_fd().cast_unsigned().to_ne_bytes());
        attribute(&mut options, NAME, &[name.as_bytes(), b"\0"].concat());
        /// `TCA_BPF_FLAG_ACT_DIRECT`: the program's return code is the action.
        const DIRECT: u32 = 1;
        attribute(&mut options, FLAGS, &DIRECT.to_ne_bytes());
        let mut body = filter.message();
        attribute(&mut body, KIND, b"bpf\0");
        attribute(&mut body, OPTIONS, &options);
        change(libc::RTM_NEWTFILTER, libc::NLM_F_CREATE, &body)?;
        Ok(filter)
    }

    /// Shares ownership of the queueing discipline with the port's other filter.
    pub(super) const fn share_qdisc(&mut self, other: &Self) {
        self.owns_qdisc |= other.owns_qdisc;
    }

    /// Whether detaching the last filter of the interface removes its queueing discipline.
    pub(super) const fn owns_qdisc(&self) -> bool {
        self.owns_qdisc
    }

    /// Makes the filter own its interface's queueing discipline.
    pub(super) const fn own_qdisc(&mut self) {
        self.owns_qdisc = true;
    }

    /// Returns the interface's index at the time of attaching.
    pub(super) const fn was_at(&self) -> u32 {
        self.interface
    }

    /// Returns the interface's index. `None` if the filter is gone or has another program.
    pub(super) fn interface(&self) -> Option<u32> {
        left(self.hook, self.interface, self.info)
            .filter(|&(_, program)| program == self.program)
            .map(|_| self.interface)
    }

    /// Removes the filter and leaves the queueing discipline. To remove that, the kernel stops the interface's transmit queues, and drops what is
    /// sent meanwhile.
    pub(super) fn detach_alone(&self) {
        // Fails only if the filter is already gone.
        let _ = change(libc::RTM_DELTFILTER, 0, &[self.message(), kind(b"bpf\0")].concat());
    }

    /// Removes the filter. Also removes the queueing discipline if the vswitch created it and it has no other filter.
    pub(super) fn detach(&self) {
        self.detach_alone();
        if self.owns_qdisc {
            remove_empty_qdisc(self.interface);
        }
    }

    /// Builds the `struct tcmsg` that identifies the filter.
    fn message(&self) -> Vec<u8> {
        traffic_control(self.interface, HANDLE, parent(self.hook), self.info)
    }
}

/// Whether a previous process left a filter of this name at the hook, in the calling thread's network namespace.
pub(super) fn is_left(hook: Hook, interface: u32, name: &str) -> bool {
    left(hook, interface, INFO).is_some_and(|(left, _)| left == name.as_bytes())
}

/// Removes a previous process's filter of this name at a hook, except one with a program id in `own`, by `detach`. Returns whether there was one.
pub(super) fn remove_left(hook: Hook, interface: u32, name: &str, own: &[u32], detach: impl FnOnce(&Filter)) -> bool {
    let info = INFO;
    let program =
        left(hook, interface, info).filter(|(left, program)| left == name.as_bytes() && !own.contains(program));
    program.map(|(_, program)| detach(&Filter { hook, interface, info, program, owns_qdisc: true })).is_some()
}

/// Removes a filter of [`Filter::attach_behind`] with this name at tc ingress, by `detach`. Returns whether there was one.
pub(super) fn remove_left_behind(interface: u32, name: &str, detach: impl FnOnce(&Filter)) -> bool {
    let (hook, info) = (Hook::TcIngress, BEHIND);
    let program = left(hook, interface, info).filter(|(left, _)| left == name.as_bytes());
    program.map(|(_, program)| detach(&Filter { hook, interface, info, program, owns_qdisc: true })).is_some()
}

/// Returns the name and program id of the vswitch's filter at this hook with this preference, attached by any process. `None` if there is none.
fn left(hook: Hook, interface: u32, info: u32) -> Option<(Vec<u8>, u32)> {
    let mut found = None;
    // Fails if the interface, queueing discipline or filter does not exist.
    let asked = get(libc::RTM_GETTFILTER, &traffic_control(interface, HANDLE, parent(hook), info), |message| {
        found = program_of(message);
    });
    found.filter(|_| asked.is_ok())
}

/// Creates the `clsact` queueing discipline, which only carries filters. Returns false if it already exists.
fn make_qdisc(interface: u32) -> io::Result<bool> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    match change(libc::RTM_NEWQDISC, flags, &[qdisc(interface), kind(b"clsact\0")].concat()) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) && has_clsact(interface)? => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the queueing discipline at `clsact`'s handle is one. `ingress` uses the same handle.
fn has_clsact(interface: u32) -> io::Result<bool> {
    let mut is_clsact = false;
    get(libc::RTM_GETQDISC, &qdisc(interface), |message| {
        let mut attributes = attributes(message.get(HEADER..).unwrap_or_default());
        is_clsact = attributes.any(|(kind, value)| kind == KIND && value == b"clsact\0");
    })?;
    Ok(is_clsact)
}

/// Removes the interface's `clsact` queueing discipline if it has no filters. Does nothing if the interface is gone.
pub(super) fn remove_empty_qdisc(interface: u32) {
    let is_empty = [Hook::TcIngress, Hook::TcEgress].into_iter().all(|hook| {
        let mut filters = 0;
        let asked = ask(libc::RTM_GETTFILTER, true, &traffic_control(interface, 0, parent(hook), 0), |_| filters += 1);
        asked.is_ok() && filters == 0
    });
    if is_empty {
        let _ = change(libc::RTM_DELQDISC, 0, &qdisc(interface));
    }
}

/// Requests one queueing discipline or filter. The kernel answers the requester only with `NLM_F_ECHO`.
fn get(kind: u16, body: &[u8], each: impl FnMut(&[u8])) -> io::Result<()> {
    request(libc::NETLINK_ROUTE, kind, libc::NLM_F_REQUEST | libc::NLM_F_ECHO, body, each)
}

/// `TC_H_CLSACT` with `TC_H_MIN_INGRESS` or `TC_H_MIN_EGRESS`.
fn parent(hook: Hook) -> u32 {
    if hook == Hook::TcEgress { 0xffff_fff3 } else { 0xffff_fff2 }
}

fn qdisc(interface: u32) -> Vec<u8> {
    /// `ffff:`, and `TC_H_CLSACT`.
    const HANDLE: u32 = 0xffff_0000;
    const PARENT: u32 = 0xffff_fff1;
    traffic_control(interface, HANDLE, PARENT, 0)
}

fn kind(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    attribute(&mut bytes, KIND, name);
    bytes
}

/// Returns the name and program id of a filter that is a program.
fn program_of(message: &[u8]) -> Option<(Vec<u8>, u32)> {
    let (_, options) = attributes(message.get(HEADER..)?).find(|&(kind, _)| kind == OPTIONS)?;
    let told = |wanted| attributes(options).find(move |&(kind, _)| kind == wanted).map(|(_, value)| value);
    let name = told(NAME)?;
    Some((name.strip_suffix(b"\0").unwrap_or(name).to_vec(), number(told(PROGRAM_ID)?, 0)?))
}
