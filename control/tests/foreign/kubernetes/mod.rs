//! NetworkPolicy and ClusterNetworkPolicy, decided after "Network Policies" of Kubernetes' documentation and "API Overview" of
//! sigs.k8s.io/network-policy-api.

pub(crate) mod random;

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::labels::LabelSelector;
use super::world::{Direction, Packet, Pod, World, transport};
use super::{Policies, Trace};

/// A NetworkPolicy.
#[derive(Clone, Debug)]
pub(crate) struct NetworkPolicy {
    pub(crate) namespace: &'static str,
    pub(crate) name: String,
    pub(crate) subject: LabelSelector,
    /// `None` if `policyTypes` does not list the direction.
    pub(crate) ingress: Option<Vec<Rule>>,
    pub(crate) egress: Option<Vec<Rule>>,
}

/// A rule of a NetworkPolicy. Empty lists match everything.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) peers: Vec<Peer>,
    pub(crate) ports: Vec<Port>,
}

#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// A `podSelector`, a `namespaceSelector`, or both.
    Pods {
        namespaces: Option<LabelSelector>,
        pods: Option<LabelSelector>,
    },
    Block {
        cidr: IpNet,
        except: Vec<IpNet>,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Port {
    All(u8),
    Range(u8, u16, u16),
    Named(u8, &'static str),
}

/// A ClusterNetworkPolicy.
#[derive(Clone, Debug)]
pub(crate) struct ClusterNetworkPolicy {
    pub(crate) name: String,
    pub(crate) is_admin: bool,
    pub(crate) priority: u16,
    pub(crate) subject: ClusterPeer,
    pub(crate) ingress: Vec<ClusterRule>,
    pub(crate) egress: Vec<ClusterRule>,
}

#[derive(Clone, Debug)]
pub(crate) enum ClusterPeer {
    Namespaces(LabelSelector),
    Pods {
        namespaces: LabelSelector,
        pods: LabelSelector,
    },
    /// Blocks of addresses, only in egress rules.
    Networks(Vec<IpNet>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Accept,
    Deny,
    Pass,
}

#[derive(Clone, Debug)]
pub(crate) struct ClusterRule {
    pub(crate) action: Action,
    pub(crate) peers: Vec<ClusterPeer>,
    /// Protocols with a range of ports. Empty: all packets.
    pub(crate) ports: Vec<(u8, u16, u16)>,
}

/// Policies of Kubernetes' own kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kubernetes {
    pub(crate) policies: Vec<NetworkPolicy>,
    pub(crate) cluster: Vec<ClusterNetworkPolicy>,
}

pub(crate) fn is_in(net: &IpNet, address: IpAddr) -> bool {
    match (net, address) {
        (IpNet::V4(net), IpAddr::V4(address)) => {
            let free = 32 - u32::from(net.prefix_len());
            free == 32 || net.addr().to_bits() >> free == address.to_bits() >> free
        }
        (IpNet::V6(net), IpAddr::V6(address)) => {
            let free = 128 - u32::from(net.prefix_len());
            free == 128 || net.addr().to_bits() >> free == address.to_bits() >> free
        }
        _ => false,
    }
}

impl NetworkPolicy {
    pub(crate) fn rules(&self, direction: Direction) -> Option<&Vec<Rule>> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }

    /// Whether the policy isolates the pod in this direction.
    pub(crate) fn isolates(&self, pod: &Pod, direction: Direction) -> bool {
        self.namespace == pod.namespace && self.subject.selects(&pod.labels) && self.rules(direction).is_some()
    }

    /// Whether a rule allows the packet of a pod that the policy isolates.
    pub(crate) fn allows(&self, world: &World, direction: Direction, packet: &Packet) -> bool {
        let address = packet.peer(direction);
        self.rules(direction).into_iter().flatten().any(|rule| {
            let peer = |peer: &Peer| match peer {
                Peer::Block { cidr, except } => is_in(cidr, address) && !except.iter().any(|net| is_in(net, address)),
                Peer::Pods { namespaces, pods } => world.pod(address).is_some_and(|peer| {
                    let here = match namespaces {
                        None => peer.namespace == self.namespace,
                        Some(selector) => selector.selects(world.labels_of_namespace(peer.namespace)),
                    };
                    here && pods.as_ref().is_none_or(|selector| selector.selects(&peer.labels))
                }),
            };
            let port = |port: &Port| match *port {
                Port::All(protocol) => protocol == packet.protocol,
                Port::Range(protocol, first, last) => {
                    protocol == packet.protocol && (first..=last).contains(&packet.port)
                }
                Port::Named(protocol, name) => {
                    let receiver = world.pod(packet.dst);
                    protocol == packet.protocol && receiver.is_some_and(|pod| pod.names(name, protocol, packet.port))
                }
            };
            (rule.peers.is_empty() || rule.peers.iter().any(peer))
                && (rule.ports.is_empty() || rule.ports.iter().any(port))
        })
    }

    fn document(&self) -> Value {
        let rules = |rules: &[Rule], peers_are: &str| -> Value {
            let rule = |rule: &Rule| {
                let mut object = json!({});
                if !rule.peers.is_empty() {
                    object[peers_are] = rule.peers.iter().map(Peer::json).collect();
                }
                if !rule.ports.is_empty() {
                    object["ports"] = rule.ports.iter().map(Port::json).collect();
                }
                object
            };
            rules.iter().map(rule).collect()
        };
        let (mut spec, mut types) = (json!({"podSelector": self.subject.json()}), Vec::new());
        if let Some(ingress) = &self.ingress {
            types.push("Ingress");
            spec["ingress"] = rules(ingress, "from");
        }
        if let Some(egress) = &self.egress {
            types.push("Egress");
            spec["egress"] = rules(egress, "to");
        }
        spec["policyTypes"] = json!(types);
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": spec,
        })
    }
}

impl Peer {
    fn json(&self) -> Value {
        match self {
            Self::Block { cidr, except } if except.is_empty() => json!({"ipBlock": {"cidr": cidr.to_string()}}),
            Self::Block { cidr, except } => {
                let except: Vec<_> = except.iter().map(IpNet::to_string).collect();
                json!({"ipBlock": {"cidr": cidr.to_string(), "except": except}})
            }
            Self::Pods { namespaces, pods } => {
                let mut object = json!({});
                if let Some(selector) = namespaces {
                    object["namespaceSelector"] = selector.json();
                }
                if let Some(selector) = pods {
                    object["podSelector"] = selector.json();
                }
                object
            }
        }
    }
}

impl Port {
    fn json(&self) -> Value {
        match *self {
            Self::All(protocol) => json!({"protocol": transport(protocol)}),
            Self::Range(protocol, first, last) if first == last => {
                json!({"protocol": transport(protocol), "port": first})
            }
            Self::Range(protocol, first, last) => {
                json!({"protocol": transport(protocol), "port": first, "endPort": last})
            }
            Self::Named(protocol, name) => json!({"protocol": transport(protocol), "port": name}),
        }
    }
}

impl ClusterPeer {
    fn matches(&self, world: &World, address: IpAddr) -> bool {
        match self {
            Self::Networks(nets) => nets.iter().any(|net| is_in(net, address)),
            _ => world.pod(address).is_some_and(|pod| self.selects(world, pod)),
        }
    }

    fn selects(&self, world: &World, pod: &Pod) -> bool {
        let labels = world.labels_of_namespace(pod.namespace);
        match self {
            Self::Namespaces(namespaces) => namespaces.selects(labels),
            Self::Pods { namespaces, pods } => namespaces.selects(labels) && pods.selects(&pod.labels),
            Self::Networks(_) => false,
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Namespaces(namespaces) => json!({"namespaces": namespaces.json()}),
            Self::Pods { namespaces, pods } => {
                json!({"pods": {"namespaceSelector": namespaces.json(), "podSelector": pods.json()}})
            }
            Self::Networks(nets) => json!({"networks": nets.iter().map(IpNet::to_string).collect::<Vec<_>>()}),
        }
    }
}

impl ClusterNetworkPolicy {
    pub(crate) fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    pub(crate) fn selects(&self, world: &World, pod: &Pod) -> bool {
        self.subject.selects(world, pod)
    }

    fn document(&self) -> Value {
        let rules = |rules: &[ClusterRule], peers_are: &str| -> Value {
            let rule = |rule: &ClusterRule| {
                let peers: Vec<_> = rule.peers.iter().map(ClusterPeer::json).collect();
                let mut object = json!({"action": format!("{:?}", rule.action)});
                object[peers_are] = json!(peers);
                if !rule.ports.is_empty() {
                    let port = |&(protocol, first, last): &(u8, u16, u16)| {
                        let port = match first == last {
                            true => json!({"number": first}),
                            false => json!({"range": {"start": first, "end": last}}),
                        };
                        let mut object = json!({});
                        object[transport(protocol).to_lowercase()] = json!({"destinationPort": port});
                        object
                    };
                    object["protocols"] = rule.ports.iter().map(port).collect();
                }
                object
            };
            rules.iter().map(rule).collect()
        };
        let mut spec = json!({
            "tier": if self.is_admin { "Admin" } else { "Baseline" },
            "priority": self.priority,
            "subject": self.subject.json(),
        });
        for (key, list, peers) in [("ingress", &self.ingress, "from"), ("egress", &self.egress, "to")] {
            if !list.is_empty() {
                spec[key] = rules(list, peers);
            }
        }
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy",
            "metadata": {"name": self.name},
            "spec": spec,
        })
    }
}

impl ClusterRule {
    pub(crate) fn matches(&self, world: &World, direction: Direction, packet: &Packet) -> bool {
        let port = |&(protocol, first, last): &(u8, u16, u16)| {
            protocol == packet.protocol && (first..=last).contains(&packet.port)
        };
        self.peers.iter().any(|peer| peer.matches(world, packet.peer(direction)))
            && (self.ports.is_empty() || self.ports.iter().any(port))
    }
}

impl Kubernetes {
    /// The policies of a tier of ClusterNetworkPolicies that select the pod, in order.
    pub(crate) fn tier(&self, world: &World, is_admin: bool, pod: &Pod) -> Vec<&ClusterNetworkPolicy> {
        let here = self.cluster.iter().filter(|policy| policy.is_admin == is_admin && policy.selects(world, pod));
        let mut policies: Vec<_> = here.collect();
        policies.sort_by_key(|policy| (policy.priority, &policy.name));
        policies
    }

    /// The decision of a tier of ClusterNetworkPolicies. `None` if a rule passes or none matches.
    pub(crate) fn decide_in_tier(
        &self,
        world: &World,
        is_admin: bool,
        (pod, direction): (&Pod, Direction),
        packet: &Packet,
        trace: &mut Trace,
    ) -> Option<bool> {
        for policy in self.tier(world, is_admin, pod) {
            for rule in policy.rules(direction) {
                if rule.matches(world, direction, packet) {
                    trace.insert(match (is_admin, rule.action) {
                        (true, Action::Pass) => "Admin passes",
                        (true, _) => "Admin decides",
                        (false, Action::Pass) => "Baseline passes",
                        (false, _) => "Baseline decides",
                    });
                    return match rule.action {
                        Action::Accept => Some(true),
                        Action::Deny => Some(false),
                        Action::Pass => None,
                    };
                }
            }
        }
        None
    }
}

impl Policies for Kubernetes {
    fn documents(&self) -> Vec<Value> {
        let policies = self.policies.iter().map(NetworkPolicy::document);
        policies.chain(self.cluster.iter().map(ClusterNetworkPolicy::document)).collect()
    }

    fn decide(&self, world: &World, pod: &Pod, direction: Direction, packet: &Packet, trace: &mut Trace) -> bool {
        if let Some(accepts) = self.decide_in_tier(world, true, (pod, direction), packet, trace) {
            return accepts;
        }
        let mut isolating = self.policies.iter().filter(|policy| policy.isolates(pod, direction)).peekable();
        if isolating.peek().is_some() {
            let own_node = world.is_own_node(pod, packet.peer(direction));
            trace.insert(if own_node { "own node and NetworkPolicy" } else { "NetworkPolicy decides" });
            return own_node || isolating.any(|policy| policy.allows(world, direction, packet));
        }
        self.decide_in_tier(world, false, (pod, direction), packet, trace).unwrap_or(true)
    }

    fn smaller(&self) -> Vec<Self> {
        let without = |at: usize| {
            let mut less = self.clone();
            match at.checked_sub(less.policies.len()) {
                None => drop(less.policies.remove(at)),
                Some(at) => drop(less.cluster.remove(at)),
            }
            less
        };
        (0..self.policies.len() + self.cluster.len()).map(without).collect()
    }
}
