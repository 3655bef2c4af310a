//! Measures TCP between pods of two nodes with iperf3.

use super::Bench;
use super::pair::{Offloads, Way};
use crate::rounds::Rounds;
use crate::table::{Goal, Line};

/// The numbers of flows of the two measurements, in the order of the metrics.
const FLOWS: [u32; 2] = [1, 8];

/// Measures the vswitch's routes. Returns the ratios to the kernel's routing.
pub(super) fn route(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for offloads in [Offloads::Kernel, Offloads::Off] {
        let rounds = measure(bench, &[Way::Route, Way::Routing], offloads)?;
        lines.extend(compare("route", &rounds, offloads, [Way::Route, Way::Routing], Goal::AtLeast(0.95)));
    }
    Ok(lines)
}

/// Measures the vswitch's tunnel. Returns the ratios to the kernel's VXLAN, and without offloads also to the vswitch's routes. With
/// offloads, a veth takes longer segments from routes than from a tunnel.
pub(super) fn tunnel(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let beside = Goal::AtLeast(1.0);
    let rounds = measure(bench, &[Way::Tunnel, Way::Flannel], Offloads::Kernel)?;
    lines.extend(compare("tunnel", &rounds, Offloads::Kernel, [Way::Tunnel, Way::Flannel], beside));
    let rounds = measure(bench, &[Way::Tunnel, Way::Flannel, Way::Route], Offloads::Off)?;
    lines.extend(compare("tunnel", &rounds, Offloads::Off, [Way::Tunnel, Way::Flannel], beside));
    lines.extend(compare("tunnel", &rounds, Offloads::Off, [Way::Tunnel, Way::Route], Goal::AtLeast(0.85)));
    Ok(lines)
}

/// Measures the ways in turns, with 1 and 8 flows.
pub(super) fn measure(bench: &Bench, ways: &[Way], offloads: Offloads) -> anyhow::Result<Rounds<Way>> {
    bench.rounds(ways, |way| {
        let pair = bench.pair(way, offloads)?;
        let iperf = |flows| bench.load.iperf(pair.client(), pair.sink(), &pair.address(), flows);
        FLOWS.into_iter().map(iperf).collect()
    })
}

/// Returns the ratios of the first way to the second, for 1 and for 8 flows.
pub(super) fn compare(
    row: &'static str,
    rounds: &Rounds<Way>,
    offloads: Offloads,
    ways: [Way; 2],
    goal: Goal,
) -> [Line; 2] {
    [0, 1].map(|metric| {
        let flows = if FLOWS[metric] == 1 { "1 flow".to_owned() } else { format!("{} flows", FLOWS[metric]) };
        let what = format!("TCP, {flows}, {}: {} against {}", offloads.name(), ways[0].name(), ways[1].name());
        let [ours, other] = ways.map(|way| rounds.of(way, metric));
        Line::ratio(row, what, &ours, &other, "Gb/s", goal)
    })
}
