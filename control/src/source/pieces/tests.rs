use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// Pods with fields of every kind in which a cut could go wrong.
fn pods(count: usize) -> Vec<String> {
    let pod = |at: usize| {
        let note = ["---\\n- a\\nitems:\\n- b", "{", "},\\n{", "x"][at % 4];
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{at}","namespace":"a","annotations":{{"note":"{note}"}}}},
                "spec":{{"nodeName":"n","containers":[{{"name":"c","args":[[],{{}},"-","]"]}}]}},"status":{{"podIP":"10.0.{}.{}"}}}}"#,
            at / 250,
            at % 250
        )
    };
    (0..count).map(pod).collect()
}

fn values(texts: &[String]) -> Vec<serde_json::Value> {
    texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn list_of(items: &[serde_json::Value]) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}})
}

/// Writes a value as `kubectl -o json` does.
fn indented(value: &serde_json::Value) -> String {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut text, formatter)).unwrap();
    String::from_utf8(text).unwrap()
}

/// Writes a value as a block of YAML whose lines after the first are indented.
fn block(value: &serde_json::Value, indent: &str) -> String {
    match value {
        serde_json::Value::Object(fields) if !fields.is_empty() => {
            let field = |(key, value): (&String, &serde_json::Value)| match value {
                serde_json::Value::Object(inner) if !inner.is_empty() => {
                    format!("{key}:\n{indent}  {}", block(value, &format!("{indent}  ")))
                }
                serde_json::Value::Array(inner) if !inner.is_empty() => {
                    format!("{key}:\n{indent}{}", block(value, indent))
                }
                serde_json::Value::String(text) if text.contains('\n') => {
                    format!("{key}: |-\n{indent}  {}", text.replace('\n', &format!("\n{indent}  ")))
                }
                value => format!("{key}: {value}"),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(&format!("\n{indent}"))
        }
        serde_json::Value::Array(elements) if !elements.is_empty() => {
            let element = |element| format!("- {}", block(element, &format!("{indent}  ")));
            elements.iter().map(element).collect::<Vec<_>>().join(&format!("\n{indent}"))
        }
        value => value.to_string(),
    }
}

/// Checks that a text of this many documents or items is cut, and that the result is that of the whole text.
fn is_cut(text: &str, syntax: Syntax, entries: usize) {
    let whole = parse::whole(text, syntax).unwrap_or_else(|error| panic!("{}\n{text}", error.text));
    assert_eq!(whole.entries.len(), entries, "{text}");
    for threads in [2, 3, 7] {
        let parsed = parse_in(text, syntax, threads).unwrap_or_else(|| panic!("not cut by {threads}: {text}"));
        assert_eq!(format!("{parsed:#?}"), format!("{whole:#?}"), "{threads} threads");
    }
}

#[test]
fn a_list_means_the_same_in_pieces_with_the_same_lines() {
    let items = values(&pods(40));
    let list = list_of(&items);
    is_cut(&indented(&list), Syntax::Json, 40);
    is_cut(&serde_json::to_string_pretty(&list).unwrap(), Syntax::Json, 40);
    is_cut(&format!("\n\n{}\n", indented(&list)).replace('\n', "\r\n"), Syntax::Json, 40);
    let yaml = block(&list, "");
    assert!(yaml.contains("note: |-\n") && yaml.contains("\nitems:\n- apiVersion"), "{yaml}");
    is_cut(&yaml, Syntax::Yaml, 40);
    is_cut(&format!("---\n# a comment\n{yaml}\n"), Syntax::Yaml, 40);
    is_cut(&yaml.replace('\n', "\r\n"), Syntax::Yaml, 40);
    // Items that are indented, and an alias within one item.
    let (head, rest) = yaml.split_once("items:\n").unwrap();
    let (items, tail) = rest.split_once("\nkind: \"List\"").unwrap();
    let items = items
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect::<String>()
        .replace("name: \"c\"", "name: &c c\n        image: *c");
    is_cut(&format!("{head}items:\n{items}# the end\nkind: List{tail}"), Syntax::Yaml, 40);
}

#[test]
fn documents_mean_the_same_in_pieces_with_the_same_numbers() {
    let items = values(&pods(30));
    let lists: Vec<_> = items.chunks(7).map(list_of).collect();
    for objects in [&items, &lists] {
        let yaml: String = objects.iter().map(|object| format!("---\n# one\n---\n{}\n", block(object, ""))).collect();
        is_cut(&yaml, Syntax::Yaml, 30);
        let json: String = objects.iter().map(|object| format!("null\n{object}\n")).collect();
        is_cut(&json, Syntax::Json, 30);
        let json: String = objects.iter().map(|object| indented(object) + "\n").collect();
        is_cut(&json, Syntax::Json, 30);
    }
}

/// What no cut may accept, and what it may not read as something else.
#[test]
fn text_that_cannot_be_cut_is_left_to_the_whole() {
    let items = values(&pods(12));
    let json = indented(&list_of(&items));
    let yaml = block(&list_of(&items), "");
    let once = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    };
    let wrong_json = [
        once(&json, "        },\n", "        }\n"),
        once(&json, "        },\n", "        },,\n"),
        once(&json, "        },\n", "        },\n        7,\n"),
        once(&json, "\"kind\": \"List\"", "\"items\": []"),
        once(&json, "\"kind\": \"List\"", "\"kind\": \"List\", \"kind\": \"List\""),
        once(&json, "\"note\": \"{\"", "\"note\": \"{"),
        once(&json, "    ],", "    ]],"),
        json.clone() + "}",
        json[..json.len() / 2].to_owned(),
    ];
    let wrong_yaml = [
        once(&yaml, "kind: \"List\"", "items: []"),
        once(&yaml, "name: \"p5\"", "name: *a"),
        once(&yaml, "name: \"p5\"", "name: \"p5"),
        once(&yaml, "name: \"p5\"", "name: [p5"),
        once(&yaml, "nodeName: \"n\"", "nodeName: \"n\"\n    nodeName: \"n\""),
        once(&yaml, "\nitems:", "\n items:"),
    ];
    let all = wrong_json.iter().map(|text| (text, Syntax::Json));
    for (wrong, syntax) in all.chain(wrong_yaml.iter().map(|text| (text, Syntax::Yaml))) {
        assert!(parse_in(wrong, syntax, 3).is_none() && parse::whole(wrong, syntax).is_err(), "{wrong}");
    }
    // Valid, but not cut: an alias of another item's anchor, a comment behind `items:`, one line, a directive, a quote before the items.
    let anchored = once(&once(&yaml, "name: \"p1\"", "name: &a p1"), "name: \"p11\"", "name: *a");
    for (other, syntax) in [
        (anchored, Syntax::Yaml),
        (once(&yaml, "\nitems:\n", "\nitems: # all\n"), Syntax::Yaml),
        (list_of(&items).to_string(), Syntax::Json),
        (format!("%YAML 1.2\n---\n{yaml}"), Syntax::Yaml),
        (format!("# it's open\n{yaml}"), Syntax::Yaml),
    ] {
        assert!(parse_in(&other, syntax, 3).is_none(), "{other}");
        assert!(parse::whole(&other, syntax).is_ok_and(|parsed| parsed.entries.len() == 12), "{other}");
    }
}

#[test]
fn only_the_items_of_the_outer_mapping_are_items() {
    let inner = indented(&list_of(&values(&pods(12))));
    for (text, objects) in [
        (format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": null, \"metadata\": {inner}}}"), 0),
        (format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"metadata\": {inner}, \"items\": null}}"), 0),
        (format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{inner}]}}"), 12),
    ] {
        assert!(parse_in(&text, Syntax::Json, 3).is_none(), "{text}");
        assert!(parse::whole(&text, Syntax::Json).is_ok_and(|parsed| parsed.entries.len() == objects), "{text}");
    }
}

/// Every text with a few lines lost, doubled or exchanged is cut into what it means as a whole, or not at all.
#[test]
fn damaged_texts_mean_the_same_in_pieces() {
    let items = values(&pods(9));
    let texts = [
        (indented(&list_of(&items)), Syntax::Json),
        (block(&list_of(&items), ""), Syntax::Yaml),
        (items.iter().map(|item| format!("---\n{}\n", block(item, ""))).collect(), Syntax::Yaml),
    ];
    let (cut, refused) = (Cell::new(0), Cell::new(0));
    let damage = prop::collection::vec((0..4, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4);
    let mut runner = TestRunner::new(Config { cases: 2000, ..Config::default() });
    let outcome = runner.run(&(0..texts.len(), damage), |(at, damage)| {
        let (text, syntax) = &texts[at];
        let mut lines: Vec<&str> = text.lines().collect();
        for (kind, one, other) in damage {
            let (one, other) = (one.index(lines.len()), other.index(lines.len()));
            match kind {
                0 => drop(lines.remove(one)),
                1 => lines.insert(one, lines[other]),
                2 => lines.swap(one, other),
                _ => lines[one] = ["items:", "- x", "---", "{", "  ]", "#", ""][other % 7],
            }
        }
        let text = lines.join("\n");
        match (parse_in(&text, *syntax, 3), parse::whole(&text, *syntax)) {
            (Some(parsed), Ok(whole)) => {
                cut.set(cut.get() + 1);
                prop_assert_eq!(format!("{parsed:#?}"), format!("{whole:#?}"), "{}", text);
            }
            (Some(_), Err(error)) => prop_assert!(false, "cut, but {}:\n{}", error.text, text),
            (None, _) => refused.set(refused.get() + 1),
        }
        Ok(())
    });
    outcome.unwrap();
    assert!(cut.get() > 200 && refused.get() > 200, "{} {}", cut.get(), refused.get());
}
