//! Tests of the order of events and of what changes: policies follow the objects that they refer to.

use super::*;
use crate::object::{ObjectName, Order, Tier};
use crate::source::{ForeignKinds, Options, ServiceKinds, load_text};

const TIER: &str = "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: first}, spec: {order: 1}}";
const POLICY: &str = "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: p, namespace: x}, spec: {tier: first, \
                      ingress: [{action: Allow, source: {selector: kind == 'partner'}}]}}";
const SET: &str = "{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: s, namespace: x, labels: {kind: partner}}, \
                   spec: {nets: [192.0.2.0/24]}}";
const ACCOUNTS: &str = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: q}, spec: \
                        {serviceAccountSelector: role == 'machine'}}";
const ACCOUNT: &str =
    "{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot, namespace: x, labels: {role: machine}}}";
const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {team: red}}}";

/// The objects of the documents, which need not be complete.
fn objects(documents: &[&str]) -> Vec<Object> {
    let options = Options { foreign: ForeignKinds::Read, services: ServiceKinds::Read, ..Options::default() };
    let own: Vec<_> = documents.iter().chain([&ACCOUNT]).map(|document| (*document).to_owned()).collect();
    let mut objects = load_text("t.yaml", &own.join("\n---\n"), options).unwrap().objects;
    if !documents.contains(&ACCOUNT) {
        objects.pop();
    }
    objects
}

fn object(document: &str) -> Object {
    objects(&[document]).remove(0)
}

fn apply(foreign: &mut Foreign, document: &str) -> Vec<Event> {
    foreign.resolve(Event::Apply(object(document)))
}

fn delete(foreign: &mut Foreign, document: &str) -> Vec<Event> {
    let Object::Foreign(object) = object(document) else { unreachable!() };
    foreign.resolve(Event::DeleteForeign(object.name()))
}

/// The only policy that the events apply.
fn policy(events: &[Event]) -> &ClusterPolicy {
    let [Event::Apply(Object::ClusterPolicy(policy))] = events else { panic!("{events:?}") };
    policy
}

#[test]
fn a_policy_follows_its_tier_its_sets_and_its_service_accounts() {
    let mut foreign = Foreign::default();
    let order = |events: &[Event]| match &policy(events).rank.tier {
        Tier::Other(tier) => tier.order,
        other => panic!("{other:?}"),
    };
    let peers = |events: &[Event]| policy(events).ingress[0].traffic.peers.as_ref().unwrap().len();
    let first = apply(&mut foreign, POLICY);
    assert_eq!((order(&first), peers(&first)), (Order::LAST, 1));
    assert_eq!(order(&apply(&mut foreign, TIER)), Order::of(1.0));
    assert!(apply(&mut foreign, TIER).is_empty() && apply(&mut foreign, POLICY).is_empty(), "nothing changed");
    assert_eq!(peers(&apply(&mut foreign, SET)), 2);
    assert!(apply(&mut foreign, &SET.replace("name: s", "name: t").replace("partner", "other")).is_empty());
    assert_eq!(peers(&delete(&mut foreign, SET)), 1);
    assert_eq!(order(&delete(&mut foreign, TIER)), Order::LAST);
    assert!(matches!(&delete(&mut foreign, POLICY)[..], [Event::DeleteClusterPolicy(name)] if &*name.name == "x/p"));
    assert!(apply(&mut foreign, TIER).is_empty() && delete(&mut foreign, POLICY).is_empty());
    // No pod can have a service account with the label, so that the policy selects none.
    assert!(apply(&mut foreign, ACCOUNTS).is_empty());
    assert!(policy(&apply(&mut foreign, ACCOUNT)).subject.filter.is_some());
    let renamed = apply(&mut foreign, &ACCOUNT.replace("name: robot", "name: machine"));
    assert_ne!(policy(&renamed).subject.filter, None);
    assert!(matches!(&delete(&mut foreign, ACCOUNT)[..], [Event::Apply(_)]));
    let gone = delete(&mut foreign, &ACCOUNT.replace("name: robot", "name: machine"));
    assert!(matches!(&gone[..], [Event::DeleteClusterPolicy(_)]), "{gone:?}");
}

#[test]
fn other_events_pass_and_what_they_change_follows() {
    let mut foreign = Foreign::default();
    let blue = POLICY.replace("kind == 'partner'", "kind == 'partner' && pcns.team == 'blue'");
    let batch = objects(&[&blue, SET, NAMESPACE, TIER]).into_iter().map(Event::Apply);
    let events = foreign.resolve_all(batch);
    assert!(
        matches!(&events[..], [Event::Apply(Object::Namespace(_)), Event::Apply(Object::ClusterPolicy(_))]),
        "{events:?}"
    );
    let moved = apply(&mut foreign, &NAMESPACE.replace("red", "blue"));
    let [Event::Apply(Object::Namespace(_)), Event::Apply(Object::ClusterPolicy(policy))] = &moved[..] else {
        panic!("{moved:?}")
    };
    assert_eq!(policy.ingress[0].traffic.peers.as_ref().unwrap().len(), 2, "the pods, and the block of the set");
    assert_eq!(foreign.resolve(Event::DeletePod(ObjectName::new("x", "a"))).len(), 1);
}

#[test]
fn the_result_does_not_depend_on_the_order_of_events() {
    let documents = [POLICY, SET, NAMESPACE, TIER, ACCOUNT, ACCOUNTS];
    let wanted = shown(resolved(objects(&documents)));
    for turn in 0..documents.len() {
        let mut turned = documents;
        turned.rotate_left(turn);
        let mut foreign = Foreign::default();
        let mut state: BTreeMap<ClusterPolicyName, Object> = BTreeMap::new();
        for document in turned.iter().chain(&turned) {
            for event in apply(&mut foreign, document) {
                match event {
                    Event::Apply(Object::ClusterPolicy(policy)) => {
                        state.insert(policy.rank.name.clone(), Object::ClusterPolicy(policy));
                    }
                    Event::DeleteClusterPolicy(name) => drop(state.remove(&name)),
                    _ => {}
                }
            }
        }
        assert_eq!(shown(state.into_values().collect()), wanted, "{turn}");
    }
}

/// The ranked policies without their positions, which differ between texts.
fn shown(objects: Vec<Object>) -> Vec<String> {
    let policy = |object| match object {
        Object::ClusterPolicy(policy) => {
            Some(format!("{:?}", ClusterPolicy { position: None, ..Arc::unwrap_or_clone(policy) }))
        }
        _ => None,
    };
    let mut all: Vec<_> = objects.into_iter().filter_map(policy).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_thousand_policies_that_arrive_with_as_many_sets_resolve_in_one_step() {
    let policies = (0..1000).map(|at| POLICY.replace("name: p", &format!("name: p{at}")));
    let sets =
        (0..1000).map(|at| SET.replace("name: s", &format!("name: s{at}")).replace("partner", &format!("k{at}")));
    let documents: Vec<String> = sets.chain(policies).chain([TIER.to_owned()]).collect();
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    let mut foreign = Foreign::default();
    let taken = objects(&documents).into_iter().filter_map(|object| foreign.take(Event::Apply(object))).count();
    assert_eq!((taken, foreign.changed().len(), foreign.changed().len()), (0, 1000, 0));
}
