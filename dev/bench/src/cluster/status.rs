//! Measures `bulkhead status`, including the start of its process.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::Bench;
use super::node::Node;
use super::objects::PodName;
use crate::table::{Goal, Line, digits, median, milliseconds, percentile};

/// Measurements per round.
const TIMES: usize = 20;
/// Longer than the vswitch caches an answer, so that each one is composed again.
const PAUSE: Duration = Duration::from_millis(120);

pub(super) fn status(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let node = Node::new(bench, "")?;
    let pods: Vec<PodName> = (0..bench.ports).map(PodName::local).collect();
    let _pods = node.create(&pods)?;
    let (socket, mut times) = (node.socket(), Vec::new());
    for _ in 0..TIMES * bench.rounds {
        std::thread::sleep(PAUSE);
        let mut command = Command::new(&bench.program);
        command.arg("status").arg("--socket").arg(&socket).stdin(Stdio::null());
        let started = Instant::now();
        let output = command.output()?;
        times.push(milliseconds(started.elapsed()));
        ensure!(output.status.success(), "status failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let what = format!("bulkhead status, {} ports, {} pods, median", bench.ports, bench.pods);
    let note = format!("p99 {}, {} times", digits(percentile(&times, 99.0)), times.len());
    Ok(vec![Line::value("status", &what, median(&times), "ms", Goal::AtMost(50.0)).noted(&note)])
}
