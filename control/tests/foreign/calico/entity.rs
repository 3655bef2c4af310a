//! The conditions of a rule about its other end.

use ipnet::IpNet;

use super::{Accounts, Calico, Entity, Namespaces, Selector, labels_of_pod};
use crate::foreign::kubernetes::is_in;
use crate::foreign::labels::Labels;
use crate::foreign::world::{Direction, Packet, Pod, World, transport};

/// The nets of the packet's family. `None` if the field has nets, but none of this family: the rule is not there then.
fn of_family<'a>(nets: &'a [IpNet], packet: &Packet) -> Option<Vec<&'a IpNet>> {
    let here: Vec<_> = nets.iter().filter(|net| net.addr().is_ipv6() == packet.is_ipv6()).collect();
    (nets.is_empty() || !here.is_empty()).then_some(here)
}

impl Entity {
    /// Whether one of the fields is used that limit an entity to endpoints.
    fn has_selectors(&self) -> bool {
        self.selector.is_some() || self.accounts.is_some() || self.namespaces.is_some()
    }

    /// Whether a field about endpoints is used.
    pub(super) fn has_fields(&self) -> bool {
        self.has_selectors() || self.not_selector.is_some()
    }

    /// Whether a pod satisfies the fields about endpoints, by its own labels.
    pub(super) fn has_pod(&self, world: &World, pod: &Pod, namespace: Option<&str>) -> bool {
        !self.has_fields() || self.matches_endpoint(&labels_of_pod(world, pod), namespace)
    }

    /// Whether an endpoint satisfies the fields about endpoints, `notSelector` included. `namespace` is the policy's.
    fn matches_endpoint(&self, labels: &Labels, namespace: Option<&str>) -> bool {
        let of_endpoint = labels.get("projectcalico.org/namespace");
        let here = match (&self.namespaces, namespace) {
            (Some(Namespaces::Global), _) => of_endpoint.is_none(),
            (Some(Namespaces::Selected(selector)), _) => selector.matches(labels, "pcns.", of_endpoint.is_some()),
            (None, Some(own)) => of_endpoint.is_some_and(|name| name == own),
            (None, None) => true,
        };
        here && self.selector.as_ref().is_none_or(|selector| selector.matches(labels, "", true))
            && self.accounts.as_ref().is_none_or(|accounts| accounts.matches(labels))
            && !self.not_selector.as_ref().is_some_and(|selector| selector.matches(labels, "", true))
    }
}

impl Accounts {
    fn matches(&self, labels: &Labels) -> bool {
        let name = labels.get("projectcalico.org/serviceaccount");
        let named = self.names.is_empty() || name.is_some_and(|name| self.names.contains(name));
        named && self.selector.as_ref().is_none_or(|selector| selector.matches(labels, "pcsa.", true))
    }
}

impl Calico {
    /// Whether an endpoint (a pod or a network set) that satisfies the condition has the packet's other address.
    fn is_of(&self, condition: impl Fn(&Labels) -> bool, world: &World, direction: Direction, packet: &Packet) -> bool {
        let address = packet.peer(direction);
        let is_of_pod = world.pod(address).is_some_and(|pod| condition(&labels_of_pod(world, pod)));
        let mut sets = self.sets.iter().filter(|set| set.nets.iter().any(|net| is_in(net, address)));
        is_of_pod || sets.any(|set| condition(&set.labels(world)))
    }

    /// The features by which the other end of a packet satisfies an entity. `None` if it does not.
    pub(super) fn entity(
        &self,
        entity: &Entity,
        namespace: Option<&str>,
        world: &World,
        direction: Direction,
        packet: &Packet,
    ) -> Option<Vec<&'static str>> {
        let address = packet.peer(direction);
        let (nets, not_nets) = (of_family(&entity.nets, packet)?, of_family(&entity.not_nets, packet)?);
        let mut features = Vec::new();
        if !nets.is_empty() {
            features.push(if nets.len() < entity.nets.len() { "nets of both families" } else { "nets" });
            nets.iter().find(|net| is_in(net, address))?;
        }
        if !not_nets.is_empty() {
            features.push("notNets");
            // A net of all addresses contains this one too.
            if not_nets.iter().any(|net| is_in(net, address)) {
                return None;
            }
        }
        let is_limited = entity.has_selectors() || namespace.is_some() && entity.not_selector.is_some();
        if is_limited {
            let holds = |labels: &Labels| entity.matches_endpoint(labels, namespace);
            if !self.is_of(holds, world, direction, packet) {
                return None;
            }
        } else if let Some(selector) = &entity.not_selector
            && self.is_of(|labels| selector.matches(labels, "", true), world, direction, packet)
        {
            return None;
        }
        features.extend(entity.features(namespace));
        if is_limited && world.pod(address).is_none() {
            features.push("network set");
        }
        if let Some((namespace, name)) = entity.service {
            features.push(if direction == Direction::Ingress { "services of a source" } else { "services" });
            let mut services = world.services.iter();
            let service = services.find(|service| (service.namespace, service.name) == (namespace, name))?;
            let at_port = direction == Direction::Ingress || service.ports.contains(&(packet.protocol, packet.port));
            if !at_port || !service.endpoints.contains(&address) {
                return None;
            }
        }
        Some(features)
    }
}

impl Entity {
    fn features(&self, namespace: Option<&str>) -> Vec<&'static str> {
        let mut features = Vec::new();
        for selector in [&self.selector, &self.not_selector].into_iter().flatten() {
            selector.operators(&mut features);
        }
        self.selector.is_some().then(|| features.push("selector"));
        match (&self.not_selector, self.has_selectors(), namespace) {
            (Some(_), true, _) => features.push("notSelector beside others"),
            (Some(_), false, Some(_)) => features.push("notSelector alone in a NetworkPolicy"),
            (Some(_), false, None) => features.push("notSelector alone in a GlobalNetworkPolicy"),
            (None, ..) => {}
        }
        match &self.namespaces {
            Some(Namespaces::Global) => features.push("global()"),
            Some(Namespaces::Selected(Selector::All)) => features.push("namespaceSelector all()"),
            Some(Namespaces::Selected(_)) => features.push("namespaceSelector"),
            None => {}
        }
        if let Some(accounts) = &self.accounts {
            features.push(match (accounts.names.is_empty(), &accounts.selector) {
                (true, _) => "serviceAccounts by selector",
                (false, None) => "serviceAccounts by name",
                (false, Some(_)) => "serviceAccounts by both",
            });
        }
        features
    }

    /// The name of a protocol for documents.
    pub(super) fn protocol_name(protocol: u8) -> Option<&'static str> {
        match protocol {
            1 => Some("ICMP"),
            58 => Some("ICMPv6"),
            6 | 17 | 132 => Some(transport(protocol)),
            _ => None,
        }
    }
}
