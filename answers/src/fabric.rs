//! The vswitches of all nodes, joined: first packets and their replies are pushed through every node on their way.
//!
//! A packet from a pod enters its node's vswitch at the pod's port. When it leaves through the uplink and its destination
//! is a pod of another node, it enters that node's vswitch at the uplink. The reply goes back the same way and needs the
//! sessions that the first packet made. So the answer is what the dataplane does, not what a second implementation thinks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::object::{Pod, PodName, Transport};
use bulkhead_control::pipeline::{Pipeline, UNBOUND};
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::{
    LinkType, Outcome, Packet, PortId, PortKind, SessionConfig, Snapshot, Verdict, Worker, WorkerConfig,
};

use crate::args::PortProtocol;
use crate::run;

/// The source port of probes: from the range that no service listens on (RFC 6335, dynamic ports).
const PROBE_SOURCE_PORT: u16 = 50_000;

/// A probe makes one session on each of two nodes at most, so a small table is enough and quick to forget.
const PROBE_SESSIONS: usize = 16;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A pod, with those of its addresses that may be used.
    Pod {
        /// Namespace and name.
        name: PodName,
        /// Its node.
        node: Arc<str>,
        /// Whether it is in the network of its node.
        host_network: bool,
        /// The address used.
        address: IpAddr,
    },
    /// A node itself: its kubelet, or anything else on its own network.
    Node {
        /// The node.
        node: Arc<str>,
        /// The address used.
        address: IpAddr,
    },
    /// An address outside the cluster.
    External(IpAddr),
}

impl End {
    /// The ends that a pod has: one for each of its addresses.
    pub fn of_pod(pod: &Pod) -> impl Iterator<Item = Self> + '_ {
        pod.addresses.iter().map(|&address| Self::Pod {
            name: pod.name.clone(),
            node: pod.node.clone().unwrap_or_else(|| UNBOUND.into()),
            host_network: pod.host_network,
            address,
        })
    }

    /// Whose address it is: a pod's, a node's, or nobody's in the cluster.
    pub fn at(pipeline: &Pipeline, address: IpAddr) -> Self {
        let cache = pipeline.cache();
        let node = cache.nodes().values().find(|node| node.addresses.contains(&address));
        if let Some(node) = node {
            return Self::Node { node: node.name.clone(), address };
        }
        let mut pods = cache.pods_at(address).map(|(_, pod)| pod).filter(|pod| !pod.finished);
        let end = |pod: &Arc<Pod>| Self::of_pod(pod).find(|end| end.address() == address);
        pods.find_map(end).unwrap_or(Self::External(address))
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Pod { address, .. } | Self::Node { address, .. } | Self::External(address) => *address,
        }
    }

    /// Its node; none outside the cluster.
    pub fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Pod { node, .. } | Self::Node { node, .. } => Some(node),
            Self::External(_) => None,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pod { name, .. } => write!(f, "{name}"),
            Self::Node { node, .. } => write!(f, "node {node}"),
            Self::External(address) => write!(f, "{address}"),
        }
    }
}

/// Whether a connection can be made. Of several legs the least decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    /// Policy denies it.
    No,
    /// It can, because a policy is audited and not enforced.
    Audited,
    /// It can.
    Yes,
}

impl Reached {
    /// What these passes make of a connection that is let through, or is not.
    pub fn of(hops: &[Hop], is_allowed: bool) -> Self {
        match is_allowed {
            false => Self::No,
            true if hops.iter().any(|hop| hop.outcome.audited.is_some()) => Self::Audited,
            true => Self::Yes,
        }
    }

    /// As it is printed.
    pub const fn verdict(self) -> &'static str {
        match self {
            Self::No => "deny",
            Self::Audited | Self::Yes => "allow",
        }
    }
}

/// A packet's pass through one node's vswitch.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The node.
    pub node: Arc<str>,
    /// Whether this is the reply.
    pub reply: bool,
    /// What the vswitch did.
    pub outcome: Outcome,
}

/// A worker that judges packets that nobody has sent.
pub struct Judge(Worker);

impl Default for Judge {
    /// A worker without sessions.
    fn default() -> Self {
        let sessions = SessionConfig { capacity: PROBE_SESSIONS, ..SessionConfig::default() };
        Self(Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() }))
    }
}

impl Judge {
    /// What becomes of an IP packet that comes in on this port. Replies need the sessions of the first packets that were judged before.
    pub fn judge(&mut self, snapshot: &Snapshot, in_port: PortId, packet: &[u8]) -> Outcome {
        let packet = Packet { frame: packet, wire_len: packet.len(), link: LinkType::Raw, in_port, time: 0 };
        let mut outcomes = [Outcome::UNJUDGED];
        self.0.process(snapshot, &[packet], &mut outcomes);
        let [outcome] = outcomes;
        outcome
    }

    /// Forgets all sessions.
    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The conversation that is tried out to learn whether one to this port is allowed.
pub const fn probe(src: IpAddr, dst: IpAddr, port: PortProtocol) -> Probe {
    let kind = match port.transport {
        Transport::Tcp => ProbeKind::Tcp,
        Transport::Udp => ProbeKind::Udp,
        Transport::Sctp => ProbeKind::Sctp,
    };
    Probe { src, dst, kind, sport: PROBE_SOURCE_PORT, dport: port.port }
}

/// The vswitch of one node.
struct Vswitch {
    tables: Arc<NodeTables>,
    snapshot: Snapshot,
    judge: Judge,
}

/// See the module.
pub struct Fabric {
    nodes: BTreeMap<Arc<str>, Vswitch>,
}

impl Fabric {
    /// The vswitches of all nodes that the pipeline knows.
    ///
    /// # Errors
    /// As for [`run::snapshot`].
    pub fn new(pipeline: &Pipeline) -> anyhow::Result<Self> {
        let mut nodes = BTreeMap::new();
        let audits = pipeline.all_audit_tables();
        for tables in pipeline.all_node_tables() {
            let snapshot = run::snapshot_with(&tables, audits.get(&tables.node))?;
            nodes.insert(tables.node.clone(), Vswitch { tables, snapshot, judge: Judge::default() });
        }
        Ok(Self { nodes })
    }

    /// The tables of a node.
    pub fn tables(&self, node: &str) -> Option<&Arc<NodeTables>> {
        self.nodes.get(node).map(|vswitch| &vswitch.tables)
    }

    /// The name of a port of a node.
    pub fn port_name(&self, node: &str, port: PortId) -> Option<Arc<str>> {
        self.nodes.get(node)?.snapshot.port(port).map(|port| port.name.clone())
    }

    /// Whether a first packet and its reply both arrive.
    ///
    /// # Errors
    /// When the two ends cannot be asked about; see [`Fabric::walk`].
    pub fn allowed(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<bool> {
        Ok(self.reached(from, to, port)? != Reached::No)
    }

    /// Whether a first packet and its reply both arrive, and whether audited policies would keep one of them.
    ///
    /// # Errors
    /// As for [`Fabric::allowed`].
    pub fn reached(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<Reached> {
        let hops = self.walk(from, to, port)?;
        Ok(Reached::of(&hops, hops.last().is_some_and(|hop| hop.reply && arrived(hop))))
    }

    /// Pushes a first packet and, when it arrives, the reply. Returns every pass through a vswitch in order.
    ///
    /// # Errors
    /// When neither end is a pod, when the ends' families differ, or when a pod's node has no tables.
    pub fn walk(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<Vec<Hop>> {
        let probe = probe(from.address(), to.address(), port);
        for node in from.node().into_iter().chain(to.node()) {
            let vswitch = self.nodes.get_mut(node).with_context(|| format!("no tables for node `{node}`"))?;
            vswitch.judge.clear();
        }
        let mut hops = Vec::with_capacity(4);
        self.pass(from, to, &probe.request()?, false, &mut hops)?;
        if hops.last().is_some_and(arrived) {
            self.pass(to, from, &probe.reply()?, true, &mut hops)?;
        }
        Ok(hops)
    }

    /// Pushes a first packet through the vswitch of the sender's node alone, which translates its destination or its source on the way
    /// out: what comes after that is another connection to the vswitches behind it.
    ///
    /// # Errors
    /// As for [`Fabric::walk`].
    pub fn depart(&mut self, from: &End, to: &End, port: PortProtocol) -> anyhow::Result<Vec<Hop>> {
        let mut hops = self.walk(from, to, port)?;
        hops.retain(|hop| !hop.reply && from.node() == Some(&hop.node));
        Ok(hops)
    }

    /// One packet from end to end.
    fn pass(&mut self, from: &End, to: &End, frame: &[u8], reply: bool, hops: &mut Vec<Hop>) -> anyhow::Result<()> {
        let Some(first) = from.node().or(to.node()) else {
            bail!("{from} and {to} are both outside the cluster: no vswitch is on their path")
        };
        let entry = match from {
            End::Pod { host_network: true, .. } | End::Node { .. } => PortKind::Host,
            End::Pod { .. } => PortKind::Pod,
            End::External(_) => PortKind::Uplink,
        };
        let out = self.push(&first.clone(), entry, from, frame, reply, hops)?;
        match to.node() {
            Some(second) if second != first && out == Some(PortKind::Uplink) => {
                self.push(&second.clone(), PortKind::Uplink, from, frame, reply, hops)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// One packet through one vswitch. Returns the kind of port it left through.
    fn push(
        &mut self,
        node: &Arc<str>,
        entry: PortKind,
        from: &End,
        frame: &[u8],
        reply: bool,
        hops: &mut Vec<Hop>,
    ) -> anyhow::Result<Option<PortKind>> {
        let vswitch = self.nodes.get_mut(node).with_context(|| format!("no tables for node `{node}`"))?;
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

/// Whether the packet left the last vswitch on its way.
pub fn arrived(hop: &Hop) -> bool {
    matches!(hop.outcome.verdict, Verdict::Forward(_))
}
