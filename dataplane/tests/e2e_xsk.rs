//! AF_XDP ports on real veths in the tests' own namespaces. They need root, `ip`, `ping`, `ethtool` and `socat`; without root they print a
//! reason and pass, unless `BULKHEAD_E2E=require` is set.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::support::{Net, SMALL, pool};
use bulkhead_dataplane::io::{
    Frame, FramePool, Generator, Interface, LinkInfo, PollSet, Port, PortError, PortStatistics, Waker, XdpMode,
    XskError, XskPort, in_namespace, poll, set_transmit_checksum_offload, transmit_checksum_offload,
};

/// Sends every packet of a port out of the next port, until it is stopped or a port fails.
struct Wire {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: JoinHandle<Done>,
}

/// The state of a wire after its end.
struct Done {
    pool: FramePool,
    error: Option<PortError>,
    statistics: Vec<PortStatistics>,
    longest_chain: usize,
}

impl Wire {
    fn start(mut pool: FramePool, mut ports: Vec<Box<dyn Port>>) -> Self {
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), Arc::new(Waker::new().unwrap()));
        let (stopped, wakes) = (Arc::clone(&stop), Arc::clone(&waker));
        let thread = std::thread::spawn(move || {
            let mut longest_chain = 0;
            let error = forward(&mut ports, &mut pool, &stopped, &wakes, &mut longest_chain).err();
            for port in &mut ports {
                port.close(&mut pool);
            }
            Done { pool, error, statistics: ports.iter().map(|port| port.statistics()).collect(), longest_chain }
        });
        Self { stop, waker, thread }
    }

    fn stop(self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.thread.join().unwrap()
    }
}

fn forward(
    ports: &mut [Box<dyn Port>],
    pool: &mut FramePool,
    stop: &AtomicBool,
    waker: &Waker,
    longest: &mut usize,
) -> Result<(), PortError> {
    let count = ports.len();
    let mut waiting: Vec<Vec<Frame>> = ports.iter().map(|_| Vec::new()).collect();
    let mut set = PollSet::new();
    set.add(waker.descriptor());
    ports.iter().filter_map(|port| port.descriptor()).for_each(|descriptor| set.add(descriptor));
    let timeout = if ports.iter().all(|port| port.descriptor().is_some()) { 5 } else { 0 };
    let result = 'done: {
        while !stop.load(Ordering::Relaxed) {
            for (at, port) in ports.iter_mut().enumerate() {
                let to = (at + 1) % count;
                let before = waiting[to].len();
                if let Err(error) = port.receive(&mut waiting[to], 64) {
                    break 'done Err(error);
                }
                let chains = waiting[to][before..].split_inclusive(|frame| !frame.has_more());
                *longest = chains.map(<[Frame]>::len).fold(*longest, usize::max);
            }
            let mut idle = true;
            for (port, frames) in ports.iter_mut().zip(&mut waiting) {
                idle &= frames.is_empty();
                if let Err(error) = port.send(frames).and_then(|()| port.service(pool)) {
                    break 'done Err(error);
                }
            }
            if idle {
                poll(&mut set, timeout).unwrap();
                waker.drain();
            }
        }
        Ok(())
    };
    waiting.into_iter().for_each(|frames| pool.give_all(frames));
    result
}

/// Starts a wire between `a` and `b`.
fn wired(net: &Net, mode: XdpMode, chunks: u32) -> (Vec<Interface>, Wire) {
    let mut pool = pool(chunks);
    let interfaces: Vec<Interface> = ["va", "vb"].iter().map(|name| net.open(name, mode).unwrap()).collect();
    let ports = interfaces.iter().flat_map(|interface| net.ports(interface, &pool));
    let mut ports: Vec<Box<dyn Port>> = ports.map(|port| Box::new(port) as Box<dyn Port>).collect();
    ports.iter_mut().for_each(|port| port.service(&mut pool).unwrap());
    (interfaces, Wire::start(pool, ports))
}

/// Receives packets until `wanted` returns a value for one.
fn receive<T>(port: &mut XskPort, pool: &mut FramePool, wanted: impl Fn(&[u8]) -> Option<T>) -> T {
    let mut set = PollSet::new();
    set.add(port.descriptor().unwrap());
    let mut frames = Vec::new();
    loop {
        port.receive(&mut frames, 64).unwrap();
        let umem = Arc::clone(pool.umem());
        let found = frames.iter().find_map(|frame| wanted(umem.bytes(frame)));
        pool.give_all(frames.drain(..));
        port.service(pool).unwrap();
        if let Some(found) = found {
            return found;
        }
        poll(&mut set, 1000).unwrap();
    }
}

/// The payload of an IPv4 UDP packet. `None` if the packet has another protocol or destination port.
fn udp_payload(packet: &[u8], port: u16) -> Option<&[u8]> {
    let udp = packet.get(14..)?.get(20..).filter(|_| packet[12..14] == [8, 0] && packet[23] == 17)?;
    (udp.get(2..4)? == port.to_be_bytes()).then(|| &udp[8..])
}

/// Makes `a` send packets for `b`'s address to an interface's MAC address, without ARP.
fn send_to(net: &Net, namespace: &str, interface: &str) {
    let info = net.inside(namespace, || LinkInfo::read(interface)).unwrap();
    let mac: Vec<String> = info.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    net.exec("a", &format!("ip neigh replace 10.77.0.2 lladdr {} dev eth0", mac.join(":")));
}

#[test]
fn a_packet_that_a_pod_sends_arrives_byte_for_byte_in_both_modes() {
    for mode in [XdpMode::Drv, XdpMode::Skb] {
        let Some(net) = Net::new(1, 1500) else { return };
        send_to(&net, "b", "eth0");
        let mut pool = pool(1024);
        let interface = net.open("va", mode).unwrap();
        assert_eq!((interface.mode(), interface.is_alive()), (mode, true));
        let mut port = net.ports(&interface, &pool).remove(0);
        port.service(&mut pool).unwrap();
        let socket = net.inside("a", || UdpSocket::bind("10.77.0.1:0").unwrap());
        // More packets than the rings hold, so that every chunk is reused.
        for n in 0..1000u32 {
            let sent: Vec<u8> = (0..n % 1400 + 4).map(|at| (at * 7 + n) as u8).collect();
            socket.send_to(&sent, "10.77.0.2:5000").unwrap();
            let got = receive(&mut port, &mut pool, |packet| udp_payload(packet, 5000).map(<[u8]>::to_vec));
            assert_eq!(got, sent);
        }
        port.close(&mut pool);
        assert_eq!((pool.available(), port.statistics()), (1024, PortStatistics::default()));
    }
}

#[test]
fn a_wire_of_two_ports_carries_ping_and_tcp() {
    for mode in [XdpMode::Drv, XdpMode::Skb] {
        let Some(net) = Net::new(1, 1500) else { return };
        let (interfaces, wire) = wired(&net, mode, 2048);
        net.exec("a", "ping -c 3 -i 0.01 -W 5 10.77.0.2");
        for pod in ["a", "b"] {
            net.inside(pod, || {
                assert!(transmit_checksum_offload("eth0").unwrap(), "a veth has it at first");
                set_transmit_checksum_offload("eth0", false).unwrap();
                assert!(!transmit_checksum_offload("eth0").unwrap());
            });
        }
        assert_eq!(tcp_transfer(&net, 20 << 20), 20 << 20);
        let done = wire.stop();
        assert!(done.error.is_none());
        assert_eq!(done.pool.available(), 2048);
        assert!(done.statistics.iter().all(|port| port.invalid_descriptors == 0));
        drop(interfaces);
    }
}

/// Sends bytes from `a` to `b` and checks each. Returns the number of bytes that arrived.
fn tcp_transfer(net: &Net, total: usize) -> usize {
    let listener = net.inside("b", || TcpListener::bind("10.77.0.2:7000").unwrap());
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return count,
                len => {
                    assert!(buffer[..len].iter().enumerate().all(|(at, &byte)| byte == ((count + at) % 251) as u8));
                    count += len;
                }
            }
        }
    });
    let mut stream = net.inside("a", || TcpStream::connect("10.77.0.2:7000").unwrap());
    let bytes: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
    stream.write_all(&bytes).unwrap();
    drop(stream);
    receiver.join().unwrap()
}

#[test]
fn a_jumbo_packet_comes_as_several_frames_and_leaves_as_one_packet() {
    for mode in [XdpMode::Drv, XdpMode::Skb] {
        let Some(net) = Net::new(1, 9000) else { return };
        let (_interfaces, wire) = wired(&net, mode, 2048);
        net.exec("a", "ping -c 3 -i 0.01 -W 5 -M do -s 8972 10.77.0.2");
        for pod in ["a", "b"] {
            net.inside(pod, || set_transmit_checksum_offload("eth0", false)).unwrap();
        }
        assert_eq!(tcp_transfer(&net, 20 << 20), 20 << 20);
        let done = wire.stop();
        assert!(done.error.is_none());
        assert_eq!((done.longest_chain, done.pool.available()), (3, 2048));
    }
}

#[test]
fn no_program_is_left_when_the_interface_is_dropped() {
    let Some(net) = Net::new(1, 1500) else { return };
    let interface = net.open("va", XdpMode::Auto).unwrap();
    assert_eq!(interface.mode(), XdpMode::Drv);
    assert!(net.exec("sw", "ip link show va").contains("xdp"));
    let second = net.open("va", XdpMode::Auto).unwrap_err();
    assert!(matches!(second, XskError::ProgramPresent { .. }), "{second}");
    let second = net.open("va", XdpMode::Skb).unwrap_err().to_string();
    assert!(second.contains("va: an XDP program is attached already"), "{second}");
    drop(interface);
    assert!(!net.exec("sw", "ip link show va").contains("xdp"));
    net.open("va", XdpMode::Skb).unwrap();
}

#[test]
fn no_program_is_left_when_the_process_is_killed() {
    // The process to kill is another instance of this test program, which runs only this test and never ends.
    if let Ok(namespace) = std::env::var("BHX_HOLD") {
        let interface = in_namespace(namespace.as_ref(), || Interface::open("va", XdpMode::Drv).unwrap()).unwrap();
        let mut pool = pool(1024);
        let mut port = in_namespace(namespace.as_ref(), || interface.ports(pool.umem(), SMALL).unwrap()).unwrap();
        port[0].service(&mut pool).unwrap();
        println!("holds it");
        loop {
            std::thread::park();
        }
    }
    let Some(net) = Net::new(1, 1500) else { return };
    let test = "e2e_xsk::no_program_is_left_when_the_process_is_killed";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("BHX_HOLD", net.path("sw"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let holds = said.into_iter().any(|line| line.ends_with("holds it"));
    let attached = net.exec("sw", "ip link show va").contains("xdp");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(holds && attached);
    assert!(!net.exec("sw", "ip link show va").contains("xdp"));
    // The interface can be opened again at once.
    let interface = net.open("va", XdpMode::Drv).unwrap();
    net.ports(&interface, &pool(1024));
}

#[test]
fn the_generator_sends_its_frames_in_turn() {
    let Some(net) = Net::new(1, 1500) else { return };
    let mut pool = pool(1024);
    let interface = net.open("va", XdpMode::Drv).unwrap();
    let mut port = net.ports(&interface, &pool).remove(0);
    port.service(&mut pool).unwrap();
    let frame = |n: u8, len: usize| [vec![n; 12], vec![0x88, 0xb5, n], vec![n; len - 15]].concat();
    let frames = vec![frame(1, 60), frame(2, 60), frame(3, 1514), frame(4, 60)];
    let sent = net.inside("a", || Generator::new("eth0", &frames).unwrap().send(10).unwrap());
    assert_eq!(sent, 40);
    let (mut got, mut received) = (Vec::new(), Vec::new());
    while got.len() < 40 {
        port.receive(&mut received, 64).unwrap();
        let bytes = received.iter().map(|frame| pool.umem().bytes(frame).to_vec());
        got.extend(bytes.filter(|bytes| bytes[12..14] == [0x88, 0xb5]));
        pool.give_all(received.drain(..));
        port.service(&mut pool).unwrap();
    }
    let expected = [[0, 1, 3].repeat(10), [2].repeat(10)].concat();
    assert!(got.iter().eq(expected.iter().map(|&at| &frames[at])));
}

#[test]
fn everything_that_the_ring_holds_is_sent_by_one_call_to_the_port() {
    for mode in [XdpMode::Drv, XdpMode::Skb] {
        let Some(net) = Net::new(1, 1500) else { return };
        let mut pool = pool(1024);
        let interface = net.open("va", mode).unwrap();
        let mut port = net.ports(&interface, &pool).remove(0);
        let received =
            || net.exec("a", "cat /sys/class/net/eth0/statistics/rx_packets").trim().parse::<usize>().unwrap();
        let before = received();
        let umem = Arc::clone(pool.umem());
        let mut frames: Vec<Frame> = (0..300).map(|_| pool.take().unwrap()).collect();
        for frame in &mut frames {
            frame.reset(60);
            umem.bytes_mut(frame).fill(0xff);
        }
        port.send(&mut frames).unwrap();
        assert_eq!(frames.len(), 300 - 256);
        port.service(&mut pool).unwrap();
        assert_eq!(received() - before, 256);
        port.send(&mut frames).unwrap();
        port.service(&mut pool).unwrap();
        assert_eq!((received() - before, frames.len()), (300, 0));
        port.close(&mut pool);
        assert_eq!(pool.available(), 1024);
    }
}

#[test]
fn packets_for_which_there_is_no_memory_are_counted() {
    let Some(net) = Net::new(1, 1500) else { return };
    // The last frames are reserved for the vswitch's own messages.
    let reserve = FramePool::RESERVE;
    let mut pool = pool(100 + u32::try_from(reserve).unwrap());
    let interface = net.open("va", XdpMode::Drv).unwrap();
    let mut port = net.ports(&interface, &pool).remove(0);
    port.service(&mut pool).unwrap();
    assert_eq!((port.lent(), pool.available()), (100, reserve));
    net.inside("a", || Generator::new("eth0", &[vec![0xff; 60]]).unwrap().send(150).unwrap());
    let expected = PortStatistics { fill_ring_empty: 50, ..PortStatistics::default() };
    while port.statistics().fill_ring_empty < 50 {}
    assert_eq!(port.statistics(), expected);
    let mut frames = Vec::new();
    port.receive(&mut frames, 1000).unwrap();
    assert_eq!(frames.len(), 100);
    pool.give_all(frames);
    port.close(&mut pool);
    assert_eq!((port.statistics(), pool.available()), (expected, 100 + reserve));
}

#[test]
fn an_interface_that_is_removed_is_told_and_every_frame_comes_back() {
    for idle in [true, false] {
        let Some(net) = Net::new(1, 1500) else { return };
        send_to(&net, "b", "eth0");
        let (interfaces, wire) = wired(&net, XdpMode::Drv, 2048);
        if !idle {
            net.exec("a", "ping -c 2 -i 0.01 -W 5 10.77.0.2");
        }
        assert!(interfaces.iter().all(Interface::is_alive));
        // Deletes the pod's end of the veth, as the deletion of a pod does.
        net.exec("b", "ip link del eth0");
        let done = wire.thread.join().unwrap();
        assert!(matches!(done.error, Some(PortError::Gone { .. })), "{:?}", done.error);
        assert_eq!(done.pool.available(), 2048);
        assert_eq!((interfaces[0].is_alive(), interfaces[1].is_alive()), (true, false));
    }
}

#[test]
fn an_interface_that_is_shut_down_is_told() {
    let Some(net) = Net::new(1, 1500) else { return };
    let (interfaces, wire) = wired(&net, XdpMode::Skb, 2048);
    net.exec("sw", "ip link set va down");
    let done = wire.thread.join().unwrap();
    assert!(matches!(done.error, Some(PortError::Gone { .. })), "{:?}", done.error);
    // The interface has the same index as before.
    assert!(interfaces.iter().all(Interface::is_alive));
    assert_eq!(done.pool.available(), 2048);
}

#[test]
fn every_queue_has_a_port_and_one_without_drops_what_comes() {
    let Some(net) = Net::new(2, 1500) else { return };
    // With the switch's own MAC address, its IP stack counts packets that pass the program.
    send_to(&net, "sw", "va");
    let mut pool = pool(2048);
    let interface = net.open("va", XdpMode::Drv).unwrap();
    let mut ports = net.ports(&interface, &pool);
    assert_eq!((interface.info().queues, ports.len()), (2, 2));
    ports.iter_mut().for_each(|port| port.service(&mut pool).unwrap());
    // 64 flows use both queues: the pod's kernel chooses the queue by a hash.
    let sockets: Vec<UdpSocket> =
        net.inside("a", || (0..64).map(|_| UdpSocket::bind("10.77.0.1:0").unwrap()).collect());
    let send = || sockets.iter().for_each(|socket| assert_eq!(socket.send_to(b"x", "10.77.0.2:5000").unwrap(), 1));
    send();
    let count = |port: &mut XskPort, pool: &mut FramePool| {
        let mut frames = Vec::new();
        port.receive(&mut frames, 1000).unwrap();
        let umem = Arc::clone(pool.umem());
        let count = frames.iter().filter(|frame| udp_payload(umem.bytes(frame), 5000).is_some()).count();
        pool.give_all(frames);
        port.service(pool).unwrap();
        count
    };
    let mut first = [0, 0];
    while first[0] + first[1] < 64 {
        ports.iter_mut().zip(&mut first).for_each(|(port, first)| *first += count(port, &mut pool));
    }
    assert!(first.iter().all(|&count| count > 0), "{first:?}");
    let before = net.seen_by_the_host();
    // The program drops packets of the queue without a port.
    ports.pop().unwrap().close(&mut pool);
    send();
    let mut again = 0;
    while again < first[0] {
        again += count(&mut ports[0], &mut pool);
    }
    ports.pop().unwrap().close(&mut pool);
    send();
    assert_eq!((again, net.seen_by_the_host()), (first[0], before));
    assert_eq!(pool.available(), 2048);
    // Without the program the packets reach the host: the count above does see them.
    drop(interface);
    send();
    while net.seen_by_the_host() < before + 64 {}
    assert_eq!(net.seen_by_the_host(), before + 64);
}

#[test]
fn a_queue_that_was_just_closed_can_be_opened_again_and_one_in_use_cannot() {
    let Some(net) = Net::new(1, 1500) else { return };
    let mut pool = pool(1024);
    let interface = net.open("va", XdpMode::Drv).unwrap();
    for _ in 0..20 {
        let mut port = net.ports(&interface, &pool).remove(0);
        port.service(&mut pool).unwrap();
        assert!(port.lent() > 0);
        port.close(&mut pool);
        assert_eq!((pool.available(), port.descriptor()), (1024, None));
    }
    let _port = net.ports(&interface, &pool).remove(0);
    let again = net.inside("sw", || interface.port(0, pool.umem(), SMALL)).unwrap_err();
    assert!(matches!(again, XskError::QueueBusy { queue: 0, .. }), "{again}");
    let elsewhere = net.inside("a", || interface.port(0, pool.umem(), SMALL)).unwrap_err().to_string();
    assert!(elsewhere.contains("different network namespaces"), "{elsewhere}");
    let none = net.inside("sw", || interface.port(1, pool.umem(), SMALL)).unwrap_err();
    assert!(matches!(none, XskError::NoQueue { queue: 1, queues: 1, .. }), "{none}");
}

#[test]
fn an_interface_that_is_down_or_absent_is_refused_with_a_remedy() {
    let Some(net) = Net::new(1, 1500) else { return };
    net.exec("sw", "ip link set va down");
    let down = net.open("va", XdpMode::Auto).unwrap_err().to_string();
    assert!(down.contains("ip link set va up"), "{down}");
    assert!(matches!(net.open("vz", XdpMode::Auto), Err(XskError::NoInterface { .. })));
    assert!(matches!(net.open("lo", XdpMode::Auto), Err(XskError::NotEthernet { .. })));
    net.exec("sw", "ip link add plain type bridge");
    net.exec("sw", "ip link set plain up");
    // A bridge has no driver mode.
    let refused = net.open("plain", XdpMode::Drv).unwrap_err();
    assert!(matches!(refused, XskError::ModeRefused { .. }), "{refused}");
    let auto = net.open("plain", XdpMode::Auto).unwrap();
    assert!(auto.mode() == XdpMode::Skb && auto.drv_refusal().is_some());
}

#[cfg(feature = "afxdp")]
mod afxdp_port {
    use bulkhead_dataplane::io::AfxdpPort;

    use super::*;

    fn wired(net: &Net, chunks: u32) -> (Vec<Arc<Interface>>, Wire) {
        let mut pool = pool(chunks);
        let open = |name| Arc::new(net.open(name, XdpMode::Auto).unwrap());
        let interfaces: Vec<Arc<Interface>> = ["va", "vb"].map(open).into();
        let port = |interface| net.inside("sw", || AfxdpPort::open(interface, 0, pool.umem(), SMALL).unwrap());
        let mut ports: Vec<Box<dyn Port>> = Vec::new();
        interfaces.iter().for_each(|interface| ports.push(Box::new(port(interface))));
        ports.iter_mut().for_each(|port| port.service(&mut pool).unwrap());
        (interfaces, Wire::start(pool, ports))
    }

    #[test]
    fn a_wire_of_the_crates_ports_carries_ping_and_tcp_and_leaves_no_program() {
        let Some(net) = Net::new(1, 1500) else { return };
        for _ in 0..2 {
            let (interfaces, wire) = wired(&net, 2048);
            net.exec("a", "ping -c 3 -i 0.01 -W 5 10.77.0.2");
            for pod in ["a", "b"] {
                net.inside(pod, || set_transmit_checksum_offload("eth0", false)).unwrap();
            }
            assert_eq!(tcp_transfer(&net, 20 << 20), 20 << 20);
            let done = wire.stop();
            assert!(done.error.is_none());
            assert_eq!(done.pool.available(), 2048);
            drop(interfaces);
            assert!(!net.exec("sw", "ip link").contains("xdp"));
        }
    }

    #[test]
    fn an_interface_that_is_removed_is_told_and_not_a_panic() {
        let Some(net) = Net::new(1, 1500) else { return };
        let (interfaces, wire) = wired(&net, 2048);
        net.exec("b", "ip link del eth0");
        let done = wire.thread.join().unwrap();
        assert!(matches!(done.error, Some(PortError::Gone { .. })), "{:?}", done.error);
        assert_eq!((done.pool.available(), interfaces[1].is_alive()), (2048, false));
    }
}
