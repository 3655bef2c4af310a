//! Sockets of ordinary programs: what answers, and what asks.

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

/// A port within the policy on which nobody listens: its answer, a reset, says that a pod is reached.
const UNUSED: u16 = 5_999;
/// How long a server sleeps at most before it looks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// The address of a server.
pub(crate) fn server(address: &str, port: u16) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, port))
}

/// Waits until TCP from the namespace comes to this address and an answer comes back.
///
/// # Errors
/// When it does not within twenty seconds, which is for a busy machine.
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

/// Sends a packet with these bytes so many times in one system call. Returns how many the kernel took.
///
/// # Errors
/// The kernel's.
pub(crate) fn send_many(socket: &UdpSocket, bytes: &[u8], count: usize) -> io::Result<usize> {
    let parts = [IoSlice::new(bytes)];
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
        (0..count).map(|_| SendAncillaryBuffer::default()).collect();
    let mut messages: Vec<MMsgHdr<'_>> = controls.iter_mut().map(|control| MMsgHdr::new(&parts, control)).collect();
    Ok(sendmmsg(socket, &mut messages, SendFlags::empty())?)
}

/// What a datagram that wants an answer begins with. Others are only counted.
pub(crate) const ASKS: u8 = 1;

/// Receives datagrams, counts them, and answers those that ask. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct UdpServer {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// # Errors
    /// When the port cannot be had.
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
                    // Whoever asks asks again.
                    let _ = socket.send_to(&bytes[..len], from);
                }
            }
        };
        Ok(Self { stop, received, thread: Some(std::thread::spawn(serve)) })
    }

    /// How many have come so far.
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

/// A socket to the server, and its first packet answered, so that the flow is established.
///
/// # Errors
/// When nothing answers within five seconds.
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

/// Returns each byte with a byte, on several TCP ports, until it is dropped.
#[derive(Debug)]
pub(crate) struct TcpServer {
    listeners: Vec<Arc<TcpListener>>,
    threads: Vec<JoinHandle<()>>,
    first_port: u16,
}

/// Ports that a server listens on: with these the 64,000 ports of a client last for half a million connections a minute, the
/// time for which the kernel keeps the port of a closed one.
const PORTS: u16 = 8;
/// Threads that accept on one port: more than there are connections at a time, so that one whose packet was lost keeps no other
/// waiting.
const ACCEPTORS: usize = 8;

impl TcpServer {
    /// A thread for each connection where they are to stay open; otherwise they are served one after another.
    ///
    /// # Errors
    /// When a port cannot be had.
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

    /// The port for the n-th connection.
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

/// A connection that was cut must not hold its thread for ever: of those that are served one after another, and of others.
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

/// Until the other side ends the connection, or says nothing for too long.
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

/// A connection of one byte each way, from its beginning to its end. Returns how long it took until it was open. The calling thread
/// must be in the client's namespace.
///
/// # Errors
/// When it fails.
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

/// What a namespace needs for many connections one after another: all ports, and to give up a connection after 3 s instead of
/// two minutes.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn prepare_client(netns: &Netns) -> anyhow::Result<()> {
    netns.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
    netns.sysctl("net/ipv4/tcp_syn_retries", "1")
}
