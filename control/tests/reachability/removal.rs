//! Tests which rules and policies are removable without a change of verdicts, by compiling the state without them and comparing.

use std::collections::BTreeMap;

use bulkhead_classifier::OriginId;
use bulkhead_control::object::{IngressIsolation, IpBlock, Object, Peer, PolicyName};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::reachability::difference::Difference;
use bulkhead_control::reachability::removal::{Removal, Removals};

use super::Reached;
use crate::oracle::State;
use crate::random::{History, Rng, Step, history};

/// Compared states, each after its whole history.
const STATES: u64 = 520;
/// Rules removed one by one per state. Each costs a compilation.
const RULES: usize = 10;
/// Policies removed one by one per state.
const POLICIES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    policy: PolicyName,
    direction: Direction,
    at: usize,
}

fn key(object: &Object) -> Option<PolicyName> {
    match object {
        Object::Policy(policy) => Some(policy.name.clone()),
        Object::ClusterPolicy(policy) => Some(policy.rank.name.key()),
        _ => None,
    }
}

fn rules(object: &Object) -> Vec<Rule> {
    let Some(policy) = key(object) else { return Vec::new() };
    let counts = match object {
        Object::Policy(policy) => [&policy.ingress, &policy.egress].map(|rules| rules.as_ref().map_or(0, Vec::len)),
        Object::ClusterPolicy(policy) => [policy.ingress.len(), policy.egress.len()],
        _ => [0, 0],
    };
    let all = [Direction::Ingress, Direction::Egress].into_iter().zip(counts);
    all.flat_map(|(direction, count)| (0..count).map(move |at| (direction, at)))
        .map(|(direction, at)| Rule { policy: policy.clone(), direction, at })
        .collect()
}

fn without(objects: &[Object], gone: &[Rule], policies: &[PolicyName]) -> Vec<Object> {
    let stays = |policy: &PolicyName, direction, at: usize| {
        !gone.iter().any(|rule| rule.policy == *policy && rule.direction == direction && rule.at == at)
    };
    fn keep<T>(rules: &mut Vec<T>, stays: impl Fn(usize) -> bool) {
        let mut at = 0;
        rules.retain(|_| {
            at += 1;
            stays(at - 1)
        });
    }
    let changed = |object: &Object| {
        let name = key(object);
        let mut object = object.clone();
        let Some(name) = name else { return Some(object) };
        match &mut object {
            Object::Policy(policy) => {
                let policy = std::sync::Arc::make_mut(policy);
                policy.ingress.iter_mut().for_each(|rules| keep(rules, |at| stays(&name, Direction::Ingress, at)));
                policy.egress.iter_mut().for_each(|rules| keep(rules, |at| stays(&name, Direction::Egress, at)));
            }
            Object::ClusterPolicy(policy) => {
                let policy = std::sync::Arc::make_mut(policy);
                keep(&mut policy.ingress, |at| stays(&name, Direction::Ingress, at));
                keep(&mut policy.egress, |at| stays(&name, Direction::Egress, at));
            }
            _ => {}
        }
        (!policies.contains(&name)).then_some(object)
    };
    objects.iter().filter_map(changed).collect()
}

struct Compiled {
    pipeline: Pipeline,
    reachability: Reachability,
}

fn compiled(mut pipeline: Pipeline, objects: Vec<Object>) -> Compiled {
    pipeline.resync(objects).unwrap();
    let reachability = Reachability::of(&pipeline, pipeline.mirror().unwrap());
    Compiled { pipeline, reachability }
}

/// A state under test.
struct Asked {
    isolation: IngressIsolation,
    objects: Vec<Object>,
    /// The objects, compiled without a removal: as they are, and with all peers as those of each rule that names domains.
    plain: Vec<(Option<Rule>, Compiled)>,
}

impl Asked {
    fn new(isolation: IngressIsolation, objects: Vec<Object>) -> Self {
        let is_named = |rule: &Rule| objects.iter().any(|object| names_domains(object, rule));
        let cases = objects.iter().flat_map(rules).filter(is_named).map(Some).chain([None]);
        let plain = cases.map(|case| {
            let objects = matched(&objects, case.as_ref());
            (case, compiled(Pipeline::without_tables(isolation), objects))
        });
        Self { isolation, plain: plain.collect(), objects }
    }

    fn changes_nothing(&self, gone: &[Rule], policies: &[PolicyName]) -> bool {
        self.plain.iter().all(|(case, plain)| {
            let objects = without(&matched(&self.objects, case.as_ref()), gone, policies);
            let after = compiled(Pipeline::without_tables(self.isolation), objects);
            Difference::of(&plain.reachability, &after.reachability).is_empty()
        })
    }
}

fn egress_of<'a>(object: &'a mut Object, rule: &Rule) -> Option<&'a mut Vec<Peer>> {
    let is_policy = key(object).as_ref() == Some(&rule.policy) && rule.direction == Direction::Egress;
    match object {
        Object::ClusterPolicy(policy) if is_policy => {
            std::sync::Arc::make_mut(policy).egress[rule.at].traffic.peers.as_mut()
        }
        _ => None,
    }
}

fn names_domains(object: &Object, rule: &Rule) -> bool {
    let mut object = object.clone();
    egress_of(&mut object, rule).is_some_and(|peers| peers.iter().any(|peer| matches!(peer, Peer::Names(_))))
}

/// Returns the objects with everybody as the peer of this rule.
fn matched(objects: &[Object], rule: Option<&Rule>) -> Vec<Object> {
    let mut objects = objects.to_vec();
    for peers in objects.iter_mut().filter_map(|object| egress_of(object, rule?)) {
        let all = ["0.0.0.0/0", "::/0"].map(|block| IpBlock { cidr: block.parse().unwrap(), except: Vec::new() });
        peers.extend(all.map(Peer::Block));
    }
    objects
}

fn origins(pipeline: &Pipeline) -> BTreeMap<Rule, OriginId> {
    let all = pipeline.origins().since(OriginId(0));
    let rule = |(id, origin): (OriginId, &Origin)| match origin {
        Origin::Policy { policy, direction, rule } => {
            Some((Rule { policy: policy.clone(), direction: *direction, at: *rule }, id))
        }
        Origin::ClusterPolicy { policy, direction, rule, .. } => {
            Some((Rule { policy: policy.key(), direction: *direction, at: *rule }, id))
        }
        _ => None,
    };
    all.filter_map(rule).collect()
}

fn check_state(seed: u64, reached: &mut Reached) {
    let mut rng = Rng::new(seed);
    let History { isolation, steps, .. } = history(&mut rng);
    let mut state = State::default();
    for step in steps {
        if let Step::Event(event) = step {
            state.apply(&event);
        }
    }
    let objects = state.objects();
    let whole = compiled(Pipeline::with_every_rule(isolation), objects.clone());
    let plain = compiled(Pipeline::without_tables(isolation), objects.clone());
    assert!(Difference::of(&plain.reachability, &whole.reachability).is_empty(), "state {seed}: every rule kept");
    let asked = Asked::new(isolation, objects);
    let origins = origins(&whole.pipeline);
    let mut removals = Removals::of(&whole.reachability, whole.pipeline.origins());
    let mut all: Vec<Rule> = asked.objects.iter().flat_map(rules).collect();
    let mut add = |what, holds: bool| *reached.entry(what).or_default() += u64::from(holds);
    rng.shuffle(&mut all);
    add("a rule that names domains", asked.plain.len() > 1);
    let removal = |rule: &Rule| origins.get(rule).map(|&origin| Removal::of_rule(origin));
    for rule in all.iter().take(RULES) {
        let told = removal(rule).is_none_or(|removal| removals.is_harmless(&removal));
        assert_eq!(told, asked.changes_nothing(std::slice::from_ref(rule), &[]), "state {seed}: {rule:?}");
        let is_cluster = rule.policy.namespace.is_empty();
        add("a dead rule", told);
        add("a living rule", !told);
        add("a dead rule of a cluster policy", told && is_cluster);
        add("a living rule of a cluster policy", !told && is_cluster);
        if let Some(&origin) = origins.get(rule).filter(|_| told) {
            let reason = removals.reason(origin);
            add("decided by others", !reason.by.is_empty());
            add("never reached", reason.names_somebody && !reason.is_reached);
            add("denied at the other end", !reason.blocked_by.is_empty());
            add("names nobody", !reason.names_somebody);
            add("names itself", reason.only_itself);
        }
    }
    let mut names: Vec<PolicyName> = asked.objects.iter().filter_map(key).collect();
    rng.shuffle(&mut names);
    for name in names.iter().take(POLICIES) {
        let told = removals.is_harmless(&Removal { policies: [name.clone()].into(), ..Removal::default() });
        assert_eq!(told, asked.changes_nothing(&[], std::slice::from_ref(name)), "state {seed}: {name}");
        add("a policy that changes nothing", told);
        add("a policy that changes something", !told);
    }
    // Removes rules one after the other while nothing changes.
    let (mut gone, mut refused) = (Vec::new(), 0);
    for rule in &all {
        let alone = removal(rule).is_none_or(|removal| removals.is_harmless(&removal));
        if !alone {
            refused += 1;
            continue;
        }
        if let Some(removal) = removal(rule) {
            removals.remove(&removal);
        }
        gone.push(rule.clone());
    }
    assert!(asked.changes_nothing(&gone, &[]), "state {seed}: {gone:?} together");
    add("several rules together", gone.len() > 1);
    add("rules that are left", refused > 0);
}

#[test]
fn what_is_harmless_to_remove_is_what_compiling_the_state_without_it_says() {
    let mut reached = Reached::new();
    (0..STATES).for_each(|seed| check_state(seed, &mut reached));
    let must = [
        ("a dead rule", 500),
        ("a living rule", 500),
        ("a dead rule of a cluster policy", 100),
        ("a living rule of a cluster policy", 100),
        ("decided by others", 200),
        ("never reached", 50),
        ("denied at the other end", 20),
        ("names nobody", 20),
        ("names itself", 5),
        ("a policy that changes nothing", 100),
        ("a policy that changes something", 300),
        ("several rules together", 100),
        ("rules that are left", 100),
        ("a rule that names domains", 80),
    ];
    for (what, least) in must {
        let met = reached.get(what).copied().unwrap_or_default();
        assert!(met >= least, "{what}: met {met} times, which is fewer than {least}: {reached:?}");
    }
}
