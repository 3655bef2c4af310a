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
use serde_json::{Value, json};

use crate::foreign::kubernetes::{Action, Kubernetes};
use crate::foreign::world::{Direction, ICMP, ICMPV6, Packet, Pod, World};
use crate::foreign::{Policies, Trace, calico, cilium, text_of, verdict};
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
    let reached = check(1, 100, |rng, _| Kubernetes::random(rng, 5));
    assert_eq!(reached["equal"], 100, "there is nothing to translate");
}

/// Policies of `policy.networking.k8s.io/v1alpha1`, which mean the same as ClusterNetworkPolicies with their rules.
struct Older(Kubernetes);

impl Older {
    fn random(rng: &mut Rng) -> Self {
        let mut policies = Kubernetes::random(rng, 5);
        // A cluster has at most one BaselineAdminNetworkPolicy, which cannot pass.
        let mut count = 0;
        policies.cluster.retain(|policy| {
            count += usize::from(!policy.is_admin);
            policy.is_admin || count == 1
        });
        for policy in policies.cluster.iter_mut().filter(|policy| !policy.is_admin) {
            policy.ingress.retain(|rule| rule.action != Action::Pass);
            policy.egress.retain(|rule| rule.action != Action::Pass);
        }
        Self(policies)
    }
}

/// Returns a ClusterNetworkPolicy in the form of `v1alpha1`. Other objects stay as they are.
fn older(mut object: Value) -> Value {
    if object["kind"] != "ClusterNetworkPolicy" {
        return object;
    }
    let is_admin = object["spec"]["tier"] == "Admin";
    let (name, kind) = match is_admin {
        true => (object["metadata"]["name"].take(), "AdminNetworkPolicy"),
        false => ("default".into(), "BaselineAdminNetworkPolicy"),
    };
    let mut spec = object["spec"].take();
    let fields = spec.as_object_mut().unwrap();
    for rule in fields.values_mut().filter_map(Value::as_array_mut).flatten() {
        if rule["action"] == "Accept" {
            rule["action"] = "Allow".into();
        }
        if let Some(protocols) = rule.as_object_mut().and_then(|rule| rule.remove("protocols")) {
            rule["ports"] = protocols.as_array().into_iter().flatten().map(port).collect();
        }
    }
    fields.remove("tier");
    if !is_admin {
        fields.remove("priority");
    }
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Returns a protocol with ports of `v1alpha2` in the form of `v1alpha1`.
fn port(protocol: &Value) -> Value {
    let (name, of) = protocol.as_object().unwrap().iter().next().unwrap();
    let (name, port) = (name.to_uppercase(), &of["destinationPort"]);
    match port.get("range") {
        Some(range) => json!({"portRange": {"protocol": name, "start": range["start"], "end": range["end"]}}),
        None => json!({"portNumber": {"protocol": name, "port": port["number"]}}),
    }
}

impl Policies for Older {
    fn documents(&self) -> Vec<Value> {
        self.0.documents().into_iter().map(older).collect()
    }

    fn decide(&self, world: &World, pod: &Pod, direction: Direction, packet: &Packet, trace: &mut Trace) -> bool {
        self.0.decide(world, pod, direction, packet, trace)
    }

    fn smaller(&self) -> Vec<Self> {
        self.0.smaller().into_iter().map(Self).collect()
    }
}

#[test]
fn translations_of_older_policies_of_kubernetes_are_equal() {
    let reached = check(1_000, 100, |rng, _| Older::random(rng));
    assert_eq!(reached["equal"], 100, "{reached:?}");
}
