//! What attaches to this machine's interfaces, and hands their packets to the workers.
//!
//! There are kinds of attachment ([`Attachment`]); everything that they have in common is here: who may be attached to at all,
//! when a port is the workers' and when it is theirs no more.
//!
//! A port goes to the workers in three steps, so that they never have a port which their snapshot does not know:
//!
//! ```text
//!   open: what is needed is there --> the composer publishes a snapshot with the port --> hand_over: it is the workers'
//!   close: workers and kernel have it no more --> the composer publishes a snapshot without it --> it may be opened again
//! ```

mod big_tcp;
mod flow_cache;
mod tc;
mod xdp;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bulkhead_dataplane::PortId;
use bulkhead_dataplane::io::{
    FlowSlot, KernelFlowCache, LinkStatus, TcDatapath, Umem, XskPort, default_route_interfaces, set_link_up,
};
use bulkhead_dataplane::vswitch::{Vswitch, VswitchEvent};
use crossbeam_channel::Receiver;

use super::composer::Composer;
use super::config::{Mode, PortEntry};
use super::interfaces::{AttachError, Datapath, Interfaces, OpenError, Opening};
use super::links::Pace;
use super::log;
use big_tcp::BigTcp;
pub(super) use flow_cache::{Accounts, Cached};
use tc::{TcOpenable, TcOpening, TcPorts};
use xdp::{XdpAttachment, XdpDatapath, XdpOpening};

/// What is attached to an interface, by kind.
///
/// A further kind is a variant here and in [`Handover`], a part of [`LinuxDatapath`] like [`XdpDatapath`], and an arm in each
/// `match` of this file: the compiler names them. [`Interfaces`] does not know of kinds.
#[derive(Debug)]
pub(super) enum Attachment {
    /// AF_XDP sockets on the interface itself.
    Xdp(XdpAttachment),
    /// Programs at its tc hooks.
    Tc(TcOpenable),
}

/// What the workers are given of an open port, by kind of attachment.
enum Handover {
    /// Its queues, in order.
    Xdp(Vec<XskPort>),
    /// Its tag on the trunk.
    Tc(FlowSlot),
}

/// What new interfaces are attached to.
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

/// A port that is open and not yet the workers': it is handed over when the snapshot knows it.
struct NewPort {
    name: Arc<str>,
    handover: Handover,
    /// What to say when it forwards.
    said: String,
}

/// What there is for the life of the process.
pub(super) struct DatapathConfig {
    pub mode: Mode,
    /// How long the packets may be in which pods send TCP over IPv4, in bytes, and the uplink's interface.
    pub big_tcp: Option<(u32, Option<Arc<str>>)>,
    /// Whether the interface of the default route may be attached to.
    pub force: bool,
    pub umem: Arc<Umem>,
    pub flow_cache: Option<Arc<KernelFlowCache>>,
    /// The programs and the trunk, with `attach: tc`.
    pub tc: Option<Arc<TcDatapath>>,
}

/// See the module.
pub(super) struct LinuxDatapath {
    kind: Kind,
    force: bool,
    vswitch: Arc<Vswitch>,
    composer: Arc<Composer>,
    events: Receiver<VswitchEvent>,
    /// Ports that have failed while another one was being closed.
    failed: VecDeque<VswitchEvent>,
    opened: Vec<NewPort>,
    /// Interfaces that a default route needs, as asked since [`forget_routes`](Self::forget_routes).
    default_routes: Option<Result<BTreeSet<u32>, String>>,
}

impl LinuxDatapath {
    pub(super) fn new(config: DatapathConfig, vswitch: Arc<Vswitch>, composer: Arc<Composer>) -> Self {
        let DatapathConfig { mode, big_tcp, force, umem, flow_cache, tc } = config;
        let events = vswitch.event_channel();
        Self {
            kind: match tc {
                Some(tc) => Kind::Tc(TcPorts::new(tc, big_tcp.map(|(bytes, uplink)| BigTcp::new(bytes, uplink)))),
                None => Kind::Xdp(XdpDatapath::new(mode, umem, flow_cache)),
            },
            force,
            vswitch,
            composer,
            events,
            failed: VecDeque::new(),
            opened: Vec::new(),
            default_routes: None,
        }
    }

    /// Where the workers tell of ports that have failed.
    pub(super) fn events(&self) -> Receiver<VswitchEvent> {
        self.events.clone()
    }

    /// How often the interfaces are looked at although the kernel tells of changes.
    pub(super) const fn pace(&self) -> Pace {
        match self.kind {
            Kind::Xdp(_) => xdp::PACE,
            Kind::Tc(_) => tc::PACE,
        }
    }

    /// Keeps what a worker has told.
    pub(super) fn keep_event(&mut self, event: VswitchEvent) {
        self.failed.push_back(event);
    }

    /// The next port that has failed by itself, and why.
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
                VswitchEvent::TrunkGone { error } => log::error(&format!(
                    "the trunk has failed, and no new connection passes: {error}\n\
                     help: restart the vswitch; no other program may change or remove its trunk interface"
                )),
            }
        }
        None
    }

    /// Asks anew which interfaces a default route needs when that matters next: routes change at any time, and asking for each
    /// of a hundred interfaces that come at once takes a while.
    pub(super) fn forget_routes(&mut self) {
        self.default_routes = None;
    }

    /// Whether the way to the machine goes over the interface. Errors are for people.
    fn carries_default_route(&mut self, index: u32) -> Result<bool, String> {
        let ask = || default_route_interfaces().map_err(|error| format!("cannot ask for the node's routes: {error}"));
        self.default_routes.get_or_insert_with(ask).as_ref().map(|known| known.contains(&index)).map_err(Clone::clone)
    }

    /// Gives ports that were opened to the workers, which know them by now.
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
            said.push((name, text));
        }
        if !said.is_empty() {
            // What is said is true then: the second answer comes after a round in which the worker has given the port's
            // rings buffers to receive into.
            let _ = (self.vswitch.counters(), self.vswitch.counters());
        }
        for (name, text) in said {
            tracing::info!(port = &*name, "{text}");
        }
    }

    /// What was forwarded without the workers, with these interfaces.
    pub(super) fn cached(&self, interfaces: &Interfaces<Self>) -> Cached {
        cached(self.kind.accounts(), interfaces)
    }

    /// Lets go of the workers.
    pub(super) fn into_accounts(self) -> Accounts {
        match self.kind {
            Kind::Xdp(xdp) => xdp.accounts,
            Kind::Tc(tc) => tc.accounts,
        }
    }

    /// The workers have a port no more when this returns, and what they have told of it before is forgotten: the next port of this
    /// number is another one.
    fn remove(&mut self, id: PortId) {
        self.vswitch.remove_port(id);
        // Answered when the workers have closed their queues: until then these cannot be opened again, and the interface must not
        // go back to the host's stack.
        let _ = self.vswitch.counters();
        self.failed.extend(self.events.try_iter());
        self.failed.retain(|event| !matches!(event, VswitchEvent::PortGone { port, .. } if *port == id));
    }
}

/// What was forwarded without the workers.
pub(super) fn cached(accounts: &Accounts, interfaces: &Interfaces<LinuxDatapath>) -> Cached {
    accounts.cached(interfaces.open_attachments().filter_map(|(name, attachment)| {
        let account = match attachment {
            Attachment::Xdp(attachment) => attachment.account(),
            Attachment::Tc(attachment) => attachment.account(),
        };
        Some((name, account?))
    }))
}

impl Datapath for LinuxDatapath {
    type Attachment = Attachment;

    fn attach(&mut self, entry: &PortEntry, link: &LinkStatus) -> Result<Attachment, AttachError> {
        if !self.force && self.carries_default_route(link.index).map_err(AttachError::Refused)? {
            let name = &entry.interface;
            let help = "help: start with --force if that is meant";
            return Err(AttachError::Refused(format!("{name} carries the node's default route\n{help}")));
        }
        match &self.kind {
            Kind::Xdp(xdp) => xdp.attach(entry, link).map(Attachment::Xdp),
            Kind::Tc(tc) => tc.attach(entry, link).map(Attachment::Tc),
        }
    }

    fn set_up(&mut self, link: &LinkStatus) -> Result<(), String> {
        set_link_up(link.index).map_err(|error| error.to_string())
    }

    fn index(&self, attachment: &Attachment) -> Option<u32> {
        match attachment {
            Attachment::Xdp(attachment) => attachment.index(),
            Attachment::Tc(attachment) => attachment.index(),
        }
    }

    fn is_here_as(&self, attachment: &Attachment, index: u32) -> bool {
        match attachment {
            Attachment::Xdp(attachment) => attachment.is_here_as(index),
            Attachment::Tc(attachment) => attachment.is_here_as(index),
        }
    }

    fn refresh(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Attachment,
    ) -> Result<Option<String>, String> {
        match (&self.kind, attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => xdp.refresh(entry, link, attachment),
            // Its number of queues does not matter, and all else rtnetlink tells.
            (_, Attachment::Tc(attachment)) => attachment.restore(entry).map(|()| None),
            (Kind::Tc(_), Attachment::Xdp(_)) => Ok(None),
        }
    }

    fn is_unsettled(&self, attachment: &Attachment) -> bool {
        match attachment {
            Attachment::Xdp(_) => false,
            Attachment::Tc(attachment) => attachment.is_unsettled(),
        }
    }

    fn settle(&mut self, attachment: &mut Attachment) -> Result<(), String> {
        match attachment {
            Attachment::Xdp(_) => Ok(()),
            Attachment::Tc(attachment) => attachment.settle(),
        }
    }

    fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut Attachment,
    ) -> Result<Opening, OpenError> {
        let (handover, largest_mtu, said) = match (&mut self.kind, attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => {
                let XdpOpening { queues, largest_mtu, said } = xdp.open(entry, link, attachment)?;
                (Handover::Xdp(queues), largest_mtu, said)
            }
            (Kind::Tc(tc), Attachment::Tc(attachment)) => {
                let TcOpening { slot, said } = tc.open(entry, link, attachment)?;
                (Handover::Tc(slot), u16::MAX, said)
            }
            _ => {
                return Err(OpenError::Refused(
                    "it is attached by another datapath: this is a bug in bulkhead".to_owned(),
                ));
            }
        };
        self.opened.push(NewPort { name: entry.name.clone(), handover, said });
        Ok(Opening { largest_mtu })
    }

    fn close(&mut self, entry: &PortEntry, attachment: &mut Attachment) {
        self.opened.retain(|new| new.name != entry.name);
        match (&self.kind, &mut *attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => xdp.leave(attachment),
            (Kind::Tc(tc), Attachment::Tc(attachment)) => tc.close(attachment),
            _ => {}
        }
        // The port's flows end, as it may be opened again, and be another pod's, before the workers know of that.
        if let Some(id) = self.composer.id_of(&entry.name) {
            self.composer.end_flows(id);
            self.remove(id);
            // Once more: the other side may have published meanwhile, and workers that still had the port may have added flows.
            self.composer.end_flows(id);
        }
        match (&mut self.kind, attachment) {
            (Kind::Xdp(xdp), Attachment::Xdp(attachment)) => xdp.end(entry, attachment),
            (Kind::Tc(tc), Attachment::Tc(attachment)) => tc.end(entry, attachment),
            _ => {}
        }
    }
}
