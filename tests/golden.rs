//! The golden cases in `pcaps/`: the program's output equals the expected files byte for byte, and accounts for every packet. `cargo xtask
//! golden bless` rewrites the files and shows the difference. The file `asked` of a case lists commands, one per line. The test runs each
//! in all its output formats.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{bulkhead, root, stdout};
use bulkhead_dataplane::io::CaptureReader;
use serde_json::Value;

/// The commands that a case may list, with their output formats and the suffixes of the expected files. A case is also a state, so no
/// suffix may be that of a state file.
const FORMS: [(&str, &[(&str, &str)]); 5] = [
    ("diff", &[("text", "txt"), ("json", "json.txt"), ("markdown", "md"), ("sarif", "sarif")]),
    ("lint", &[("text", "txt"), ("json", "json.txt"), ("sarif", "sarif")]),
    ("policies", &[("text", "txt"), ("json", "json.txt")]),
    ("reach", &[("md", "md"), ("csv", "csv"), ("dot", "dot"), ("mermaid", "mmd")]),
    ("test", &[("text", "txt"), ("json", "json.txt"), ("junit", "xml"), ("sarif", "sarif")]),
];

struct Case {
    folder: PathBuf,
    node: String,
    captures: Vec<String>,
}

impl Case {
    fn load(folder: PathBuf) -> Self {
        let node = fs::read_to_string(folder.join("node")).unwrap().trim().to_owned();
        let mut captures: Vec<String> = files(&folder)
            .into_iter()
            .filter(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with("in.") || name.starts_with("in-")
            })
            .map(|path| relative(&path))
            .collect();
        captures.sort();
        assert!(!captures.is_empty(), "{} has no capture", folder.display());
        Self { folder, node, captures }
    }

    /// Runs `replay` with this output format, and writes the annotated capture to `annotated`.
    fn replay(&self, form: &str, annotated: &Path) -> String {
        let state = relative(&self.folder.join("state.yaml"));
        let annotated = annotated.to_str().unwrap();
        let mut args = vec!["replay", "--state", &state, "--node", &self.node, "-o", form, "--write", annotated];
        args.extend(self.captures.iter().map(String::as_str));
        stdout(&bulkhead(&args), 0)
    }

    /// The policies that `learn` derives from the captures, and its proof from standard error.
    fn learn(&self) -> (Vec<u8>, Vec<u8>) {
        let state = relative(&self.folder.join("state.yaml"));
        let captures = self.captures.iter().map(String::as_str);
        let output = bulkhead(&["learn", "--state", &state].into_iter().chain(captures).collect::<Vec<_>>());
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, output.stderr)
    }

    /// The verdicts on the case's flow log in this format. `None` if the case has none.
    fn flows(&self, form: &str) -> Option<String> {
        let log = self.folder.join("flows.log");
        let (state, log) = (relative(&self.folder.join("state.yaml")), log.is_file().then(|| relative(&log))?);
        Some(stdout(&bulkhead(&["replay", "--state", &state, "--flows", &log, "-o", form]), 0))
    }

    /// The commands in the case's file `asked`. Empty if the file does not exist.
    fn asked(&self) -> Vec<String> {
        let asked = fs::read_to_string(self.folder.join("asked")).unwrap_or_default();
        asked.lines().map(str::to_owned).collect()
    }

    fn compile(&self, renderer: &str) -> String {
        let state = relative(&self.folder.join("state.yaml"));
        stdout(&bulkhead(&["compile", "--state", &state, "--node", &self.node, "--renderer", renderer]), 0)
    }
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_str().unwrap().to_owned()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn all_cases() -> Vec<Case> {
    let mut folders: Vec<_> =
        files(&root().join("pcaps")).into_iter().filter(|path| path.join("node").is_file()).collect();
    folders.sort();
    folders.into_iter().map(Case::load).collect()
}

/// Compares with the expected file, or rewrites it if `BULKHEAD_BLESS` is set.
fn expect(path: &Path, got: &[u8], wrong: &mut Vec<String>) {
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        fs::write(path, got).unwrap();
        return;
    }
    let expected = fs::read(path).unwrap_or_default();
    if expected != got {
        let (a, b) = (String::from_utf8_lossy(&expected).into_owned(), String::from_utf8_lossy(got).into_owned());
        let first = a.lines().zip(b.lines()).find(|(a, b)| a != b);
        let first = first
            .map_or_else(|| format!("{} and {} bytes", expected.len(), got.len()), |(a, b)| format!("- {a}\n  + {b}"));
        wrong.push(format!("{}:\n  {first}", relative(path)));
    }
}

/// A command's output in one format. Exit codes 0 and 1 are both answers.
fn answer(command: &str, form: &str) -> Vec<u8> {
    let output = bulkhead(&command.split_whitespace().chain(["-o", form]).collect::<Vec<_>>());
    assert!(matches!(output.status.code(), Some(0 | 1)), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn packets_in(path: &Path) -> u64 {
    let mut reader = CaptureReader::new(&relative(path), fs::File::open(path).unwrap()).unwrap();
    let mut packets = 0;
    while reader.next_packet().unwrap().is_some() {
        packets += 1;
    }
    packets
}

/// Checks that each received packet has one line and one packet in the annotated capture, and is counted once as forwarded or dropped.
fn assert_conservation(case: &Case, lines: &str, annotated: &Path) {
    let name = case.folder.display();
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap()["summary"].clone();
    let received: u64 = case.captures.iter().map(|capture| packets_in(&root().join(capture))).sum();
    let dropped: u64 = summary["dropped"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(summary["packets"].as_u64(), Some(received), "{name}");
    assert_eq!(summary["forwarded"].as_u64().unwrap() + dropped, received, "{name}: rx = tx + sum(drops)");
    assert_eq!(lines.len() as u64, received, "{name}: one line per packet");
    assert_eq!(packets_in(annotated), received, "{name}: the annotated capture holds every packet");
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(line["packet"].as_u64(), Some(at as u64), "{name}");
        match (line["verdict"].as_str().unwrap(), line["reason"].as_str()) {
            ("forward", None) => {}
            ("drop", Some(reason)) => *reasons.entry(reason).or_default() += 1,
            other => panic!("{name}: packet {at}: {other:?}"),
        }
    }
    let counted: BTreeMap<&str, u64> =
        summary["dropped"].as_object().unwrap().iter().map(|(k, n)| (k.as_str(), n.as_u64().unwrap())).collect();
    assert_eq!(reasons, counted, "{name}: the counters are the packets' reasons");
}

#[test]
fn every_case_gives_its_expected_output_and_loses_no_packet() {
    let cases = all_cases();
    assert!(cases.len() >= 6, "only {} cases", cases.len());
    let scratch = root().join(env!("CARGO_TARGET_TMPDIR"));
    let (mut wrong, mut logs) = (Vec::new(), 0);
    for case in &cases {
        let annotated = scratch.join(format!("{}.pcapng", case.folder.file_name().unwrap().to_str().unwrap()));
        let lines = case.replay("json", &annotated);
        assert_conservation(case, &lines, &annotated);
        expect(&case.folder.join("expected.jsonl"), lines.as_bytes(), &mut wrong);
        expect(&case.folder.join("expected.pcapng"), &fs::read(&annotated).unwrap(), &mut wrong);
        expect(&case.folder.join("expected.txt"), case.replay("text", &annotated).as_bytes(), &mut wrong);
        let (learned, proof) = case.learn();
        expect(&case.folder.join("expected.learn.policies.txt"), &learned, &mut wrong);
        expect(&case.folder.join("expected.learn.txt"), &proof, &mut wrong);
        for (form, file) in [("text", "expected.flows.txt"), ("json", "expected.flows.jsonl")] {
            if let Some(told) = case.flows(form) {
                logs += 1;
                expect(&case.folder.join(file), told.as_bytes(), &mut wrong);
            }
        }
        for (renderer, file) in [("acl", "tables"), ("contiv", "contiv"), ("session-rules", "session-rules")] {
            let path = case.folder.join(format!("expected.{file}.txt"));
            expect(&path, case.compile(renderer).as_bytes(), &mut wrong);
        }
    }
    assert!(logs >= 2, "no case has a flow log");
    assert!(wrong.is_empty(), "{}\n\nIf this is what you meant: cargo xtask golden bless", wrong.join("\n"));
}

#[test]
fn every_question_asked_of_a_case_gets_its_expected_answer_in_each_form() {
    let (mut wrong, mut count) = (Vec::new(), BTreeMap::new());
    for case in &all_cases() {
        let asked = case.asked();
        for command in &asked {
            let name = command.split_whitespace().next().unwrap();
            let (name, forms) = FORMS.iter().find(|(known, _)| *known == name).unwrap();
            assert_eq!(asked.iter().filter(|other| other.starts_with(name)).count(), 1, "{name} is asked once");
            *count.entry(*name).or_insert(0) += 1;
            for (form, end) in *forms {
                let path = case.folder.join(format!("expected.{name}.{end}"));
                expect(&path, &answer(command, form), &mut wrong);
            }
        }
    }
    assert!(FORMS.iter().all(|(name, _)| count.get(name) >= Some(&2)), "each is asked of two cases: {count:?}");
    assert!(wrong.is_empty(), "{}\n\nIf this is what you meant: cargo xtask golden bless", wrong.join("\n"));
}
