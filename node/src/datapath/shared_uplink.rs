//! The uplink on the host port's interface: the way to the pods of other nodes, and to the world for masqueraded packets, if the node's kernel keeps
//! the network card.
//!
//! ```text
//!   pod ~ veth --> workers and programs --uplink--> card, or tunnel     to and from pods of other nodes: past the node's network stack
//!                                       `-host----> bh-host ~ bh-node   to and from all others, and what does not fit
//! ```
//!
//! The port has no interface of its own. It opens and closes with the host port; its frames have the host port's MAC addresses, so the node's
//! kernel can take those for which no program knows a way.

use std::sync::Arc;

use bulkhead_dataplane::io::{LinkInfo, LinkStatus, TcAttachment};
use bulkhead_dataplane::{Link, PortKind};

use super::flow_cache::{Account, Accounts};
use super::{Handover, NewPort};
use crate::config::{Config, PortEntry};
use crate::view::PortView;

/// The state of the port.
#[derive(Debug)]
pub(crate) struct SharedUplink {
    name: Arc<str>,
    /// The interface of the node's kernel at the other end of the host port's.
    peer: Arc<str>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// The MAC address of the peer.
    mac: [u8; 6],
    account: Option<Account>,
}

impl SharedUplink {
    /// Returns the closed port. `None` if the configuration has an uplink, or a host port that the vswitch does not create.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let peer = config.host_to_nodes()?.peer.clone();
        Some(Self { name: "uplink".into(), peer, open: None })
    }

    /// Returns the port's name.
    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the uplink shares the interface of this port: true for the host port only.
    pub(super) fn is_with(&self, entry: &PortEntry) -> bool {
        entry.kind == PortKind::Host
    }

    /// Opens the port together with the host port `entry`, whose interface is `link` and which must be open. Returns the port for the workers;
    /// `None` if the attachment has no port to other nodes.
    ///
    /// # Errors
    /// If the peer does not exist, or the kernel refuses.
    pub(super) fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &TcAttachment,
        accounts: &Accounts,
    ) -> Result<Option<NewPort>, String> {
        let mac = LinkInfo::read(&self.peer).map_err(|error| error.to_string())?.mac;
        let addresses = [link.mac, mac].concat().try_into().expect("two times six bytes");
        let opened = attachment.open_to_nodes(addresses);
        let slot = opened.map_err(|error| format!("{}: cannot open the port to other nodes: {error}", self.peer))?;
        self.open = Some(Open { mac, account: accounts.begin(slot) });
        let name = &self.name;
        let said = format!("port {name} is open: pods of other nodes, on the links of the node's kernel ({entry})");
        Ok(slot.map(|slot| NewPort { name: name.clone(), handover: Handover::Tc(slot), said }))
    }

    /// Closes the port with the host port, whose programs are closed already.
    pub(super) fn close(&mut self, accounts: &mut Accounts) {
        if let Some(account) = self.open.take().and_then(|open| open.account) {
            accounts.end(&self.name, &account);
        }
    }

    /// Returns the port for the snapshot. `host` is the host port's. `None` while the port is closed.
    pub(super) fn view(&self, host: Option<Link>) -> Option<PortView> {
        let (open, link) = self.open.as_ref().zip(host)?;
        let (name, kind, mac) = (self.name.clone(), PortKind::Uplink, Some(open.mac));
        Some(PortView { name, kind, mac, link: Some(link), is_gone: false, shares_host: true })
    }

    /// Returns the name and the account of the open port. `None` while it is closed, and without a flow cache.
    pub(super) fn account(&self) -> Option<(&Arc<str>, &Account)> {
        Some((&self.name, self.open.as_ref()?.account.as_ref()?))
    }
}
