//! Measures forwarding: `cargo test --release -p bulkhead-dataplane -- --ignored --nocapture speed`.

use std::time::Instant;

use super::*;

/// Reports the best of many rounds, since other programs run at the same time.
fn measure(name: &str, frames: &mut [Vec<u8>], mut forward: impl FnMut(&mut [u8])) {
    let best = (0..5_000).map(|_| {
        for frame in frames.iter_mut() {
            frame[22] = 64;
            frame[6..12].copy_from_slice(&A_MAC);
        }
        let start = Instant::now();
        frames.iter_mut().for_each(|frame| forward(frame));
        start.elapsed()
    });
    let best = best.min().unwrap().as_nanos() as f64 / frames.len() as f64;
    println!("{name}: {best:.1} ns per packet");
}

#[test]
#[ignore = "measures time"]
fn speed_of_forwarding() {
    let mut node = Node::acquainted();
    let gateway = NeighbourId { port: UPLINK, address: ip("192.168.0.254") };
    node.neighbours.request(gateway, node.now);
    node.neighbours.confirm(&gateway, GATEWAY_MAC, node.now);
    node.tick();
    let Node { forwarder, snapshot, .. } = &mut node;
    let mut to_b = vec![udp_frame(A_MAC, A, "10.0.0.1", "10.0.0.2"); 256];
    let addresses = rewrite::addresses(B_MAC, own(B));
    measure("the rewrite alone", &mut to_b, |frame| assert!(rewrite::hop(frame, &addresses)));
    measure("admission", &mut to_b, |frame| assert_eq!(forwarder.admit(A, frame), Ok(())));
    let mut to = |name, frames: &mut [Vec<u8>], out| {
        measure(name, frames, |frame| {
            let len = frame.len();
            let step = forwarder.forward(snapshot, frame, len, A, Verdict::Forward(out));
            assert_eq!(step, Step::Send(out));
        });
    };
    to("pod to pod", &mut to_b, B);
    let destinations = |count: usize| -> Vec<_> {
        let one = |n: usize| udp_frame(A_MAC, A, "10.0.0.1", &format!("8.8.{}.{}", n % 16, n / 16 % 250));
        (0..count).map(one).collect()
    };
    to("pod to uplink, 256 destinations", &mut destinations(256), UPLINK);
    to("pod to uplink, 4000 destinations", &mut destinations(4000), UPLINK);
}
