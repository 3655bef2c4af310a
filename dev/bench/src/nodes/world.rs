//! Measures TCP from a pod to a machine outside, which sees the node's address.

use super::Bench;
use super::pair::{Offloads, Way};
use super::throughput::{compare, measure};
use crate::table::{Goal, Line};
use crate::testbed::load::{IN_FLIGHT, Load};

const WAYS: [Way; 2] = [Way::Masquerade, Way::KernelMasquerade];
const GOAL: Goal = Goal::AtLeast(1.0);

/// Returns the ratios of the vswitch to nftables and the kernel's connection tracking: of bulk, and of the rate of new connections.
pub(super) fn world(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for offloads in [Offloads::Kernel, Offloads::Off] {
        let rounds = measure(bench, &WAYS, offloads)?;
        lines.extend(compare("world", &rounds, offloads, WAYS, GOAL));
    }
    let rounds = bench.rounds(&WAYS, |way| {
        let pair = bench.pair(way, Offloads::Kernel)?;
        let connections = |load: Load| load.connections(pair.client(), pair.sink(), &pair.address());
        connections(Load { time: bench.load.warm_up, ..bench.load })?;
        Ok(connections(bench.load)?.values())
    })?;
    let [[ours, other], [failed, others_failed]] = [0, 2].map(|metric| WAYS.map(|way| rounds.of(way, metric)));
    let what = format!("new TCP connections, {IN_FLIGHT} at a time: {} against {}", WAYS[0].name(), WAYS[1].name());
    let note = format!("failed {failed:?} and {others_failed:?}");
    lines.push(Line::ratio("world", what, &ours, &other, "thousand/s", GOAL).noted(&note));
    Ok(lines)
}
