//! DNS of pods with rules that name domains and the flow cache.

use bulkhead_classifier::{Action, OriginId, PortRange, Rule, Service, ServiceSet, Tables};

use super::caching::{Recorded, slot, start_with};
use super::*;
use crate::io::CachedFlow;
use crate::testbed::dns::{answer, query};
use crate::testbed::{ACK, datagram, routes, tcp_at};
use crate::{Holder, Names, ServerNameCheck, TableId};

/// A DNS server on the node, and one beyond the uplink.
const ON_NODE: &str = "192.168.0.1";
const OUTSIDE: &str = "192.168.0.53";
const WEB: &str = "203.0.113.7";
const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Returns a snapshot in which A has rules that name a domain and learns from this server, and B has none.
pub(super) fn snapshot(mut ports: Vec<PortConfig>, server: &str) -> Snapshot {
    ports[HOST.index()].mac = Some(NODE_MAC);
    let rule = |names: Option<&str>, action| Rule {
        names: names.map(|name| [name.parse().unwrap()].into_iter().collect()),
        ..Rule::any(action, OriginId(40))
    };
    let allow = Action::Allow;
    let named = Tables::build(vec![rule(Some("www.example.com"), allow), rule(None, allow)]).unwrap();
    let mut tables = snapshot_of(4, ports.clone()).tables().to_vec();
    tables.push(Arc::new(named));
    ports[A.index()].named_table = Some(TableId(3));
    let names = Names::new([ip(server)].into_iter().collect(), 0, vec![None, None, Some(Holder(1)), None]);
    let routes = routes(&ports);
    Snapshot::new(4, ports, tables, routes).unwrap().with_names(Some(Arc::new(names)))
}

/// Like [`snapshot`], but A may only ask this server and reach www.example.com, which it must name.
pub(super) fn snapshot_of_web(ports: Vec<PortConfig>, server: &str) -> Snapshot {
    let base = snapshot(ports, server);
    let names = Names::clone(base.names().unwrap()).checking_server_names(ServerNameCheck::Drop);
    let dns = Service { protocols: (17, 17), ports: PortRange::one(53) };
    let dns =
        Rule { services: [dns].into_iter().collect::<ServiceSet>().into(), ..Rule::any(Action::Allow, OriginId(41)) };
    let web = Rule {
        names: Some(["www.example.com".parse().unwrap()].into_iter().collect()),
        ..Rule::any(Action::Allow, OriginId(40))
    };
    let mut tables = base.tables().to_vec();
    tables[3] = Arc::new(Tables::build(vec![dns, web]).unwrap());
    Snapshot::new(4, base.ports().to_vec(), tables, base.routes().clone()).unwrap().with_names(Some(Arc::new(names)))
}

/// Exchanges three packets of a UDP flow between a pod and this port of the node. Returns the number of flows added to the cache.
fn exchange(node: &mut Node, cache: &Recorded, (port, mac, client): (PortId, [u8; 6], &str), dport: u16) -> usize {
    let (ask, reply) = (query(1, "www.example.com"), answer(1, "www.example.com", &[("www.example.com", 60, WEB)]));
    for _ in 0..3 {
        node.send(port, &ethernet(mac, 0x0800, &datagram((client, 4000), (ON_NODE, dport), &ask)));
        node.receive(HOST);
        node.send(HOST, &ethernet(NODE_MAC, 0x0800, &datagram((ON_NODE, dport), (client, 4000), &reply)));
        node.receive(port);
    }
    cache.take().len()
}

/// Sends the SYN of a connection from a pod to port 53 of the node. Returns the number of flows added to the cache.
fn open(node: &mut Node, cache: &Recorded, (port, mac, client): (PortId, [u8; 6], &str)) -> usize {
    node.send(port, &ethernet(mac, 0x0800, &tcp(client, ON_NODE, 4001, 53, SYN)));
    node.receive(HOST);
    cache.take().len()
}

#[test]
fn dns_of_a_pod_that_learns_names_stays_with_the_workers_and_all_else_is_cached() {
    let (a, b) = ((A, A_MAC, "10.0.0.1"), (B, B_MAC, "10.0.0.2"));
    for (trusted, answers) in [(ON_NODE, 3), (OUTSIDE, 0)] {
        let cache = Arc::new(Recorded::answering());
        let mut node = start_with(&cache, None, snapshot(live_ports(), trusted));
        let is_dns = trusted == ON_NODE;
        assert_eq!(exchange(&mut node, &cache, a, 53) == 0, is_dns, "{trusted}");
        assert_eq!(open(&mut node, &cache, a), if is_dns { 0 } else { 2 }, "{trusted}");
        assert!(exchange(&mut node, &cache, a, 54) > 0 && exchange(&mut node, &cache, b, 53) > 0, "{trusted}");
        assert_eq!(open(&mut node, &cache, b), 2, "{trusted}");
        assert_eq!(node.vswitch.counters().workers[0].names.answers, answers, "{trusted}");
        node.stop();
    }
}

#[test]
fn answers_over_tcp_through_a_shared_uplink_are_led_to_a_worker() {
    let cache = Arc::new(Recorded::answering());
    let mut ports = live_ports();
    let link = ports[HOST.index()].link;
    let uplink = &mut ports[UPLINK.index()];
    (uplink.mac, uplink.link, uplink.shares_host) = (Some(NODE_MAC), link, true);
    let mut node = start_with(&cache, None, snapshot(ports, OUTSIDE));
    node.send(A, &from_a(&tcp("10.0.0.1", OUTSIDE, 4001, 53, SYN)));
    node.receive(UPLINK);
    let [back] = *cache.take() else { panic!("one flow") };
    assert_eq!(
        (back.from, back.ports, back.lease),
        (slot(UPLINK), [UPLINK, A], 0),
        "the kernel forwards no packet by it"
    );
    node.stop();
}

#[test]
fn a_connection_whose_server_name_is_not_compared_gets_no_lease_and_its_syn_ends_those_of_the_last_one() {
    const SITE: &str = "10.0.0.2";
    for cache in [Recorded::answering(), Recorded::default()] {
        let (cache, mut ports) = (Arc::new(cache), live_ports());
        ports[B.index()].egress = Some(crate::testbed::OPEN);
        let mut node = start_with(&cache, None, snapshot_of_web(ports, SITE));
        let mut pass = |from: PortId, packet: &[u8]| {
            let (mac, to) = if from == A { (A_MAC, B) } else { (B_MAC, A) };
            node.send(from, &ethernet(mac, 0x0800, packet));
            node.receive(to);
        };
        let reply = answer(1, "www.example.com", &[("www.example.com", 60, SITE)]);
        pass(A, &datagram(("10.0.0.1", 4000), (SITE, 53), &query(1, "www.example.com")));
        pass(B, &datagram((SITE, 53), ("10.0.0.1", 4000), &reply));
        cache.take();
        for sport in [4002, 4003] {
            let (client, site) = (("10.0.0.1", sport), (SITE, 443));
            pass(A, &tcp(client.0, site.0, client.1, site.1, SYN));
            let flows = cache.take();
            assert_eq!(flows.len(), 2, "{flows:?}");
            pass(B, &tcp_at(site, client, SYN | ACK, (1, 2)));
            (0..9).for_each(|_| pass(A, &tcp_at(client, site, ACK, (2, 2))));
            let later = cache.take();
            let is_unleased = |flow: &CachedFlow| (flow.lease, flow.timeout) == (0, 0);
            assert!(flows.iter().chain(&later).all(is_unleased), "no packet goes by them: {flows:?} {later:?}");
        }
        node.stop();
    }
}
