//! Writes objects as YAML with comments, or as a JSON list.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bulkhead_answers::output::yaml_word as word;
use bulkhead_control::object::{
    Direction, ENFORCEMENT_ANNOTATION, Enforcement, NamespaceScope, Peer, PodPeer, PolicyPort, Transport,
};
use bulkhead_control::selector::{Condition, Selector};
use serde_json::{Map, Value, json};

use super::lists::{MAX_LISTED, Rule};
use super::meet::selector_of;
use super::objects::{Kind, Translated};

/// The annotation with the kind and the name of the policy that an object was translated from.
pub const ORIGIN_ANNOTATION: &str = "bulkhead.dev/translated-from";

/// Comments by the path of the value that they stand before, such as `/spec/ingress/0`.
pub(super) type Comments = BTreeMap<String, Vec<String>>;

/// Returns the object as a value.
pub(super) fn value(object: &Translated) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), object.name.as_str().into());
    if let Kind::Network(namespace) = &object.kind {
        metadata.insert("namespace".into(), (&**namespace).into());
    }
    let mut annotations = Map::new();
    annotations.insert(ORIGIN_ANNOTATION.into(), object.policy.rank.name.to_string().into());
    if let Some(enforcement) = object.policy.enforcement {
        let word = if enforcement == Enforcement::Audit { "audit" } else { "enforce" };
        annotations.insert(ENFORCEMENT_ANNOTATION.into(), word.into());
    }
    metadata.insert("annotations".into(), annotations.into());
    let mut spec = Map::new();
    let lists = [(Direction::Ingress, &object.ingress), (Direction::Egress, &object.egress)];
    let (version, kind) = match &object.kind {
        Kind::Network(namespace) => {
            spec.insert("podSelector".into(), selector(&object.subject.pods));
            let types: Vec<Value> = lists
                .iter()
                .filter(|(_, list)| list.is_some())
                .map(|(direction, _)| Value::from(if *direction == Direction::Ingress { "Ingress" } else { "Egress" }))
                .collect();
            spec.insert("policyTypes".into(), types.into());
            for (direction, list) in lists {
                if let Some(list) = list {
                    let rules: Vec<Value> = list.iter().map(|rule| network_rule(direction, rule, namespace)).collect();
                    spec.insert(direction.name().into(), rules.into());
                }
            }
            ("networking.k8s.io/v1", "NetworkPolicy")
        }
        Kind::Cluster(tier, priority) => {
            spec.insert("tier".into(), tier.name().into());
            spec.insert("priority".into(), (*priority).into());
            spec.insert("subject".into(), pods(&object.subject));
            for (direction, list) in lists {
                if let Some(list) = list {
                    let rules: Vec<Value> = list.iter().map(|rule| cluster_rule(direction, rule)).collect();
                    spec.insert(direction.name().into(), rules.into());
                }
            }
            ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy")
        }
    };
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}

fn selector(of: &Selector) -> Value {
    let (mut labels, mut expressions) = (Map::new(), Vec::new());
    for requirement in of.requirements() {
        let key = &*requirement.key;
        let (operator, values): (_, &[_]) = match &requirement.condition {
            Condition::In(values) if values.len() == 1 && !labels.contains_key(key) => {
                labels.insert(key.into(), (&*values[0]).into());
                continue;
            }
            Condition::In(values) => ("In", values),
            Condition::NotIn(values) => ("NotIn", values),
            Condition::Exists => ("Exists", &[]),
            Condition::DoesNotExist => ("DoesNotExist", &[]),
            // Replaced by values before.
            Condition::Contains(_) | Condition::StartsWith(_) | Condition::EndsWith(_) => continue,
        };
        let mut expression = json!({"key": key, "operator": operator});
        if !values.is_empty() {
            expression["values"] = values.iter().map(|value| Value::from(&**value)).collect::<Vec<_>>().into();
        }
        expressions.push(expression);
    }
    let mut all = Map::new();
    if !labels.is_empty() {
        all.insert("matchLabels".into(), labels.into());
    }
    if !expressions.is_empty() {
        all.insert("matchExpressions".into(), expressions.into());
    }
    all.into()
}

/// Returns pods as a peer or subject of a ClusterNetworkPolicy.
fn pods(of: &PodPeer) -> Value {
    let namespaces = selector(&selector_of(&of.namespaces));
    if of.pods.requirements().is_empty() {
        return json!({"namespaces": namespaces});
    }
    json!({"pods": {"namespaceSelector": namespaces, "podSelector": selector(&of.pods)}})
}

fn network_rule(direction: Direction, rule: &Rule, own: &str) -> Value {
    let mut all = Map::new();
    if let Some(peers) = &rule.traffic.peers {
        let peer = |peer: &Peer| match peer {
            Peer::Pods(of) => {
                let is_own = matches!(&of.namespaces, NamespaceScope::Own(name) if **name == *own);
                match (is_own, of.pods.requirements().is_empty()) {
                    (true, _) => json!({"podSelector": selector(&of.pods)}),
                    (false, true) => json!({"namespaceSelector": selector(&selector_of(&of.namespaces))}),
                    (false, false) => json!({
                        "namespaceSelector": selector(&selector_of(&of.namespaces)),
                        "podSelector": selector(&of.pods)
                    }),
                }
            }
            Peer::Block(block) => {
                let mut own = json!({"cidr": block.cidr.to_string()});
                if !block.except.is_empty() {
                    own["except"] =
                        block.except.iter().map(|of| Value::from(of.to_string())).collect::<Vec<_>>().into();
                }
                json!({"ipBlock": own})
            }
            // Neither is a peer of a NetworkPolicy: the maker has replaced or refused them.
            Peer::Nodes(_) | Peer::OwnNode | Peer::Region(_) | Peer::Names(_) => Value::Null,
        };
        let peers: Vec<Value> = peers.iter().map(peer).filter(|peer| !peer.is_null()).collect();
        all.insert(if direction == Direction::Ingress { "from" } else { "to" }.into(), peers.into());
    }
    if let Some(ports) = &rule.traffic.ports {
        let port = |port: &PolicyPort| match port {
            PolicyPort::All(transport) => json!({"protocol": transport.name()}),
            PolicyPort::Range { transport, first, last } => {
                let first = (*first).max(1);
                let mut own = json!({"protocol": transport.name(), "port": first});
                if *last > first {
                    own["endPort"] = (*last).into();
                }
                own
            }
            PolicyPort::Named { transport, name } => json!({"protocol": transport.name(), "port": &**name}),
            PolicyPort::Numbers { .. } => Value::Null,
        };
        let ports: Vec<Value> = ports.iter().map(port).filter(|port| !port.is_null()).collect();
        all.insert("ports".into(), ports.into());
    }
    all.into()
}

fn cluster_rule(direction: Direction, rule: &Rule) -> Value {
    let mut all = Map::new();
    if let Some(name) = name(rule) {
        all.insert("name".into(), name.into());
    }
    all.insert("action".into(), rule.step.action.name().into());
    let (mut peers, mut networks) = (Vec::new(), Vec::new());
    for peer in rule.traffic.peers.iter().flatten() {
        match peer {
            Peer::Pods(of) => peers.push(pods(of)),
            Peer::Nodes(of) => peers.push(json!({"nodes": selector(of)})),
            Peer::Names(names) => {
                peers.push(json!({"domainNames": names.iter().map(|name| Value::from(&**name)).collect::<Vec<_>>()}));
            }
            Peer::Block(block) => networks.push(Value::from(block.cidr.to_string())),
            Peer::OwnNode | Peer::Region(_) => {}
        }
    }
    peers.extend(networks.chunks(MAX_LISTED).map(|networks| json!({"networks": networks})));
    all.insert(if direction == Direction::Ingress { "from" } else { "to" }.into(), peers.into());
    if let Some(ports) = &rule.traffic.ports {
        let mut entries: Vec<Value> = Vec::new();
        for port in ports {
            let entry = match port {
                PolicyPort::All(transport) => numbered(*transport, 1, u16::MAX),
                PolicyPort::Range { transport, first, last } => numbered(*transport, *first, *last),
                PolicyPort::Named { name, .. } => json!({"destinationNamedPort": &**name}),
                PolicyPort::Numbers { .. } => continue,
            };
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        all.insert("protocols".into(), entries.into());
    }
    all.into()
}

fn numbered(transport: Transport, first: u16, last: u16) -> Value {
    let first = first.max(1);
    let port = match first >= last {
        true => json!({"number": first}),
        false => json!({"range": {"start": first, "end": last}}),
    };
    json!({transport.name().to_ascii_lowercase(): {"destinationPort": port}})
}

/// Returns the name of a rule of a ClusterNetworkPolicy: its own, if it has one. `None` if it has none.
fn name(rule: &Rule) -> Option<String> {
    let step = &rule.step;
    let written = &super::terms::rules(&step.policy, step.direction)[step.rule?];
    let name = written.name.as_deref()?;
    Some(name.chars().take(100).collect())
}

/// Returns the object as a YAML document with comments.
pub(super) fn text(value: &Value, comments: &Comments) -> String {
    let mut out = String::new();
    let mut writer = Writer { out: &mut out, comments };
    writer.comment("", 0);
    writer.mapping(value, "", 0, 0);
    out
}

struct Writer<'a> {
    out: &'a mut String,
    comments: &'a Comments,
}

impl Writer<'_> {
    fn comment(&mut self, path: &str, indent: usize) {
        for line in self.comments.get(path).into_iter().flatten() {
            let _ = writeln!(self.out, "{:indent$}{line}", "");
        }
    }

    /// Writes the fields of a mapping. The first `skip` spaces of its first line are written already.
    fn mapping(&mut self, value: &Value, path: &str, indent: usize, skip: usize) {
        for (at, (key, value)) in value.as_object().into_iter().flatten().enumerate() {
            let pad = if at == 0 { indent - skip } else { indent };
            let _ = write!(self.out, "{:pad$}{}:", "", word(key));
            self.value(value, &format!("{path}/{key}"), indent);
        }
    }

    /// Writes what follows a key.
    fn value(&mut self, value: &Value, path: &str, indent: usize) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                self.out.push('\n');
                self.mapping(value, path, indent + 2, 0);
            }
            Value::Array(all) if all.iter().any(|of| of.is_object() || of.is_array()) => {
                self.out.push('\n');
                for (at, element) in all.iter().enumerate() {
                    let path = format!("{path}/{at}");
                    self.comment(&path, indent + 2);
                    let _ = write!(self.out, "{:1$}- ", "", indent + 2);
                    if element.as_object().is_some_and(Map::is_empty) {
                        self.out.push_str("{}\n");
                    } else {
                        self.mapping(element, &path, indent + 4, indent + 4);
                    }
                }
            }
            other => {
                let _ = writeln!(self.out, " {}", flow(other));
            }
        }
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        Value::Array(all) => format!("[{}]", all.iter().map(flow).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
