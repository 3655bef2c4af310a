//! Stand-ins for faulty objects in lenient mode never allow more than the object could mean.

use bulkhead_classifier::{Action, Key, protocol};

use super::tests::{messages, policies, policy_text};
use super::*;
use crate::cache::Event;
use crate::object::{
    ISOLATION_ANNOTATION, IngressIsolation, Labels, NAMESPACE_NAME_LABEL, Namespace, Pod, PolicyVersion,
};
use crate::pipeline::Pipeline;
use crate::processor::Scope;
use crate::renderer::acl::Attachment;

const OF_2016: Semantics = Semantics::V1beta1 { default: IngressIsolation::ClusterDefault };

fn lenient(text: &str) -> Loaded {
    let options = Options { semantics: OF_2016, ..Strictness::Lenient.into() };
    load_text("t.yaml", text, options).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> Vec<String> {
    messages(&load_text("t.yaml", text, Options { semantics: OF_2016, ..Options::default() }).unwrap_err())
}

const DENY: &str = r#"{"ingress": {"isolation": "DefaultDeny"}}"#;

fn namespace(name: &str, labels: &str, annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  labels: {labels}\n  annotations:\n    {ISOLATION_ANNOTATION}: '{annotation}'\n---\n"
    )
}

fn plain(name: &str, labels: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {labels}}}}}\n---\n")
}

fn pod(namespace: &str, name: &str, address: &str, rest: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: {namespace}, name: {name}, labels: {{app: {name}}}}}, \
         spec: {{nodeName: n1{rest}}}, status: {{podIP: {address}}}}}\n---\n"
    )
}

fn only_namespace(text: &str) -> Namespace {
    match &lenient(text).objects[..] {
        [Object::Namespace(namespace)] => namespace.clone(),
        other => panic!("one namespace expected: {other:?}"),
    }
}

fn only_pod(text: &str) -> Pod {
    match &lenient(text).objects[..] {
        [Object::Pod(pod)] => Pod::clone(pod),
        other => panic!("one pod expected: {other:?}"),
    }
}

/// Whether the pod with address `dst` accepts TCP from `src` to port 80.
fn lets_in(pipeline: &Pipeline, src: &str, dst: &str) -> bool {
    let key = Key::new(src.parse().unwrap(), dst.parse().unwrap(), protocol::TCP, 40_000, 80);
    let node = pipeline.node_tables("n1").expect("the node has pods");
    let is_pod = |attachment: &Attachment| matches!(attachment, Attachment::Pod(_));
    let interface = node.interfaces.iter().find(|i| is_pod(&i.attachment) && i.addresses.contains(&key.dst()));
    node.tables[interface.expect("the pod is there").table].tables.lookup(&key).action() == Action::Allow
}

/// Asserts whether traffic from 10.0.0.2 to 10.0.0.1 is allowed, for every order of the objects: after all events, after a further change
/// of each pod, and after a resync.
fn assert_lets_in(text: &str, expected: bool) {
    let loaded = lenient(text);
    let mut rotated = loaded.objects.clone();
    for order in 0..2 * rotated.len() {
        rotated.rotate_left(1);
        if order == loaded.objects.len() {
            rotated.reverse();
        }
        let mut running = Pipeline::new(Scope::Cluster);
        rotated.iter().for_each(|object| running.apply(Event::Apply(object.clone())).unwrap());
        assert_eq!(lets_in(&running, "10.0.0.2", "10.0.0.1"), expected, "{rotated:#?}");
        // Change each pod and restore it, because an event without a change has no effect.
        for object in &rotated {
            if let Object::Pod(pod) = object {
                let elsewhere = Pod { mac: Some([2; 6]), labels: Labels::default(), ..Pod::clone(pod) };
                running.apply(Event::Apply(elsewhere.into())).unwrap();
                running.apply(Event::Apply(object.clone())).unwrap();
                assert_eq!(lets_in(&running, "10.0.0.2", "10.0.0.1"), expected, "{rotated:#?}");
            }
        }
        let mut fresh = Pipeline::new(Scope::Cluster);
        fresh.resync(rotated.clone()).unwrap();
        assert_eq!(lets_in(&fresh, "10.0.0.2", "10.0.0.1"), expected, "{rotated:#?}");
    }
}

#[test]
fn the_pods_of_a_namespace_that_was_not_understood_are_isolated_in_every_order_of_events() {
    let (good, bad_annotation) = (namespace("x", "{}", DENY), namespace("x", "{}", "DefaultDeny"));
    let bad_labels = namespace("x", "{a: 1}", DENY);
    let pods = pod("x", "victim", "10.0.0.1", "") + &pod("there", "client", "10.0.0.2", "");
    for faulty in [
        bad_annotation.clone(),
        bad_labels.clone(),
        namespace("x", "[]", "{}"),
        format!("{good}{}", plain("x", "{}")),
        format!("{}{good}", plain("x", "{}")),
        format!("{good}{}", namespace("x", "{a: b}", DENY)),
        format!("{good}{bad_annotation}"),
        format!("{good}{bad_labels}"),
        format!("{bad_annotation}{}", plain("x", "{}")),
        good.replace("metadata:", "status: []\nmetadata:"),
    ] {
        assert_eq!(only_namespace(&faulty).isolation, IngressIsolation::DefaultDeny, "{faulty}");
        assert_lets_in(&format!("{faulty}{pods}"), false);
        assert_lets_in(&format!("{pods}{faulty}"), false);
        assert!(!errors(&faulty).is_empty());
    }
    // In a namespace without the annotation, the same pods are open.
    assert_lets_in(&format!("{}{pods}", plain("x", "{}")), true);
    assert_lets_in(&format!("{}{pods}", plain("x", "{a: 1}")), true);
}

#[test]
fn of_a_namespace_that_was_not_understood_only_the_name_is_known() {
    let text = namespace("x", "{team: red, a: 1}", DENY).replace("metadata:", "metadata:\n  deletionTimestamp: now");
    let namespace = only_namespace(&text);
    assert_eq!(namespace.labels, Labels::from([(NAMESPACE_NAME_LABEL.into(), "x".into())]));
    assert!(namespace.terminating);
    let messages = messages(&lenient(&text).warnings);
    assert_eq!(messages.len(), 1);
    assert!(messages[0].ends_with("; until then its pods are isolated, and only its name is used"), "{messages:?}");
}

#[test]
fn a_selector_of_absent_labels_selects_no_namespace_whose_labels_are_not_known() {
    let policy = |selector: &str| {
        let policy =
            policy_text(&format!("podSelector: {{}}\ningress: [{{from: [{{namespaceSelector: {selector}}}]}}]"));
        policy.replace("namespace: shop", "namespace: x") + "---\n"
    };
    let pods = pod("x", "victim", "10.0.0.1", "") + &pod("evil", "client", "10.0.0.2", "");
    let faulty = [plain("evil", "{team: 7}"), plain("evil", "{team: a}") + &plain("evil", "{team: b}")];
    for (selector, lets_in, lets_in_unknown) in [
        ("{matchExpressions: [{key: team, operator: NotIn, values: [evil]}]}", true, false),
        ("{matchExpressions: [{key: bad, operator: DoesNotExist}]}", true, false),
        ("{matchLabels: {team: a}}", true, false),
        ("{}", true, true),
        ("{matchLabels: {kubernetes.io/metadata.name: evil}}", true, true),
        ("{matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [there]}]}", true, true),
        ("{matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [evil]}]}", false, false),
    ] {
        let text = format!("{}{}{pods}", plain("x", "{}"), policy(selector));
        assert_lets_in(&(text.clone() + &plain("evil", "{team: a}")), lets_in);
        for faulty in &faulty {
            assert_lets_in(&(text.clone() + faulty), lets_in_unknown);
        }
    }
}

#[test]
fn a_namespace_that_no_pod_can_be_in_is_left_out() {
    for metadata in ["{}", "[]", "{name: {}}", "{name: X}", "null"] {
        let text = format!("{{apiVersion: v1, kind: Namespace, metadata: {metadata}}}");
        let loaded = lenient(&text);
        assert_eq!((loaded.objects.len(), loaded.faulty, loaded.warnings.total()), (0, 1, 1), "{metadata}");
        assert!(!errors(&text).is_empty(), "{metadata}");
    }
    assert_eq!(&*only_namespace("{apiVersion: v1, kind: Namespace, metadata: {name: 7}}").name, "7");
}

#[test]
fn a_pod_with_a_bad_port_keeps_its_address_its_labels_and_its_other_ports() {
    let good = "{ports: [{name: dns, containerPort: 53}]}";
    for (containers, ports) in [
        (format!("[{good}, {{ports: [{{name: web, containerPort: 0}}]}}]"), 1),
        (format!("[{good}, {{ports: [{{name: web, containerPort: http}}]}}]"), 1),
        ("[{ports: [{name: web, containerPort: 80, protocol: tcp}, {name: dns, containerPort: 53}]}]".to_owned(), 1),
        (format!("[{good}, {{ports: {{}}}}]"), 1),
        (format!("[{good}, {{restartPolicy: [], ports: []}}]"), 1),
        (format!("[{good}, 7]"), 1),
        ("{}".to_owned(), 0),
    ] {
        let text = pod("x", "web", "10.0.0.1", &format!(", containers: {containers}"));
        let pod = only_pod(&text);
        assert!(pod.is_endpoint() && pod.node.is_some() && pod.labels.len() == 1, "{pod:?}");
        assert_eq!(pod.ports.len(), ports, "{text}");
        let messages = messages(&lenient(&text).warnings);
        assert!(messages.len() == 1 && messages[0].ends_with("; until then the object is used without this part"));
        assert_eq!(errors(&text).len(), 1);
    }
    let annotations = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: []}, status: {podIP: 10.0.0.1}}";
    assert!(only_pod(annotations).is_endpoint());
}

#[test]
fn a_pod_with_a_bad_port_stays_bound_by_its_policies() {
    let text = |port: &str| {
        let policy = policy_text("podSelector: {matchLabels: {app: client}}\negress: []\npolicyTypes: [Egress]");
        policy.replace("namespace: shop", "namespace: there")
            + "---\n"
            + &pod("x", "victim", "10.0.0.1", "")
            + &pod(
                "there",
                "client",
                "10.0.0.2",
                &format!(", containers: [{{ports: [{{name: p, containerPort: {port}}}]}}]"),
            )
    };
    assert_lets_in(&text("80"), false);
    assert_lets_in(&text("0"), false);
}

#[test]
fn a_pod_of_which_more_than_its_ports_is_not_known_is_nobody_and_the_others_stay() {
    let text = |metadata: &str, spec: &str, status: &str| {
        format!("{{apiVersion: v1, kind: Pod, metadata: {metadata}, spec: {spec}, status: {status}}}")
    };
    let (name, address) = ("{name: a}", "{podIP: 10.0.0.1}");
    for (metadata, spec, status) in [
        ("{name: a, labels: {v: 1.10}}", "{}", address),
        ("{name: a, labels: []}", "{}", "{podIPs: [{ip: 10.0.0.1}]}"),
        ("{}", "{}", address),
        ("[]", "{}", address),
        ("{name: a, namespace: B}", "{}", address),
        (name, "[]", address),
        (name, "{nodeName: 7}", address),
        (name, "{hostNetwork: 'no'}", address),
        (name, "{}", "{phase: 7, podIP: 10.0.0.1}"),
        (name, "{}", "{podIP: x}"),
        (name, "{}", "{podIPs: {}}"),
        (name, "{}", "{podIPs: ''}"),
        (name, "{}", "{podIP: []}"),
        (name, "{}", "{podIPs: [{ip: 10.0.0.1}, {ip: 10.0.0.2}]}"),
        (name, "{}", "[]"),
    ] {
        let text = text(metadata, spec, status);
        let errors = errors(&text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        let other = pod("x", "other", "10.0.0.9", "");
        for text in [format!("{text}\n---\n{other}"), format!("{other}{text}")] {
            let loaded = lenient(&text);
            assert_eq!((loaded.objects.len(), loaded.faulty), (1, 1), "{text}");
            let [warning] = &messages(&loaded.warnings)[..] else { panic!("{text}: {}", loaded.warnings) };
            assert!(warning.ends_with("; until then the object is left out"), "{warning}");
        }
    }
    for (metadata, spec, status) in [
        ("{name: a, labels: []}", "{}", "{}"),
        ("{name: a, labels: []}", "{hostNetwork: true}", address),
        ("{name: a, labels: []}", "{}", "{phase: Failed, podIP: 10.0.0.1}"),
    ] {
        assert_eq!(lenient(&text(metadata, spec, status)).objects, [], "{metadata}");
    }
}

#[test]
fn two_pods_of_one_name_are_nobody_unless_they_are_the_same_but_for_their_ports() {
    let ports = |ports: &str| pod("x", "a", "10.0.0.1", &format!(", containers: [{{ports: [{ports}]}}]"));
    let (one, other) =
        (ports("{name: p, containerPort: 1}"), ports("{name: p, containerPort: 1}, {name: q, containerPort: 2}"));
    assert_eq!(only_pod(&format!("{one}{one}")), only_pod(&one));
    assert_eq!(only_pod(&format!("{one}{other}")), only_pod(&one));
    assert_eq!(only_pod(&format!("{other}{one}{other}")), only_pod(&one));
    let without_address = one.replace("podIP: 10.0.0.1", "podIP: ''");
    for different in [
        one.replace("10.0.0.1", "10.0.0.2"),
        one.replace("app: a", "app: b"),
        one.replace("nodeName: n1", "nodeName: n2"),
        without_address.clone(),
        without_address.replace("app: a", "app: 1"),
    ] {
        for text in [format!("{one}{different}"), format!("{different}{one}"), format!("{one}{different}{one}")] {
            let loaded = lenient(&text);
            assert_eq!(loaded.objects, [], "{text}");
            let warnings = loaded.warnings.to_string();
            assert!(warnings.contains("the object is given twice"), "{warnings}");
            assert!(errors(&text).iter().any(|error| error.contains("the object is given twice")), "{text}");
        }
    }
    let loaded = lenient(&(without_address.clone() + &without_address.replace("app: a", "app: b")));
    assert_eq!((loaded.objects.len(), loaded.warnings.total()), (0, 1));
}

#[test]
fn a_policy_that_is_given_twice_isolates_by_itself_even_if_one_of_them_is_v1beta1() {
    let beta = "{apiVersion: extensions/v1beta1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {}}}";
    let v1 = policy_text("podSelector: {}");
    for text in [format!("{v1}---\n{beta}"), format!("{beta}\n---\n{v1}")] {
        let policy = policies(&lenient(&text))[0].clone();
        assert_eq!((policy.version, policy.ingress), (PolicyVersion::V1, Some(vec![])));
    }
}
