//! The host port's veth pair and the node's routes over it, if the configuration has the vswitch create them (`create`).
//!
//! ```text
//!   pod networks ----------------------------------------> NETWORK via 169.254.1.1 dev bh-node
//!   source addresses for Services, outside these -------/
//!   service_cidrs, and cluster addresses outside them ---> NETWORK via 169.254.1.1 dev bh-node src NODE
//! ```
//!
//! The pair is created before ports open and outlives the process, so that sessions between the node and its pods continue in the kernel.
//! `bulkhead cleanup` removes the pair and thereby its routes.
//!
//! The pod networks are the configured ones, or those of the node's own Node object. Without configured service CIDRs, each cluster address
//! gets its own route. Guessing the CIDRs was rejected: before Kubernetes 1.33 (ServiceCIDR objects) the API does not publish them, and a
//! wrong guess could cover another network.
//!
//! **Invariant.** Only the vswitch's own routes are changed. Routes of the previous process stay until both the pod networks and the
//! Services are known.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::{HostPair, HostRoute, LinkInfo, default_route_mtu};
use bulkhead_dataplane::{Masquerade, Services};
use ipnet::IpNet;

use super::config::{Config, CreatedHost, DEFAULT_MTU};
use super::log;
use bulkhead_answers::output;

/// Maximum number of routes named in one message.
const MAX_NAMED: usize = 5;

/// Retry interval for routes that the kernel refused. A new IPv6 address becomes usable as a source after about a second, when duplicate
/// address detection ends; a conflicting route may go at any time.
const AGAIN: Duration = Duration::from_secs(2);

/// Interval at which the kernel's routes are checked without a change. Connection attempts of the node last longer, and a check of ten
/// thousand routes takes a few milliseconds.
const LOOK: Duration = Duration::from_secs(30);

/// Destinations that the node must reach over the host port.
#[derive(Clone, Debug, Default)]
pub(super) struct Destinations {
    /// The node's pod networks. Empty until the state has them.
    pub pods: Arc<[IpNet]>,
    /// The Services. `None` until they are listed, and if Services are off.
    pub services: Option<Arc<Services>>,
    /// The node's source addresses for packets to Services, at most one per family.
    pub sources: Arc<[IpAddr]>,
    /// How pods' connections to the world are masqueraded. `None` if they are not.
    pub masquerade: Option<Arc<Masquerade>>,
}

impl Destinations {
    fn is_as(&self, other: &Self) -> bool {
        let has_same_services = match (&self.services, &other.services) {
            (Some(one), Some(other)) => one.shares_cluster_addresses(other) && one.sources() == other.sources(),
            (one, other) => one.is_none() && other.is_none(),
        };
        has_same_services && self.pods == other.pods && self.sources == other.sources
    }

    /// Whether clients outside the cluster have an address to connect to: a node port, a host port, or a load balancer's or external address.
    pub(super) fn has_external_vips(&self) -> bool {
        self.services.as_ref().is_some_and(|services| services.external_vips().next().is_some())
    }

    /// Returns the node's source address for this destination. `None` if the node's address of that family is unknown.
    fn source_for(&self, destination: &IpNet) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == destination.addr().is_ipv4())
    }

    /// Returns routes to the service CIDRs and to the cluster addresses outside them.
    fn to_services(&self, service_cidrs: &[IpNet]) -> impl Iterator<Item = HostRoute> {
        let addresses = self.services.iter().flat_map(|services| services.own_cluster_addresses());
        let alone = addresses.filter(|address| !service_cidrs.iter().any(|block| block.contains(address)));
        let all = service_cidrs.iter().copied().chain(alone.map(IpNet::from));
        all.map(|destination| HostRoute { destination, source: self.source_for(&destination) })
    }
}

/// The veth pair, and the routes that were last set over it.
#[derive(Debug)]
pub(super) struct HostPort {
    pair: HostPair,
    config: CreatedHost,
    /// The configured service CIDRs, which may be empty. `None` if Services are off.
    service_cidrs: Option<Vec<IpNet>>,
    /// The destinations of the last [`HostPort::lead`] (`None` before the first) and the kernel's errors, each of which is logged once.
    led: Option<Destinations>,
    refused: Vec<String>,
    tried: Instant,
}

impl HostPort {
    /// Creates the interfaces, or takes over those of the previous process. `None` if the configuration does not request them.
    ///
    /// # Errors
    /// If the kernel refuses, or other interfaces have the names.
    pub(super) fn make(config: &Config) -> anyhow::Result<Option<Self>> {
        let service_cidrs = config.services.as_ref().map(|settings| settings.service_cidrs.clone());
        let has_uplink = config.uplink().is_some();
        let Some(config) = config.created_host.clone() else { return Ok(None) };
        // Without a configured MTU the one that the pair has stays until the other nodes are known. With an uplink they do not matter.
        let present = || LinkInfo::read(&config.peer).ok().filter(|_| !has_uplink).map(|link| link.mtu);
        let mtu = config.mtu.or_else(present).or_else(|| default_route_mtu().ok().flatten()).unwrap_or(DEFAULT_MTU);
        let pair = HostPair::ensure(config.names(), mtu)?;
        Ok(Some(Self { pair, config, service_cidrs, led: None, refused: Vec::new(), tried: Instant::now() }))
    }

    /// Sets the node's routes to these pods and Services, if they changed or a check is due. Configured pod networks replace those of `to`.
    pub(super) fn lead(&mut self, to: Destinations) {
        if !self.is_due() && self.led.as_ref().is_some_and(|led| led.is_as(&to)) {
            return;
        }
        self.tried = Instant::now();
        let refused = self.pair.lead(self.wanted(&to));
        let new: Vec<&str> = refused.iter().filter(|text| !self.refused.contains(text)).map(String::as_str).collect();
        if !new.is_empty() {
            log::error(&format!(
                "{}\nhelp: remove the conflicting route (`ip route`), or set the networks in ports[].create.networks and \
                 services.service_cidrs",
                output::some_of(&new, MAX_NAMED)
            ));
        }
        (self.led, self.refused) = (Some(to), refused);
    }

    /// Whether to set the routes again: after [`AGAIN`] if the kernel refused one, else after [`LOOK`]. When the node loses an address, the
    /// kernel removes the routes with that source, and does not restore them with the address.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next_check()
    }

    /// Returns when to set the routes again. See [`is_due`](Self::is_due).
    pub(super) fn next_check(&self) -> Instant {
        self.tried + if self.refused.is_empty() { LOOK } else { AGAIN }
    }

    /// Returns the routes that the kernel should have. Existing routes are kept where the destinations are still unknown.
    fn wanted(&self, to: &Destinations) -> BTreeSet<HostRoute> {
        let networks = if self.config.networks.is_empty() { &to.pods[..] } else { &self.config.networks };
        let mut wanted: BTreeSet<HostRoute> = networks.iter().map(|network| HostRoute::to(network.trunc())).collect();
        if let Some(service_cidrs) = &self.service_cidrs {
            wanted.extend(to.to_services(service_cidrs));
            // Replies to packets that the vswitch sends with these source addresses must return to the vswitch.
            let sources = to.services.iter().flat_map(|services| services.sources());
            let alone = sources.filter(|source| !networks.iter().any(|network| network.contains(*source)));
            wanted.extend(alone.map(|&source| HostRoute::to(source.into())));
        }
        let is_whole = !networks.is_empty() && (to.services.is_some() || self.service_cidrs.is_none());
        if is_whole && !to.sources.is_empty() {
            return wanted;
        }
        // On an error no route is kept here; `HostPair::lead` reads the routes again and reports the error.
        let known = self.pair.routes().unwrap_or_default();
        if is_whole { with_sources(wanted, &known) } else { with_known(with_sources(wanted, &known), &known) }
    }
}

/// Gives each wanted route without a source the source of the existing route, as the node's addresses are not known yet.
fn with_sources(wanted: BTreeSet<HostRoute>, known: &BTreeSet<HostRoute>) -> BTreeSet<HostRoute> {
    let found = |route: &HostRoute| known.iter().find(|known| known.destination == route.destination).copied();
    wanted.into_iter().map(|route| found(&route).filter(|_| route.source.is_none()).unwrap_or(route)).collect()
}

/// Adds the existing routes to destinations that the wanted routes do not have.
fn with_known(mut wanted: BTreeSet<HostRoute>, known: &BTreeSet<HostRoute>) -> BTreeSet<HostRoute> {
    let told: BTreeSet<IpNet> = wanted.iter().map(|route| route.destination).collect();
    wanted.extend(known.iter().filter(|route| !told.contains(&route.destination)));
    wanted
}

/// Removes the interfaces. Returns whether they existed.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn remove(config: &Config) -> anyhow::Result<bool> {
    Ok(config.created_host.as_ref().map(|created| HostPair::remove(created.names())).transpose()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_yet_stays_as_an_earlier_process_has_left_it() {
        let route = |to: &str, source: Option<&str>| HostRoute {
            destination: to.parse().unwrap(),
            source: source.map(|text| text.parse().unwrap()),
        };
        let known = [route("10.96.0.0/12", Some("192.0.2.1")), route("10.244.1.0/24", None)].into();
        let wanted: BTreeSet<_> = [route("10.96.0.0/12", None), route("10.9.0.0/16", None)].into();
        let kept = with_sources(wanted, &known);
        assert_eq!(kept, [route("10.96.0.0/12", Some("192.0.2.1")), route("10.9.0.0/16", None)].into());
        assert_eq!(with_known(kept, &known).len(), 3);
        // A known source replaces the existing route's.
        let told: BTreeSet<_> = [route("10.96.0.0/12", Some("192.0.2.7"))].into();
        assert_eq!(with_sources(told.clone(), &known), told);
    }

    #[test]
    fn a_cluster_address_has_a_route_of_its_own_unless_a_block_holds_it() {
        let mut services = Services::new(0);
        for (address, ours) in [("10.96.0.1", true), ("10.97.0.1", true), ("fd96::1", true), ("10.96.0.9", false)] {
            services.set_cluster_address(address.parse().unwrap(), Some(ours));
        }
        let sources = ["192.0.2.1".parse().unwrap()].into();
        let to = Destinations { pods: [].into(), services: Some(Arc::new(services)), sources, masquerade: None };
        let told = |service_cidrs: &[&str]| -> BTreeSet<String> {
            let blocks: Vec<IpNet> = service_cidrs.iter().map(|block| block.parse().unwrap()).collect();
            let text = |route: HostRoute| match route.source {
                Some(source) => format!("{} src {source}", route.destination),
                None => route.destination.to_string(),
            };
            to.to_services(&blocks).map(text).collect()
        };
        let all = |routes: &[&str]| routes.iter().map(|&route| route.to_owned()).collect::<BTreeSet<_>>();
        let [one, two] = ["10.96.0.1/32 src 192.0.2.1", "10.97.0.1/32 src 192.0.2.1"];
        assert_eq!(told(&[]), all(&[one, two, "fd96::1/128"]), "another proxy's address is none of ours");
        assert_eq!(told(&["10.96.0.0/16", "fd96::/112"]), all(&["10.96.0.0/16 src 192.0.2.1", two, "fd96::/112"]));
    }
}
