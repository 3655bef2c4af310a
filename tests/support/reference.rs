//! Generates the configuration reference from the comments in the examples: every field once, in the examples' order.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Fields described by one comment.
#[derive(Debug, Default)]
struct Entry {
    text: String,
    /// Each field's path, its value as written, and whether the line is commented out.
    fields: Vec<(String, String, bool)>,
}

const PREFACE: &str = "\
# The configuration of `bulkhead run`

On this page you can look up every field of the configuration. `cargo xtask reference` generates it from the comments in
[examples/node.yaml](../examples/node.yaml) and [examples/cluster.yaml](../examples/cluster.yaml); a test compares.

Each field's name is followed by its default, or by an example (e.g.). A field is required only if its text says so. Relative paths start at the
configuration's folder. An unknown field is an error that names the line. Changes of `ports`, `routes`, `denied`, `unreachable`, `engine` and `enforcement`
take effect while the vswitch runs; all other changes need a restart.
";

pub(crate) fn reference(examples: &[&str]) -> String {
    let mut known = BTreeSet::new();
    let mut text = PREFACE.to_owned();
    for entry in examples.iter().flat_map(|example| entries(example)) {
        let new = |(path, value, _): &&(String, String, bool)| {
            // Each item of a list shows only fields that earlier items do not have.
            !known.contains(path.as_str()) || (path == "ports[].kind" && !known.contains(&format!("{path} {value}")))
        };
        let fields: Vec<_> = entry.fields.iter().filter(new).cloned().collect();
        if fields.is_empty() {
            continue;
        }
        for (path, value, _) in fields.clone() {
            known.insert(format!("{path} {value}"));
            known.insert(path);
        }
        text.push('\n');
        for (at, (path, value, is_default)) in fields.iter().enumerate() {
            let value = match (value.as_str(), is_default) {
                ("", _) => String::new(),
                (value, true) => format!(": `{value}`"),
                (value, false) => format!(": e.g. `{value}`"),
            };
            let end = if at + 1 == fields.len() { "" } else { "  " };
            writeln!(text, "{}`{path}`{value}{end}", if at == 0 { "* " } else { "  " }).unwrap();
        }
        if !entry.text.is_empty() {
            writeln!(text, "\n  {}", entry.text).unwrap();
        }
    }
    text
}

pub(crate) fn paths(reference: &str) -> BTreeSet<String> {
    let named = reference.lines().filter_map(|line| line.strip_prefix("* `").or_else(|| line.strip_prefix("  `")));
    named.filter_map(|rest| rest.split('`').next()).map(str::to_owned).collect()
}

fn entries(example: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    // Indentation and name of each open parent field.
    let mut above: Vec<(usize, String)> = Vec::new();
    for line in example.lines() {
        let rest = line.trim_start();
        let mut indent = line.len() - rest.len();
        if let Some(words) = rest.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        if rest.is_empty() {
            comment.clear();
            continue;
        }
        let (rest, is_default) = rest.strip_prefix('#').map_or((rest, false), |rest| (rest, true));
        let (rest, is_item) = rest.strip_prefix("- ").map_or((rest, false), |rest| (rest, true));
        let Some((name, value)) = rest.split_once(':') else { panic!("{line}: no field") };
        above.retain(|(outer, _)| *outer < indent);
        if is_item {
            above.push((indent, "[]".to_owned()));
            indent += 2;
        }
        let path = joined(&above, name);
        let field = (path, value.trim().to_owned(), is_default);
        above.push((indent, name.to_owned()));
        match entries.last_mut() {
            Some(last) if comment.is_empty() => last.fields.push(field),
            _ => entries.push(Entry { text: comment.join(" "), fields: vec![field] }),
        }
        comment.clear();
    }
    entries
}

/// Joins parent fields and a name into a path: `ports`, `[]` and `kind` become `ports[].kind`.
fn joined(above: &[(usize, String)], name: &str) -> String {
    let mut path = String::new();
    for name in above.iter().map(|(_, name)| name.as_str()).chain([name]) {
        if name != "[]" && !path.is_empty() {
            path.push('.');
        }
        path += name;
    }
    path
}
