//! A node that only routes. Tests send hand-made packets from the far ends of its many veths, all in one other namespace.
//! ```text
//!   [ node: w0 w1 .. wN ]--veths--[ wires: e0 e1 .. eN ]
//! ```
//! Addresses are assigned to wires again for each cluster, so one topology serves all clusters. A packet that arrives at a wire was allowed
//! by the node. The wires' namespace sends no answers.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bulkhead_dataplane::wire::{ipv4, ipv6};

use super::netns::{Dialogue, Netns, ip};

/// Sends the frames of an input line, `wire:frame`. On an empty line, prints the frames that have arrived.
const PROGRAM: &str = "
import socket, sys
SO_RCVBUFFORCE, SOL_PACKET, PACKET_IGNORE_OUTGOING, ALL = 33, 263, 23, 3
wires = []
for at in range(int(sys.argv[1])):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    wire.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    wire.bind(('e%d' % at, ALL))
    wires.append(wire)
print('ready', flush=True)
for line in sys.stdin:
    words, seen = line.split(), []
    for word in words:
        at, frame = word.split(':')
        wires[int(at)].send(bytes.fromhex(frame))
    for at, wire in enumerate(wires):
        while not words:
            try:
                seen.append('%d:%s' % (at, wire.recv(65536, socket.MSG_DONTWAIT).hex()))
            except BlockingIOError:
                break
    print(' '.join(seen), flush=True)
";

/// Packets per burst, before the arrived packets are read. A wire's socket can queue more than this.
const BURST: usize = 512;

/// The first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct First {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    pub sport: u16,
    pub dport: u16,
}

impl First {
    fn packet(&self) -> Vec<u8> {
        let ports = [self.sport.to_be_bytes(), self.dport.to_be_bytes()].concat();
        let rest: &[u8] = match self.protocol {
            // TCP: sequence numbers, SYN, a window.
            6 => &[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0],
            17 => &[0, 8, 0, 0],
            // SCTP: no tag, no checksum; an INIT chunk with a tag, a window, stream counts and an initial TSN.
            132 => &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 9, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1],
            other => panic!("protocol {other}"),
        };
        let mut payload = [&ports[..], rest].concat();
        let at = match self.protocol {
            6 => Some(16),
            17 => Some(6),
            _ => None,
        };
        if let Some(at) = at {
            let sum = checksum(self, &payload);
            payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        match (self.from, self.to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload.len()];
                let payload_len = payload.len();
                let header =
                    ipv4::Repr { source, destination, protocol: self.protocol, hop_limit: 64, tos: 0, payload_len };
                header.emit(&mut packet).copy_from_slice(&payload);
                packet
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut packet = vec![0; ipv6::HEADER_LEN + payload.len()];
                let payload_len = payload.len();
                let header = ipv6::Repr { source, destination, next_header: self.protocol, hop_limit: 64, payload_len };
                header.emit(&mut packet).copy_from_slice(&payload);
                packet
            }
            _ => panic!("two families"),
        }
    }

    /// Builds an Ethernet frame with the packet.
    pub fn frame(&self, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        let ethertype: [u8; 2] = if self.from.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        [&to[..], &from, &ethertype, &self.packet()].concat()
    }

    /// Parses a frame. `None` if it is not TCP, UDP or SCTP over IP, which the test cannot have sent.
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let packet = frame.get(14..)?;
        let (from, to, protocol, rest) = if packet.first()? >> 4 == 4 {
            let header = ipv4::Packet::new_checked(packet).ok()?;
            let (from, to) = (header.source().into(), header.destination().into());
            (from, to, header.protocol(), header.payload().to_vec())
        } else {
            let header = ipv6::Packet::new_checked(packet).ok()?;
            let (from, to) = (header.source().into(), header.destination().into());
            (from, to, header.next_header(), header.payload().to_vec())
        };
        if !matches!(protocol, 6 | 17 | 132) {
            return None;
        }
        let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
        Some(Self { from, to, protocol, sport: port(0)?, dport: port(2)? })
    }
}

/// Returns the TCP or UDP checksum (RFC 1071). The checksum field in `payload` must be 0.
fn checksum(first: &First, payload: &[u8]) -> u16 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length = u32::try_from(payload.len()).unwrap();
    let pseudo =
        [&octets(first.from)[..], &octets(first.to), &length.to_be_bytes(), &[0, 0, 0, first.protocol], payload]
            .concat();
    let words = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !u16::try_from(sum).unwrap() {
        // In UDP, 0 means that the packet has no checksum.
        0 => 0xffff,
        sum => sum,
    }
}

/// The routing node and the program at the far ends of its wires.
pub struct Router {
    pub node: Netns,
    wires: Netns,
    dialogue: Dialogue,
    /// The addresses behind each wire.
    behind: Vec<Vec<IpAddr>>,
}

/// The MAC address of the node's end of every wire. `WIRE` is that of the other ends.
const NODE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const WIRE: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Router {
    pub fn new(count: usize) -> Self {
        let (node, wires) = (Netns::new("router"), Netns::new("wires"));
        for at in 0..count {
            ip(&format!("-n {} link add w{at} type veth peer name e{at} netns {}", node.name(), wires.name()));
            wires.ip(&format!("link set e{at} address {} up", text(WIRE)));
            node.ip(&format!("link set w{at} address {} up", text(NODE)));
        }
        for (name, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
            ("net.ipv4.conf.all.send_redirects", "0"),
            ("net.ipv4.icmp_ratelimit", "0"),
        ] {
            node.sysctl(name, value);
        }
        let mut dialogue = Dialogue::start(&wires, PROGRAM, &count.to_string());
        assert_eq!(dialogue.hear(), "ready");
        Self { node, wires, dialogue, behind: vec![Vec::new(); count] }
    }

    /// Loads this script with nft on the node. Panics if nft rejects it.
    pub fn nft(&self, script: &str) {
        let mut command = self.node.command("nft", &["-f", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{script}", errors.chars().take(2000).collect::<String>());
    }

    /// Replaces the addresses behind the wires: entry N of `behind` lists those of wire N.
    pub fn place(&mut self, behind: &[Vec<IpAddr>]) {
        let mut lines = String::new();
        for (at, (old, new)) in self.behind.iter_mut().zip(behind).enumerate() {
            if old == new {
                continue;
            }
            let [before, now] = [&*old, new].map(|all| all.iter().copied().collect::<BTreeSet<IpAddr>>());
            for gone in before.difference(&now) {
                lines += &format!("neigh del {gone} dev w{at}\nroute del {gone} dev w{at}\n");
            }
            for new in now.difference(&before) {
                lines += &format!("route replace {new} dev w{at}\n");
                lines += &format!("neigh replace {new} lladdr {} dev w{at} nud permanent\n", text(WIRE));
            }
            old.clone_from(new);
        }
        if !lines.is_empty() {
            let mut command = std::process::Command::new("ip");
            command.args(["-n", self.node.name(), "-force", "-batch", "-"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
            // `ip` reports errors for addresses that moved to another wire: their old route is already replaced.
            child.wait().unwrap();
        }
    }

    /// Returns the wire with this address behind it. Panics if no wire has it.
    pub fn wire(&self, address: IpAddr) -> usize {
        self.behind.iter().position(|behind| behind.contains(&address)).unwrap_or_else(|| panic!("{address}"))
    }

    /// Sends each packet from its source's wire. Returns the packets that arrived. Panics if one arrived at a wrong wire.
    pub fn probe(&mut self, packets: &[First]) -> BTreeSet<First> {
        let mut arrived = BTreeSet::new();
        for burst in packets.chunks(BURST) {
            let line = burst.iter().map(|first| self.word(self.wire(first.from), first)).collect::<Vec<_>>();
            self.dialogue.say(&line.join(" "));
            // Usually the kernel has forwarded a packet before the sending call returns, but it may defer some.
            let until = Instant::now() + Duration::from_millis(500);
            let mut last = usize::MAX;
            while last != arrived.len() && Instant::now() < until {
                last = arrived.len();
                std::thread::sleep(Duration::from_millis(1));
                for (wire, first) in self.seen() {
                    assert_eq!(wire, self.wire(first.to), "{first:?} went astray");
                    arrived.insert(first);
                }
            }
        }
        arrived
    }

    /// Sends packets at a wire, whatever their source addresses. Returns all packets that arrived, each with its wire.
    pub fn send_at(&mut self, wire: usize, packets: &[First]) -> Vec<(usize, First)> {
        let line = packets.iter().map(|first| self.word(wire, first)).collect::<Vec<_>>();
        self.dialogue.say(&line.join(" "));
        std::thread::sleep(Duration::from_millis(20));
        self.seen()
    }

    fn word(&self, wire: usize, first: &First) -> String {
        let frame = first.frame(NODE, WIRE);
        format!("{wire}:{}", frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    fn seen(&mut self) -> Vec<(usize, First)> {
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        let parse = |word: &str| {
            let (wire, frame) = word.split_once(':').unwrap();
            let frame: Vec<u8> = frame.as_bytes().chunks(2).map(byte).collect();
            Some((wire.parse().unwrap(), First::of_frame(&frame)?))
        };
        self.dialogue.say("").split_whitespace().filter_map(parse).collect()
    }
}
