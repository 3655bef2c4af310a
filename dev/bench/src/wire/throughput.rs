//! Measures throughput: TCP with iperf3, and UDP with ordinary sockets.

use anyhow::Context;

use super::node::{CLIENT, Node, Plan, SECOND, SINK, Way};
use super::{Bench, Rounds};
use crate::table::{Goal, Line, digits, median};
use crate::testbed::traffic::reach;

/// Flows of the second TCP measurement.
const FLOWS: u32 = 8;

/// Measures TCP between two pods of the node. Returns ratios to all alternative paths, for one flow and for eight.
pub(super) fn pods(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let others =
        [(Way::Policy, Goal::AtLeast(1.1)), (Way::Routing, Goal::AtLeast(1.0)), (Way::Bridge, Goal::AtLeast(0.9))];
    let rounds = bench.rounds(&[Way::Vswitch, Way::Policy, Way::Routing, Way::Bridge, Way::Cable], |way| {
        let node = bench.node(way, Plan::pair())?;
        let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
        reach(&client.netns, &sink.address)?;
        [1, FLOWS]
            .map(|flows| bench.load().iperf(&client.netns, &sink.netns, &sink.address, flows))
            .into_iter()
            .collect()
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
        [1, FLOWS].map(|flows| bench.load().iperf(client, second, SECOND, flows)).into_iter().collect()
    })?;
    Ok(lines_of("node2", "pod to a second node", &rounds, Way::Routing, Goal::AtLeast(0.9)).into())
}

/// Measures TCP from the node to a pod. Returns the ratios to the kernel's routing, for one flow and for eight.
pub(super) fn host(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Routing], |way| {
        let node = bench.node(way, Plan { host: true, ..Plan::pair() })?;
        let sink = node.pod(SINK);
        reach(&node.netns, &sink.address)?;
        [1, FLOWS].map(|flows| bench.load().iperf(&node.netns, &sink.netns, &sink.address, flows)).into_iter().collect()
    })?;
    Ok(lines_of("host", "host to pod", &rounds, Way::Routing, Goal::AtLeast(0.9)).into())
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
    Ok(bench.load().datagrams(&client.netns, &sink.netns, &sink.address)?.to_vec())
}
