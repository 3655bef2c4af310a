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
//! A vswitch with an uplink port routes other nodes' pods itself ([`next_hops`](crate::next_hops)); then this module does nothing.
//!
//! **Invariant.** Only the vswitch's own routes are changed. Those of a previous process stay until a state is loaded.

mod plan;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_control::pipeline::Pipeline;
use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{
    self, OwnRoute, RouteRefused, Tunnel, TunnelConfig, TunnelDrops, TunnelPeer, Watched, own_routes, remove_tunnel,
    replace_routes,
};
use crossbeam_channel::{Receiver, never};
use ipnet::IpNet;

use super::config::{Config, CreatedHost, Encapsulation, EncapsulationMode};
use super::{changes, log};
use bulkhead_answers::output;
use bulkhead_observe::admin::RemoteNodesStatus;
use plan::{Links, Plan};

/// The name of the tunnel's interface.
const TUNNEL: &str = "bh-vxlan";

/// Maximum number of nodes or routes named in one message.
const MAX_NAMED: usize = 5;

/// Retry interval for what the kernel refused, and the shortest time between two looks because of the kernel's messages. A look at a
/// thousand nodes takes about 20 ms.
const AGAIN: Duration = Duration::from_secs(2);

/// Interval at which the routes are checked without a message, in case one was lost.
const LOOK: Duration = Duration::from_secs(30);

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteNode {
    /// The node's name.
    pub name: Arc<str>,
    /// The node's addresses, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// The networks of its pods (`spec.podCIDRs`).
    pub pod_networks: Vec<IpNet>,
}

/// Returns all nodes other than `own` that have pod networks and an address.
pub(super) fn remote_nodes(pipeline: &Pipeline, own: &str) -> Vec<RemoteNode> {
    let others = pipeline.cache().nodes().values().filter(|node| &*node.name != own);
    let whole = others.filter(|node| !node.addresses.is_empty() && !node.pod_cidrs.is_empty());
    let remote = whole.map(|node| RemoteNode {
        name: node.name.clone(),
        addresses: node.addresses.clone(),
        pod_networks: node.pod_cidrs.iter().map(IpNet::trunc).collect(),
    });
    remote.collect()
}

/// The node's routes and tunnel to other nodes.
#[derive(Debug)]
pub(super) struct RemoteNodes {
    settings: Encapsulation,
    host: CreatedHost,
    changes: Receiver<()>,
    /// `None` before the tunnel was needed, and while the kernel refuses it.
    tunnel: Option<Tunnel>,
    /// What was last set up, to log changes and to omit what is as before.
    told: Option<Told>,
    /// The problems of the last look, each of which is logged once.
    problems: BTreeSet<String>,
    report: SharedReport,
    looked: Instant,
    /// Whether the kernel has reported a change since the last look.
    is_stale: bool,
}

/// What status and metrics report, shared with other threads.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedReport(Arc<Mutex<Option<Report>>>);

/// The ways of one look.
#[derive(Clone, Debug)]
struct Report {
    /// The ways, without the number of drops.
    status: RemoteNodesStatus,
    /// The tunnel's counter of drops. `None` without a tunnel.
    drops: Option<TunnelDrops>,
}

impl SharedReport {
    /// Returns the ways of the last look, with the present number of drops. `None` before the first look.
    pub(super) fn read(&self) -> Option<RemoteNodesStatus> {
        let Report { status, drops } = self.lock().clone()?;
        // A count that cannot be read is shown as 0.
        let tunnel_dropped = drops.map_or(0, |drops| drops.count().unwrap_or_default());
        Some(RemoteNodesStatus { tunnel_dropped, ..status })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The inputs of the last look.
#[derive(Debug)]
struct Told {
    nodes: Arc<[RemoteNode]>,
    sources: Arc<[IpAddr]>,
    counts: [usize; 2],
}

impl RemoteNodes {
    /// Starts to watch the kernel's routes. `None` if the vswitch has an uplink port, or did not create the host port.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let host = config.created_host.clone()?;
        if config.ports.iter().any(|port| port.kind == PortKind::Uplink) {
            return None;
        }
        if config.encapsulation.mode == EncapsulationMode::Never {
            // A previous process's, whose configuration was another one.
            let removed = remove_tunnel(&tunnel_config(&config.encapsulation, &host));
            removed.map_err(|error| log::warn(&error.to_string())).unwrap_or_default();
        }
        Some(Self {
            settings: config.encapsulation,
            host,
            changes: changes::of(Watched::Routes),
            tunnel: None,
            told: None,
            problems: BTreeSet::new(),
            report: SharedReport::default(),
            looked: Instant::now(),
            is_stale: false,
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
        self.looked + if self.is_stale || !self.problems.is_empty() { AGAIN } else { LOOK }
    }

    /// Sets up routes and tunnel to these nodes, if they have changed or a look is due. `sources` are the node's own addresses, at most one
    /// per family.
    pub(super) fn lead(&mut self, nodes: Arc<[RemoteNode]>, sources: Arc<[IpAddr]>) {
        let is_same = self.told.as_ref().is_some_and(|told| told.nodes == nodes && told.sources == sources);
        if is_same && !self.is_due() {
            return;
        }
        (self.looked, self.is_stale) = (Instant::now(), false);
        let plan = match Links::read().map(|links| plan::plan(&nodes, self.settings.mode, &links)) {
            Ok(plan) => plan,
            Err(error) => {
                return self.tell([format!("cannot read the kernel's routes to other nodes: {error}")].into());
            }
        };
        let mut problems = plan.problems.clone();
        let tunnel = self.ensure_tunnel(&plan, &nodes).map_err(|error| problems.extend(error)).unwrap_or_default();
        problems.extend(self.set_routes(&plan, tunnel, &sources));
        self.tell(problems);
        self.announce(&plan);
        self.publish(&plan);
        self.told = Some(Told { nodes, sources, counts: plan.counts() });
    }

    /// Creates the tunnel or updates it, and returns its interface. `None` if there are no other nodes, or `encapsulation` forbids it.
    ///
    /// # Errors
    /// What the kernel refuses. `None` instead of a message if no node needs the tunnel.
    fn ensure_tunnel(&mut self, plan: &Plan, nodes: &[RemoteNode]) -> Result<Option<u32>, Option<String>> {
        if self.settings.mode == EncapsulationMode::Never || nodes.is_empty() {
            return Ok(None);
        }
        // A node that this one reaches by a route may still send through the tunnel.
        let peers: Vec<TunnelPeer> = nodes.iter().map(peer).collect();
        let made = match self.tunnel.take().filter(Tunnel::is_there) {
            Some(mut tunnel) => tunnel.update(plan.tunnel_mtu, &peers).map(|()| tunnel),
            None => Tunnel::ensure(&tunnel_config(&self.settings, &self.host), plan.tunnel_mtu, &peers),
        };
        let is_needed = plan.counts()[1] > 0;
        let tunnel =
            made.map_err(|error| is_needed.then(|| format!("cannot set up the tunnel to other nodes: {error}")))?;
        Ok(Some(self.tunnel.insert(tunnel).interface()))
    }

    /// Replaces the routes to other nodes. Returns a message per failure.
    fn set_routes(&self, plan: &Plan, tunnel: Option<u32>, sources: &[IpAddr]) -> Vec<String> {
        let host = io::LinkInfo::read(&self.host.peer).map(|link| link.index).ok();
        let is_over_host = |route: &OwnRoute| route.hop.is_some_and(|hop| Some(hop.interface) == host);
        let known = own_routes().map(|routes| {
            // Those over the host port lead to the node's own pods and to Services.
            routes.into_iter().filter(|route| !is_over_host(route)).collect()
        });
        let known: BTreeSet<OwnRoute> = match known {
            Ok(known) => known,
            Err(error) => return vec![format!("cannot read the kernel's routes: {error}")],
        };
        let wanted = plan.routes(tunnel.map(|interface| (interface, self.settings.vni)), sources);
        replace_routes(&known, &wanted).iter().filter_map(explain).collect()
    }

    /// Logs the new problems.
    fn tell(&mut self, problems: BTreeSet<String>) {
        let new: Vec<&str> = problems.difference(&self.problems).map(String::as_str).collect();
        if !new.is_empty() {
            log::warn(&format!("pods of other nodes cannot be reached: {}", output::some_of(&new, MAX_NAMED)));
        }
        self.problems = problems;
    }

    /// Replaces what status and metrics report.
    fn publish(&self, plan: &Plan) {
        let [routed, tunneled] = plan.counts();
        let problems = self.problems.iter().cloned().collect();
        let tunnel_mtu = self.tunnel.as_ref().map(|_| plan.tunnel_mtu);
        let status = RemoteNodesStatus { routed, tunneled, problems, tunnel_mtu, tunnel_dropped: 0 };
        *self.report.lock() = Some(Report { status, drops: self.tunnel.as_ref().map(Tunnel::drops) });
    }

    /// Logs how many nodes are reached in which way, if that has changed.
    fn announce(&self, plan: &Plan) {
        let counts @ [routed, tunneled] = plan.counts();
        if self.told.as_ref().map_or([0, 0], |told| told.counts) != counts {
            log::info(&format!("other nodes: {routed} on the same link, {tunneled} through the tunnel"));
        }
    }
}

/// Returns the tunnel's settings.
fn tunnel_config(settings: &Encapsulation, host: &CreatedHost) -> TunnelConfig {
    TunnelConfig { name: TUNNEL.to_owned(), pods: host.peer.to_string(), port: settings.port, vni: settings.vni }
}

/// Returns what the tunnel accepts from a node.
fn peer(node: &RemoteNode) -> TunnelPeer {
    let own = node.addresses.iter().copied().map(IpNet::from);
    TunnelPeer { addresses: node.addresses.clone(), sources: node.pod_networks.iter().copied().chain(own).collect() }
}

/// Returns a message about a refused change. `None` if another program has added the route that was to be added.
fn explain(RouteRefused { route, is_new, source }: &RouteRefused) -> Option<String> {
    let (to, via) = (route.destination, route.hop.map(|hop| hop.gateway));
    match (is_new, source.kind()) {
        (true, std::io::ErrorKind::AlreadyExists) => {
            let found = io::kernel_routes().unwrap_or_default();
            let is_equal =
                |known: &io::KernelRoute| (known.destination, known.table, known.gateway) == (to, route.table, via);
            let message =
                || format!("{to}: the kernel has another route to it; delete that route (ip route show {to})");
            (!found.iter().any(is_equal)).then(message)
        }
        (true, _) => Some(format!("{to}: the kernel refuses the route: {source}")),
        (false, _) => Some(format!("{to}: the kernel refuses to delete the route: {source}")),
    }
}

/// Removes the tunnel, and the routes to other nodes. Returns whether there were any.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn remove(config: &Config) -> anyhow::Result<bool> {
    let Some(host) = &config.created_host else { return Ok(false) };
    let routes = own_routes()?;
    let refused = replace_routes(&routes, &BTreeSet::new());
    if let Some(refused) = refused.first() {
        anyhow::bail!("cannot remove the route to {}: {}", refused.route.destination, refused.source);
    }
    Ok(remove_tunnel(&tunnel_config(&config.encapsulation, host))? | !routes.is_empty())
}
