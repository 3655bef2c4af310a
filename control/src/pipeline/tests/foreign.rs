//! Policies of other products, in their resolved form.

use super::*;
use crate::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, ContainerPort, Isolation, NamespaceScope, Order,
    OtherTier, PodPeer, PolicyPort, Rank, Region, RuleAction, Tier, Transport,
};
use crate::selector::Selector;

fn foreign(kind: ClusterPolicyKind, text: &str, tier: Tier, order: Order, ingress: Vec<ClusterRule>) -> ClusterPolicy {
    ClusterPolicy {
        rank: Rank { tier, order, tie: text.into(), name: ClusterPolicyName { kind, name: text.into() } },
        subject: PodPeer {
            namespaces: NamespaceScope::Selected(Selector::everything()),
            pods: Selector::everything(),
            filter: None,
        },
        ingress,
        egress: Vec::new(),
        isolates: Isolation { ingress: true, egress: false },
        is_union: false,
        fault: None,
        position: None,
        enforcement: None,
    }
}

fn rule(action: RuleAction, peers: Option<Vec<Peer>>) -> ClusterRule {
    ClusterRule { name: None, action, traffic: PolicyRule { peers, ports: None }, then: None, at: None }
}

fn block(text: &str) -> Peer {
    Peer::Block(IpBlock { cidr: text.parse().unwrap(), except: Vec::new() })
}

const GLOBAL: ClusterPolicyKind = ClusterPolicyKind::CalicoGlobalNetworkPolicy;

/// A pod on `n1`, with the origin of the decision about ingress from outside as text.
fn decider(policies: impl IntoIterator<Item = Object>) -> (Action, String) {
    let mut objects = vec![node("n1", "192.168.0.1"), pod("x/a", "10.0.0.1", "n1", "app=a")];
    objects.extend(policies);
    let (action, origin) = judge(&cluster(objects), "n1", &tcp("10.9.0.1", "10.0.0.1", 80));
    (action, origin.map(|origin| origin.to_string()).unwrap_or_default())
}

#[test]
fn a_networkpolicy_stands_between_two_policies_by_order_and_among_equals_by_the_text_of_its_name() {
    let own = || policy("x/m", "app=a", Some(vec![PolicyRule { peers: None, ports: None }]), None);
    let deny =
        |text: &str, order| foreign(GLOBAL, text, Tier::NetworkPolicy, order, vec![rule(RuleAction::Deny, None)]);
    for (text, order, first) in [
        ("z", Order::of(999.0), "deny"),
        ("a", Order::of(1_001.0), "x/m"),
        ("a", Order::LAST, "x/m"),
        ("l", Order::NETWORK_POLICY, "deny"),
        ("m", Order::NETWORK_POLICY, "deny"),
        ("n", Order::NETWORK_POLICY, "x/m"),
    ] {
        let (action, origin) = decider([own(), deny(text, order).into()]);
        let expected = if first == "x/m" {
            (Action::Allow, "x/m ingress[0]".to_owned())
        } else {
            (Action::Deny, format!("NetworkPolicy tier, Calico GlobalNetworkPolicy {text} ingress[0]"))
        };
        assert_eq!((action, origin), expected, "{text} {order:?}");
    }
}

#[test]
fn the_end_of_a_tier_names_the_policies_that_isolate_and_a_pass_goes_on_to_the_next_tier() {
    let security = |end| Tier::Other(Arc::new(OtherTier { name: "security".into(), order: Order::of(5.0), end }));
    let accept = || rule(RuleAction::Accept, Some(vec![block("10.8.0.0/16")]));
    let pass = || rule(RuleAction::Pass, Some(vec![block("10.9.0.0/16")]));
    let kind = ClusterPolicyKind::CalicoNetworkPolicy;
    let of = |end, rule| Object::from(foreign(kind, "x/p", security(end), Order::LAST, vec![rule]));
    let isolated = "security tier, ingress isolated by Calico NetworkPolicy x/p".to_owned();
    assert_eq!(decider([of(RuleAction::Deny, accept())]), (Action::Deny, isolated));
    let open = (Action::Allow, "no ingress isolation".to_owned());
    assert_eq!(decider([of(RuleAction::Pass, accept())]), open);
    assert_eq!(decider([of(RuleAction::Deny, pass())]), open);
    let both = "ingress isolated by x/deny, Calico GlobalNetworkPolicy g".to_owned();
    let global = foreign(GLOBAL, "g", Tier::NetworkPolicy, Order::LAST, vec![accept()]);
    let policies = [of(RuleAction::Deny, pass()), deny_all("x/deny"), global.into()];
    assert_eq!(decider(policies), (Action::Deny, both));
}

#[test]
fn a_rule_names_what_else_decides() {
    let rule = ClusterRule { then: Some("HTTP rules".into()), at: Some(7), ..rule(RuleAction::Accept, None) };
    let policy = foreign(ClusterPolicyKind::CiliumNetworkPolicy, "x/p", Tier::NetworkPolicy, Order::LAST, vec![rule]);
    let origin = "NetworkPolicy tier, CiliumNetworkPolicy x/p ingress[7], then HTTP rules".to_owned();
    assert_eq!(decider([policy.into()]), (Action::Allow, origin));
}

#[test]
fn a_port_name_of_a_region_is_looked_up_on_its_pods_only_and_follows_them() {
    let with_port = |name: &str, address: &str, labels: &str, port| {
        let Object::Pod(mut pod) = pod(name, address, "n1", labels) else { unreachable!() };
        Arc::make_mut(&mut pod).ports.push(ContainerPort { name: "web".into(), transport: Transport::Tcp, port });
        Object::Pod(pod)
    };
    let of = |labels: &str| PodPeer {
        namespaces: NamespaceScope::Selected(Selector::everything()),
        pods: crate::fixtures::selector(labels),
        filter: None,
    };
    let region = Region { all: vec![vec![block("10.0.0.0/24")]], none: vec![Peer::Pods(of("app=out"))] };
    let ports = Some(vec![PolicyPort::Named { transport: Transport::Tcp, name: "web".into() }]);
    let traffic = PolicyRule { peers: Some(vec![Peer::Region(Arc::new(region))]), ports };
    let policy = ClusterPolicy {
        subject: of("app=client"),
        egress: vec![ClusterRule { traffic, ..rule(RuleAction::Accept, None) }],
        isolates: Isolation { ingress: false, egress: true },
        ..foreign(GLOBAL, "g", Tier::NetworkPolicy, Order::LAST, Vec::new())
    };
    let mut pipeline = cluster(vec![
        node("n1", "192.168.0.1"),
        pod("x/client", "10.0.0.1", "n1", "app=client"),
        with_port("x/in", "10.0.0.2", "app=in", 80),
        with_port("x/out", "10.0.0.3", "app=out", 80),
        with_port("x/other", "10.0.1.4", "app=in", 80),
        policy.into(),
    ]);
    let reached = |pipeline: &Pipeline| -> Vec<(String, u16)> {
        let ends = ["10.0.0.2", "10.0.0.3", "10.0.1.4"].into_iter().flat_map(|end| [(end, 80), (end, 81)]);
        let allowed = ends.filter(|(end, port)| allowed(pipeline, "n1", &tcp("10.0.0.1", end, *port)));
        allowed.map(|(end, port)| (end.to_owned(), port)).collect()
    };
    let to = |all: &[(&str, u16)]| all.iter().map(|(end, port)| ((*end).to_owned(), *port)).collect::<Vec<_>>();
    assert_eq!(reached(&pipeline), to(&[("10.0.0.2", 80)]));
    // A pod enters the region, then has another number.
    pipeline.apply(Event::Apply(with_port("x/out", "10.0.0.3", "app=in", 80))).unwrap();
    assert_eq!(reached(&pipeline), to(&[("10.0.0.2", 80), ("10.0.0.3", 80)]));
    pipeline.apply(Event::Apply(with_port("x/out", "10.0.0.3", "app=in", 81))).unwrap();
    assert_eq!(reached(&pipeline), to(&[("10.0.0.2", 80), ("10.0.0.3", 81)]));
    pipeline.apply(Event::Apply(with_port("x/out", "10.0.0.3", "app=out", 81))).unwrap();
    assert_eq!(reached(&pipeline), to(&[("10.0.0.2", 80)]));
}
