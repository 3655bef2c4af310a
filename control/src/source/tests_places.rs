//! Positions of objects and fields, objects that are given twice, and the display of faults.

use std::path::Path;

use super::tests::{errors, lenient, policies, policy_text, strict};
use super::tests_files::{Scratch, pod};
use super::*;
use crate::selector::Selector;

#[test]
fn an_object_that_is_given_twice_names_both_places() {
    let text = format!("{}\n---\n{}\n", pod("a"), pod("a"));
    let expected =
        "t.yaml:3: Pod default/a: the object is given twice, first at t.yaml:1\n  help: remove one of the two";
    assert_eq!(errors(&text), [expected]);
    let scratch = Scratch::new("twice");
    let (one, two) = (scratch.file("1.yaml", pod("a")), scratch.file("2.yaml", pod("a")));
    let errors = load(&[one.clone(), two], Strictness::Strict).unwrap_err();
    assert!(errors.to_string().contains(&format!("first at {}:1", one.display())), "{errors}");
}

#[test]
fn the_same_name_in_another_namespace_or_kind_is_another_object() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}}\n---\n\
                {apiVersion: v1, kind: Namespace, metadata: {name: a}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: a}}";
    assert_eq!(strict(text).unwrap().objects.len(), 4);
}

#[test]
fn a_repeated_policy_fails_closed_where_faults_are_survived() {
    let (open, other) =
        (policy_text("{podSelector: {}, ingress: [{}]}"), policy_text("{podSelector: {matchLabels: {a: b}}}"));
    let loaded = lenient(&format!("{open}---\n{other}"));
    let policy = policies(&loaded)[0];
    assert_eq!(loaded.objects.len(), 1);
    assert_eq!(
        (&policy.subject, &policy.ingress, &policy.egress),
        (&Selector::everything(), &Some(vec![]), &Some(vec![]))
    );
    assert_eq!(policy.fault.as_deref(), Some("the object is given twice, first at t.yaml:1"));
    let loaded = lenient(&format!("{open}---\n{open}"));
    assert_eq!((policies(&loaded)[0].fault.as_deref(), loaded.warnings.total()), (None, 1));
}

#[test]
fn errors_are_bounded_and_counted() {
    let text: String =
        (0..70).map(|number| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: P{number}}}}}\n---\n")).collect();
    let errors = strict(&text).unwrap_err();
    assert_eq!((errors.shown().len(), errors.total()), (MAX_SHOWN, 70));
    assert!(errors.to_string().ends_with("\nand 20 more"));
    assert_eq!(errors.shown()[49].line, Some(99));
}

#[test]
fn control_characters_of_the_input_do_not_reach_the_terminal() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: \"a\\e[2J\\n\\u202eb\"}}";
    let message = &errors(text)[0];
    assert!(message.contains(r#"invalid name "a\u{1b}[2J\n\u{202e}b""#), "{message}");
    assert_eq!(message.lines().count(), 2);
    let loaded = strict("{apiVersion: \"a\\e/v1\", kind: \"X\\e[0m\"}").unwrap();
    assert_eq!(loaded.skipped.keys().next().map(String::as_str), Some(r"a\u{1b}/v1 X\u{1b}[0m"));
    let loaded = lenient(&policy_text("ingress: [{ports: [{protocol: \"\\e\"}]}]"));
    assert!(!policies(&loaded)[0].fault.as_deref().unwrap().contains('\u{1b}'));
    let long = errors_of_long_name();
    assert!(long.len() < 500, "{long}");
}

fn errors_of_long_name() -> String {
    let text = policy_text(&format!("policyTypes: [{}]", "x".repeat(100_000)));
    errors(&text)[0].clone()
}

#[test]
fn a_policys_position_leads_to_the_lines_of_its_fields() {
    let yaml = "# c\n---\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n\
                - apiVersion: networking.k8s.io/v1\n  kind: NetworkPolicy\n  metadata: {name: a}\n  spec:\n    ingress:\n    - from:\n      \
                - podSelector:\n          matchLabels:\n            x.y/z: w\n    - {}\n";
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"n\"}}\n{\"apiVersion\": \"v1\",\"kind\": \"List\",\n\t\"items\": [\n\t{\"apiVersion\": \"v1\", \"kind\": \"Namespace\",\n\t\"metadata\": {\"name\": \"n\"}},\n\
                \t{\n\"apiVersion\": \"networking.k8s.io/v1\", \"kind\": \"NetworkPolicy\", \"metadata\": {\"name\": \"a\"},\n\"spec\": \
                {\n\"ingress\": [\n{\"from\": [\n{\"podSelector\": {\n\"matchLabels\": {\n\"x.y\\/z\": \"w\"}}}]},\n{}]}}]}";
    for (text, document, lines) in [(yaml, 1, [8, 12, 13, 14, 16, 17]), (json, 2, [6, 9, 10, 11, 13, 14])] {
        let loaded = strict(text).unwrap();
        let position = policies(&loaded)[0].position.clone().unwrap();
        assert_eq!((position.document, position.line, &*position.path), (document, lines[0], "items[1]"));
        let line = |path: &str| line_in(text, &position, path);
        let found = [
            "",
            "spec.ingress",
            "spec.ingress[0]",
            "spec.ingress[0].from[0]",
            "spec.ingress[0].from[0].podSelector.matchLabels[\"x.y/z\"]",
            "spec.ingress[1]",
        ]
        .map(line);
        assert_eq!(found, lines.map(Some), "{text}");
        // A missing field has the line of the nearest enclosing field.
        assert_eq!(line("spec.ingress[1].ports[3]"), Some(lines[5]));
        assert_eq!(line("not a path["), None);
    }
}

#[test]
fn the_lines_of_a_file_are_found_again_and_of_standard_input_never() {
    let scratch = Scratch::new("lines");
    let file = scratch.file("a.yaml", policy_text("ingress:\n- {}"));
    let loaded = load(&[file], Strictness::Strict).unwrap();
    let mut position = policies(&loaded)[0].position.clone().unwrap();
    assert_eq!(line_of(&position, "spec.ingress[0]"), Some(6));
    (position.document, position.line) = (2, 9);
    assert_eq!(line_of(&position, "spec"), None);
    position.file = read::STDIN.into();
    assert_eq!(line_of(&position, "spec"), None);
    position.file = "no/such/file".into();
    assert_eq!(line_of(&position, "spec"), None);
    assert!(!Path::new("no/such/file").exists());
}

#[test]
fn a_value_that_came_through_an_alias_is_placed_where_the_alias_stands() {
    let text = policy_text(
        "podSelector: {matchLabels: &l {a: b}}\ningress:\n- from:\n  - podSelector:\n      matchLabels: *l\n  - podSelector:\n      matchLabels: {<<: *l}",
    );
    let loaded = strict(&text).unwrap();
    let position = policies(&loaded)[0].position.clone().unwrap();
    assert_eq!(line_in(&text, &position, "spec.ingress[0].from[0].podSelector.matchLabels.a"), Some(9));
    assert_eq!(line_in(&text, &position, "spec.ingress[0].from[1].podSelector.matchLabels.a"), Some(11));
}

/// Policies in every notation, each with the lines of its fields as a walk over the whole text finds them.
#[test]
fn the_lines_of_an_object_are_found_from_its_first_line_as_from_the_start_of_the_text() {
    let policy = |indent: usize, name: &str| {
        let lines = [
            "apiVersion: networking.k8s.io/v1",
            "kind: NetworkPolicy",
            &format!("metadata: {{name: {name}, annotations: {{n: \"y"),
            "    z\"}}",
            "spec:",
            "  podSelector: {matchLabels: &l {a: b}}",
            "  # a comment",
            "  ingress:",
            "  - from:",
            "    - podSelector:",
            "        matchLabels: {x: z}",
            "",
            "  - {ports: [{port: 80}]}",
        ];
        lines.map(|line| if line.is_empty() { String::new() } else { format!("{:indent$}{line}", "") }).join("\n")
            + "\n"
    };
    let item = |indent: usize, name: &str| format!("{:indent$}- {}", "", policy(indent + 2, name).trim_start());
    let list = |items: &str| format!("apiVersion: v1\nkind: List\nitems:\n{items}");
    let json = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "n"}, "spec": {"podSelector": {}, "ingress": [{"from": []}, {}]}}"#;
    let pretty = |name: &str| {
        let value: serde_json::Value = serde_json::from_str(&json.replace("\"n\"", &format!("\"{name}\""))).unwrap();
        serde_json::to_string_pretty(&value).unwrap()
    };
    let with_alias = item(0, "b").replace("matchLabels: &l {a: b}", "matchLabels: *l");
    let texts = [
        format!("# first\n{}---\n{}...\n---\n{}", policy(0, "a"), policy(0, "b"), policy(0, "c")),
        list(&(item(0, "a") + &item(0, "b"))),
        list(&(item(2, "a") + "\n# a comment\n" + &item(2, "b"))),
        list(&(item(0, "a") + &with_alias)),
        list(&format!("-\n{}- {json}\n", policy(2, "a"))),
        format!("--- {json}\n---\n{}", policy(0, "a")),
        format!("{}\n{}", pretty("a"), pretty("b")),
        format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [\n{},\n{}]}}", pretty("a"), pretty("b")),
        format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{json},\n{}]}}", pretty("b")),
        json.to_owned() + json.replace("\"n\"", "\"m\"").as_str(),
    ];
    let fields =
        ["", "spec", "spec.ingress", "spec.ingress[0].from", "spec.ingress[1]", "spec.ingress[1].ports[0]", "no"];
    let (mut near, mut far) = (0, 0);
    let scratch = Scratch::new("near");
    for text in texts {
        let loaded = strict(&text).unwrap();
        let (mut of_file, file) = (Vec::new(), scratch.file("a.yaml", &text));
        for position in policies(&loaded).iter().filter_map(|policy| policy.position.as_ref()) {
            let path = |field: &str| path::FieldPath::parse(field).unwrap();
            let root = path(&position.path);
            let wanted = |field: &&str| locate::Wanted { document: position.document, path: root.join(&path(field)) };
            let wanted: Vec<_> = fields.iter().map(wanted).collect();
            let expected = locate::lines(&text, parse::syntax_of(&text), &wanted);
            assert_eq!(fields.map(|field| line_in(&text, position, field)), *expected, "{position:?} of\n{text}");
            let paths = fields.map(path);
            let nearby = nearby::Nearby::new(text.as_bytes()).lines(position.line, !position.path.is_empty(), &paths);
            *if nearby.is_some() { &mut near } else { &mut far } += 1;
            let position = Position { file: file.to_str().unwrap().into(), ..position.clone() };
            of_file.extend(fields.iter().zip(expected).map(|(field, line)| (position.clone(), *field, line)));
        }
        // All of them with one pass over the file.
        of_file.reverse();
        let asked: Vec<_> = of_file.iter().map(|(position, field, _)| (position, *field)).collect();
        assert_eq!(lines_of(&asked), of_file.iter().map(|(.., line)| *line).collect::<Vec<_>>(), "{text}");
    }
    assert!(near >= 10 && far >= 5, "{near} near, {far} far");
}
