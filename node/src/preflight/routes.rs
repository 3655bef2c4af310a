//! Detects kernel routes that lead to pods past the vswitch.
//!
//! The node must reach its pods over the host port, where policy applies. A route over the pod's own interface, or over a bridge that
//! another network left behind, delivers packets that the vswitch never sees.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_control::object::Object;
use bulkhead_control::source::{Options, Strictness, Unenforced};
use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{KernelRoute, LinkStatus, MAIN_TABLE, kernel_routes, links};
use ipnet::IpNet;

use super::{Finding, Severity};
use crate::config::Config;
use bulkhead_answers::output;

/// Maximum number of routes in one finding.
const MAX_NAMED: usize = 5;

/// Returns the networks of this node's pods, from the state's files. Empty if they do not load, which the start reports separately.
pub(crate) fn pod_networks(config: &Config) -> Vec<IpNet> {
    let options = &config.state.options;
    let options = Options { strictness: Strictness::Lenient, unenforced: Unenforced::Report, ..options.clone() };
    let loaded = config.state.load(options);
    let objects = loaded.map(|loaded| loaded.objects).unwrap_or_default();
    let of_object = |object: &Object| match object {
        Object::Node(node) if node.name == config.node => node.pod_cidrs.clone(),
        Object::Pod(pod) if pod.node.as_ref() == Some(&config.node) && !pod.host_network => {
            pod.addresses.iter().copied().map(IpNet::from).collect()
        }
        _ => Vec::new(),
    };
    objects.iter().flat_map(of_object).collect()
}

/// Checks the node's current routes to pods in `networks`.
pub(crate) fn check(config: &Config, networks: &[IpNet]) -> Option<Finding> {
    // Routes that cannot be read are omitted, as in `Facts`.
    judge(config, networks, &kernel_routes().unwrap_or_default(), &links().unwrap_or_default())
}

fn judge(config: &Config, networks: &[IpNet], routes: &[KernelRoute], links: &[LinkStatus]) -> Option<Finding> {
    let of_kind = |kind| config.ports.iter().filter(move |port| port.kind == kind);
    let pods: BTreeSet<&str> = of_kind(PortKind::Pod).map(|port| &*port.interface).collect();
    let known: BTreeMap<u32, &LinkStatus> = links.iter().map(|link| (link.index, link)).collect();
    let called = |index: &u32| known.get(index).map_or(&[][..], |link| &link.names[..]);
    let host = of_kind(PortKind::Host).find_map(|port| {
        // The node's end of the veth, even if the configuration does not name it.
        let link = links.iter().find(|link| link.names.iter().any(|name| **name == *port.interface));
        let peer = link.and_then(|link| link.related).and_then(|peer| known.get(&peer)).map(|peer| &*peer.names[0]);
        peer.or_else(|| port.peer_named.then_some(&*port.peer))
    });
    let networks: Vec<IpNet> = networks.iter().map(IpNet::trunc).collect();
    let to_pod = |route: &KernelRoute| networks.iter().any(|network| network.contains(&route.destination));
    let mut found: BTreeSet<(IpNet, u32, &str)> = BTreeSet::new();
    for route in routes.iter().filter(|route| !is_the_links(&route.destination)) {
        for index in &route.interfaces {
            let called = called(index);
            let is_own = called.iter().any(|name| pods.contains(name.as_str()));
            let is_host = called.iter().any(|name| Some(name.as_str()) == host);
            if let Some(name) = called.first().filter(|_| is_own || (to_pod(route) && !is_host)) {
                found.insert((route.destination, route.table, name));
            }
        }
    }
    if found.is_empty() {
        return None;
    }
    let told: Vec<String> = found.iter().map(|(destination, _, name)| format!("{destination} dev {name}")).collect();
    let told = output::some_of(&told.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED);
    let delete = |(destination, table, name): &(IpNet, u32, &str)| {
        let family = if destination.addr().is_ipv4() { "" } else { "-6 " };
        let table = if *table == MAIN_TABLE { String::new() } else { format!(" table {table}") };
        format!("ip {family}route del {destination} dev {name}{table}\n")
    };
    let mut remedy: String = found.iter().take(MAX_NAMED).map(delete).collect();
    remedy.push_str(&match host {
        Some(host) => format!("and route pods over the host port: ip route add PODS via 169.254.1.1 dev {host} onlink"),
        None => "and reach pods from the node over a port of kind host (peer: the node's end)".to_owned(),
    });
    Some(Finding {
        severity: Severity::Warning,
        what: format!("kernel routes of this node reach pods without the vswitch: {told}"),
        why: "packets on these routes bypass the vswitch and its policy".to_owned(),
        remedy,
        comes_again: false,
    })
}

/// Whether the destination leads to no pod: multicast and link-local routes, which every interface has, and default routes, which another
/// check reports.
fn is_the_links(destination: &IpNet) -> bool {
    let address = destination.addr();
    destination.prefix_len() <= 1
        || address.is_multicast()
        || matches!(destination, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const PORTS: &str = "ports: [{kind: pod, pod: x/a, interface: va}, {kind: uplink, interface: ul0}, \
        {kind: host, interface: hv, peer: host0}]";

    fn found(ports: &str, routes: &[(&str, u32, &[u32])]) -> Option<Finding> {
        let text = format!("node: n\nstate: {{paths: [s]}}\n{ports}\n");
        let config = Config::parse("c", &text, Path::new("")).unwrap();
        let link = |(index, name, related): (u32, &str, Option<u32>)| LinkStatus {
            index,
            names: vec![name.to_owned()],
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            up: true,
            related,
            ..LinkStatus::default()
        };
        let links = [(1, "va", None), (2, "ul0", None), (3, "host0", None), (4, "cni0", None), (5, "hw", Some(6))];
        let links: Vec<LinkStatus> = links.into_iter().chain([(6, "host1", Some(5))]).map(link).collect();
        let networks = ["10.1.0.0/24", "fd00::/64", "10.7.0.9/32"].map(|network| network.parse().unwrap());
        let route = |&(destination, table, interfaces): &(&str, u32, &[u32])| KernelRoute {
            destination: destination.parse().unwrap(),
            table,
            protocol: 0,
            interfaces: interfaces.to_vec(),
            in_use: interfaces.first().copied(),
            source: None,
            gateway: None,
            encapsulation: None,
        };
        judge(&config, &networks, &routes.iter().map(route).collect::<Vec<_>>(), &links)
    }

    #[test]
    fn routes_to_pods_that_do_not_lead_over_the_host_port_are_told_with_the_command_that_removes_them() {
        let routes: [(&str, u32, &[u32]); 4] = [
            ("10.1.0.2/32", 254, &[1]),
            ("10.1.0.0/24", 254, &[4]),
            ("10.7.0.9/32", 100, &[2, 3]),
            ("fd00::2/128", 254, &[4]),
        ];
        let finding = found(PORTS, &routes).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        for part in ["10.1.0.2/32 dev va", "10.1.0.0/24 dev cni0", "10.7.0.9/32 dev ul0"] {
            assert!(finding.what.contains(part), "{part}: {finding}");
        }
        let commands =
            ["ip route del 10.1.0.2/32 dev va\n", "dev ul0 table 100\n", "ip -6 route del fd00::2/128 dev cni0\n"];
        for part in commands.iter().chain(&["dev host0"]) {
            assert!(finding.remedy.contains(part), "{part}: {finding}");
        }
        // A route over a pod's interface is reported for any destination.
        assert!(found(PORTS, &[("192.0.2.0/24", 254, &[1])]).unwrap().what.contains("192.0.2.0/24 dev va"));
        let bare = found("ports: [{kind: pod, pod: x/a, interface: va}]", &[("10.1.0.2/32", 254, &[1])]).unwrap();
        assert!(bare.remedy.contains("a port of kind host"));
    }

    #[test]
    fn routes_over_the_host_port_to_elsewhere_and_of_each_link_are_nothing_to_tell() {
        let routes: [(&str, u32, &[u32]); 6] = [
            ("10.1.0.2/32", 254, &[3]),
            ("10.0.0.0/8", 254, &[2]),
            ("10.2.0.0/16", 254, &[2]),
            ("fe80::/64", 254, &[1]),
            ("ff00::/8", 254, &[1]),
            ("0.0.0.0/0", 254, &[1]),
        ];
        assert_eq!(found(PORTS, &routes), None);
        // The kernel knows the other end of the host port's veth, which this configuration does not name.
        let ports = "ports: [{kind: pod, pod: x/a, interface: va}, {kind: host, interface: hw}]";
        assert_eq!(found(ports, &[("10.1.0.0/24", 254, &[6])]), None);
        assert!(found(ports, &[("10.1.0.0/24", 254, &[4])]).unwrap().remedy.contains("dev host1"));
    }

    #[test]
    fn many_routes_are_one_finding() {
        let many: Vec<String> = (0..100).map(|at| format!("10.1.0.{at}/32")).collect();
        let routes: Vec<(&str, u32, &[u32])> = many.iter().map(|to| (to.as_str(), 254, &[4][..])).collect();
        let finding = found(PORTS, &routes).unwrap();
        assert!(finding.what.contains("and 95 more") && finding.remedy.lines().count() == 6, "{finding}");
    }
}
