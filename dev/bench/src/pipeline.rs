//! `bulkhead-bench pipeline`: the cost of a packet between two ports of the vswitch, without interfaces.
//! ```text
//!   generator --> LoopbackPort --> a worker's round: receive -> judge -> forward -> send --> LoopbackPort --> generator
//! ```
//!
//! Packets are real frames in a few hundred reused buffers, as in VPP's packet generator. So their bytes are in the cache, and the
//! measurement shows the work and the session table. Generator and worker take turns on one core, burst by burst, and are timed separately;
//! only the worker's time is reported. Results are checked before timing, and counted afterwards.
//!
//! Packets start at different offsets of their buffers, as in VPP and in `engine`, so that their headers use all sets of the cache. Packets
//! of an AF_XDP socket start at one offset of each page: the same work then takes about 2 ns more per packet, in addition to the kernel's
//! time.
//!
//! `--engine` measures only `Worker::judge` and the rewrite. `--spread` compares designs for several workers: packets handed to the worker
//! with their sessions, or sessions that all workers share. The vswitch's module documentation uses the result.

mod engine;
mod measure;
mod node;
mod shared;
mod through;
mod traffic;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use bulkhead_dataplane::filter::Filter;
use bulkhead_dataplane::vswitch::stream::{StreamPlan, Tracepoint};
use bulkhead_dataplane::{BURST, Percent, SessionConfig, WorkerConfig};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::args::Format;
use crate::memory_ports::CAPACITY;
use engine::Engine;
use measure::{Measured, Subject};
use node::Node;
use shared::{Access, Lines};
use through::Through;
use traffic::Order;

/// `bulkhead-bench pipeline`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench pipeline --flows 1000000 --rules 1000 -o json\n\n\
    Times exclude the packet generator, which takes turns with the vswitch and is timed separately.")]
pub(crate) struct Pipeline {
    /// Number of flows, in random order; with --new-sessions, the number of sessions in the table at a time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub(crate) flows: u32,
    /// Number of rules in the table of the destination pod; only the last one matches
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rules: u32,
    /// Frame size in bytes, without checksum
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub(crate) size: u16,
    /// Number of workers, each on its own thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// How packets are distributed among several workers
    #[arg(long, value_enum, default_value = "own")]
    pub(crate) spread: Spread,
    /// Measure only the engine and the rewrite, without ports and vswitch
    #[arg(long)]
    pub(crate) engine: bool,
    /// Send packets to a Service's address; the vswitch translates them to the pod's address and port
    #[arg(long)]
    pub(crate) translated: bool,
    /// Start a session with every packet; sessions expire at the same rate
    #[arg(long)]
    pub(crate) new_sessions: bool,
    /// What a stream reader watches meanwhile; the reading thread works like the vswitch's
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) watch: Watch,
    /// Duration of the measurement, in milliseconds
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    pub(crate) duration: u32,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

/// The stream whose reader runs during the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watch {
    /// No stream
    Off,
    /// A trace with a filter that matches no packet
    Nothing,
    /// Each new session and each dropped packet, as for `monitor`
    Verdicts,
    /// As `verdicts`, but read as rarely as by the journal
    Journal,
}

impl Watch {
    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Nothing => "nothing",
            Self::Verdicts => "verdicts",
            Self::Journal => "journal",
        }
    }

    /// Returns the interval between reads, as in the vswitch's thread.
    const fn interval(self) -> Duration {
        Duration::from_millis(if matches!(self, Self::Journal) { 50 } else { 10 })
    }

    /// Returns the plan for workers. `None` without a stream.
    fn plan(self) -> Option<StreamPlan> {
        // A documentation address (RFC 5737), which no flow has.
        let filter = || Filter::parse("host 203.0.113.77").unwrap_or_default();
        let nothing = || Tracepoint { filter: filter(), ..Tracepoint::default() };
        match self {
            Self::Off => None,
            Self::Nothing => Some(StreamPlan { tracepoints: [nothing()].into(), ..StreamPlan::default() }),
            Self::Verdicts | Self::Journal => Some(StreamPlan { verdicts: true, ..StreamPlan::default() }),
        }
    }
}

/// How flows are distributed among workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spread {
    /// Each worker receives packets of its own flows, as from an interface with the vswitch's hash
    Own,
    /// Every worker receives packets of all flows and hands those of others over
    Any,
    /// As `any`, but without hand-over: each hit writes a cache line that all workers share, a lower bound for the cost of a shared session
    /// table
    Shared,
    /// As `shared`, with a lock in each line
    Locked,
    /// As `shared`, but each worker has its own lines: the baseline for the two
    Unshared,
}

impl Spread {
    /// Whether each worker has only its part of the sessions.
    const fn divides(self) -> bool {
        matches!(self, Self::Own | Self::Any)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Any => "any",
            Self::Shared => "shared",
            Self::Locked => "locked",
            Self::Unshared => "unshared",
        }
    }
}

/// Settings of all workers.
#[derive(Clone, Copy, Debug)]
struct Setup {
    size: usize,
    /// Number of flows of all workers together.
    flows: u32,
    /// Number of sessions that each worker has at a time.
    sessions: u32,
    spread: Spread,
    order: Order,
    /// Configuration of each worker's engine.
    engine: WorkerConfig,
    /// Nanoseconds between bursts, on the packets' clock.
    step: u64,
    watch: Watch,
}

/// A worker's share of the flows: worker `number` of `of` workers.
#[derive(Clone, Copy, Debug)]
struct Share {
    number: u16,
    of: u16,
}

impl Setup {
    /// Time of the first burst, in nanoseconds.
    const BEGIN: u64 = 1_000_000_000_000;

    fn new(args: &Pipeline) -> Self {
        let parts = if args.spread.divides() { args.workers.into() } else { 1 };
        let flows = args.flows.div_ceil(parts);
        let order = if args.new_sessions { Order::Fresh } else { Order::Random };
        // 5 % more than the flows, so that the table is nearly full but refuses none. Sessions to a Service's address take two slots of the
        // index, half of which should stay free.
        let spare = if args.translated { 1 } else { 20 };
        let capacity = flows as usize + flows as usize / spare + BURST;
        let sessions = SessionConfig {
            // All packets come from the uplink and go to one pod, which may use the whole table.
            outside_share: Percent::ALL,
            pod_share: Percent::ALL,
            ..SessionConfig::live(if args.new_sessions { capacity } else { capacity.max(CAPACITY) })
        };
        let step = match order {
            // A session expires after `flows` others have started. (A burst is 256 packets.)
            Order::Fresh => sessions.timeouts.udp_unreplied / u64::from(flows.div_ceil(256)),
            // 256 packets at 20 million per second.
            Order::Random | Order::Each => 12_800,
        };
        let engine = WorkerConfig { sessions, ..WorkerConfig::default() };
        let (size, flows_of_all, spread, watch) = (args.size.into(), args.flows, args.spread, args.watch);
        Self { size, flows: flows_of_all, sessions: flows, spread, order, engine, step, watch }
    }
}

pub(crate) fn run(args: &Pipeline) -> anyhow::Result<ExitCode> {
    ensure!(
        args.spread == Spread::Own || !(args.engine || args.new_sessions),
        "--spread {} cannot be combined with --engine or --new-sessions",
        args.spread.name()
    );
    ensure!(
        !args.translated || (!args.engine && args.workers == 1),
        "--translated needs --workers 1 and cannot be combined with --engine"
    );
    ensure!(args.watch == Watch::Off || !args.engine, "--watch cannot be combined with --engine");
    let (setup, node) = (Setup::new(args), &Node::new(args.rules, args.translated)?);
    let duration = Duration::from_millis(args.duration.into());
    let measured = if args.engine {
        let shares = (0..args.workers).map(|number| Share { number, of: args.workers });
        let engines = shares.map(|share| Engine::new(&setup, node, share)).collect();
        side_by_side(engines, &setup, duration)?.0
    } else {
        let (measured, workers) = side_by_side(workers(args, &setup, node)?, &setup, duration)?;
        through::finish(workers)?;
        measured
    };
    write(&report(args, &measured), args.output).context("cannot write the answer")?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the vswitch's workers.
fn workers<'a>(args: &Pipeline, setup: &Setup, node: &'a Node) -> anyhow::Result<Vec<Through<'a>>> {
    let apart = |lines: &dyn Fn() -> Lines| {
        // A separate vswitch for each worker.
        let one = |_| Ok(through::vswitch(setup, node, 1)?.into_iter().map(|worker| worker.with(lines())));
        Ok((0..args.workers).map(one).collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    };
    match args.spread {
        Spread::Own | Spread::Any => through::vswitch(setup, node, args.workers),
        Spread::Unshared => apart(&|| Lines::new(args.flows, Access::Plain)),
        Spread::Shared | Spread::Locked => {
            let access = if args.spread == Spread::Locked { Access::Locked } else { Access::Plain };
            let lines = Lines::new(args.flows, access);
            apart(&|| lines.clone())
        }
    }
}

/// Measures all subjects at the same time, each on its own thread. Returns the results and the subjects.
fn side_by_side<S: Subject + Send>(
    subjects: Vec<S>,
    setup: &Setup,
    duration: Duration,
) -> anyhow::Result<(Vec<Measured>, Vec<S>)> {
    let (start, others) = (&Barrier::new(subjects.len()), &AtomicUsize::new(subjects.len()));
    let one = move |mut subject: S| {
        let prepared = measure::prepare(&mut subject, setup.order, setup.sessions);
        start.wait();
        if let Err(error) = prepared {
            others.fetch_sub(1, Ordering::Relaxed);
            return Err(error);
        }
        Ok((measure::time(&mut subject, setup.order, duration, others), subject))
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = subjects.into_iter().map(|subject| scope.spawn(move || one(subject))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a measurement does not panic")).collect::<Vec<_>>()
    });
    Ok(results.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip())
}

fn report(args: &Pipeline, measured: &[Measured]) -> Value {
    let sum = |of: fn(&Measured) -> u64| measured.iter().map(of).sum::<u64>();
    let rate: f64 = measured.iter().map(|worker| 1e9 / worker.net).sum();
    let sessions: usize = measured.iter().map(|worker| worker.sessions).sum();
    let bytes: usize = measured.iter().map(|worker| worker.session_bytes).sum();
    json!({
        "packets_per_second": rate,
        "ns_per_packet": 1e9 / rate,
        "ns_per_packet_fastest_round": measured.iter().map(|worker| worker.fastest).fold(f64::INFINITY, f64::min),
        "flows": args.flows,
        "rules": args.rules,
        "workers": args.workers,
        "session_hits": sum(|worker| worker.hits),
        "new_sessions": sum(|worker| worker.created),
        "packets": sum(|worker| worker.packets),
        "size": args.size,
        "translated": args.translated,
        "path": if args.engine { "engine" } else { "vswitch" },
        "spread": args.spread.name(),
        "watch": args.watch.name(),
        "dropped": sum(|worker| worker.dropped),
        "generator_ns_per_packet": measured.iter().map(|worker| worker.generator).sum::<f64>() / measured.len() as f64,
        "session_bytes": bytes,
        "bytes_per_session": bytes as f64 / sessions.max(1) as f64,
    })
}

fn write(report: &Value, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Json => writeln!(out, "{report}")?,
        Format::Text => {
            let number = |key: &str| report[key].as_f64().unwrap_or_default();
            writeln!(
                out,
                "{:.1} million packets a second, {:.1} ns each ({:.1} in the fastest round), net of the generator's {:.1} ns",
                number("packets_per_second") / 1e6,
                number("ns_per_packet"),
                number("ns_per_packet_fastest_round"),
                number("generator_ns_per_packet")
            )?;
            writeln!(
                out,
                "{} flows, {} rules, {} workers; {} packets, {} of them hits; {:.0} bytes per session",
                report["flows"],
                report["rules"],
                report["workers"],
                report["packets"],
                report["session_hits"],
                number("bytes_per_session")
            )?;
        }
    }
    Ok(())
}
