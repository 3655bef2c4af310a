//! Measures TCP between a pod or a node and a machine outside.

use super::Bench;
use super::flows::connections;
use super::pair::{Offloads, Way};
use super::throughput::{compare, measure};
use crate::rounds::Rounds;
use crate::table::{Goal, Line};
use crate::testbed::load::IN_FLIGHT;

/// Measures connections of a pod to the world. Returns the ratios of the vswitch to nftables and the kernel's connection tracking.
///
/// # Errors
/// As for [`both`].
pub(super) fn world(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    both(bench, "world", [Way::Masquerade, Way::KernelMasquerade], Goal::AtLeast(1.0))
}

/// Measures connections from outside to a pod. Returns the ratios of the vswitch to rules like kube-proxy's and the kernel's connection tracking.
///
/// # Errors
/// As for [`both`].
pub(super) fn node_port(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    both(bench, "node-port", [Way::NodePort, Way::KernelNodePort], Goal::AtLeast(1.0))
}

/// Measures what the vswitch does to the node's own connections over the card. Returns the ratios of a node with it to one without.
///
/// # Errors
/// As for [`both`].
pub(super) fn card(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    const WAYS: [Way; 2] = [Way::Beside, Way::Alone];
    let goal = Goal::AtLeast(0.99);
    let mut lines = both(bench, "card", WAYS, goal)?;
    let rounds = bench.rounds(&WAYS, |way| {
        let pair = bench.pair(way, Offloads::Kernel)?;
        Ok(bench.load.datagrams(pair.client(), pair.sink(), &pair.address())?.to_vec())
    })?;
    lines.push(line("card", "18-byte UDP, sendmmsg", &rounds, WAYS, "kpps", goal));
    Ok(lines)
}

/// Measures bulk and new connections by two ways. Returns the ratios of the first to the second: of bulk in Gb/s, and of new connections per second.
///
/// # Errors
/// If a pair of nodes cannot be set up, or a measurement fails.
fn both(bench: &Bench, row: &'static str, ways: [Way; 2], goal: Goal) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for offloads in [Offloads::Kernel, Offloads::Off] {
        let rounds = measure(bench, &ways, offloads)?;
        lines.extend(compare(row, &rounds, offloads, ways, goal));
    }
    let rounds = connections(bench, &ways)?;
    let [failed, others_failed] = ways.map(|way| rounds.of(way, 2));
    let what = format!("new TCP connections, {IN_FLIGHT} at a time");
    let note = format!("failed {failed:?} and {others_failed:?}");
    lines.push(line(row, &what, &rounds, ways, "thousand/s", goal).noted(&note));
    Ok(lines)
}

/// Returns the ratio of the first way to the second of the first metric.
fn line(row: &'static str, what: &str, rounds: &Rounds<Way>, ways: [Way; 2], unit: &'static str, goal: Goal) -> Line {
    let what = format!("{what}: {} against {}", ways[0].name(), ways[1].name());
    let [ours, other] = ways.map(|way| rounds.of(way, 0));
    Line::ratio(row, what, &ours, &other, unit, goal)
}
