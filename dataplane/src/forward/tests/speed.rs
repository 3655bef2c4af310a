//! How fast it is: `cargo test --release -p bulkhead-dataplane -- --ignored --nocapture speed`.

use std::time::Instant;

use super::*;

fn measure(name: &str, node: &mut Node, in_port: PortId, frames: &mut [Vec<u8>], out: PortId) {
    let rounds = 20_000_000 / frames.len();
    let start = Instant::now();
    for _ in 0..rounds {
        for frame in frames.iter_mut() {
            frame[22] = 64;
            let len = frame.len();
            frame[6..12].copy_from_slice(&A_MAC);
            let step = node.forwarder.forward(&node.snapshot, frame, len, in_port, Verdict::Forward(out));
            assert_eq!(step, Step::Send(out));
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64 / (rounds * frames.len()) as f64;
    println!("{name}: {nanoseconds:.1} ns per packet");
}

#[test]
#[ignore = "measures time"]
fn speed_of_forwarding() {
    let mut node = Node::acquainted();
    node.tick();
    let mut frames = vec![udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.2"); 64];
    measure("pod to pod", &mut node, A, &mut frames, B);
    let gateway = NeighbourId { port: UPLINK, address: ip("192.168.0.254") };
    node.neighbours.ask(gateway, node.now);
    node.neighbours.answer(&gateway, GATEWAY_MAC, node.now);
    node.tick();
    let to = |hosts: u8| -> Vec<_> {
        (0..hosts).map(|host| udp_frame(A_MAC, A, "10.0.0.1", &format!("8.8.{}.8", host % 251))).collect()
    };
    measure("pod to uplink, 64 destinations", &mut node, A, &mut to(64), UPLINK);
    let addresses = rewrite::addresses(B_MAC, own(B));
    let start = Instant::now();
    let rounds = 20_000_000 / frames.len();
    for _ in 0..rounds {
        for frame in &mut frames {
            frame[22] = 64;
            assert!(rewrite::hop(frame, &addresses));
        }
    }
    println!("rewrite alone: {:.1} ns", start.elapsed().as_nanos() as f64 / (rounds * frames.len()) as f64);
}
