//! ClusterNetworkPolicy and its ancestors against known answers.
//!
//! The cases lie outside the project (`BULKHEAD_CASES` names their folder). Where they are absent the tests say so and pass; under CI
//! that is a failure.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails, and a skipped one says so")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_control::source::{Strictness, load_text};
use serde_json::Value;

/// The cases of a group, none (with a printed reason) where they are absent.
fn cases(group: &str) -> Option<Vec<Value>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let path = env::var_os("BULKHEAD_CASES").map_or_else(beside, PathBuf::from).join("cnp_cases.json");
    let Ok(text) = fs::read_to_string(&path) else {
        assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
        println!("skipped: {} is absent; set BULKHEAD_CASES", path.display());
        return None;
    };
    let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.retain(|case| case["group"] == group);
    Some(all)
}

#[test]
fn what_is_to_be_refused_is_refused_with_its_object_field_and_remedy() {
    let Some(cases) = cases("refuse") else { return };
    for case in &cases {
        let (id, step) = (&case["id"], &case["steps"][0]);
        let [policy] = &step["policies"].as_array().unwrap()[..] else { panic!("case {id}: one object expected") };
        let errors = load_text("case.json", &policy.to_string(), Strictness::Strict).expect_err(&id.to_string());
        let [error] = errors.shown() else { panic!("case {id}: one error expected\n{errors}") };
        assert_eq!(
            error.object.as_deref().map(|name| name.replace(' ', "/")).as_deref(),
            step["refuse"]["object"].as_str()
        );
        assert_eq!(Some(error.path.as_str()), step["refuse"]["field"].as_str(), "case {id}: {error}");
        assert!(error.line == Some(1) && !error.help.is_empty(), "case {id}: {error}");
    }
    assert_eq!(cases.len(), 60);
}
