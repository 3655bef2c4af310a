//! The ports' view of the real system: AF_XDP sockets on this machine's interfaces.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_dataplane::io::{
    Interface, LinkInfo, QueueConfig, XdpMode, XskError, XskPort, in_namespace, set_transmit_checksum_offload,
};
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{Link, PortId};

use super::config::{Mode, PortEntry};
use super::ids::Ids;
use super::log;
use super::ports::{Found, Opening, Refusal, System};
use super::preflight::{self, Offload};

/// Interfaces that are held, by name: none of their packets reaches the host's stack while they are in here.
#[derive(Default)]
pub(super) struct Held(HashMap<Arc<str>, Interface>);

/// Ports that are open and not yet the workers': they are handed over when the snapshot knows them.
pub(super) type Opened = Vec<(Arc<str>, Vec<XskPort>)>;

/// See the module. Made for one round of the control thread.
pub(super) struct Kernel<'a> {
    pub vswitch: &'a mut Vswitch,
    pub held: &'a mut Held,
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
        let Ok(LinkInfo { index, mac, mtu, up, queues, transmit_queues, .. }) = LinkInfo::read(interface) else {
            // One that is there under another name stays held: nobody has said that it may be let go.
            if self.held.0.get(interface).is_some_and(|held| !held.is_alive()) {
                self.held.0.remove(interface);
            }
            return None;
        };
        let held = self.held.0.get_mut(interface).filter(|held| held.info().index == index);
        if let Some(held) = held.filter(|held| held.info().queues != queues) {
            // Whether the port is open or not, and before anything else: packets of the new queues go past the vswitch.
            if let Err(error) = held.renew(queues) {
                log::error(&format!(
                    "{error}\nits new queues' packets may go to the host's stack, which knows no policy"
                ));
            }
        }
        // An IP packet has no more than 65,535 bytes, whatever the link carries.
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Some(Found { index, link: Link { mac, mtu }, up, queues, transmit_queues })
    }

    fn hold(&mut self, entry: &PortEntry, found: &Found) -> Result<(), String> {
        if self.held.0.get(&entry.interface).is_some_and(|held| held.info().index == found.index && held.is_alive()) {
            return Ok(());
        }
        if !self.force && preflight::default_routes_now().contains(&*entry.interface) {
            let name = &entry.interface;
            return Err(format!("{name} carries the node's default route\nhelp: start with --force if that is meant"));
        }
        let mode = match self.mode {
            Mode::Drv => XdpMode::Drv,
            Mode::Skb => XdpMode::Skb,
            Mode::Auto => XdpMode::Auto,
        };
        let interface = Interface::hold(&entry.interface, mode).map_err(|error| error.to_string())?;
        if interface.info().index != found.index {
            return Err("its interface is just being replaced".to_owned());
        }
        if let Some(refusal) = interface.drv_refusal() {
            log::info(&format!("port {entry}: mode skb, because the driver refuses XDP: {refusal}"));
        }
        self.held.0.insert(entry.interface.clone(), interface);
        Ok(())
    }

    fn open(&mut self, entry: &PortEntry) -> Result<Opening, Refusal> {
        let Some(interface) = self.held.0.get_mut(&entry.interface) else {
            return Err(Refusal::Other("its interface is not held, a fault of the program".to_owned()));
        };
        // Before the first packet comes.
        let offload = settle_offload(entry);
        let umem = Arc::clone(self.vswitch.pool().umem());
        let queues = interface.try_ports(&umem, QueueConfig::default()).map_err(|error| match error {
            XskError::QueueBusy { .. } => Refusal::Busy(error.to_string()),
            _ => Refusal::Other(error.to_string()),
        })?;
        if let Some(finding) = preflight::judge_offload(entry, &offload) {
            log::warn(&finding);
        }
        let largest_mtu = if queues.iter().all(XskPort::takes_chains) {
            u16::MAX
        } else {
            u16::try_from(Interface::PLAIN_MTU).unwrap_or(u16::MAX)
        };
        let opening = Opening { queues: interface.info().queues, largest_mtu };
        self.opened.push((entry.name.clone(), queues));
        Ok(opening)
    }

    fn close(&mut self, entry: &PortEntry) {
        self.opened.retain(|(name, _)| *name != entry.name);
        if let Some(id) = self.ids.of(&entry.name).and_then(|id| u16::try_from(id).ok()) {
            self.vswitch.remove_port(PortId(id));
            // Answered when the workers have closed their queues: until then they cannot be opened again, and the
            // interface must not go back to the host's stack.
            let _ = self.vswitch.counters();
            self.closed.push(PortId(id));
        }
    }

    fn release(&mut self, interface: &str) {
        self.held.0.remove(interface);
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
