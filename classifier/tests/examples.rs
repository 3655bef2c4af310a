//! Runs the examples. Each asserts what it shows.

#[path = "../examples/explain.rs"]
#[expect(dead_code, reason = "`main` reads the arguments of the program, which are the test harness's here")]
mod explain;
#[path = "../examples/firewall.rs"]
mod firewall;
#[path = "../examples/incremental.rs"]
mod incremental;

#[test]
fn a_small_firewall_judges_its_packets() {
    firewall::main().unwrap();
}

#[test]
fn a_verdict_is_explained() {
    explain::run([10, 0, 0, 5].into(), [10, 0, 1, 9].into(), 6379).unwrap();
}

#[test]
fn tables_follow_a_change() {
    incremental::main().unwrap();
}

#[test]
fn every_example_is_run_here_and_named_in_the_readme() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let [readme, here] =
        ["README.md", "tests/examples.rs"].map(|file| std::fs::read_to_string(folder.join(file)).unwrap());
    for file in std::fs::read_dir(folder.join("examples")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(here.contains(&format!("../examples/{name}")), "{name} is not run");
        assert!(readme.contains(&format!("--example {} ", name.trim_end_matches(".rs"))), "{name} is not in README.md");
    }
}
