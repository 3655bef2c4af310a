//! Policies of other products: compares the tables and the reachability that the crate makes of random policies with models that decide
//! each packet from the policies as they are written.
//!
//! **Purpose.** A model is a slow, short reading of one product's semantics: per packet, it walks tiers, policies and rules. It shares no
//! code with the crate. The policies are written as YAML and loaded like a user's file.
//!
//! ```text
//!  World, Policies (random) --documents--> YAML --source--> objects --pipeline--> tables, reachability --.
//!            `--decide, per packet ----------------------------------------------------------------------+--> equal
//! ```
//! **Invariant.** A test fails if a feature of the semantics did not decide about enough packets.

mod calico;
mod cilium;
mod corpora;
mod document;
mod judge;
mod kubernetes;
mod labels;
mod traps;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::document::yaml;
use self::judge::{Fed, Judge};
use self::world::{Direction, Packet, Pod, World};
use crate::random::Rng;

/// The features of the semantics that took part in a decision.
type Trace = BTreeSet<&'static str>;

/// The policies of a cluster.
trait Policies: Sized {
    /// The policies as objects of Kubernetes.
    fn documents(&self) -> Vec<Value>;

    /// Whether the policies of a pod allow the packet in one direction.
    fn decide(&self, world: &World, pod: &Pod, direction: Direction, packet: &Packet, trace: &mut Trace) -> bool;

    /// The same policies, each time without another part.
    fn smaller(&self) -> Vec<Self>;
}

/// Whether the policies of both ends allow the packet.
fn verdict(world: &World, policies: &impl Policies, packet: &Packet, trace: &mut Trace) -> bool {
    let sides = [(packet.src, Direction::Egress), (packet.dst, Direction::Ingress)];
    sides.into_iter().all(|(address, direction)| match world.pod(address) {
        Some(pod) => policies.decide(world, pod, direction, packet, trace),
        None => true,
    })
}

fn text_of(world: &World, policies: &impl Policies) -> String {
    yaml(&[world.documents(), policies.documents()].concat())
}

/// The difference between the model and the crate about one packet. `None` if they agree.
fn difference(world: &World, policies: &impl Policies, judge: &Judge, packet: &Packet) -> Option<String> {
    let mut trace = Trace::new();
    let allowed = verdict(world, policies, packet, &mut trace);
    match judge.verdict(world, packet) {
        Ok(verdict) if verdict == allowed => None,
        answer => Some(format!("{packet:?}: the model says {allowed} by {trace:?}, the crate says {answer:?}")),
    }
}

/// Leaves out parts of the policies while the difference remains.
fn shrunk<P: Policies>(world: &World, mut policies: P, packet: &Packet, fed: &Fed) -> (P, String) {
    let differs = |policies: &P| {
        let judge = Judge::of(&text_of(world, policies), fed).ok()?;
        difference(world, policies, &judge, packet)
    };
    let mut what = differs(&policies).unwrap_or_else(|| "not reproduced".to_owned());
    loop {
        let smaller = policies.smaller().into_iter().find_map(|less| Some((differs(&less)?, less)));
        match smaller {
            Some((still, less)) => (what, policies) = (still, less),
            None => return (policies, what),
        }
    }
}

/// Panics with the smallest policies that still differ.
fn fail<P: Policies>(seed: u64, world: &World, policies: P, packet: &Packet, mut fed: Fed) -> ! {
    let at_once = Judge::of(&text_of(world, &policies), &Fed::AtOnce).unwrap();
    if difference(world, &policies, &at_once, packet).is_some() {
        fed = Fed::AtOnce;
    }
    let (policies, what) = shrunk(world, policies, packet, &fed);
    let earlier = match fed {
        Fed::AtOnce => "nothing".to_owned(),
        Fed::InBatches { earlier, .. } => earlier,
    };
    panic!("seed {seed}: {what}\n{}\nafter {earlier}", text_of(world, &policies));
}

/// Compares random packets of random clusters. `features` are the features that must be reached, each with its minimum number of packets.
fn compare<P: Policies>(
    seed: u64,
    packets: usize,
    random: impl Fn(&mut Rng, &World) -> P,
    features: &[(&'static str, usize)],
) {
    /// Packets per cluster. More find little new in clusters this small.
    const PER_CLUSTER: usize = 50;
    let mut reached: BTreeMap<&'static str, usize> = BTreeMap::new();
    for number in 0..packets.div_ceil(PER_CLUSTER) as u64 {
        let mut rng = Rng::new(seed.wrapping_add(number));
        let world = World::random(&mut rng);
        let policies = random(&mut rng, &world);
        let text = text_of(&world, &policies);
        let fed = match rng.chance(50) {
            true => Fed::AtOnce,
            false => {
                let world = World::random(&mut rng);
                let earlier = text_of(&world, &random(&mut rng, &world));
                Fed::InBatches { seed: rng.next(), earlier }
            }
        };
        let judge =
            Judge::of(&text, &fed).unwrap_or_else(|problem| panic!("seed {}: {problem}\n{text}", seed + number));
        let mut count = 0;
        while count < PER_CLUSTER {
            let Some(packet) = world.packet(&mut rng) else { continue };
            count += 1;
            if difference(&world, &policies, &judge, &packet).is_some() {
                fail(seed + number, &world, policies, &packet, fed);
            }
            let mut trace = Trace::new();
            let allowed = verdict(&world, &policies, &packet, &mut trace);
            trace.insert(if allowed { "allowed" } else { "denied" });
            trace.insert(if packet.is_ipv6() { "IPv6" } else { "IPv4" });
            trace.into_iter().for_each(|feature| *reached.entry(feature).or_default() += 1);
        }
    }
    let missed: Vec<_> = features
        .iter()
        .map(|&(feature, least)| (feature, reached.get(feature).copied().unwrap_or_default(), least))
        .filter(|(_, met, least)| met < least)
        .collect();
    assert!(missed.is_empty(), "not reached often enough (feature, met, least): {missed:?}\nall: {reached:?}");
    println!("seed {seed}, {packets} packets: {reached:?}");
}

/// Packets of a test in the normal run.
const PACKETS: usize = 20_000;
/// Packets of the long tests.
const MANY_PACKETS: usize = 1_000_000;

const OF_KUBERNETES: [(&str, usize); 10] = [
    ("allowed", 5_000),
    ("denied", 2_000),
    ("IPv4", 5_000),
    ("IPv6", 3_000),
    ("Admin decides", 500),
    ("Admin passes", 200),
    ("Baseline decides", 100),
    ("Baseline passes", 30),
    ("NetworkPolicy decides", 1_000),
    ("own node and NetworkPolicy", 50),
];

#[test]
fn the_harness_and_the_crate_agree_about_policies_of_kubernetes() {
    compare(1, PACKETS, |rng, _| kubernetes::Kubernetes::random(rng, 5), &OF_KUBERNETES);
}

#[test]
fn calico_policies_decide_as_their_model() {
    compare(1, PACKETS, calico::Calico::random, &calico::FEATURES);
}

#[test]
fn cilium_policies_decide_as_their_model() {
    compare(1, PACKETS, cilium::Cilium::random, &cilium::FEATURES);
}

/// The seed of the long tests: the variable `SEED`, or 1000000.
fn seed() -> u64 {
    std::env::var("SEED").map_or(1_000_000, |seed| seed.parse().unwrap())
}

#[test]
#[ignore = "takes minutes"]
fn a_million_packets_are_decided_as_by_the_model_of_calico() {
    compare(seed(), MANY_PACKETS, calico::Calico::random, &calico::FEATURES);
}

#[test]
#[ignore = "takes minutes"]
fn a_million_packets_are_decided_as_by_the_model_of_cilium() {
    compare(seed(), MANY_PACKETS, cilium::Cilium::random, &cilium::FEATURES);
}
