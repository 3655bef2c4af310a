//! A replay of the packets that a live vswitch received gives the same verdicts.

use crate::require;
use std::path::Path;
use std::process::Command;

use crate::lab::{Lab, policy};
use serde_json::Value;

/// The first words of each packet's comment, `forward` or `drop REASON`, in the enhanced packet blocks of a pcapng file.
fn live_verdicts(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let short = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let (mut at, mut verdicts) = (0, Vec::new());
    while at < bytes.len() {
        let (kind, len) = (number(at), number(at + 4));
        if kind == 6 {
            // Options follow the packet, padded to four bytes.
            let mut option = at + 28 + number(at + 20).next_multiple_of(4);
            while short(option) != 1 {
                option += 4 + short(option + 2).next_multiple_of(4);
            }
            let comment = String::from_utf8_lossy(&bytes[option + 4..option + 4 + short(option + 2)]).into_owned();
            let words = comment.split([':', ',']).next().unwrap().trim();
            verdicts.push(words.to_owned());
        }
        at += len;
    }
    verdicts
}

/// The verdicts of `bulkhead replay` on the same packets.
fn replayed_verdicts(lab: &Lab, capture: &Path) -> Vec<String> {
    let state = lab.path("state.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["replay", "-o", "json", "--node", &lab.node_name()])
        .arg(capture)
        .arg("--state")
        .arg(&state)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let packets = lines.filter(|line| line.get("packet").is_some());
    let verdict = |line: Value| match line["reason"].as_str() {
        Some(reason) => format!("drop {reason}"),
        None => line["verdict"].as_str().unwrap().to_owned(),
    };
    packets.map(verdict).collect()
}

#[test]
fn a_replay_of_the_capture_gives_the_verdicts_that_were_given_live() {
    require!("ping", "nc", "socat", "ss", "curl", "python3");
    let mut lab = Lab::new();
    for name in ["client", "server", "stranger"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.outside();
    let capture = lab.path("live.pcapng");
    let spec = "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], \
        ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}, {port: 53, protocol: UDP}]}]}";
    lab.start_with(&policy("server", spec), &["--capture", capture.to_str().unwrap()]);
    let server = lab.get("server");
    let _web = server.netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    for address in [&server.v4, &server.v6] {
        assert!(lab.connects("client", address, 80));
        assert!(!lab.connects("stranger", address, 80));
        assert!(!lab.connects("client", address, 81));
        lab.get("client").netns.shell(&format!("echo hello | nc -n -N -w 1 {address} 80"));
        lab.get("client").netns.output(&format!("nc -n -u -z -w 1 {address} 53"));
        assert!(!lab.pings("client", address));
    }
    assert!(lab.pings("client", &lab.get("stranger").v4) && lab.pings("client", "172.18.0.100"));
    lab.get("client").netns.exec(&format!("ping -n -c 1 -W 2 -s 4000 {}", lab.get("stranger").v4));
    lab.get("client").netns.output("ping -n -c 1 -W 1 -t 1 172.18.0.100");
    let summary = lab.stop();
    assert_eq!(summary["workers"][0]["capture_missed"], 0, "{summary:#}");

    let (live, replayed) = (live_verdicts(&capture), replayed_verdicts(&lab, &capture));
    assert_eq!(live.len() as u64, summary["workers"][0]["received"].as_u64().unwrap());
    for (at, (live, replayed)) in live.iter().zip(&replayed).enumerate() {
        assert_eq!(live, replayed, "packet {}", at + 1);
    }
    assert_eq!(live.len(), replayed.len());
    for part in ["forward", "drop policy_denied", "drop ttl_expired"] {
        assert!(live.iter().any(|verdict| verdict == part), "there is a {part} among {} packets", live.len());
    }
}
