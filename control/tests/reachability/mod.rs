//! Compares reachability by sets with the oracle: for each flow, the verdict between its ends at its port must be the same, for a reason
//! that the oracle gives.

mod difference;
mod removal;

use bulkhead_classifier::OriginId;
use bulkhead_control::object::{IngressIsolation, PodName};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::{Decision, Holder, Protocol, Reachability};

use super::{Reached, count};
use crate::oracle::{Flow, Judgement, Owner, Side, State};
use crate::random::{History, Probes, Rng, Step, history, shuffled};

/// Compared clusters, each after its whole history.
const HISTORIES: u64 = 250;
/// Flows per cluster. More find little new in clusters this small.
const FLOWS: usize = 500;

/// The situations that must be met, each with its minimum number of flows.
const MUST_REACH: [(&str, u64); 22] = [
    ("ingress allowed by policy", 1_000),
    ("egress allowed by policy", 1_000),
    ("ingress denied by default", 1_000),
    ("egress denied by default", 1_000),
    ("not isolated", 1_000),
    ("own node reaches an isolated pod", 20),
    ("isolated pod reaches its own node", 20),
    ("other node is only an address", 50),
    ("port name hit", 100),
    ("except hit", 500),
    ("IPv4", 10_000),
    ("IPv6", 10_000),
    ("SCTP", 5_000),
    ("other protocol allowed by policy", 100),
    ("other protocol denied", 1_000),
    ("leaves the cluster", 5_000),
    ("comes from outside", 5_000),
    ("accepted by Admin", 200),
    ("denied by Admin", 500),
    ("accepted by Baseline", 50),
    ("passed to NetworkPolicies that allow", 20),
    ("passed to Baseline that decides", 20),
];

fn reachability(isolation: IngressIsolation, steps: &[Step]) -> (State, Pipeline) {
    let isolates = isolation == IngressIsolation::DefaultDeny;
    let mut state = State { isolates, ..State::default() };
    let mut pipeline = Pipeline::without_tables(isolation);
    for step in steps {
        match &step {
            Step::Event(event) => {
                state.apply(event);
                pipeline.apply(event.clone()).unwrap();
            }
            Step::Resync(seed) => pipeline.resync(shuffled(state.objects(), *seed)).unwrap(),
        }
    }
    (state, pipeline)
}

/// Whether the decision and its reason agree with the oracle's judgement of this end.
fn agrees(pipeline: &Pipeline, judged: &Judgement, direction: Direction, decision: Decision) -> bool {
    let origin = decision.origin.map(|id: OriginId| pipeline.origins().get(id).expect("a rule's origin has a meaning"));
    match (judged.side(direction), origin) {
        (Side::NotIsolated, None) => decision.allowed,
        (Side::Allowed(_) | Side::Denied(_), Some(Origin::OwnNode)) => decision.allowed && judged.own_node,
        (Side::Allowed(rules), Some(Origin::Policy { policy, direction: of, rule })) => {
            decision.allowed && *of == direction && rules.contains(&(policy.clone(), *rule))
        }
        (Side::Exempt, Some(Origin::OwnNode)) => decision.allowed && judged.own_node,
        (Side::Denied(by), Some(Origin::Isolation { policies, others, direction: of, .. })) => {
            !decision.allowed
                && !judged.own_node
                && *of == direction
                && (&**policies, &**others) == (by.as_slice(), &[])
        }
        (Side::End(tier, by, foreign), Some(Origin::Isolation { tier: at, policies, others, direction: of })) => {
            !decision.allowed
                && (at, *of) == (tier, direction)
                && (&**policies, &**others) == (by.as_slice(), foreign.as_slice())
        }
        (Side::Tier(tier), Some(Origin::ClusterPolicy { tier: of, policy, rule, .. })) => {
            (&tier.tier, &tier.policy, tier.rule, tier.accepts) == (of, policy, *rule, decision.allowed)
        }
        _ => false,
    }
}

fn check(state: &State, pipeline: &Pipeline, reachability: &Reachability, flow: &Flow) -> Result<Judgement, String> {
    let judged = state.judge(flow);
    let verdicts = reachability.between(flow.src, flow.dst).expect("two ends of one family");
    let verdict = verdicts.at(Protocol::of_number(flow.protocol), flow.port);
    let same = verdict.allowed() == judged.passes()
        && agrees(pipeline, &judged, Direction::Egress, verdict.egress)
        && agrees(pipeline, &judged, Direction::Ingress, verdict.ingress);
    if same { Ok(judged) } else { Err(format!("the oracle says {judged:?}\nthe sets say {verdict:?}")) }
}

/// Checks that the regions cover both families exactly once, and that the classes have the owners that the oracle names.
fn check_regions(state: &State, reachability: &Reachability, probes: &Probes) {
    let mut next: [Option<std::net::IpAddr>; 2] = [Some([0; 4].into()), Some([0; 16].into())];
    for region in reachability.regions() {
        let family = usize::from(region.first.is_ipv6());
        assert_eq!(next[family], Some(region.first), "the regions leave a gap, or overlap");
        next[family] = match region.last {
            std::net::IpAddr::V4(last) => u32::from(last).checked_add(1).map(|at| std::net::Ipv4Addr::from(at).into()),
            std::net::IpAddr::V6(last) => u128::from(last).checked_add(1).map(|at| std::net::Ipv6Addr::from(at).into()),
        };
    }
    assert_eq!(next, [None, None], "the regions end early");
    for address in probes.addresses() {
        let holder = &reachability.class(reachability.class_at(address)).holder;
        match state.owner(address) {
            Owner::Pod(pod) => {
                assert_eq!(*holder, Holder::Pods, "{address}");
                let members = reachability.members_of(&PodName::clone(&pod.name));
                assert!(members.iter().any(|member| member.address == address), "{address} of {}", pod.name);
            }
            Owner::Node(node) => assert_eq!(*holder, Holder::Nodes([node].into()), "{address}"),
            Owner::Nobody => assert_eq!(*holder, Holder::Outside, "{address}"),
            Owner::Several => {}
        }
    }
}

#[test]
fn verdicts_by_sets_are_the_oracles_at_every_port_for_its_reasons() {
    let mut reached = Reached::new();
    for seed in 0..HISTORIES {
        let mut rng = Rng::new(seed);
        let History { isolation, steps, .. } = history(&mut rng);
        let (state, pipeline) = reachability(isolation, &steps);
        let reachability = Reachability::of(&pipeline, pipeline.mirror().unwrap());
        let probes = Probes::of(&state, true);
        check_regions(&state, &reachability, &probes);
        for _ in 0..FLOWS {
            let Some(flow) = probes.flow(&mut rng) else { continue };
            match check(&state, &pipeline, &reachability, &flow) {
                Ok(judged) => count(&mut reached, &state, &flow, &judged),
                Err(what) => panic!("history {seed}, {flow:?}: {what}"),
            }
        }
    }
    for (what, least) in MUST_REACH {
        let met = reached.get(what).copied().unwrap_or_default();
        assert!(met >= least, "{what}: met {met} times, which is fewer than {least}");
    }
}

/// The ranges of a protocol cover each port once, and do not split where both sides' verdicts stay the same.
#[test]
fn the_ranges_of_each_protocol_are_disjoint_and_together_all_ports() {
    let mut ranges = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let History { isolation, steps, .. } = history(&mut rng);
        let (_, pipeline) = reachability(isolation, &steps);
        let reachability = Reachability::of(&pipeline, pipeline.mirror().unwrap());
        for from in reachability.classes() {
            for to in reachability.classes() {
                let Some(verdicts) = reachability.between(from.sample, to.sample) else { continue };
                for protocol in verdicts.protocols() {
                    let all = verdicts.of_protocol(protocol);
                    assert_eq!((all[0].ports.first, all.last().unwrap().ports.last), (0, u16::MAX));
                    for pair in all.windows(2) {
                        assert_eq!(pair[0].ports.last + 1, pair[1].ports.first);
                        assert_ne!((pair[0].egress, pair[0].ingress), (pair[1].egress, pair[1].ingress));
                    }
                    assert!(protocol != Protocol::Other || all.len() == 1, "{all:?}");
                    ranges += usize::from(all.len() > 1);
                }
            }
        }
    }
    assert!(ranges > 500, "only {ranges} pairs had more than one range");
}
