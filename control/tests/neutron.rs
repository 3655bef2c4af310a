//! Tests security groups with known answers and the oracle. An evaluator of the API's semantics judges the rendered groups, and every
//! intermediate state of a synchronization.

use std::collections::{BTreeMap, BTreeSet};

use crate::double::{Neutron, Verdicts};
use crate::oracle::changes::events;
use crate::oracle::{Flow, State};
use crate::random::{History, Probes, Rng, Step, history, shuffled};
use bulkhead_control::object::{IngressIsolation, Object, PodName};
use bulkhead_control::pipeline::{Pipeline, RendererHandle};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::neutron::plan::{self, GroupRef, Listed, ListedGroup, ListedPort, Plan, Request, plan};
use bulkhead_control::renderer::neutron::{Desired, NeutronRenderer};
use bulkhead_control::source::Strictness;
use serde_json::{Value, json};

const OWNER: &str = "bulkhead:test";

/// A pipeline with the renderer, and a Neutron server with a port per pod.
struct Cluster {
    pipeline: Pipeline,
    renderer: RendererHandle<NeutronRenderer>,
    server: Neutron,
    ids: BTreeMap<PodName, String>,
}

fn pipeline(isolation: IngressIsolation) -> (Pipeline, RendererHandle<NeutronRenderer>) {
    let mut pipeline = Pipeline::with_default_isolation(Scope::Cluster, isolation);
    let renderer = pipeline.register(NeutronRenderer::default());
    (pipeline, renderer)
}

fn desired(pipeline: &Pipeline, renderer: RendererHandle<NeutronRenderer>) -> Desired {
    let policies = pipeline.cache().policies();
    let identity = |name: &_| policies.get(name).and_then(|policy| policy.identity.clone());
    pipeline.renderer(renderer).desired(identity, pipeline.origins())
}

fn listed(server: &Neutron) -> Listed {
    let ours = |group: &&Value| group["tags"].as_array().unwrap().iter().any(|tag| tag == OWNER);
    Listed {
        groups: server.groups.values().filter(ours).map(|group| ListedGroup::of(group).unwrap()).collect(),
        ports: server.ports.values().map(|port| ListedPort::of(port).unwrap()).collect(),
    }
}

impl Cluster {
    fn new(isolation: IngressIsolation) -> Self {
        let (pipeline, renderer) = pipeline(isolation);
        Self { pipeline, renderer, server: Neutron::default(), ids: BTreeMap::new() }
    }

    fn desired(&self) -> Desired {
        desired(&self.pipeline, self.renderer)
    }

    /// Adds and removes ports with the pods, as Kuryr does. A new port has no group that allows traffic.
    fn follow_pods(&mut self, desired: &Desired) {
        let addresses_of = |port: &Value| ListedPort::of(port).unwrap().addresses;
        let server = &mut self.server;
        self.ids.retain(|pod, id| {
            let stays = desired.ports.get(pod).is_some_and(|port| port.addresses == addresses_of(&server.ports[id]));
            if !stays {
                server.ports.remove(id);
            }
            stays
        });
        for (pod, port) in &desired.ports {
            self.ids.entry(pod.clone()).or_insert_with(|| server.add_port(&port.addresses, &[]));
        }
    }

    /// Sends one request, as `bulkhead sync neutron` does.
    fn send(&mut self, desired: &Desired, request: &Request) {
        let ids: BTreeMap<String, String> = self
            .server
            .groups
            .values()
            .filter_map(|group| Some((group["tags"].get(1)?.as_str()?.to_owned(), group["id"].as_str()?.to_owned())))
            .collect();
        let id_of = |tag: &str| ids.get(tag).cloned().unwrap_or_else(|| tag.to_owned());
        let mut ask = |method: &str, path: String, body: Value| {
            let text = if body.is_null() { String::new() } else { body.to_string() };
            let (status, answer) = self.server.handle(method, &path, &text);
            assert!(status < 300, "{method} {path} {body}: {status} {answer}");
            answer
        };
        match request {
            Request::CreateGroup { tag } => {
                let group = &desired.groups[tag];
                let made = ask("POST", "/v2.0/security-groups".into(), json!({"security_group": {"name": group.name}}));
                let made = &made["security_group"];
                let tags = plan::tags(OWNER, tag, group.generation);
                ask(
                    "PUT",
                    format!("/v2.0/security-groups/{}/tags", made["id"].as_str().unwrap()),
                    json!({"tags": tags}),
                );
                for rule in made["security_group_rules"].as_array().unwrap() {
                    ask("DELETE", format!("/v2.0/security-group-rules/{}", rule["id"].as_str().unwrap()), Value::Null);
                }
            }
            Request::CreateRule { tag, rule } => {
                ask("POST", "/v2.0/security-group-rules".into(), rule.body(tag, id_of));
            }
            Request::DeleteRule { id, .. } => {
                ask("DELETE", format!("/v2.0/security-group-rules/{id}"), Value::Null);
            }
            Request::SetPort { id, groups, .. } => {
                let groups = groups.iter().map(|group| match group {
                    GroupRef::Tag(tag) => id_of(tag),
                    GroupRef::Id(id) => id.clone(),
                });
                let body = json!({"port": {"security_groups": groups.collect::<Vec<_>>()}});
                ask("PUT", format!("/v2.0/ports/{id}"), body);
            }
            Request::DeleteGroup { id, .. } => {
                ask("DELETE", format!("/v2.0/security-groups/{id}"), Value::Null);
            }
            Request::SetTags { tag } => {
                let tags = plan::tags(OWNER, tag, desired.groups[tag].generation);
                ask("PUT", format!("/v2.0/security-groups/{}/tags", id_of(tag)), json!({"tags": tags}));
            }
        }
    }

    /// Synchronizes the server with the present state. Calls `each` after each request.
    fn sync(&mut self, mut each: impl FnMut(&Neutron, &Request)) -> (Desired, Plan) {
        let desired = self.desired();
        self.follow_pods(&desired);
        let made = plan(&desired, &listed(&self.server), OWNER, &BTreeSet::new());
        assert_eq!((&*made.problems, &*made.older), (&[][..], &[][..]));
        for request in &made.requests {
            self.send(&desired, request);
            each(&self.server, request);
        }
        let again = plan(&desired, &listed(&self.server), OWNER, &BTreeSet::new());
        assert_eq!(again.requests, [], "what is in force is in force");
        (desired, made)
    }
}

fn answer(server: &Verdicts, flow: &Flow) -> bool {
    server.passes(flow.src, flow.dst, flow.protocol, flow.port)
}

/// Runs all steps of all cases, each from the server's state after the previous step. Returns the number of compared cells.
fn run(file: &str) -> Option<usize> {
    let (mut cells, mut wrong) = (0, Vec::new());
    for case in crate::cases::load(file)? {
        let mut cluster = Cluster::new(IngressIsolation::ClusterDefault);
        let mut before = State::default();
        for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let state = crate::cases::state(step, Strictness::Strict);
            cluster.pipeline.apply_batch(events(&before, &state, true)).unwrap();
            cluster.sync(|_, _| ());
            let (refused, verdicts) = (cluster.pipeline.refusals(), cluster.server.verdicts());
            for cell in crate::cases::asked(step, crate::cases::Question::Combined) {
                let passes = answer(&verdicts, &cell.flow);
                // Refused rules deny all traffic. Only cases with tiers are refused.
                let is_right = if refused.is_empty() { passes == cell.passes } else { !passes || cell.passes };
                cells += usize::from(refused.is_empty());
                if !is_right {
                    wrong.push(format!(
                        "case {} step {at}: {} is {passes}: {}",
                        case["id"], cell.what, case["description"]
                    ));
                }
            }
            before = state;
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n  {}", wrong.len(), wrong[..wrong.len().min(20)].join("\n  "));
    Some(cells)
}

#[test]
fn groups_let_through_what_every_cyclonus_case_says() {
    let Some(cells) = run("cyclonus_cases.json") else { return };
    assert_eq!(cells, 123_669 - 13_713, "none is refused");
}

#[test]
fn groups_let_through_what_every_trap_case_says() {
    let Some(cells) = run("trap_cases.json") else { return };
    assert!(cells > 10_000, "only {cells} cells were compared");
}

/// Histories, flows per compared state, and changes between compared states.
const HISTORIES: u64 = 60;
const FLOWS: usize = 80;
const STEPS_PER_STATE: usize = 3;

#[test]
fn random_histories_are_never_wider_than_the_oracle_nor_on_the_way() {
    let mut reached: BTreeMap<String, u64> = BTreeMap::new();
    let mut hit = |what: String| *reached.entry(what).or_default() += 1;
    for seed in 0..HISTORIES {
        let mut rng = Rng::new(seed);
        let History { isolation, initial, steps } = history(&mut rng);
        let mut cluster = Cluster::new(isolation);
        let isolates = isolation == IngressIsolation::DefaultDeny;
        let mut state = State { isolates, ..State::default() };
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Event(event) => {
                    state.apply(&event);
                    cluster.pipeline.apply(event).unwrap();
                }
                Step::Resync(order) => cluster.pipeline.resync(shuffled(state.objects(), order)).unwrap(),
            }
            if at + 1 < initial || !(at + 1 - initial).is_multiple_of(STEPS_PER_STATE) {
                continue;
            }
            let probes = Probes::of(&state, true);
            let flows: Vec<Flow> = (0..FLOWS).filter_map(|_| probes.flow(&mut rng)).collect();
            check(seed, at, &mut cluster, &state, &flows, &mut hit);
            if rng.chance(10) {
                let objects: Vec<Object> = shuffled(state.objects(), rng.next());
                // Retained policies are in no object.
                if oracle_alone(&state, &flows, isolation, &objects) {
                    let (mut fresh, renderer) = pipeline(isolation);
                    fresh.resync(objects).unwrap();
                    assert_eq!(cluster.desired(), desired(&fresh, renderer), "seed {seed}, step {at}");
                    hit("from scratch".into());
                }
            }
        }
    }
    println!("{reached:#?}");
    let all = ["IPv4 true", "IPv4 false", "IPv6 true", "IPv6 false", "tiers true", "tiers false", "in between"];
    for what in all {
        assert!(reached.get(what).is_some_and(|&count| count > 500), "{what}: {reached:?}");
    }
    for what in ["refused", "closes", "opens", "swaps", "from scratch", "remote group", "variant"] {
        assert!(reached.get(what).is_some_and(|&count| count > 10), "{what}: {reached:?}");
    }
}

/// Whether a state made from the objects alone gives the same verdicts as the state that followed the events.
fn oracle_alone(state: &State, flows: &[Flow], isolation: IngressIsolation, objects: &[Object]) -> bool {
    let alone = State { isolates: isolation == IngressIsolation::DefaultDeny, ..State::of(objects) };
    alone == *state && flows.iter().all(|flow| alone.allowed(flow) == state.allowed(flow))
}

fn check(seed: u64, at: usize, cluster: &mut Cluster, state: &State, flows: &[Flow], hit: &mut impl FnMut(String)) {
    let desired = cluster.desired();
    cluster.follow_pods(&desired);
    let all = |server: &Neutron| -> Vec<bool> {
        let verdicts = server.verdicts();
        flows.iter().map(|flow| answer(&verdicts, flow)).collect()
    };
    let old = all(&cluster.server);
    let mut target = Cluster::new(IngressIsolation::ClusterDefault);
    let fresh =
        plan(&desired, &Listed { groups: vec![], ports: listed(&cluster.server).ports }, OWNER, &BTreeSet::new());
    target.server.ports = cluster.server.ports.clone();
    target.server.ports.values_mut().for_each(|port| port["security_groups"] = json!([]));
    fresh
        .requests
        .iter()
        .filter(|request| !matches!(request, Request::DeleteGroup { .. }))
        .for_each(|request| target.send(&desired, request));
    let new = all(&target.server);
    let refused = !cluster.pipeline.refusals().is_empty();
    let (mut passed, mut denied) = (BTreeSet::new(), BTreeSet::new());
    let (after, made) = cluster.sync(|server, request| {
        for ((at_flow, flow), passes) in flows.iter().enumerate().zip(all(server)) {
            assert!(
                !passes || old[at_flow] || new[at_flow],
                "seed {seed}, step {at}: {flow:?} passes after {request:?}, and neither before nor after all"
            );
            if passes {
                passed.insert(at_flow)
            } else {
                denied.insert(at_flow)
            };
        }
        hit("in between".into());
    });
    for ((at_flow, flow), passes) in flows.iter().enumerate().zip(all(&cluster.server)) {
        let judged = state.judge(flow);
        let expected = judged.passes();
        assert_eq!(passes, new[at_flow], "seed {seed}, step {at}: {flow:?} depends on the way");
        let is_right = if refused { !passes || expected } else { passes == expected };
        assert!(is_right, "seed {seed}, step {at}: {flow:?} passes: {passes}, not {expected}: {judged:?}\n{after:#?}");
        hit(format!("{} {passes}", if flow.src.is_ipv4() { "IPv4" } else { "IPv6" }));
        if !state.cluster_policies.is_empty() && !refused {
            hit(format!("tiers {passes}"));
        }
        if refused && expected && !passes {
            hit("refused".into());
        }
        match (old[at_flow], new[at_flow]) {
            (true, false) => hit("closes".into()),
            (false, true) => hit("opens".into()),
            (true, true) if denied.contains(&at_flow) => hit("interrupted".into()),
            (true, true) if passed.contains(&at_flow) => hit("goes on".into()),
            _ => {}
        }
    }
    let set: BTreeSet<&str> = made
        .requests
        .iter()
        .filter_map(|request| match request {
            Request::SetPort { id, .. } => Some(&**id),
            _ => None,
        })
        .collect();
    (0..set.len()).for_each(|_| hit("swaps".into()));
    let rules = after.groups.values().flat_map(|group| &group.rules);
    rules.filter(|rule| rule.to_string().contains(" group ")).for_each(|_| hit("remote group".into()));
    after.groups.keys().filter(|tag| tag.contains("_v")).for_each(|_| hit("variant".into()));
}
