//! `bulkhead-bench cluster`: the program as the daemon of a cluster's node, with an API server and pods that the CNI plugin attaches.
//! ```text
//!   [ node: bulkhead run <--HTTP over lo-- API server of the tests ]     put, delete by this program
//!       p1 |        | p2      made by `bulkhead cni`, which also assigns the addresses
//!   [ client ]  [ sink ] ...
//! ```
//!
//! This is not part of `wire`: nothing is compared with the kernel, all rows need an API server, plugins and thousands of objects, and the
//! values are promises about one node instead of ratios.
//!
//! The API server is the one of the tests and runs in this process. Its work, such as writing JSON for each event, competes for the
//! vswitch's cores. A real one would run elsewhere.

mod add;
mod events;
mod memory;
mod node;
mod objects;
mod policy;
mod runtime;
mod status;

/// The tests' API server, reused because a second one would have to imitate the API as exactly.
#[path = "../../../cluster/tests/support/api_server.rs"]
mod api_server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use bulkhead_dataplane::io::cores;
use serde_json::json;

use crate::args::{Cluster, ClusterRow};
use crate::rows::{self, Row};
use crate::testbed;

/// Settings of all measurements.
#[derive(Clone, Debug)]
struct Bench {
    program: PathBuf,
    /// Numbers of the cores on which the vswitch's workers run.
    cores: Vec<usize>,
    /// Number of pods on other nodes; `policies` is the number of policies.
    pods: usize,
    policies: usize,
    /// Number of policy changes in the row `policy`.
    changes: usize,
    /// Number of pods on this node in the rows `add` and `status`.
    ports: usize,
    /// Number of pods in the row `memory`.
    many_pods: usize,
    /// Pod events per second in the row `events`.
    events: usize,
    rounds: usize,
    /// Duration of one measurement of the row `events`.
    time: Duration,
}

const ROWS: [Row<ClusterRow, Bench>; 5] = [
    (ClusterRow::Policy, "policy", policy::policy),
    (ClusterRow::Add, "add", add::add),
    (ClusterRow::Memory, "memory", memory::memory),
    (ClusterRow::Status, "status", status::status),
    (ClusterRow::Events, "events", events::events),
];

pub(crate) fn run(args: &Cluster) -> anyhow::Result<ExitCode> {
    let bench = bench(args)?;
    let about = json!({
        "pods": bench.pods, "policies": bench.policies, "rounds": bench.rounds, "seconds": args.seconds,
        "worker_cores": bench.cores,
    });
    rows::run(&ROWS, &args.only, &bench, args.output, about)
}

fn bench(args: &Cluster) -> anyhow::Result<Bench> {
    let cores = cores::usable();
    ensure!(cores.len() >= 2, "this needs two cores");
    Ok(Bench {
        program: testbed::program(args.bulkhead.clone())?,
        cores: if args.worker_cores.is_empty() { cores[..2].to_vec() } else { args.worker_cores.clone() },
        pods: args.pods.into(),
        policies: args.policies.into(),
        changes: args.changes.into(),
        ports: args.ports.into(),
        many_pods: usize::try_from(args.many_pods)?,
        events: args.events.into(),
        rounds: usize::try_from(args.rounds.max(1))?,
        time: Duration::from_secs_f64(args.seconds),
    })
}
