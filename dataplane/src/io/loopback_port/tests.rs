use super::*;
use crate::io::Umem;

/// More frames than a few pools take at once.
const CHUNKS: u32 = 1024;

fn pool() -> FramePool {
    let (umem, frames) = Umem::new(CHUNKS).unwrap();
    FramePool::new(umem, frames)
}

/// Returns the worker's port, the test's peer, and the worker's pool.
fn bed(capacity: usize) -> (LoopbackPort, LoopbackPeer, FramePool) {
    let pool = pool();
    let (port, other) = LoopbackPort::pair(capacity);
    (port, LoopbackPeer::new(other, pool.sibling()), pool)
}

/// Takes frames for packets from the pool. `sizes` has each packet's number of frames.
fn frames(pool: &mut FramePool, sizes: &[usize]) -> Vec<Frame> {
    let mut frames = Vec::new();
    for &size in sizes {
        assert!(scatter(pool, &vec![7; size * Umem::ROOM], &mut frames));
    }
    frames
}

fn is_gone(result: &Result<(), PortError>) -> bool {
    matches!(result, Err(PortError::Gone { .. }))
}

#[test]
fn packets_arrive_in_order_with_their_bytes_both_ways() {
    let (mut port, mut peer, mut pool) = bed(8);
    let jumbo: Vec<u8> = (0..=250).cycle().take(9000).collect();
    for packet in [b"one".as_slice(), &jumbo, b"", b"two"] {
        peer.push(packet).unwrap();
    }
    let mut frames = Vec::new();
    port.receive(&mut frames, 256).unwrap();
    assert_eq!(frames.len(), 6);
    port.send(&mut frames).unwrap();
    assert!(frames.is_empty());
    let back: Vec<Vec<u8>> = std::iter::from_fn(|| peer.pop()).collect();
    assert!(back == [b"one".as_slice(), &jumbo, b"", b"two"]);
    port.close(&mut pool);
    drop(peer);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn a_limit_cuts_between_packets_and_never_in_one() {
    let (mut port, mut peer, mut pool) = bed(16);
    for size in [1, 3, 1, 4] {
        peer.push(&vec![0; size * Umem::ROOM]).unwrap();
    }
    let mut counts = Vec::new();
    for limit in [0, 2, 4, 3, 9] {
        let mut frames = Vec::new();
        port.receive(&mut frames, limit).unwrap();
        counts.push(frames.len());
        pool.give_all(frames);
    }
    assert_eq!(counts, [0, 1, 4, 4, 0], "a packet of 4 comes whole though the limit is 3");
}

#[test]
fn what_does_not_fit_stays_with_the_sender_in_whole_packets() {
    let (mut port, mut peer, mut pool) = bed(4);
    let mut queue = frames(&mut pool, &[1, 2, 2, 1]);
    port.send(&mut queue).unwrap();
    assert_eq!(queue.len(), 3, "the second packet of 2 does not fit, and the last one does not overtake it");
    assert_eq!(std::iter::from_fn(|| peer.pop()).count(), 2);
    port.send(&mut queue).unwrap();
    assert!(queue.is_empty());
    assert_eq!(std::iter::from_fn(|| peer.pop()).count(), 2);
}

#[test]
fn a_test_is_told_why_its_packet_was_not_taken() {
    let (mut port, mut peer, mut pool) = bed(1);
    peer.push(b"fits").unwrap();
    assert!(matches!(peer.push(b"does not"), Err(LoopbackError::Full)));
    let taken: Vec<Frame> = std::iter::from_fn(|| peer.pool().take()).collect();
    assert!(matches!(peer.push(b"does not"), Err(LoopbackError::NoFrames)));
    assert_eq!(taken.len(), CHUNKS as usize - 1);
    peer.pool().give_all(taken);
    port.close(&mut pool);
    assert!(matches!(peer.push(b"does not"), Err(LoopbackError::Port(PortError::Gone { .. }))));
    drop(peer);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn a_packet_that_can_never_fit_is_lost_and_counted_and_the_rest_passes() {
    let (mut port, mut peer, mut pool) = bed(3);
    let mut queue = frames(&mut pool, &[1, 4, 1]);
    port.send(&mut queue).unwrap();
    port.service(&mut pool).unwrap();
    assert!(queue.is_empty());
    assert_eq!(port.statistics().invalid_descriptors, 1);
    assert_eq!(std::iter::from_fn(|| peer.pop()).count(), 2);
    port.close(&mut pool);
    drop(peer);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn one_worker_with_both_ends_sends_packets_round_in_a_circle() {
    let (mut one, mut other) = LoopbackPort::pair(8);
    let mut pool = pool();
    let mut queue = frames(&mut pool, &[1, 1, 1, 1]);
    for _ in 0..100 {
        one.send(&mut queue).unwrap();
        other.receive(&mut queue, 256).unwrap();
        assert_eq!(queue.len(), 4);
    }
    pool.give_all(queue);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn what_was_sent_before_the_other_end_closed_is_received_and_then_the_port_is_gone() {
    let (mut port, mut peer, mut pool) = bed(8);
    peer.push(b"last words").unwrap();
    drop(peer);
    let mut queue = Vec::new();
    port.receive(&mut queue, 256).unwrap();
    assert_eq!(queue.len(), 1);
    assert!(is_gone(&port.receive(&mut queue, 256)));
    assert!(is_gone(&port.send(&mut queue)));
    assert_eq!(queue.len(), 1, "what cannot be sent stays with the sender");
    pool.give_all(queue);
    port.close(&mut pool);
    assert!(is_gone(&port.receive(&mut Vec::new(), 256)));
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn a_batch_is_sent_whole_or_not_at_all() {
    let (mut port, mut peer, mut pool) = bed(8);
    peer.push_burst(&[[1; 4]; 5]).unwrap();
    assert!(matches!(peer.push_burst(&[[2; 4]; 4]), Err(LoopbackError::Full)));
    peer.push_burst(&[[3; 4]; 3]).unwrap();
    assert!(matches!(peer.push_burst(&vec![[4; 4]; CHUNKS as usize + 1]), Err(LoopbackError::NoFrames)));
    let mut queue = Vec::new();
    port.receive(&mut queue, 256).unwrap();
    let first: Vec<u8> = queue.iter().map(|frame| pool.umem().bytes(frame)[0]).collect();
    assert_eq!(first, [1, 1, 1, 1, 1, 3, 3, 3]);
    pool.give_all(queue);
    drop(peer);
    port.close(&mut pool);
    assert_eq!(pool.available(), CHUNKS as usize);
}

#[test]
fn no_frame_is_lost_whichever_end_closes_first() {
    for peer_first in [true, false] {
        let (mut port, mut peer, mut pool) = bed(8);
        peer.push(b"there").unwrap();
        let mut queue = frames(&mut pool, &[1, 2]);
        port.send(&mut queue).unwrap();
        if peer_first {
            drop(peer);
            port.close(&mut pool);
        } else {
            port.close(&mut pool);
            drop(peer);
        }
        assert_eq!(pool.available(), CHUNKS as usize);
    }
}

#[test]
fn no_frame_is_lost_when_both_ends_close_at_once_under_traffic() {
    for _ in 0..200 {
        let (mut port, mut peer, mut pool) = bed(8);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut queue = frames(&mut pool, &[1; 6]);
                while port.send(&mut queue).is_ok() && !queue.is_empty() {
                    std::hint::spin_loop();
                }
                pool.give_all(queue);
                port.close(&mut pool);
            });
            scope.spawn(move || {
                for n in 0..4 {
                    let _sent_or_gone = peer.push(&[n]);
                    let _maybe = peer.pop();
                }
            });
        });
        assert_eq!(pool.available(), CHUNKS as usize);
    }
}

#[test]
fn a_peer_in_another_thread_gets_every_packet_in_order() {
    const PACKETS: u32 = 20_000;
    let (mut port, mut peer, mut pool) = bed(16);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut sent, mut got) = (0, 0u32);
            while got < PACKETS {
                if sent < PACKETS && peer.push(&sent.to_be_bytes()).is_ok() {
                    sent += 1;
                }
                match peer.pop() {
                    Some(packet) => {
                        assert_eq!(packet, got.to_be_bytes());
                        got += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        let mut queue = Vec::new();
        loop {
            let gone = queue.is_empty() && port.receive(&mut queue, 8).is_err();
            if gone || port.send(&mut queue).is_err() {
                break;
            }
            std::thread::yield_now();
        }
        assert!(queue.is_empty());
    });
    port.close(&mut pool);
    assert_eq!(pool.available(), CHUNKS as usize);
}
