//! A refusal is not computed again until one of its inputs changes.

use bulkhead_classifier::{AddressSet, Addresses, OriginId, Services};
use ipnet::IpNet;

use crate::object::Node;
use crate::renderer::contiv::renderer::{Attempts, ContivRenderer, PublishedTuples};
use crate::renderer::plain::{OwnNodeRule, PlainList, PlainPod, PlainRule, PlainTransaction};

use super::*;

const LIMIT: usize = 100;

fn ingress(revision: u64, blocks: u8) -> Arc<PlainList> {
    let nets = (0..blocks).map(|at| format!("10.{at}.0.0/24").parse::<IpNet>().unwrap());
    let rule = |peers, action| PlainRule { peers, services: Services::Any, names: None, action, origin: OriginId(0) };
    let peers = nets.collect::<AddressSet>().into();
    Arc::new(PlainList {
        revision,
        previous: None,
        rules: vec![rule(peers, Action::Allow), rule(Addresses::Any, Action::Deny)],
        own_node: vec![OwnNodeRule::accept_first()],
    })
}

fn with(number: u8, node: &str, list: Option<Arc<PlainList>>) -> (PodName, Option<Arc<PlainPod>>) {
    let config = PlainPod {
        node: node.into(),
        addresses: vec![format!("10.0.0.{number}").parse().unwrap()],
        mac: None,
        ingress: list,
        egress: None,
        hairpin: None,
    };
    (pod(number.into()), Some(Arc::new(config)))
}

fn of(pods: Vec<(PodName, Option<Arc<PlainPod>>)>) -> PlainTransaction {
    PlainTransaction { resync: false, pods, nodes: vec![] }
}

fn renderer() -> (ContivRenderer, PublishedTuples) {
    let published = PublishedTuples::default();
    (ContivRenderer::with_limit("n1".into(), Orientation::Egress, published.clone(), LIMIT), published)
}

/// Renders a transaction and returns the steps that it took.
fn cost(renderer: &mut ContivRenderer, transaction: &PlainTransaction) -> (Result<(), String>, Attempts) {
    let before = renderer.attempts();
    let outcome = renderer.render_plain(transaction).map_err(|error| error.to_string());
    let after = renderer.attempts();
    let (expansions, combinations) = (after.expansions - before.expansions, after.combinations - before.combinations);
    (outcome, Attempts { expansions, combinations })
}

const NOTHING: Attempts = Attempts { expansions: 0, combinations: 0 };

#[test]
fn a_list_that_is_too_long_is_expanded_once_until_it_or_the_room_for_it_changes() {
    let (mut renderer, published) = renderer();
    let once = Attempts { expansions: 1, combinations: 0 };
    let (first, work) = cost(&mut renderer, &of(vec![with(1, "n1", Some(ingress(1, 200)))]));
    assert_eq!(work, once);
    assert!(first.is_err());
    for elsewhere in [with(9, "n2", Some(ingress(2, 1))), (pod(9), None)] {
        let (outcome, work) = cost(&mut renderer, &of(vec![elsewhere]));
        assert_eq!((&outcome, work), (&first, NOTHING), "another node");
    }
    let (outcome, work) = cost(&mut renderer, &of(vec![with(1, "n1", Some(ingress(1, 200)))]));
    assert_eq!((outcome.is_err(), work), (true, NOTHING), "the same again");
    let (outcome, work) = cost(&mut renderer, &of(vec![with(2, "n1", None)]));
    assert_eq!((outcome.is_err(), work), (true, NOTHING), "another pod changed, and the list is as long as before");
    let mut own = of(vec![]);
    let node = Node {
        name: "n1".into(),
        labels: Default::default(),
        addresses: vec!["192.168.0.1".parse().unwrap()],
        pod_cidrs: vec![],
        terminating: false,
    };
    own.nodes.push(("n1".into(), Some(Arc::new(node))));
    let (outcome, work) = cost(&mut renderer, &own);
    assert_eq!((outcome.is_err(), work), (true, once), "the node's addresses are in the list");
    assert!(published.latest().is_none());
    let (outcome, work) = cost(&mut renderer, &of(vec![with(1, "n1", Some(ingress(3, 50)))]));
    assert_eq!((outcome, work), (Ok(()), Attempts { expansions: 1, combinations: 1 }), "it has become shorter");
    assert_eq!(published.latest().unwrap().locals[&pod(1)].rules.len(), 52);
}

#[test]
fn a_list_that_is_refused_for_the_room_that_others_take_is_tried_when_they_go() {
    let (mut renderer, published) = renderer();
    renderer.render_plain(&of(vec![with(1, "n1", Some(ingress(1, 60)))])).unwrap();
    let (outcome, work) = cost(&mut renderer, &of(vec![with(2, "n1", Some(ingress(2, 50)))]));
    assert_eq!((outcome.is_err(), work.expansions), (true, 1));
    let (outcome, work) = cost(&mut renderer, &of(vec![with(3, "n1", None)]));
    assert_eq!((outcome.is_err(), work), (true, NOTHING));
    let (outcome, work) = cost(&mut renderer, &of(vec![(pod(1), None)]));
    assert_eq!((outcome, work), (Ok(()), Attempts { expansions: 1, combinations: 1 }), "there is room now");
    assert_eq!(published.latest().unwrap().locals[&pod(2)].rules.len(), 51);
}

#[test]
fn tables_that_are_too_large_together_are_combined_once_until_a_pod_of_the_node_changes() {
    let (mut renderer, published) = renderer();
    // Each list fits, and so do both together. With a third pod's table, their tables do not.
    let closed = Some(ingress(1, 0));
    let pods = (1..=60).map(|number| {
        let (name, config) = with(number, "n1", None);
        let egress = closed.clone();
        (name, config.map(|config| Arc::new(PlainPod { egress, ..PlainPod::clone(&config) })))
    });
    let (outcome, work) = cost(&mut renderer, &of(pods.collect()));
    assert_eq!((outcome.is_err(), work.combinations), (true, 1));
    let (outcome, work) = cost(&mut renderer, &of(vec![with(99, "n2", None)]));
    assert_eq!((outcome.is_err(), work), (true, NOTHING), "another node");
    let (outcome, work) = cost(&mut renderer, &of((2..=60).map(|number| (pod(number), None)).collect()));
    assert_eq!((outcome, work.combinations), (Ok(()), 1));
    assert!(published.latest().is_some());
    let (outcome, work) = cost(&mut renderer, &of(vec![with(99, "n2", None)]));
    assert_eq!((outcome, work.expansions), (Ok(()), 0));
}
