//! `bulkhead-bench names`: rules that name domains. Measures whether true DNS answers allow connections, whether forged ones do, and what
//! learning costs in time and memory.
//! ```text
//!   pod --query--> worker A --> DNS server      A owns the pair of pod and server
//!   pod <-answer-- worker A <-- DNS server      A stores the addresses, then forwards the answer
//!   pod ---SYN---> worker B --> address         B owns the pair of pod and address: at once, on another thread
//! ```
//!
//! All packets are frames in memory, which `Worker::judge` judges with the configuration of a live vswitch. No interface, DNS server or
//! clock takes part. Packets carry a simulated time, so that workers judge 1,000,000 connections of half an hour in seconds.
//!
//! Each packet of the rows `connections` and `forged` must get the right verdict. If one does not, the program exits with 1.

mod connections;
mod forged;
mod latency;
mod memory;
mod node;
mod packets;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use bulkhead_dataplane::{Affinity, Judged, SessionConfig, SessionStore, Snapshot, Verdict, Worker, WorkerConfig};
use serde_json::json;

use crate::args::{Names, NamesRow};
use crate::memory_ports::CAPACITY;
use crate::rows::{self, Row};
use crate::table::Line;
use crate::testbed::folder::Folder;
use node::Node;
use packets::Frame;

const SECOND: u64 = 1_000_000_000;
/// Time of the first packet in nanoseconds since 1970.
const BEGIN: u64 = 1_700_000_000 * SECOND;
/// Simulated time between two conversations in nanoseconds. Each pod then resolves ten names a second. All pods together open 60,000
/// connections within the timeout of unanswered ones, which is less than their share of the session table.
const STEP: u64 = 2_000_000;
/// Time in nanoseconds for which an address is valid after its TTL: the configuration's default.
const GRACE: u64 = 30 * SECOND;
/// Number of conversations between two sweeps of the learned names: one second, as in the program.
const STEPS_PER_SWEEP: u32 = 500;
/// Number of workers in the rows `connections` and `forged`.
const WORKERS: usize = 4;
/// A folder in memory, for the files of names and sessions: `/run` of a live vswitch is a tmpfs too.
const MEMORY: &str = "/dev/shm";

/// Settings of all rows.
struct Bench {
    node: Node,
    /// Number of connections in the row `connections`.
    connections: u32,
    /// Number of forged answers in the row `forged`.
    forged: u32,
    /// Number of answers per round of the row `latency`.
    answers: u32,
    /// Number of rounds of the row `latency`.
    rounds: u32,
    memory: memory::Size,
}

/// `memory` is first: the memory that other rows free would be reused, and the process would grow less.
const ROWS: [Row<NamesRow, Bench>; 4] = [
    (NamesRow::Memory, "memory", memory::memory),
    (NamesRow::Connections, "connections", connections::connections),
    (NamesRow::Forged, "forged", forged::forged),
    (NamesRow::Latency, "latency", latency::latency),
];

/// The rows of which each line must meet its goal. Otherwise the program exits with 1.
const PROMISES: [&str; 2] = ["connections", "forged"];

pub(crate) fn run(args: &Names) -> anyhow::Result<ExitCode> {
    let bench = Bench {
        node: Node::new()?,
        connections: args.connections,
        forged: args.forged,
        answers: args.answers,
        rounds: args.rounds.max(1),
        memory: memory::Size { names: args.names, pods: args.pods, addresses: args.addresses },
    };
    let about = json!({
        "connections": args.connections, "forged": args.forged, "answers": args.answers, "rounds": bench.rounds,
        "memory": {"names": args.names, "pods": args.pods, "addresses": args.addresses},
    });
    let lines = rows::measure(&ROWS, &args.only, &bench);
    rows::print(&lines, args.output, about)?;
    let is_broken = |line: &Line| PROMISES.contains(&line.row) && line.is_met() != Some(true);
    Ok(if lines.iter().any(is_broken) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the configuration of a live vswitch's workers.
fn config() -> WorkerConfig {
    WorkerConfig { sessions: SessionConfig::live(CAPACITY), ..WorkerConfig::default() }
}

/// Returns the simulated time of a conversation in nanoseconds since 1970. `step` is the conversation's number.
fn time_of(step: u32) -> u64 {
    BEGIN + u64::from(step) * STEP
}

/// A worker and the buffer of its results.
struct Judge {
    worker: Worker,
    judged: Vec<Judged>,
}

impl Judge {
    fn new(worker: Worker) -> Self {
        Self { worker, judged: Vec::new() }
    }

    /// Creates workers that share the table of learned names, and keep names and sessions in files like those of a live vswitch. `affinity`
    /// selects each packet's worker.
    ///
    /// # Errors
    /// If the files cannot be written to [`MEMORY`].
    fn team(workers: usize, affinity: &Affinity, snapshot: &Snapshot) -> anyhow::Result<Vec<Self>> {
        // The files stay mapped after their folder is removed.
        let folder = Folder::new_in(Path::new(MEMORY))?;
        let mut store = SessionStore::open(&folder.path("sessions"))?;
        let team = Worker::team_in(&mut store, config(), workers, affinity, snapshot, BEGIN)?;
        Ok(team.into_iter().map(Self::new).collect())
    }

    /// Creates one worker like those of [`Judge::team`].
    ///
    /// # Errors
    /// As for [`Judge::team`].
    fn alone(snapshot: &Snapshot) -> anyhow::Result<Self> {
        Self::team(1, &Affinity::new(), snapshot)?.pop().context("a team of one has a worker")
    }

    /// Judges one packet, as a burst of its own, at a time in nanoseconds since 1970. Returns the result.
    fn judge(&mut self, snapshot: &Snapshot, time: u64, frame: &Frame) -> Judged {
        self.worker.judge(snapshot, time, [frame.received()], &mut self.judged);
        self.judged.first().copied().unwrap_or(Judged::UNJUDGED)
    }

    /// Judges a packet that must be forwarded, such as a query. `what` is the packet's name in an error.
    ///
    /// # Errors
    /// If the packet is dropped.
    fn forward(&mut self, snapshot: &Snapshot, time: u64, frame: &Frame, what: &str) -> anyhow::Result<()> {
        let verdict = self.judge(snapshot, time, frame).verdict;
        ensure!(matches!(verdict, Verdict::Forward(_)), "{what} was not forwarded: {verdict:?}");
        Ok(())
    }
}
