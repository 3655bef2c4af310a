//! `bulkhead-bench wire`: the program as it runs on nodes, compared with the kernel, with traffic of ordinary programs.
//!
//! Each line of the table is a ratio between the vswitch and another path through the node, or an absolute value, beside its goal. Paths
//! are measured in turns of a few seconds, so that other load on the machine affects all of them. The ratio is the median of the rounds'
//! ratios. Every turn creates a new node, so that no sessions, connection tracking or ports in TIME_WAIT remain from the one before.
//!
//! However the benchmark ends, its namespaces, programs and files are removed ([`crate::testbed`]).

mod before;
mod flood;
mod latency;
mod node;
mod restart;
mod scale;
mod service;
mod throughput;
mod vswitch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use bulkhead_dataplane::io::cores;
use serde_json::json;

use crate::args::{Row, Wire};
use crate::rounds;
use crate::rows;
use crate::testbed;
use crate::testbed::load::Load;
pub(crate) use node::Attach;
use node::{Node, Plan, Program, Way};

/// Time limit for the program to forward, with a few ports.
const PATIENCE: Duration = Duration::from_secs(30);
/// Warm-up of caches and sessions before packets are counted.
const WARM_UP: Duration = Duration::from_millis(300);

/// Settings of all measurements.
#[derive(Clone, Debug)]
struct Bench {
    program: Program,
    /// Another build of the program, to compare `attach: xdp` with. `None` without `--before`.
    before: Option<Program>,
    rounds: u32,
    time: Duration,
    /// The cores of the clients and of the servers.
    cores: [usize; 2],
    /// Number of pods in the row `pods`.
    pods: usize,
    /// Number of connections in the row `restart`.
    connections: usize,
    /// Time without a process in the row `restart`.
    gone: Duration,
}

/// The measured values of each path.
type Rounds = rounds::Rounds<Way>;

impl Bench {
    /// Creates a node for one measurement.
    fn node(&self, way: Way, plan: Plan) -> anyhow::Result<Node> {
        Node::new(way, &self.program, plan, PATIENCE).with_context(|| format!("cannot set up {}", way.name()))
    }

    /// Measures all paths in turns, as many times as there are rounds.
    fn rounds(&self, ways: &[Way], once: impl FnMut(Way) -> anyhow::Result<Vec<f64>>) -> anyhow::Result<Rounds> {
        Rounds::measure(ways, self.rounds, Way::name, once)
    }

    /// Returns the settings of traffic between pods.
    const fn load(&self) -> Load {
        Load { time: self.time, warm_up: WARM_UP, cores: self.cores }
    }
}

const ROWS: [rows::Row<Row, Bench>; 11] = [
    (Row::Tcp, "tcp", throughput::pods),
    (Row::Node2, "node2", throughput::second_node),
    (Row::Host, "host", throughput::host),
    (Row::Udp, "udp", throughput::udp),
    (Row::Redis, "redis", latency::redis),
    (Row::Connect, "connect", latency::connections),
    (Row::Service, "service", service::cluster_address),
    (Row::Xdp, "xdp", before::xdp),
    (Row::Pods, "pods", scale::pods),
    (Row::Restart, "restart", restart::killed),
    (Row::Flood, "flood", flood::flood),
];

pub(crate) fn run(args: &Wire) -> anyhow::Result<ExitCode> {
    let bench = bench(args)?;
    let about = json!({
        "attach": bench.program.attach.name(), "rounds": bench.rounds, "seconds": args.seconds,
        "rules": crate::policy::RULES, "worker_cores": bench.program.cores,
    });
    rows::run(&ROWS, &args.only, &bench, args.output, about)
}

fn bench(args: &Wire) -> anyhow::Result<Bench> {
    let cores = cores::usable();
    ensure!(cores.len() >= 2, "this needs two cores, one for clients and one for servers");
    let workers = if args.worker_cores.is_empty() { cores[..2].to_vec() } else { args.worker_cores.clone() };
    let program = |path: PathBuf, attach| -> anyhow::Result<Program> {
        let known = vswitch::known(&path, attach)?;
        Ok(Program { path, attach, known, cores: workers.clone(), more: args.config.clone() })
    };
    Ok(Bench {
        program: program(testbed::program(args.bulkhead.clone())?, args.attach)?,
        before: args.before.clone().map(|path| program(testbed::program(Some(path))?, Attach::Xdp)).transpose()?,
        rounds: args.rounds.max(1),
        time: Duration::from_secs_f64(args.seconds),
        cores: [cores[0], cores[1]],
        pods: args.pods.into(),
        connections: args.connections.into(),
        gone: Duration::from_secs(args.gone.into()),
    })
}
