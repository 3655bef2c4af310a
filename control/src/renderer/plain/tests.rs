//! Lists that cannot be lowered.

use bulkhead_classifier::{PortRange, Service, ServiceSet, protocol};

use super::*;
use crate::contract::{EndpointRules, RuleAction, Tier, TierRule};
use crate::renderer::Instead;

/// Number of Pass rules, each for one port and half of some addresses. They cut a later deny into 2^14 pieces.
const PASSES: u32 = 14;

fn service(port: u16) -> Services {
    let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) };
    Services::from([service].into_iter().collect::<ServiceSet>())
}

fn rule(peers: Peers, services: Services, action: RuleAction, origin: u32) -> TierRule {
    TierRule { tier: Tier::Admin, peers, services, action, origin: OriginId(origin) }
}

fn complex(id: u64) -> Arc<TieredList> {
    let pass = |bit: u32| {
        let port = 80 + u16::try_from(bit).unwrap();
        rule(Peers::Sets([SetId(u64::from(bit))].into()), service(port), RuleAction::Pass, bit)
    };
    let deny = rule(Peers::Any, Services::Any, RuleAction::Deny, 99);
    Arc::new(TieredList { id: ListId(id), rules: (0..PASSES).map(pass).chain([deny]).collect() })
}

fn simple(id: u64, port: u16) -> Arc<TieredList> {
    let accept = rule(Peers::Any, service(port), RuleAction::Accept, 7);
    let deny = rule(Peers::Any, Services::Any, RuleAction::Deny, 8);
    Arc::new(TieredList { id: ListId(id), rules: vec![accept, deny] })
}

/// Returns the addresses whose index has this bit.
fn half(bit: u32) -> AddressSet {
    (0..1 << PASSES)
        .filter(|at| at >> bit & 1 == 1)
        .map(|at: u32| IpAddr::from((0x0a00_0000 + at).to_be_bytes()))
        .collect()
}

fn sets(all: impl Fn(u32) -> AddressSet) -> Vec<SetDelta> {
    (0..PASSES)
        .map(|bit| SetDelta { set: SetId(u64::from(bit)), added: Arc::new(all(bit)), removed: Arc::default() })
        .collect()
}

fn pod(name: &str) -> PodName {
    PodName::new("x", name)
}

fn endpoint(name: &str, ingress: Option<&Arc<TieredList>>) -> (PodName, Option<Arc<Endpoint>>) {
    let rules = EndpointRules { ingress: ingress.cloned(), egress: None, apart: None };
    let (name, addresses) = (pod(name), vec!["10.9.0.1".parse().unwrap()]);
    (name.clone(), Some(Arc::new(Endpoint { pod: name, node: "n".into(), addresses, mac: None, rules })))
}

/// For the pods of a transaction: the ports that ingress accepts from everybody. `None` for a pod without restriction.
fn ports(plain: &PlainTransaction) -> BTreeMap<String, Option<Vec<u16>>> {
    let accepted = |list: &Arc<PlainList>| {
        let allows = |port: &u16| {
            let first = list.rules.iter().find(|rule| rule.services.contains(protocol::TCP, *port));
            first.is_some_and(|rule| rule.action == Action::Allow)
        };
        (1..100).filter(allows).collect()
    };
    let pod = |(name, pod): &(PodName, Option<Arc<PlainPod>>)| {
        (name.name.to_string(), pod.as_ref().unwrap().ingress.as_ref().map(accepted))
    };
    plain.pods.iter().map(pod).collect()
}

fn refused(lists: &PlainLists) -> Vec<(String, Instead)> {
    lists.refusals().into_iter().map(|refusal| (refusal.subject, refusal.instead)).collect()
}

#[test]
fn a_list_that_cannot_be_lowered_concerns_its_pods_alone() {
    let mut lists = PlainLists::default();
    let first = Transaction {
        resync: true,
        sets: sets(half),
        endpoints: vec![
            endpoint("kept", Some(&simple(1, 81))),
            endpoint("open", None),
            endpoint("other", Some(&simple(2, 82))),
        ],
        ..Transaction::default()
    };
    let all = ports(&lists.follow(&first));
    assert_eq!(all, [("kept".into(), Some(vec![81])), ("open".into(), None), ("other".into(), Some(vec![82]))].into());
    let list = complex(3);
    let change = Transaction {
        endpoints: vec![
            endpoint("kept", Some(&list)),
            endpoint("new", Some(&list)),
            endpoint("open", Some(&list)),
            endpoint("other", Some(&simple(4, 84))),
        ],
        ..Transaction::default()
    };
    let all = ports(&lists.follow(&change));
    let expected = [("kept", Some(vec![81])), ("new", Some(vec![])), ("open", None), ("other", Some(vec![84]))];
    assert_eq!(all, expected.map(|(name, ports)| (name.to_owned(), ports)).into());
    let kept = ("ingress of x/kept, x/open".to_owned(), Instead::LastGood);
    assert_eq!(refused(&lists), [kept, ("ingress of x/new".into(), Instead::Closed)]);
    // Other pods' changes apply. A refused pod keeps its list, even if another of its lists is refused.
    let change = Transaction {
        endpoints: vec![endpoint("other", Some(&simple(5, 85))), endpoint("kept", Some(&complex(6)))],
        ..Transaction::default()
    };
    let all = ports(&lists.follow(&change));
    assert_eq!(all, [("kept".into(), Some(vec![81])), ("other".into(), Some(vec![85]))].into());
    // The sets shrink so that the lists can be lowered, and all pods get their list.
    let removed = SetDelta { added: Arc::default(), removed: Arc::new(half(3)), set: SetId(3) };
    let smaller: Vec<SetDelta> = (3..PASSES)
        .map(|bit| SetDelta { set: SetId(u64::from(bit)), removed: Arc::new(half(bit)), ..removed.clone() })
        .collect();
    let all = ports(&lists.follow(&Transaction { sets: smaller, ..Transaction::default() }));
    assert_eq!(all.keys().collect::<Vec<_>>(), ["kept", "new", "open"]);
    assert!(all.values().all(|ports| ports.as_ref().is_some_and(|ports| !ports.contains(&81))), "{all:?}");
    assert_eq!(refused(&lists), []);
    assert!(lists.kept.is_empty());
}

/// A list that can no longer be lowered because a set changed.
#[test]
fn the_last_addresses_stay_where_new_ones_cut_a_list_into_too_much() {
    let mut lists = PlainLists::default();
    let few = |bit: u32| if bit < 3 { half(bit) } else { AddressSet::default() };
    let list = complex(1);
    let first = Transaction { resync: true, sets: sets(few), ..Transaction::default() };
    let first = Transaction { endpoints: vec![endpoint("kept", Some(&list))], ..first };
    let before = lists.follow(&first).pods[0].1.clone();
    assert_eq!(refused(&lists), []);
    let all = lists.follow(&Transaction { sets: sets(half), ..Transaction::default() });
    assert!(all.pods.is_empty(), "nothing has changed for the pod");
    assert_eq!(refused(&lists), [("ingress of x/kept".into(), Instead::LastGood)]);
    // A second pod of the list gets the first one's list.
    let change = Transaction { endpoints: vec![endpoint("second", Some(&list))], ..Transaction::default() };
    let second = lists.follow(&change).pods[0].1.clone();
    assert_eq!(second.unwrap().ingress, before.unwrap().ingress);
    let gone = |name: &str| (pod(name), None);
    lists.follow(&Transaction { endpoints: vec![gone("kept"), gone("second")], ..Transaction::default() });
    assert_eq!(refused(&lists), []);
    assert!(lists.lists.is_empty() && lists.kept.is_empty());
}
