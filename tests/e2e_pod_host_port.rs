//! Pods' host ports with real programs: which pod answers at the node's address, the source address that it sees, and the end of the pod.

use crate::e2e_services::{self, serve_name};
use crate::require;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::lab::lasting::inside;
use crate::lab::netns::Netns;
use crate::lab::{Lab, policy};
use bulkhead_dataplane::io::in_namespace;

/// The pod `web` with these host ports, which replaces the one without any.
fn web(lab: &Lab, phase: &str, ports: &str) -> String {
    let (pod, node) = (lab.get("web"), lab.node_name());
    let (v4, v6) = (&pod.v4, &pod.v6);
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: default, labels: {{app: web}}}}\n\
         spec: {{nodeName: {node}, containers: [{{name: c, ports: [{ports}]}}]}}\n\
         status: {{phase: {phase}, podIP: {v4}, podIPs: [{{ip: {v4}}}, {{ip: '{v6}'}}]}}\n"
    )
}

/// Connects from this namespace to a pod's host port. Returns the client address that the server saw, `None` if it does not answer within 2
/// seconds.
fn ask(netns: &Netns, address: &str, port: u16) -> Option<IpAddr> {
    e2e_services::ask(netns, address, port).map(|(_, client)| client)
}

#[test]
fn a_pod_is_reached_at_its_nodes_address_and_sees_who_asks_until_it_ends() {
    require!("socat", "ss");
    who_asks_is_seen_until_the_pod_ends(|lab| {
        lab.outside();
        lab.host();
    });
}

#[test]
fn a_pod_is_reached_over_the_card_that_the_nodes_kernel_keeps() {
    require!("socat", "ss");
    only_with_tc!();
    who_asks_is_seen_until_the_pod_ends(|lab| {
        lab.outside_of_kernel();
    });
}

fn who_asks_is_seen_until_the_pod_ends(connect: impl FnOnce(&mut Lab)) {
    let mut lab = Lab::new();
    for name in ["client", "web"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.hide("web", true);
    connect(&mut lab);
    let (v4, v6) = (lab.node_v4(), lab.node_v6());
    let ports = format!(
        "{{containerPort: 8080, hostPort: 80}}, {{containerPort: 8080, hostPort: 81, hostIP: {v4}}}, \
         {{containerPort: 5140, hostPort: 514, protocol: UDP}}"
    );
    let running = web(&lab, "Running", &ports);
    lab.start(&running);
    let _server = serve_name(&lab.get("web").netns, "web", 8080);
    let outside = lab.outside.as_ref().unwrap();
    let parse = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    assert_eq!(ask(outside, &v4, 80), parse("172.18.0.100"), "{}", lab.log());
    assert_eq!(ask(outside, &v6, 80), parse("fd00:18::100"));
    assert_eq!((ask(outside, &v4, 81), ask(outside, &v6, 81)), (parse("172.18.0.100"), None), "one address alone");
    let (client, own) = (lab.get("client"), lab.get("web"));
    assert_eq!(ask(&client.netns, &v4, 80), parse(&client.v4), "a pod of the node sees no difference");
    assert_eq!(ask(&own.netns, &v4, 80), parse("10.244.1.1"), "itself it sees with an address of the node's block");
    // Enough datagrams for the kernel to get the flow.
    let server = inside(own, || UdpSocket::bind("0.0.0.0:5140").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let sender =
        in_namespace(&Path::new("/run/netns").join(outside.name()), || UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    sender.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    sender.connect((&*v4, 514)).unwrap();
    let mut bytes = [0; 16];
    for _ in 0..200 {
        sender.send(b"log").unwrap();
        let (_, from) = server.recv_from(&mut bytes).unwrap();
        assert_eq!(Some(from.ip()), parse("172.18.0.100"));
        server.send_to(b"heard", from).unwrap();
        sender.recv(&mut bytes).unwrap();
    }
    // Policy matches the pod and its own port, not the host port.
    let closed = policy("web", "{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}");
    let open = policy("web", "{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 8080}]}]}");
    lab.apply(&format!("{running}{closed}"));
    assert_eq!(ask(lab.outside.as_ref().unwrap(), &v4, 80), None);
    lab.apply(&format!("{running}{open}"));
    assert_eq!(ask(lab.outside.as_ref().unwrap(), &v4, 80), parse("172.18.0.100"));
    // After the pod's end its host ports no longer answer, not even for an open session.
    lab.apply(&running);
    sender.send(b"log").unwrap();
    assert!(server.recv_from(&mut bytes).is_ok());
    lab.apply(&web(&lab, "Succeeded", &ports));
    sender.send(b"log").unwrap();
    assert!(server.recv_from(&mut bytes).is_err(), "nothing comes to a pod that has ended");
    assert_eq!(ask(lab.outside.as_ref().unwrap(), &v4, 80), None);
    lab.stop();
}
