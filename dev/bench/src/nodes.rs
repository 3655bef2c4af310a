//! `bulkhead-bench nodes`: pods of two nodes, or of one and a machine outside, over a wire, compared with the kernel.
//!
//! As in [`crate::wire`], most lines are ratios between two ways, measured in turns, and every turn creates both nodes again. No policy
//! selects the pods: the rows compare the ways between nodes.
//!
//! However the benchmark ends, its namespaces, programs and files are removed ([`crate::testbed`]).

mod flows;
mod kernel;
mod outside;
mod pair;
mod throughput;
mod vswitch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use bulkhead_dataplane::io::cores;
use serde_json::json;

use crate::args::{Nodes, NodesRow};
use crate::rounds::Rounds;
use crate::rows::{self, Row};
use crate::testbed;
use crate::testbed::load::Load;
use pair::{Offloads, Pair, Way};

/// Time of traffic before a measurement, after which the flows are in the kernel's programs. Runs of less than a second are trials, for
/// which their own time suffices.
const WARM_UP: Duration = Duration::from_secs(1);

/// Settings of all measurements.
#[derive(Clone, Debug)]
struct Bench {
    /// The program to measure.
    program: PathBuf,
    /// How many times each way is measured, at least 1.
    rounds: u32,
    /// Duration of a measurement, and the cores of its traffic.
    load: Load,
}

impl Bench {
    /// Creates both nodes for one measurement and waits until the client reaches the sink.
    fn pair(&self, way: Way, offloads: Offloads) -> anyhow::Result<Pair> {
        Pair::new(way, offloads, &self.program, &self.load.cores).context("cannot set up both nodes")
    }

    /// Measures all ways in turns, as many times as there are rounds. `once` returns the metrics of one measurement.
    ///
    /// # Errors
    /// The first error of `once`, with the way's name.
    fn rounds(&self, ways: &[Way], once: impl FnMut(Way) -> anyhow::Result<Vec<f64>>) -> anyhow::Result<Rounds<Way>> {
        Rounds::measure(ways, self.rounds, Way::name, once)
    }
}

const ROWS: [Row<NodesRow, Bench>; 8] = [
    (NodesRow::Route, "route", throughput::route),
    (NodesRow::Tunnel, "tunnel", throughput::tunnel),
    (NodesRow::Connect, "connect", flows::connect),
    (NodesRow::Datagrams, "datagrams", flows::datagrams),
    (NodesRow::Latency, "latency", flows::latency),
    (NodesRow::World, "world", outside::world),
    (NodesRow::NodePort, "node-port", outside::node_port),
    (NodesRow::Card, "card", outside::card),
];

/// Measures the chosen rows and prints them. The exit code is 0 also if a goal is missed.
///
/// # Errors
/// If a measurement cannot be set up or fails.
pub(crate) fn run(args: &Nodes) -> anyhow::Result<ExitCode> {
    let bench = bench(args)?;
    let about = json!({"rounds": bench.rounds, "seconds": args.seconds, "worker_cores": bench.load.cores});
    rows::run(&ROWS, &args.only, &bench, args.output, about)
}

/// Returns the settings from the arguments.
///
/// # Errors
/// If there are fewer than two cores, or no program is found.
fn bench(args: &Nodes) -> anyhow::Result<Bench> {
    let cores = cores::usable();
    ensure!(cores.len() >= 2, "this needs two cores, one for clients and one for servers");
    let time = Duration::from_secs_f64(args.seconds);
    Ok(Bench {
        program: testbed::program(args.bulkhead.clone())?,
        rounds: args.rounds.max(1),
        load: Load { time, warm_up: WARM_UP.min(time), cores: [cores[0], cores[1]] },
    })
}
