//! Network namespaces and veths for tests, which create and remove their own.
#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    reason = "every test program is built with all of it and uses some; its numbers are small"
)]

pub(crate) mod translate;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use bulkhead_dataplane::io::{FramePool, Interface, QueueConfig, Umem, XdpMode, XskError, XskPort, in_namespace};
use bulkhead_dataplane::{PortConfig, PortKind, Routes, Snapshot};

/// Two pods and a switch: the `eth0` of `a` and `b` are the far ends of `va` and `vb` in the switch's namespace.
pub(crate) struct Net {
    prefix: String,
}

impl Net {
    /// Creates the namespaces. If the tests cannot run here, prints a reason and returns `None`.
    pub(crate) fn new(queues: u32, mtu: u32) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if std::env::var("BULKHEAD_E2E").as_deref() == Ok("skip") {
            println!("skipped: `cargo xtask e2e` runs this (BULKHEAD_E2E=skip)");
            return None;
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
            assert!(std::env::var("BULKHEAD_E2E").as_deref() != Ok("require"), "BULKHEAD_E2E=require, but not root");
            println!("skipped: only root can make network namespaces");
            return None;
        }
        let prefix = format!("bhx{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = Self { prefix };
        for name in ["sw", "a", "b"] {
            run(&["ip", "netns", "add", &net.name(name)]);
            // Without IPv6 the kernel sends no packets by itself.
            net.exec(name, "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip link set lo up");
        }
        for (pod, address) in [("a", "10.77.0.1/24"), ("b", "10.77.0.2/24")] {
            let to = net.name(pod);
            let queues = format!("numrxqueues {queues} numtxqueues {queues}");
            net.exec("sw", &format!("ip link add v{pod} {queues} type veth peer name eth0 {queues} netns {to}"));
            net.exec("sw", &format!("ip link set v{pod} mtu {mtu} up"));
            net.exec(pod, &format!("ip link set eth0 mtu {mtu} up; ip addr add {address} dev eth0"));
        }
        Some(net)
    }

    pub(crate) fn name(&self, namespace: &str) -> String {
        format!("{}-{namespace}", self.prefix)
    }

    pub(crate) fn path(&self, namespace: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(self.name(namespace))
    }

    /// Runs a shell command in a namespace and returns its output.
    pub(crate) fn exec(&self, namespace: &str, command: &str) -> String {
        run(&["ip", "netns", "exec", &self.name(namespace), "sh", "-ec", command])
    }

    pub(crate) fn inside<T: Send>(&self, namespace: &str, inside: impl FnOnce() -> T + Send) -> T {
        in_namespace(&self.path(namespace), inside).unwrap()
    }

    pub(crate) fn open(&self, interface: &str, mode: XdpMode) -> Result<Interface, XskError> {
        self.inside("sw", || Interface::open(interface, mode))
    }

    pub(crate) fn ports(&self, interface: &Interface, pool: &FramePool) -> Vec<XskPort> {
        self.inside("sw", || interface.ports(pool.umem(), SMALL)).unwrap()
    }

    /// IPv4 packets received by the switch's IP stack: those that an XDP program passed on.
    pub(crate) fn seen_by_the_host(&self) -> u64 {
        let text = self.exec("sw", "cat /proc/net/snmp");
        let counts = text.lines().filter(|line| line.starts_with("Ip:")).nth(1).unwrap();
        counts.split_whitespace().nth(3).unwrap().parse().unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in ["sw", "a", "b"] {
            drop(Command::new("ip").args(["netns", "del", &self.name(name)]).output());
        }
    }
}

/// Queues for one burst. They are small, so that tests wrap around the rings.
pub(crate) const SMALL: QueueConfig = QueueConfig { receive: 256, transmit: 256 };

pub(crate) fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

pub(crate) fn pool(chunks: u32) -> FramePool {
    let (umem, frames) = Umem::new(chunks).unwrap();
    FramePool::new(umem, frames)
}

/// A snapshot with two ports and no rules, which provides policy epochs.
pub(crate) fn two_ports() -> Snapshot {
    let port = |name: &str| PortConfig::new(name, PortKind::Pod);
    Snapshot::new(1, vec![port("x/a"), port("x/b")], Vec::new(), Routes::default()).unwrap()
}
