//! The tc data path on real veths.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test may panic and print, and its numbers are small"
)]

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::io::{
    CachedFlow, FlowCache, FlowLatch, FlowStart, Frame, FramePool, KernelFlows, LinkInfo, Port, SlowPathLimit,
    TcAttachment, TcConfig, TcDatapath, XskPort, remove_tc_datapath, tc_programs,
};
use bulkhead_dataplane::{Affinity, PortId, PortKind};
use support::translate::{Random, TCP, UDP, checksum_at, translated};
use support::{Net, SMALL, pool, run, two_ports};

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
        let config = TcConfig {
            trunk: trunk(),
            affinity: Affinity::new(),
            workers,
            slow_path: SlowPathLimit::default(),
            links: true,
            pins,
        };
        let datapath = net.inside("sw", || TcDatapath::new(&config)).unwrap_or_else(|error| panic!("{error}"));
        let mut pool = pool(4096);
        let mut queues = net.inside("sw", || datapath.trunk_ports(pool.umem(), SMALL)).unwrap();
        queues.iter_mut().for_each(|queue| queue.service(&mut pool).unwrap());
        Self { net, datapath, pool, queues }
    }

    /// As when the process ends.
    fn end(self) -> Net {
        self.net
    }

    fn attach(&self, name: &str) -> TcAttachment {
        let datapath = &self.datapath;
        self.net.inside("sw", || TcAttachment::new(datapath, name, PortKind::Pod)).unwrap()
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        std::thread::sleep(std::time::Duration::from_millis(50));
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
        let cached = CachedFlow {
            from: a.slot(),
            to: b.slot(),
            ports: [PortId(0), PortId(1)],
            epochs: [1, 1],
            moves: [0, 0],
            flow,
            received,
            sent,
            is_hop,
            translation,
            longest: 1514,
            origin: None,
            lease: 60_000_000_000,
            start: FlowStart::Latch(FlowLatch(7)),
        };
        lab.datapath.add(&cached);
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
                // EINVAL: before Linux 6.13.
                Err(error) => assert_eq!(error.raw_os_error(), Some(22), "{flow:?} -> {translation:?}: {error}"),
            }
        }
    }
    assert!(zeros >= 4000, "checksums that are or become 0: {zeros}");
    println!("{summed} packets with a sum beside them");
}

/// A BPF file system of the test's own.
struct BpfFileSystem(PathBuf);

impl BpfFileSystem {
    fn mount(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        run(&["mount", "-t", "bpf", "bpf", path.to_str().unwrap()]);
        Self(path)
    }

    /// What vswitches have left. The kernel has files of its own there.
    fn folders(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.is_dir()).collect()
    }

    /// Makes what a process has left that of one with another layout.
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
                port.use_link().unwrap();
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
