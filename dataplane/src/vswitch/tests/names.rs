//! DNS of pods with rules that name domains and the flow cache.

use bulkhead_classifier::{Action, OriginId, Rule, Tables};

use super::caching::{Recorded, slot, start_with};
use super::*;
use crate::io::CachedFlow;
use crate::testbed::dns::{answer, query};
use crate::testbed::{datagram, routes};
use crate::{Holder, Names, TableId};

/// A trusted server beyond the uplink, and another host there.
const SERVER: &str = "192.168.0.53";
const OTHER: &str = "192.168.0.54";
const WEB: &str = "203.0.113.7";
const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Returns a snapshot in which A has rules that name a domain, and B has none.
fn snapshot(mut ports: Vec<PortConfig>) -> Snapshot {
    let rule = |names: Option<&str>, action| Rule {
        names: names.map(|name| [name.parse().unwrap()].into_iter().collect()),
        ..Rule::any(action, OriginId(40))
    };
    let allow = Action::Allow;
    let named = Tables::build(vec![rule(Some("www.example.com"), allow), rule(None, allow)]).unwrap();
    let mut tables = snapshot_of(4, ports.clone()).tables().to_vec();
    tables.push(Arc::new(named));
    ports[A.index()].named_table = Some(TableId(3));
    let names = Names::new([ip(SERVER)].into_iter().collect(), 0, vec![None, None, Some(Holder(1)), None]);
    let routes = routes(&ports);
    Snapshot::new(4, ports, tables, routes).unwrap().with_names(Some(Arc::new(names)))
}

/// Exchanges three packets of a UDP flow between a pod and a host beyond the uplink.
fn exchange(node: &mut Node, (port, mac, client): (PortId, [u8; 6], &str), server: (&str, u16)) {
    let (ask, reply) = (query(1, "www.example.com"), answer(1, "www.example.com", &[("www.example.com", 60, WEB)]));
    for _ in 0..3 {
        node.send(port, &ethernet(mac, 0x0800, &datagram((client, 4000), server, &ask)));
        node.receive(UPLINK);
        node.send(UPLINK, &ethernet(GATEWAY_MAC, 0x0800, &datagram(server, (client, 4000), &reply)));
        node.receive(port);
    }
}

fn is_about(flow: &CachedFlow, server: &str) -> bool {
    [flow.flow.src, flow.flow.dst].contains(&ip(server))
}

#[test]
fn dns_of_a_pod_that_learns_names_stays_with_the_workers_and_all_else_is_cached() {
    let cache = Arc::new(Recorded::answering());
    let mut node = start_with(&cache, None, snapshot(live_ports()));
    let (a, b) = ((A, A_MAC, "10.0.0.1"), (B, B_MAC, "10.0.0.2"));
    exchange(&mut node, a, (SERVER, 53));
    node.send(A, &from_a(&tcp("10.0.0.1", SERVER, 4001, 53, SYN)));
    node.receive(UPLINK);
    assert_eq!(cache.take(), []);
    for (pod, server) in [(a, (OTHER, 53)), (a, (SERVER, 54)), (b, (SERVER, 53))] {
        exchange(&mut node, pod, server);
        assert!(cache.take().iter().any(|flow| is_about(flow, server.0)), "{pod:?} {server:?}");
    }
    let connections = [(A, A_MAC, "10.0.0.1", OTHER), (B, B_MAC, "10.0.0.2", SERVER)];
    for (port, mac, client, server) in connections {
        node.send(port, &ethernet(mac, 0x0800, &tcp(client, server, 4001, 53, SYN)));
        node.receive(UPLINK);
        assert_eq!(cache.take().iter().filter(|flow| flow.flow.protocol == 6).count(), 2, "{client} {server}");
    }
    assert_eq!(node.vswitch.counters().workers[0].names.answers, 3);
    node.stop();
}

#[test]
fn answers_over_tcp_through_a_shared_uplink_are_led_to_a_worker() {
    let cache = Arc::new(Recorded::answering());
    let mut ports = live_ports();
    for id in [UPLINK, HOST] {
        (ports[id.index()].mac, ports[id.index()].link) = (Some(GATEWAY_MAC), ports[HOST.index()].link);
    }
    ports[UPLINK.index()].shares_host = true;
    let mut node = start_with(&cache, None, snapshot(ports));
    node.send(A, &from_a(&tcp("10.0.0.1", SERVER, 4001, 53, SYN)));
    node.receive(UPLINK);
    let [back] = *cache.take() else { panic!("one flow") };
    assert_eq!(
        (back.from, back.ports, back.lease),
        (slot(UPLINK), [UPLINK, A], 0),
        "the kernel forwards no packet by it"
    );
    node.stop();
}
