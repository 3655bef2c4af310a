//! The ports' view of the real system: AF_XDP sockets on this machine's interfaces.

mod flow_cache;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_dataplane::io::{
    CachedTraffic, Interface, KernelFlowCache, LinkInfo, XdpMode, XskError, XskPort, default_route_interfaces,
    in_namespace, set_transmit_checksum_offload,
};
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{Link, PortId, PortKind};

use super::config::{Mode, PortEntry, buffers};
use super::ids::Ids;
use super::log;
use super::ports::{Found, Opening, Refusal, System};
use super::preflight::{self, Offload};
pub(super) use flow_cache::Cached;

/// Interfaces that are held: none of their packets reaches the host's stack while they are in here.
///
/// They are known by what the XDP link says of them and not by name: an interface may be renamed, change its name with
/// another one, or be moved to another namespace and back, and a new one may have its name.
#[derive(Default)]
pub(super) struct Held {
    interfaces: Vec<Taken>,
    /// What a default route needs, as asked in this look at the interfaces.
    default_routes: Option<Result<BTreeSet<u32>, String>>,
    cache: Option<Arc<KernelFlowCache>>,
    /// What it had forwarded from and to ports that were closed, by name.
    ended: BTreeMap<Arc<str>, CachedTraffic>,
}

/// One of them.
struct Taken {
    interface: Interface,
    /// Its number when it was looked at last.
    index: u32,
    /// The configured name that led to it last.
    name: Arc<str>,
    port: Option<OpenPort>,
    /// The number of queues that could not be taken over, so that it is said once.
    said: Option<u32>,
}

impl Taken {
    fn has_port(&self, name: &str) -> bool {
        self.port.as_ref().is_some_and(|port| *port.name == *name)
    }
}

/// The port that is open on an interface.
struct OpenPort {
    name: Arc<str>,
    /// The buffers that its receive rings have, filled or not.
    lent: u32,
    /// Whether the flow cache sends to it, as was found at the last look; none before.
    is_reached: Option<bool>,
    /// What the cache had forwarded when it was opened.
    cached_before: CachedTraffic,
}

impl Held {
    /// The one that is the interface of this number here.
    fn here_as(&mut self, index: u32) -> Option<&mut Taken> {
        let is = |taken: &Taken| taken.interface.is_here_as(index);
        // The numbers as they were known first: asking all of a hundred interfaces takes a while.
        let known = self.interfaces.iter().position(|taken| taken.index == index && is(taken));
        let at = known.or_else(|| self.interfaces.iter().position(is))?;
        let taken = &mut self.interfaces[at];
        taken.index = index;
        Some(taken)
    }

    /// Whether the way to the machine goes over the interface. Errors are for people.
    fn carries_default_route(&mut self, index: u32) -> Result<bool, String> {
        let ask = || default_route_interfaces().map_err(|error| format!("cannot ask for the node's routes: {error}"));
        self.default_routes.get_or_insert_with(ask).as_ref().map(|known| known.contains(&index)).map_err(Clone::clone)
    }
}

/// A port that is open and not yet the workers': it is handed over when the snapshot knows it.
pub(super) struct NewPort {
    /// Its name.
    pub name: Arc<str>,
    /// Its queues, in order.
    pub queues: Vec<XskPort>,
    /// What to say when it forwards.
    pub said: String,
}

/// Several of them.
pub(super) type Opened = Vec<NewPort>;

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
    fn find(&mut self, interface: &str) -> Result<Option<Found>, String> {
        let LinkInfo { index, mac, mtu, up, queues, transmit_queues, .. } = match LinkInfo::read(interface) {
            Ok(info) => info,
            Err(XskError::NoInterface { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let taken = self.held.interfaces.iter_mut().find(|taken| taken.index == index);
        if let Some(taken) = taken.filter(|taken| taken.interface.info().queues != queues) {
            // Whether the port is open or not, and before anything else: packets of the new queues go past the vswitch.
            let renewed = taken.interface.renew(queues);
            let before = std::mem::replace(&mut taken.said, renewed.is_err().then_some(queues));
            if let Some(error) = renewed.err().filter(|_| before != Some(queues)) {
                log::error(&format!(
                    "{error}\nits new queues' packets may go to the host's stack, which knows no policy; it is tried again"
                ));
            }
        }
        // An IP packet has no more than 65,535 bytes, whatever the link carries.
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Ok(Some(Found { index, link: Link { mac, mtu }, up, queues, transmit_queues }))
    }

    fn hold(&mut self, entry: &PortEntry, found: &Found) -> Result<(), String> {
        if let Some(taken) = self.held.here_as(found.index) {
            taken.name = entry.interface.clone();
            return Ok(());
        }
        if !self.force && self.held.carries_default_route(found.index)? {
            let name = &entry.interface;
            return Err(format!("{name} carries the node's default route\nhelp: start with --force if that is meant"));
        }
        let mode = match self.mode {
            Mode::Drv => XdpMode::Drv,
            Mode::Skb => XdpMode::Skb,
            Mode::Auto => XdpMode::Auto,
        };
        // The cache is for what goes from pod to pod.
        let cache = self.held.cache.as_ref().filter(|_| entry.kind == PortKind::Pod);
        let interface = Interface::hold(&entry.interface, mode, cache).map_err(|error| error.to_string())?;
        if interface.info().index != found.index {
            return Err("its interface is just being replaced".to_owned());
        }
        if let Some(refusal) = interface.drv_refusal() {
            log::info(&format!("port {entry}: mode skb, because the driver refuses XDP: {refusal}"));
        }
        let (index, name) = (found.index, entry.interface.clone());
        self.held.interfaces.push(Taken { interface, index, name, port: None, said: None });
        Ok(())
    }

    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<Opening, Refusal> {
        let lent: u32 = self.held.interfaces.iter().filter_map(|taken| taken.port.as_ref()).map(|port| port.lent).sum();
        let rings = buffers::rings(entry.kind, self.held.interfaces.len());
        let cache = self.held.cache.clone();
        let Some(taken) = self.held.here_as(found.index) else {
            return Err(Refusal::Other("its interface is not held, a fault of the program".to_owned()));
        };
        let umem = Arc::clone(self.vswitch.pool().umem());
        let wanted = found.queues.saturating_mul(rings.receive);
        check_buffers(umem.chunks(), lent, wanted).map_err(Refusal::Other)?;
        // Before the first packet comes.
        let offload = settle_offload(entry);
        if cache.is_some() {
            flow_cache::settle_receive_offload(entry);
        }
        let queues = taken.interface.try_ports(&entry.interface, &umem, rings).map_err(|error| match error {
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
        let opening = Opening { queues: taken.interface.info().queues, largest_mtu };
        let slot = taken.interface.slot();
        taken.port = Some(OpenPort {
            name: entry.name.clone(),
            lent: opening.queues.saturating_mul(rings.receive),
            is_reached: None,
            cached_before: cache.zip(slot).map(|(cache, slot)| cache.traffic(slot)).unwrap_or_default(),
        });
        let (count, mtu) = (super::ports::queues(opening.queues), found.link.mtu);
        let said = format!("port {entry} is open: interface {}, {count}, MTU {mtu}", found.index);
        self.opened.push(NewPort { name: entry.name.clone(), queues, said });
        Ok(opening)
    }

    fn close(&mut self, entry: &PortEntry) {
        self.opened.retain(|new| new.name != entry.name);
        let id = self.ids.of(&entry.name).and_then(|id| u16::try_from(id).ok()).map(PortId);
        self.held.leave_port(&entry.name, id);
        if let Some(id) = id {
            self.vswitch.remove_port(id);
            // Answered when the workers have closed their queues: until then they cannot be opened again, and the
            // interface must not go back to the host's stack.
            let _ = self.vswitch.counters();
            self.closed.push(id);
        }
        // Now that nothing comes in through it any more.
        self.held.end_ports(|taken| taken.has_port(&entry.name));
    }

    fn release_others(&mut self, names: &BTreeSet<&str>, found: &BTreeSet<u32>) {
        // What has gone during this look has a port still, which the next look closes.
        self.held.end_ports(|taken| taken.interface.index().is_none());
        self.held.interfaces.retain_mut(|taken| match taken.interface.index() {
            None => false,
            Some(index) => {
                taken.index = index;
                found.contains(&index) || names.contains(&*taken.name)
            }
        });
        self.held.default_routes = None;
    }
}

/// Whether so many of `all` buffers can be kept to receive into, besides those that open ports keep. With less a port
/// would be open and silently receive nothing.
fn check_buffers(all: u32, lent: u32, wanted: u32) -> Result<(), String> {
    let needed = lent.saturating_add(wanted).saturating_add(buffers::UNDER_WAY);
    if needed <= all {
        return Ok(());
    }
    let left = all.saturating_sub(lent).saturating_sub(buffers::UNDER_WAY);
    Err(format!(
        "it needs {wanted} packet buffers to receive into, and {left} of {all} are left\n\
         help: raise workers.frames to {needed} at least, which needs a restart"
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_buffers_to_receive_into_is_refused_with_the_number_that_is_enough() {
        assert_eq!(check_buffers(4_096, 1_024, 1_024), Ok(()));
        let error = check_buffers(4_096, 1_024, 1_025).unwrap_err();
        assert!(error.contains("1024 of 4096 are left") && error.contains("workers.frames to 4097"), "{error}");
        assert!(check_buffers(4_096, u32::MAX, u32::MAX).is_err());
    }
}
