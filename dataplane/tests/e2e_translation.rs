//! Translated flows between the kernels of two pods: the kernels check the packets that the programs rewrite.
//! ```text
//!   a: eth0 ------ va [ program with the flows ] vb ------ b: eth0
//!    asks a VIP        |                         |           serves
//!                      `--> the test's worker <--'
//!                           SYN, FIN: translated; ICMP: unchanged
//! ```
//!
//! Needs root, `ip`, `ethtool`, `ping`, `socat` and `tcpdump`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::translate::{TCP, UDP, translated};
use crate::support::{Net, SMALL, pool, two_ports};
use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::io::{
    Away, CachedFlow, FlowLatch, FlowSlot, FlowStart, Frame, FramePool, Interface, KernelFlowCache, KernelFlows,
    LinkInfo, Port, SlowPathLimit, TcAttachment, TcConfig, TcDatapath, Translation, XdpMode, XskPort,
};
use bulkhead_dataplane::{Affinity, Flow, PortId, PortKind};

/// The node's MAC address on both pods' links.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0xff, 0];
/// Bytes that a client sends and receives: many packets of 64 KiB, in much less than a second.
const REQUEST: usize = 32 << 20;
const REPLY: usize = 4 << 20;
/// Time limit for answers, longer than any takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The path of packets between the pods.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// tc from pod to pod with the kernel's default offloads: unfinished checksums stay unfinished.
    Pods,
    /// tc, with checksums finished by the sending pods.
    Finished,
    /// tc, through interfaces without offloads: the kernel finishes checksums after the program, as on a physical link.
    Wire,
    Xdp,
}

/// The pods and the programs attached to their interfaces.
struct Lab {
    worker: Worker,
    attached: Attached,
    macs: [[u8; 6]; 2],
    net: Net,
}

struct Attached {
    flows: Arc<dyn KernelFlows>,
    slots: [FlowSlot; 2],
    /// The tags by which the worker distinguishes ports on the trunk. `None` with XDP.
    tags: Option<[FlowSlot; 2]>,
    _tc: Vec<TcAttachment>,
    _xdp: Vec<Interface>,
}

fn attach_tc(net: &Net, pool: &FramePool, kind: PortKind) -> (Attached, Vec<XskPort>) {
    let config = TcConfig {
        trunk: ["bh0".to_owned(), "bh1".to_owned()],
        affinity: Affinity::new(),
        workers: 1,
        slow_path: SlowPathLimit::default(),
        links: true,
        pins: None,
        away: Away { grace: Duration::ZERO, half_closed: Duration::ZERO, closed: Duration::ZERO },
    };
    net.inside("sw", || {
        let flows = TcDatapath::new(&config).unwrap();
        let mut tc = ["va", "vb"].map(|name| TcAttachment::new(&flows, name, kind).unwrap());
        tc.iter_mut().for_each(|port| port.open().unwrap());
        let slots = tc.each_ref().map(TcAttachment::slot);
        let ports = flows.trunk_ports(pool.umem(), SMALL).unwrap();
        (Attached { flows, slots, tags: Some(slots), _tc: tc.into(), _xdp: Vec::new() }, ports)
    })
}

fn attach_xdp(net: &Net, pool: &FramePool) -> (Attached, Vec<XskPort>) {
    net.inside("sw", || {
        let flows = KernelFlowCache::new().unwrap();
        let xdp = ["va", "vb"].map(|name| Interface::hold(name, XdpMode::Drv, Some(&flows)).unwrap());
        let ports = xdp.iter().map(|interface| interface.port(0, pool.umem(), SMALL).unwrap()).collect();
        let slots = xdp.each_ref().map(|interface| interface.slot().unwrap());
        for (interface, slot) in xdp.iter().zip(slots) {
            flows.reach(slot, Some(interface.info().index)).unwrap();
        }
        (Attached { flows, slots, tags: None, _tc: Vec::new(), _xdp: xdp.into() }, ports)
    })
}

/// One connection: the client's address, the VIP that it connects to, the client's address as the server sees it, and the server's address.
#[derive(Clone, Copy, Debug)]
struct Case {
    client: SocketAddr,
    vip: SocketAddr,
    seen: SocketAddr,
    server: SocketAddr,
}

const CASES: [([&str; 4], u16); 4] = [
    // DNAT only: requests change their destination, replies their source.
    (["10.77.0.1", "10.96.0.10", "10.77.0.1", "10.77.0.2"], 0),
    (["fd77::1", "fd96::10", "fd77::1", "fd77::2"], 1),
    // DNAT and SNAT.
    (["10.77.0.1", "10.96.0.10", "10.77.0.99", "10.77.0.2"], 2),
    (["fd77::1", "fd96::10", "fd77::99", "fd77::2"], 3),
];

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        CASES.into_iter().map(|(addresses, number)| {
            let [client, vip, seen, server] = addresses.map(|text| text.parse::<IpAddr>().unwrap());
            let (sport, is_same) = (40_000 + number, client == seen);
            Self {
                client: (client, sport).into(),
                vip: (vip, 80).into(),
                seen: (seen, if is_same { sport } else { 61_000 + number }).into(),
                server: (server, 8080 + number).into(),
            }
        })
    }

    /// The flows of both directions with their translations.
    fn flows(&self, protocol: u8) -> [(Flow, Translation); 2] {
        let Self { client, vip, seen, server } = *self;
        [[client, vip, seen, server], [server, seen, vip, client]].map(|[src, dst, new_src, new_dst]| {
            let ports = (src.port(), dst.port(), new_src.port(), new_dst.port());
            let [src, dst, new_src, new_dst] = [src, dst, new_src, new_dst].map(|end| end.ip());
            let flow = Flow { src, dst, protocol, sport: ports.0, dport: ports.1, icmp: None };
            (flow, Translation { src: new_src, dst: new_dst, sport: ports.2, dport: ports.3 })
        })
    }
}

impl Lab {
    fn new(way: Way) -> Option<Self> {
        let net = Net::new(1, 1500)?;
        let own = "lladdr 02:00:00:00:ff:00 dev eth0 nud permanent";
        for (pod, address) in [("a", "fd77::1"), ("b", "fd77::2")] {
            net.exec(
                pod,
                &format!("echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip addr add {address}/64 dev eth0 nodad"),
            );
        }
        net.exec("a", "ip route add 10.96.0.0/16 dev eth0; ip -6 route add fd96::/64 dev eth0");
        for (pod, others) in
            [("a", "10.96.0.10 10.77.0.2 fd96::10 fd77::2"), ("b", "10.77.0.1 10.77.0.99 fd77::1 fd77::99")]
        {
            net.exec(pod, &format!("for other in {others}; do ip neigh replace $other {own}; done"));
        }
        match way {
            Way::Pods => {}
            Way::Finished => ["a", "b"].iter().for_each(|pod| drop(net.exec(pod, "ethtool -K eth0 tx off"))),
            Way::Wire => drop(net.exec("sw", "ethtool -K va tx off; ethtool -K vb tx off")),
            Way::Xdp => ["a", "b"].iter().for_each(|pod| drop(net.exec(pod, "ethtool -K eth0 tx off gro on"))),
        }
        let macs = ["a", "b"].map(|pod| net.inside(pod, || LinkInfo::read("eth0").unwrap().mac));
        let pool = pool(4096);
        let (attached, ports) = match way {
            Way::Pods | Way::Finished => attach_tc(&net, &pool, PortKind::Pod),
            Way::Wire => attach_tc(&net, &pool, PortKind::Uplink),
            Way::Xdp => attach_xdp(&net, &pool),
        };
        attached.flows.enter(&two_ports());
        let known = Case::all().flat_map(|case| [TCP, UDP].map(|protocol| case.flows(protocol)));
        let switch =
            Switch { ports, pool, tags: attached.tags, macs, known: known.flatten().collect(), icmp: Vec::new() };
        let lab = Self { worker: Worker::start(switch), attached, macs, net };
        Case::all().for_each(|case| [TCP, UDP].iter().for_each(|&protocol| lab.add(&case, protocol)));
        Some(lab)
    }

    /// Adds the flows of both directions of a case to the kernel.
    fn add(&self, case: &Case, protocol: u8) {
        let Attached { flows, slots, .. } = &self.attached;
        for (from, (flow, translation)) in case.flows(protocol).into_iter().enumerate() {
            let (to, latch) = (1 - from, FlowLatch(1 + from as u16));
            let cached = CachedFlow {
                from: slots[from],
                to: slots[to],
                ports: [from, to].map(|at| PortId(at as u16)),
                epochs: [1, 1],
                moves: [0, 0],
                flow,
                received: rewrite::addresses(OWN_MAC, self.macs[from]),
                sent: rewrite::addresses(self.macs[to], OWN_MAC),
                is_hop: true,
                translation: Some(translation),
                longest: 1514,
                origin: None,
                lease: 600_000_000_000,
                timeout: 600_000_000_000,
                start: FlowStart::Latch(latch),
            };
            flows.add(&cached);
            assert!(flows.open(latch, None));
        }
    }

    /// Packets and bytes of one pod that the kernel has forwarded.
    fn forwarded(&self, from: usize) -> (u64, u64) {
        let traffic = self.attached.flows.traffic(self.attached.slots[from]);
        (traffic.received, traffic.received_bytes)
    }

    /// Transfers data over TCP in both directions, and checks the peer address that each end sees.
    fn talk_tcp(&self, case: &Case) {
        let before = self.forwarded(0);
        // Makes the kernel choose this client port.
        let port = case.client.port();
        self.net.exec("a", &format!("echo {port} {port} > /proc/sys/net/ipv4/ip_local_port_range"));
        let listener = self.net.inside("b", || TcpListener::bind(case.server).unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let received = stream.read_to_end(&mut Vec::new()).unwrap();
            stream.write_all(&vec![7; REPLY]).unwrap();
            (peer, received)
        });
        let connect =
            || TcpStream::connect_timeout(&case.vip, PATIENCE).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let mut client = self.net.inside("a", connect);
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        assert_eq!((client.local_addr().unwrap(), client.peer_addr().unwrap()), (case.client, case.vip));
        client.write_all(&vec![5; REQUEST]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let replied = client.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!((server.join().unwrap(), replied), ((case.seen, REQUEST), REPLY), "{case:?}");
        let forwarded = self.forwarded(0).1 - before.1;
        assert!(forwarded > REQUEST as u64 * 9 / 10, "{case:?}: the kernel forwards it: {forwarded} bytes");
    }

    /// Waits until the kernel forwards no more packets, and returns each pod's count. The last packets of a TCP connection arrive after
    /// both programs have finished.
    fn settled(&self) -> [u64; 2] {
        const QUIET: Duration = Duration::from_millis(30);
        let read = || [0, 1].map(|from| self.forwarded(from).0);
        let mut last = read();
        loop {
            std::thread::sleep(QUIET);
            match read() {
                now if now == last => return now,
                now => last = now,
            }
        }
    }

    /// Exchanges datagrams, and checks the peer address that each end sees.
    fn talk_udp(&self, case: &Case) {
        const DATAGRAMS: usize = 100;
        let before = self.settled();
        let [client, server] = [("a", case.client), ("b", case.server)].map(|(pod, address)| {
            let socket = self.net.inside(pod, || UdpSocket::bind(address).unwrap());
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        });
        for number in 0..DATAGRAMS {
            let (payload, mut received) = (vec![number as u8; 1 + number * 14], [0; 2000]);
            client.send_to(&payload, case.vip).unwrap();
            let (len, peer) = server.recv_from(&mut received).unwrap();
            assert_eq!((&received[..len], peer), (&payload[..], case.seen));
            server.send_to(&received[..len], peer).unwrap();
            let (len, peer) = client.recv_from(&mut received).unwrap();
            assert_eq!((&received[..len], peer), (&payload[..], case.vip));
        }
        let forwarded = [0, 1].map(|from| self.forwarded(from).0);
        assert_eq!(forwarded, before.map(|before| before + DATAGRAMS as u64), "{case:?}: the kernel forwards them");
    }

    /// Sends zeros with socat and a socket option. Returns the lengths of the first `count` datagrams that the server receives.
    fn send_udp(&self, case: &Case, len: usize, option: &str, count: usize) -> Vec<usize> {
        let server = self.net.inside("b", || UdpSocket::bind(case.server).unwrap());
        let family = if case.vip.is_ipv4() { 4 } else { 6 };
        let Case { client, vip, .. } = case;
        let address = format!("UDP{family}:{vip},bind={client},setsockopt-int={option}");
        self.net.exec("a", &format!("socat -u -b {len} OPEN:/dev/zero,readbytes={len} '{address}'"));
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        (0..count).map(|_| server.recv(&mut [0; 9000]).unwrap_or_else(|error| panic!("{case:?}: {error}"))).collect()
    }

    /// A pod's packets with wrong checksums, over all protocols.
    fn checksum_errors(&self, pod: &str) -> u64 {
        let text = self.net.exec(pod, "cat /proc/net/snmp");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let pairs = lines.chunks(2).flat_map(|pair| pair[0].iter().zip(&pair[1]));
        let four = pairs.filter(|(name, _)| **name == "InCsumErrors").map(|(_, count)| *count);
        let text = self.net.exec(pod, "cat /proc/net/snmp6");
        let lines = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
        let six = lines.filter(|(name, _)| name.ends_with("InCsumErrors")).map(|(_, count)| count.trim());
        let counts: Vec<u64> = four.chain(six).map(|count| count.parse().unwrap()).collect();
        assert!(counts.len() >= 5, "{counts:?}");
        counts.iter().sum()
    }

    fn all_talk(&self) {
        for case in Case::all() {
            self.talk_tcp(&case);
            self.talk_udp(&case);
        }
        assert_eq!(["a", "b"].map(|pod| self.checksum_errors(pod)), [0, 0]);
    }
}

/// Forwards the packets that reach the test's worker.
struct Switch {
    ports: Vec<XskPort>,
    pool: FramePool,
    tags: Option<[FlowSlot; 2]>,
    macs: [[u8; 6]; 2],
    known: Vec<(Flow, Translation)>,
    /// The destinations of all ICMP packets.
    icmp: Vec<IpAddr>,
}

impl Switch {
    /// Forwards the waiting packets. Returns whether any were waiting.
    fn poll(&mut self) -> bool {
        let (mut frames, mut received): (Vec<Frame>, _) = (Vec::new(), Vec::new());
        for (at, port) in self.ports.iter_mut().enumerate() {
            port.receive(&mut frames, 64).unwrap();
            received.extend(frames.iter().map(|frame| (at, self.pool.umem().bytes(frame).to_vec())));
            self.pool.give_all(frames.drain(..));
            port.service(&mut self.pool).unwrap();
        }
        for (at, bytes) in &received {
            let (from, frame) = match self.tags {
                None => (*at, bytes.clone()),
                Some(tags) => {
                    assert_eq!(bytes[12..14], [0x88, 0xa8]);
                    let tag = FlowSlot(u16::from_be_bytes([bytes[14], bytes[15]]));
                    (tags.iter().position(|&known| known == tag).unwrap(), [&bytes[..12], &bytes[16..]].concat())
                }
            };
            // Broadcasts and multicasts are not forwarded.
            if frame.starts_with(&OWN_MAC) {
                let frame = self.judge(&frame);
                self.send(1 - from, &frame);
            }
        }
        !received.is_empty()
    }

    /// Translates a frame for the other pod, except for its MAC addresses.
    fn judge(&mut self, frame: &[u8]) -> Vec<u8> {
        let address = |at: usize| -> IpAddr {
            match frame[12] {
                0x08 => <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into(),
                _ => <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap().into(),
            }
        };
        let (protocol, src, dst, at) = match frame[12..14] {
            [0x08, 0x00] => (frame[23], address(26), address(30), 34),
            [0x86, 0xdd] => (frame[20], address(22), address(38), 54),
            _ => return frame.to_vec(),
        };
        if matches!(protocol, 1 | 58) {
            self.icmp.push(dst);
        }
        if !matches!(protocol, TCP | UDP) {
            return frame.to_vec();
        }
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let flow = Flow { src, dst, protocol, sport: port(at), dport: port(at + 2), icmp: None };
        let known = self.known.iter().find(|(known, _)| *known == flow);
        known.map_or_else(|| frame.to_vec(), |(_, translation)| translated(frame, translation))
    }

    fn send(&mut self, to: usize, frame: &[u8]) {
        let addresses = rewrite::addresses(self.macs[to], OWN_MAC);
        let (port, bytes) = match self.tags {
            None => (to, [&addresses[..], &frame[12..]].concat()),
            Some(tags) => (0, [&addresses[..], &[0x88, 0xa8], &tags[to].0.to_be_bytes(), &frame[12..]].concat()),
        };
        let mut frame = self.pool.take().unwrap();
        frame.reset(bytes.len());
        self.pool.umem().bytes_mut(&mut frame).copy_from_slice(&bytes);
        let mut frames = vec![frame];
        self.ports[port].send(&mut frames).unwrap();
        self.pool.give_all(frames);
        self.ports[port].service(&mut self.pool).unwrap();
    }
}

/// A thread that runs the switch.
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Switch>>,
}

impl Worker {
    fn start(mut switch: Switch) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                if !switch.poll() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            switch
        };
        Self { stop, thread: Some(std::thread::spawn(work)) }
    }

    fn end(&mut self) -> Option<Switch> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Ports must close before their interfaces.
        if let Some(mut switch) = self.end() {
            switch.ports.iter_mut().for_each(|port| port.close(&mut switch.pool));
        }
    }
}

/// A tcpdump in a pod that ends after a given number of packets.
struct Dump(Child);

impl Dump {
    fn start(net: &Net, pod: &str, count: u32, filter: &str) -> Self {
        let command = format!("exec timeout 20 tcpdump -i eth0 -nn -c {count} '{filter}'");
        let mut child = Command::new("ip")
            .args(["netns", "exec", &net.name(pod), "sh", "-c", &command])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with("listening on")));
        // tcpdump prints statistics at its end, which need a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self(child)
    }

    /// Waits for tcpdump. Returns whether it saw all packets before its timeout.
    fn finish(mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

#[test]
fn segments_of_64_kib_stay_whole_from_a_pod_through_a_vip_to_a_pod() {
    let Some(lab) = Lab::new(Way::Pods) else { return };
    for case in Case::all() {
        let filter = format!("tcp dst port {} and greater 20000", case.server.port());
        let dump = Dump::start(&lab.net, "b", 5, &filter);
        lab.talk_tcp(&case);
        assert!(dump.finish(), "packets of more than 20,000 bytes arrive whole: {case:?}");
        lab.talk_udp(&case);
    }
    assert_eq!(["a", "b"].map(|pod| lab.checksum_errors(pod)), [0, 0]);
}

#[test]
fn a_kernel_finishes_checksums_of_translated_packets_right() {
    let Some(lab) = Lab::new(Way::Wire) else { return };
    lab.all_talk();
}

#[test]
fn checksums_that_a_pod_has_finished_stay_right() {
    let Some(lab) = Lab::new(Way::Finished) else { return };
    lab.all_talk();
}

#[test]
fn xdp_programs_translate_between_kernels() {
    let Some(lab) = Lab::new(Way::Xdp) else { return };
    lab.all_talk();
}

#[test]
fn datagrams_without_a_checksum_and_datagrams_in_one_packet_arrive() {
    for way in [Way::Pods, Way::Wire, Way::Finished, Way::Xdp] {
        let Some(lab) = Lab::new(way) else { return };
        for case in Case::all() {
            // Option 17:103 is UDP_SEGMENT.
            assert_eq!(lab.send_udp(&case, 5000, "17:103:1000", 5), [1000; 5], "{way:?} {case:?}");
            if case.vip.is_ipv4() {
                let dump = Dump::start(&lab.net, "b", 1, "udp[6:2] = 0");
                // Option 1:11 is SO_NO_CHECK.
                assert_eq!(lab.send_udp(&case, 700, "1:11:1", 1), [700], "{way:?} {case:?}");
                assert!(dump.finish(), "{way:?}: no checksum is none behind the program");
            }
        }
        assert_eq!(["a", "b"].map(|pod| lab.checksum_errors(pod)), [0, 0]);
    }
}

#[test]
fn icmp_between_the_addresses_of_a_translated_flow_comes_to_the_worker_as_it_was() {
    for way in [Way::Pods, Way::Xdp] {
        let Some(mut lab) = Lab::new(way) else { return };
        for (server, vip) in [("10.77.0.2", "10.96.0.10"), ("fd77::2", "fd96::10")] {
            lab.net.exec("a", &format!("ping -c 2 -W 10 {server}"));
            lab.net.exec("a", &format!("ping -c 1 -W 1 {vip} || true"));
        }
        assert_eq!([0, 1].map(|from| lab.forwarded(from).0), [0, 0]);
        let seen = lab.worker.end().unwrap().icmp;
        let count = |address: &str| seen.iter().filter(|&&seen| seen == address.parse::<IpAddr>().unwrap()).count();
        let asked = ["10.77.0.2", "10.96.0.10", "fd77::2", "fd96::10"].map(count);
        assert_eq!(asked, [2, 1, 2, 1], "{seen:?}");
        // No pod has the VIP, and a kernel may answer with an ICMP error to the client.
        assert!(["10.77.0.1", "fd77::1"].map(count).iter().all(|&answers| answers >= 2), "{seen:?}");
    }
}
