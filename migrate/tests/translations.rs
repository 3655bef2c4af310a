//! Random policies of each dialect are translated; the models, which read the original policies, judge the result.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_control::foreign::resolved;
use bulkhead_control::object::{Enforcement, IngressIsolation};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::reachability::difference::{Delta, Difference, Joint};
use bulkhead_control::reachability::{Protocol, Verdicts};
use bulkhead_control::source::{ForeignKinds, Options, ServiceKinds, load_text};
use bulkhead_migrate::translate::{Translation, after, translate};

use crate::foreign::world::{ICMP, ICMPV6, Packet, World};
use crate::foreign::{Policies, calico, cilium, kubernetes, text_of, verdict};
use crate::random::Rng;

/// Packets per cluster.
const PACKETS: usize = 60;

/// A state before and after its translation.
struct Case {
    text: String,
    translation: Translation,
    states: [Reachability; 2],
}

pub(crate) fn pipeline(text: &str) -> Pipeline {
    let options = Options { services: ServiceKinds::Read, foreign: ForeignKinds::Read, ..Options::default() };
    let loaded = load_text("state.yaml", text, options).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let mut pipeline = Pipeline::without_tables(IngressIsolation::ClusterDefault).auditing(Enforcement::Enforce);
    pipeline.resync(resolved(loaded.objects)).unwrap();
    pipeline
}

pub(crate) fn reachability(pipeline: &Pipeline) -> Reachability {
    Reachability::of(pipeline, pipeline.mirror().unwrap())
}

impl Case {
    /// `None` if the target has not enough priorities.
    fn of(text: String) -> Option<Self> {
        let before = pipeline(&text);
        let translation = translate(before.cache()).ok()?;
        let after = after(before.cache(), &translation.yaml, Enforcement::Enforce)
            .unwrap_or_else(|error| panic!("{error:#}\n{text}\n{}", translation.yaml));
        let states = [reachability(&before), reachability(&after)];
        Some(Self { text, translation, states })
    }

    fn told(&self) -> String {
        format!("{}\n=== translated ===\n{}\n{:#?}", self.text, self.translation.yaml, self.translation)
    }
}

pub(crate) fn at(verdicts: &Verdicts, packet: &Packet) -> bool {
    verdicts.at(Protocol::of_number(packet.protocol), packet.port).allowed()
}

/// Returns an address of a joint in both states.
fn sample(joint: &Joint) -> Option<IpAddr> {
    let outside = || {
        let v4 = joint.addresses.v4_intervals().first().map(|(first, _)| IpAddr::from(first.to_be_bytes()));
        v4.or_else(|| joint.addresses.v6_intervals().first().map(|(first, _)| IpAddr::from(first.to_be_bytes())))
    };
    joint.units.first().map(|unit| unit.before).or_else(outside)
}

/// Whether only port 0 differs, which is reserved, and which a ClusterNetworkPolicy cannot name.
fn is_port_zero(delta: &Delta) -> bool {
    matches!(delta.protocol, Protocol::Tcp | Protocol::Udp | Protocol::Sctp) && delta.ports == [(0, 0)]
}

/// Returns a packet of each difference.
fn witnesses(difference: &Difference) -> Vec<(Packet, bool)> {
    let mut all = Vec::new();
    for pair in difference.pairs() {
        let [from, to] = [pair.from, pair.to].map(|at| sample(&difference.joints()[at]));
        let (Some(src), Some(dst)) = (from, to) else { continue };
        for delta in difference.deltas()[pair.deltas].iter().filter(|delta| !is_port_zero(delta)) {
            // Protocols other than ICMP have no ports, or one port for all.
            let port = match delta.protocol {
                Protocol::Number(ICMP | ICMPV6) | Protocol::Tcp | Protocol::Udp | Protocol::Sctp => delta.ports[0].1,
                Protocol::Number(_) | Protocol::Other => 0,
            };
            all.push((Packet { src, dst, protocol: delta.protocol.number(), port }, delta.allowed));
        }
    }
    all
}

fn check<P: Policies>(
    seed: u64,
    clusters: u64,
    random: impl Fn(&mut Rng, &World) -> P,
) -> BTreeMap<&'static str, usize> {
    let mut reached: BTreeMap<&'static str, usize> = BTreeMap::new();
    for number in 0..clusters {
        let mut rng = Rng::new(seed + number);
        let world = World::random(&mut rng);
        let policies = random(&mut rng, &world);
        let Some(case) = Case::of(text_of(&world, &policies)) else {
            *reached.entry("not enough priorities").or_default() += 1;
            continue;
        };
        let difference = Difference::of(&case.states[0], &case.states[1]);
        let mut count = |what| *reached.entry(what).or_default() += 1;
        let is_equal = difference.deltas().iter().flatten().all(is_port_zero);
        let refused = case.translation.refused() > 0;
        count(match (is_equal, refused) {
            (true, false) => "equal",
            (true, true) => "equal, some refused",
            (false, true) => "different, some refused",
            (false, false) => "different, none refused",
        });
        for (packet, allowed) in witnesses(&difference) {
            let is_between = case.states[1].between(packet.src, packet.dst).is_some();
            if is_between && !case.states[0].is_own_node(packet.src, packet.dst) {
                assert_eq!(
                    verdict(&world, &policies, &packet),
                    !allowed,
                    "seed {}: {packet:?}\n{}",
                    seed + number,
                    case.told()
                );
                count(if allowed { "newly allowed" } else { "newly denied" });
                assert!(
                    refused || !allowed,
                    "seed {}: widened without a word: {packet:?}\n{}",
                    seed + number,
                    case.told()
                );
            }
        }
        for _ in 0..PACKETS {
            let Some(packet) = world.packet(&mut rng) else { continue };
            if packet.src == packet.dst {
                continue;
            }
            let [before, after] = case
                .states
                .each_ref()
                .map(|state| at(&state.between(packet.src, packet.dst).expect("two ends of one family"), &packet));
            assert_eq!(before, verdict(&world, &policies, &packet), "seed {}: {packet:?}", seed + number);
            if is_equal {
                assert_eq!(before, after, "seed {}: {packet:?}\n{}", seed + number, case.told());
                count("packets of equal states");
            }
        }
    }
    println!("{reached:?}");
    reached
}

#[test]
fn translations_of_calico_are_equal_where_the_proof_says_so() {
    let reached = check(1, 200, calico::Calico::random);
    for kind in ["equal", "equal, some refused", "different, some refused"] {
        assert!(reached.contains_key(kind), "{reached:?}");
    }
}

#[test]
fn translations_of_cilium_are_equal_where_the_proof_says_so() {
    let reached = check(1, 200, cilium::Cilium::random);
    assert!(reached["equal"] >= 20, "{reached:?}");
}

#[test]
fn translations_of_policies_of_kubernetes_are_equal() {
    let reached = check(1, 100, |rng, _| kubernetes::Kubernetes::random(rng, 5));
    assert_eq!(reached["equal"], 100, "there is nothing to translate");
}
