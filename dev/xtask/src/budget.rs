//! Compares the project's dependencies, sizes and times with `budgets.tsv`. A change that needs more raises the limit there, and its commit
//! says why. Values that take minutes to measure are in the file for comparison by hand; cheap ones are measured here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::circles;
use crate::step::root;

/// Forbidden dependencies of each crate, direct or indirect.
const NEVER: [(&str, &[&str]); 5] = [
    ("bulkhead-answers", &["tokio", "hyper", "rustls", "kube", "prost", "ratatui"]),
    ("bulkhead-control", &["tokio", "hyper", "rustls", "kube", "bulkhead-dataplane"]),
    ("bulkhead-dataplane", &["tokio", "hyper", "rustls", "bulkhead-control"]),
    ("bulkhead-classifier", &["tokio", "bulkhead-control", "bulkhead-dataplane"]),
    ("bulkhead-hello", &["tokio", "rustls", "bulkhead-classifier", "bulkhead-control", "bulkhead-dataplane"]),
];

/// Prints each budget. Returns whether all limits are kept.
pub(crate) fn run() -> bool {
    let kept = budgets().and_then(|kept| Ok(arrows()? && kept));
    kept.unwrap_or_else(|error| {
        eprintln!("budget: {error}");
        false
    })
}

fn budgets() -> Result<bool, String> {
    let path = root().join("budgets.tsv");
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut kept = true;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let [name, limit, today, ..] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("budgets.tsv: `{line}` lacks a name, a limit or today's value, separated by tabs"));
        };
        let limit: u64 =
            limit.parse().map_err(|_| format!("budgets.tsv: the limit `{limit}` of {name} is not a number"))?;
        let Some(value) = measured(name)? else {
            println!("budget: {name}: {today} when last measured by hand, limit {limit}");
            continue;
        };
        let verdict = if value <= limit { "ok" } else { "OVER" };
        println!("budget: {name}: {value}, limit {limit}: {verdict}");
        kept &= value <= limit;
    }
    Ok(kept)
}

/// Measures a budget's current value. `None` if that takes minutes, or if the program is not built.
fn measured(name: &str) -> Result<Option<u64>, String> {
    Ok(match name {
        "crates" => Some(tree("bulkhead")?.len() as u64),
        "dataplane-crates" => Some(tree("bulkhead-dataplane")?.len() as u64),
        "circles" => Some(circles::count(false)?),
        "src-lines" => Some(lines(&root().join("src")).map_err(|error| format!("src: {error}"))?),
        "program-bytes" => fs::metadata(root().join("target/release/bulkhead")).ok().map(|about| about.len()),
        "dist-bytes" => fs::metadata(root().join("target/dist/bulkhead")).ok().map(|about| about.len()),
        _ => None,
    })
}

/// Returns the packages that a package is linked with on this system, including itself.
fn tree(package: &str) -> Result<BTreeSet<String>, String> {
    let args = ["tree", "--offline", "--package", package, "--edges", "normal", "--prefix", "none"];
    let output = Command::new("cargo").args(args).current_dir(root()).output();
    let output = output.map_err(|error| format!("cannot run cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    // `name v1.2.3 (path) (*)`
    let words = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let listed = String::from_utf8_lossy(&output.stdout);
    Ok(listed.lines().map(words).filter(|line| !line.is_empty()).collect())
}

fn arrows() -> Result<bool, String> {
    let mut kept = true;
    for (package, never) in NEVER {
        for brought in tree(package)? {
            let name = brought.split(' ').next().unwrap_or_default();
            if never.contains(&name) {
                println!(
                    "budget: {package} must not depend on {name}; `cargo tree -p {package} -e normal -i {name}` shows how"
                );
                kept = false;
            }
        }
    }
    Ok(kept)
}

/// Counts the lines of the Rust files below a folder.
fn lines(folder: &Path) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sum += lines(&path)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            sum += fs::read_to_string(&path)?.lines().count() as u64;
        }
    }
    Ok(sum)
}
