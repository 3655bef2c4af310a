//! The other nodes of the cluster, and how the node's kernel reaches their pods if it keeps the node's network card.
//!
//! ```text
//!   Node objects ---> other nodes ---plan(the kernel's routes)---> route:  10.244.2.0/24 via NODE-2 dev eth0
//!                                                                  tunnel: 10.244.3.0/24 encap dst NODE-3 dev bh-vxlan
//!                                                                          NODE-3 the same, for packets from pods
//! ```
//!
//! Nodes on the same link get a route, others the tunnel. The choice is made for each node and address family, by the kernel's own route
//! to the node's address. A mode for the whole cluster was rejected: a cluster with one node behind a router would need the tunnel
//! everywhere.
//!
//! Packets from pods to the own addresses of a node behind the tunnel take the tunnel too, as the routers in between do not know pods.
//! A routing rule applies these routes to packets from the host port alone.
//!
//! With `attach: tc`, the kernel's programs take the same ways without the node's network stack ([`lead_to_nodes`](TcDatapath::lead_to_nodes)),
//! for TCP and UDP between pods. They know the next hop of each network; the routes remain for all other packets.
//!
//! A vswitch with an uplink port routes other nodes' pods itself ([`next_hops`](crate::next_hops)); then this module does nothing.
//!
//! **Invariant.** Only the vswitch's own routes are changed. Those of a previous process stay until a state is loaded.

mod claims;
mod mtu;
mod obstacles;
mod outlook;
mod plan;
mod probes;
mod report;
mod routes;
mod targets;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::{TcDatapath, Tunnel, TunnelConfig, TunnelPeer, Watched};
use bulkhead_dataplane::{Services, SourcePorts};
use crossbeam_channel::{Receiver, never};
use ipnet::IpNet;

use super::config::{Config, CreatedHost, Encapsulation, EncapsulationMode, Probing, TUNNEL};
use super::host_port::Destinations;
use super::preflight::forwarding::KernelPath;
use super::{changes, log};
use bulkhead_answers::output;
use bulkhead_observe::admin::RemoteNodesStatus;
use claims::uncontested;
pub(super) use claims::{RemoteNode, remote_nodes};
use mtu::Mtus;
pub(super) use mtu::forget as forget_mtu;
use obstacles::Obstacles;
pub(super) use outlook::{Outlook, outlook};
use plan::{Links, Plan};
use probes::{Prober, SharedPaths};
use report::Report;
pub(super) use report::SharedReport;
pub(super) use routes::remove;

/// Maximum number of nodes or routes named in one message.
const MAX_NAMED: usize = 5;

/// Retry interval for what the kernel refused, and the shortest time between two looks that the kernel's messages cause: a node on which pods
/// start has many messages.
const AGAIN: Duration = Duration::from_secs(2);

/// The shortest time between two looks that changes of nodes cause, so that a thousand nodes that join within a minute cause at most five looks
/// a second.
const SOON: Duration = Duration::from_millis(200);

/// Time until the kernel's routes are read again if no message has reported a change: a message may be lost.
const LOOK: Duration = Duration::from_secs(30);

/// The node's routes and tunnel to other nodes.
#[derive(Debug)]
pub(super) struct RemoteNodes {
    settings: Encapsulation,
    host: CreatedHost,
    /// The programs that forward past the node's network stack. `None` with `attach: xdp`.
    tc: Option<Arc<TcDatapath>>,
    /// Whether the programs forward packets of other nodes' pods, instead of the node's kernel.
    passes_by: bool,
    /// The kernel's notices of changes. Never ready if the kernel sends none.
    changes: Receiver<()>,
    /// `None` before there are other nodes, and while the kernel refuses the tunnel.
    tunnel: Option<Tunnel>,
    /// The inputs of the last look that could read the kernel's routes. `None` before it. A look with equal inputs is skipped until it is due.
    told: Option<Told>,
    /// The Services whose virtual addresses the programs take. `None` before any.
    services: Option<Arc<Services>>,
    /// The problems of the last look, each of which is logged once.
    problems: BTreeSet<String>,
    report: SharedReport,
    mtus: Mtus,
    obstacles: Obstacles,
    /// The thread that probes the ways. `None` if probes are off, or the thread cannot be started.
    prober: Option<Prober>,
    /// When the last look began. When this was created before the first look.
    looked: Instant,
    /// Whether the kernel has reported a change since the last look.
    is_stale: bool,
    /// Whether nodes have changed so soon after the last look that they wait for the next one.
    is_waiting: bool,
}

/// The inputs of one look.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// The other nodes.
    nodes: Arc<[RemoteNode]>,
    /// The node's own pod networks.
    pods: Arc<[IpNet]>,
    /// The node's own addresses, at most one per family.
    sources: Arc<[IpAddr]>,
    /// The node's addresses among those of its pods: the sources of its own packets to Services.
    among_pods: Vec<IpAddr>,
    /// The source addresses and source ports of masqueraded packets. `None` if no packets are masqueraded.
    masquerade: Option<(Vec<IpAddr>, SourcePorts)>,
    /// Whether Services have, or had since the start, addresses for clients outside the cluster: connections to a Service that was removed go on.
    has_external_vips: bool,
}

impl RemoteNodes {
    /// Starts to watch the kernel's routes. Returns `None` if the vswitch has an uplink port, or did not create the host port. Removes what a
    /// previous process with another configuration has left, and logs a failure.
    ///
    /// `tc` has the programs that forward past the node's network stack. It is `None` with `attach: xdp`. `has_flows` tells whether workers add
    /// flows to these programs. If they do not, the node's kernel forwards all packets: it would see only one direction of each connection.
    pub(super) fn new(config: &Config, tc: Option<Arc<TcDatapath>>, has_flows: bool) -> Option<Self> {
        let host = config.host_to_nodes().cloned();
        if host.is_none() || config.encapsulation.mode == EncapsulationMode::Never {
            let removed = remove(config);
            removed.map_err(|error| log::warn(&format!("{error:#}"))).unwrap_or_default();
        }
        if host.is_none() {
            forget_mtu(config);
        }
        let passes_by = host.is_some() && has_flows && takes_up_connections();
        if let Some(tc) = tc.as_ref().filter(|_| !passes_by) {
            // If this fails, packets of other nodes may still reach the workers by a previous process's programs.
            let _ = tc.lead_to_nodes(&[], &[], &BTreeMap::new(), None);
        }
        if let Some(tc) = tc.as_ref().filter(|_| !passes_by || config.services.is_none()) {
            // If this fails, packets to Services may still reach the workers, which then drop them.
            let _ = tc.take_vips([]);
        }
        let (host, report) = (host?, SharedReport::new(config));
        let prober = config.probing.and_then(|settings| probe(settings, &config.node, &report.paths));
        Some(Self {
            settings: config.encapsulation,
            host,
            tc,
            passes_by,
            changes: changes::of(Watched::Routes),
            tunnel: None,
            told: None,
            services: None,
            problems: BTreeSet::new(),
            report,
            mtus: Mtus::new(config),
            obstacles: Obstacles::default(),
            prober,
            looked: Instant::now(),
            is_stale: false,
            is_waiting: false,
        })
    }

    /// Returns what status and metrics report.
    pub(super) fn report(&self) -> SharedReport {
        self.report.clone()
    }

    /// Returns the kernel's notices that its routes may have changed. Follow each with [`hear`](Self::hear).
    pub(super) const fn changes(&self) -> &Receiver<()> {
        &self.changes
    }

    /// Notes that the kernel's routes may have changed, so that [`is_due`](Self::is_due) becomes true soon. `goes_on` is false if there will be
    /// no further notices.
    pub(super) fn hear(&mut self, goes_on: bool) {
        self.is_stale = true;
        if !goes_on {
            log::warn("the kernel no longer reports changes of the node's routes; they are checked every 30 s");
            self.changes = never();
        }
    }

    /// Whether to look at the kernel's routes again.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next_look()
    }

    /// Returns when to look at the kernel's routes again.
    pub(super) fn next_look(&self) -> Instant {
        let after = if self.is_waiting {
            SOON
        } else if self.is_stale || !self.problems.is_empty() {
            AGAIN
        } else {
            LOOK
        };
        self.looked + after
    }

    /// Sets up routes and tunnel to these nodes, if they or the node's own addresses have changed, or if a look is due.
    pub(super) fn lead(&mut self, nodes: Arc<[RemoteNode]>, own: &Destinations) {
        let refused = self.take_vips(own);
        self.is_stale |= refused.is_some();
        let among_pods = own.services.as_ref().map(|services| services.sources().to_vec()).unwrap_or_default();
        let (pods, sources) = (Arc::clone(&own.pods), Arc::clone(&own.sources));
        let had_external_vips = self.told.as_ref().is_some_and(|told| told.has_external_vips);
        let has_external_vips = had_external_vips || own.has_external_vips();
        let told = Told { nodes, pods, sources, among_pods, masquerade: world::masquerading(own), has_external_vips };
        let is_same = self.told.as_ref() == Some(&told);
        self.is_waiting = !is_same && self.told.is_some() && self.looked.elapsed() < SOON;
        if self.is_waiting || (is_same && !self.is_due()) {
            return;
        }
        (self.looked, self.is_stale) = (Instant::now(), false);
        let (nodes, mut problems) = uncontested(&told.nodes, own);
        problems.extend(refused);
        let links = match Links::read() {
            Ok(links) => links,
            Err(error) => {
                return self.tell([format!("cannot read the kernel's routes to other nodes: {error}")].into());
            }
        };
        let plan = links.plan(&nodes, self.settings.mode);
        problems.extend(plan.problems.iter().cloned());
        let tunnel = self.ensure_tunnel(&plan, &nodes);
        problems.extend(self.set_routes(&links, &plan, tunnel.as_ref(), own, &told));
        self.lead_probes(&plan, &nodes, tunnel.as_ref().ok().copied().flatten(), &own.sources);
        // Without a node that needs the tunnel, a kernel without VXLAN is no problem.
        problems.extend(tunnel.err().filter(|_| plan.counts()[1] > 0));
        problems.extend(self.mtus.follow(&plan, self.settings.mode, &self.host));
        self.obstacles.look(&KernelPath { host: &self.host.peer, encapsulation: self.settings, pods: &own.pods });
        self.tell(problems);
        self.publish(&plan);
        self.told = Some(told);
    }

    /// Makes the programs take packets to the virtual addresses that are not cluster addresses, if they may have changed. Returns a message if the kernel
    /// refuses; the next look tries again.
    fn take_vips(&mut self, own: &Destinations) -> Option<String> {
        let is_same = |services: &Arc<Services>| self.services.as_ref().is_some_and(|last| last.shares_vips(services));
        let services = own.services.as_ref().filter(|services| self.passes_by && !is_same(services))?;
        let refused = world::take_vips(self.tc.as_ref()?, services);
        self.services = refused.is_none().then(|| Arc::clone(services));
        refused
    }

    /// Creates the tunnel or updates it, and returns its interface. `None` if `encapsulation` forbids it, and before there are other nodes.
    ///
    /// # Errors
    /// The kernel's error.
    fn ensure_tunnel(&mut self, plan: &Plan, nodes: &[RemoteNode]) -> Result<Option<u32>, String> {
        if self.settings.mode == EncapsulationMode::Never || (nodes.is_empty() && self.tunnel.is_none()) {
            return Ok(None);
        }
        // A node that this one reaches by a route may still send through the tunnel.
        let peers: Vec<TunnelPeer> = nodes.iter().map(RemoteNode::peer).collect();
        let leads = plan.counts()[1] > 0;
        let made = match self.tunnel.as_mut().filter(|tunnel| tunnel.is_there()) {
            Some(tunnel) => tunnel.update(plan.tunnel_mtu, &peers, leads),
            None => {
                let (pods, Encapsulation { port, vni, .. }) = (self.host.peer.to_string(), self.settings);
                let config = TunnelConfig { name: TUNNEL.to_owned(), pods, port, vni };
                Tunnel::ensure(&config, plan.tunnel_mtu, &peers, leads).map(|tunnel| self.tunnel = Some(tunnel))
            }
        };
        made.map_err(|error| format!("cannot set up the tunnel to other nodes: {error}"))?;
        Ok(self.tunnel.as_ref().map(Tunnel::interface))
    }

    /// Makes the probes follow the plan.
    fn lead_probes(&self, plan: &Plan, nodes: &[RemoteNode], tunnel: Option<u32>, sources: &[IpAddr]) {
        let known = nodes.iter().flat_map(|node| node.addresses.iter().copied());
        self.report.paths.lock().update(targets::targets(plan, tunnel, sources), known, tunnel.unwrap_or_default());
        self.prober.iter().for_each(Prober::look);
    }

    /// Logs the problems that the last look did not have.
    fn tell(&mut self, problems: BTreeSet<String>) {
        let new: Vec<&str> = problems.difference(&self.problems).map(String::as_str).collect();
        if !new.is_empty() {
            log::warn(&format!("the ways to other nodes and to the world: {}", output::some_of(&new, MAX_NAMED)));
        }
        self.problems = problems;
    }

    /// Replaces what status and metrics report. Logs how many nodes are reached in which way, if that has changed.
    fn publish(&self, plan: &Plan) {
        let [routed, tunneled] = plan.counts();
        let problems = self.problems.iter().cloned().chain(self.obstacles.found()).collect();
        let tunnel_mtu = self.tunnel.as_ref().map(|_| plan.tunnel_mtu);
        let status = RemoteNodesStatus { routed, tunneled, problems, tunnel_mtu, ..RemoteNodesStatus::default() };
        let report = Report { status, drops: self.tunnel.as_ref().map(Tunnel::drops) };
        let before = self.report.lock().replace(report).map(|before| (before.status.routed, before.status.tunneled));
        if before.unwrap_or_default() != (routed, tunneled) {
            log::info(&format!("other nodes: {routed} on the same link, {tunneled} through the tunnel"));
        }
    }
}

/// Whether the kernel's connection tracking takes up TCP connections that it sees first in their middle, or does not run. Connections past the
/// network stack return to it after a pause, and would be invalid there otherwise.
fn takes_up_connections() -> bool {
    std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_tcp_loose").map_or(true, |text| text.trim() != "0")
}

/// Starts to probe the ways. `None` if the thread cannot be started, which is logged.
fn probe(settings: Probing, own: &str, paths: &SharedPaths) -> Option<Prober> {
    let started = Prober::start(settings, own, paths.clone());
    let refused = |error| {
        paths.lock().turn_off();
        log::warn(&format!("other nodes are not probed: {error}"));
    };
    started.map_err(refused).ok()
}
