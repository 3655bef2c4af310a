//! `bulkhead-bench cluster`: the program as the daemon of a cluster's node, with an API server, pods that a CNI plugin wires, and the
//! commands that ask it.
//!
//! ```text
//!   [ node: bulkhead run <--HTTP over lo-- API server of the tests ]     put, delete by this program
//!       p1 |        | p2      made by `bulkhead cni`, addresses by host-local
//!   [ client ]  [ sink ] ...
//! ```
//!
//! A subcommand of its own and not rows of `wire`: nothing here is compared with the kernel, all rows need what `wire` has no use for (an
//! API server, plugins, thousands of objects), and the values are promises about one node of a cluster instead of ratios.
//!
//! The server is the one of the tests. It runs in this process, so that its work (it writes JSON for each event) competes for the same
//! cores as the vswitch: real ones are elsewhere.

mod add;
mod events;
mod memory;
mod node;
mod objects;
mod policy;
mod runtime;
mod status;

/// The server of the tests, as it is: another one would have to be as true to the API.
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

/// What all measurements have in common.
#[derive(Clone, Debug)]
struct Bench {
    program: PathBuf,
    /// Of the workers.
    cores: Vec<usize>,
    /// Pods of other nodes, and policies.
    pods: usize,
    policies: usize,
    /// Changes of the row `policy`.
    changes: usize,
    /// Pods of this node in the rows `add` and `status`.
    ports: usize,
    /// Pods of the row `memory`.
    many_pods: usize,
    /// A second, of the row `events`.
    events: usize,
    rounds: usize,
    /// Of one measurement.
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
