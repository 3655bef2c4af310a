//! Established flows while no process runs, and after the next one has started.

use crate::require;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, inside, settle};
use crate::lab::netns::eventually;
use crate::lab::{Lab, policy};
use serde_json::Value;

const PORT: u16 = 7030;
const VIP: &str = "10.96.0.30";

/// Shorter than the absences of these tests.
const LEASE: &str = "flow_lease: 1s\n";
const AWAY: Duration = Duration::from_secs(3);

/// A policy that lets only this pod reach b, and a Service with b as its backend.
fn state(lab: &Lab, from: &str) -> String {
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], \
         ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {from}}}}}}}]}}]}}"
    );
    let service = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: b, namespace: default}}\n\
         spec: {{clusterIP: {VIP}, clusterIPs: [{VIP}], ipFamilies: [IPv4], ports: [{{port: {PORT}}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: b-0, namespace: default, \
         labels: {{kubernetes.io/service-name: b}}}}\naddressType: IPv4\nports: [{{name: '', port: {PORT}, protocol: TCP}}]\n\
         endpoints: [{{addresses: ['{}'], nodeName: {}, conditions: {{ready: true}}}}]\n",
        lab.get("b").v4,
        lab.node_name()
    );
    policy("b", &spec) + &service
}

/// A node whose leases are short, with a server in b.
fn node(config: &str) -> Lasting {
    let mut lasting = Lasting::new();
    let lab = &mut lasting.lab;
    lab.more_config.push_str(LEASE);
    lab.more_config.push_str(config);
    let rules = state(lab, "a");
    lab.start(&rules);
    echo(lab.get("b"), PORT);
    lasting
}

fn open(lab: &Lab) -> TcpStream {
    connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).unwrap()
}

/// A connection over the Service.
fn open_service(lab: &Lab) -> TcpStream {
    let stream = inside(lab.get("a"), || TcpStream::connect((VIP, PORT))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A UDP echo server in b, and a client of it in a.
fn datagrams(lab: &Lab) -> UdpSocket {
    let (client, server) = (lab.get("a"), lab.get("b"));
    let server = inside(server, || UdpSocket::bind((server.v4.as_str(), PORT))).unwrap();
    let socket = inside(client, || UdpSocket::bind((client.v4.as_str(), 0))).unwrap();
    socket.connect(server.local_addr().unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((length, from)) = server.recv_from(&mut bytes) {
            drop(server.send_to(&bytes[..length], from));
        }
    });
    socket
}

fn echoes(socket: &UdpSocket) -> bool {
    socket.send(b"x").is_ok() && socket.recv(&mut [0]).is_ok()
}

#[test]
fn established_flows_go_on_without_a_process_new_connections_wait_and_ended_ones_are_known() {
    require!("mount");
    only_with_tc!();
    let mut lasting = node("");
    let lab = &mut lasting.lab;
    let [mut used, mut idle, mut ended] = [open(lab), open(lab), open(lab)];
    let (mut service, udp) = (open_service(lab), datagrams(lab));
    for stream in [&mut used, &mut idle, &mut ended, &mut service] {
        settle(stream);
    }
    for _ in 0..20 {
        assert!(echoes(&udp));
        sleep(Duration::from_millis(15));
    }
    // Idle for longer than its lease, so that no flow in the kernel is valid any more.
    sleep(Duration::from_secs(2));
    assert!(answers(&mut used) && answers(&mut service) && echoes(&udp));
    let mut young = open(lab);
    assert!(answers(&mut young));
    lab.kill();
    for _ in 0..2 {
        sleep(AWAY / 2);
        for stream in [&mut used, &mut idle, &mut young, &mut service] {
            assert!(answers(stream));
        }
        assert!(echoes(&udp));
    }
    assert!(connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).is_err(), "a new connection waits");
    ended.write_all(b"y").unwrap();
    ended.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ended.read_to_end(&mut Vec::new()).unwrap(), 1, "the server answers, and closes after the client");
    let rules = state(lab, "a");
    lab.start(&rules);
    for stream in [&mut used, &mut idle, &mut young, &mut service] {
        assert!(answers(stream), "{}", lab.log());
    }
    assert!(echoes(&udp));
    eventually("the workers learn of the end", || lab.log().contains("of which 2 ended"));
    assert!(answers(&mut open(lab)), "new connections too");
    let port = ended.local_addr().unwrap().port();
    let listed: Value = serde_json::from_str(&lab.ask(&["sessions", "-o", "json"]).1).unwrap();
    let is_ended = |session: &&Value| session["from"].as_str().unwrap().ends_with(&format!(":{port}"));
    let found = listed["sessions"].as_array().unwrap().iter().find(is_ended).expect("it is closed for ten seconds");
    assert_eq!(found["state"], "closed", "{found}");
    lab.stop();
}

#[test]
fn what_policy_denies_when_the_next_process_starts_ends_and_nothing_is_allowed_meanwhile() {
    require!("mount");
    only_with_tc!();
    let mut lasting = node("");
    let lab = &mut lasting.lab;
    let mut stream = open(lab);
    settle(&mut stream);
    lab.kill();
    sleep(AWAY);
    assert!(answers(&mut stream));
    assert!(connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).is_err(), "never allowed");
    let rules = state(lab, "c");
    lab.start(&rules);
    assert!(!answers(&mut stream), "it is denied now");
    assert!(answers(&mut connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).unwrap()));
    lab.stop();
}

#[test]
fn without_a_grace_flows_end_with_their_leases_and_go_on_with_the_next_process() {
    require!("mount");
    only_with_tc!();
    let mut lasting = node("away_grace: 0s\n");
    let lab = &mut lasting.lab;
    let mut stream = open(lab);
    settle(&mut stream);
    lab.kill();
    sleep(AWAY);
    assert!(!answers(&mut stream), "nobody forwards it");
    let rules = state(lab, "a");
    lab.start(&rules);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.read_exact(&mut [0]).expect("what was not forwarded is sent again");
    assert!(answers(&mut stream));
    let summary = lab.stop();
    assert!(summary["sessions"]["adopted"].as_u64() > Some(0), "{summary:#}");
}
