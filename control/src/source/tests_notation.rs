//! Documents, lists, and the notations of YAML and JSON.

use super::tests::{errors, lenient, policies, policy_text, strict};
use super::tests_files::{names, pod};
use super::*;

#[test]
fn yaml_and_json_come_in_many_documents() {
    let three = ["default/a", "default/b", "default/c"];
    let (a, b, c) = (pod("a"), pod("b"), pod("c"));
    for text in [
        format!("---\n{a}\n---\n# empty\n---\n{b}\n...\n---\n{c}\n"),
        format!("{a}\n{b}\n{c}\n"),
        format!("{a}{b} null {c}"),
        format!("\u{feff}{a}\n{b}\n{c}"),
        format!("\u{feff}---\n{a}\n---\n{b}\n---\n{c}"),
        format!("{{\"kind\": \"List\", \"apiVersion\": \"v1\",\n\t\"items\": [{a},\n\t{b}, {c}]}}"),
        format!("apiVersion: v1\r\nkind: List\r\nitems:\r\n- {a}\r\n- {b}\r\n- {c}\r\n"),
    ] {
        assert_eq!(names(&strict(&text).unwrap()), three, "{text}");
    }
}

#[test]
fn the_items_of_a_typed_list_inherit_their_kind() {
    for text in [
        "{apiVersion: v1, kind: PodList, metadata: {resourceVersion: '1'}, items: [{metadata: {name: a}}]}",
        "{items: [{metadata: {name: a}}], kind: PodList, apiVersion: v1}",
        "{\"items\": [{\"metadata\": {\"name\": \"a\"}}], \"kind\": \"PodList\", \"apiVersion\": \"v1\"}",
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicyList, items: [{metadata: {name: a}, spec: {podSelector: {}}}]}",
        "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}]}]}",
    ] {
        assert_eq!(names(&strict(text).unwrap()), ["default/a"], "{text}");
    }
    let loaded =
        strict("{apiVersion: apps/v1, kind: DeploymentList, items: [{metadata: {name: a}}, {metadata: {name: b}}]}")
            .unwrap();
    assert_eq!(loaded.skipped, [("apps/v1 Deployment".to_owned(), 2)].into());
}

#[test]
fn an_old_policy_in_a_typed_list_is_not_passed_over() {
    let errors = errors("{apiVersion: extensions/v1beta2, kind: NetworkPolicyList, items: [{metadata: {name: a}}]}");
    assert!(errors[0].contains("apiVersion: NetworkPolicy of \"extensions/v1beta2\" is not supported"), "{errors:?}");
}

#[test]
fn a_list_that_could_hide_objects_is_an_error_in_both_modes() {
    for (text, expected) in [
        (
            "{apiVersion: v1, kind: List, item: []}",
            "t.yaml:1: item: unknown field \"item\", expected apiVersion, kind, metadata or items",
        ),
        ("{apiVersion: v1, kind: List}", "t.yaml:1: the list has no `items`"),
        ("{apiVersion: v1, kind: PodList, items: {}}", "t.yaml:1: items: not a list"),
        ("{apiVersion: x/v1, kind: ThingList, items: 7}", "t.yaml:1: items: not a list"),
        ("{kind: [List], items: []}", "t.yaml:1: the object has no `apiVersion`"),
        ("[1]", "t.yaml:1: not an object"),
        ("word", "t.yaml:1: not an object"),
    ] {
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            let errors = load_text("t.yaml", text, strictness).unwrap_err();
            let message = errors.to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}

#[test]
fn other_kinds_are_counted_and_skipped() {
    let text = "{apiVersion: apps/v1, kind: Deployment}\n---\n{apiVersion: v1, kind: Service, items: [1]}\n---\n{apiVersion: apps/v1, kind: Deployment}";
    let loaded = strict(text).unwrap();
    assert_eq!(loaded.skipped, [("apps/v1 Deployment".to_owned(), 2), ("v1 Service".to_owned(), 1)].into());
    assert!(loaded.objects.is_empty() && loaded.warnings.is_empty());
}

#[test]
fn what_does_not_say_its_kind_is_an_error_and_stands_for_what_it_looks_like_where_faults_are_survived() {
    for (text, problem, stands_for) in [
        ("{apiVersion: v1, metadata: {name: a}}", "the object has no `kind`", None),
        ("{kind: Pod, metadata: {name: a}, status: {podIP: 10.0.0.1}}", "the object has no `apiVersion`", None),
        ("{apiVersion: v1, kind: [Pod]}", "kind: `kind` is not a name", None),
        ("{metadata: {name: a}, spec: {podSelector: {}}}", "the object has no `apiVersion`", Some("default/a")),
        (
            "{apiVersion: networking.k8s.io/v1, metadata: {name: a}, spec: {policyTypes: []}}",
            "the object has no `kind`",
            Some("default/a"),
        ),
        ("{kind: NetworkPolicy, metadata: {name: a, namespace: b}}", "the object has no `apiVersion`", Some("b/a")),
        (
            "{apiVersion: example.com/v1, metadata: {name: a}, spec: {podSelector: {}}}",
            "the object has no `kind`",
            None,
        ),
        ("7", "not an object", None),
    ] {
        let other = "{apiVersion: v1, kind: Node, metadata: {name: n1}}";
        let text = format!("{{apiVersion: v1, kind: List, items: [{text}, {other}]}}");
        let [error] = &errors(&text)[..] else { panic!("one error expected: {text}\n{:?}", errors(&text)) };
        assert!(error.contains(problem), "{error}");
        let loaded = lenient(&text);
        let policies: Vec<_> = loaded
            .objects
            .iter()
            .filter_map(|object| match object {
                Object::Policy(policy) => {
                    Some((policy.name.to_string(), policy.fault.is_some(), policy.ingress.clone()))
                }
                _ => None,
            })
            .collect();
        let expected: Vec<_> = stands_for.into_iter().map(|name| (name.to_owned(), true, Some(vec![]))).collect();
        assert_eq!(policies, expected, "{text}");
        assert_eq!((loaded.objects.len(), loaded.faulty), (1 + expected.len(), 1), "{text}");
    }
}

#[test]
fn a_syntax_error_is_an_error_in_both_modes_with_its_line() {
    for (text, expected) in [
        ("a: 1\nb: [", "t.yaml:2: unclosed bracket '['|correct the YAML; no object of this file was read"),
        (
            "a: 1\na: 2\n",
            "t.yaml:2: key \"a\" is given twice in one mapping|remove one of the two: it is undefined which one counts",
        ),
        (
            "{\"a\": 1,\n\"b\": {\"c\": 1, \"c\": 2}}",
            "t.yaml:2: key \"c\" is given twice in one mapping|remove one of the two: it is undefined which one counts",
        ),
        (
            "{\"items\": [],\n\"items\": []}",
            "t.yaml:2: key \"items\" is given twice in one mapping|remove one of the two: it is undefined which one counts",
        ),
        ("{\"a\": 1,\n\"b\" 2}", "t.yaml:2: expected `:`|correct the JSON; no object of this file was read"),
        (
            "{\"a\": {\n",
            "t.yaml:2: EOF while parsing an object|the text ends too early: check that the file is complete",
        ),
        (
            "a:\n  b: {{ .Values.b }}\n",
            "t.yaml:2: expected string scalar|this looks like a template: render it first (`helm template`)",
        ),
        ("a: !secret b", "t.yaml:1: unsupported tag `!secret`|correct the YAML; no object of this file was read"),
        ("a: *b", "t.yaml:1: reference to unknown value|correct the YAML; no object of this file was read"),
    ] {
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            let errors = load_text("t.yaml", text, strictness).unwrap_err();
            assert_eq!(errors.to_string(), expected.replace('|', "\n  help: "), "{text}");
        }
    }
}

#[test]
fn a_placeholder_is_to_be_filled_in() {
    let policy = |name: &str, key: &str, port: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
             podSelector: {{matchLabels: {{{key}}}}}\n  ingress: [{{ports: [{{port: {port}}}]}}]\n"
        )
    };
    for (text, parts) in [
        (policy("'{{ .Name }}'", "", "80"), ["metadata.name: invalid name \"{{ .Name }}\"", "`helm template`"]),
        (policy("'${NAME}'", "", "80"), ["metadata.name: invalid name \"${NAME}\"", "`envsubst`"]),
        (policy("a", "a: '<your app>'", "80"), ["matchLabels.a: invalid label value \"<your app>\"", "own value"]),
        (policy("a", "", "'${PORT}'"), ["ports[0].port: invalid port name \"${PORT}\"", "`envsubst`"]),
        (policy("a", "a: 'b>c<d'", "80"), ["matchLabels.a: invalid label value", "up to 63 letters"]),
        ("a: ${A}: ${B}\n".to_owned(), ["t.yaml:1: ", "`envsubst`"]),
    ] {
        let errors = load_text("t.yaml", &text, Strictness::Strict).unwrap_err().to_string();
        assert!(parts.iter().all(|part| errors.contains(part)), "{errors}");
    }
    let closed = load_text("t.yaml", &policy("a", "", "'${PORT}'"), Strictness::Lenient).unwrap();
    let told = closed.warnings.to_string();
    assert!(told.contains("(`envsubst`)") && !told.ends_with("(`envsubst`)"), "the consequence stays: {told}");
}

#[test]
fn a_syntax_error_in_json_is_told_in_terms_of_json() {
    for (file, text, expected) in [
        ("t.json", "{\"a\": [1,], \"b\": ]}", "t.json:1: trailing comma"),
        ("-", "{\n \"a\": [1,], \"b\": ]}", "-:2: trailing comma"),
        ("t.json", "{a: 1, b: ]}", "t.json:1: key must be a string"),
        ("t.json", "[{\"a\": 1}, }", "t.json:1: "),
    ] {
        let message = load_text(file, text, Strictness::Lenient).unwrap_err().to_string();
        assert!(message.starts_with(expected) && message.contains("JSON") && !message.contains("YAML"), "{message}");
    }
    let yaml = load_text("t.yaml", "{a: 1,\n b: ]}", Strictness::Lenient).unwrap_err().to_string();
    assert!(yaml.contains("correct the YAML"), "{yaml}");
}

#[test]
fn anchors_and_merge_keys_are_expanded_and_never_empty() {
    // `serde_yaml_ng` read such a selector as an empty one, which selects every namespace.
    let spec = "podSelector:\n  matchLabels: &labels {team: red}\ningress:\n- from:\n  - namespaceSelector: {matchLabels: {<<: *labels, tier: a}}\n  - podSelector: {matchLabels: *labels}";
    let loaded = strict(&policy_text(spec)).unwrap();
    let peers = policies(&loaded)[0].ingress.as_ref().unwrap()[0].peers.as_ref().unwrap();
    let shown = format!("{peers:?}");
    assert_eq!(shown.matches("\"red\"").count(), 2, "{shown}");
    assert_eq!(shown.matches("\"tier\"").count(), 1, "{shown}");
    let spec = "podSelector: &all {matchLabels: {a: b}}\ningress:\n- from:\n  - namespaceSelector: {<<: *all}";
    let loaded = strict(&policy_text(spec)).unwrap();
    let shown = format!("{:?}", policies(&loaded)[0].ingress);
    assert!(shown.contains("\"a\""), "{shown}");
}

#[test]
fn aliases_cannot_fill_the_memory() {
    let mut bomb = format!("a0: &a0 {}\n", "x".repeat(1000));
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let errors = errors(&bomb);
    assert!(errors[0].contains("t.yaml:6: the object holds more or longer values"), "{errors:?}");
}

#[test]
fn an_object_of_more_values_than_an_api_server_stores_is_refused_at_its_line() {
    // Each value takes three bytes of text and many times as much memory.
    let values = "[],".repeat(600_000);
    for text in [
        format!("{{\"kind\": \"List\",\n\"x\": [{values}[]]}}"),
        format!("{{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": [\n{{\"x\": [{values}[]]}}]}}"),
    ] {
        let errors = errors(&text);
        assert!(errors[0].contains(":2: the object holds more or longer values"), "{errors:?}");
    }
}

#[test]
fn a_line_of_yaml_longer_than_any_object_is_refused_before_it_is_parsed() {
    for text in ["a: 1\nb: ".to_owned() + &"x".repeat((1 << 24) + 1), "\n".to_owned() + &"[".repeat((1 << 24) + 1)] {
        let errors = errors(&text);
        assert!(errors[0].contains(":2: the line has more than 16 MiB"), "{errors:?}");
    }
}

#[test]
fn values_that_nest_without_end_are_refused() {
    for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(300)] {
        assert!(strict(&text).is_err());
    }
}

#[test]
fn thousands_of_documents_and_nodes_pass_the_parsers_limits() {
    let many: String = (0..3000)
        .map(|number| {
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, labels: {{a: '1', b: '2'}}}}\n---\n")
        })
        .collect();
    assert_eq!(strict(&many).unwrap().objects.len(), 3000);
    let items: String =
        (0..30_000).map(|number| format!("- metadata: {{name: p{number}, labels: {{a: '1', b: '2'}}}}\n")).collect();
    let list = format!("apiVersion: v1\nkind: PodList\nitems:\n{items}");
    assert_eq!(strict(&list).unwrap().objects.len(), 30_000);
}

#[test]
fn legacy_octal_numbers_are_read_as_kubectl_does() {
    let loaded = strict(&policy_text("ingress: [{ports: [{port: 017}]}]")).unwrap();
    assert!(format!("{:?}", policies(&loaded)[0].ingress).contains("first: 15"));
}

#[test]
fn a_text_of_many_documents_that_are_no_object_has_a_bounded_number_of_errors() {
    let (limit, pod) = (parse::MAX_FOREIGN, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n");
    // The last one is long enough for several threads.
    for count in [limit - 1, limit + 1, 6 * limit] {
        let texts = [
            format!("{pod}{}", "---\na: b\n".repeat(count)),
            format!("{pod}{}", "---\n- a\n".repeat(count)),
            "{\"a\": 1}\n".repeat(count),
        ];
        for text in texts {
            assert_eq!(strict(&text).unwrap_err().total(), count.min(limit), "{count} times {}", &text[..60]);
        }
    }
}
