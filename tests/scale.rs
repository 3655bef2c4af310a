//! Replays a capture of a million packets completely, in memory that does not grow with the capture.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufWriter, Read, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::support::root;
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use serde_json::Value;

/// Writes a pcap file of raw IP packets from a thousand repeated UDP conversations.
fn capture(packets: u32, out: &mut impl Write) {
    out.write_all(&0xa1b2_c3d4_u32.to_le_bytes()).unwrap();
    for field in [0x0004_0002_u32, 0, 0, 65_535, 101] {
        out.write_all(&field.to_le_bytes()).unwrap();
    }
    let frames: Vec<Vec<u8>> = (0..1_000)
        .map(|at| {
            let src = Ipv4Addr::new(10, 244, 1, u8::try_from(2 + at % 4).unwrap()).into();
            let dst = Ipv4Addr::new(192, 0, 2, 1).into();
            Probe { src, dst, kind: ProbeKind::Udp, sport: 10_000 + at, dport: 53 }.request().unwrap()
        })
        .collect();
    for at in 0..packets {
        let frame = &frames[at as usize % frames.len()];
        let length = u32::try_from(frame.len()).unwrap();
        for field in [at / 100_000, at % 100_000, length, length] {
            out.write_all(&field.to_le_bytes()).unwrap();
        }
        out.write_all(frame).unwrap();
    }
}

/// Replays this number of packets through standard input. Returns the summary and the peak resident memory in KiB.
fn replay(packets: u32) -> (Value, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["replay", "-o", "json", "--state", "pcaps/redis-policy", "--node", "node-1", "-"])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let last_line = std::thread::spawn(move || {
        let (mut kept, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(n @ 1..) = stdout.read(&mut chunk) {
            kept.extend_from_slice(&chunk[..n]);
            kept.drain(..kept.len().saturating_sub(4096));
        }
        String::from_utf8_lossy(&kept).lines().last().unwrap().to_owned()
    });
    let mut input = BufWriter::new(child.stdin.take().unwrap());
    capture(packets, &mut input);
    input.flush().unwrap();
    // The program has read everything except the pipe's last buffer, and waits for more.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse().unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
    (serde_json::from_str(&last_line.join().unwrap()).unwrap(), peak)
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads the peak memory from /proc")]
fn a_million_packets_are_judged_in_the_memory_of_a_tenth() {
    let (few, tenth) = replay(100_000);
    let (many, whole) = replay(1_000_000);
    assert_eq!(few["summary"]["packets"], 100_000);
    assert_eq!(many["summary"]["packets"], 1_000_000);
    assert_eq!(many["summary"]["forwarded"], 1_000_000);
    assert_eq!(many["summary"]["sessions"], 1_000);
    assert!(whole <= tenth + 4_096, "{tenth} KiB for 100,000 packets, {whole} KiB for 1,000,000");
}
