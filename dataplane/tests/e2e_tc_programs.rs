//! The tc data path on real veths.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use std::sync::Arc;

use bulkhead_dataplane::io::{Frame, FramePool, Port, SlowPathLimit, TcAttachment, TcConfig, TcDatapath, XskPort};
use bulkhead_dataplane::{Affinity, PortKind};
use support::{Net, SMALL, pool};

struct Lab {
    net: Net,
    datapath: Arc<TcDatapath>,
    pool: FramePool,
    queues: Vec<XskPort>,
}

impl Lab {
    fn new(workers: u32) -> Option<Self> {
        let net = Net::new(1, 1500)?;
        let config = TcConfig {
            trunk: ["bh0".to_owned(), "bh1".to_owned()],
            affinity: Affinity::new(),
            workers,
            slow_path: SlowPathLimit::default(),
            links: true,
            pins: None,
        };
        let datapath = net.inside("sw", || TcDatapath::new(&config)).unwrap_or_else(|error| panic!("{error}"));
        let mut pool = pool(4096);
        let mut queues = net.inside("sw", || datapath.trunk_ports(pool.umem(), SMALL)).unwrap();
        queues.iter_mut().for_each(|queue| queue.service(&mut pool).unwrap());
        Some(Self { net, datapath, pool, queues })
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
