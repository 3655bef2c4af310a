//! SARIF 2.1.0 output of `bulkhead test`: one result per failed claim, at the deciding rule, else at the claim.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::report::{Line, Report};
use crate::sarif::{self, location};

/// The kinds of results: id and description of each.
const RULES: [(&str, &str); 4] = [
    ("never", "A connection gets through that never should"),
    ("always", "A connection is denied that always should get through"),
    ("only", "Somebody else gets through as well"),
    ("vacuous", "A claim is about nobody"),
];

pub(super) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let results: Vec<Value> = report.claims.iter().filter(|line| line.result != "pass").map(result).collect();
    sarif::write("bulkhead test", &RULES, &results, out)
}

fn result(line: &Line) -> Value {
    let id = if line.result == "vacuous" { "vacuous" } else { line.claim };
    let places = line.witness.iter().flat_map(|witness| &witness.because).flat_map(|because| &because.at);
    let mut locations: Vec<Value> = places.map(|place| location(&place.file, place.line)).collect();
    let claim = location(&line.file, line.line);
    // Viewers show only the first location.
    let primary = if locations.is_empty() { claim.clone() } else { locations.remove(0) };
    let mut related = locations;
    related.push(claim);
    let text = format!("{}: {}", line.name, line.details().join("\n"));
    json!({
        "ruleId": id,
        "level": "error",
        "message": { "text": text },
        "locations": [primary],
        "relatedLocations": related,
    })
}
