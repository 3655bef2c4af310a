//! Chooses the way to each other node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::io::{
    Encapsulation, MAIN_TABLE, NodeHop, Outer, OwnRoute, Reach, TUNNEL_TABLE, TunnelEnd, links, reach,
};
use ipnet::IpNet;

use super::RemoteNode;
use crate::config::{DEFAULT_MTU, EncapsulationMode};

/// Bytes that VXLAN takes of a packet: an outer IPv4 or IPv6 header, UDP, VXLAN and Ethernet headers (RFC 7348 §5).
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;
/// The smallest MTU of a link with IPv6 in bytes (RFC 8200 §5), and the tunnel's smallest. On links that leave it less, the tunnel's device adds the
/// headers, and the kernel fragments the outer packets.
const MIN_MTU: u32 = 1280;
/// The largest MTU of a veth.
const MAX_MTU: u32 = 65_535;

/// The way to the pods of one address family at another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A route over the link that both nodes have.
    Route {
        /// The other node's address.
        gateway: IpAddr,
        /// The index of the link's interface.
        interface: u32,
    },
    /// The tunnel.
    Tunnel {
        /// The other node's address, to which the outer packets go.
        remote: IpAddr,
        /// The index of the interface over which the outer packets leave.
        interface: u32,
        /// Who adds the tunnel's headers.
        outer: Outer,
    },
}

/// The names and MTUs in bytes of interfaces, by index.
pub(super) type Interfaces = BTreeMap<u32, (String, u32)>;

/// How the kernel reaches addresses, and its interfaces.
pub(super) struct Links<R = fn(IpAddr) -> io::Result<Reach>> {
    /// Asks the kernel for its route to an address.
    reach: R,
    /// The MTU in bytes and whether the link has neighbours, by interface index.
    known: BTreeMap<u32, (u32, bool)>,
    /// The names of the interfaces, by index.
    names: BTreeMap<u32, String>,
}

impl Links {
    /// Reads the interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// If the netlink request fails.
    pub(super) fn read() -> io::Result<Self> {
        let all = links()?;
        let known = all.iter().map(|link| (link.index, (link.mtu, link.has_neighbours))).collect();
        let names = all.into_iter().filter_map(|link| Some((link.index, link.names.into_iter().next()?))).collect();
        Ok(Self { reach, known, names })
    }
}

impl<R: Fn(IpAddr) -> io::Result<Reach>> Links<R> {
    /// Chooses the ways to these nodes.
    pub(super) fn plan(&self, nodes: &[RemoteNode], mode: EncapsulationMode) -> Plan {
        let links = self.names.iter().map(|(&index, name)| (index, (name.clone(), self.mtu(index)))).collect();
        let mut plan = Plan { links, tunnel_mtu: DEFAULT_MTU - OVERHEAD_V4, ..Plan::default() };
        for node in nodes {
            self.add_node(node, mode, &mut plan);
        }
        let left = |way: &NodeWay| match way.way {
            Way::Tunnel { remote, interface, .. } => {
                let overhead = if remote.is_ipv4() { OVERHEAD_V4 } else { OVERHEAD_V6 };
                Some(self.mtu(interface).saturating_sub(overhead))
            }
            Way::Route { .. } => None,
        };
        if let Some(least) = plan.ways.iter().filter_map(left).min() {
            plan.tunnel_mtu = least.max(MIN_MTU);
        }
        for NodeWay { way, .. } in &plan.ways {
            match *way {
                Way::Route { interface, .. } => plan.routed_mtus.extend([self.mtu(interface)]),
                Way::Tunnel { interface, .. } => plan.tunneled_mtus.extend([self.mtu(interface)]),
            }
        }
        plan
    }

    /// Adds the ways to a node's pods, or why there is none.
    fn add_node(&self, node: &RemoteNode, mode: EncapsulationMode, plan: &mut Plan) {
        if node.pod_networks.is_empty() {
            let why = "no podCIDRs are left for it, so no route leads to its pods; set spec.podCIDRs of its Node, or state.node_ranges";
            plan.problems.insert(format!("{}: {why}", node.name));
            let (node, why) = (Arc::clone(&node.name), Some(why.to_owned()));
            plan.unled.push(Unled { node, networks: Vec::new(), why });
            return;
        }
        // An address about which the kernel does not answer counts as not reached.
        let reached = |&address: &IpAddr| (address, (self.reach)(address).unwrap_or(Reach::Nowhere));
        let reached: Vec<(IpAddr, Reach)> = node.addresses.iter().map(reached).collect();
        for is_v4 in [true, false] {
            let of_family = |network: &&IpNet| network.addr().is_ipv4() == is_v4;
            let networks: Vec<IpNet> = node.pod_networks.iter().filter(of_family).copied().collect();
            let Some(first) = networks.first() else { continue };
            let name = Arc::clone(&node.name);
            match self.choose(&reached, is_v4, mode) {
                Ok(None) => plan.unled.push(Unled { node: name, networks, why: None }),
                Ok(Some(way)) => {
                    let own = node.first_addresses().find(|address| address.is_ipv4() == is_v4);
                    plan.ways.push(NodeWay { node: name, way, networks, own });
                }
                Err(why) => {
                    plan.problems.insert(format!("{name} ({first}): {why}"));
                    plan.unled.push(Unled { node: name, networks, why: Some(why) });
                }
            }
        }
    }

    /// Chooses the way to a node's pods of one address family. `reached` has the node's addresses. `None` if the configuration forbids the
    /// tunnel, so that routers in between must know these pods.
    ///
    /// # Errors
    /// Why there is none, with the remedy.
    fn choose(&self, reached: &[(IpAddr, Reach)], is_v4: bool, mode: EncapsulationMode) -> Result<Option<Way>, String> {
        let on_link = reached.iter().find_map(|&(gateway, reach)| match reach {
            Reach::Link(interface) if gateway.is_ipv4() == is_v4 && self.has_neighbours(interface) => {
                Some(Way::Route { gateway, interface })
            }
            _ => None,
        });
        match mode {
            EncapsulationMode::Never => return Ok(on_link),
            EncapsulationMode::Auto if on_link.is_some() => return Ok(on_link),
            EncapsulationMode::Auto | EncapsulationMode::Always => {}
        }
        let links = reached.iter().filter_map(|&(address, reach)| match reach {
            Reach::Link(interface) => Some((address, interface, Outer::ToNeighbor)),
            Reach::Router(interface) => Some((address, interface, Outer::ByRoute)),
            Reach::Local | Reach::Nowhere => None,
        });
        // The kernel fragments outer packets of IPv4, not of IPv6.
        let is_large = |&(remote, interface, _): &(IpAddr, u32, Outer)| {
            remote.is_ipv4() || self.mtu(interface) >= MIN_MTU + OVERHEAD_V6
        };
        // The pods' family first: its outer packets pass wherever the pods' packets would.
        let usable = links.clone().filter(is_large).min_by_key(|(remote, ..)| remote.is_ipv4() != is_v4);
        if let Some((remote, interface, outer)) = usable {
            let outer = match self.mtu(interface) {
                _ if !self.has_neighbours(interface) => Outer::WithoutEthernet,
                mtu if mtu < MIN_MTU + OVERHEAD_V4 => Outer::ByDevice,
                _ => outer,
            };
            return Ok(Some(Way::Tunnel { remote, interface, outer }));
        }
        if let Some((address, interface, _)) = links.clone().next() {
            return Err(format!(
                "the link to its address {address} has an MTU of {}, too small for IPv6 in the tunnel; set it to {} or more, or give \
                 the nodes IPv4 addresses",
                self.mtu(interface),
                MIN_MTU + OVERHEAD_V6
            ));
        }
        Err(match reached.first() {
            Some((address, Reach::Local)) => {
                format!("its address {address} is this node's own; correct the Node objects")
            }
            Some((address, _)) => {
                format!("the kernel has no route to its address {address}; see `ip route get {address}`")
            }
            None => "no address is left for it; correct its Node object".to_owned(),
        })
    }

    /// Returns an interface's MTU in bytes. [`DEFAULT_MTU`] if the interface no longer exists.
    fn mtu(&self, interface: u32) -> u32 {
        self.known.get(&interface).map_or(DEFAULT_MTU, |&(mtu, _)| mtu)
    }

    /// Returns the MTU in bytes of an interface with neighbors. `None` for others, such as point-to-point links.
    pub(super) fn with_neighbours(&self, interface: u32) -> Option<u32> {
        self.known.get(&interface).and_then(|&(mtu, has_neighbours)| has_neighbours.then_some(mtu))
    }

    /// Whether another node on the link receives packets for its pods. A point-to-point link delivers only what its other end expects.
    fn has_neighbours(&self, interface: u32) -> bool {
        self.with_neighbours(interface).is_some()
    }
}

/// Returns the own address of the family of `address`. `None` if there is none. `own` has at most one per family.
pub(super) fn source_for(own: &[IpAddr], address: IpAddr) -> Option<IpAddr> {
    own.iter().copied().find(|source| source.is_ipv4() == address.is_ipv4())
}

/// The way to a node's pods of one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeWay {
    /// The node's name.
    pub(super) node: Arc<str>,
    /// The way.
    pub(super) way: Way,
    /// The pods' networks.
    pub(super) networks: Vec<IpNet>,
    /// The node's first address of the family. `None` if it has none.
    pub(super) own: Option<IpAddr>,
}

/// Pods of one address family at a node to which the vswitch sets up no way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unled {
    /// The node's name.
    pub(super) node: Arc<str>,
    /// The pods' networks. Empty if the node has none of either family.
    pub(super) networks: Vec<IpNet>,
    /// Why there is none, with the remedy. `None` if the configuration leaves these pods to the network.
    pub(super) why: Option<String>,
}

/// The ways to all other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// One way for each node and address family of its pods.
    pub(super) ways: Vec<NodeWay>,
    /// The nodes and families without one.
    pub(super) unled: Vec<Unled>,
    /// The interfaces of this node.
    pub(super) links: Interfaces,
    /// A message for each node and family without a way.
    pub(super) problems: BTreeSet<String>,
    /// The tunnel's MTU in bytes: what the smallest link below it leaves, at least 1,280.
    pub(super) tunnel_mtu: u32,
    /// The MTUs in bytes of the links that lead to nodes by a route.
    pub(super) routed_mtus: BTreeSet<u32>,
    /// The MTUs in bytes of the links below the tunnel.
    pub(super) tunneled_mtus: BTreeSet<u32>,
}

impl Plan {
    /// Returns the MTU of new pods in bytes, 1,280 to 65,535: their packets reach every other node unfragmented. `default` is the MTU of the
    /// default route's link, which counts where there is no other node.
    ///
    /// With `encapsulation: auto`, the tunnel counts from the first node behind it on. Packets of older pods that are too long for it are
    /// answered.
    pub(super) fn pod_mtu(&self, mode: EncapsulationMode, default: u32) -> u32 {
        let tunnel = (!self.tunneled_mtus.is_empty()).then_some(self.tunnel_mtu);
        let least = self.routed_mtus.first().copied().into_iter().chain(tunnel).min();
        let alone = || match mode {
            EncapsulationMode::Always => default.saturating_sub(OVERHEAD_V6),
            EncapsulationMode::Auto | EncapsulationMode::Never => default,
        };
        least.unwrap_or_else(alone).clamp(MIN_MTU, MAX_MTU)
    }

    /// Returns the MTU of the host port in bytes, 1,280 to 65,535: packets of the largest link that leads to a node or to the world pass. `default`
    /// is as for [`pod_mtu`](Self::pod_mtu).
    pub(super) fn host_mtu(&self, default: u32) -> u32 {
        let links = self.routed_mtus.last().into_iter().chain(self.tunneled_mtus.last());
        links.copied().fold(default, u32::max).clamp(MIN_MTU, MAX_MTU)
    }

    /// Returns the name of the interface with this index, and its MTU in bytes. An empty name and [`DEFAULT_MTU`] if it no longer exists.
    pub(super) fn link(&self, interface: u32) -> (String, u32) {
        self.links.get(&interface).cloned().unwrap_or_else(|| (String::new(), DEFAULT_MTU))
    }

    /// Returns the number of ways by a route, and of ways through the tunnel.
    pub(super) fn counts(&self) -> [usize; 2] {
        let tunneled = self.ways.iter().filter(|way| matches!(way.way, Way::Tunnel { .. })).count();
        [self.ways.len() - tunneled, tunneled]
    }

    /// Returns the next hops past the node's network stack, by network. `tunnel` and `sources` are as for [`routes`](Self::routes).
    pub(super) fn hops(&self, tunnel: Option<TunnelEnd>, sources: &[IpAddr]) -> BTreeMap<IpNet, NodeHop> {
        let mut hops = BTreeMap::new();
        for NodeWay { way, networks, .. } in &self.ways {
            let hop = match *way {
                Way::Route { gateway, interface } => {
                    Some(NodeHop::Link { interface, neighbor: gateway, mtu: self.link(interface).1 })
                }
                Way::Tunnel { remote, interface: link, outer } => tunnel.map(|end| {
                    let local = source_for(sources, remote);
                    NodeHop::Tunnel { end, link, outer, local, remote, mtu: self.tunnel_mtu }
                }),
            };
            hops.extend(hop.iter().flat_map(|&hop| networks.iter().map(move |network| (network.trunc(), hop))));
        }
        hops
    }

    /// Returns the routes that the kernel should have. If `tunnel` is `None`, routes through the tunnel are left out. `sources` are the node's own
    /// addresses, at most one per family.
    pub(super) fn routes(&self, tunnel: Option<TunnelEnd>, sources: &[IpAddr]) -> BTreeSet<OwnRoute> {
        let source_for = |address| source_for(sources, address);
        let mut routes = BTreeSet::new();
        for NodeWay { way, networks, own, .. } in &self.ways {
            match *way {
                Way::Route { gateway, interface } => {
                    let route = |&network| OwnRoute::via(network, gateway, interface, source_for(gateway));
                    routes.extend(networks.iter().map(route));
                }
                Way::Tunnel { remote, .. } => {
                    let Some(TunnelEnd { interface, vni, .. }) = tunnel else { continue };
                    let encapsulation = Encapsulation { local: source_for(remote), remote, vni };
                    let route = |to: IpNet, table| {
                        OwnRoute::through(to, table, interface, source_for(to.addr()), encapsulation)
                    };
                    routes.extend(networks.iter().map(|&network| route(network, MAIN_TABLE)));
                    routes.extend(own.map(|address| route(address.into(), TUNNEL_TABLE)));
                }
            }
        }
        routes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: TunnelEnd = TunnelEnd { interface: 9, port: 4789, vni: 1 };

    fn node(name: &str, addresses: &[&str], pod_networks: &[&str]) -> RemoteNode {
        RemoteNode {
            name: name.into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            pod_networks: pod_networks.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    /// 192.0.2.0/24 and 2001:db8::/64 are on the link of interface 2, 198.51.100.0/24 is behind a router on interface 3.
    fn reach(address: IpAddr) -> io::Result<Reach> {
        let is_in = |network: &str| network.parse::<IpNet>().unwrap().contains(&address);
        Ok(match () {
            () if is_in("192.0.2.1/32") => Reach::Local,
            () if is_in("192.0.2.0/24") || is_in("2001:db8::/64") => Reach::Link(2),
            () if is_in("198.51.100.0/24") => Reach::Router(3),
            () => Reach::Nowhere,
        })
    }

    fn planned(nodes: &[RemoteNode], mode: EncapsulationMode) -> Plan {
        let names = [(2, "eth0".to_owned()), (3, "eth1".to_owned())].into();
        Links { reach, known: [(2, (9000, true)), (3, (1400, true))].into(), names }.plan(nodes, mode)
    }

    /// Returns the ways as text.
    fn ways(plan: &Plan) -> Vec<String> {
        let text = |NodeWay { way, networks, .. }: &NodeWay| match way {
            Way::Route { gateway, interface } => format!("{} route {gateway} {interface}", networks[0]),
            Way::Tunnel { remote, interface, .. } => format!("{} tunnel {remote} {interface}", networks[0]),
        };
        plan.ways.iter().map(text).collect()
    }

    #[test]
    fn each_node_and_family_gets_a_route_on_its_link_and_the_tunnel_elsewhere() {
        use EncapsulationMode::{Always, Auto, Never};
        let nodes = [
            node("near", &["192.0.2.2", "2001:db8::2"], &["10.2.0.0/24", "fd00:2::/64"]),
            node("far", &["198.51.100.3"], &["10.3.0.0/24", "fd00:3::/64"]),
        ];
        let auto = planned(&nodes, Auto);
        let [near_v4, near_v6] = ["10.2.0.0/24 route 192.0.2.2 2", "fd00:2::/64 route 2001:db8::2 2"];
        let [far_v4, far_v6] = ["10.3.0.0/24 tunnel 198.51.100.3 3", "fd00:3::/64 tunnel 198.51.100.3 3"];
        assert_eq!(ways(&auto), [near_v4, near_v6, far_v4, far_v6]);
        assert_eq!((auto.counts(), auto.tunnel_mtu), ([2, 2], 1350));
        let always = planned(&nodes, Always);
        assert_eq!(ways(&always)[..2], ["10.2.0.0/24 tunnel 192.0.2.2 2", "fd00:2::/64 tunnel 2001:db8::2 2"]);
        let never = planned(&nodes, Never);
        assert_eq!((ways(&never), never.problems.len()), (vec![near_v4.to_owned(), near_v6.to_owned()], 0));
        assert!(never.unled.len() == 2 && never.unled.iter().all(|unled| &*unled.node == "far" && unled.why.is_none()));
    }

    #[test]
    fn the_programs_get_the_next_hop_of_each_network() {
        let nodes = [
            node("near", &["192.0.2.2"], &["10.2.0.0/24"]),
            node("far", &["198.51.100.3"], &["10.3.0.0/24", "fd00:3::/64"]),
        ];
        let plan = planned(&nodes, EncapsulationMode::Auto);
        let [local, remote, neighbor] = ["192.0.2.1", "198.51.100.3", "192.0.2.2"].map(|text| text.parse().unwrap());
        let link = NodeHop::Link { interface: 2, neighbor, mtu: 9000 };
        let tunnel =
            NodeHop::Tunnel { end: END, link: 3, outer: Outer::ByRoute, local: Some(local), remote, mtu: 1350 };
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let expected = [(net("10.2.0.0/24"), link), (net("10.3.0.0/24"), tunnel), (net("fd00:3::/64"), tunnel)];
        assert_eq!(plan.hops(Some(END), &[local]), expected.into());
        assert_eq!(plan.hops(None, &[local]), [expected[0]].into(), "there is no tunnel");
    }

    #[test]
    fn a_point_to_point_link_takes_the_tunnel() {
        let links = Links { reach, known: [(2, (1420, false))].into(), names: BTreeMap::new() };
        let plan = links.plan(&[node("n", &["192.0.2.2"], &["10.2.0.0/24"])], EncapsulationMode::Auto);
        assert_eq!((ways(&plan), plan.tunnel_mtu), (vec!["10.2.0.0/24 tunnel 192.0.2.2 2".to_owned()], 1370));
    }

    #[test]
    fn the_programs_send_outer_packets_only_where_they_fit_and_have_an_ethernet_header() {
        let outer = |address: &str, mtu, has_neighbours| {
            let known = [(2, (mtu, has_neighbours)), (3, (mtu, has_neighbours))].into();
            let links = Links { reach, known, names: BTreeMap::new() };
            let plan = links.plan(&[node("n", &[address], &["10.2.0.0/24"])], EncapsulationMode::Always);
            match plan.ways[0].way {
                Way::Tunnel { outer, .. } => outer,
                Way::Route { .. } => panic!("the tunnel is the only way"),
            }
        };
        assert_eq!(
            [outer("192.0.2.2", 1330, true), outer("192.0.2.2", 1329, true)],
            [Outer::ToNeighbor, Outer::ByDevice]
        );
        assert_eq!(
            [outer("198.51.100.3", 1500, true), outer("192.0.2.2", 1500, false)],
            [Outer::ByRoute, Outer::WithoutEthernet]
        );
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_named_with_the_cause() {
        let nodes = [
            node("lost", &["203.0.113.1"], &["10.4.0.0/24"]),
            node("double", &["192.0.2.1"], &["10.5.0.0/24"]),
            node("mixed", &["203.0.113.1", "198.51.100.6"], &["10.6.0.0/24"]),
            node("young", &["198.51.100.7"], &[]),
        ];
        let plan = planned(&nodes, EncapsulationMode::Auto);
        assert_eq!(ways(&plan), ["10.6.0.0/24 tunnel 198.51.100.6 3"], "another address of the node is reached");
        let problems: Vec<&str> = plan.problems.iter().map(String::as_str).collect();
        assert!(problems[0].contains("double (10.5.0.0/24): its address 192.0.2.1 is this node's own"), "{problems:?}");
        assert!(problems[1].contains("lost (10.4.0.0/24): the kernel has no route"), "{problems:?}");
        assert!(problems[2].contains("young: no podCIDRs"), "{problems:?}");
        let unled: Vec<&str> =
            plan.unled.iter().filter(|unled| unled.why.is_some()).map(|unled| &*unled.node).collect();
        assert_eq!(unled, ["lost", "double", "young"]);
    }

    #[test]
    fn the_tunnels_mtu_is_what_the_smallest_link_leaves_but_enough_for_ipv6() {
        let mtu = |address: &str, mtus: &[(u32, u32)]| {
            let known = mtus.iter().map(|&(index, mtu)| (index, (mtu, true))).collect();
            let links = Links { reach, known, names: BTreeMap::new() };
            links.plan(&[node("n", &[address], &["10.2.0.0/24"])], EncapsulationMode::Always).tunnel_mtu
        };
        assert_eq!(mtu("198.51.100.3", &[(3, 9000)]), 8950);
        assert_eq!(mtu("2001:db8::2", &[(2, 9000)]), 8930);
        assert_eq!(mtu("198.51.100.3", &[(3, 1280)]), 1280);
        assert_eq!(mtu("198.51.100.3", &[]), 1450, "the interface has gone meanwhile");
    }

    #[test]
    fn pods_get_the_smallest_mtu_of_what_leads_to_nodes_and_the_host_port_the_largest() {
        use EncapsulationMode::{Always, Auto, Never};
        let near = node("near", &["192.0.2.2"], &["10.2.0.0/24"]);
        let far = node("far", &["198.51.100.3"], &["10.3.0.0/24", "fd00:3::/64"]);
        let over_v6 = node("v6", &["2001:db8::2"], &["fd00:4::/64"]);
        let mtus = |nodes: &[&RemoteNode], mode, [near, far, default]: [u32; 3]| {
            let links = Links { reach, known: [(2, (near, true)), (3, (far, true))].into(), names: BTreeMap::new() };
            let nodes: Vec<RemoteNode> = nodes.iter().map(|&node| node.clone()).collect();
            let plan = links.plan(&nodes, mode);
            (plan.pod_mtu(mode, default), plan.host_mtu(default))
        };
        assert_eq!(
            mtus(&[&near], Auto, [9000, 1500, 1500]),
            (9000, 9000),
            "the kernel answers what is too long for the world"
        );
        assert_eq!(mtus(&[&near, &far], Auto, [9000, 1500, 1500]), (1450, 9000));
        assert_eq!(mtus(&[&near, &far], Auto, [1400, 1500, 1500]), (1400, 1500), "the link is smaller than the tunnel");
        assert_eq!(mtus(&[&near, &far], Never, [9000, 1500, 1500]), (9000, 9000), "the network routes these pods");
        assert_eq!(mtus(&[&near], Always, [1500, 1500, 1500]), (1450, 1500));
        assert_eq!(mtus(&[&near, &over_v6], Always, [1500, 1500, 1500]), (1430, 1500), "one MTU for both families");
        assert_eq!(
            mtus(&[&far], Auto, [1500, 1280, 1500]),
            (1280, 1500),
            "IPv6 needs 1280; outer IPv4 packets are cut"
        );
        // Without another node.
        for (mode, expected) in [(Auto, 1500), (Never, 1500), (Always, 1430)] {
            assert_eq!(mtus(&[], mode, [9000, 9000, 1500]), (expected, 1500), "{mode:?}");
        }
        assert_eq!(mtus(&[], Auto, [1500, 1500, 65_536]), (65_535, 65_535));
        assert_eq!(mtus(&[], Auto, [1500, 1500, 1000]), (1280, 1280));
    }

    #[test]
    fn outer_packets_of_ipv6_need_a_link_that_leaves_enough_for_ipv6() {
        let links = Links { reach, known: [(2, (1349, true)), (3, (1349, true))].into(), names: BTreeMap::new() };
        let nodes = [
            node("v6", &["2001:db8::2"], &["fd00:2::/64"]),
            node("both", &["2001:db8::3", "198.51.100.3"], &["fd00:3::/64"]),
        ];
        let plan = links.plan(&nodes, EncapsulationMode::Always);
        assert_eq!(ways(&plan), ["fd00:3::/64 tunnel 198.51.100.3 3"]);
        assert!(plan.problems.first().is_some_and(|problem| problem.contains("an MTU of 1349")), "{:?}", plan.problems);
    }

    #[test]
    fn routes_of_pods_are_for_all_and_those_of_nodes_only_for_packets_from_pods() {
        let nodes = [
            node("near", &["192.0.2.2"], &["10.2.0.0/24"]),
            node("far", &["198.51.100.3", "203.0.113.3"], &["10.3.0.0/24"]),
        ];
        let plan = planned(&nodes, EncapsulationMode::Auto);
        let sources = ["192.0.2.1".parse().unwrap()];
        let told = |tunnel| -> Vec<String> {
            let text = |route: &OwnRoute| {
                let hop = route.hop;
                let to = hop.encapsulation.map_or_else(String::new, |tunnel| format!(" to {}", tunnel.remote));
                assert_eq!(hop.source, Some(sources[0]));
                format!("{} table {} dev {}{to}", route.destination, route.table, hop.interface)
            };
            plan.routes(tunnel, &sources).iter().map(text).collect()
        };
        let near = "10.2.0.0/24 table 254 dev 2";
        let far = ["10.3.0.0/24 table 254 dev 9 to 198.51.100.3", "198.51.100.3/32 table 98 dev 9 to 198.51.100.3"];
        assert_eq!(told(Some(END)), [near, far[0], far[1]], "the second address may be a router's");
        assert_eq!(told(None), [near], "packets to nodes behind the tunnel never leave without its header");
    }
}
