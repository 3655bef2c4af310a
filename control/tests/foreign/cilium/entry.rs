//! The conditions of an entry.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    CidrGroup, CidrSource, Cilium, Entry, Icmp, NAMESPACE, NAMESPACE_LABELS, Peers, Policy, Port, ServicePeer, Side,
    bare, is_outside,
};
use crate::foreign::Trace;
use crate::foreign::kubernetes::is_in;
use crate::foreign::world::{ICMP, ICMPV6, Owner, Packet, SCTP, TCP, UDP, World};

impl Cilium {
    /// Whether an entry matches a packet.
    pub(super) fn matches(
        &self,
        policy: &Policy,
        entry: &Entry,
        world: &World,
        side: Side<'_>,
        packet: &Packet,
        trace: &mut Trace,
    ) -> bool {
        let mut features = Vec::new();
        let has_ports = !entry.ports.is_empty() || !entry.icmps.is_empty();
        let address = packet.peer(side.direction);
        let peers = match &entry.peers {
            Peers::Absent => {
                features.push("ports without peers");
                has_ports
            }
            Peers::Endpoints(selectors) => {
                features.push(if policy.namespace.is_some() { "endpoints" } else { "endpoints, cluster-wide" });
                let peer = world.pod(address);
                let hit = selectors.iter().find(|one| match peer {
                    Some(peer) => policy.selects_peer(one, world, peer),
                    None => policy.selects_others(one),
                });
                if let Some(selector) = hit {
                    features.extend(peer.is_none().then_some("selector without a namespace"));
                    let keys = selector.labels.keys().chain(selector.expressions.iter().map(|(key, ..)| key));
                    features.extend(keys.map(|key| match bare(key) {
                        NAMESPACE => "namespace by name",
                        "io.cilium.k8s.policy.serviceaccount" => "service account",
                        key if key.starts_with(NAMESPACE_LABELS) => "namespace by label",
                        _ => "labels",
                    }));
                    if selector.labels.is_empty() && selector.expressions.is_empty() {
                        features.push("empty selector");
                    }
                }
                hit.is_some()
            }
            Peers::Cidr(nets) => {
                features.push("CIDR");
                is_outside(world, address) && nets.iter().any(|net| is_in(net, address))
            }
            Peers::CidrSet(rules) => {
                let hit = rules.iter().find(|rule| {
                    let nets = self.nets(&rule.of);
                    nets.iter().any(|net| is_in(net, address)) && !rule.except.iter().any(|net| is_in(net, address))
                });
                if let Some(rule) = hit {
                    features.push(match rule.of {
                        CidrSource::Cidr(_) => "CIDR set",
                        CidrSource::Group(_) => "cidrGroupRef",
                        CidrSource::Groups(_) => "cidrGroupSelector",
                    });
                    features.extend((!rule.except.is_empty()).then_some("except"));
                }
                is_outside(world, address) && hit.is_some()
            }
            Peers::Entities(entities) => {
                let hit = entities.iter().find(|entity| is_entity(entity, world, side, address));
                features.extend(hit);
                hit.is_some()
            }
            Peers::Services(services) => services.iter().any(|service| {
                let found = world.services.iter().filter(|one| match service {
                    ServicePeer::Named { namespace, name } => (one.namespace, one.name) == (*namespace, *name),
                    ServicePeer::Selected { namespace, selector } => {
                        namespace.is_none_or(|wanted| wanted == one.namespace) && selector.selects(&one.labels)
                    }
                });
                found.into_iter().any(|found| match found.selector.is_empty() {
                    true => {
                        let hit = is_outside(world, address) && found.endpoints.contains(&address);
                        features.extend(hit.then_some("Service without a selector"));
                        hit
                    }
                    false => {
                        let hit = world.pod(address).is_some_and(|pod| {
                            let mut wanted = found.selector.iter();
                            pod.namespace == found.namespace
                                && wanted.all(|(key, value)| pod.labels.get(key) == Some(value))
                        });
                        features.extend(hit.then_some("Service with a selector"));
                        hit
                    }
                })
            }),
        };
        if !peers {
            return false;
        }
        let port = entry.ports.iter().find(|port| port.matches(world, packet));
        let icmp = entry.icmps.iter().find(|icmp| icmp.matches(packet));
        if has_ports && port.is_none() && icmp.is_none() {
            return false;
        }
        if let Some(port) = port {
            features.push(match port {
                Port::Range { first: 0, .. } => "port 0",
                Port::Range { protocol: None, .. } if packet.protocol == SCTP => "SCTP by ANY",
                Port::Range { protocol: None, .. } => "protocol ANY",
                Port::Range { .. } => "port",
                Port::Named { .. } => "port name",
            });
        }
        features.extend(icmp.map(|icmp| if icmp.name.is_some() { "ICMP by name" } else { "ICMP" }));
        features.extend(entry.has_http.then_some("HTTP rules"));
        trace.extend(features);
        true
    }

    fn nets(&self, source: &CidrSource) -> Vec<IpNet> {
        let of = |is: &dyn Fn(&CidrGroup) -> bool| {
            self.groups.iter().filter(|group| is(group)).flat_map(|group| group.cidrs.clone()).collect()
        };
        match source {
            CidrSource::Cidr(net) => vec![*net],
            CidrSource::Group(name) => of(&|group| group.name == *name),
            CidrSource::Groups(selector) => of(&|group| selector.selects(&group.labels)),
        }
    }
}

/// Whether an address belongs to an entity, for the policies of a pod.
fn is_entity(entity: &str, world: &World, side: Side<'_>, address: IpAddr) -> bool {
    let owner = world.owner(address);
    let is_world = matches!(owner, Owner::Outside);
    match entity {
        "all" => true,
        "world" => is_world,
        "world-ipv4" => is_world && address.is_ipv4(),
        "world-ipv6" => is_world && address.is_ipv6(),
        "host" => matches!(owner, Owner::Node(node) if node == side.pod.node),
        "remote-node" => matches!(owner, Owner::Node(node) if node != side.pod.node),
        "cluster" => !is_world || is_api_server(world, address),
        "kube-apiserver" => is_api_server(world, address),
        // Endpoints that are none of the cluster's pods.
        "none" | "health" | "init" | "ingress" | "unmanaged" => false,
        other => unreachable!("the entity {other}"),
    }
}

fn is_api_server(world: &World, address: IpAddr) -> bool {
    let mut services = world.services.iter();
    let api = services.find(|service| (service.namespace, service.name) == ("default", "kubernetes"));
    api.is_some_and(|service| service.endpoints.contains(&address))
}

impl Port {
    fn matches(&self, world: &World, packet: &Packet) -> bool {
        let is = |protocol: Option<u8>| match protocol {
            Some(protocol) => protocol == packet.protocol,
            None => matches!(packet.protocol, TCP | UDP | SCTP),
        };
        match *self {
            Self::Range { protocol, first: 0, .. } => is(protocol),
            Self::Range { protocol, first, last } => is(protocol) && (first..=last).contains(&packet.port),
            Self::Named { protocol, name } => {
                let receiver = world.pod(packet.dst);
                is(protocol) && receiver.is_some_and(|pod| pod.names(name, packet.protocol, packet.port))
            }
        }
    }
}

impl Icmp {
    fn matches(&self, packet: &Packet) -> bool {
        let protocol = if self.is_ipv6 { ICMPV6 } else { ICMP };
        protocol == packet.protocol && self.kind == packet.port.to_be_bytes()[0]
    }
}
