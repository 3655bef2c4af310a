//! Clients and servers with ordinary sockets.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bulkhead_dataplane::io::cores;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, Shutdown, sendmmsg, shutdown};

use super::net::Netns;
use super::programs::until;

/// A port within the policy on which no server listens. Its answer, a reset, shows that a pod is reachable.
const UNUSED: u16 = 5_999;
/// Interval at which a waiting server checks whether to end.
const TICK: Duration = Duration::from_millis(50);

pub(crate) fn server(address: &str, port: u16) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, port))
}

/// Waits until a TCP packet from the namespace reaches this address and an answer returns.
///
/// # Errors
/// If no answer arrives within twenty seconds, a margin for a busy machine.
pub(crate) fn reach(from: &Netns, address: &str) -> anyhow::Result<()> {
    let target = server(address, UNUSED)?;
    from.inside(|| {
        until(&format!("{address} is not reached"), Duration::from_secs(20), || {
            match TcpStream::connect_timeout(&target, Duration::from_millis(200)) {
                Ok(_) => Ok(true),
                Err(error) => Ok(error.kind() == ErrorKind::ConnectionRefused),
            }
        })
    })
}

/// Binds the calling thread to a core.
pub(crate) fn pin(core: usize) {
    cores::pin(core);
}

/// Sends `count` packets with these bytes in one system call. Returns the number that the kernel accepted.
///
/// # Errors
/// The kernel's error.
pub(crate) fn send_many(socket: &UdpSocket, bytes: &[u8], count: usize) -> io::Result<usize> {
    let parts = [IoSlice::new(bytes)];
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
        (0..count).map(|_| SendAncillaryBuffer::default()).collect();
    let mut messages: Vec<MMsgHdr<'_>> = controls.iter_mut().map(|control| MMsgHdr::new(&parts, control)).collect();
    Ok(sendmmsg(socket, &mut messages, SendFlags::empty())?)
}

/// First byte of a datagram that requests an answer. The server only counts other datagrams.
pub(crate) const ASKS: u8 = 1;

/// Counts received datagrams, and answers those that request it. Ends on drop.
#[derive(Debug)]
pub(crate) struct UdpServer {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// # Errors
    /// If the port is not available.
    pub(crate) fn start(netns: &Netns, port: u16, core: Option<usize>) -> anyhow::Result<Self> {
        let socket = netns.inside(|| UdpSocket::bind(("0.0.0.0", port)).context("cannot open a UDP socket"))?;
        socket.set_read_timeout(Some(TICK))?;
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&received));
        let serve = move || {
            core.into_iter().for_each(pin);
            let mut bytes = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
                counter.fetch_add(1, Ordering::Relaxed);
                if bytes[0] == ASKS {
                    // The client repeats unanswered requests.
                    let _ = socket.send_to(&bytes[..len], from);
                }
            }
        };
        Ok(Self { stop, received, thread: Some(std::thread::spawn(serve)) })
    }

    /// Returns the number of datagrams received since the start.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Opens a socket and exchanges one packet with the server, so that the flow is established.
///
/// # Errors
/// If no answer arrives within five seconds.
pub(crate) fn open_flow(from: &Netns, target: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = from.inside(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(TICK))?;
    let mut answer = [0; 64];
    for _ in 0..100 {
        socket.send(&[ASKS; 18])?;
        if socket.recv(&mut answer).is_ok() {
            return Ok(socket);
        }
    }
    anyhow::bail!("{target} does not answer");
}

/// Echoes each byte on several TCP ports. Ends on drop.
#[derive(Debug)]
pub(crate) struct TcpServer {
    listeners: Vec<Arc<TcpListener>>,
    threads: Vec<JoinHandle<()>>,
    first_port: u16,
}

/// Number of ports per server. With eight, the 64,000 ports of a client last for half a million connections a minute, the time for which
/// the kernel reserves the port of a closed connection.
const PORTS: u16 = 8;
/// Number of threads that accept on one port: more than connections at a time, so that a lost packet delays only its own connection.
const ACCEPTORS: usize = 8;

impl TcpServer {
    /// Starts a server. With `stay_open`, each connection has its own thread; else a thread serves connections one after another.
    ///
    /// # Errors
    /// If a port is not available.
    pub(crate) fn start(netns: &Netns, first_port: u16, stay_open: bool) -> anyhow::Result<Self> {
        let mut server = Self { listeners: Vec::new(), threads: Vec::new(), first_port };
        for port in first_port..first_port + PORTS {
            let listener = Arc::new(netns.inside(|| Ok(TcpListener::bind(("0.0.0.0", port))?))?);
            for _ in 0..ACCEPTORS {
                let listener = Arc::clone(&listener);
                server.threads.push(std::thread::spawn(move || accept(&listener, stay_open)));
            }
            server.listeners.push(listener);
        }
        Ok(server)
    }

    pub(crate) fn port(&self, number: usize) -> u16 {
        self.first_port + u16::try_from(number % usize::from(PORTS)).unwrap_or_default()
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // Ends `accept` in the threads.
            let _ = shutdown(listener.as_ref(), Shutdown::Both);
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Time limit for a silent connection, so that a broken one frees its thread. `LONG_SILENCE` is for connections with their own thread.
const SILENCE: Duration = Duration::from_secs(2);
const LONG_SILENCE: Duration = Duration::from_secs(60);

fn accept(listener: &TcpListener, stay_open: bool) {
    while let Ok((stream, _)) = listener.accept() {
        if stay_open {
            std::thread::spawn(move || answer(stream, LONG_SILENCE));
        } else {
            answer(stream, SILENCE);
        }
    }
}

/// Echoes bytes until the other side closes the connection, or sends nothing for too long.
fn answer(mut stream: TcpStream, silence: Duration) {
    let mut bytes = [0; 256];
    let _ = stream.set_read_timeout(Some(silence));
    let _ = stream.set_nodelay(true);
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

/// Opens a connection, exchanges one byte each way and closes it. Returns the time until it was open. The calling thread must be in the
/// client's namespace.
///
/// # Errors
/// If the connection fails.
pub(crate) fn exchange(target: SocketAddr) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(target)?;
    let took = begun.elapsed();
    stream.write_all(&[1])?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    ensure!(answer == [1], "a wrong answer");
    Ok(took)
}

/// Prepares a namespace for many connections one after another: all ports are available, and a connection attempt ends after 3 s instead of
/// two minutes.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn prepare_client(netns: &Netns) -> anyhow::Result<()> {
    netns.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
    netns.sysctl("net/ipv4/tcp_syn_retries", "1")
}
