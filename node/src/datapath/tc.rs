//! `attach: tc`: programs at the interfaces' tc hooks, and one trunk between all of them and the workers.
//!
//! Opening a port sets two values in the programs' maps. It needs no packet buffers or sockets, and changes the pod only for `big_tcp`
//! ([`BigTcp`]).

use std::sync::Arc;
use std::time::Duration;

use bulkhead_dataplane::io::{FlowSlot, KernelFlows, LinkStatus, TcAttachment, TcDatapath, XskError};

use super::NewPort;
use super::big_tcp::{BigTcp, EarlierLimits};
use super::flow_cache::{Account, Accounts};
use super::shared_uplink::SharedUplink;
use crate::config::PortEntry;
use crate::interfaces::{AttachError, OpenError};
use crate::links::Pace;
use crate::log;

/// The kernel reports all relevant changes, including removed filters and lost messages. This only guards against a fault of kernel or vswitch.
pub(super) const PACE: Pace = Pace { table: Duration::from_secs(30), ask: 2 };

/// An attachment to an interface: programs at its tc hooks.
#[derive(Debug)]
pub(crate) struct TcOpenable {
    attachment: TcAttachment,
    account: Option<Account>,
    /// Whether the kernel refused to replace the tc filters by links, so that this is not retried.
    has_only_filters: bool,
}

impl TcOpenable {
    /// Returns the interface's index. `None` if the interface was removed or moved to another namespace, where its index may equal that of
    /// another port: then the programs must be detached.
    pub(super) fn index(&self) -> Option<u32> {
        self.attachment.index().filter(|&index| self.attachment.is_here_as(index))
    }

    pub(super) fn is_here_as(&self, index: u32) -> bool {
        self.attachment.is_here_as(index)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        !self.has_only_filters && self.attachment.wants_links()
    }

    /// Attaches programs again that another program removed.
    pub(super) fn restore(&mut self, entry: &PortEntry) -> Result<(), String> {
        match self.attachment.restore() {
            Ok(false) => Ok(()),
            Ok(true) => {
                log::warn(&format!(
                    "port {entry}: another program removed its tc programs, and packets bypassed the vswitch; the programs are attached again\n\
                     help: find the program that runs `tc filter del` or `tc qdisc del` on {}",
                    entry.interface
                ));
                Ok(())
            }
            // The kernel's notification of the interface's removal will follow.
            Err(_) if self.index().is_none() => Ok(()),
            Err(error) => Err(format!("its programs were removed from tc and cannot be attached again: {error}")),
        }
    }

    /// Replaces the tc filters of the interface by links (tcx), which other programs cannot remove.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        let Err(error) = self.attachment.use_links() else { return Ok(()) };
        self.has_only_filters = true;
        // The kernel's notification of the interface's removal will follow.
        if self.index().is_none() {
            return Ok(());
        }
        Err(format!("its programs stay attached as clsact filters, which other programs can remove: {error}"))
    }

    pub(super) const fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }
}

/// The result of opening a port.
pub(super) struct TcOpening {
    /// The port's slot number, which tags its packets on the trunk.
    pub(super) slot: FlowSlot,
    /// The message to log once the workers forward the port's packets.
    pub(super) said: String,
    /// The uplink on the host port's interface, which opens with the host port. `None` for other ports, and without such an uplink.
    pub(super) uplink: Option<NewPort>,
}

/// The state that all ports with tc programs share.
#[derive(Debug)]
pub(super) struct TcPorts {
    datapath: Arc<TcDatapath>,
    big_tcp: Option<BigTcp>,
    pub(super) accounts: Accounts,
    pub(super) shared_uplink: Option<SharedUplink>,
}

impl TcPorts {
    /// Creates the state without any attachment. `big_tcp` is the maximum size in bytes of pods' TCP packets, and the uplink's interface. If it is
    /// `None`, the vswitch restores the limits that a previous process changed. `shared_uplink` is the uplink on the host port's interface;
    /// `None` without one.
    pub(super) fn new(
        datapath: Arc<TcDatapath>,
        big_tcp: Option<(u32, Option<Arc<str>>)>,
        shared_uplink: Option<SharedUplink>,
    ) -> Self {
        let earlier = datapath.pins().and_then(EarlierLimits::below);
        let big_tcp = match big_tcp {
            Some((bytes, uplink)) => Some(BigTcp::new(bytes, uplink, earlier)),
            None => {
                if earlier.is_some_and(|earlier| earlier.restore()) {
                    log::info(
                        "big_tcp is no longer set: the interfaces have their earlier maximum TCP packet size again",
                    );
                }
                None
            }
        };
        let accounts = Accounts::new(Some(Arc::clone(&datapath) as Arc<dyn KernelFlows>));
        Self { datapath, big_tcp, accounts, shared_uplink }
    }

    pub(super) fn attach(&self, entry: &PortEntry, link: &LinkStatus) -> Result<TcOpenable, AttachError> {
        let attached = TcAttachment::new(&self.datapath, &entry.interface, entry.kind);
        let is_shared = self.shared_uplink.as_ref().is_some_and(|uplink| uplink.is_with(entry));
        let attached = attached.and_then(|mut attachment| {
            if is_shared {
                attachment.add_nodes(&entry.interface)?;
            }
            Ok(attachment)
        });
        let attachment = attached.map_err(|error| match error {
            XskError::NoInterface { .. } => AttachError::Gone,
            error => AttachError::Refused(error.to_string()),
        })?;
        match attachment.index() == Some(link.index) {
            true => Ok(TcOpenable { attachment, account: None, has_only_filters: false }),
            false => Err(AttachError::Gone),
        }
    }

    pub(super) fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut TcOpenable,
    ) -> Result<TcOpening, OpenError> {
        let TcOpenable { attachment, account, .. } = attachment;
        if attachment.index().is_none_or(|index| !attachment.is_here_as(index)) {
            return Err(OpenError::Gone);
        }
        attachment.open().map_err(|error| OpenError::Refused(format!("{}: {error}", entry.interface)))?;
        if let Some(big_tcp) = &mut self.big_tcp {
            big_tcp.open(entry);
        }
        let shared = self.shared_uplink.as_mut().filter(|uplink| uplink.is_with(entry));
        let opened = shared.map(|uplink| uplink.open(entry, link, attachment, &self.accounts)).transpose();
        let uplink = opened.map_err(|error| {
            attachment.close();
            OpenError::Refused(error)
        })?;
        let slot = attachment.slot();
        *account = self.accounts.begin(Some(slot));
        let said = format!("port {entry} is open: interface {}, MTU {}", link.index, link.mtu.min(u16::MAX.into()));
        Ok(TcOpening { slot, said, uplink: uplink.flatten() })
    }

    /// Keeps the counts of a closed port, after all workers have released it.
    pub(super) fn end(&mut self, entry: &PortEntry, attachment: &mut TcOpenable) {
        if let Some(account) = attachment.account.take() {
            self.accounts.end(&entry.name, &account);
        }
        if let Some(uplink) = self.shared_uplink.as_mut().filter(|uplink| uplink.is_with(entry)) {
            uplink.close(&mut self.accounts);
        }
    }

    /// Forgets a port whose interface is gone.
    pub(super) fn forget(&self, entry: &PortEntry) {
        self.big_tcp.iter().for_each(|big_tcp| big_tcp.end(entry));
    }

    /// Makes the programs drop all packets from and to the port.
    pub(super) fn close(&self, attachment: &mut TcOpenable) {
        attachment.attachment.close();
    }
}
