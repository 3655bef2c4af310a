//! The port over plain memory. The test plays the kernel at the other ends of the four rings.

use std::os::unix::net::UnixDatagram;

use super::*;
use crate::io::xsk::mapping::Mapping;
use crate::io::xsk::ring::{Consumer, Entry, Producer};

const SIZE: u32 = 32;
const CHUNKS: u32 = 200;

/// The kernel's ends of the rings.
struct Kernel {
    fill: Consumer<u64>,
    receive: Producer<libc::xdp_desc>,
    transmit: Consumer<libc::xdp_desc>,
    completion: Producer<u64>,
    /// The peer of the port's descriptor. If it is closed, the port's calls fail.
    _descriptor: UnixDatagram,
}

fn ends<T: Entry>() -> (Producer<T>, Consumer<T>) {
    let offsets = libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 };
    let memory = Arc::new(Mapping::anonymous(4096).unwrap());
    // SAFETY: one end each.
    unsafe { (Producer::new(Arc::clone(&memory), offsets, SIZE), Consumer::new(memory, offsets, SIZE)) }
}

fn port(frags: bool) -> (XskPort, Kernel, FramePool) {
    let (umem, frames) = Umem::new(CHUNKS).unwrap();
    let (fill, kernel_fill) = ends();
    let (kernel_receive, receive) = ends();
    let (transmit, kernel_transmit) = ends();
    let (kernel_completion, completion) = ends();
    // A datagram socket accepts the port's calls without an effect.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let socket = Socket { fill, receive, transmit, completion, descriptor: ours.into(), frags };
    let port = XskPort::new(socket, &umem, SIZE, SIZE);
    let kernel = Kernel {
        fill: kernel_fill,
        receive: kernel_receive,
        transmit: kernel_transmit,
        completion: kernel_completion,
        _descriptor: theirs,
    };
    (port, kernel, FramePool::new(umem, frames))
}

impl Kernel {
    /// Receives a packet with a frame per length in `lens`.
    fn packet(&mut self, lens: &[u32]) {
        let count = u32::try_from(lens.len()).unwrap();
        assert!(self.fill.available(count) >= count, "nothing to receive into");
        self.receive.room(count);
        for (at, &len) in (0..).zip(lens) {
            let addr = (self.fill.peek(at) & !4095) + 256;
            let options = if at + 1 < count { libc::XDP_PKT_CONTD } else { 0 };
            self.receive.push(libc::xdp_desc { addr, len, options });
        }
        self.fill.release(count);
        self.receive.publish();
    }

    /// Sends `count` frames at most. Returns each one's length, and whether its packet continues in the next frame.
    fn send(&mut self, count: u32) -> Vec<(u32, bool)> {
        let count = self.transmit.available(count).min(count);
        self.completion.room(count);
        let sent = (0..count).map(|ahead| self.transmit.peek(ahead)).collect::<Vec<_>>();
        sent.iter().for_each(|descriptor| self.completion.push(descriptor.addr));
        self.completion.publish();
        self.transmit.release(count);
        sent.iter().map(|descriptor| (descriptor.len, descriptor.options == libc::XDP_PKT_CONTD)).collect()
    }
}

/// Takes frames for packets from the pool, one frame per length. 0 is an empty frame.
fn frames(pool: &mut FramePool, packets: &[&[usize]]) -> Vec<Frame> {
    let mut frames = Vec::new();
    for packet in packets {
        for (at, &len) in packet.iter().enumerate() {
            let mut frame = pool.take().unwrap();
            frame.reset(len);
            frame.set_more(at + 1 < packet.len());
            frames.push(frame);
        }
    }
    frames
}

fn available(pool: &FramePool) -> u32 {
    u32::try_from(pool.available()).unwrap()
}

fn lens(frames: &[Frame]) -> Vec<(usize, bool)> {
    frames.iter().map(|frame| (frame.len(), frame.has_more())).collect()
}

#[test]
fn the_kernel_gets_frames_to_receive_into_and_packets_come_back_in_order() {
    let (mut port, mut kernel, mut pool) = port(true);
    port.service(&mut pool).unwrap();
    assert_eq!((port.lent(), available(&pool)), (SIZE, CHUNKS - SIZE));
    for round in 0..100 {
        kernel.packet(&[60 + round]);
        kernel.packet(&[3840, 100]);
        let mut got = Vec::new();
        port.receive(&mut got, 64).unwrap();
        assert_eq!(lens(&got), [(60 + round as usize, false), (3840, true), (100, false)]);
        pool.give_all(got);
        port.service(&mut pool).unwrap();
        // Frames are lent in batches, but long before the ring is empty.
        assert!(port.lent() > SIZE / 2, "{}", port.lent());
    }
    assert_eq!(port.lent() + available(&pool), CHUNKS);
}

#[test]
fn a_limit_ends_at_a_packet_and_not_within_one() {
    let (mut port, mut kernel, mut pool) = port(true);
    port.service(&mut pool).unwrap();
    [&[1][..], &[2, 3], &[4, 5, 6], &[7]].iter().for_each(|packet| kernel.packet(packet));
    let mut receive = |limit| {
        let mut got = Vec::new();
        port.receive(&mut got, limit).unwrap();
        let lens = got.iter().map(Frame::len).collect::<Vec<_>>();
        pool.give_all(got);
        lens
    };
    assert_eq!(receive(2), [1], "the next one has two");
    assert_eq!(receive(4), [2, 3], "the next one has three");
    assert_eq!(receive(1), [4, 5, 6], "a single one may have more");
    assert_eq!(receive(0), [7]);
    assert!(receive(9).is_empty());
}

#[test]
fn half_a_packet_stays_in_the_ring_until_the_rest_is_there() {
    let (mut port, mut kernel, mut pool) = port(true);
    port.service(&mut pool).unwrap();
    let addr = |kernel: &mut Kernel| {
        assert!(kernel.fill.available(1) > 0);
        let addr = kernel.fill.peek(0);
        kernel.fill.release(1);
        addr
    };
    let mut got = Vec::new();
    for (options, expected) in [(1, 0), (1, 0), (0, 3)] {
        let addr = addr(&mut kernel);
        kernel.receive.room(1);
        kernel.receive.push(libc::xdp_desc { addr, len: 9, options });
        kernel.receive.publish();
        port.receive(&mut got, 64).unwrap();
        assert_eq!(got.len(), expected);
    }
    pool.give_all(got);
}

#[test]
fn what_does_not_fit_the_ring_stays_as_whole_packets() {
    let (mut port, mut kernel, mut pool) = port(true);
    let mut waiting = frames(&mut pool, &[&[60][..]; 30]);
    waiting.extend(frames(&mut pool, &[&[1, 2, 3], &[4]]));
    port.send(&mut waiting).unwrap();
    assert_eq!(lens(&waiting), [(1, true), (2, true), (3, false), (4, false)], "two places are not enough");
    assert_eq!(kernel.send(40).len(), 30);
    port.service(&mut pool).unwrap();
    port.send(&mut waiting).unwrap();
    assert!(waiting.is_empty());
    assert_eq!(kernel.send(40), [(1, true), (2, true), (3, false), (4, false)]);
    port.service(&mut pool).unwrap();
    assert_eq!((port.sending, available(&pool)), (0, CHUNKS - SIZE));
}

#[test]
fn a_packet_without_its_end_is_not_sent() {
    let (mut port, mut kernel, mut pool) = port(true);
    let mut waiting = frames(&mut pool, &[&[1], &[2, 3]]);
    waiting[2].set_more(true);
    port.send(&mut waiting).unwrap();
    assert_eq!((kernel.send(9), waiting.len()), (vec![(1, false)], 2));
    pool.give_all(waiting);
}

#[test]
fn packets_that_the_kernel_would_refuse_are_counted_and_their_frames_kept() {
    for (frags, longest) in [(true, LONGEST_CHAIN), (false, 1)] {
        let (mut port, mut kernel, mut pool) = port(frags);
        let long = vec![1; longest as usize + 1];
        let mut waiting = frames(&mut pool, &[&[5], &long, &[6, 0], &[0], &[7]]);
        port.send(&mut waiting).unwrap();
        assert!(waiting.is_empty());
        assert_eq!(kernel.send(40), [(5, false), (7, false)]);
        port.service(&mut pool).unwrap();
        assert_eq!((port.statistics().invalid_descriptors, port.sending), (3, 0));
        assert_eq!(available(&pool), CHUNKS - SIZE);
    }
}

#[test]
fn a_kernel_that_names_chunks_it_does_not_have_gets_nothing() {
    let (mut port, mut kernel, mut pool) = port(true);
    port.service(&mut pool).unwrap();
    kernel.packet(&[60]);
    kernel.receive.room(3);
    // A chunk twice; one that was never lent; one with an impossible length.
    let twice = libc::xdp_desc { addr: 0, len: 1, options: 0 };
    kernel.receive.push(twice);
    kernel.receive.push(libc::xdp_desc { addr: u64::MAX, len: 1, options: 0 });
    kernel.receive.publish();
    kernel.completion.room(1);
    kernel.completion.push(4096);
    kernel.completion.publish();
    let mut got = Vec::new();
    port.receive(&mut got, 64).unwrap();
    assert_eq!(got.len(), 1);
    assert_eq!(port.statistics().invalid_descriptors, 2);
    let mut sent = frames(&mut pool, &[&[9]]);
    port.send(&mut sent).unwrap();
    port.service(&mut pool).unwrap();
    pool.give_all(got);
    port.close(&mut pool);
    assert_eq!(available(&pool), CHUNKS, "every chunk is there once");
}

#[test]
fn closing_gives_back_what_the_kernel_has_in_any_ring() {
    let (mut port, mut kernel, mut pool) = port(true);
    port.service(&mut pool).unwrap();
    kernel.packet(&[60]);
    kernel.packet(&[3840, 60]);
    let mut waiting = frames(&mut pool, &[&[1], &[2], &[3, 0], &[4]]);
    port.send(&mut waiting).unwrap();
    kernel.send(2);
    port.close(&mut pool);
    assert_eq!((available(&pool), port.lent(), port.descriptor()), (CHUNKS, 0, None));
    // A closed port does nothing.
    port.receive(&mut waiting, 9).unwrap();
    port.send(&mut waiting).unwrap();
    port.service(&mut pool).unwrap();
    assert!(waiting.is_empty());
    assert_eq!(port.statistics().invalid_descriptors, 1);
}

#[test]
fn an_error_number_says_whether_to_try_again() {
    let told = |code| try_again(io::Error::from_raw_os_error(code));
    for code in [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::EINTR] {
        assert!(told(code).is_ok());
    }
    for code in [libc::ENETDOWN, libc::ENXIO, libc::ENODEV] {
        assert!(matches!(told(code), Err(PortError::Gone { .. })));
    }
    assert!(matches!(told(libc::EINVAL), Err(PortError::Failed { .. })));
}
