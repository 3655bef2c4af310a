//! Reads the DNS answers of a capture like the vswitches of the pods' nodes: which names had a pod resolved to an address?
//!
//! ```text
//!  DNS packets of a capture --node of the client--> worker with an open policy --> learned names of the node's pods
//!  first packet of a session: client, server, time ------------------------------------'--> names
//! ```
//! Every pod learns every name, as if a rule named it. Policy does not matter: the capture shows that the pod got the answer. Trusted
//! servers, open questions, TTLs and limits are those of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, OriginId, Rule, Tables, protocol};
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::Settings;
use bulkhead_dataplane::io::CapturedPacket;
use bulkhead_dataplane::{
    Flow, Holder, NextHop, Outcome, Packet, PortConfig, PortId, PortKind, Routes, SessionConfig, Snapshot, TableId,
    Worker, WorkerConfig,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::ResolvedNames;
use crate::run::{self, NameSettings};
use crate::services::{self, Adapter};

/// Port of DNS servers (RFC 1035 section 4.2).
const DNS: u16 = 53;

/// Maximum number of a node's DNS conversations: at 30 s each, 2,000 new ones a second.
const SESSIONS: usize = 1 << 16;

/// Time between two sweeps of learned names in nanoseconds, as on a node.
const SWEEP: u64 = 1_000_000_000;

/// The port of all that is no pod of the node.
const UPLINK: PortId = PortId(0);

/// The nodes of a state, whose pods learn names from the DNS answers of captures.
pub struct Listeners<'a> {
    pipeline: &'a Pipeline,
    services: &'a [Object],
    settings: &'a Settings,
    names: &'a NameSettings,
    /// The nodes with a pod that has talked to a DNS server. `None` if the state's pods do not fit into a snapshot.
    nodes: BTreeMap<Arc<str>, Option<Listener>>,
}

impl<'a> Listeners<'a> {
    /// Returns the nodes of a state with its Services and EndpointSlices. `names` has the trusted DNS servers besides the cluster's.
    pub const fn new(
        pipeline: &'a Pipeline,
        services: &'a [Object],
        settings: &'a Settings,
        names: &'a NameSettings,
    ) -> Self {
        Self { pipeline, services, settings, names, nodes: BTreeMap::new() }
    }

    /// Learns from a packet, in the order of the capture. Ignores all except DNS over UDP and TCP. `is_fragment`: whether the packet is a
    /// later fragment, which has no ports.
    pub(super) fn hear(&mut self, packet: &CapturedPacket<'_>, flow: &Flow, is_fragment: bool) {
        let is_dns = flow.sport == DNS || flow.dport == DNS || is_fragment;
        if !is_dns || !matches!(flow.protocol, protocol::UDP | protocol::TCP) {
            return;
        }
        let asks = (flow.dport == DNS).then(|| self.node_of(flow.src)).flatten();
        let answered = (flow.sport == DNS || is_fragment).then(|| self.node_of(flow.dst)).flatten();
        for node in asks.iter().chain(answered.iter().filter(|node| asks.as_ref() != Some(node))) {
            if !self.nodes.contains_key(node) && !is_fragment {
                let listener = Listener::new(self, node);
                self.nodes.insert(node.clone(), listener);
            }
            if let Some(Some(listener)) = self.nodes.get_mut(node) {
                listener.hear(packet, flow.src);
            }
        }
    }

    /// Returns the names that the pod with the address `client` had resolved to `server` at `time`, in nanoseconds since 1970. Empty if no
    /// pod has that address.
    pub(super) fn names_of(&self, client: IpAddr, server: IpAddr, time: u64) -> ResolvedNames {
        let mut names = ResolvedNames::default();
        if self.nodes.is_empty() {
            return names;
        }
        if let Some(Some(Listener { snapshot, worker, .. })) =
            self.node_of(client).map(|node| self.nodes.get(&node)?.as_ref())
        {
            let holder = snapshot.owner(client).and_then(|port| snapshot.names()?.holder(port));
            if let Some(holder) = holder {
                worker.learned().names_of(holder, server, time, |_, name| names.add(name));
            }
        }
        names
    }

    /// Returns the node of the pod with this address. `None` if no pod has it, and for pods on the host network.
    fn node_of(&self, address: IpAddr) -> Option<Arc<str>> {
        let mut pods = self.pipeline.cache().pods_at(address).map(|(_, pod)| pod);
        pods.find(|pod| !pod.host_network && !pod.finished)?.node.clone()
    }
}

/// A node whose pods learn names.
struct Listener {
    snapshot: Snapshot,
    worker: Worker,
    /// Time of the last sweep in nanoseconds since 1970.
    swept: u64,
}

impl Listener {
    fn new(of: &Listeners<'_>, node: &Arc<str>) -> Option<Self> {
        let Listeners { pipeline, services, settings, names, .. } = *of;
        let mut ports = vec![PortConfig::new("uplink", PortKind::Uplink)];
        let mut taken = BTreeSet::new();
        for (_, pod) in pipeline.cache().pods() {
            let is_here = pod.node.as_ref() == Some(node) && !pod.host_network && !pod.finished;
            if is_here && ports.len() < usize::from(u16::MAX) {
                let own = pod.addresses.iter().copied().filter(|&address| taken.insert(address));
                let addresses = own.collect();
                ports.push(PortConfig { addresses, ..PortConfig::new(pod.name.to_string(), PortKind::Pod) });
            }
        }
        let everything = [Ipv4Net::default().into(), Ipv6Net::default().into()];
        let mut routes: Vec<(IpNet, NextHop)> = everything.into_iter().map(|all| (all, UPLINK.into())).collect();
        for (port, id) in ports.iter_mut().zip(0..) {
            port.egress = Some(TableId(0));
            routes.extend(port.addresses.iter().map(|&address| (address.into(), PortId(id).into())));
        }
        let adapter = services::of_node(pipeline, services, settings, node);
        let servers = run::dns_servers(pipeline, adapter.as_ref().map(Adapter::resolver), node, names);
        let holders = (0..).zip(&ports).map(|(at, port)| (port.kind == PortKind::Pod).then_some(Holder(at))).collect();
        let open = Tables::build(vec![Rule::any(Action::Allow, OriginId(0))]).ok()?;
        let snapshot = Snapshot::new(1, ports, vec![Arc::new(open)], Routes::new(routes).ok()?)
            .ok()?
            .with_names(Some(Arc::new(names.of_ports(servers, holders).learning_all())));
        let sessions = SessionConfig { capacity: SESSIONS, ..SessionConfig::default() };
        let worker = Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() });
        Some(Self { snapshot, worker, swept: 0 })
    }

    fn hear(&mut self, packet: &CapturedPacket<'_>, source: IpAddr) {
        let &CapturedPacket { time, link, data, original_len, .. } = packet;
        let in_port = self.snapshot.owner(source).unwrap_or(UPLINK);
        let packet = Packet { frame: data, wire_len: original_len, link, in_port, time };
        self.worker.process(&self.snapshot, &[packet], &mut [Outcome::UNJUDGED]);
        if time >= self.swept.saturating_add(SWEEP) {
            self.worker.learned().sweep(time);
            self.swept = time;
        }
    }
}
