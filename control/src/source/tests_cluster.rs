//! Pods, namespaces and nodes.

use super::tests::{errors, lenient, messages, strict};
use super::*;
use crate::object::{
    ContainerPort, Denied, HostPort, Lifetime, NAMESPACE_NAME_LABEL, Namespace, Node, Pod, PodName, Timestamp,
    Transport, Uid,
};

fn only(text: &str) -> Object {
    let loaded = strict(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    match <[Object; 1]>::try_from(loaded.objects) {
        Ok([object]) => object,
        Err(objects) => panic!("one object expected: {objects:?}"),
    }
}

fn pod(rest: &str) -> Pod {
    match only(&pod_text(rest)) {
        Object::Pod(pod) => Arc::unwrap_or_clone(pod),
        other => panic!("a pod expected: {other:?}"),
    }
}

fn pod_text(rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\n{}\n",
        if rest.contains("metadata:") { rest.to_owned() } else { format!("metadata: {{name: a}}\n{rest}") }
    )
}

fn one_error(text: &str) -> String {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors[0].clone()
}

#[test]
fn a_pod_keeps_what_policy_needs() {
    let text = r#"
metadata:
  name: web-1
  namespace: shop
  uid: 6f1c
  creationTimestamp: 2026-01-02T00:00:00Z
  deletionTimestamp: 2026-01-02T01:00:00Z
  labels: {app: web, empty: ""}
  annotations:
    k8s.v1.cni.cncf.io/network-status: '[{"name": "x", "mac": "00:00:00:00:00:01"}, {"default": true, "mac": "02:0A:00:00:00:ff"}]'
spec:
  nodeName: node-1
  hostNetwork: true
  someFieldOfTomorrow: {a: 1}
  containers:
  - name: a
    ports: [{containerPort: 80, name: http}, {containerPort: 81}, {containerPort: 53, name: dns, protocol: UDP}]
  - name: b
status: {phase: Running, startTime: "2026-01-02T00:00:01Z", podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}
"#;
    let port = |name: &str, transport, port| ContainerPort { name: name.into(), transport, port };
    let expected = Pod {
        name: PodName::new("shop", "web-1"),
        labels: [("app".into(), "web".into()), ("empty".into(), "".into())].into(),
        node: Some("node-1".into()),
        addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        mac: Some([2, 10, 0, 0, 0, 255]),
        host_network: true,
        finished: false,
        service_account: None,
        uid: Uid::of("6f1c"),
        lifetime: Lifetime {
            terminating: true,
            running: true,
            started: Timestamp::parse("2026-01-02T00:00:01Z"),
            created: Timestamp::parse("2026-01-02T00:00:00Z"),
            attached: None,
        },
        ports: vec![port("http", Transport::Tcp, 80), port("dns", Transport::Udp, 53)],
        host_ports: [].into(),
        owner: None,
        planned: false,
    };
    assert_eq!(pod(text), expected);
}

#[test]
fn a_static_pod_is_known_by_the_uid_that_its_node_has_given_it() {
    let uid = |fields: &str| pod(&format!("metadata: {{name: a, {fields}}}")).uid;
    let hash = format!("annotations: {{{}: abc}}", crate::object::STATIC_POD_ANNOTATION);
    assert_eq!(uid(&format!("uid: 0-1, {hash}")), Uid::of("abc"));
    assert_eq!((uid("uid: 0-1"), uid("uid: ''"), uid("labels: {}")), (Uid::of("0-1"), None, None));
    assert_ne!(Uid::of("0-1"), Uid::of("0-2"));
}

#[test]
fn a_pod_that_waits_has_no_node_and_no_address() {
    for rest in ["", "spec: {}", "spec: {nodeName: ''}\nstatus: {podIP: '', podIPs: []}", "spec:\nstatus:"] {
        let pod = pod(rest);
        assert_eq!((pod.name.to_string().as_str(), &pod.node, pod.addresses.len()), ("default/a", &None, 0), "{rest}");
    }
}

#[test]
fn an_old_pod_tells_its_one_address_in_another_field() {
    assert_eq!(pod("status: {podIP: 10.0.0.9}").addresses, ["10.0.0.9".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn a_pod_that_succeeded_or_failed_is_finished() {
    for (phase, finished) in
        [("Succeeded", true), ("Failed", true), ("Running", false), ("Pending", false), ("Unknown", false)]
    {
        assert_eq!(pod(&format!("status: {{phase: {phase}}}")).finished, finished, "{phase}");
    }
}

#[test]
fn sidecars_serve_ports_and_other_init_containers_do_not() {
    let pod = pod(
        "spec:\n  initContainers:\n  - {restartPolicy: Always, ports: [{name: mesh, containerPort: 15000}]}\n  - {ports: [{name: init, containerPort: 1}]}",
    );
    let names: Vec<_> = pod.ports.iter().map(|port| &*port.name).collect();
    assert_eq!(names, ["mesh"]);
}

#[test]
fn a_pod_has_the_host_ports_of_its_containers_and_sidecars_named_or_not() {
    let spec = "spec:
  containers:
  - ports: [{containerPort: 80, hostPort: 8080}, {containerPort: 81, hostPort: 0}, {name: dns, containerPort: 53, hostPort: 53, protocol: UDP, hostIP: 192.0.2.1}]
  initContainers:
  - {restartPolicy: Always, ports: [{containerPort: 82, hostPort: 8082, hostIP: ''}]}
  - {ports: [{containerPort: 83, hostPort: 8083}]}";
    let of_node = |address: Option<&str>, transport, number, port| {
        let address = address.map(|address| address.parse().unwrap());
        HostPort { address, transport, number, port }
    };
    let expected = [
        of_node(None, Transport::Tcp, 8080, 80),
        of_node(Some("192.0.2.1"), Transport::Udp, 53, 53),
        of_node(None, Transport::Tcp, 8082, 82),
    ];
    let found = pod(spec);
    assert_eq!((&*found.host_ports, found.ports.len()), (&expected[..], 1));
    // On the host network every port is a port of the node.
    assert!(pod(&format!("{spec}\n  hostNetwork: true")).host_ports.is_empty());
}

#[test]
fn a_namespace_says_whether_denials_are_refused_and_what_is_not_understood_means_drop_and_a_warning() {
    let of = |annotation: &str| {
        let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: x, annotations: {annotation}}}\n");
        let loaded = strict(&text).unwrap();
        let Object::Namespace(namespace) = &loaded.objects[0] else { panic!("a namespace expected") };
        (namespace.denied, loaded.warnings.shown().iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(of("{}"), (None, vec![]));
    assert_eq!(of("{bulkhead.dev/denied: refuse}"), (Some(Denied::Refuse), vec![]));
    assert_eq!(of("{bulkhead.dev/denied: drop}"), (Some(Denied::Drop), vec![]));
    for strange in ["Refuse", "''", "7", "{a: b}"] {
        let (denied, warnings) = of(&format!("{{bulkhead.dev/denied: {strange}}}"));
        assert_eq!(denied, Some(Denied::Drop), "{strange}");
        let [warning] = &warnings[..] else { panic!("{strange}: {warnings:?}") };
        assert!(
            warning.contains("metadata.annotations") && warning.contains("help: write refuse or drop"),
            "{warning}"
        );
    }
}

#[test]
fn a_network_annotation_that_does_not_parse_is_no_error() {
    for status in [
        "x",
        "[]",
        "{}",
        r#"[{"default": true}]"#,
        r#"[{"default": true, "mac": "0:0:0:0:0:1"}]"#,
        r#"[{"default": true, "mac": "00:00:00:00:00:00:00"}]"#,
        r#"[{"default": true, "mac": "+0:00:00:00:00:00"}]"#,
    ] {
        let text = format!("metadata:\n  name: a\n  annotations:\n    k8s.v1.cni.cncf.io/network-status: '{status}'");
        assert_eq!(pod(&text).mac, None, "{status}");
    }
    assert_eq!(pod("metadata: {name: a, annotations: {k8s.v1.cni.cncf.io/network-status: 7}}").mac, None);
}

#[test]
fn faults_of_a_pod_are_told() {
    for (rest, expected) in [
        ("metadata: {labels: {}}", "t.yaml:3: Pod: metadata: missing field `name`|add `name`"),
        ("metadata: {generateName: a-}", "t.yaml:3: Pod: metadata: missing field `name`|add `name`"),
        (
            "metadata: {name: a, labels: {v: 1.10}}",
            "t.yaml:3: Pod default/a: metadata.labels.v: invalid type: floating point `1.1`, expected a string|put the value in quotes",
        ),
        (
            "metadata: {name: a, labels: {v: on}}",
            "t.yaml:3: Pod default/a: metadata.labels.v: invalid type: boolean `true`, expected a string|put the value in quotes",
        ),
        (
            "spec: []",
            "t.yaml:4: Pod default/a: spec: invalid type: sequence, expected a mapping|write `key: value` pairs, or `{}` for none",
        ),
        (
            "spec: {hostNetwork: 'true'}",
            "t.yaml:4: Pod default/a: spec.hostNetwork: invalid type: string \"true\", expected a boolean|write true or false, without quotes",
        ),
        (
            "status:\n  podIPs:\n  - ip: 10.0.0.256",
            "t.yaml:6: Pod default/a: status.podIPs[0].ip: invalid address \"10.0.0.256\"|write an IPv4 address such as 10.0.0.1 or an IPv6 address such as fd00::1",
        ),
        (
            "status: {podIP: 10.0.0.010}",
            "t.yaml:4: Pod default/a: status.podIP: invalid address \"10.0.0.010\"|remove the leading zeros",
        ),
        (
            "status: {podIP: '::ffff:10.0.0.1'}",
            "t.yaml:4: Pod default/a: status.podIP: \"::ffff:10.0.0.1\" is an IPv4-mapped IPv6 address|write 10.0.0.1",
        ),
        (
            "status:\n  podIPs:\n  - ip: 10.0.0.1\n  - ip: 10.0.0.2",
            "t.yaml:7: Pod default/a: status.podIPs[1].ip: a second IPv4 address 10.0.0.2, after 10.0.0.1|a pod has at most one address of each family: remove one",
        ),
        (
            "spec:\n  containers:\n  - ports:\n    - {name: x, containerPort: 0}",
            "t.yaml:7: Pod default/a: spec.containers[0].ports[0].containerPort: port 0 does not exist|write a number from 1 to 65535",
        ),
        (
            "spec: {containers: [{ports: [{name: x, containerPort: 1, protocol: tcp}]}]}",
            "t.yaml:4: Pod default/a: spec.containers[0].ports[0].protocol: unknown protocol \"tcp\"|write TCP, UDP or SCTP",
        ),
        (
            "spec: {containers: [{ports: [{containerPort: 1, hostPort: 70000}]}]}",
            "t.yaml:4: Pod default/a: spec.containers[0].ports[0].hostPort: port 70000 does not exist|write a number from 1 to 65535",
        ),
        (
            "spec: {containers: [{ports: [{containerPort: 1, hostPort: 80, hostIP: 10.0.0.01}]}]}",
            "t.yaml:4: Pod default/a: spec.containers[0].ports[0].hostIP: invalid address \"10.0.0.01\"|remove the leading zeros",
        ),
    ] {
        assert_eq!(one_error(&pod_text(rest)), expected.replace('|', "\n  help: "), "{rest}");
    }
}

#[test]
fn a_namespace_always_has_the_label_with_its_name() {
    for labels in ["{}", "{team: red}", "{team: red, kubernetes.io/metadata.name: shop}", "null"] {
        let text = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {labels}}}}}");
        let Object::Namespace(Namespace { name, labels, .. }) = only(&text) else { panic!("a namespace expected") };
        assert_eq!((&*name, labels.get(NAMESPACE_NAME_LABEL).map(|value| &**value)), ("shop", Some("shop")), "{text}");
    }
}

#[test]
fn a_namespace_with_the_name_of_another_in_its_label_is_an_error() {
    let text =
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels:\n    kubernetes.io/metadata.name: bank\n";
    let expected = "t.yaml:6: Namespace shop: metadata.labels[\"kubernetes.io/metadata.name\"]: label is \"bank\", but the \
                    namespace is \"shop\"\n  help: remove the label: every namespace has it, with its name as value";
    assert_eq!(one_error(text), expected);
}

#[test]
fn a_node_keeps_its_addresses_and_blocks() {
    let text = "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {os: linux}}, spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, 'fd00:1::/64']}, \
                status: {addresses: [{type: InternalIP, address: 192.168.0.1}, {type: Hostname, address: n1}, \
                {type: ExternalIP, address: 'fd01::1'}, {type: InternalDNS, address: n1.x}, \
                {type: Hostname, address: 192.168.0.2}, {type: Hostname, address: 192.168.0.1}]}}";
    let expected = Node {
        name: "n1".into(),
        labels: [("os".into(), "linux".into())].into(),
        addresses: vec!["192.168.0.1".parse().unwrap(), "fd01::1".parse().unwrap(), "192.168.0.2".parse().unwrap()],
        pod_cidrs: vec!["10.1.0.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
        terminating: false,
    };
    assert_eq!(only(text), Object::Node(expected));
    let Object::Node(old) = only("{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.0.0/24}}")
    else {
        panic!("a node expected")
    };
    assert_eq!(old.pod_cidrs, ["10.1.0.0/24".parse().unwrap()]);
}

#[test]
fn faults_of_a_node_are_told() {
    let text = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec:\n  podCIDRs:\n  - 10.1.0.0\nstatus:\n  addresses:\n  - {type: InternalIP, address: x}\n";
    assert_eq!(
        errors(text),
        [
            "t.yaml:9: Node n1: status.addresses[0].address: invalid address \"x\"\n  help: write an IPv4 address such as 10.0.0.1 \
             or an IPv6 address such as fd00::1",
            "t.yaml:6: Node n1: spec.podCIDRs[0]: block \"10.1.0.0\" has no prefix length\n  help: write 10.1.0.0/32 for this one \
             address",
        ]
    );
}

#[test]
fn pods_and_nodes_without_a_name_are_left_out_where_faults_are_survived() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {b: 1}}, status: {podIP: ''}}\n---\n\
                {apiVersion: v1, kind: Pod, metadata: {}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: N}}\n---\n\
                {apiVersion: v1, kind: Pod, metadata: {name: b}}\n";
    let loaded = lenient(text);
    assert_eq!(loaded.objects.len(), 1);
    let help: Vec<_> = messages(&loaded.warnings);
    assert_eq!(help.len(), 3);
    assert!(help.iter().all(|message| message.ends_with("; until then the object is left out")), "{help:#?}");
}

#[test]
fn a_faulty_node_keeps_the_addresses_and_blocks_that_can_be_read() {
    let text = "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: []}, spec: {podCIDRs: [10.1.0.0, 10.2.0.0/16]}, \
                status: {addresses: [{type: InternalIP, address: x}, {type: InternalIP, address: 192.0.2.1}, 7]}}";
    let expected = Node {
        name: "n1".into(),
        labels: [].into(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        pod_cidrs: vec!["10.2.0.0/16".parse().unwrap()],
        terminating: false,
    };
    assert_eq!(lenient(text).objects, [Object::Node(expected)]);
}

#[test]
fn ten_thousand_pods_in_one_file_are_read_as_documents_and_as_a_list() {
    let pod = |at: usize| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p{at}, namespace: x, labels: {{app: a}}}}, \
             spec: {{nodeName: node-1, containers: [{{name: c, ports: [{{name: web, containerPort: 80}}]}}]}}, \
             status: {{phase: Running, podIPs: [{{ip: 10.0.{}.{}}}]}}}}",
            at / 250,
            at % 250
        )
    };
    let documents: String = (0..10_000).map(|at| pod(at) + "\n---\n").collect();
    let items: String = (0..10_000).map(|at| format!("- {}\n", pod(at))).collect();
    for text in [documents, format!("apiVersion: v1\nkind: List\nitems:\n{items}")] {
        let loaded = strict(&text).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(loaded.objects.len(), 10_000);
    }
}
