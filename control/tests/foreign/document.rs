//! Writes objects as YAML.

use std::fmt::Write;

use serde_json::Value;

/// Writes objects as one YAML text. The outer levels are in block style, one line per field or list item; the inner ones in flow style.
pub(crate) fn yaml<'a>(documents: impl IntoIterator<Item = &'a Value>) -> String {
    let mut text = String::new();
    for document in documents {
        text.push_str("---\n");
        block(&mut text, document, 0);
    }
    text
}

fn block(text: &mut String, value: &Value, depth: usize) {
    let fields = value.as_object().expect("an object");
    for (key, value) in fields {
        let indent = "  ".repeat(depth);
        match value {
            Value::Object(inner) if depth < 1 && key == "spec" && !inner.is_empty() => {
                writeln!(text, "{indent}{key}:").unwrap();
                block(text, value, depth + 1);
            }
            Value::Array(items) if items.len() > 1 => {
                writeln!(text, "{indent}{key}:").unwrap();
                items.iter().for_each(|item| writeln!(text, "{indent}- {item}").unwrap());
            }
            value => writeln!(text, "{indent}{key}: {value}").unwrap(),
        }
    }
}
