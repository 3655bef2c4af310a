//! Packets from the world to a node whose kernel keeps the card.

use super::nodes::Node;
use super::*;
use bulkhead_dataplane::Vip;
use bulkhead_dataplane::io::NodeHop;
use etherparse::PacketBuilder;

/// The node's addresses, and those of a machine outside.
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const WORLD: [&str; 2] = ["198.51.100.9", "2001:db8:9::9"];

/// Addresses that a load balancer leads to the node.
const BALANCED: [&str; 2] = ["203.0.113.80", "2001:db8:80::80"];

/// A frame of the router with an IP header between these addresses, and this payload behind it.
fn packet(mac: [u8; 6], [from, to]: [&str; 2], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let start = PacketBuilder::ethernet2(*b"router", mac);
    let mut frame = Vec::new();
    let number = etherparse::IpNumber(protocol);
    match from.contains(':') {
        false => start.ipv4(octets(from), octets(to), 64).write(&mut frame, number, payload),
        true => start.ipv6(octets(from), octets(to), 64).write(&mut frame, number, payload),
    }
    .unwrap();
    frame
}

fn octets<const LEN: usize>(address: &str) -> [u8; LEN] {
    let bytes = match address.parse().unwrap() {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    bytes.try_into().unwrap()
}

/// The first bytes of a transport header with this source and destination port.
fn ports(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 40, 0, 0], &[0; 32]].concat()
}

/// An ICMP message of this type with an identifier, and with what follows.
fn icmp(kind: u8, id: u16, rest: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1], rest].concat()
}

#[test]
fn answers_to_masqueraded_packets_go_to_a_worker_and_all_others_to_the_nodes_kernel() {
    let Some(net) = Net::new(1, 1500) else { return };
    let mut node = Node::on(net, None);
    node.lab.net.exec("sw", "ip link set wire up");
    let count = "chain c { type filter hook ingress device card priority 0; ether saddr 72:6f:75:74:65:72 counter; };";
    node.lab.net.exec("sw", &format!("echo 'table netdev t {{ {count} }}' | nft -f -"));
    let mac = node.lab.net.inside("sw", || LinkInfo::read("card").unwrap().mac);
    let world = NodeHop::World { interface: node.card, masqueraded: node.card, mtu: 1500 };
    node.lead(&["0.0.0.0/0", "::/0"].map(|all| (all.parse().unwrap(), world)).into());
    // A node port of TCP at the node's address, and a balancer's address with a port of UDP.
    let vips = [0, 1].map(|at| [(NODE[at], TCP, 30_001), (BALANCED[at], UDP, 53)]).concat();
    let vip = |(address, protocol, port): (&str, u8, u16)| Vip { address: address.parse().unwrap(), protocol, port };
    node.lab.datapath.take_vips(vips.into_iter().map(vip)).unwrap();
    node.lab.datapath.take_answers(&NODE.map(|address| address.parse().unwrap()), Some(&(61_000..=61_999).into()));
    for (at, [echo, error, ping]) in [(0, [0, 3, 8]), (1, [129, 2, 128])] {
        let (is_v6, address, world) = (at == 1, NODE[at], WORLD[at]);
        let icmp_number = if is_v6 { 58 } else { 1 };
        // A worker has sent these packets.
        let of_ports = [UDP, TCP, 132]
            .into_iter()
            .flat_map(|protocol| [61_000, 61_999].map(|port| (protocol, ports(port, 61_500))));
        let others = [(icmp_number, icmp(ping, 61_001, b"abc")), (UDP, ports(61_000, 53))];
        let frames = of_ports.chain(others).map(|(protocol, payload)| {
            let mut frame = packet(mac, [address, world], protocol, &payload);
            frame.splice(12..12, [[0x88, 0xa8], node.nodes.0.to_be_bytes()].concat());
            frame
        });
        send(&node.lab.net, "bh1", &frames.collect::<Vec<_>>());
        let packet = |to, protocol, payload: &[u8]| packet(mac, [world, to], protocol, payload);
        // What the node, or another machine, had sent to the world.
        let about = |protocol, payload: &[u8], from: &str| {
            icmp(error, 0, &self::packet(mac, [from, world], protocol, payload)[14..])
        };
        let elsewhere = if is_v6 { "2001:db8::2" } else { "192.0.2.2" };
        let mut cases = vec![("another address", packet(elsewhere, UDP, &ports(53, 61_000)), false)];
        for (protocol, name) in [(UDP, "UDP"), (TCP, "TCP"), (132, "SCTP")] {
            // Nobody has sent from port 61500, unless the node's kernel has.
            for (port, is_taken) in [(60_999, false), (61_000, true), (61_500, false), (61_999, true), (62_000, false)]
            {
                cases.push((name, packet(address, protocol, &ports(61_500, port)), is_taken));
                let error = about(protocol, &ports(port, 61_500), address);
                cases.push(("an error", packet(address, icmp_number, &error), is_taken));
            }
        }
        for (to, protocol, port, is_taken) in [
            (address, TCP, 30_001, true),
            (address, UDP, 30_001, false),
            (address, TCP, 30_002, false),
            (BALANCED[at], UDP, 53, true),
            (BALANCED[at], TCP, 53, false),
            (BALANCED[at], UDP, 61_000, false),
            (elsewhere, TCP, 30_001, false),
        ] {
            cases.push(("to a virtual address", packet(to, protocol, &ports(4000, port)), is_taken));
            let error = about(protocol, &ports(port, 4000), to);
            cases.push(("an error about its answer", packet(to, icmp_number, &error), is_taken));
        }
        for (id, port, is_taken) in [(17, 53, true), (18, 54, false)] {
            for (payload, offset, more) in [(ports(4000, port), 0, true), (ports(4000, 107 - port), 40, false)] {
                let frame = fragment(&packet(BALANCED[at], UDP, &payload), is_v6, id, offset, more);
                cases.push(("a fragment to a virtual address", frame, is_taken));
            }
        }
        cases.push(("an echo reply", packet(address, icmp_number, &icmp(echo, 61_001, b"abc")), true));
        cases.push(("an echo reply", packet(address, icmp_number, &icmp(echo, 1, b"abc")), false));
        cases.push(("a ping", packet(address, icmp_number, &icmp(ping, 61_001, b"abc")), false));
        let error = about(icmp_number, &icmp(ping, 61_001, b"abcdefgh"), address);
        cases.push(("an error about a ping", packet(address, icmp_number, &error), true));
        let error = about(UDP, &ports(61_500, 53), elsewhere);
        cases.push(("an error about another machine's packet", packet(address, icmp_number, &error), false));
        // The second fragment of each packet has ports like those of the first one of the other.
        for (id, port, is_taken) in [(7, 61_000, true), (8, 53, false)] {
            for (payload, at, more) in [(ports(53, port), 0, true), (ports(53, 61_053 - port), 40, false)] {
                let frame = fragment(&packet(address, UDP, &payload), is_v6, id, at, more);
                cases.push(("a fragment", frame, is_taken));
            }
        }
        let mut tagged = packet(address, UDP, &ports(53, 61_000));
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        cases.push(("a packet of a VLAN", tagged, false));
        for some in cases.chunks(16) {
            let before = passed(&node.lab.net);
            send(&node.lab.net, "wire", &some.iter().map(|(_, frame, _)| frame.clone()).collect::<Vec<_>>());
            let received = node.lab.received();
            for (name, frame, is_taken) in some {
                let is_received = received.iter().any(|one| one.ends_with(&frame[14..]));
                assert_eq!(is_received, *is_taken, "{name}, IPv6: {is_v6}: {frame:02x?}, received: {received:02x?}");
            }
            let left = some.iter().filter(|(.., is_taken)| !is_taken).count();
            assert_eq!(passed(&node.lab.net) - before, left, "the kernel has the others");
        }
    }
}

/// Sends frames out of an interface.
fn send(net: &Net, interface: &str, frames: &[Vec<u8>]) {
    let hex = frames.iter().map(|frame| frame.iter().map(|byte| format!("{byte:02x}")).collect());
    let hex: Vec<String> = hex.collect();
    let program = format!(
        "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('{interface}', 0)); \
         [s.send(bytes.fromhex(frame)) for frame in '{}'.split()]",
        hex.join(" ")
    );
    net.exec("sw", &format!("python3 -c \"{program}\""));
}

/// Returns the number of the router's packets that have passed the program at the card.
fn passed(net: &Net) -> usize {
    let rules = net.exec("sw", "nft list table netdev t");
    let count = rules.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{rules}"))
}

/// Makes a packet a fragment, `at` bytes after the start of what is fragmented.
fn fragment(frame: &[u8], is_v6: bool, id: u16, at: u16, more: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if is_v6 {
        let header = [&[UDP, 0][..], &(at | u16::from(more)).to_be_bytes(), &[0, 0], &id.to_be_bytes()].concat();
        let length = u16::try_from(frame.len() - 14 - 40 + 8).unwrap();
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame[20] = 44;
        frame.splice(54..54, header);
    } else {
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20..22].copy_from_slice(&(at / 8 + (u16::from(more) << 13)).to_be_bytes());
        frame[24..26].fill(0);
        let sum = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0.calc_header_checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}
