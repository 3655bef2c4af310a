//! The oracle: evaluates NetworkPolicy v1 directly on the objects, as the reference for the pipeline's tables.
//!
//! Also `extensions/v1beta1`, from its proposal, and policies that are retained in a terminating namespace.
//!
//! **Purpose.** [`State::judge`] decides for one first packet whether the cluster allows it, and which policies decide. It is slow, short,
//! and written from the specification.
//!
//! **Not its purpose.** Replies (sessions allow them), routing and tables. A pod's traffic to itself is always allowed and not judged.
//!
//! ```text
//!  flow --owners of the addresses--> pod, node or nobody
//!          source pod:      policies that select it, egress  --> no list: open; a matching rule: open; else closed
//!          destination pod: policies that select it, ingress --> the same; also isolated if its namespace isolates, and
//!                           policies of v1beta1 then allow too
//!          before: the rules of Admin cluster policies; after, if no list exists: those of Baseline.
//!                  The first matching rule decides, unless it is a Pass
//!  allowed = both sides open; the own node is exempt from NetworkPolicies
//! ```
//!
//! **Invariant.** The oracle uses the crate's object types, but not its logic: selectors, blocks, ports and endpoints are evaluated
//! independently.
#![allow(dead_code, reason = "each test file uses a part of this")]

pub(crate) mod changes;
mod ending;
mod filter;
mod tiers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyName, ISOLATION_ANNOTATION, IngressIsolation, IpBlock, Labels, Namespace,
    NamespaceScope, Node, Object, Peer, Pod, PodName, PodPeer, Policy, PolicyName, PolicyPort, PolicyRule,
    PolicyVersion, Tier, Transport,
};
use bulkhead_control::origin::Direction;
use bulkhead_control::selector::{Condition, Requirement, Selector};
use ipnet::IpNet;

/// The first packet of a connection. `port` is 0 for protocols without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    Pod(&'a Pod),
    Node(Arc<str>),
    /// No object: an external address.
    Nobody,
    /// Several owners. The verdict is undefined.
    Several,
}

/// The verdict of one end's policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The end is no pod, or no policy isolates the pod in this direction.
    NotIsolated,
    /// These rules allow the flow.
    Allowed(Vec<(PolicyName, usize)>),
    /// These policies isolate the pod, and none of their rules allows the flow.
    Denied(Vec<PolicyName>),
    /// A cluster policy's rule decides.
    Tier(tiers::Decision),
    /// The end of a tier denies the flow, because these NetworkPolicies and policies of other products isolate the pod there.
    End(Tier, Vec<PolicyName>, Vec<ClusterPolicyName>),
    /// No policy decides: the flow comes from the pod's own node, for which policies of other products do not hold, or stays in the pod.
    Exempt,
}

/// The verdict for one flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Whether the flow is between a pod and its own node, which NetworkPolicies always allow.
    pub(crate) own_node: bool,
    pub(crate) egress: Side,
    pub(crate) ingress: Side,
    /// Whether a port name decided that a rule matches.
    pub(crate) by_name: bool,
    /// The tiers that a Pass ended, by direction.
    pub(crate) passed: BTreeSet<(Tier, Direction)>,
    /// Whether a rule that denies or passes pods denied a quarantined address.
    pub(crate) by_quarantine: bool,
    /// Whether an `except` decided that a block does not match.
    pub(crate) by_except: bool,
    /// The special features that affected the verdict.
    pub(crate) parts: BTreeSet<Part>,
}

/// A special feature that affects a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The namespace's annotation isolates the pod.
    Annotation,
    /// The cluster's default for namespaces without an annotation isolates the pod.
    ClusterDefault,
    /// A policy of `extensions/v1beta1` allows the flow.
    Beta,
    /// A policy of `extensions/v1beta1` would allow the flow, but the namespace does not isolate.
    IdleBeta,
    /// A retained policy isolates the pod.
    KeptPolicy,
    /// A retained policy allows the flow.
    KeptAllow,
    /// A retained isolation isolates the pod.
    KeptIsolation,
    /// A rule matches by a domain name of the destination.
    Named,
    /// A rule matches the pod's own node.
    OwnNodePeer,
    /// An address is in a region.
    InRegion,
    /// An exclusion decided that a region does not match.
    ExcludedFromRegion,
    /// A rule matches by the protocol's number.
    Number,
    /// A further condition decided that a peer does not match.
    Filtered,
    /// A rule that denies came first because its policy forms a union.
    UnionDeny,
    /// The end of a tier passes the flow to the next tier.
    EndPasses,
    /// A NetworkPolicy's rule allows the flow, and a policy of another product stands behind it.
    BeforeForeign,
}

impl Judgement {
    /// Whether the flow is allowed.
    pub(crate) fn passes(&self) -> bool {
        let open = |side: &Side| match side {
            Side::NotIsolated | Side::Allowed(_) | Side::Exempt => true,
            Side::Denied(_) => self.own_node,
            Side::Tier(decision) => decision.accepts,
            Side::End(..) => false,
        };
        open(&self.egress) && open(&self.ingress)
    }

    /// The verdict of the destination's policies for ingress, of the source's for egress.
    pub(crate) fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The objects of a cluster, each in its latest state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) namespaces: BTreeMap<Arc<str>, Namespace>,
    pub(crate) pods: BTreeMap<PodName, Pod>,
    pub(crate) nodes: BTreeMap<Arc<str>, Node>,
    pub(crate) policies: BTreeMap<PolicyName, Policy>,
    pub(crate) cluster_policies: BTreeMap<ClusterPolicyName, ClusterPolicy>,
    /// Whether namespaces without an annotation isolate.
    pub(crate) isolates: bool,
    /// Whether every pod has learned every address's [domain name](name_of). If not, no pod has learned any.
    pub(crate) learned: bool,
    /// Retained policies and isolations.
    pub(crate) kept: ending::Kept,
}

impl State {
    pub(crate) fn of(objects: &[Object]) -> Self {
        let mut state = Self::default();
        for object in objects {
            state.apply(&Event::Apply(object.clone()));
        }
        state
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        let before = self.clone();
        self.set(event);
        self.keep(&before, event);
    }

    fn set(&mut self, event: &Event) {
        match event.clone() {
            Event::Apply(Object::Namespace(namespace)) => {
                self.namespaces.insert(namespace.name.clone(), namespace);
            }
            Event::Apply(Object::Pod(pod)) => {
                self.pods.insert(pod.name.clone(), Arc::unwrap_or_clone(pod));
            }
            Event::Apply(Object::Node(node)) => {
                self.nodes.insert(node.name.clone(), node);
            }
            Event::Apply(Object::Policy(policy)) => {
                self.policies.insert(policy.name.clone(), Arc::unwrap_or_clone(policy));
            }
            Event::Apply(Object::ClusterPolicy(policy)) => {
                self.cluster_policies.insert(policy.rank.name.clone(), Arc::unwrap_or_clone(policy));
            }
            Event::DeleteClusterPolicy(name) => drop(self.cluster_policies.remove(&name)),
            Event::DeleteNamespace(name) => drop(self.namespaces.remove(&name)),
            Event::DeletePod(name) => drop(self.pods.remove(&name)),
            Event::DeleteNode(name) => drop(self.nodes.remove(&name)),
            Event::DeletePolicy(name) => drop(self.policies.remove(&name)),
            // No policy depends on Services.
            Event::Apply(Object::Service(_) | Object::EndpointSlice(_) | Object::Foreign(_))
            | Event::DeleteService(_)
            | Event::DeleteEndpointSlice(_)
            | Event::DeleteForeign(_) => {}
        }
    }

    /// Whether a namespace isolates its pods by annotation. A namespace without an annotation or object follows the default.
    fn says_that_it_isolates(&self, namespace: &Arc<str>) -> bool {
        self.namespaces.get(namespace).is_some_and(|object| object.isolation == IngressIsolation::DefaultDeny)
            || self.isolates
    }

    /// All objects, sorted by kind and name.
    pub(crate) fn objects(&self) -> Vec<Object> {
        let namespaces = self.namespaces.values().cloned().map(Object::Namespace);
        let nodes = self.nodes.values().cloned().map(Object::Node);
        let pods = self.pods.values().cloned().map(Object::from);
        let policies = self.policies.values().cloned().map(Object::from);
        let cluster_policies = self.cluster_policies.values().cloned().map(Object::from);
        namespaces.chain(nodes).chain(pods).chain(policies).chain(cluster_policies).collect()
    }

    /// The owner of the address: a node by its object or by a running host-network pod, a running pod, or nobody. Of several pods, the one
    /// that is newer than all others.
    pub(crate) fn owner(&self, address: IpAddr) -> Owner<'_> {
        let running = || self.pods.values().filter(|pod| !pod.finished && pod.addresses.contains(&address));
        let own = self.nodes.values().filter(|node| node.addresses.contains(&address)).map(|node| &node.name);
        let shared = running().filter(|pod| pod.host_network).filter_map(|pod| pod.node.as_ref());
        let nodes: BTreeSet<&Arc<str>> = own.chain(shared).collect();
        match nodes.len() {
            0 => {}
            1 => return Owner::Node(nodes.into_iter().next().unwrap().clone()),
            _ => return Owner::Several,
        }
        let pods: Vec<&Pod> = running().filter(|pod| !pod.host_network).collect();
        let beats_all = |pod: &&&Pod| pods.iter().all(|other| other.name == pod.name || is_newer(pod, other));
        pods.iter().find(beats_all).map_or(Owner::Nobody, |pod| Owner::Pod(pod))
    }

    /// Whether running pods claim the address and none wins.
    pub(crate) fn is_quarantined(&self, address: IpAddr) -> bool {
        let mut pods = self.pods.values().filter(|pod| !pod.finished && !pod.host_network);
        self.owner(address) == Owner::Nobody && pods.any(|pod| pod.addresses.contains(&address))
    }

    /// Whether the cluster allows the flow.
    pub(crate) fn allowed(&self, flow: &Flow) -> bool {
        self.judge(flow).passes()
    }

    /// Judges the flow.
    ///
    /// # Panics
    /// If an address has several owners, or both ends have the same address: policies do not define a verdict.
    pub(crate) fn judge(&self, flow: &Flow) -> Judgement {
        let (src, dst) = (self.owner(flow.src), self.owner(flow.dst));
        assert!(src != Owner::Several && dst != Owner::Several && flow.src != flow.dst, "not to be asked: {flow:?}");
        let own_node = match (&src, &dst) {
            (Owner::Pod(pod), Owner::Node(node)) | (Owner::Node(node), Owner::Pod(pod)) => {
                pod.node.as_ref() == Some(node)
            }
            _ => false,
        };
        self.between(flow, (&src, &dst), own_node)
    }

    /// Judges a connection of a pod to itself through a Service, whose both addresses are the pod's. No NetworkPolicy forbids it, as for
    /// traffic with the own node. Source: network-policy-api #343 and #390.
    pub(crate) fn judge_hairpin(&self, flow: &Flow) -> Judgement {
        let owner = self.owner(flow.src);
        assert!(matches!(owner, Owner::Pod(_)) && flow.src == flow.dst, "not to be asked: {flow:?}");
        self.between(flow, (&owner, &owner), true)
    }

    fn between(&self, flow: &Flow, (src, dst): (&Owner<'_>, &Owner<'_>), own_node: bool) -> Judgement {
        let pod = |owner: &Owner<'_>| match owner {
            Owner::Pod(pod) => Some(self.pods.get(&pod.name).unwrap()),
            _ => None,
        };
        let mut asked = Asked {
            state: self,
            flow,
            src: pod(src),
            dst: pod(dst),
            by_name: false,
            by_except: false,
            by_quarantine: false,
            passed: BTreeSet::new(),
            parts: BTreeSet::new(),
        };
        let egress = asked.side(Direction::Egress);
        let ingress = asked.side(Direction::Ingress);
        let Asked { by_name, by_except, by_quarantine, passed, parts, .. } = asked;
        Judgement { own_node, egress, ingress, by_name, by_except, by_quarantine, passed, parts }
    }

    /// Whether a selected node has the address, by its object or a running host-network pod. The labels of a node without an object are
    /// unknown.
    fn is_of_nodes(&self, selector: &Selector, address: IpAddr) -> bool {
        let mut nodes = self.nodes.values();
        let mut pods = self.pods.values().filter(|pod| pod.host_network && !pod.finished);
        nodes.any(|node| selects(selector, &node.labels) && node.addresses.contains(&address))
            || pods.any(|pod| {
                let node = pod.node.as_ref();
                let selected = node.is_some_and(|name| match self.nodes.get(name) {
                    Some(node) => selects(selector, &node.labels),
                    None => selector.requirements().is_empty(),
                });
                selected && pod.addresses.contains(&address)
            })
    }

    /// Whether the peer selects the pod.
    fn is_selected(&self, peer: &PodPeer, pod: &Pod) -> bool {
        self.is_labelled(peer, pod) && peer.filter.as_ref().is_none_or(|filter| filter::certainty(self, filter, pod).0)
    }

    /// Whether the peer selects the pod by its labels and namespace.
    fn is_labelled(&self, peer: &PodPeer, pod: &Pod) -> bool {
        self.covers(&peer.namespaces, &pod.name.namespace) && selects(&peer.pods, &pod.labels)
    }

    /// Whether the scope covers a namespace. Of a namespace without an object, only the name is known.
    fn covers(&self, scope: &NamespaceScope, namespace: &Arc<str>) -> bool {
        match scope {
            NamespaceScope::Own(own) => own == namespace,
            NamespaceScope::Selected(selector) => match self.namespaces.get(namespace) {
                Some(object) => selects(selector, &object.labels),
                None => {
                    let known = Labels::from([("kubernetes.io/metadata.name".into(), namespace.clone())]);
                    let about_the_name = |key: &str| key == "kubernetes.io/metadata.name";
                    selector.requirements().iter().all(|requirement| about_the_name(&requirement.key))
                        && selects(selector, &known)
                }
            },
        }
    }
}

/// Returns the domain name under which pods have learned an address, by the address's last byte. `None` for a third of all addresses.
pub(crate) fn name_of(address: IpAddr) -> Option<&'static str> {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    ["www.example.com", "a.b.example.org"].get(usize::from(last % 3)).copied()
}

/// Whether a pattern of domain names matches a name. Both are in lower case and without a final dot.
fn is_named(pattern: &str, name: &str) -> bool {
    let labels = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (pattern, name) = (labels(pattern), labels(name));
    match pattern.split_first() {
        Some((star, below)) if star == "*" => name.len() > below.len() && name.ends_with(below),
        _ => pattern == name,
    }
}

/// Whether the first of two pods with one address has it.
fn is_newer(one: &Pod, other: &Pod) -> bool {
    let (one, other) = (one.lifetime, other.lifetime);
    if one.terminating != other.terminating {
        return other.terminating;
    }
    if one.running != other.running {
        return one.running;
    }
    for times in [(one.started, other.started), (one.created, other.created)] {
        if let (Some(one), Some(other)) = times
            && one != other
        {
            return one > other;
        }
    }
    false
}

/// A flow that is being judged, with its ends' owners.
struct Asked<'a> {
    state: &'a State,
    flow: &'a Flow,
    src: Option<&'a Pod>,
    dst: Option<&'a Pod>,
    by_name: bool,
    by_except: bool,
    by_quarantine: bool,
    passed: BTreeSet<(Tier, Direction)>,
    parts: BTreeSet<Part>,
}

impl Asked<'_> {
    fn side(&mut self, direction: Direction) -> Side {
        let subject = match direction {
            Direction::Ingress => self.dst,
            Direction::Egress => self.src,
        };
        let Some(subject) = subject else { return Side::NotIsolated };
        if self.has_foreign(subject, direction) {
            return self.foreign_side(subject, direction);
        }
        if let Some(decision) = self.tier(&Tier::Admin, subject, direction) {
            return Side::Tier(decision);
        }
        let (isolating, allowing) = self.network_policies(subject, direction);
        match (isolating.is_empty(), allowing.is_empty()) {
            (true, _) => self.tier(&Tier::Baseline, subject, direction).map_or(Side::NotIsolated, Side::Tier),
            (false, false) => Side::Allowed(allowing),
            (false, true) => Side::Denied(isolating),
        }
    }

    /// The NetworkPolicies that isolate a pod, and those of their rules that allow the flow.
    fn network_policies(&mut self, subject: &Pod, direction: Direction) -> (Vec<PolicyName>, Vec<(PolicyName, usize)>) {
        let namespace_isolates = direction == Direction::Ingress && self.namespace_isolates(subject);
        let (mut isolating, mut allowing) = (Vec::new(), Vec::new());
        let kept = self.state.kept.policies.values().map(|policy| (policy, true));
        for (policy, kept) in self.state.policies.values().map(|policy| (policy, false)).chain(kept) {
            if policy.name.namespace != subject.name.namespace || !selects(&policy.subject, &subject.labels) {
                continue;
            }
            let Some(rules) = list(policy, direction) else { continue };
            // In `extensions/v1beta1`, a policy isolates no pod, and has no effect if the namespace does not isolate.
            let beta = policy.version == PolicyVersion::V1beta1;
            if !beta {
                isolating.push(policy.name.clone());
                self.part(Part::KeptPolicy, kept);
            }
            for (at, rule) in rules.iter().enumerate() {
                if self.matches(rule, direction) {
                    self.part(Part::IdleBeta, beta && !namespace_isolates);
                    if beta && !namespace_isolates {
                        continue;
                    }
                    self.part(Part::Beta, beta);
                    self.part(Part::KeptAllow, kept);
                    allowing.push((policy.name.clone(), at));
                }
            }
        }
        if namespace_isolates {
            isolating.push(PolicyName::new(subject.name.namespace.clone(), ISOLATION_ANNOTATION));
        }
        isolating.sort();
        (isolating, allowing)
    }

    fn part(&mut self, part: Part, has: bool) {
        if has {
            self.parts.insert(part);
        }
    }

    fn namespace_isolates(&mut self, subject: &Pod) -> bool {
        let namespace = &subject.name.namespace;
        let object = self.state.namespaces.get(namespace);
        let annotated = object.is_some_and(|object| object.isolation == IngressIsolation::DefaultDeny);
        let kept = self.state.kept.isolations.contains(namespace);
        self.part(Part::Annotation, annotated);
        self.part(Part::ClusterDefault, !annotated && self.state.isolates);
        self.part(Part::KeptIsolation, kept);
        annotated || self.state.isolates || kept
    }

    fn matches(&mut self, rule: &PolicyRule, direction: Direction) -> bool {
        let peers = match &rule.peers {
            None => true,
            Some(peers) => peers.iter().any(|peer| self.is_peer(peer, direction)),
        };
        let Some(ports) = &rule.ports else { return peers };
        peers && ports.iter().any(|port| self.port(port))
    }

    /// Whether the peer matches the other end of the flow.
    fn is_peer(&mut self, peer: &Peer, direction: Direction) -> bool {
        let (address, pod) = match direction {
            Direction::Ingress => (self.flow.src, self.src),
            Direction::Egress => (self.flow.dst, self.dst),
        };
        match peer {
            Peer::Pods(peer) => pod.is_some_and(|pod| {
                let is_selected = self.state.is_selected(peer, pod);
                self.part(Part::Filtered, !is_selected && self.state.is_labelled(peer, pod));
                is_selected
            }),
            Peer::Nodes(selector) => self.state.is_of_nodes(selector, address),
            Peer::OwnNode => {
                let is_own = self.is_own_node(direction);
                self.part(Part::OwnNodePeer, is_own);
                is_own
            }
            // A pod's own address is never named: its policies do not judge what stays in it.
            Peer::Names(names) => {
                let name = name_of(address).filter(|_| self.state.learned && self.flow.src != self.flow.dst);
                let is_named = name.is_some_and(|name| names.iter().any(|pattern| is_named(pattern, name)));
                self.part(Part::Named, is_named);
                is_named
            }
            Peer::Block(block) => {
                let (inside, excepted) = in_block(block, address);
                self.by_except |= inside && excepted;
                inside && !excepted
            }
            Peer::Region(region) => {
                let inside = region.all.iter().all(|union| union.iter().any(|peer| self.is_peer(peer, direction)));
                // A contested address may be an excluded pod's.
                let may_be_excluded =
                    region.none.iter().any(|peer| matches!(peer, Peer::Pods(_))) && self.state.is_quarantined(address);
                let outside = may_be_excluded || region.none.iter().any(|peer| self.is_peer(peer, direction));
                self.part(Part::InRegion, inside && !outside);
                self.part(Part::ExcludedFromRegion, inside && outside);
                inside && !outside
            }
        }
    }

    /// Whether the other end of the flow is the node of the pod whose policies are asked.
    fn is_own_node(&self, direction: Direction) -> bool {
        let (subject, other) = match direction {
            Direction::Ingress => (self.dst, self.flow.src),
            Direction::Egress => (self.src, self.flow.dst),
        };
        let own = subject.and_then(|pod| pod.node.clone()).map(Owner::Node);
        own.is_some_and(|own| self.state.owner(other) == own)
    }

    fn port(&mut self, port: &PolicyPort) -> bool {
        let Flow { protocol, port: number, .. } = *self.flow;
        match port {
            PolicyPort::All(transport) => number_of(*transport) == protocol,
            PolicyPort::Range { transport, first, last } => {
                number_of(*transport) == protocol && (*first..=*last).contains(&number)
            }
            PolicyPort::Numbers { protocols: (low, high), first, last } => {
                let hit = (*low..=*high).contains(&protocol) && (*first..=*last).contains(&number);
                self.part(Part::Number, hit);
                hit
            }
            PolicyPort::Named { transport, name } => {
                let declares = self.dst.is_some_and(|pod| {
                    let mut ports = pod.ports.iter();
                    ports.any(|p| p.name == *name && p.transport == *transport && p.port == number)
                });
                let hit = declares && number_of(*transport) == protocol;
                self.by_name |= hit;
                hit
            }
        }
    }
}

fn list(policy: &Policy, direction: Direction) -> Option<&Vec<PolicyRule>> {
    match direction {
        Direction::Ingress => policy.ingress.as_ref(),
        Direction::Egress => policy.egress.as_ref(),
    }
}

pub(crate) fn selects(selector: &Selector, labels: &Labels) -> bool {
    selector.requirements().iter().all(|requirement| meets(requirement, labels))
}

fn meets(requirement: &Requirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    match (&requirement.condition, value) {
        (Condition::In(values), Some(value)) => values.iter().any(|one| one == value),
        (Condition::NotIn(values), Some(value)) => values.iter().all(|one| one != value),
        (Condition::Exists, Some(_)) | (Condition::NotIn(_) | Condition::DoesNotExist, None) => true,
        (Condition::Contains(text), Some(value)) => value.contains(&**text),
        (Condition::StartsWith(text), Some(value)) => value.starts_with(&**text),
        (Condition::EndsWith(text), Some(value)) => value.ends_with(&**text),
        (Condition::DoesNotExist, Some(_))
        | (
            Condition::In(_)
            | Condition::Exists
            | Condition::Contains(_)
            | Condition::StartsWith(_)
            | Condition::EndsWith(_),
            None,
        ) => false,
    }
}

/// Whether the address is in the block's `cidr`, and whether it is in an `except`.
fn in_block(block: &IpBlock, address: IpAddr) -> (bool, bool) {
    (in_prefix(&block.cidr, address), block.except.iter().any(|except| in_prefix(except, address)))
}

fn in_prefix(prefix: &IpNet, address: IpAddr) -> bool {
    let (network, address, width) = match (prefix.addr(), address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => (u128::from(network.to_bits()), address.to_bits().into(), 32),
        (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
        _ => return false,
    };
    let free = width - u32::from(prefix.prefix_len());
    free == 128 || network >> free == address >> free
}

/// The protocol's number. Source: IANA "Assigned Internet Protocol Numbers".
pub(crate) fn number_of(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
        Transport::Sctp => 132,
    }
}
