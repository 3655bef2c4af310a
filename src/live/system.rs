//! The ports' view of the real system: AF_XDP sockets on this machine's interfaces.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_dataplane::io::{
    Interface, LinkInfo, QueueConfig, XdpMode, XskPort, in_namespace, set_transmit_checksum_offload,
};
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{Link, PortId};

use super::config::{Mode, PortEntry};
use super::log;
use super::ports::{Found, Ids, System};
use super::preflight::{self, Offload};

/// Interfaces that are taken, by port.
#[derive(Default)]
pub(super) struct Taken(HashMap<Arc<str>, Interface>);

/// Ports that are open and not yet the workers': they are handed over when the snapshot knows them.
pub(super) type Opened = Vec<(Arc<str>, Vec<XskPort>)>;

/// See the module. Made for one round of the control thread.
pub(super) struct Kernel<'a> {
    pub vswitch: &'a mut Vswitch,
    pub taken: &'a mut Taken,
    pub opened: &'a mut Opened,
    pub ids: &'a Ids,
    /// Ports that were closed: what their workers said of them before is of no interest any more.
    pub closed: &'a mut Vec<PortId>,
    pub mode: Mode,
    /// Whether the interface of the default route may be taken.
    pub force: bool,
}

impl System for Kernel<'_> {
    fn find(&mut self, interface: &str) -> Option<Found> {
        let LinkInfo { index, mac, mtu, up, .. } = LinkInfo::read(interface).ok()?;
        // An IP packet has no more than 65,535 bytes, whatever the link carries.
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Some(Found { index, link: Link { mac, mtu }, up })
    }

    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<u32, String> {
        if !self.force && preflight::default_routes_now().contains(&*entry.interface) {
            let name = &entry.interface;
            return Err(format!("{name} carries the node's default route\nhelp: start with --force if that is meant"));
        }
        // Before the first packet comes.
        let offload = settle_offload(entry);
        let mode = match self.mode {
            Mode::Drv => XdpMode::Drv,
            Mode::Skb => XdpMode::Skb,
            Mode::Auto => XdpMode::Auto,
        };
        let interface = Interface::open(&entry.interface, mode).map_err(|error| error.to_string())?;
        if interface.info().index != found.index {
            return Err("its interface is just being replaced".to_owned());
        }
        let umem = Arc::clone(self.vswitch.pool().umem());
        let queues = interface.ports(&umem, QueueConfig::default()).map_err(|error| error.to_string())?;
        if let Some(refusal) = interface.drv_refusal() {
            log::info(&format!("port {entry}: mode skb, because the driver refuses XDP: {refusal}"));
        }
        if let Some(finding) = preflight::judge_offload(entry, &offload) {
            log::warn(&finding);
        }
        let count = interface.info().queues;
        self.opened.push((entry.name.clone(), queues));
        self.taken.0.insert(entry.name.clone(), interface);
        Ok(count)
    }

    fn close(&mut self, entry: &PortEntry) {
        self.opened.retain(|(name, _)| *name != entry.name);
        if let Some(id) = self.ids.of(&entry.name).and_then(|id| u16::try_from(id).ok()) {
            self.vswitch.remove_port(PortId(id));
            // Answered when the workers have closed their queues: until then the interface must not go back to the
            // host's stack, which would take the packets.
            let _ = self.vswitch.counters();
            self.closed.push(PortId(id));
        }
        self.taken.0.remove(&entry.name);
    }
}

/// Turns the other end's checksum offload off where that is wanted. Answers how it is now.
fn settle_offload(entry: &PortEntry) -> Offload {
    let offload = Offload::at(entry);
    if !entry.fix_offloads || offload != Offload::On {
        return offload;
    }
    let turn_off = || set_transmit_checksum_offload(&entry.peer, false);
    let done = match &entry.netns {
        Some(netns) => in_namespace(&preflight::namespace_path(netns), turn_off).and_then(|done| done),
        None => turn_off(),
    };
    match done {
        Ok(()) => {
            log::info(&format!("port {entry}: turned the transmit checksum offload of {} off", entry.peer));
            Offload::Off
        }
        Err(error) => Offload::Failed(error.to_string()),
    }
}
