//! Sessions with the domain names that their clients had resolved.

use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::{Holder, PortConfig};

use super::*;
use crate::fabric;
use crate::run::NameSettings;

/// The state of `pcaps/names`.
fn state() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/names/state.yaml")).unwrap()
}

/// Returns the flows of the capture of `pcaps/names`, with the DNS servers of a state.
fn captured(state: &str, names: &NameSettings) -> Vec<ObservedFlow> {
    let capture = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/names/in.pcap")).unwrap();
    let (pipeline, settings) = (compiled(state), Settings::default());
    let mut listeners = Listeners::new(&pipeline, &[], &settings, names);
    let mut seen = Observations::new(false).by_name();
    crate::flows::from_capture("in.pcap", capture, false, Some(&mut listeners), &mut seen).unwrap();
    seen.flows().unwrap()
}

fn of_flows(state: &str, flows: &[ObservedFlow]) -> Lesson {
    let state = State {
        pipeline: compiled(state),
        services: Vec::new(),
        settings: Settings::default(),
        strictness: Strictness::Strict,
    };
    let wanted = Wanted { direction: Learned::Both, namespaces: BTreeSet::new(), slack: 0 };
    learn(state, flows, wanted).unwrap()
}

/// Returns sessions, destination and names of each flow to port 443.
fn to_servers(flows: &[ObservedFlow]) -> Vec<String> {
    let flows = flows.iter().filter(|flow| flow.conversation.port == Some(443));
    let text = |flow: &ObservedFlow| {
        let names: Vec<&str> = flow.names.set().iter().map(|name| &**name).collect();
        format!("{} {} [{}]", flow.tally.sessions, flow.conversation.to, names.join(" "))
    };
    flows.map(text).collect()
}

#[test]
fn sessions_have_the_names_that_the_pod_had_resolved_when_they_began() {
    let told = to_servers(&captured(&state(), &NameSettings::default()));
    let expected = [
        "1 192.0.2.10 []",
        "1 192.0.2.10 [api.example.com]",
        "1 192.0.2.11 [www.models.example.org]",
        "1 192.0.2.200 []",
    ];
    assert_eq!(told, expected, "api.example.com is 192.0.2.200 only according to an impostor");
    let elsewhere = state().replace("kube-system", "dns-system");
    let untrusted = to_servers(&captured(&elsewhere, &NameSettings::default()));
    assert!(untrusted.iter().all(|flow| flow.ends_with("[]")), "{untrusted:?}");
    let servers = vec![NameSettings::server("10.244.1.2").unwrap()];
    assert_eq!(to_servers(&captured(&elsewhere, &NameSettings { servers, ..NameSettings::default() })), expected);
}

#[test]
fn what_a_rule_allows_by_name_is_neither_denied_nor_learned() {
    let lesson = of_flows(&state(), &captured(&state(), &NameSettings::default()));
    assert!(lesson.proof.holds(), "{:?}", lesson.proof.denied);
    // The SYNs before the answer, those to another port, and those to the address from an impostor.
    assert_eq!(lesson.evidence.refused, 3);
    assert!(!lesson.yaml.contains("Egress"), "{}", lesson.yaml);
    let other_port = state().replace("number: 443", "number: 8443");
    let lesson = of_flows(&other_port, &captured(&other_port, &NameSettings::default()));
    assert_eq!(lesson.proof.denied.values().sum::<u64>(), 2, "{:?}", lesson.proof.denied);
}

#[test]
fn blocks_have_the_names_that_the_pods_had_resolved_as_comments() {
    let open = state().replace("action: Deny", "action: Pass").replace("example.com\n", "example.net\n");
    let lesson = of_flows(&open, &captured(&open, &NameSettings::default()));
    assert!(
        lesson.proof.holds() && lesson.yaml.contains("cidr: \"192.0.2.10/32\" # asked by the pod: api.example.com\n"),
        "{}",
        lesson.yaml
    );
    assert!(!lesson.yaml.contains("192.0.2.11"), "allowed by name: {}", lesson.yaml);
}

#[test]
fn the_names_of_hubbles_flows_count() {
    let line = |names: &str| {
        format!(
            "{{\"flow\": {{\"verdict\": \"FORWARDED\", \"IP\": {{\"source\": \"10.244.1.3\", \"destination\": \"192.0.2.10\"}}, \
             \"l4\": {{\"TCP\": {{\"source_port\": 40000, \"destination_port\": 443}}}}, \"is_reply\": false{names}}}}}\n"
        )
    };
    let lesson = |names: &str| lesson(&Cluster { state: state(), log: line(names) }, 0);
    assert!(lesson(", \"destination_names\": [\"API.example.com.\"]").proof.holds());
    for unknown in ["", ", \"destination_names\": [\"other.example.com\"]", ", \"destination_names\": []"] {
        assert!(!lesson(unknown).proof.holds(), "{unknown}");
    }
}

/// The rules of a pod in all tiers, some of which name domains or pass to the next tier.
const TIERS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 172.18.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: a, labels: {app: p}}
spec: {nodeName: n1, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: first}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress:
  - {action: Deny, to: [{networks: [192.0.2.1/32]}]}
  - {action: Accept, to: [{domainNames: [a.example.com]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}
  - {action: Pass, to: [{networks: [192.0.2.0/30]}]}
  - {action: Accept, to: [{domainNames: ['*.example.org']}]}
  - {action: Deny, to: [{networks: [192.0.2.4/32]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own, namespace: a}
spec: {podSelector: {matchLabels: {isolated: 'yes'}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.2/32}}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: last}
spec:
  tier: Baseline
  priority: 1
  subject: {namespaces: {}}
  egress:
  - {action: Accept, to: [{domainNames: [b.example.com, a.example.org]}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0]}]}
";

#[test]
fn rules_judge_by_name_as_the_vswitch_does() {
    let mut counts: BTreeMap<(bool, bool), u32> = BTreeMap::new();
    for text in [TIERS.to_owned(), TIERS.replace("{app: p}", "{isolated: 'yes'}")] {
        let pipeline = compiled(&text);
        let reachability = Reachability::of(&pipeline, pipeline.mirror().unwrap());
        let node = pipeline.compiled_node("n1").unwrap();
        let snapshot = run::snapshot_with(&node.tables, node.audit.as_ref(), &[]).unwrap();
        let settings = NameSettings::default();
        let names =
            run::names(bulkhead_classifier::AddressSet::default(), &settings, snapshot.ports(), |_, _: &PortConfig| {
                Holder(0)
            });
        let snapshot = snapshot.with_names(names);
        let from = [10, 0, 0, 1].into();
        let ends: [IpAddr; 7] =
            ["192.0.2.0", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "172.18.0.1"]
                .map(|end| end.parse().unwrap());
        let all = ["a.example.com", "b.example.com", "a.example.org", "x.b.example.org", "other.example.net"];
        for (to, set) in ends.iter().flat_map(|&to| (0..1 << all.len()).map(move |set| (to, set))) {
            let names = all.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, name)| Arc::from(*name));
            let names: BTreeSet<Arc<str>> = names.collect();
            let learned = Arc::new(bulkhead_dataplane::Learned::new());
            for name in &names {
                learned.learn(Holder(0), name, to, 1, u64::MAX).unwrap();
            }
            for port in [443, 80] {
                let probe = Probe { src: from, dst: to, kind: ProbeKind::Tcp, sport: 9, dport: port };
                let port_of = snapshot.owner(from).unwrap();
                let outcome =
                    fabric::Judge::with_names(&learned, 2).judge(&snapshot, port_of, &probe.request().unwrap());
                let verdict = |names: &BTreeSet<Arc<str>>| {
                    let verdicts = reachability.between_by_name(from, to, names).unwrap();
                    *verdicts.at(bulkhead_control::reachability::Protocol::Tcp, port)
                };
                let by_name = verdict(&names);
                assert_eq!(
                    by_name.allowed(),
                    outcome.verdict.drop_reason().is_none(),
                    "{to} {port} {names:?} {outcome:?}"
                );
                assert_eq!(
                    by_name.egress.origin,
                    outcome.decision.and_then(|decision| decision.origin),
                    "{to} {port} {names:?}"
                );
                *counts.entry((verdict(&BTreeSet::new()).allowed(), by_name.allowed())).or_default() += 1;
            }
        }
    }
    let count = |key| counts.get(&key).copied().unwrap_or_default();
    assert!(count((false, false)) > 50 && count((false, true)) > 50 && count((true, true)) > 50, "{counts:?}");
}
