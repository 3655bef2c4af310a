//! Measures TCP to a Service's cluster address, whose backend is a pod of the node.

use super::Bench;
use super::latency::connect_to;
use super::node::{CLIENT, Plan, SINK, Way};
use crate::services;
use crate::table::{Goal, Line};
use crate::testbed::traffic::reach;

/// The measurements, in order: name, unit and goal.
const WORK: [(&str, &str, f64); 3] = [
    ("TCP to a ClusterIP, 1 flow", "Gb/s", 1.1),
    ("TCP to a ClusterIP, 8 flows", "Gb/s", 1.1),
    ("new TCP connections to a ClusterIP", "thousand/s", 0.7),
];

pub(super) fn cluster_address(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Services], |way| {
        let node = bench.node(way, Plan { services: true, ..Plan::pair() })?;
        let (client, sink, address) = (node.pod(CLIENT), node.pod(SINK), services::sink());
        reach(&client.netns, &sink.address)?;
        let mut all = Vec::new();
        for flows in [1, 8] {
            all.push(bench.load().iperf(&client.netns, &sink.netns, &address, flows)?);
        }
        all.push(connect_to(bench, &node, &address)?[0]);
        Ok(all)
    })?;
    let line = |(metric, (what, unit, goal)): (usize, (&str, &'static str, f64))| {
        let what = format!("{what} of {}, against {}", services::SERVICES, Way::Services.name());
        let [ours, other] = [Way::Vswitch, Way::Services].map(|way| rounds.of(way, metric));
        Line::ratio("service", what, &ours, &other, unit, Goal::AtLeast(goal))
    };
    Ok(WORK.into_iter().enumerate().map(line).collect())
}
