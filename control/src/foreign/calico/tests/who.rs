//! Selectors, namespaces, service accounts, sets of networks and Services.

use super::*;

/// The sources from which an ingress rule of the policy lets packets to pod `x/a` pass.
fn sources(policy: &str) -> Vec<&'static str> {
    let world = world(policy);
    [B, C, OUTSIDE].into_iter().filter(|from| world.allows(from, A, 80)).collect()
}

fn from(source: &str) -> Vec<&'static str> {
    sources(&policy("x/p", &format!("{{types: [Ingress], ingress: [{{action: Allow, source: {source}}}]}}")))
}

fn from_global(source: &str) -> Vec<&'static str> {
    sources(&global("p", &format!("{{types: [Ingress], ingress: [{{action: Allow, source: {source}}}]}}")))
}

#[test]
fn policies_select_pods_of_their_namespace_or_of_all() {
    let isolated = |documents: &str| {
        let world = world(documents);
        [A, B, C].into_iter().filter(|to| !world.allows(OUTSIDE, to, 80)).collect::<Vec<_>>()
    };
    assert_eq!(isolated(&policy("x/p", DENY_ALL)), [A, B]);
    assert_eq!(isolated(&policy("x/p", "{types: [Ingress]}")), [A, B], "an empty selector");
    assert_eq!(isolated(&policy("x/p", "{selector: app == 'web', types: [Ingress]}")), [A]);
    assert_eq!(isolated(&global("p", DENY_ALL)), [A, B, C]);
    assert_eq!(isolated(&global("p", "{types: [Ingress]}")), [A, B, C]);
    let of = |spec: &str| isolated(&global("p", &format!("{{types: [Ingress], {spec}}}")));
    assert_eq!(of("namespaceSelector: team == 'blue'"), [C]);
    assert_eq!(of("namespaceSelector: team != 'blue', selector: app == 'web'"), [A]);
    assert_eq!(of("namespaceSelector: 'all()'"), [A, B, C]);
    assert_eq!(of("namespaceSelector: projectcalico.org/name == 'z'"), [C]);
    assert_eq!(of("serviceAccountSelector: role == 'machine'"), [B]);
    assert_eq!(of("serviceAccountSelector: role != 'machine'"), [A, C], "also without the label");
    assert_eq!(of("serviceAccountSelector: projectcalico.org/name == 'robot'"), [B]);
    assert_eq!(of("selector: pcns.team == 'red' && pcsa.role == 'machine'"), [B]);
    assert_eq!(of("selector: projectcalico.org/namespace == 'z'"), [C]);
    assert_eq!(of("selector: \"projectcalico.org/serviceaccount in {'robot', 'other'}\""), [B]);
    assert_eq!(of("selector: projectcalico.org/serviceaccount starts with 'rob'"), [B]);
    assert_eq!(of("selector: projectcalico.org/orchestrator == 'k8s' && !(app == 'web')"), [B]);
    assert_eq!(of("selector: projectcalico.org/orchestrator != 'k8s'"), [""; 0]);
    assert_eq!(of("selector: '!has(projectcalico.org/namespace)'"), [""; 0]);
    assert_eq!(of("selector: app contains 'e' || pcns.team ends with 'ue'"), [A, C]);
    assert_eq!(of("selector: '!(app contains \"e\")'"), [B]);
}

#[test]
fn selectors_of_an_entity_are_limited_to_the_namespace_of_the_policy() {
    assert_eq!(from("{selector: 'all()'}"), [B]);
    assert_eq!(from("{selector: app == 'web'}"), [""; 0]);
    assert_eq!(from("{selector: app == 'web', namespaceSelector: 'all()'}"), [C]);
    assert_eq!(from("{namespaceSelector: team == 'blue'}"), [C]);
    assert_eq!(from("{}"), [B, C, OUTSIDE]);
    assert_eq!(from_global("{selector: 'all()'}"), [B, C]);
    assert_eq!(from_global("{selector: app == 'web'}"), [C]);
}

#[test]
fn not_selector_alone_means_the_namespaces_others_or_the_whole_world() {
    assert_eq!(from("{notSelector: app == 'db'}"), [""; 0]);
    assert_eq!(from("{notSelector: app == 'web'}"), [B]);
    assert_eq!(from_global("{notSelector: app == 'web'}"), [B, OUTSIDE]);
    assert_eq!(from_global("{notSelector: app == 'db'}"), [C, OUTSIDE]);
    // A negation inside of the selector selects endpoints.
    assert_eq!(from_global("{selector: app != 'web'}"), [B]);
    assert_eq!(from("{notSelector: app == 'db', namespaceSelector: 'all()'}"), [C]);
}

#[test]
fn all_conditions_of_an_entity_must_hold() {
    assert_eq!(from_global("{selector: 'all()', nets: [10.0.0.2/32, 192.0.2.0/24]}"), [B]);
    assert_eq!(from_global("{nets: [10.0.0.0/8], notNets: [10.0.0.2/32]}"), [C]);
    assert_eq!(from_global("{notNets: [10.0.0.2/31]}"), [OUTSIDE]);
    assert_eq!(from_global("{selector: 'all()', notNets: [10.0.0.2/32]}"), [C]);
    assert_eq!(from_global("{nets: [0.0.0.0/0], notSelector: app == 'db'}"), [C, OUTSIDE]);
    assert_eq!(from_global("{selector: 'all()', notSelector: app == 'db', nets: [10.0.0.0/29]}"), [C]);
    assert_eq!(from("{serviceAccounts: {names: [robot]}, selector: app == 'web'}"), [""; 0]);
}

#[test]
fn service_accounts_are_names_and_labels_in_the_namespace_of_the_policy() {
    assert_eq!(from("{serviceAccounts: {names: [robot, default]}}"), [B]);
    assert_eq!(from("{serviceAccounts: {names: [default]}}"), [""; 0]);
    assert_eq!(from("{serviceAccounts: {names: [default]}, namespaceSelector: 'all()'}"), [C]);
    assert_eq!(from("{serviceAccounts: {selector: role == 'machine'}}"), [B]);
    assert_eq!(from("{serviceAccounts: {selector: role == 'machine', names: [default]}}"), [""; 0]);
    assert_eq!(from("{serviceAccounts: {}}"), [B, C, OUTSIDE], "no condition");
    assert_eq!(from_global("{serviceAccounts: {selector: '!has(role)'}}"), [C]);
    assert_eq!(from_global("{serviceAccounts: {names: [default]}}"), [C]);
}

#[test]
fn sets_of_networks_are_endpoints_with_labels() {
    let set = |kind: &str, metadata: &str| {
        document("projectcalico.org/v3", kind, metadata, "{nets: [192.0.2.0/25, 198.51.100.7]}")
    };
    let own = set("NetworkSet", "{name: s, namespace: x, labels: {kind: partner}}");
    let others = set("NetworkSet", "{name: s, namespace: z, labels: {kind: partner}}");
    let everywhere = set("GlobalNetworkSet", "{name: s, labels: {kind: partner}}");
    let host = "{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {kind: partner}}, \
                spec: {node: one, interfaceName: eth0, expectedIPs: [192.0.2.1]}}\n---\n";
    let allows = |sets: &str, source: &str| {
        let spec = format!("{{types: [Ingress], ingress: [{{action: Allow, source: {source}}}]}}");
        world(&(sets.to_owned() + &policy("x/p", &spec))).allows(OUTSIDE, A, 80)
    };
    let partner = "{selector: kind == 'partner'}";
    assert!(allows(&own, partner) && !allows(&others, partner) && !allows(&everywhere, partner));
    let anywhere = "{selector: kind == 'partner', namespaceSelector: 'all()'}";
    assert!(allows(&own, anywhere) && allows(&others, anywhere) && !allows(&everywhere, anywhere));
    let outside = "{selector: kind == 'partner', namespaceSelector: 'global()'}";
    assert!(!allows(&own, outside) && allows(&everywhere, outside) && allows(host, outside));
    let blue = "{selector: kind == 'partner', namespaceSelector: team == 'blue'}";
    assert!(!allows(&own, blue) && allows(&others, blue) && !allows(&everywhere, blue));
    let not_blue = "{selector: kind == 'partner', namespaceSelector: team != 'blue'}";
    assert!(allows(&own, not_blue) && !allows(&others, not_blue) && allows(&everywhere, not_blue));
    assert!(!allows(&everywhere, "{nets: [0.0.0.0/0], notSelector: kind == 'partner', namespaceSelector: 'all()'}"));
    // Beside a selector, `notSelector` is about the same endpoint: the set does not exclude the pods in it.
    let wide = everywhere.replace("192.0.2.0/25", "10.0.0.0/8");
    let spec = |source: &str| format!("{{types: [Ingress], ingress: [{{action: Allow, source: {source}}}]}}");
    let from_pod = |source: &str| world(&(wide.clone() + &global("p", &spec(source)))).allows(B, A, 80);
    assert!(from_pod("{selector: has(app), notSelector: kind == 'partner'}"));
    assert!(!from_pod("{nets: [0.0.0.0/0], notSelector: kind == 'partner'}"));
    // Stored objects may have their labels in an annotation.
    let stored = "{apiVersion: crd.projectcalico.org/v1, kind: GlobalNetworkSet, metadata: {name: s, annotations: \
                  {projectcalico.org/metadata: '{\"labels\": {\"kind\": \"partner\"}}'}}, spec: {nets: [192.0.2.1/32]}}\n---\n";
    assert!(allows(stored, outside));
}

const SERVICE: &str = "
{apiVersion: v1, kind: Service, metadata: {name: s, namespace: z}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: 8080}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s-1, namespace: z, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.0.0.3], conditions: {ready: false}}, {addresses: [192.0.2.1]}]
---
";

#[test]
fn a_service_is_its_endpoints_with_their_ports_towards_it_and_without_from_it() {
    let spec = "{types: [Egress], egress: [{action: Allow, destination: {services: {name: s, namespace: z}}}]}";
    let to = world(&(SERVICE.to_owned() + &policy("x/p", spec)));
    assert!(to.allows(A, C, 8080) && to.allows(A, OUTSIDE, 8080), "ready or not");
    assert!(!to.allows(A, C, 80) && !to.allows(A, B, 8080));
    assert!(!to.passes(A, C, protocol::UDP, 8080));
    let spec = "{types: [Ingress], ingress: [{action: Allow, protocol: TCP, source: {services: {name: s, namespace: z}}, \
                destination: {ports: [80]}}]}";
    let from = world(&(SERVICE.to_owned() + &policy("x/p", spec)));
    assert!(from.allows(C, A, 80) && from.allows(OUTSIDE, A, 80));
    assert!(!from.allows(C, A, 81) && !from.allows(B, A, 80));
    let none = policy(
        "x/p",
        "{types: [Egress], egress: [{action: Allow, destination: {services: {name: other, namespace: z}}}]}",
    );
    assert!(!world(&(SERVICE.to_owned() + &none)).allows(A, C, 8080));
}

#[test]
fn conditions_on_the_own_end_limit_a_rule_to_some_pods_and_keep_the_order() {
    let rules = "{types: [Ingress], ingress: [{action: Allow, destination: {selector: app == 'web'}}, {action: Deny, source: \
                 {nets: [192.0.2.0/24]}}, {action: Allow}]}";
    let world = world(&policy("x/p", rules));
    assert!(world.allows(OUTSIDE, A, 80) && !world.allows(OUTSIDE, B, 80) && world.allows(C, B, 80));
    let names: Vec<_> = world.policies.iter().map(|policy| &*policy.rank.name.name).collect();
    assert_eq!(names, ["x/p", "x/p#1", "x/p#2"]);
    let indices = |at: usize| world.policies[at].ingress.iter().map(|rule| rule.at).collect::<Vec<_>>();
    assert_eq!((indices(0), indices(1), indices(2)), (vec![], vec![Some(0)], vec![Some(1), Some(2)]));
    let not = policy("x/p", "{types: [Egress], egress: [{action: Allow, source: {notSelector: app == 'web'}}]}");
    let world = super::world(&not);
    assert!(!world.allows(A, OUTSIDE, 80) && world.allows(B, OUTSIDE, 80));
}
