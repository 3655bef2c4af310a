//! Measures throughput: TCP with iperf3, and UDP with ordinary sockets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::node::{CLIENT, Node, Plan, SECOND, SINK, Way};
use super::{Bench, Rounds};
use crate::policy::UDP_PORT;
use crate::table::{Goal, Line, digits, median};
use crate::testbed::net::Netns;
use crate::testbed::traffic::{UdpServer, open_flow, pin, reach, send_many, server};

/// Flows of the second TCP measurement.
const FLOWS: u32 = 8;
/// Sockets that send UDP in turns.
const SOCKETS: usize = 8;
/// Datagrams per system call.
const BURST: usize = 32;
/// Payload of a 60-byte frame, the smallest without its checksum.
const PAYLOAD: [u8; 18] = [0; 18];
/// Warm-up of caches and sessions before packets are counted.
pub(super) const WARM_UP: Duration = Duration::from_millis(300);

/// Measures TCP between two pods of the node. Returns ratios to all alternative paths, for one flow and for eight.
pub(super) fn pods(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let others =
        [(Way::Policy, Goal::AtLeast(1.1)), (Way::Routing, Goal::AtLeast(1.0)), (Way::Bridge, Goal::AtLeast(0.9))];
    let rounds = bench.rounds(&[Way::Vswitch, Way::Policy, Way::Routing, Way::Bridge, Way::Cable], |way| {
        let node = bench.node(way, Plan::pair())?;
        let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
        reach(&client.netns, &sink.address)?;
        [1, FLOWS].map(|flows| iperf(bench, &client.netns, &sink.netns, &sink.address, flows)).into_iter().collect()
    })?;
    let mut lines = Vec::new();
    for (other, goal) in others {
        for (metric, line) in lines_of("tcp", "pod to pod", &rounds, other, goal).into_iter().enumerate() {
            let [cable, other] = [Way::Cable, other].map(|way| median(&rounds.of(way, metric)));
            let best = digits(cable / other);
            lines.push(line.noted(&format!("{} reaches {best}", Way::Cable.name())).with("cable", best.into()));
        }
    }
    Ok(lines)
}

fn lines_of(row: &'static str, what: &str, rounds: &Rounds, other: Way, goal: Goal) -> [Line; 2] {
    [(0, "1 flow"), (1, "8 flows")].map(|(metric, flows)| {
        let what = format!("TCP {what}, {flows}, against {}", other.name());
        Line::ratio(row, what, &rounds.of(Way::Vswitch, metric), &rounds.of(other, metric), "Gb/s", goal)
    })
}

/// Measures TCP from a pod to another node. Returns the ratios to the kernel's routing, for one flow and for eight.
pub(super) fn second_node(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Routing], |way| {
        let node = bench.node(way, Plan { second: true, ..Plan::pair() })?;
        let second = node.second.as_ref().context("the plan has a second node")?;
        let client = &node.pod(CLIENT).netns;
        reach(client, SECOND)?;
        [1, FLOWS].map(|flows| iperf(bench, client, second, SECOND, flows)).into_iter().collect()
    })?;
    Ok(lines_of("node2", "pod to a second node", &rounds, Way::Routing, Goal::AtLeast(0.9)).into())
}

/// Measures TCP from the node to a pod. Returns the ratios to the kernel's routing, for one flow and for eight.
pub(super) fn host(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Routing], |way| {
        let node = bench.node(way, Plan { host: true, ..Plan::pair() })?;
        let sink = node.pod(SINK);
        reach(&node.netns, &sink.address)?;
        [1, FLOWS].map(|flows| iperf(bench, &node.netns, &sink.netns, &sink.address, flows)).into_iter().collect()
    })?;
    Ok(lines_of("host", "host to pod", &rounds, Way::Routing, Goal::AtLeast(0.9)).into())
}

/// Returns the received Gb/s, with client and server on separate cores.
pub(super) fn iperf(bench: &Bench, from: &Netns, to: &Netns, address: &str, flows: u32) -> anyhow::Result<f64> {
    let [client, sink] = bench.cores;
    let _server = to.serve(&format!("taskset -c {sink} iperf3 -s -1"), 5201)?;
    let seconds = bench.time.as_secs();
    // iperf3 accepts only whole seconds. Shorter runs are trials, for which some packets suffice.
    let length = if seconds == 0 { "-n 20M".to_owned() } else { format!("-t {seconds}") };
    // Longer than any run, so that a stalled connection does not block the benchmark.
    let most = seconds + 15;
    let line = format!("timeout {most} taskset -c {client} iperf3 -J -c {address} -P {flows} {length}");
    let report: serde_json::Value = serde_json::from_str(&from.run(&line)?)?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(rate.context("iperf3 has not measured anything")? / 1e9)
}

/// Measures small datagrams between two pods. Returns the ratio of received packets to the kernel with the same policy.
pub(super) fn udp(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Policy], |way| datagrams(bench, &bench.node(way, Plan::pair())?))?;
    let what = format!("18-byte UDP pod to pod, sendmmsg, against {}", Way::Policy.name());
    let [ours, other] = [Way::Vswitch, Way::Policy].map(|way| rounds.of(way, 0));
    let [sent, taken] =
        [1, 2].map(|metric| [Way::Vswitch, Way::Policy].map(|way| digits(median(&rounds.of(way, metric)))));
    let note = format!("of {} and {} sent; the program took {} and {}", sent[0], sent[1], taken[0], taken[1]);
    let line = Line::ratio("udp", what, &ours, &other, "kpps", Goal::AtLeast(1.0));
    Ok(vec![line.noted(&note).with("sent", sent.to_vec().into()).with("taken", taken.to_vec().into())])
}

/// Returns thousands of datagrams per second: received by the node, sent, and read by the receiving program.
pub(super) fn datagrams(bench: &Bench, node: &Node) -> anyhow::Result<Vec<f64>> {
    let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
    reach(&client.netns, &sink.address)?;
    let receiver = UdpServer::start(&sink.netns, UDP_PORT, Some(bench.cores[1]))?;
    let target = server(&sink.address, UDP_PORT)?;
    let sockets: Vec<_> = (0..SOCKETS).map(|_| open_flow(&client.netns, target)).collect::<anyhow::Result<_>>()?;
    let stop = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> anyhow::Result<()> {
            pin(bench.cores[0]);
            while !stop.load(Ordering::Relaxed) {
                for socket in &sockets {
                    let count = send_many(socket, &PAYLOAD, BURST).context("cannot send")?;
                    sent.fetch_add(count as u64, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        std::thread::sleep(WARM_UP);
        let look = || anyhow::Ok([arrived(&sink.netns)?, sent.load(Ordering::Relaxed), receiver.received()]);
        let (before, started) = (look()?, Instant::now());
        std::thread::sleep(bench.time);
        let (after, took) = (look()?, started.elapsed());
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| anyhow::anyhow!("the sender has panicked"))??;
        #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
        let rate = |count: u64| count as f64 / took.as_secs_f64() / 1e3;
        Ok(after.iter().zip(before).map(|(after, before)| rate(after - before)).collect())
    })
}

/// Returns the datagrams delivered to the sockets of a namespace. Includes those dropped for a full socket buffer, because they have passed
/// the node.
fn arrived(netns: &Netns) -> anyhow::Result<u64> {
    Ok(netns.counter("Udp", "InDatagrams")? + netns.counter("Udp", "RcvbufErrors")?)
}
