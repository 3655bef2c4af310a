//! A network card that changes while the vswitch runs: pods still reach the world, and clients outside still reach node ports. The node's kernel
//! keeps the card; see [`e2e_node_port`](crate::e2e_node_port).
//!
//! ```text
//!   [ pod web ] -- [ node: card ] -- [ eth0: outside, a router, and the addresses of the world behind it ]
//!                  [ node: more ] -- [ eth2: outside, or another router ]                                     (some tests)
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;

use crate::e2e_services::{Endpoint, ask, serve_name, service};
use crate::lab::lasting::{PATIENCE, answers, echo};
use crate::lab::netns::{Netns, Running, eventually, eventually_within};
use crate::lab::{Lab, veth};
use crate::require;
use bulkhead_dataplane::io::in_namespace;

/// Addresses behind the router outside, one per family.
const WORLD: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];
/// The addresses of the router outside on the card's network.
const ROUTER: [&str; 2] = ["172.18.0.100", "fd00:18::100"];
/// The node's addresses on the card of a lab.
const NODE: [&str; 2] = ["172.18.0.11", "fd00:18::11"];
/// The addresses of the router outside on the network of the node's second card.
const ROUTER_2: [&str; 2] = ["172.19.0.100", "fd00:19::100"];
/// The node's addresses on its second card.
const NODE_2: [&str; 2] = ["172.19.0.11", "fd00:19::11"];
const NODE_PORT: u16 = 30_001;
/// The node port of the pod's echo server.
const ECHO_PORT: u16 = 30_002;

/// A node with a pod `web` behind a node port, the world behind the router outside, and a server in each.
struct Site {
    lab: Lab,
    _servers: [Running; 2],
}

impl Site {
    /// Starts the vswitch and the servers, and waits until everything works. `services` are settings of Services as a YAML flow mapping.
    fn start(services: &str) -> Self {
        let mut lab = Lab::new();
        lab.pod("web", "{app: web}");
        lab.outside_of_kernel();
        lab.more_config.push_str(&format!("masquerade: true\nservices: {services}\n"));
        lead(&lab.node, "card", ROUTER, "");
        lab.more_state = state(&lab);
        lab.start("");
        let outside = lab.outside.as_ref().unwrap();
        for (address, length) in WORLD.into_iter().zip([32, 128]) {
            outside.ip(&format!("addr add {address}/{length} dev lo"));
        }
        echo(lab.get("web"), 7000);
        let servers = [serve_name(&lab.get("web").netns, "web", 8080), serve_name(outside, "world", 8080)];
        let site = Self { lab, _servers: servers };
        site.works("at first", NODE);
        site
    }

    fn outside(&self) -> &Netns {
        self.lab.outside.as_ref().unwrap()
    }

    /// Waits until the world sees the pod with the addresses `node`, and the router outside reaches the pod's node port at these addresses.
    /// Panics after 15 seconds, with `after`: what has happened before.
    fn works(&self, after: &str, node: [&str; 2]) {
        for at in [0, 1] {
            self.reaches_world(after, at, node[at]);
            self.serves(after, self.outside(), node[at]);
        }
    }

    /// Waits until the pod's connection to `WORLD[at]` is answered and arrives there from the address `seen`. Panics after 15 seconds, with
    /// `after`.
    fn reaches_world(&self, after: &str, at: usize, seen: &str) {
        let (wanted, pod) = (Some(("world".to_owned(), parsed(seen))), &self.lab.get("web").netns);
        let told = || format!("{after}: {} sees the pod as {seen}", WORLD[at]);
        eventually_within(15, &told(), || ask(pod, WORLD[at], 8080) == wanted);
    }

    /// Connects from the router outside to the pod's echo server, at its node port on the node's IPv4 address. Panics if that takes longer
    /// than [`PATIENCE`].
    fn open(&self) -> TcpStream {
        let path = Path::new("/run/netns").join(self.outside().name());
        let address = SocketAddr::new(parsed(NODE[0]), ECHO_PORT);
        let stream = in_namespace(&path, || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Waits until the pod's server answers a client in the namespace `client` at the node port of the address `node`. Panics after 15
    /// seconds, with `after`.
    fn serves(&self, after: &str, client: &Netns, node: &str) {
        let told = format!("{after}: the node port answers at {node}");
        eventually_within(15, &told, || ask(client, node, NODE_PORT).is_some_and(|(name, _)| name == "web"));
    }

    /// Replaces the Node object's addresses `from` by `to`, in the state file that the vswitch watches.
    fn renumber_node(&self, [from, to]: [[&str; 2]; 2]) {
        let path = self.lab.path("state.yaml");
        let text = fs::read_to_string(&path).unwrap();
        let address = |address: &str| format!("address: '{address}'");
        let text = text.replace(&address(from[0]), &address(to[0])).replace(&address(from[1]), &address(to[1]));
        fs::write(self.lab.path("state.new"), text).unwrap();
        fs::rename(self.lab.path("state.new"), path).unwrap();
    }

    /// Replaces the addresses `from` of the node's card by `to`, as a DHCP client does.
    fn renumber_card(&self, [from, to]: [[&str; 2]; 2]) {
        for (address, length) in from.into_iter().zip([16, 64]) {
            self.lab.node.ip(&format!("addr del {address}/{length} dev card"));
        }
        give(&self.lab.node, "card", to);
        // The kernel has removed the IPv4 route with the address of its network.
        lead(&self.lab.node, "card", ROUTER, "");
    }
}

/// Returns, as YAML, two Services of type NodePort whose endpoint is the pod `web`: its server at [`NODE_PORT`] and its echo server at
/// [`ECHO_PORT`].
fn state(lab: &Lab) -> String {
    let one = |name: &str, vips, to: u16, number: u16| {
        let port = format!("{{port: 80, targetPort: {to}, nodePort: {number}}}");
        service(name, vips, "type: NodePort,", &port, &[Endpoint::of(lab.get("web"), to)])
    };
    let web = one("web", ["10.96.1.1", "fd96::1:1"], 8080, NODE_PORT);
    web + &one("echo", ["10.96.1.2", "fd96::1:2"], 7000, ECHO_PORT)
}

/// Adds an IPv4 address with a prefix of 16 bits and an IPv6 address with a prefix of 64 bits to a device. Enables IPv6 there.
fn give(netns: &Netns, device: &str, [v4, v6]: [&str; 2]) {
    netns.sysctl(&format!("net.ipv6.conf.{device}.disable_ipv6"), "0");
    netns.ip(&format!("addr add {v4}/16 dev {device}"));
    netns.ip(&format!("addr add {v6}/64 dev {device} nodad"));
}

/// Adds a second card to the node: the veth `more`, whose peer is `eth2` of the router. Gives both ends their addresses, [`NODE_2`] and
/// [`ROUTER_2`], and changes no default route.
fn add_card(node: &Netns, router: &Netns) {
    veth(router, "eth2", node, "more", 1500);
    give(router, "eth2", ROUTER_2);
    give(node, "more", NODE_2);
}

/// Sets the default routes of IPv4 and IPv6 over this device to these routers. `more` are further words of the routes, such as `table 101`;
/// empty for the main table.
fn lead(netns: &Netns, device: &str, routers: [&str; 2], more: &str) {
    for (family, router) in ["-4", "-6"].into_iter().zip(routers) {
        netns.ip(&format!("{family} route replace default via {router} dev {device} {more}"));
    }
}

fn parsed(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Whether the kernel can create an interface with these words of `ip link add`, such as `type bond`. If not, prints that the test skips
/// it.
fn has_kind(netns: &Netns, words: &str) -> bool {
    let made = netns.output(&format!("ip link add name probe {words}")).status.success();
    if made {
        netns.ip("link del probe");
    } else {
        println!("skipped: this kernel has no `{words}`");
    }
    made
}

#[test]
fn a_card_that_is_renamed_or_replaced_is_followed() {
    require!("socat", "ss");
    only_with_tc!();
    let mut site = Site::start("{}");
    let (node, outside) = (&site.lab.node, site.outside());
    // Linux 6.2 and newer rename an interface that is up; before, the administrator sets it down and its routes up again.
    node.shell(
        "ip link set card name wan0 || { ip link set card down && ip link set card name wan0 && ip link set wan0 up; }",
    );
    lead(node, "wan0", ROUTER, "");
    site.works("renamed", NODE);
    node.ip("link set wan0 down");
    node.ip("link set wan0 name wan1");
    node.ip("link set wan1 up");
    node.ip(&format!("addr replace {}/64 dev wan1 nodad", NODE[1]));
    lead(node, "wan1", ROUTER, "");
    site.works("renamed while it is down", NODE);
    node.ip("link del wan1");
    veth(outside, "eth9", node, "enp9s0", 1500);
    give(outside, "eth9", ROUTER);
    give(node, "enp9s0", NODE);
    lead(node, "enp9s0", ROUTER, "");
    site.works("replaced by another card", NODE);
    site.lab.stop();
}

#[test]
fn a_new_address_of_the_node_is_followed_whether_the_kernel_or_the_node_object_has_it_first() {
    require!("socat", "ss");
    only_with_tc!();
    let mut site = Site::start("{}");
    let second = ["172.18.0.21", "fd00:18::21"];
    site.renumber_card([NODE, second]);
    for at in [0, 1] {
        site.reaches_world("the kernel has a new address, the Node object has not", at, second[at]);
    }
    site.renumber_node([NODE, second]);
    site.works("both have the new address", second);
    let third = ["172.18.0.31", "fd00:18::31"];
    let states = |site: &Site| site.lab.count("the new state is in force");
    let before = states(&site);
    site.renumber_node([second, third]);
    eventually("the new Node object is in force", || states(&site) > before);
    for at in [0, 1] {
        site.reaches_world("the Node object has a new address, the kernel has not", at, second[at]);
    }
    site.renumber_card([second, third]);
    site.works("both have the third address", third);
    site.lab.stop();
}

#[test]
fn a_card_that_becomes_a_port_of_a_bridge_or_of_a_bond_or_gets_a_vlan_is_followed() {
    require!("socat", "ss");
    only_with_tc!();
    let mut site = Site::start("{}");
    let (node, outside) = (&site.lab.node, site.outside());
    /// Moves the node's addresses and default routes from one of its devices to another.
    fn move_to(node: &Netns, from: &str, to: &str) {
        node.ip(&format!("addr flush dev {from} scope global"));
        give(node, to, NODE);
        node.ip(&format!("link set {to} up"));
        lead(node, to, ROUTER, "");
    }
    let mut open = site.open();
    let mut goes_on = |after: &str| eventually_within(15, after, || answers(&mut open));
    goes_on("at first");
    node.ip("link add name br0 type bridge forward_delay 0");
    node.ip("link set card master br0");
    node.ip("link set br0 up");
    move_to(node, "card", "br0");
    site.works("a bridge", NODE);
    goes_on("a connection goes on over the bridge");
    node.ip("link set card nomaster");
    move_to(node, "br0", "card");
    node.ip("link del br0");
    site.works("without the bridge", NODE);
    goes_on("a connection goes on without the bridge");
    if has_kind(node, "type bond mode active-backup") {
        node.ip("link add name bond0 type bond mode active-backup");
        node.ip("link set card down");
        node.ip("link set card master bond0");
        node.ip("link set bond0 up");
        move_to(node, "card", "bond0");
        site.works("a bond", NODE);
        node.ip("link set card nomaster");
        node.ip("link set card up");
        move_to(node, "bond0", "card");
        node.ip("link del bond0");
        site.works("without the bond", NODE);
    }
    if has_kind(node, "link card type vlan id 7") {
        for (netns, device) in [(node, "card"), (outside, "eth0")] {
            netns.ip(&format!("link add link {device} name {device}.7 type vlan id 7"));
            netns.ip(&format!("link set {device}.7 up"));
            netns.ip(&format!("addr flush dev {device} scope global"));
        }
        give(outside, "eth0.7", ROUTER);
        move_to(node, "card", "card.7");
        site.works("a VLAN", NODE);
    }
    site.lab.stop();
}

#[test]
fn a_second_card_with_a_default_route_takes_over_when_the_first_goes_down() {
    require!("socat", "ss");
    only_with_tc!();
    let mut site = Site::start("{}");
    let (node, outside) = (&site.lab.node, site.outside());
    add_card(node, outside);
    lead(node, "more", ROUTER_2, "metric 2000");
    site.works("with a second card", NODE);
    node.ip("link set card down");
    for at in [0, 1] {
        site.reaches_world("the first card is down, and the Node object has its address", at, NODE_2[at]);
    }
    // The Node object gets the address that the kubelet finds at the default route.
    site.renumber_node([NODE, NODE_2]);
    site.works("the first card is down", NODE_2);
    node.ip("link set card up");
    node.ip(&format!("addr replace {}/64 dev card nodad", NODE[1]));
    lead(node, "card", ROUTER, "");
    site.renumber_node([NODE_2, NODE]);
    site.works("the first card is up again", NODE);
    site.lab.stop();
}

#[test]
fn an_address_that_both_cards_lead_to_stays_when_the_first_goes_down() {
    require!("socat", "ss");
    only_with_tc!();
    let mut site = Site::start("{}");
    let (node, outside) = (&site.lab.node, site.outside());
    // As with routing on the host: the node's addresses are on no card, and routers lead to them over either.
    for (address, length) in NODE.into_iter().zip(["16", "64"]) {
        node.ip(&format!("addr del {address}/{length} dev card"));
    }
    give(node, "card", ["172.18.0.12", "fd00:18::12"]);
    add_card(node, outside);
    for (address, length) in NODE.into_iter().zip([32, 128]) {
        node.ip(&format!("addr add {address}/{length} dev lo"));
    }
    lead(node, "card", ROUTER, "metric 10");
    lead(node, "more", ROUTER_2, "metric 2000");
    let over = |gateways: [&str; 2]| {
        for ((family, to), gateway) in [("-4", NODE[0]), ("-6", NODE[1])].into_iter().zip(gateways) {
            outside.ip(&format!("{family} route replace {to} via {gateway}"));
        }
    };
    over(["172.18.0.12", "fd00:18::12"]);
    site.works("over the first card", NODE);
    node.ip("link set card down");
    over(NODE_2);
    site.works("over the second card", NODE);
    node.ip("link set card up");
    node.ip("addr replace fd00:18::12/64 dev card nodad");
    lead(node, "card", ROUTER, "metric 10");
    over(["172.18.0.12", "fd00:18::12"]);
    site.works("over the first card again", NODE);
    // The kernel keeps the routes of a card without a carrier, and does not use them with this setting.
    for family in ["ipv4", "ipv6"] {
        node.sysctl(&format!("net.{family}.conf.all.ignore_routes_with_linkdown"), "1");
    }
    outside.ip("link set eth0 down");
    over(NODE_2);
    site.works("over the second card, while the first has no carrier", NODE);
    site.lab.stop();
}

#[test]
fn a_node_ports_answers_leave_by_the_second_card_if_a_routing_rule_says_so() {
    require!("socat", "ss");
    only_with_tc!();
    let blocks = "[172.18.0.0/16, 'fd00:18::/64', 172.19.0.0/16, 'fd00:19::/64']";
    let mut site = Site::start(&format!("{{node_port_addresses: {blocks}}}"));
    let node = &site.lab.node;
    // This router's clients are behind it. The first card's router does not know them.
    let other = Netns::new("other");
    add_card(node, &other);
    for ((client, length), to) in [("198.51.100.7", 32), ("2001:db8:7::7", 128)].into_iter().zip(NODE_2) {
        other.ip(&format!("addr add {client}/{length} dev lo"));
        other.ip(&format!("route add {to}/{length} dev eth2 src {client}"));
    }
    for (family, address) in ["-4", "-6"].into_iter().zip(NODE_2) {
        node.ip(&format!("{family} rule add from {address} lookup 100"));
    }
    lead(node, "more", ROUTER_2, "table 100");
    for address in NODE_2 {
        site.serves("a client of the second card", &other, address);
    }
    site.works("the first card goes on", NODE);
    // Then the main table's route is the second card's, and the node's address has a rule to the first.
    for (family, address) in ["-4", "-6"].into_iter().zip(NODE) {
        node.ip(&format!("{family} rule add from {address} lookup 101"));
        node.ip(&format!("{family} route del default dev card"));
    }
    lead(node, "card", ROUTER, "table 101");
    lead(node, "more", ROUTER_2, "");
    outside_has_clients(site.outside());
    site.works("the main table's route leads over the second card", NODE);
    for address in NODE_2 {
        site.serves("a client of the second card is answered by the main table's route", &other, address);
    }
    site.lab.stop();
}

/// Gives the router outside a client's addresses on `lo`, 198.51.100.8 and 2001:db8:7::8, from which it connects to the node's addresses
/// [`NODE`].
fn outside_has_clients(outside: &Netns) {
    // A route's source must not wait for duplicate address detection.
    for ((client, length, now), to) in [("198.51.100.8", 32, ""), ("2001:db8:7::8", 128, "nodad")].into_iter().zip(NODE)
    {
        outside.ip(&format!("addr add {client}/{length} dev lo {now}"));
        outside.ip(&format!("route add {to}/{length} dev eth0 src {client}"));
    }
}
