//! Policies of public repositories: each is read or refused by name, and nothing panics. [The list](corpora.md) says where they are; they are
//! not copied here.

use std::path::PathBuf;
use std::{env, fs};

use bulkhead_control::foreign;
use bulkhead_control::source::{ForeignKinds, Options, Strictness, load_text};

#[test]
#[ignore = "needs the policies: BULKHEAD_CORPUS=FOLDER names a folder of YAML files with one policy each"]
fn each_policy_is_read_or_refused_by_name() {
    let folder = PathBuf::from(env::var("BULKHEAD_CORPUS").expect("BULKHEAD_CORPUS names a folder"));
    let (mut read, mut refused) = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for foreign in [ForeignKinds::Read, ForeignKinds::Audit, ForeignKinds::Enforce] {
            let options = |strictness| Options { strictness, foreign, ..Options::default() };
            // Not a panic, whatever the file says.
            let lenient = load_text("t.yaml", &text, options(Strictness::Lenient));
            drop(lenient.map(|loaded| foreign::resolved(loaded.objects)));
            match load_text("t.yaml", &text, options(Strictness::Strict)) {
                Ok(loaded) if foreign == ForeignKinds::Read => {
                    read += 1;
                    foreign::resolved(loaded.objects);
                }
                Err(errors) => {
                    refused += usize::from(foreign == ForeignKinds::Read);
                    for error in errors.shown() {
                        let is_whole = !error.problem.is_empty() && !error.help.is_empty() && error.line.is_some();
                        assert!(is_whole, "{}: {error}", path.display());
                    }
                }
                Ok(_) => {}
            }
        }
    }
    println!("{read} read, {refused} refused by name");
    assert!(read + refused >= 300, "a corpus has at least 300 policies");
}
