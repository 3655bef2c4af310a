//! `bulkhead-bench pipeline`: what a packet costs from one port of the vswitch to another, without interfaces.
//!
//! ```text
//!   generator --> LoopbackPort --> a worker's round: receive -> judge -> forward -> send --> LoopbackPort --> generator
//! ```
//!
//! Packets are real frames in a few hundred buffers that are used again and again, as VPP's packet generator does, so that
//! packet bytes are in the cache and what is measured is the work and the session table. Generator and worker take turns on
//! one core, burst by burst, and each part has its own time; only the worker's is shown as the vswitch's. Returns are
//! checked before anything is timed, and counted afterwards.
//!
//! Packets begin at different places of their buffers, as they do in VPP and in the engine's part here, so that their
//! headers are spread over the sets of the cache. What an AF_XDP socket receives begins at one place of each page: the
//! same work then takes some 2 ns more per packet, besides what the kernel takes.
//!
//! `--engine` leaves out the vswitch: what `Worker::judge` and the rewrite take of it. `--spread` is for several workers,
//! and for the question which the vswitch's module answers with this: packets to the worker that has their sessions, or
//! sessions that all workers share.

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
use engine::Engine;
use measure::{Measured, Subject};
use node::Node;
use shared::{Access, Lines};
use through::Through;
use traffic::Order;

/// `bulkhead-bench pipeline`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead-bench pipeline --flows 1000000 --rules 1000 -o json\n\n\
    Times are net of the packet generator, which takes turns with the vswitch and has its own time.")]
pub(crate) struct Pipeline {
    /// Flows, in random order; with --new-sessions, sessions in the table at a time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub(crate) flows: u32,
    /// Rules in the table of the pod that the packets go to; only the last one matches
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rules: u32,
    /// Bytes of a frame, without its checksum
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub(crate) size: u16,
    /// Workers, one thread each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Which packets come to which of several workers
    #[arg(long, value_enum, default_value = "own")]
    pub(crate) spread: Spread,
    /// Only the engine and the rewrite, without ports and the vswitch around them
    #[arg(long)]
    pub(crate) engine: bool,
    /// Packets are for a Service's address, and the vswitch gives each one the pod's address and port
    #[arg(long)]
    pub(crate) translated: bool,
    /// Every packet starts a session; as many sessions end because their time is up
    #[arg(long)]
    pub(crate) new_sessions: bool,
    /// What is watched meanwhile: nothing at all, packets of a filter that selects none, or every verdict; a thread reads it as the
    /// vswitch's does
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) watch: Watch,
    /// How long to measure, in milliseconds
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    pub(crate) duration: u32,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watch {
    /// There is no stream
    Off,
    /// A trace whose filter selects no packet
    Nothing,
    /// Each new session and each dropped packet, as for a monitor
    Verdicts,
    /// The same, read as seldom as the flight recorder does
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

    /// How often it is read: as the vswitch's thread does.
    const fn interval(self) -> Duration {
        Duration::from_millis(if matches!(self, Self::Journal) { 50 } else { 10 })
    }

    /// What workers are to tell; none without a stream.
    fn plan(self) -> Option<StreamPlan> {
        // Of the documentation's addresses (RFC 5737): no flow here has it.
        let filter = || Filter::parse("host 203.0.113.77").unwrap_or_default();
        let nothing = || Tracepoint { filter: filter(), ..Tracepoint::default() };
        match self {
            Self::Off => None,
            Self::Nothing => Some(StreamPlan { tracepoints: [nothing()].into(), ..StreamPlan::default() }),
            Self::Verdicts | Self::Journal => Some(StreamPlan { verdicts: true, ..StreamPlan::default() }),
        }
    }
}

/// How flows are spread over workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spread {
    /// Each worker gets packets of its own flows, as from an interface that hashes as the vswitch does
    Own,
    /// Every worker gets packets of all flows; those of another worker's change hands
    Any,
    /// As `any`, but nothing changes hands: each hit writes a cache line that all workers share, the least that a session
    /// table for all of them would cost
    Shared,
    /// As `shared`, and each of these lines has a lock
    Locked,
    /// As `shared`, but each worker has such lines of its own: what to compare the two with
    Unshared,
}

impl Spread {
    /// Whether a worker has only its part of the sessions.
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

/// VPP's default capacity, and the default of live workers: a table is not made smaller because there are few flows.
const CAPACITY: usize = 500_000;

/// What all workers have in common.
#[derive(Clone, Copy, Debug)]
struct Setup {
    size: usize,
    /// Of all workers together.
    flows: u32,
    /// Of each worker at a time.
    sessions: u32,
    spread: Spread,
    order: Order,
    /// Of each worker.
    engine: WorkerConfig,
    /// Nanoseconds from burst to burst, as packets tell the time.
    step: u64,
    watch: Watch,
}

/// A worker's part of the flows.
#[derive(Clone, Copy, Debug)]
struct Share {
    number: u16,
    of: u16,
}

impl Setup {
    /// When the first burst comes.
    const BEGIN: u64 = 1_000_000_000_000;

    fn new(args: &Pipeline) -> Self {
        let parts = if args.spread.divides() { args.workers.into() } else { 1 };
        let flows = args.flows.div_ceil(parts);
        let order = if args.new_sessions { Order::Fresh } else { Order::Random };
        // A twentieth more than the flows, so that the table is nearly full and nothing is refused. Sessions to a Service's address take
        // two places of its index, and half of it is to be free.
        let spare = if args.translated { 1 } else { 20 };
        let capacity = flows as usize + flows as usize / spare + BURST;
        let sessions = SessionConfig {
            // All packets come in on the uplink and go to one pod, which may have all of it.
            outside_share: Percent::ALL,
            pod_share: Percent::ALL,
            ..SessionConfig::live(if args.new_sessions { capacity } else { capacity.max(CAPACITY) })
        };
        let step = match order {
            // A session's time is up when as many others have come as there are flows. (256 is the burst.)
            Order::Fresh => sessions.timeouts.udp_unreplied / u64::from(flows.div_ceil(256)),
            // 256 packets at 20 million a second.
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
        "--spread {} is about workers of the vswitch that have sessions: without --engine and --new-sessions",
        args.spread.name()
    );
    ensure!(
        !args.translated || (!args.engine && args.workers == 1),
        "--translated is about one worker of the vswitch: without --engine, and with --workers 1"
    );
    ensure!(args.watch == Watch::Off || !args.engine, "--watch is about the vswitch: without --engine");
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

/// The vswitch's workers.
fn workers<'a>(args: &Pipeline, setup: &Setup, node: &'a Node) -> anyhow::Result<Vec<Through<'a>>> {
    let apart = |lines: &dyn Fn() -> Lines| {
        // A vswitch each: nothing is another's.
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

/// Measures all at the same time, a thread each, and gives them back.
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
