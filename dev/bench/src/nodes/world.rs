//! Measures TCP from a pod to a machine outside, which sees the node's address.

use super::Bench;
use super::flows::connections;
use super::pair::{Offloads, Way};
use super::throughput::{compare, measure};
use crate::table::{Goal, Line};
use crate::testbed::load::IN_FLIGHT;

/// The ways that are compared, and the goal: the ratio of the first to the second.
const WAYS: [Way; 2] = [Way::Masquerade, Way::KernelMasquerade];
const GOAL: Goal = Goal::AtLeast(1.0);

/// Measures both ways to the world. Returns the ratios of the vswitch to nftables and the kernel's connection tracking: of bulk in Gb/s, and of new
/// connections per second.
///
/// # Errors
/// If a pair of nodes cannot be set up, or a measurement fails.
pub(super) fn world(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for offloads in [Offloads::Kernel, Offloads::Off] {
        let rounds = measure(bench, &WAYS, offloads)?;
        lines.extend(compare("world", &rounds, offloads, WAYS, GOAL));
    }
    let rounds = connections(bench, &WAYS)?;
    let [[ours, other], [failed, others_failed]] = [0, 2].map(|metric| WAYS.map(|way| rounds.of(way, metric)));
    let what = format!("new TCP connections, {IN_FLIGHT} at a time: {} against {}", WAYS[0].name(), WAYS[1].name());
    let note = format!("failed {failed:?} and {others_failed:?}");
    lines.push(Line::ratio("world", what, &ours, &other, "thousand/s", GOAL).noted(&note));
    Ok(lines)
}
