use super::*;
use crate::testbed::*;
use crate::{Outcome, Packet, Worker, WorkerConfig};

const CHUNKS: u32 = 4096;

/// Returns a pcap file of packets with these times in nanoseconds.
fn pcap(link: u32, packets: &[(u32, &[u8])]) -> Vec<u8> {
    let mut file = [&0xa1b2_3c4d_u32.to_le_bytes()[..], &2u16.to_le_bytes(), &4u16.to_le_bytes(), &[0; 12]].concat();
    file.extend(link.to_le_bytes());
    for (time, bytes) in packets {
        let len = u32::try_from(bytes.len()).unwrap();
        [0, *time, len, len].iter().for_each(|number| file.extend(number.to_le_bytes()));
        file.extend(*bytes);
    }
    file
}

fn all() -> CaptureFilter {
    Box::new(|_| true)
}

fn open(file: &[u8]) -> Result<CaptureInput<&[u8]>, CapturePortError> {
    CaptureInput::open("x.pcap", file, all())
}

fn pool() -> FramePool {
    let (umem, frames) = Umem::new(CHUNKS).unwrap();
    FramePool::new(umem, frames)
}

type TestPort<'a> = CapturePort<&'a [u8], Vec<u8>>;

fn port<'a>(id: PortId, input: CaptureInput<&'a [u8]>, clock: &CaptureClock, pool: &mut FramePool) -> TestPort<'a> {
    let output = CaptureWriter::new(Vec::new(), &ports()[id.index()..=id.index()]).unwrap();
    let mut port = CapturePort::new(input, output, clock.clone(), pool.umem().clone());
    port.service(pool).unwrap();
    port
}

/// Returns the received packets and gives their frames back.
fn received(port: &mut TestPort<'_>, pool: &mut FramePool, limit: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    port.receive(&mut frames, limit).unwrap();
    let mut packets = Vec::new();
    while let Some(count) = first(&frames) {
        let mut bytes = Vec::new();
        gather(pool.umem(), &frames[..count], &mut bytes);
        packets.push(bytes);
        pool.give_all(frames.drain(..count));
    }
    assert!(frames.is_empty());
    port.service(pool).unwrap();
    packets
}

#[test]
fn packets_of_the_file_are_received_in_order_with_their_times() {
    let jumbo = vec![3; 9000];
    let file = pcap(1, &[(10, b"one"), (20, b""), (30, &jumbo), (40, b"four")]);
    let (mut pool, clock) = (pool(), CaptureClock::default());
    let mut port = port(A, open(&file).unwrap(), &clock, &mut pool);
    assert_eq!((clock.now(), port.next_time()), (0, Some(10)));
    assert_eq!(received(&mut port, &mut pool, 1), [b"one"]);
    assert_eq!((clock.now(), port.next_time()), (10, Some(20)));
    assert!(received(&mut port, &mut pool, 0).is_empty());
    assert!(received(&mut port, &mut pool, 3) == [b""], "the next one has three frames");
    assert!(received(&mut port, &mut pool, 1) == [jumbo], "and comes whole");
    assert_eq!(received(&mut port, &mut pool, 256), [b"four"]);
    assert_eq!((clock.now(), port.next_time()), (40, None));
    assert!(received(&mut port, &mut pool, 256).is_empty());
    port.close(&mut pool);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn a_filter_chooses_what_comes_in_on_a_port() {
    let file = pcap(1, &[(1, b"a1"), (2, b"b1"), (3, b"a2"), (4, b"b2")]);
    let (mut pool, clock) = (pool(), CaptureClock::default());
    let filter: CaptureFilter = Box::new(|packet| packet.data.starts_with(b"b"));
    let mut port = port(B, CaptureInput::open("x", &file[..], filter).unwrap(), &clock, &mut pool);
    assert_eq!(received(&mut port, &mut pool, 256), [b"b1", b"b2"]);
}

#[test]
fn frames_that_are_not_ethernet_are_refused_with_what_to_do() {
    let file = pcap(101, &[(1, b"raw")]);
    let error = open(&file).unwrap_err().to_string();
    assert_eq!(
        error,
        "x.pcap: packet 1 has link type 101, but a port accepts only Ethernet (1); capture on one interface, not on \
         `any`"
    );
    assert!(matches!(open(b"no capture"), Err(CapturePortError::Capture(CaptureError::UnknownFormat { .. }))));
}

#[test]
fn what_is_before_a_fault_is_received_and_then_the_port_fails_and_says_where() {
    let mut file = pcap(1, &[(1, b"one"), (2, b"two"), (3, b"three")]);
    file.truncate(file.len() - 2);
    let (mut pool, clock) = (pool(), CaptureClock::default());
    let mut port = port(A, open(&file).unwrap(), &clock, &mut pool);
    assert_eq!(received(&mut port, &mut pool, 256), [b"one", b"two"]);
    let error = port.receive(&mut Vec::new(), 256).unwrap_err().to_string();
    assert!(error.contains("x.pcap: the file ends within the record"), "{error}");
    assert!(error.contains("after packet 2"), "{error}");
    assert!(received(&mut port, &mut pool, 256).is_empty(), "the fault is reported once");
}

#[test]
fn what_is_sent_is_written_with_the_time_of_what_was_received() {
    let file = pcap(1, &[(10, b"request")]);
    let (mut pool, clock) = (pool(), CaptureClock::default());
    let mut from = port(A, open(&file).unwrap(), &clock, &mut pool);
    let nothing = pcap(1, &[]);
    let mut to = port(B, open(&nothing).unwrap(), &clock, &mut pool);
    let mut frames = Vec::new();
    from.receive(&mut frames, 256).unwrap();
    assert!(crate::io::segments::scatter(&mut pool, &[9; 9000], &mut frames));
    to.send(&mut frames).unwrap();
    assert!(frames.is_empty());
    let written = to.finish().unwrap().unwrap();
    let mut reader = CaptureReader::new("written", &written[..]).unwrap();
    let first = reader.next_packet().unwrap().unwrap();
    assert_eq!((first.time, first.data, &**first.interface.unwrap()), (10, &b"request"[..], "ns/b"));
    assert_eq!(reader.next_packet().unwrap().unwrap().data, [9; 9000]);
    assert!(reader.next_packet().unwrap().is_none());
    assert!(to.finish().unwrap().is_none());
    assert!(matches!(to.send(&mut Vec::new()), Err(PortError::Gone { .. })));
    from.close(&mut pool);
    to.close(&mut pool);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn a_writer_that_fails_leaves_the_packets_with_the_sender() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    /// Accepts only the file's header.
    struct Header<W>(bool, W);
    impl<W: Write> Write for Header<W> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) { self.1.write(bytes) } else { Ok(bytes.len()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            self.1.flush()
        }
    }
    let (mut pool, file) = (pool(), pcap(1, &[]));
    let output = CaptureWriter::new(Header(false, Full), &ports()).unwrap();
    let mut port = CapturePort::new(open(&file).unwrap(), output, CaptureClock::default(), pool.umem().clone());
    let mut frames = Vec::new();
    assert!(crate::io::segments::scatter(&mut pool, b"packet", &mut frames));
    assert!(matches!(port.send(&mut frames), Err(PortError::Failed { .. })));
    assert_eq!(frames.len(), 1);
    pool.give_all(frames);
    port.close(&mut pool);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn without_frames_packets_wait_in_the_file() {
    let file = pcap(1, &[(1, b"one"), (2, b"two")]);
    let (umem, frames) = Umem::new(1).unwrap();
    let mut pool = FramePool::new(umem, frames);
    let mut port = port(A, open(&file).unwrap(), &CaptureClock::default(), &mut pool);
    assert_eq!(received(&mut port, &mut pool, 256), [b"one"]);
    assert_eq!(received(&mut port, &mut pool, 256), [b"two"]);
    port.close(&mut pool);
    assert_eq!(pool.available(), 1);
}

#[test]
fn the_pipeline_runs_from_captures_to_captures() {
    let to_b = |payload: &[u8]| ethernet(A_MAC, 0x0800, payload);
    let (allowed, denied) = (to_b(&a_to_b(SYN)), to_b(&udp("10.0.0.1", "10.0.0.2", 81)));
    let (from_a, from_b) = (pcap(1, &[(5, &allowed), (6, &denied)]), pcap(1, &[]));
    let (mut pool, clock) = (pool(), CaptureClock::default());
    let mut a = port(A, open(&from_a).unwrap(), &clock, &mut pool);
    let mut b = port(B, open(&from_b).unwrap(), &clock, &mut pool);
    let mut frames = Vec::new();
    a.receive(&mut frames, 256).unwrap();
    let umem = pool.umem().clone();
    let packet = |frame| {
        let frame = umem.bytes(frame);
        Packet { frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port: A, time: clock.now() }
    };
    let packets: Vec<Packet<'_>> = frames.iter().map(packet).collect();
    let mut outcomes = [Outcome::UNJUDGED; 2];
    Worker::new(WorkerConfig::default()).process(&snapshot(), &packets, &mut outcomes);
    let mut to_send = Vec::new();
    for (frame, outcome) in frames.into_iter().zip(outcomes) {
        match outcome.verdict {
            Verdict::Forward(port) => {
                assert_eq!(port, B);
                to_send.push(frame);
            }
            Verdict::Drop(_) => pool.give(frame),
        }
    }
    b.send(&mut to_send).unwrap();
    let written = b.finish().unwrap().unwrap();
    let mut reader = CaptureReader::new("written", &written[..]).unwrap();
    assert_eq!(reader.next_packet().unwrap().unwrap().data, allowed);
    assert!(reader.next_packet().unwrap().is_none());
}
