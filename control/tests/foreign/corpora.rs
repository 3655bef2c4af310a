//! Policies of public repositories: each is read or refused by name, and nothing panics. [The list](corpora.md) says where they are; they are
//! not copied here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use bulkhead_control::foreign;
use bulkhead_control::source::{ForeignKinds, Options, Strictness, load_text};
use serde_json::Value;

/// The number of policies that make a corpus.
const LEAST: usize = 300;

#[test]
#[ignore = "needs the policies: BULKHEAD_CORPUS=FOLDER names a folder of YAML files with one policy each"]
fn each_policy_is_read_or_refused_by_name() {
    let folder = PathBuf::from(env::var("BULKHEAD_CORPUS").expect("BULKHEAD_CORPUS names a folder"));
    let mut distinct: BTreeMap<String, PathBuf> = BTreeMap::new();
    let (mut read, mut refused) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        if let Some(other) = distinct.insert(identity(&text), path.clone()) {
            panic!("{} and {} have the same policy", other.display(), path.display());
        }
        *if is_read(&path, &text) { &mut read } else { &mut refused } += 1;
    }
    println!("{read} read, {refused} refused by name");
    assert!(read + refused >= LEAST, "a corpus has at least {LEAST} policies");
}

/// Whether a policy is read in strict mode. Prints the reasons why it is not.
///
/// # Panics
/// If a mode panics, or a reason lacks the problem, the remedy or the line.
fn is_read(path: &Path, text: &str) -> bool {
    let mut is_read = false;
    for foreign in [ForeignKinds::Read, ForeignKinds::Audit, ForeignKinds::Enforce] {
        let options = |strictness| Options { strictness, foreign, ..Options::default() };
        // Not a panic, whatever the file says.
        let lenient = load_text("t.yaml", text, options(Strictness::Lenient));
        drop(lenient.map(|loaded| foreign::resolved(loaded.objects)));
        match load_text("t.yaml", text, options(Strictness::Strict)) {
            Ok(loaded) if foreign == ForeignKinds::Read => {
                is_read = true;
                foreign::resolved(loaded.objects);
            }
            Err(errors) => {
                for error in errors.shown() {
                    let is_whole = !error.problem.is_empty() && !error.help.is_empty() && error.line.is_some();
                    assert!(is_whole, "{}: {error}", path.display());
                    if foreign == ForeignKinds::Read {
                        println!("{}: {error}", path.file_name().unwrap_or_default().display());
                    }
                }
            }
            Ok(_) => {}
        }
    }
    is_read
}

/// Returns what makes a policy differ from others: kind, namespace, name and rules. Comments and other metadata do not count. A file that is
/// not YAML is its text.
fn identity(text: &str) -> String {
    let Ok(value) = serde_saphyr::from_str::<Value>(text) else {
        let written = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end());
        return written.filter(|line| !line.is_empty() && !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    };
    let fields = ["/kind", "/metadata/namespace", "/metadata/name", "/spec", "/specs"];
    fields.map(|field| value.pointer(field).unwrap_or(&Value::Null).to_string()).join("\n")
}
