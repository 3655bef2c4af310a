//! Rules that name domains: in every engine, a table of its own judges the egress of their pods.

use super::*;
use crate::object::{ClusterPolicyKind, ClusterPolicyName};
use crate::origin::Origin;
use crate::renderer::Instead;
use crate::renderer::acl::NodeTables;

const FRONTEND: &str = "10.244.1.3";
const WORLD: &str = "203.0.113.7";

/// Returns a cluster policy `names` of this tier with these egress rules, for pods with the label `role: frontend`.
fn names(tier: &str, egress: &str) -> Vec<Object> {
    let text = format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: names}}, spec: {{tier: {tier}, \
         priority: 10, subject: {{pods: {{podSelector: {{matchLabels: {{role: frontend}}}}}}}}, egress: [{egress}]}}}}"
    );
    let loaded = load_text("names", &text, Options::default()).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    loaded.objects
}

const WEB: &str = "{name: web, action: Accept, to: [{domainNames: [www.example.com, '*.example.org']}], protocols: [{tcp: \
                   {destinationPort: {number: 443}}}]}";
const REST: &str = "{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}";

fn pipelines() -> Vec<Pipeline> {
    let at = |engine| Pipeline::with_engine(Scope::Node("n1".into()), IngressIsolation::ClusterDefault, engine);
    let at_source = Pipeline::at_source("n1".into(), IngressIsolation::ClusterDefault);
    vec![at(Engine::Acl), at(Engine::Identity), at_source, Pipeline::new(Scope::Cluster)]
}

/// Judges a packet of a pod of node n1 as the dataplane does: by the sender's egress table, then by the table at the place of enforcement.
/// `names` are the destination's. Returns the action, and the origin of the deciding rule.
fn judge_named(pipeline: &Pipeline, key: &Key, names: &[&str]) -> (Action, Option<Origin>) {
    let tables = pipeline.node_tables("n1").unwrap();
    let owner = |address: IpAddr| tables.interfaces.iter().find(|of| of.addresses.contains(&address));
    let uplink = tables.interfaces.iter().find(|of| of.attachment == Attachment::Uplink).unwrap();
    let from = owner(key.src()).unwrap();
    let origin = |table: usize, verdict| {
        let rule = tables.tables[table].tables.deciding_rule(verdict);
        (verdict.action(), rule.and_then(|rule| pipeline.origins().get(rule.origin).cloned()))
    };
    let at_source = tables.enforced_at == crate::renderer::acl::EnforcedAt::Source;
    let place = if at_source { from } else { owner(key.dst()).unwrap_or(uplink) };
    let verdict = tables.tables[place.table].tables.lookup(key);
    if let Some(table) = from.egress_table {
        let egress = &tables.tables[table].tables;
        let by_name = names.iter().map(|name| egress.lookup_name(key, name));
        let named = by_name.fold(egress.lookup(key), |first, next| if next.precedes(first) { next } else { first });
        if !named.is_allow() || verdict.is_allow() {
            return origin(table, named);
        }
    }
    origin(place.table, verdict)
}

#[test]
fn a_name_opens_what_its_rule_says_to_the_pod_that_has_learned_it() {
    for mut pipeline in pipelines() {
        pipeline.resync(redis().into_iter().chain(names("Admin", &format!("{WEB}, {REST}")))).unwrap();
        let allowed =
            |src: &str, port, names: &[&str]| judge_named(&pipeline, &tcp(src, WORLD, port), names).0 == Action::Allow;
        assert!(!allowed(FRONTEND, 443, &[]));
        assert!(allowed(FRONTEND, 443, &["www.example.com"]));
        assert!(allowed(FRONTEND, 443, &["evil.com", "a.b.example.org"]));
        assert!(!allowed(FRONTEND, 443, &["example.org"]));
        assert!(!allowed(FRONTEND, 80, &["www.example.com"]), "the rule names a port");
        assert!(allowed("10.244.1.4", 80, &[]), "no rule concerns the backend");
        let (_, origin) = judge_named(&pipeline, &tcp(FRONTEND, WORLD, 443), &["www.example.com"]);
        assert!(matches!(origin, Some(Origin::ClusterPolicy { rule: 0, .. })), "{origin:?}");
        let tables = pipeline.node_tables("n1").unwrap();
        let apart = tables.tables.iter().filter(|table| table.name.starts_with("egress:")).count();
        assert_eq!(apart, 1);
    }
}

#[test]
fn rules_before_it_come_first_and_a_pass_leaves_the_rest_to_the_next_tier() {
    let block = "{action: Deny, to: [{networks: [203.0.113.0/29]}]}";
    let pass = "{action: Pass, to: [{networks: [203.0.113.0/24]}]}";
    for mut pipeline in pipelines() {
        let mut verdict = |egress: String, tier| {
            pipeline.resync(redis().into_iter().chain(names(tier, &egress)).chain([egress_to_web()])).unwrap();
            judge_named(&pipeline, &tcp(FRONTEND, WORLD, 443), &["www.example.com"]).0
        };
        assert_eq!(verdict(format!("{block}, {WEB}"), "Admin"), Action::Deny, "the block comes first");
        assert_eq!(verdict(format!("{WEB}, {block}"), "Admin"), Action::Allow);
        assert_eq!(verdict(format!("{pass}, {WEB}"), "Admin"), Action::Deny, "the NetworkPolicy isolates");
        assert_eq!(verdict(format!("{WEB}, {REST}"), "Baseline"), Action::Deny, "the NetworkPolicy isolates");
    }
}

#[test]
fn the_receivers_ingress_rules_judge_such_packets_too() {
    for mut pipeline in pipelines() {
        let objects = || redis().into_iter().chain(names("Admin", WEB));
        pipeline.resync(objects().chain([deny_all("default/closed")])).unwrap();
        let to_db = tcp(FRONTEND, "10.244.1.2", 443);
        assert_eq!(judge_named(&pipeline, &to_db, &["www.example.com"]).0, Action::Deny);
        pipeline.resync(objects()).unwrap();
        let (action, origin) = judge_named(&pipeline, &to_db, &["www.example.com"]);
        assert_eq!(action, Action::Allow);
        assert!(
            matches!(origin, Some(Origin::ClusterPolicy { .. })),
            "a headless Service's name is a pod's: {origin:?}"
        );
    }
}

#[test]
fn tables_come_with_the_first_rule_that_names_a_domain_and_go_with_the_last() {
    for mut pipeline in pipelines() {
        pipeline.resync(redis().into_iter().chain([allow_backend(), egress_to_web()])).unwrap();
        let state = |pipeline: &Pipeline| {
            let tables = pipeline.node_tables("n1").unwrap();
            let verdict = judge_named(pipeline, &tcp(FRONTEND, WORLD, 443), &["www.example.com"]).0;
            (tables.interfaces.iter().filter(|of| of.egress_table.is_some()).count(), verdict, tables.generation)
        };
        let first = state(&pipeline);
        assert_eq!((first.0, first.1), (0, Action::Deny));
        let policy = names("Admin", WEB);
        pipeline.apply_batch(policy.iter().cloned().map(Event::Apply)).unwrap();
        let second = state(&pipeline);
        assert_eq!((second.0, second.1), (1, Action::Allow));
        assert!(second.2 > first.2);
        pipeline.apply(Event::Apply(pod("default/frontend2", "10.244.1.9", "n1", "role=frontend"))).unwrap();
        let third = state(&pipeline);
        assert_eq!((third.0, third.1), (2, Action::Allow));
        assert!(third.2 > second.2);
        let Object::ClusterPolicy(policy) = &policy[0] else { panic!() };
        pipeline.apply(Event::DeleteClusterPolicy(policy.rank.name.clone())).unwrap();
        let last = state(&pipeline);
        assert_eq!((last.0, last.1), (0, Action::Deny));
        assert!(last.2 > third.2);
    }
}

#[test]
fn stacks_that_learn_no_names_allow_nothing_by_name() {
    use crate::renderer::nftables::{Epoch, Suspects};

    let script = |egress: &str| {
        let mut pipeline = Pipeline::in_the_kernel("n1".into(), IngressIsolation::ClusterDefault, Suspects::default());
        pipeline.resync(redis().into_iter().chain(names("Admin", egress))).unwrap();
        let kernel = pipeline.kernel().unwrap();
        let frontend = [("veth1".into(), Some(name("default/frontend")))];
        pipeline.renderer_mut(kernel).set_interfaces(frontend.into());
        pipeline.renderer(kernel).full(Epoch::any(1), pipeline.origins())
    };
    // Without the definitions of counters, of which the rule has one that counts nothing.
    let rules = |script: &str| -> Vec<String> {
        script.lines().filter(|line| !line.contains("; }")).map(str::to_owned).collect()
    };
    let without = rules(&script(REST).replace("deny-4", "deny-5").replace("egress[0]", "egress[1]"));
    assert!(without.iter().any(|line| line.contains("drop comment \"Admin tier, ClusterNetworkPolicy names")));
    assert_eq!(rules(&script(&format!("{WEB}, {REST}"))), without);
}

/// Returns a policy of the frontend with as many egress rules as make a list of about `count` intervals.
fn wide(count: u32) -> Object {
    let rule = |port: u32| {
        let addresses = (0..count / 4).map(|at| IpAddr::from((0x1400_0000 + 8 * at + 2 * port).to_be_bytes()));
        let peers = addresses.map(|address| Peer::Block(IpBlock { cidr: address.into(), except: Vec::new() }));
        PolicyRule { peers: Some(peers.collect()), ..from_pods("default", "", u16::try_from(port).ok()) }
    };
    policy("default/wide", "role=frontend", None, Some((0..4).map(rule).collect()))
}

#[test]
fn an_egress_table_that_does_not_fit_leaves_the_last_one_in_force_and_is_not_built_again() {
    for mut pipeline in pipelines() {
        pipeline.apart.max_bytes = Some(1 << 15);
        let web = || names("Admin", WEB);
        pipeline.resync(redis().into_iter().chain(web()).chain([egress_to_web()])).unwrap();
        let verdict = |pipeline: &Pipeline, from: &str, names: &[&str]| {
            judge_named(pipeline, &tcp(from, WORLD, 443), names).0 == Action::Allow
        };
        let check = |pipeline: &Pipeline| {
            assert!(verdict(pipeline, FRONTEND, &["www.example.com"]), "the last rules");
            assert!(!verdict(pipeline, FRONTEND, &[]));
            let refusals = pipeline.refusals();
            assert_eq!(refusals.len(), 1, "{refusals:?}");
            let Refusal { subject, instead, .. } = &refusals[0];
            assert_eq!((subject.as_str(), *instead), ("the egress of default/frontend", Instead::LastGood));
        };
        pipeline.apply(Event::Apply(wide(4_000))).unwrap();
        check(&pipeline);
        // Other changes, and a resync, are not a reason to publish the table again.
        let before = pipeline.node_tables("n1").unwrap();
        pipeline.apply(Event::Apply(pod("default/other", "10.244.2.77", "n2", "role=other"))).unwrap();
        assert!(Arc::ptr_eq(&before, &pipeline.node_tables("n1").unwrap()));
        pipeline.render_all().unwrap();
        check(&pipeline);
        // A pod without earlier rules is closed.
        let label = "role=frontend";
        pipeline.apply(Event::Apply(pod("default/new", "10.244.1.9", "n1", label))).unwrap();
        assert!(!verdict(&pipeline, "10.244.1.9", &["www.example.com"]));
        assert!(pipeline.refusals().iter().any(|refusal| refusal.instead == Instead::Closed));
        // A list that fits ends it.
        pipeline.apply(Event::Apply(wide(40))).unwrap();
        assert!(pipeline.refusals().is_empty());
        assert!(verdict(&pipeline, "10.244.1.9", &["www.example.com"]));
    }
}

#[test]
fn a_renderer_that_fails_leaves_the_egress_tables_in_force_too() {
    let node: Arc<str> = "n1".into();
    let renderer = Box::new(SourceRenderer::with_limit(node.clone(), 100));
    let enforcing = Enforcing::Sessions(RendererHandle::FIRST);
    let mut pipeline = Pipeline::with(Scope::Node(node), IngressIsolation::ClusterDefault, renderer, enforcing);
    pipeline.resync(redis().into_iter().chain(names("Admin", &format!("{WEB}, {REST}")))).unwrap();
    let verdict = |pipeline: &Pipeline, names: &[&str]| {
        judge_named(pipeline, &tcp(FRONTEND, WORLD, 443), names).0 == Action::Allow
    };
    assert!(!verdict(&pipeline, &[]) && verdict(&pipeline, &["www.example.com"]));
    // Without names, the egress rules are the renderer's. They do not fit, so no table would have them.
    let gone = ClusterPolicyName { kind: ClusterPolicyKind::ClusterNetworkPolicy, name: "names".into() };
    pipeline.apply_batch([Event::DeleteClusterPolicy(gone), Event::Apply(wide(4_000))]).unwrap_err();
    assert!(!verdict(&pipeline, &[]) && verdict(&pipeline, &["www.example.com"]), "the last rules");
    pipeline.apply(Event::Apply(pod("default/other", "10.244.2.77", "n2", "role=other"))).unwrap_err();
    assert!(!verdict(&pipeline, &[]));
    pipeline.apply(Event::DeletePolicy(name("default/wide"))).unwrap();
    assert!(verdict(&pipeline, &[]), "no policy is left");
}

#[test]
fn tables_compiled_for_a_question_are_those_of_the_node() {
    let objects = || redis().into_iter().chain(names("Admin", &format!("{WEB}, {REST}"))).chain([egress_to_web()]);
    let mut asked = Pipeline::without_tables(IngressIsolation::ClusterDefault);
    asked.resync(objects()).unwrap();
    let compiled = asked.compiled_node("n1").unwrap();
    assert!(compiled.refusals.is_empty() && compiled.audit.is_none());
    let mut of_node = pipelines().remove(0);
    of_node.resync(objects()).unwrap();
    let expected = of_node.node_tables("n1").unwrap();
    assert_eq!(compiled.tables.interfaces, expected.interfaces);
    let rules = |tables: &NodeTables| tables.tables.iter().map(|table| table.tables.clone()).collect::<Vec<_>>();
    assert_eq!(rules(&compiled.tables), rules(&expected));
}
