//! `engine: auto`: each batch may change the engine, and verdicts stay the same.

use std::net::Ipv4Addr;

use super::*;
use crate::engine::{FEW, MANY};
use crate::object::{Enforcement, Policy};

const DB: &str = "10.244.1.2";

fn backend(at: usize) -> Object {
    let address = Ipv4Addr::from(0x0a50_0000 + u32::try_from(at).unwrap());
    pod(&format!("default/remote-{at}"), &address.to_string(), "n2", "role=backend")
}

fn remote(at: usize) -> Event {
    Event::Apply(backend(at))
}

fn gone(at: usize) -> Event {
    Event::DeletePod(name(&format!("default/remote-{at}")))
}

fn automatic() -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Node("n1".into()));
    pipeline.choose(Choice::Auto).unwrap();
    pipeline.resync(redis().into_iter().chain([allow_backend()])).unwrap();
    pipeline
}

/// Checks that backends reach the database and the frontend does not. Returns the engine.
fn check(pipeline: &Pipeline) -> Engine {
    let passes = |from: &str| allowed(pipeline, "n1", &tcp(from, DB, 6379));
    assert_eq!(["10.244.1.3", "10.244.1.4"].map(passes), [false, true]);
    assert_eq!(allowed(pipeline, "n1", &tcp("10.80.0.0", DB, 6379)), pipeline.cache().pods().count() > 4);
    let tables = pipeline.node_tables("n1").unwrap();
    let is_identity = tables.tables[0].tables.identities().is_some();
    assert_eq!(is_identity, pipeline.engine() == Engine::Identity);
    pipeline.engine()
}

#[test]
fn the_engine_follows_what_policies_name_and_neither_the_cluster_nor_every_pod_that_comes() {
    let mut pipeline = automatic();
    assert_eq!((check(&pipeline), pipeline.most_named()), (Engine::Acl, 2));
    // Pods that no policy of the node names.
    let others = (0..MANY).map(|at| {
        let address = Ipv4Addr::from(0x0a60_0000 + u32::try_from(at).unwrap()).to_string();
        Event::Apply(pod(&format!("default/other-{at}"), &address, "n2", "role=other"))
    });
    pipeline.apply_batch(others).unwrap();
    assert_eq!((pipeline.engine(), pipeline.most_named()), (Engine::Acl, 2));
    let generation = |pipeline: &Pipeline| pipeline.node_tables("n1").unwrap().generation;
    let before = generation(&pipeline);
    pipeline.apply_batch((0..MANY - 2).map(remote)).unwrap();
    assert_eq!(check(&pipeline), Engine::Identity);
    assert_eq!(generation(&pipeline), before + 1, "a batch is one publication, also where it changes the engine");
    pipeline.apply_batch((FEW..MANY - 2).map(gone)).unwrap();
    assert_eq!((check(&pipeline), pipeline.most_named()), (Engine::Identity, FEW + 2), "half of them are not few");
    pipeline.apply_batch((FEW - 10..FEW).map(gone)).unwrap();
    assert_eq!(check(&pipeline), Engine::Acl);
    pipeline.apply_batch((FEW..MANY - 20).map(remote)).unwrap();
    assert_eq!(check(&pipeline), Engine::Acl, "as many as that are not many yet");
}

#[test]
fn a_state_that_comes_as_a_whole_is_taken_by_the_engine_that_suits_it() {
    let mut pipeline = automatic();
    let all: Vec<Object> = redis().into_iter().chain([allow_backend()]).chain((0..MANY).map(backend)).collect();
    pipeline.resync(all.clone()).unwrap();
    assert_eq!(check(&pipeline), Engine::Identity);
    // A fixed engine, and back to automatic choice.
    for (choice, engine) in [
        (Choice::Fixed(Engine::Acl), Engine::Acl),
        (Choice::Auto, Engine::Identity),
        (Choice::Fixed(Engine::Identity), Engine::Identity),
    ] {
        pipeline.choose(choice).unwrap();
        assert_eq!((check(&pipeline), pipeline.choice()), (engine, choice));
    }
    pipeline.resync(redis().into_iter().chain([allow_backend()])).unwrap();
    assert_eq!(check(&pipeline), Engine::Identity, "what somebody has said stays");
    // Policies of other nodes' pods do not count.
    let elsewhere = policy("default/p", "role=web", Some(vec![from_pods("default", "role=backend", None)]), None);
    let mut other = Pipeline::new(Scope::Node("n1".into()));
    other.choose(Choice::Auto).unwrap();
    let web = pod("default/web", "10.244.2.9", "n2", "role=web");
    let rest = all.into_iter().filter(|object| !matches!(object, Object::Policy(_)));
    other.resync(rest.chain([web, elsewhere])).unwrap();
    assert_eq!((other.engine(), other.most_named()), (Engine::Acl, 0));
}

#[test]
fn where_there_is_one_form_of_tables_nothing_is_chosen() {
    let all = || redis().into_iter().chain([allow_backend()]).chain((0..MANY).map(backend));
    for mut pipeline in
        [Pipeline::new(Scope::Cluster), Pipeline::in_the_kernel("n1".into(), Default::default(), Default::default())]
    {
        pipeline.choose(Choice::Auto).unwrap();
        pipeline.resync(all()).unwrap();
        assert_eq!(pipeline.engine(), Engine::Acl);
    }
}

#[test]
fn what_is_audited_is_told_by_the_engine_that_is_in_force() {
    let Object::Policy(strict) = policy("default/strict", "role=backend", Some(Vec::new()), None) else { panic!() };
    let audited = Object::from(Policy { enforcement: Some(Enforcement::Audit), ..Arc::unwrap_or_clone(strict) });
    let mut pipeline = Pipeline::new(Scope::Node("n1".into())).auditing(Enforcement::Enforce);
    pipeline.choose(Choice::Auto).unwrap();
    pipeline.resync(redis().into_iter().chain([allow_backend(), audited.clone()])).unwrap();
    let told = |pipeline: &Pipeline| {
        let engine = check(pipeline);
        let audit = pipeline.audit_tables("n1").unwrap();
        assert_eq!(audit.tables.tables[0].tables.identities().is_some(), engine == Engine::Identity);
        let pods = ["db", "backend1"].map(|pod| name(&format!("default/{pod}")));
        let [db, backend] = pods.map(|pod| audit.differs_at(&Attachment::Pod(pod)));
        assert!(backend && !db);
        engine
    };
    assert_eq!(told(&pipeline), Engine::Acl);
    pipeline.apply_batch((0..MANY - 2).map(remote)).unwrap();
    assert_eq!(told(&pipeline), Engine::Identity, "the batch changes the engine");
    pipeline.choose(Choice::Fixed(Engine::Acl)).unwrap();
    assert_eq!(told(&pipeline), Engine::Acl);
    pipeline.choose(Choice::Auto).unwrap();
    assert_eq!(told(&pipeline), Engine::Identity);
    pipeline.enforce(None).unwrap();
    assert!(pipeline.audit_tables("n1").is_none());
    pipeline.enforce(Some(Enforcement::Enforce)).unwrap();
    assert_eq!(told(&pipeline), Engine::Identity);
    // The first audited policy arrives in the batch that changes the engine.
    let mut pipeline = automatic();
    pipeline = pipeline.auditing(Enforcement::Enforce);
    pipeline.apply_batch((0..MANY - 2).map(remote).chain([Event::Apply(audited.clone())])).unwrap();
    assert_eq!(told(&pipeline), Engine::Identity);
    // The first audited policy arrives after auditing has ended.
    let mut pipeline = automatic().auditing(Enforcement::Enforce);
    pipeline.enforce(None).unwrap();
    pipeline.apply(Event::Apply(audited)).unwrap();
    assert!(pipeline.audit_tables("n1").is_none() && pipeline.audited_policies().is_empty());
}
