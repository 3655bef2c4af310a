//! The command line: answers, exit codes and messages.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod audit;
mod claims;
mod cluster_policy;
mod cni;
mod diff;
mod domain_names;
mod files;
mod icmp;
mod lint;
mod names;
mod reach;
mod renderers;
mod resolve;
mod services;
mod translate;

use std::fs;

use crate::support::{bulkhead, bulkhead_with_input, root, scratch, stdout};
use serde_json::Value;

const REDIS: &str = "pcaps/redis-policy/state.yaml";

fn stderr(args: &[&str], code: i32) -> String {
    let output = bulkhead(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn the_readme_command_tells_who_was_stopped_and_by_which_policy() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let command = readme.lines().find_map(|line| line.strip_prefix("cargo run --release -- ")).unwrap();
    let answer = stdout(&bulkhead(&command.split_whitespace().collect::<Vec<_>>()), 0);
    assert!(answer.contains("default/frontend") && answer.contains("drop"), "{answer}");
    assert!(answer.contains("default/network-policy-allow-backend"), "{answer}");
}

#[test]
fn every_example_of_a_help_text_runs() {
    for subcommand in ["replay", "reach", "explain", "diff", "lint", "resolve", "compile"] {
        let help = stdout(&bulkhead(&[subcommand, "--help"]), 0);
        let example = help.lines().find_map(|line| line.strip_prefix("  bulkhead ")).unwrap();
        let code = bulkhead(&example.split_whitespace().collect::<Vec<_>>()).status.code();
        assert_eq!(code, Some(i32::from(matches!(subcommand, "explain" | "diff"))), "{example}");
    }
}

#[test]
fn explain_answers_no_with_1_and_names_policy_file_and_line_and_what_would_help() {
    let args = ["explain", "--state", REDIS, "--from", "default/frontend", "--to", "default/db", "--port", "6379/TCP"];
    let answer = stdout(&bulkhead(&args), 1);
    for part in ["DENY", "network-policy-allow-backend", REDIS, "What would have to change", "role: \"frontend\""] {
        assert!(answer.contains(part), "{part} is not in:\n{answer}");
    }
    let args = ["explain", "--state", REDIS, "--from", "default/backend1", "--to", "default/db", "--port", "6379/TCP"];
    let answer = stdout(&bulkhead(&args), 0);
    assert!(answer.contains("ALLOW") && answer.contains("ingress[0]"), "{answer}");
}

#[test]
fn explain_says_how_the_sender_is_told_where_the_namespace_wants_denials_refused() {
    let state = fs::read_to_string(root().join(REDIS)).unwrap();
    let ask = |says: &str, port: &str, output: &str| {
        let annotated = format!("  name: default\n  annotations: {{bulkhead.dev/denied: {says}}}\n");
        let text = state.replacen("  name: default\n", &annotated, 1);
        let path = scratch(&format!("denied-{says}.yaml"), text.as_bytes());
        let from_to = ["--from", "default/frontend", "--to", "default/db", "--port", port, "-o", output];
        stdout(&bulkhead(&[&["explain", "--state", &path][..], &from_to].concat()), 1)
    };
    assert!(ask("refuse", "6379/TCP", "text").contains("the sender receives a TCP reset"));
    assert!(ask("refuse", "6379/UDP", "text").contains("the sender receives an ICMP error"));
    assert!(!ask("drop", "6379/TCP", "text").contains("the sender receives"));
    let answer = |says: &str| -> Value {
        let walks: Value = serde_json::from_str(&ask(says, "6379/TCP", "json")).unwrap();
        walks["walks"][0]["steps"][0]["answer"].clone()
    };
    assert_eq!((answer("refuse"), answer("drop")), ("tcp_reset".into(), Value::Null));
}

#[test]
fn explain_says_that_no_pod_has_an_address_on_the_senders_node_and_on_another_and_asks_policy_first() {
    let explain = |state: &str, from: &str, to: &str| {
        bulkhead(&["explain", "--state", state, "--from", from, "--to", to, "--port", "80/TCP"])
    };
    let own = stdout(&explain(REDIS, "default/frontend", "10.244.1.99"), 1);
    assert!(own.contains("comes in from default/frontend and is dropped: no_such_pod"), "{own}");
    assert!(own.contains("the sender receives a TCP reset (unreachable: refuse)"), "{own}");
    assert!(!own.contains("What would have to change"), "{own}");
    let other = stdout(&explain("pcaps/node-exit", "172.18.0.11", "10.244.2.99"), 1);
    assert!(other.contains("leaves to uplink") && other.contains("2. node node-2"), "{other}");
    assert!(other.contains("comes in from uplink and is dropped: no_such_pod"), "{other}");
    let outside = stdout(&explain(REDIS, "8.8.8.8", "10.244.1.99"), 1);
    assert!(outside.contains("comes in from uplink and is dropped: no_such_pod"), "{outside}");
    let state = fs::read_to_string(root().join(REDIS)).unwrap();
    let isolated = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: no-egress, namespace: default}\n\
        spec: {podSelector: {}, policyTypes: [Egress]}\n";
    let path = scratch("no-egress.yaml", format!("{state}{isolated}").as_bytes());
    let denied = stdout(&explain(&path, "default/frontend", "10.244.1.99"), 1);
    assert!(denied.contains("dropped: policy_denied") && !denied.contains("no_such_pod"), "{denied}");
}

#[test]
fn a_nodes_own_address_is_the_node_and_another_nodes_is_not() {
    let explain = |from| {
        let args = ["explain", "--state", "pcaps/node-exit", "--from", from, "--to", "default/web", "--port", "8080"];
        bulkhead(&args)
    };
    let own = stdout(&explain("172.18.0.11"), 0);
    assert!(own.contains("own node") && own.contains("comes in from host"), "{own}");
    assert!(stdout(&explain("172.18.0.12"), 1).contains("ingress isolated by default/web-default-deny"));
}

#[test]
fn reach_draws_the_matrix_and_counts_each_family_and_external_address() {
    let answer = stdout(&bulkhead(&["reach", "--state", REDIS, "--port", "6379/TCP"]), 0);
    let row = |name: &str| {
        answer.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().skip(1).collect::<String>()
    };
    // The columns are backend1, backend2, db, frontend.
    assert_eq!((row("default/frontend"), row("default/backend1")), ("..X#".into(), "#...".into()), "{answer}");
    let args = [
        "reach",
        "-o",
        "json",
        "--state",
        "pcaps/ipv6",
        "--port",
        "80/TCP",
        "--external",
        "192.0.2.1",
        "--external",
        "2001:db8::1",
    ];
    let answer: Value = serde_json::from_str(&stdout(&bulkhead(&args), 0)).unwrap();
    let probes = answer["probes"].as_array().unwrap();
    for family in ["IPv4", "IPv6"] {
        assert!(probes.iter().any(|probe| probe["family"] == family));
    }
    assert!(
        probes.iter().any(|probe| probe["from"] == "192.0.2.1")
            && probes.iter().any(|probe| probe["to"] == "2001:db8::1")
    );
    assert!(probes.iter().all(|probe| probe["from"] != probe["to"]), "a pod's way to itself is left out");
}

#[test]
fn wrong_input_is_an_error_with_its_place_and_a_remedy() {
    let no_node = stderr(&["compile", "--state", REDIS, "--node", "node-7"], 2);
    assert!(no_node.contains("no node `node-7`") && no_node.contains("node-1"), "{no_node}");
    let no_file = stderr(&["compile", "--state", "absent.yaml", "--node", "n"], 2);
    assert!(no_file.contains("absent.yaml"), "{no_file}");
    let no_pod =
        stderr(&["explain", "--state", REDIS, "--from", "default/dbb", "--to", "default/db", "--port", "80"], 2);
    assert!(no_pod.contains("default/dbb") && no_pod.contains("default/db"), "{no_pod}");
    let no_port = stderr(&["reach", "--state", REDIS, "--port", "80/GRE"], 2);
    assert!(no_port.contains("TCP, UDP, SCTP, ICMP or ICMPv6"), "{no_port}");
    let typo = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec:\n  podSelector: {}\n  ingres: []\n";
    let output = bulkhead_with_input(&["compile", "--state", "-", "--node", "n"], typo);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        message.contains("-:6") && message.contains("ingres") && message.contains("did you mean `ingress`"),
        "{message}"
    );
}

#[test]
fn with_lenient_a_policy_with_a_typo_isolates_its_pods_and_the_answer_says_so() {
    let state = fs::read_to_string(root().join(REDIS)).unwrap().replace("  ingress:", "  ingres:");
    let path = scratch("typo.yaml", state.as_bytes());
    let args = [
        "explain",
        "--lenient",
        "--state",
        &path,
        "--from",
        "default/backend1",
        "--to",
        "default/db",
        "--port",
        "6379",
    ];
    let answer = stdout(&bulkhead(&args), 1);
    assert!(answer.contains("was not understood") && answer.contains("ingres"), "{answer}");
    assert_eq!(bulkhead(&args[..1].iter().chain(&args[2..]).copied().collect::<Vec<_>>()).status.code(), Some(2));
}

#[test]
fn with_lenient_one_object_that_cannot_be_read_holds_back_no_other_one() {
    let state = fs::read_to_string(root().join(REDIS)).unwrap();
    let faulty = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: odd, namespace: default, labels: [a]}\n\
                  status: {phase: Running, podIP: 10.244.9.9}\n---\nmetadata: {name: what}\n---\n\
                  apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: other}\nspec: {podSelector: {}}\n";
    let path = scratch("faulty-objects.yaml", format!("{state}\n{faulty}").as_bytes());
    let explain = ["explain", "--state", &path, "--from", "default/backend1", "--to", "default/db", "--port", "6379"];
    let refused = stderr(&explain, 2);
    for part in ["Pod default/odd: metadata.labels", "the object has no `apiVersion`", "missing field `name`", "help: "]
    {
        assert!(refused.contains(part), "{part} is not in:\n{refused}");
    }
    let lenient: Vec<&str> = explain.iter().copied().chain(["--lenient"]).collect();
    let (whole, answer) = (
        stdout(&bulkhead(&explain.map(|arg| if arg == path { REDIS } else { arg })), 0),
        stdout(&bulkhead(&lenient), 0),
    );
    assert_eq!(answer.replace(&path, REDIS), whole);
    let warnings = stderr(&lenient, 0);
    assert!(
        warnings.contains("until then the object is left out") && warnings.contains("allows nothing"),
        "{warnings}"
    );
}

#[test]
fn of_two_pods_with_one_address_the_newer_has_it_and_where_that_cannot_be_told_it_is_an_error() {
    let pod = |name: &str, hour: u8| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{namespace: x, name: {name}, creationTimestamp: '2026-01-01T{hour:02}:00:00Z'}}\n\
             spec: {{nodeName: n1}}\nstatus: {{phase: Running, podIP: 10.0.0.{}}}\n",
            if name == "c" { 2 } else { 1 }
        )
    };
    let state = |name: &str, hours: [u8; 2]| {
        scratch(name, (pod("a", hours[0]) + &pod("b", hours[1]) + &pod("c", 0)).as_bytes())
    };
    let reach = |path: &str, more: &[&str], code| {
        let args: Vec<&str> =
            ["reach", "--state", path, "--port", "80"].into_iter().chain(more.iter().copied()).collect();
        let output = bulkhead(&args);
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(code), "{err}");
        (out, err)
    };
    let (matrix, warning) = reach(&state("newer.yaml", [1, 2]), &[], 0);
    assert!(matrix.contains("x/b") && matrix.contains("x/c") && !matrix.contains("x/a"), "{matrix}");
    assert!(warning.contains("10.0.0.1 is the address of x/b, and of x/a") && warning.contains("help: "), "{warning}");
    let same = state("same.yaml", [1, 1]);
    let (_, error) = reach(&same, &[], 2);
    assert!(error.contains("error: 10.0.0.1 is the address of x/a, x/b, and its owner is unknown"), "{error}");
    let (_, warning) = reach(&state("lenient.yaml", [1, 1]), &["--lenient"], 0);
    assert!(warning.contains("warning: 10.0.0.1 is the address of x/a, x/b"), "{warning}");
    let args = ["explain", "--lenient", "--state", &same, "--from", "x/a", "--to", "x/c", "--port", "80"];
    assert!(stderr(&args, 2).contains("pod x/a has no address"));
}

/// The proposal of 2016 (v1beta1): an isolated namespace, and a policy that allows its frontends to reach its backends.
const OF_2016: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: myns, annotations: {net.beta.kubernetes.io/network-policy: '{"ingress": {"isolation": "DefaultDeny"}}'}}
---
apiVersion: extensions/v1beta1
kind: NetworkPolicy
metadata: {name: allow-frontend, namespace: myns}
spec:
  podSelector: {matchLabels: {role: backend}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: frontend}}}]
    ports: [{protocol: TCP, port: 6379}]
---
{apiVersion: v1, kind: Pod, metadata: {name: backend, namespace: myns, labels: {role: backend}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: frontend, namespace: myns, labels: {role: frontend}}, spec: {nodeName: n1}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other, namespace: myns}, spec: {nodeName: n1}, status: {podIP: 10.0.0.3}}
"#;

#[test]
fn v1beta1_means_what_servers_make_of_it_and_what_it_meant_in_2016_is_a_mode() {
    let ask = |state: &str, from: &str, to: &str, more: &[&str]| {
        let (from, to) = (format!("myns/{from}"), format!("myns/{to}"));
        let args = ["explain", "--state", "-", "--from", &from, "--to", &to, "--port", "6379"];
        let output = bulkhead_with_input(&args.iter().chain(more).copied().collect::<Vec<_>>(), state);
        let warned = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), warned)
    };
    let mode = &["--policy-semantics", "v1beta1"][..];
    // With v1 semantics the policy isolates the pods that it selects, and the annotation has no effect.
    for (from, to, today, then) in [
        ("frontend", "backend", 0, 0),
        ("other", "backend", 1, 1),
        ("backend", "other", 0, 1),
        ("backend", "frontend", 0, 1),
    ] {
        let (code, warned) = ask(OF_2016, from, to, &[]);
        assert!(code == Some(today) && warned.contains("Kubernetes ignores it since 1.7"), "{from} {to}: {warned}");
        let (code, warned) = ask(OF_2016, from, to, mode);
        assert!(code == Some(then) && !warned.contains("since 1.7"), "{from} {to}: {warned}");
    }
    let open = OF_2016.replace("DefaultDeny", "");
    let open = open.replace(r#"{"ingress": {"isolation": ""}}"#, "{}");
    let (code, warned) = ask(&open, "other", "backend", mode);
    assert!(
        code == Some(0) && warned.contains("NetworkPolicy myns/allow-frontend: the policy has no effect"),
        "{warned}"
    );
    let (code, _) =
        ask(&open, "other", "backend", &["--policy-semantics", "v1beta1", "--namespace-default", "default-deny"]);
    assert_eq!(code, Some(1));
    let (code, error) = ask(&open, "other", "backend", &["--namespace-default", "default-deny"]);
    assert!(code == Some(2) && error.contains("--policy-semantics v1beta1"), "{error}");
}

#[test]
fn kinds_that_restrict_traffic_and_are_not_enforced_are_an_error_unless_ignored() {
    let state = fs::read_to_string(root().join(REDIS)).unwrap();
    let foreign = "---\napiVersion: crd.antrea.io/v1beta1\nkind: NetworkPolicy\nmetadata: {name: a}\n\
                   ---\napiVersion: k8s.ovn.org/v1\nkind: EgressFirewall\nmetadata: {name: b}\n";
    let path = scratch("foreign.yaml", format!("{state}{foreign}").as_bytes());
    let compile = |more: &[&str], code| {
        let args = ["compile", "--lenient", "--state", &path, "--node", "node-1"];
        stderr(&args.iter().chain(more).copied().collect::<Vec<_>>(), code)
    };
    let error = compile(&[], 2);
    for part in [
        "crd.antrea.io/v1beta1 NetworkPolicy restrict traffic",
        "--ignore NetworkPolicy.crd.antrea.io",
        "--ignore EgressFirewall",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = compile(&["--ignore", "EgressFirewall"], 2);
    assert!(error.contains("antrea") && !error.contains("EgressFirewall"), "{error}");
    let note = compile(&["--ignore", "EgressFirewall", "--ignore", "NetworkPolicy.crd.antrea.io"], 0);
    let ignored = "1 crd.antrea.io/v1beta1 NetworkPolicy, 1 k8s.ovn.org/v1 EgressFirewall";
    assert!(note.contains(&format!("ignored by --ignore although they restrict traffic: {ignored}")), "{note}");
    assert!(compile(&["--ignore", "NetworkPolicy"], 2).contains("add the group"));
}

#[test]
fn a_state_without_node_objects_is_worth_a_warning() {
    let warned = bulkhead_with_input(
        &["explain", "--state", "-", "--from", "myns/other", "--to", "myns/backend", "--port", "1"],
        OF_2016,
    );
    let warned = String::from_utf8(warned.stderr).unwrap();
    assert!(warned.contains("warning: no Node object for n1") && warned.contains("kubectl get nodes"), "{warned}");
    let known = format!("{OF_2016}---\n{{apiVersion: v1, kind: Node, metadata: {{name: n1}}}}\n");
    let silent = bulkhead_with_input(
        &["explain", "--state", "-", "--from", "myns/other", "--to", "myns/backend", "--port", "1"],
        &known,
    );
    assert!(!String::from_utf8(silent.stderr).unwrap().contains("no Node object"));
}

#[test]
fn a_field_of_the_metadata_that_nobody_knows_is_a_warning() {
    let state = fs::read_to_string(root().join(REDIS)).unwrap();
    let state = state
        .replace("  name: network-policy-allow-backend", "  name: network-policy-allow-backend\n  ofTomorrow: [1]");
    let path = scratch("metadata.yaml", state.as_bytes());
    let warning = stderr(&["compile", "--state", &path, "--node", "node-1"], 0);
    assert!(warning.contains("metadata.ofTomorrow: unknown field"), "{warning}");
}

#[test]
fn damaged_captures_are_told_from_empty_ones() {
    let good = fs::read(root().join("pcaps/redis-no-policy/in.pcap")).unwrap();
    let replay = |name: &str, contents: &[u8]| {
        let path = scratch(name, contents);
        let output = bulkhead(&["replay", "-o", "json", "--state", REDIS, "--node", "node-1", &path]);
        let lines = String::from_utf8(output.stdout).unwrap().lines().count();
        (output.status.code(), lines, String::from_utf8(output.stderr).unwrap())
    };
    let (code, whole, _) = replay("whole.pcap", &good);
    assert_eq!(code, Some(0));
    let (code, lines, message) = replay("cut.pcap", &good[..good.len() - 7]);
    assert_eq!((code, lines), (Some(2), whole - 1), "what came before the damage is judged: {message}");
    assert!(message.contains("cut.pcap"), "{message}");
    let (code, lines, _) = replay("header.pcap", &good[..24]);
    assert_eq!((code, lines), (Some(0), 1), "a capture without packets has a summary");
    let (code, _, message) = replay("empty.pcap", b"");
    assert_eq!(code, Some(2));
    assert!(message.contains("empty.pcap"), "{message}");
    let (code, _, message) = replay("text.pcap", b"this is not a capture at all, but it is long enough");
    assert_eq!(code, Some(2));
    assert!(message.contains("text.pcap"), "{message}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::io::Read;
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["replay", "-o", "json", "--state", "pcaps/http/state.yaml", "--node", "node-1"])
        .args(vec!["pcaps/http/in.pcapng"; 40])
        .current_dir(root())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut few = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut few).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_command_that_takes_long_says_what_it_does() {
    use std::io::{BufRead, BufReader, Write};
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["compile", "--state", "-", "--node", "node-1"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let reader = std::thread::spawn(move || lines.for_each(|line| drop(send.send(line))));
    // Without a report, the command would wait for its input forever.
    let line = receive.recv_timeout(std::time::Duration::from_secs(60));
    let written = child.stdin.take().unwrap().write_all(&fs::read(root().join(REDIS)).unwrap());
    assert!(child.wait().unwrap().success() && written.is_ok());
    reader.join().unwrap();
    assert!(line.as_ref().is_ok_and(|line| line.starts_with("reading standard input: ")), "{line:?}");
}

#[test]
fn classify_counts_wrong_answers_and_says_so_with_1() {
    let rules = scratch("two.rules", b"@10.0.0.0/24\t0.0.0.0/0\t0 : 65535\t80 : 80\t0x06/0xFF\n@0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x00/0x00\n");
    let run = |trace: &str, code| {
        let trace = scratch("two.trace", trace.as_bytes());
        let answer = stdout(&bulkhead(&["classify", "-o", "json", "--rules", &rules, "--trace", &trace]), code);
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let right = run("167772161 1 1000 80 6 0\n167772161 1 1000 81 6 1\n", 0);
    assert_eq!((&right["rules"], &right["packets"], &right["mismatches"]), (&2.into(), &2.into(), &0.into()));
    assert!(
        right["ns_per_lookup"]["32"].as_f64().unwrap() > 0.0 && right["updates_per_second"].as_f64().unwrap() > 0.0
    );
    let wrong = run("167772161 1 1000 80 6 1\n", 1);
    assert!(wrong["mismatches"].as_u64().unwrap() >= 1);
    let message = stderr(&["classify", "--rules", REDIS, "--trace", &rules], 2);
    assert!(message.contains(REDIS) && message.contains("line 1"), "{message}");
}

#[test]
fn compile_stats_tells_how_each_table_was_compiled() {
    let answer = stdout(&bulkhead(&["compile", "--stats", "--state", REDIS, "--node", "node-1"]), 0);
    assert!(answer.contains("local:default/db") && answer.contains("COMPILED AS"), "{answer}");
}

#[test]
fn the_output_must_not_be_one_of_the_captures() {
    let capture = fs::read(root().join("pcaps/redis-no-policy/in.pcap")).unwrap();
    let path = scratch("kept.pcap", &capture);
    let message = stderr(&["replay", "--state", REDIS, "--node", "node-1", "--write", &path, &path], 2);
    assert!(message.contains("would overwrite"), "{message}");
    assert_eq!(fs::read(&path).unwrap(), capture);
}

#[test]
fn host_network_pods_of_nodes_without_an_object_are_part_of_the_table() {
    let pod = |name: &str, node: &str, address: &str, host: bool| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: x}}, \
             spec: {{nodeName: {node}, hostNetwork: {host}}}, status: {{podIPs: [{{ip: {address}}}]}}}}\n---\n"
        )
    };
    let state = pod("a", "n1", "10.0.0.1", false)
        + &pod("agent", "n2", "192.168.0.2", true)
        + &pod("lost", "''", "192.168.0.3", true);
    let answer =
        bulkhead_with_input(&["reach", "-o", "json", "--state", "-", "--port", "80", "--port", "80/TCP"], &state);
    let answer: Value = serde_json::from_str(&stdout(&answer, 0)).unwrap();
    assert_eq!(
        answer["probes"].as_array().unwrap().len(),
        2,
        "each way once, the pod without a node left out: {answer}"
    );
}

#[test]
fn one_address_of_two_pods_is_an_error_also_across_nodes() {
    let pod = |name: &str, node: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: x}}, spec: {{nodeName: {node}}}, \
             status: {{podIPs: [{{ip: 10.0.0.1}}]}}}}\n---\n"
        )
    };
    let output = bulkhead_with_input(&["reach", "--state", "-", "--port", "80"], &(pod("a", "n1") + &pod("b", "n2")));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("10.0.0.1 is the address of x/a, x/b, and its owner"));
}

#[test]
fn kinds_that_are_passed_over_are_counted() {
    let state = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: a}}";
    let output = bulkhead_with_input(&["reach", "--state", "-", "--port", "80"], state);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 storage.k8s.io/v1 StorageClass"));
}
