//! Proves that packets arrive at other nodes: a thread sends each of them a small datagram over the way that its pods' packets take.
//!
//! ```text
//!   probe:  this node, UDP 4792 --- route, or bh-vxlan ---> node, UDP 4792     in each interval, a short one and one that fills the MTU
//!   answer: this node           <--- the same way --------- node               short, with the probe's nonce
//! ```
//!
//! * A probe through the tunnel demands the tunnel's interface, so that a routing rule sends it there; other packets of the node to the same
//!   address take the link.
//! * Ways are probed one after another, evenly over the interval. A thousand nodes cause a hundred rounds a second; without other nodes the
//!   thread sleeps.
//! * Answers are short. If an answer had the probe's length, a missing one would not say which direction loses long packets. Each node
//!   probes its own direction.
//! * An answer counts only with the nonce of the present round, from the probe's destination. Nonces are random, so nobody who does not see
//!   the probe can forge one. The network between nodes must be trusted anyway, for the tunnel.
//!
//! TCP was rejected: it needs a connection for each node, and repeats what is lost. ICMP echo was rejected: kernels answer without a
//! vswitch, firewalls treat it apart, and it does not say which node answers.

mod fault;
mod message;
mod path;
mod paths;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::{DatagramSocket, PollSet, Waker, poll};

use crate::config::Probing;
use crate::log;
use message::{Kind, Message, SMALL};
pub(super) use path::Aim;
use path::Probe;
use paths::NextRound;
pub(super) use paths::{Paths, Target, Via};

/// The longest datagram in bytes (RFC 768, in IPv4).
const LONGEST: usize = 65_507;

/// Datagrams that are read from a socket at once. After that many the thread rests for [`REST`], so that a flood does not keep a core busy.
const BATCH: usize = 64;
const REST: Duration = Duration::from_millis(5);

/// The ways to other nodes, which the main thread sets, the probing thread follows, and status and metrics report.
#[derive(Clone, Debug)]
pub(crate) struct SharedPaths(Arc<Mutex<Paths>>);

impl SharedPaths {
    /// Shares these ways.
    pub(super) fn new(paths: Paths) -> Self {
        Self(Arc::new(Mutex::new(paths)))
    }

    /// Locks the ways. Every change of them is atomic with respect to panics.
    pub(super) fn lock(&self) -> MutexGuard<'_, Paths> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of the thread that probes and answers. Dropping the handle stops the thread.
#[derive(Debug)]
pub(super) struct Prober {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

/// What the handle tells the thread.
#[derive(Debug)]
struct Signal {
    waker: Waker,
    is_over: AtomicBool,
}

impl Prober {
    /// Starts the thread in this network namespace. `own` is this node's name.
    ///
    /// # Errors
    /// If the process has too many threads or descriptors.
    pub(super) fn start(settings: Probing, own: &str, paths: SharedPaths) -> std::io::Result<Self> {
        let signal = Arc::new(Signal { waker: Waker::new()?, is_over: AtomicBool::new(false) });
        let mut worker = Worker {
            own: own.to_owned(),
            port: settings.port,
            paths,
            sockets: [None, None],
            buffer: vec![0; LONGEST],
            is_refused: false,
        };
        let told = Arc::clone(&signal);
        let thread = std::thread::Builder::new().name("node-probes".into()).spawn(move || worker.run(&told))?;
        Ok(Self { signal, thread: Some(thread) })
    }

    /// Makes the thread look at changed ways now.
    pub(super) fn look(&self) {
        self.signal.waker.wake();
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.signal.is_over.store(true, Ordering::Relaxed);
        self.signal.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panicked thread has already logged its panic.
            let _ = thread.join();
        }
    }
}

/// The thread's state.
#[derive(Debug)]
struct Worker {
    /// This node's name.
    own: String,
    /// The UDP port of probes at all nodes.
    port: u16,
    paths: SharedPaths,
    /// The sockets of IPv4 and IPv6. `None` until they can be opened.
    sockets: [Option<DatagramSocket>; 2],
    /// The datagram that is written or was read last.
    buffer: Vec<u8>,
    /// Whether a socket could not be opened, which is logged once.
    is_refused: bool,
}

impl Worker {
    /// Probes and answers until the handle is dropped, or polling fails.
    fn run(&mut self, signal: &Signal) {
        let (mut set, mut next) = (PollSet::new(), Instant::now());
        self.open();
        while !signal.is_over.load(Ordering::Relaxed) {
            let pause = self.paths.lock().pause();
            set.clear();
            set.add(signal.waker.descriptor());
            self.sockets.iter().flatten().for_each(|socket| set.add(socket.descriptor()));
            if let Err(error) = poll(&mut set, pause.map_or(u32::MAX, |_| milliseconds_until(next))) {
                self.paths.lock().turn_off();
                return log::error(&format!("other nodes are no longer probed: {error}"));
            }
            signal.waker.drain();
            if self.read() {
                std::thread::sleep(REST);
            }
            if let Some(pause) = pause.filter(|_| Instant::now() >= next) {
                self.probe();
                // A late round does not make the next ones hurry.
                next = (next + pause).max(Instant::now());
            }
            let told = self.paths.lock().take_told();
            told.iter().for_each(|(is_fault, line)| if *is_fault { log::warn(line) } else { log::info(line) });
        }
    }

    /// Opens the sockets that are not open. A kernel without IPv6 has no such ways.
    fn open(&mut self) {
        for (at, is_v4) in [(0, true), (1, false)] {
            if self.sockets[at].is_some() {
                continue;
            }
            match DatagramSocket::bind(is_v4, self.port) {
                Ok(socket) => self.sockets[at] = Some(socket),
                Err(error) if !is_v4 && error.kind() != std::io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    if std::mem::replace(&mut self.is_refused, true) {
                        continue;
                    }
                    let port = self.port;
                    log::warn(&format!(
                        "cannot open UDP port {port}, so other nodes are not probed: {error}\nhelp: set probe.port to another port, the \
                         same at all nodes, or to 0"
                    ));
                }
            }
        }
    }

    /// Probes the next way.
    fn probe(&mut self) {
        self.open();
        let round = self.paths.lock().next_round();
        let Some(NextRound { node, probes }) = round else { return };
        for (nonce, probe) in probes {
            let message = Message { kind: Kind::Probe, nonce, from: &self.own, to: &node };
            let Probe { to, source, interface, len, .. } = probe;
            let length = len.min(LONGEST);
            let written = message.write(&mut self.buffer[..length]);
            let mut sent = self.send(length, to, source, interface);
            if sent.is_err() {
                // The error may be that of an earlier datagram.
                self.read_refusals();
                sent = self.send(length, to, source, interface);
            }
            let error = match sent {
                _ if !written => "a node's name is too long".to_owned(),
                Ok(()) => continue,
                Err(error) => error.to_string(),
            };
            self.paths.lock().fail(nonce, &error);
        }
    }

    /// Sends the buffer's first `length` bytes. `source` and `interface` are as for [`DatagramSocket::send`].
    ///
    /// # Errors
    /// If the socket is not open, or the kernel refuses.
    fn send(&self, length: usize, to: IpAddr, source: Option<IpAddr>, interface: u32) -> std::io::Result<()> {
        let socket = self.sockets[usize::from(to.is_ipv6())].as_ref();
        let socket = socket.ok_or_else(|| std::io::Error::other(format!("UDP port {} is not open", self.port)))?;
        socket.send(&self.buffer[..length], SocketAddr::new(to, self.port), source, interface)
    }

    /// Reads answers and refusals, and answers probes. Returns whether a socket may have more.
    fn read(&mut self) -> bool {
        self.read_refusals();
        let mut has_more = false;
        for at in [0, 1] {
            let mut left = BATCH;
            while left > 0 {
                left -= 1;
                let Some(socket) = &self.sockets[at] else { break };
                match socket.receive(&mut self.buffer) {
                    Ok(Some(datagram)) if datagram.from.port() == self.port => {
                        self.hear(datagram.len, datagram.from.ip(), datagram.to, datagram.interface);
                    }
                    Ok(None) => break,
                    // Another program's datagram, or an error about an earlier datagram.
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            has_more |= left == 0;
        }
        has_more
    }

    /// Reads the kernel's reports about earlier datagrams.
    fn read_refusals(&self) {
        for socket in self.sockets.iter().flatten() {
            for _ in 0..BATCH {
                let Ok(Some(refusal)) = socket.refusal() else { break };
                self.paths.lock().refuse(&refusal);
            }
        }
    }

    /// Handles the datagram in the buffer's first bytes, which arrived at the address `to` over `interface`.
    fn hear(&mut self, len: usize, from: IpAddr, to: IpAddr, interface: u32) {
        let Some(message) = self.buffer.get(..len).and_then(message::parse) else { return };
        if message.kind == Kind::Answer {
            return self.paths.lock().hear(&message, from);
        }
        let Some(interface) = self.paths.lock().answer(from, interface) else { return };
        let asker = message.from.to_owned();
        let answer = Message { kind: Kind::Answer, nonce: message.nonce, from: &self.own, to: &asker };
        if answer.write(&mut self.buffer[..SMALL]) {
            // A lost answer is a lost probe of the asker, which reports it.
            let _ = self.send(SMALL, from, Some(to), interface);
        }
    }
}

/// Returns the time until then for [`poll`], rounded up. 0 if the time has passed.
fn milliseconds_until(then: Instant) -> u32 {
    let left = then.saturating_duration_since(Instant::now());
    u32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prober(own: &str, port: u16, targets: Vec<Target>, known: IpAddr) -> (Prober, SharedPaths) {
        let settings = Probing { port, interval: Duration::from_millis(50) };
        let mut paths = Paths::new(Some(settings), 4789);
        paths.update(targets, [known], 0);
        let paths = SharedPaths::new(paths);
        (Prober::start(settings, own, paths.clone()).unwrap(), paths)
    }

    #[test]
    fn a_node_that_answers_under_another_name_is_a_wrong_address() {
        // The node probes itself: the only one with this port here.
        let own: IpAddr = "127.0.0.1".parse().unwrap();
        let port = DatagramSocket::bind(true, 0).unwrap().port().unwrap();
        let target = |node: &str, to: IpAddr| Target {
            node: node.into(),
            networks: vec![to.into()],
            via: Via::Route(to, "lo".into()),
            mtu: Some(1500),
            aim: Some(Aim { to, source: Some(own), interface: 0, mtu: 1500, outer: None }),
        };
        let (handle, paths) = prober("one", port, vec![target("one", own), target("two", own)], own);
        let end = Instant::now() + Duration::from_secs(20);
        let told = loop {
            let rows = paths.lock().rows("one").ways;
            let told: Vec<_> = rows.into_iter().map(|row| row.fault.map(|fault| fault.text)).collect();
            if told[1].is_some() || Instant::now() > end {
                break told;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let expected = "wrong address: node one answers at 127.0.0.1; correct the Node objects";
        assert_eq!(told, [None, Some(expected.to_owned())]);
        assert_eq!(paths.lock().summary().map(|status| (status.proven, status.broken)), Some((1, 1)));
        drop(handle);
        DatagramSocket::bind(true, port).expect("the thread has ended and closed its sockets");
    }
}
