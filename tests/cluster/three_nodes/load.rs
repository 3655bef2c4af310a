//! Connections between pods of all nodes that are in use all the time.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::End;
use crate::lab::lasting::{answers, settle};

/// The pause between two bytes of a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// The time without an answer after which a connection counts as lost.
const LOST: Duration = Duration::from_secs(20);

/// Connections from each pod to each address of the Service.
const BACKENDS: usize = 3;

/// Connections with a byte every [`PAUSE`], which a server returns.
pub(super) struct Load {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Pause>>,
}

/// The longest pause of a connection.
#[derive(Debug)]
#[expect(dead_code, reason = "the test prints it")]
pub(super) struct Pause {
    /// The longest time between two answers.
    pub(super) longest: Duration,
    from: String,
    to: SocketAddr,
    /// The pod that answers at `to`.
    server: String,
    /// Whether that is the client itself.
    pub(super) goes_back: bool,
}

impl Load {
    /// Opens connections from each pod to the others and, through the Service, to some backends. Returns when all are in use.
    pub(super) fn start(pods: &[End], service: &[IpAddr]) -> Self {
        let mut targets: Vec<(&End, SocketAddr)> = Vec::new();
        for from in pods {
            let others = pods.iter().filter(|to| to.name != from.name);
            let others = others.flat_map(|to| to.addresses.map(|address| (address, to.ports[1])));
            let services = service.iter().flat_map(|&address| [(address, 7); BACKENDS]);
            targets.extend(others.chain(services).map(|to| (from, SocketAddr::from(to))));
        }
        // One after another, because the servers' queue of new connections is short.
        let mut streams: Vec<_> = targets.into_iter().map(|(from, to)| open(from, to)).collect();
        std::thread::scope(|scope| {
            streams.iter_mut().for_each(|(_, stream)| drop(scope.spawn(|| settle(stream))));
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let use_all = |(pause, stream): (Pause, TcpStream)| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || pause.measured(stream, &is_over))
        };
        let threads = streams.into_iter().map(use_all).collect();
        Self { is_over, threads }
    }

    /// Stops sending and closes the connections. Returns the longest time between two answers of each connection. Panics if one of them was closed
    /// by its server, or had no answer for [`LOST`].
    pub(super) fn stop(self) -> Vec<Pause> {
        self.is_over.store(true, Ordering::SeqCst);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

impl Pause {
    /// Sends a byte every [`PAUSE`] and waits for its answer, until `is_over` is true. Returns the pause with the longest time between two
    /// answers. Panics if the server closes the connection, or does not answer for [`LOST`].
    fn measured(mut self, mut stream: TcpStream, is_over: &AtomicBool) -> Self {
        let mut last = Instant::now();
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(PAUSE);
            assert!(answers(&mut stream), "a connection was lost: {self:?}");
            self.longest = self.longest.max(last.elapsed());
            last = Instant::now();
        }
        self
    }
}

/// Opens a connection to an echo server, which first sends its name. The returned pause is zero.
fn open(from: &End, to: SocketAddr) -> (Pause, TcpStream) {
    let from_name = from.name.clone();
    let mut stream = from.connect(to).unwrap_or_else(|| panic!("{from_name} does not reach {to}"));
    let (mut server, mut byte) = (Vec::new(), [0]);
    while stream.read_exact(&mut byte).is_ok() && byte != *b"\n" {
        server.extend(byte);
    }
    let server = String::from_utf8(server).unwrap();
    stream.set_read_timeout(Some(LOST)).unwrap();
    (Pause { longest: Duration::ZERO, goes_back: server == from_name, from: from_name, to, server }, stream)
}
