//! A model of Cilium's policies.
//!
//! Per packet and direction: a rule of any policy that denies wins, then one that allows, also of Kubernetes' NetworkPolicies; else the
//! default, which is Deny if a policy isolates the pod.

mod document;
mod entry;
mod random;

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::kubernetes::Kubernetes;
use super::labels::{LabelSelector, Labels};
use super::world::{Direction, Owner, Packet, Pod, World};
use super::{Policies, Trace};

/// A CiliumNetworkPolicy, or a CiliumClusterwideNetworkPolicy if it has no namespace.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: String,
    /// One: `spec`. Several: `specs`.
    pub(crate) specs: Vec<Spec>,
}

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) subject: LabelSelector,
    /// `enableDefaultDeny` for ingress and egress.
    pub(crate) default_deny: (Option<bool>, Option<bool>),
    /// `None`: the section is absent.
    pub(crate) ingress: Option<Vec<Entry>>,
    pub(crate) ingress_deny: Option<Vec<Entry>>,
    pub(crate) egress: Option<Vec<Entry>>,
    pub(crate) egress_deny: Option<Vec<Entry>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) peers: Peers,
    pub(crate) ports: Vec<Port>,
    pub(crate) icmps: Vec<Icmp>,
    /// The ports have HTTP rules.
    pub(crate) has_http: bool,
}

/// The peer field of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Peers {
    /// No peer field.
    Absent,
    Endpoints(Vec<LabelSelector>),
    Cidr(Vec<IpNet>),
    CidrSet(Vec<CidrRule>),
    Entities(Vec<&'static str>),
    /// Only of egress entries.
    Services(Vec<ServicePeer>),
}

#[derive(Clone, Debug)]
pub(crate) struct CidrRule {
    pub(crate) of: CidrSource,
    pub(crate) except: Vec<IpNet>,
}

#[derive(Clone, Debug)]
pub(crate) enum CidrSource {
    Cidr(IpNet),
    /// `cidrGroupRef`
    Group(String),
    /// `cidrGroupSelector`
    Groups(LabelSelector),
}

#[derive(Clone, Debug)]
pub(crate) enum ServicePeer {
    Named {
        namespace: &'static str,
        name: &'static str,
    },
    /// Services by their labels, of one namespace or of all.
    Selected {
        namespace: Option<&'static str>,
        selector: LabelSelector,
    },
}

/// An element of `toPorts`.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    /// The last port is that of `endPort`. The first one 0: all ports. No protocol: TCP, UDP and SCTP.
    Range {
        protocol: Option<u8>,
        first: u16,
        last: u16,
    },
    Named {
        protocol: Option<u8>,
        name: &'static str,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Icmp {
    pub(crate) is_ipv6: bool,
    pub(crate) kind: u8,
    /// Written by name.
    pub(crate) name: Option<&'static str>,
}

/// A CiliumCIDRGroup.
#[derive(Clone, Debug)]
pub(crate) struct CidrGroup {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) cidrs: Vec<IpNet>,
}

/// The policies of a cluster with Cilium.
#[derive(Clone, Debug)]
pub(crate) struct Cilium {
    pub(crate) policies: Vec<Policy>,
    pub(crate) groups: Vec<CidrGroup>,
    pub(crate) kubernetes: Kubernetes,
}

const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";

/// The key of a label without its source.
fn bare(key: &str) -> &str {
    key.strip_prefix("k8s:").or_else(|| key.strip_prefix("any:")).unwrap_or(key)
}

/// The value of a label of a pod's identity.
fn label<'a>(world: &'a World, pod: &'a Pod, key: &str) -> Option<&'a str> {
    match bare(key) {
        NAMESPACE => Some(pod.namespace),
        "io.cilium.k8s.policy.serviceaccount" => Some(&pod.account),
        "io.cilium.k8s.policy.cluster" => Some("default"),
        key => match key.strip_prefix(NAMESPACE_LABELS) {
            Some(key) => world.labels_of_namespace(pod.namespace).get(key).map(String::as_str),
            None => pod.labels.get(key).map(String::as_str),
        },
    }
}

fn is_outside(world: &World, address: IpAddr) -> bool {
    matches!(world.owner(address), Owner::Outside)
}

impl Spec {
    fn section(&self, direction: Direction, denies: bool) -> &[Entry] {
        let section = match (direction, denies) {
            (Direction::Ingress, false) => &self.ingress,
            (Direction::Ingress, true) => &self.ingress_deny,
            (Direction::Egress, false) => &self.egress,
            (Direction::Egress, true) => &self.egress_deny,
        };
        section.as_deref().unwrap_or_default()
    }

    fn sections(&self) -> [&Option<Vec<Entry>>; 4] {
        [&self.ingress, &self.ingress_deny, &self.egress, &self.egress_deny]
    }

    fn sections_mut(&mut self) -> [&mut Option<Vec<Entry>>; 4] {
        [&mut self.ingress, &mut self.ingress_deny, &mut self.egress, &mut self.egress_deny]
    }

    fn has_entries(&self, direction: Direction) -> bool {
        [false, true].into_iter().any(|denies| !self.section(direction, denies).is_empty())
    }

    fn isolates(&self, direction: Direction) -> bool {
        let default_deny = match direction {
            Direction::Ingress => self.default_deny.0,
            Direction::Egress => self.default_deny.1,
        };
        self.has_entries(direction) && default_deny != Some(false)
    }
}

impl Policy {
    fn selects(&self, spec: &Spec, world: &World, pod: &Pod) -> bool {
        let here = self.namespace.is_none_or(|own| own == pod.namespace);
        here && spec.subject.matches(|key| label(world, pod, key))
    }

    /// Whether a selector of `fromEndpoints` or `toEndpoints` matches a pod.
    fn selects_peer(&self, selector: &LabelSelector, world: &World, pod: &Pod) -> bool {
        let here = match self.namespace {
            Some(own) if !self.is_free(selector) => own == pod.namespace,
            _ => true,
        };
        here && selector.matches(|key| label(world, pod, key))
    }

    /// Whether such a selector matches what is no pod, and has none of the labels. The limit to a namespace, or cluster-wide to endpoints
    /// with one, is a label that must exist.
    fn selects_others(&self, selector: &LabelSelector) -> bool {
        self.is_free(selector) && selector.matches(|_| None)
    }

    /// Whether such a selector lifts the limit to a namespace.
    fn is_free(&self, selector: &LabelSelector) -> bool {
        let is_label = |key: &str| self.namespace.is_some() && bare(key).starts_with(NAMESPACE_LABELS);
        selector.names(|key| bare(key) == NAMESPACE || is_label(key))
    }
}

/// The pod whose policies decide about a packet, and the direction.
#[derive(Clone, Copy)]
struct Side<'a> {
    pod: &'a Pod,
    direction: Direction,
}

impl Cilium {
    /// The specs with entries for a direction that select a pod, each with its policy.
    fn of_pod(&self, world: &World, side: Side<'_>) -> Vec<(&Policy, &Spec)> {
        let all = self.policies.iter().flat_map(|policy| policy.specs.iter().map(move |spec| (policy, spec)));
        all.filter(|(policy, spec)| spec.has_entries(side.direction) && policy.selects(spec, world, side.pod)).collect()
    }
}

impl Policies for Cilium {
    fn documents(&self) -> Vec<Value> {
        let mut all: Vec<Value> = self.groups.iter().map(CidrGroup::document).collect();
        all.extend(self.policies.iter().map(Policy::document));
        all.extend(self.kubernetes.documents());
        all
    }

    fn decide(&self, world: &World, pod: &Pod, direction: Direction, packet: &Packet, trace: &mut Trace) -> bool {
        let side = Side { pod, direction };
        let specs = self.of_pod(world, side);
        if specs.is_empty() {
            return self.kubernetes.decide(world, pod, direction, packet, trace);
        }
        if direction == Direction::Ingress && world.is_own_node(pod, packet.src) {
            trace.insert("from the own node");
            return true;
        }
        if let Some(accepts) = self.kubernetes.decide_in_tier(world, true, (pod, direction), packet, trace) {
            return accepts;
        }
        let hit = |denies: bool, trace: &mut Trace| {
            specs.iter().any(|(policy, spec)| {
                let mut entries = spec.section(direction, denies).iter();
                let hit = entries.any(|entry| self.matches(policy, entry, world, side, packet, trace));
                if hit && policy.specs.len() > 1 {
                    trace.insert("specs");
                }
                hit
            })
        };
        let isolating: Vec<_> =
            self.kubernetes.policies.iter().filter(|policy| policy.isolates(pod, direction)).collect();
        if hit(true, trace) {
            trace.insert("denied by an entry");
            if hit(false, &mut Trace::new()) {
                trace.insert("deny before allow");
            }
            return false;
        }
        if hit(false, trace) {
            trace.insert("allowed by an entry");
            return true;
        }
        if isolating.iter().any(|policy| policy.allows(world, direction, packet)) {
            trace.insert("allowed by a NetworkPolicy of Kubernetes");
            return true;
        }
        if specs.iter().any(|(_, spec)| spec.isolates(direction)) {
            trace.insert("denied by default");
            let is_lone = |entry: &Entry| matches!(entry.peers, Peers::Absent) && entry.ports.is_empty();
            let mut entries = specs.iter().flat_map(|(_, spec)| spec.section(direction, false));
            if entries.any(|entry| is_lone(entry) && entry.icmps.is_empty()) {
                trace.insert("entry without fields");
            }
            return false;
        }
        if !isolating.is_empty() {
            trace.insert("denied by default of Kubernetes alone");
            return false;
        }
        trace.insert("enableDefaultDeny: false");
        self.kubernetes.decide_in_tier(world, false, (pod, direction), packet, trace).unwrap_or(true)
    }

    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for at in 0..self.policies.len() {
            let mut less = self.clone();
            less.policies.remove(at);
            all.push(less);
        }
        for (at, policy) in self.policies.iter().enumerate() {
            for spec in 0..policy.specs.len() {
                if policy.specs.len() > 1 {
                    let mut less = self.clone();
                    less.policies[at].specs.remove(spec);
                    all.push(less);
                }
                for section in 0..4 {
                    for entry in 0..policy.specs[spec].sections()[section].as_ref().map_or(0, Vec::len) {
                        let mut less = self.clone();
                        let list = &mut less.policies[at].specs[spec].sections_mut()[section];
                        list.as_mut().unwrap().remove(entry);
                        all.push(less);
                    }
                }
            }
        }
        for at in 0..self.groups.len() {
            let mut less = self.clone();
            less.groups.remove(at);
            all.push(less);
        }
        all.extend(self.kubernetes.smaller().into_iter().map(|kubernetes| Self { kubernetes, ..self.clone() }));
        all
    }
}

pub(crate) use self::random::FEATURES;
