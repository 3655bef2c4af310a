//! Compares this renderer with the ACL renderer: both give the same verdict for every packet, after any events.

use std::net::IpAddr;

use bulkhead_classifier::Key;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::cache::Event;
use crate::fixtures;
use crate::object::{IpBlock, Object, Peer, PolicyPort, PolicyRule, Transport};
use crate::pipeline::Pipeline;
use crate::processor::Scope;
use crate::renderer::RenderError;
use crate::renderer::acl::{Attachment, NodeTables};
use crate::renderer::contiv::renderer::{ContivRenderer, PublishedTuples, TupleTables};
use crate::renderer::contiv::tuple::first_match;
use crate::renderer::contiv::{Orientation, TooManyTuples};

use super::*;

const NODES: [(&str, &str); 2] = [("n1", "192.168.0.1"), ("n2", "192.168.0.2")];

/// Returns a pipeline with a renderer of each orientation for each node, and their published tables.
fn pipeline() -> (Pipeline, Vec<PublishedTuples>) {
    let mut pipeline = Pipeline::new(Scope::Cluster);
    let mut published = Vec::new();
    for (node, _) in NODES {
        for orientation in [Orientation::Egress, Orientation::Ingress] {
            let tables = PublishedTuples::default();
            pipeline.register(ContivRenderer::new(node.into(), orientation, tables.clone()));
            published.push(tables);
        }
    }
    (pipeline, published)
}

fn address(family: usize, namespace: &str, number: u8, last: u8) -> String {
    let namespace = u8::from(namespace == "y");
    let v4 = format!("10.{namespace}.{number}.{last}");
    let v6 = format!("fd00::{namespace}:{number}:{last}");
    [v4.clone(), v6.clone(), format!("{v4},{v6}")][family].clone()
}

fn any_ports() -> impl Strategy<Value = Option<Vec<PolicyPort>>> {
    let transport = || proptest::sample::select(&Transport::ALL[..]);
    let port = prop_oneof![
        transport().prop_map(PolicyPort::All),
        (transport(), 79u16..83, 0u16..3).prop_map(|(transport, first, more)| PolicyPort::Range {
            transport,
            first,
            last: first + more
        }),
    ];
    proptest::option::of(proptest::collection::vec(port, 1..4))
}

fn any_rule() -> impl Strategy<Value = PolicyRule> {
    let role = proptest::sample::select(&["role=a", "role=b", ""][..]);
    let ns = proptest::sample::select(&["x", "y"][..]);
    let pods = (ns, role).prop_map(|(ns, role)| fixtures::from_pods(ns, role, None).peers.unwrap().remove(0));
    let block = |cidr: &str, except: &[&str]| {
        let except = except.iter().map(|net| net.parse().unwrap()).collect();
        Peer::Block(IpBlock { cidr: cidr.parse().unwrap(), except })
    };
    let blocks = proptest::sample::select(vec![
        block("0.0.0.0/0", &[]),
        block("10.0.0.0/8", &["10.0.1.0/24", "10.1.2.1/32"]),
        block("fd00::/16", &["fd00::1:0:0/96"]),
        block("10.0.1.1/32", &[]),
        block("8.8.8.0/24", &["8.8.8.8/32"]),
    ]);
    let peers = proptest::option::weighted(0.8, proptest::collection::vec(prop_oneof![pods, blocks], 1..3));
    (peers, any_ports()).prop_map(|(peers, ports)| PolicyRule { peers, ports })
}

fn any_event() -> impl Strategy<Value = Event> {
    let role = || proptest::sample::select(&["role=a", "role=b"][..]);
    let ns = || proptest::sample::select(&["x", "y"][..]);
    let rules = || proptest::option::of(proptest::collection::vec(any_rule(), 0..3));
    let place = (0usize..3, proptest::sample::select(&["n1", "n1", "n2"][..]), 1u8..3);
    prop_oneof![
        6 => (ns(), 0u8..3, place, role()).prop_map(|(ns, number, (family, node, last), role)| {
            Event::Apply(fixtures::pod(&format!("{ns}/p{number}"), &address(family, ns, number, last), node, role))
        }),
        1 => (ns(), 0u8..3).prop_map(|(ns, number)| Event::DeletePod(fixtures::name(&format!("{ns}/p{number}")))),
        4 => (ns(), 0u8..2, role(), rules(), rules()).prop_map(|(ns, number, subject, ingress, egress)| {
            Event::Apply(fixtures::policy(&format!("{ns}/q{number}"), subject, ingress, egress))
        }),
        1 => (ns(), 0u8..2).prop_map(|(ns, number)| Event::DeletePolicy(fixtures::name(&format!("{ns}/q{number}")))),
        1 => (0usize..2, 1u8..3).prop_map(|(at, last)| Event::Apply(fixtures::node(NODES[at].0, &format!("192.168.{at}.{last}")))),
    ]
}

/// Returns the verdict of the ACL renderer's tables where a packet leaves the node.
fn acl_verdict(tables: &NodeTables, key: &Key) -> Action {
    let interfaces = &tables.interfaces;
    let owner = interfaces.iter().find(|interface| interface.addresses.contains(&key.dst()));
    let uplink = || interfaces.iter().find(|interface| interface.attachment == Attachment::Uplink);
    tables.tables[owner.or_else(uplink).unwrap().table].tables.lookup(key).action()
}

/// Returns the verdict of the 6-tuple tables where the packet leaves or enters the vswitch.
fn tuple_verdict(pods: &NodeTables, tables: &TupleTables, key: &Key) -> Action {
    let end = match tables.orientation {
        Orientation::Egress => key.dst(),
        Orientation::Ingress => key.src(),
    };
    let of_pod = pods.interfaces.iter().find_map(|interface| match &interface.attachment {
        Attachment::Pod(name) if interface.addresses.contains(&end) => Some(name),
        _ => None,
    });
    let rules = match of_pod {
        Some(name) => tables.locals.get(name).map(|table| &table.rules),
        None => Some(&tables.global.rules),
    };
    first_match(rules.into_iter().flatten(), key)
}

fn keys() -> impl Iterator<Item = Key> {
    let pods = |family| {
        ["x", "y"].into_iter().flat_map(move |ns| {
            (0u8..3).flat_map(move |number| (1u8..3).map(move |last| address(family, ns, number, last)))
        })
    };
    let others = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let v4: Vec<_> = pods(0).chain(others(&["192.168.0.1", "192.168.1.2", "8.8.8.8", "8.8.8.9", "10.0.1.9"])).collect();
    let v6: Vec<_> = pods(1).chain(others(&["fd00::1:0:9", "2001:db8::1"])).collect();
    let pairs = [v4, v6].into_iter().flat_map(|family| {
        let family: Vec<IpAddr> = family.iter().map(|text| text.parse().unwrap()).collect();
        family.clone().into_iter().flat_map(move |a| family.clone().into_iter().map(move |b| (a, b)))
    });
    let services =
        [(protocol::TCP, 80), (protocol::TCP, 81), (protocol::UDP, 80), (protocol::SCTP, 82), (protocol::ICMP, 0)];
    pairs.flat_map(move |(src, dst)| {
        services.into_iter().map(move |(number, port)| Key::new(src, dst, number, 1_000, port))
    })
}

#[test]
fn both_renderers_registered_side_by_side_give_the_same_verdict_in_both_orientations() {
    let mut runner = TestRunner::deterministic();
    let history = proptest::collection::vec(any_event(), 5..40);
    let keys: Vec<Key> = keys().collect();
    let mut verdicts = [0usize; 2];
    let mut at_exit = [0usize; 2];
    for _ in 0..60 {
        let events = history.new_tree(&mut runner).unwrap().current();
        let (mut pipeline, published) = pipeline();
        pipeline.resync(NODES.map(|(name, address)| fixtures::node(name, address))).unwrap();
        for (at, event) in events.iter().enumerate() {
            pipeline.apply(event.clone()).unwrap();
            if at % 4 != 3 && at + 1 != events.len() {
                continue;
            }
            for tuples in &published {
                let tuples = tuples.latest().unwrap();
                let acl = pipeline.node_tables(&tuples.node).unwrap();
                for key in &keys {
                    let wanted = acl_verdict(&acl, key);
                    let have = tuple_verdict(&acl, &tuples, key);
                    assert_eq!(
                        have,
                        wanted,
                        "{} {:?} {key:?} after {:#?}",
                        tuples.node,
                        tuples.orientation,
                        &events[..=at]
                    );
                    verdicts[usize::from(wanted == Action::Allow)] += 1;
                    let local = acl.interfaces.iter().any(|interface| interface.addresses.contains(&key.dst()));
                    at_exit[usize::from(wanted == Action::Allow)] += usize::from(!local);
                }
            }
        }
    }
    assert!(verdicts.iter().chain(&at_exit).all(|&count| count > 10_000), "{verdicts:?} {at_exit:?}");
}

#[test]
fn an_event_that_changes_no_table_publishes_nothing_and_a_resync_neither() {
    let (mut pipeline, published) = pipeline();
    let objects = || {
        vec![
            fixtures::namespace("x", ""),
            fixtures::node("n1", "192.168.0.1"),
            fixtures::node("n2", "192.168.0.2"),
            fixtures::pod("x/a", "10.0.0.1", "n1", "role=a"),
            fixtures::pod("x/b", "10.0.0.2", "n1", "role=b"),
            fixtures::pod("x/c", "10.0.0.3", "n2", "role=b"),
            fixtures::policy("x/p", "role=a", Some(vec![fixtures::from_pods("x", "role=b", Some(80))]), None),
        ]
    };
    let generations = |published: &[PublishedTuples]| -> Vec<u64> {
        published.iter().map(|tables| tables.latest().unwrap().generation).collect()
    };
    pipeline.resync(objects()).unwrap();
    let before = generations(&published);
    pipeline.resync(objects()).unwrap();
    pipeline.apply(Event::Apply(fixtures::pod("x/b", "10.0.0.2", "n1", "role=b,version=2"))).unwrap();
    pipeline.apply(Event::Apply(fixtures::pod("x/d", "10.0.0.4", "n2", "role=d"))).unwrap();
    assert_eq!(generations(&published), before);
    pipeline.apply(Event::DeletePod(fixtures::name("x/c"))).unwrap();
    let after = generations(&published);
    assert!(after[0] > before[0] && after[1] > before[1], "n1's pod lost a peer");
    assert_eq!(after[2..], before[2..], "nothing changed at n2, whose pods nobody restricts");
    let tables = published[0].latest().unwrap();
    assert!(
        matches!(&tables.changes[..], [TableChange::Local { .. }, TableChange::Local { .. }]),
        "{:?}",
        tables.changes
    );
}

#[test]
fn what_exceeds_the_bound_is_refused_whole_and_made_up_for_as_soon_as_it_fits() {
    let published = PublishedTuples::default();
    let mut pipeline = Pipeline::new(Scope::Cluster);
    let limit = 100;
    let orientation = Orientation::Egress;
    pipeline.register(ContivRenderer::with_limit("n1".into(), orientation, published.clone(), limit));
    let blocks = |count: u8| {
        let block = |at| Peer::Block(IpBlock { cidr: format!("10.{at}.0.0/24").parse().unwrap(), except: vec![] });
        let rule = PolicyRule { peers: Some((0..count).map(block).collect()), ports: None };
        fixtures::policy("x/p", "role=a", Some(vec![rule]), None)
    };
    let objects: Vec<Object> =
        vec![fixtures::namespace("x", ""), fixtures::pod("x/a", "10.0.0.1", "n1", "role=a"), blocks(50)];
    pipeline.resync(objects).unwrap();
    let good = published.latest().unwrap();
    assert_eq!(good.locals[&fixtures::name("x/a")].rules.len(), 51);
    let refused = |outcome| match outcome {
        Err(RenderError { source, .. }) => assert_eq!(source.downcast_ref::<TooManyTuples>().unwrap().limit, limit),
        Ok(()) => panic!("taken in"),
    };
    refused(pipeline.apply(Event::Apply(blocks(200))));
    refused(pipeline.apply(Event::Apply(fixtures::pod("x/b", "10.0.0.2", "n1", "role=a"))));
    let kept = published.latest().unwrap();
    assert_eq!((kept.generation, &kept.locals), (good.generation, &good.locals), "the last good tables stay");
    pipeline.apply(Event::Apply(blocks(60))).unwrap();
    let now = published.latest().unwrap();
    let lengths: Vec<_> = now.locals.iter().map(|(name, table)| (name.to_string(), table.rules.len())).collect();
    assert_eq!(lengths, [("x/a".to_string(), 61), ("x/b".to_string(), 61)], "the pod of the refused event is there");
    assert!(Arc::ptr_eq(&now.locals[&fixtures::name("x/a")], &now.locals[&fixtures::name("x/b")]));
}

#[test]
fn the_combined_tables_and_the_global_table_count_for_the_bound_too() {
    for (ingress, egress) in [(None, Some(vec![])), (Some(vec![]), None)] {
        let orientation = if egress.is_some() { Orientation::Egress } else { Orientation::Ingress };
        let published = PublishedTuples::default();
        let mut pipeline = Pipeline::new(Scope::Cluster);
        pipeline.register(ContivRenderer::with_limit("n1".into(), orientation, published.clone(), 60));
        pipeline.apply(Event::Apply(fixtures::policy("x/p", "", ingress, egress))).unwrap();
        let mut refused = 0;
        for at in 1..=60 {
            let pod = fixtures::pod(&format!("x/p{at}"), &format!("10.0.0.{at}"), "n1", "");
            refused += usize::from(pipeline.apply(Event::Apply(pod)).is_err());
            let tables = published.latest().unwrap();
            let local: BTreeMap<_, _> = tables.locals.values().map(|table| (table.id, table.rules.len())).collect();
            assert!(local.values().sum::<usize>() + tables.global.rules.len() <= 60);
        }
        assert!((1..60).contains(&refused), "{refused}");
    }
}
