//! Both capture formats in all variants, damaged files, and comparisons of the writer with two readers.

use pcap_file::pcapng::{Block, PcapNgReader};
use proptest::prelude::*;

use super::*;
use crate::testbed::*;
use crate::{DropReason, Outcome, PortId, Verdict, Worker, WorkerConfig, replay};

/// Writes numbers in the byte order of a file.
#[derive(Clone, Copy)]
struct Order(bool);

impl Order {
    fn u16(self, value: u16) -> [u8; 2] {
        if self.0 { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        if self.0 { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let len = self.u32(u32::try_from(padded + 12).unwrap());
        [&self.u32(kind)[..], &len, body, &vec![0; padded - body.len()], &len].concat()
    }

    fn section(self) -> Vec<u8> {
        let body = [&self.u32(0x1a2b_3c4d)[..], &self.u16(1), &self.u16(0), &[0xff; 8]].concat();
        self.block(0x0a0d_0d0a, &body)
    }

    fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let len = self.u16(u16::try_from(value.len()).unwrap());
        [&self.u16(code)[..], &len, value, &vec![0; value.len().next_multiple_of(4) - value.len()]].concat()
    }

    fn interface(self, link: u16, snap_len: u32, options: &[Vec<u8>]) -> Vec<u8> {
        let body = [&self.u16(link)[..], &[0, 0], &self.u32(snap_len), &options.concat()].concat();
        self.block(1, &body)
    }

    fn enhanced(self, interface: u32, time: u64, data: &[u8], original: u32, options: &[Vec<u8>]) -> Vec<u8> {
        let [high, low] = [time >> 32, time & 0xffff_ffff].map(|half| self.u32(u32::try_from(half).unwrap()));
        let len = self.u32(u32::try_from(data.len()).unwrap());
        let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
        let head = [&self.u32(interface)[..], &high, &low, &len, &self.u32(original)].concat();
        self.block(6, &[&head[..], data, &padding, &options.concat()].concat())
    }

    fn pcap(self, nanoseconds: bool, link: u32, packets: &[(u32, u32, &[u8], u32)]) -> Vec<u8> {
        let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut file = [&self.u32(magic)[..], &self.u16(2), &self.u16(4), &[0; 8], &self.u32(96)].concat();
        file.extend(self.u32(link));
        for (seconds, fraction, data, original) in packets {
            file.extend([self.u32(*seconds), self.u32(*fraction)].concat());
            file.extend([self.u32(u32::try_from(data.len()).unwrap()), self.u32(*original)].concat());
            file.extend(*data);
        }
        file
    }
}

/// A read packet: number, time, link type, interface, direction, bytes, length.
type Seen = (u64, u64, LinkType, Option<String>, Option<Direction>, Vec<u8>, usize);

fn read(bytes: &[u8]) -> (Vec<Seen>, Option<CaptureError>) {
    let mut seen = Vec::new();
    let mut reader = match CaptureReader::new("x.pcap", bytes) {
        Ok(reader) => reader,
        Err(error) => return (seen, Some(error)),
    };
    loop {
        match reader.next_packet() {
            Ok(Some(p)) => {
                let interface = p.interface.map(|name| name.to_string());
                seen.push((p.number, p.time, p.link, interface, p.direction, p.data.to_vec(), p.original_len));
            }
            Ok(None) => return (seen, None),
            Err(error) => {
                assert!(matches!(reader.next_packet(), Ok(None)), "nothing after an error");
                return (seen, Some(error));
            }
        }
    }
}

fn read_all(bytes: &[u8]) -> Vec<Seen> {
    let (seen, error) = read(bytes);
    assert!(error.is_none(), "{error:?}");
    seen
}

fn error_of(bytes: &[u8]) -> String {
    read(bytes).1.unwrap().to_string()
}

const BOTH: [Order; 2] = [Order(false), Order(true)];

#[test]
fn pcap_is_read_in_both_byte_orders_and_both_resolutions() {
    for order in BOTH {
        for (nanoseconds, unit) in [(false, 1000), (true, 1)] {
            let file = order.pcap(nanoseconds, 1, &[(7, 5, b"abc", 3), (8, 6, b"defg", 1500)]);
            let seen = read_all(&file);
            let first = (1, 7 * SECOND + 5 * unit, LinkType::Ethernet, None, None, b"abc".to_vec(), 3);
            assert_eq!(seen[0], first);
            assert_eq!((seen[1].0, seen[1].1, seen[1].6), (2, 8 * SECOND + 6 * unit, 1500));
            assert_eq!(seen.len(), 2);
        }
    }
}

#[test]
fn a_header_alone_is_a_capture_without_packets() {
    for order in BOTH {
        assert_eq!(read_all(&order.pcap(false, 1, &[])), []);
        assert_eq!(read_all(&order.section()), []);
        assert_eq!(read_all(&[order.section(), order.interface(1, 0, &[])].concat()), []);
    }
}

#[test]
fn pcapng_is_read_with_interfaces_names_directions_and_resolutions() {
    for order in BOTH {
        let offset = if order.0 { 100i64.to_be_bytes() } else { 100i64.to_le_bytes() };
        let file = [
            order.section(),
            order.interface(1, 0, &[order.option(2, b"ns/a")]),
            order.interface(113, 0, &[order.option(9, &[9]), order.option(14, &offset), order.option(0, &[])]),
            order.enhanced(0, 1_500_000, b"abc", 3, &[order.option(2, &order.u32(1))]),
            // An unknown block, and unknown options.
            order.block(0x0bad, b"whatever"),
            order.enhanced(1, 5, b"defgh", 99, &[order.option(0x7fff, b"x"), order.option(2, &order.u32(2))]),
        ]
        .concat();
        let seen = read_all(&file);
        let name = Some("ns/a".to_owned());
        let inbound = Some(Direction::Inbound);
        assert_eq!(seen[0], (1, 1_500_000_000, LinkType::Ethernet, name, inbound, b"abc".to_vec(), 3));
        let outbound = Some(Direction::Outbound);
        assert_eq!(seen[1], (2, 100 * SECOND + 5, LinkType::LinuxSll, None, outbound, b"defgh".to_vec(), 99));
        assert_eq!(seen.len(), 2);
    }
}

#[test]
fn simple_and_obsolete_packet_blocks_are_read() {
    for order in BOTH {
        let simple = [&order.u32(10)[..], b"abcd"].concat();
        let obsolete = [
            &order.u16(0)[..],
            &order.u16(0),
            &order.u32(0),
            &order.u32(3_000_000),
            &order.u32(2),
            &order.u32(8),
            b"xy\0\0",
        ]
        .concat();
        // The snap length is 4, so the simple packet is cut to it.
        let file = [order.section(), order.interface(101, 4, &[]), order.block(2, &obsolete), order.block(3, &simple)];
        let seen = read_all(&file.concat());
        assert_eq!(seen[0], (1, 3 * SECOND, LinkType::Raw, None, None, b"xy".to_vec(), 8));
        assert_eq!(seen[1], (2, 3 * SECOND, LinkType::Raw, None, None, b"abcd".to_vec(), 10));
    }
}

#[test]
fn sections_of_different_byte_orders_follow_each_other() {
    let part = |order: Order, name: &[u8]| {
        [order.section(), order.interface(1, 0, &[order.option(2, name)]), order.enhanced(0, 1, b"a", 1, &[])].concat()
    };
    let seen = read_all(&[part(BOTH[0], b"one"), part(BOTH[1], b"two")].concat());
    assert_eq!(seen.iter().map(|p| p.3.as_deref().unwrap()).collect::<Vec<_>>(), ["one", "two"]);
    // Each section has its own interfaces.
    let stray = [part(BOTH[0], b"one"), BOTH[1].section(), BOTH[1].enhanced(0, 1, b"a", 1, &[])].concat();
    assert!(error_of(&stray).contains("refers to an interface that the section does not describe"));
}

#[test]
fn a_flood_of_interface_names_ends_with_an_error() {
    let named = |name: u8| BOTH[0].interface(1, 0, &[BOTH[0].option(2, &[name; 1024])]);
    let packet = BOTH[0].enhanced(0, 1, b"a", 1, &[]);
    let many = |count| [BOTH[0].section(), named(b'a').repeat(count), packet.clone()].concat();
    assert_eq!(read_all(&many(4096)).len(), 1);
    assert!(error_of(&many(4097)).contains("the names of the section's interfaces have more than 4 MiB"));
    // Each section has its own limit, and each invalid byte of a name takes three.
    assert_eq!(read_all(&[many(4096), many(4096)].concat()).len(), 2);
    assert!(error_of(&[BOTH[0].section(), named(0xff).repeat(1366)].concat()).contains("more than 4 MiB"));
}

#[test]
fn files_that_are_no_captures_say_what_to_do() {
    assert!(error_of(b"").contains("x.pcap: the file is empty"));
    assert!(error_of(b"\x1f\x8b\x08\0").contains("gunzip"));
    assert!(error_of(b"\x28\xb5\x2f\xfd").contains("unzstd"));
    assert!(error_of(b"apiVersion: v1").contains("neither pcap nor pcapng"));
    assert!(error_of(b"\xd4\xc3").contains("the file ends within"));
}

#[test]
fn an_unknown_link_type_is_named_with_what_is_understood() {
    let text = error_of(&BOTH[0].pcap(false, 105, &[(0, 0, b"abc", 3)]));
    assert!(text.contains("packet 1 has link type 105") && text.contains("Ethernet (1)"), "{text}");
    assert_eq!(read_all(&BOTH[0].pcap(false, 0x0400_0001, &[(0, 0, b"abc", 3)]))[0].2, LinkType::Ethernet);
}

#[test]
fn packets_before_a_fault_are_delivered_and_the_fault_says_where_it_is() {
    let mut file = BOTH[0].pcap(false, 1, &[(1, 0, b"abc", 3), (2, 0, b"def", 3)]);
    file.pop();
    let (seen, error) = read(&file);
    assert_eq!(seen.len(), 1);
    let text = error.unwrap().to_string();
    assert!(text.contains("byte 43, after packet 1"), "{text}");

    let mut huge = BOTH[0].pcap(false, 1, &[(1, 0, b"abc", 3)]);
    huge[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(error_of(&huge).contains("exceeds 256 KiB"));

    let mut trailer = [BOTH[0].section(), BOTH[0].interface(1, 0, &[])].concat();
    *trailer.last_mut().unwrap() ^= 1;
    assert!(
        error_of(&trailer).contains("byte 28, after packet 0, is damaged: the two length fields of the block differ")
    );
    let lie = [BOTH[0].section(), BOTH[0].u32(6).to_vec(), BOTH[0].u32(0xffff_fffc).to_vec()].concat();
    assert!(error_of(&lie).contains("512 KiB"));
    let unknown_and_huge = [BOTH[0].section(), BOTH[0].u32(99).to_vec(), BOTH[0].u32(0xffff_fffc).to_vec()].concat();
    assert!(error_of(&unknown_and_huge).contains("the file ends within"), "skipped, not kept");
}

fn sample(order: Order) -> Vec<u8> {
    let packet = udp("10.0.0.1", "10.0.0.2", 80);
    [
        order.section(),
        order.interface(101, 0, &[order.option(2, b"ns/a"), order.option(9, &[9])]),
        order.enhanced(0, 5, &packet, 28, &[order.option(1, b"hello"), order.option(2, &order.u32(1))]),
        order.enhanced(0, 6, &a_to_b(SYN), 40, &[]),
    ]
    .concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_damaged_file_gives_packets_or_an_error_and_its_packets_can_be_judged(
        which in 0usize..4, edits in proptest::collection::vec((0usize..300, any::<u8>()), 0..4), cut in 0usize..400,
    ) {
        let order = BOTH[which % 2];
        let packet = a_to_b(SYN);
        let mut file = if which < 2 { sample(order) } else { order.pcap(true, 101, &[(1, 2, &packet, 40), (1, 3, &packet, 40)]) };
        for (at, value) in edits {
            if let Some(byte) = file.get_mut(at) {
                *byte = value;
            }
        }
        file.truncate(cut.max(1));
        let (seen, _) = read(&file);
        // A damaged length may make the reader find more records than were written, but each needs a header.
        prop_assert!(seen.len() <= file.len() / 16);
        for (.., data, original) in &seen {
            prop_assert!(data.len() <= *original && data.len() <= file.len());
        }
        if let Ok(mut reader) = CaptureReader::new("x", &file[..]) {
            let mut worker = Worker::new(WorkerConfig::default());
            let mut count = 0;
            let result = replay(&mut reader, &snapshot(), &mut worker, |_, _| { count += 1; Ok::<_, CaptureError>(()) });
            prop_assert!(result.is_err() || result.unwrap() == count);
            prop_assert_eq!(count, seen.len() as u64);
            prop_assert_eq!(worker.counters().received(), count);
        }
    }
}

#[test]
fn what_is_written_is_read_again_by_this_reader_and_by_another() {
    let interface = "ns/a".into();
    let packet = |link, number, data| CapturedPacket {
        number,
        time: 1_600_000_000_123_456_789,
        link,
        interface: Some(&interface),
        direction: None,
        data,
        original_len: 1500,
    };
    let mut writer = CaptureWriter::new(Vec::new(), &ports()).unwrap();
    let drop = Verdict::Drop(DropReason::PolicyDenied);
    writer.write(&packet(LinkType::Ethernet, 1, b"abcde"), A, drop, "dropped: ns/policy").unwrap();
    writer.write(&packet(LinkType::Raw, 2, b"fgh"), B, Verdict::Forward(A), "").unwrap();
    writer.write(&packet(LinkType::Raw, 3, b"fgh"), PortId(77), Verdict::Forward(A), &"é".repeat(50_000)).unwrap();
    let file = writer.finish().unwrap();

    let seen = read_all(&file);
    let inbound = Some(Direction::Inbound);
    let time = 1_600_000_000_123_456_789;
    assert_eq!(seen[0], (1, time, LinkType::Ethernet, Some("ns/a".into()), inbound, b"abcde".to_vec(), 1500));
    assert_eq!(seen[1], (2, time, LinkType::Raw, Some("ns/b".into()), inbound, b"fgh".to_vec(), 1500));
    assert_eq!(seen[2].3.as_deref(), Some("unknown"));

    let mut other = PcapNgReader::new(&file[..]).unwrap();
    let (mut interfaces, mut packets) = (0, Vec::new());
    while let Some(block) = other.next_block() {
        match block.unwrap().into_owned() {
            Block::InterfaceDescription(_) => interfaces += 1,
            Block::EnhancedPacket(packet) => packets.push(packet),
            _ => {}
        }
    }
    assert_eq!((interfaces, packets.len()), (6, 3), "four ports, and two with raw IP");
    let first = &packets[0];
    assert_eq!((&first.data[..], first.original_len, first.interface_id), (&b"abcde"[..], 1500, 2));
    assert_eq!(first.timestamp.as_nanos(), time.into());
    let options = format!("{:?}", first.options);
    assert!(options.contains("dropped: ns/policy"), "{options}");
    // Kind 2 (XDP), then XDP_DROP in 64 bits.
    assert!(options.contains("[2, 1, 0, 0, 0, 0, 0, 0, 0]"), "{options}");
    assert!(format!("{:?}", packets[1].options).contains("[2, 4, 0, 0, 0, 0, 0, 0, 0]"));
}

#[test]
fn a_file_without_packets_still_tells_its_ports() {
    let file = CaptureWriter::new(Vec::new(), &ports()).unwrap().finish().unwrap();
    assert_eq!(read_all(&file), []);
    assert!(file.windows(4).any(|bytes| bytes == b"ns/a"));
}

#[test]
fn what_another_writer_writes_is_read() {
    use pcap_file::pcap::{PcapPacket, PcapWriter};
    let mut writer = PcapWriter::new(Vec::new()).unwrap();
    let at = std::time::Duration::new(5, 6000);
    writer.write_packet(&PcapPacket::new(at, 60, b"abc")).unwrap();
    let seen = read_all(&writer.into_writer());
    assert_eq!((seen[0].1, seen[0].5.as_slice(), seen[0].6), (5 * SECOND + 6000, &b"abc"[..], 60));
}

fn found(finder: &mut PortFinder, interface: Option<&str>, link: LinkType, data: &[u8]) -> Option<PortId> {
    let interface = interface.map(Arc::from);
    let packet = CapturedPacket {
        number: 1,
        time: 0,
        link,
        interface: interface.as_ref(),
        direction: None,
        data,
        original_len: data.len(),
    };
    finder.find(&snapshot(), &packet)
}

#[test]
fn the_port_is_told_by_interface_then_mac_then_address_then_it_is_the_uplink() {
    let raw = LinkType::Raw;
    let mut finder = PortFinder::new(&snapshot());
    let from_a = udp("10.0.0.1", "10.0.0.2", 80);
    let stranger = udp("8.8.8.8", "10.0.0.2", 80);
    assert_eq!(found(&mut finder, Some("ns/b"), raw, &from_a), Some(B));
    assert_eq!(found(&mut finder, Some("eth0"), raw, &from_a), Some(A));
    assert_eq!(found(&mut finder, None, raw, &udp("fd00::2", "fd00::1", 80)), Some(B));
    assert_eq!(found(&mut finder, None, raw, &udp("192.168.0.1", "10.0.0.2", 80)), Some(HOST));
    assert_eq!(found(&mut finder, None, raw, &stranger), Some(UPLINK));
    assert_eq!(found(&mut finder, None, raw, b"?"), Some(UPLINK));
    // A's MAC address is configured, so its frames come from A for any source address.
    let spoofed = ethernet(A_MAC, 0x0800, &stranger);
    assert_eq!(found(&mut finder, None, LinkType::Ethernet, &spoofed), Some(A));
}

#[test]
fn what_an_interface_sent_out_did_not_come_in_through_it() {
    let name = "ns/b".into();
    let data = udp("10.0.0.1", "10.0.0.2", 80);
    let packet = CapturedPacket {
        number: 1,
        time: 0,
        link: LinkType::Raw,
        interface: Some(&name),
        direction: Some(Direction::Outbound),
        data: &data,
        original_len: data.len(),
    };
    assert_eq!(PortFinder::new(&snapshot()).find(&snapshot(), &packet), Some(A));
}

#[test]
fn mac_addresses_are_learned_from_packets_that_come_straight_from_a_pod() {
    let (pod, router) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 0x77]);
    let frame = |mac, src: &str, ttl| ethernet(mac, 0x0800, &v4(src, "10.0.0.1", 17, ttl, &[0, 1, 0, 2, 0, 8, 0, 0]));
    let mut finder = PortFinder::new(&snapshot());
    let find = |finder: &mut PortFinder, frame: Vec<u8>| found(finder, None, LinkType::Ethernet, &frame);
    assert_eq!(find(&mut finder, frame(pod, "10.0.0.2", 64)), Some(B));
    assert_eq!(find(&mut finder, frame(pod, "8.8.8.8", 64)), Some(B), "spoofed by B");
    // Behind a router, the MAC address is the router's.
    assert_eq!(find(&mut finder, frame(router, "10.0.0.2", 63)), Some(B));
    assert_eq!(find(&mut finder, frame(router, "8.8.8.8", 50)), Some(UPLINK));
    // A MAC address first seen with a foreign address is not a pod's.
    let gateway = [2, 0, 0, 0, 0, 0x78];
    assert_eq!(find(&mut finder, frame(gateway, "8.8.8.8", 64)), Some(UPLINK));
    assert_eq!(find(&mut finder, frame(gateway, "10.0.0.2", 64)), Some(B));
    assert_eq!(find(&mut finder, frame(gateway, "9.9.9.9", 64)), Some(UPLINK));
}

#[test]
fn a_learned_mac_that_two_pods_use_tells_nothing_and_a_configured_one_still_does() {
    let mac = [2, 0, 0, 0, 0, 2];
    let frame = |mac, src: &str, ttl| ethernet(mac, 0x0800, &v4(src, "8.8.8.8", 17, ttl, &[0, 1, 0, 2, 0, 8, 0, 0]));
    let mut finder = PortFinder::new(&snapshot());
    let mut find = |mac, src, ttl| found(&mut finder, None, LinkType::Ethernet, &frame(mac, src, ttl));
    assert_eq!(find(mac, "10.0.0.2", 64), Some(B));
    assert_eq!(find(mac, "10.0.0.1", 63), Some(B), "a routed packet does not tell whose the MAC is");
    assert_eq!(find(mac, "10.0.0.1", 64), Some(A), "the address counts from here on");
    assert_eq!(find(mac, "10.0.0.2", 64), Some(B));
    assert_eq!(find(mac, "8.8.4.4", 64), Some(UPLINK));
    assert_eq!(find(A_MAC, "10.0.0.2", 64), Some(A));
    assert_eq!(find(A_MAC, "8.8.4.4", 64), Some(A));
}

#[test]
fn an_arp_sender_tells_the_port_too() {
    let mut message = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 5, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1];
    let frame = ethernet([2, 0, 0, 0, 0, 5], 0x0806, &message);
    let mut finder = PortFinder::new(&snapshot());
    assert_eq!(found(&mut finder, None, LinkType::Ethernet, &frame), Some(B));
    message[17] = 99;
    let probe = ethernet([2, 0, 0, 0, 0, 5], 0x0806, &message);
    assert_eq!(found(&mut finder, None, LinkType::Ethernet, &probe), Some(B), "by its MAC");
}

#[test]
fn a_replay_tells_every_packet_with_its_outcome_in_order() {
    let order = BOTH[0];
    let mut file = [order.section(), order.interface(101, 0, &[])].concat();
    for n in 0..600u64 {
        let packet = if n % 2 == 0 { udp("10.0.0.1", "10.0.0.2", 80) } else { udp("10.0.0.1", "10.0.0.2", 81) };
        file.extend(order.enhanced(0, n, &packet, 28, &[]));
    }
    let mut worker = Worker::new(WorkerConfig::default());
    let mut told: Vec<(u64, Outcome)> = Vec::new();
    let mut reader = CaptureReader::new("x", &file[..]).unwrap();
    let count = replay(&mut reader, &snapshot(), &mut worker, |packet, outcome| {
        told.push((packet.number, *outcome));
        Ok::<_, CaptureError>(())
    });
    assert_eq!((count.unwrap(), told.len()), (600, 600));
    for (at, (number, outcome)) in told.iter().enumerate() {
        assert_eq!(*number, at as u64 + 1);
        let expected = if at % 2 == 0 { Verdict::Forward(B) } else { Verdict::Drop(DropReason::PolicyDenied) };
        assert_eq!((outcome.in_port, outcome.verdict), (A, expected));
    }
    // Without an uplink, a foreign packet has no port and is dropped.
    let no_uplink = crate::Snapshot::empty();
    let mut reader = CaptureReader::new("x", &file[..]).unwrap();
    let result = replay(&mut reader, &no_uplink, &mut worker, |_, outcome| {
        assert_eq!(outcome.verdict, Verdict::Drop(DropReason::UnknownPort));
        Ok::<_, CaptureError>(())
    });
    assert_eq!(result.unwrap(), 600);
}
