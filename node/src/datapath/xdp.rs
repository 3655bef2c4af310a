//! `attach: xdp`: AF_XDP sockets on the interfaces.
//!
//! An XDP program passes the interface's packets to sockets, one per queue. While a port is closed, the program's map has no sockets, and
//! all packets are dropped. Each port needs its own receive buffers, and the other end of a veth must not leave checksums to hardware
//! ([`settle_transmit_offload`]).

use std::sync::Arc;
use std::time::Duration;

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{
    FlowCache, Interface, KernelFlowCache, KernelFlows, LinkInfo, LinkStatus, Umem, XdpMode, XskError, XskPort,
    in_namespace, set_generic_receive_offload, set_transmit_checksum_offload, takes_xdp_frames,
};

use super::flow_cache::{Account, Accounts};
use crate::config::{PortEntry, XdpModeName, buffers};
use crate::interfaces::{AttachError, OpenError};
use crate::links::Pace;
use crate::log;
use crate::preflight::{self, Offload};

/// The kernel does not report changes of the number of queues or of a pod's GRO. Polling detects them within four seconds.
pub(super) const PACE: Pace = Pace { table: Duration::from_secs(2), ask: 2 };

/// An attachment to an interface: an XDP program, and the sockets while the port is open.
#[derive(Debug)]
pub(crate) struct XdpAttachment {
    interface: Interface,
    open: Option<OpenQueues>,
    /// The number of queues when attaching to all of them last failed, to log that once. `None` if all are attached.
    said: Option<u32>,
    /// A reference whose count is the number of interfaces attached to the data path, to divide the buffers among them.
    _counted: Arc<()>,
}

/// The queues and buffers of an open port.
#[derive(Debug)]
struct OpenQueues {
    receive: u32,
    transmit: u32,
    /// Number of buffers reserved for the receive rings.
    lent: u32,
    /// Whether the flow cache can send to the port. `None` until first checked.
    is_reached: Option<bool>,
    account: Option<Account>,
}

impl XdpAttachment {
    pub(super) fn index(&self) -> Option<u32> {
        self.interface.index()
    }

    pub(super) fn is_here_as(&self, index: u32) -> bool {
        self.interface.is_here_as(index)
    }

    pub(super) fn account(&self) -> Option<&Account> {
        self.open.as_ref()?.account.as_ref()
    }
}

/// The result of opening a port.
pub(super) struct XdpOpening {
    /// The port's queues, in order.
    pub(super) queues: Vec<XskPort>,
    /// The largest MTU that the port can carry, in bytes.
    pub(super) largest_mtu: u16,
    /// The message to log once the workers forward the port's packets.
    pub(super) said: String,
}

/// The state that all ports with AF_XDP sockets share.
#[derive(Debug)]
pub(super) struct XdpDatapath {
    mode: XdpModeName,
    umem: Arc<Umem>,
    cache: Option<Arc<KernelFlowCache>>,
    pub(super) accounts: Accounts,
    /// Number of buffers reserved for the receive rings of all open ports.
    lent: u32,
    attachments: Arc<()>,
}

impl XdpDatapath {
    /// Creates the state without any attachment. With a cache, the kernel forwards packets of established sessions between pods.
    pub(super) fn new(mode: XdpModeName, umem: Arc<Umem>, cache: Option<Arc<KernelFlowCache>>) -> Self {
        let flows = cache.clone().map(|cache| -> Arc<dyn KernelFlows> { cache });
        Self { mode, umem, cache, accounts: Accounts::new(flows), lent: 0, attachments: Arc::new(()) }
    }

    pub(super) fn attach(&self, entry: &PortEntry, link: &LinkStatus) -> Result<XdpAttachment, AttachError> {
        let mode = match self.mode {
            XdpModeName::Drv => XdpMode::Drv,
            XdpModeName::Skb => XdpMode::Skb,
            XdpModeName::Auto => XdpMode::Auto,
        };
        // The cache only forwards between pods.
        let cache = self.cache.as_ref().filter(|_| entry.kind == PortKind::Pod);
        let interface = Interface::hold(&entry.interface, mode, cache).map_err(|error| match error {
            XskError::NoInterface { .. } => AttachError::Gone,
            error => AttachError::Refused(error.to_string()),
        })?;
        if interface.info().index != link.index {
            return Err(AttachError::Gone);
        }
        if let Some(refusal) = interface.drv_refusal() {
            log::info(&format!("port {entry} uses mode skb, because the driver refuses XDP: {refusal}"));
        }
        Ok(XdpAttachment { interface, open: None, said: None, _counted: Arc::clone(&self.attachments) })
    }

    /// Adapts to the interface's present queues and flow cache support. Returns why an open port must be reopened. `None` if it need not.
    pub(super) fn refresh(
        &self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut XdpAttachment,
    ) -> Result<Option<String>, String> {
        let LinkInfo { queues, transmit_queues, .. } = match LinkInfo::read(&entry.interface) {
            Ok(info) if info.index == link.index => info,
            // The kernel's notification of that will follow.
            Ok(_) | Err(XskError::NoInterface { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        if attachment.interface.info().queues != queues {
            // First, and also for closed ports: until then, packets of new queues bypass the vswitch.
            let renewed = attachment.interface.renew(queues);
            let before = std::mem::replace(&mut attachment.said, renewed.is_err().then_some(queues));
            if let Some(error) = renewed.err().filter(|_| before != Some(queues)) {
                log::error(&format!(
                    "port {entry}: {error}\npackets of its new queues may reach the host's stack without policy; the vswitch retries"
                ));
            }
        }
        self.reach(entry, link.index, attachment);
        let Some(open) = &attachment.open else { return Ok(None) };
        Ok(((open.receive, open.transmit) != (queues, transmit_queues)).then(|| {
            format!(
                "its interface has {} to receive and {} to transmit now, instead of {} and {}",
                count_queues(queues),
                transmit_queues,
                open.receive,
                open.transmit
            )
        }))
    }

    pub(super) fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut XdpAttachment,
    ) -> Result<XdpOpening, OpenError> {
        // All attachments except this one.
        let attachments = Arc::strong_count(&self.attachments) - 1;
        let rings = buffers::rings(entry.kind, attachments);
        let info = LinkInfo::read(&entry.interface).map_err(|error| refused(&error))?;
        let wanted = info.queues.saturating_mul(rings.receive);
        check_buffers(self.umem.chunks(), self.lent, wanted).map_err(OpenError::Refused)?;
        // Before the first packet arrives.
        let offload = settle_transmit_offload(entry);
        if self.cache.is_some() {
            settle_receive_offload(entry);
        }
        let queues =
            attachment.interface.try_ports(&entry.interface, &self.umem, rings).map_err(|error| refused(&error))?;
        if let Some(finding) = preflight::judge_offload(entry, &offload) {
            log::warn(&finding);
        }
        let largest_mtu = if queues.iter().all(XskPort::takes_chains) {
            u16::MAX
        } else {
            u16::try_from(Interface::PLAIN_MTU).unwrap_or(u16::MAX)
        };
        let LinkInfo { queues: receive, transmit_queues: transmit, .. } = *attachment.interface.info();
        let lent = receive.saturating_mul(rings.receive);
        self.lent = self.lent.saturating_add(lent);
        let account = self.accounts.begin(attachment.interface.slot());
        attachment.open = Some(OpenQueues { receive, transmit, lent, is_reached: None, account });
        self.reach(entry, link.index, attachment);
        let said = format!(
            "port {entry} is open: interface {}, {}, MTU {}",
            link.index,
            count_queues(receive),
            link.mtu.min(u16::MAX.into())
        );
        Ok(XdpOpening { queues, largest_mtu, said })
    }

    /// Stops the flow cache from sending to a port that is about to be closed.
    pub(super) fn leave(&self, attachment: &XdpAttachment) {
        if let Some((cache, slot)) = self.cache.as_ref().zip(attachment.interface.slot()) {
            // Fails only if the interface is gone, which also stops sending.
            let _ = cache.reach(slot, None);
        }
    }

    /// Releases the buffers of a closed port and keeps its counts.
    pub(super) fn end(&mut self, entry: &PortEntry, attachment: &mut XdpAttachment) {
        let Some(open) = attachment.open.take() else { return };
        self.lent = self.lent.saturating_sub(open.lent);
        if let Some(account) = &open.account {
            self.accounts.end(&entry.name, account);
        }
    }

    /// Lets the cache send to an open pod port if its interface accepts redirected packets, and not otherwise.
    fn reach(&self, entry: &PortEntry, index: u32, attachment: &mut XdpAttachment) {
        let slot = attachment.interface.slot();
        let (Some(cache), Some(slot), Some(open)) = (&self.cache, slot, &mut attachment.open) else { return };
        // In generic mode, the kernel sends its own packet buffers, which every interface accepts.
        let told = if self.mode == XdpModeName::Skb { Ok(true) } else { takes_xdp_frames(index) };
        let takes = *told.as_ref().unwrap_or(&false);
        if takes == cache.reaches(slot) && open.is_reached == Some(takes) {
            return;
        }
        // If the cache refuses, the port counts as unreachable until the next check.
        let is_reached = takes && cache.reach(slot, Some(index)).is_ok();
        if !is_reached {
            let _ = cache.reach(slot, None);
        }
        if open.is_reached.replace(is_reached) != Some(is_reached) && !is_reached {
            let why = match told {
                Ok(_) => not_taken(entry).to_owned(),
                Err(error) => format!(
                    "cannot read from the kernel whether its interface accepts redirected packets: {error}\n\
                     help: use Linux 6.3 or newer, or set mode: skb"
                ),
            };
            log::info(&format!("port {entry}: the workers forward all packets to it, without the flow cache: {why}"));
        }
    }
}

fn refused(error: &XskError) -> OpenError {
    match error {
        XskError::NoInterface { .. } => OpenError::Gone,
        XskError::QueueBusy { .. } => OpenError::Busy(error.to_string()),
        _ => OpenError::Refused(error.to_string()),
    }
}

/// Formats a number of queues: `1 queue`, `2 queues`.
fn count_queues(count: u32) -> String {
    if count == 1 { "1 queue".to_owned() } else { format!("{count} queues") }
}

/// Checks that `wanted` of `all` buffers are free, besides the `lent` ones of open ports. A port with too few would silently receive
/// nothing.
fn check_buffers(all: u32, lent: u32, wanted: u32) -> Result<(), String> {
    let needed = lent.saturating_add(wanted).saturating_add(buffers::UNDER_WAY);
    if needed <= all {
        return Ok(());
    }
    let left = all.saturating_sub(lent).saturating_sub(buffers::UNDER_WAY);
    Err(format!(
        "it needs {wanted} receive buffers, and {left} of {all} are free\n\
         help: set workers.frames to at least {needed}, plus {wanted} for each further port, and restart the vswitch"
    ))
}

/// Returns why the interface accepts no packets from the flow cache, with the remedy, for the log.
fn not_taken(entry: &PortEntry) -> &'static str {
    match entry.fix_offloads {
        // Opening the port turned it on, which has an effect only while the other end is up.
        true => {
            "its other end is down, or another program turned off generic receive offload there\n\
             help: run `ethtool -K eth0 gro on` in the pod, or reopen the port: set its interface down and up with `ip link`"
        }
        false => {
            "its other end has generic receive offload off\n\
             help: run `ethtool -K eth0 gro on` in the pod, or set netns and fix_offloads: true on the port"
        }
    }
}

/// Turns off the other end's transmit checksum offload if `fix_offloads` is set. Returns its state.
fn settle_transmit_offload(entry: &PortEntry) -> Offload {
    let offload = Offload::at(entry);
    if !entry.fix_offloads || offload != Offload::On {
        return offload;
    }
    match at_peer(entry, || set_transmit_checksum_offload(&entry.peer, false)) {
        Ok(()) => {
            log::info(&format!("port {entry}: turned off the transmit checksum offload of {}", entry.peer));
            Offload::Off
        }
        Err(error) => Offload::Failed(error.to_string()),
    }
}

/// Turns on receive offload at the other end of a pod's port if `fix_offloads` is set. The flow cache needs that. Failure is only logged.
fn settle_receive_offload(entry: &PortEntry) {
    if !entry.fix_offloads || entry.kind != PortKind::Pod {
        return;
    }
    if let Err(error) = at_peer(entry, || set_generic_receive_offload(&entry.peer, true)) {
        log::info(&format!("port {entry}: cannot turn on the generic receive offload of {}: {error}", entry.peer));
    }
}

/// Runs a function in the network namespace of the port's other end.
fn at_peer(entry: &PortEntry, act: impl FnOnce() -> Result<(), XskError> + Send) -> Result<(), XskError> {
    match &entry.netns {
        Some(netns) => in_namespace(&preflight::namespace_path(netns), act).and_then(|done| done),
        None => act(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_port_without_buffers_to_receive_into_is_refused_with_the_number_that_is_enough() {
        assert_eq!(check_buffers(4_096, 1_024, 1_024), Ok(()));
        let error = check_buffers(4_096, 1_024, 1_025).unwrap_err();
        assert!(
            error.contains("1024 of 4096 are free")
                && error.contains("workers.frames to at least 4097, plus 1025 for each"),
            "{error}"
        );
        assert!(check_buffers(4_096, u32::MAX, u32::MAX).is_err());
    }

    #[test]
    fn nobody_is_told_to_set_what_is_set_already() {
        let text = "node: n\nstate: {paths: [s]}\nports: [{kind: pod, pod: x/a, interface: va, netns: a}]\n";
        let mut port = Config::parse("c", text, std::path::Path::new("")).unwrap().ports.remove(0);
        assert!(not_taken(&port).contains("fix_offloads: true"));
        port.fix_offloads = true;
        let told = not_taken(&port);
        assert!(!told.contains("fix_offloads") && told.contains("is down") && told.contains("help: "), "{told}");
    }
}
