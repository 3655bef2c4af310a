//! SARIF 2.1.0, the format of code scanning (OASIS, "Static Analysis Results Interchange Format").

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::{Value, json};

/// Writes a SARIF log of one run. `rules` are ids and descriptions; `results` refer to them in `ruleId`.
pub(crate) fn write(tool: &str, rules: &[(&str, &str)], results: &[Value], out: &mut impl Write) -> io::Result<()> {
    let rule = |&(id, text): &(&str, &str)| json!({ "id": id, "shortDescription": { "text": text } });
    let driver = json!({
        "name": tool,
        "version": env!("CARGO_PKG_VERSION"),
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    });
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{ "tool": { "driver": driver }, "results": results }],
    });
    serde_json::to_writer_pretty(&mut *out, &log)?;
    writeln!(out)
}

pub(crate) fn location(file: &str, line: usize) -> Value {
    json!({ "physicalLocation": { "artifactLocation": { "uri": uri(file) }, "region": { "startLine": line } } })
}

/// Converts a path to a URI reference (RFC 3986). Relative paths stay relative: viewers resolve them in the repository.
fn uri(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    // `//name` would be a host.
    let (scheme, path) = if path.starts_with('/') { ("file://", path) } else { ("", path) };
    let mut uri = scheme.to_owned();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => uri.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_uri_reference() {
        assert_eq!(uri("policies/web.yaml"), "policies/web.yaml");
        assert_eq!(uri("./my chart/a:b.yaml"), "my%20chart/a%3Ab.yaml");
        assert_eq!(uri("/srv/state.yaml"), "file:///srv/state.yaml");
    }
}
