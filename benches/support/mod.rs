//! An invented cluster for benches. It is seeded, so that all runs and versions measure the same objects.
//!
//! Its shape follows the fixtures in reports about large clusters. Pods are spread evenly over namespaces, with ten apps per namespace and
//! ten teams of namespaces. The pods of a node belong to many namespaces. A policy selects one app of its namespace. It admits another app
//! of the namespace, and an app of all namespaces of one team, on one or two ports. Every third policy also restricts egress to an app of
//! its namespace, a team, and a block with an exception.
//!
//! No two pods have adjacent addresses, so a set of pods has as many intervals as pods: the worst case.
//!
//! A shape may add *broad* policies, which name pods without selecting some, as large clusters have them for monitoring, ingress gateways
//! and meshes. They name all pods (`namespaceSelector: {}`) in either direction, or allow egress to a named port of all addresses or a
//! block, which may mean any pod that declares the name.
#![allow(dead_code, clippy::unwrap_used, reason = "each bench uses a part of this")]

pub(crate) mod files;
pub(crate) mod services;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bulkhead_control::object::{
    ContainerPort, IngressIsolation, IpBlock, Labels, Lifetime, NAMESPACE_NAME_LABEL, Namespace, NamespaceScope, Node,
    Object, ObjectName, Peer, Pod, PodPeer, Policy, PolicyPort, PolicyRule, PolicyVersion, Transport,
};
use bulkhead_control::selector::{Condition, Requirement, Selector};

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Number of pods.
    pub pods: u32,
    /// Number of namespaces that the pods are spread over.
    pub namespaces: u32,
    /// Number of policies, spread over the namespaces.
    pub policies: u32,
    /// Number of pods on each node.
    pub pods_per_node: u32,
    /// Number of broad policies of each of the two kinds.
    pub broad: u32,
}

/// Number of apps in a namespace, and of teams.
const APPS: u32 = 10;
const TEAMS: u32 = 10;

pub(crate) fn cluster(shape: Shape) -> Vec<Object> {
    let mut random = Random(0x5eed);
    let mut objects = Vec::new();
    for at in 0..shape.namespaces {
        objects.push(Object::Namespace(namespace(at, at % TEAMS)));
    }
    for at in 0..shape.pods.div_ceil(shape.pods_per_node) {
        let address = IpAddr::from(Ipv4Addr::from(0xac10_0000 + at));
        objects.push(Object::Node(Node {
            name: node_name(at),
            labels: Labels::new(),
            addresses: vec![address],
            pod_cidrs: vec![],
            terminating: false,
        }));
    }
    objects.extend((0..shape.pods).map(|at| Object::from(pod(shape, at))));
    objects.extend((0..shape.policies).map(|at| Object::from(policy(shape, at, &mut random))));
    let subject = one("app", "a0");
    objects.extend((0..shape.broad).flat_map(|at| broad(at, &namespace_name(at % shape.namespaces), &subject)));
    objects
}

pub(crate) fn node_name(at: u32) -> Arc<str> {
    format!("node-{at}").into()
}

fn namespace_name(at: u32) -> Arc<str> {
    format!("ns-{at}").into()
}

pub(crate) fn namespace(at: u32, team: u32) -> Namespace {
    let name = namespace_name(at);
    let labels = labels(&[("team", format!("t{team}")), (NAMESPACE_NAME_LABEL, name.to_string())]);
    Namespace {
        name,
        labels,
        terminating: false,
        isolation: IngressIsolation::ClusterDefault,
        denied: None,
        enforcement: None,
    }
}

pub(crate) fn pod_address(at: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0001 + 2 * at).into()
}

/// Returns pod number `at`. Consecutive pods are on one node and in different namespaces.
pub(crate) fn pod(shape: Shape, at: u32) -> Pod {
    let app = at / shape.namespaces % APPS;
    Pod {
        name: ObjectName::new(namespace_name(at % shape.namespaces), format!("pod-{at}")),
        labels: labels(&[("app", format!("a{app}")), ("release", format!("r{}", at % 3))]),
        node: Some(node_name(at / shape.pods_per_node)),
        addresses: vec![pod_address(at)],
        mac: None,
        host_network: false,
        finished: false,
        service_account: None,
        uid: None,
        lifetime: Lifetime::default(),
        ports: vec![ContainerPort { name: "http".into(), transport: Transport::Tcp, port: 8080 }],
        host_ports: [].into(),
        owner: None,
        planned: false,
    }
}

pub(crate) fn policy(shape: Shape, at: u32, random: &mut Random) -> Policy {
    let namespace = namespace_name(at % shape.namespaces);
    let in_namespace = |app: u32| {
        Peer::Pods(PodPeer {
            namespaces: NamespaceScope::Own(namespace.clone()),
            pods: one("app", &format!("a{app}")),
            filter: None,
        })
    };
    let in_team = |app: u32, team: u32| {
        let namespaces = NamespaceScope::Selected(one("team", &format!("t{team}")));
        Peer::Pods(PodPeer { namespaces, pods: one("app", &format!("a{app}")), filter: None })
    };
    let tcp = |port| PolicyPort::Range { transport: Transport::Tcp, first: port, last: port };
    let web = PolicyPort::Named { transport: Transport::Tcp, name: "http".into() };
    let ingress = vec![
        PolicyRule { peers: Some(vec![in_namespace(random.below(APPS))]), ports: Some(vec![tcp(443), web]) },
        PolicyRule {
            peers: Some(vec![in_team(random.below(APPS), random.below(TEAMS))]),
            ports: Some(vec![tcp(9090)]),
        },
    ];
    let block = IpBlock { cidr: "192.0.2.0/24".parse().unwrap(), except: vec!["192.0.2.64/26".parse().unwrap()] };
    let egress = vec![
        PolicyRule {
            peers: Some(vec![in_namespace(random.below(APPS)), in_team(random.below(APPS), random.below(TEAMS))]),
            ports: None,
        },
        PolicyRule { peers: Some(vec![Peer::Block(block)]), ports: Some(vec![tcp(5432)]) },
    ];
    Policy {
        name: ObjectName::new(namespace.clone(), format!("policy-{at}")),
        subject: one("app", &format!("a{}", at / shape.namespaces % APPS)),
        ingress: Some(ingress),
        egress: at.is_multiple_of(3).then_some(egress),
        version: PolicyVersion::V1,
        fault: None,
        position: None,
        identity: None,
        enforcement: None,
    }
}

/// The port that broad policies open to all pods, as for a metrics collector.
pub(crate) const METRICS: u16 = 9_100;

/// The port that every pod declares as `http`.
pub(crate) const HTTP: u16 = 8_080;

/// Returns broad policies number `at`, one of each kind, for the subject's pods in a namespace. The first admits all pods to [`METRICS`];
/// every second one also allows egress to port 443 of all pods. The second allows egress to `http` of all addresses, of a block, or of all
/// pods, in turn.
pub(crate) fn broad(at: u32, namespace: &Arc<str>, subject: &Selector) -> [Object; 2] {
    let all = || {
        let namespaces = NamespaceScope::Selected(Selector::everything());
        Peer::Pods(PodPeer { namespaces, pods: Selector::everything(), filter: None })
    };
    let tcp = |port| PolicyPort::Range { transport: Transport::Tcp, first: port, last: port };
    let http = PolicyPort::Named { transport: Transport::Tcp, name: "http".into() };
    let block = Peer::Block(IpBlock { cidr: "10.0.0.0/8".parse().unwrap(), except: vec![] });
    let policy = |name: &str, ingress, egress| {
        Object::from(Policy {
            name: ObjectName::new(namespace.clone(), format!("{name}-{at}")),
            subject: subject.clone(),
            ingress,
            egress,
            version: PolicyVersion::V1,
            fault: None,
            position: None,
            identity: None,
            enforcement: None,
        })
    };
    let rule = |peers, port| vec![PolicyRule { peers, ports: Some(vec![port]) }];
    let out = at.is_multiple_of(2).then(|| rule(Some(vec![all()]), tcp(443)));
    let named = match at % 3 {
        0 => rule(None, http),
        1 => rule(Some(vec![block]), http),
        _ => rule(Some(vec![all()]), http),
    };
    [policy("all-pods", Some(rule(Some(vec![all()]), tcp(METRICS))), out), policy("port-name", None, Some(named))]
}

/// Returns policy number `at`, which selects a pod of the first node. It allows traffic from and to the pods of team 0.
pub(crate) fn naming_team(at: u32, shape: Shape) -> Object {
    let namespaces = NamespaceScope::Selected(one("team", "t0"));
    named_both_ways("team", at, shape, &PodPeer { namespaces, pods: Selector::everything(), filter: None })
}

/// Returns policy number `at`, which selects a pod of the first node. It allows traffic from and to all pods.
pub(crate) fn naming_all(at: u32, shape: Shape) -> Object {
    let namespaces = NamespaceScope::Selected(Selector::everything());
    named_both_ways("everybody", at, shape, &PodPeer { namespaces, pods: Selector::everything(), filter: None })
}

fn named_both_ways(name: &str, at: u32, shape: Shape, peer: &PodPeer) -> Object {
    let rule = |port| {
        let port = PolicyPort::Range { transport: Transport::Tcp, first: port, last: port };
        vec![PolicyRule { peers: Some(vec![Peer::Pods(peer.clone())]), ports: Some(vec![port]) }]
    };
    let port = 1_000 + u16::try_from(at).expect("few policies");
    Object::from(Policy {
        name: ObjectName::new(namespace_name(at % shape.namespaces), format!("{name}-{at}")),
        subject: one("app", "a0"),
        ingress: Some(rule(port)),
        egress: Some(rule(port)),
        version: PolicyVersion::V1,
        fault: None,
        position: None,
        identity: None,
        enforcement: None,
    })
}

/// Returns a cluster in which 25 local pods of one namespace admit ten remote pods of another, and one of the ten. Only the
/// `broad_policies` broad policies of each kind name the other pods.
pub(crate) fn local_shape(pods: u32, broad_policies: u32) -> (Vec<Object>, Pod) {
    let named = |at: u32, node: u32, namespace: u32, app: &str| {
        let shape = Shape { pods, namespaces: 1, policies: 0, pods_per_node: 1, broad: 0 };
        Pod {
            name: ObjectName::new(namespace_name(namespace), format!("pod-{at}")),
            labels: labels(&[("app", app.to_owned())]),
            node: Some(node_name(node)),
            ..pod(shape, at)
        }
    };
    let mut objects = vec![Object::Namespace(namespace(0, 0)), Object::Namespace(namespace(1, 1))];
    objects.extend((0..25).map(|at| Object::from(named(at, 0, 0, "server"))));
    objects.extend((25..35).map(|at| Object::from(named(at, 1, 1, "client"))));
    objects.extend((35..pods).map(|at| Object::from(named(at, 2 + at / 250, 2 + at % 1_000, "other"))));
    let namespaces = NamespaceScope::Selected(one("team", "t1"));
    let peer = Peer::Pods(PodPeer { namespaces, pods: one("app", "client"), filter: None });
    let web = PolicyPort::Named { transport: Transport::Tcp, name: "http".into() };
    objects.push(Object::from(Policy {
        name: ObjectName::new(namespace_name(0), "servers"),
        subject: one("app", "server"),
        ingress: Some(vec![PolicyRule { peers: Some(vec![peer.clone()]), ports: Some(vec![web]) }]),
        egress: Some(vec![PolicyRule { peers: Some(vec![peer]), ports: None }]),
        version: PolicyVersion::V1,
        fault: None,
        position: None,
        identity: None,
        enforcement: None,
    }));
    let servers = one("app", "server");
    objects.extend((0..broad_policies).flat_map(|at| broad(at, &namespace_name(0), &servers)));
    (objects, named(25, 1, 1, "client"))
}

/// Returns Contiv's stress policy: for one pod and each direction, 1,000 blocks with five exceptions and twenty ports.
pub(crate) fn stress() -> Vec<Object> {
    let shape = Shape { pods: 1, namespaces: 1, policies: 1, pods_per_node: 1, broad: 0 };
    let block = |at: u32| {
        let network = 0x2000_0000 + (at << 16);
        let except =
            (0..5).map(|hole| ipnet::Ipv4Net::new(Ipv4Addr::from(network + (hole * 37 + 1) * 64), 28).unwrap().into());
        let cidr = ipnet::Ipv4Net::new(Ipv4Addr::from(network), 16).unwrap().into();
        Peer::Block(IpBlock { cidr, except: except.collect() })
    };
    let ports =
        (0..20).map(|at| PolicyPort::Range { transport: Transport::Tcp, first: 1_000 + at * 2, last: 1_000 + at * 2 });
    let rule = PolicyRule { peers: Some((0..1_000).map(block).collect()), ports: Some(ports.collect()) };
    let mut policy = policy(shape, 0, &mut Random(0));
    policy.ingress = Some(vec![rule.clone()]);
    policy.egress = Some(vec![rule]);
    vec![Object::Namespace(namespace(0, 0)), Object::from(pod(shape, 0)), Object::from(policy)]
}

fn one(key: &str, value: &str) -> Selector {
    Selector::new([Requirement { key: key.into(), condition: Condition::In(vec![value.into()]) }])
}

fn labels(pairs: &[(&str, String)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), value.as_str().into())).collect()
}

/// A small seeded generator (SplitMix64), so that the cluster does not depend on a library's version.
#[derive(Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).expect("below a u32")
    }
}
