//! Measures the worker: `cargo test --release -p bulkhead-dataplane -- --ignored --nocapture speed`.

use std::time::Instant;

use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

fn packets_per_second(name: &str, sessions: u16, fresh: bool) {
    let frames: Vec<Vec<u8>> = (0..sessions)
        .flat_map(|n| (0..4u16).map(move |host| (n, host)))
        .map(|(n, host)| {
            let dst = format!("8.8.{host}.8");
            Probe { sport: n, ..probe(ProbeKind::Udp, "10.0.0.1", &dst, 53) }.request().unwrap()
        })
        .collect();
    let packets: Vec<Packet<'_>> = frames
        .iter()
        .map(|frame| Packet { frame, wire_len: frame.len(), link: LinkType::Raw, in_port: A, time: 1 })
        .collect();
    let snapshot = snapshot();
    let mut worker = Worker::new(WorkerConfig::default());
    let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
    worker.process(&snapshot, &packets, &mut outcomes);
    assert!(outcomes.iter().all(|o| o.verdict == Verdict::Forward(UPLINK)));
    let rounds = 4_000_000 / packets.len() + 1;
    let start = Instant::now();
    for _ in 0..rounds {
        if fresh {
            worker.clear();
        }
        worker.process(&snapshot, &packets, &mut outcomes);
    }
    let expected = if fresh { SessionState::New } else { SessionState::Hit };
    assert!(outcomes.iter().all(|o| o.session == Some(expected)));
    let count = rounds * packets.len();
    let nanoseconds = start.elapsed().as_nanos() as f64 / count as f64;
    println!("{name}, {} sessions: {nanoseconds:.0} ns per packet, {:.1} Mpps", packets.len(), 1000.0 / nanoseconds);
}

#[test]
#[ignore = "measures time"]
fn speed_of_hits_and_misses() {
    packets_per_second("session hit", 64, false);
    packets_per_second("session hit", 2_500, false);
    packets_per_second("session hit", 25_000, false);
    packets_per_second("session miss", 64, true);
    packets_per_second("session miss", 25_000, true);
}
