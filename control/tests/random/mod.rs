//! Random clusters and histories. Names, labels and addresses are few, so that selectors match, blocks nest, addresses move between pods
//! and port names collide. The same seed gives the same history.
#![allow(dead_code, reason = "each test file uses a part of this")]

pub(crate) mod cluster_policy;
pub(crate) mod foreign;
pub(crate) mod objects;
mod rng;
pub(crate) mod shrink;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{IngressIsolation, Namespace, Object, PodName, PolicyPort, PolicyRule};

pub(crate) use self::rng::Rng;
use crate::oracle::{Flow, Owner, State, number_of};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Event(Event),
    /// A resync with the whole state, in the order of this seed.
    Resync(u64),
}

impl Step {
    /// The step, with all port ranges reduced to at most three ports, and regions to a block.
    pub(crate) fn narrowed(self) -> Self {
        let narrow = |rules: &mut Option<Vec<PolicyRule>>| {
            for port in rules.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten()) {
                if let PolicyPort::Range { first, last, .. } = port {
                    *last = (*last).min(first.saturating_add(2));
                }
            }
        };
        match self {
            Self::Event(Event::Apply(Object::Policy(mut policy))) => {
                let narrower = Arc::make_mut(&mut policy);
                narrow(&mut narrower.ingress);
                narrow(&mut narrower.egress);
                Self::Event(Event::Apply(Object::Policy(policy)))
            }
            Self::Event(Event::Apply(Object::ClusterPolicy(mut policy))) => {
                foreign::narrow(Arc::make_mut(&mut policy));
                Self::Event(Event::Apply(Object::ClusterPolicy(policy)))
            }
            other => other,
        }
    }
}

impl Step {
    /// Whether the step changes a policy of another product.
    pub(crate) fn is_foreign(&self) -> bool {
        match self {
            Self::Event(Event::Apply(Object::ClusterPolicy(policy))) => policy.rank.name.kind.is_foreign(),
            Self::Event(Event::DeleteClusterPolicy(name)) => name.kind.is_foreign(),
            _ => false,
        }
    }
}

/// A history: `initial` events with a cluster's objects in any order, then changes.
pub(crate) struct History {
    /// The isolation of namespaces without an annotation.
    pub(crate) isolation: IngressIsolation,
    pub(crate) initial: usize,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn history(rng: &mut Rng) -> History {
    let isolation = if rng.chance(12) { IngressIsolation::DefaultDeny } else { IngressIsolation::ClusterDefault };
    let mut first = Vec::new();
    for name in objects::NAMESPACES.into_iter().filter(|name| *name != objects::UNKNOWN_NAMESPACE) {
        if rng.chance(85) {
            first.push(objects::namespace(rng, name));
        }
    }
    for at in 0..objects::NODES.len() {
        if rng.chance(85) {
            first.push(objects::node(rng, at));
        }
    }
    for _ in 0..6 + rng.below(8) {
        let name = objects::pod_name(rng);
        first.push(Object::from(objects::pod(rng, &name)));
    }
    for _ in 0..1 + rng.below(7) {
        first.push(Object::from(objects::policy(rng)));
    }
    // Most clusters have only NetworkPolicies.
    let tiers = rng.chance(40);
    if tiers {
        first.extend((0..1 + rng.below(4)).map(|_| Object::from(cluster_policy::cluster_policy(rng))));
    }
    let foreign = rng.chance(35);
    if foreign {
        first.extend((0..1 + rng.below(5)).map(|_| Object::from(foreign::foreign_policy(rng))));
    }
    rng.shuffle(&mut first);
    let mut steps: Vec<Step> = first.into_iter().map(|object| Step::Event(Event::Apply(object))).collect();
    let initial = steps.len();
    let mut state = State::default();
    for step in &steps {
        follow(&mut state, step);
    }
    for _ in 0..10 + rng.below(30) {
        let next = if tiers && rng.chance(15) {
            vec![tier_change(rng)]
        } else if foreign && rng.chance(20) {
            vec![foreign_change(rng)]
        } else {
            change(rng, &state, &steps)
        };
        for step in next {
            follow(&mut state, &step);
            steps.push(step);
        }
    }
    History { isolation, initial, steps }
}

fn tier_change(rng: &mut Rng) -> Step {
    Step::Event(if rng.chance(75) {
        Event::Apply(cluster_policy::cluster_policy(rng).into())
    } else {
        Event::DeleteClusterPolicy(cluster_policy::cluster_policy_name(rng))
    })
}

fn foreign_change(rng: &mut Rng) -> Step {
    Step::Event(if rng.chance(70) {
        Event::Apply(foreign::foreign_policy(rng).into())
    } else {
        Event::DeleteClusterPolicy(foreign::foreign_policy_name(rng))
    })
}

fn follow(state: &mut State, step: &Step) {
    if let Step::Event(event) = step {
        state.apply(event);
    }
}

fn change(rng: &mut Rng, state: &State, past: &[Step]) -> Vec<Step> {
    let names: Vec<&PodName> = state.pods.keys().collect();
    let apply = |object| vec![Step::Event(Event::Apply(object))];
    match rng.below(100) {
        0..30 if !names.is_empty() => {
            let name = (rng.pick(&names)).clone();
            apply(Object::from(objects::changed_pod(rng, &state.pods[&name])))
        }
        0..38 => {
            let name = objects::pod_name(rng);
            apply(Object::from(objects::pod(rng, &name)))
        }
        38..44 => vec![Step::Event(Event::DeletePod(objects::pod_name(rng)))],
        44..52 if !names.is_empty() => {
            let name = (rng.pick(&names)).clone();
            hand_over(rng, state, &name)
        }
        44..68 => apply(Object::from(objects::policy(rng))),
        68..74 => vec![Step::Event(Event::DeletePolicy(objects::policy_name(rng)))],
        74..82 => {
            let name = rng.pick(&objects::NAMESPACES);
            let known = name != objects::UNKNOWN_NAMESPACE;
            if known { apply(objects::namespace(rng, name)) } else { Vec::new() }
        }
        82..85 => vec![Step::Event(Event::DeleteNamespace((rng.pick(&objects::NAMESPACES)).into()))],
        85..89 => {
            let at = rng.below(objects::NODES.len());
            apply(objects::node(rng, at))
        }
        89..91 => vec![Step::Event(Event::DeleteNode((rng.pick(&objects::NODES)).into()))],
        91..93 => end(rng, state),
        93..97 => vec![past[rng.below(past.len())].clone()],
        _ => vec![Step::Resync(rng.next())],
    }
}

/// A namespace terminates, and some of its contents are deleted, in any order.
fn end(rng: &mut Rng, state: &State) -> Vec<Step> {
    let Some(namespace) = state.namespaces.values().nth(rng.below(objects::NAMESPACES.len())) else {
        return Vec::new();
    };
    let terminating = Namespace { terminating: true, ..namespace.clone() };
    let pods = state.pods.keys().filter(|pod| pod.namespace == namespace.name).cloned().map(Event::DeletePod);
    let policies = state.policies.keys().filter(|policy| policy.namespace == namespace.name);
    let mut gone: Vec<Event> = pods.chain(policies.cloned().map(Event::DeletePolicy)).collect();
    gone.push(Event::DeleteNamespace(namespace.name.clone()));
    rng.shuffle(&mut gone);
    gone.truncate(rng.below(gone.len() + 1));
    let first = Event::Apply(Object::Namespace(terminating));
    std::iter::once(first).chain(gone).map(Step::Event).collect()
}

/// A pod terminates or is deleted, and another pod takes its addresses, in either order.
fn hand_over(rng: &mut Rng, state: &State, from: &PodName) -> Vec<Step> {
    let old = state.pods[from].clone();
    let to = objects::pod_name(rng);
    if to == *from {
        return Vec::new();
    }
    let mut new = objects::pod(rng, &to);
    (new.host_network, new.finished) = (false, false);
    new.addresses.clone_from(&old.addresses);
    if old.host_network {
        return Vec::new();
    }
    let end = if rng.chance(50) {
        let mut ended = old;
        ended.finished = true;
        Event::Apply(ended.into())
    } else {
        Event::DeletePod(from.clone())
    };
    let mut steps = vec![Step::Event(end), Step::Event(Event::Apply(new.into()))];
    rng.shuffle(&mut steps);
    steps
}

/// The addresses and services in a state that are worth probing.
pub(crate) struct Probes {
    pods: [Vec<IpAddr>; 2],
    all: [Vec<IpAddr>; 2],
    /// The pods' declared ports, by address.
    declared: BTreeMap<IpAddr, Vec<(u8, u16)>>,
}

/// Protocols of flows: mostly TCP, then UDP, SCTP, and some without ports: ICMP or ICMPv6 (written 0), GRE, and the highest number.
const PROTOCOLS: [u8; 12] = [6, 6, 6, 6, 17, 17, 17, 132, 132, 0, 47, 255];

impl Probes {
    /// Every address of an object, and every first, last or adjacent address of a block, unless several objects own it. Without `unbound`,
    /// pods without a node are omitted, because no pipeline has rules for them.
    pub(crate) fn of(state: &State, unbound: bool) -> Self {
        let mut probes = Self { pods: Default::default(), all: Default::default(), declared: BTreeMap::new() };
        let mut seen = BTreeSet::new();
        let held = state.pods.values().flat_map(|pod| pod.addresses.iter().copied());
        let nodes = state.nodes.values().flat_map(|node| node.addresses.iter().copied());
        for address in held.chain(nodes).chain(objects::externals()).chain(objects::borders(state)) {
            if !seen.insert(address) {
                continue;
            }
            let family = usize::from(address.is_ipv6());
            match state.owner(address) {
                Owner::Several => continue,
                Owner::Pod(pod) if pod.node.is_none() && !unbound => continue,
                Owner::Pod(pod) => {
                    probes.pods[family].push(address);
                    let ports = pod.ports.iter().map(|port| (number_of(port.transport), port.port));
                    probes.declared.insert(address, ports.collect());
                }
                Owner::Node(_) | Owner::Nobody => {}
            }
            probes.all[family].push(address);
        }
        probes
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.all.iter().flatten().copied()
    }

    /// A random flow with a pod at one end or both. `None` if the state has fewer than two ends.
    pub(crate) fn flow(&self, rng: &mut Rng) -> Option<Flow> {
        let family = usize::from(rng.chance(40));
        let (pods, all) = (&self.pods[family], &self.all[family]);
        if pods.is_empty() || all.len() < 2 {
            return None;
        }
        let pod = rng.pick(pods);
        // Half the flows are between two pods.
        let other = if rng.chance(50) { rng.pick(pods) } else { rng.pick(all) };
        let (src, dst) = if rng.chance(50) { (pod, other) } else { (other, pod) };
        let declared = self.declared.get(&dst).filter(|ports| !ports.is_empty());
        if let Some(ports) = declared.filter(|_| rng.chance(40)) {
            let (protocol, port) = rng.pick(ports);
            return (src != dst).then_some(Flow { src, dst, protocol, port });
        }
        let (protocol, port) = match rng.pick(&PROTOCOLS) {
            // Type and code of ICMP: none, or those of an echo request.
            0 => {
                let (number, echo) = if family == 0 { (1, 0x0800) } else { (58, 0x8000) };
                (number, if rng.chance(50) { echo } else { 0 })
            }
            protocol @ (6 | 17 | 132) => (protocol, rng.pick(&objects::PORTS)),
            protocol => (protocol, 0),
        };
        (src != dst).then_some(Flow { src, dst, protocol, port })
    }
}

/// Returns the objects in a random order.
pub(crate) fn shuffled(mut objects: Vec<Object>, seed: u64) -> Vec<Object> {
    Rng::new(seed).shuffle(&mut objects);
    objects
}

/// A name in the form that objects use.
pub(crate) fn text(text: &str) -> Arc<str> {
    text.into()
}
