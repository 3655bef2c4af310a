//! `bulkhead why` and `bulkhead bundle` with real programs: past events are found later, after a crash, and on another machine.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use crate::lab::lasting::{PATIENCE, answers, connect, echo};
use crate::lab::netns::eventually;
use crate::lab::{Lab, policy};
use crate::require;
use serde_json::Value;

/// A policy: pod `b` accepts only connections from `a` to this port.
fn only(port: u16) -> String {
    policy(
        "only",
        &format!(
            "{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], \
             ingress: [{{from: [{{podSelector: {{matchLabels: {{app: a}}}}}}], ports: [{{port: {port}}}]}}]}}"
        ),
    )
}

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab
}

fn bulkhead(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bulkhead")).args(words).output().unwrap()
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// The exit code and answer of `why` about a connection from `a` to a port of `b`.
fn why(lab: &Lab, port: u16, at: &str) -> (Option<i32>, Value) {
    let port = port.to_string();
    let words = ["why", "--from", "default/a", "--to", "default/b", "--port", &port, "--at", at, "-o", "json"];
    let (code, text) = lab.ask(&words);
    (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}")))
}

/// The drop reasons that `why` has found.
fn reasons(told: &Value) -> BTreeSet<String> {
    let rows = ["verdicts", "unclear"].into_iter().flat_map(|list| told["seen"][list].as_array().unwrap());
    rows.filter_map(|row| row["reason"].as_str().map(str::to_owned)).collect()
}

fn journal(lab: &Lab) -> String {
    lab.path("sessions/journal-node-1").display().to_string()
}

#[test]
fn drops_are_found_afterwards_a_crash_loses_nothing_and_the_next_process_goes_on() {
    require!("ping", "nc", "curl");
    let mut lab = lab();
    lab.start(&only(6379));
    let to = lab.get("b").v4.clone();
    echo(lab.get("b"), 6379);
    let mut client = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut client));
    assert!(!lab.connects("a", &to, 80));
    // The lab has no uplink, so this packet has no port to leave by.
    lab.pings("a", "198.51.100.1");
    let a = &lab.get("a").netns;
    a.exec("ip addr add 10.9.9.9/32 dev lo");
    a.output(&format!("ping -n -c 2 -i 0.2 -W 1 -I 10.9.9.9 {to}"));
    a.output("ping -n -c 1 -W 1 -I eth0 224.0.0.5");
    let expected = ["policy_denied", "port_down", "spoofed_source", "multicast"];
    eventually("all drops are found", || {
        let (code, told) = why(&lab, 80, "now");
        let found = reasons(&told);
        code == Some(1) && expected.iter().all(|reason| found.contains(*reason))
    });
    let metrics = lab.node.exec("curl -s http://127.0.0.1:9965/metrics");
    assert!(expected.iter().all(|reason| metrics.contains(&format!("reason=\"{reason}\""))), "{metrics}");
    assert!(metrics.contains("bulkhead_journal_written_records_total"), "{metrics}");
    let (_, told) = why(&lab, 80, "now");
    let denied = &told["seen"]["verdicts"][0];
    assert_eq!(
        (&denied["verdict"], &denied["origin"]),
        (&"DROPPED".into(), &"ingress isolated by default/only".into())
    );
    assert_eq!((&denied["packet"], &denied["table"]), (&"TCP SYN".into(), &"default/b".into()), "{told:#}");
    let (code, allowed) = why(&lab, 6379, "now");
    assert_eq!((code, &allowed["seen"]["sessions"]), (Some(0), &1.into()), "{allowed:#}");
    assert_eq!(allowed["seen"]["verdicts"][0]["verdict"], "FORWARDED");

    let before = now();
    // The kill loses only verdicts that the journal has not written yet.
    lab.connects("a", &to, 81);
    std::thread::sleep(Duration::from_millis(300));
    lab.kill();
    let path = journal(&lab);
    let words = ["why", "--from", "default/a", "--to", "default/b", "--port", "81", "--journal", &path, "--at", "now"];
    let output = bulkhead(&words);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("policy_denied  ingress isolated by default/only") && !text.contains("warning"), "{text}");
    std::thread::sleep(Duration::from_secs(1));
    let between = now();
    std::thread::sleep(Duration::from_millis(100));

    lab.start(&only(80));
    eventually("it goes on", || why(&lab, 80, "now").0 == Some(0));
    let (code, told) = why(&lab, 80, &before);
    assert_eq!(code, Some(1), "{told:#}");
    assert_eq!(told["changes"]["decisive"][0]["objects"][0], "NetworkPolicy default/only changed", "{told:#}");
    let verdict = told["changes"]["now"]["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("ALLOW") && told["changes"]["now"]["differs"] == true, "{verdict}");
    assert!(reasons(&told).contains("policy_denied"), "{told:#}");
    let (_, told) = why(&lab, 80, &between);
    let remark = told["remarks"][0].as_str().unwrap_or_default();
    assert!(remark.contains("no vswitch was running at that time"), "{told:#}");
    let (code, text) =
        lab.ask(&["why", "--from", "default/a", "--to", "default/b", "--port", "80", "--at", "2020-01-01T00:00:00Z"]);
    assert!(code == Some(2) && text.contains("the journal begins at"), "{text}");
    lab.stop();
}

/// Kills the process at many moments with the same journal. The journal must name the state in force and stay undamaged.
#[test]
fn whenever_the_process_is_killed_the_journal_says_what_was_in_force() {
    require!("nc");
    let rounds = std::env::var("BULKHEAD_CRASHES").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4_u64);
    let mut lab = lab();
    let to = lab.get("b").v4.clone();
    // A fixed sequence of moments, spread over the time in which changes and verdicts are written.
    let mut word = 88_172_645_463_325_252_u64;
    for round in 0..rounds {
        lab.start(&only(6379));
        let changes = round % 3;
        for at in 0..=changes {
            lab.apply(&(only([80, 81][usize::from(at % 2 == 1)]) + &policy(&format!("p{round}"), "{podSelector: {}}")));
        }
        let last = if changes % 2 == 1 { 81 } else { 80 };
        lab.connects("a", &to, 90);
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        let pause = Duration::from_millis(word % 120);
        std::thread::sleep(pause);
        // A question makes the vswitch write all earlier events to its journal.
        let is_flushed = round % 2 == 1;
        if is_flushed {
            why(&lab, 80, "now");
        }
        lab.kill();
        let path = journal(&lab);
        let asked = |port: u16| {
            let port = port.to_string();
            let ends = ["--from", "default/a", "--to", "default/b", "--port", &port];
            let output = bulkhead(&[&["why", "--journal", &path, "--at", "now"], &ends[..]].concat());
            (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        };
        let [(first, text), (second, _)] = [asked(80), asked(81)];
        assert!(!text.contains("warning"), "round {round}, killed after {pause:?}: {text}");
        // The answer is about one of the last two states.
        assert!(first.max(second) == Some(1), "round {round}, killed after {pause:?}: {first:?} {second:?} {text}");
        if is_flushed {
            let expected = [80, 81].map(|port| Some(i32::from(port != last)));
            assert_eq!([first, second], expected, "round {round}, killed after {pause:?}: {text}");
        }
    }
}

#[test]
fn across_changes_the_answer_is_that_of_explain_at_that_moment() {
    require!();
    let mut lab = lab();
    lab.start(&only(6379));
    let explain = ["explain", "--live", "--from", "default/a", "--to", "default/b", "--port", "80", "-o", "json"];
    let mut said = Vec::new();
    for at in 0..12_u16 {
        lab.apply(&(only([80, 6379][usize::from(at % 2)]) + &policy(&format!("p{at}"), "{podSelector: {}}")));
        let (code, text) = lab.ask(&explain);
        let told: Value = serde_json::from_str(&text).unwrap();
        said.push((now(), code, told["walks"][0]["steps"][0].clone()));
        std::thread::sleep(Duration::from_millis(20));
    }
    for (at, code, step) in said {
        let (then, told) = why(&lab, 80, &at);
        assert_eq!(then, code, "{told:#}");
        let found = &told["then"]["walks"][0]["steps"][0];
        for field in ["verdict", "reason", "origin", "policy", "isolated_by", "in", "out"] {
            assert_eq!(found[field], step[field], "{field} at {at}: {told:#}");
        }
    }
    lab.stop();
}

#[test]
fn a_bundle_answers_elsewhere_and_has_no_secret_in_it() {
    require!("tar");
    let mut lab = lab();
    lab.more_config.push_str("# token: planted-comment\n");
    // `bundle` runs in another folder than the vswitch, which uses relative paths.
    lab.is_run_in_its_folder = true;
    lab.annotations =
        "{kubectl.kubernetes.io/last-applied-configuration: planted-annotation, token: planted-annotation}".to_owned();
    lab.more_state.push_str(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: default}\nstringData: {token: planted-secret}\n\
         ---\napiVersion: v1\nkind: Pod\nmetadata: {name: c, namespace: default, annotations: {x: planted-annotation}}\n\
         spec: {nodeName: node-1, hostNetwork: true, containers: [{name: c, image: i, env: [{name: TOKEN, value: planted-environment}]}]}\n\
         status: {phase: Pending}\n",
    );
    lab.start(&only(6379));
    lab.connects("a", &lab.get("b").v4, 80);
    let file = lab.path("b.tgz").display().to_string();
    let (code, text) = lab.ask(&["bundle", "--output", &file]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // On a full disk no incomplete bundle remains.
    let mounted = lab.path("full");
    fs::create_dir(&mounted).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8k", "none"]).arg(&mounted).status().unwrap();
    assert!(mount.success());
    let part = mounted.join("b.tgz");
    let (code, text) = lab.ask(&["bundle", "--output", &part.display().to_string()]);
    let is_left = part.exists();
    assert!(Command::new("umount").arg(&mounted).status().unwrap().success());
    assert!(code == Some(2) && text.contains("No space left") && !is_left, "{text}");
    let unpacked = lab.path("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let untar = Command::new("tar").args(["-xzf", &file, "-C"]).arg(&unpacked).status().unwrap();
    assert!(untar.success());
    let folder = unpacked.join("bulkhead-bundle");
    let names: BTreeSet<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected = [
        "config.json",
        "journal",
        "manifest.json",
        "policies.json",
        "ports.json",
        "state.jsonl",
        "status.json",
        "tables.json",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
    for name in &names {
        let bytes = fs::read(folder.join(name)).unwrap();
        assert!(!bytes.windows(7).any(|word| word == b"planted"), "{name}");
    }
    lab.stop();

    // As user nobody, without a vswitch.
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let [program, capture] = ["bulkhead", "in.pcapng"].map(|name| lab.path(name));
    fs::copy(env!("CARGO_BIN_EXE_bulkhead"), &program).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/redis-policy/in.pcapng"), &capture).unwrap();
    let asked = ["--from", "default/a", "--to", "default/b", "--port", "80"];
    let as_nobody = |words: &[&str]| {
        let output = Command::new(&program).args(words).uid(65_534).gid(65_534).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, text) = as_nobody(&[&["explain", "--state", &file], &asked[..]].concat());
    assert!(code == Some(1) && text.contains("ingress isolated by default/only"), "{text}");
    let (code, text) = as_nobody(&[&["why", "--bundle", &file, "--at", "now"], &asked[..]].concat());
    assert!(code == Some(1) && text.contains("Seen from"), "{text}");
    let (code, text) = as_nobody(&["replay", "--state", &file, "--node", "node-1", capture.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    // A truncated bundle.
    let whole = fs::read(&file).unwrap();
    let half = lab.path("half.tgz").display().to_string();
    fs::write(&half, &whole[..whole.len() / 2]).unwrap();
    let (code, text) = as_nobody(&[&["explain", "--state", &half], &asked[..]].concat());
    assert!(code == Some(2) && text.contains("truncated"), "{text}");
}
