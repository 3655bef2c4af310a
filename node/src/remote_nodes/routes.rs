//! The kernel's routes to other nodes, and the next hops of its programs.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_dataplane::io::{
    self, KernelRoute, MAIN_TABLE, OwnRoute, RouteRefused, TunnelEnd, own_routes, remove_tunnel, replace_routes,
};

use super::plan::{Links, Plan};
use super::{RemoteNodes, Told, world};
use crate::config::{Config, Encapsulation, TUNNEL};
use crate::host_port::Destinations;

impl RemoteNodes {
    /// Replaces the routes to other nodes and the next hops of the kernel's programs, and returns a message per failure. Routes that another program has
    /// added are not added again. `tunnel` is the index of the tunnel's interface, `None` without a tunnel, or the error if the tunnel could not be set
    /// up: then its existing routes stay, as packets must not leave without its header. `told` are the look's inputs.
    pub(super) fn set_routes(
        &self,
        links: &Links,
        plan: &Plan,
        tunnel: Result<&Option<u32>, &String>,
        own: &Destinations,
        told: &Told,
    ) -> Vec<String> {
        let Encapsulation { port, vni, .. } = self.settings;
        let end = tunnel.ok().copied().flatten().map(|interface| TunnelEnd { interface, port, vni });
        let lead = |hops| {
            let Some(tc) = &self.tc else { return Ok(()) };
            world::take_answers(tc, own);
            match self.passes_by {
                true => tc.lead_to_nodes(&own.pods, &told.among_pods, hops, end),
                false => tc.lead_to_nodes(&[], &[], hops, None),
            }
        };
        let (host, all) = match self.read_routes() {
            Ok(read) => read,
            Err(problem) => {
                // The programs must not believe nodes of the last look. If this fails too, the next look tries again.
                let _ = lead(&BTreeMap::new());
                return vec![problem];
            }
        };
        // Routes over the host port lead to the node's own pods and to Services.
        let is_over_host = |route: &OwnRoute| route.hop.interface == host;
        let (mut known, mut foreign) = (BTreeSet::new(), BTreeSet::new());
        for route in &all {
            match OwnRoute::of(route) {
                Some(own) => known.extend(Some(own).filter(|own| !is_over_host(own))),
                None => drop(foreign.insert((route.destination, route.table, route.gateway))),
            }
        }
        let mut wanted = plan.routes(end, &own.sources);
        if tunnel.is_err() {
            let ways: BTreeSet<_> = wanted.iter().map(|route| (route.destination, route.table)).collect();
            let is_kept = |route: &&OwnRoute| {
                let is_tunneled = route.hop.encapsulation.is_some();
                is_tunneled && !ways.contains(&(route.destination, route.table))
            };
            wanted.extend(known.iter().filter(is_kept));
        }
        let gateway = |route: &OwnRoute| Some(route.hop.gateway);
        wanted.retain(|route| !foreign.contains(&(route.destination, route.table, gateway(route))));
        let mut problems: Vec<String> = replace_routes(&known, &wanted).iter().map(explain).collect();
        let mut hops = if self.passes_by { plan.hops(end, &own.sources) } else { BTreeMap::new() };
        // The set is ordered, and `None` is the least gateway.
        let other = |network| foreign.range((network, MAIN_TABLE, None)..).next();
        hops.retain(|&network, _| other(network).is_none_or(|&(to, table, _)| (to, table) != (network, MAIN_TABLE)));
        if told.masquerade.is_some() || told.has_external_vips {
            // The ways to nodes take precedence.
            let to_world = world::ways(&all, host, own, |interface| links.with_neighbours(interface), &mut problems);
            hops = to_world.into_iter().chain(hops).collect();
        }
        let refused =
            |error| format!("the kernel's programs cannot take packets of other nodes and of the world: {error}");
        problems.extend(lead(&hops).err().map(refused));
        problems
    }

    /// Returns the index of the host port's interface at the node's end, and the kernel's routes.
    ///
    /// # Errors
    /// A message.
    fn read_routes(&self) -> Result<(u32, Vec<KernelRoute>), String> {
        let host = io::LinkInfo::read(&self.host.peer);
        let host = host.map_err(|error| format!("cannot tell the routes over the host port: {error}"))?;
        let all = io::kernel_routes().map_err(|error| format!("cannot read the kernel's routes: {error}"))?;
        Ok((host.index, all))
    }
}

/// Returns a message about a refused change.
fn explain(RouteRefused { route, is_new, source }: &RouteRefused) -> String {
    let to = route.destination;
    match (is_new, source.kind()) {
        (true, std::io::ErrorKind::AlreadyExists) => {
            format!("{to}: the kernel has another route to it; delete that route (ip route show {to})")
        }
        (true, _) => format!("{to}: the kernel refuses the route: {source}"),
        (false, _) => format!("{to}: the kernel refuses to delete the route: {source}"),
    }
}

/// Removes the tunnel, its routing rules, and the routes to other nodes. Returns whether there were any routes or a tunnel.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn remove(config: &Config) -> anyhow::Result<bool> {
    let host = config.created_host.as_ref().and_then(|host| io::LinkInfo::read(&host.peer).ok());
    let mut routes = own_routes()?;
    // Those over the host port are removed with it.
    routes.retain(|route| host.as_ref().is_none_or(|host| host.index != route.hop.interface));
    let refused = replace_routes(&routes, &BTreeSet::new());
    if let Some(refused) = refused.first() {
        anyhow::bail!("cannot remove the route to {}: {}", refused.route.destination, refused.source);
    }
    Ok(remove_tunnel(TUNNEL)? | !routes.is_empty())
}
