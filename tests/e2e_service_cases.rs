//! The packets of `service_cases.json` through a live vswitch: all whose client is a pod of the node, is outside, or is the node itself and
//! sends through its host port.
//! ```text
//!   case: cluster, client, destination --> the lab's addresses --> state of the running vswitch
//!                                                             `--> 64 first packets --> pod's wire or uplink --> who gets what?
//!                                                                  an answer of each backend                 --> from the VIP?
//! ```
//!
//! The kernels of pods, node and outside send no packets of their own. One vswitch takes the state of each cluster in turn.

use crate::require;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::lab::netns::Netns;
use crate::lab::station::{Station, mac_of};
use crate::lab::{Lab, is_tc};
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::wire::ethernet::ethertype;
use serde_json::Value;

/// The last parts of the addresses of the node's pods in the cases.
const PODS: [usize; 12] = [2, 3, 4, 10, 11, 12, 13, 14, 31, 32, 33, 34];

/// Parties are numbered: first the pods, then the outside machine, then the host.
const OUTSIDE: usize = PODS.len();
const HOST: usize = OUTSIDE + 1;

/// Connections per case: enough to reach each of a handful of backends.
const TRIES: u16 = 64;

/// The first source port. Each case has [`TRIES`] ports of its own, so that cases share no sessions.
const FIRST_PORT: u16 = 20_000;

/// The destination port of markers, which the node sends or receives and which therefore always arrive.
const MARKER_PORT: u16 = 9;

/// Address prefixes of the cases, and the lab's prefixes that replace them.
const ADDRESSES: [(&str, &str); 7] = [
    ("192.0.2.", "172.18.0."),
    ("203.0.113.", "172.18.113."),
    ("2001:db8:0:1::", "fd00:18::"),
    ("2001:db8:0:2::", "fd00:18::2:"),
    ("2001:db8:ffff::", "fd00:18::ffff:"),
    ("fd00:10:244:", "fd00:244:"),
    ("\"node1\"", "\"node-1\""),
];

fn translated(value: &Value) -> Value {
    let mut text = value.to_string();
    for (from, to) in ADDRESSES {
        text = text.replace(from, to);
    }
    serde_json::from_str(&text).unwrap()
}

/// Load balancer addresses that the node has on an interface and sends from.
const BOUND: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

/// Addresses of other nodes, clients and a server, all outside.
const OTHERS: [&str; 8] = [
    "172.18.0.12",
    "172.18.0.13",
    "172.18.113.2",
    "172.18.113.130",
    "172.18.113.77",
    "fd00:18::12",
    "fd00:18::13",
    "fd00:18::ffff:2",
];

/// The fields of a packet that the test compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    protocol: u8,
    from: SocketAddr,
    to: SocketAddr,
    /// The flags of a TCP segment. 0 for other protocols.
    flags: u8,
}

/// Parses a frame. `None` if it is not an IP packet.
fn seen(frame: &[u8]) -> Option<Seen> {
    let (packet, ethertype) = (frame.get(14..)?, u16::from_be_bytes([frame[12], frame[13]]));
    let (protocol, src, dst, rest): (u8, IpAddr, IpAddr, &[u8]) = match ethertype {
        ethertype::IPV4 => {
            let address = |at: usize| Ipv4Addr::from(*packet[at..].first_chunk::<4>().unwrap()).into();
            (packet[9], address(12), address(16), &packet[20..])
        }
        ethertype::IPV6 => {
            let address = |at: usize| Ipv6Addr::from(*packet[at..].first_chunk::<16>().unwrap()).into();
            (packet[6], address(8), address(24), &packet[40..])
        }
        _ => return None,
    };
    let port = |at: usize| if matches!(protocol, 1 | 58) { 0 } else { u16::from_be_bytes([rest[at], rest[at + 1]]) };
    let flags = if protocol == 6 { rest[13] } else { 0 };
    Some(Seen { protocol, from: (src, port(0)).into(), to: (dst, port(2)).into(), flags })
}

struct Party {
    station: Station,
    mac: [u8; 6],
    /// The MAC address of the party's gateway.
    gateway: [u8; 6],
}

/// A running vswitch with all parties that send packets.
struct Parties {
    lab: Lab,
    all: Vec<Party>,
    markers: u16,
}

impl Parties {
    fn start(settings: &Value) -> Self {
        let mut lab = Lab::new();
        lab.more_config = format!("services: {settings}\n");
        for number in PODS {
            lab.pod_at(number, &format!("pod-{number}"), "{}");
        }
        let outside = lab.outside();
        for address in OTHERS {
            let (bits, more) = if address.contains(':') { (64, " nodad") } else { (16, "") };
            outside.ip(&format!("addr add {address}/{bits} dev eth0{more}"));
        }
        lab.host();
        for address in BOUND {
            lab.node.ip(&format!("addr add {address}/32 dev host0"));
        }
        lab.start("");
        // With this the vswitch learns all MAC addresses before the test starts.
        for pod in &lab.pods {
            for own in [lab.node_v4(), lab.node_v6()] {
                assert!(lab.pings(&pod.name, &own), "{} reaches {own}: {}", pod.name, lab.log());
            }
        }
        for address in OTHERS {
            assert!(lab.pings(&lab.pods[0].name, address), "{address} is reached: {}", lab.log());
        }
        let mut all = Vec::new();
        let mut add = |netns: &Netns, device: &str, end: &str| {
            let (mac, gateway) = (mac_of(netns, device), mac_of(&lab.node, end));
            all.push(Party { station: Station::open_alone(netns, device), mac, gateway });
        };
        for pod in &lab.pods {
            add(&pod.netns, "eth0", &pod.interface);
        }
        add(lab.outside.as_ref().unwrap(), "eth0", "ul0");
        add(&lab.node, "host0", "hv");
        Self { lab, all, markers: 0 }
    }

    /// The index of the party with an address. Unknown addresses belong to the outside machine.
    fn place(address: IpAddr) -> usize {
        if [Ipv4Addr::new(172, 18, 0, 11).into(), IpAddr::V6("fd00:18::11".parse().unwrap())].contains(&address) {
            return HOST;
        }
        let number = match address {
            IpAddr::V4(address) if address.octets()[..3] == [10, 244, 1] => usize::from(address.octets()[3]),
            IpAddr::V6(address) if address.segments()[..3] == [0xfd00, 0x244, 1] => {
                format!("{:x}", address.segments()[7]).parse().unwrap()
            }
            _ => return OUTSIDE,
        };
        PODS.iter().position(|&known| known == number).unwrap_or(OUTSIDE)
    }

    fn frame(&self, from: usize, packet: &[u8]) -> Vec<u8> {
        let ethertype = if packet[0] >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let Party { mac, gateway, .. } = self.all[from];
        [&gateway[..], &mac, &ethertype.to_be_bytes(), packet].concat()
    }

    /// Sends packets of one party and waits until the vswitch has judged them. Returns the packets that arrived, each with the receiving
    /// party.
    fn send(&mut self, from: usize, packets: &[Vec<u8>]) -> Vec<(usize, Seen)> {
        let frames: Vec<_> = packets.iter().map(|packet| self.frame(from, packet)).collect();
        self.all[from].station.send(&frames);
        // The last packet of the batch. It always arrives, because the node itself is always allowed.
        self.markers += 1;
        let (marker, node, pod) = (self.markers, self.lab.node_v4(), &self.lab.pods[0].v4);
        let (src, dst, place) = match from {
            OUTSIDE => ("172.18.0.100", &node, HOST),
            HOST => (&*node, pod, 0),
            pod => (&*self.lab.pods[pod].v4, &node, HOST),
        };
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let probe = Probe { src, dst, kind: ProbeKind::Udp, sport: marker, dport: MARKER_PORT };
        let frame = self.frame(from, &probe.request().unwrap());
        self.all[from].station.send(&[frame]);
        let (mut arrived, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        let is_marker = |&(at, seen): &(usize, Seen)| at == place && seen.to.port() == MARKER_PORT;
        while !arrived.iter().any(|one| is_marker(one) && one.1.from.port() == marker) {
            assert!(Instant::now() < deadline, "the marker has not arrived: {}", self.lab.log());
            self.receive(&mut arrived);
        }
        // The vswitch transmits on its ports one after the other.
        std::thread::sleep(Duration::from_millis(2));
        self.receive(&mut arrived);
        arrived.retain(|one| !is_marker(one));
        arrived
    }

    fn receive(&mut self, arrived: &mut Vec<(usize, Seen)>) {
        for (at, party) in self.all.iter_mut().enumerate() {
            let frames = party.station.seen();
            arrived
                .extend(frames.iter().filter_map(|frame| Some((at, seen(frame)?))).filter(|(_, seen)| is_told(seen)));
        }
    }

    /// Applies the objects of a case to the vswitch, except its own node and pods, which the lab writes.
    fn become_cluster(&mut self, objects: &Value) {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut text = String::new();
        for object in objects.as_object().unwrap().values().flat_map(|list| list.as_array().unwrap()) {
            let mut object = object.clone();
            match object["kind"].as_str().unwrap() {
                "Node" if name(&object) == "node-1" => {
                    self.lab.node_labels = object["metadata"]["labels"].to_string();
                    continue;
                }
                "Node" => {
                    let number = name(&object).trim_start_matches("node").to_owned();
                    let addresses = object["status"]["addresses"].as_array_mut().unwrap();
                    addresses.push(serde_json::json!({"type": "InternalIP", "address": format!("fd00:18::1{number}")}));
                }
                "Pod" if object["spec"]["nodeName"] == "node-1" => continue,
                _ => {}
            }
            write!(text, "---\n{object}\n").unwrap();
        }
        self.lab.apply(&text);
    }
}

/// False for packets about neighbours and multicast groups, which kernels send.
fn is_told(seen: &Seen) -> bool {
    let is_group = match seen.to.ip() {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    };
    let is_link_local = matches!(seen.from.ip(), IpAddr::V6(address) if address.is_unicast_link_local());
    let is_neighbours = seen.protocol == 58 && seen.to.ip() == seen.from.ip();
    !is_group && !is_link_local && !is_neighbours
}

/// A case with the lab's addresses.
struct Case<'a> {
    value: &'a Value,
    client: IpAddr,
    /// The index of the client's party.
    place: usize,
    to: SocketAddr,
    kind: ProbeKind,
    first_port: u16,
}

impl<'a> Case<'a> {
    fn new(value: &'a Value, number: u16) -> Self {
        let kind = match value["dst"]["protocol"].as_str().unwrap() {
            "TCP" => ProbeKind::Tcp,
            "UDP" => ProbeKind::Udp,
            "SCTP" => ProbeKind::Sctp,
            _ => ProbeKind::IcmpEcho,
        };
        let ip = |value: &Value| value["ip"].as_str().unwrap().parse().unwrap();
        let port = u16::try_from(value["dst"]["port"].as_u64().unwrap()).unwrap();
        let to = (ip(&value["dst"]), port).into();
        let client = ip(&value["client"]);
        let place = if value["client"]["kind"] == "node" { HOST } else { Parties::place(client) };
        Self { value, client, place, to, kind, first_port: FIRST_PORT + number * TRIES }
    }

    fn sockets(&self, pointer: &str) -> BTreeSet<SocketAddr> {
        let list = self.value.pointer(pointer).and_then(Value::as_array);
        list.into_iter().flatten().map(|text| text.as_str().unwrap().parse().unwrap()).collect()
    }

    /// Sends the case's packets. Returns the expected action, or an error that describes the difference.
    fn check(&self, parties: &mut Parties) -> Result<&'a str, String> {
        let action = self.value["expect"]["action"].as_str().unwrap();
        let tries = if action == "dnat" { TRIES } else { 4 };
        let probe = |at: u16| Probe {
            src: self.client,
            dst: self.to.ip(),
            kind: self.kind,
            sport: self.first_port + at,
            dport: self.to.port(),
        };
        let packets: Vec<_> = (0..tries).map(|at| probe(at).request().unwrap()).collect();
        let arrived = parties.send(self.place, &packets);
        match action {
            "dnat" => self.check_backends(parties, &arrived)?,
            "reject" => self.check_refusal(&arrived)?,
            "drop" if !arrived.is_empty() => return Err(format!("something arrives: {arrived:?}")),
            // Some of these addresses are unassigned. A packet that arrives must be unchanged.
            "pass" if arrived.iter().any(|(_, seen)| seen.from.ip() != self.client || seen.to != self.to) => {
                return Err(format!("not what was sent: {arrived:?}"));
            }
            _ => {}
        }
        Ok(action)
    }

    fn check_backends(&self, parties: &mut Parties, arrived: &[(usize, Seen)]) -> Result<(), String> {
        if arrived.len() != usize::from(TRIES) {
            return Err(format!("{} of {TRIES} packets arrive", arrived.len()));
        }
        let found: BTreeSet<SocketAddr> = arrived.iter().map(|(_, seen)| seen.to).collect();
        let expected = self.sockets("/expect/backends");
        if found != expected {
            return Err(format!("given to {found:?}, and not to {expected:?}"));
        }
        let (must, must_not) = (self.sockets("/expect/snat/must"), self.value["expect"]["snat"]["must_not"] == true);
        for &(at, seen) in arrived {
            let is_kept = seen.from.ip() == self.client;
            if at != Parties::place(seen.to.ip()) || (must.contains(&seen.to) && is_kept) || (must_not && !is_kept) {
                return Err(format!("{seen:?} at {at}"));
            }
        }
        self.check_answers(parties, arrived)
    }

    /// Checks that an answer of each backend reaches the client from the address that the client used.
    fn check_answers(&self, parties: &mut Parties, arrived: &[(usize, Seen)]) -> Result<(), String> {
        let first: BTreeMap<SocketAddr, (usize, Seen)> = arrived.iter().rev().map(|&one| (one.1.to, one)).collect();
        for (at, seen) in first.into_values() {
            let (src, sport) = (seen.from.ip(), seen.from.port());
            let asked = Probe { src, dst: seen.to.ip(), kind: self.kind, sport, dport: seen.to.port() };
            let answers = parties.send(at, &[asked.reply().unwrap()]);
            let is_answer = |&(at, seen): &(usize, Seen)| {
                let ports = self.first_port..self.first_port + TRIES;
                let is_clients = at == self.place && seen.to.ip() == self.client;
                is_clients && seen.from == self.to && ports.contains(&seen.to.port())
            };
            if answers.len() != 1 || !is_answer(&answers[0]) {
                return Err(format!("the answer of {seen:?} arrives as {answers:?}"));
            }
        }
        Ok(())
    }

    /// Checks that the client gets a TCP reset or an ICMP error from the virtual address.
    fn check_refusal(&self, arrived: &[(usize, Seen)]) -> Result<(), String> {
        const RESET: u8 = 4;
        if self.value["expect"]["also_ok"] == serde_json::json!(["drop"]) && arrived.is_empty() {
            return Ok(());
        }
        let is_refusal = |&(at, seen): &(usize, Seen)| {
            let is_right = match self.kind {
                ProbeKind::Tcp => seen.protocol == 6 && seen.flags & RESET != 0 && seen.from == self.to,
                _ => matches!(seen.protocol, 1 | 58) && seen.from.ip() == self.to.ip(),
            };
            at == self.place && seen.to.ip() == self.client && is_right
        };
        if arrived.is_empty() || !arrived.iter().all(is_refusal) {
            return Err(format!("no refusal: {arrived:?}"));
        }
        Ok(())
    }
}

#[test]
fn every_packet_of_a_pod_or_from_outside_is_given_to_the_right_backends_and_answered() {
    require!("tc", "python3");
    let Some(folder) = crate::support::cases() else { return };
    if !is_tc() {
        println!("skipped: attachments do not differ in this; it runs without BULKHEAD_ATTACH");
        return;
    }
    let text = std::fs::read_to_string(folder.join("service_cases.json")).unwrap();
    let known = translated(&serde_json::from_str(&text).unwrap());
    let is_for_us = |case: &&Value| {
        // Packets from the node to its own address do not leave its kernel.
        let is_within_node =
            case["client"]["kind"] == "node" && case["dst"]["ip"].as_str().unwrap().starts_with("172.18.0.");
        case["node"] == "node-1" && !is_within_node && case.get("settings").is_none_or(Value::is_null)
    };
    let cases: Vec<&Value> = known["cases"].as_array().unwrap().iter().filter(is_for_us).collect();
    let mut parties = Parties::start(&known["defaults"]);
    let mut by_cluster: BTreeMap<&str, Vec<Case<'_>>> = BTreeMap::new();
    for (number, value) in (0..).zip(cases) {
        by_cluster.entry(value["objects"].as_str().unwrap()).or_default().push(Case::new(value, number));
    }
    let (mut actions, mut wrong) = (BTreeMap::new(), Vec::new());
    for (cluster, cases) in by_cluster {
        parties.become_cluster(&known["objects"][cluster]);
        for case in cases {
            match case.check(&mut parties) {
                Ok(action) => *actions.entry(action).or_insert(0) += 1,
                Err(why) => {
                    wrong.push(format!("case {} ({cluster}): {}\n    {why}", case.value["id"], case.value["why"]));
                }
            }
        }
    }
    println!("{actions:?}");
    let summary = parties.lab.summary();
    assert!(wrong.is_empty(), "{}\n{}\n{summary:#}", wrong.join("\n"), parties.lab.log());
    assert!(actions["dnat"] >= 100 && actions["reject"] >= 20 && actions["drop"] >= 10, "{actions:?}");
    parties.lab.stop();
}
