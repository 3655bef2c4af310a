//! A model of Calico's policies, after its felix and libcalico-go.
//!
//! Per packet and direction: the tiers in order; in a tier the policies that select the pod, in order; in a policy its rules, in order.

mod document;
mod entity;
mod random;
mod selector;
mod tiers;

use ipnet::IpNet;
use serde_json::Value;

use self::selector::Selector;
use self::tiers::{Member, is_of_kubernetes};
use super::kubernetes::{self, Kubernetes};
use super::labels::Labels;
use super::world::{Direction, ICMP, ICMPV6, Packet, Pod, World};
use super::{Policies, Trace};

/// A Tier object.
#[derive(Clone, Debug)]
pub(crate) struct Tier {
    pub(crate) name: &'static str,
    pub(crate) order: Option<f64>,
    /// The default action is Pass instead of Deny.
    pub(crate) passes: Option<bool>,
}

/// A NetworkSet, or a GlobalNetworkSet if it has no namespace.
#[derive(Clone, Debug)]
pub(crate) struct NetworkSet {
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) nets: Vec<IpNet>,
}

/// A NetworkPolicy, or a GlobalNetworkPolicy if it has no namespace, or one of their staged kinds.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: String,
    pub(crate) is_staged: bool,
    /// Written to `crd.projectcalico.org/v1`, where no server sets defaults.
    pub(crate) is_raw: bool,
    pub(crate) tier: Option<&'static str>,
    pub(crate) order: Option<f64>,
    pub(crate) selector: Option<Selector>,
    /// Only of a GlobalNetworkPolicy.
    pub(crate) namespace_selector: Option<Selector>,
    pub(crate) account_selector: Option<Selector>,
    /// Ingress and egress.
    pub(crate) types: Option<(bool, bool)>,
    pub(crate) ingress: Vec<Rule>,
    pub(crate) egress: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    Deny,
    Pass,
    Log,
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) action: Action,
    /// 4 or 6.
    pub(crate) ip_version: Option<u8>,
    pub(crate) protocol: Option<u8>,
    pub(crate) not_protocol: Option<u8>,
    /// Type and code of ICMP. `protocol` is one of the two ICMPs.
    pub(crate) icmp: Option<(u8, Option<u8>)>,
    pub(crate) not_icmp: Option<(u8, Option<u8>)>,
    /// The other end.
    pub(crate) peer: Entity,
    /// The policy's own end. Without nets and Service.
    pub(crate) own: Entity,
    /// Ports of the destination, which is the peer in egress rules.
    pub(crate) ports: Vec<Port>,
    pub(crate) not_ports: Vec<Port>,
}

#[derive(Clone, Debug)]
pub(crate) enum Port {
    Range(u16, u16),
    Named(&'static str),
}

/// The conditions of a rule about one end of the traffic. All that are present must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entity {
    pub(crate) nets: Vec<IpNet>,
    pub(crate) not_nets: Vec<IpNet>,
    pub(crate) selector: Option<Selector>,
    pub(crate) not_selector: Option<Selector>,
    pub(crate) namespaces: Option<Namespaces>,
    pub(crate) accounts: Option<Accounts>,
    /// Namespace and name of a Service.
    pub(crate) service: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Namespaces {
    Selected(Selector),
    /// `global()`
    Global,
}

#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    pub(crate) names: Vec<String>,
    pub(crate) selector: Option<Selector>,
}

/// The policies and network sets of a cluster with Calico.
#[derive(Clone, Debug)]
pub(crate) struct Calico {
    pub(crate) tiers: Vec<Tier>,
    pub(crate) sets: Vec<NetworkSet>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) kubernetes: Kubernetes,
}

/// The labels of an endpoint: those of the pod, of its namespace and service account, and Calico's own.
pub(crate) fn labels_of_pod(world: &World, pod: &Pod) -> Labels {
    let mut labels = pod.labels.clone();
    labels.insert("projectcalico.org/namespace".into(), pod.namespace.into());
    labels.insert("projectcalico.org/orchestrator".into(), "k8s".into());
    labels.insert("projectcalico.org/serviceaccount".into(), pod.account.clone());
    add_namespace(world, pod.namespace, &mut labels);
    if let Some(account) = world.labels_of_account(pod) {
        labels.extend(account.iter().map(|(key, value)| (format!("pcsa.{key}"), value.clone())));
        labels.insert("pcsa.projectcalico.org/name".into(), pod.account.clone());
    }
    labels
}

fn add_namespace(world: &World, namespace: &str, labels: &mut Labels) {
    let of_namespace = world.labels_of_namespace(namespace);
    labels.extend(of_namespace.iter().map(|(key, value)| (format!("pcns.{key}"), value.clone())));
    labels.insert("pcns.projectcalico.org/name".into(), namespace.into());
}

impl NetworkSet {
    fn labels(&self, world: &World) -> Labels {
        let mut labels = self.labels.clone();
        if let Some(namespace) = self.namespace {
            labels.insert("projectcalico.org/namespace".into(), namespace.into());
            add_namespace(world, namespace, &mut labels);
        }
        labels
    }
}

impl Policy {
    fn rules(&self, direction: Direction) -> &[Rule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Whether the policy applies to the direction.
    fn governs(&self, direction: Direction) -> bool {
        let (ingress, egress) = match (self.types, self.is_raw) {
            (Some(types), _) => types,
            (None, true) => (true, true),
            (None, false) if self.egress.is_empty() => (true, false),
            (None, false) => (!self.ingress.is_empty(), true),
        };
        match direction {
            Direction::Ingress => ingress,
            Direction::Egress => egress,
        }
    }

    fn selects(&self, labels: &Labels) -> bool {
        let here = self.namespace.is_none_or(|own| labels["projectcalico.org/namespace"] == own);
        let by = |selector: &Option<Selector>, prefix| {
            selector.as_ref().is_none_or(|selector| selector.matches(labels, prefix, true))
        };
        here && by(&self.selector, "") && by(&self.namespace_selector, "pcns.") && by(&self.account_selector, "pcsa.")
    }

    /// The features of the policy that made it select the pod.
    fn features(&self, trace: &mut Trace) {
        trace.insert(if self.namespace.is_some() { "NetworkPolicy" } else { "GlobalNetworkPolicy" });
        if self.types.is_none() {
            trace.insert(if self.is_raw { "types missing in crd.projectcalico.org/v1" } else { "types missing in v3" });
        }
        for (selector, feature) in [
            (&self.namespace_selector, "policy's namespaceSelector"),
            (&self.account_selector, "policy's serviceAccountSelector"),
            (&self.selector, "policy's selector"),
        ] {
            selector.is_some().then(|| trace.insert(feature));
        }
    }
}

impl Calico {
    /// Calico's own policies that select the pod in this direction, without staged ones.
    fn of_pod(&self, world: &World, pod: &Pod, direction: Direction) -> Vec<&Policy> {
        let labels = labels_of_pod(world, pod);
        let applies = |policy: &&Policy| !policy.is_staged && policy.governs(direction) && policy.selects(&labels);
        self.policies.iter().filter(applies).collect()
    }

    /// The decision of one policy. `Some(None)` passes to the next tier; `None` leaves the decision to the tier's next policy.
    fn decide_by(
        &self,
        member: &Member<'_>,
        world: &World,
        direction: Direction,
        packet: &Packet,
        trace: &mut Trace,
    ) -> Option<Option<bool>> {
        match member {
            Member::Kubernetes(policy) => policy.allows(world, direction, packet).then(|| {
                trace.insert("NetworkPolicy of Kubernetes allows");
                Some(true)
            }),
            Member::Cluster(policy) => {
                let mut rules = policy.rules(direction).iter();
                rules.find(|rule| rule.matches(world, direction, packet)).map(|rule| match rule.action {
                    kubernetes::Action::Accept => Some(true),
                    kubernetes::Action::Deny => Some(false),
                    kubernetes::Action::Pass => None,
                })
            }
            Member::Calico(policy) => policy.rules(direction).iter().find_map(|rule| {
                let features = self.matches(rule, policy.namespace, world, direction, packet)?;
                if rule.action == Action::Log {
                    trace.insert("Log");
                    return None;
                }
                policy.features(trace);
                trace.extend(features);
                Some(match rule.action {
                    Action::Allow => Some(true),
                    Action::Deny => Some(false),
                    _ => {
                        trace.insert("Pass");
                        None
                    }
                })
            }),
        }
    }

    /// The features by which a rule matches. `None` if it does not match.
    fn matches(
        &self,
        rule: &Rule,
        namespace: Option<&str>,
        world: &World,
        direction: Direction,
        packet: &Packet,
    ) -> Option<Vec<&'static str>> {
        let mut features = Vec::new();
        let mut hold = |feature, holds: Option<bool>| match holds {
            None => true,
            Some(holds) => {
                features.push(feature);
                holds
            }
        };
        let version = if packet.is_ipv6() { 6 } else { 4 };
        let icmp = |&(kind, code): &(u8, Option<u8>)| {
            let [of_packet, code_of_packet] = packet.port.to_be_bytes();
            kind == of_packet && code.is_none_or(|code| code == code_of_packet)
        };
        let is_icmp = matches!(packet.protocol, ICMP | ICMPV6);
        let destination = match direction {
            Direction::Ingress => &rule.own,
            Direction::Egress => &rule.peer,
        };
        let ports = |ports: &[Port]| {
            (!ports.is_empty()).then(|| {
                ports.iter().any(|port| match *port {
                    Port::Range(first, last) => (first..=last).contains(&packet.port),
                    Port::Named(name) => world.pod(packet.dst).is_some_and(|pod| {
                        pod.names(name, packet.protocol, packet.port) && destination.has_pod(world, pod, namespace)
                    }),
                })
            })
        };
        let has_named = |ports: &[Port]| ports.iter().any(|port| matches!(port, Port::Named(_)));
        let holds = hold("ipVersion", rule.ip_version.map(|wanted| wanted == version))
            && hold("protocol", rule.protocol.map(|wanted| wanted == packet.protocol))
            && hold("notProtocol", rule.not_protocol.map(|other| other != packet.protocol))
            && hold("icmp", rule.icmp.as_ref().map(|wanted| is_icmp && icmp(wanted)))
            && hold("notICMP", rule.not_icmp.as_ref().map(|other| is_icmp && !icmp(other)))
            && hold(if has_named(&rule.ports) { "named port" } else { "ports" }, ports(&rule.ports))
            && hold("notPorts", ports(&rule.not_ports).map(|hit| !hit));
        if !holds {
            return None;
        }
        features.extend(self.entity(&rule.peer, namespace, world, direction, packet)?);
        // In felix, the own end may also be a network set that contains the pod's address. The crate looks at the pod's labels only.
        let own = world.pod(packet.peer(direction.reverse()))?;
        if rule.own.has_fields() {
            features.push("own end");
        }
        rule.own.has_pod(world, own, namespace).then_some(features)
    }
}

impl Policies for Calico {
    fn documents(&self) -> Vec<Value> {
        let mut all: Vec<Value> = self.tiers.iter().map(Tier::document).collect();
        all.extend(self.sets.iter().map(NetworkSet::document));
        all.extend(self.policies.iter().map(Policy::document));
        all.extend(self.kubernetes.documents());
        all
    }

    fn decide(&self, world: &World, pod: &Pod, direction: Direction, packet: &Packet, trace: &mut Trace) -> bool {
        if self.of_pod(world, pod, direction).is_empty() {
            return self.kubernetes.decide(world, pod, direction, packet, trace);
        }
        if direction == Direction::Ingress && world.is_own_node(pod, packet.src) {
            trace.insert("from the own node");
            return true;
        }
        if direction == Direction::Egress && world.is_own_node(pod, packet.dst) {
            trace.insert("to the own node");
        }
        let labels = labels_of_pod(world, pod);
        let mut staged = self.policies.iter().filter(|policy| policy.is_staged);
        if staged.any(|policy| policy.governs(direction) && policy.selects(&labels)) {
            trace.insert("staged policy");
        }
        for tier in self.tiers(world, pod, direction) {
            if tier.members.windows(2).any(|pair| pair[0].place().0 == pair[1].place().0) {
                trace.insert("equal orders");
            }
            let decisions = tier.members.iter().map(|one| (one, self.decide_by(one, world, direction, packet, trace)));
            let decision = decisions.enumerate().find_map(|(at, (one, decision))| Some((at, one, decision?)));
            match decision {
                Some((at, Member::Calico(_), _)) if tier.members[..at].iter().any(is_of_kubernetes) => {
                    trace.insert("Calico's policy after a NetworkPolicy of Kubernetes");
                }
                Some((at, Member::Kubernetes(_), _)) if !tier.members[..at].iter().all(is_of_kubernetes) => {
                    trace.insert("NetworkPolicy of Kubernetes after Calico's policy");
                }
                _ => {}
            }
            match (tier.name, tier.has_object) {
                ("default", _) => trace.insert("tier default"),
                ("kube-admin" | "kube-baseline", _) => trace.insert("tier of ClusterNetworkPolicies"),
                (_, false) => trace.insert("tier without an object"),
                _ => trace.insert("own tier"),
            };
            match decision {
                Some((_, _, Some(allows))) => return allows,
                Some((_, _, None)) => {}
                None if tier.passes => drop(trace.insert("defaultAction Pass")),
                None => {
                    trace.insert("defaultAction Deny");
                    return false;
                }
            }
        }
        trace.insert("profile");
        true
    }

    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for at in 0..self.policies.len() {
            let mut less = self.clone();
            less.policies.remove(at);
            all.push(less);
        }
        for (at, policy) in self.policies.iter().enumerate() {
            for rule in 0..policy.ingress.len() {
                let mut less = self.clone();
                less.policies[at].ingress.remove(rule);
                less.policies[at]
                    .types
                    .get_or_insert((policy.governs(Direction::Ingress), policy.governs(Direction::Egress)));
                all.push(less);
            }
            for rule in 0..policy.egress.len() {
                let mut less = self.clone();
                less.policies[at].egress.remove(rule);
                less.policies[at]
                    .types
                    .get_or_insert((policy.governs(Direction::Ingress), policy.governs(Direction::Egress)));
                all.push(less);
            }
        }
        for at in 0..self.tiers.len() {
            let mut less = self.clone();
            less.tiers.remove(at);
            all.push(less);
        }
        for at in 0..self.sets.len() {
            let mut less = self.clone();
            less.sets.remove(at);
            all.push(less);
        }
        all.extend(self.kubernetes.smaller().into_iter().map(|kubernetes| Self { kubernetes, ..self.clone() }));
        all
    }
}

pub(crate) use self::random::FEATURES;
