//! Random objects of Cilium, and the features that random packets must reach.

use ipnet::IpNet;

use super::{CidrGroup, CidrRule, CidrSource, Cilium, Entry, Icmp, Peers, Policy, Port, ServicePeer, Spec};
use crate::foreign::kubernetes::Kubernetes;
use crate::foreign::kubernetes::random::{list, net, protocol, range};
use crate::foreign::labels::{LabelSelector, Operator, labels};
use crate::foreign::world::{NAMESPACES, POD_LABELS, PORT_NAMES, TCP, World};
use crate::random::Rng;

/// Each feature of the semantics, with the number of packets about which it must decide.
pub(crate) const FEATURES: [(&str, usize); 49] = [
    ("allowed", 4_000),
    ("denied", 2_000),
    ("IPv4", 4_000),
    ("IPv6", 2_000),
    ("Admin decides", 100),
    ("Admin passes", 70),
    ("Baseline decides", 100),
    ("from the own node", 100),
    ("denied by an entry", 100),
    ("deny before allow", 40),
    ("allowed by an entry", 500),
    ("allowed by a NetworkPolicy of Kubernetes", 60),
    ("denied by default", 1_000),
    ("denied by default of Kubernetes alone", 40),
    ("enableDefaultDeny: false", 600),
    ("entry without fields", 100),
    ("specs", 200),
    ("ports without peers", 100),
    ("endpoints", 40),
    ("endpoints, cluster-wide", 100),
    ("empty selector", 30),
    ("labels", 70),
    ("namespace by name", 30),
    ("namespace by label", 30),
    ("selector without a namespace", 5),
    ("service account", 10),
    ("CIDR", 20),
    ("CIDR set", 10),
    ("cidrGroupRef", 10),
    ("cidrGroupSelector", 10),
    ("except", 10),
    ("all", 20),
    ("world", 80),
    ("world-ipv4", 5),
    ("world-ipv6", 10),
    ("host", 4),
    ("remote-node", 8),
    ("cluster", 200),
    ("kube-apiserver", 8),
    ("Service with a selector", 6),
    ("Service without a selector", 7),
    ("port", 70),
    ("port 0", 100),
    ("protocol ANY", 80),
    ("SCTP by ANY", 8),
    ("port name", 2),
    ("ICMP", 5),
    ("ICMP by name", 2),
    ("HTTP rules", 8),
];

/// Sets of entities of one entry.
const ENTITIES: [&[&str]; 13] = [
    &["all"],
    &["world"],
    &["world"],
    &["world-ipv4"],
    &["world-ipv6"],
    &["host"],
    &["host", "remote-node"],
    &["remote-node", "host", "world"],
    &["cluster"],
    &["kube-apiserver"],
    &["kube-apiserver", "none"],
    &["health", "init", "ingress", "unmanaged"],
    &["cluster", "world-ipv6"],
];

/// The ICMP types that have a name: family, type and name.
const ICMP_NAMES: [(bool, u8, &str); 4] =
    [(false, 8, "EchoRequest"), (false, 0, "EchoReply"), (true, 128, "EchoRequest"), (true, 3, "TimeExceeded")];

impl Cilium {
    pub(crate) fn random(rng: &mut Rng, world: &World) -> Self {
        let groups = (0..3).map(|at| CidrGroup {
            name: format!("group-{at}"),
            labels: labels([("kind", rng.pick(&["partner", "office"]))]),
            cidrs: (0..1 + rng.below(2)).map(|_| net(rng)).collect(),
        });
        let groups = groups.collect();
        let mut policies = Vec::new();
        for at in 0..1 + rng.below(5) {
            let namespace = rng.chance(60).then(|| rng.pick(&NAMESPACES));
            let count = if rng.chance(25) { 2 } else { 1 };
            let specs = (0..count).map(|_| spec(rng, world, namespace)).collect();
            policies.push(Policy { namespace, name: format!("policy-{at}"), specs });
        }
        Self { policies, groups, kubernetes: Kubernetes::random(rng, 3) }
    }
}

/// Adds a source before some keys.
fn with_source(rng: &mut Rng, selector: LabelSelector) -> LabelSelector {
    let mut source = |key: String| format!("{}{key}", rng.pick(&["", "", "k8s:", "any:"]));
    LabelSelector {
        labels: selector.labels.into_iter().map(|(key, value)| (source(key), value)).collect(),
        expressions: selector
            .expressions
            .into_iter()
            .map(|(key, operator, values)| (source(key), operator, values))
            .collect(),
    }
}

fn spec(rng: &mut Rng, world: &World, namespace: Option<&'static str>) -> Spec {
    let subject = LabelSelector::random(rng, &POD_LABELS);
    let mut subject = with_source(rng, subject);
    if namespace.is_none() && rng.chance(40) {
        subject.labels.insert("k8s:io.kubernetes.pod.namespace".into(), rng.pick(&NAMESPACES).into());
    }
    let default_deny = |rng: &mut Rng| match rng.below(5) {
        0 | 1 => Some(false),
        2 => Some(true),
        _ => None,
    };
    let mut spec = Spec {
        subject,
        default_deny: (default_deny(rng), default_deny(rng)),
        ingress: rng.chance(60).then(|| list(rng, 4, |rng| entry(rng, world, true))),
        ingress_deny: rng.chance(30).then(|| list(rng, 3, |rng| entry(rng, world, true))),
        egress: rng.chance(60).then(|| list(rng, 4, |rng| entry(rng, world, false))),
        egress_deny: rng.chance(30).then(|| list(rng, 3, |rng| entry(rng, world, false))),
    };
    for section in [&mut spec.ingress_deny, &mut spec.egress_deny] {
        section.iter_mut().flatten().for_each(|entry| entry.has_http = false);
    }
    // The source does not tell whether a policy without entries isolates then.
    if !spec.has_entries(super::Direction::Ingress) {
        spec.default_deny.0 = spec.default_deny.0.filter(|isolates| !isolates);
    }
    if !spec.has_entries(super::Direction::Egress) {
        spec.default_deny.1 = spec.default_deny.1.filter(|isolates| !isolates);
    }
    spec
}

fn entry(rng: &mut Rng, world: &World, is_ingress: bool) -> Entry {
    let nets = |rng: &mut Rng| -> Vec<IpNet> { (0..1 + rng.below(2)).map(|_| net(rng)).collect() };
    let peers = match rng.below(13) {
        0 | 1 => Peers::Absent,
        2..=5 => Peers::Endpoints(list(rng, 4, peer)),
        6 => Peers::Cidr(nets(rng)),
        7 | 8 => Peers::CidrSet((0..1 + rng.below(2)).map(|_| cidr_rule(rng)).collect()),
        9 | 10 => Peers::Entities(rng.pick(&ENTITIES).to_vec()),
        _ if is_ingress => Peers::Entities(vec!["world", "cluster"]),
        _ => Peers::Services(vec![service(rng, world)]),
    };
    let mut entry = Entry { peers, ports: Vec::new(), icmps: Vec::new(), has_http: false };
    match rng.below(6) {
        0..=2 => {
            // Names of ports are refused beside destinations that are no pods.
            let may_name = is_ingress || matches!(entry.peers, Peers::Endpoints(_));
            entry.ports = (0..1 + rng.below(2)).map(|_| port(rng, may_name)).collect();
        }
        3 => entry.icmps = vec![icmp(rng)],
        _ => {}
    }
    if !entry.ports.is_empty() && rng.chance(15) {
        entry.has_http = true;
        let port = Port::Range { protocol: Some(TCP), first: 80, last: 80 };
        entry.ports = vec![port];
    }
    entry
}

fn peer(rng: &mut Rng) -> LabelSelector {
    let mut selector = LabelSelector::random(rng, &POD_LABELS);
    let name = |rng: &mut Rng| rng.pick(&NAMESPACES).to_owned();
    match rng.below(9) {
        0 => drop(selector.labels.insert("io.kubernetes.pod.namespace".into(), name(rng))),
        1 => {
            let values = vec![name(rng), name(rng)];
            selector.expressions.push(("io.kubernetes.pod.namespace".into(), Operator::In, values));
        }
        2 => {
            let (key, value) = rng.pick(&[("team", "red"), ("team", "blue"), ("env", "prod")]);
            selector.labels.insert(format!("io.cilium.k8s.namespace.labels.{key}"), value.into());
        }
        3 => {
            let key = "io.cilium.k8s.namespace.labels.env".to_owned();
            selector.expressions.push((key, Operator::Exists, Vec::new()));
        }
        4 => {
            let key = "io.kubernetes.pod.namespace".to_owned();
            selector.expressions.push((key, Operator::NotIn, vec![name(rng)]));
        }
        5 => {
            let key = "io.cilium.k8s.namespace.labels.team".to_owned();
            selector.expressions.push((key, Operator::DoesNotExist, Vec::new()));
        }
        6 => {
            let key = "io.cilium.k8s.policy.serviceaccount".to_owned();
            selector.labels.insert(key, rng.pick(&["default", "robot"]).into());
        }
        _ => {}
    }
    with_source(rng, selector)
}

fn cidr_rule(rng: &mut Rng) -> CidrRule {
    let of = match rng.below(3) {
        0 => CidrSource::Group(format!("group-{}", rng.below(3))),
        1 => CidrSource::Groups(LabelSelector {
            labels: labels([("kind", rng.pick(&["partner", "office"]))]),
            ..LabelSelector::default()
        }),
        _ => CidrSource::Cidr(net(rng)),
    };
    let except = list(rng, 3, net).into_iter().filter(|except| match &of {
        CidrSource::Cidr(net) => net.contains(except) && net != except,
        _ => true,
    });
    let except = except.collect();
    CidrRule { of, except }
}

fn service(rng: &mut Rng, world: &World) -> ServicePeer {
    let at = rng.below(world.services.len());
    let found = &world.services[at];
    match rng.below(3) {
        0 => ServicePeer::Named { namespace: found.namespace, name: found.name },
        1 => ServicePeer::Selected {
            namespace: Some(found.namespace),
            selector: LabelSelector { labels: found.labels.clone(), ..LabelSelector::default() },
        },
        _ => ServicePeer::Selected {
            namespace: None,
            selector: LabelSelector { labels: found.labels.clone(), ..LabelSelector::default() },
        },
    }
}

fn port(rng: &mut Rng, may_name: bool) -> Port {
    let protocol = rng.chance(60).then(|| protocol(rng));
    match rng.below(6) {
        0 => Port::Range { protocol, first: 0, last: 0 },
        1 | 2 if may_name => Port::Named { protocol, name: rng.pick(&PORT_NAMES) },
        _ => {
            let (first, last) = range(rng);
            Port::Range { protocol, first, last }
        }
    }
}

fn icmp(rng: &mut Rng) -> Icmp {
    if rng.chance(40) {
        let (is_ipv6, kind, name) = rng.pick(&ICMP_NAMES);
        return Icmp { is_ipv6, kind, name: Some(name) };
    }
    Icmp { is_ipv6: rng.chance(50), kind: rng.pick(&[0, 3, 8, 128]), name: None }
}
