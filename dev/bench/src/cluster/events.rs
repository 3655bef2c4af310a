//! Measures requests between two pods while thousands of pod events arrive per second: workers must not notice them. Each round measures
//! three ways: without events, with events that another client reads and ignores, and with events that the vswitch follows. The result is
//! the ratio of the third to the second. The server that writes the events takes CPU time that the vswitch and the pods have on a real
//! node, and the second way includes that loss.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Bench;
use super::api_server::ApiServer;
use super::node::{Node, bucket};
use super::objects::{PodName, cluster, neighbours, remote_pod};
use super::runtime::Sandbox;
use crate::table::{Goal, Line, digits, median, milliseconds, percentile};
use crate::testbed::net::Netns;
use crate::testbed::proc::running_time;
use crate::testbed::traffic::{UdpServer, open_flow, pin, server};

/// The server pod's port. No policy selects the pods.
const PORT: u16 = 9_000;
/// Pause between an answer and the next request.
const PAUSE: Duration = Duration::from_micros(500);
/// Time until an unanswered request counts as lost.
const LOST: Duration = Duration::from_secs(1);
/// Interval between two groups of events.
const TICK: Duration = Duration::from_millis(5);
/// Time for the vswitch to process the remaining events after a measurement.
const SETTLE: Duration = Duration::from_secs(1);
/// Number of events that the server keeps between measurements.
const KEPT: usize = 1_000;

/// The client that follows the events: none, a reader that ignores them, or the vswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Quiet,
    Other,
    Vswitch,
}

const WAYS: [Way; 3] = [Way::Quiet, Way::Other, Way::Vswitch];

/// One measurement. Latencies are in milliseconds, CPU time in percent of a core, the rate in events per second.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    p50: f64,
    p99: f64,
    lost: f64,
    cpu: f64,
    rate: f64,
}

pub(super) fn events(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    // With a flow cache, established flows would bypass the workers.
    let mut node = Node::new(bench, "flow_cache: false")?;
    node.server.put_all(neighbours());
    let pods = node.create(&[PodName::probe("client"), PodName::probe("sink")])?;
    let other = ApiServer::at(node.netns.inside(|| Ok(TcpListener::bind("127.0.0.1:0")?))?, 1);
    other.put_all(cluster(bench.pods, 0));
    let before = node.histogram(HISTOGRAM)?;
    let mut rounds: Vec<[Measured; 3]> = Vec::new();
    for _ in 0..bench.rounds {
        let mut round = [Measured::default(); 3];
        for (way, measured) in WAYS.into_iter().zip(&mut round) {
            *measured = once(bench, &mut node, &other, &pods, way)?;
            std::thread::sleep(SETTLE);
        }
        rounds.push(round);
    }
    let after = node.histogram(HISTOGRAM)?;
    let [median_followed, followed] = [50.0, 99.0].map(|percent| bucket(&before, &after, percent));
    let of = |at: usize, value: fn(&Measured) -> f64| rounds.iter().map(|round| value(&round[at])).collect::<Vec<_>>();
    let all = |value: fn(&Measured) -> f64| [0, 1, 2].map(|at| digits(median(&of(at, value))));
    let ([p50, p99, cpu], lost) = (
        [all(|one| one.p50), all(|one| one.p99), all(|one| one.cpu)],
        rounds.iter().flatten().map(|one| one.lost).sum(),
    );
    let rate = digits(median(&of(2, |one| one.rate)));
    let what =
        format!("UDP request p99 with {} pod events a second, against the same that another follows", bench.events);
    let note = format!(
        "p99 {} quiet, {} with a server at work, {} with the vswitch following; p50 {}, {}, {}",
        p99[0], p99[1], p99[2], p50[0], p50[1], p50[2]
    );
    let follows = format!(
        "{rate} events/s; the vswitch takes {} % of a core (idle {} %); in force within {median_followed} s (p50), {followed} s (p99)",
        cpu[2], cpu[0]
    );
    let line = Line::ratio("events", what, &of(2, |one| one.p99), &of(1, |one| one.p99), "ms", Goal::AtMost(1.5));
    Ok(vec![
        line.noted(&note).with("p50_ms", json!(p50)).with("p99_ms", json!(p99)),
        Line::value("events", "requests lost meanwhile", lost, "packets", Goal::AtMost(0.0)).noted(&follows),
    ])
}

const HISTOGRAM: &str = "bulkhead_policy_event_to_enforced_seconds";

fn once(bench: &Bench, node: &mut Node, other: &ApiServer, pods: &[Sandbox], way: Way) -> anyhow::Result<Measured> {
    let (id, stop) = (node.id()?, AtomicBool::new(false));
    let server = if way == Way::Vswitch { &node.server } else { other };
    let reader = (way == Way::Other).then(|| follow(&node.netns, other)).transpose()?;
    std::thread::scope(|scope| {
        let stop = &stop;
        if let Some(mut stream) = reader {
            scope.spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    // A timeout only means that no event arrived lately.
                    let _ = stream.read(&mut bytes);
                }
            });
        }
        let generator = (way != Way::Quiet).then(|| scope.spawn(|| generate(bench, server, stop)));
        let (ran, started) = (running_time(id)?, Instant::now());
        let asked = ask(bench, pods);
        let took = started.elapsed().as_secs_f64();
        let cpu = running_time(id)?.saturating_sub(ran).as_secs_f64() / took * 100.0;
        stop.store(true, Ordering::Relaxed);
        let sent =
            generator.map_or(Ok(0), |thread| thread.join().map_err(|_| anyhow::anyhow!("a thread has panicked")))?;
        let (times, lost) = asked?;
        #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
        let rate = sent as f64 / took;
        Ok(Measured { p50: median(&times), p99: percentile(&times, 99.0), lost, cpu, rate })
    })
}

/// Sends requests one after another. Returns the latency of each answered request in milliseconds and the number of lost ones.
fn ask(bench: &Bench, pods: &[Sandbox]) -> anyhow::Result<(Vec<f64>, f64)> {
    let [client, sink] = pods else { anyhow::bail!("two pods") };
    let _server = UdpServer::start(&sink.netns, PORT, bench.cores.last().copied())?;
    let flow = open_flow(&client.netns, server(&sink.address, PORT)?)?;
    flow.set_read_timeout(Some(LOST))?;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            bench.cores.first().copied().into_iter().for_each(pin);
            let (mut times, mut lost, started) = (Vec::new(), 0.0, Instant::now());
            while started.elapsed() < bench.time {
                let begun = Instant::now();
                flow.send(&[crate::testbed::traffic::ASKS; 18])?;
                match flow.recv(&mut [0; 64]) {
                    Ok(_) => times.push(milliseconds(begun.elapsed())),
                    Err(_) => lost += 1.0,
                }
                std::thread::sleep(PAUSE);
            }
            anyhow::Ok((times, lost))
        });
        asking.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?
    })
}

/// Sends events at an even rate. Each gives a pod the label of another app, which other policies select. Returns their number.
fn generate(bench: &Bench, server: &ApiServer, stop: &AtomicBool) -> usize {
    let (started, mut sent) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        let due = usize::try_from(started.elapsed().as_millis()).unwrap_or(usize::MAX) * bench.events / 1_000;
        let pods = bench.pods.max(1);
        server.put_all((sent..due).map(|at| remote_pod(at % pods, at / pods + 1)).collect());
        sent = due;
    }
    server.compact(KEPT);
    sent
}

/// Opens a watch of all pods, starting now.
fn follow(netns: &Netns, server: &ApiServer) -> anyhow::Result<TcpStream> {
    let mut stream = netns.inside(|| Ok(TcpStream::connect(server.address)?))?;
    stream.set_read_timeout(Some(TICK))?;
    let version = server.version();
    let request = format!("GET /api/v1/pods?watch=true&resourceVersion={version} HTTP/1.1\r\nHost: server\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}
