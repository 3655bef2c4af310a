//! A node whose vswitch leaves something to the next one, and TCP connections that see whether it does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::in_namespace;

use super::netns::run;
use super::{Lab, Pod};

/// A lab whose vswitch can leave something: it has a BPF file system, unmounted at the end.
#[derive(Debug)]
pub struct Lasting {
    pub lab: Lab,
    pub mount: PathBuf,
}

impl Lasting {
    /// With three pods.
    pub fn new() -> Self {
        let mut lab = Lab::new();
        for name in ["a", "b", "c"] {
            lab.pod(name, &format!("{{app: {name}}}"));
        }
        Self::of(lab)
    }

    /// The same with a lab that has not started yet.
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

/// Acts in a pod's network namespace.
pub fn inside<T: Send>(pod: &Pod, act: impl FnOnce() -> T + Send) -> T {
    in_namespace(&Path::new("/run/netns").join(pod.netns.name()), act).unwrap()
}

/// A server in a pod that sends back what it gets, as often as somebody connects.
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

/// Connects to a pod.
pub fn connect(from: &Pod, to: &Pod, port: u16, patience: Duration) -> std::io::Result<TcpStream> {
    let address: SocketAddr = format!("{}:{port}", to.v4).parse().unwrap();
    let stream = inside(from, || TcpStream::connect_timeout(&address, patience))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Whether a byte comes back.
pub fn answers(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

/// How long the kernel has a connection from its SYN-ACK is half a second. Then its packets come to the worker, which gives it to the kernel
/// for as long as it lives; twice that is enough for both.
const SETTLED: Duration = Duration::from_secs(1);

/// Talks until the kernel has the connection for good. A worker lets it go when the connection is quiet for a moment, so that nothing is
/// overtaken; the pauses are far longer than that, and together longer than a worker waits for one that is never quiet.
pub fn settle(stream: &mut TcpStream) {
    let since = Instant::now();
    while since.elapsed() < SETTLED {
        assert!(answers(stream));
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Longer than any answer takes, and no longer than a test should wait for one that must not come.
pub const PATIENCE: Duration = Duration::from_millis(1_500);
