//! A made-up cluster for benches: seeded, so that two runs and two versions see the same objects.
//!
//! Shape, after the fixtures that large-cluster reports describe: pods spread evenly over namespaces, ten apps a namespace,
//! ten teams over the namespaces; the pods of one node spread over many namespaces. A policy selects one app of its
//! namespace; it lets in another app of the namespace and an app of all namespaces of one team, on one or two ports; every
//! third policy also restricts egress to an app of its namespace, a team, and a block with an exception.
//!
//! No two pods have neighbouring addresses, so that a set of pods is as many intervals as pods: the worst case.
//!
//! On top come, where a shape asks for them, *broad* policies, which name pods without saying which, as large clusters have
//! them for monitoring, ingress gateways and meshes: a group of all pods (`namespaceSelector: {}`) in either direction, and
//! egress port names without pod selectors (to everybody, to a block), which may mean any pod that declares the name.
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

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Pods in all.
    pub pods: u32,
    /// Namespaces that they are spread over.
    pub namespaces: u32,
    /// Policies, spread over the namespaces.
    pub policies: u32,
    /// Pods on each node.
    pub pods_per_node: u32,
    /// Broad policies of each of the two kinds.
    pub broad: u32,
}

/// Apps in a namespace, and teams over all namespaces.
const APPS: u32 = 10;
const TEAMS: u32 = 10;

/// All objects of a cluster.
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

/// The name of a node.
pub(crate) fn node_name(at: u32) -> Arc<str> {
    format!("node-{at}").into()
}

fn namespace_name(at: u32) -> Arc<str> {
    format!("ns-{at}").into()
}

/// A namespace of a team.
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

/// The address of pod number `at`.
pub(crate) fn pod_address(at: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0001 + 2 * at).into()
}

/// Pod number `at`: consecutive pods are on one node and in different namespaces.
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
        uid: None,
        lifetime: Lifetime::default(),
        ports: vec![ContainerPort { name: "http".into(), transport: Transport::Tcp, port: 8080 }],
        host_ports: [].into(),
        owner: None,
        planned: false,
    }
}

/// Policy number `at`.
pub(crate) fn policy(shape: Shape, at: u32, random: &mut Random) -> Policy {
    let namespace = namespace_name(at % shape.namespaces);
    let in_namespace = |app: u32| {
        Peer::Pods(PodPeer { namespaces: NamespaceScope::Own(namespace.clone()), pods: one("app", &format!("a{app}")) })
    };
    let in_team = |app: u32, team: u32| {
        let namespaces = NamespaceScope::Selected(one("team", &format!("t{team}")));
        Peer::Pods(PodPeer { namespaces, pods: one("app", &format!("a{app}")) })
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

/// Broad policies number `at`, one of each kind, on the subject's pods of a namespace: all pods may come to [`METRICS`],
/// and with every second policy the subject may go to all pods' 443; the subject may go to `http` of everybody, of a
/// block, and of all pods, in turn.
pub(crate) fn broad(at: u32, namespace: &Arc<str>, subject: &Selector) -> [Object; 2] {
    let all = || {
        let namespaces = NamespaceScope::Selected(Selector::everything());
        Peer::Pods(PodPeer { namespaces, pods: Selector::everything() })
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

/// Policy number `at` of a pod of the first node: pods of team 0 may come in, and it may go out to them.
pub(crate) fn naming_team(at: u32, shape: Shape) -> Object {
    let namespaces = NamespaceScope::Selected(one("team", "t0"));
    named_both_ways("team", at, shape, &PodPeer { namespaces, pods: Selector::everything() })
}

/// Policy number `at` of a pod of the first node: all pods may come in, and it may go out to them.
pub(crate) fn naming_all(at: u32, shape: Shape) -> Object {
    let namespaces = NamespaceScope::Selected(Selector::everything());
    named_both_ways("everybody", at, shape, &PodPeer { namespaces, pods: Selector::everything() })
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

/// A cluster in which 25 local pods of one namespace let in ten remote pods of another, whatever else there is: the rest
/// are pods that no policy names but `broad_policies` broad ones of each kind. The second answer is one of the ten.
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
    let peer = Peer::Pods(PodPeer { namespaces, pods: one("app", "client") });
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

/// Contiv's stress policy: for each direction 1,000 blocks with five exceptions and twenty ports, on one pod.
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

/// A small seeded generator (SplitMix64), so that the cluster does not change with a library's version.
#[derive(Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).expect("below a u32")
    }
}
