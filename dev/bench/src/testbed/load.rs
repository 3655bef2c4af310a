//! Loads between two namespaces, and their measurement: TCP, new connections, small datagrams, and requests one after another.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::net::Netns;
use super::traffic::{ASKS, TcpServer, UdpServer, exchange, open_flow, pin, prepare_client, send_many, server};
use crate::policy::UDP_PORT;
use crate::table::{milliseconds, percentile};

/// Number of connections open at a time.
pub(crate) const IN_FLIGHT: usize = 16;
/// First TCP port of the benchmark's servers.
pub(crate) const TCP_PORT: u16 = 8_000;
/// Sockets that send UDP in turns.
const SOCKETS: usize = 8;
/// Datagrams per system call.
const BURST: usize = 32;
/// Payload of a 60-byte frame, the smallest without its checksum.
const PAYLOAD: [u8; 18] = [0; 18];
/// Time until an unanswered request counts as lost.
const LOST: Duration = Duration::from_secs(1);

/// How long traffic is measured, and on which cores it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The measured time.
    pub(crate) time: Duration,
    /// The time of the same traffic before the measured time, in which caches fill. iperf3 uses only its whole seconds.
    pub(crate) warm_up: Duration,
    /// The cores of the clients and of the servers.
    pub(crate) cores: [usize; 2],
}

impl Load {
    /// Sends over `flows` TCP connections to this address of the namespace `to`, with iperf3, client and server on a core each. Returns the bits
    /// that all of them received in Gb/s.
    ///
    /// # Errors
    /// If iperf3 fails or measures nothing.
    pub(crate) fn iperf(&self, from: &Netns, to: &Netns, address: &str, flows: u32) -> anyhow::Result<f64> {
        let [client, sink] = self.cores;
        let _server = to.serve(&format!("taskset -c {sink} iperf3 -s -1"), 5201)?;
        let (seconds, warm_up) = (self.time.as_secs(), self.warm_up.as_secs());
        // iperf3 accepts only whole seconds. Shorter runs are trials, for which some packets suffice.
        let length = if seconds == 0 { "-n 20M".to_owned() } else { format!("-t {seconds} -O {warm_up}") };
        // Longer than any run, so that a stalled connection does not block the benchmark.
        let most = seconds + warm_up + 15;
        let line = format!("timeout {most} taskset -c {client} iperf3 -J -c {address} -P {flows} {length}");
        let report: serde_json::Value = serde_json::from_str(&from.run(&line)?)?;
        let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(rate.context("iperf3 has not measured anything")? / 1e9)
    }

    /// Sends UDP datagrams of [`PAYLOAD`] over [`SOCKETS`] sockets, without pause, to this address of the namespace `to`. Returns three rates over the
    /// measured time, in thousands of datagrams per second: those that reached a socket of `to`, those sent, and those that the receiving program
    /// has read.
    ///
    /// # Errors
    /// If a flow cannot be opened or the kernel refuses to send.
    pub(crate) fn datagrams(&self, from: &Netns, to: &Netns, address: &str) -> anyhow::Result<[f64; 3]> {
        let receiver = UdpServer::start(to, UDP_PORT, Some(self.cores[1]))?;
        let target = server(address, UDP_PORT)?;
        let sockets: Vec<_> = (0..SOCKETS).map(|_| open_flow(from, target)).collect::<anyhow::Result<_>>()?;
        let stop = AtomicBool::new(false);
        let sent = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| -> anyhow::Result<()> {
                pin(self.cores[0]);
                while !stop.load(Ordering::Relaxed) {
                    for socket in &sockets {
                        let count = send_many(socket, &PAYLOAD, BURST).context("cannot send")?;
                        sent.fetch_add(count as u64, Ordering::Relaxed);
                    }
                }
                Ok(())
            });
            std::thread::sleep(self.warm_up);
            let look = || anyhow::Ok([arrived(to)?, sent.load(Ordering::Relaxed), receiver.received()]);
            let (before, started) = (look(), Instant::now());
            std::thread::sleep(self.time);
            let (after, took) = (look(), started.elapsed());
            stop.store(true, Ordering::Relaxed);
            sender.join().map_err(|_| anyhow::anyhow!("the sender has panicked"))??;
            let (before, after) = (before?, after?);
            #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
            let rate = |at: usize| (after[at] - before[at]) as f64 / took.as_secs_f64() / 1e3;
            Ok([rate(0), rate(1), rate(2)])
        })
    }

    /// Opens TCP connections to this address of the namespace `to`, [`IN_FLIGHT`] at a time; each exchanges a byte in both directions and closes.
    ///
    /// # Errors
    /// If a server cannot be started or a counter cannot be read.
    pub(crate) fn connections(&self, from: &Netns, to: &Netns, address: &str) -> anyhow::Result<Connections> {
        prepare_client(from)?;
        let servers = TcpServer::start(to, TCP_PORT, false)?;
        let targets =
            (0..IN_FLIGHT).map(|number| server(address, servers.port(number))).collect::<Result<Vec<_>, _>>()?;
        let (times, failed) = (Mutex::new(Vec::new()), Mutex::new(0.0));
        let repeated = || anyhow::Ok(from.counter("Tcp", "RetransSegs")? + to.counter("Tcp", "RetransSegs")?);
        let before = repeated()?;
        let took = from.inside(|| {
            let started = Instant::now();
            std::thread::scope(|scope| {
                for target in targets {
                    let (times, failed) = (&times, &failed);
                    scope.spawn(move || {
                        let (mut own, mut own_failed) = (Vec::new(), 0.0);
                        while started.elapsed() < self.time {
                            let begun = Instant::now();
                            match exchange(target) {
                                Ok(_) => own.push(milliseconds(begun.elapsed())),
                                Err(_) => own_failed += 1.0,
                            }
                        }
                        // The lock is poisoned only if another thread has panicked, which the scope reports.
                        if let (Ok(mut times), Ok(mut failed)) = (times.lock(), failed.lock()) {
                            times.extend(own);
                            *failed += own_failed;
                        }
                    });
                }
            });
            Ok(started.elapsed())
        })?;
        let times = times.into_inner().map_err(|_| anyhow::anyhow!("a client has panicked"))?;
        let failed = failed.into_inner().map_err(|_| anyhow::anyhow!("a client has panicked"))?;
        #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
        let (rate, repeated) = (times.len() as f64 / took.as_secs_f64() / 1e3, (repeated()? - before) as f64);
        Ok(Connections { rate, p99: percentile(&times, 99.0), failed, repeated })
    }

    /// Sends datagrams of one flow, each after the answer to the one before. Returns the round-trip times in microseconds.
    ///
    /// # Errors
    /// If the flow cannot be opened, or all requests are lost.
    pub(crate) fn round_trips(&self, from: &Netns, to: &Netns, address: &str) -> anyhow::Result<Vec<f64>> {
        let _server = UdpServer::start(to, UDP_PORT, Some(self.cores[1]))?;
        let flow = open_flow(from, server(address, UDP_PORT)?)?;
        flow.set_read_timeout(Some(LOST))?;
        // A thread of its own, because the thread stays on the core.
        let client = || -> anyhow::Result<Vec<f64>> {
            pin(self.cores[0]);
            let (mut times, started) = (Vec::new(), Instant::now());
            while started.elapsed() < self.warm_up + self.time {
                let begun = Instant::now();
                flow.send(&[ASKS; PAYLOAD.len()])?;
                if flow.recv(&mut [0; 64]).is_ok() && started.elapsed() > self.warm_up {
                    times.push(milliseconds(begun.elapsed()) * 1e3);
                }
            }
            ensure!(!times.is_empty(), "no request is answered");
            Ok(times)
        };
        std::thread::scope(|scope| {
            scope.spawn(client).join().map_err(|_| anyhow::anyhow!("the client has panicked"))?
        })
    }
}

/// What [`Load::connections`] has measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connections {
    /// Thousands of connections per second that were opened, answered and closed.
    pub(crate) rate: f64,
    /// The 99th percentile of the duration of a connection, in milliseconds.
    pub(crate) p99: f64,
    /// Number of failed connections.
    pub(crate) failed: f64,
    /// Number of segments that both namespaces sent again.
    pub(crate) repeated: f64,
}

impl Connections {
    /// Returns rate, 99th percentile, failed connections and repeated segments, in the units of the fields.
    pub(crate) fn values(self) -> Vec<f64> {
        vec![self.rate, self.p99, self.failed, self.repeated]
    }
}

/// Returns the number of datagrams that have reached sockets of a namespace since it exists. It includes those that a full socket buffer has dropped,
/// because they have passed the node.
///
/// # Errors
/// If a counter cannot be read.
fn arrived(netns: &Netns) -> anyhow::Result<u64> {
    Ok(netns.counter("Udp", "InDatagrams")? + netns.counter("Udp", "RcvbufErrors")?)
}
