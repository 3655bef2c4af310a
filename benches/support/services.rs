//! Services for benches: each has one port and ten endpoints. Half of the Services have a node port, and half of the endpoints have hints.

use std::net::{IpAddr, Ipv4Addr};

use bulkhead_control::object::{
    ClusterService, Endpoint, EndpointPort, EndpointSlice, Hints, Node, ObjectName, ServicePort, TrafficPolicy,
    Transport, ZONE_LABEL,
};

use super::{labels, namespace_name, node_name, pod_address};

pub(crate) const ENDPOINTS: u32 = 10;

/// The first cluster address: 10.128.0.0.
const FIRST_CLUSTER_IP: u32 = 0x0a80_0000;

/// Returns the node whose vswitch resolves the Services.
pub(crate) fn own_node() -> Node {
    Node {
        name: node_name(0),
        labels: labels(&[(ZONE_LABEL, "zone-0".to_owned())]),
        addresses: vec![IpAddr::from(Ipv4Addr::from(0xac10_0000))],
        pod_cidrs: vec![],
        terminating: false,
    }
}

/// Returns the cluster address of Service number `at`.
pub(crate) fn cluster_ip(at: u32) -> IpAddr {
    Ipv4Addr::from(FIRST_CLUSTER_IP + at).into()
}

fn name(at: u32) -> String {
    format!("service-{at}")
}

pub(crate) fn service(at: u32) -> ClusterService {
    let node_port = at.is_multiple_of(2).then(|| u16::try_from(30_000 + at / 2).unwrap());
    ClusterService {
        name: ObjectName::new(namespace_name(at % 100), name(at)),
        created: None,
        proxy: None,
        labels: Default::default(),
        selector: Default::default(),
        cluster_ips: vec![cluster_ip(at)],
        external_ips: vec![],
        balancer_ips: vec![],
        ports: vec![ServicePort { name: "http".into(), transport: Transport::Tcp, port: 80, node_port }],
        internal_policy: TrafficPolicy::Cluster,
        external_policy: if at.is_multiple_of(4) { TrafficPolicy::Local } else { TrafficPolicy::Cluster },
        affinity: None,
        source_ranges: None,
        health_check_port: None,
    }
}

/// Returns the endpoints of Service number `at`. Endpoint number `unready` is not ready.
pub(crate) fn slice(at: u32, unready: Option<u32>) -> EndpointSlice {
    let endpoint = |number: u32| {
        let pod = at * ENDPOINTS + number;
        let hints = || Hints { nodes: vec![], zones: vec![format!("zone-{}", number % 3).into()] };
        Endpoint {
            address: pod_address(pod),
            node: Some(node_name(pod % 400)),
            ready: unready != Some(number),
            serving: unready != Some(number),
            terminating: false,
            hints: (at % 2 == 1).then(|| Box::new(hints())),
        }
    };
    EndpointSlice {
        name: ObjectName::new(namespace_name(at % 100), format!("service-{at}-x")),
        service: Some(name(at).into()),
        headless: false,
        ports: vec![EndpointPort { name: "http".into(), transport: Transport::Tcp, port: 8_080 }],
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
    }
}
