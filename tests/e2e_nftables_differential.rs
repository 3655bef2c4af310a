//! The vswitch's workers, and the kernel with rules of the nftables renderer, allow the same packets.
//! ```text
//!   seed --> policies, connections --> written by hand in a lab's pods --> vswitch           --> arrived or not --.
//!                                  `-> the same on a router's wires    --> kernel, nftables  --> arrived or not --+--> the same?
//! ```
//! A connection is its first packet, an answer if that arrived, and an unsolicited answer. After a change of policies, open connections
//! send another packet, which the new policies judge.

use crate::require;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::conversation::Random;
use crate::lab::router::{First, Router};
use crate::lab::station::{Station, mac_of};
use crate::lab::{Lab, policy};
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::{Pipeline, RendererHandle};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer, remember};
use bulkhead_control::source::{Strictness, load_text};

const PODS: [&str; 4] = ["a", "b", "c", "d"];
const PORTS: [u16; 3] = [53, 80, 8080];
const SEEDS: u64 = 4;

/// The lab with the vswitch, and its pods' sockets.
struct Vswitch {
    lab: Lab,
    stations: Vec<(Station, [u8; 6], [u8; 6])>,
}

impl Vswitch {
    fn start() -> Self {
        let mut lab = Lab::new();
        for name in PODS {
            lab.pod(name, &format!("{{app: {name}}}"));
        }
        lab.start("");
        for name in PODS {
            // With this, both sides know each other's MAC address.
            assert!(lab.pings(name, &lab.get(PODS[0]).v4) && lab.pings(name, &lab.get(PODS[0]).v6), "{}", lab.log());
        }
        let stations = lab.pods.iter().map(|pod| {
            let (own, gateway) = (mac_of(&pod.netns, "eth0"), mac_of(&lab.node, &pod.interface));
            (Station::open_alone(&pod.netns, "eth0"), own, gateway)
        });
        let stations = stations.collect();
        Self { lab, stations }
    }

    fn pass(&mut self, packets: &[(usize, First)]) -> BTreeSet<First> {
        for (at, (station, own, gateway)) in self.stations.iter_mut().enumerate() {
            let frames: Vec<Vec<u8>> =
                packets.iter().filter(|(from, _)| *from == at).map(|(_, first)| first.frame(*gateway, *own)).collect();
            station.send(&frames);
        }
        let mut arrived = BTreeSet::new();
        let mut last = usize::MAX;
        while last != arrived.len() {
            last = arrived.len();
            std::thread::sleep(Duration::from_millis(60));
            for (station, ..) in &mut self.stations {
                arrived.extend(station.seen().iter().filter_map(|frame| First::of_frame(frame)));
            }
        }
        arrived
    }
}

/// The router with nftables rules.
struct Kernel {
    router: Router,
    pipeline: Pipeline,
    renderer: RendererHandle<NftRenderer>,
    epoch: Epoch,
}

impl Kernel {
    fn start(lab: &Lab) -> Self {
        let mut router = Router::new(PODS.len());
        router
            .node
            .shell("nft add table inet none; nft add chain inet none c '{ type filter hook input priority 0; }'");
        router.node.shell("nft add rule inet none c ct state invalid counter");
        router.node.sysctl("net.netfilter.nf_conntrack_checksum", "0");
        let addresses = |pod: &crate::lab::Pod| vec![pod.v4.parse().unwrap(), pod.v6.parse().unwrap()];
        router.place(&lab.pods.iter().map(addresses).collect::<Vec<Vec<IpAddr>>>());
        let node: Arc<str> = lab.node_name().into();
        let mut pipeline = Pipeline::new(Scope::Node(node.clone()));
        let renderer = pipeline.register(NftRenderer::of_node(node));
        let interfaces: BTreeMap<Arc<str>, Option<PodName>> = PODS
            .iter()
            .enumerate()
            .map(|(at, pod)| (format!("w{at}").into(), Some(PodName::new("default", *pod))))
            .collect();
        pipeline.renderer_mut(renderer).set_interfaces(interfaces);
        Self { router, pipeline, renderer, epoch: Epoch::any(1) }
    }

    fn enforce(&mut self, state: &str) {
        self.pipeline.resync(load_text("state", state, Strictness::Strict).unwrap().objects).unwrap();
        self.epoch = self.epoch.next();
        if let Some(change) = self.pipeline.renderer(self.renderer).change(self.epoch, self.pipeline.origins()) {
            self.router.nft(&change.script);
            self.pipeline.renderer_mut(self.renderer).take();
            self.router.nft(&remember(self.epoch));
        }
    }
}

fn policies(random: &mut Random) -> String {
    let mut text = String::new();
    for number in 0..1 + random.below(3) {
        let subject =
            random.pick(&["{}", "{matchLabels: {app: a}}", "{matchLabels: {app: b}}", "{matchLabels: {app: c}}"]);
        let mut spec = format!("{{podSelector: {subject}");
        let directions = random.pick(&[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"]]);
        write!(spec, ", policyTypes: [{}]", directions.join(", ")).unwrap();
        for direction in directions {
            let peers = if *direction == "Ingress" { "from" } else { "to" };
            let peer = random.pick(&[
                "podSelector: {matchLabels: {app: a}}",
                "podSelector: {matchExpressions: [{key: app, operator: In, values: [b, d]}]}",
                "ipBlock: {cidr: 10.244.1.0/24, except: [10.244.1.4/31]}",
                "ipBlock: {cidr: 'fd00::/16'}",
                "namespaceSelector: {}",
            ]);
            let ports = random.pick(&[
                "",
                ", ports: [{port: 80}]",
                ", ports: [{port: 53, protocol: UDP}, {port: 60, endPort: 9000}]",
            ]);
            write!(spec, ", {}: [{{{peers}: [{{{peer}}}]{ports}}}]", direction.to_lowercase()).unwrap();
        }
        text.push_str(&policy(&format!("random-{number}"), &(spec + "}")));
    }
    text
}

/// Connections between all pairs of pods, over both families, TCP and UDP.
fn connections(pods: &[[IpAddr; 2]], sport: &mut u16) -> Vec<(usize, usize, First)> {
    let mut all = Vec::new();
    for (from, client) in pods.iter().enumerate() {
        for (to, server) in pods.iter().enumerate().filter(|(to, _)| *to != from) {
            for (&source, &destination) in client.iter().zip(server) {
                for (protocol, dport) in PORTS.iter().flat_map(|&port| [(6, port), (17, port)]) {
                    *sport += 1;
                    all.push((from, to, First { from: source, to: destination, protocol, sport: *sport, dport }));
                }
            }
        }
    }
    all
}

/// The answer to a packet, with addresses and ports swapped.
const fn answer(first: &First) -> First {
    First { from: first.to, to: first.from, protocol: first.protocol, sport: first.dport, dport: first.sport }
}

#[test]
fn both_dataplanes_let_the_same_packets_through() {
    require!("nft", "ping", "python3", "tc");
    only_with_tc!();
    let mut vswitch = Vswitch::start();
    let mut kernel = Kernel::start(&vswitch.lab);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let addresses: Vec<_> = vswitch.lab.pods.iter().map(|pod| [address(&pod.v4), address(&pod.v6)]).collect();
    let mut sport = 20_000;
    let (mut passed, mut denied, mut ended) = (0, 0, 0);
    // UDP connections that both dataplanes allowed, which continue after the change.
    let mut open: Vec<(usize, First)> = Vec::new();
    for seed in 1..=SEEDS {
        let policies = policies(&mut Random(seed));
        vswitch.lab.apply(&policies);
        kernel.enforce(&std::fs::read_to_string(vswitch.lab.path("state.yaml")).unwrap());
        let mut differences: Vec<String> = Vec::new();
        let mut compare = |what: &str, packets: &[(usize, First)]| {
            let judged = vswitch.pass(packets);
            let routed = kernel.router.probe(&packets.iter().map(|(_, first)| *first).collect::<Vec<_>>());
            for (_, packet) in packets {
                let [vswitch, kernel] = [&judged, &routed].map(|arrived| arrived.contains(packet));
                differences
                    .extend((vswitch != kernel).then(|| format!("{what}: {packet:?} arrived: {vswitch}, {kernel}")));
            }
            judged
        };
        let again = compare("a connection goes on", &open);
        ended += open.iter().filter(|(_, first)| !again.contains(first)).count();
        let new = connections(&addresses, &mut sport);
        let firsts: Vec<(usize, First)> = new.iter().map(|(from, _, first)| (*from, *first)).collect();
        let arrived = compare("first packets", &firsts);
        let is_udp = |first: &First| first.protocol == 17;
        let answers = |arrives: bool| -> Vec<(usize, First)> {
            let chosen = new.iter().filter(|(_, _, first)| is_udp(first) && arrived.contains(first) == arrives);
            chosen.map(|(_, to, first)| (*to, answer(first))).collect()
        };
        let asked = compare("answers", &answers(true));
        compare("unsolicited answers", &answers(false));
        if !differences.is_empty() {
            let summary = vswitch.lab.summary();
            panic!(
                "seed {seed}, arrived through the vswitch, the kernel: {differences:#?}\n{policies}\n{:#}",
                summary["dropped"]
            );
        }
        assert_eq!(asked.len(), answers(true).len(), "answers pass");
        passed += arrived.len();
        denied += firsts.len() - arrived.len();
        open = firsts.into_iter().filter(|(_, first)| is_udp(first) && arrived.contains(first)).collect();
    }
    println!("{passed} passed, {denied} denied, {ended} ended by a change");
    assert!(passed > 100 && denied > 100 && ended > 10, "{passed} {denied} {ended}");
    vswitch.lab.stop();
}
