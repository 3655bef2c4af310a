use std::net::IpAddr;

use bulkhead_classifier::{Action, Key, Rule, protocol};
use proptest::prelude::*;

use super::*;
use crate::fixtures::{deny_all, from_pods, name, namespace, node, pod, policy};
use crate::object::{
    ISOLATION_ANNOTATION, IpBlock, Namespace, NamespaceScope, ObjectName, Peer, PodPeer, PolicyRule, Position,
};
use crate::origin::{Direction, Origin, Origins};
use crate::renderer::acl::Attachment;
use crate::source::{Options, Semantics, load_text};

fn cluster(objects: Vec<Object>) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Cluster);
    pipeline.resync(objects).unwrap();
    pipeline
}

fn tcp(src: &str, dst: &str, port: u16) -> Key {
    Key::new(src.parse().unwrap(), dst.parse().unwrap(), protocol::TCP, 40_000, port)
}

/// Returns the verdict and its origin at the interface where a packet leaves a node's vswitch.
fn judge(pipeline: &Pipeline, node: &str, key: &Key) -> (Action, Option<Origin>) {
    let tables = pipeline.node_tables(node).expect("the node is in the scope");
    let dst: IpAddr = key.dst();
    let at = |attachment: &Attachment| tables.interfaces.iter().position(|i| i.attachment == *attachment);
    let owner = tables.interfaces.iter().position(|interface| interface.addresses.contains(&dst));
    let interface = &tables.interfaces[owner.or_else(|| at(&Attachment::Uplink)).unwrap()];
    let tables = &tables.tables[interface.table].tables;
    let verdict = tables.lookup(key);
    (verdict.action(), tables.deciding_rule(verdict).and_then(|rule| pipeline.origins().get(rule.origin).cloned()))
}

fn allowed(pipeline: &Pipeline, node: &str, key: &Key) -> bool {
    judge(pipeline, node, key).0 == Action::Allow
}

fn redis() -> Vec<Object> {
    vec![
        namespace("default", ""),
        node("n1", "192.168.0.1"),
        pod("default/db", "10.244.1.2", "n1", "role=db"),
        pod("default/frontend", "10.244.1.3", "n1", "role=frontend"),
        pod("default/backend1", "10.244.1.4", "n1", "role=backend"),
        pod("default/backend2", "10.244.2.5", "n2", "role=backend"),
    ]
}

fn allow_backend() -> Object {
    policy("default/allow-backend", "role=db", Some(vec![from_pods("default", "role=backend", Some(6379))]), None)
}

fn egress_to_web() -> Object {
    policy("default/to-web", "role=frontend", None, Some(vec![from_pods("default", "role=web", Some(80))]))
}

#[test]
fn without_a_policy_everything_passes_and_one_table_serves_all_pods() {
    let pipeline = cluster(redis());
    assert!(allowed(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.2", 6379)));
    let tables = pipeline.node_tables("n1").unwrap();
    assert_eq!(tables.tables.len(), 2, "one for the three pods, one for the exit");
    assert_eq!(tables.interfaces.len(), 5, "three pods, uplink, host");
}

#[test]
fn an_address_of_a_nodes_pod_network_that_no_pod_has_is_judged_by_its_number_on_that_node_too() {
    // Source addresses of outside clients whose connections to a Service were forwarded by node n1 or n2. The vswitch must mistake them
    // neither for the node, which all policies allow, nor for a pod.
    let with_network = |object: Object, network: &str| match object {
        Object::Node(node) => Object::Node(Node { pod_cidrs: vec![network.parse().unwrap()], ..node }),
        other => other,
    };
    let nodes = [("n1", "192.168.0.1", "10.244.1.0/24"), ("n2", "192.168.0.2", "10.244.2.0/24")];
    let mut objects: Vec<Object> =
        nodes.iter().map(|(name, address, network)| with_network(node(name, address), network)).collect();
    objects.extend([namespace("default", ""), pod("default/db", "10.244.1.2", "n1", "role=db")]);
    objects.push(pod("default/backend2", "10.244.2.5", "n2", "role=backend"));
    let from_block = |block: &str| {
        let text = format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: default}}, spec: {{podSelector: \
             {{}}, policyTypes: [Ingress], ingress: [{{from: [{{podSelector: {{}}}}, {{ipBlock: {{cidr: {block}}}}}]}}]}}}}"
        );
        load_text("p", &text, Options::default()).unwrap().objects
    };
    for (block, expected) in [("192.168.0.0/16", false), ("10.244.2.1/32", true)] {
        let pipeline = cluster(objects.iter().cloned().chain(from_block(block)).collect());
        let passes = |from: &str| allowed(&pipeline, "n1", &tcp(from, "10.244.1.2", 80));
        assert_eq!(passes("10.244.2.1"), expected, "the other node's, with {block}");
        assert!(!passes("10.244.1.1"), "the own node's is not exempt as the node is");
        assert!(passes("192.168.0.1") && passes("10.244.2.5"));
        assert_eq!(passes("192.168.0.2"), !expected, "another node is what its address is");
    }
}

#[test]
fn the_redis_story_lets_backends_of_any_node_in_and_names_what_stops_the_frontend() {
    let mut objects = redis();
    objects.push(allow_backend());
    let pipeline = cluster(objects);
    for backend in ["10.244.1.4", "10.244.2.5"] {
        let (action, origin) = judge(&pipeline, "n1", &tcp(backend, "10.244.1.2", 6379));
        assert_eq!(action, Action::Allow);
        let direction = Direction::Ingress;
        assert_eq!(origin, Some(Origin::Policy { policy: name("default/allow-backend"), direction, rule: 0 }));
    }
    let (action, origin) = judge(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.2", 6379));
    let policies = [name("default/allow-backend")];
    assert_eq!((action, origin), (Action::Deny, Some(Origin::isolation(policies, Direction::Ingress))));
    assert!(!allowed(&pipeline, "n1", &tcp("10.244.1.4", "10.244.1.2", 6380)));
}

#[test]
fn the_sources_egress_rules_are_enforced_at_a_local_destination_and_at_the_exit() {
    let mut objects = redis();
    objects.push(egress_to_web());
    let pipeline = cluster(objects);
    let policies: Arc<[_]> = [name("default/to-web")].into();
    let isolation = Some(Origin::isolation(policies, Direction::Egress));
    for dst in ["10.244.1.2", "10.244.2.5", "8.8.8.8"] {
        assert_eq!(judge(&pipeline, "n1", &tcp("10.244.1.3", dst, 80)), (Action::Deny, isolation.clone()));
        assert!(allowed(&pipeline, "n1", &tcp("10.244.1.4", dst, 80)));
    }
}

#[test]
fn a_denied_egress_names_the_source_and_a_denied_ingress_the_destination() {
    let mut objects = redis();
    objects.extend([allow_backend(), egress_to_web()]);
    let pipeline = cluster(objects);
    let direction_of = |key: &Key| match judge(&pipeline, "n1", key).1 {
        Some(Origin::Isolation { direction, .. }) => Some(direction),
        _ => None,
    };
    assert_eq!(direction_of(&tcp("10.244.1.3", "10.244.1.2", 6379)), Some(Direction::Egress));
    assert_eq!(direction_of(&tcp("10.244.1.4", "10.244.1.2", 80)), Some(Direction::Ingress));
}

#[test]
fn an_egress_rule_that_allows_is_named_where_the_destination_is_not_isolated() {
    let mut objects = redis();
    objects.push(pod("default/web", "10.244.1.9", "n1", "role=web"));
    objects.push(egress_to_web());
    let pipeline = cluster(objects);
    let direction = Direction::Egress;
    let expected = Some(Origin::Policy { policy: name("default/to-web"), direction, rule: 0 });
    assert_eq!(judge(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.9", 80)), (Action::Allow, expected));
}

#[test]
fn the_own_node_reaches_an_isolated_pod_and_another_node_does_not() {
    let mut objects = redis();
    objects.extend([deny_all("default/deny"), node("n2", "192.168.0.2")]);
    let pipeline = cluster(objects);
    let own = judge(&pipeline, "n1", &tcp("192.168.0.1", "10.244.1.2", 8080));
    assert_eq!(own, (Action::Allow, Some(Origin::OwnNode)));
    assert!(!allowed(&pipeline, "n1", &tcp("192.168.0.2", "10.244.1.2", 8080)));
}

#[test]
fn an_isolated_pod_reaches_its_own_node_and_not_another() {
    let nothing_out = policy("default/quiet", "", None, Some(vec![]));
    let mut objects = redis();
    objects.extend([nothing_out, node("n2", "192.168.0.2")]);
    let pipeline = cluster(objects);
    let own = judge(&pipeline, "n1", &tcp("10.244.1.2", "192.168.0.1", 10250));
    assert_eq!(own, (Action::Allow, Some(Origin::OwnNode)));
    assert!(!allowed(&pipeline, "n1", &tcp("10.244.1.2", "192.168.0.2", 10250)));
}

#[test]
fn an_address_block_does_not_let_the_other_family_in() {
    let block = Peer::Block(IpBlock { cidr: "0.0.0.0/0".parse().unwrap(), except: vec![] });
    let from_v4 = policy("x/p", "", Some(vec![PolicyRule { peers: Some(vec![block]), ports: None }]), None);
    let pipeline = cluster(vec![namespace("x", ""), pod("x/a", "10.0.0.1,fd00::1", "n", ""), from_v4]);
    assert!(allowed(&pipeline, "n", &tcp("10.9.9.9", "10.0.0.1", 80)));
    assert!(!allowed(&pipeline, "n", &tcp("fd00::9", "fd00::1", 80)));
}

#[test]
fn an_address_that_passes_from_one_pod_to_the_next_stays_allowed_in_either_order_of_events() {
    let rule = || from_pods("default", "role=backend", None);
    let base = || {
        let mut objects = redis();
        objects.push(policy("default/p", "role=db", Some(vec![rule()]), None));
        objects
    };
    let key = tcp("10.244.2.5", "10.244.1.2", 1);
    let old = || Event::DeletePod(name("default/backend2"));
    let new = || Event::Apply(pod("default/backend3", "10.244.2.5", "n2", "role=backend"));
    for events in [[old(), new()], [new(), old()]] {
        let mut pipeline = cluster(base());
        for event in events {
            pipeline.apply(event).unwrap();
        }
        assert!(allowed(&pipeline, "n1", &key));
        pipeline.apply(Event::DeletePod(name("default/backend3"))).unwrap();
        assert!(!allowed(&pipeline, "n1", &key));
    }
}

#[test]
fn the_order_of_classes_follows_an_event_that_leaves_every_set_of_sources_as_it_is() {
    let objects = |first: &str| {
        vec![
            namespace("x", ""),
            // Two pods claim one address. Without the first pod, other sources come first.
            pod("x/a", "10.0.0.5", "n1", first),
            pod("x/b", "10.0.0.1", "n1", "role=b"),
            pod("x/c", "10.0.0.5", "n1", "role=c"),
            policy("x/b", "role=b", None, Some(vec![])),
            policy("x/c", "role=c", None, Some(vec![])),
        ]
    };
    let mut pipeline = cluster(objects("role=c"));
    pipeline.apply(Event::Apply(pod("x/a", "10.0.0.5", "n1", "role=d"))).unwrap();
    assert_eq!(enforced(&pipeline), enforced(&cluster(objects("role=d"))));
}

#[test]
fn events_that_concern_nobody_publish_nothing() {
    let mut objects = redis();
    objects.push(allow_backend());
    let mut pipeline = cluster(objects);
    let generation = |pipeline: &Pipeline| pipeline.node_tables("n1").unwrap().generation;
    let before = generation(&pipeline);
    let Object::Policy(mut elsewhere) = allow_backend() else { unreachable!() };
    let place = Position { file: "moved.yaml".into(), document: 1, line: 9, path: "".into() };
    Arc::make_mut(&mut elsewhere).position = Some(place);
    let elsewhere = Object::Policy(elsewhere);
    for event in [
        Event::Apply(allow_backend()),
        Event::Apply(pod("default/other", "10.244.2.77", "n2", "role=other")),
        Event::Apply(pod("default/backend2", "10.244.2.5", "n2", "role=backend,version=2")),
        Event::Apply(namespace("default", "team=red")),
        Event::DeletePolicy(name("default/unknown")),
        Event::Apply(elsewhere),
    ] {
        pipeline.apply(event).unwrap();
        assert_eq!(generation(&pipeline), before);
    }
    pipeline.apply(Event::DeletePod(name("default/backend2"))).unwrap();
    assert!(generation(&pipeline) > before);
}

#[test]
fn host_network_pods_are_the_node_and_finished_pods_are_nobody() {
    let Object::Pod(mut on_host) = pod("default/agent", "192.168.0.1", "n1", "role=backend") else { unreachable!() };
    Arc::make_mut(&mut on_host).host_network = true;
    let Object::Pod(mut ended) = pod("default/job", "10.244.1.7", "n1", "role=backend") else { unreachable!() };
    Arc::make_mut(&mut ended).finished = true;
    let mut objects = redis();
    objects.extend([Object::Pod(on_host), Object::Pod(ended), allow_backend(), deny_all("default/deny")]);
    let pipeline = cluster(objects);
    assert_eq!(judge(&pipeline, "n1", &tcp("192.168.0.1", "10.244.1.2", 1)).1, Some(Origin::OwnNode));
    assert!(!allowed(&pipeline, "n1", &tcp("10.244.1.7", "10.244.1.2", 6379)));
    assert_eq!(pipeline.node_tables("n1").unwrap().interfaces.len(), 5);
}

#[test]
fn a_pod_whose_namespace_is_missing_from_the_state_is_not_let_in_by_its_labels() {
    let red = NamespaceScope::Selected(crate::fixtures::selector("team!=blue"));
    let peer = Peer::Pods(PodPeer { namespaces: red, pods: crate::selector::Selector::everything(), filter: None });
    let rules = vec![PolicyRule { peers: Some(vec![peer]), ports: None }];
    let mut pipeline = cluster(vec![
        namespace("x", ""),
        pod("x/a", "10.0.0.1", "n", ""),
        pod("y/b", "10.0.0.2", "n", ""),
        policy("x/p", "", Some(rules), None),
    ]);
    let key = tcp("10.0.0.2", "10.0.0.1", 80);
    assert!(!allowed(&pipeline, "n", &key));
    pipeline.apply(Event::Apply(namespace("y", "team=red"))).unwrap();
    assert!(allowed(&pipeline, "n", &key));
    pipeline.apply(Event::Apply(namespace("y", "team=blue"))).unwrap();
    assert!(!allowed(&pipeline, "n", &key));
}

fn beta(objects: &str) -> Vec<Object> {
    let semantics = Semantics::V1beta1 { default: IngressIsolation::ClusterDefault };
    load_text("beta.yaml", objects, Options { semantics, ..Options::default() }).unwrap().objects
}

const ISOLATED: &str = r#"
apiVersion: v1
kind: Namespace
metadata:
  name: default
  annotations:
    net.beta.kubernetes.io/network-policy: '{"ingress": {"isolation": "DefaultDeny"}}'
"#;

const BETA_ALLOW: &str = "
apiVersion: extensions/v1beta1
kind: NetworkPolicy
metadata: {name: allow-frontend}
spec:
  podSelector: {matchLabels: {role: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: frontend}}}]
    ports: [{protocol: TCP, port: 6379}]
";

#[test]
fn in_v1beta1_the_namespace_isolates_and_policies_only_allow() {
    let frontend = tcp("10.244.1.3", "10.244.1.2", 6379);
    let backend = tcp("10.244.1.4", "10.244.1.2", 6379);
    let mut pipeline = cluster(redis());
    pipeline.apply(Event::Apply(beta(BETA_ALLOW).remove(0))).unwrap();
    assert!(allowed(&pipeline, "n1", &backend), "without isolation a policy has no effect");
    pipeline.apply(Event::Apply(beta(ISOLATED).remove(0))).unwrap();
    let direction = Direction::Ingress;
    let rule = Origin::Policy { policy: name("default/allow-frontend"), direction, rule: 0 };
    assert_eq!(judge(&pipeline, "n1", &frontend), (Action::Allow, Some(rule)));
    let policies = [ObjectName::new("default", ISOLATION_ANNOTATION)];
    assert_eq!(judge(&pipeline, "n1", &backend), (Action::Deny, Some(Origin::isolation(policies, direction))));
    assert!(!allowed(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.4", 80)), "every pod of the namespace is isolated");
    assert!(allowed(&pipeline, "n1", &tcp("192.168.0.1", "10.244.1.4", 80)), "the kubelet gets through");
    pipeline.apply(Event::Apply(namespace("default", ""))).unwrap();
    assert!(allowed(&pipeline, "n1", &backend), "isolation ends with the annotation");
}

#[test]
fn the_cluster_default_of_v1beta1_isolates_namespaces_that_say_nothing() {
    let mut pipeline = Pipeline::with_default_isolation(Scope::Cluster, IngressIsolation::DefaultDeny);
    pipeline.resync(redis().into_iter().chain(beta(BETA_ALLOW))).unwrap();
    assert!(allowed(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.2", 6379)));
    assert!(!allowed(&pipeline, "n1", &tcp("10.244.1.4", "10.244.1.2", 6379)));
}

fn terminating(text: &str) -> Object {
    let Object::Namespace(namespace) = namespace(text, "") else { unreachable!() };
    Object::Namespace(Namespace { terminating: true, ..namespace })
}

#[test]
fn cve_2024_7598_a_policy_outlives_its_deletion_while_its_pods_live_on_in_a_terminating_namespace() {
    let denied = tcp("10.244.1.3", "10.244.1.2", 6379);
    let mut objects = redis();
    objects.push(allow_backend());
    let mut pipeline = cluster(objects.clone());
    pipeline.apply(Event::Apply(terminating("default"))).unwrap();
    pipeline.apply(Event::DeletePolicy(name("default/allow-backend"))).unwrap();
    assert!(!allowed(&pipeline, "n1", &denied), "the pod is still there, and so is its policy");
    objects.pop();
    objects[0] = terminating("default");
    pipeline.resync(objects).unwrap();
    assert!(!allowed(&pipeline, "n1", &denied), "a list of the cluster no longer has the policy");
    pipeline.apply(Event::DeletePod(name("default/db"))).unwrap();
    assert!(pipeline.cache().policies().is_empty(), "the last pod takes the policy with it");
}

#[test]
fn cve_2024_7598_neither_the_namespaces_end_nor_a_pod_that_loses_its_address_for_a_while_opens_it() {
    let denied = tcp("10.244.1.3", "10.244.1.2", 6379);
    let mut objects = redis();
    objects.push(allow_backend());
    let mut pipeline = cluster(objects);
    pipeline.apply(Event::Apply(terminating("default"))).unwrap();
    pipeline.apply(Event::DeletePolicy(name("default/allow-backend"))).unwrap();
    pipeline.apply(Event::DeleteNamespace("default".into())).unwrap();
    assert!(!allowed(&pipeline, "n1", &denied), "the namespace's end came before its pods'");
    pipeline.apply(Event::Apply(pod("default/db", "", "n1", "role=db"))).unwrap();
    pipeline.apply(Event::Apply(pod("default/db", "10.244.1.2", "n1", "role=db"))).unwrap();
    assert!(!allowed(&pipeline, "n1", &denied));
    let mut left = redis();
    left.remove(0);
    pipeline.resync(left).unwrap();
    assert!(!allowed(&pipeline, "n1", &denied), "a list has neither the namespace nor the policy");
    pipeline.apply(Event::DeletePod(name("default/db"))).unwrap();
    assert!(pipeline.cache().policies().is_empty());
}

#[test]
fn cve_2024_7598_a_namespace_that_is_said_to_be_gone_twice_still_keeps_its_pods_policies() {
    let denied = tcp("10.244.1.3", "10.244.1.2", 6379);
    let mut pipeline = cluster(redis().into_iter().chain([allow_backend(), terminating("default")]).collect());
    pipeline.apply(Event::DeleteNamespace("default".into())).unwrap();
    pipeline.apply(Event::DeleteNamespace("default".into())).unwrap();
    pipeline.apply(Event::DeletePolicy(name("default/allow-backend"))).unwrap();
    assert!(!allowed(&pipeline, "n1", &denied), "the pod is still there");
    pipeline.apply(Event::DeleteNamespace("default".into())).unwrap();
    pipeline.apply(Event::DeletePod(name("default/frontend"))).unwrap();
    assert!(!allowed(&pipeline, "n1", &tcp("10.244.1.4", "10.244.1.2", 6380)));
}

#[test]
fn a_long_history_of_policies_is_forgotten_and_no_verdict_loses_or_changes_its_name() {
    let mut pipeline = Pipeline::new(Scope::Cluster);
    pipeline.origins = Origins::keeping(40);
    pipeline.resync(redis().into_iter().chain([allow_backend(), egress_to_web()])).unwrap();
    let (mut most, mut held) = (0, Vec::new());
    for at in 0..500 {
        let names = [format!("default/a{at}"), format!("default/b{at}")];
        for text in &names {
            pipeline.apply(Event::Apply(deny_all(text))).unwrap();
        }
        let (action, origin) = judge(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.4", 80));
        assert!(action == Action::Deny && matches!(origin, Some(Origin::Isolation { .. })), "{origin:?}");
        let (_, origin) = judge(&pipeline, "n1", &tcp("10.244.1.4", "10.244.1.2", 6379));
        assert!(matches!(origin, Some(Origin::Policy { policy, .. }) if policy == name("default/allow-backend")));
        // A worker may still use these origins. Each keeps its meaning or is forgotten, but never gets another meaning.
        let tables = pipeline.node_tables("n1").unwrap();
        for rule in tables.tables.iter().flat_map(|table| table.tables.rules().iter()) {
            held.push((
                rule.origin,
                pipeline.origins().get(rule.origin).cloned().expect("published tables name everything"),
            ));
        }
        for text in &names {
            pipeline.apply(Event::DeletePolicy(name(text))).unwrap();
        }
        most = most.max(pipeline.origins.len());
    }
    assert!(most < 200, "{most} origins are remembered");
    let lost = held.iter().filter(|(id, _)| pipeline.origins().get(*id).is_none()).count();
    assert!(lost > 0 && held.iter().all(|(id, was)| pipeline.origins().get(*id).is_none_or(|now| now == was)));
}

#[test]
fn a_policy_that_is_deleted_from_a_namespace_that_stays_is_gone_at_once() {
    let mut objects = redis();
    objects.push(allow_backend());
    let mut pipeline = cluster(objects);
    pipeline.apply(Event::DeletePolicy(name("default/allow-backend"))).unwrap();
    assert!(allowed(&pipeline, "n1", &tcp("10.244.1.3", "10.244.1.2", 6379)));
}

/// A table's rules, with the meaning of their origins.
type MeaningfulRules = Vec<(Rule, Option<Origin>)>;

/// Returns the rules of all interfaces, with the origins' meanings instead of their numbers, which depend on the order of events.
fn enforced(pipeline: &Pipeline) -> Vec<(String, MeaningfulRules)> {
    let mut all = Vec::new();
    for node in ["n1", "n2"] {
        let Some(tables) = pipeline.node_tables(node) else { continue };
        for interface in tables.interfaces.iter() {
            if tables.interfaces.len() == 2 {
                continue; // Whether a node without pods is known depends on the events.
            }
            let rules = tables.tables[interface.table].tables.rules();
            let meaning = |rule: &Rule| {
                let origin = pipeline.origins().get(rule.origin).cloned();
                (Rule { origin: OriginId(0), ..rule.clone() }, origin)
            };
            all.push((
                format!("{node} {:?} {:?}", interface.attachment, interface.addresses),
                rules.iter().map(meaning).collect(),
            ));
        }
    }
    all
}

fn any_event() -> impl Strategy<Value = Event> {
    let role = prop_oneof![Just("role=a"), Just("role=b"), Just("role=c")];
    let ns = || prop_oneof![Just("x"), Just("y")];
    let rule =
        (ns(), role.clone(), proptest::option::of(80u16..82)).prop_map(|(ns, role, port)| from_pods(ns, role, port));
    let everywhere = (role.clone(), proptest::option::of(80u16..82)).prop_map(|(team, port)| {
        let team = crate::fixtures::selector(&team.replace("role", "team"));
        let peer = PodPeer {
            namespaces: NamespaceScope::Selected(team),
            pods: crate::selector::Selector::everything(),
            filter: None,
        };
        PolicyRule { peers: Some(vec![Peer::Pods(peer)]), ..from_pods("x", "", port) }
    });
    let rules = || proptest::option::of(proptest::collection::vec(prop_oneof![rule.clone(), everywhere.clone()], 0..3));
    prop_oneof![
        4 => (ns(), 0u8..4, 1u8..6, prop_oneof![Just("n1"), Just("n2")], role.clone()).prop_map(|(ns, n, ip, node, role)| {
            Event::Apply(pod(&format!("{ns}/p{n}"), &format!("10.0.0.{ip}"), node, role))
        }),
        2 => (ns(), 0u8..4).prop_map(|(ns, n)| Event::DeletePod(name(&format!("{ns}/p{n}")))),
        3 => (ns(), 0u8..3, role.clone(), rules(), rules()).prop_map(|(ns, n, subject, ingress, egress)| {
            Event::Apply(policy(&format!("{ns}/q{n}"), subject, ingress, egress))
        }),
        1 => (ns(), 0u8..3).prop_map(|(ns, n)| Event::DeletePolicy(name(&format!("{ns}/q{n}")))),
        1 => (ns(), role.clone()).prop_map(|(ns, team)| Event::Apply(namespace(ns, &team.replace("role", "team")))),
        1 => ns().prop_map(|ns| Event::DeleteNamespace(ns.into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn one_event_after_another_gives_the_tables_of_a_fresh_start(events in proptest::collection::vec(any_event(), 1..40)) {
        let mut running = Pipeline::new(Scope::Cluster);
        for (at, event) in events.iter().enumerate() {
            running.apply(event.clone()).unwrap();
            if at % 5 == 4 || at + 1 == events.len() {
                let mut fresh = Pipeline::new(Scope::Cluster);
                fresh.cache = Cache::default();
                for event in &events[..=at] {
                    for event in fresh.claims.resolve(&fresh.cache, event.clone()) {
                        fresh.cache.apply(event);
                    }
                }
                fresh.render_all().unwrap();
                let (a, b) = (enforced(&running), enforced(&fresh));
                prop_assert_eq!(a, b);
            }
        }
    }
}

mod apart;
mod batches;
mod engines;
mod foreign;
mod growth;
mod work;
