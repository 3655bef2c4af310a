//! Services and endpoint slices: the result of reading them, and the exact messages about faults.

use super::tests::messages;
use super::*;
use crate::object::{ClusterService, Endpoint, EndpointSlice, Hints, ServicePort, TrafficPolicy, Transport};

fn read(text: &str, strictness: Strictness) -> Result<Loaded, SourceErrors> {
    load_text("t.yaml", text, Options { strictness, services: ServiceKinds::Read, ..Options::default() })
}

fn service(text: &str) -> ClusterService {
    let text = format!("{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop}}, {text}}}");
    let loaded = read(&text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"));
    let [Object::Service(service)] = &loaded.objects[..] else { panic!("a Service expected") };
    ClusterService::clone(service)
}

fn slice(text: &str) -> EndpointSlice {
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}, {text}}}"
    );
    let loaded = read(&text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"));
    let [Object::EndpointSlice(slice)] = &loaded.objects[..] else { panic!("a slice expected") };
    EndpointSlice::clone(slice)
}

/// Returns the only error about an object of this kind.
fn error(kind: &str, text: &str) -> String {
    let (version, kind) = kind.rsplit_once(' ').unwrap();
    let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web}}\n{text}\n");
    let errors = read(&text, Strictness::Strict).expect_err("a fault");
    let [error] = &messages(&errors)[..] else { panic!("{errors}") };
    error.strip_prefix("t.yaml").unwrap().to_owned()
}

fn addresses(texts: &[&str]) -> Vec<std::net::IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_service_keeps_what_translation_needs_with_the_defaults_of_the_api() {
    let minimal = service("spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}");
    let port = ServicePort { name: "".into(), transport: Transport::Tcp, port: 80, node_port: None };
    assert_eq!((&minimal.cluster_ips, &minimal.ports), (&addresses(&["10.96.0.1"]), &vec![port]));
    assert_eq!((minimal.internal_policy, minimal.external_policy), (TrafficPolicy::Cluster, TrafficPolicy::Cluster));
    assert_eq!((minimal.affinity, &minimal.source_ranges, minimal.health_check_port), (None, &None, None));
    let full = service(
        "spec: {type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00::1'], externalIPs: [192.0.2.1], \
         ports: [{name: dns, protocol: UDP, port: 53, nodePort: 30053, targetPort: x}], sessionAffinity: ClientIP, \
         internalTrafficPolicy: Local, externalTrafficPolicy: Local, healthCheckNodePort: 30000, \
         loadBalancerSourceRanges: [' 192.0.2.0/24 ', '']}, \
         status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: 198.51.100.2, ipMode: Proxy}, {hostname: x}, \
         {ip: 198.51.100.3, ipMode: VIP}]}}",
    );
    assert_eq!(full.cluster_ips, addresses(&["10.96.0.1", "fd00::1"]));
    assert_eq!(full.balancer_ips, addresses(&["198.51.100.1", "198.51.100.3"]));
    assert_eq!((full.affinity, full.health_check_port), (Some(10_800), Some(30_000)));
    assert_eq!(full.source_ranges, Some(vec!["192.0.2.0/24".parse().unwrap()]));
    assert_eq!((full.ports[0].transport, full.ports[0].node_port), (Transport::Udp, Some(30_053)));
    let short = service(
        "spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}, \
         healthCheckNodePort: 30000}",
    );
    assert_eq!((short.affinity, short.health_check_port), (Some(10), None), "no balancer asks for its health");
}

#[test]
fn what_is_headless_or_external_by_name_has_no_address() {
    for text in [
        "spec: {clusterIP: None}",
        "spec: {clusterIP: '', clusterIPs: ['']}",
        "spec: {clusterIP: None, clusterIPs: [None]}",
        "spec: {type: ExternalName, externalName: x.example, clusterIP: 10.96.0.1}",
        "spec: {}",
    ] {
        assert_eq!(service(text).cluster_ips, [] as [std::net::IpAddr; 0], "{text}");
    }
}

#[test]
fn endpoints_without_conditions_are_ready_and_only_their_first_address_counts() {
    let read = slice(
        "addressType: IPv4, ports: [{name: http, port: 80}, {name: nil}, {port: 81}, {name: zero, port: 0}], endpoints: [\
         {addresses: [10.0.0.1, 10.0.0.2], nodeName: n1}, \
         {addresses: [10.0.0.3], conditions: {ready: false, terminating: true}, hints: {forZones: [{name: a}], forNodes: []}}]",
    );
    assert_eq!(read.service_name().unwrap().to_string(), "shop/web");
    assert_eq!(read.ports.iter().map(|port| (&*port.name, port.port)).collect::<Vec<_>>(), [("http", 80)]);
    let first = Endpoint {
        address: "10.0.0.1".parse().unwrap(),
        node: Some("n1".into()),
        ready: true,
        serving: true,
        terminating: false,
        hints: None,
    };
    assert_eq!(read.endpoints[0], first);
    let second = &read.endpoints[1];
    assert!(second.is_draining() && second.node.is_none());
    assert_eq!(second.hints.as_deref(), Some(&Hints { nodes: vec![], zones: vec!["a".into()] }));
    assert_eq!(slice("addressType: FQDN, endpoints: [{addresses: [x.example]}]").endpoints, []);
}

#[test]
fn endpoints_of_the_api_before_1_21_name_their_node_in_their_topology() {
    let text = "{apiVersion: v1, kind: List, items: [{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, \
                metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, \
                ports: [{name: '', port: 80, protocol: TCP}], endpoints: [\
                {addresses: [10.0.0.1], conditions: {ready: true}, topology: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: z}}, \
                {addresses: [10.0.0.2], conditions: {ready: false}, topology: {topology.kubernetes.io/zone: z}}, \
                {addresses: [10.0.0.3], nodeName: n3, topology: {kubernetes.io/hostname: n4}}, \
                {addresses: [10.0.0.4], topology: null}]}]}";
    let loaded = read(text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"));
    let [Object::EndpointSlice(slice)] = &loaded.objects[..] else { panic!("a slice expected") };
    let nodes: Vec<_> = slice.endpoints.iter().map(|endpoint| (endpoint.node.as_deref(), endpoint.ready)).collect();
    assert_eq!(nodes, [(Some("n1"), true), (None, false), (Some("n3"), true), (None, true)]);
    assert_eq!(slice.ports.len(), 1);
    let of_another = text.replace("v1beta1", "v1alpha1");
    assert_eq!(read(&of_another, Strictness::Strict).unwrap().objects.len(), 0, "of another API version");
}

#[test]
fn faults_of_services_name_line_field_and_remedy() {
    let cases = [
        (
            "spec: {type: NodPort}",
            ":4: Service default/web: spec.type: unknown value \"NodPort\"\n  help: did you mean `NodePort`?",
        ),
        (
            "spec: {externalTrafficPolicy: Nowhere}",
            ":4: Service default/web: spec.externalTrafficPolicy: unknown value \"Nowhere\"\n  help: write one of Cluster, Local",
        ),
        (
            "spec:\n  ports:\n  - {port: 0}",
            ":6: Service default/web: spec.ports[0].port: port 0 does not exist\n  help: write a number from 1 to 65535",
        ),
        (
            "spec: {ports: [{name: a, port: 80}, {name: b, port: 80}]}",
            ":4: Service default/web: spec.ports[1]: a second port 80/TCP\n  help: remove one of the two",
        ),
        (
            "spec: {ports: [{port: 80}, {port: 81}]}",
            ":4: Service default/web: spec.ports[1]: a second port named \"\"\n  help: give each port a unique name: \
             endpoints refer to it",
        ),
        (
            "spec: {clusterIPs: [10.0.0.1, 10.0.0.2]}",
            ":4: Service default/web: spec.clusterIPs: two addresses of one family\n  help: a Service has at most one of each family: \
             remove one",
        ),
        (
            "spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}",
            ":4: Service default/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: invalid session affinity timeout 86401\n  \
             help: write a number of seconds from 1 to 86400",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error("v1 Service", text), expected, "{text}");
    }
    assert!(error("v1 Service", "spec: {loadBalancerSourceRanges: [10.0.0.1]}").contains("write 10.0.0.1/32"));
    let slices = [
        (
            "endpoints: []",
            ":1: EndpointSlice default/web: missing field `addressType`\n  help: add `addressType: IPv4` or IPv6",
        ),
        (
            "addressType: IPv4\nendpoints: [{addresses: ['fd00::1']}]",
            ":5: EndpointSlice default/web: endpoints[0].addresses[0]: fd00::1 does not match the slice's addressType\n  \
             help: put endpoints of another family into a separate slice",
        ),
    ];
    for (text, expected) in slices {
        assert_eq!(error("discovery.k8s.io/v1 EndpointSlice", text), expected, "{text}");
    }
}

#[test]
fn a_fault_stays_with_its_service_and_with_its_endpoint_where_faults_are_survived() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {clusterIP: x}}\n---\n\
                {apiVersion: v1, kind: Service, metadata: {name: good}, spec: {clusterIP: 10.0.0.1}}\n---\n\
                {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s}, addressType: IPv4, \
                endpoints: [{addresses: [10.0.0.1]}, {addresses: [x]}, 7, {addresses: [10.0.0.2]}]}\n---\n\
                {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: t}, addressType: IPv5, endpoints: []}\n";
    let loaded = read(text, Strictness::Lenient).unwrap();
    let told: Vec<String> = loaded
        .objects
        .iter()
        .map(|object| match object {
            Object::Service(service) => service.name.to_string(),
            Object::EndpointSlice(slice) => format!("{} {}", slice.name, slice.endpoints.len()),
            _ => unreachable!(),
        })
        .collect();
    assert_eq!((told, loaded.faulty), (vec!["default/good".into(), "default/s 2".into()], 3));
}

#[test]
fn services_are_passed_over_where_nobody_asks_for_them_also_with_a_fault() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {clusterIP: x}}\n---\n\
                {apiVersion: v1, kind: Service, metadata: {name: bad}, spec: 7}\n---\n\
                {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s}}\n";
    let loaded = load_text("t.yaml", text, Strictness::Strict).unwrap();
    assert!(loaded.objects.is_empty() && loaded.warnings.is_empty());
    let skipped = [("discovery.k8s.io/v1 EndpointSlice".to_owned(), 1), ("v1 Service".to_owned(), 2)];
    assert_eq!(loaded.skipped, skipped.into());
}

#[test]
fn the_first_address_of_a_family_is_a_nodes_primary_one_and_what_is_about_to_go_says_so() {
    let node = |text: &str| {
        let text = format!("{{apiVersion: v1, kind: Node, metadata: {{name: n1}}, {text}}}");
        let loaded = read(&text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"));
        let [Object::Node(node)] = &loaded.objects[..] else { panic!("a node expected") };
        node.clone()
    };
    let read = node(
        "status: {addresses: [{type: Hostname, address: 10.0.0.9}, {type: ExternalIP, address: 192.0.2.1}, \
         {type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: 10.0.0.2}]}",
    );
    assert_eq!(read.addresses, addresses(&["10.0.0.1", "10.0.0.2", "192.0.2.1", "10.0.0.9"]));
    assert!(!read.terminating);
    assert!(node("spec: {taints: [{key: x}, {key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}").terminating);
    let deleted = "{apiVersion: v1, kind: Node, metadata: {name: n1, deletionTimestamp: '2026-01-01T00:00:00Z'}}";
    let loaded = load_text("t.yaml", deleted, Strictness::Strict).unwrap();
    assert!(matches!(&loaded.objects[..], [Object::Node(node)] if node.terminating));
}
