//! The tc programs on real veths.

mod away;
mod handshake;
mod nodes;
mod world;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::translate::{Random, TCP, UDP, checksum_at, translated};
use crate::support::{Net, SMALL, pool, run, two_ports};
use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::io::{
    Away, CachedFlow, FirstNumbers, FlowCache, FlowHandshake, FlowLatch, FlowSlot, FlowStart, Frame, FramePool,
    Initiator, KernelFlows, LinkInfo, NodeHop, Port, SlowPathLimit, TcAttachment, TcConfig, TcDatapath, XskPort,
    remove_node_programs, remove_tc_datapath, tc_programs,
};
use bulkhead_dataplane::{Affinity, Flow, PortId, PortKind};

/// Flows outlast the workers, and end soon.
const AWAY: Away = Away {
    grace: Duration::from_secs(12),
    half_closed: Duration::from_millis(1600),
    closed: Duration::from_millis(800),
};

fn trunk() -> [String; 2] {
    ["bh0".to_owned(), "bh1".to_owned()]
}

struct Lab {
    net: Net,
    datapath: Arc<TcDatapath>,
    pool: FramePool,
    queues: Vec<XskPort>,
}

impl Lab {
    fn new(workers: u32) -> Option<Self> {
        Net::new(1, 1500).map(|net| Self::on(net, workers, None))
    }

    fn on(net: Net, workers: u32, pins: Option<PathBuf>) -> Self {
        Self::limited(net, workers, pins, SlowPathLimit::default())
    }

    fn limited(net: Net, workers: u32, pins: Option<PathBuf>, slow_path: SlowPathLimit) -> Self {
        let config =
            TcConfig { trunk: trunk(), affinity: Affinity::new(), workers, slow_path, links: true, pins, away: AWAY };
        let datapath = net.inside("sw", || TcDatapath::new(&config)).unwrap_or_else(|error| panic!("{error}"));
        let mut pool = pool(4096);
        let mut queues = net.inside("sw", || datapath.trunk_ports(pool.umem(), SMALL)).unwrap();
        queues.iter_mut().for_each(|queue| queue.service(&mut pool).unwrap());
        Self { net, datapath, pool, queues }
    }

    /// Detaches everything, as the end of the process does.
    fn end(self) -> Net {
        self.net
    }

    fn attach(&self, name: &str) -> TcAttachment {
        let datapath = &self.datapath;
        self.net.inside("sw", || TcAttachment::new(datapath, name, PortKind::Pod)).unwrap()
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        std::thread::sleep(Duration::from_millis(50));
        let mut frames: Vec<Frame> = Vec::new();
        for queue in &mut self.queues {
            queue.receive(&mut frames, 256).unwrap();
            queue.service(&mut self.pool).unwrap();
        }
        let all = frames.iter().map(|frame| self.pool.umem().bytes(frame).to_vec()).collect();
        self.pool.give_all(frames);
        all
    }
}

/// An untranslated flow from one slot to another, of the ports 0 and 1, for a minute, with frames of up to 1514 bytes. Its latch, which is closed, has
/// the number 7.
fn cached([from, to]: [FlowSlot; 2], flow: Flow) -> CachedFlow {
    CachedFlow {
        from,
        to,
        ports: [PortId(0), PortId(1)],
        epochs: [1, 1],
        moves: [0, 0],
        flow,
        received: *b"abcdefghijkl",
        sent: *b"ABCDEFGHIJKL",
        is_hop: false,
        translation: None,
        longest: 1514,
        origin: None,
        lease: 60_000_000_000,
        timeout: 60_000_000_000,
        start: FlowStart::Latch(FlowLatch(7)),
    }
}

#[test]
fn what_no_flow_covers_comes_to_the_trunk_with_its_ports_tag_and_back() {
    let Some(mut lab) = Lab::new(2) else { return };
    let mut a = lab.attach("va");
    lab.net.exec("a", "ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev eth0");
    lab.net.exec("a", "ping -c 1 -W 1 10.77.0.2 || true");
    assert!(lab.received().is_empty(), "the port is closed");
    assert!(lab.datapath.closed_drops() > 0);
    lab.net.inside("sw", || a.open()).unwrap();
    lab.net.exec("a", "ping -c 1 -W 1 10.77.0.2 || true");
    let frames = lab.received();
    let tag: [u8; 4] = frames[0][12..16].try_into().unwrap();
    assert_eq!((&tag[..2], u16::from_be_bytes([tag[2], tag[3]])), (&[0x88, 0xa8][..], a.slot().0));
    assert!(!frames.is_empty());
    assert_eq!(lab.net.seen_by_the_host(), 0);
}

#[test]
fn a_translated_flow_leaves_with_its_addresses_ports_and_right_checksums_also_the_one_beside_the_packet() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut a, mut b) = (lab.attach("va"), lab.attach("vb"));
    lab.net.inside("sw", || [&mut a, &mut b].map(|port| port.open().unwrap()));
    lab.datapath.enter(&two_ports());
    let interface = lab.net.inside("sw", || LinkInfo::read("va").unwrap().index);
    let [received, sent] =
        [[1, 2], [3, 4]].map(|[to, from]| rewrite::addresses([2, 0, 0, 0, 0, to], [2, 0, 0, 0, 0, from]));
    let run = |bytes: &[u8], is_summed| lab.net.inside("sw", || lab.datapath.run(interface, bytes, is_summed));
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut zeros, mut summed) = (0, 0);
    for round in 0..4000 {
        let (flow, new) = random.flow(round % 2 == 0, if round % 4 < 2 { UDP } else { TCP });
        let (is_hop, translation) = (round % 8 < 4, (round % 16 < 12).then_some(new));
        let cached = cached([a.slot(), b.slot()], flow);
        lab.datapath.add(&CachedFlow { received, sent, is_hop, translation, ..cached });
        assert!(lab.datapath.open(FlowLatch(7), None));
        for bytes in random.frames(&flow, &new, &received) {
            let mut expected = translation.map_or_else(|| bytes.clone(), |new| translated(&bytes, &new));
            let at = checksum_at(&expected);
            zeros += usize::from(matches!(expected[at..at + 2], [0, 0] | [0xff, 0xff]));
            if is_hop {
                assert!(rewrite::hop(&mut expected, &sent));
            } else {
                rewrite::ethernet(&mut expected, &sent);
            }
            assert_eq!(run(&bytes, false).unwrap(), expected, "{flow:?} -> {translation:?}");
            match run(&bytes, true) {
                Ok(with_sum) => {
                    summed += 1;
                    assert_eq!(with_sum, expected, "{flow:?} -> {translation:?}");
                }
                // Before Linux 6.13, the kernel answers EINVAL.
                Err(error) => assert_eq!(error.raw_os_error(), Some(22), "{flow:?} -> {translation:?}: {error}"),
            }
        }
    }
    assert!(zeros >= 4000, "checksums that are or become 0: {zeros}");
    println!("{summed} packets with a sum beside them");
}

/// Two pods that talk UDP over a flow in the kernel.
struct Talk {
    lab: Lab,
    flow: CachedFlow,
    client: UdpSocket,
    server: UdpSocket,
    _ports: [TcAttachment; 2],
}

impl Talk {
    /// Adds a flow with this lease and opens its latch.
    fn new(lease: Duration) -> Option<Self> {
        Self::limited(lease, SlowPathLimit::default())
    }

    fn limited(lease: Duration, limit: SlowPathLimit) -> Option<Self> {
        let lab = Lab::limited(Net::new(1, 1500)?, 1, None, limit);
        let (mut a, mut b) = (lab.attach("va"), lab.attach("vb"));
        lab.net.inside("sw", || [&mut a, &mut b].map(|port| port.open().unwrap()));
        lab.datapath.enter(&two_ports());
        let gateway = [2, 0, 0, 0, 0, 2];
        lab.net.exec("a", "ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev eth0");
        let mac = |pod: &str| -> [u8; 6] {
            let text = lab.net.exec(pod, "cat /sys/class/net/eth0/address");
            let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
            bytes.collect::<Vec<_>>().try_into().unwrap()
        };
        let ends = Flow {
            src: "10.77.0.1".parse().unwrap(),
            dst: "10.77.0.2".parse().unwrap(),
            protocol: UDP,
            sport: 5000,
            dport: 6000,
            icmp: None,
        };
        let lease = lease.as_nanos() as u64;
        let flow = CachedFlow {
            received: rewrite::addresses(gateway, mac("a")),
            sent: rewrite::addresses(mac("b"), gateway),
            is_hop: true,
            lease,
            timeout: lease,
            ..cached([a.slot(), b.slot()], ends)
        };
        let socket = |pod: &str, address: &str| lab.net.inside(pod, || UdpSocket::bind(address).unwrap());
        let (client, server) = (socket("a", "10.77.0.1:5000"), socket("b", "10.77.0.2:6000"));
        client.connect("10.77.0.2:6000").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        lab.datapath.add(&flow);
        assert!(lab.datapath.open(FlowLatch(7), Some(0)));
        Some(Self { lab, flow, client, server, _ports: [a, b] })
    }

    /// Sends a datagram. Returns whether the other pod received it, and the worker's packets: each tag's control word, and the packet
    /// without its tag.
    fn send(&mut self) -> (bool, Vec<(u16, Vec<u8>)>) {
        self.client.send(b"hello").unwrap();
        let arrives = self.server.recv(&mut [0; 8]).is_ok();
        let frames = self.lab.received().into_iter();
        let control = |frame: &[u8]| u16::from_be_bytes([frame[14], frame[15]]);
        let parts = frames.map(|frame| (control(&frame), [&frame[..12], &frame[16..]].concat()));
        (arrives, parts.collect())
    }
}

#[test]
fn a_flow_that_is_in_use_asks_to_be_renewed_with_a_copy_and_is_forwarded_meanwhile() {
    const LEASE: Duration = Duration::from_secs(4);
    let Some(mut talk) = Talk::new(LEASE) else { return };
    let started = Instant::now();
    let slot = talk.flow.from;
    let until = |part: u32| std::thread::sleep((started + LEASE * part / 16).saturating_duration_since(Instant::now()));
    assert_eq!(talk.send(), (true, vec![]), "at first there is nothing to ask");
    let counted = |talk: &Talk| talk.lab.datapath.traffic(slot).received;
    assert_eq!(counted(&talk), 1);
    // At 14/16 the lease's last eighth begins, in which the program sends copies for renewal.
    until(14);
    std::thread::sleep(Duration::from_millis(20));
    let (arrives, copies) = talk.send();
    let [(tag, packet)] = &copies[..] else { panic!("{copies:?}") };
    assert!(arrives, "the packet itself goes on");
    assert_eq!(*tag, slot.0 | 0x1000, "the port's tag says that it is a copy");
    assert_eq!(packet[..12], talk.flow.received, "as it came");
    assert_eq!(packet[22], 64, "with all its hops");
    assert_eq!(&packet[42..47], b"hello");
    assert_eq!(counted(&talk), 1, "the worker that gets the copy counts the packet");
    assert_eq!(talk.send(), (true, vec![]), "once");
    assert_eq!(counted(&talk), 2);
    // Without a renewal, the program sends the next copy after half of the remaining lease.
    until(15);
    std::thread::sleep(Duration::from_millis(20));
    let (arrives, copies) = talk.send();
    assert!(arrives && copies.len() == 1, "{copies:?}");
    // A renewal changes only the lease: the latch stays the same, even if the renewed flow names another one.
    assert!(talk.lab.datapath.renew(&CachedFlow { start: FlowStart::Latch(FlowLatch(8)), ..talk.flow }));
    until(17);
    assert_eq!(talk.send(), (true, vec![]), "it has another lease");
    assert_eq!(counted(&talk), 3);
    assert_eq!(talk.lab.net.seen_by_the_host(), 0);
}

#[test]
fn what_has_ended_is_not_renewed() {
    let Some(mut talk) = Talk::new(Duration::from_secs(60)) else { return };
    let datapath = Arc::clone(&talk.lab.datapath);
    assert!(datapath.renew(&talk.flow));
    assert!(!datapath.renew(&CachedFlow { is_hop: false, ..talk.flow }), "another way");
    assert!(!datapath.renew(&CachedFlow { epochs: [1, 2], ..talk.flow }), "another policy");
    datapath.moved(PortId(1));
    let moved = CachedFlow { moves: [0, 1], ..talk.flow };
    assert!(!datapath.renew(&moved), "packets of it may be on their way to a worker");
    let (arrives, left) = talk.send();
    assert!(!arrives && left.len() == 1, "{left:?}");
    assert_eq!(left[0].0, talk.flow.from.0, "no copy");
    datapath.add(&moved);
    assert!(datapath.open(FlowLatch(7), Some(0)));
    assert_eq!(talk.send(), (true, vec![]));
    assert!(
        !datapath.renew(&CachedFlow { flow: Flow { sport: 5001, ..talk.flow.flow }, ..moved }),
        "nobody has added it"
    );
}

/// Copies count against the port's slow path limit. A port that has used up its limit sends no copies, and its flows stay in the cache.
#[test]
fn copies_are_counted_as_what_a_port_sends_to_the_workers() {
    let limit = SlowPathLimit { rate: 1, burst: 1 };
    let Some(mut talk) = Talk::limited(Duration::from_millis(800), limit) else { return };
    std::thread::sleep(Duration::from_millis(720));
    // Packets without a flow use up the port's limit.
    let flood = talk.lab.net.inside("a", || UdpSocket::bind("10.77.0.1:5001").unwrap());
    for _ in 0..4 {
        flood.send_to(b"flood", "10.77.0.2:6000").unwrap();
    }
    let (arrives, to_workers) = talk.send();
    assert!(arrives);
    assert!(to_workers.iter().all(|(tag, _)| *tag == talk.flow.from.0), "{to_workers:?}");
    let traffic = talk.lab.datapath.traffic(talk.flow.from);
    assert!(traffic.limited > 0 && traffic.received == 1, "{traffic:?}");
}

/// A BPF file system mounted by the test.
struct BpfFileSystem(PathBuf);

impl BpfFileSystem {
    fn mount(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        run(&["mount", "-t", "bpf", "bpf", path.to_str().unwrap()]);
        Self(path)
    }

    /// The folders that vswitches have pinned. The kernel's own entries are files.
    fn folders(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.is_dir()).collect()
    }

    /// Renames the pinned folder to that of a version with another layout.
    fn age(&self) {
        let folders = self.folders();
        let [folder] = &folders[..] else { panic!("{folders:?}") };
        let (_, namespace) = folder.file_name().unwrap().to_str().unwrap().split_once('-').unwrap();
        std::fs::rename(folder, self.0.join(format!("v1-{namespace}"))).unwrap();
    }
}

impl Drop for BpfFileSystem {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(&self.0).output());
        drop(std::fs::remove_dir(&self.0));
    }
}

#[test]
fn what_a_process_with_another_layout_has_left_is_detached_by_the_next_one_and_by_a_cleanup() {
    let Some(net) = Net::new(1, 1500) else { return };
    let bpf = BpfFileSystem::mount("bulkhead-layouts");
    let leave = |net: Net| {
        let lab = Lab::on(net, 1, Some(bpf.0.clone()));
        let mut port = lab.attach("va");
        lab.net.inside("sw", || {
            port.open().unwrap();
            while port.wants_links() {
                port.use_links().unwrap();
            }
        });
        lab.datapath.stay();
        lab.end()
    };
    let attached = |net: &Net| net.inside("sw", || tc_programs(LinkInfo::read("va").unwrap().index).unwrap().len());
    let net = leave(net);
    assert_eq!(attached(&net), 2, "a link at each hook");
    bpf.age();
    let lab = Lab::on(net, 1, Some(bpf.0.clone()));
    assert_eq!(lab.datapath.left_open(), 0, "nothing to take over");
    let port = lab.attach("va");
    assert_eq!(attached(&lab.net), 4, "what was left goes when all ports are attached again");
    lab.net.inside("sw", || lab.datapath.close_left());
    assert_eq!(attached(&lab.net), 2);
    drop(port);
    let net = leave(lab.end());
    bpf.age();
    assert!(net.inside("sw", || remove_tc_datapath(&trunk(), Some(&bpf.0))).unwrap());
    assert_eq!((attached(&net), bpf.folders()), (0, Vec::new()));
}

#[test]
fn links_at_cards_outlive_the_process_and_are_adopted_or_detached_by_the_next_one() {
    let Some(net) = Net::new(2, 1500) else { return };
    let bpf = BpfFileSystem::mount("bulkhead-cards");
    let [first, second] = ["va", "vb"].map(|name| net.inside("sw", || LinkInfo::read(name).unwrap().index));
    let attached = |net: &Net, card: u32| net.inside("sw", || tc_programs(card).unwrap());
    let links = |net: &Net| {
        [first, second].map(|card| attached(net, card).iter().filter_map(|at| at.link).collect::<Vec<u32>>())
    };
    let lead = |lab: &Lab, card: u32| {
        let world = NodeHop::World { interface: card, masqueraded: card, mtu: 1500 };
        let others = [("0.0.0.0/0".parse().unwrap(), world)].into();
        let datapath = &lab.datapath;
        lab.net.inside("sw", || datapath.lead_to_nodes(&[], &[], &others, None)).unwrap();
    };
    let leave = |lab: Lab| {
        lab.datapath.stay();
        lab.end()
    };
    let start = |net: Net| Lab::on(net, 1, Some(bpf.0.clone()));
    let lab = start(net);
    lead(&lab, first);
    let left = links(&lab.net);
    assert_eq!(left.each_ref().map(Vec::len), [1, 0], "a link alone");
    assert_eq!(attached(&lab.net, first).len(), 1, "and no filter");
    let lab = start(leave(lab));
    lead(&lab, first);
    assert_eq!(links(&lab.net), left, "the same link");
    let lab = start(leave(lab));
    lead(&lab, second);
    assert_eq!(links(&lab.net).map(|links| links.len()), [0, 1], "nobody wants the first one's");
    let net = leave(lab);
    bpf.age();
    let lab = start(net);
    assert!(attached(&lab.net, second).is_empty(), "another layout's flows are not forwarded");
    lead(&lab, second);
    let net = leave(lab);
    assert_eq!(net.inside("sw", || remove_node_programs(Some(&bpf.0))).unwrap(), 1);
    assert!(attached(&net, second).is_empty());
    let lab = start(net);
    lead(&lab, second);
    let net = lab.end();
    assert!(attached(&net, second).is_empty(), "an orderly end leaves nothing");
}
