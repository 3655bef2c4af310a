//! The output formats of `bulkhead reach` for people: their content, and the questions that they refuse.

use crate::support::{bulkhead, bulkhead_with_input, scratch, stdout};

/// The output of `reach` about a state in one format.
fn reach(state: &str, form: &str, more: &[&str]) -> String {
    let args = ["reach", "--state", state, "--port", "80", "-o", form];
    stdout(&bulkhead(&[&args[..], more].concat()), 0)
}

/// The error message of a refused question.
fn refused(state: &str, args: &[&str]) -> String {
    let output = bulkhead(&[&["reach", "--state", state, "--port", "80"][..], args].concat());
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "nothing is half printed");
    String::from_utf8(output.stderr).unwrap()
}

/// Pods with these names and labels.
fn state(pods: impl IntoIterator<Item = (String, String)>) -> String {
    let pod = |(at, (name, labels)): (usize, (String, String))| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x, labels: {{{labels}}}}}\nspec: {{nodeName: n1}}\n\
             status: {{podIPs: [{{ip: 10.0.{}.{}}}]}}\n",
            at / 250,
            at % 250 + 1
        )
    };
    pods.into_iter().enumerate().map(pod).collect()
}

#[test]
fn a_graph_of_more_than_50_nodes_is_refused_and_a_focus_or_a_workload_helps() {
    let path = scratch("reach-51.yaml", &state((0..51).map(|at| (format!("p{at}"), format!("app: a{at}")))));
    for form in ["dot", "mermaid"] {
        let error = refused(&path, &["-o", form]);
        assert!(error.contains("51 nodes") && error.contains("--focus"), "{error}");
        // Every pod may talk to p0, so its neighbourhood is the whole graph.
        assert!(refused(&path, &["-o", form, "--focus", "x/p0"]).contains("51 nodes"));
    }
    assert!(reach(&path, "md", &[]).contains("| x/p0 | x/p1, x/p10, "), "a table is not");
    let of_50 = scratch("reach-50.yaml", &state((0..50).map(|at| (format!("p{at}"), format!("app: a{at}")))));
    assert_eq!(reach(&of_50, "dot", &[]).lines().filter(|line| line.contains("dir=both")).count(), 50 * 49 / 2);
    let error = refused(&of_50, &["-o", "mermaid"]);
    assert!(error.contains("1225 edges") && error.contains("--focus"), "Mermaid would not draw it: {error}");
    let of_one = scratch("reach-one.yaml", &state((0..51).map(|at| (format!("p{at}"), "app: a".to_owned()))));
    let graph = reach(&of_one, "mermaid", &[]);
    assert!(graph.contains("n0[\"a<br/>51 pods\"]") && graph.contains("n0 -->|\"80/TCP\"| n0"), "{graph}");
}

#[test]
fn a_focus_is_named_as_everywhere() {
    let pods = ["web", "db", "api"].map(|name| (name.to_owned(), format!("app: {name}")));
    let path = scratch("reach-names.yaml", &state(pods));
    let of = |name: &str| reach(&path, "csv", &["--focus", name]);
    let by_name = of("x/web");
    assert!(by_name.contains("web") && by_name.lines().count() == 5, "{by_name}");
    for name in ["pod/x/web", "app=web -n x", "10.0.0.1"] {
        assert_eq!(of(name), by_name, "{name}");
    }
    assert_eq!(of("x").lines().count(), 7);
    let outside = reach(&path, "csv", &["--external", "192.0.2.1", "--focus", "192.0.2.1"]);
    assert!(outside.lines().skip(1).all(|line| line.contains("192.0.2.1")) && outside.lines().count() > 1, "{outside}");
}

#[test]
fn a_focus_is_somebodys_name_and_for_forms_that_have_one() {
    let path = scratch("reach-focus.yaml", &state([("web".to_owned(), "app: web".to_owned())]));
    let error = refused(&path, &["-o", "md", "--focus", "x/wep"]);
    assert!(error.contains("--focus x/wep") && error.contains("did you mean x/web?"), "{error}");
    let error = refused(&path, &["-o", "md", "--focus", "app=wep -n x"]);
    assert!(error.contains("--focus app=wep -n x") && error.contains("did you mean app=web?"), "{error}");
    let error = refused(&path, &["-o", "md", "--focus", "node/n9"]);
    assert!(error.contains("--focus node/n9: no node `n9`"), "{error}");
    let error = refused(&path, &["-o", "md", "--focus", "192.0.2.1"]);
    assert!(error.contains("--focus 192.0.2.1: it is none of the ends") && error.contains("--external"), "{error}");
    assert!(refused(&path, &["-o", "md", "--focus", "xx"]).contains("--focus xx: it is none of the ends"));
    assert!(refused(&path, &["--focus", "x"]).contains("add -o md, csv, dot or mermaid"));
    let to = ["--to", "service/x/web", "-o", "dot"];
    assert!(refused(&path, &to).contains("text and json"));
}

#[test]
fn workloads_without_pods_are_ends_as_those_with_pods() {
    let chart = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n\
                 spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}\n";
    let output =
        bulkhead_with_input(&["reach", "--state", "-", "--port", "80", "-o", "md", "--external", "192.0.2.1"], chart);
    let table = stdout(&output, 0);
    assert!(table.contains("| shop/web (2 pods) | 80/TCP | 80/TCP |"), "{table}");
}

#[test]
fn more_pods_than_fit_a_screen_are_groups_named_by_what_selects_them() {
    let of = |at: usize| (format!("p{at}"), format!("app: a{at}, tier: {}", if at < 10 { "back" } else { "front" }));
    let deny = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: back, namespace: x}\n\
                spec: {podSelector: {matchLabels: {tier: back}}, ingress: [{from: [{podSelector: {matchLabels: {app: a10}}}]}]}\n";
    let path = scratch("reach-groups.yaml", &(state((0..60).map(of)) + deny));
    let answer = reach(&path, "text", &["--external", "192.0.2.1"]);
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(
        lines,
        [
            "TCP 80 over IPv4: 61 ends, 3 groups of sources, 3 of destinations",
            "all pods except x/p10 -> everyone except tier=back (10 pods)",
            "x/p10 -> everyone",
            "192.0.2.1 -> tier=front (50 pods)",
            "",
            "What a line does not name is denied. `-o csv` lists all workloads, `--all` draws the matrix of all pods.",
        ]
    );
    let whole = reach(&path, "text", &["--all"]);
    assert_eq!(whole.lines().filter(|line| line.starts_with("x/p")).count(), 60, "{whole}");
    let row = |name: &str| whole.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("x/p10 ").ends_with(&".".repeat(8)) && row("x/p11 ").contains('X'), "{whole}");
    assert!(refused(&path, &["--all", "-o", "md"]).contains("--all needs the format text"));
    // Fewer pods fit.
    let few = scratch("reach-few.yaml", &state((0..13).map(of)));
    assert_eq!(reach(&few, "text", &[]), reach(&few, "text", &["--all"]));
}

#[test]
fn without_a_port_reach_asks_at_the_ports_that_pods_and_templates_declare() {
    let text = |pod: &str, ports: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: x, labels: {{app: {pod}}}}}\n\
             spec: {{nodeName: n1, containers: [{{name: c, ports: [{ports}]}}]}}\n\
             status: {{phase: Running, podIPs: [{{ip: 10.0.0.{}}}]}}\n",
            pod.len()
        )
    };
    let deployment = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: late, namespace: x}\n\
                      spec: {template: {spec: {containers: [{name: c, ports: [{containerPort: 9090}]}]}}}\n";
    let named = "{name: http, containerPort: 8080}, {containerPort: 53, protocol: UDP}";
    let all = format!("{}{}{deployment}", text("web", named), text("base", "{containerPort: 5432}"));
    let path = scratch("reach-declared.yaml", all.as_bytes());
    for form in ["md", "text", "csv", "json"] {
        let output = bulkhead(&["reach", "--state", &path, "-o", form]);
        let (answer, told) = (stdout(&output, 0), String::from_utf8(output.stderr).unwrap());
        let ports = "asked at the ports that pods declare: 53/UDP, 5432/TCP, 8080/TCP, 9090/TCP; --port chooses others";
        assert!(told.contains(ports), "{form}: {told}");
        for port in ["53", "5432", "8080", "9090"] {
            assert!(answer.contains(port), "{form}: {port} is not in {answer}");
        }
    }
    let path = scratch("reach-undeclared.yaml", text("web", "").as_bytes());
    let output = bulkhead(&["reach", "--state", &path, "-o", "md"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("no pod in the state declares a port\n  help: choose the ports, for example --port 80/TCP"),
        "{told}"
    );
}

#[test]
fn two_ends_without_a_pod_are_marked_as_such_and_only_one_end_as_the_same() {
    let node = |at: u8| {
        format!(
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: n{at}}}, status: {{addresses: [{{type: InternalIP, address: 172.18.0.{at}}}]}}}}\n"
        )
    };
    let text = format!("{}{}{}", node(1), node(2), state([("web".to_owned(), "app: web".to_owned())]));
    let path = scratch("reach-outside.yaml", &text);
    let external = ["--external", "172.18.0.1", "--external", "172.18.0.2", "--external", "192.0.2.1"];
    let answer = reach(&path, "text", &external);
    let row = |name: &str| -> String {
        let row = answer.lines().find(|line| line.starts_with(name)).unwrap();
        row[name.len()..].split_whitespace().collect()
    };
    assert_eq!([row("x/web"), row("172.18.0.1"), row("192.0.2.1")], ["#...", ".#--", ".--#"], "{answer}");
    assert!(answer.contains("# the same end   - neither is a pod, so that policy does not concern it"), "{answer}");
    assert!(!reach(&path, "text", &[]).contains("neither is a pod"));
}

#[test]
fn a_name_that_excludes_many_workloads_has_at_most_six_of_them() {
    // Pods that connect to nobody, selected by labels of their own.
    let of = |at: usize| (format!("p{at:02}"), format!("app: a{at}"));
    let deny = |at: usize| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: d{at}, namespace: x}}\n\
             spec: {{podSelector: {{matchLabels: {{app: a{at}}}}}, policyTypes: [Egress]}}\n"
        )
    };
    let denied: String = (0..20).map(deny).collect();
    let path = scratch("reach-except.yaml", &(state((0..60).map(of)) + &denied));
    let answer = reach(&path, "text", &["--external", "192.0.2.1"]);
    let except = "all pods except x/p00, x/p01, x/p10, x/p11, x/p12, x/p13 and 14 more";
    assert!(answer.contains(except), "{answer}");
    assert!(answer.lines().all(|line| line.len() < 200), "{answer}");
}
