//! Random objects of Calico, and the features that random packets must reach.

use super::{Accounts, Action, Calico, Entity, Namespaces, NetworkSet, Policy, Port, Rule, Selector, Tier};
use crate::foreign::kubernetes::Kubernetes;
use crate::foreign::kubernetes::random::{list, net, protocol, range};
use crate::foreign::labels::labels;
use crate::foreign::world::{
    ACCOUNT_LABELS, GRE, ICMP, ICMPV6, NAMESPACE_LABELS, NAMESPACES, POD_LABELS, PORT_NAMES, SCTP, TCP, UDP, World,
};
use crate::random::Rng;

/// Each feature of the semantics, with the number of packets about which it must decide.
pub(crate) const FEATURES: [(&str, usize); 63] = [
    ("allowed", 3_000),
    ("denied", 3_000),
    ("IPv4", 4_000),
    ("IPv6", 2_000),
    ("NetworkPolicy", 500),
    ("GlobalNetworkPolicy", 1_000),
    ("types missing in v3", 600),
    ("types missing in crd.projectcalico.org/v1", 300),
    ("policy's namespaceSelector", 200),
    ("policy's serviceAccountSelector", 100),
    ("policy's selector", 600),
    ("NetworkPolicy of Kubernetes allows", 90),
    ("Calico's policy after a NetworkPolicy of Kubernetes", 20),
    ("NetworkPolicy of Kubernetes after Calico's policy", 20),
    ("Log", 400),
    ("Pass", 400),
    ("from the own node", 300),
    ("to the own node", 300),
    ("tier default", 2_000),
    ("tier of ClusterNetworkPolicies", 600),
    ("tier without an object", 300),
    ("own tier", 2_000),
    ("defaultAction Pass", 1_000),
    ("defaultAction Deny", 2_000),
    ("profile", 700),
    ("staged policy", 600),
    ("equal orders", 300),
    ("ipVersion", 100),
    ("protocol", 300),
    ("notProtocol", 300),
    ("icmp", 6),
    ("notICMP", 20),
    ("ports", 80),
    ("notPorts", 70),
    ("named port", 20),
    ("nets", 40),
    ("nets of both families", 50),
    ("notNets", 100),
    ("selector", 100),
    ("all()", 60),
    ("has()", 50),
    ("==", 90),
    ("!=", 50),
    ("in", 30),
    ("not in", 50),
    ("contains", 30),
    ("starts with", 50),
    ("ends with", 20),
    ("!", 50),
    ("&&", 80),
    ("||", 50),
    ("notSelector beside others", 50),
    ("notSelector alone in a NetworkPolicy", 3),
    ("notSelector alone in a GlobalNetworkPolicy", 90),
    ("global()", 6),
    ("namespaceSelector all()", 30),
    ("namespaceSelector", 40),
    ("serviceAccounts by selector", 20),
    ("serviceAccounts by name", 30),
    ("serviceAccounts by both", 3),
    ("network set", 30),
    ("own end", 100),
    ("services", 4),
];

/// The labels of network sets and pods: selectors of rules are about both.
const ENDPOINT_LABELS: [(&str, &[&str]); 8] = [
    POD_LABELS[0],
    POD_LABELS[0],
    POD_LABELS[1],
    ("kind", &["partner", "office"]),
    ("pcns.team", &["red", "blue"]),
    ("pcsa.role", &["reader", "writer"]),
    ("projectcalico.org/namespace", &["a", "b"]),
    ("projectcalico.org/serviceaccount", &["default", "robot"]),
];

const OF_NAMESPACES: [(&str, &[&str]); 3] =
    [NAMESPACE_LABELS[0], NAMESPACE_LABELS[1], ("projectcalico.org/name", &["a", "b"])];

/// A tier without an object.
const MISSING: &str = "ghost";

fn some<T>(rng: &mut Rng, percent: usize, one: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.chance(percent).then(|| one(rng))
}

impl Calico {
    pub(crate) fn random(rng: &mut Rng, world: &World) -> Self {
        let mut tiers = Vec::new();
        for name in ["alpha", "beta", "zeta"] {
            if rng.chance(60) {
                let order = some(rng, 80, |rng| rng.pick(&[-3.5, 1.0, 1e3, 5e3, 1e6, 2e6, 1e7, 3e7]));
                tiers.push(Tier { name, order, passes: some(rng, 70, |rng| rng.chance(60)) });
            }
        }
        let names: Vec<&'static str> = tiers.iter().map(|tier| tier.name).collect();
        let sets = list(rng, 4, network_set).into_iter().enumerate().map(|(at, mut set)| {
            set.name = format!("set-{at}");
            set
        });
        let sets = sets.collect();
        let mut policies: Vec<Policy> = (0..2 + rng.below(7)).map(|_| policy(rng, world, &names)).collect();
        for (at, policy) in policies.iter_mut().enumerate() {
            policy.name = format!("{}{at}", policy.name);
        }
        // Equal names in two namespaces.
        if rng.chance(50) {
            policies.iter_mut().for_each(|policy| policy.name.truncate(1));
            let mut seen = std::collections::BTreeSet::new();
            policies.retain(|policy| seen.insert((policy.namespace, policy.name.clone())));
        }
        Self { tiers, sets, policies, kubernetes: Kubernetes::random(rng, 3) }
    }
}

fn network_set(rng: &mut Rng) -> NetworkSet {
    NetworkSet {
        namespace: some(rng, 60, |rng| rng.pick(&NAMESPACES)),
        name: String::new(),
        labels: match rng.below(3) {
            0 => labels([("kind", "partner"), ("app", "web")]),
            1 => labels([("kind", "office")]),
            _ => labels([("app", "db")]),
        },
        nets: list(rng, 4, net),
    }
}

fn policy(rng: &mut Rng, world: &World, tiers: &[&'static str]) -> Policy {
    let namespace = some(rng, 50, |rng| rng.pick(&NAMESPACES));
    let tier = match rng.below(10) {
        0..=2 => None,
        3 => Some("default"),
        4 => Some(MISSING),
        _ if tiers.is_empty() => None,
        _ => Some(rng.pick(tiers)),
    };
    Policy {
        namespace,
        name: rng.pick(&["b", "k", "t"]).to_owned(),
        is_staged: rng.chance(12),
        is_raw: rng.chance(35),
        tier,
        order: some(rng, 80, |rng| rng.pick(&[-1.0, 10.5, 999.0, 1000.0, 1000.0, 1001.0])),
        selector: some(rng, 60, |rng| Selector::random(rng, &ENDPOINT_LABELS)),
        namespace_selector: namespace
            .is_none()
            .then_some(())
            .and_then(|()| some(rng, 40, |rng| Selector::random(rng, &OF_NAMESPACES))),
        account_selector: some(rng, 15, |rng| Selector::random(rng, &ACCOUNT_LABELS)),
        types: some(rng, 50, |rng| rng.pick(&[(true, true), (true, false), (false, true)])),
        ingress: list(rng, 6, |rng| rule(rng, world)),
        egress: list(rng, 6, |rng| rule(rng, world)),
    }
}

fn rule(rng: &mut Rng, world: &World) -> Rule {
    let mut rule = Rule {
        action: rng.pick(&[Action::Allow, Action::Allow, Action::Deny, Action::Pass, Action::Log]),
        ip_version: some(rng, 10, |rng| rng.pick(&[4, 6])),
        protocol: None,
        not_protocol: None,
        icmp: None,
        not_icmp: None,
        peer: entity(rng, world),
        own: if rng.chance(15) { own_end(rng) } else { Entity::default() },
        ports: Vec::new(),
        not_ports: Vec::new(),
    };
    let has_service = rule.peer.service.is_some();
    match rng.below(10) {
        0..=3 => {
            rule.protocol = Some(protocol(rng));
            if !has_service {
                if rng.chance(25) {
                    let ranges = |rng: &mut Rng| {
                        let (first, last) = range(rng);
                        Port::Range(first, last)
                    };
                    // Names beside `notPorts`, or among them, are refused.
                    (rule.ports, rule.not_ports) = (list(rng, 3, ranges), vec![ranges(rng)]);
                } else {
                    rule.ports = list(rng, 3, port);
                }
            }
        }
        4 | 5 => {
            let (version, protocol) = rng.pick(&[(4, ICMP), (6, ICMPV6)]);
            (rule.ip_version, rule.protocol) = (Some(version), Some(protocol));
            let kind = (rng.pick(&[8, 0, 128, 3]), some(rng, 40, |rng| rng.pick(&[0, 1])));
            match rng.below(3) {
                0 => rule.icmp = Some(kind),
                1 => rule.not_icmp = Some(kind),
                _ => {}
            }
        }
        6 => rule.not_protocol = Some(rng.pick(&[TCP, UDP, SCTP, GRE])),
        7 if rng.chance(30) => rule.protocol = Some(GRE),
        _ => {}
    }
    // Calico's validation refuses a version beside nets of the other one.
    let nets = rule.peer.nets.iter().chain(&rule.peer.not_nets);
    if let Some(version) = rule.ip_version
        && nets.map(|net| if net.addr().is_ipv6() { 6 } else { 4 }).any(|of_net| of_net != version)
    {
        (rule.peer.nets, rule.peer.not_nets) = (Vec::new(), Vec::new());
    }
    rule
}

fn port(rng: &mut Rng) -> Port {
    if rng.chance(35) {
        return Port::Named(rng.pick(&PORT_NAMES));
    }
    let (first, last) = range(rng);
    Port::Range(first, last)
}

fn entity(rng: &mut Rng, world: &World) -> Entity {
    let selector = |rng: &mut Rng| Selector::random(rng, &ENDPOINT_LABELS);
    if rng.chance(15) {
        let at = rng.below(world.services.len());
        let service = &world.services[at];
        return Entity { service: Some((service.namespace, service.name)), ..Entity::default() };
    }
    let mut entity = Entity::default();
    for _ in 0..rng.below(3) {
        match rng.below(7) {
            0 => entity.nets = (0..1 + rng.below(3)).map(|_| net(rng)).collect(),
            1 => entity.not_nets = (0..1 + rng.below(2)).map(|_| net(rng)).collect(),
            2 => entity.selector = Some(selector(rng)),
            3 => entity.not_selector = Some(selector(rng)),
            4 => entity.namespaces = Some(namespaces(rng)),
            5 => entity.accounts = Some(accounts(rng)),
            _ => (entity.selector, entity.not_selector) = (Some(selector(rng)), Some(selector(rng))),
        }
    }
    entity
}

fn own_end(rng: &mut Rng) -> Entity {
    let selector = Some(Selector::random(rng, &ENDPOINT_LABELS));
    match rng.below(4) {
        0 => Entity { not_selector: selector, ..Entity::default() },
        1 => Entity { namespaces: Some(namespaces(rng)), ..Entity::default() },
        2 => Entity { accounts: Some(accounts(rng)), ..Entity::default() },
        _ => Entity { selector, ..Entity::default() },
    }
}

fn namespaces(rng: &mut Rng) -> Namespaces {
    match rng.below(5) {
        0 => Namespaces::Global,
        1 => Namespaces::Selected(Selector::All),
        _ => Namespaces::Selected(Selector::random(rng, &OF_NAMESPACES)),
    }
}

fn accounts(rng: &mut Rng) -> Accounts {
    let role = |rng: &mut Rng| Selector::Equal("role".into(), rng.pick(&["reader", "writer"]).into());
    let names = |rng: &mut Rng| vec![rng.pick(&["default", "robot"]).to_owned(), "other".to_owned()];
    match rng.below(3) {
        0 => Accounts { names: Vec::new(), selector: Some(role(rng)) },
        1 => Accounts { names: names(rng), selector: None },
        _ => Accounts { names: names(rng), selector: Some(role(rng)) },
    }
}
