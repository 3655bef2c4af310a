//! Findings in code for systems that show them: SARIF 2.1.0, one run.

use std::io::{self, Write};

use serde_json::{Value, json};

/// Writes a log. `tool` names the command, `rules` the identities that results may have, each with what it means (empty where the name
/// says it).
pub(crate) fn write(tool: &str, rules: &[(&str, &str)], results: &[Value], out: &mut impl Write) -> io::Result<()> {
    let rule = |&(id, text): &(&str, &str)| match text {
        "" => json!({ "id": id }),
        text => json!({ "id": id, "shortDescription": { "text": text } }),
    };
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

/// A line of a file, from 1.
pub(crate) fn location(file: &str, line: usize) -> Value {
    json!({ "physicalLocation": { "artifactLocation": { "uri": file }, "region": { "startLine": line } } })
}
