//! `bulkhead bench pipeline`: what a packet costs from its bytes to its rewritten bytes, without interfaces.
//!
//! ```text
//!   generator: 512 buffers, each packet of a random flow --> Worker::judge --> rewrite::hop --> queue of the port
//! ```
//!
//! Packets are real frames in a few hundred buffers that are used again and again, as VPP's packet generator does, so that
//! packet bytes are in the cache and what is measured is the work and the session table. Several workers have flows of
//! their own, as an interface with as many queues would give them: nothing is handed over. The generator is timed alone,
//! interleaved with the whole, and subtracted. Answers are checked before anything is timed, and counted afterwards.

mod node;
mod traffic;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::{
    BURST, BodyKind, Judged, Percent, Received, SessionConfig, SessionState, Snapshot, Verdict, Worker, WorkerConfig,
};
use serde_json::{Value, json};

use crate::args::Format;
use node::Node;
use traffic::{Order, Traffic};

/// `bulkhead bench pipeline`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead bench pipeline --flows 1000000 --rules 1000 -o json\n\n\
    Times are net of the packet generator, which is timed alone in the same process and subtracted.")]
pub struct Pipeline {
    /// Flows, in random order; with --new-sessions, sessions in the table at a time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub flows: u32,
    /// Rules in the table of the pod that the packets go to; only the last one matches
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rules: u32,
    /// Bytes of a frame, without its checksum
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub size: u16,
    /// Workers, one thread each, with flows of their own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Every packet starts a session; as many sessions end because their time is up
    #[arg(long)]
    pub new_sessions: bool,
    /// How long to measure, in milliseconds
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    pub duration: u32,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Packets between two looks at the clock: under a millisecond, so that reading it costs nothing and most rounds fall
/// between two interruptions. The median drops the others.
const ROUND: usize = 32 * BURST;

/// Bursts that are checked before the time is taken: each flow of a small table several times.
const CHECKED: usize = 256;

/// VPP's default capacity, and the default of live workers: a table is not made smaller because there are few flows.
const CAPACITY: usize = 500_000;

pub(crate) fn run(args: &Pipeline) -> anyhow::Result<ExitCode> {
    let node = &Node::new(args.rules)?;
    let start = &Barrier::new(usize::from(args.workers));
    let measured = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..args.workers).map(|number| scope.spawn(move || measure(args, node, number, start))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a measurement does not panic")).collect::<Vec<_>>()
    });
    let measured = measured.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    write(&report(args, &measured), args.output).context("cannot write the answer")?;
    Ok(ExitCode::SUCCESS)
}

/// What one worker did.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Nanoseconds per packet, net.
    net: f64,
    /// The same of the fastest round: what the machine can do when it does nothing else.
    fastest: f64,
    generator: f64,
    packets: u64,
    hits: u64,
    created: u64,
    session_bytes: usize,
    sessions: usize,
}

/// One worker and what it needs.
struct Bench<'a> {
    snapshot: &'a Snapshot,
    addresses: Vec<[u8; 12]>,
    worker: Worker,
    traffic: Traffic,
    judged: Vec<Judged>,
    /// The queue of the pod's port: positions in the burst.
    sent: Vec<usize>,
    now: u64,
    /// Nanoseconds from burst to burst.
    step: u64,
}

fn measure(args: &Pipeline, node: &Node, number: u16, start: &Barrier) -> anyhow::Result<Measured> {
    let flows = args.flows.div_ceil(u32::from(args.workers));
    let order = if args.new_sessions { Order::Fresh } else { Order::Random };
    // A twentieth more than the flows, so that the table is nearly full and nothing is refused.
    let capacity = flows as usize + flows as usize / 20 + BURST;
    let sessions = SessionConfig {
        // All packets come in on the uplink and may have all of it.
        outside_share: Percent::ALL,
        ..SessionConfig::live(if args.new_sessions { capacity } else { capacity.max(CAPACITY) })
    };
    let step = match order {
        // A session's time is up when as many others have come as there are flows. (256 is the burst.)
        Order::Fresh => sessions.timeouts.idle / u64::from(flows.div_ceil(256)),
        // 256 packets at 20 million a second.
        Order::Random | Order::Each => 12_800,
    };
    let mut bench = Bench {
        snapshot: &node.snapshot,
        addresses: node.addresses.clone(),
        worker: Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() }),
        traffic: Traffic::new(usize::from(args.size), flows, number),
        judged: Vec::with_capacity(BURST),
        sent: Vec::with_capacity(BURST),
        now: 1_000_000_000_000,
        step,
    };
    bench.check(order)?;
    start.wait();
    Ok(bench.time(order, Duration::from_millis(u64::from(args.duration))))
}

impl Bench<'_> {
    /// The generator's burst through everything.
    #[inline]
    fn forward(&mut self) {
        self.now += self.step;
        let in_port = Node::UPLINK;
        let packets = self.traffic.frames().map(|frame| Received { frame, wire_len: frame.len(), in_port });
        self.worker.judge(self.snapshot, self.now, packets, &mut self.judged);
        self.sent.clear();
        for (at, judged) in self.judged.iter().enumerate() {
            if let Verdict::Forward(out) = judged.verdict
                && rewrite::hop(self.traffic.frame_mut(at), &self.addresses[out.index()])
            {
                self.sent.push(at);
            }
        }
    }

    /// Makes the sessions, and looks at answers and bytes on the way.
    fn check(&mut self, order: Order) -> anyhow::Result<()> {
        let bursts = (self.traffic.flows() as usize).div_ceil(BURST);
        if order == Order::Fresh {
            return (0..bursts + 1).try_for_each(|_| self.check_burst(order, SessionState::New));
        }
        for _ in 0..bursts {
            self.traffic.generate(Order::Each);
            self.forward();
        }
        let (sessions, flows) = (self.worker.sessions_in_use(), self.traffic.flows() as usize);
        ensure!(sessions == flows, "{sessions} sessions of {flows} flows");
        (0..CHECKED).try_for_each(|_| self.check_burst(order, SessionState::Hit))
    }

    fn check_burst(&mut self, order: Order, session: SessionState) -> anyhow::Result<()> {
        self.traffic.generate(order);
        let before: Vec<Vec<u8>> = self.traffic.frames().map(<[u8]>::to_vec).collect();
        self.forward();
        let right = Judged { verdict: Verdict::Forward(Node::POD), body: BodyKind::Ip, session: Some(session) };
        let wrong = self.judged.iter().find(|judged| **judged != right);
        ensure!(wrong.is_none() && self.sent.len() == BURST, "a packet got the wrong answer: {wrong:?}");
        let addresses = &self.addresses[Node::POD.index()];
        let mut pairs = before.iter().zip(self.traffic.frames());
        let wrong = pairs.find(|(before, after)| !traffic::is_one_hop(before, after, addresses));
        ensure!(wrong.is_none(), "a packet was rewritten wrongly: {wrong:?}");
        Ok(())
    }

    /// Generator alone and everything, in turn; the difference of the medians.
    fn time(&mut self, order: Order, duration: Duration) -> Measured {
        let before = self.worker.counters().clone();
        let (mut wholes, mut generators) = (Vec::new(), Vec::new());
        let started = Instant::now();
        while started.elapsed() < duration || wholes.len() < 3 {
            generators.push(time_of(|| self.traffic.generate(order)));
            wholes.push(time_of(|| {
                self.traffic.generate(order);
                self.forward();
            }));
        }
        let packets = (wholes.len() * ROUND) as u64;
        let (whole, generator) = (Times::of(wholes), Times::of(generators));
        let after = self.worker.counters();
        let created = after.sessions().created - before.sessions().created;
        let forwarded = after.forwarded() - before.forwarded();
        Measured {
            net: whole.median - generator.median,
            fastest: whole.fastest - generator.fastest,
            generator: generator.median,
            packets,
            hits: forwarded - created,
            created,
            session_bytes: self.worker.session_memory(),
            sessions: self.worker.sessions_in_use(),
        }
    }
}

/// Nanoseconds per packet of a round.
fn time_of(mut burst: impl FnMut()) -> f64 {
    let started = Instant::now();
    (0..ROUND / BURST).for_each(|_| burst());
    started.elapsed().as_secs_f64() * 1e9 / ROUND as f64
}

/// Nanoseconds per packet over many rounds.
struct Times {
    median: f64,
    fastest: f64,
}

impl Times {
    fn of(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        Self { median: rounds[rounds.len() / 2], fastest: rounds[0] }
    }
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
