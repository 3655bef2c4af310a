//! Checks documents for users against the program: the configuration reference, man pages, shell completions, links, the tour.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "support/reference.rs"]
mod reference;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{bulkhead, root, scratch, stdout};
use bulkhead::args::Args;
use bulkhead_dataplane::DropReason;
use clap::CommandFactory;
use reference::{paths, reference};

/// If set, the test writes the reference instead of comparing it. `cargo xtask reference` sets it.
const BLESS: &str = "BULKHEAD_BLESS";

fn examples() -> [String; 2] {
    ["node", "cluster"].map(|name| fs::read_to_string(root().join(format!("examples/{name}.yaml"))).unwrap())
}

#[test]
fn the_reference_is_what_the_examples_say() {
    let path = root().join("docs/configuration.md");
    let [node, cluster] = examples();
    let made = reference(&[&node, &cluster]);
    if std::env::var_os(BLESS).is_some() {
        fs::write(&path, &made).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == made,
        "docs/configuration.md is not what the examples say; `cargo xtask reference` writes it:\n{made}"
    );
}

/// The field names of a mapping in the configuration, taken from the program's error about an unknown field. `@` in `place` marks the
/// mapping.
fn fields(place: &str) -> BTreeSet<String> {
    let path = scratch("unknown-field.yaml", &place.replace('@', "{zzz: 1}"));
    let output = bulkhead(&["run", "--check", "--config", &path]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("unknown field `zzz`"), "{place}: {error}");
    // For a mapping with a single field, the error has no `one of`.
    let expected = error.split("expected ").nth(1).unwrap().lines().next().unwrap();
    expected.trim_start_matches("one of ").split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
}

#[test]
fn the_reference_has_every_field_that_the_program_knows_and_no_others() {
    let text = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let written = paths(&text);
    let mut known = BTreeSet::new();
    for (prefix, place) in [
        ("", "@"),
        ("nftables.", "nftables: @"),
        ("slow_path.", "slow_path: @"),
        ("state.", "state: @"),
        ("state.kubernetes.", "state: {kubernetes: @}"),
        ("services.", "services: @"),
        ("masquerade.", "masquerade: @"),
        ("names.", "names: @"),
        ("audit.", "audit: @"),
        ("hubble.", "hubble: @"),
        ("hubble.tls.", "hubble: {tls: @}"),
        ("journal.", "journal: @"),
        ("workers.", "workers: @"),
        ("sessions.", "sessions: @"),
        ("sessions.timeouts.", "sessions: {timeouts: @}"),
        ("sessions.shares.", "sessions: {shares: @}"),
        ("admin.", "admin: @"),
        ("log.", "log: @"),
        ("ports[].", "ports: [@]"),
        ("ports[].create.", "ports: [{create: @}]"),
        ("routes[].", "routes: [@]"),
    ] {
        known.extend(fields(place).into_iter().map(|name| format!("{prefix}{name}")));
    }
    let missing: Vec<_> = known.difference(&written).collect();
    let wrong: Vec<_> = written.difference(&known).collect();
    assert!(missing.is_empty() && wrong.is_empty(), "missing {missing:?}, wrong {wrong:?}");
}

fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    // Every second part is inside a fence.
    let inside = text.split("```").skip(1).step_by(2);
    inside.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[test]
fn every_command_of_the_readme_works_and_the_sample_is_what_is_printed() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let commands: Vec<&str> = blocks(&readme, "sh").into_iter().flat_map(str::lines).collect();
    assert!(commands.len() >= 4, "{commands:?}");
    let mut printed = Vec::new();
    for command in commands {
        if let Some(line) = command.strip_prefix("cargo run --release -- ") {
            let output = bulkhead(&line.split_whitespace().collect::<Vec<_>>());
            assert!(matches!(output.status.code(), Some(0 | 1)), "{command}: {output:?}");
            printed.push(String::from_utf8(output.stdout).unwrap());
        } else if let Some(verb) = command.strip_prefix("cargo xtask ") {
            let known = fs::read_to_string(root().join("dev/xtask/src/main.rs")).unwrap();
            assert!(known.contains(&format!("[\"{verb}\"] => ")), "{command}");
        } else if let Some(folder) = command.strip_prefix("kubectl apply -k ") {
            // tests/deploy.rs checks its contents.
            assert!(root().join(folder).join("kustomization.yaml").is_file(), "{command}");
        } else if let Some(words) = command.strip_prefix("kubectl -n kube-system exec daemonset/bulkhead -- bulkhead ")
        {
            // tests/cluster runs all these on real nodes.
            assert_eq!(bulkhead(&[words, "--help"]).status.code(), Some(0), "{command}");
        } else if command == "kubectl -n kube-system rollout status daemonset/bulkhead" {
            let manifest = fs::read_to_string(root().join("deploy/daemonset.yaml")).unwrap();
            assert!(manifest.contains("kind: DaemonSet\nmetadata:\n  name: bulkhead\n  namespace: kube-system\n"));
        } else {
            panic!("no test runs {command}");
        }
    }
    let samples: Vec<&str> = blocks(&readme, "").into_iter().filter(|block| block.contains("DENY")).collect();
    assert_eq!(samples.len(), 1);
    assert!(printed.iter().any(|text| text == samples[0]), "the sample is not what is printed: {printed:#?}");
}

/// The output of a command of the tour: standard error if the command redirects standard output, and otherwise standard output.
fn printed(command: &str) -> String {
    let words: Vec<&str> = command.strip_prefix("bulkhead ").unwrap().split_whitespace().collect();
    let redirected = words.iter().position(|word| *word == ">");
    let output = bulkhead(&words[..redirected.unwrap_or(words.len())]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{command}: {output:?}");
    String::from_utf8(if redirected.is_some() { output.stderr } else { output.stdout }).unwrap()
}

/// The commands of the tour, in order.
const STORY: [&str; 6] = ["learn", "lint", "diff", "test", "replay", "explain"];

#[test]
fn the_tour_shows_what_its_commands_print() {
    let path = root().join("docs/tour.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut parts: Vec<String> = text.split("```").map(str::to_owned).collect();
    let mut told = Vec::new();
    // Every second part is inside a fence. A command's output is in the next fence.
    for at in (1..parts.len()).step_by(2) {
        if let Some(command) = parts[at].clone().strip_prefix("sh\n") {
            assert!(parts[at + 1].trim().is_empty() && at + 2 < parts.len(), "no output is shown of {command}");
            parts[at + 2] = format!("\n{}", printed(command.trim()));
            told.push(command.split_whitespace().nth(1).unwrap().to_owned());
        }
    }
    let command = Args::command();
    let known: Vec<&str> = STORY.into_iter().filter(|name| command.find_subcommand(name).is_some()).collect();
    assert_eq!(told, known, "the commands of the tour");
    let made = parts.join("```");
    if std::env::var_os(BLESS).is_some() {
        fs::write(&path, &made).unwrap();
    } else {
        assert!(made == text, "docs/tour.md is not what is printed; `cargo xtask reference` writes it:\n{made}");
    }
}

/// The paths of the pages for users: README, CONTRIBUTING, the classifier's README and every page of `docs/`.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let docs = docs.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"));
    let readmes = ["README.md", "CONTRIBUTING.md", "classifier/README.md"].map(str::to_owned);
    readmes.into_iter().chain(docs.map(|name| format!("docs/{name}"))).collect()
}

/// The text without fenced blocks, in which `#` starts comments and brackets are not links.
fn outside_fences(text: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The anchors of a page's headings by GitHub's rules: lower case, hyphens for spaces, no other punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let text = outside_fences(text);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_relative_link_of_the_documents_names_a_file_and_a_heading_that_exist() {
    let mut checked = 0;
    for file in pages() {
        let path = root().join(&file);
        let text = outside_fences(&fs::read_to_string(&path).unwrap());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (target, anchor) = link.split_once('#').map_or((link, None), |(target, anchor)| (target, Some(anchor)));
            let target = if target.is_empty() { path.clone() } else { path.parent().unwrap().join(target) };
            assert!(target.exists(), "{file}: {link}: no such file");
            if let Some(anchor) = anchor {
                let known = anchors(&fs::read_to_string(&target).unwrap());
                assert!(known.contains(anchor), "{file}: {link}: no such heading; there are {known:?}");
            }
            checked += 1;
        }
    }
    assert!(checked > 80, "{checked}");
}

#[test]
fn pages_are_short_and_the_entry_page_links_to_each() {
    let entry = fs::read_to_string(root().join("docs/README.md")).unwrap();
    for file in pages() {
        let lines = fs::read_to_string(root().join(&file)).unwrap().lines().count();
        // The generated configuration reference may be longer: users search it instead of reading it.
        let limit = match file.as_str() {
            "README.md" => 120,
            "docs/configuration.md" => 450,
            _ => 300,
        };
        assert!(lines <= limit, "{file}: {lines} lines, of at most {limit}");
        if let Some(name) = file.strip_prefix("docs/").filter(|name| *name != "README.md") {
            assert!(entry.contains(&format!("]({name})")), "docs/README.md does not link to {name}");
        }
    }
}

#[test]
fn every_subcommand_has_a_man_page_that_man_can_read() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    let _ = fs::remove_dir_all(&folder);
    stdout(&bulkhead(&["man", "--out", folder.to_str().unwrap()]), 0);
    let command = Args::command();
    let subcommands = command.get_subcommands().map(|command| format!("bulkhead-{}", command.get_name()));
    for name in subcommands.chain(["bulkhead".to_owned()]) {
        let path = folder.join(format!("{name}.1"));
        let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".SH SYNOPSIS") || page.contains(".SH \"SYNOPSIS\""), "{page}");
        // Checks for groff's warnings if groff is installed.
        if let Ok(output) = Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(&path).output() {
            assert!(output.stderr.is_empty(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    assert_eq!(bulkhead(&["man", "--out", "/dev/null/nowhere"]).status.code(), Some(2));
}

#[test]
fn completions_know_every_subcommand_and_the_shell_takes_them() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&bulkhead(&["completions", shell]), 0);
        for subcommand in Args::command().get_subcommands() {
            assert!(script.contains(subcommand.get_name()), "{shell}: {}", subcommand.get_name());
        }
        if ["elvish", "powershell"].contains(&shell) {
            // These shells cannot check a script without running it.
            continue;
        }
        let path = scratch(&format!("completions.{shell}"), &script);
        match Command::new(shell).args(["-n", &path]).stderr(Stdio::piped()).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(_) => println!("{shell} is not here: its script was not tried"),
        }
    }
}

#[test]
fn every_file_of_tests_is_a_module_of_its_crates_one_program() {
    for folder in [
        "dev/bench/tests",
        "classifier/tests",
        "cluster/tests",
        "control/tests",
        "dataplane/tests",
        "hello/tests",
        "tests",
    ] {
        let folder = root().join(folder);
        let all = fs::read_to_string(folder.join("all.rs")).unwrap();
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        for name in files.filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned())).filter(|name| name != "all") {
            assert!(all.contains(&format!("mod {name};")), "{}/{name}.rs: all.rs does not name it", folder.display());
        }
    }
}

#[test]
fn every_reason_for_a_drop_is_documented_in_its_own_words_and_no_other_one_is() {
    let text = fs::read_to_string(root().join("docs/observing.md")).unwrap();
    let (_, rest) = text.split_once("## Why packets are dropped").unwrap();
    let (table, _) = rest.split_once("\n\nTwo more").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<String> =
        DropReason::ALL.iter().map(|reason| format!("| `{}` | {} |", reason.name(), reason.describe())).collect();
    assert_eq!(rows, expected);
}
