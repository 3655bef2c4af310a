//! Measures the time from an event of the API server until all workers enforce the changed policy. The client sends datagrams of one flow
//! continuously. The benchmark alternately puts a policy that opens their port and one that closes it. A change ends when the first
//! datagram arrives at the sink, or after the last one. This covers all steps: the server writes the event; the vswitch reads it, waits 10
//! ms for further events, compiles and publishes; workers and flow cache judge packets again.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use super::Bench;
use super::node::{Node, bucket};
use super::objects::{PodName, neighbours, probing_policy};
use super::runtime::Sandbox;
use crate::table::{Goal, Line, digits, median, milliseconds, percentile};
use crate::testbed::programs::until;
use crate::testbed::traffic::server;

/// The port of the client's datagrams. `OTHER` is a port that the client does not use.
const OPEN: u16 = 9_000;
const OTHER: u16 = 9_001;
/// Pause between two datagrams, which bounds the error of a measurement. A shorter pause would take a whole core.
const PAUSE: Duration = Duration::from_micros(200);
/// Silence after which the port counts as closed: far longer than a thread waits for a core.
const SILENCE: Duration = Duration::from_millis(150);
/// Time limit until a policy change takes effect.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between two checks whether datagrams have arrived.
const LOOK: Duration = Duration::from_millis(5);

pub(super) fn policy(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let node = Node::new(bench, "")?;
    node.server.put_all(neighbours());
    node.server.put(probing_policy(OTHER));
    let pods = node.create(&[PodName::probe("client"), PodName::probe("sink")])?;
    let flow = Flow::start(&pods[0], &pods[1])?;
    let (mut opened, mut closed, mut own) = (Vec::new(), Vec::new(), Vec::new());
    // The first change in each direction is not counted.
    change(&node, &flow, true)?;
    change(&node, &flow, false)?;
    let before = node.histogram(HISTOGRAM)?;
    for at in 0..bench.changes {
        let opens = at % 2 == 0;
        let [outside, inside] = change(&node, &flow, opens)?;
        if opens { &mut opened } else { &mut closed }.push(outside);
        own.push(inside);
        // A varying pause, so that changes are not in step with periodic work.
        std::thread::sleep(Duration::from_millis(u64::try_from(at * 7 % 23)?));
    }
    let heard = bucket(&before, &node.histogram(HISTOGRAM)?, 99.0) * 1e3;
    let all: Vec<f64> = opened.iter().chain(&closed).copied().collect();
    let (pods, policies, changes) = (bench.pods, bench.policies, bench.changes);
    let what = format!("{pods} pods, {policies} policies: policy event to enforced");
    let line = |what: &str, value: f64, most: f64| Line::value("policy", what, value, "ms", Goal::AtMost(most));
    let parts = format!(
        "{changes} changes; opened {} / {}, closed {} / {}; the daemon's own histogram: p99 <= {heard} ms",
        digits(median(&opened)),
        digits(percentile(&opened, 99.0)),
        digits(median(&closed)),
        digits(percentile(&closed, 99.0))
    );
    let rounded = |values: &[f64]| values.iter().map(|&value| digits(value)).collect::<Vec<_>>();
    Ok(vec![
        line(&format!("{what}, p50"), median(&all), 50.0).noted("seen by a pod; 10 ms of it wait for further events"),
        line(&format!("{what}, p99"), percentile(&all, 99.0), 50.0)
            .noted(&parts)
            .with("opened", json!(rounded(&opened)))
            .with("closed", json!(rounded(&closed))),
        line("the same without the network, p50", median(&own), 5.0).noted("enforce_seconds of the status"),
        line("the same without the network, p99", percentile(&own, 99.0), 5.0)
            .noted(&format!("at most {}", digits(percentile(&own, 100.0))))
            .with("changes", json!(rounded(&own))),
    ])
}

const HISTOGRAM: &str = "bulkhead_policy_event_to_enforced_seconds";

/// Puts a policy that opens or closes the port. Returns two times in milliseconds: until the flow shows the effect, and the vswitch's share
/// without the network (`enforce_seconds`).
fn change(node: &Node, flow: &Flow, opens: bool) -> anyhow::Result<[f64; 2]> {
    let states = node.states_applied()?;
    flow.first.store(0, Ordering::SeqCst);
    let asked = flow.now();
    node.server.put(probing_policy(if opens { OPEN } else { OTHER }));
    let (first, last) = (|| flow.first.load(Ordering::SeqCst), || flow.last.load(Ordering::SeqCst));
    let silence = u64::try_from(SILENCE.as_nanos())?;
    let deadline = Instant::now() + PATIENCE;
    while if opens { first() == 0 } else { flow.now().saturating_sub(last().max(asked)) < silence } {
        anyhow::ensure!(Instant::now() < deadline, "a change of policy is not enforced");
        std::thread::sleep(LOOK);
    }
    let seen = if opens { first() } else { last() };
    until("the status does not report the change", PATIENCE, || Ok(node.states_applied()? > states))?;
    let inside = node.status()?["policy"]["enforce_seconds"].as_f64().context("no enforce_seconds")?;
    let outside = Duration::from_nanos(seen.saturating_sub(asked));
    Ok([milliseconds(outside), inside * 1e3])
}

/// Sends datagrams continuously until dropped.
struct Flow {
    started: Instant,
    stop: Arc<AtomicBool>,
    /// Arrival of the first datagram since this was set to 0, and of the last one, in nanoseconds since `started`.
    first: Arc<AtomicU64>,
    last: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flow {
    fn start(from: &Sandbox, to: &Sandbox) -> anyhow::Result<Self> {
        let target = server(&to.address, OPEN)?;
        let sink = to.netns.inside(|| Ok(UdpSocket::bind(target)?))?;
        sink.set_read_timeout(Some(LOOK))?;
        let source = from.netns.inside(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
        let started = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let [first, last] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (stopped, firsts, lasts) = (Arc::clone(&stop), Arc::clone(&first), Arc::clone(&last));
        let receiver = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if sink.recv(&mut [0; 64]).is_ok() {
                    let now = nanoseconds(started);
                    let _ = firsts.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
                    lasts.store(now, Ordering::SeqCst);
                }
            }
        });
        let stopped = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // A denied datagram may cause an error. The next one may pass.
                let _ = source.send_to(&[0; 18], target);
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { started, stop, first, last, threads: vec![receiver, sender] })
    }

    fn now(&self) -> u64 {
        nanoseconds(self.started)
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
