//! Cilium's objects as YAML.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::{CidrGroup, CidrSource, Entry, Icmp, Peers, Policy, Port, ServicePeer, Spec};
use crate::foreign::labels::LabelSelector;
use crate::foreign::world::transport;

fn texts(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(IpNet::to_string).collect()
}

impl CidrGroup {
    pub(super) fn document(&self) -> Value {
        json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumCIDRGroup",
            "metadata": {"name": self.name, "labels": self.labels},
            "spec": {"externalCIDRs": texts(&self.cidrs)},
        })
    }
}

impl Policy {
    pub(super) fn document(&self) -> Value {
        let mut metadata = json!({"name": self.name});
        if let Some(namespace) = self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        let kind = match self.namespace {
            Some(_) => "CiliumNetworkPolicy",
            None => "CiliumClusterwideNetworkPolicy",
        };
        let mut object = json!({"apiVersion": "cilium.io/v2", "kind": kind, "metadata": metadata});
        match &self.specs[..] {
            [spec] => object["spec"] = spec.json(),
            specs => object["specs"] = specs.iter().map(Spec::json).collect(),
        }
        object
    }
}

impl Spec {
    fn json(&self) -> Value {
        let mut spec = json!({"endpointSelector": self.subject.json()});
        let (ingress, egress) = self.default_deny;
        for (key, value) in [("ingress", ingress), ("egress", egress)] {
            if let Some(value) = value {
                spec["enableDefaultDeny"][key] = json!(value);
            }
        }
        let keys = ["ingress", "ingressDeny", "egress", "egressDeny"];
        for (key, section) in keys.into_iter().zip(self.sections()) {
            if let Some(entries) = section {
                let prefix = if key.starts_with("ingress") { "from" } else { "to" };
                spec[key] = entries.iter().map(|entry| entry.json(prefix)).collect();
            }
        }
        spec
    }
}

impl Entry {
    fn json(&self, prefix: &str) -> Value {
        let mut entry = json!({});
        let peers = match &self.peers {
            Peers::Absent => None,
            Peers::Endpoints(selectors) => Some(("Endpoints", selectors.iter().map(LabelSelector::json).collect())),
            Peers::Cidr(nets) => Some(("CIDR", json!(texts(nets)))),
            Peers::CidrSet(rules) => {
                let rule = |rule: &super::CidrRule| {
                    let mut object = match &rule.of {
                        CidrSource::Cidr(net) => json!({"cidr": net.to_string()}),
                        CidrSource::Group(name) => json!({"cidrGroupRef": name}),
                        CidrSource::Groups(selector) => json!({"cidrGroupSelector": selector.json()}),
                    };
                    if !rule.except.is_empty() {
                        object["except"] = json!(texts(&rule.except));
                    }
                    object
                };
                Some(("CIDRSet", rules.iter().map(rule).collect()))
            }
            Peers::Entities(entities) => Some(("Entities", json!(entities))),
            Peers::Services(services) => Some(("Services", services.iter().map(ServicePeer::json).collect())),
        };
        if let Some((field, value)) = peers {
            entry[format!("{prefix}{field}")] = value;
        }
        if !self.ports.is_empty() {
            let mut rule = json!({"ports": self.ports.iter().map(Port::json).collect::<Vec<_>>()});
            if self.has_http {
                rule["rules"] = json!({"http": [{"method": "GET", "path": "/public"}]});
            }
            entry["toPorts"] = json!([rule]);
        }
        if !self.icmps.is_empty() {
            entry["icmps"] = json!([{"fields": self.icmps.iter().map(Icmp::json).collect::<Vec<_>>()}]);
        }
        entry
    }
}

impl ServicePeer {
    fn json(&self) -> Value {
        match self {
            Self::Named { namespace, name } => json!({"k8sService": {"namespace": namespace, "serviceName": name}}),
            Self::Selected { namespace, selector } => {
                let mut object = json!({"selector": selector.json()});
                if let Some(namespace) = namespace {
                    object["namespace"] = json!(namespace);
                }
                json!({"k8sServiceSelector": object})
            }
        }
    }
}

impl Port {
    fn json(&self) -> Value {
        let (mut object, protocol) = match self {
            Self::Range { protocol, first, last } if last > first && *first > 0 => {
                (json!({"port": first.to_string(), "endPort": last}), protocol)
            }
            Self::Range { protocol, first, .. } => (json!({"port": first.to_string()}), protocol),
            Self::Named { protocol, name } => (json!({"port": name}), protocol),
        };
        match (protocol, self) {
            (Some(protocol), _) => object["protocol"] = json!(transport(*protocol)),
            // Without a protocol, both forms mean any.
            (None, Self::Range { first, .. }) if *first < 443 => object["protocol"] = json!("ANY"),
            (None, _) => {}
        }
        object
    }
}

impl Icmp {
    fn json(&self) -> Value {
        let kind = self.name.map_or(json!(self.kind), |name| json!(name));
        match self.is_ipv6 {
            true => json!({"family": "IPv6", "type": kind}),
            false if self.kind < 8 => json!({"family": "IPv4", "type": kind}),
            // IPv4 is the default.
            false => json!({"type": kind}),
        }
    }
}
