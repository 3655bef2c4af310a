//! `attach: tc`: programs at the tc hooks of the interface, and one trunk to the workers for all of them.
//!
//! Opening a port is filling in two values of the programs' maps: it needs no packet buffers and no sockets. In the pod one setting is
//! changed, and only where `big_tcp` asks for it ([`BigTcp`]).

use std::sync::Arc;
use std::time::Duration;

use bulkhead_dataplane::io::{FlowSlot, KernelFlows, LinkStatus, TcAttachment, TcDatapath, XskError};

use super::big_tcp::BigTcp;
use super::flow_cache::{Account, Accounts};
use crate::config::PortEntry;
use crate::interfaces::{AttachError, OpenError};
use crate::links::Pace;
use crate::log;

/// The kernel tells all that matters of an interface, also that a filter was removed. 500 idle ports take a third of a percent of a
/// core at this pace.
pub(super) const PACE: Pace = Pace { table: Duration::from_secs(5), ask: 4 };

/// An interface that has the programs.
#[derive(Debug)]
pub(crate) struct TcOpenable {
    attachment: TcAttachment,
    account: Option<Account>,
    /// Whether the kernel has refused links in the place of filters.
    has_only_filters: bool,
}

impl TcOpenable {
    /// The interface's number here; none when it was removed, or moved to another namespace. There its number may be that of a port
    /// here, for which the program would take it: then it must be detached.
    pub(super) fn index(&self) -> Option<u32> {
        self.attachment.index().filter(|&index| self.attachment.is_here_as(index))
    }

    pub(super) fn is_here_as(&self, index: u32) -> bool {
        self.attachment.is_here_as(index)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        !self.has_only_filters && self.attachment.wants_links()
    }

    /// Attaches again what somebody else has removed.
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
            // The kernel's message that the interface has gone is on its way.
            Err(_) if self.index().is_none() => Ok(()),
            Err(error) => Err(format!("its programs were removed from tc and cannot be attached again: {error}")),
        }
    }

    /// Puts a link in the place of a filter.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.attachment.use_link().map_err(|error| {
            self.has_only_filters = true;
            format!("its programs stay attached as clsact filters, which other programs can remove: {error}")
        })
    }

    pub(super) const fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }
}

/// What opening a port has brought.
pub(super) struct TcOpening {
    /// Its tag on the trunk.
    pub(super) slot: FlowSlot,
    /// What to say of it when it forwards.
    pub(super) said: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct TcPorts {
    datapath: Arc<TcDatapath>,
    big_tcp: Option<BigTcp>,
    pub(super) accounts: Accounts,
}

impl TcPorts {
    /// Nothing is attached yet.
    pub(super) fn new(datapath: Arc<TcDatapath>, big_tcp: Option<BigTcp>) -> Self {
        let accounts = Accounts::new(Some(Arc::clone(&datapath) as Arc<dyn KernelFlows>));
        Self { datapath, big_tcp, accounts }
    }

    pub(super) fn attach(&self, entry: &PortEntry, link: &LinkStatus) -> Result<TcOpenable, AttachError> {
        let attached = TcAttachment::new(&self.datapath, &entry.interface, entry.kind);
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
        let slot = attachment.slot();
        *account = self.accounts.begin(Some(slot));
        let said = format!("port {entry} is open: interface {}, MTU {}", link.index, link.mtu.min(u16::MAX.into()));
        Ok(TcOpening { slot, said })
    }

    /// The port is closed, and no worker has it any more.
    pub(super) fn end(&mut self, entry: &PortEntry, attachment: &mut TcOpenable) {
        if let Some(account) = attachment.account.take() {
            self.accounts.end(&entry.name, &account);
        }
    }

    /// From here on its packets are dropped, and those that would leave through it.
    pub(super) fn close(&self, attachment: &mut TcOpenable) {
        attachment.attachment.close();
    }
}
