//! More outside clients than the node has source ports for one backend on another node.

use crate::require;
use std::net::Ipv4Addr;

use crate::lab::Lab;
use crate::lab::netns::{Running, eventually};
use crate::lab::station::{Station, mac_of};
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use serde_json::Value;

/// The number of source ports for one backend: all from 1024 on.
const PORTS: u64 = 64_512;

/// The maximum number of clients: about twice the ports.
const MOST_CLIENTS: u32 = 130_000;

/// Packets between two reads of the counters.
const ROUND: u32 = 8_192;

/// Frames per burst. Every ring on the path holds more.
const CHUNK: u32 = 256;

/// A Service with one endpoint on another node, and one whose endpoint is a pod of this node.
const STATE: &str = "---
{apiVersion: v1, kind: Node, metadata: {name: node-2}, spec: {podCIDRs: [10.244.2.0/24]},
 status: {addresses: [{type: InternalIP, address: 172.18.0.12}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: far, namespace: default},
 spec: {type: NodePort, clusterIP: 10.96.0.30, clusterIPs: [10.96.0.30], ports: [{port: 53, protocol: UDP, nodePort: 30053}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: far-1, namespace: default, labels: {kubernetes.io/service-name: far}},
 ports: [{name: '', port: 5353, protocol: UDP}], endpoints: [{addresses: [10.244.2.9], nodeName: node-2}]}
---
{apiVersion: v1, kind: Service, metadata: {name: near, namespace: default},
 spec: {type: NodePort, clusterIP: 10.96.0.31, clusterIPs: [10.96.0.31], ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: near-1, namespace: default, labels: {kubernetes.io/service-name: near}},
 ports: [{name: '', port: 8080, protocol: TCP}], endpoints: [{addresses: [10.244.1.2], nodeName: node-1}]}
";

fn count(summary: &Value, pointer: &str) -> u64 {
    summary.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

#[test]
fn when_source_ports_run_out_the_rest_is_dropped_with_its_reason_and_others_are_served() {
    require!("python3", "nc", "socat", "ss");
    let mut lab = Lab::new();
    // The table of sessions must be larger than the number of source ports.
    lab.more_config = "services: {service_cidrs: [10.96.0.0/12]}\nsessions: {capacity: 1048576}\n".to_owned();
    lab.pod("server", "{}");
    let outside = lab.outside();
    outside.ip("addr add 172.18.0.12/16 dev eth0");
    // The outside machine drops packets for the backend without an answer.
    outside.shell("sysctl -q -w net.ipv4.ip_forward=0 net.ipv4.icmp_ratelimit=0");
    lab.start(STATE);
    let mut listen = lab.get("server").netns.command("socat", &["TCP4-LISTEN:8080,fork,reuseaddr", "PIPE"]);
    let _listener = Running::start(&mut listen);
    eventually("the server listens", || !lab.get("server").netns.output("ss -Hltn sport = :8080").stdout.is_empty());
    let outside = lab.outside.as_ref().unwrap();
    let connects = || outside.output("nc -n -z -w 2 172.18.0.11 30080").status.success();
    eventually("the near Service is reached", connects);

    let (mac, gateway) = (mac_of(outside, "eth0"), mac_of(&lab.node, "ul0"));
    let mut station = Station::open(outside, "eth0");
    let frame = |client: u32| {
        // All addresses use the same 1,000 ports, so most connections need another source port.
        let src = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 51, 100, 1)) + client / 1_000).into();
        let sport = u16::try_from(2_000 + client % 1_000).unwrap();
        let probe =
            Probe { src, dst: Ipv4Addr::new(172, 18, 0, 11).into(), kind: ProbeKind::Udp, sport, dport: 30_053 };
        [&gateway[..], &mac, &[8, 0], &probe.request().unwrap()].concat()
    };
    // On a busy machine some packets are lost before they reach the vswitch.
    let (mut sent, mut exhausted, mut summary) = (0, 0, Value::Null);
    while exhausted < 1_000 {
        assert!(sent < MOST_CLIENTS, "{} {}", summary["sessions"], summary["dropped"]);
        for _ in 0..ROUND / CHUNK {
            let frames: Vec<_> = (sent..sent + CHUNK).map(frame).collect();
            station.send(&frames);
            drop(station.seen());
            sent += CHUNK;
        }
        summary = lab.summary();
        exhausted = count(&summary, "/dropped/source_ports_exhausted");
    }
    let in_use = count(&summary, "/sessions/in_use");
    println!("{sent} clients: {in_use} sessions, {exhausted} packets without a port");
    // The connection to the other Service counts too.
    assert!((60_000..=PORTS + 100).contains(&in_use), "nearly every port is used: {in_use}");
    let outside = lab.outside.as_ref().unwrap();
    assert!(outside.output("nc -n -z -w 2 172.18.0.11 30080").status.success(), "others are served: {}", lab.log());
    lab.stop();
}
