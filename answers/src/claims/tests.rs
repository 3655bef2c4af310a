//! Random claims on random states. The answer must equal that of trying each pair of ends at each port that rules or claims distinguish.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use bulkhead_control::object::{IngressIsolation, Transport};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::reachability::{Protocol, Reachability};
use bulkhead_control::source::{Strictness, load_text};

use super::file::{self, Kind};
use super::judge::{Outcome, judge};
use crate::args::PortProtocol;
use crate::fabric::{End, Fabric};

/// A repeatable generator of pseudo-random numbers (xorshift64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Ports in rules and claims, and the elements of [`PORTS`] that they contain. No entry contains all ports of TCP, UDP and SCTP but not the
/// other protocols, since the fabric sends no packets of these.
const PORT_WORDS: [(&str, &str, &[usize]); 5] = [
    ("80", "[{port: 80}]", &[2]),
    ("79-80", "[{port: 79, endPort: 80}]", &[1, 2]),
    ("53/UDP", "[{port: 53, protocol: UDP}]", &[5]),
    ("UDP", "[{protocol: UDP}]", &[4, 5]),
    ("TCP", "[{protocol: TCP}]", &[0, 1, 2, 3]),
];

/// One port of each range that [`PORT_WORDS`] distinguish.
pub(crate) const PORTS: [(Transport, u16); 7] = [
    (Transport::Tcp, 1),
    (Transport::Tcp, 79),
    (Transport::Tcp, 80),
    (Transport::Tcp, 65_535),
    (Transport::Udp, 1),
    (Transport::Udp, 53),
    (Transport::Sctp, 7),
];

/// One address of each outside range that [`BLOCKS`] distinguish.
pub(crate) const OUTSIDE: [&str; 6] =
    ["192.0.2.1", "192.0.2.5", "192.0.2.9", "198.51.100.1", "2001:db8::1", "2001:db8:1::1"];
const BLOCKS: [&str; 5] = ["192.0.2.0/29", "192.0.2.4/30", "0.0.0.0/0", "2001:db8::/48", "::/0"];

/// A pod: its namespace, label and workload.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    namespace: &'static str,
    app: &'static str,
}

/// Returns a state as YAML, and its pods by address.
pub(crate) fn state(random: &mut Random) -> (String, BTreeMap<IpAddr, Made>) {
    let (text, made) = pods(random);
    (text + &policies(random), made)
}

/// Returns two nodes with pods as YAML, and the pods by address.
pub(crate) fn pods(random: &mut Random) -> (String, BTreeMap<IpAddr, Made>) {
    let (mut text, mut pods) = (String::new(), BTreeMap::new());
    for node in 1..=2 {
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{node}}}\nspec: {{podCIDRs: [10.244.{node}.0/24]}}\n\
             status: {{addresses: [{{type: InternalIP, address: 172.18.0.{node}}}]}}"
        );
    }
    for at in 1..=2 + random.below(4) {
        let made = Made { namespace: random.one::<&str>(&["a", "b"]), app: random.one::<&str>(&["x", "z"]) };
        let node = 1 + random.below(2);
        let v4: IpAddr = format!("10.244.{node}.{at}").parse().unwrap();
        let v6: Option<IpAddr> = (random.below(2) == 0).then(|| format!("fd00:{node}::{at}").parse().unwrap());
        let Made { namespace, app } = made;
        let addresses: Vec<String> =
            std::iter::once(v4).chain(v6).map(|address| format!("{{ip: '{address}'}}")).collect();
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{at}, namespace: {namespace}, labels: {{app: {app}}}}}\n\
             spec: {{nodeName: n{node}, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{}]}}",
            addresses.join(", ")
        );
        pods.extend(std::iter::once(v4).chain(v6).map(|address| (address, made)));
    }
    (text, pods)
}

/// Returns policies for such pods as YAML.
pub(crate) fn policies(random: &mut Random) -> String {
    let mut text = String::new();
    for at in 0..random.below(4) {
        let namespace = random.one(&["a", "b"]);
        let subject = random.one(&["{}", "{matchLabels: {app: x}}", "{matchLabels: {app: z}}"]);
        let direction = *random.one(&["ingress", "egress"]);
        let peers = if direction == "ingress" { "from" } else { "to" };
        let rules: Vec<String> = (0..random.below(3))
            .map(|_| {
                let block = random.one(&BLOCKS);
                let peer = match random.below(5) {
                    0 => String::new(),
                    1 => format!("{peers}: [{{podSelector: {{matchLabels: {{app: x}}}}}}], "),
                    2 => format!("{peers}: [{{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: z}}}}}}], "),
                    _ => format!("{peers}: [{{ipBlock: {{cidr: '{block}'}}}}], "),
                };
                let ports = if random.below(3) == 0 { "[]" } else { random.one(&PORT_WORDS).1 };
                format!("{{{peer}ports: {ports}}}")
            })
            .collect();
        let _ = writeln!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: np{at}, namespace: {namespace}}}\n\
             spec: {{podSelector: {subject}, policyTypes: [{}], {direction}: [{}]}}",
            if direction == "ingress" { "Ingress" } else { "Egress" },
            rules.join(", ")
        );
    }
    text
}

/// Returns an end in the words of a claim, and its addresses.
fn end(random: &mut Random, pods: &BTreeMap<IpAddr, Made>) -> (String, BTreeSet<IpAddr>) {
    let outside: Vec<IpAddr> = OUTSIDE.iter().map(|address| address.parse().unwrap()).collect();
    let nodes = (1..=2).map(|node| IpAddr::from([172, 18, 0, node]));
    let of = |is: &dyn Fn(&Made) -> bool| pods.iter().filter(|(_, made)| is(made)).map(|(&at, _)| at).collect();
    match random.below(6) {
        0 => ("anyone".to_owned(), pods.keys().copied().chain(outside).chain(nodes).collect()),
        1 => ("outside".to_owned(), outside.into_iter().collect()),
        2 => {
            let block = *random.one(&BLOCKS);
            let parsed: ipnet::IpNet = block.parse().unwrap();
            let all = pods.keys().copied().chain(outside).chain(nodes);
            (format!("'{block}'"), all.filter(|address| parsed.contains(address)).collect())
        }
        3 => {
            let namespace = *random.one(&["a", "b"]);
            (format!("{{namespace: {namespace}}}"), of(&|made| made.namespace == namespace))
        }
        4 => {
            let app = *random.one(&["x", "z"]);
            (format!("{{labels: {{app: {app}}}}}"), of(&|made| made.app == app))
        }
        _ => {
            let (namespace, app) = (*random.one(&["a", "b"]), *random.one(&["x", "z"]));
            (
                format!("{{namespace: {namespace}, labels: {{app: {app}}}}}"),
                of(&|made| made.namespace == namespace && made.app == app),
            )
        }
    }
}

/// The verdicts of all connections between two ends of a state, at each of [`PORTS`].
struct Tried {
    verdicts: BTreeMap<(IpAddr, IpAddr), [bool; PORTS.len()]>,
}

impl Tried {
    fn of(pipeline: &Pipeline, pods: &BTreeMap<IpAddr, Made>) -> Self {
        let others =
            OUTSIDE.iter().copied().chain(["172.18.0.1", "172.18.0.2"]).map(|address| address.parse().unwrap());
        let ends: Vec<End> =
            pods.keys().copied().chain(others).map(|address| End::at(pipeline.cache(), address)).collect();
        let mut fabric = Fabric::new(pipeline, Strictness::Strict);
        let mut verdicts = BTreeMap::new();
        let is_pod = |end: &End| pods.contains_key(&end.address());
        let is_own_node = |one: &End, other: &End| is_pod(one) != is_pod(other) && one.node() == other.node();
        for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to))) {
            let (a, b) = (from.address(), to.address());
            if a == b || a.is_ipv4() != b.is_ipv4() || !(is_pod(from) || is_pod(to)) || is_own_node(from, to) {
                continue;
            }
            let asked =
                PORTS.map(|(transport, port)| fabric.allowed(from, to, PortProtocol::new(port, transport)).unwrap());
            verdicts.insert((a, b), asked);
        }
        Self { verdicts }
    }

    /// Returns a claim's outcome: `pass`, `fail` or `vacuous`.
    fn outcome(&self, kind: Kind, from: &BTreeSet<IpAddr>, to: &BTreeSet<IpAddr>, ports: &[usize]) -> &'static str {
        let is_source = |address: &IpAddr| from.contains(address) != (kind == Kind::Only);
        let asked: Vec<_> = self.verdicts.iter().filter(|((a, b), _)| is_source(a) && to.contains(b)).collect();
        if from.is_empty() || to.is_empty() || asked.is_empty() {
            return "vacuous";
        }
        let is_wrong = |verdicts: &[bool; PORTS.len()]| ports.iter().any(|&at| verdicts[at] != (kind == Kind::Always));
        if asked.iter().any(|(_, verdicts)| is_wrong(verdicts)) { "fail" } else { "pass" }
    }
}

#[test]
fn a_claim_comes_to_what_trying_every_connection_comes_to_and_its_witness_is_one_of_them() {
    let mut reached: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for seed in 0..40 {
        let mut random = Random((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (text, pods) = state(&mut random);
        let objects = || load_text("state", &text, Strictness::Strict).unwrap().objects;
        let mut tables = Pipeline::new(Scope::Cluster);
        tables.resync(objects()).unwrap();
        let tried = Tried::of(&tables, &pods);
        let mut sets = Pipeline::without_tables(IngressIsolation::default());
        sets.resync(objects()).unwrap();
        let reachability = Reachability::of(&sets, sets.mirror().unwrap());
        let mut fabric = Fabric::new(&tables, Strictness::Strict);
        for _ in 0..40 {
            let (from_word, from) = end(&mut random, &pods);
            let (to_word, to) = end(&mut random, &pods);
            let kind = *random.one(&[Kind::Never, Kind::Always, Kind::Only]);
            let (word, places) = match random.below(3) {
                0 => (String::new(), &[0, 1, 2, 3, 4, 5, 6][..]),
                _ => {
                    let (word, _, places) = random.one(&PORT_WORDS);
                    (format!(", ports: [{word}]"), *places)
                }
            };
            let line = format!("{}: {{from: {from_word}, to: {to_word}{word}}}", kind.name());
            let claim = file::parse(&"claims".into(), &format!("claims:\n- name: c\n  {line}\n")).unwrap().remove(0);
            let (told, witness) = match judge(&claim, sets.cache(), &reachability, &[]) {
                Outcome::Holds => ("pass", None),
                Outcome::Vacuous(_) => ("vacuous", None),
                Outcome::Fails(witness) => ("fail", Some(witness)),
            };
            assert_eq!(told, tried.outcome(kind, &from, &to, places), "seed {seed}: {line}\n{text}");
            *reached.entry((kind.name(), told)).or_default() += 1;
            if let Some(witness) = witness.filter(|witness| witness.protocol != Protocol::Other) {
                let transport = [Transport::Tcp, Transport::Udp, Transport::Sctp]
                    .into_iter()
                    .find(|transport| transport.number() == witness.protocol.number())
                    .unwrap();
                let [a, b] = [witness.from, witness.to].map(|address| End::at(tables.cache(), address));
                let allowed = fabric.allowed(&a, &b, PortProtocol::new(witness.port, transport)).unwrap();
                assert_eq!(allowed, kind != Kind::Always, "seed {seed}: {line}: {witness:?}\n{text}");
                let family = if witness.from.is_ipv4() { "IPv4" } else { "IPv6" };
                *reached.entry(("witness", family)).or_default() += 1;
            }
        }
    }
    for kind in ["never", "always", "only"] {
        for told in ["pass", "fail", "vacuous"] {
            assert!(reached.get(&(kind, told)).is_some_and(|&count| count > 5), "{kind} {told}: {reached:?}");
        }
    }
    assert!(reached[&("witness", "IPv4")] > 50 && reached[&("witness", "IPv6")] > 5, "{reached:?}");
}
