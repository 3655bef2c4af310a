//! A small node for tests: two pods, the uplink, the host, and packets between them.

pub(crate) mod dns;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_classifier::{
    Action, Addresses, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, protocol,
};

use crate::packet::TcpFlags;
use crate::probe::{Probe, ProbeKind};
use crate::*;

pub(crate) const UPLINK: PortId = PortId(0);
pub(crate) const HOST: PortId = PortId(1);
/// The port of pod A, 10.0.0.1 and fd00::1. Policy allows all ingress.
pub(crate) const A: PortId = PortId(2);
/// The port of pod B, 10.0.0.2 and fd00::2. Policy allows from A only port 80 of TCP, UDP and SCTP, and echo requests.
pub(crate) const B: PortId = PortId(3);

pub(crate) const A_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The destination port of packets that make a worker panic, in tests only.
pub(crate) const FATAL_PORT: u16 = 0xdead;

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) const OPEN: TableId = TableId(0);
pub(crate) const CLOSED: TableId = TableId(1);
pub(crate) const STRICT: TableId = TableId(2);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn open_table() -> Tables {
    Tables::build(vec![Rule::any(Action::Allow, OriginId(1))]).unwrap()
}

pub(crate) fn strict_table() -> Tables {
    let service = |protocol, ports| Service { protocols: (protocol, protocol), ports };
    let set: ServiceSet = [
        service(protocol::TCP, PortRange::one(80)),
        service(protocol::UDP, PortRange::one(80)),
        service(protocol::SCTP, PortRange::one(80)),
        service(protocol::ICMP, PortRange::ALL),
        service(protocol::ICMPV6, PortRange::ALL),
    ]
    .into_iter()
    .collect();
    let allow = |source: &str| Rule {
        src: Addresses::prefix(source.parse().unwrap()),
        services: Services::from(set.clone()),
        ..Rule::any(Action::Allow, OriginId(7))
    };
    Tables::build(vec![allow("10.0.0.1/32"), allow("fd00::1/128"), Rule::any(Action::Deny, OriginId(8))]).unwrap()
}

fn port(name: &str, kind: PortKind, addresses: &[&str], egress: TableId) -> PortConfig {
    PortConfig {
        name: name.into(),
        kind,
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        mac: None,
        egress: Some(egress),
        ingress: None,
        audit: None,
        hairpin: (kind == PortKind::Pod).then_some(OriginId(9)),
        hairpin_table: None,
        named_table: None,
        named_audit: None,
        link: None,
        is_gone: false,
        shares_host: false,
    }
}

pub(crate) fn ports() -> Vec<PortConfig> {
    vec![
        port("uplink", PortKind::Uplink, &[], OPEN),
        port("host", PortKind::Host, &["192.168.0.1", "fd00:1::1"], OPEN),
        PortConfig { mac: Some(A_MAC), ..port("ns/a", PortKind::Pod, &["10.0.0.1", "fd00::1"], OPEN) },
        port("ns/b", PortKind::Pod, &["10.0.0.2", "fd00::2"], STRICT),
    ]
}

pub(crate) fn routes(ports: &[PortConfig]) -> Routes {
    let own = (0u16..).zip(ports).flat_map(|(id, port)| port.addresses.iter().map(move |&a| (a.into(), PortId(id))));
    let defaults = [("0.0.0.0/0".parse().unwrap(), UPLINK), ("::/0".parse().unwrap(), UPLINK)];
    Routes::new(own.chain(defaults)).unwrap()
}

pub(crate) fn snapshot_of(generation: u64, ports: Vec<PortConfig>) -> Snapshot {
    let closed = Tables::build(vec![]).unwrap();
    let tables = vec![Arc::new(open_table()), Arc::new(closed), Arc::new(strict_table())];
    let routes = routes(&ports);
    Snapshot::new(generation, ports, tables, routes).unwrap()
}

/// Returns a snapshot whose routes say that no pod has other addresses of the pods' blocks.
pub(crate) fn snapshot_of_blocks(generation: u64, ports: Vec<PortConfig>) -> Snapshot {
    let snapshot = snapshot_of(generation, ports);
    let own =
        snapshot.ids().flat_map(|id| snapshot.port(id).unwrap().addresses.iter().map(move |&a| (a.into(), id.into())));
    let blocks = ["10.0.0.0/24", "fd00::/64"].map(|block| (block.parse().unwrap(), NextHop::unreachable(UPLINK)));
    let defaults = ["0.0.0.0/0", "::/0"].map(|all| (all.parse().unwrap(), UPLINK.into()));
    let routes = Routes::new(own.chain(blocks).chain(defaults)).unwrap();
    Snapshot::new(generation, snapshot.ports().to_vec(), snapshot.tables().to_vec(), routes)
        .unwrap()
        .telling_unreachable(true)
}

/// Returns the node's ports without the addresses of one, as after the end of its pod's object.
pub(crate) fn ports_without(id: PortId) -> Vec<PortConfig> {
    let mut ports = ports();
    ports[id.index()].addresses.clear();
    ports
}

/// Returns the node's ports, of which the interface of one is gone.
pub(crate) fn ports_with_gone(id: PortId) -> Vec<PortConfig> {
    let mut ports = ports();
    ports[id.index()].is_gone = true;
    ports
}

pub(crate) fn snapshot() -> Snapshot {
    snapshot_of(1, ports())
}

/// Returns a snapshot of this generation in which a port has another table.
pub(crate) fn snapshot_with(generation: u64, id: PortId, egress: Option<TableId>) -> Snapshot {
    let mut ports = ports();
    ports[id.index()].egress = egress;
    snapshot_of(generation, ports)
}

/// A worker with a snapshot of the test node and a clock that the test advances.
pub(crate) struct Bed {
    pub(crate) worker: Worker,
    pub(crate) snapshot: Snapshot,
    pub(crate) now: u64,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(SessionConfig::default())
    }

    pub(crate) fn with(sessions: SessionConfig) -> Self {
        let worker = Worker::with_fixed_seed(WorkerConfig { sessions, ..WorkerConfig::default() });
        Self { worker, snapshot: snapshot(), now: 1000 * SECOND }
    }

    pub(crate) fn send_link(&mut self, in_port: PortId, link: LinkType, frame: &[u8]) -> Outcome {
        let packet = Packet { frame, wire_len: frame.len(), link, in_port, time: self.now };
        let mut outcomes = [Outcome::UNJUDGED];
        self.worker.process(&self.snapshot, &[packet], &mut outcomes);
        let counters = self.worker.counters();
        assert_eq!(counters.received(), counters.forwarded() + counters.dropped_in_all());
        assert_eq!(counters.dropped(DropReason::Unjudged), 0);
        outcomes[0]
    }

    pub(crate) fn send(&mut self, in_port: PortId, packet: &[u8]) -> Outcome {
        self.send_link(in_port, LinkType::Raw, packet)
    }

    pub(crate) fn verdict(&mut self, in_port: PortId, packet: &[u8]) -> Verdict {
        self.send(in_port, packet).verdict
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
    }
}

pub(crate) fn probe(kind: ProbeKind, src: &str, dst: &str, dport: u16) -> Probe {
    Probe { src: ip(src), dst: ip(dst), kind, sport: 40_000, dport }
}

pub(crate) fn udp(src: &str, dst: &str, dport: u16) -> Vec<u8> {
    probe(ProbeKind::Udp, src, dst, dport).request().unwrap()
}

/// Returns a TCP segment with the first sequence number of probes, which acknowledges a probe.
pub(crate) fn tcp(src: &str, dst: &str, sport: u16, dport: u16, flags: u8) -> Vec<u8> {
    tcp_at((src, sport), (dst, dport), flags, (1, 2))
}

/// Returns a TCP segment with these sequence and acknowledgement numbers and a correct checksum.
pub(crate) fn tcp_at(src: (&str, u16), dst: (&str, u16), flags: u8, (seq, ack): (u32, u32)) -> Vec<u8> {
    let probe = Probe { sport: src.1, ..probe(ProbeKind::Tcp, src.0, dst.0, dst.1) };
    let mut packet = probe.request().unwrap();
    let at = packet.len() - 20;
    packet[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
    set_flags(&mut packet, flags);
    if flags & ACK != 0 {
        packet[at + 8..at + 12].copy_from_slice(&ack.to_be_bytes());
    }
    sum_tcp(&mut packet);
    packet
}

/// Sets the flags of a segment without options and data.
pub(crate) fn set_flags(packet: &mut [u8], flags: u8) {
    let at = packet.len() - 7;
    packet[at] = flags;
    sum_tcp(packet);
}

/// Computes and writes a TCP segment's checksum.
fn sum_tcp(packet: &mut [u8]) {
    use crate::wire::checksum;
    let at = packet.len() - 20;
    packet[at + 16..at + 18].fill(0);
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    let sum = checksum::internet(&[addresses, &[0, protocol::TCP, 0, 20], &packet[at..]]);
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Returns a segment from A to port 80 of B.
pub(crate) fn a_to_b(flags: u8) -> Vec<u8> {
    tcp("10.0.0.1", "10.0.0.2", 40_000, 80, flags)
}

/// Returns a segment from port 80 of B to A.
pub(crate) fn b_to_a(flags: u8) -> Vec<u8> {
    tcp("10.0.0.2", "10.0.0.1", 80, 40_000, flags)
}

pub(crate) const SYN: u8 = TcpFlags::SYN;
pub(crate) const ACK: u8 = TcpFlags::ACK;
pub(crate) const FIN: u8 = TcpFlags::FIN;
pub(crate) const RST: u8 = TcpFlags::RST;

pub(crate) fn ethernet(source: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 0xff][..], &source, &ethertype.to_be_bytes(), payload].concat()
}

/// Returns a router's ICMP error about a packet, for `dst`.
pub(crate) fn error_about(packet: &[u8], router: &str, dst: &str) -> Vec<u8> {
    let (src, dst) = (ip(router), ip(dst));
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let inner = &packet[..28.min(packet.len())];
            let total = u16::try_from(28 + inner.len()).unwrap().to_be_bytes();
            let mut error = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 1, 0, 0];
            error.extend(src.octets());
            error.extend(dst.octets());
            error.extend([3, 4, 0, 0, 0, 0, 5, 0xdc]);
            error.extend(inner);
            error
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let len = u16::try_from(8 + packet.len()).unwrap().to_be_bytes();
            let mut error = vec![0x60, 0, 0, 0, len[0], len[1], 58, 64];
            error.extend(src.octets());
            error.extend(dst.octets());
            error.extend([2, 0, 0, 0, 0, 0, 5, 0xdc]);
            error.extend(packet);
            error
        }
        _ => panic!("two families"),
    }
}

/// Returns the fragments of an IPv4 packet, with `size` bytes of payload each (a multiple of 8).
pub(crate) fn fragments_v4(packet: &[u8], id: u16, size: usize) -> Vec<Vec<u8>> {
    let payload = &packet[20..];
    let count = payload.len().div_ceil(size);
    payload
        .chunks(size)
        .enumerate()
        .map(|(at, part)| {
            let mut fragment = [&packet[..20], part].concat();
            let more = if at + 1 < count { 0x2000 } else { 0 };
            let offset = u16::try_from(at * size / 8).unwrap() | more;
            let total = u16::try_from(fragment.len()).unwrap();
            fragment[2..4].copy_from_slice(&total.to_be_bytes());
            fragment[4..6].copy_from_slice(&id.to_be_bytes());
            fragment[6..8].copy_from_slice(&offset.to_be_bytes());
            fragment
        })
        .collect()
}

/// Returns the fragments of an IPv6 packet without extension headers, with `size` bytes of payload each (a multiple of 8).
pub(crate) fn fragments_v6(packet: &[u8], id: u16, size: usize) -> Vec<Vec<u8>> {
    let payload = &packet[40..];
    let count = payload.len().div_ceil(size);
    payload
        .chunks(size)
        .enumerate()
        .map(|(at, part)| {
            let mut fragment = packet[..40].to_vec();
            let len = u16::try_from(8 + part.len()).unwrap();
            fragment[4..6].copy_from_slice(&len.to_be_bytes());
            fragment[6] = 44;
            let offset = u16::try_from(at * size).unwrap() | u16::from(at + 1 < count);
            fragment.extend([packet[6], 0]);
            fragment.extend(offset.to_be_bytes());
            fragment.extend([0, 0]);
            fragment.extend(id.to_be_bytes());
            fragment.extend(part);
            fragment
        })
        .collect()
}

/// Returns an IPv6 packet with this payload.
pub(crate) fn v6(src: &str, dst: &str, next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], next_header, hop_limit];
    for address in [src, dst] {
        packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    packet.extend(payload);
    packet
}

/// Returns an IPv4 packet with this payload.
pub(crate) fn v4(src: &str, dst: &str, protocol: u8, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, ttl, protocol, 0, 0];
    for address in [src, dst] {
        packet.extend(address.parse::<std::net::Ipv4Addr>().unwrap().octets());
    }
    packet.extend(payload);
    packet
}

/// Returns a UDP datagram without a checksum.
pub(crate) fn datagram((src, sport): (&str, u16), (dst, dport): (&str, u16), data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + data.len()).unwrap();
    let mut bytes = [sport, dport, len, 0].map(u16::to_be_bytes).concat();
    bytes.extend(data);
    if src.contains(':') { v6(src, dst, 17, 64, &bytes) } else { v4(src, dst, 17, 64, &bytes) }
}

/// The cluster addresses of the tests' Services.
pub(crate) const VIP: &str = "10.96.0.1";
pub(crate) const VIP6: &str = "fd96::1";
/// The node's source address for masqueraded connections.
pub(crate) const SOURCE: &str = "10.0.0.254";

pub(crate) fn backend(address: &str, port: u16) -> Backend {
    let is_local = address.starts_with("10.0.0.") || address.starts_with("fd00::");
    Backend { socket: SocketAddr::new(ip(address), port), is_local }
}

pub(crate) fn service(backends: &[Backend]) -> ServicePort {
    let mut serving: Vec<_> = backends.iter().map(|backend| backend.socket).collect();
    serving.sort_unstable();
    ServicePort {
        cluster: Backends::new(backends.iter().copied()),
        local: Backends::new(backends.iter().copied().filter(|backend| backend.is_local)),
        serving: serving.into(),
        ..ServicePort::default()
    }
}

pub(crate) const ENTRY: VipEntry = VipEntry {
    port: 0,
    inside: BackendList::Cluster,
    outside: BackendList::Cluster,
    is_ranged: false,
    rewrites_all: false,
};

/// Returns Services in which port 8080 of each address, in every protocol, leads to its own service port.
pub(crate) fn services(epoch: u64, ports: &[(&str, ServicePort)]) -> crate::Services {
    let mut services = crate::Services::new(1);
    services.set_epoch(epoch);
    services.set_sources([ip(SOURCE), ip("fd00::fe")]);
    services.set_service_cidrs(["10.96.0.0/12".parse().unwrap()]);
    for (number, (address, port)) in (0u32..).zip(ports) {
        services.set_port(number, Some(port.clone()));
        services.set_cluster_address(ip(address), Some(true));
        for protocol in [6, 17, 132] {
            let vip = Vip { address: ip(address), protocol, port: 8080 };
            services.set_vip(vip, Some(VipEntry { port: number, ..ENTRY }));
        }
    }
    services
}
