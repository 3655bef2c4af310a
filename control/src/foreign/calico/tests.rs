//! Tests of the rules of meaning: each reads policies with a small cluster, and asks for verdicts on first packets.

mod names;
mod order;
mod packets;
mod selectors;
mod who;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::protocol;

use crate::foreign::resolved;
use crate::object::{
    ClusterPolicy, ClusterRule, Enforcement, IpBlock, Labels, Namespace, NamespaceScope, Object, Order, Peer, Pod,
    PodPeer, Policy, PolicyPort, RuleAction, Tier,
};
use crate::source::{ForeignKinds, Options, ServiceKinds, load_text};

/// Two namespaces, four pods, a service account with a label and one without.
const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {team: red}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: z, labels: {team: blue}}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: x}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot, namespace: x, labels: {role: machine}}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x, labels: {app: web}}
spec: {nodeName: one, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
status: {podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: x, labels: {app: db}}
spec: {nodeName: one, serviceAccountName: robot, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
status: {podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: c, namespace: z, labels: {app: web}}
spec: {nodeName: one}
status: {podIPs: [{ip: 10.0.0.3}, {ip: 'fd00::3'}]}
";

/// The pods' addresses, and one outside the cluster.
const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";
const OUTSIDE: &str = "192.0.2.1";

struct World {
    policies: Vec<ClusterPolicy>,
    own: Vec<Policy>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    pods: Vec<Pod>,
}

/// Reads [`CLUSTER`] with further documents.
fn world(documents: &str) -> World {
    let options = Options { foreign: ForeignKinds::Read, services: ServiceKinds::Read, ..Options::default() };
    let text = format!("{CLUSTER}---\n{documents}");
    let loaded = load_text("t.yaml", &text, options).unwrap_or_else(|errors| panic!("{errors}\n{documents}"));
    let mut world = World { policies: vec![], own: vec![], namespaces: BTreeMap::new(), pods: vec![] };
    for object in resolved(loaded.objects) {
        match object {
            Object::ClusterPolicy(policy) => world.policies.push(Arc::unwrap_or_clone(policy)),
            Object::Policy(policy) => world.own.push(Arc::unwrap_or_clone(policy)),
            Object::Namespace(namespace) => drop(world.namespaces.insert(namespace.name.clone(), namespace)),
            Object::Pod(pod) => world.pods.push(Arc::unwrap_or_clone(pod)),
            _ => {}
        }
    }
    world.policies.sort_by(|one, other| one.rank.cmp(&other.rank));
    world
}

/// A NetworkPolicy of a namespace, with this spec.
fn policy(name: &str, spec: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap();
    document("projectcalico.org/v3", "NetworkPolicy", &format!("{{name: {name}, namespace: {namespace}}}"), spec)
}

fn global(name: &str, spec: &str) -> String {
    document("projectcalico.org/v3", "GlobalNetworkPolicy", &format!("{{name: {name}}}"), spec)
}

fn document(version: &str, kind: &str, metadata: &str, spec: &str) -> String {
    format!("{{apiVersion: {version}, kind: {kind}, metadata: {metadata}, spec: {spec}}}\n---\n")
}

impl World {
    /// Whether a TCP packet from one address to another and to this port passes the policies at both ends.
    fn allows(&self, from: &str, to: &str, port: u16) -> bool {
        self.passes(from, to, protocol::TCP, port)
    }

    fn passes(&self, from: &str, to: &str, protocol: u8, port: u16) -> bool {
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        self.decide(false, from, to, protocol, port) && self.decide(true, to, from, protocol, port)
    }

    fn pod(&self, address: IpAddr) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.addresses.contains(&address))
    }

    /// The verdict of the policies of the pod with the address `own`.
    fn decide(&self, is_ingress: bool, own: IpAddr, other: IpAddr, protocol: u8, port: u16) -> bool {
        let Some(pod) = self.pod(own) else { return true };
        let mut tiers: BTreeMap<Tier, Vec<&ClusterPolicy>> = BTreeMap::new();
        let selecting = self.policies.iter().filter(|policy| self.selects(&policy.subject, pod));
        for policy in selecting.filter(|policy| policy.enforcement != Some(Enforcement::Audit)) {
            tiers.entry(policy.rank.tier.clone()).or_default().push(policy);
        }
        let kubernetes =
            |policy: &&Policy| policy.name.namespace == pod.name.namespace && policy.subject.matches(&pod.labels);
        let mut own_policies: Vec<_> = self.own.iter().filter(kubernetes).collect();
        own_policies.retain(|policy| if is_ingress { policy.ingress.is_some() } else { policy.egress.is_some() });
        if !own_policies.is_empty() {
            tiers.entry(Tier::NetworkPolicy).or_default();
        }
        for (tier, policies) in tiers {
            let mut isolates = false;
            let mut rules: Vec<(Order, &str, Vec<ClusterRule>)> = Vec::new();
            for policy in policies {
                isolates |= if is_ingress { policy.isolates.ingress } else { policy.isolates.egress };
                let list = if is_ingress { &policy.ingress } else { &policy.egress };
                rules.push((policy.rank.order, &policy.rank.tie, list.clone()));
            }
            for policy in own_policies.iter().filter(|_| tier == Tier::NetworkPolicy) {
                isolates = true;
                let list = if is_ingress { &policy.ingress } else { &policy.egress };
                let rule = |traffic: &crate::object::PolicyRule| {
                    let (action, traffic) = (RuleAction::Accept, traffic.clone());
                    ClusterRule { name: None, action, traffic, then: None, at: None }
                };
                rules.push((Order::NETWORK_POLICY, &policy.name.name, list.iter().flatten().map(rule).collect()));
            }
            rules.sort_by_key(|(order, tie, _)| (*order, *tie));
            let mut rules = rules.iter().flat_map(|(_, _, rules)| rules);
            let matches = |rule: &&ClusterRule| {
                let traffic = &rule.traffic;
                let is_peer = traffic.peers.as_ref().is_none_or(|peers| peers.iter().any(|peer| self.is(peer, other)));
                let to = if is_ingress { own } else { other };
                let fits = |entry: &PolicyPort| self.fits(entry, to, protocol, port);
                is_peer && traffic.ports.as_ref().is_none_or(|ports| ports.iter().any(fits))
            };
            let end = match &tier {
                Tier::Other(tier) => tier.end,
                _ => RuleAction::Deny,
            };
            match rules.find(matches).map(|rule| rule.action).or(isolates.then_some(end)) {
                Some(RuleAction::Accept) => return true,
                Some(RuleAction::Deny) => return false,
                Some(RuleAction::Pass) | None => {}
            }
        }
        true
    }

    fn selects(&self, peer: &PodPeer, pod: &Pod) -> bool {
        let namespace = self.namespaces.get(&pod.name.namespace);
        let in_scope = match &peer.namespaces {
            NamespaceScope::Own(name) => *name == pod.name.namespace,
            NamespaceScope::Selected(selector) => {
                selector.matches(&namespace.map_or_else(Labels::new, |namespace| namespace.labels.clone()))
            }
        };
        in_scope
            && peer.pods.matches(&pod.labels)
            && peer.filter.as_ref().is_none_or(|filter| filter.holds(pod, namespace))
    }

    fn is(&self, peer: &Peer, address: IpAddr) -> bool {
        match peer {
            Peer::Pods(pods) => self.pod(address).is_some_and(|pod| self.selects(pods, pod)),
            Peer::Block(IpBlock { cidr, except }) => {
                cidr.contains(&address) && !except.iter().any(|block| block.contains(&address))
            }
            Peer::Region(region) => {
                let in_any = |peers: &Vec<Peer>| peers.iter().any(|peer| self.is(peer, address));
                region.all.iter().all(in_any) && !in_any(&region.none)
            }
            Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) => panic!("{peer:?}"),
        }
    }

    fn fits(&self, entry: &PolicyPort, to: IpAddr, of: u8, number: u16) -> bool {
        match entry {
            PolicyPort::All(transport) => transport.number() == of,
            PolicyPort::Range { transport, first, last } => {
                transport.number() == of && (*first..=*last).contains(&number)
            }
            PolicyPort::Numbers { protocols, first, last } => {
                (protocols.0..=protocols.1).contains(&of) && (*first..=*last).contains(&number)
            }
            PolicyPort::Named { transport, name } => {
                let ports = self.pod(to).into_iter().flat_map(|pod| &pod.ports);
                let mut own = ports.filter(|port| port.name == *name && port.transport == *transport);
                own.any(|port| transport.number() == of && port.port == number)
            }
        }
    }
}

const DENY_ALL: &str = "{selector: 'all()', types: [Ingress]}";
