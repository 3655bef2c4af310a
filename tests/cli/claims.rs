//! `bulkhead test`: claims that hold, claims that fail with the deciding rule, claims that match no pod, and every output format.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::{REDIS, stderr};
use crate::support::{bulkhead, root, scratch, stdout};

/// A rendered chart with two workloads. A policy opens the database to the other workload and, by mistake, to a namespace.
const CHART: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, ports: [{name: sql, containerPort: 5432}]}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: shop}
spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: report}}, spec: {containers: [{name: a}]}}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: sql}]
  - from:
    - namespaceSelector: {matchLabels: {team: shop}}
    ports: [{port: 9187}]
";

/// Writes the chart, and a file with this one claim. Returns both paths.
fn files(name: &str, claim: &str) -> [String; 2] {
    let state = scratch("claims-chart.yaml", CHART.as_bytes());
    [state, scratch(&format!("claims-{name}.yaml"), format!("claims:\n- name: c\n  {claim}\n").as_bytes())]
}

/// The program's JSON result for the one claim.
fn judged(name: &str, claim: &str) -> Value {
    judged_in(&files("", "")[0], name, claim)
}

/// The program's JSON result for one claim about this state.
fn judged_in(state: &str, name: &str, claim: &str) -> Value {
    let [_, claims] = files(name, claim);
    let output = bulkhead(&["test", "--state", state, "-o", "json", &claims]);
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{claim}: {}", String::from_utf8_lossy(&output.stderr)));
    let line = answer["claims"][0].clone();
    assert_eq!(output.status.code(), Some(i32::from(line["result"] != "pass")), "{claim}: {line}");
    line
}

/// Checks a claim's witness with `explain`, which pushes packets through the tables.
fn confirm(state: &str, witness: &Value) {
    let end = |name: &str, address: &str| match witness[name].as_str().unwrap() {
        pod if pod.contains('/') => pod.to_owned(),
        _ => witness[address].as_str().unwrap().to_owned(),
    };
    let port = format!("{}/{}", witness["port"], witness["protocol"].as_str().unwrap());
    let (from, to) = (end("from", "from_address"), end("to", "to_address"));
    let output = bulkhead(&["explain", "--state", state, "--from", &from, "--to", &to, "--port", &port, "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let walk =
        answer["walks"].as_array().unwrap().iter().find(|walk| walk["to_address"] == witness["to_address"]).unwrap();
    assert_eq!(walk["verdict"], witness["verdict"], "{witness}");
}

#[test]
fn the_example_holds() {
    let answer = stdout(&bulkhead(&["test", "--state", REDIS, "examples/claims.yaml"]), 0);
    assert!(answer.contains("PASS nobody outside reaches the database\n"), "{answer}");
    assert!(answer.ends_with("\n5 of 5 claims hold; 0 fail, 0 are about nobody\n"), "{answer}");
}

#[test]
fn claims_about_a_rendered_chart_hold_or_show_a_connection_that_packets_confirm() {
    let mut failed = 0;
    for (at, (claim, expected)) in [
        ("always: {from: shop/web, to: shop/db, ports: [5432]}", None),
        ("never: {from: shop/report, to: shop/db, ports: [5432]}", None),
        ("only: {from: shop/web, to: shop/db, ports: [5432]}", None),
        ("never: {from: outside, to: {namespace: shop, labels: {app: db}}}", None),
        ("never: {from: anyone, to: {workload: shop/db}, ports: [22, 1-100/UDP, SCTP]}", None),
        ("always: {from: {workload: shop/web, kind: Deployment}, to: {workload: web, namespace: shop}}", None),
        (
            "never: {from: shop/report, to: shop/db}",
            Some(("shop/report", "shop/db", "TCP", 9187, "shop/db ingress[1]")),
        ),
        ("only: {from: shop/web, to: shop/db}", Some(("", "shop/db", "TCP", 9187, "shop/db ingress[1]"))),
        (
            "always: {from: shop/web, to: shop/db}",
            Some(("shop/web", "shop/db", "TCP", 1, "ingress isolated by shop/db")),
        ),
        (
            "always: {from: outside, to: shop/db, ports: [5432]}",
            Some(("192.0.2.1", "shop/db", "TCP", 5432, "ingress isolated by shop/db")),
        ),
        (
            "never: {from: shop/web, to: shop/report, ports: [53/UDP]}",
            Some(("shop/web", "shop/report", "UDP", 53, "no egress isolation")),
        ),
        (
            "never: {from: shop/db, to: outside, ports: [443]}",
            Some(("shop/db", "192.0.2.1", "TCP", 443, "no egress isolation")),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let line = judged(&format!("chart-{at}"), claim);
        let Some((from, to, protocol, port, rule)) = expected else {
            assert_eq!(line["result"], "pass", "{claim}: {line}");
            continue;
        };
        let witness = &line["witness"];
        assert!(line["result"] == "fail" && witness["from"].as_str().unwrap().starts_with(from), "{claim}: {line}");
        assert_eq!(
            (&witness["to"], &witness["protocol"], &witness["port"]),
            (&to.into(), &protocol.into(), &port.into()),
            "{claim}"
        );
        let rules = witness["because"].as_array().unwrap();
        assert!(rules.iter().any(|because| because["rule"].as_str().unwrap().starts_with(rule)), "{claim}: {line}");
        assert!(!witness["remedy"].as_str().unwrap().is_empty(), "{claim}");
        confirm(&files("", "")[0], witness);
        failed += 1;
    }
    assert_eq!(failed, 6);
}

#[test]
fn a_failed_claim_ends_with_1_though_nobody_reads_the_answer() {
    let [state, claims] = files("unread", "never: {from: shop/report, to: shop/db}");
    for format in ["text", "json", "junit", "sarif"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_bulkhead"));
        let output = command.args(["test", "--state", &state, "-o", format, &claims]).stdout(writer).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{format}: {printed}");
        // A slow machine may also print a progress report.
        assert!(!printed.contains("error"), "{format}: {printed}");
    }
}

#[test]
fn a_failed_claim_names_rule_file_line_and_remedy_in_words() {
    let [state, claims] = files("words", "never: {from: shop/report, to: shop/db}");
    let answer = stdout(&bulkhead(&["test", "--state", &state, &claims]), 1);
    let line = 1 + CHART.lines().position(|line| line == "  - from:").unwrap();
    let expected = format!(
        "FAIL c ({claims}:2)\n  shop/report -> shop/db TCP 9187 over IPv4: ALLOW\n  by no egress isolation: no policy decides\n  \
         by shop/db ingress[1] ({state}:{line})\n  \
         mend: narrow rule 1 of shop/db ingress, so that its `from` and `ports` leave out shop/report\n\n\
         0 of 1 claims hold; 1 fail, 0 are about nobody\n"
    );
    assert_eq!(answer, expected);
}

#[test]
fn ends_are_named_as_everywhere() {
    let of = |at: usize, end: &str| {
        let mut line = judged(&format!("named-{at}"), &format!("never: {{from: {end}, to: shop/db}}"));
        assert_eq!(line["result"], "fail", "{end}: {line}");
        line["witness"].take()
    };
    let expected = of(0, "shop/report");
    for (at, end) in
        ["cronjob/shop/report", "cj/shop/report", "app=report -n shop", "pod/shop/report"].into_iter().enumerate()
    {
        assert_eq!(of(1 + at, end), expected, "{end}");
    }
    let other = judged("named-other", "never: {from: deploy/shop/report, to: shop/db}");
    assert_eq!(other["result"], "vacuous", "{other}");
    // A workload of a namespace called `node` is written like a node.
    let state = scratch("claims-node.yaml", CHART.replace("shop", "node").as_bytes());
    let line = judged_in(&state, "named-namespace", "never: {from: node/report, to: node/db}");
    assert_eq!(line["witness"]["from"], "node/report", "{line}");
    // A pod and its own node, which policy cannot separate.
    let line = judged_in(REDIS, "named-node", "never: {from: node/node-1, to: default/db}");
    assert!(line["reason"].as_str().unwrap().starts_with("no such connection exists"), "{line}");
}

#[test]
fn a_claim_about_nobody_is_vacuous_and_fails() {
    for (at, (claim, why)) in [
        ("never: {from: {namespace: prod}, to: shop/db}", "`from` selects nobody"),
        ("never: {from: outside, to: {labels: {app: dbb}}}", "`to` selects nobody"),
        ("never: {from: shop/dbb, to: shop/db}", "`from` selects nobody: did you mean shop/db?"),
        ("never: {from: node/n9, to: shop/db}", "`from` selects nobody"),
        ("never: {from: app=dbb -n shop, to: shop/db}", "`from` selects nobody: did you mean app=db?"),
        ("never: {from: 127.0.0.1, to: shop/db}", "`from` selects nobody"),
        ("only: {from: {labels: {app: x}}, to: shop/db}", "`from` selects nobody"),
        ("never: {from: shop/db, to: shop/db}", "no such connection exists"),
        ("never: {from: outside, to: 192.0.2.1}", "no such connection exists"),
        ("never: {from: shop/web, to: '2001:db8::1'}", "no such connection exists"),
    ]
    .into_iter()
    .enumerate()
    {
        let line = judged(&format!("vacuous-{at}"), claim);
        assert_eq!(line["result"], "vacuous", "{claim}: {line}");
        assert!(line["reason"].as_str().unwrap().starts_with(why), "{claim}: {line}");
    }
}

#[test]
fn a_file_that_is_not_understood_is_an_error_with_line_field_and_remedy() {
    for (at, (text, expected)) in [
        ("claims: []\n", ": the file contains no claims\n  help: write at least one claim"),
        ("claims: [\n", "\n  help: correct the YAML"),
        ("claims:\n- name: a\n  nver: {from: outside, to: x/a}\n", ":3: claims[0].nver: unknown field `nver`"),
        ("claims:\n- name: a\n", ":2: claims[0]: a claim needs exactly one of never, always and only"),
        (
            "claims:\n- name: a\n  never: {from: outside, to: x/a}\n  only: {from: outside, to: x/a}\n",
            ":2: claims[0]: a claim needs exactly one",
        ),
        (
            "claims:\n- name: a\n  never:\n    from: outside\n    to: {lables: {a: b}}\n",
            ":5: claims[0].never.to: unknown field `lables`\n  help: did you mean `labels`?",
        ),
        (
            "claims:\n- name: a\n  never:\n    from: outsiders\n    to: x/a\n",
            ":4: claims[0].never.from: \"outsiders\" is nobody\n  help: write anyone",
        ),
        (
            "claims:\n- name: a\n  never: {from: outside, to: {labels: {a: 1}}}\n",
            ":3: claims[0].never.to.labels[\"a\"]: the value is not a string",
        ),
        ("claims:\n- name: a\n  never: {from: outside, to: {}}\n", ":3: claims[0].never.to: this selects nothing"),
        ("claims:\n- name: a\n  never: {from: 10.0.0.0/33, to: x/a}\n", ":3: claims[0].never.from: invalid block"),
        (
            "claims:\n- name: a\n  never: {from: outside, to: x/a, ports: [http]}\n",
            ":3: claims[0].never.ports[0]: \"http\" is not a port",
        ),
        (
            "claims:\n- name: a\n  never: {from: outside, to: x/a, ports: []}\n",
            ":3: claims[0].never.ports: an empty list of ports",
        ),
        (
            "claims:\n- {name: a, never: {from: outside, to: x/a}}\n- {name: a, never: {from: outside, to: x/b}}\n",
            ":3: claims[1]: the claim name \"a\" is already used",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch(&format!("claims-wrong-{at}.yaml"), text.as_bytes());
        let error = stderr(&["test", "--state", REDIS, &path], 2);
        assert!(
            error.contains(&format!("{path}{expected}")) || (at == 1 && error.contains(expected)),
            "{text}: {error}"
        );
    }
    assert!(
        stderr(&["test", "--state", REDIS, "no-such.yaml"], 2)
            .contains("no-such.yaml: cannot read: No such file or directory (os error 2)\n  help: check the path")
    );
}

#[test]
fn results_are_told_as_junit_and_as_sarif() {
    let [state, _] = files("", "");
    let text = "claims:\n- name: 'good & <well>'\n  never: {from: outside, to: shop/db}\n- name: bad\n  never: {from: shop/report, to: shop/db}\n\
                - name: empty\n  never: {from: x/y, to: shop/db}\n";
    let claims = scratch("claims-forms.yaml", text.as_bytes());
    let junit = stdout(&bulkhead(&["test", "--state", &state, "-o", "junit", &claims]), 1);
    for part in [
        "<testsuites name=\"bulkhead test\" tests=\"3\" failures=\"2\">",
        "name=\"good &amp; &lt;well&gt;\"",
        "<failure type=\"fail\" message=\"shop/report -&gt; shop/db TCP 9187 over IPv4: ALLOW\">",
        "<failure type=\"vacuous\" message=\"`from` selects nobody: the state has no pod in namespace x and no pod named y\">",
    ] {
        assert!(junit.contains(part), "{part} is not in:\n{junit}");
    }
    let sarif: Value =
        serde_json::from_str(&stdout(&bulkhead(&["test", "--state", &state, "-o", "sarif", &claims]), 1)).unwrap();
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let place = |at: usize| {
        let physical = &results[at]["locations"][0]["physicalLocation"];
        (physical["artifactLocation"]["uri"].as_str().unwrap(), physical["region"]["startLine"].as_u64().unwrap())
    };
    let line = 1 + CHART.lines().position(|line| line == "  - from:").unwrap() as u64;
    assert_eq!(place(0), (&*format!("file://{state}"), line));
    assert_eq!((place(1), &results[1]["ruleId"]), ((&*format!("file://{claims}"), 6), &"vacuous".into()));
    assert_eq!((results.len(), &sarif["version"]), (2, &"2.1.0".into()));
}

/// Compares the schema's field names with those that the program lists on an unknown field.
#[test]
fn the_schema_has_every_field_that_the_program_knows_and_no_others() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(root().join("docs/claims.schema.json")).unwrap()).unwrap();
    for (name, text, pointer) in [
        ("file", "@", "/properties"),
        ("claim", "claims: [@]", "/$defs/claim/properties"),
        ("statement", "claims: [{name: a, never: @}]", "/$defs/statement/properties"),
        ("end", "claims: [{name: a, never: {to: x/a, from: @}}]", "/$defs/end/properties"),
    ] {
        let path = scratch(&format!("claims-schema-{name}.yaml"), text.replace('@', "{zzz: 1}").as_bytes());
        let error = stderr(&["test", "--state", REDIS, &path], 2);
        let known = error.split("expected ").nth(1).or_else(|| error.split("write one of ").nth(1)).unwrap();
        let known = known.lines().next().unwrap().trim_start_matches("one of ");
        let known: BTreeSet<&str> = known.split(", ").map(|name| name.trim_matches('`')).collect();
        let written: BTreeSet<&str> =
            schema.pointer(pointer).unwrap().as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(known, written, "{name}");
    }
}

#[test]
fn workloads_are_asked_about_by_reach_and_explain_and_never_compiled() {
    let [state, _] = files("", "");
    let answer = stdout(&bulkhead(&["reach", "--state", &state, "--port", "5432/TCP", "-o", "json"]), 0);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let verdict = |from: &str, to: &str| {
        let probe =
            answer["probes"].as_array().unwrap().iter().find(|probe| probe["from"] == from && probe["to"] == to);
        probe.unwrap()["verdict"].clone()
    };
    assert_eq!((verdict("shop/web", "shop/db"), verdict("shop/report", "shop/db")), ("allow".into(), "deny".into()));
    assert_eq!(verdict("shop/web", "shop/web#2"), "allow");
    let explain = ["explain", "--state", &state, "--from", "shop/report", "--to", "shop/db", "--port", "5432"];
    let told = stdout(&bulkhead(&explain), 1);
    let first =
        "shop/report (by the template of CronJob report) -> shop/db (by the template of StatefulSet db) TCP 5432: DENY";
    assert!(told.starts_with(first), "{told}");
    let compiled = bulkhead(&["compile", "--state", &state, "--node", "node-1"]);
    let error = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.code() == Some(2) && error.contains("1 apps/v1 Deployment"), "{error}");
}

#[test]
fn policies_of_a_pod_say_who_selects_it_and_what_follows() {
    let [state, _] = files("", "");
    let told = stdout(&bulkhead(&["policies", "--pod", "shop/db", "--state", &state]), 0);
    let line = |text: &str| 1 + CHART.lines().position(|line| line == text).unwrap();
    let (policy, first, second) = (
        line("apiVersion: networking.k8s.io/v1"),
        line("  - from: [{podSelector: {matchLabels: {app: web}}}]"),
        line("  - from:"),
    );
    let labels = "app=db,apps.kubernetes.io/pod-index=0,statefulset.kubernetes.io/pod-name=db-0";
    let expected = format!(
        "shop/db, StatefulSet db, labels: {labels}\n\ningress: isolated: what no rule allows is denied\n  shop/db ({state}:{policy}), which selects pods app=db\n    \
         rule 0 allows from pods app=web of namespace shop at sql/TCP (5432) (line {first})\n    \
         rule 1 allows from every pod of namespaces team=shop at 9187/TCP (line {second})\n\n\
         egress: not isolated: everything is allowed\n"
    );
    assert_eq!(told, expected);
    let json = stdout(&bulkhead(&["policies", "--pod", "shop/web", "--state", &state, "-o", "json"]), 0);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["ingress"]["isolated"], &json["workload"]), (&false.into(), &"Deployment web".into()));
    let json = stdout(&bulkhead(&["policies", "--pod", "shop/db", "--state", &state, "-o", "json"]), 0);
    let json: Value = serde_json::from_str(&json).unwrap();
    let selecting = &json["ingress"]["policies"][0];
    assert_eq!((&selecting["selects"], &selecting["at"]["line"]), (&"pods app=db".into(), &policy.into()));
    assert!(stderr(&["policies", "--pod", "shop/x", "--state", &state], 2).contains("no pod shop/x in the state"));
    assert_eq!(bulkhead(&["policies", "--pod", "shop/web"]).status.code(), Some(2));
}
