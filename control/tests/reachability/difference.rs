//! Tests the difference of two states with the oracle: each flow of each pair of ends, in both states.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_control::object::PodName;
use bulkhead_control::reachability::difference::{Delta, Difference, Joint};
use bulkhead_control::reachability::{Protocol, Reachability};

use super::{Reached, reachability};
use crate::oracle::{Flow, Owner, State};
use crate::random::{History, Probes, Rng, history, objects};

/// Compared pairs of states.
const PAIRS: u64 = 120;

/// The identity of an end in both states.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Pod(PodName, bool),
    Address(IpAddr),
}

/// Returns the deltas between two ends.
fn found<'a>(difference: &'a Difference, from: &Who, to: &Who) -> &'a [Delta] {
    let is_in = |joint: &Joint, who: &Who| match who {
        Who::Pod(name, v6) => joint.units.iter().any(|unit| unit.pod == *name && unit.before.is_ipv6() == *v6),
        Who::Address(address) => joint.addresses.contains(*address),
    };
    let place = |who: &Who| {
        let mut places = (0..difference.joints().len()).filter(|&at| is_in(&difference.joints()[at], who));
        let place = places.next().expect("every end of both states is in a joint");
        assert_eq!(places.next(), None, "{who:?} is in two joints");
        place
    };
    let (source, destination) = (place(from), place(to));
    for own in difference.own_nodes() {
        let ((pod, pods), (_, node)) = match own.outgoing {
            true => ((from, source), (to, destination)),
            false => ((to, destination), (from, source)),
        };
        let unit = &difference.joints()[own.joint].units[own.unit];
        let is_pod = matches!(pod, Who::Pod(name, _) if *name == unit.pod);
        if (own.joint, own.node) == (pods, node) && is_pod {
            return &difference.deltas()[own.deltas];
        }
    }
    let mut pairs = difference.pairs().iter().filter(|pair| (pair.from, pair.to) == (source, destination));
    pairs.next().map_or(&[], |pair| &difference.deltas()[pair.deltas])
}

/// The ends that exist in both states, with their addresses in each.
fn ends(states: [&State; 2]) -> BTreeMap<Who, [IpAddr; 2]> {
    let pods = |state: &State| -> BTreeMap<Who, IpAddr> {
        let owned = |pod: &PodName, address: IpAddr| match state.owner(address) {
            Owner::Pod(owner) => owner.name == *pod,
            Owner::Node(_) => state.pods[pod].host_network && state.pods[pod].node.is_some(),
            Owner::Nobody | Owner::Several => false,
        };
        let running = state.pods.values().filter(|pod| !pod.finished);
        let all = running.flat_map(|pod| pod.addresses.iter().map(|&address| (&pod.name, address)));
        let all = all.filter(|(name, address)| owned(name, *address));
        all.map(|(name, address)| (Who::Pod(name.clone(), address.is_ipv6()), address)).collect()
    };
    let (old, new) = (pods(states[0]), pods(states[1]));
    let mut ends: BTreeMap<Who, [IpAddr; 2]> = BTreeMap::new();
    for (who, address) in &old {
        ends.extend(new.get(who).map(|now| (who.clone(), [*address, *now])));
    }
    let both: BTreeSet<IpAddr> =
        states.iter().flat_map(|state| Probes::of(state, true).addresses().collect::<Vec<_>>()).collect();
    for address in both {
        let is_pods = |state: &&State| matches!(state.owner(address), Owner::Pod(_) | Owner::Several);
        if !states.iter().any(is_pods) {
            ends.insert(Who::Address(address), [address, address]);
        }
    }
    ends
}

fn check_pair(seed: u64, reached: &mut Reached) {
    let mut rng = Rng::new(seed);
    let History { isolation, initial, steps } = history(&mut rng);
    let (old, before) = reachability(isolation, &steps[..initial]);
    // Some pairs differ little.
    let until = if seed.is_multiple_of(3) { (initial + 2).min(steps.len()) } else { steps.len() };
    let (new, after) = reachability(isolation, &steps[..until]);
    let of = |pipeline: &bulkhead_control::pipeline::Pipeline| Reachability::of(pipeline, pipeline.mirror().unwrap());
    let difference = Difference::of(&of(&before), &of(&after));
    let ends = ends([&old, &new]);
    let is_v6 = |addresses: &[IpAddr; 2]| addresses[0].is_ipv6();
    let mut add = |what, holds: bool| *reached.entry(what).or_default() += u64::from(holds);
    let mut differing = 0;
    for (from, sources) in &ends {
        for (to, destinations) in &ends {
            let is_address = |who: &Who| matches!(who, Who::Address(_));
            let same = (0..2).any(|at| sources[at] == destinations[at]);
            if is_v6(sources) != is_v6(destinations) || same || is_address(from) && is_address(to) {
                continue;
            }
            let deltas = found(&difference, from, to);
            for protocol in [6, 17, 132, 1, 58, 47, 255] {
                let class = Protocol::of_number(protocol);
                let ports: &[u16] = match class {
                    Protocol::Tcp | Protocol::Udp | Protocol::Sctp => &objects::PORTS,
                    class if class.is_icmp() => &[0, 0x0800, 0x8000],
                    _ => &[0],
                };
                for &port in ports {
                    let passes = |state: &State, at: usize| {
                        state.allowed(&Flow { src: sources[at], dst: destinations[at], protocol, port })
                    };
                    let (was, is) = (passes(&old, 0), passes(&new, 1));
                    let covers = |delta: &&Delta| {
                        let is_other = matches!(class, Protocol::Number(_)) && delta.protocol == Protocol::Other;
                        (delta.protocol == class || (is_other && !delta.except.contains(&class)))
                            && delta.ports.iter().any(|&(first, last)| first <= port && port <= last)
                    };
                    let told: Vec<_> = deltas.iter().filter(covers).collect();
                    let expected = usize::from(was != is);
                    let context =
                        format!("history {seed}: {from:?} to {to:?}, protocol {protocol} port {port}: {was} {is}");
                    assert_eq!(told.len(), expected, "{context}\n{told:?}");
                    assert!(told.iter().all(|delta| delta.allowed == is), "{context}\n{told:?}");
                    assert!(told.iter().all(|delta| !delta.because.is_empty()), "{context}\n{told:?}");
                    differing += expected;
                    add("allowed now", is && !was);
                    add("denied now", was && !is);
                    add("the same", was == is);
                    add("IPv6 differs", was != is && is_v6(sources));
                    add("without ports differs", was != is && class == Protocol::Other);
                    let apart = told.iter().any(|delta| delta.protocol == class);
                    add("ICMP differs apart from others", class.is_icmp() && apart);
                    add("ICMP differs with others", class.is_icmp() && was != is && !apart);
                    add("GRE differs apart from others", class == Protocol::Number(47) && apart);
                    add("from an address differs", was != is && is_address(from));
                    add("to an address differs", was != is && is_address(to));
                    add("with another address", was != is && sources[0] != sources[1]);
                }
            }
        }
    }
    if difference.is_empty() {
        assert_eq!(differing, 0);
        add("nothing differs", true);
    }
    add("a pod of one state", !difference.only_before().is_empty() || !difference.only_after().is_empty());
    add("an own node differs otherwise", !difference.own_nodes().is_empty());
}

#[test]
fn two_states_differ_by_sets_where_the_oracle_says_so_and_nowhere_else() {
    let mut reached = Reached::new();
    (0..PAIRS).for_each(|seed| check_pair(seed, &mut reached));
    let must = [
        ("allowed now", 1_000),
        ("denied now", 1_000),
        ("the same", 100_000),
        ("IPv6 differs", 1_000),
        ("without ports differs", 200),
        ("ICMP differs apart from others", 100),
        ("ICMP differs with others", 100),
        ("GRE differs apart from others", 20),
        ("from an address differs", 1_000),
        ("to an address differs", 1_000),
        ("with another address", 100),
        ("nothing differs", 3),
        ("a pod of one state", 20),
        ("an own node differs otherwise", 20),
    ];
    for (what, least) in must {
        let met = reached.get(what).copied().unwrap_or_default();
        assert!(met >= least, "{what}: met {met} times, which is fewer than {least}: {reached:?}");
    }
}
