//! A bulk TCP connection between two pods, with packets of the largest size that the pods' kernels send.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bulkhead_dataplane::io::in_namespace;

use super::Pod;
use super::netns::{Netns, eventually};

/// Bytes per write: the kernel's largest packet.
const CHUNK: usize = 65_536;

/// The sender's pause between two writes. It limits the rate to about 500 Mb/s, at which no observer loses packets.
const PAUSE: Duration = Duration::from_millis(1);

/// A running bulk transfer: one sender and one receiver thread. Dropping it stops both threads.
#[derive(Debug)]
pub struct Bulk {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    /// Whether every byte received so far had the expected value.
    is_right: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
    receiver: Option<JoinHandle<()>>,
    /// The client's source port.
    pub port: u16,
}

impl Bulk {
    /// Starts a transfer from `client` to this TCP port of `server`, over IPv6 or IPv4.
    pub fn start(client: &Pod, server: &Pod, port: u16, is_v6: bool) -> Self {
        let address = if is_v6 { &server.v6 } else { &server.v4 };
        Self::between(&client.netns, &server.netns, address, port)
    }

    /// Starts a transfer to an address in any namespace.
    pub fn between(client: &Netns, server: &Netns, address: &str, port: u16) -> Self {
        let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
        let path = |netns: &Netns| Path::new("/run/netns").join(netns.name());
        let listener = in_namespace(&path(server), || TcpListener::bind(address).unwrap()).unwrap();
        let patience = Duration::from_secs(5);
        let out = in_namespace(&path(client), || TcpStream::connect_timeout(&address, patience).unwrap()).unwrap();
        let (back, _) = listener.accept().unwrap();
        for stream in [&out, &back] {
            // The threads check `is_over` after each timeout.
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        }
        let port = out.local_addr().unwrap().port();
        let [sent, received] = [0, 0].map(|_| Arc::new(AtomicU64::new(0)));
        let [is_over, is_right] = [false, true].map(|is| Arc::new(AtomicBool::new(is)));
        let (count, over) = (Arc::clone(&sent), Arc::clone(&is_over));
        let sender = std::thread::spawn(move || send(out, &count, &over));
        let (count, over, right) = (Arc::clone(&received), Arc::clone(&is_over), Arc::clone(&is_right));
        let receiver = std::thread::spawn(move || receive(back, &count, &over, &right));
        Self { sent, received, is_over, is_right, sender: Some(sender), receiver: Some(receiver), port }
    }

    /// Bytes received since the start.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    /// Waits until 20 further chunks arrive. Panics with `what` after ten seconds.
    pub fn flows(&self, what: &str) {
        let before = self.received();
        eventually(what, || self.received() > before + 20 * CHUNK as u64);
    }

    /// Ends the transfer. Panics unless every byte that was sent arrived unchanged.
    pub fn end(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.sender.take().unwrap().join().unwrap();
        self.receiver.take().unwrap().join().unwrap();
        assert!(self.is_right.load(Ordering::SeqCst), "the bytes are those that were sent");
        assert_eq!(self.received(), self.sent.load(Ordering::SeqCst), "everything arrives");
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Returns the byte at offset `at` of the stream.
fn byte_at(at: u64) -> u8 {
    // The sequence has no short period, in which a lost or repeated packet would go unnoticed.
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn send(mut stream: TcpStream, count: &AtomicU64, is_over: &AtomicBool) {
    let mut chunk: Vec<u8> = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let at = count.load(Ordering::SeqCst);
        if chunk.is_empty() {
            chunk.extend((at..at + CHUNK as u64).map(byte_at));
        }
        match stream.write(&chunk) {
            Ok(length) => {
                count.fetch_add(length as u64, Ordering::SeqCst);
                chunk.drain(..length);
            }
            Err(error) if is_pause(error.kind()) => {}
            Err(_) => return,
        }
        std::thread::sleep(PAUSE);
    }
    // Dropping the stream closes the connection, which ends the receiver.
}

fn receive(mut stream: TcpStream, count: &AtomicU64, is_over: &AtomicBool, is_right: &AtomicBool) {
    let (mut bytes, mut silent) = (vec![0; CHUNK], 0);
    // After heavy loss, retransmissions take a while: the receiver gives up after ten seconds of silence.
    while !is_over.load(Ordering::SeqCst) || silent < 100 {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(length) => {
                silent = 0;
                let at = count.load(Ordering::SeqCst);
                if !(at..).zip(&bytes[..length]).all(|(at, byte)| byte_at(at) == *byte) {
                    is_right.store(false, Ordering::SeqCst);
                }
                count.fetch_add(length as u64, Ordering::SeqCst);
            }
            Err(error) if is_pause(error.kind()) => silent += 1,
            Err(_) => return,
        }
    }
}
