//! Calico's objects as YAML.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::{Entity, Namespaces, NetworkSet, Policy, Port, Rule, Tier};
use crate::foreign::world::Direction;

fn texts(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(IpNet::to_string).collect()
}

impl Tier {
    pub(super) fn document(&self) -> Value {
        let mut spec = json!({});
        if let Some(order) = self.order {
            spec["order"] = json!(order);
        }
        if let Some(passes) = self.passes {
            spec["defaultAction"] = json!(if passes { "Pass" } else { "Deny" });
        }
        json!({"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": self.name}, "spec": spec})
    }
}

impl NetworkSet {
    pub(super) fn document(&self) -> Value {
        let mut metadata = json!({"name": self.name, "labels": self.labels});
        if let Some(namespace) = self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        let kind = if self.namespace.is_some() { "NetworkSet" } else { "GlobalNetworkSet" };
        let spec = json!({"nets": texts(&self.nets)});
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec})
    }
}

impl Policy {
    pub(super) fn document(&self) -> Value {
        let mut metadata = json!({"name": self.name});
        if let Some(namespace) = self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        let kind = match (self.namespace, self.is_staged) {
            (Some(_), false) => "NetworkPolicy",
            (Some(_), true) => "StagedNetworkPolicy",
            (None, false) => "GlobalNetworkPolicy",
            (None, true) => "StagedGlobalNetworkPolicy",
        };
        let mut spec = json!({});
        if let Some(tier) = self.tier {
            spec["tier"] = json!(tier);
        }
        if let Some(order) = self.order {
            spec["order"] = json!(order);
        }
        for (key, selector) in [
            ("selector", &self.selector),
            ("namespaceSelector", &self.namespace_selector),
            ("serviceAccountSelector", &self.account_selector),
        ] {
            if let Some(selector) = selector {
                spec[key] = json!(selector.to_string());
            }
        }
        if let Some((ingress, egress)) = self.types {
            let types = [("Ingress", ingress), ("Egress", egress)];
            spec["types"] = types.into_iter().filter(|(_, has)| *has).map(|(name, _)| json!(name)).collect();
        }
        for (key, rules, direction) in
            [("ingress", &self.ingress, Direction::Ingress), ("egress", &self.egress, Direction::Egress)]
        {
            if !rules.is_empty() {
                spec[key] = rules.iter().map(|rule| rule.json(direction)).collect();
            }
        }
        let group = if self.is_raw { "crd.projectcalico.org/v1" } else { "projectcalico.org/v3" };
        json!({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec})
    }
}

impl Rule {
    fn json(&self, direction: Direction) -> Value {
        let mut rule = json!({"action": format!("{:?}", self.action)});
        if let Some(version) = self.ip_version {
            rule["ipVersion"] = json!(version);
        }
        for (key, protocol) in [("protocol", self.protocol), ("notProtocol", self.not_protocol)] {
            if let Some(protocol) = protocol {
                rule[key] = Entity::protocol_name(protocol).map_or(json!(protocol), |name| json!(name));
            }
        }
        for (key, icmp) in [("icmp", self.icmp), ("notICMP", self.not_icmp)] {
            match icmp {
                Some((kind, None)) => rule[key] = json!({"type": kind}),
                Some((kind, Some(code))) => rule[key] = json!({"type": kind, "code": code}),
                None => {}
            }
        }
        let (source, mut destination) = match direction {
            Direction::Ingress => (self.peer.json(), self.own.json()),
            Direction::Egress => (self.own.json(), self.peer.json()),
        };
        for (key, ports) in [("ports", &self.ports), ("notPorts", &self.not_ports)] {
            if !ports.is_empty() {
                destination[key] = ports.iter().map(Port::json).collect();
            }
        }
        for (key, entity) in [("source", source), ("destination", destination)] {
            if entity.as_object().is_some_and(|fields| !fields.is_empty()) {
                rule[key] = entity;
            }
        }
        rule
    }
}

impl Port {
    fn json(&self) -> Value {
        match *self {
            Self::Range(first, last) if first == last => json!(first),
            Self::Range(first, last) => json!(format!("{first}:{last}")),
            Self::Named(name) => json!(name),
        }
    }
}

impl Entity {
    fn json(&self) -> Value {
        let mut entity = json!({});
        for (key, nets) in [("nets", &self.nets), ("notNets", &self.not_nets)] {
            if !nets.is_empty() {
                entity[key] = json!(texts(nets));
            }
        }
        for (key, selector) in [("selector", &self.selector), ("notSelector", &self.not_selector)] {
            if let Some(selector) = selector {
                entity[key] = json!(selector.to_string());
            }
        }
        match &self.namespaces {
            Some(Namespaces::Global) => entity["namespaceSelector"] = json!("global()"),
            Some(Namespaces::Selected(selector)) => entity["namespaceSelector"] = json!(selector.to_string()),
            None => {}
        }
        if let Some(accounts) = &self.accounts {
            let mut object = json!({});
            if !accounts.names.is_empty() {
                object["names"] = json!(accounts.names);
            }
            if let Some(selector) = &accounts.selector {
                object["selector"] = json!(selector.to_string());
            }
            entity["serviceAccounts"] = object;
        }
        if let Some((namespace, name)) = self.service {
            entity["services"] = json!({"namespace": namespace, "name": name});
        }
        entity
    }
}
