use super::*;
use crate::io::{LoopbackPeer, LoopbackPort};

/// Three pools take several hundred frames at once.
const CHUNKS: u32 = 4096;

/// A port with this plan, and the peer of its loopback port.
struct Bed {
    port: FaultPort<LoopbackPort>,
    peer: LoopbackPeer,
    pool: FramePool,
}

impl Bed {
    fn new(plan: FaultPlan) -> Self {
        let (umem, frames) = Umem::new(CHUNKS).unwrap();
        let mut pool = FramePool::new(Arc::clone(&umem), frames);
        let (port, other) = LoopbackPort::pair(256);
        let mut port = FaultPort::new(port, plan, umem);
        // Takes the frames for duplicates.
        let _maybe_gone = port.service(&mut pool);
        Self { port, peer: LoopbackPeer::new(other, pool.sibling()), pool }
    }

    /// Returns the packets that the worker receives if these arrive, with one call per packet and more calls for late ones.
    fn receive(&mut self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        for packet in packets.iter().map(Some).chain([None; 4]) {
            packet.inspect(|packet| self.peer.push(packet).unwrap());
            let mut frames = Vec::new();
            self.port.receive(&mut frames, 256).unwrap();
            received.extend(self.bytes(frames));
            self.port.service(&mut self.pool).unwrap();
        }
        received
    }

    /// Returns the packets that arrive at the peer if the worker sends these.
    fn send(&mut self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut arrived = Vec::new();
        for packet in packets {
            let mut frames = Vec::new();
            assert!(crate::io::segments::scatter(&mut self.pool, packet, &mut frames));
            while !frames.is_empty() {
                self.port.send(&mut frames).unwrap();
                self.port.service(&mut self.pool).unwrap();
                arrived.extend(std::iter::from_fn(|| self.peer.pop()));
            }
        }
        arrived
    }

    fn bytes(&mut self, frames: Vec<Frame>) -> Vec<Vec<u8>> {
        let mut packets = vec![Vec::new()];
        for frame in frames {
            let packet = packets.last_mut().unwrap();
            packet.extend_from_slice(self.pool.umem().bytes(&frame));
            if !frame.has_more() {
                packets.push(Vec::new());
            }
            self.pool.give(frame);
        }
        assert_eq!(packets.pop(), Some(Vec::new()), "the last packet is whole");
        packets
    }

    /// Closes the port, checks that every frame is back, and returns the counts.
    fn end(mut self) -> FaultCounts {
        self.port.close(&mut self.pool);
        drop(self.peer);
        assert_eq!(self.pool.available(), CHUNKS as usize);
        self.port.watch().counts()
    }
}

/// Returns packets of different lengths, every eighth of several frames, which begin with their number.
fn packets(count: u32) -> Vec<Vec<u8>> {
    let len = |n: u32| if n.is_multiple_of(8) { 9000 } else { 60 + n as usize % 1400 };
    let fill = |n: u32| n.to_be_bytes().into_iter().cycle().take(len(n)).collect();
    (0..count).map(fill).collect()
}

const ALL: Faults = Faults { lose: 100, duplicate: 100, reorder: 100, truncate: 100, corrupt: 100 };

#[test]
fn without_a_plan_nothing_happens() {
    let mut bed = Bed::new(FaultPlan::default());
    let packets = packets(100);
    assert!(bed.receive(&packets) == packets && bed.send(&packets) == packets);
    let tally = FaultTally { packets: 100, ..FaultTally::default() };
    assert_eq!(bed.end(), FaultCounts { receive: tally, send: tally, refused: 0 });
}

#[test]
fn lost_packets_are_those_that_are_missing() {
    let mut bed = Bed::new(FaultPlan { receive: Faults { lose: 300, ..Faults::default() }, ..FaultPlan::default() });
    let received = bed.receive(&packets(500)).len() as u64;
    let counts = bed.end();
    assert_eq!((counts.receive.packets, received + counts.receive.lost), (500, 500));
    assert!((100..200).contains(&counts.receive.lost), "about 150, not {}", counts.receive.lost);
}

#[test]
fn a_duplicate_follows_its_packet_and_has_frames_of_its_own() {
    let mut bed = Bed::new(FaultPlan { send: Faults { duplicate: 1000, ..Faults::default() }, ..FaultPlan::default() });
    let packets = packets(50);
    let arrived = bed.send(&packets);
    assert!(arrived.chunks(2).zip(&packets).all(|(pair, packet)| pair == [packet.clone(), packet.clone()]));
    assert_eq!((arrived.len(), bed.end().send.duplicated), (100, 50));
}

#[test]
fn a_reordered_packet_comes_after_the_next_one_and_is_never_kept() {
    let reorder = Faults { reorder: 1000, ..Faults::default() };
    let mut bed = Bed::new(FaultPlan { receive: reorder, ..FaultPlan::default() });
    let packets = packets(5);
    packets.iter().for_each(|packet| bed.peer.push(packet).unwrap());
    let received = bed.receive(&[]);
    let order: Vec<usize> = received.iter().map(|r| packets.iter().position(|p| p == r).unwrap()).collect();
    assert_eq!(order, [1, 0, 3, 2, 4], "the last one has nothing to wait for");
    assert_eq!(bed.end().receive.reordered, 2);
}

#[test]
fn a_truncated_packet_is_a_beginning_of_what_was_sent() {
    let truncate = Faults { truncate: 1000, ..Faults::default() };
    let mut bed = Bed::new(FaultPlan { receive: truncate, ..FaultPlan::default() });
    let packets = packets(200);
    let received = bed.receive(&packets);
    assert_eq!(received.len(), 200);
    assert!(received.iter().zip(&packets).all(|(cut, whole)| cut.len() < whole.len() && whole.starts_with(cut)));
    assert!(received.iter().any(|cut| cut.len() > Umem::ROOM), "also behind the first frame");
    assert_eq!(bed.end().receive.truncated, 200);
}

#[test]
fn a_corrupted_packet_differs_in_one_byte() {
    let corrupt = Faults { corrupt: 1000, ..Faults::default() };
    let mut bed = Bed::new(FaultPlan { send: corrupt, ..FaultPlan::default() });
    let packets = packets(200);
    let arrived = bed.send(&packets);
    for (changed, whole) in arrived.iter().zip(&packets) {
        assert_eq!(changed.len(), whole.len());
        assert_eq!(changed.iter().zip(whole).filter(|(one, other)| one != other).count(), 1);
    }
    assert_eq!((arrived.len(), bed.end().send.corrupted), (200, 200));
}

#[test]
fn a_refused_send_leaves_everything_with_the_sender() {
    let mut bed = Bed::new(FaultPlan { refuse: 500, ..FaultPlan::default() });
    let packets = packets(100);
    assert!(bed.send(&packets) == packets, "refused packets are sent again by the worker");
    let refused = bed.end().refused;
    assert!((60..140).contains(&refused), "about 100, not {refused}");
}

#[test]
fn bursts_of_one_give_one_packet_per_call() {
    let mut bed = Bed::new(FaultPlan { bursts_of_one: true, ..FaultPlan::default() });
    let packets = packets(10);
    packets.iter().for_each(|packet| bed.peer.push(packet).unwrap());
    for packet in &packets {
        let mut frames = Vec::new();
        bed.port.receive(&mut frames, 256).unwrap();
        let received = bed.bytes(frames);
        assert!(received.len() == 1 && received[0] == *packet);
    }
    bed.end();
}

#[test]
fn a_port_is_gone_after_its_calls_and_keeps_no_frame() {
    // `Bed::new` makes the first call.
    let mut bed = Bed::new(FaultPlan { gone_after: Some(3), send: ALL, receive: ALL, ..FaultPlan::default() });
    packets(20).iter().for_each(|packet| bed.peer.push(packet).unwrap());
    let mut frames = Vec::new();
    bed.port.receive(&mut frames, 256).unwrap();
    bed.port.service(&mut bed.pool).unwrap();
    let before = frames.len();
    assert!(matches!(bed.port.send(&mut frames), Err(PortError::Gone { .. })));
    assert!(matches!(bed.port.receive(&mut frames, 256), Err(PortError::Gone { .. })));
    assert!(matches!(bed.port.service(&mut bed.pool), Err(PortError::Gone { .. })));
    assert_eq!(frames.len(), before);
    bed.pool.give_all(frames);
    bed.end();
}

#[test]
fn what_the_inner_port_cannot_send_any_more_goes_back_to_the_sender() {
    let mut bed = Bed::new(FaultPlan::default());
    let mut frames = Vec::new();
    assert!(crate::io::segments::scatter(&mut bed.pool, &[1; 5000], &mut frames));
    let (_, unused) = LoopbackPort::pair(1);
    drop(std::mem::replace(&mut bed.peer, LoopbackPeer::new(unused, bed.pool.sibling())));
    assert!(matches!(bed.port.send(&mut frames), Err(PortError::Gone { .. })));
    assert_eq!(frames.len(), 2);
    bed.pool.give_all(frames);
    bed.end();
}

#[test]
fn a_full_inner_port_keeps_packets_with_their_sender_and_in_order() {
    let mut bed = Bed::new(FaultPlan::default());
    let mut frames = Vec::new();
    for n in 0..600u32 {
        assert!(crate::io::segments::scatter(&mut bed.pool, &n.to_be_bytes(), &mut frames));
    }
    let mut arrived = Vec::new();
    while arrived.len() < 600 {
        bed.port.send(&mut frames).unwrap();
        bed.port.service(&mut bed.pool).unwrap();
        arrived.extend(std::iter::from_fn(|| bed.peer.pop()));
    }
    assert!(arrived.iter().zip(0u32..).all(|(packet, n)| *packet == n.to_be_bytes()));
    bed.end();
}

#[test]
fn the_same_seed_does_the_same_and_another_one_does_not() {
    let run = |seed| {
        let mut bed = Bed::new(FaultPlan { seed, receive: ALL, send: ALL, refuse: 100, ..FaultPlan::default() });
        let packets = packets(300);
        let seen = (bed.receive(&packets), bed.send(&packets));
        (seen, bed.end())
    };
    assert!(run(7) == run(7));
    assert!(run(7) != run(8));
}

#[test]
fn all_faults_at_once_for_many_seeds_lose_no_frame() {
    let mut done = FaultTally::default();
    for seed in 0..50 {
        let bursts_of_one = seed % 2 == 0;
        let mut bed =
            Bed::new(FaultPlan { seed, receive: ALL, send: ALL, refuse: 200, bursts_of_one, gone_after: None });
        let packets = packets(60);
        let received = bed.receive(&packets);
        bed.send(&received);
        let FaultCounts { receive, send, .. } = bed.end();
        for tally in [receive, send] {
            done.lost += tally.lost;
            done.duplicated += tally.duplicated;
            done.reordered += tally.reordered;
            done.truncated += tally.truncated;
            done.corrupted += tally.corrupted;
        }
    }
    let FaultTally { lost, duplicated, reordered, truncated, corrupted, .. } = done;
    assert!([lost, duplicated, reordered, truncated, corrupted].iter().all(|&n| n > 100), "{done:?}");
}
