//! Turns contacts that the state denies or does not cover into rules, as short as exactness allows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Pod, PolicyName, Tier, Transport};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::{Decision, Protocol, Reachability, Verdict};
use ipnet::IpNet;

use super::Wanted;
use super::evidence::{Contact, EdgeEnd, Evidence, Wants, edge_end};
use super::names::{self, Outside};
use super::policy::{ByName, LearnedPolicy, Peer, PortName, PortNames, Rule};
use super::workload::{Workload, Workloads};
use crate::args::Learned;
use crate::flows::ResolvedNames;

/// DNS port. Resolvers use UDP, and TCP for long answers (RFC 7766).
const DNS: u16 = 53;

/// Maximum number of blocks of a rule to try to merge: the search is quadratic.
const MAX_JOINED: usize = 256;

/// What a workload needs.
#[derive(Default)]
struct Needs<'a> {
    wants: BTreeMap<&'static str, Wants>,
    /// The domain names that its pods had resolved to its destinations.
    names: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Its connections to the outside.
    outside: Vec<Outside<'a>>,
}

/// Returns the policies that the contacts still need.
pub(super) fn learned(
    evidence: &Evidence,
    before: &Reachability,
    pipeline: &Pipeline,
    workloads: &Workloads,
    wanted: &Wanted,
) -> Vec<LearnedPolicy> {
    let mut sides: BTreeMap<usize, Needs<'_>> = BTreeMap::new();
    for (&(from, to, transport, port), contact) in &evidence.contacts {
        // A pod and its own node can always talk, so this must not isolate the pod.
        if before.is_own_node(from, to) {
            continue;
        }
        let verdicts = contact.names.iter().filter_map(|names| before.between_by_name(from, to, names.set()));
        let verdicts: Vec<Verdict> = verdicts.map(|all| *all.at(Protocol::from(transport), port)).collect();
        for direction in [Direction::Ingress, Direction::Egress] {
            type Deciding = fn(&Verdict) -> Decision;
            let (subject, peer, decision): (_, _, Deciding) = match direction {
                Direction::Ingress => (&contact.to, &contact.from, |verdict| verdict.ingress),
                Direction::Egress => (&contact.from, &contact.to, |verdict| verdict.egress),
            };
            let EdgeEnd::Workload(subject) = edge_end(subject, workloads) else { continue };
            if wanted.covers(&workloads.all[subject])
                && is_asked(direction, wanted.direction, contact)
                && verdicts.iter().any(|verdict| is_missing(pipeline, decision(verdict)))
            {
                let side = sides.entry(subject).or_default();
                let wants = side.wants.entry(direction.name()).or_default();
                wants.entry(edge_end(peer, workloads)).or_default().insert((transport, port));
                if direction == Direction::Egress {
                    let names = contact.names.iter().flat_map(ResolvedNames::set).cloned();
                    side.names.entry(to).or_default().extend(names);
                    side.outside.extend(Outside::of(contact, (transport, port)));
                }
            }
        }
    }
    let (cache, mut slack, mut taken) = (pipeline.cache(), wanted.slack, BTreeSet::new());
    let by_name = names::priority(cache).zip(pipeline.mirror());
    let policy = |(at, Needs { mut wants, names, outside }): (usize, Needs<'_>)| {
        let workload = &workloads.all[at];
        let egress = wants.get_mut(Direction::Egress.name());
        let by_name = by_name.zip(egress).and_then(|((priority, mirror), wants)| {
            let rules = names::take(workload, &outside, mirror, wants);
            (!rules.is_empty()).then(|| ByName {
                name: free_cluster_name(cache, workload, &mut taken),
                priority,
                rules,
            })
        });
        let rules = wants.into_iter().map(|(direction, wants)| {
            (direction, rules(direction == Direction::Ingress.name(), at, wants, workloads, &mut slack))
        });
        let rules = rules.collect();
        LearnedPolicy { workload: at, rules, names, by_name, name: free_name(cache, workload) }
    };
    sides.into_iter().map(policy).collect()
}

fn is_asked(direction: Direction, wanted: Learned, contact: &Contact) -> bool {
    match direction {
        Direction::Ingress => wanted != Learned::Egress && !contact.is_departure,
        Direction::Egress => wanted != Learned::Ingress,
    }
}

/// Whether a rule must be learned for this decision. NetworkPolicies cannot override the Admin tier, and what an existing policy allows
/// needs no rule.
fn is_missing(pipeline: &Pipeline, decision: Decision) -> bool {
    let origin = decision.origin.and_then(|origin| pipeline.origins().get(origin));
    match origin {
        Some(Origin::ClusterPolicy { tier, .. }) => *tier != Tier::Admin,
        Some(Origin::OwnNode | Origin::OwnPod) => false,
        Some(Origin::Policy { .. }) => !decision.allowed,
        Some(Origin::Isolation { .. } | Origin::NotIsolated(_)) | None => true,
    }
}

fn free_name(cache: &Cache, workload: &Workload) -> String {
    free(format!("learned-{}", workload.name), |name| {
        !cache.policies().contains_key(&PolicyName::new(workload.namespace.clone(), name))
    })
}

/// Returns a name for a cluster policy that neither the state nor `taken` has, and adds it to `taken`.
fn free_cluster_name(cache: &Cache, workload: &Workload, taken: &mut BTreeSet<String>) -> String {
    let known: BTreeSet<&str> = cache.cluster_policies().keys().map(|of| &*of.name).collect();
    let stem = format!("learned-{}-{}", workload.namespace, workload.name);
    let name = free(stem, |name| !known.contains(name) && !taken.contains(name));
    taken.insert(name.clone());
    name
}

/// Returns the stem, or the stem with the first number from 2 on, that is free.
fn free(stem: String, is_free: impl Fn(&str) -> bool) -> String {
    let mut names = std::iter::once(stem.clone()).chain((2u32..).map(|n| format!("{stem}-{n}")));
    names.find(|name| is_free(name)).unwrap_or(stem)
}

fn rules(is_ingress: bool, subject: usize, mut wants: Wants, workloads: &Workloads, slack: &mut u64) -> Vec<Rule> {
    for (&peer, ports) in &mut wants {
        let server = if is_ingress { EdgeEnd::Workload(subject) } else { peer };
        let is_dns = matches!(server, EdgeEnd::Workload(at) if is_cluster_dns(&workloads.all[at]));
        if is_dns && ports.iter().any(|&(_, port)| port == DNS) {
            ports.extend([(Transport::Udp, DNS), (Transport::Tcp, DNS)]);
        }
    }
    let mut by_ports: BTreeMap<PortNames, Vec<Peer>> = BTreeMap::new();
    let mut addresses: BTreeMap<PortNames, BTreeSet<IpAddr>> = BTreeMap::new();
    for (peer, ports) in wants {
        let server = if is_ingress { Some(subject) } else { None };
        match peer {
            EdgeEnd::Workload(at) => {
                let pods = &workloads.all[server.unwrap_or(at)].pods;
                by_ports.entry(named(&ports, pods)).or_default().push(Peer::Workload(at));
            }
            EdgeEnd::Address(address) => {
                let pods = server.map_or(&[][..], |at| &workloads.all[at].pods);
                addresses.entry(named(&ports, pods)).or_default().insert(address);
            }
        }
    }
    for (ports, addresses) in addresses {
        let blocks = joined(&addresses, ports.len() as u64, workloads, slack);
        by_ports.entry(ports).or_default().extend(blocks.into_iter().map(Peer::Block));
    }
    let mut rules: Vec<Rule> = by_ports.into_iter().map(|(ports, peers)| Rule { peers, ports }).collect();
    rules.sort_by(|a, b| (&a.peers, &a.ports).cmp(&(&b.peers, &b.ports)));
    rules
}

fn is_cluster_dns(workload: &Workload) -> bool {
    let labels = workload.pods.first().map(|pod| &pod.labels);
    &*workload.namespace == "kube-system"
        && labels.and_then(|labels| labels.get("k8s-app")).is_some_and(|value| &**value == "kube-dns")
}

/// Returns the ports, by name if all serving pods declare the same name, else by number.
fn named(ports: &BTreeSet<(Transport, u16)>, pods: &[Arc<Pod>]) -> PortNames {
    let name = |&(transport, port): &(Transport, u16)| {
        let name = pods.first().filter(|_| port != DNS).and_then(|first| {
            let mut names: Vec<&Arc<str>> = first
                .ports
                .iter()
                .filter(|declared| (declared.transport, declared.port) == (transport, port))
                .map(|declared| &declared.name)
                .collect();
            names.sort_unstable();
            names.into_iter().find(|name| pods.iter().all(|pod| means(pod, name, transport, port)))
        });
        (transport, name.map_or(PortName::Number(port), |name| PortName::Name(name.clone())))
    };
    ports.iter().map(name).collect()
}

/// Whether the pod uses this name for this port only.
fn means(pod: &Pod, name: &Arc<str>, transport: Transport, port: u16) -> bool {
    let mut numbers =
        pod.ports.iter().filter(|of| of.name == *name && of.transport == transport).map(|of| of.port).peekable();
    numbers.peek().is_some() && numbers.all(|number| number == port)
}

/// Returns blocks that cover exactly these addresses, or more if `slack` allows the additional (address, port) pairs. No block contains a
/// pod's address.
fn joined(addresses: &BTreeSet<IpAddr>, ports: u64, workloads: &Workloads, slack: &mut u64) -> Vec<IpNet> {
    let mut blocks = IpNet::aggregate(&addresses.iter().map(|&address| IpNet::from(address)).collect());
    blocks.sort_unstable();
    while *slack > 0 && blocks.len() <= MAX_JOINED {
        let mut best: Option<(u64, IpNet)> = None;
        // In address order, the cheapest partner is a neighbour.
        for pair in blocks.windows(2) {
            let Some(block) = around(pair[0], pair[1]) else { continue };
            let held: u128 = blocks.iter().filter(|inner| block.contains(*inner)).map(size).sum();
            let added = (size(&block) - held).saturating_mul(u128::from(ports));
            let Ok(added) = u64::try_from(added) else { continue };
            if added <= *slack && best.is_none_or(|(least, _)| added < least) && !workloads.any_in(&block) {
                best = Some((added, block));
            }
        }
        let Some((added, block)) = best else { break };
        *slack -= added;
        blocks.retain(|inner| !block.contains(inner));
        blocks.push(block);
        blocks.sort_unstable();
    }
    blocks
}

fn size(block: &IpNet) -> u128 {
    let bits = u32::from(block.max_prefix_len() - block.prefix_len());
    1u128.checked_shl(bits).unwrap_or(u128::MAX)
}

/// Returns the smallest block that contains both. `None` if they have different families.
fn around(one: IpNet, other: IpNet) -> Option<IpNet> {
    let mut block = one;
    while !block.contains(&other) {
        block = block.supernet()?;
    }
    Some(block.trunc())
}
