//! Warns of nodes that are not on the uplink's link although no route leads to their pods through a router.
//!
//! The vswitch forwards packets for another node's pods to that node's address, and resolves its MAC address on the uplink's link. A node
//! behind a router does not answer there, so its pods are silently unreachable. The vswitch cannot know the router; it names the missing
//! route.
//!
//! The prefixes on the link are those of the kernel's routes without a gateway over the uplink or the host port's interface (which has
//! the node's addresses if the vswitch uses the uplink), and of the configuration. For a family without any known prefix, the module
//! does not warn, because the warning would be wrong on most nodes.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use bulkhead_dataplane::PortKind;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::config::Config;
use super::log;
use super::remote_nodes::RemoteNode;
use bulkhead_answers::output;

/// Maximum number of nodes named in one warning.
const MAX_NAMED: usize = 5;

/// One pod prefix of another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Peer {
    /// The name of the other node.
    pub node: Arc<str>,
    /// A prefix of the other node's pods (`spec.podCIDRs`).
    pub prefix: IpNet,
    /// The other node's address, of the same family as `prefix`.
    pub address: IpAddr,
}

/// Returns the nodes' pod prefixes. Skips prefixes of a family in which their node has no address.
pub(super) fn peers(nodes: &[RemoteNode]) -> impl Iterator<Item = Peer> {
    let of_node = |node: &RemoteNode, prefix: IpNet| {
        let address = node.addresses.iter().copied().find(|address| address.is_ipv4() == prefix.addr().is_ipv4())?;
        Some(Peer { node: node.name.clone(), prefix, address })
    };
    nodes.iter().flat_map(move |node| node.pod_networks.iter().filter_map(move |&prefix| of_node(node, prefix)))
}

/// The unreachable peers that were already logged, to warn once of each.
#[derive(Debug, Default)]
pub(super) struct NextHops {
    said: BTreeSet<Peer>,
}

impl NextHops {
    /// Warns of the peers that are not on the uplink's link and were not before.
    pub(super) fn check(&mut self, nodes: &[RemoteNode], config: &Config) {
        let peers: Vec<Peer> = peers(nodes).collect();
        let off = off_link(&peers, config, &connected_now(config));
        let new: Vec<&Peer> = off.difference(&self.said).collect();
        if !new.is_empty() {
            log::warn(&warning(&new));
        }
        self.said = off;
    }
}

fn warning(peers: &[&Peer]) -> String {
    let told: Vec<String> =
        peers.iter().map(|Peer { node, prefix, address }| format!("{node} ({prefix} through {address})")).collect();
    let told = output::some_of(&told.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED);
    let prefix = peers.first().map_or_else(String::new, |peer| peer.prefix.to_string());
    format!(
        "pods of other nodes cannot be reached: {told}: the node's address is in no prefix of the uplink's link, so \
         the vswitch cannot resolve it\nhelp: add a route through the router that leads there: \
         routes: [{{prefix: {prefix}, via: ROUTER, port: uplink}}]\n\
         help: or, if the address is on the link, add its prefix: routes: [{{prefix: ADDRESS/LENGTH, port: uplink}}]"
    )
}

/// Returns the peers whose address is not on the link and whose prefix has no configured route.
fn off_link(peers: &[Peer], config: &Config, connected: &[IpNet]) -> BTreeSet<Peer> {
    let is_uplink = |name: &str| config.ports.iter().any(|port| port.kind == PortKind::Uplink && *port.name == *name);
    let on_link = |route: &&super::config::RouteEntry| route.via.is_none() && is_uplink(&route.port);
    let configured = config.routes.iter().filter(on_link).map(|route| route.prefix);
    let connected: Vec<IpNet> =
        connected.iter().copied().chain(configured).filter(|prefix| prefix.prefix_len() > 0).collect();
    // A prefix of one address does not show which neighbours are on the link.
    let is_known = |v4: bool| {
        connected.iter().any(|prefix| prefix.addr().is_ipv4() == v4 && prefix.prefix_len() < prefix.max_prefix_len())
    };
    let known = [is_known(false), is_known(true)];
    let is_off = |peer: &&Peer| {
        known[usize::from(peer.address.is_ipv4())]
            && !connected.iter().any(|prefix| prefix.contains(&peer.address))
            && !config.routes.iter().any(|route| route.prefix == peer.prefix.trunc())
    };
    if !config.ports.iter().any(|port| port.kind == PortKind::Uplink) {
        return BTreeSet::new();
    }
    peers.iter().filter(is_off).cloned().collect()
}

/// Returns the prefixes that the kernel has on the links of the uplink and the host port.
fn connected_now(config: &Config) -> Vec<IpNet> {
    let of_port = |port: &super::config::PortEntry| match port.kind {
        PortKind::Uplink => Some(port.interface.clone()),
        PortKind::Host => port.peer_named.then(|| port.peer.clone()),
        PortKind::Pod => None,
    };
    let interfaces: BTreeSet<Arc<str>> = config.ports.iter().filter_map(of_port).collect();
    // These files show the calling thread's network namespace. They do not exist for a family that the kernel lacks.
    let read = |family: &str| fs::read_to_string(Path::new("/proc/thread-self/net").join(family)).unwrap_or_default();
    connected(&read("route"), &read("ipv6_route"), |name| interfaces.contains(name))
}

/// Returns the prefixes of routes without a gateway over the wanted interfaces. `v4` is the text of `/proc/net/route`, `v6` that of
/// `/proc/net/ipv6_route`.
fn connected(v4: &str, v6: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<IpNet> {
    /// Flags of other routes: `RTF_GATEWAY | RTF_REJECT`, and the kernel's own `RTF_LOCAL | RTF_ANYCAST`.
    const OTHER: u32 = 0x2 | 0x200 | 0x8000_0000 | 0x0010_0000;
    let v4 = v4.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, net, _, flags, _, _, _, mask, ..] = words[..] else { return None };
        let number = |word| u32::from_str_radix(word, 16).ok();
        // The kernel prints the address's bytes as one number in host byte order.
        let address = |word| Some(Ipv4Addr::from(number(word)?.to_ne_bytes()));
        let is_link = is_wanted(name) && number(flags)? & OTHER == 0;
        Some(IpNet::from(Ipv4Net::with_netmask(address(net)?, address(mask)?).ok()?)).filter(|_| is_link)
    });
    let v6 = v6.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [net, len, _, _, _, _, _, _, flags, name, ..] = words[..] else { return None };
        let net = Ipv6Addr::from(u128::from_str_radix(net, 16).ok()?);
        let prefix = Ipv6Net::new(net, u8::from_str_radix(len, 16).ok()?).ok()?;
        let is_link = is_wanted(name) && u32::from_str_radix(flags, 16).ok()? & OTHER == 0;
        // Every interface has these prefixes; no node's address is in them.
        let is_special = net.is_unicast_link_local() || net.is_multicast();
        (is_link && !is_special).then(|| prefix.into())
    });
    v4.chain(v6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rest: &str) -> Config {
        let text = format!("node: n\nstate: {{paths: [s]}}\n{rest}\n");
        Config::parse("c", &text, Path::new("")).unwrap()
    }

    fn peers() -> Vec<Peer> {
        let peer = |node: &str, prefix: &str, address: &str| Peer {
            node: node.into(),
            prefix: prefix.parse().unwrap(),
            address: address.parse().unwrap(),
        };
        vec![
            peer("near", "10.2.0.0/16", "172.18.0.2"),
            peer("far", "10.3.0.0/16", "192.0.2.3"),
            peer("far", "fd00:3::/64", "2001:db8::3"),
        ]
    }

    fn off(config: &Config, connected: &[&str]) -> Vec<String> {
        let connected: Vec<IpNet> = connected.iter().map(|prefix| prefix.parse().unwrap()).collect();
        off_link(&peers(), config, &connected).iter().map(|peer| format!("{} {}", peer.node, peer.prefix)).collect()
    }

    const UPLINK: &str = "ports: [{kind: uplink, interface: u}]";

    #[test]
    fn a_node_whose_address_is_not_on_the_uplinks_link_is_told_unless_a_route_leads_there() {
        assert_eq!(off(&config(UPLINK), &["172.18.0.0/16"]), ["far 10.3.0.0/16"], "nothing is known of IPv6");
        assert_eq!(off(&config(UPLINK), &["172.18.0.0/16", "2001:db8:1::/64"]).len(), 2);
        let routed = config(&format!("{UPLINK}\nroutes: [{{prefix: 10.3.0.0/16, via: 172.18.0.1}}]"));
        assert_eq!(off(&routed, &["172.18.0.0/16"]), [""; 0]);
        // A route to a shorter prefix does not apply to the peer's prefix.
        let shorter = config(&format!("{UPLINK}\nroutes: [{{prefix: 0.0.0.0/0, via: 172.18.0.1}}]"));
        assert_eq!(off(&shorter, &["172.18.0.0/16"]), ["far 10.3.0.0/16"]);
        let on_link = config(&format!("{UPLINK}\nroutes: [{{prefix: 192.0.2.0/24}}]"));
        assert_eq!(off(&on_link, &["172.18.0.0/16"]), [""; 0]);
        assert_eq!(off(&on_link, &[]), ["near 10.2.0.0/16"], "the configuration tells what is on the link, too");
    }

    #[test]
    fn where_nothing_is_known_nothing_is_said() {
        for known in [&[][..], &["172.18.0.11/32", "0.0.0.0/0"]] {
            assert_eq!(off(&config(UPLINK), known), [""; 0]);
        }
        assert_eq!(off(&config("ports: [{kind: host, interface: h}]"), &["172.18.0.0/16"]), [""; 0]);
    }

    #[test]
    fn the_warning_names_node_address_and_remedy_and_stays_short() {
        let peers = peers();
        let text = warning(&peers.iter().collect::<Vec<_>>());
        for part in ["far (10.3.0.0/16 through 192.0.2.3)", "help: ", "prefix: 10.2.0.0/16, via: ROUTER, port: uplink"]
        {
            assert!(text.contains(part), "{text}");
        }
        let many: Vec<&Peer> = std::iter::repeat_n(&peers[1], 1000).collect();
        assert!(warning(&many).contains("and 995 more"));
    }

    #[test]
    fn prefixes_on_a_link_are_told_from_routes_over_gateways_and_the_kernels_own() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
            eth0\t0000020A\t020012AC\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
            eth9\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";
        let zeros = "0".repeat(32);
        let row = |net: &str, len: &str, flags: &str| {
            format!("{net} {len} {zeros} 00 {zeros} 00000100 00000001 00000000 {flags}     eth0\n")
        };
        let v6 = [
            row("20010db8000000000000000000000000", "40", "00000001"),
            row("20010db8000000000000000000000007", "80", "80200001"),
            row("fe800000000000000000000000000000", "40", "00000001"),
            row("ff000000000000000000000000000000", "08", "00000001"),
            row("20010db9000000000000000000000000", "40", "00000003"),
        ]
        .concat();
        let found: Vec<String> = connected(v4, &v6, |name| name == "eth0").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["172.18.0.0/16", "2001:db8::/64"]);
        assert_eq!(connected("", "", |_| true), []);
    }
}
