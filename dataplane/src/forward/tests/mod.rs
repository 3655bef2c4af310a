//! Forwarding as a whole: the engine's verdicts, and the sent bytes.

mod admission;
mod discovery;
mod errors;
mod packets;
mod refusals;
mod resolution;
mod services;
mod speed;

use std::sync::Arc;

use etherparse::{NetSlice, SlicedPacket};

use super::*;
use crate::testbed::*;
use crate::wire::{checksum, ipv6};
use crate::{Link, LinkType, NextHop, Outcome, Packet, PortConfig, Routes, Worker, WorkerConfig};

const B_MAC: Mac = [2, 0, 0, 0, 0, 2];
const HOST_MAC: Mac = [2, 0, 0, 0, 0, 3];
const GATEWAY_MAC: Mac = [2, 0, 0, 0, 0, 4];
const STRANGER_MAC: Mac = [2, 0, 0, 0, 0, 5];
const EVERYBODY: Mac = [0xff; 6];

/// Returns the vswitch's own MAC address on a port.
fn own(port: PortId) -> Mac {
    [2, 0, 0, 0, 1, u8::try_from(port.0).unwrap()]
}

/// Returns the testbed's ports with links. B's MAC address is unknown, and the uplink's MTU is 1400.
fn linked_ports() -> Vec<PortConfig> {
    let mut ports = ports();
    for (id, port) in (0..).map(PortId).zip(&mut ports) {
        port.link = Some(Link { mac: own(id), mtu: if id == UPLINK { 1400 } else { 1500 } });
    }
    ports
}

/// Default routes by gateways, with 192.168.0.0/24 and fd00:1::/64 on the uplink's link.
fn linked_snapshot(generation: u64, ports: Vec<PortConfig>) -> Snapshot {
    let to = |net: &str, to: NextHop| (net.parse().unwrap(), to);
    let via = |gateway: &str| NextHop::via(UPLINK, Some(ip(gateway)));
    let mut routes = vec![
        to("0.0.0.0/0", via("192.168.0.254")),
        to("::/0", via("fe80::fe")),
        to("192.168.0.0/24", UPLINK.into()),
        to("fd00:1::/64", UPLINK.into()),
    ];
    for (id, port) in (0..).map(PortId).zip(&ports) {
        routes.extend(port.addresses.iter().map(|&address| (address.into(), id.into())));
    }
    let tables = (0..3).map(|_| Arc::new(open_table())).collect();
    Snapshot::new(generation, ports, tables, Routes::new(routes).unwrap()).unwrap()
}

/// A worker's engine and forwarder.
struct Node {
    engine: Worker,
    forwarder: Forwarder<Vec<u8>>,
    neighbours: Arc<Neighbours>,
    snapshot: Snapshot,
    now: u64,
}

impl Node {
    fn new() -> Self {
        Self::with(Neighbours::new(), linked_snapshot(1, linked_ports()))
    }

    fn with(neighbours: Arc<Neighbours>, snapshot: Snapshot) -> Self {
        let engine = Worker::with_fixed_seed(WorkerConfig::default());
        let forwarder = Forwarder::new(Arc::clone(&neighbours));
        let mut node = Self { engine, forwarder, neighbours, snapshot, now: 1000 * SECOND };
        node.forwarder.begin(&node.snapshot, node.now);
        node
    }

    /// Returns a node that knows the MAC addresses of B and of the host.
    fn acquainted() -> Self {
        let node = Self::new();
        node.neighbours.learn_peer(B, B_MAC, false);
        node.neighbours.learn_peer(HOST, HOST_MAC, true);
        node
    }

    fn verdict(&mut self, in_port: PortId, frame: &[u8]) -> Verdict {
        let packet = Packet { frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port, time: self.now };
        let mut outcomes = [Outcome::UNJUDGED];
        self.engine.process(&self.snapshot, &[packet], &mut outcomes);
        outcomes[0].verdict
    }

    /// Passes a frame through engine and forwarder.
    fn step(&mut self, in_port: PortId, frame: &mut [u8]) -> Step {
        self.forwarder.begin(&self.snapshot, self.now);
        if let Err(reason) = self.forwarder.admit(in_port, frame) {
            return Step::Drop(reason);
        }
        let verdict = self.verdict(in_port, frame);
        self.forwarder.forward(&self.snapshot, frame, frame.len(), in_port, verdict)
    }

    /// As `step`, but holds the frame if the step says so.
    fn receive(&mut self, in_port: PortId, frame: &[u8]) -> Step {
        let mut frame = frame.to_vec();
        let step = self.step(in_port, &mut frame);
        if let Step::Hold(neighbour) = step {
            assert_eq!(self.forwarder.hold(&self.snapshot, neighbour, in_port, frame), None);
        }
        step
    }

    fn tick(&mut self) {
        self.forwarder.begin(&self.snapshot, self.now);
        self.forwarder.tick(&self.snapshot);
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        self.tick();
    }

    fn messages(&mut self) -> Vec<(PortId, Vec<u8>)> {
        let mut messages = Vec::new();
        while self.forwarder.has_messages() {
            let mut frame = vec![0; MESSAGE_MAX];
            let (port, len) = self.forwarder.write_message(&mut frame).unwrap();
            frame.truncate(len);
            messages.push((port, frame));
        }
        messages
    }

    /// Returns the only message to send.
    fn message(&mut self) -> (PortId, Vec<u8>) {
        let messages = self.messages();
        assert_eq!(messages.len(), 1, "{messages:x?}");
        messages.into_iter().next().unwrap()
    }

    fn released(&mut self) -> Vec<Released<Vec<u8>>> {
        std::iter::from_fn(|| self.forwarder.next_released()).collect()
    }

    /// Returns the ICMP error about a frame. `None` if none is sent.
    fn report(&mut self, in_port: PortId, frame: &[u8], out: Option<PortId>, reason: DropReason) -> Option<Vec<u8>> {
        let packet = Packet { frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port, time: self.now };
        let mut error = vec![0xee; ERROR_MAX];
        let len = self.forwarder.report(&self.snapshot, &packet, out, reason, &mut error)?;
        error.truncate(len);
        Some(error)
    }
}

fn frame(source: Mac, destination: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ethertype.to_be_bytes(), payload].concat()
}

/// Returns a frame to the vswitch with this IP packet.
fn framed(source: Mac, in_port: PortId, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
    frame(source, own(in_port), ethertype, packet)
}

/// Returns a frame to the vswitch with a UDP packet.
fn udp_frame(source: Mac, in_port: PortId, src: &str, dst: &str) -> Vec<u8> {
    framed(source, in_port, &udp(src, dst, 80))
}

fn octets4(address: &str) -> [u8; 4] {
    address.parse::<std::net::Ipv4Addr>().unwrap().octets()
}

fn octets6(address: &str) -> [u8; 16] {
    address.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

fn arp(operation: u8, mac: Mac, sender: &str, target: &str) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    let message = [&head[..], &mac, &octets4(sender), &[0; 6], &octets4(target), &[0; 18]].concat();
    frame(mac, EVERYBODY, 0x0806, &message)
}

/// Returns a neighbour discovery message, with a link-layer address option if `option` is set.
fn nd(kind: u8, flags: u8, mac: Mac, (src, dst): (&str, &str), target: &str, option: Option<Mac>) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &octets6(target)].concat();
    if let Some(named) = option {
        message.extend([if kind == 136 { 2 } else { 1 }, 1]);
        message.extend(named);
    }
    let sum = checksum::transport(ip(src), ip(dst), 58, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame(mac, [0x33, 0x33, 0, 0, 0, 1], 0x86dd, &v6(src, dst, 58, 255, &message))
}

fn solicitation(mac: Mac, src: &str, target: &str) -> Vec<u8> {
    let group = ipv6::solicited_node(target.parse().unwrap()).to_string();
    nd(135, 0, mac, (src, &group), target, (src != "::").then_some(mac))
}

/// Returns the TTL or hop limit, after checking the header's checksum.
fn hop_limit(frame: &[u8]) -> u8 {
    match SlicedPacket::from_ethernet(frame).unwrap().net.unwrap() {
        NetSlice::Ipv4(ip) => {
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
            ip.header().ttl()
        }
        NetSlice::Ipv6(ip) => ip.header().hop_limit(),
        NetSlice::Arp(_) => panic!("ARP has none"),
    }
}

fn destination(frame: &[u8]) -> Mac {
    frame[..6].try_into().unwrap()
}

fn source(frame: &[u8]) -> Mac {
    frame[6..12].try_into().unwrap()
}

fn dropped(reason: DropReason) -> Step {
    Step::Drop(reason)
}
