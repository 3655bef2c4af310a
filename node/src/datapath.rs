//! Attaches to this machine's interfaces and hands their packets to the workers.
//!
//! This file contains what all kinds of attachment ([`Attachment`]) share: which interfaces may be attached to, and when the workers get
//! and lose a port.
//!
//! A port reaches the workers in three steps, so that they never have a port that their snapshot does not contain:
//!
//! ```text
//!   open: prepare the attachment --> the composer publishes a snapshot with the port --> hand_over: the workers poll it
//!   close: workers and kernel release the port --> the composer publishes a snapshot without it --> it may be opened again
//!   end:   workers end the sessions of a closed port, whose interface is gone, and tell their other ends
//! ```

mod big_tcp;
mod flow_cache;
mod ports;
mod shared_uplink;
mod tc;
mod xdp;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bulkhead_dataplane::io::{FlowSlot, KernelFlowCache, TcDatapath, Umem, XskPort, default_route_interfaces};
use bulkhead_dataplane::vswitch::{Vswitch, VswitchEvent};
use bulkhead_dataplane::{Link, PortId};
use crossbeam_channel::{Receiver, Sender};

use super::composer::Composer;
use super::config::{PortEntry, XdpModeName};
use super::interfaces::Interfaces;
use super::links::Pace;
use super::log;
use super::notice::Notice;
use super::view::PortView;
pub(super) use big_tcp::EarlierLimits;
pub(super) use flow_cache::{Accounts, Cached};
pub(super) use shared_uplink::SharedUplink;
use tc::{TcOpenable, TcPorts};
use xdp::{XdpAttachment, XdpDatapath};

/// The attachment to one interface.
///
/// A new kind needs a variant here and in [`Handover`], a part of [`LinuxDatapath`] like [`XdpDatapath`], and an arm in each `match` of
/// this file, which the compiler lists. [`Interfaces`] is independent of kinds.
#[derive(Debug)]
pub(super) enum Attachment {
    /// AF_XDP sockets on the interface.
    Xdp(XdpAttachment),
    /// Programs at the interface's tc hooks.
    Tc(TcOpenable),
}

/// The parts of an open port that are handed to the workers.
enum Handover {
    /// The port's queues, in order.
    Xdp(Vec<XskPort>),
    /// The port's slot number, which tags its packets on the trunk.
    Tc(FlowSlot),
}

/// The configured kind of attachment, with the state of its ports.
enum Kind {
    Xdp(XdpDatapath),
    Tc(TcPorts),
}

impl Kind {
    const fn accounts(&self) -> &Accounts {
        match self {
            Self::Xdp(xdp) => &xdp.accounts,
            Self::Tc(tc) => &tc.accounts,
        }
    }
}

/// An open port that the workers do not have yet. They get it when the snapshot contains it.
struct NewPort {
    name: Arc<str>,
    handover: Handover,
    /// The message to log once the workers forward the port's packets.
    said: String,
}

/// Settings of the datapath, constant while the process runs.
pub(super) struct DatapathConfig {
    pub mode: XdpModeName,
    /// The maximum size in bytes of pods' TCP packets, and the uplink's interface. `None` keeps the kernel's size.
    pub big_tcp: Option<(u32, Option<Arc<str>>)>,
    /// Whether to attach even to an interface that carries the node's default route (`--force`).
    pub force: bool,
    pub umem: Arc<Umem>,
    pub flow_cache: Option<Arc<KernelFlowCache>>,
    /// The tc programs and the trunk. `None` with `attach: xdp`.
    pub tc: Option<Arc<TcDatapath>>,
    /// The uplink on the host port's interface. `None` without one, and ignored with `attach: xdp`.
    pub shared_uplink: Option<SharedUplink>,
}

/// Attaches to interfaces of this machine, and hands open ports to the workers.
pub(super) struct LinuxDatapath {
    kind: Kind,
    force: bool,
    vswitch: Arc<Vswitch>,
    composer: Arc<Composer>,
    events: Receiver<VswitchEvent>,
    notices: Sender<Notice>,
    /// Workers' reports of failed ports that [`next_failure`](Self::next_failure) has not returned yet.
    failed: VecDeque<VswitchEvent>,
    opened: Vec<NewPort>,
    /// Whether a port was closed since the last [`take_closed`](Self::take_closed).
    has_closed: bool,
    /// Indexes of the interfaces that default routes use. `None` until the first query after [`forget_routes`](Self::forget_routes).
    default_routes: Option<Result<BTreeSet<u32>, String>>,
}

impl LinuxDatapath {
    /// Creates the datapath without any attachment. The main thread learns from `notices` that a worker has ended.
    pub(super) fn new(
        config: DatapathConfig,
        vswitch: Arc<Vswitch>,
        composer: Arc<Composer>,
        notices: Sender<Notice>,
    ) -> Self {
        let DatapathConfig { mode, big_tcp, force, umem, flow_cache, tc, shared_uplink } = config;
        let events = vswitch.event_channel();
        Self {
            kind: match tc {
                Some(tc) => Kind::Tc(TcPorts::new(tc, big_tcp, shared_uplink)),
                None => Kind::Xdp(XdpDatapath::new(mode, umem, flow_cache)),
            },
            force,
            vswitch,
            composer,
            events,
            notices,
            failed: VecDeque::new(),
            opened: Vec::new(),
            has_closed: false,
            default_routes: None,
        }
    }

    /// Returns the channel on which workers report failed ports.
    pub(super) fn events(&self) -> Receiver<VswitchEvent> {
        self.events.clone()
    }

    /// Returns how often to read the interfaces, in addition to the kernel's notifications.
    pub(super) const fn pace(&self) -> Pace {
        match self.kind {
            Kind::Xdp(_) => xdp::PACE,
            Kind::Tc(_) => tc::PACE,
        }
    }

    /// Stores a worker's event for [`next_failure`](Self::next_failure).
    pub(super) fn keep_event(&mut self, event: VswitchEvent) {
        self.failed.push_back(event);
    }

    /// Returns the name and error of the next port that failed in its worker. `None` if no more have failed.
    pub(super) fn next_failure(&mut self) -> Option<(Arc<str>, String)> {
        self.failed.extend(self.events.try_iter());
        while let Some(event) = self.failed.pop_front() {
            match event {
                VswitchEvent::PortGone { port, queue, error } => {
                    if let Some(name) = self.composer.name_of(port) {
                        return Some((name, format!("queue {queue}: {error}")));
                    }
                }
                VswitchEvent::WorkerRestarted { worker } => log::error(&format!(
                    "worker {worker} panicked and continues with its sessions: this is a bug in bulkhead\n\
                     help: report the panic message above this line"
                )),
                // Fails only at shutdown.
                VswitchEvent::WorkerEnded { .. } => drop(self.notices.send(Notice::Died("a worker has"))),
                VswitchEvent::TrunkGone { error } => log::error(&format!(
                    "the trunk has failed, and no new connection passes: {error}\n\
                     help: restart the vswitch; no other program may change or remove its trunk interface"
                )),
            }
        }
        None
    }

    /// Discards the known default routes, which may change at any time. They are read again for the next interface, and not for each of a
    /// hundred interfaces that appear together.
    pub(super) fn forget_routes(&mut self) {
        self.default_routes = None;
    }

    /// Whether a default route uses the interface. An error is text for the log.
    fn carries_default_route(&mut self, index: u32) -> Result<bool, String> {
        let ask = || default_route_interfaces().map_err(|error| format!("cannot read the node's routes: {error}"));
        self.default_routes.get_or_insert_with(ask).as_ref().map(|known| known.contains(&index)).map_err(Clone::clone)
    }

    /// Returns whether a port was closed since the last call.
    pub(super) const fn take_closed(&mut self) -> bool {
        std::mem::replace(&mut self.has_closed, false)
    }

    /// Hands newly opened ports to the workers. The snapshot in force must contain these ports.
    pub(super) fn hand_over(&mut self) {
        let mut said = Vec::new();
        for NewPort { name, handover, said: text } in self.opened.drain(..) {
            let Some(id) = self.composer.id_of(&name) else {
                log::error(&format!("port {name} has no number and is not served: this is a bug in bulkhead"));
                continue;
            };
            match handover {
                Handover::Xdp(queues) => {
                    for (queue, port) in (0..).zip(queues) {
                        self.vswitch.add_port(id, queue, Box::new(port));
                    }
                }
                Handover::Tc(slot) => self.vswitch.attach_port(id, slot),
            }
            self.vswitch.announce(id);
            said.push((name, text));
        }
        if !said.is_empty() {
            // Makes the log true: the second answer follows a round in which the worker filled the port's receive rings.
            let _ = (self.vswitch.counters(), self.vswitch.counters());
        }
        for (name, text) in said {
            tracing::info!(port = &*name, "{text}");
        }
    }

    /// Returns the traffic that the flow cache forwarded: of closed ports, and of the open ports in `interfaces`.
    pub(super) fn cached(&self, interfaces: &Interfaces<Self>) -> Cached {
        cached(self.kind.accounts(), self.shared_uplink(), interfaces)
    }

    /// Drops the datapath's reference to the workers. Returns the ports' flow cache counters for the final summary, and the uplink on the host
    /// port's interface.
    pub(super) fn into_accounts(self) -> (Accounts, Option<SharedUplink>) {
        match self.kind {
            Kind::Xdp(xdp) => (xdp.accounts, None),
            Kind::Tc(tc) => (tc.accounts, tc.shared_uplink),
        }
    }

    /// Returns the names of the ports on this port's interface: its own, and that of the uplink if it shares the interface.
    fn names_on(&self, entry: &PortEntry) -> Vec<Arc<str>> {
        let uplink = self.shared_uplink().filter(|uplink| uplink.is_with(entry)).map(SharedUplink::name);
        std::iter::once(&entry.name).chain(uplink).cloned().collect()
    }

    const fn shared_uplink(&self) -> Option<&SharedUplink> {
        match &self.kind {
            Kind::Tc(tc) => tc.shared_uplink.as_ref(),
            Kind::Xdp(_) => None,
        }
    }

    /// Returns the uplink on the host port's interface, whose link is `host`. `None` if there is none, and while it is closed.
    pub(super) fn uplink_view(&self, host: Option<Link>) -> Option<PortView> {
        self.shared_uplink()?.view(host)
    }

    /// Takes the port from the workers, and discards their earlier events about it, as its number may be reused.
    fn remove(&mut self, id: PortId) {
        self.vswitch.remove_port(id);
        // The workers answer after closing the port's queues. Before that, the queues cannot be opened again, and the interface must not
        // return to the host's stack.
        let _ = self.vswitch.counters();
        self.failed.extend(self.events.try_iter());
        self.failed.retain(|event| !matches!(event, VswitchEvent::PortGone { port, .. } if *port == id));
    }
}

/// Returns the traffic that the flow cache forwarded: of closed ports (`accounts`), and of the open ports in `interfaces` and `uplink`.
pub(super) fn cached(
    accounts: &Accounts,
    uplink: Option<&SharedUplink>,
    interfaces: &Interfaces<LinuxDatapath>,
) -> Cached {
    let open = interfaces.open_attachments().filter_map(|(name, attachment)| {
        let account = match attachment {
            Attachment::Xdp(attachment) => attachment.account(),
            Attachment::Tc(attachment) => attachment.account(),
        };
        Some((name, account?))
    });
    accounts.cached(open.chain(uplink.and_then(SharedUplink::account)))
}
