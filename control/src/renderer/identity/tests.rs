use std::collections::BTreeSet;

use bulkhead_classifier::{Key, protocol};

use super::super::acl::tests::hold_against_the_tiers;
use super::*;
use crate::cache::Event;
use crate::fixtures;
use crate::identity::{Identities, Identity, LabelSet};
use crate::object::{IngressIsolation, Object};
use crate::pipeline::{Choice, Engine, Pipeline};
use crate::processor::Scope;

fn pipeline() -> Pipeline {
    Pipeline::with_engine(Scope::Node("n1".into()), IngressIsolation::ClusterDefault, Engine::Identity)
}

fn at(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn passes(pipeline: &Pipeline, src: &str, dst: &str, port: u16) -> bool {
    let tables = pipeline.node_tables("n1").unwrap();
    tables.tables[0].tables.lookup(&Key::new(at(src), at(dst), protocol::TCP, 40_000, port)).is_allow()
}

#[test]
fn a_nodes_identities_say_what_the_tiers_of_the_sender_and_of_the_receiver_say_together() {
    hold_against_the_tiers(|told| {
        let mut renderer = IdentityRenderer::of_node("n".into(), 0);
        renderer.render(told).unwrap();
        // Repeating the same objects changes no verdict and no map.
        let maps = renderer.work().maps;
        renderer.render(told).unwrap();
        assert_eq!(renderer.work().maps, maps);
        renderer.node_tables().unwrap().clone()
    });
}

const DB: &str = "172.17.0.2";
const FRONTEND: &str = "172.17.0.3";
const BACKENDS: [&str; 2] = ["172.17.0.4", "172.17.0.5"];

/// Returns the four containers of the toy enforcer.
fn redis() -> Pipeline {
    let mut pipeline = pipeline();
    let mut objects = vec![fixtures::namespace("default", ""), fixtures::node("n1", "192.168.0.1")];
    objects.push(fixtures::pod("default/db", DB, "n1", "role=db"));
    objects.push(fixtures::pod("default/frontend", FRONTEND, "n1", "role=frontend"));
    for (name, address) in ["default/backend1", "default/backend2"].iter().zip(BACKENDS) {
        objects.push(fixtures::pod(name, address, "n1", "role=backend"));
    }
    pipeline.resync(objects).unwrap();
    pipeline
}

fn allow_backend() -> Object {
    let rule = fixtures::from_pods("default", "role=backend", Some(6379));
    fixtures::policy("default/network-policy-allow-backend", "role=db", Some(vec![rule]), None)
}

/// Table 2-1: objects that express the numbers hard-coded in the toy enforcer.
fn table_2_1() -> Identities {
    let mut identities = Identities::of_cluster();
    for (role, number) in [("db", 10_001), ("frontend", 10_002), ("backend", 10_003)] {
        let labels = fixtures::labels(&format!("role={role}"));
        assert!(identities.assign(&LabelSet::of_pod("default", &labels), Identity(number)));
    }
    identities
}

/// Returns the ipcache in the form of the toy enforcer's tables, with identity numbers derived from labels.
fn ipcache(pipeline: &Pipeline, identities: &Identities) -> BTreeMap<IpAddr, u32> {
    let pods = pipeline.cache().pods().map(|(_, pod)| pod);
    pods.flat_map(|pod| {
        let number = identities.of(&LabelSet::of_pod(&pod.name.namespace, &pod.labels)).unwrap();
        pod.addresses.iter().map(move |&address| (address, number.0))
    })
    .collect()
}

/// Returns the allowing keys of a pod's policy cache: identity, protocol, port, direction.
fn policy_cache(pipeline: &Pipeline, identities: &Identities, pod: &str) -> BTreeSet<String> {
    let renderer = pipeline.identities().unwrap();
    let pod = fixtures::name(pod);
    if renderer.is_open(&pod, Direction::Ingress) {
        return ["0:0:0:0".to_owned()].into();
    }
    let mut keys = BTreeSet::new();
    for (address, number) in ipcache(pipeline, identities) {
        for (services, action, _) in renderer.entries(&pod, Direction::Ingress, address).unwrap() {
            if action == Action::Allow {
                keys.extend(services.services().map(|service| format!("{number}:{service}:ingress")));
            }
        }
    }
    keys
}

#[test]
fn seed_tables_labels_identities_ipcache_and_policy_cache() {
    let (mut pipeline, identities) = (redis(), table_2_1());
    let numbers: Vec<u32> = identities.iter().map(|(number, _)| number.0).collect();
    assert_eq!(numbers, [10_001, 10_002, 10_003]);
    // The values of the code's switch. Table 2-3 of the text has other numbers by mistake.
    let cache = [(DB, 10_001), (FRONTEND, 10_002), (BACKENDS[0], 10_003), (BACKENDS[1], 10_003)];
    assert_eq!(ipcache(&pipeline, &identities), cache.map(|(address, number)| (at(address), number)).into());
    // Case 3: the default entry applies until a policy exists.
    assert_eq!(policy_cache(&pipeline, &identities, "default/db"), ["0:0:0:0".to_owned()].into());
    pipeline.apply(Event::Apply(allow_backend())).unwrap();
    // Table 2-2.
    assert_eq!(policy_cache(&pipeline, &identities, "default/db"), ["10003:TCP:6379:ingress".to_owned()].into());
    let renderer = pipeline.identities().unwrap();
    let of = |address: &str| renderer.identity_of(at(address));
    assert!(of(BACKENDS[0]) == of(BACKENDS[1]) && of(BACKENDS[0]) != of(FRONTEND));
    assert_eq!(of("172.17.0.9"), 0, "the world");
    assert_eq!(renderer.node_of(at("192.168.0.1")), (true, false));
    pipeline.apply(Event::DeletePolicy(fixtures::name("default/network-policy-allow-backend"))).unwrap();
    assert_eq!(policy_cache(&pipeline, &identities, "default/db"), ["0:0:0:0".to_owned()].into());
}

#[test]
fn seed_story_who_may_ask_redis_in_the_three_cases() {
    let mut pipeline = redis();
    let pongs = |pipeline: &Pipeline| [FRONTEND, BACKENDS[0], BACKENDS[1]].map(|from| passes(pipeline, from, DB, 6379));
    assert_eq!(pongs(&pipeline), [true; 3], "no policy");
    pipeline.apply(Event::Apply(allow_backend())).unwrap();
    assert_eq!(pongs(&pipeline), [false, true, true], "a policy");
    assert!(!passes(&pipeline, BACKENDS[0], DB, 6380) && !passes(&pipeline, "8.8.8.8", DB, 6379));
    assert!(passes(&pipeline, "192.168.0.1", DB, 1), "its own node");
    assert!(passes(&pipeline, DB, FRONTEND, 80), "the policy says nothing of egress");
    pipeline.apply(Event::DeletePolicy(fixtures::name("default/network-policy-allow-backend"))).unwrap();
    assert_eq!(pongs(&pipeline), [true; 3], "the policy is gone");
}

#[test]
fn a_remote_pod_of_a_known_identity_is_an_entry_of_the_ipcache_and_no_map() {
    let mut pipeline = redis();
    pipeline.apply(Event::Apply(allow_backend())).unwrap();
    let entries = |pipeline: &Pipeline| pipeline.identities().unwrap().cache().entries().len();
    let tables = |pipeline: &Pipeline| {
        let tables = pipeline.node_tables("n1").unwrap();
        let identities = tables.tables[0].tables.identities().unwrap().clone();
        (0..4).map(|at| identities.endpoint(at).unwrap().clone()).collect::<Vec<EndpointMaps>>()
    };
    let (before, maps, work) = (entries(&pipeline), tables(&pipeline), pipeline.identities().unwrap().work());
    pipeline.apply(Event::Apply(fixtures::pod("default/remote", "10.5.4.4", "n2", "role=backend"))).unwrap();
    assert!(passes(&pipeline, "10.5.4.4", DB, 6379) && !passes(&pipeline, "10.5.4.5", DB, 6379));
    assert_eq!((entries(&pipeline), pipeline.identities().unwrap().work()), (before + 1, work));
    let same = |(one, other): (&EndpointMaps, &EndpointMaps)| {
        Arc::ptr_eq(&one.ingress, &other.ingress) && Arc::ptr_eq(&one.egress, &other.egress)
    };
    assert!(maps.iter().zip(&tables(&pipeline)).all(same));
    // A pod with labels that no policy names does not have an identity of its own.
    let published = pipeline.node_tables("n1").unwrap();
    pipeline.apply(Event::Apply(fixtures::pod("default/other", "10.5.4.9", "n2", "role=other"))).unwrap();
    assert!(Arc::ptr_eq(&published, &pipeline.node_tables("n1").unwrap()));
    pipeline.apply(Event::DeletePod(fixtures::name("default/remote"))).unwrap();
    assert!(!passes(&pipeline, "10.5.4.4", DB, 6379));
    assert_eq!((entries(&pipeline), pipeline.identities().unwrap().work()), (before, work));
}

#[test]
fn numbers_that_are_out_of_use_are_given_anew_and_verdicts_stay() {
    let mut pipeline = redis();
    for round in 0..1_500 {
        // Each policy names another set, so the backends get another identity with each.
        let rule = fixtures::from_pods("default", &format!("role in (backend,r{round})"), Some(6379));
        let policy = fixtures::policy("default/p", "role=db", Some(vec![rule]), None);
        pipeline.apply(Event::Apply(policy)).unwrap();
        if round % 100 == 0 {
            assert!(passes(&pipeline, BACKENDS[0], DB, 6379) && !passes(&pipeline, FRONTEND, DB, 6379), "{round}");
        }
    }
    let renderer = pipeline.identities().unwrap();
    assert!(renderer.work().compactions > 0, "{:?}", renderer.work());
    assert!(renderer.parties.all().len() < 3 * WORTH_COMPACTING && renderer.decisions.len() < 3 * WORTH_COMPACTING);
    assert!(passes(&pipeline, BACKENDS[1], DB, 6379) && !passes(&pipeline, BACKENDS[1], DB, 6380));
}

#[test]
fn the_engine_changes_while_it_runs_and_publications_go_on() {
    let mut pipeline = redis();
    pipeline.apply(Event::Apply(allow_backend())).unwrap();
    for engine in [Engine::Acl, Engine::Identity] {
        pipeline.choose(Choice::Fixed(engine)).unwrap();
        assert_eq!(pipeline.engine(), engine);
        let tables = pipeline.node_tables("n1").unwrap();
        let db = tables.interfaces.iter().find(|interface| interface.addresses.contains(&at(DB))).unwrap();
        let judged = |from: &str| {
            let key = Key::new(at(from), at(DB), protocol::TCP, 40_000, 6379);
            tables.tables[db.table].tables.lookup(&key).is_allow()
        };
        assert_eq!([FRONTEND, BACKENDS[0]].map(judged), [false, true], "{engine:?}");
        assert_eq!(tables.tables[0].tables.identities().is_some(), engine == Engine::Identity);
    }
}
