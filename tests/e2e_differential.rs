//! The same packets have the same verdicts with `attach: tc`, with `attach: xdp` and in a replay.
//! ```text
//!   seed --> policies, conversations --> sent by hand in pods, outside and on the node, attach: tc   --> arrived or not --.
//!                                   |`-> the same frames, attach: xdp                                --> arrived or not --+--> the same?
//!                                   `--> a capture of them, bulkhead replay                          --> verdicts --------'
//! ```
//!
//! A test answers only packets that have arrived, because a replay remembers dropped packets and a live vswitch does not. The kernels of
//! pods and node send no packets of their own.

use crate::require;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::conversation::{PORTS, Random, Talk, number_in};
use crate::lab::netns::Netns;
use crate::lab::station::{Station, mac_of};
use crate::lab::{Attach, Lab, Options, is_tc, policy};
use bulkhead_dataplane::io::{CaptureWriter, CapturedPacket};
use bulkhead_dataplane::wire::{ethernet, icmpv4, ipv4};
use bulkhead_dataplane::{DropReason, LinkType, PortConfig, PortId, PortKind, Verdict};
use serde_json::Value;

const PODS: [&str; 4] = ["a", "b", "c", "d"];

/// Parties are numbered: first the pods, then the outside machine, then the host.
const OUTSIDE: usize = PODS.len();
const HOST: usize = OUTSIDE + 1;

/// Each seed generates one set of policies with its conversations.
const SEEDS: [u64; 3] = [1, 2, 3];
const CONVERSATIONS: usize = 120;

/// The first number of packets that belong to no conversation.
const MARKERS: usize = 1 << 31;

/// The pause after each step. A worker can add a flow to the kernel in this time, and judged packets arrive.
const PAUSE: Duration = Duration::from_millis(4);

/// A running lab with all parties that send packets.
struct Parties {
    lab: Lab,
    all: Vec<Party>,
    markers: usize,
    /// By number, the conversations' frames that have arrived, with the receiving party.
    arrived: BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
}

struct Party {
    station: Station,
    mac: [u8; 6],
    /// The MAC address of the party's gateway.
    gateway: [u8; 6],
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Parties {
    fn start(attach: Attach) -> Self {
        let mut lab = Lab::with(Options { attach, ..Options::default() });
        for (at, name) in PODS.iter().enumerate() {
            lab.pod(name, &format!("{{app: {name}, tier: {}}}", if at < 2 { "front" } else { "back" }));
        }
        lab.outside();
        lab.host();
        lab.start("");
        // With this the vswitch learns all MAC addresses before the test starts.
        for pod in PODS {
            for address in ["172.18.0.100", "fd00:18::100", &lab.node_v4(), &lab.node_v6()] {
                assert!(lab.pings(pod, address), "{pod} reaches {address}: {}", lab.log());
            }
        }
        let mut all = Vec::new();
        let mut add = |netns: &Netns, device: &str, end: &str, v4: &str, v6: &str| {
            let (mac, gateway) = (mac_of(netns, device), mac_of(&lab.node, end));
            let station = Station::open_alone(netns, device);
            all.push(Party { station, mac, gateway, v4: v4.parse().unwrap(), v6: v6.parse().unwrap() });
        };
        for pod in &lab.pods {
            add(&pod.netns, "eth0", &pod.interface, &pod.v4, &pod.v6);
        }
        add(lab.outside.as_ref().unwrap(), "eth0", "ul0", "172.18.0.100", "fd00:18::100");
        add(&lab.node, "host0", "hv", &lab.node_v4(), &lab.node_v6());
        Self { lab, all, markers: MARKERS, arrived: BTreeMap::new() }
    }

    fn frame(&self, from: usize, packet: &[u8]) -> Vec<u8> {
        let ethertype = if packet[0] >> 4 == 6 { ethernet::ethertype::IPV6 } else { ethernet::ethertype::IPV4 };
        let Party { mac, gateway, .. } = self.all[from];
        [&gateway[..], &mac, &ethertype.to_be_bytes(), packet].concat()
    }

    /// Sends the frames of each party and waits until the vswitch has judged all of them.
    fn send(&mut self, frames: &[Vec<Vec<u8>>]) {
        let mut waits = BTreeSet::new();
        for (from, frames) in frames.iter().enumerate() {
            // A batch must fit into every queue on the path.
            for frames in frames.chunks(64) {
                self.all[from].station.send(frames);
                // The last packet of a port's batch. It always arrives, because the node itself is always allowed.
                let to = if from == HOST { 0 } else { HOST };
                let marker = self.frame(from, &echo_request(self.all[from].v4, self.all[to].v4, self.markers));
                waits.insert(self.markers);
                self.markers += 1;
                self.all[from].station.send(&[marker]);
            }
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !waits.is_empty() {
            assert!(Instant::now() < deadline, "{} markers have not arrived: {}", waits.len(), self.lab.log());
            self.receive(&mut waits);
        }
        std::thread::sleep(PAUSE);
        self.receive(&mut waits);
    }

    fn receive(&mut self, waits: &mut BTreeSet<usize>) {
        for (at, party) in self.all.iter_mut().enumerate() {
            for frame in party.station.seen() {
                match number_in(&frame) {
                    Some(number) if number >= MARKERS => drop(waits.remove(&number)),
                    Some(number) => self.arrived.entry(number).or_default().push((at, frame)),
                    None => {}
                }
            }
        }
    }

    /// Runs the conversations in steps of one packet each. `skipped` are the packets not to send. The first run fills it with answers to
    /// packets that did not arrive. Returns the numbers of the sent packets in order.
    fn talk(&mut self, talk: &Talk, conversations: &[Vec<usize>], skipped: &mut Option<BTreeSet<usize>>) -> Vec<usize> {
        let (mut order, mut left_out) = (Vec::new(), BTreeSet::new());
        for step in 0..conversations.iter().map(Vec::len).max().unwrap() {
            let mut frames = vec![Vec::new(); self.all.len()];
            let mut sent: Vec<Vec<usize>> = vec![Vec::new(); self.all.len()];
            for number in conversations.iter().filter_map(|numbers| numbers.get(step).copied()) {
                let planned = &talk.planned[number];
                let is_due = match skipped {
                    Some(skipped) => !skipped.contains(&number),
                    None => planned.answers.is_none_or(|request| self.has_arrived(request, talk.planned[request].to)),
                };
                if is_due {
                    frames[planned.from].push(self.frame(planned.from, &planned.packet));
                    sent[planned.from].push(number);
                } else {
                    left_out.insert(number);
                }
            }
            self.send(&frames);
            order.extend(sent.concat());
        }
        // On a busy machine packets may arrive late.
        std::thread::sleep(Duration::from_millis(200));
        self.receive(&mut BTreeSet::new());
        skipped.get_or_insert(left_out);
        order
    }

    fn has_arrived(&self, number: usize, at: usize) -> bool {
        self.arrived.get(&number).is_some_and(|arrivals| arrivals.iter().any(|(who, _)| *who == at))
    }
}

/// An echo request that carries a marker.
fn echo_request(source: Ipv4Addr, destination: Ipv4Addr, marker: usize) -> Vec<u8> {
    let payload = [*b"#bh#", u32::try_from(marker).unwrap().to_be_bytes()].concat();
    let mut message = [&[0; icmpv4::HEADER_LEN][..], &payload].concat();
    icmpv4::Repr::echo(icmpv4::kind::ECHO_REQUEST, 7, 7).emit(&mut message);
    let payload_len = message.len();
    let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload_len];
    let header = ipv4::Repr { source, destination, protocol: 1, hop_limit: 64, tos: 0, payload_len };
    header.emit(&mut packet).copy_from_slice(&message);
    packet
}

/// Random policies that allow some of the conversations.
fn policies(random: &mut Random) -> String {
    let mut text = String::new();
    for number in 0..3 + random.below(3) {
        let pods = random.pick(&["app: a", "app: b", "app: c", "tier: front", "tier: back"]);
        let mut spec = format!("{{podSelector: {{matchLabels: {{{pods}}}}}");
        let directions = random.pick(&[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"]]);
        write!(spec, ", policyTypes: [{}]", directions.join(", ")).unwrap();
        for direction in directions {
            let peers = if *direction == "Ingress" { "from" } else { "to" };
            let rules: Vec<String> = (0..1 + random.below(2)).map(|_| rule(random, peers)).collect();
            write!(spec, ", {}: [{}]", direction.to_lowercase(), rules.join(", ")).unwrap();
        }
        spec.push('}');
        text.push_str(&policy(&format!("random-{number}"), &spec));
    }
    text
}

fn rule(random: &mut Random, peers: &str) -> String {
    let peer = random.pick(&[
        "podSelector: {matchLabels: {tier: front}}",
        "podSelector: {matchLabels: {tier: back}}",
        "podSelector: {matchExpressions: [{key: app, operator: In, values: [a, d]}]}",
        "namespaceSelector: {}",
        "ipBlock: {cidr: 172.18.0.0/16}",
        "ipBlock: {cidr: 10.244.1.0/24, except: [10.244.1.2/31]}",
        "ipBlock: {cidr: 'fd00::/16'}",
        "ipBlock: {cidr: 0.0.0.0/0}",
    ]);
    let port = PORTS[random.below(3)];
    let ports = random.pick(&["", "TCP", "UDP", "range"]);
    let ports = match ports {
        "" => String::new(),
        "range" => format!(", ports: [{{protocol: TCP, port: {port}, endPort: 9000}}, {{protocol: UDP, port: 31000}}]"),
        protocol => format!(", ports: [{{protocol: {protocol}, port: {port}}}, {{protocol: TCP, port: 8080}}]"),
    };
    format!("{{{peers}: [{{{peer}}}]{ports}}}")
}

/// Writes the frames to a capture with port names.
fn write_capture(path: &Path, frames: &[(usize, Vec<u8>)]) {
    let ports = PODS.iter().map(|pod| format!("default/{pod}")).chain(["uplink".to_owned(), "host".to_owned()]);
    let config = |name: String| PortConfig::new(name, PortKind::Pod);
    let ports: Vec<PortConfig> = ports.map(config).collect();
    let mut writer = CaptureWriter::new(File::create(path).unwrap(), &ports).unwrap();
    for (number, (from, data)) in (1..).zip(frames) {
        let (time, link) = (1_700_000_000_000_000_000 + number * 1_000_000, LinkType::Ethernet);
        let original_len = data.len();
        let packet = CapturedPacket { number, time, link, interface: None, direction: None, data, original_len };
        let port = PortId(u16::try_from(*from).unwrap());
        writer.write(&packet, port, Verdict::Drop(DropReason::UnknownPort), "").unwrap();
    }
    writer.finish().unwrap();
}

/// The drop reason of each packet in `bulkhead replay`. `None` if the packet was forwarded.
fn replayed(lab: &Lab, frames: &[(usize, Vec<u8>)]) -> Vec<Option<String>> {
    let capture = lab.path("sent.pcapng");
    write_capture(&capture, frames);
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
    command.args(["replay", "-o", "json", "--node", &lab.node_name()]).arg(&capture);
    let output = command.arg("--state").arg(lab.path("state.yaml")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let packets = lines.filter(|line| line.get("packet").is_some());
    packets.map(|line| line["reason"].as_str().map(str::to_owned)).collect()
}

/// Counts packets by kind and verdict.
#[derive(Debug, Default)]
struct Reached(BTreeMap<String, u64>);

impl Reached {
    fn count(&mut self, packet: &[u8], what: &str, reason: Option<&str>) {
        let family = if packet[0] >> 4 == 6 { "IPv6" } else { "IPv4" };
        let kind = what.split_once(": ").unwrap().1.split([' ', ',']).next().unwrap();
        *self.0.entry(format!("{family} {kind} {}", reason.unwrap_or("forward"))).or_default() += 1;
    }

    fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Dropped packets by reason.
    fn dropped(&self) -> BTreeMap<&str, u64> {
        let mut drops = BTreeMap::new();
        for (what, count) in &self.0 {
            *drops.entry(what.rsplit(' ').next().unwrap()).or_default() += count;
        }
        drops.remove("forward");
        drops
    }
}

#[test]
fn the_same_packets_have_the_same_verdicts_with_tc_with_xdp_and_in_a_replay() {
    require!("ping", "python3", "tc");
    if !is_tc() {
        println!("skipped: it has both attachments, and runs without BULKHEAD_ATTACH");
        return;
    }
    let (mut tc, mut xdp) = (Parties::start(Attach::Tc), Parties::start(Attach::Xdp));
    let addresses: Vec<_> = tc.all.iter().map(|party| (party.v4, party.v6)).collect();
    let mut talk = Talk::new(addresses, 0);
    let (mut reached, mut differences) = (Reached::default(), String::new());
    for seed in SEEDS {
        let policies = policies(&mut Random(seed));
        talk.random = Random(seed);
        let conversations = talk.conversations(CONVERSATIONS);
        let mut skipped = None;
        let orders = [&mut tc, &mut xdp].map(|parties| {
            parties.lab.apply(&policies);
            parties.talk(&talk, &conversations, &mut skipped)
        });
        assert_eq!(orders[0], orders[1], "the same is sent in the same order");
        let order = &orders[0];
        let frames = |number: &usize| {
            (talk.planned[*number].from, tc.frame(talk.planned[*number].from, &talk.planned[*number].packet))
        };
        let replayed = replayed(&tc.lab, &order.iter().map(frames).collect::<Vec<_>>());
        assert_eq!(order.len(), replayed.len());
        for (number, reason) in order.iter().zip(&replayed) {
            let planned = &talk.planned[*number];
            reached.count(&planned.packet, &planned.what, reason.as_deref());
            let arrived = [&tc, &xdp].map(|parties| parties.has_arrived(*number, planned.to));
            if arrived != [reason.is_none(); 2] {
                let replay = reason.as_deref().unwrap_or("forward");
                writeln!(
                    differences,
                    "seed {seed}, packet {number}, {}: arrived with [tc, xdp]: {arrived:?}, replay: {replay}",
                    planned.what
                )
                .unwrap();
            }
        }
        if !differences.is_empty() {
            println!("{policies}");
            break;
        }
    }
    // An arrived packet is the same in both runs. It arrives only at its destination, or as an error at its sender.
    for (number, planned) in talk.planned.iter().enumerate() {
        let bodies = [&tc, &xdp].map(|parties| {
            let arrivals = parties.arrived.get(&number).map_or(&[][..], Vec::as_slice);
            let stray = arrivals.iter().find(|(at, _)| *at != planned.to && *at != planned.from);
            assert!(stray.is_none(), "{}: arrived at {stray:?}", planned.what);
            arrivals
                .iter()
                .filter(|(at, _)| *at == planned.to)
                .map(|(_, frame)| frame[14..].to_vec())
                .collect::<Vec<_>>()
        });
        assert!(bodies[0].len() <= 1 && bodies[1].len() <= 1, "{}: arrived more than once", planned.what);
        if differences.is_empty() {
            assert_eq!(bodies[0], bodies[1], "{}", planned.what);
        }
    }
    println!("{reached:#?}");
    let summaries = [tc.lab.stop(), xdp.lab.stop()];
    assert!(differences.is_empty(), "{differences}");
    for family in ["IPv4", "IPv6"] {
        for kind in ["TCP", "UDP", "ICMP"] {
            for verdict in ["forward", "policy_denied"] {
                assert!(reached.of(&format!("{family} {kind} {verdict}")) > 5, "{family} {kind} {verdict}");
            }
        }
    }
    for summary in summaries {
        // Pods' kernels sometimes send multicast group reports.
        let dropped = summary["dropped"].as_object().unwrap().iter().filter(|(reason, _)| *reason != "multicast");
        let dropped: BTreeMap<&str, u64> = dropped.map(|(reason, n)| (reason.as_str(), n.as_u64().unwrap())).collect();
        assert_eq!(dropped, reached.dropped(), "for the same reasons");
        let cached = summary["flow_cache"]["forwarded"].as_u64().unwrap();
        println!("{cached} packets were forwarded in the kernel");
        assert!(cached > 100, "{summary:#}");
    }
}
