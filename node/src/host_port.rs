//! The host port where the vswitch makes its interfaces itself (`create`): a veth pair, and the node's routes over it.
//!
//! ```text
//!   networks of pods ------------------------------------> NETWORK via 169.254.1.1 dev bh-node
//!   source addresses that lie in none of them ----------/
//!   service_cidrs, and cluster addresses outside them ---> NETWORK via 169.254.1.1 dev bh-node src NODE
//! ```
//!
//! The pair is made before ports are opened, and stays when the process ends: sessions between the node and its pods go on in the kernel.
//! `bulkhead cleanup` removes it, and its routes with it.
//!
//! The networks are the configuration's, or the pod networks of the node's own Node object, as they are when the state changes. Where no
//! service CIDR is configured, each cluster address has a route of its own: nothing in the cluster's API tells the blocks to everybody
//! (ServiceCIDR objects came with Kubernetes 1.33), a block that is guessed may cover a network of somebody else, and a route per Service is
//! what the kernel's tables are made for.
//!
//! **Invariant.** Routes of somebody else are never changed. None of ours is removed before the state has told both pod networks and
//! Services: until then those of an earlier process stay.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dataplane::Services;
use bulkhead_dataplane::io::{HostPair, HostRoute};
use ipnet::IpNet;

use super::config::{Config, CreatedHost};
use super::log;
use bulkhead_answers::output;

/// Routes that are named in one message.
const MAX_NAMED: usize = 5;

/// How long after the kernel has refused a route it is asked again. An address that is new is taken as a source after a second, when no
/// other machine was heard to have it; a route of somebody else goes when it goes.
const AGAIN: Duration = Duration::from_secs(2);

/// How often the kernel's routes are looked at while nothing changes. Processes of the node that begin a connection try for longer; and a
/// look costs some milliseconds with ten thousand routes.
const LOOK: Duration = Duration::from_secs(30);

/// Where the node's own packets are to go, as far as it is told.
#[derive(Clone, Debug, Default)]
pub(super) struct Destinations {
    /// The node's pod networks; empty before a state tells them.
    pub pods: Arc<[IpNet]>,
    /// Services; none before they are listed, and where they are off.
    pub services: Option<Arc<Services>>,
    /// The node's own addresses, one per family at most, that are the source of what it sends to Services.
    pub sources: Arc<[IpAddr]>,
}

impl Destinations {
    fn is_as(&self, other: &Self) -> bool {
        let has_same_services = match (&self.services, &other.services) {
            (Some(one), Some(other)) => one.shares_cluster_addresses(other) && one.sources() == other.sources(),
            (one, other) => one.is_none() && other.is_none(),
        };
        has_same_services && self.pods == other.pods && self.sources == other.sources
    }

    /// The node's own address for packets to this destination.
    fn source_for(&self, destination: &IpNet) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == destination.addr().is_ipv4())
    }

    /// Routes to the service CIDRs, and to cluster addresses that are in none of them.
    fn to_services(&self, service_cidrs: &[IpNet]) -> impl Iterator<Item = HostRoute> {
        let addresses = self.services.iter().flat_map(|services| services.own_cluster_addresses());
        let alone = addresses.filter(|address| !service_cidrs.iter().any(|block| block.contains(address)));
        let all = service_cidrs.iter().copied().chain(alone.map(IpNet::from));
        all.map(|destination| HostRoute { destination, source: self.source_for(&destination) })
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct HostPort {
    pair: HostPair,
    config: CreatedHost,
    /// Where Services have their cluster addresses; none where they are off.
    service_cidrs: Option<Vec<IpNet>>,
    /// What was asked of the kernel, none before; and what it refused of that. Neither is done or said twice.
    led: Option<Destinations>,
    refused: Vec<String>,
    tried: Instant,
}

impl HostPort {
    /// Makes the interfaces, or takes over those of an earlier process. None where the configuration does not say so.
    ///
    /// # Errors
    /// When the kernel refuses, or there are other interfaces of their names.
    pub(super) fn make(config: &Config) -> anyhow::Result<Option<Self>> {
        let service_cidrs = config.services.as_ref().map(|settings| settings.service_cidrs.clone());
        let Some(config) = config.created_host.clone() else { return Ok(None) };
        let pair = HostPair::ensure(config.names(), config.mtu)?;
        Ok(Some(Self { pair, config, service_cidrs, led: None, refused: Vec::new(), tried: Instant::now() }))
    }

    /// Has the node reach its pods and Services. The networks of pods are those of the configuration, if it names some.
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

    /// Whether it is time to ask again: for what was refused, and for routes that have gone. The kernel removes those whose source is an
    /// address that the node loses, and does not bring them back with the address.
    pub(super) fn is_due(&self) -> bool {
        let since = self.tried.elapsed();
        since >= LOOK || (!self.refused.is_empty() && since >= AGAIN)
    }

    /// The routes that the node is to have.
    fn wanted(&self, to: &Destinations) -> BTreeSet<HostRoute> {
        let networks = if self.config.networks.is_empty() { &to.pods[..] } else { &self.config.networks };
        let mut wanted: BTreeSet<HostRoute> = networks.iter().map(|network| HostRoute::to(network.trunc())).collect();
        if let Some(service_cidrs) = &self.service_cidrs {
            wanted.extend(to.to_services(service_cidrs));
            // Answers to what is sent with them come back to the vswitch, also where the networks are others.
            let sources = to.services.iter().flat_map(|services| services.sources());
            let alone = sources.filter(|source| !networks.iter().any(|network| network.contains(*source)));
            wanted.extend(alone.map(|&source| HostRoute::to(source.into())));
        }
        let is_whole = !networks.is_empty() && (to.services.is_some() || self.service_cidrs.is_none());
        if is_whole && !to.sources.is_empty() {
            return wanted;
        }
        // What is not known is asked again when the routes are set.
        let known = self.pair.routes().unwrap_or_default();
        if is_whole { with_sources(wanted, &known) } else { with_known(with_sources(wanted, &known), &known) }
    }
}

/// The routes, those without a source as they are known: the node's addresses are not told yet.
fn with_sources(wanted: BTreeSet<HostRoute>, known: &BTreeSet<HostRoute>) -> BTreeSet<HostRoute> {
    let found = |route: &HostRoute| known.iter().find(|known| known.destination == route.destination).copied();
    wanted.into_iter().map(|route| found(&route).filter(|_| route.source.is_none()).unwrap_or(route)).collect()
}

/// The routes, and those to other destinations that are known.
fn with_known(mut wanted: BTreeSet<HostRoute>, known: &BTreeSet<HostRoute>) -> BTreeSet<HostRoute> {
    let told: BTreeSet<IpNet> = wanted.iter().map(|route| route.destination).collect();
    wanted.extend(known.iter().filter(|route| !told.contains(&route.destination)));
    wanted
}

/// Removes the interfaces. Returns whether there were any.
///
/// # Errors
/// When the kernel refuses.
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
        // Once the address is told, it counts.
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
        let to = Destinations { pods: [].into(), services: Some(Arc::new(services)), sources };
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
