//! Packets for the tests of several protocols, and tests of the parser against etherparse.

use std::net::IpAddr;

use super::*;

/// Returns an IPv4 packet from 10.0.0.1 to 10.0.0.2 with identification 7 and TTL 64.
pub(crate) fn frame_v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend(payload);
    let total = u16::try_from(packet.len()).unwrap();
    set_u16(&mut packet, 2, total);
    packet
}

/// Returns an IPv6 packet from fd00::1 to fd00::2 with hop limit 64.
pub(crate) fn frame_v6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next_header, 64];
    let len = u16::try_from(payload.len()).unwrap();
    set_u16(&mut packet, 4, len);
    for address in ["fd00::1", "fd00::2"] {
        packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    packet.extend(payload);
    packet
}

pub(crate) fn set_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn flow_of(protocol: u8) -> Flow {
    let any = IpAddr::from([10, 0, 0, 1]);
    Flow { src: any, dst: any, protocol, sport: 0, dport: 0, icmp: None }
}

pub(crate) fn parse_raw(packet: &[u8]) -> Result<Body, DropReason> {
    parse(LinkType::Raw, packet, packet.len()).body
}

mod against_etherparse {
    //! This parser and etherparse must agree on every packet that both accept. A packet that etherparse rejects as truncated must not be
    //! accepted.

    use std::cell::Cell;

    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;

    pub(super) fn packets() -> impl Strategy<Value = Vec<u8>> {
        let transport = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| (17u8, bytes)),
            (any::<u32>(), 5u8..9, any::<u8>()).prop_map(|(ports, offset, flags)| {
                let mut segment = [&ports.to_be_bytes()[..], &[0; 8], &[offset << 4, flags], &[0; 22]].concat();
                segment.truncate(36);
                (6, segment)
            }),
            (any::<u32>(), 0u16..20).prop_map(|(ports, data)| {
                let len = (8 + data).to_be_bytes();
                (17, [&ports.to_be_bytes()[..], &len, &[0, 0], &vec![0; usize::from(data)]].concat())
            }),
            (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..40)),
        ];
        let extensions =
            proptest::collection::vec(prop_oneof![Just(0u8), Just(60), Just(44), Just(43), Just(51)], 0..4);
        (transport, any::<bool>(), extensions, any::<u16>(), 0u8..4).prop_map(
            |((protocol, payload), six, chain, word, options)| {
                if six {
                    let mut body = Vec::new();
                    for at in 0..chain.len() {
                        let next = chain.get(at + 1).copied().unwrap_or(protocol);
                        let [high, low] = if chain[at] == 44 { (word & 9).to_be_bytes() } else { [2, 0] };
                        let len = if chain[at] == 51 { 1 } else { 0 };
                        body.extend([next, len, high, low, 0, 0, 0, 7]);
                        if chain[at] == 51 {
                            body.extend([0; 4]);
                        }
                    }
                    body.extend(payload);
                    return frame_v6(chain.first().copied().unwrap_or(protocol), &body);
                }
                let mut packet = frame_v4(protocol, &payload);
                if options > 0 {
                    packet.splice(20..20, vec![1; usize::from(options) * 4]);
                    packet[0] = 0x45 + options;
                    let total = u16::try_from(packet.len()).unwrap();
                    set_u16(&mut packet, 2, total);
                }
                if word % 4 == 0 {
                    set_u16(&mut packet, 6, word & 0x2003);
                }
                packet
            },
        )
    }

    /// Whether this parser does not read the payload. etherparse reads a later fragment as if it began with a header. It also parses IGMP,
    /// authentication headers over IPv4, ICMP over the other family, and ICMPv6 messages of fewer than 8 bytes.
    fn is_opaque(ip: &Ip) -> bool {
        matches!(ip.transport, Transport::LaterFragment | Transport::Other | Transport::IcmpError(None))
    }

    #[test]
    fn both_parsers_agree() {
        let (whole, parts, six, refused) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
        proptest!(ProptestConfig::with_cases(5000), |(
            mut packet in packets(), edit in proptest::option::of((0usize..48, any::<u8>())), cut in 0usize..200,
        )| {
            if let Some((at, value)) = edit
                && let Some(byte) = packet.get_mut(at)
            {
                *byte = value;
            }
            packet.truncate(cut.max(20));
            let theirs = SlicedPacket::from_ip(&packet);
            let ours = parse_raw(&packet);
            let Ok(Body::Ip(ip)) = ours else {
                refused.set(refused.get() + 1);
                return Ok(());
            };
            let theirs = match theirs {
                Ok(theirs) => theirs,
                Err(_) if is_opaque(&ip) => return Ok(()),
                Err(error) => return Err(TestCaseError::fail(format!("etherparse rejects the packet: {error}"))),
            };
            let (src, dst, hop_limit, fragmented) = match theirs.net.as_ref().unwrap() {
                NetSlice::Ipv4(v4) => {
                    let header = v4.header();
                    (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()), header.ttl(), v4.payload().fragmented)
                }
                NetSlice::Ipv6(v6) => {
                    six.set(six.get() + 1);
                    let header = v6.header();
                    (IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()), header.hop_limit(), v6.payload().fragmented)
                }
                NetSlice::Arp(_) => return Err(TestCaseError::fail("ARP in raw IP")),
            };
            prop_assert_eq!((ip.flow.src, ip.flow.dst, ip.hop_limit), (src, dst, hop_limit));
            prop_assert_eq!(ip.fragment.is_some(), fragmented);
            if fragmented || is_opaque(&ip) {
                parts.set(parts.get() + u32::from(fragmented));
                return Ok(());
            }
            match theirs.transport {
                Some(TransportSlice::Tcp(tcp)) => {
                    prop_assert_eq!((ip.flow.sport, ip.flow.dport), (tcp.source_port(), tcp.destination_port()));
                    let Transport::Tcp(flags) = ip.transport else { return Err(TestCaseError::fail("not TCP")) };
                    let (syn, ack, rst, fin) = (tcp.syn(), tcp.ack(), tcp.rst(), tcp.fin());
                    prop_assert_eq!(
                        [syn, ack, rst, fin],
                        [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::RST, TcpFlags::FIN].map(|bit| flags.has(bit))
                    );
                    whole.set(whole.get() + 1);
                }
                Some(TransportSlice::Udp(udp)) => {
                    prop_assert_eq!((ip.flow.sport, ip.flow.dport), (udp.source_port(), udp.destination_port()));
                    whole.set(whole.get() + 1);
                }
                Some(TransportSlice::Icmpv4(icmp)) => prop_assert_eq!(ip.flow.icmp, Some((icmp.type_u8(), icmp.code_u8()))),
                Some(TransportSlice::Icmpv6(icmp)) => prop_assert_eq!(ip.flow.icmp, Some((icmp.type_u8(), icmp.code_u8()))),
                Some(TransportSlice::Igmp(_)) | None => prop_assert!(!matches!(ip.flow.protocol, 6 | 17)),
            }
        });
        for (what, count) in [("whole packet", whole), ("fragment", parts), ("IPv6 packet", six), ("refusal", refused)]
        {
            assert!(count.get() > 20, "only {} times a {what}", count.get());
        }
    }
}

mod quick_against_general {
    //! The general parser must agree with the fast path's parser on every packet that the latter accepts.

    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// Parses with the fast path's parser and converts the addresses.
    fn quick(link: LinkType, frame: &[u8], wire_len: usize) -> Option<(Plain<IpAddr>, Option<[u8; 6]>)> {
        fn with<A>(plain: Plain<A>, address: impl Fn(A) -> IpAddr) -> Plain<IpAddr> {
            let Plain { src, dst, protocol, sport, dport, flags, hop_limit } = plain;
            Plain { src: address(src), dst: address(dst), protocol, sport, dport, flags, hop_limit }
        }
        let four = |address: u32| IpAddr::V4(address.into());
        let six = |[high, low]: [u64; 2]| IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into());
        let (inner, mac) = open(link, frame, wire_len)?;
        let plain = match inner {
            Inner::V4(packet) => parse_plain_v4(packet).map(|plain| with(plain, four)),
            Inner::V6(packet) => parse_plain_v6(packet).map(|plain| with(plain, six)),
        };
        Some((plain?, mac))
    }

    #[test]
    fn both_parsers_agree() {
        let (tcp, udp, six, padded, left) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
        let link = prop_oneof![Just(LinkType::Raw), Just(LinkType::Ethernet)];
        proptest!(ProptestConfig::with_cases(20_000), |(
            packet in against_etherparse::packets(), edit in proptest::option::of((0usize..64, any::<u8>())),
            cut in 0usize..200, padding in 0usize..20, missing in 0usize..40, link in link,
        )| {
            let ethertype = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
            let header = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ethertype].concat();
            let mut frame = if link == LinkType::Ethernet { [header, packet].concat() } else { packet };
            if let Some((at, value)) = edit
                && let Some(byte) = frame.get_mut(at)
            {
                *byte = value;
            }
            frame.truncate(cut.max(20));
            frame.extend(vec![0; padding]);
            let wire_len = frame.len() + missing;
            let general = parse(link, &frame, wire_len);
            let Some((plain, mac)) = quick(link, &frame, wire_len) else {
                left.set(left.get() + 1);
                return Ok(());
            };
            let Ok(Body::Ip(ip)) = general.body else {
                return Err(TestCaseError::fail(format!("the general parser differs: {:?}", general.body)));
            };
            let (src, dst) = (plain.src, plain.dst);
            let flow = Flow { src, dst, protocol: plain.protocol, sport: plain.sport, dport: plain.dport, icmp: None };
            prop_assert_eq!((flow, plain.hop_limit, mac), (ip.flow, ip.hop_limit, general.source_mac));
            prop_assert_eq!(general.flow, Some(flow));
            prop_assert_eq!(ip.fragment, None);
            let transport = match plain.protocol {
                6 => Transport::Tcp(plain.flags),
                _ => Transport::Udp,
            };
            prop_assert_eq!(ip.transport, transport);
            let counter = if plain.protocol == 6 { &tcp } else { &udp };
            counter.set(counter.get() + 1);
            six.set(six.get() + u32::from(src.is_ipv6()));
            padded.set(padded.get() + u32::from(padding > 0));
        });
        for (what, count) in [("TCP", tcp), ("UDP", udp), ("IPv6", six), ("padded", padded), ("left", left)] {
            assert!(count.get() > 20, "only {} times {what}", count.get());
        }
    }
}
