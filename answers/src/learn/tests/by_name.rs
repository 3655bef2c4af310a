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

/// The state without the rule that denies everything else, and with other names.
fn open() -> String {
    state().replace("action: Deny", "action: Pass").replace("example.com\n", "example.net\n")
}

/// Returns the state without its cluster policy.
fn without_policy() -> String {
    let state = state();
    state[..state.find("---\napiVersion: policy").unwrap()].to_owned()
}

#[test]
fn names_that_all_pods_have_resolved_become_rules_of_a_cluster_policy() {
    let (state, mut flows) = (without_policy(), captured(&without_policy(), &NameSettings::default()));
    flows.retain(|flow| flow.conversation.port != Some(80));
    let lesson = of_flows(&state, &flows);
    // The SYNs before the answer and to the impostor's address are sessions, too: their addresses stay.
    assert!(lesson.proof.holds(), "{:?}", lesson.proof.denied);
    let expected = "\
kind: ClusterNetworkPolicy
metadata:
  name: learned-default-agent
spec:
  tier: Admin
  priority: 900
  subject:
    pods:
      namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: default
      podSelector:
        matchLabels:
          app: agent
  egress:
    - action: Accept
      to:
        - domainNames:
            - www.models.example.org
      protocols:
        - tcp:
            destinationPort:
              number: 443
";
    assert!(lesson.yaml.contains(expected), "{}", lesson.yaml);
    for block in ["192.0.2.10/32\" # asked by the pod: api.example.com\n", "192.0.2.200/32\"\n"] {
        assert!(lesson.yaml.contains(block), "{}", lesson.yaml);
    }
    assert!(!lesson.yaml.contains("192.0.2.11"), "{}", lesson.yaml);
}

#[test]
fn a_policy_whose_destinations_are_all_named_still_isolates_the_egress() {
    let (state, mut flows) = (without_policy(), captured(&without_policy(), &NameSettings::default()));
    flows.retain(|flow| !flow.names.set().is_empty() && flow.conversation.port == Some(443));
    let lesson = of_flows(&state, &flows);
    assert!(
        lesson.proof.holds() && lesson.yaml.contains("  policyTypes:\n    - Egress\n  egress: []\n"),
        "{}",
        lesson.yaml
    );
    assert_eq!(lesson.yaml.matches("kind:").count(), 2, "{}", lesson.yaml);
    let names = ["            - api.example.com\n            - www.models.example.org\n", "name: learned-agent\n"];
    assert!(names.iter().all(|text| lesson.yaml.contains(text)), "{}", lesson.yaml);
}

#[test]
fn long_lists_of_names_are_split_and_too_long_ones_are_addresses() {
    let flow = |host: u8, names: std::ops::Range<u32>| {
        let names: Vec<String> = names.map(|at| format!("n{at}.example.com")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut flow = captured(&without_policy(), &NameSettings::default()).pop().unwrap();
        flow.conversation.from = crate::flows::SeenEnd::at([10, 244, 1, 3].into());
        flow.conversation.to = crate::flows::SeenEnd::at([192, 0, 2, host].into());
        flow.names = crate::flows::ResolvedNames::of(&names);
        flow
    };
    let lesson = of_flows(&without_policy(), &[flow(1, 0..30), flow(2, 20..35)]);
    assert!(lesson.proof.holds(), "{}", lesson.yaml);
    assert_eq!((lesson.yaml.matches("- domainNames:").count(), lesson.yaml.matches(".example.com").count()), (2, 35));
    let many: Vec<ObservedFlow> =
        (0..21).map(|host| flow(host, 30 * u32::from(host)..30 * u32::from(host) + 30)).collect();
    let lesson = of_flows(&without_policy(), &many);
    assert!(lesson.proof.holds() && !lesson.yaml.contains("domainNames"), "{}", lesson.yaml);
}

#[test]
fn the_surplus_has_the_names_that_pods_did_not_use_at_a_port() {
    let state = without_policy()
        + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: other, namespace: default, labels: {app: agent}}\n\
         spec: {nodeName: node-1, containers: []}\nstatus: {phase: Running, podIPs: [{ip: 10.244.1.5}]}\n";
    let sample = captured(&state, &NameSettings::default()).pop().unwrap();
    let flow = |pod: u8, port: u16| {
        let mut flow = sample.clone();
        flow.conversation.from = crate::flows::SeenEnd::at([10, 244, 1, pod].into());
        flow.conversation.to = crate::flows::SeenEnd::at([192, 0, 2, 1].into());
        flow.conversation.port = Some(port);
        flow.names = crate::flows::ResolvedNames::of(&["a.example.com"]);
        flow
    };
    let told = |flows: &[ObservedFlow]| {
        let mut told = Vec::new();
        of_flows(&state, flows).write(&mut told).unwrap();
        String::from_utf8(told).unwrap()
    };
    let all = "surplus: allowed, and not seen\n  default/agent -> 1 name: all addresses that the pods will resolve\n";
    let both = told(&[flow(3, 443), flow(5, 443)]);
    assert!(both.contains(&format!("{all}evidence")), "{both}");
    let one = told(&[flow(3, 443), flow(5, 80), flow(5, 443)]);
    assert!(one.contains(&format!("{all}  default/agent -> a.example.com TCP 80: 1 of 2 pods\nevidence")), "{one}");
}

#[test]
fn names_stay_comments_where_the_cluster_policy_would_not_decide() {
    let all = |state: &str| {
        let mut flows = captured(state, &NameSettings::default());
        flows.retain(|flow| !flow.names.set().is_empty());
        of_flows(state, &flows)
    };
    // The rest of the tier is passed, or there is no place after the other policies.
    let last = without_policy()
        + "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: last}\n\
         spec: {tier: Admin, priority: 1000, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]}\n";
    // A second pod of the workload has resolved nothing.
    let two = without_policy()
        + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: other, namespace: default, labels: {app: agent}}\n\
         spec: {nodeName: node-1, containers: []}\nstatus: {phase: Running, podIPs: [{ip: 10.244.1.5}]}\n";
    for state in [open(), last, two] {
        let lesson = all(&state);
        assert!(lesson.proof.holds() && !lesson.yaml.contains("domainNames"), "{}", lesson.yaml);
        let comment = "cidr: \"192.0.2.10/32\" # asked by the pod: api.example.com\n";
        assert!(lesson.yaml.contains(comment), "{}", lesson.yaml);
    }
    let lesson = all(&open());
    assert!(!lesson.yaml.contains("192.0.2.11"), "allowed by name already: {}", lesson.yaml);
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

/// Cluster policies that a random state may have: none, rules that decide before learned ones, that pass, and that leave no place.
const OTHERS: [&str; 4] = [
    "",
    "{tier: Admin, priority: 950, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [n0.example.com]}]}]}",
    "{tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Pass, to: [{networks: [192.0.2.0/31]}]}]}",
    "{tier: Admin, priority: 1000, subject: {namespaces: {}}, egress: [{action: Pass, to: [{networks: [203.0.113.0/24]}]}]}",
];

/// Returns a random state and its flows, of which those to the outside have random names.
fn named_cluster(seed: u64) -> (String, Vec<ObservedFlow>) {
    let Cluster { mut state, log } = cluster(seed);
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let other = random.one(&OTHERS);
    if !other.is_empty() {
        let _ = writeln!(
            state,
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: other}}\nspec: {other}"
        );
    }
    let mut seen = Observations::new(false);
    crate::flows::read("log", log.as_bytes(), &mut seen).unwrap();
    // Some clusters use names for everything.
    let always = random.below(2) == 0;
    let mut flows = Vec::new();
    for mut flow in seen.flows().unwrap() {
        let to = flow.conversation.to.address.unwrap();
        let host = match to {
            IpAddr::V4(to) => to.octets()[3],
            IpAddr::V6(to) => to.octets()[15],
        };
        if random.below(6) == 0 && !always {
            flows.push(flow.clone());
        }
        if always || random.below(4) > 0 {
            flow.names = crate::flows::ResolvedNames::of(&[&format!("n{}.example.com", host % 3)]);
        }
        flows.push(flow);
    }
    (state, flows)
}

/// Whether the vswitch of the client's node forwards a flow's first packet, if the client has resolved its names. `None` if the client is no
/// pod.
fn is_forwarded(pipeline: &Pipeline, flow: &ObservedFlow) -> Option<bool> {
    let (from, to) = (flow.conversation.from.address?, flow.conversation.to.address?);
    let End::Pod { node, .. } = End::at(pipeline.cache(), from) else { return None };
    let compiled = pipeline.compiled_node(&node)?;
    let snapshot = run::snapshot_with(&compiled.tables, None, &[]).unwrap();
    let settings = NameSettings::default();
    let names =
        run::names(bulkhead_classifier::AddressSet::default(), &settings, snapshot.ports(), |_, _: &PortConfig| {
            Holder(0)
        });
    let snapshot = snapshot.with_names(names);
    let learned = Arc::new(bulkhead_dataplane::Learned::new());
    for name in flow.names.set() {
        learned.learn(Holder(0), name, to, 1, u64::MAX).unwrap();
    }
    let port = PortProtocol::new(flow.conversation.port?, flow.conversation.transport()?);
    let packet = fabric::probe(from, to, port).request().unwrap();
    let outcome = fabric::Judge::with_names(&learned, 2).judge(&snapshot, snapshot.owner(from)?, &packet);
    Some(outcome.verdict.drop_reason().is_none())
}

#[test]
fn the_vswitch_forwards_all_seen_sessions_with_the_learned_policies() {
    let mut reached: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..200 {
        let (state, flows) = named_cluster(seed);
        let lesson = of_flows(&state, &flows);
        assert!(lesson.proof.holds(), "seed {seed}: {:?}\n{state}\n{}", lesson.proof.denied, lesson.yaml);
        let after = compiled(&format!("{state}---\n{}", lesson.yaml));
        for flow in &lesson.evidence.flows {
            if let Some(is_forwarded) = is_forwarded(&after, flow) {
                assert!(is_forwarded, "seed {seed}: {flow:?}\n{state}\n{}", lesson.yaml);
                *reached.entry("forwarded").or_default() += 1;
            }
        }
        for (what, text) in [
            ("names", "domainNames"),
            ("nothing else", "egress: []"),
            ("comment", "# asked by the pod"),
            ("before others", "priority: 900"),
            ("after others", "priority: 951"),
        ] {
            *reached.entry(what).or_default() += u32::from(lesson.yaml.contains(text));
        }
    }
    assert!(reached.values().all(|&count| count > 4), "{reached:?}");
}
