//! A node whose vswitch leaves pinned programs and sessions to its successor, and TCP connections that show whether they survive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::in_namespace;

use super::netns::run;
use super::{Lab, Pod};

/// A lab with its own BPF file system for pins, which is unmounted at the end.
#[derive(Debug)]
pub struct Lasting {
    pub lab: Lab,
    pub mount: PathBuf,
}

impl Lasting {
    /// Makes one with pods `a`, `b` and `c`.
    pub fn new() -> Self {
        let mut lab = Lab::new();
        for name in ["a", "b", "c"] {
            lab.pod(name, &format!("{{app: {name}}}"));
        }
        Self::of(lab)
    }

    /// Adds the BPF file system to a lab whose vswitch has not started yet.
    pub fn of(mut lab: Lab) -> Self {
        let mount = lab.path("bpf");
        std::fs::create_dir(&mount).unwrap();
        run("mount", &["-t", "bpf", "bpf", mount.to_str().unwrap()]);
        lab.more_config.push_str(&format!("pins: {}\n", mount.join("bulkhead").display()));
        Self { lab, mount }
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
    }
}

/// Runs a closure in a pod's network namespace.
pub fn inside<T: Send>(pod: &Pod, act: impl FnOnce() -> T + Send) -> T {
    in_namespace(&Path::new("/run/netns").join(pod.netns.name()), act).unwrap()
}

/// Starts a TCP echo server in a pod, for any number of connections.
pub fn echo(pod: &Pod, port: u16) {
    let address: SocketAddr = format!("{}:{port}", pod.v4).parse().unwrap();
    let listener = inside(pod, || TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Opens a TCP connection to a pod. `patience` limits the connect and each read.
pub fn connect(from: &Pod, to: &Pod, port: u16, patience: Duration) -> std::io::Result<TcpStream> {
    connect_to(from, SocketAddr::new(to.v4.parse().unwrap(), port), patience)
}

/// Opens a TCP connection to any address.
pub fn connect_to(from: &Pod, address: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let stream = inside(from, || TcpStream::connect_timeout(&address, patience))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Whether the echo server returns one byte.
pub fn answers(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

/// How long [`settle`] talks. From its SYN on, the kernel forwards a connection for half a second before a worker gets its packets
/// again and can add it for its whole life. This is twice that.
const SETTLED: Duration = Duration::from_secs(1);

/// Talks until the kernel forwards the connection for its whole life. A worker hands a connection over when it is briefly idle, to keep
/// packets in order. The pauses here are longer than that, and their sum exceeds the time after which a worker hands over busy connections.
pub fn settle(stream: &mut TcpStream) {
    let since = Instant::now();
    while since.elapsed() < SETTLED {
        assert!(answers(stream));
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// How long to wait for an answer: longer than any answer takes, and short enough for one that must not come.
pub const PATIENCE: Duration = Duration::from_millis(1_500);
