//! Tests audited policies with both engines on random clusters and histories, against the oracle. The tables in force must equal those
//! without the audited policies, and the audit must report what these policies would deny.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::oracle::{Part, State};
use crate::random::{Probes, Rng, Step, history, objects, shuffled};
use crate::vswitch::Vswitches;
use bulkhead_classifier::Action;
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Enforcement, IngressIsolation, Namespace, Object, PolicyName};
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::{AuditedPolicy, Engine, Pipeline};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::nftables::Suspects;
use bulkhead_control::source::{Loaded, Options, Strictness, load_text};

/// Histories of a run, and flows per compared state. This test is about which policies are audited and how that changes; `semantics.rs`
/// tests what policies mean.
const HISTORIES: u64 = 160;
const FLOWS_PER_STATE: usize = 150;
const STEPS_PER_STATE: usize = 4;

/// A random annotation, often none.
fn says(rng: &mut Rng) -> Option<Enforcement> {
    rng.pick(&[None, None, Some(Enforcement::Audit), Some(Enforcement::Audit), Some(Enforcement::Enforce)])
}

/// The step with annotations. No namespace terminates here, because another test covers retained policies.
fn annotated(rng: &mut Rng, step: Step) -> Step {
    let Step::Event(Event::Apply(mut object)) = step else { return step };
    match &mut object {
        Object::Namespace(namespace) => {
            namespace.terminating = false;
            namespace.enforcement = says(rng);
        }
        Object::Policy(policy) => Arc::make_mut(policy).enforcement = says(rng),
        Object::ClusterPolicy(policy) => Arc::make_mut(policy).enforcement = says(rng),
        _ => {}
    }
    Step::Event(Event::Apply(object))
}

/// The state without the audited policies, computed here independently.
fn enforced_part(state: &State, default: Enforcement) -> Vec<Object> {
    let of_namespace = |name: &Arc<str>| {
        let said = state.namespaces.get(name).and_then(|namespace| namespace.enforcement);
        said.unwrap_or(default)
    };
    let mut kept = Vec::new();
    for object in state.objects() {
        let is_audited = match &object {
            Object::Policy(policy) => policy.enforcement.unwrap_or_else(|| of_namespace(&policy.name.namespace)),
            Object::ClusterPolicy(policy) => policy.enforcement.unwrap_or(default),
            _ => Enforcement::Enforce,
        } == Enforcement::Audit;
        match object {
            Object::Namespace(namespace) if of_namespace(&namespace.name) == Enforcement::Audit => {
                // The namespace's isolation counts as one of its policies.
                kept.push(Object::Namespace(Namespace { isolation: IngressIsolation::ClusterDefault, ..namespace }));
            }
            object if !is_audited => kept.push(object),
            _ => {}
        }
    }
    kept
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    Nodes(Engine),
    Cluster,
    /// As [`Self::Cluster`], with tables that are compiled for each question.
    Questions,
}

fn check_history(seed: u64, layout: Layout, default: Enforcement, reached: &mut BTreeMap<&'static str, u64>) {
    let mut rng = Rng::new(seed);
    let history = history(&mut rng);
    let mut state = State { learned: true, ..State::default() };
    let mut vswitches = match layout {
        Layout::Nodes(engine) => Vswitches::nodes_auditing(&objects::NODES, engine, default),
        Layout::Cluster => Vswitches::cluster_auditing(default),
        Layout::Questions => Vswitches::questions_auditing(default),
    };
    let steps: Vec<Step> = history.steps.into_iter().map(|step| annotated(&mut rng, step)).collect();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Event(event) => {
                state.apply(event);
                vswitches.apply(event);
            }
            Step::Resync(seed) => vswitches.resync(&shuffled(state.objects(), *seed)),
        }
        let is_looked_at = at + 1 == history.initial
            || (at > history.initial && (at - history.initial).is_multiple_of(STEPS_PER_STATE));
        if !is_looked_at {
            continue;
        }
        let without = State { learned: true, ..State::of(&enforced_part(&state, default)) };
        let audits = vswitches.pipelines().any(|pipeline| !pipeline.audited_policies().is_empty());
        let mut count = |what, holds: bool| *reached.entry(what).or_default() += u64::from(holds);
        count("something is audited", audits);
        count("nothing is audited", !audits);
        let probes = Probes::of(&state, vswitches.know_the_unbound());
        for _ in 0..FLOWS_PER_STATE {
            let Some(flow) = probes.flow(&mut rng) else { continue };
            let (enforced, by_all) = (without.judge(&flow).passes(), state.judge(&flow));
            let (full, is_named) = (by_all.passes(), by_all.parts.contains(&Part::Named));
            let hops = vswitches.hops(&state, &flow, false);
            let passes = hops.iter().all(|hop| hop.action == Action::Allow);
            let what = || format!("seed {seed}, {layout:?}, {default:?}, step {at}, {flow:?}");
            assert_eq!(passes, enforced, "{}: what is enforced is not what it is without the audited policies", what());
            let by_all = vswitches.hops_by(true, &state, &flow, true);
            let is_allowed = by_all.iter().all(|hop| hop.action == Action::Allow);
            assert_eq!(is_allowed, full, "{}: {by_all:?}", what());
            count("allowed by both", passes && full);
            count("denied by both", !passes && !full);
            count("audited", passes && !full);
            count("allowed by both, by name", passes && full && is_named);
            count("denied though all policies together allow it", !passes && full);
            if passes && !full {
                let denying = by_all.last().and_then(|hop| hop.origin.clone());
                count("audited by an isolation", matches!(denying, Some(Origin::Isolation { .. })));
                count("audited by a cluster policy", matches!(denying, Some(Origin::ClusterPolicy { .. })));
                assert!(denying.is_some(), "{}: nobody denies it", what());
            }
        }
    }
}

#[test]
fn what_is_enforced_is_what_is_enforced_without_audited_policies_and_what_is_audited_is_what_they_would_deny() {
    let mut reached = BTreeMap::new();
    let layouts = [Layout::Nodes(Engine::Acl), Layout::Nodes(Engine::Identity), Layout::Cluster, Layout::Questions];
    for seed in 0..HISTORIES {
        let layout = layouts[usize::try_from(seed % 4).unwrap()];
        let default = if seed % 5 == 4 { Enforcement::Audit } else { Enforcement::Enforce };
        check_history(seed, layout, default, &mut reached);
    }
    for (what, least) in [
        ("something is audited", 200),
        ("nothing is audited", 5),
        ("allowed by both", 5_000),
        ("denied by both", 1_000),
        ("audited", 1_000),
        ("allowed by both, by name", 20),
        ("denied though all policies together allow it", 50),
        ("audited by an isolation", 500),
        ("audited by a cluster policy", 100),
    ] {
        let times = reached.get(what).copied().unwrap_or_default();
        assert!(times >= least, "`{what}` was met {times} times, not {least}: {reached:?}");
    }
}

const POD: &str = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: x}\nspec: {nodeName: n1}\n\
                   status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}\n";

fn policy(name: &str, annotation: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: {name}\n  namespace: x\n  annotations: {{{annotation}}}\n\
         spec: {{podSelector: {{}}}}\n"
    )
}

fn namespace(annotation: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n  annotations: {{{annotation}}}\n")
}

fn load(text: &str) -> Loaded {
    load_text("s.yaml", text, Options::from(Strictness::Strict)).unwrap()
}

fn audited(text: &str, default: Enforcement) -> Vec<String> {
    let mut pipeline = Pipeline::new(Scope::Node("n1".into())).auditing(default);
    pipeline.resync(load(text).objects).unwrap();
    pipeline.audited_policies().iter().map(ToString::to_string).collect()
}

#[test]
fn a_policys_own_annotation_wins_over_its_namespaces_and_that_one_over_the_default() {
    let (audit, enforce) = ("bulkhead.dev/enforcement: audit", "bulkhead.dev/enforcement: enforce");
    for (of_namespace, of_policy, default, is_audited) in [
        ("", "", Enforcement::Enforce, false),
        ("", "", Enforcement::Audit, true),
        (audit, "", Enforcement::Enforce, true),
        (enforce, "", Enforcement::Audit, false),
        (audit, enforce, Enforcement::Audit, false),
        (enforce, audit, Enforcement::Enforce, true),
    ] {
        let text = POD.to_owned() + &namespace(of_namespace) + &policy("p", of_policy);
        assert_eq!(audited(&text, default).len(), usize::from(is_audited), "{of_namespace} {of_policy} {default:?}");
    }
}

#[test]
fn a_value_that_is_not_understood_enforces_and_is_told_with_file_line_and_remedy() {
    for (wrong, help) in [
        ("bulkhead.dev/enforcement: adit", "did you mean `audit`?"),
        ("bulkhead.dev/enforcement: Audit", "did you mean `audit`?"),
        ("bulkhead.dev/enforcement: 'off'", "write audit or enforce"),
        ("bulkhead.dev/enforcement: ''", "write audit or enforce"),
        ("bulkhead.dev/enforcment: audit", "did you mean `bulkhead.dev/enforcement`?"),
    ] {
        let loaded = load(&(POD.to_owned() + &policy("p", wrong)));
        let told: Vec<String> = loaded.warnings.shown().iter().map(ToString::to_string).collect();
        let is_told = |told: &String| {
            told.starts_with("s.yaml:13: NetworkPolicy x/p: metadata.annotations") && told.contains(help)
        };
        assert!(told.iter().any(is_told), "{wrong}: {told:?}");
        assert_eq!(loaded.faulty, 0, "the policy is understood");
        let text = POD.to_owned() + &namespace("bulkhead.dev/enforcement: audit") + &policy("p", wrong);
        let is_other_key = wrong.starts_with("bulkhead.dev/enforcment");
        assert_eq!(audited(&text, Enforcement::Enforce).len(), usize::from(is_other_key), "{wrong}");
        let text = POD.to_owned() + &namespace(wrong) + &policy("p", "");
        assert_eq!(audited(&text, Enforcement::Enforce), Vec::<String>::new(), "{wrong} at the namespace");
    }
    assert!(
        load(&policy("p", "bulkhead.dev/denied: refuse")).warnings.is_empty(),
        "another annotation is no typo of it"
    );
}

#[test]
fn a_policy_that_is_not_understood_and_audited_denies_nothing_and_of_two_of_a_name_that_differ_in_it_both_are_enforced()
{
    let broken =
        policy("p", "bulkhead.dev/enforcement: audit").replace("podSelector: {}", "podSelector: {}, ingres: []");
    let loaded = load_text("s.yaml", &(POD.to_owned() + &broken), Strictness::Lenient).unwrap();
    assert_eq!(loaded.faulty, 1);
    let mut pipeline = Pipeline::new(Scope::Node("n1".into())).auditing(Enforcement::Enforce);
    pipeline.resync(loaded.objects).unwrap();
    assert_eq!(pipeline.audited_policies().len(), 1);
    let twice = POD.to_owned() + &policy("p", "bulkhead.dev/enforcement: audit") + &policy("p", "");
    let loaded = load_text("s.yaml", &twice, Strictness::Lenient).unwrap();
    let mut pipeline = Pipeline::new(Scope::Node("n1".into())).auditing(Enforcement::Enforce);
    pipeline.resync(loaded.objects).unwrap();
    assert!(pipeline.audited_policies().is_empty());
}

#[test]
fn the_shadow_is_there_while_something_is_audited_and_only_where_the_two_differ() {
    let mut pipeline = Pipeline::new(Scope::Node("n1".into())).auditing(Enforcement::Enforce);
    let other =
        POD.replace("name: a", "name: b").replace("10.0.0.1", "10.0.0.2").replace("namespace: x", "namespace: z");
    pipeline.resync(load(&(POD.to_owned() + &other + &policy("p", ""))).objects).unwrap();
    let before = pipeline.node_tables("n1").unwrap();
    assert!(pipeline.audit_tables("n1").is_none());
    let annotate = |annotation: &str| {
        let objects = load(&policy("p", annotation)).objects;
        objects.into_iter().map(Event::Apply).collect::<Vec<_>>()
    };
    pipeline.apply_batch(annotate("bulkhead.dev/enforcement: audit")).unwrap();
    let audit = pipeline.audit_tables("n1").unwrap();
    let differ = |name: &str| {
        let interfaces = audit.tables.interfaces.iter().filter(|interface| audit.differs_at(&interface.attachment));
        interfaces.filter(|interface| format!("{:?}", interface.attachment).contains(name)).count()
    };
    assert_eq!((differ(""), differ("\"a\"")), (1, 1), "the policy is about ingress of one pod");
    let name = AuditedPolicy::Namespaced(PolicyName::new("x", "p"));
    assert_eq!(pipeline.enforcement_of(&name), Some(Enforcement::Audit));
    assert_eq!(audit, pipeline.audit_tables("n1").unwrap(), "nothing has changed");
    pipeline.apply_batch(annotate("")).unwrap();
    assert!(pipeline.audit_tables("n1").is_none());
    assert_eq!(pipeline.enforcement_of(&name), Some(Enforcement::Enforce));
    let after = pipeline.node_tables("n1").unwrap();
    let rules = |tables: &bulkhead_control::renderer::acl::NodeTables| {
        tables.tables.iter().map(|table| table.tables.rules().len()).collect::<Vec<_>>()
    };
    assert_eq!(rules(&before), rules(&after));
}

#[test]
fn where_nothing_is_audited_policies_are_enforced_whatever_they_say_and_are_told() {
    let text = POD.to_owned() + &policy("p", "bulkhead.dev/enforcement: audit") + &policy("q", "");
    let (default, isolation) = (Enforcement::Enforce, IngressIsolation::ClusterDefault);
    let silent = Pipeline::new(Scope::Node("n1".into()));
    let at_source = Pipeline::at_source("n1".into(), isolation).auditing(default);
    let in_the_kernel = Pipeline::in_the_kernel("n1".into(), isolation, Suspects::default()).auditing(default);
    for mut pipeline in [silent, at_source, in_the_kernel] {
        pipeline.resync(load(&text).objects).unwrap();
        assert!(pipeline.audited_policies().is_empty() && pipeline.audit_tables("n1").is_none());
        let told: Vec<String> = pipeline.unaudited_policies().iter().map(|(policy, _)| policy.to_string()).collect();
        assert_eq!(told, ["x/p"]);
    }
}
