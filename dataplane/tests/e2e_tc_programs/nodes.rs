//! Packets from a pod to pods of other nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_dataplane::io::{NodeHop, Outer, TunnelEnd};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use ipnet::IpNet;

use super::*;

/// The outer addresses of this node and of the other one.
const LOCAL: [u8; 4] = [192, 0, 2, 1];
const REMOTE: [u8; 4] = [192, 0, 2, 2];
/// Bytes of the headers that the programs add: IPv4, UDP, VXLAN and Ethernet.
const ADDED: usize = 20 + 8 + 8 + 14;

/// A node with a pod at `va`, a host port at `vb` that is also the port to other nodes, and a card.
pub(super) struct Node {
    pub(super) lab: Lab,
    ports: [TcAttachment; 2],
    /// The slot of the port to other nodes.
    pub(super) nodes: FlowSlot,
    /// The indexes of the pod's interface and of the card.
    pod: u32,
    pub(super) card: u32,
}

impl Node {
    pub(super) fn on(net: Net, pins: Option<PathBuf>) -> Self {
        net.exec(
            "sw",
            "ip link show card > /dev/null 2>&1 || { ip link add card type veth peer name wire; ip link set card up; }",
        );
        let lab = Lab::on(net, 1, pins);
        let datapath = &lab.datapath;
        let (ports, nodes, [pod, card]) = lab.net.inside("sw", || {
            let mut ports = [("va", PortKind::Pod), ("vb", PortKind::Host)]
                .map(|(name, kind)| TcAttachment::new(datapath, name, kind).unwrap());
            ports[1].add_nodes("vb").unwrap();
            ports.iter_mut().for_each(|port| port.open().unwrap());
            let nodes = ports[1].open_to_nodes([2; 12]).unwrap().unwrap();
            (ports, nodes, ["va", "card"].map(|name| LinkInfo::read(name).unwrap().index))
        });
        lab.datapath.enter(&two_ports());
        Self { lab, ports, nodes, pod, card }
    }

    /// Returns the way by the tunnel, over the card.
    fn tunnel(&self, outer: Outer) -> NodeHop {
        NodeHop::Tunnel {
            end: TunnelEnd { interface: self.card, port: 4789, vni: 0x12_3456 },
            link: self.card,
            outer,
            local: Some(LOCAL.into()),
            remote: REMOTE.into(),
            mtu: 1450,
        }
    }

    pub(super) fn lead(&self, others: &BTreeMap<IpNet, NodeHop>) {
        let datapath = &self.lab.datapath;
        self.lab.net.inside("sw", || datapath.lead_to_nodes(&[], &[], others, None)).unwrap();
    }

    /// Adds the flow of UDP datagrams from port 5000 to port 53 of this address.
    fn add(&self, src: IpAddr, dst: IpAddr) -> CachedFlow {
        let flow = Flow { src, dst, protocol: UDP, sport: 5000, dport: 53, icmp: None };
        let flow = cached([self.ports[0].slot(), self.nodes], flow);
        self.lab.datapath.add(&flow);
        assert!(self.lab.datapath.open(FlowLatch(7), None));
        flow
    }

    /// Returns a datagram of the flow with this type of service or traffic class as the pod sends it, and as the program sends it.
    fn send(&self, flow: &CachedFlow, tos: u8, payload: &[u8]) -> [Vec<u8>; 2] {
        let start = PacketBuilder::ethernet2(*b"ghijkl", *b"abcdef");
        let start = match (flow.flow.src, flow.flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => start.ipv4(src.octets(), dst.octets(), 64),
            (IpAddr::V6(src), IpAddr::V6(dst)) => start.ipv6(src.octets(), dst.octets(), 64),
            _ => unreachable!("both ends have one version"),
        };
        let mut frame = Vec::new();
        start.udp(5000, 53).write(&mut frame, payload).unwrap();
        match flow.flow.src {
            IpAddr::V4(_) => {
                frame[15] = tos;
                frame[24..26].fill(0);
                let sum = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0.calc_header_checksum();
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            IpAddr::V6(_) => {
                frame[14] = 0x60 | tos >> 4;
                frame[15] = tos << 4;
            }
        }
        let (datapath, pod) = (&self.lab.datapath, self.pod);
        let sent = self.lab.net.inside("sw", || datapath.run(pod, &frame, false)).unwrap();
        [frame, sent]
    }
}

#[test]
fn the_programs_write_the_tunnels_headers_as_its_device_would() {
    let Some(net) = Net::new(1, 1500) else { return };
    let node = Node::on(net, None);
    let networks = ["10.9.0.0/16", "fd00:9::/32"].map(|text| text.parse::<IpNet>().unwrap());
    let pairs: [[IpAddr; 2]; 2] =
        [["10.77.0.1", "10.9.0.7"], ["fd00:77::1", "fd00:9::7"]].map(|pair| pair.map(|text| text.parse().unwrap()));
    for outer in [Outer::ByRoute, Outer::ToNeighbor, Outer::ByDevice] {
        node.lead(&networks.map(|network| (network, node.tunnel(outer))).into());
        for [src, dst] in pairs {
            let flow = node.add(src, dst);
            // Of the inner marks, congestion (3) is not copied (RFC 3168 §9.1.1).
            for (tos, mark, payload) in
                [(0, 0, &b""[..]), (1, 1, b"odd"), (2, 2, &[7; 1200]), (3, 2, b"even"), (0xb8, 0, b"x")]
            {
                let [frame, sent] = node.send(&flow, tos, payload);
                let inner = [&flow.sent[..], &frame[12..]].concat();
                if outer == Outer::ByDevice {
                    assert_eq!(sent, inner, "the device adds the headers");
                    continue;
                }
                assert_eq!(sent[14 + ADDED - 14..], inner, "{outer:?} {dst}");
                let packet = SlicedPacket::from_ethernet(&sent).unwrap();
                let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (&packet.net, &packet.transport)
                else {
                    panic!("{sent:?}")
                };
                let header = ip.header();
                assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum(), "{sent:?}");
                assert_eq!((header.source(), header.destination(), header.ttl()), (LOCAL, REMOTE, 64));
                assert_eq!((sent[15], usize::from(header.total_len())), (mark, sent.len() - 14));
                assert!(!header.dont_fragment() && !header.is_fragmenting_payload());
                assert_eq!((udp.destination_port(), udp.checksum()), (4789, 0));
                assert_eq!(usize::from(udp.length()), sent.len() - 14 - 20);
                assert!(udp.source_port() >= 0xc000, "a dynamic port");
                assert_eq!(sent[42..50], [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
            }
        }
    }
}

#[test]
fn the_next_process_takes_over_all_next_hops_and_removes_those_that_are_no_more() {
    /// More than the kernel lists at a time.
    const NETWORKS: u16 = 5_000;
    let Some(net) = Net::new(1, 1500) else { return };
    let bpf = BpfFileSystem::mount("bulkhead-hops");
    let node = Node::on(net, Some(bpf.0.clone()));
    let network = |at: u16| IpNet::new([10, 100 + (at >> 8) as u8, at as u8, 0].into(), 24).unwrap();
    node.lead(&(0..NETWORKS).map(|at| (network(at), node.tunnel(Outer::ByRoute))).collect());
    let Node { lab, ports, .. } = node;
    lab.datapath.stay();
    drop(ports);
    let next = Node::on(lab.end(), Some(bpf.0.clone()));
    let tunneled = || {
        let of = |at: u16| {
            let flow = next.add([10, 77, 0, 1].into(), [10, 100 + (at >> 8) as u8, at as u8, 7].into());
            let [frame, sent] = next.send(&flow, 0, b"hello");
            sent.len() == frame.len() + ADDED
        };
        (0..NETWORKS).step_by(7).filter(|&at| of(at)).count()
    };
    assert_eq!(tunneled(), usize::from(NETWORKS.div_ceil(7)));
    next.lead(&BTreeMap::new());
    assert_eq!(tunneled(), 0);
    let Lab { net, datapath, .. } = &next.lab;
    net.inside("sw", || datapath.close_left());
}
