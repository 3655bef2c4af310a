//! Tests ClusterNetworkPolicy and its predecessors with known answers.

use crate::cases::{Cell, QUESTIONS, Question, cells, state};
use crate::oracle::changes::events;
use crate::oracle::{Flow, State};
use crate::vswitch::Vswitches;
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::source::{Strictness, load_text};
use bulkhead_control::ties::ties;
use serde_json::Value;

/// The cases of a group. `None` if the case files are absent.
fn group(name: &str) -> Option<Vec<Value>> {
    let mut all = crate::cases::load("cnp_cases.json")?;
    all.retain(|case| case["group"] == name);
    Some(all)
}

#[test]
fn what_is_to_be_refused_is_refused_with_its_object_field_and_remedy() {
    let Some(cases) = group("refuse") else { return };
    for case in &cases {
        let (id, step) = (&case["id"], &case["steps"][0]);
        let [policy] = &step["policies"].as_array().unwrap()[..] else { panic!("case {id}: one object expected") };
        let errors = load_text("case.json", &policy.to_string(), Strictness::Strict).expect_err(&id.to_string());
        let [error] = errors.shown() else { panic!("case {id}: one error expected\n{errors}") };
        assert_eq!(
            error.object.as_deref().map(|name| name.replace(' ', "/")).as_deref(),
            step["refuse"]["object"].as_str()
        );
        assert_eq!(Some(error.path.as_str()), step["refuse"]["field"].as_str(), "case {id}: {error}");
        assert!(error.line == Some(1) && !error.help.is_empty(), "case {id}: {error}");
    }
    assert_eq!(cases.len(), 60);
}

/// Runs a group. Returns the number of compared cells per question. `None` if the case files are absent.
fn run_group(name: &str) -> Option<[usize; 3]> {
    let cases = group(name)?;
    let compared = QUESTIONS.map(|question| crate::cases::run(&cases, question).cells);
    println!("{} cases, {compared:?} cells", cases.len());
    Some(compared)
}

#[test]
fn the_conformance_suite_of_the_api_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_group("upstream") else { return };
    assert!(compared[0] > 301, "{compared:?}");
}

#[test]
fn every_trap_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_group("trap") else { return };
    assert!(compared.iter().all(|&cells| cells > 5_000), "{compared:?}");
}

#[test]
fn every_story_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_group("story") else { return };
    assert!(compared.iter().all(|&cells| cells > 100), "{compared:?}");
}

#[test]
fn where_faults_are_survived_a_rule_fails_closed_and_what_does_not_say_for_whom_it_is_stays_refused() {
    let Some(cases) = group("refuse") else { return };
    let mut survived = 0;
    for case in &cases {
        let (id, step) = (&case["id"], &case["steps"][0]);
        let tables = step.get("lenient").or(case.get("lenient"));
        let Some(tables) = tables else {
            let field = step["refuse"]["field"].as_str().unwrap();
            let vital = ["spec.tier", "spec.priority", "spec.subject", "metadata"];
            let is_vital = vital.iter().any(|vital| field.starts_with(vital));
            let policy = step["policies"][0].to_string();
            assert_eq!(load_text("case.json", &policy, Strictness::Lenient).is_err(), is_vital, "case {id}");
            continue;
        };
        survived += 1;
        let state = state(step, Strictness::Lenient);
        let mut vswitches = Vswitches::cluster();
        vswitches.resync(&state.objects());
        for Cell { flow, passes, what } in cells(step, tables, Question::Combined, false) {
            let answers = [vswitches.allow(&state, &flow), state.allowed(&flow)];
            assert_eq!(answers, [passes; 2], "case {id}: {what}");
        }
    }
    assert_eq!(survived, 21);
}

/// A cluster policy that selects all pods.
fn policy(name: &str, tier: &str, priority: u16, rules: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}}}, \
          spec: {{tier: {tier}, priority: {priority}, subject: {{namespaces: {{}}}}, {rules}}}}}\n---\n"
    )
}

const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.1}}";

fn pipeline(text: &str) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Cluster);
    pipeline.resync(load_text("t.yaml", text, Strictness::Strict).unwrap().objects).unwrap();
    pipeline
}

#[test]
fn policies_of_one_priority_that_disagree_about_a_pod_are_a_tie() {
    let rule = |action: &str| format!("egress: [{{action: {action}, to: [{{namespaces: {{}}}}]}}]");
    let [accept, deny] = ["Accept", "Deny"].map(rule);
    let one = policy("b", "Admin", 5, &accept);
    let told = |other: &str, pod: &str| -> Vec<String> {
        ties(pipeline(&(one.clone() + other + pod)).cache()).iter().map(ToString::to_string).collect()
    };
    let tie = "ClusterNetworkPolicy a and ClusterNetworkPolicy b have the same tier and priority, different actions, and both \
               select x/a";
    assert_eq!(told(&policy("a", "Admin", 5, &deny), POD), [tie]);
    for other in [
        policy("a", "Admin", 6, &deny),
        policy("a", "Baseline", 5, &deny),
        policy("a", "Admin", 5, &accept),
        policy("a", "Admin", 5, "ingress: [{action: Deny, from: [{namespaces: {}}]}]"),
        policy("a", "Admin", 5, &deny)
            .replace("{namespaces: {}}, egress", "{namespaces: {matchLabels: {no: pod}}}, egress"),
    ] {
        assert!(told(&other, POD).is_empty(), "{other}");
    }
    assert!(told(&policy("a", "Admin", 5, &deny), "").is_empty(), "without a pod");
}

#[test]
fn a_verdict_names_tier_policy_and_rule() {
    let rules = "egress: [{action: Pass, to: [{networks: [192.0.2.1/32]}]}, \
                 {name: no-world, action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let text = policy("edge", "Baseline", 7, rules) + POD;
    let state = State::of(&load_text("t.yaml", &text, Strictness::Strict).unwrap().objects);
    let mut vswitches = Vswitches::cluster();
    vswitches.resync(&state.objects());
    let origin = |to: &str| {
        let (src, dst) = ("10.0.0.1".parse().unwrap(), to.parse().unwrap());
        let hops = vswitches.hops(&state, &Flow { src, dst, protocol: 6, port: 80 }, true);
        hops.last().unwrap().origin.clone().unwrap().to_string()
    };
    assert_eq!(origin("192.0.2.2"), "Baseline tier, ClusterNetworkPolicy edge egress[1] (no-world)");
    assert_eq!(origin("192.0.2.1"), "no egress isolation");
}

#[test]
fn subjects_follow_the_labels_of_namespaces_and_pods() {
    let rules = "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let of = |subject: &str| policy("p", "Admin", 0, rules).replace("{namespaces: {}}", subject);
    let namespace =
        |labels: &str| format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: x, labels: {labels}}}}}\n---\n");
    let labelled = POD.replace("namespace: x", "namespace: x, labels: {app: web}");
    let by_namespace = of("{namespaces: {matchLabels: {team: red}}}");
    let by_pod = of("{pods: {podSelector: {matchLabels: {app: web}}}}");
    let steps = [
        (namespace("{}") + &by_namespace + POD, false),
        (namespace("{team: red}") + &by_namespace + POD, true),
        (namespace("{team: blue}") + &by_namespace + POD, false),
        (by_namespace.clone() + POD, false),
        (namespace("{team: red}") + &by_namespace + &labelled, true),
        (namespace("{team: red}") + &by_pod + &labelled, true),
        (namespace("{team: red}") + &by_pod + POD, false),
        (namespace("{team: red}") + &by_pod + &labelled, true),
        (namespace("{team: red}") + &labelled, false),
    ];
    let (mut running, mut before) = (Vswitches::cluster(), State::default());
    for (at, (text, denied)) in steps.iter().enumerate() {
        let state = State::of(&load_text("t.yaml", text, Strictness::Strict).unwrap().objects);
        events(&before, &state, at % 2 == 0).iter().for_each(|event| running.apply(event));
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert_eq!(running.allow(&state, &Flow { src, dst, protocol: 17, port: 1 }), !denied, "step {at}");
        before = state;
    }
}

#[test]
fn the_addresses_of_selected_nodes_follow_their_labels() {
    let rules = "egress: [{action: Deny, to: [{nodes: {matchLabels: {role: edge}}}]}]";
    let text = |labels: &str, address: &str| {
        let node = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: node-1, labels: {labels}}}, \
              status: {{addresses: [{{type: InternalIP, address: {address}}}]}}}}\n---\n"
        );
        policy("p", "Admin", 0, rules) + &node + POD
    };
    // Cluster policies apply to the pod's own node as well. It is exempt from NetworkPolicies only.
    let steps = [
        ("{}", "192.0.2.1", false),
        ("{role: edge}", "192.0.2.1", true),
        ("{role: edge}", "192.0.2.2", false),
        ("{role: edge}", "192.0.2.1", true),
        ("{role: core}", "192.0.2.1", false),
    ];
    let (mut running, mut before) = (Vswitches::cluster(), State::default());
    for (labels, address, denied) in steps {
        let state = State::of(&load_text("t.yaml", &text(labels, address), Strictness::Strict).unwrap().objects);
        events(&before, &state, true).iter().for_each(|event| running.apply(event));
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert_eq!(running.allow(&state, &Flow { src, dst, protocol: 6, port: 1 }), !denied, "{labels} {address}");
        before = state;
    }
}

#[test]
fn the_address_of_a_host_network_pod_is_its_nodes() {
    let rules = "egress: [{action: Deny, to: [{nodes: SELECTOR}]}]";
    let shares = |node: &str, phase: &str| {
        format!(
            "\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: agent, namespace: x}}, spec: {{nodeName: {node}, hostNetwork: true}}, \
              status: {{phase: {phase}, podIP: 192.0.2.7}}}}\n"
        )
    };
    let node = "{apiVersion: v1, kind: Node, metadata: {name: node-2, labels: {role: edge}}, \
                status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}\n---\n";
    let text =
        |selector: &str, agent: &str| policy("p", "Admin", 0, rules).replace("SELECTOR", selector) + node + POD + agent;
    let steps = [
        (text("{matchLabels: {role: edge}}", ""), false),
        (text("{matchLabels: {role: edge}}", &shares("node-2", "Running")), true),
        (text("{matchLabels: {role: edge}}", &shares("node-2", "Succeeded")), false),
        (text("{matchLabels: {role: core}}", &shares("node-2", "Running")), false),
        // The labels of a node without an object are unknown.
        (text("{matchExpressions: [{key: role, operator: DoesNotExist}]}", &shares("node-3", "Running")), false),
        (text("{}", &shares("node-3", "Running")), true),
        (text("{}", ""), false),
    ];
    let (mut running, mut before) = (Vswitches::cluster(), State::default());
    for (at, (text, denied)) in steps.iter().enumerate() {
        let state = State::of(&load_text("t.yaml", text, Strictness::Strict).unwrap().objects);
        events(&before, &state, at % 2 == 0).iter().for_each(|event| running.apply(event));
        let flow = Flow { src: "10.0.0.1".parse().unwrap(), dst: "192.0.2.7".parse().unwrap(), protocol: 6, port: 1 };
        assert_eq!((running.allow(&state, &flow), state.allowed(&flow)), (!denied, !denied), "step {at}");
        before = state;
    }
}

/// A pod of another node that claims the address 10.0.1.1, as another pod does.
fn claimant(name: &str, labels: &str) -> String {
    format!(
        "\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: x, labels: {labels}}}, spec: {{nodeName: node-2}}, \
          status: {{phase: Running, podIP: 10.0.1.1}}}}"
    )
}

#[test]
fn an_address_that_is_nobodys_is_denied_where_a_rule_denies_or_passes_pods_and_only_there() {
    let red = "pods: {podSelector: {matchLabels: {team: red}}}";
    let rule = |action: &str, peer: &str, more: &str| format!("{{action: {action}, PEERS: [{{{peer}}}]{more}}}");
    let port_80 = ", protocols: [{tcp: {destinationPort: {number: 80}}}]";
    let net = "networks: [10.0.0.0/8]";
    // The rules (both directions if ingress can express them), and whether TCP 80 and TCP 81 pass.
    let cases = [
        (vec![rule("Deny", red, "")], [false, false]),
        (vec![rule("Deny", red, port_80)], [false, true]),
        (vec![rule("Accept", red, ""), rule("Deny", "namespaces: {}", port_80)], [false, true]),
        // A Pass must not lead to rules that allow more.
        (vec![rule("Pass", red, ""), rule("Accept", "namespaces: {}", "")], [false, false]),
        (vec![rule("Accept", red, "")], [true, true]),
        // Egress only: an earlier network rule decides independently of pods.
        (vec![rule("Accept", net, port_80), rule("Deny", red, "")], [true, false]),
        (vec![rule("Pass", net, port_80), rule("Deny", red, "")], [true, false]),
        (vec![rule("Deny", net, port_80), rule("Accept", red, "")], [false, true]),
    ];
    let two = claimant("c", "{team: red}") + &claimant("d", "{team: blue}");
    for tier in ["Admin", "Baseline"] {
        for (rules, expected) in &cases {
            for direction in [Direction::Ingress, Direction::Egress] {
                let rules = rules.join(", ");
                if direction == Direction::Ingress && rules.contains(net) {
                    continue;
                }
                let word = if direction == Direction::Ingress { "from" } else { "to" };
                let text = policy("p", tier, 0, &format!("{direction}: [{}]", rules.replace("PEERS", word))) + POD;
                let (mut running, mut before) = (Vswitches::cluster(), State::default());
                // One pod, two pods without a winner, and one again.
                for pods in [claimant("d", "{team: blue}"), two.clone(), claimant("d", "{team: blue}")] {
                    let state =
                        State::of(&load_text("t.yaml", &(text.clone() + &pods), Strictness::Strict).unwrap().objects);
                    events(&before, &state, true).iter().for_each(|event| running.apply(event));
                    let mut scratch = Vswitches::cluster();
                    scratch.resync(&state.objects());
                    let (pod, other) = ("10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
                    let (src, dst) = if direction == Direction::Ingress { (other, pod) } else { (pod, other) };
                    for (port, expected) in [80, 81].into_iter().zip(expected) {
                        let flow = Flow { src, dst, protocol: 6, port };
                        let answers =
                            [running.allow(&state, &flow), scratch.allow(&state, &flow), state.allowed(&flow)];
                        let is_quarantined = state.is_quarantined(other);
                        assert_eq!(is_quarantined, pods == two);
                        if is_quarantined {
                            assert_eq!(answers, [*expected; 3], "{tier} {direction} {rules} port {port}");
                        } else {
                            assert!(answers == [answers[0]; 3], "{tier} {direction} {rules} port {port}: {answers:?}");
                        }
                    }
                    before = state;
                }
            }
        }
    }
}

#[test]
fn a_namespace_whose_labels_cannot_be_read_is_refused_where_a_cluster_policy_asks_for_labels() {
    let faulty = "{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {team: [red]}}}\n---\n";
    let rules = "egress: [{action: Deny, to: [{namespaces: {}}]}]";
    let by_label = policy("p", "Admin", 0, rules)
        .replace("to: [{namespaces: {}}]", "to: [{namespaces: {matchLabels: {team: red}}}]");
    let error = load_text("t.yaml", &(by_label + faulty + POD), Strictness::Lenient).unwrap_err().to_string();
    assert!(
        error
            .starts_with("t.yaml:1: ClusterNetworkPolicy p: cannot tell whether the policy applies to namespace \"x\""),
        "{error}"
    );
    assert!(load_text("t.yaml", &(policy("p", "Admin", 0, rules) + faulty + POD), Strictness::Lenient).is_ok());
}

#[test]
fn a_node_that_cannot_be_read_is_refused_where_a_cluster_policy_denies_nodes() {
    let faulty = "{apiVersion: v1, kind: Node, metadata: {name: node-2, labels: []}}\n---\n";
    let text = |action: &str| {
        policy("p", "Admin", 0, &format!("egress: [{{action: {action}, to: [{{nodes: {{}}}}]}}]")) + faulty + POD
    };
    let error = load_text("t.yaml", &text("Deny"), Strictness::Lenient).unwrap_err().to_string();
    assert!(
        error.starts_with("t.yaml:1: ClusterNetworkPolicy p: cannot tell whether the policy applies to a node"),
        "{error}"
    );
    assert!(load_text("t.yaml", &text("Accept"), Strictness::Lenient).is_ok());
}
