//! Measures the latency of redis requests, and the rate and duration of new connections.

use anyhow::Context;

use super::Bench;
use super::node::{CLIENT, Node, Plan, SINK, Way};
use crate::table::{Goal, Line, digits, median};
use crate::testbed::folder::Folder;
use crate::testbed::load::IN_FLIGHT;
use crate::testbed::net::Netns;
use crate::testbed::traffic::reach;

/// Numbers of redis-benchmark's clients, and of their requests in about a second: enough for a 99th percentile.
const CLIENTS: [(u32, u64); 2] = [(1, 15_000), (32, 50_000)];

/// Measures the latency of GET requests to redis. Returns ratios of the 50th and 99th percentiles.
pub(super) fn redis(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Policy], |way| {
        let node = bench.node(way, Plan::pair())?;
        let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
        reach(&client.netns, &sink.address)?;
        let [here, there] = bench.cores;
        let folder = Folder::new()?;
        let config = folder.write("redis.conf", "port 6379\nsave \"\"\nappendonly no\nprotected-mode no\n")?;
        let _server = sink.netns.serve(&format!("taskset -c {there} redis-server {}", config.display()), 6379)?;
        let mut all = Vec::new();
        for (clients, requests) in CLIENTS {
            let requests = (requests * u64::try_from(bench.time.as_millis())? / 1_000).max(1_000);
            all.extend(get(&client.netns, here, &sink.address, clients, requests)?);
        }
        Ok(all)
    })?;
    let mut lines = Vec::new();
    for (metric, (clients, what)) in [(1, "p50"), (1, "p99"), (32, "p50"), (32, "p99")].into_iter().enumerate() {
        let what = format!("redis GET, {clients} clients, {what}, against {}", Way::Policy.name());
        let [ours, other] = [Way::Vswitch, Way::Policy].map(|way| rounds.of(way, metric));
        lines.push(Line::ratio("redis", what, &ours, &other, "ms", Goal::AtMost(1.0)));
    }
    Ok(lines)
}

/// Returns the 50th and 99th percentile in milliseconds, as redis-benchmark reports them.
fn get(from: &Netns, core: usize, address: &str, clients: u32, requests: u64) -> anyhow::Result<[f64; 2]> {
    let line =
        format!("timeout 60 taskset -c {core} redis-benchmark -h {address} -t get -c {clients} -n {requests} --csv");
    let text = from.run(&line)?;
    let mut rows = text.lines().map(|line| line.split(',').map(|cell| cell.trim_matches('"')).collect::<Vec<_>>());
    let (names, values) = rows.next().zip(rows.next()).context("redis-benchmark said nothing")?;
    let of = |wanted: &str| -> anyhow::Result<f64> {
        let at = names.iter().position(|name| *name == wanted).with_context(|| format!("no {wanted} in: {text}"))?;
        Ok(values.get(at).context("a short line")?.parse()?)
    };
    Ok([of("p50_latency_ms")?, of("p99_latency_ms")?])
}

/// Measures new TCP connections with a byte each way: their rate, and their connection times.
pub(super) fn connections(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Policy], |way| connect(bench, &bench.node(way, Plan::pair())?))?;
    let [ours, other] = [Way::Vswitch, Way::Policy].map(|way| rounds.of(way, 0));
    let [p99, failed, repeated] =
        [1, 2, 3].map(|metric| [Way::Vswitch, Way::Policy].map(|way| digits(median(&rounds.of(way, metric)))));
    let what = format!("new TCP connections, {IN_FLIGHT} at a time, against {}", Way::Policy.name());
    let line = Line::ratio("connect", what, &ours, &other, "thousand/s", Goal::AtLeast(0.7));
    let note = format!(
        "p99 of one {} and {} ms; failed {} and {}, segments sent again {} and {}",
        p99[0], p99[1], failed[0], failed[1], repeated[0], repeated[1]
    );
    let line = line.noted(&note).with("p99_ms", p99.to_vec().into());
    Ok(vec![line.with("failed", failed.to_vec().into()).with("sent_again", repeated.to_vec().into())])
}

/// Opens connections to the sink. Returns the values of [`crate::testbed::load::Connections`].
pub(super) fn connect(bench: &Bench, node: &Node) -> anyhow::Result<Vec<f64>> {
    connect_to(bench, node, &node.pod(SINK).address)
}

/// Opens connections as [`connect`], to this address of the sink, and returns the same values.
pub(super) fn connect_to(bench: &Bench, node: &Node, address: &str) -> anyhow::Result<Vec<f64>> {
    let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
    reach(&client.netns, &sink.address)?;
    Ok(bench.load().connections(&client.netns, &sink.netns, address)?.values())
}
