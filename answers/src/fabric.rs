//! Simulates the vswitches of all nodes: sends first packets and replies through every node on their path.
//!
//! A packet from a pod enters its node's vswitch at the pod's port. If it leaves through the uplink towards a pod of another node, it
//! enters that node's vswitch at the uplink. The reply takes the reverse path and needs the sessions that the first packet created. The
//! verdict is thus the dataplane's own, not that of a second implementation.

mod end;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Protocol;
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_control::source::Strictness;
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::{
    Flow, Learned, LinkType, Outcome, Packet, PortId, PortKind, SessionConfig, SessionState, Snapshot, Verdict, Worker,
    WorkerConfig,
};

pub use self::end::{End, PodNetworks, addresses_of_node};
use crate::args::PortProtocol;
use crate::run;

/// Source port of probes, from the dynamic range (RFC 6335), where no service listens.
const PROBE_SOURCE_PORT: u16 = 50_000;

/// Maximum number of sessions. A probe creates at most one on each of two nodes, and a small table is quick to clear.
const PROBE_SESSIONS: usize = 16;

/// Whether policy allows a connection. Of several legs, the lowest value applies to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reached {
    /// Policy denies the connection.
    No,
    /// Policy allows the connection, but only because a policy is audited.
    Audited,
    /// Policy allows the connection, and would if audited policies were enforced.
    Yes,
}

impl Reached {
    /// Returns the result of a walk with these hops.
    pub fn of(hops: &[Hop], is_allowed: bool) -> Self {
        match is_allowed {
            false => Self::No,
            true if hops.iter().any(|hop| hop.outcome.audited.is_some()) => Self::Audited,
            true => Self::Yes,
        }
    }

    /// Returns the verdict as printed.
    pub const fn verdict(self) -> &'static str {
        match self {
            Self::No => "deny",
            Self::Audited | Self::Yes => "allow",
        }
    }
}

/// The processing of a packet in one vswitch.
#[derive(Clone, Debug)]
pub struct Hop {
    /// Node of the vswitch.
    pub node: Arc<str>,
    /// Whether the packet is the reply.
    pub reply: bool,
    /// Decision of the vswitch.
    pub outcome: Outcome,
}

/// A worker that judges simulated packets.
pub struct Judge {
    worker: Worker,
    /// Time of the packets, in nanoseconds since 1970.
    now: u64,
}

impl Default for Judge {
    /// Returns a worker without sessions.
    fn default() -> Self {
        let sessions = SessionConfig { capacity: PROBE_SESSIONS, ..SessionConfig::default() };
        Self { worker: Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() }), now: 0 }
    }
}

impl Judge {
    /// Returns a worker without sessions, for rules that name domains: `learned` has the pods' addresses by name. `now` is the time of the
    /// packets in nanoseconds since 1970.
    pub fn with_names(learned: &Arc<Learned>, now: u64) -> Self {
        let mut judge = Self { now, ..Self::default() };
        judge.worker.share_names(Arc::clone(learned));
        judge
    }

    /// Judges an IP packet that enters at a port. A reply needs the session of a first packet judged before.
    pub fn judge(&mut self, snapshot: &Snapshot, in_port: PortId, packet: &[u8]) -> Outcome {
        let packet = Packet { frame: packet, wire_len: packet.len(), link: LinkType::Raw, in_port, time: self.now };
        let mut outcomes = [Outcome::UNJUDGED];
        self.worker.process(snapshot, &[packet], &mut outcomes);
        let [outcome] = outcomes;
        outcome
    }

    /// Removes all sessions.
    fn clear(&mut self) {
        self.worker.clear();
    }
}

/// Returns a probe of a connection to this port.
pub const fn probe(src: IpAddr, dst: IpAddr, port: PortProtocol) -> Probe {
    let [icmp_type, code] = port.port.to_be_bytes();
    let kind = match port.protocol {
        Protocol::Tcp => ProbeKind::Tcp,
        Protocol::Udp => ProbeKind::Udp,
        Protocol::Sctp => ProbeKind::Sctp,
        // Ports of further protocols cannot be asked about.
        Protocol::Number(_) | Protocol::Other => ProbeKind::Icmp(icmp_type, code),
    };
    Probe { src, dst, kind, sport: PROBE_SOURCE_PORT, dport: port.port }
}

/// Returns the flow of a pod's connection to itself through a Service, after translation.
pub const fn hairpin_flow(address: IpAddr, port: PortProtocol) -> Flow {
    let protocol = port.protocol.number();
    Flow { src: address, dst: address, protocol, sport: PROBE_SOURCE_PORT, dport: port.port, icmp: None }
}

/// Returns the outcome of the reply to a first packet with this outcome.
pub fn reply_of(first: &Outcome) -> Outcome {
    let mut reply = *first;
    reply.session = Some(SessionState::Hit);
    reply
}

/// The simulated vswitch of a node.
struct Vswitch {
    tables: Arc<NodeTables>,
    snapshot: Snapshot,
    judge: Judge,
}

/// The simulated vswitches of all nodes. A node's vswitch is created when the first packet reaches it.
pub struct Fabric<'a> {
    pipeline: &'a Pipeline,
    strictness: Strictness,
    nodes: BTreeMap<Arc<str>, Vswitch>,
    pod_networks: PodNetworks,
}

impl<'a> Fabric<'a> {
    /// Creates the vswitches of a state. If rules exceed a table's limits, a strict one fails; a lenient one warns.
    pub fn new(pipeline: &'a Pipeline, strictness: Strictness) -> Self {
        Self { pipeline, strictness, nodes: BTreeMap::new(), pod_networks: PodNetworks::of(pipeline.cache()) }
    }

    /// Returns the node of an end. An address of a node's pods that no pod has belongs to the node too. `None` for other external addresses.
    fn node_of(&mut self, end: &End) -> anyhow::Result<Option<Arc<str>>> {
        if let Some(node) = end.node() {
            return Ok(Some(node.clone()));
        }
        let Some(node) = self.pod_networks.node_of(end.address()).cloned() else { return Ok(None) };
        let is_unreachable = self.vswitch(&node)?.snapshot.is_unreachable(end.address());
        Ok(is_unreachable.then_some(node))
    }

    /// Returns the vswitch of a node.
    ///
    /// # Errors
    /// If the node is unknown, has addresses of two owners, or has rules that exceed a table's limits.
    fn vswitch(&mut self, node: &Arc<str>) -> anyhow::Result<&mut Vswitch> {
        if !self.nodes.contains_key(node) {
            let compiled = self.pipeline.compiled_node(node).with_context(|| format!("no tables for node `{node}`"))?;
            run::check_refusals(&compiled.refusals, self.strictness)?;
            let snapshot =
                run::snapshot_with(&compiled.tables, compiled.audit.as_ref(), run::pod_networks(self.pipeline, node))?;
            let vswitch = Vswitch { tables: compiled.tables, snapshot, judge: Judge::default() };
            self.nodes.insert(node.clone(), vswitch);
        }
        self.nodes.get_mut(node).context("a vswitch that was just made is there")
    }

    /// Returns the tables of a node. `None` if no packet has reached the node.
    pub fn tables(&self, node: &str) -> Option<&Arc<NodeTables>> {
        self.nodes.get(node).map(|vswitch| &vswitch.tables)
    }

    /// Returns the name of a port. `None` if no packet has reached the node, or the port is unknown.
    pub fn port_name(&self, node: &str, port: PortId) -> Option<Arc<str>> {
        self.nodes.get(node)?.snapshot.port(port).map(|port| port.name.clone())
    }

    /// Whether a first packet and its reply both arrive.
    ///
    /// # Errors
    /// See [`Fabric::walk`].
    pub fn allowed(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<bool> {
        Ok(self.reached(from, to, port)? != Reached::No)
    }

    /// Whether a first packet and its reply both arrive, and whether audited policies would deny one.
    ///
    /// # Errors
    /// See [`Fabric::walk`].
    pub fn reached(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<Reached> {
        let hops = self.walk(from, to, port)?;
        Ok(Reached::of(&hops, hops.last().is_some_and(|hop| hop.reply && arrived(hop))))
    }

    /// Sends a first packet and, if it arrives, a reply. Returns all hops in order.
    ///
    /// # Errors
    /// If both ends are external, their families differ, or a node has no tables.
    pub fn walk(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<Vec<Hop>> {
        let probe = probe(from.address(), to.address(), port);
        for node in from.node().into_iter().chain(to.node()) {
            self.vswitch(node)?.judge.clear();
        }
        let mut hops = Vec::with_capacity(4);
        self.pass(from, to, &probe.request()?, false, &mut hops)?;
        if hops.last().is_some_and(arrived) {
            self.pass(to, from, &probe.reply()?, true, &mut hops)?;
        }
        Ok(hops)
    }

    /// Sends a first packet through the vswitch of the client's node only. That node rewrites the packet, so vswitches behind it see
    /// another connection.
    ///
    /// # Errors
    /// See [`Fabric::walk`].
    pub fn depart(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<Vec<Hop>> {
        let mut hops = self.walk(from, to, port)?;
        hops.retain(|hop| !hop.reply && from.node() == Some(&hop.node));
        Ok(hops)
    }

    /// Judges a connection of a pod to itself through a Service. Returns the first packet's hop and, if policy allows it, the reply's. A
    /// client on the host network needs no vswitch to reach itself, so the hops are then those of [`Fabric::walk`].
    ///
    /// # Errors
    /// If the node has no tables.
    pub fn hairpin(&mut self, of: &End, port: PortProtocol) -> anyhow::Result<Vec<Hop>> {
        let (End::Pod { host_network: false, .. }, Some(node)) = (of, of.node()) else {
            return self.walk(of, of, port);
        };
        let vswitch = self.vswitch(node)?;
        let outcome = vswitch.snapshot.judge_hairpin(hairpin_flow(of.address(), port));
        let outcome = outcome.with_context(|| format!("node {node} has no port for {of}"))?;
        let first = Hop { node: node.clone(), reply: false, outcome };
        let reply = arrived(&first).then(|| Hop { reply: true, outcome: reply_of(&outcome), ..first.clone() });
        Ok(std::iter::once(first).chain(reply).collect())
    }

    /// Sends a packet from end to end.
    fn pass(&mut self, from: &End, to: &End, frame: &[u8], reply: bool, hops: &mut Vec<Hop>) -> anyhow::Result<()> {
        // A reply goes to an address that has sent a packet. A node's own source of connections to Services is in its blocks, too.
        let at_destination = if reply { to.node().cloned() } else { self.node_of(to)? };
        let at_source = from.node().cloned();
        let Some(first) = at_source.or_else(|| at_destination.clone()) else {
            bail!("{from} and {to} are both outside the cluster: no vswitch is on their path")
        };
        let entry = match from {
            End::Pod { host_network: true, .. } | End::Node { .. } => PortKind::Host,
            End::Pod { .. } => PortKind::Pod,
            End::External(_) => PortKind::Uplink,
        };
        let out = self.push(&first, entry, from, frame, reply, hops)?;
        if let Some(second) = at_destination.filter(|second| *second != first && out == Some(PortKind::Uplink)) {
            self.push(&second, PortKind::Uplink, from, frame, reply, hops)?;
        }
        Ok(())
    }

    /// Sends a packet through one vswitch. Returns the kind of its egress port.
    fn push(
        &mut self,
        node: &Arc<str>,
        entry: PortKind,
        from: &End,
        frame: &[u8],
        reply: bool,
        hops: &mut Vec<Hop>,
    ) -> anyhow::Result<Option<PortKind>> {
        let vswitch = self.vswitch(node)?;
        let in_port = match entry {
            PortKind::Pod => vswitch.snapshot.owner(from.address()),
            PortKind::Host => vswitch.snapshot.host(),
            PortKind::Uplink => vswitch.snapshot.uplink(),
        };
        let in_port = in_port.with_context(|| format!("node {node} has no port for {from}"))?;
        let outcome = vswitch.judge.judge(&vswitch.snapshot, in_port, frame);
        let out = outcome.verdict.out_port().and_then(|port| vswitch.snapshot.port(port)).map(|port| port.kind);
        hops.push(Hop { node: node.clone(), reply, outcome });
        Ok(out)
    }
}

/// Whether the packet left the last vswitch on its path.
pub fn arrived(hop: &Hop) -> bool {
    matches!(hop.outcome.verdict, Verdict::Forward(_))
}
