//! Reduces a failing history and prints it in readable form.

use std::fmt::Write;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{ClusterPolicy, NamespaceScope, Object, Peer, Pod, Policy, PolicyPort, PolicyRule};

use super::Step;

/// Removes steps and parts of objects while `fails` holds. Returns the smallest history found.
pub(crate) fn shrink(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut chunk = steps.len().next_power_of_two();
    while chunk > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(steps.len()));
            if fails(&fewer) {
                steps = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    for at in 0..steps.len() {
        while let Some(simpler) = simpler(&steps[at]).into_iter().find_map(|step| {
            let mut changed = steps.clone();
            changed[at] = step;
            fails(&changed).then_some(changed)
        }) {
            steps = simpler;
        }
    }
    steps
}

/// Variants of the step, each without one of its optional parts.
fn simpler(step: &Step) -> Vec<Step> {
    let apply = |object| Step::Event(Event::Apply(object));
    match step {
        Step::Event(Event::Apply(Object::Policy(policy))) => {
            smaller_policies(policy).into_iter().map(|policy| apply(policy.into())).collect()
        }
        Step::Event(Event::Apply(Object::ClusterPolicy(policy))) => {
            smaller_cluster_policies(policy).into_iter().map(|policy| apply(policy.into())).collect()
        }
        Step::Event(Event::Apply(Object::Pod(pod))) => {
            smaller_pods(pod).into_iter().map(|pod| apply(pod.into())).collect()
        }
        _ => Vec::new(),
    }
}

fn without<T: Clone>(all: &[T]) -> impl Iterator<Item = Vec<T>> + '_ {
    (0..all.len()).map(|at| {
        let mut fewer = all.to_vec();
        fewer.remove(at);
        fewer
    })
}

fn smaller_cluster_policies(policy: &ClusterPolicy) -> Vec<ClusterPolicy> {
    let mut all = Vec::new();
    for ingress in [true, false] {
        let rules = if ingress { &policy.ingress } else { &policy.egress };
        let mut with = |rules| {
            let mut smaller = policy.clone();
            *(if ingress { &mut smaller.ingress } else { &mut smaller.egress }) = rules;
            all.push(smaller);
        };
        without(rules).for_each(&mut with);
        for (at, rule) in rules.iter().enumerate() {
            for traffic in smaller_rules(&rule.traffic) {
                let mut rules = rules.clone();
                rules[at].traffic = traffic;
                with(rules);
            }
        }
    }
    all
}

fn smaller_pods(pod: &Pod) -> Vec<Pod> {
    let ports = without(&pod.ports).map(|ports| Pod { ports, ..pod.clone() });
    let addresses = without(&pod.addresses).map(|addresses| Pod { addresses, ..pod.clone() });
    let keys = pod.labels.keys().map(|key| {
        let mut fewer = pod.clone();
        fewer.labels.remove(key);
        fewer
    });
    ports.chain(addresses).chain(keys).collect()
}

fn smaller_policies(policy: &Policy) -> Vec<Policy> {
    let mut all = Vec::new();
    for ingress in [true, false] {
        let Some(rules) = (if ingress { &policy.ingress } else { &policy.egress }) else { continue };
        let mut with = |rules| {
            let mut smaller = policy.clone();
            *(if ingress { &mut smaller.ingress } else { &mut smaller.egress }) = rules;
            all.push(smaller);
        };
        with(None);
        without(rules).for_each(|rules| with(Some(rules)));
        for (at, rule) in rules.iter().enumerate() {
            for rule in smaller_rules(rule) {
                let mut rules = rules.clone();
                rules[at] = rule;
                with(Some(rules));
            }
        }
    }
    all
}

fn smaller_rules(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut all = Vec::new();
    let mut with = |peers: Option<Vec<Peer>>, ports: Option<Vec<PolicyPort>>| all.push(PolicyRule { peers, ports });
    if let Some(peers) = &rule.peers {
        with(None, rule.ports.clone());
        without(peers).for_each(|peers| with(Some(peers), rule.ports.clone()));
        for (at, peer) in peers.iter().enumerate() {
            let Peer::Block(block) = peer else { continue };
            for except in without(&block.except) {
                let mut peers = peers.clone();
                peers[at] = Peer::Block(bulkhead_control::object::IpBlock { except, ..block.clone() });
                with(Some(peers), rule.ports.clone());
            }
        }
    }
    if let Some(ports) = &rule.ports {
        with(rule.peers.clone(), None);
        without(ports).for_each(|ports| with(rule.peers.clone(), Some(ports)));
    }
    all
}

/// The history as text, one line per step.
pub(crate) fn show(steps: &[Step]) -> String {
    let mut out = String::new();
    for step in steps {
        let line = match step {
            Step::Resync(_) => "resync".to_owned(),
            Step::Event(Event::Apply(object)) => show_object(object),
            Step::Event(other) => format!("{other:?}"),
        };
        writeln!(out, "  {line}").unwrap();
    }
    out
}

fn show_object(object: &Object) -> String {
    match object {
        Object::Pod(pod) => {
            let kind = if pod.host_network { " host-network" } else { "" };
            let ended = if pod.finished { " finished" } else { "" };
            let ports: Vec<_> = pod.ports.iter().map(|p| format!("{}={}/{}", p.name, p.transport, p.port)).collect();
            let node = pod.node.as_deref().unwrap_or("-");
            let labels = &pod.labels;
            format!("pod {} on {node} {:?} {labels:?} ports {ports:?}{kind}{ended}", pod.name, pod.addresses)
        }
        Object::Policy(policy) => {
            let list = |rules: &Option<Vec<PolicyRule>>| {
                rules.as_ref().map_or("-".into(), |rules| {
                    let rules: Vec<_> = rules.iter().map(show_rule).collect();
                    format!("[{}]", rules.join("; "))
                })
            };
            let (ingress, egress) = (list(&policy.ingress), list(&policy.egress));
            format!(
                "{:?} policy {} for {} ingress {ingress} egress {egress}",
                policy.version, policy.name, policy.subject
            )
        }
        Object::Namespace(namespace) => format!("{namespace:?}"),
        Object::Node(node) => format!("node {} {:?} {:?}", node.name, node.labels, node.addresses),
        Object::ClusterPolicy(policy) => format!("{policy:?}"),
        Object::Service(service) => format!("{service:?}"),
        Object::EndpointSlice(slice) => format!("{slice:?}"),
        Object::Foreign(object) => format!("{object:?}"),
    }
}

fn show_rule(rule: &PolicyRule) -> String {
    let peers = rule.peers.as_ref().map_or("anyone".into(), |peers| {
        let peer = |peer: &Peer| match peer {
            Peer::Block(block) => format!("{} except {:?}", block.cidr, block.except),
            Peer::Nodes(nodes) => format!("nodes {nodes}"),
            Peer::Names(names) => format!("names {names:?}"),
            Peer::OwnNode => "own node".to_owned(),
            Peer::Region(region) => format!("{region:?}"),
            Peer::Pods(peer) => match &peer.namespaces {
                NamespaceScope::Own(_) => format!("pods {}", peer.pods),
                NamespaceScope::Selected(scope) => format!("pods {} in {scope}", peer.pods),
            },
        };
        format!("{:?}", peers.iter().map(peer).collect::<Vec<_>>())
    });
    let ports = rule.ports.as_ref().map_or("anything".into(), |ports| {
        let port = |port: &PolicyPort| match port {
            PolicyPort::All(transport) => transport.to_string(),
            PolicyPort::Range { transport, first, last } => format!("{transport}/{first}-{last}"),
            PolicyPort::Named { transport, name } => format!("{transport}/{name}"),
            PolicyPort::Numbers { protocols, first, last } => format!("{protocols:?}/{first}-{last}"),
        };
        format!("{:?}", ports.iter().map(port).collect::<Vec<_>>())
    });
    format!("{peers}: {ports}")
}
