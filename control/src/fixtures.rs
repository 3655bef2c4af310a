//! Shorthands that make objects in this crate's unit tests.

use std::sync::Arc;

use crate::object::{
    Labels, NAMESPACE_NAME_LABEL, Namespace, NamespaceScope, Node, Object, ObjectName, Peer, Pod, PodPeer, Policy,
    PolicyPort, PolicyRule, Transport,
};
use crate::selector::{Condition, Requirement, Selector};

pub(crate) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

pub(crate) fn labels(text: &str) -> Labels {
    text.split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(k, v)| (k.into(), v.into()))
        .collect()
}

/// Parses one requirement: `a=b`, `a!=b` or `a in (b,c)`. An empty text selects everything.
pub(crate) fn selector(text: &str) -> Selector {
    if text.is_empty() {
        return Selector::everything();
    }
    let values = |list: &str| list.split(',').map(Arc::from).collect::<Vec<Arc<str>>>();
    let (key, condition) = if let Some((key, rest)) = text.split_once(" in (") {
        (key, Condition::In(values(rest.trim_end_matches(')'))))
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Condition::NotIn(values(value)))
    } else {
        let (key, value) = text.split_once('=').unwrap();
        (key, Condition::In(values(value)))
    };
    Selector::new([Requirement { key: key.into(), condition }])
}

pub(crate) fn namespace(name: &str, text: &str) -> Object {
    let mut labels = labels(text);
    labels.insert(NAMESPACE_NAME_LABEL.into(), name.into());
    Object::Namespace(Namespace {
        name: name.into(),
        labels,
        terminating: false,
        isolation: crate::object::IngressIsolation::ClusterDefault,
        denied: None,
        enforcement: None,
    })
}

pub(crate) fn node(name: &str, address: &str) -> Object {
    Object::Node(Node {
        name: name.into(),
        labels: Labels::new(),
        addresses: vec![address.parse().unwrap()],
        pod_cidrs: vec![],
        terminating: false,
    })
}

pub(crate) fn pod(text: &str, addresses: &str, node: &str, label_text: &str) -> Object {
    Object::from(Pod {
        name: name(text),
        labels: labels(label_text),
        node: Some(node.into()),
        addresses: addresses.split(',').filter(|a| !a.is_empty()).map(|a| a.parse().unwrap()).collect(),
        mac: None,
        host_network: false,
        finished: false,
        service_account: None,
        uid: None,
        lifetime: crate::object::Lifetime::default(),
        ports: vec![],
        host_ports: [].into(),
        owner: None,
        planned: false,
    })
}

pub(crate) fn policy(
    text: &str,
    subject: &str,
    ingress: Option<Vec<PolicyRule>>,
    egress: Option<Vec<PolicyRule>>,
) -> Object {
    Object::from(Policy {
        name: name(text),
        subject: selector(subject),
        ingress,
        egress,
        version: crate::object::PolicyVersion::V1,
        fault: None,
        position: None,
        identity: None,
        enforcement: None,
    })
}

pub(crate) fn deny_all(text: &str) -> Object {
    policy(text, "", Some(vec![]), None)
}

pub(crate) fn from_pods(namespace: &str, pods: &str, port: Option<u16>) -> PolicyRule {
    PolicyRule {
        peers: Some(vec![Peer::Pods(PodPeer {
            namespaces: NamespaceScope::Own(namespace.into()),
            pods: selector(pods),
            filter: None,
        })]),
        ports: port.map(|port| vec![PolicyPort::Range { transport: Transport::Tcp, first: port, last: port }]),
    }
}
