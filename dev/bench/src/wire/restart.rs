//! Measures the effect of `kill -9` and a new process on connections in use.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::node::{CLIENT, Plan, SINK, Way};
use super::{Bench, PATIENCE};
use crate::table::{Goal, Line, digits};
use crate::testbed::load::TCP_PORT;
use crate::testbed::programs::until;
use crate::testbed::traffic::{TcpServer, reach, server};

/// Number of connections that send continuously, with pauses of [`BULK_PAUSE`]. The others send requests and wait for answers.
const BULK: usize = 4;
/// Port of the sending connections.
const BULK_PORT: u16 = 7_000;
const BULK_BYTES: usize = 64 << 10;
const BULK_PAUSE: Duration = Duration::from_millis(5);
/// Requests per second of all connections together: enough to detect a gap in each, few enough not to load the cores.
const QUESTIONS: u32 = 5_000;
/// Time limit for connections to recover. TCP's retransmission timeouts double.
const RECOVERY: Duration = Duration::from_secs(10);
/// Time without an answer after which a connection counts as lost.
const SILENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Record {
    /// When the connection last made progress, in nanoseconds since the start.
    moved: AtomicU64,
    /// The longest time without progress, in nanoseconds: before and after the kill.
    gaps: [AtomicU64; 2],
    failed: AtomicBool,
}

/// State shared by all connections.
#[derive(Debug)]
struct Run {
    started: Instant,
    stop: AtomicBool,
    /// Phase of the measurement: 0 before the kill, 1 after.
    phase: AtomicUsize,
    records: Vec<Arc<Record>>,
}

impl Run {
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records progress of a connection, which was due since `since`.
    fn moved(&self, record: &Record, since: u64) {
        let now = self.now();
        record.gaps[self.phase.load(Ordering::Relaxed)].fetch_max(now - since, Ordering::Relaxed);
        record.moved.store(now, Ordering::Relaxed);
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the longest gap of a phase, in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds are shown with three digits")]
    fn longest(&self, phase: usize) -> f64 {
        let gaps = self.records.iter().map(|record| record.gaps[phase].load(Ordering::Relaxed));
        gaps.max().unwrap_or_default() as f64 / 1e6
    }

    /// Counts connections that failed or made no progress since this time.
    fn lost(&self, since: u64) -> usize {
        let dead = |record: &&Arc<Record>| {
            record.failed.load(Ordering::Relaxed) || record.moved.load(Ordering::Relaxed) < since
        };
        self.records.iter().filter(dead).count()
    }
}

/// Measures all rounds, and returns their worst values.
pub(super) fn killed(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = (0..bench.rounds).map(|_| once(bench)).collect::<anyhow::Result<Vec<_>>>()?;
    let worst = |of: fn(&Outcome) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
    let count = bench.connections;
    let line = |what: &str, value, unit, goal| {
        Line::value("restart", &format!("kill -9 under {count} connections: {what}"), value, unit, goal)
    };
    let note =
        format!("gone for {} s, forwards again {} s later", bench.gone.as_secs(), digits(worst(|round| round.restart)));
    let calm = format!("{} ms without a kill", digits(worst(|round| round.calm)));
    Ok(vec![
        line("lost, worst round", worst(|round| round.lost), "connections", Goal::AtMost(0.0)).noted(&note),
        line("longest gap", worst(|round| round.gap), "ms", Goal::AtMost(200.0)).noted(&calm),
    ])
}

/// Results of a round: lost connections, longest gap in milliseconds after and before the kill, and seconds until the new process forwards.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    lost: f64,
    gap: f64,
    calm: f64,
    restart: f64,
}

fn once(bench: &Bench) -> anyhow::Result<Outcome> {
    let mut node = bench.node(Way::Vswitch, Plan::pair())?;
    let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
    reach(&client.netns, &sink.address)?;
    let servers = TcpServer::start(&sink.netns, TCP_PORT, true)?;
    let bulk = BULK.min(bench.connections / 2);
    let records = (0..bench.connections).map(|_| Arc::default()).collect();
    let (stop, phase) = (AtomicBool::new(false), AtomicUsize::new(0));
    let run = Arc::new(Run { started: Instant::now(), stop, phase, records });
    let listener = sink.netns.inside(|| Ok(TcpListener::bind(("0.0.0.0", BULK_PORT))?))?;
    let mut streams = Vec::new();
    for number in 0..bench.connections {
        let target = server(&sink.address, if number < bulk { BULK_PORT } else { servers.port(number) })?;
        let stream = connect(client, target)?;
        let received = if number < bulk { Some(listener.accept()?.0) } else { None };
        streams.push((stream, received));
    }
    let pause = Duration::from_secs(1) * u32::try_from(bench.connections)? / QUESTIONS;
    for ((stream, received), record) in streams.into_iter().zip(&run.records) {
        let (run, record) = (Arc::clone(&run), Arc::clone(record));
        match received {
            Some(received) => {
                let sender = Arc::clone(&run);
                std::thread::spawn(move || send(stream, &sender));
                std::thread::spawn(move || receive(received, &run, &record));
            }
            None => drop(std::thread::spawn(move || ask(stream, pause, &run, &record))),
        }
    }
    let outcome = kill_and_restart(bench, &mut node, &run);
    run.stop.store(true, Ordering::Relaxed);
    let (lost, took) = outcome?;
    Ok(Outcome {
        lost: f64::from(u32::try_from(lost)?),
        gap: run.longest(1),
        calm: run.longest(0),
        restart: took.as_secs_f64(),
    })
}

/// Returns the number of lost connections, and the time until the new process forwards.
fn kill_and_restart(bench: &Bench, node: &mut super::node::Node, run: &Run) -> anyhow::Result<(usize, Duration)> {
    std::thread::sleep(bench.time);
    until("not all connections work before anything is killed", RECOVERY, || Ok(run.lost(1) == 0))?;
    run.phase.store(1, Ordering::Relaxed);
    node.program()?.kill();
    std::thread::sleep(bench.gone);
    let started = Instant::now();
    node.launch()?;
    node.program()?.wait_until_ready(PATIENCE)?;
    let took = started.elapsed();
    let ready = run.now();
    let deadline = Instant::now() + RECOVERY.min(bench.time * 4);
    while run.lost(ready) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Stalled connections have a gap that is not recorded yet.
    for record in &run.records {
        let moved = record.moved.load(Ordering::Relaxed);
        if moved < ready {
            record.gaps[1].fetch_max(run.now() - moved, Ordering::Relaxed);
        }
    }
    Ok((run.lost(ready), took))
}

fn connect(client: &super::node::Pod, target: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = client.netns.inside(|| TcpStream::connect(target).context("cannot connect before the kill"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Sends requests and waits for answers.
fn ask(mut stream: TcpStream, pause: Duration, run: &Run, record: &Record) {
    let mut bytes = [1; 64];
    while !run.stops() {
        let asked = run.now();
        if stream.write_all(&bytes).and_then(|()| stream.read_exact(&mut bytes)).is_err() {
            record.failed.store(true, Ordering::Relaxed);
            return;
        }
        run.moved(record, asked);
        std::thread::sleep(pause);
    }
}

fn send(mut stream: TcpStream, run: &Run) {
    let bytes = vec![2; BULK_BYTES];
    // The receiver notices the end.
    while !run.stops() && stream.write_all(&bytes).is_ok() {
        std::thread::sleep(BULK_PAUSE);
    }
}

fn receive(mut stream: TcpStream, run: &Run, record: &Record) {
    let mut bytes = vec![0; BULK_BYTES];
    let _ = stream.set_read_timeout(Some(SILENCE));
    let mut last = run.now();
    while !run.stops() {
        match stream.read(&mut bytes) {
            Ok(1..) => {
                run.moved(record, last);
                last = run.now();
            }
            _ => {
                record.failed.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}
