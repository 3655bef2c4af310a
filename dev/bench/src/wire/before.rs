//! Compares `attach: xdp` with another build of the program, to detect a slowdown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bulkhead_dataplane::io::{Generator, LinkInfo};

use super::latency::connect;
use super::node::{Attach, CLIENT, Node, Plan, Program, SINK, Way};
use super::throughput::datagrams;
use super::{Bench, PATIENCE, WARM_UP};
use crate::frames::packets::{self, GROUP, PAUSE};
use crate::policy::UDP_PORT;
use crate::table::{Goal, Line};
use crate::testbed::net::Netns;
use crate::testbed::traffic::{UdpServer, pin, reach};

/// The measurements, in order: name and unit.
const WORK: [(&str, &str); 5] = [
    ("TCP pod to pod, 1 flow", "Gb/s"),
    ("TCP pod to pod, 8 flows", "Gb/s"),
    ("18-byte UDP pod to pod, sendmmsg", "kpps"),
    ("60-byte frames of a generator", "kpps"),
    ("new TCP connections", "thousand/s"),
];

pub(super) fn xdp(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let Some(before) = &bench.before else { bail!("this needs --before PATH, an older build of bulkhead") };
    let now = Program { attach: Attach::Xdp, ..bench.program.clone() };
    let rounds = bench.rounds(&[Way::Vswitch, Way::Before], |way| {
        let program = if way == Way::Before { before } else { &now };
        let node = || Node::new(way, program, Plan::pair(), PATIENCE).with_context(|| way.name());
        let mut all = Vec::new();
        {
            let node = node()?;
            let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
            reach(&client.netns, &sink.address)?;
            for flows in [1, 8] {
                all.push(bench.load().iperf(&client.netns, &sink.netns, &sink.address, flows)?);
            }
        }
        all.push(*datagrams(bench, &node()?)?.first().context("no datagrams")?);
        all.push(frames(bench, &node()?)?);
        all.push(*connect(bench, &node()?)?.first().context("no connections")?);
        Ok(all)
    })?;
    let line = |(metric, (what, unit)): (usize, (&str, &'static str))| {
        let what = format!("attach: xdp, {what}, against {}", Way::Before.name());
        let [ours, other] = [Way::Vswitch, Way::Before].map(|way| rounds.of(way, metric));
        Line::ratio("xdp", what, &ours, &other, unit, Goal::AtLeast(0.97))
    };
    Ok(WORK.into_iter().enumerate().map(line).collect())
}

/// Sends raw frames of established flows. Returns the thousands per second that arrive at the sink.
fn frames(bench: &Bench, node: &Node) -> anyhow::Result<f64> {
    let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
    reach(&client.netns, &sink.address)?;
    // The port must be open, or the sink's kernel rejects every packet.
    let _receiver = UdpServer::start(&sink.netns, UDP_PORT, Some(bench.cores[1]))?;
    let [from_client, to_client] = ends(&client.netns, &node.netns, &client.interface)?;
    let [from_sink, to_sink] = ends(&sink.netns, &node.netns, &sink.interface)?;
    let forth = packets::frames(packets::Way::Forth, from_client, to_client);
    let back = packets::frames(packets::Way::Back, from_sink, to_sink);
    for (pod, frames) in [(client, &forth), (sink, &back)] {
        for group in frames.chunks(GROUP) {
            pod.netns.inside(|| Ok(Generator::new("eth0", group)?.send(1)?))?;
            std::thread::sleep(PAUSE);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let generator = scope.spawn(|| {
            client.netns.inside(|| {
                pin(bench.cores[0]);
                Ok(Generator::new("eth0", &forth)?.run(&stop)?)
            })
        });
        std::thread::sleep(WARM_UP);
        let counted = count(&sink.netns, bench.time);
        stop.store(true, Ordering::Relaxed);
        generator.join().map_err(|_| anyhow::anyhow!("the generator has panicked"))??;
        counted
    })
}

/// Returns the MAC addresses of a pod and of the node's end of its veth.
fn ends(pod: &Netns, node: &Netns, interface: &str) -> anyhow::Result<[[u8; 6]; 2]> {
    Ok([pod.inside(|| Ok(LinkInfo::read("eth0")?.mac))?, node.inside(|| Ok(LinkInfo::read(interface)?.mac))?])
}

/// Counts for `time`. Returns thousands of packets per second that a pod receives.
fn count(pod: &Netns, time: Duration) -> anyhow::Result<f64> {
    let (before, started) = (pod.received("eth0")?, Instant::now());
    std::thread::sleep(time);
    let (after, took) = (pod.received("eth0")?, started.elapsed());
    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
    Ok((after - before) as f64 / took.as_secs_f64() / 1e3)
}
