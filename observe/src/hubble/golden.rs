//! Checks field numbers against messages that another protocol buffer implementation encoded from the public definitions.

use std::fmt::Debug;

use prost::Message;

use super::Timestamp;
use super::flow::{
    Endpoint, EventType, EventTypeFilter, Flow, FlowFilter, FlowType, Icmp, Ip, IpVersion, Layer4, LostEvent,
    LostEventSource, Policy, Ports, Protocol, Tcp, TcpFlags, TrafficDirection, Verdict, Workload,
};
use super::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use super::observer::{
    FieldMask, GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, Namespace, Node, NodeState,
    ResponseType, ServerStatusResponse,
};
use super::peer::{ChangeNotification, ChangeType, Tls};

/// Asserts that the message encodes to these bytes, and that they decode to the message.
fn assert_bytes<T: Message + Default + PartialEq + Debug>(message: &T, hexadecimal: &str) {
    let written: String = message.encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, hexadecimal);
    assert_eq!(T::decode(&*bytes(hexadecimal)).unwrap(), *message);
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    (0..hexadecimal.len()).step_by(2).map(|at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap()).collect()
}

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

fn policy(name: &str) -> Policy {
    Policy { name: name.into(), ..Policy::default() }
}

#[test]
fn a_flow() {
    let flags = TcpFlags { syn: true, ack: true, cwr: true, ..TcpFlags::default() };
    let tcp = Tcp { source_port: 1, destination_port: 2, flags: Some(flags) };
    let flow = Flow {
        time: Some(Timestamp { seconds: 3, nanos: 4 }),
        verdict: Verdict::Dropped as i32,
        drop_reason: 133,
        ip: Some(Ip { source: "a".into(), destination: "b".into(), ip_version: IpVersion::V6 as i32 }),
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(tcp)) }),
        source: Some(Endpoint {
            identity: 5,
            namespace: "x".into(),
            labels: vec!["k8s:a=b".into()],
            pod_name: "p".into(),
            workloads: vec![Workload { name: "w".into(), kind: "Job".into() }],
        }),
        destination: Some(Endpoint { identity: 2, ..Endpoint::default() }),
        r#type: FlowType::L3L4 as i32,
        node_name: "n".into(),
        destination_names: vec!["d".into()],
        event_type: Some(EventType { r#type: 1, sub_type: 133 }),
        traffic_direction: TrafficDirection::Egress as i32,
        drop_reason_desc: 133,
        is_reply: Some(false),
        summary: "s".into(),
        egress_allowed_by: vec![policy("1")],
        ingress_allowed_by: vec![policy("2")],
        egress_denied_by: vec![Policy { name: "3".into(), namespace: "y".into(), kind: "NetworkPolicy".into() }],
        ingress_denied_by: vec![policy("4")],
    };
    assert_bytes(
        &flow,
        "0a040803100410021885012a080a01611201621802320e0a0c080110021a06100128014001421b10051a017822076b38733a\
         613d622a017032080a017712034a6f624a02100250015a016e7201649a01050801108501b00102c8018501d20100caa00a030a0131\
         d2a00a030a0132e2a00a150a01331201792a0d4e6574776f726b506f6c696379eaa00a030a013482ea300173",
    );
    let (ports, icmp) = (Ports { source_port: 1, destination_port: 2 }, Icmp { r#type: 8, code: 9 });
    for (protocol, expected) in [
        (Protocol::Udp(ports), "120408011002"),
        (Protocol::Sctp(ports), "2a0408011002"),
        (Protocol::Icmpv4(icmp), "1a0408081009"),
        (Protocol::Icmpv6(icmp), "220408081009"),
    ] {
        assert_bytes(&Layer4 { protocol: Some(protocol) }, expected);
    }
}

#[test]
fn a_request_with_all_that_is_read() {
    let one = |text: &str| vec![text.to_owned()];
    let filter = FlowFilter {
        source_ip: one("1"),
        source_pod: one("2"),
        destination_ip: one("3"),
        destination_pod: one("4"),
        verdict: vec![2, 5],
        event_type: vec![EventTypeFilter { r#type: 1, match_sub_type: true, sub_type: 3 }],
        source_label: one("10"),
        destination_label: one("11"),
        protocol: one("12"),
        source_port: one("13"),
        destination_port: one("14"),
        reply: vec![true],
        source_identity: vec![19],
        destination_identity: vec![20],
        tcp_flags: vec![TcpFlags { syn: true, ns: true, ..TcpFlags::default() }],
        node_name: one("24"),
        ip_version: vec![2],
        source_workload: vec![Workload { name: "a".into(), kind: String::new() }],
        destination_workload: vec![Workload { name: String::new(), kind: "b".into() }],
        traffic_direction: vec![1],
        drop_reason_desc: vec![133],
        ..FlowFilter::default()
    };
    let unknowable = FlowFilter {
        source_ip: one("5"),
        source_fqdn: one("7"),
        destination_fqdn: one("8"),
        http_status_code: one("9"),
        dns_query: one("18"),
        http_method: one("21"),
        http_path: one("22"),
        http_url: one("31"),
        ..FlowFilter::default()
    };
    let request = GetFlowsRequest {
        number: 20,
        follow: true,
        blacklist: vec![unknowable],
        whitelist: vec![filter],
        since: at(1),
        until: at(2),
        first: true,
        field_mask: Some(FieldMask { paths: one("time") }),
    };
    let sent = "081418012a200a01353a01374201384a01399201023138aa01023231b201023232fa01023331325c0a01311201321a01332201342a0202053206080110011803520231305a023131620231326a0231\
         33720231347a01019a010113a2010114ba010410014801c201023234ca010102d201030a0161da0103120162f20101018a02\
         0285013a02080142020802480152060a0474696d65";
    assert_bytes(&request, sent);
    assert_eq!(super::fields::GET_FLOWS.check(&bytes(sent)), Ok(()));
}

#[test]
fn answers() {
    let node_name = || "n".to_owned();
    let flow = Flow { summary: "s".into(), ..Flow::default() };
    let response = Some(ResponseType::Flow(Box::new(flow)));
    assert_bytes(
        &GetFlowsResponse { response, node_name: node_name(), time: at(1) },
        "0a0582ea300173c23e016eca3e020801",
    );
    let lost = LostEvent { source: LostEventSource::ObserverEventsQueue as i32, num_events_lost: 7 };
    let response = Some(ResponseType::LostEvents(lost));
    assert_bytes(&GetFlowsResponse { response, node_name: node_name(), time: at(1) }, "1a0408021007c23e016eca3e020801");
    let status = ServerStatusResponse {
        num_flows: 1,
        max_flows: 2,
        seen_flows: 3,
        uptime_ns: 4,
        num_connected_nodes: Some(1),
        num_unavailable_nodes: Some(0),
        version: "v".into(),
        flows_rate: 1.5,
    };
    assert_bytes(&status, "08011002180320042a020801320042017649000000000000f83f");
    let node = Node {
        name: "n".into(),
        version: "v".into(),
        address: "a".into(),
        state: NodeState::Connected as i32,
        tls: None,
        uptime_ns: 6,
        num_flows: 7,
        max_flows: 8,
        seen_flows: 9,
    };
    assert_bytes(&GetNodesResponse { nodes: vec![node] }, "0a130a016e1201761a016120013006380740084809");
    let namespace = Namespace { cluster: String::new(), namespace: "x".into() };
    assert_bytes(&GetNamespacesResponse { namespaces: vec![namespace] }, "0a03120178");
    let peer = ChangeNotification {
        name: "n".into(),
        address: "a".into(),
        r#type: ChangeType::PeerAdded as i32,
        tls: Some(Tls { server_name: "s".into() }),
    };
    assert_bytes(&peer, "0a016e120161180122030a0173");
    for (change, expected) in [(ChangeType::PeerDeleted, "1802"), (ChangeType::PeerUpdated, "1803")] {
        assert_bytes(&ChangeNotification { r#type: change as i32, ..ChangeNotification::default() }, expected);
    }
    assert_bytes(&HealthCheckRequest { service: "s".into() }, "0a0173");
    for (status, expected) in [(ServingStatus::Serving, "0801"), (ServingStatus::ServiceUnknown, "0803")] {
        assert_bytes(&HealthCheckResponse { status: status as i32 }, expected);
    }
}
